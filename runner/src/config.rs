//! What a runner process is told at its start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// One runner process: `slots` runners `HOST/0` to `HOST/slots-1` over one connection.
#[derive(Clone, Debug)]
pub struct RunnerConfig {
    /// Scheduler addresses (`http://…` or `https://…`), one or more; tried in turn when one fails.
    pub urls: Vec<String>,
    /// The runner token.
    pub token: String,
    /// An additional certificate authority to trust, PEM.
    pub ca_pem: Option<Vec<u8>>,
    /// Name of this host; `[a-zA-Z0-9._-]`, 1 to 63 characters.
    pub host: String,
    /// 1 to 4096.
    pub slots: u32,
    /// Queues to serve; empty: `default`.
    pub queues: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// Identity, journal, results and output; one process at a time.
    pub data_dir: PathBuf,
    /// From TERM to KILL; default 10 s.
    pub kill_grace: Duration,
}
