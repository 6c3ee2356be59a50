//! Options of `systole job`.

use super::job_change::{JobDiffArgs, JobEditArgs, JobEnqueueArgs, JobRestoreArgs};
use super::value::{ahead, count, env_var, key, reason, since, time, version, word};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole job init nightly-backup         start a job file
  systole job check jobs/                 is it right? for editors and CI; asks no scheduler
  systole job apply -f jobs/ --dry-run    what would change; without --dry-run it does
  systole job trigger nightly-backup      run it now, with its output and exit code
  systole job edit nightly-backup         change it in your editor
  systole job history nightly-backup      what became of each expected fire

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
    /// Store what files say, and print the plan: what is new, what changes, when it fires then
    Apply(JobApplyArgs),
    /// List jobs
    Ls(JobLsArgs),
    /// Show everything about one job, and its definition
    Show(JobShowArgs),
    /// Change the definition in your editor
    Edit(JobEditArgs),
    /// Stop firing, until somebody resumes it or a time comes
    Pause(JobPauseArgs),
    /// Fire again
    Resume(JobResumeArgs),
    /// Run a job now, follow its output, and end with its exit code
    #[command(alias = "run")]
    Trigger(JobTriggerArgs),
    /// Ask for one run of each job, and do not wait for it
    Enqueue(JobEnqueueArgs),
    /// List what became of each expected fire, newest first; or the versions of the definition
    History(JobHistoryArgs),
    /// Compare two versions, or the job with its file
    Diff(JobDiffArgs),
    /// Go back to what the file says, or to an older version
    Restore(JobRestoreArgs),
    /// List the fires to come
    Next(JobNextArgs),
    /// Delete jobs
    Rm(JobRmArgs),
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
#[command(after_help = "\
The plan: + new, ~ changed (with each field, and the next fires before and after), ! changed by hand since (the change stays, unless
--restore), - in no file any more (goes on firing, unless --prune), = unchanged.

What is wrong in a file is said and left out; the rest is applied. With --prune nothing is applied then.

Exit status: 0 done, 2 something is wrong, 4 refused, 10 with --dry-run: there are changes.")]
pub struct JobApplyArgs {
    /// Job files, or folders of them; - is TOML on stdin
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    pub files: Vec<PathBuf>,
    /// Only print the plan
    #[arg(long)]
    pub dry_run: bool,
    /// Delete jobs that came from files and are in none of these any more; give the whole folder
    #[arg(long)]
    pub prune: bool,
    /// Give up changes that were made by hand for what the files say
    #[arg(long)]
    pub restore: bool,
    /// Only if the job still has this version, as a dry run showed it (0: there is none). JOB=V, repeatable; V where
    /// there is one job
    #[arg(long, value_name = "[JOB=]V", value_parser = plan_version)]
    pub plan_version: Vec<(Option<String>, i64)>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct JobLsArgs {
    /// Only jobs whose name begins with this
    #[arg(value_name = "PREFIX", value_parser = word)]
    pub prefix: Option<String>,
    /// Only paused ones, or with a paused trigger
    #[arg(long)]
    pub paused: bool,
    /// Only those that need a person: a trigger in ERROR, or a run that was never seen ended
    #[arg(long)]
    pub in_trouble: bool,
}

#[derive(Debug, Args)]
pub struct JobShowArgs {
    /// Name of the job
    #[arg(value_name = "JOB", value_parser = word)]
    pub job: String,
}

#[derive(Debug, Args)]
pub struct JobPauseArgs {
    /// Jobs, or single triggers
    #[arg(value_name = "JOB[/TRIGGER]", required = true, value_parser = job_or_trigger)]
    pub names: Vec<String>,
    /// Resume by itself then: a time, or a duration from now
    #[arg(long, value_name = "TIME|DURATION", value_parser = ahead, allow_hyphen_values = true)]
    pub until: Option<i64>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "Nothing that was due while it was paused is made up.")]
