//! `backup`: a copy of the database.

use super::value::reason;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
The copy is one moment's state, checked with SQLite's integrity_check on the scheduler's host and by its SHA-256 here. FILE
appears when it is complete. It holds all secrets of the cluster, so it is readable by you alone. How to go back to it:
docs/operations.md. It needs an admin token, and as much free space beside the database as that has.

Examples:
  systole backup systole-$(date +%F).db
  systole backup - | zstd > systole.db.zst

On PostgreSQL nothing is copied; the line for pg_dump is printed.")]
pub struct BackupArgs {
    /// Where the copy is written on this machine; `-`: to stdout
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    pub force: bool,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}
