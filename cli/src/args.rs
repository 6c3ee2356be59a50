//! The command line. Values are checked here as far as one value alone can be wrong, so that the
//! message names its option; what depends on other things is checked where it is used.

use crate::url::{DEFAULT_PORT, Url};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue};
use clap::{ArgAction, ArgGroup, Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use systole_shared::clock::now_ms;
use systole_shared::error::Invalid;
use systole_shared::id::Target;
use systole_shared::limits::{
    NICE_MAX, OPEN_FILES_MAX, OPEN_FILES_MIN, PRIORITY_MAX, RETRIES_MAX, SLOTS_MAX, UMASK_MAX,
};
use systole_shared::task::TaskState;
use systole_shared::task::limits::parse_bytes;
use systole_shared::task::run_as::check_account;
use systole_shared::task::signal::parse_signal;
use systole_shared::task::spec::{OnDisconnect, OnRunnerRestart};
use systole_shared::time::{parse_duration, parse_time};

/// A wrong value is repeated up to this length.
const ECHO_CHARS_MAX: usize = 60;

const AFTER_HELP: &str = "\
Examples:
  systole up                              scheduler and runner on this machine
  systole run -- echo hello               run a command, see its output, get its exit code
  systole submit --delay 5m -- ./report   run it later; prints the task's id
  systole ls                              the newest tasks, and why they wait or how they ended

Data goes to stdout, everything else to stderr. Durations need a unit: 90s, 5m, 1h30m.
Times: 2027-01-31T02:30:00+01:00, 02:30 (today, local), -2h, +30m.

Exit status: 0 yes, 1 it worked and the answer is no, 2 usage, 3 not found, 4 refused, 5 unreachable.
`run` and `wait` end with the command's own code; else 120 refused, 121 cancelled, 122 skipped,
123 runner lost, 124 timeout, 125 scheduler unreachable, 126 could not start, 127 program not found,
128+N signal N, 130 Ctrl-C.";

#[derive(Debug, Parser)]
#[command(
    name = "systole",
    version,
    about = "Runs shell commands on many machines: on time, once each, and tells the truth about what happened.",
    after_help = AFTER_HELP,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Address of the scheduler; several (separated by commas) are tried in turn
    /// [env: SYSTOLE_URL] [default: http://127.0.0.1:7410]
    #[arg(long, global = true, value_name = "URL", value_delimiter = ',', value_parser = Url::parse)]
    pub url: Vec<Url>,
    /// Certificate authority to trust for https, a PEM file [env: SYSTOLE_CA]
    #[arg(long, global = true, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// How data is written: json is one document, jsonl one object a line, id ids only
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
    /// No notes on stderr; errors are still written
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// No colours; the variable NO_COLOR does the same
    #[arg(long, global = true)]
    pub no_color: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Wide,
    Json,
    Jsonl,
    Id,
}

impl Format {
    /// For eyes, not for programs.
    pub fn is_for_people(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a scheduler and a runner on this machine
    Up(UpArgs),
    /// Start a scheduler
    Scheduler(SchedulerArgs),
    /// Start a runner: it takes tasks and runs them on this machine
    Runner(RunnerArgs),
    /// Start the process that has a runner's children; a runner starts its own when there is none
    Warden(WardenArgs),
    /// Submit a task, follow its output, and end with its exit code
    Run(TaskArgs),
    /// Submit a task and print its id
    Submit(TaskArgs),
    /// List tasks, newest first
    Ls(LsArgs),
    /// Show everything about one task
    Show(ShowArgs),
    /// Print the output of a task
    Logs(LogsArgs),
    /// Wait until tasks have ended; with one task, end with its exit code
    Wait(WaitArgs),
    /// Cancel tasks: waiting ones end at once, running ones are ended by their runner
    Cancel(CancelArgs),
    /// List runners, and stop or resume giving them tasks
    Runners(RunnersArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
}

impl Command {
    /// Uses all cores.
    pub fn is_parallel(&self) -> bool {
        matches!(self, Self::Up(_) | Self::Scheduler(_))
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let ms = parse_duration(text)?;
    if ms > systole_shared::limits::DURATION_MS_MAX {
        return Err(format!("{text:?} is too long; the longest duration is 366d"));
    }
    Ok(Duration::from_millis(ms))
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than 0".into()),
        duration => Ok(duration),
    }
}

/// The value as far as a message may repeat it.
fn brief(text: &str) -> String {
    if text.chars().count() <= ECHO_CHARS_MAX {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(ECHO_CHARS_MAX - 1).collect();
    short.push('…');
    short
}

/// The message of a check in `shared`, which repeats the value quoted or as it is.
fn brief_message(invalid: Invalid, text: &str) -> String {
    if text.chars().count() <= ECHO_CHARS_MAX {
        return invalid.message;
    }
    let quoted = format!("{:?}", brief(text));
    invalid
        .message
        .replace(&format!("{text:?}"), &quoted)
        .replace(text, &brief(text))
}

/// The command line, or why it is none; a value that is wrong is not repeated at length.
pub fn parse(line: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line).map_err(|mut error| {
        if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) {
            let value = brief(value);
            error.insert(ContextKind::InvalidValue, ContextValue::String(value));
        }
        error
    })
}

fn number(text: &str, max: u32) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(number) => u32::try_from(number)
            .ok()
            .filter(|&number| number <= max)
            .ok_or_else(|| format!("{number} is out of range; write 0 to {max}")),
        Err(_) => Err(format!("{} is no number; write 0 to {max}", brief(text))),
    }
}

