//! `runner` and `warden`, the two processes of a host.

use super::log::LogArgs;
use super::value::{SlotLabel, duration, host, label, positive_duration, slot_label, word};
use crate::url::Url;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use systole_runner::kept::Keep;
use systole_runner::warden::flood::FILE_BYTES_MIN;
use systole_shared::limits::SLOTS_MAX;
use systole_shared::policy::certificate::parse_fingerprint;
use systole_shared::task::limits::parse_bytes;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole runner --url https://10.0.0.5:7410 --ca ca.pem --token-file runner.token
  echo TOKEN | systole runner --join https://10.0.0.5:7410 --ca-sha256 SHA256   (systole join-command prints it)
  systole runner                                                                (a host that has joined)
  systole runner --url http://127.0.0.1:7410 --slots 2 --label gpu=1 --queue batch
  systole runner --url http://127.0.0.1:7410 --slots 4 --slot-label 0:gpu=0 --slot-label 1:gpu=1 --slot-label 2-3:gpu=none")]
pub struct RunnerArgs {
    /// Tasks at once [default: number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SLOTS_MAX)))]
    pub slots: Option<u32>,
    /// A queue to serve, repeatable [default: default]
    #[arg(long = "queue", value_name = "Q", value_parser = word)]
    pub queues: Vec<String>,
    /// A label that tasks may require, repeatable
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// A label of one slot or some, such as 0:gpu=0 or 0-3:disk=fast, repeatable
    #[arg(long = "slot-label", value_name = "SLOT:K=V", value_parser = slot_label)]
    pub slot_labels: Vec<SlotLabel>,
    /// Name of this host [default: that with which it joined, or its host name]
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub name: Option<String>,
    /// State and output [default: $XDG_DATA_HOME/systole/runner or ~/.local/share/systole/runner]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// From the first signal (TERM) to KILL when a task is ended
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration)]
    pub kill_grace: Duration,
    /// The runner token [default: runner.token in ~/.config/systole/tokens/HOST_PORT]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Join the cluster at this https address with the token on stdin: the line of `systole join-command`
    #[arg(long, value_name = "URL", value_parser = Url::parse, conflicts_with = "token_file")]
    pub join: Option<Url>,
    /// Fingerprint of the authority that the scheduler must have [default: one that --ca or this machine trusts]
    #[arg(long, value_name = "SHA256", requires = "join", value_parser = fingerprint)]
    pub ca_sha256: Option<String>,
    /// Join, and end: a service starts the runner
    #[arg(long, requires = "join")]
    pub join_only: bool,
    /// How often a host that joined gives its token another secret
    #[arg(long, value_name = "D", default_value = "7d", value_parser = positive_duration)]
    pub rotate_every: Duration,
    /// Wait for a warden that somebody else starts, such as systemd, instead of starting one
    #[arg(long)]
    pub external_warden: bool,
    #[command(flatten)]
    pub warden: WardenTimes,
    #[command(flatten)]
    pub policy: PolicyArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Clone, Debug, Args)]
pub struct PolicyArgs {
    /// What may run on this host, a TOML file of root's or of this user [default: /etc/systole/runner.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
}

impl PolicyArgs {
    /// The warden may read it from another folder.
    pub fn absolute(&self) -> Option<PathBuf> {
        let file = self.policy.as_ref()?;
        Some(std::path::absolute(file).unwrap_or_else(|_| file.clone()))
    }
}

#[derive(Clone, Debug, Args)]
pub struct WardenTimes {
    /// How long tasks may run on without a runner before they are ended
    #[arg(long, value_name = "D", default_value = "15m", value_parser = duration)]
    pub adopt_window: Duration,
    /// How long tasks may run on when they are to be ended
    #[arg(long, value_name = "D", default_value = "0s", value_parser = duration)]
    pub drain_wait: Duration,
    /// How much of each stream of a task stays on disk, at least 16M; a longer one loses its middle
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = file_size)]
    pub output_file_max: u64,
    /// Keep the full output of tasks that wrote more than is stored, this long after their end; 0s: not at all
    #[arg(long, value_name = "D", default_value = "24h", value_parser = duration)]
    pub keep_output: Duration,
    /// All of those together; the oldest goes first, as it does when the disk runs full
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = parse_bytes)]
    pub keep_output_max: u64,
}

impl WardenTimes {
    pub fn keep(&self) -> Keep {
        Keep {
            time: self.keep_output,
            bytes: self.keep_output_max,
        }
    }
}

fn fingerprint(text: &str) -> Result<String, String> {
    parse_fingerprint(text, "").map_err(|invalid| format!("{text:?} {}", invalid.message))
}

fn file_size(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes < FILE_BYTES_MIN => Err(format!("{text} is less than 16M")),
        bytes => Ok(bytes),
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
It starts, watches and ends the tasks of the runner with the same --data-dir, and outlives it: a runner that
crashes or is upgraded finds its tasks as they are. SIGTERM: no new tasks, those that run are ended and reported.")]
pub struct WardenArgs {
    /// State and output, the same as the runner's [default: $XDG_DATA_HOME/systole/runner or ~/.local/share/systole/runner]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub times: WardenTimes,
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// End when no runner and no task is left
    #[arg(long)]
    pub leave_when_idle: bool,
    #[command(flatten)]
    pub log: LogArgs,
}
