//! What a scheduler replica is told at its start. Defaults are those of the product; the command line
//! and the tests change them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything a replica needs. Identical replicas get the same `database` and `timing`.
#[derive(Clone, Debug)]
pub struct Config {
    /// `sqlite:PATH`, or `postgres://USER:PASSWORD@HOST/NAME`.
    pub database: String,
    /// Where gRPC and plain HTTP are served. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Required for an address that is not loopback.
    pub tls: Option<Tls>,
    /// Serve an address that is not loopback without TLS.
    pub insecure_plaintext: bool,
    /// Where the tokens of the first start are written, readable by the owner alone.
    pub token_dir: PathBuf,
    /// Make new admin and runner tokens; the old ones stop working.
    pub renew_tokens: bool,
    /// Start on a PostgreSQL that may lose acknowledged commits (`fsync` or `synchronous_commit` off).
    pub allow_unsafe_database: bool,
    /// Connections to PostgreSQL, all together.
    pub connections: u32,
    /// IANA zone of triggers and calendars that name none, for the whole cluster; `None`: as it was decided before, else UTC.
    pub zone: Option<String>,
    /// A folder of job files, read once at the start.
    pub jobs: Option<PathBuf>,
    pub timing: Timing,
    pub strangers: Strangers,
    pub retention: Retention,
    pub callbacks: Callbacks,
    pub alarms: Alarms,
    /// Where to say that this replica makes progress.
    pub life_sign: Option<LifeSign>,
}

impl Config {
    /// Product defaults for this database and address.
    pub fn new(database: impl Into<String>, listen: SocketAddr, token_dir: PathBuf) -> Self {
        Self {
            database: database.into(),
            listen,
            tls: None,
            insecure_plaintext: false,
            token_dir,
            renew_tokens: false,
            allow_unsafe_database: false,
            connections: 16,
            zone: None,
            jobs: None,
            timing: Timing::default(),
            strangers: Strangers::default(),
            retention: Retention::default(),
            callbacks: Callbacks::default(),
            alarms: Alarms::default(),
            life_sign: None,
        }
    }
}

/// Where the server's certificate comes from.
#[derive(Clone, Debug)]
pub enum Tls {
    Files(TlsFiles),
    SelfSigned(SelfSigned),
}

/// A certificate authority of the cluster's own, which signs the certificate of each replica.
#[derive(Clone, Debug)]
pub struct SelfSigned {
    /// Host names and addresses beside those of this machine, such as that of a load balancer.
    pub names: Vec<String>,
    /// Make a new authority; who trusts the old one does not connect any more.
    pub new_ca: bool,
    /// Of a server certificate, which is renewed after two thirds of it; default 90 days.
    pub lifetime: Duration,
}

impl Default for SelfSigned {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            new_ca: false,
            lifetime: Duration::from_secs(90 * 24 * 3600),
        }
    }
}

#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// The clocks of the heartbeat protocol.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Longest time between two beats of a runner; default 30 s.
    pub beat: Duration,
    /// Silence after which a runner is lost; at least 3 beats; default 90 s.
    pub lost_after: Duration,
    /// Period of the reaper; default 10 s.
    pub check: Duration,
    /// Period of the poll behind the notifications; default 1 s.
    pub poll: Duration,
    /// On SIGTERM: how long the replica goes on serving while it reports "not ready", so that a
    /// balancer takes it out; default 2 s.
    pub drain_wait: Duration,
    /// On SIGTERM: longest time for calls under way after that; default 10 s.
    pub drain_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            beat: Duration::from_secs(30),
            lost_after: Duration::from_secs(90),
            check: Duration::from_secs(10),
            poll: Duration::from_secs(1),
            drain_wait: Duration::from_secs(2),
            drain_max: Duration::from_secs(10),
        }
    }
}

/// How long a connection is kept on which nobody has shown a token that is valid.
#[derive(Clone, Copy, Debug)]
pub struct Strangers {
    /// Longest time to the first byte, then for the TLS handshake, and for the head of each request of HTTP/1; default 10 s.
    pub handshake_max: Duration,
    /// Longest time from then on to the first call that is admitted by its token; default 60 s. After it the connection is told
    /// to end, and after another `handshake_max` it is closed.
    pub admission_max: Duration,
}

impl Default for Strangers {
    fn default() -> Self {
        Self {
            handshake_max: Duration::from_secs(10),
            admission_max: Duration::from_secs(60),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Ended tasks and their output are deleted after this; zero keeps them; default 7 days.
    pub keep: Duration,
    /// Who did what is known for this long; zero keeps it; default 366 days.
    pub keep_audit: Duration,
    /// Stored output of all tasks together, bytes; the oldest goes first; default 10 GiB.
    pub output_budget: u64,
    /// Period of the clean-up; default 60 s.
    pub period: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            keep: Duration::from_secs(7 * 24 * 3600),
            keep_audit: Duration::from_secs(366 * 24 * 3600),
            output_budget: 10 * 1024 * 1024 * 1024,
            period: Duration::from_secs(60),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Callbacks {
    /// Deliver to loopback, private and link-local addresses too.
    pub allow_private: bool,
    /// Deadline of one delivery; default 10 s.
    pub timeout: Duration,
    /// Wait after the first failed delivery; doubles with each, up to an hour; default 2 s.
    pub backoff: Duration,
}

impl Default for Callbacks {
    fn default() -> Self {
        Self {
            allow_private: false,
            timeout: Duration::from_secs(10),
            backoff: Duration::from_secs(2),
        }
    }
}

/// How people are told.
#[derive(Clone, Debug)]
pub struct Alarms {
    /// The file of channels; without one no alarm leaves this replica.
    pub file: Option<PathBuf>,
    /// Deadline of one delivery; default 20 s.
    pub timeout: Duration,
    /// Wait after the first failed delivery; doubles with each, up to an hour; default 10 s.
    pub backoff: Duration,
}

impl Default for Alarms {
    fn default() -> Self {
        Self {
            file: None,
            timeout: Duration::from_secs(20),
            backoff: Duration::from_secs(10),
        }
    }
}

/// An address that is called as long as a replica makes progress.
#[derive(Clone, Debug)]
pub struct LifeSign {
    pub url: String,
    /// Default 60 s.
    pub every: Duration,
}
