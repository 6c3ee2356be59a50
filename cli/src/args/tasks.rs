//! `ls`, `show`, `logs`, `wait`, `cancel` and `rerun`: tasks that exist.

use super::filter::FilterArgs;
use super::value::{count, duration, lines, reason, since, task_id, word};
use clap::Args;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole ls
  systole ls --state failed --since -12h
  systole ls --runner db-01 --state running,terminating -o id
  systole ls --batch b-3f2a91c07d --joblog > joblog.tsv
  systole ls --tag nightly -o jsonl | jq .outcome.exit_code

A table shows the newest 20 unless -n says otherwise; json, jsonl and id show all.")]
pub struct LsArgs {
    #[command(flatten)]
    pub filter: FilterArgs,
    /// At most this many
    #[arg(short = 'n', value_name = "N", value_parser = count)]
    pub limit: Option<u64>,
    /// The ended tasks as the tab-separated job log that GNU parallel writes; of a chain the last attempt
    #[arg(long)]
    pub joblog: bool,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Id of the task
    #[arg(value_name = "TASK", value_parser = task_id, allow_negative_numbers = true)]
    pub task: i64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The program's stdout goes to stdout and its stderr to stderr; --stderr writes its stderr alone, to
stdout. --tail counts the lines of each stream for itself; a last line without a newline is one
too. With --follow it begins with those lines and goes on.

A runner looks at the output of its tasks five times a second, and when they end: so exact are the times of
--timestamps and --since. They are UTC, by the clock of the database; `-` is not known.

Of a stream that is longer than the task's --output-max, head and tail are stored; a line on stderr says at its
place how much is missing between. --full fetches that from the runner, which keeps it for a while (24 hours,
unless its --keep-output says otherwise); with --timestamps its lines have no times.

On a terminal, control characters other than newline, tab and carriage return are shown (`^[`,
`^G`, `\\x9b`), not obeyed; colours pass, and bytes that are no text become U+FFFD. Through a pipe or
into a file every byte is as the program wrote it.")]
pub struct LogsArgs {
    /// Id of the task
    #[arg(value_name = "TASK", required_unless_present = "batch", value_parser = task_id, allow_negative_numbers = true)]
    pub task: Option<i64>,
    /// Of each task of this batch, one after the other
    #[arg(long, value_name = "BATCH", value_parser = word, conflicts_with_all = ["task", "follow", "tail"])]
    pub batch: Option<String>,
    /// Go on until the task has ended, and with its retries
    #[arg(short, long)]
    pub follow: bool,
    /// Follow exactly this task, not its retries
    #[arg(long, requires = "follow")]
    pub exact: bool,
    /// Only the last N lines of what is stored
    #[arg(short = 'n', long, value_name = "N", value_parser = lines, allow_negative_numbers = true)]
    pub tail: Option<u64>,
    /// Only what was written since this time, or within this last while, such as 10m
    #[arg(long, value_name = "TIME|D", value_parser = since, allow_hyphen_values = true, conflicts_with = "tail")]
    pub since: Option<i64>,
    /// All of the output: what is not stored is fetched from the runner that ran the task, while it has it
    #[arg(long)]
    pub full: bool,
    /// Each line with the time when the runner saw it
    #[arg(short, long)]
    pub timestamps: bool,
    /// Only what the program wrote to stderr (written to stdout)
    #[arg(long)]
    pub stderr: bool,
    /// Write every byte as it is to a terminal too: for output that you trust
    #[arg(long)]
    pub raw: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Waits for the last attempt of each task: a retry is part of the wait. With one task the exit status is
that of `systole run`; with several, or a batch, it is 0 if all succeeded, else 1. With --any it is that
of the first that ends. When --timeout is over: 1.")]
pub struct WaitArgs {
    /// Ids of the tasks
    #[arg(value_name = "TASK", required_unless_present = "batch", value_parser = task_id, allow_negative_numbers = true)]
    pub tasks: Vec<i64>,
    /// All tasks of this batch, however many
    #[arg(long, value_name = "BATCH", value_parser = word, conflicts_with_all = ["tasks", "any", "exact"])]
    pub batch: Option<String>,
    /// Until one of them has ended
    #[arg(long)]
    pub any: bool,
    /// Longest wait
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Wait for exactly these tasks, not for their retries
    #[arg(long)]
    pub exact: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Cancels the live attempt of each task's chain, so that no retry follows; --exact acts on the id alone.
With conditions in place of ids it says how many there are and asks; --yes does not ask.

Examples:
  systole cancel 17 18 --reason \"wrong month\"
  systole cancel --job etl.extract --state QUEUED
  systole cancel --batch b-3f2a91c07d --dry-run")]
pub struct CancelArgs {
    /// Ids of the tasks
    #[arg(value_name = "TASK", required_unless_present = "FilterArgs", conflicts_with = "FilterArgs", value_parser = task_id, allow_negative_numbers = true)]
    pub tasks: Vec<i64>,
    #[command(flatten)]
    pub filter: FilterArgs,
    #[command(flatten)]
    pub many: ManyArgs,
    /// Cancel exactly these tasks
    #[arg(long, conflicts_with = "FilterArgs")]
    pub exact: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Submits tasks that have ended once more, as they were, as new tasks that start at once. Tasks of a batch
become a new batch. With conditions it takes the last attempt of each chain, says how many there are
and asks; --yes does not ask.

Examples:
  systole rerun 17
  systole rerun --batch b-3f2a91c07d --failed
  systole rerun --failed --since -12h --job etl.extract --reason \"disk was full\"")]
pub struct RerunArgs {
    /// Ids of the tasks
    #[arg(value_name = "TASK", required_unless_present_any = ["FilterArgs", "failed"], conflicts_with_all = ["FilterArgs", "failed"], value_parser = task_id, allow_negative_numbers = true)]
    pub tasks: Vec<i64>,
    /// Only tasks that failed
    #[arg(long, conflicts_with = "state")]
    pub failed: bool,
    #[command(flatten)]
    pub filter: FilterArgs,
    #[command(flatten)]
    pub many: ManyArgs,
}

/// For commands that change many tasks at once.
#[derive(Debug, Args)]
pub struct ManyArgs {
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}
