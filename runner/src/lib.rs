//! The runner: takes tasks from schedulers and supervises one child process per slot.

pub mod config;
