//! Options of `systole job` and `systole import`.

use super::value::{host, word};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole job init nightly-backup         start a job file
  systole job check jobs/                 is it right? for editors and CI; asks no scheduler

The fields of a job file: docs/jobs.md, and docs/job.schema.json for editors.")]
pub struct JobArgs {
    #[command(subcommand)]
    pub action: JobAction,
}

#[derive(Debug, Subcommand)]
pub enum JobAction {
    /// Start a job file with one job
    Init(JobInitArgs),
    /// Check job files without a scheduler: what is wrong, with line and column, and when the jobs will fire
    Check(JobCheckArgs),
}

#[derive(Debug, Args)]
pub struct JobInitArgs {
    /// Name of the job, `[a-z0-9._-]`
    #[arg(value_name = "NAME", value_parser = word)]
    pub name: String,
    /// The new file; - is stdout [default: NAME.toml]
    #[arg(short, long, value_name = "PATH")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A folder stands for all .toml, .yaml and .yml files in it and below. All files of one call belong together: calendars
and groups of one are known in the others.

Exit status: 0 all right, 2 something is wrong.")]
pub struct JobCheckArgs {
    /// Job files, or folders of them
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    #[command(subcommand)]
    pub action: ImportAction,
}

#[derive(Debug, Subcommand)]
pub enum ImportAction {
    /// Turn crontabs into a job file on stdout; its jobs are paused
    Crontab(ImportCrontabArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crontab -l | systole import crontab - > jobs/ann.toml
  systole import crontab /etc/crontab /etc/cron.d/* --runner db-01 --prefix db-01. > jobs/db-01.toml
  systole job check jobs/db-01.toml

Each line becomes a job or is refused with the reason; both are said. Jobs are paused, so that cron and systole do not
both run them: take a line out of the crontab, apply the file, resume the job.

Exit status: 0 every line became a job, 1 some did not.")]
pub struct ImportCrontabArgs {
    /// Crontabs; - is stdin
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Lines have a column with the user; known of /etc/crontab and of files in /etc/cron.d
    #[arg(long)]
    pub system: bool,
    /// Zone of the machine that they are from [default: this machine's]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Only this host runs the jobs
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub runner: Option<String>,
    /// Put this before each name, such as db-01.
    #[arg(long, value_name = "P", default_value = "", value_parser = prefix)]
    pub prefix: String,
}

fn prefix(text: &str) -> Result<String, String> {
    match text {
        "" => Ok(String::new()),
        text => word(text),
    }
}
