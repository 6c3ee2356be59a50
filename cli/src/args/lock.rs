//! `lock`: leases.

use super::value::{count, duration, positive_duration, reason, word};
use clap::{Args, Subcommand};
use std::time::Duration;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
The command runs while the lease is held, and nobody else in the cluster holds it meanwhile. It is
renewed at a third of --ttl. When it is lost, or cannot be renewed, the command is dead before the ttl
is over: SIGTERM to its process group, --kill-grace later SIGKILL. It finds SYSTOLE_FENCING_TOKEN, a
number that rises with each holder: what the lease protects should refuse a lower one than the
highest that it has seen.

Signals are forwarded. Exit status: that of the command; else 120 it is held (without --wait) or the
call was refused, 121 somebody took the lease away, 124 --wait was over, 125 no scheduler could be
reached (or the lease was lost by that), 126 could not start, 127 program not found.

Examples:
  systole lock nightly-migration -- ./migrate
  systole lock shard-7 --ttl 1m --wait 10m -- sh -c './compact --token \"$SYSTOLE_FENCING_TOKEN\"'
  systole lock release nightly-migration --reason 'host gone' --now"
)]
pub struct LockArgs {
    #[command(subcommand)]
    pub action: Option<LockAction>,
    #[command(flatten)]
    pub hold: Option<HoldArgs>,
}

#[derive(Debug, Subcommand)]
pub enum LockAction {
    /// List leases that are held
    Ls,
    /// Take a lease away from its holder, which stops with its next renewal
    Release {
        #[arg(value_name = "RESOURCE", value_parser = word)]
        resource: String,
        /// Only the lease with this token
        #[arg(long, value_name = "N", value_parser = count)]
        token: Option<u64>,
        /// It is free at once. Only for a holder that is known to be dead: otherwise there may be two
        #[arg(long)]
        now: bool,
        /// Why; the holder reads it
        #[arg(long, value_name = "R", value_parser = reason)]
        reason: String,
    },
}

#[derive(Debug, Args)]
pub struct HoldArgs {
    /// What one at a time may have, `[a-z0-9._-]`
    #[arg(value_name = "RESOURCE", value_parser = word)]
    pub resource: String,
    /// How long it stays when it is not renewed, 3s to 24h
    #[arg(long, value_name = "D", default_value = "30s", value_parser = duration)]
    pub ttl: Duration,
    /// Wait for so long while it is held; without it, not at all
    #[arg(long, value_name = "D", value_parser = positive_duration)]
    pub wait: Option<Duration>,
    /// From SIGTERM to SIGKILL when the lease is lost; at most a quarter of the ttl
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration)]
    pub kill_grace: Duration,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", last = true, required = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// The process beside a held lease.
#[derive(Debug, Args)]
pub struct LockGuardArgs {}
