//! The scheduler: everything that decides. See `ARCHITECTURE.md` for the map.

mod app;
pub mod auth;
mod clock;
pub mod config;
pub mod context;
pub mod flow;
mod grpc;
mod http;
mod lanes;
pub mod loops;
mod parked;
pub mod store;
mod wake;

pub use app::{Running, StartError, start};
pub use auth::TokenFiles;
