//! Child processes: prepared ([`prepare`], [`confine`], [`run_as`]), started ([`spawn`], by [`fork`]), their output sent off ([`output`]).
//! They are watched and ended by `warden`.

pub mod confine;
pub mod fork;
pub mod output;
pub mod prepare;
pub mod run_as;
pub mod spawn;
