//! `ls`, `show`, `logs`, `wait` and `cancel`: tasks that exist.

use super::value::{count, duration, lines, reason, since, state, target, task_id, time, word};
use clap::Args;
use std::time::Duration;
use systole_shared::id::Target;
use systole_shared::task::TaskState;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole ls
  systole ls --state failed --since -12h
  systole ls --runner db-01 --state running,terminating -o id
  systole ls --tag nightly -o jsonl | jq .outcome.exit_code

A table shows the newest 20 unless -n says otherwise; json, jsonl and id show all.")]
pub struct LsArgs {
    /// Only these states, repeatable or separated by commas
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = state)]
    pub state: Vec<TaskState>,
    /// Only tasks of this job
    #[arg(long, value_name = "JOB", value_parser = word)]
    pub job: Option<String>,
    /// Only tasks of this host or slot
    #[arg(long, value_name = "HOST[/SLOT]", value_parser = target)]
    pub runner: Option<Target>,
    /// Only tasks with this tag
    #[arg(long, value_name = "T", value_parser = word)]
    pub tag: Option<String>,
    /// Only tasks of this name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Submitted at or after this time
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub since: Option<i64>,
    /// Submitted before this time
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    pub until: Option<i64>,
    /// At most this many
    #[arg(short = 'n', value_name = "N", value_parser = count)]
    pub limit: Option<u64>,
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
    #[arg(value_name = "TASK", value_parser = task_id, allow_negative_numbers = true)]
    pub task: i64,
    /// Go on until the task has ended
    #[arg(short, long)]
    pub follow: bool,
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
that of `systole run`; with several it is 0 if all succeeded, else 1. When --timeout is over: 1.")]
pub struct WaitArgs {
    /// Ids of the tasks
    #[arg(value_name = "TASK", required = true, value_parser = task_id, allow_negative_numbers = true)]
    pub tasks: Vec<i64>,
    /// Longest wait
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Wait for exactly these tasks, not for their retries
    #[arg(long)]
    pub exact: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Cancels the live attempt of each task's chain, so that no retry follows; --exact acts on the id alone."
)]
pub struct CancelArgs {
    /// Ids of the tasks
    #[arg(value_name = "TASK", required = true, value_parser = task_id, allow_negative_numbers = true)]
    pub tasks: Vec<i64>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
    /// Cancel exactly these tasks
    #[arg(long)]
    pub exact: bool,
}
