//! Jobs: named definitions that make tasks. Pure: what is stored and what fires is decided elsewhere.
//!
//! [`definition`] is what stands in files and is stored; it compiles ([`compile`]) to a [`Job`], whose tasks are made
//! ([`task`]) of its template, of merged [`data`] and of [`template`]s in its command. [`diff`] compares two
//! definitions, [`retry`] is what follows a failure,
//! [`route`] where runs go. [`file`] reads files of them, [`write`] makes
//! one, [`import`] reads what they were before, [`schema`] is for editors. [`ring`] finds jobs that start each other.

pub mod compile;
pub mod data;
pub mod definition;
pub mod diff;
pub mod file;
pub mod import;
pub mod retry;
pub mod ring;
pub mod route;
pub mod schema;
pub mod task;
pub mod template;
pub mod write;

pub use compile::{Blocking, Job};
pub use definition::{Group, JobSpec};
pub use retry::RetryPolicy;
