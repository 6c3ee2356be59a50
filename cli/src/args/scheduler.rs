//! `up` and `scheduler`, and what both take.

use super::log::LogArgs;
use super::runner::PolicyArgs;
use super::value::{duration, label, listen, positive_duration, size, word};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use systole_scheduler::config::{SelfSigned, Tls};
use systole_shared::limits::SLOTS_MAX;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole up
  systole up --slots 8 --label gpu=1
  systole up --listen 127.0.0.1:7411 --data-dir /tmp/second
  systole up --listen 0.0.0.0:7410 --tls-self-signed    other machines can join (systole join-command)
  systole up --detach                                   goes on without this terminal, until `systole down`

Ctrl-C stops the runner first (its tasks are ended and reported), then the scheduler.
A second Ctrl-C exits at once. To start it with the machine: `systole service install`.")]
pub struct UpArgs {
    /// Go on in the background, with the log in DATA_DIR/up.log (16 MiB, and the 16 MiB before); returns when tasks are taken
    #[arg(short, long)]
    pub detach: bool,
    /// What --detach starts.
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub detached: bool,
    /// Where the scheduler listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7410", value_parser = listen)]
    pub listen: SocketAddr,
    /// Tasks at once [default: number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SLOTS_MAX)))]
    pub slots: Option<u32>,
    /// Database and runner state [default: $XDG_DATA_HOME/systole or ~/.local/share/systole]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// sqlite:PATH or postgres://… [default: sqlite:DATA_DIR/systole.db] [env: SYSTOLE_DATABASE]
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
    /// A label of this machine's runner, repeatable
    #[arg(long = "label", value_name = "K=V", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// A queue to serve, repeatable [default: default]
    #[arg(long = "queue", value_name = "Q", value_parser = word)]
    pub queues: Vec<String>,
    /// Serve an address that is not loopback without TLS
    #[arg(long, conflicts_with = "tls_self_signed")]
    pub insecure_plaintext: bool,
    #[command(flatten)]
    pub own_tls: OwnTlsArgs,
    #[command(flatten)]
    pub policy: PolicyArgs,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The runner is stopped first: its tasks are ended and reported. To let them end by themselves, first
`systole runners drain HOST --wait`.")]
pub struct DownArgs {
    /// That of the `up` that is to end [default: $XDG_DATA_HOME/systole or ~/.local/share/systole]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Longest wait for its end; it goes on ending after that
    #[arg(long, value_name = "D", default_value = "2m", value_parser = duration)]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  systole scheduler --database sqlite:/var/lib/systole/systole.db --jobs /etc/systole/jobs
  systole scheduler --database postgres://systole@db/systole --listen 10.0.0.5:7410 \\
      --tls-cert cert.pem --tls-key key.pem
  systole scheduler --database sqlite:/var/lib/systole/systole.db --listen 0.0.0.0:7410 --tls-self-signed

Any number of schedulers may share one PostgreSQL database; there is no leader. Keep a password out
of the command line, which other users of the machine can read: use SYSTOLE_DATABASE.")]
pub struct SchedulerArgs {
    /// sqlite:PATH or postgres://USER:PASSWORD@HOST/NAME [env: SYSTOLE_DATABASE]
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
    /// Where the scheduler listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7410", value_parser = listen)]
    pub listen: SocketAddr,
    /// Certificate chain, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "tls_self_signed")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Serve an address that is not loopback without TLS
    #[arg(long, conflicts_with_all = ["tls_self_signed", "tls_cert"])]
    pub insecure_plaintext: bool,
    #[command(flatten)]
    pub own_tls: OwnTlsArgs,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Clone, Debug, Args)]
pub struct OwnTlsArgs {
    /// TLS with a certificate authority of the cluster's own, made at the first start; other hosts: `systole join-command`
    #[arg(long)]
    pub tls_self_signed: bool,
    /// One more host name or address of this scheduler, such as a load balancer's, repeatable
    #[arg(long = "tls-name", value_name = "NAME", requires = "tls_self_signed", value_parser = server_name)]
    pub tls_names: Vec<String>,
    /// Make a new authority; who trusts the old one has to be told the new one
    #[arg(long, requires = "tls_self_signed")]
    pub tls_new_ca: bool,
}

impl OwnTlsArgs {
    pub fn tls(&self) -> Option<Tls> {
        self.tls_self_signed.then(|| {
            Tls::SelfSigned(SelfSigned {
                names: self.tls_names.clone(),
                new_ca: self.tls_new_ca,
                ..SelfSigned::default()
            })
        })
    }
}

/// A name as a certificate has it.
fn server_name(text: &str) -> Result<String, String> {
    match rustls::pki_types::ServerName::try_from(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!(
            "{text:?} is no host name and no address; write for example systole.example.org or 10.0.0.5"
        )),
    }
}

