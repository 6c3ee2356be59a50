//! The pure domain of systole: ids, states, decisions, limits and the error catalogue.
//!
//! Everything here is a value or a function of values. Nothing does I/O, and only [`clock`] reads a
//! clock; the dependency list (no tokio, sqlx, tonic, axum or nix) enforces it. `scheduler` and
//! `runner` make happen what the functions here decide.

pub mod alarm;
pub mod clock;
pub mod error;
pub mod heartbeat;
pub mod id;
pub mod job;
pub mod json;
pub mod limits;
pub mod locale;
pub mod near;
pub mod plural;
pub mod policy;
pub mod secret;
pub mod task;
pub mod time;
pub mod trigger;
