//! Child processes: prepared ([`prepare`]), started ([`spawn`] and [`fork`] on [`threads`]), watched
//! until their true end ([`supervise`]), stopped ([`stop`]), their output sent off ([`output`]).
//! Must not know of beats and seqs; the agent of the slot does.

pub mod fork;
pub mod output;
pub mod prepare;
pub mod spawn;
pub mod stop;
pub mod supervise;
pub mod threads;