fn priority(text: &str) -> Result<u32, String> {
    number(text, PRIORITY_MAX)
}

fn retries(text: &str) -> Result<u32, String> {
    number(text, RETRIES_MAX)
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
        format!(
            "{:?} is no IP address with port; write for example 127.0.0.1:{}",
            brief(text),
            port.unwrap_or(DEFAULT_PORT)
        )
    })
}

fn time(text: &str) -> Result<i64, String> {
    parse_time(text, now_ms())
}

/// Bytes with a unit: `512MiB`, `10GiB`. A bare number is refused, as with durations.
fn size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a size; write for example 512MiB or 10GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| bad())?;
    let unit: u64 = match &text[digits..] {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "" => return Err(format!("{text:?} has no unit; write \"{text}MiB\" or \"{text}GiB\"")),
        _ => return Err(bad()),
    };
    number
        .checked_mul(unit)
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or_else(|| format!("{text:?} is too large"))
}

fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("{text:?} is no number of tasks; write 1 or more")),
    }
}

fn lines(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no number of lines; write 0 or more"))
}

fn open_files(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(files) if (OPEN_FILES_MIN..=OPEN_FILES_MAX).contains(&files) => Ok(files),
        _ => Err(format!(
            "{:?} is no number of files; write {OPEN_FILES_MIN} to {OPEN_FILES_MAX}",
            brief(text)
        )),
    }
}

fn nice(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(nice) if nice <= NICE_MAX => Ok(nice),
        _ => Err(format!("{:?} is no nice value; write 0 to {NICE_MAX}", brief(text))),
    }
}

fn umask(text: &str) -> Result<u32, String> {
    let octal = (1..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    match u32::from_str_radix(text, 8) {
        Ok(mask) if octal && mask <= UMASK_MAX => Ok(mask),
        _ => Err(format!(
            "{:?} is no umask; write an octal number up to 777, such as 027",
            brief(text)
        )),
    }
}

fn user(text: &str) -> Result<String, String> {
    check_account(text, "user").map_err(|invalid| invalid.message)?;
    Ok(text.to_owned())
}

fn group(text: &str) -> Result<String, String> {
    check_account(text, "group").map_err(|invalid| invalid.message)?;
    Ok(text.to_owned())
}

/// One of a few words, which completions know.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).try_map(move |text| {
        let found = all.into_iter().find(|&value| name(value) == text);
        found.ok_or("is not one of them")
    })
}

fn label(text: &str) -> Result<(String, String), String> {
    systole_shared::task::spec::parse_label(text, "label").map_err(|invalid| brief_message(invalid, text))
}

fn env_var(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no variable; write NAME=VALUE, such as STAGE=prod")),
    }
}

fn target(text: &str) -> Result<Target, String> {
    Target::parse(text, "runner").map_err(|invalid| brief_message(invalid, text))
}

fn word(text: &str) -> Result<String, String> {
    systole_shared::task::spec::check_word(text, "")
        .map(|()| text.to_owned())
        .map_err(|invalid| brief_message(invalid, text))
}

fn host(text: &str) -> Result<String, String> {
    systole_shared::id::check_host(text, "")
        .map(|()| text.to_owned())
        .map_err(|invalid| brief_message(invalid, text))
}

