//! `status`: the cluster on one screen.

use super::value::since;
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
What failed is counted, with the command that shows it, and alone is no exit status 1: let an alarm of
the job tell of it, [[job.alarm]].")]
pub struct StatusArgs {
    /// Count what ended badly since then: a time, or a duration back from now [default: 24h]
    #[arg(long, value_name = "TIME|DURATION", value_parser = since, allow_hyphen_values = true)]
    pub since: Option<i64>,
}
