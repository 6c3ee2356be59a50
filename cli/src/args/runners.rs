//! `runners`: the fleet.

use super::value::{host, reason, target};
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
    /// Give runners tasks again
    Uncordon(CordonArgs),
}

#[derive(Debug, Args)]
pub struct CordonArgs {
    /// Hosts with all their slots, also those that they get later; or single slots
    #[arg(value_name = "HOST[/SLOT]", required = true, value_parser = target)]
    pub runners: Vec<Target>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}
