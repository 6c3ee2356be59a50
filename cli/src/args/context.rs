//! `context`: named clusters.

use super::value::token_name;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Which cluster a command goes to, the first that is given: --url, --context, SYSTOLE_URL, SYSTOLE_CONTEXT, the
current context, this machine. With --context its token and authority are used; else SYSTOLE_TOKEN_FILE and
SYSTOLE_CA go before those of the context.

Examples:
  systole context add prod --url https://10.0.0.5:7410 --ca ca.pem --token-file ann.token
  systole context use prod
  systole --context prod ls"
)]
pub struct ContextArgs {
    #[command(subcommand)]
    pub action: Option<ContextAction>,
}

#[derive(Debug, Subcommand)]
pub enum ContextAction {
    /// List contexts; the current one is marked (the default)
    Ls,
    /// Add a cluster, with the --url and --ca that are given here; the first one becomes the current one
    Add(AddContextArgs),
    /// Make a context the current one
    Use(ContextNameArgs),
    /// Forget a context; its files stay
    Rm(ContextNameArgs),
}

#[derive(Debug, Args)]
pub struct AddContextArgs {
    /// What you call it
    #[arg(value_name = "NAME", value_parser = token_name)]
    pub name: String,
    /// The token to use there [default: as without a context]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ContextNameArgs {
    /// One that `systole context ls` names
    #[arg(value_name = "NAME")]
    pub name: String,
}
