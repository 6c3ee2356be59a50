//! `reference`: hidden; what the documentation and the packages are made with.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ReferenceArgs {
    /// Write manual pages into this folder, in the place of the page on stdout
    #[arg(long, value_name = "DIR")]
    pub man: Option<PathBuf>,
}
