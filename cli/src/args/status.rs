//! `status`: the cluster on one screen.

use super::value::since;
use clap::Args;

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Count what ended badly since then: a time, or a duration back from now [default: 24h]
    #[arg(long, value_name = "TIME|DURATION", value_parser = since, allow_hyphen_values = true)]
    pub since: Option<i64>,
}
