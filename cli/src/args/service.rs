//! `service`: units of systemd.

use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;

#[derive(Debug, Args)]
#[command(after_help = "\
Units of this user need no rights, and run while the user has a session; to start them with the machine and keep them after the
logout: loginctl enable-linger. With --system they are the machine's, run as user systole, and need root.

Examples:
  systole service install                                     scheduler and runner of this machine, for this user
  systole service install -- --slots 4 --label gpu=1          the same with options of `systole up`
  systole service install runner                              a machine that has joined a cluster (systole join-command)
  sudo systole service install scheduler --system -- --database postgres://systole@db/systole
  systole service install --dry-run                           only print the units

Without systemd: `systole up --detach`, and at boot from cron: @reboot systole up --detach")]
pub struct ServiceArgs {
    #[command(subcommand)]
    pub action: ServiceAction,
}

#[derive(Debug, Subcommand)]
pub enum ServiceAction {
    /// Write the units, and start them now and from now on
    Install(InstallArgs),
    /// Stop the units and take them away; data and tokens stay
    Uninstall(UninstallArgs),
    /// Show the units; exit status 1 unless all that are installed run
    Status(ScopeArgs),
}

#[derive(Debug, Args)]
pub struct ScopeArgs {
    /// Units of the machine, not of this user
    #[arg(long)]
    pub system: bool,
}

#[derive(Debug, Args)]
pub struct InstallArgs {
    /// What is to run
    #[arg(value_name = "WHAT", default_value = "up")]
    pub kind: ServiceKind,
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// Print the units and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Options of `systole up`, `scheduler` or `runner`, which are checked now
    #[arg(last = true, value_name = "OPTION")]
    pub options: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// Which [default: all]
    #[arg(value_name = "WHAT")]
    pub kind: Option<ServiceKind>,
    #[command(flatten)]
    pub scope: ScopeArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServiceKind {
    /// Scheduler and runner of this machine
    Up,
    /// A scheduler
    Scheduler,
    /// A runner
    Runner,
}

impl ServiceKind {
    pub const ALL: [Self; 3] = [Self::Up, Self::Scheduler, Self::Runner];

    /// The command that it runs.
    pub fn command(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Scheduler => "scheduler",
            Self::Runner => "runner",
        }
    }
}
