//! Job files that somebody named.

use crate::failure::Failure;
use std::path::PathBuf;
use systole_shared::job::file::Set;

pub use systole_scheduler::job_files::{check, read_text};

/// Reads files and folders. What is wrong within a file is in the set; a path that is not there is a failure.
pub fn read(paths: &[PathBuf]) -> Result<Set, Failure> {
    systole_scheduler::job_files::read(paths).map_err(Failure::usage)
}
