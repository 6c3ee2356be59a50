//! `run` and `submit`: what a task is made of.

use super::value::{
    coming, duration, env_var, group, key, label, nice, one_of, open_files, pids, positive_duration, priority, reason,
    retries, target, traceparent, umask, user, word,
};
use clap::{ArgGroup, Args};
use std::ffi::OsString;
use std::time::Duration;
use systole_shared::id::Target;
use systole_shared::task::limits::{parse_bytes, parse_cpus};
use systole_shared::task::output::OnLimit;
use systole_shared::task::signal::parse_signal;
use systole_shared::task::spec::{OnDisconnect, OnRunnerRestart};

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").args(["command", "shell"]).required(true),
    after_help = "\
Examples:
  systole run -- echo hello
  systole run --shell 'sort data.csv | uniq -c' --here
  systole run --here --timeout 5m --retry 1 --retry-delay 10s -- ./ingest \"28 Nov\"
  systole submit --queue batch --require gpu=1 --at 02:30 -- python /srv/train.py

Arguments reach the program exactly as given; only --shell goes through a shell (/bin/sh -c).
The program gets a clean environment, an empty stdin and a fresh directory, unless --env, --dir or --here say otherwise.
What is piped into `systole run` does not reach it: let it read a file.
It finds SYSTOLE_TASK_ID, _ATTEMPT, _NAME, _JOB, _HOST, _SLOT, _RUNNER, _SCHEDULED_TIME and _FENCING_TOKEN, and TMPDIR.
With -o json, jsonl or id, `run` writes the program's output to stderr and its own answer to stdout."
)]
pub struct TaskArgs {
    /// Program and arguments, after --
    #[arg(last = true, value_name = "PROG ARG", num_args = 1..)]
    pub command: Vec<OsString>,
    /// A text for /bin/sh -c, instead of a program
    #[arg(long, value_name = "TEXT")]
    pub shell: Option<String>,
    /// A name for people [default: the program's file name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Queue to wait in [default: default]
    #[arg(long, value_name = "Q", value_parser = word)]
    pub queue: Option<String>,
    /// A label that the runner must have, repeatable
    #[arg(long, value_name = "K=V", value_parser = label)]
    pub require: Vec<(String, String)>,
    /// A word to find the task by, repeatable
    #[arg(long = "tag", value_name = "T", value_parser = word)]
    pub tags: Vec<String>,
    /// Only this host, or this slot of it
    #[arg(long, value_name = "HOST[/SLOT]", value_parser = target)]
    pub runner: Option<Target>,
    /// 0 to 9, higher first [default: 5]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = priority)]
    pub priority: Option<u32>,
    /// Not before this time
    #[arg(long, value_name = "TIME", value_parser = coming, allow_hyphen_values = true, conflicts_with = "delay")]
    pub at: Option<i64>,
    /// Not before this long from now
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration)]
    pub delay: Option<Duration>,
    /// A variable for the program, repeatable
    #[arg(long, value_name = "K=V", value_parser = env_var)]
    pub env: Vec<(String, String)>,
    /// A file on the runner's host with more variables, NAME=VALUE lines; --env wins
    #[arg(long, value_name = "FILE")]
    pub env_file: Option<String>,
    /// Absolute directory on the runner's host to run in
    #[arg(long, value_name = "DIR", conflicts_with = "here")]
    pub dir: Option<String>,
    /// Run in the directory where you are (on the runner's host)
    #[arg(long)]
    pub here: bool,
    /// Keep the fresh directory of the task on its runner, for 7 days at most; `show` says where
    #[arg(long, conflicts_with_all = ["dir", "here"])]
    pub keep_workdir: bool,
    /// Give the program a terminal; what it writes to stdout and stderr comes as one stream
    #[arg(long)]
    pub tty: bool,
    /// The W3C trace this belongs to, passed on to the program [default: $TRACEPARENT]
    #[arg(long, value_name = "00-TRACE-PARENT-FLAGS", value_parser = traceparent)]
    pub traceparent: Option<String>,
    /// POST the result to this address when the task has ended
    #[arg(long, value_name = "URL")]
    pub callback: Option<String>,
    /// Submitting the same key again gives the same task, for 7 days
    #[arg(long, value_name = "K", value_parser = key)]
    pub key: Option<String>,
    /// Retries after a failure; each is a new task
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = retries)]
    pub retry: Option<u32>,
    /// From the end of an attempt to the next
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration, requires = "retry")]
    pub retry_delay: Option<Duration>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
    #[command(flatten)]
    pub clocks: ClockArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// How much of each stream is stored, 16K to 256M; of a longer one its head and its tail [default: 8M]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_bytes)]
    pub output_max: Option<u64>,
    /// When a stream gets longer: truncate goes on, kill ends the program and the task fails [default: truncate]
    #[arg(long, value_name = "truncate|kill", hide_possible_values = true, value_parser = one_of(OnLimit::ALL, OnLimit::name))]
    pub output_on_limit: Option<OnLimit>,
    /// Keep the stored output this long after the end, and the task at least as long [default: as long as the task]
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = positive_duration)]
    pub output_keep: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Clocks and stopping")]