#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// Zone of triggers and calendars that name none, of the whole cluster; stored with each that is applied from now on
    /// [default: as before, else UTC]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// A folder of job files, read at the start: what is right in it is applied, what is wrong is shown by `systole status`
    #[arg(long, value_name = "DIR")]
    pub jobs: Option<PathBuf>,
    /// Where tokens are written [default: ~/.config/systole/tokens/HOST_PORT]
    #[arg(long, value_name = "DIR")]
    pub token_dir: Option<PathBuf>,
    /// Make new admin and runner tokens; the old ones stop working
    #[arg(long)]
    pub renew_tokens: bool,
    /// Start on a PostgreSQL that may lose acknowledged commits
    #[arg(long)]
    pub allow_unsafe_database: bool,
    /// Connections to PostgreSQL, all together
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub connections: u32,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Clocks and limits")]
pub struct ClusterArgs {
    /// Longest time between two beats of a runner
    #[arg(long, value_name = "D", default_value = "30s", value_parser = positive_duration)]
    pub beat: Duration,
    /// Silence after which a runner is lost; at least 3 beats
    #[arg(long, value_name = "D", default_value = "90s", value_parser = positive_duration)]
    pub lost_after: Duration,
    /// How often silent runners are looked for
    #[arg(long, value_name = "D", default_value = "10s", value_parser = positive_duration)]
    pub check: Duration,
    /// How often the database is asked for due tasks, besides its notifications
    #[arg(long, value_name = "D", default_value = "1s", value_parser = positive_duration)]
    pub poll: Duration,
    /// On stop: how long calls are still served while the health check says "not ready"
    #[arg(long, value_name = "D", default_value = "2s", value_parser = duration)]
    pub drain_wait: Duration,
    /// On stop: longest time for calls under way after that
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration)]
    pub drain_max: Duration,
    /// Delete ended tasks and their output after this; 0 keeps them
    #[arg(long, value_name = "D", default_value = "7d", value_parser = duration)]
    pub keep: Duration,
    /// Keep who did what for this long; 0 keeps it
    #[arg(long, value_name = "D", default_value = "366d", value_parser = duration)]
    pub keep_audit: Duration,
    /// Stored output of all tasks together; the oldest goes first
    #[arg(long, value_name = "SIZE", default_value = "10GiB", value_parser = size)]
    pub output_budget: u64,
    /// How often old tasks and output are deleted
    #[arg(long, value_name = "D", default_value = "60s", value_parser = positive_duration)]
    pub retention_period: Duration,
    /// Deliver callbacks to loopback, private and link-local addresses too
    #[arg(long)]
    pub callback_allow_private: bool,
    /// Deadline of one callback delivery
    #[arg(long, value_name = "D", default_value = "10s", value_parser = positive_duration)]
    pub callback_timeout: Duration,
    /// Wait after the first failed delivery; doubles with each
    #[arg(long, value_name = "D", default_value = "2s", value_parser = positive_duration)]
    pub callback_backoff: Duration,
    /// Where alarms of jobs go: a file of channels, the same for all schedulers of a cluster [env: SYSTOLE_ALARMS]
    #[arg(long, value_name = "FILE")]
    pub alarms: Option<PathBuf>,
    /// Deadline of one delivery of an alarm
    #[arg(long, value_name = "D", default_value = "20s", value_parser = positive_duration)]
    pub alarm_timeout: Duration,
    /// Wait after the first failed delivery of an alarm; doubles with each, up to an hour
    #[arg(long, value_name = "D", default_value = "10s", value_parser = positive_duration)]
    pub alarm_backoff: Duration,
    /// Call this address as long as this scheduler makes progress: its silence can raise an alarm elsewhere
    /// [env: SYSTOLE_HEARTBEAT_URL]
    #[arg(long, value_name = "URL")]
    pub heartbeat_url: Option<String>,
    /// How often
    #[arg(long, value_name = "D", default_value = "60s", value_parser = positive_duration)]
    pub heartbeat_every: Duration,
}