fn reason(text: &str) -> Result<String, String> {
    systole_shared::task::spec::check_text(text, "", systole_shared::limits::REASON_CHARS_MAX)
        .map(|()| text.to_owned())
        .map_err(|invalid| brief_message(invalid, text))
}

fn key(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("the key is empty".into());
    }
    systole_shared::task::spec::check_text(text, "", systole_shared::limits::KEY_CHARS_MAX)
        .map(|()| text.to_owned())
        .map_err(|invalid| brief_message(invalid, text))
}

fn state(text: &str) -> Result<TaskState, String> {
    TaskState::parse(text).ok_or_else(|| {
        let names: Vec<_> = TaskState::ALL.iter().map(|state| state.name()).collect();
        format!("{text:?} is no state; the states are {}", names.join(", "))
    })
}

fn task_id(text: &str) -> Result<i64, String> {
    match text.parse::<i64>() {
        Ok(id) if id > 0 => Ok(id),
        _ => Err(format!(
            "{text:?} is no task id; write the number that `systole submit` or `systole ls` shows, such as 12"
        )),
    }
}

/// Whether somebody wrote `run echo hello` and means `run -- echo hello`.
pub fn forgot_dashes(error: &clap::Error, mut line: impl Iterator<Item = OsString>) -> bool {
    let is_word = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => !argument.starts_with('-'),
        _ => false,
    };
    error.kind() == clap::error::ErrorKind::UnknownArgument
        && is_word
        && line.any(|word| word == "run" || word == "submit")
}

// ---- services ----

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Clocks and limits")]
pub struct ClusterArgs {
    /// Longest time between two beats of a runner
    #[arg(long, value_name = "D", default_value = "30s", value_parser = positive_duration)]
    pub beat: Duration,
    /// Silence after which a runner is lost; at least 3 beats
    #[arg(long, value_name = "D", default_value = "90s", value_parser = positive_duration)]
    pub lost_after: Duration,
    /// How often silent runners are looked for
    #[arg(long, value_name = "D", default_value = "10s", value_parser = positive_duration)]
    pub check: Duration,
    /// How often the database is asked for due tasks, besides its notifications
    #[arg(long, value_name = "D", default_value = "1s", value_parser = positive_duration)]
    pub poll: Duration,
    /// On stop: how long calls are still served while the health check says "not ready"
    #[arg(long, value_name = "D", default_value = "2s", value_parser = duration)]
    pub drain_wait: Duration,
    /// On stop: longest time for calls under way after that
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration)]
    pub drain_max: Duration,
    /// Delete ended tasks and their output after this; 0 keeps them
    #[arg(long, value_name = "D", default_value = "7d", value_parser = duration)]
    pub keep: Duration,
    /// Stored output of all tasks together; the oldest goes first
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = size)]
    pub output_budget: u64,
    /// How often old tasks and output are deleted
    #[arg(long, value_name = "D", default_value = "60s", value_parser = positive_duration)]
    pub retention_period: Duration,
    /// Deliver callbacks to loopback, private and link-local addresses too
    #[arg(long)]
    pub callback_allow_private: bool,
    /// Deadline of one callback delivery
    #[arg(long, value_name = "D", default_value = "10s", value_parser = positive_duration)]
    pub callback_timeout: Duration,
    /// Wait after the first failed delivery; doubles with each
    #[arg(long, value_name = "D", default_value = "2s", value_parser = positive_duration)]
    pub callback_backoff: Duration,
}

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

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole up
  systole up --slots 8 --label gpu=1
  systole up --listen 127.0.0.1:7411 --data-dir /tmp/second