pub struct ClockArgs {
    /// End the program when it runs longer than this
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = positive_duration)]
    pub timeout: Option<Duration>,
    /// Fail when no runner has taken the task after this long in the queue
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = positive_duration)]
    pub queue_timeout: Option<Duration>,
    /// Fail when the runner that took the task has not started it after this long
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = positive_duration)]
    pub start_timeout: Option<Duration>,
    /// End the program when it has written nothing for this long
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = positive_duration)]
    pub silence_timeout: Option<Duration>,
    /// A signal to the program before its timeout, such as USR1
    #[arg(long, value_name = "SIG", allow_hyphen_values = true, value_parser = parse_signal, requires_all = ["warn_before", "timeout"])]
    pub warn_signal: Option<i32>,
    /// How long before the timeout
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = positive_duration, requires = "warn_signal")]
    pub warn_before: Option<Duration>,
    /// The first signal when the program is to be ended [default: TERM]
    #[arg(long, value_name = "SIG", allow_hyphen_values = true, value_parser = parse_signal)]
    pub kill_signal: Option<i32>,
    /// From that signal to KILL [default: the runner's, 10s]
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration)]
    pub kill_grace: Option<Duration>,
    /// When the runner reaches no scheduler: kill ends the program before the cluster gives the runner up
    /// [default: continue]
    #[arg(long, value_name = "continue|kill", hide_possible_values = true, value_parser = one_of(OnDisconnect::ALL, OnDisconnect::name))]
    pub on_disconnect: Option<OnDisconnect>,
    /// When the runner is started again: adopt goes on with the program, kill ends it [default: adopt]
    #[arg(long, value_name = "adopt|kill", hide_possible_values = true, value_parser = one_of(OnRunnerRestart::ALL, OnRunnerRestart::name))]
    pub on_runner_restart: Option<OnRunnerRestart>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Most files that each process may have open [default: as the runner]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = open_files)]
    pub limit_open_files: Option<u32>,
    /// Largest core file, such as 512K, 10M, 2G [default: 0, none]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_bytes)]
    pub limit_core: Option<u64>,
    /// Largest file that a process may write, its output included [default: as the runner]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_bytes)]
    pub limit_file: Option<u64>,
    /// Leave more of the processors to others: 0 to 19 [default: as the runner]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = nice)]
    pub nice: Option<u32>,
    /// Most memory of all its processes together, such as 512M, 2G; more ends one of them, and the task as out_of_memory
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// Most processors that all its processes together may use, such as 2 or 0.5
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = parse_cpus)]
    pub cpus: Option<u32>,
    /// Most processes and threads at the same time
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = pids)]
    pub pids: Option<u32>,
    /// Permissions that new files do not get, octal [default: 022]
    #[arg(long, value_name = "MASK", allow_hyphen_values = true, value_parser = umask)]
    pub umask: Option<u32>,
    /// Run as this user of the runner's host, by name or number; the runner must run as root
    #[arg(long, value_name = "NAME|UID", allow_hyphen_values = true, value_parser = user)]
    pub user: Option<String>,
    /// With this main group [default: that of the user]
    #[arg(long, value_name = "NAME|GID", allow_hyphen_values = true, value_parser = group, requires = "user")]
    pub group: Option<String>,
}
