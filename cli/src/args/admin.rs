//! `admin`: the cluster as a whole.

use super::value::reason;
use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
pub struct AdminArgs {
    #[command(subcommand)]
    pub action: AdminAction,
}

#[derive(Debug, Subcommand)]
pub enum AdminAction {
    /// Show what is held until somebody has looked; exit status 1 when something is
    Alarms,
    /// Say that you have looked: what was held goes on
    #[command(after_help = "\
clock    The database's clock jumped, and it is right now. Delayed tasks, timeouts of waiting tasks and
         clean-ups go on with its time.
restore  The database was set back to an older state on purpose. Hosts that have held newer tasks than
         it knows get tasks again; ids that they have named are not given a second time.")]
    Confirm(ConfirmArgs),
}

#[derive(Debug, Args)]
pub struct ConfirmArgs {
    /// Which alarm
    #[arg(value_name = "ALARM")]
    pub alarm: AlarmKind,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AlarmKind {
    /// The database's clock is right now
    Clock,
    /// The database was set back on purpose
    Restore,
}

impl AlarmKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::Restore => "restore",
        }
    }
}