Ctrl-C stops the runner first (its tasks are ended and reported), then the scheduler.
A second Ctrl-C exits at once.")]
pub struct UpArgs {
    /// Where the scheduler listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7410", value_parser = listen)]
    pub listen: SocketAddr,
    /// Tasks at once [default: number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SLOTS_MAX)))]
    pub slots: Option<u32>,
    /// Database and runner state [default: $XDG_DATA_HOME/systole or ~/.local/share/systole]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// sqlite:PATH or postgres://… [default: sqlite:DATA_DIR/systole.db] [env: SYSTOLE_DATABASE]
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
    /// A label of this machine's runner, repeatable
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// A queue to serve, repeatable [default: default]
    #[arg(long = "queue", value_name = "Q", value_parser = word)]
    pub queues: Vec<String>,
    /// Serve an address that is not loopback without TLS
    #[arg(long)]
    pub insecure_plaintext: bool,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// Where tokens are written [default: ~/.config/systole/tokens/HOST_PORT]
    #[arg(long, value_name = "DIR")]
    pub token_dir: Option<PathBuf>,
    /// Make new admin and runner tokens; the old ones stop working
    #[arg(long)]
    pub renew_tokens: bool,
    /// Start on a PostgreSQL that may lose acknowledged commits
    #[arg(long)]
    pub allow_unsafe_database: bool,
    /// Connections to PostgreSQL, all together
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub connections: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole scheduler --database sqlite:/var/lib/systole/systole.db
  systole scheduler --database postgres://systole@db/systole --listen 10.0.0.5:7410 \\
      --tls-cert cert.pem --tls-key key.pem

Any number of schedulers may share one PostgreSQL database; there is no leader. Keep a password out
of the command line, which other users of the machine can read: use SYSTOLE_DATABASE.")]
pub struct SchedulerArgs {
    /// sqlite:PATH or postgres://USER:PASSWORD@HOST/NAME [env: SYSTOLE_DATABASE]
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
    /// Where the scheduler listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7410", value_parser = listen)]
    pub listen: SocketAddr,
    /// Certificate chain, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Serve an address that is not loopback without TLS
    #[arg(long)]
    pub insecure_plaintext: bool,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole runner --url https://10.0.0.5:7410 --ca ca.pem --token-file runner.token
  systole runner --url http://127.0.0.1:7410 --slots 2 --label gpu=1 --queue batch")]
pub struct RunnerArgs {
    /// Tasks at once [default: number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SLOTS_MAX)))]
    pub slots: Option<u32>,
    /// A queue to serve, repeatable [default: default]
    #[arg(long = "queue", value_name = "Q", value_parser = word)]
    pub queues: Vec<String>,
    /// A label that tasks may require, repeatable
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Name of this host [default: its host name]
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub name: Option<String>,
    /// State and output [default: $XDG_DATA_HOME/systole/runner or ~/.local/share/systole/runner]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// From the first signal (TERM) to KILL when a task is ended
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration)]
    pub kill_grace: Duration,
    /// The runner token [default: runner.token in ~/.config/systole/tokens/HOST_PORT]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Wait for a warden that somebody else starts, such as systemd, instead of starting one
    #[arg(long)]
    pub external_warden: bool,
    #[command(flatten)]
    pub warden: WardenTimes,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Clone, Debug, Args)]
pub struct WardenTimes {
    /// How long tasks may run on without a runner before they are ended
    #[arg(long, value_name = "D", default_value = "15m", value_parser = duration)]
    pub adopt_window: Duration,
    /// How long tasks may run on when they are to be ended
    #[arg(long, value_name = "D", default_value = "0s", value_parser = duration)]
    pub drain_wait: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
It starts, watches and ends the tasks of the runner with the same --data-dir, and outlives it: a runner that
crashes or is upgraded finds its tasks as they are. SIGTERM: no new tasks, those that run are ended and reported.")]
pub struct WardenArgs {
    /// State and output, the same as the runner's [default: $XDG_DATA_HOME/systole/runner or ~/.local/share/systole/runner]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub times: WardenTimes,
    /// End when no runner and no task is left
    #[arg(long)]
    pub leave_when_idle: bool,
    #[command(flatten)]
    pub log: LogArgs,
}

// ---- tasks ----

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").args(["command", "shell"]).required(true),
    after_help = "\
Examples:
  systole run -- echo hello
  systole run --shell 'sort data.csv | uniq -c' --here
  systole run --timeout 5m --retry 1 --retry-delay 10s -- ./ingest \"28 Nov\"
  systole submit --queue batch --require gpu=1 --at 02:30 -- python train.py

Arguments reach the program exactly as given; only --shell goes through a shell (/bin/sh -c).
The program gets a clean environment and a fresh directory, unless --env, --dir or --here say otherwise.
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
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true, conflicts_with = "delay")]
    pub at: Option<i64>,
    /// Not before this long from now
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration)]
    pub delay: Option<Duration>,
    /// A variable for the program, repeatable
    #[arg(long, value_name = "K=V", value_parser = env_var)]
    pub env: Vec<(String, String)>,
    /// Absolute directory on the runner's host to run in
    #[arg(long, value_name = "DIR", conflicts_with = "here")]
    pub dir: Option<String>,
    /// Run in the directory where you are (on the runner's host)
    #[arg(long)]
    pub here: bool,
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

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RunnersArgs {
    #[command(subcommand)]
    pub action: Option<RunnersAction>,
}

