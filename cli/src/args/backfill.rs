//! `backfill`: fires that did not happen.

use super::value::{count, reason, since, word};
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Each fire that was skipped or coalesced, or that lies before the trigger was made, gets a task with
its scheduled time unchanged, oldest first. What fired is left out: systole rerun runs tasks again. By
default its runs take the places of the job that nobody waits for; with --max-concurrent they have
places of their own.

Its tasks are a batch: systole ls --batch backfill-3, systole wait --batch backfill-3,
systole rerun --batch backfill-3 --failed.

Examples:
  systole backfill etl.load --from 2027-01-01T00:00:00Z --to 2027-01-31T23:59:59Z --dry-run
  systole backfill etl.load --from -48h --to -1h --max-concurrent 4 --yes
  systole backfill cancel 3"
)]
pub struct BackfillArgs {
    #[command(subcommand)]
    pub action: Option<BackfillAction>,
    #[command(flatten)]
    pub run: Option<BackfillRunArgs>,
}

#[derive(Debug, Subcommand)]
pub enum BackfillAction {
    /// List backfills, newest first, with what became of their tasks
    Ls {
        /// Only of this job
        #[arg(value_name = "JOB", value_parser = word)]
        job: Option<String>,
    },
    /// Make no more tasks, and cancel those that wait or run
    Cancel {
        /// The number of the backfill
        #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
        id: i64,
        /// What runs or waits goes on
        #[arg(long)]
        keep_tasks: bool,
        /// Why, for those who read it later
        #[arg(long, value_name = "R", value_parser = reason)]
        reason: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct BackfillRunArgs {
    /// The job
    #[arg(value_name = "JOB", value_parser = word)]
    pub job: String,
    /// Scheduled from this time on, or from so long ago, such as 48h
    #[arg(long, value_name = "TIME|DURATION", value_parser = since, allow_hyphen_values = true)]
    pub from: i64,
    /// Scheduled up to this time, which is included
    #[arg(long, value_name = "TIME|DURATION", value_parser = since, allow_hyphen_values = true)]
    pub to: i64,
    /// Only of this trigger
    #[arg(long, value_name = "T", value_parser = word)]
    pub trigger: Option<String>,
    /// So many at once, beside the runs of the job itself, 1 to 100000
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_concurrent: Option<u64>,
    /// Only say what would be made up
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}
