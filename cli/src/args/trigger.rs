//! Options of `systole trigger` and `systole calendar`.

use super::value::{reason, word};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
A trigger is called JOB/TRIGGER. States: WAITING for its time, PAUSED, ACQUIRED (fixed_delay: until
its run has ended), BLOCKED (a run that it made waits for a place of the job or its group), COMPLETE
(has no next time), ERROR (cannot be evaluated; it does not fire until its definition changes or it
is reset). What else holds is in brackets: PAUSED (blocked).

Examples:
  systole trigger ls --state ERROR
  systole trigger pause nightly-backup/weekly --until 06:00 --reason 'CHG-1042'
  systole trigger reset nightly-backup/weekly")]
pub struct TriggerArgs {
    #[command(subcommand)]
    pub action: TriggerAction,
}

#[derive(Debug, Subcommand)]
pub enum TriggerAction {
    /// List triggers, their states and their next times
    Ls(TriggerLsArgs),
    /// Stop firing, until somebody resumes it or a time comes
    Pause(super::JobPauseArgs),
    /// Fire again
    Resume(super::JobResumeArgs),
    /// Try a trigger in ERROR again; what was due meanwhile is treated by its misfire policy
    Reset(TriggerResetArgs),
}

#[derive(Debug, Args)]
pub struct TriggerLsArgs {
    /// Only of jobs whose name begins with this
    #[arg(value_name = "PREFIX", value_parser = word)]
    pub prefix: Option<String>,
    /// Only in this state
    #[arg(long, value_name = "STATE", ignore_case = true,
        value_parser = ["WAITING", "PAUSED", "ACQUIRED", "BLOCKED", "COMPLETE", "ERROR"])]
    pub state: Option<String>,
}

#[derive(Debug, Args)]
pub struct TriggerResetArgs {
    /// Triggers, or jobs with all of theirs
    #[arg(value_name = "JOB[/TRIGGER]", required = true, value_parser = super::job::job_or_trigger)]
    pub names: Vec<String>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A calendar is a set of times that triggers leave out (exclude_calendars). It is written in a job
file as [[calendar]], or imported.

Examples:
  systole calendar import holidays holidays.ics --zone Europe/Berlin
  systole calendar show holidays")]
pub struct CalendarArgs {
    #[command(subcommand)]
    pub action: CalendarAction,
}

#[derive(Debug, Subcommand)]
pub enum CalendarAction {
    /// List calendars, and how many triggers leave out their times
    Ls,
    /// Show a calendar: its definition, its next times, and who uses it
    Show(CalendarShowArgs),
    /// Make or replace a calendar from an iCalendar (.ics) file
    Import(CalendarImportArgs),
    /// Delete calendars that no trigger uses
    Rm(CalendarRmArgs),
}

#[derive(Debug, Args)]
pub struct CalendarShowArgs {
    /// Name of the calendar
    #[arg(value_name = "NAME", value_parser = word)]
    pub name: String,
}

#[derive(Debug, Args)]
pub struct CalendarImportArgs {
    /// Name of the calendar, `[a-z0-9._-]`
    #[arg(value_name = "NAME", value_parser = word)]
    pub name: String,
    /// The iCalendar file; - is stdin
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Zone of its whole days and of times without one [default: the cluster's]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Only if it still has this version; 0: only if there is none
    #[arg(long, value_name = "V")]
    pub plan_version: Option<u32>,
    /// Only say what would happen
    #[arg(long)]
    pub dry_run: bool,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct CalendarRmArgs {
    /// Names of the calendars
    #[arg(value_name = "NAME", required = true, value_parser = word)]
    pub names: Vec<String>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A concurrency group bounds how many runs of several jobs go on together. It is written in a job
file as [[concurrency_group]].")]
pub struct GroupArgs {
    #[command(subcommand)]
    pub action: GroupAction,
}

#[derive(Debug, Subcommand)]
pub enum GroupAction {
    /// List groups, their limits, what runs in them and which jobs are in them
    Ls,
    /// Delete groups that no job names and no run has a place of
    Rm(GroupRmArgs),
}

#[derive(Debug, Args)]
pub struct GroupRmArgs {
    /// Names of the groups
    #[arg(value_name = "NAME", required = true, value_parser = word)]
    pub names: Vec<String>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}