#[derive(Debug, Subcommand)]
pub enum RunnersAction {
    /// List runners (the default)
    Ls {
        /// Only this host
        #[arg(value_name = "HOST", value_parser = host)]
        host: Option<String>,
    },
    /// Give runners no new tasks; what they have goes on
    Cordon(CordonArgs),
    /// Give runners tasks again
    Uncordon(CordonArgs),
}

#[derive(Debug, Args)]
pub struct CordonArgs {
    /// Hosts with all their slots, or single slots
    #[arg(value_name = "HOST[/SLOT]", required = true, value_parser = target)]
    pub runners: Vec<Target>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole completions bash > ~/.local/share/bash-completion/completions/systole
  systole completions fish > ~/.config/fish/completions/systole.fish")]
pub struct CompletionsArgs {
    #[arg(value_name = "SHELL", action = ArgAction::Set)]
    pub shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(line: &[&str]) -> Result<Cli, String> {
        super::parse(std::iter::once("systole").chain(line.iter().copied())).map_err(|error| {
            assert_eq!(error.exit_code(), 2, "{line:?}");
            error.to_string()
        })
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_bad_value_names_its_option() {
        for (line, option) in [
            (&["run", "--timeout", "5", "--", "x"][..], "--timeout"),
            (&["run", "--timeout", "0", "--", "x"], "--timeout"),
            (&["run", "--queue-timeout", "0", "--", "x"], "--queue-timeout"),
            (&["run", "--start-timeout", "5", "--", "x"], "--start-timeout"),
            (&["run", "--silence-timeout", "-1s", "--", "x"], "--silence-timeout"),
            (&["run", "--kill-signal", "FOO", "--", "x"], "--kill-signal"),
            (&["run", "--kill-signal", "-9", "--", "x"], "--kill-signal"),
            (&["run", "--kill-grace", "5", "--", "x"], "--kill-grace"),
            (
                &["run", "--warn-signal", "USR1", "--warn-before", "1s", "--", "x"],
                "--timeout",
            ),
            (
                &["run", "--warn-signal", "USR1", "--timeout", "9s", "--", "x"],
                "--warn-before",
            ),
            (
                &["run", "--warn-before", "1s", "--timeout", "9s", "--", "x"],
                "--warn-signal",
            ),
            (&["run", "--on-disconnect", "stop", "--", "x"], "--on-disconnect"),
            (&["run", "--on-runner-restart", "", "--", "x"], "--on-runner-restart"),
            (&["run", "--delay", "-5s", "--", "x"], "--delay"),
            (&["run", "--delay", "400d", "--", "x"], "--delay"),
            (&["run", "--at", "tomorrow", "--", "x"], "--at"),
            (&["run", "--at", "02:30", "--delay", "1s", "--", "x"], "--delay"),
            (&["run", "--priority", "10", "--", "x"], "--priority"),
            (&["run", "--retry", "101", "--", "x"], "--retry"),
            (&["run", "--retry-delay", "1s", "--", "x"], "--retry"),
            (&["run", "--require", "gpu", "--", "x"], "--require"),
            (&["run", "--env", "=x", "--", "x"], "--env"),
            (&["run", "--queue", "A b", "--", "x"], "--queue"),
            (&["run", "--tag", "a b", "--", "x"], "--tag"),
            (&["run", "--runner", "a/b", "--", "x"], "--runner"),
            (&["run", "--key", "", "--", "x"], "--key"),
            (&["run", "--reason", "a\nb", "--", "x"], "--reason"),
            (&["run", "--dir", "/x", "--here", "--", "x"], "--here"),
            (&["run", "--shell", "x", "--", "x"], "--shell"),
            (&["run"], "--shell"),
            (&["run", "--"], "--shell"),
            (&["ls", "--url", "127.0.0.1:7410"], "--url"),
            (&["ls", "--state", "gone"], "--state"),
            (&["ls", "--since", "yesterday"], "--since"),
            (&["ls", "-n", "0"], "-n"),
            (&["ls", "-o", "yaml"], "--output"),
            (&["up", "--slots", "0"], "--slots"),
            (&["up", "--listen", "7410"], "--listen"),
            (&["up", "--beat", "0"], "--beat"),
            (&["up", "--output-budget", "10"], "--output-budget"),
            (&["up", "--label", "gpu"], "--label"),
            (&["scheduler", "--tls-cert", "x"], "--tls-key"),
            (&["scheduler", "--connections", "1"], "--connections"),
            (&["runner", "--name", "a b"], "--name"),
            (&["show", "@last"], "TASK"),
            (&["show", "0"], "TASK"),
            (&["show", "-1"], "TASK"),
            (&["cancel"], "TASK"),
            (&["wait", "--timeout", "9", "1"], "--timeout"),
            (&["runners", "cordon", "a b"], "HOST"),
        ] {
            let error = parse(line).expect_err(&format!("{line:?} must be refused"));
            assert!(error.contains(option), "{line:?}: {error}");
        }
    }

    #[test]
    fn a_bad_value_says_what_to_write() {
        for (line, text) in [
            (&["up", "--listen", "7512"][..], "write for example 127.0.0.1:7512"),
            (
                &["up", "--listen", "localhost:7512"],
                "write for example 127.0.0.1:7512",
            ),
            (&["scheduler", "--listen", "x"], "write for example 127.0.0.1:7410"),
            (&["run", "--priority", "x", "--", "x"], "x is no number; write 0 to 9"),
            (
                &["run", "--priority", "10", "--", "x"],
                "10 is out of range; write 0 to 9",
            ),
            (
                &["run", "--priority", "-1", "--", "x"],
                "-1 is out of range; write 0 to 9",
            ),
            (&["run", "--retry", "x", "--", "x"], "x is no number; write 0 to 100"),
            (
                &["run", "--retry", "-1", "--", "x"],
                "-1 is out of range; write 0 to 100",
            ),
            (&["ls", "--url", "http://"], "names no host"),
        ] {
            let error = parse(line).expect_err(&format!("{line:?} must be refused"));
            assert!(error.contains(text), "{line:?}: {error}");
            assert!(!error.contains("tip:"), "{line:?}: {error}");
        }
    }

    #[test]
    fn a_long_value_is_not_repeated_whole() {
        let (word, text) = ("Q".repeat(5_000), "é\"".repeat(5_000));
        for (option, value) in [
            ("--queue", &word),
            ("--queue", &text),
            ("--reason", &text),
            ("--key", &text),
            ("--tag", &text),
            ("--runner", &text),
            ("--require", &text),
            ("--priority", &word),
        ] {
            let error = parse(&["run", option, value, "--", "x"]).expect_err("refused");
            assert!(error.contains(option) && error.contains('…'), "{error}");
            assert!(error.chars().count() < 500, "{option}: {error}");
        }
    }

    #[test]
    fn forgotten_dashes_are_noticed() {
        let forgot = |line: &[&str]| {
            let error = Cli::try_parse_from(line).expect_err("refused");
            forgot_dashes(&error, line.iter().map(OsString::from))
        };
        assert!(forgot(&["systole", "run", "echo", "hello"]));
        assert!(!forgot(&["systole", "run", "--timeuot", "5s"]));
        assert!(!forgot(&["systole", "ls", "echo"]));
    }

    #[test]
    fn arguments_after_the_dashes_are_left_alone() {
        let line = ["run", "-q", "--", "prog", "--url", "x", "", "a b", "--", "-o", "$HOME"];
        match parse(&line).expect("valid").command {
            Command::Run(args) => assert_eq!(args.command, line[3..]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn global_options_stand_before_or_after_the_command() {
        for line in [
            &["-o", "json", "--url", "http://a:1,http://b:2", "ls"][..],
            &["ls", "-o", "json", "--url", "http://a:1", "--url", "http://b:2"],
        ] {
            let cli = parse(line).expect("valid");
            assert_eq!(cli.global.output, Format::Json);
            assert_eq!(
                cli.global.url.iter().map(Url::as_str).collect::<Vec<_>>(),
                ["http://a:1", "http://b:2"]
            );
        }
    }

    #[test]
    fn a_negative_time_is_a_value() {
        let Command::Ls(args) = parse(&["ls", "--since", "-2h", "--state", "failed,RUNNING"])
            .expect("valid")
            .command
        else {
            panic!("ls");
        };
        assert!(args.since.is_some_and(|since| since < now_ms() - 7_000_000));
        assert_eq!(args.state, [TaskState::Failed, TaskState::Running]);
    }

    #[test]
    fn sizes_need_units() {
        assert_eq!(size("10GiB"), Ok(10 << 30));
        assert_eq!(size("0B"), Ok(0));
        for text in ["", "10", "GiB", "1GB", "-1MiB", "9999999999TiB", "1.5GiB"] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }
}
