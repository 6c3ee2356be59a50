//! The scheduler: everything that decides. See `ARCHITECTURE.md` for the map.

pub mod config;
pub mod store;
