//! `runners`: the fleet.

use super::value::{host, reason, target, until};
use clap::{Args, Subcommand};
use systole_shared::id::Target;

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
    /// Cordon runners, and show what still runs there
    Drain(DrainArgs),
    /// Forget a host that is gone; one that comes back is a new one
    Rm(RmArgs),
    /// Give runners tasks again
    Uncordon(UncordonArgs),
}

#[derive(Debug, Args)]
pub struct UncordonArgs {
    /// Hosts with all their slots, also those that they get later; or single slots
    #[arg(value_name = "HOST[/SLOT]", required = true, value_parser = target)]
    pub runners: Vec<Target>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct RmArgs {
    /// The host, which must be silent
    #[arg(value_name = "HOST", value_parser = host)]
    pub host: String,
    /// Nothing runs there any more: what it held ends as lost, and can be run elsewhere (systole rerun)
    #[arg(long)]
    pub dead: bool,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct CordonArgs {
    #[command(flatten)]
    pub which: UncordonArgs,
    /// The cordon ends by itself then: a time, or a duration from now. Of several the longest holds
    #[arg(long, value_name = "TIME|DURATION", value_parser = until)]
    pub until: Option<Until>,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    #[command(flatten)]
    pub cordon: CordonArgs,
    /// End only when nothing runs there any more
    #[arg(long)]
    pub wait: bool,
}

/// An end, by the clock of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// ms since the epoch.
    Time(u64),
    /// ms from now on.
    Within(u64),
}
