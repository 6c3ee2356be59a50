//! The command line. Values are checked here as far as one value alone can be wrong, so that the
//! message names its option; what depends on other things is checked where it is used.

mod access;
mod admin;
mod alarm;
mod backfill;
mod backup;
mod completions;
mod context;
mod cron;
mod doctor;
mod filter;
mod freeze;
mod help;
mod import;
mod job;
mod job_change;
mod lock;
mod log;
mod reference;
mod runner;
mod runners;
mod scheduler;
mod service;
mod status;
mod submit;
mod task;
mod tasks;
#[cfg(test)]
mod tests;
mod top;
mod trigger;
mod value;
mod why;

pub use access::{AuditArgs, CreateTokenArgs, JoinCommandArgs, RevokeTokenArgs, TokenAction, TokenArgs};
pub use admin::{AdminAction, AdminArgs, ConfirmArgs};
pub use alarm::{AlarmAction, AlarmArgs, AlarmLsArgs};
pub use backfill::{BackfillAction, BackfillArgs, BackfillRunArgs};
pub use backup::BackupArgs;
pub use completions::CompletionsArgs;
pub use context::{AddContextArgs, ContextAction, ContextArgs};
pub use cron::{CronAction, CronArgs, CronNextArgs, Expression};
pub use doctor::DoctorArgs;
pub use freeze::{PauseArgs, ResumeArgs};
pub use import::{
    ImportAction, ImportArgs, ImportCrontabArgs, ImportInto, ImportKubernetesArgs, ImportSystemdArgs, ImportXxlJobArgs,
};
pub use job::{
    JobAction, JobApplyArgs, JobArgs, JobCheckArgs, JobHistoryArgs, JobInitArgs, JobLsArgs, JobNextArgs, JobPauseArgs,
    JobResumeArgs, JobRmArgs, JobShowArgs, JobTriggerArgs,
};
pub use job_change::{JobDiffArgs, JobEditArgs, JobEnqueueArgs, JobRestoreArgs, NextArgs};
pub use lock::{HoldArgs, LockAction, LockArgs, LockGuardArgs};
pub use log::{LogArgs, LogFormat};
pub use reference::ReferenceArgs;
pub use runner::{RunnerArgs, WardenArgs, WardenTimes};
pub use runners::{CordonArgs, DrainArgs, RmArgs, RunnersAction, RunnersArgs, UncordonArgs, Until};
pub use scheduler::{ClusterArgs, DownArgs, SchedulerArgs, StoreArgs, UpArgs};
pub use service::{InstallArgs, ServiceAction, ServiceArgs, ServiceKind, UninstallArgs};
pub use status::StatusArgs;
pub use submit::SubmitArgs;
pub use task::TaskArgs;
pub use tasks::{CancelArgs, LogsArgs, LsArgs, ManyArgs, RerunArgs, ShowArgs, WaitArgs};
pub use top::TopArgs;
pub use trigger::{
    CalendarAction, CalendarArgs, CalendarImportArgs, CalendarRmArgs, CalendarShowArgs, GroupAction, GroupArgs,
    GroupRmArgs, TriggerAction, TriggerArgs, TriggerLsArgs, TriggerResetArgs,
};
pub use value::SlotLabel;
pub use why::{Subject, WhyArgs};

use crate::url::Url;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use value::brief;

const AFTER_HELP: &str = "\
Examples:
  systole up                              scheduler and runner on this machine
  systole run -- echo hello               run a command, see its output, get its exit code
  systole submit --delay 5m -- report     run it later; prints the task's id
  systole ls                              the newest tasks, and why they wait or how they ended

