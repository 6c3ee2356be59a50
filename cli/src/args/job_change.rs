//! Options of the commands that change a job, compare its versions, or have it run.

use super::value::{ahead, count, env_var, key, reason, time, version, word};
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Opens the definition in $VISUAL or $EDITOR. What is saved is checked and stored, unless somebody
changed the job meanwhile. What you typed is never lost: where it is not stored, its file is kept
and named. A job that comes from a file becomes `overridden`: it stays as you made it until its
file changes, or until `job restore`.

Exit status: 0 stored or nothing changed, 2 what was typed is wrong, 4 refused.")]
pub struct JobEditArgs {
    /// Name of the job
    #[arg(value_name = "JOB", value_parser = word)]
    pub job: String,
    /// Edit this file, which an earlier edit left behind, in place of the definition that is stored
    #[arg(long, value_name = "FILE")]
    pub resume: Option<std::path::PathBuf>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Asks for one run of each job, by the rules of its triggers, and does not wait: any runner takes it
when its turn comes. Prints the ids of the tasks. `job trigger` runs one job and waits for its end.

Examples:
  systole job enqueue nightly-backup
  systole job enqueue etl.extract etl.check -d table=quotes --reason 'backfill of May'")]
pub struct JobEnqueueArgs {
    /// Names of the jobs
    #[arg(value_name = "JOB", required = true, value_parser = word)]
    pub jobs: Vec<String>,
    /// With the data and the priority of this trigger
    #[arg(long, value_name = "NAME", value_parser = word)]
    pub trigger: Option<String>,
    /// A value over the data of job and trigger; a value that is JSON is taken as JSON
    #[arg(short, long = "data", value_name = "KEY=VALUE", value_parser = env_var)]
    pub data: Vec<(String, String)>,
    /// The scheduled time that the command is told [default: now]
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub scheduled: Option<i64>,
    /// A repeated call with the same key asks for each job once
    #[arg(long, value_name = "K", value_parser = key)]
    pub key: Option<String>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without versions: what was changed by hand since the file, or, where nothing was, what the last
change did.
`job history JOB --versions` lists the versions.

Examples:
  systole job diff nightly-backup        what was changed by hand, or by the last change
  systole job diff nightly-backup 1 3    from version 1 to version 3; --from 1 --to 3 is the same

Exit status: 0 the same, 10 there are differences.")]
pub struct JobDiffArgs {
    /// Name of the job, which may have been deleted
    #[arg(value_name = "JOB", value_parser = word)]
    pub job: String,
    /// From this version, as --from
    #[arg(value_name = "FROM", value_parser = version, conflicts_with = "from")]
    pub older: Option<i64>,
    /// To this version, as --to
    #[arg(value_name = "TO", value_parser = version, conflicts_with = "to")]
    pub newer: Option<i64>,
    /// From this version [default: the file's, or the one before]
    #[arg(long, value_name = "V", value_parser = version)]
    pub from: Option<i64>,
    /// To this version [default: the newest]
    #[arg(long, value_name = "V", value_parser = version)]
    pub to: Option<i64>,
}

impl JobDiffArgs {
    /// From and to, however they were given.
    pub fn versions(&self) -> (Option<i64>, Option<i64>) {
        (self.older.or(self.from), self.newer.or(self.to))
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Pauses stay, and so does the progress of triggers that do not change.

Examples:
  systole job restore nightly-backup               give up what was changed by hand for its file
  systole job restore nightly-backup --version 3   as it was then, also if it was deleted since

Exit status: 0 done, 3 no such job, version or file, 4 refused, 10 a dry run found changes.")]
pub struct JobRestoreArgs {
    /// Names of the jobs
    #[arg(value_name = "JOB", required = true, value_parser = word)]
    pub jobs: Vec<String>,
    /// The definition that had this version; of one job
    #[arg(long, value_name = "V", value_parser = version)]
    pub version: Option<i64>,
    /// Only if the job still has this version; of one job
    #[arg(long, value_name = "V", value_parser = version)]
    pub plan_version: Option<i64>,
    /// Only print what would change
    #[arg(long)]
    pub dry_run: bool,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct NextArgs {
    /// Only of this job
    #[arg(long, value_name = "JOB", value_parser = word, conflicts_with = "runner")]
    pub job: Option<String>,
    /// Only of jobs that this host could be given, as it is now: what it would miss while it is away
    #[arg(long, value_name = "HOST", value_parser = super::value::host)]
    pub runner: Option<String>,
    /// Until this time, or for this long from now [default: 24h]
    #[arg(long, value_name = "TIME|DURATION", value_parser = ahead, allow_hyphen_values = true)]
    pub until: Option<i64>,
    /// At most this many, up to 1000
    #[arg(short = 'n', value_name = "N", default_value = "20", value_parser = count)]
    pub limit: u64,
}
