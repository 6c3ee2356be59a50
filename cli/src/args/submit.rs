//! `submit`: one task, or many at once.

use super::TaskArgs;
use super::value::key;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole submit --queue batch --require gpu=1 --at 02:30 -- python /srv/train.py
  systole submit --unique nightly-report -- report-all     not twice while one waits or runs
  ls *.csv | sed 's/^/gzip -k /' | systole submit --batch - --here --name gzip
  systole submit --batch tasks.jsonl --retry 2

A line of --batch is a text for /bin/sh -c, or a JSON object that begins with {\" and has `command` (an
array) or `shell`, and any of name, queue, require, tags, runner, priority, at, delay, env, dir, timeout,
queue_timeout, start_timeout, silence_timeout, warn_signal, warn_before, kill_signal, kill_grace, retry,
retry_delay, callback, limits, umask, user, group, env_file. Options given here count for all lines that do not say
otherwise. Empty lines and lines that begin with # are left out. Wrong lines are named and not sent.
`ls`, `wait`, `logs`, `cancel` and `rerun` take the batch with --batch.

With --key K the batch is K, and giving the same lines again adds only those that are not stored yet.")]
pub struct SubmitArgs {
    #[command(flatten)]
    pub task: TaskArgs,
    /// Many tasks, one a line of this file; - is stdin
    #[arg(long, value_name = "FILE|-", group = "what")]
    pub batch: Option<PathBuf>,
    /// Nothing new while a task with this key waits or runs
    #[arg(long, value_name = "KEY", value_parser = key, conflicts_with = "batch")]
    pub unique: Option<String>,
}
