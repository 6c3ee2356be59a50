//! `token` and `audit`: who may do what, and who did what.

use super::value::{count, one_of, positive_duration, reason, since, token_name};
use crate::url::Url;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use systole_shared::policy::access::Role;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TokenArgs {
    #[command(subcommand)]
    pub action: Option<TokenAction>,
}

#[derive(Debug, Subcommand)]
pub enum TokenAction {
    /// List tokens: role, expiry and last use, never a secret (the default)
    Ls,
    /// Make a token; its secret is shown once
    Create(CreateTokenArgs),
    /// Revoke tokens: they are refused from now on
    Revoke(RevokeTokenArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Roles: viewer sees everything, operator also runs and cancels tasks and cordons runners, admin also
makes and revokes tokens, runner runs tasks and sees nothing but its own.

Examples:
  systole token create ann --role operator --expires 90d --file ann.token
  systole token create ci --role operator -q > ci.token
  SYSTOLE_TOKEN_FILE=ann.token systole ls")]
pub struct CreateTokenArgs {
    /// Who it is for: the name that everything done with it carries
    #[arg(value_name = "NAME", value_parser = token_name)]
    pub name: String,
    /// What it may do
    #[arg(long, value_name = "ROLE", value_parser = one_of(Role::ALL, Role::name))]
    pub role: Role,
    /// Valid for this long [default: until it is revoked]
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = positive_duration)]
    pub expires: Option<Duration>,
    /// Write the secret to this new file, readable by you alone, and not to stdout
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
pub struct RevokeTokenArgs {
    /// Names of the tokens
    #[arg(value_name = "NAME", required = true, value_parser = token_name)]
    pub names: Vec<String>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Paste the line on the other machine, where systole is installed. It checks the fingerprint of the scheduler's
authority, gets a token of its own and begins to take tasks. What it needs for its next start is in its data
folder: `systole runner` alone will do. Take it away again with `systole token revoke runner@HOST`.

Examples:
  systole join-command
  systole join-command --address https://systole.example.org:7410
  systole -o json join-command | jq -r .token")]
pub struct JoinCommandArgs {
    /// Where the other machine reaches the scheduler [default: how this command does, else what the scheduler says]
    #[arg(long, value_name = "URL", value_parser = Url::parse)]
    pub address: Option<Url>,
    /// Why, for those who read it later
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Cancels, cordons and changes of tokens, newest first. Submissions are the tasks themselves:
--action submit lists them.

Examples:
  systole audit --since -1d
  systole audit --actor ann --action cancel
  systole audit --subject db-01

A table shows the newest 20 unless -n says otherwise; json, jsonl and id show all.")]
pub struct AuditArgs {
    /// Only what this token did
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// Only this: submit, cancel, cordon, uncordon, \"token create\", \"token revoke\", …
    #[arg(long, value_name = "ACTION")]
    pub action: Option<String>,
    /// Only what was done to this task, runner or token
    #[arg(long, value_name = "SUBJECT")]
    pub subject: Option<String>,
    /// At or after this time, or within this last while, such as 2h
    #[arg(long, value_name = "TIME|DURATION", value_parser = since, allow_hyphen_values = true)]
    pub since: Option<i64>,
    /// Before this time, or longer ago than a while, such as 2h
    #[arg(long, value_name = "TIME|DURATION", value_parser = since, allow_hyphen_values = true)]
    pub until: Option<i64>,
    /// At most this many
    #[arg(short = 'n', value_name = "N", value_parser = count)]
    pub limit: Option<u64>,
}
