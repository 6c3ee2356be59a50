//! `alarm`: what was told of jobs, to whom, and whether it arrived.

use super::value::count;
use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
#[command(after_help = "\
Channels stand in the file that a scheduler is given with --alarms; jobs name them in [[job.alarm]].

Examples:
  systole alarm test on-call     does it arrive?
  systole alarm ls --open        what did not arrive
  systole alarm ack              I know; `systole status` is quiet about it")]
pub struct AlarmArgs {
    #[command(subcommand)]
    pub action: AlarmAction,
}

#[derive(Debug, Subcommand)]
pub enum AlarmAction {
    /// List alarms of jobs, newest first; exit status 1 when some did not arrive
    Ls(AlarmLsArgs),
    /// List the channels of the scheduler that answers
    Channels,
    /// Send a test to a channel and wait for its answer; exit status 1 when it is not accepted
    Test(AlarmTestArgs),
    /// Say that you know of alarms that did not arrive
    Ack(AlarmAckArgs),
}

#[derive(Debug, Args)]
pub struct AlarmLsArgs {
    /// Only those that need a person: given up and not acknowledged, or tried in vain so far
    #[arg(long)]
    pub open: bool,
    /// Only in this state
    #[arg(long, value_name = "STATE")]
    pub state: Option<AlarmState>,
    /// Only to this channel
    #[arg(long, value_name = "CHANNEL")]
    pub channel: Option<String>,
    /// Only of this job
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// At most so many [default: 20 in a table, else all]
    #[arg(short = 'n', long, value_name = "N", value_parser = count)]
    pub limit: Option<u64>,
}

#[derive(Debug, Args)]
pub struct AlarmTestArgs {
    #[arg(value_name = "CHANNEL")]
    pub channel: String,
}

#[derive(Debug, Args)]
pub struct AlarmAckArgs {
    /// Ids of alarms [default: all that were given up]
    #[arg(value_name = "ID")]
    pub ids: Vec<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AlarmState {
    Pending,
    /// Until the silence of its rule is over
    Held,
    Delivered,
    /// Given up
    Failed,
    /// Put right before it was told
    Silenced,
}

impl AlarmState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Held => "held",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Silenced => "silenced",
        }
    }
}
