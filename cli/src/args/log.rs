//! What every service takes.

use clap::{Args, ValueEnum};

#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// How the log on stderr is written; SYSTOLE_LOG sets what is in it (default: info)
    #[arg(long, alias = "log", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// A line for each step of each task, with its id; to find one: grep 'task_id=42\b'
    #[arg(long)]
    pub log_tasks: bool,
}

impl LogArgs {
    /// The same options for another process.
    pub fn line(&self) -> Vec<String> {
        let format = match self.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        let mut line = vec![format!("--log-format={format}")];
        if self.log_tasks {
            line.push("--log-tasks".to_owned());
        }
        line
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}
