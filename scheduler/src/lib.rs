//! The scheduler: everything that decides. See `ARCHITECTURE.md` for the map.

pub mod ahead;
mod app;
pub mod auth;
pub mod clock;
pub mod config;
pub mod context;
pub mod flow;
mod grpc;
mod http;
mod http_client;
pub mod job_files;
pub mod lanes;
mod locale;
pub mod loops;
pub mod metrics;
pub mod parked;
pub mod store;
mod task_log;
pub mod tls;
pub mod wake;

pub use app::{Running, StartError, start};
pub use auth::TokenFiles;