pub struct JobResumeArgs {
    /// Jobs, or single triggers
    #[arg(value_name = "JOB[/TRIGGER]", required = true, value_parser = job_or_trigger)]
    pub names: Vec<String>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Runs the job once, now, by the rules of its triggers: it may have to wait for a run before it. The output comes as it is
written, and the exit status is that of the command, as with `systole run`. Ctrl-C cancels it.

Examples:
  systole job trigger nightly-backup
  systole job run etl.extract -d table=quotes --scheduled 2027-01-30T01:15:00-05:00")]
pub struct JobTriggerArgs {
    /// Name of the job
    #[arg(value_name = "JOB", value_parser = word)]
    pub job: String,
    /// With the data and the priority of this trigger
    #[arg(long, value_name = "NAME", value_parser = word)]
    pub trigger: Option<String>,
    /// A value over the data of job and trigger; a value that is JSON is taken as JSON
    #[arg(short, long = "data", value_name = "KEY=VALUE", value_parser = env_var)]
    pub data: Vec<(String, String)>,
    /// The scheduled time that the command is told [default: now]
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub scheduled: Option<i64>,
    /// Print the id of the task and go
    #[arg(long)]
    pub detach: bool,
    /// A repeated call with the same key runs it once
    #[arg(long, value_name = "K", value_parser = key)]
    pub key: Option<String>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct JobHistoryArgs {
    /// Name of the job
    #[arg(value_name = "JOB", value_parser = word)]
    pub job: String,
    /// Only of this trigger
    #[arg(long, value_name = "NAME", value_parser = word)]
    pub trigger: Option<String>,
    /// Scheduled at or after this time, or within this last while, such as 2h
    #[arg(long, value_name = "TIME|DURATION", value_parser = since, allow_hyphen_values = true)]
    pub since: Option<i64>,
    /// Scheduled before this time, or longer ago than a while, such as 2h
    #[arg(long, value_name = "TIME|DURATION", value_parser = since, allow_hyphen_values = true)]
    pub until: Option<i64>,
    /// Only fired, coalesced or skipped ones
    #[arg(long, value_name = "VERDICT", value_parser = ["fired", "coalesced", "skipped"])]
    pub verdict: Option<String>,
    /// At most this many [default: 20 in a table, else all]
    #[arg(short = 'n', value_name = "N", value_parser = count)]
    pub limit: Option<u64>,
    /// List the versions of the definition instead: who changed what, when and why
    #[arg(long, conflicts_with_all = ["trigger", "since", "until", "verdict"])]
    pub versions: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "What runs goes on; what waits for its turn is cancelled. Its history stays.")]
pub struct JobRmArgs {
    /// Names of the jobs
    #[arg(value_name = "JOB", required = true, value_parser = word)]
    pub names: Vec<String>,
    /// Only if the job still has this version; of one job
    #[arg(long, value_name = "V", value_parser = version)]
    pub plan_version: Option<i64>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct JobNextArgs {
    /// Only of this job
    #[arg(value_name = "JOB", value_parser = word)]
    pub job: Option<String>,
    /// Until this time, or for this long from now [default: 24h]
    #[arg(long, value_name = "TIME|DURATION", value_parser = ahead, allow_hyphen_values = true)]
    pub until: Option<i64>,
    /// At most this many, up to 1000
    #[arg(short = 'n', value_name = "N", default_value = "20", value_parser = count)]
    pub limit: u64,
}

pub(super) fn job_or_trigger(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        Some((job, trigger)) => word(job).and_then(|_| word(trigger)),
        None => word(text),
    }
    .map(|_| text.to_owned())
}

/// `V`, or `JOB=V`. On the wire, "there is none" is -1.
fn plan_version(text: &str) -> Result<(Option<String>, i64), String> {
    let (job, number) = match text.split_once('=') {
        Some((job, number)) => (Some(word(job)?), number),
        None => (None, text),
    };
    match number.parse::<i64>() {
        Ok(0) => Ok((job, -1)),
        Ok(version) if version > 0 => Ok((job, version)),
        _ => Err(format!("{number:?} is no version of a job; write 0 or more")),
    }
}
