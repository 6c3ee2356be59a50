//! Child processes: prepared ([`prepare`]), started ([`spawn`], by [`fork`]), their output sent off ([`output`]).
//! They are watched and ended by `warden`.

pub mod fork;
pub mod output;
pub mod prepare;
pub mod spawn;
