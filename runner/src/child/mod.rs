//! Child processes: prepared ([`prepare`], [`bounded`], [`confine`], [`run_as`], [`env_file`]), started ([`spawn`], by [`fork`]), their output sent off ([`output`]; of a [`terminal`], brought into a file first).
//! They are watched and ended by `warden`.

pub mod bounded;
pub mod confine;
pub mod env_file;
pub mod fork;
mod marks;
pub mod output;
pub mod prepare;
pub mod refusal;
pub mod run_as;
pub mod spawn;
pub mod terminal;
