//! What every service takes.

use clap::{Args, ValueEnum};

#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// How the log on stderr is written; SYSTOLE_LOG sets what is in it (default: info)
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}
