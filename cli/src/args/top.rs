//! Options of `systole top`.

use super::value::duration;
use clap::Args;
use std::time::Duration;

const EVERY_MIN: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(after_help = "\
Shows the newest 200 tasks and up to 5,000 slots of hosts, and of the selected task the last output as it comes. Keys: ? shows
them. Cancel and rerun ask first and name the cluster. Nothing ends when it is left.")]
pub struct TopArgs {
    /// How often it looks, 1s or more; output comes at once
    #[arg(long, value_name = "D", default_value = "2s", value_parser = every, allow_hyphen_values = true)]
    pub every: Duration,
}

fn every(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        every if every >= EVERY_MIN => Ok(every),
        _ => Err(format!("{text:?} is too short; write 1s or more")),
    }
}