Data goes to stdout, everything else to stderr. Durations need a unit: 90s, 5m, 1h30m.
Times: 2027-01-31T02:30:00+01:00, 02:30 (local; the next one, or today where one looks back), -2h, +30m.

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
    /// The cluster with this name, see `systole context` [env: SYSTOLE_CONTEXT]
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "url")]
    pub context: Option<String>,
    /// Certificate authority to trust for https, a PEM file [env: SYSTOLE_CA]
    #[arg(long, global = true, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Language of what a scheduler refuses, such as de or zh-CN; others are answered in English
    /// [env: SYSTOLE_LOCALE, LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, global = true, value_name = "TAG", value_parser = value::locale)]
    pub locale: Option<String>,
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
    /// Stop what `systole up` started
    Down(DownArgs),
    /// Start systole with this machine or this user's session, by systemd: install, uninstall, status
    Service(ServiceArgs),
    /// Start a scheduler
    Scheduler(SchedulerArgs),
    /// Start a runner: it takes tasks and runs them on this machine
    Runner(RunnerArgs),
    /// Start the process that has a runner's children; a runner starts its own when there is none
    Warden(WardenArgs),
    /// Submit a task, follow its output, and end with its exit code
    Run(TaskArgs),
    /// Submit a task, or many at once, and print its id
    Submit(SubmitArgs),
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
    /// Submit tasks that have ended once more
    Rerun(RerunArgs),
    /// List runners, drain them, and stop or resume giving them tasks
    Runners(RunnersArgs),
    /// Start nothing more, of everything, a queue or a tag, until a time or until it is resumed
    Pause(PauseArgs),
    /// Lift what `pause` set: what waited goes on
    Resume(ResumeArgs),
    /// Hold a lease while a command runs: one at a time, over all machines
    Lock(LockArgs),
    /// Ends a command whose lease is lost; `lock` starts it
    #[command(hide = true)]
    LockGuard(LockGuardArgs),
    /// Show the cluster on one screen; exit status 1 when something needs a person
    Status(StatusArgs),
    /// Look at what goes wrong in practice: clocks, versions, limits, disks, the database; exit status 1 when something needs a person
    Doctor(DoctorArgs),
    /// Watch hosts and tasks as they change, with the output of one; cancel and rerun by key
    Top(TopArgs),
    /// List, make and revoke tokens: who may do what
    Token(TokenArgs),
    /// Print one line that lets another machine join as a runner, once, within 15 minutes
    #[command(name = "join-command")]
    JoinLine(JoinCommandArgs),
    /// List who did what
    Audit(AuditArgs),
    /// Write a copy of the SQLite database to a file, while everything goes on
    Backup(BackupArgs),
    /// What is held until somebody has looked, and the word that it goes on
    Admin(AdminArgs),
    /// Jobs: their files, what the scheduler has, when they fire, and run them now
    Job(JobArgs),
    /// Make up fires of a job that did not happen
    Backfill(BackfillArgs),
    /// Triggers of jobs: list, pause, resume, reset
    Trigger(TriggerArgs),
    /// Calendars: times that triggers leave out
    Calendar(CalendarArgs),
    /// Concurrency groups: how many runs of several jobs go on together
    ConcurrencyGroup(GroupArgs),
    /// List the fires to come: of all jobs, of one, or of those that a host could be given
    Next(NextArgs),
    /// Say in words what a task waits for and who can lift that, or what became of it; also of a job and its times
    Why(WhyArgs),
    /// Alarms of jobs: list, test a channel, acknowledge
    Alarm(AlarmArgs),
    /// Turn what ran elsewhere into job files
    Import(ImportArgs),
    /// Names for several clusters: list, add, use, rm
    Context(ContextArgs),
    /// Show when a cron expression fires, and what it means
    Cron(CronArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print the page of all commands, or write manual pages
    #[command(hide = true)]
    Reference(ReferenceArgs),
}

impl Command {
    /// Serves, and asks nobody.
    pub fn is_service(&self) -> bool {
        matches!(
            self,
            Self::Up(_) | Self::Scheduler(_) | Self::Runner(_) | Self::Warden(_)
        )
    }

    /// Uses more than one core, where there are more than two.
    pub fn is_parallel(&self) -> bool {
        matches!(self, Self::Up(_) | Self::Scheduler(_))
    }
}

/// The command line, or why it is none; a value that is wrong is not repeated at length.
pub fn parse(line: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
    let line: Vec<OsString> = line.into_iter().map(Into::into).collect();
    Cli::try_parse_from(&line).map_err(|mut error| {
        if matches!(
            error.kind(),
            ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        ) {
            return help::asked(&line).unwrap_or(error);
        }
        if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) {
            let value = brief(value);
            error.insert(ContextKind::InvalidValue, ContextValue::String(value));
        }
        error
    })
}

/// Whether somebody wrote `run echo hello` and means `run -- echo hello`.
pub fn forgot_dashes(error: &clap::Error, mut line: impl Iterator<Item = OsString>) -> bool {
    let is_word = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => !argument.starts_with('-'),
        _ => false,
    };
    error.kind() == ErrorKind::UnknownArgument && is_word && line.any(|word| word == "run" || word == "submit")
}
