//! What a runner process is told at its start, and whether it makes sense.

use crate::RunnerError;
use crate::credential::Credential;
use crate::kept::Keep;
use crate::warden::client::Origin;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use systole_shared::error::Invalid;
use systole_shared::id::check_host;
use systole_shared::limits::{LABELS_MAX, QUEUES_MAX, SLOTS_MAX};
use systole_shared::task::spec::{check_labels, check_word};

/// One runner process: `slots` runners `HOST/0` to `HOST/slots-1` over one connection.
#[derive(Clone)]
pub struct RunnerConfig {
    /// Scheduler addresses (`http://…` or `https://…`), one or more; tried in turn when one fails.
    pub urls: Vec<String>,
    /// The runner token.
    pub token: String,
    /// An additional certificate authority to trust, PEM.
    pub ca_pem: Option<Vec<u8>>,
    /// Where this host has joined: the token is its own and gets another secret after this time.
    pub joined: Option<(Credential, Duration)>,
    /// Name of this host; `[a-zA-Z0-9._-]`, 1 to 63 characters.
    pub host: String,
    /// 1 to 4096.
    pub slots: u32,
    /// Queues to serve; empty: `default`.
    pub queues: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// Of single slots, beside those of the host and before them.
    pub slot_labels: BTreeMap<u32, BTreeMap<String, String>>,
    /// Identity, journal, results and output; one process at a time.
    pub data_dir: PathBuf,
    /// From TERM to KILL; default 10 s.
    pub kill_grace: Duration,
    /// Where the process comes from that has the children.
    pub warden: Origin,
    /// How long running tasks may go on when the runner is told to end them; default 0.
    pub drain_wait: Duration,
    /// How long running tasks may go on without an agent; default 15 min.
    pub adopt_window: Duration,
    /// The file with this host's policy; without it the default one, if it exists.
    pub policy: Option<PathBuf>,
    /// Bytes of each stream of a task that stay on disk; default 1 GiB.
    pub output_file_max: u64,
    /// Full outputs that are kept when their tasks have ended.
    pub keep_output: Keep,
}

/// Default of [`RunnerConfig::output_file_max`].
pub const OUTPUT_FILE_MAX: u64 = 1024 * 1024 * 1024;

/// Default of [`RunnerConfig::adopt_window`].
pub const ADOPT_WINDOW: Duration = Duration::from_secs(15 * 60);

/// Without the token: configurations end up in logs.
impl std::fmt::Debug for RunnerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunnerConfig")
            .field("urls", &self.urls)
            .field("host", &self.host)
            .field("slots", &self.slots)
            .field("queues", &self.queues)
            .field("labels", &self.labels)
            .field("data_dir", &self.data_dir)
            .field("kill_grace", &self.kill_grace)
            .finish_non_exhaustive()
    }
}

impl RunnerConfig {
    /// Everything but the addresses and the token, which the link checks as it takes them apart.
    pub(crate) fn check(&self) -> Result<(), RunnerError> {
        check_host(&self.host, "host")?;
        if self.slots == 0 || self.slots > SLOTS_MAX {
            let message = format!("is {}; give 1 to {SLOTS_MAX}", self.slots);
            return Err(Invalid::new("slots", message).into());
        }
        if self.queues.len() > QUEUES_MAX {
            let message = format!("has {} entries; at most {QUEUES_MAX} are allowed", self.queues.len());
            return Err(Invalid::new("queues", message).into());
        }
        for queue in &self.queues {
            check_word(queue, "queues")?;
        }
        check_labels(&self.labels, LABELS_MAX, "labels")?;
        for (slot, labels) in &self.slot_labels {
            let field = format!("labels of slot {slot}");
            if *slot >= self.slots {
                return Err(Invalid::new(field, format!("there are {} slots, counted from 0", self.slots)).into());
            }
            check_labels(labels, LABELS_MAX, &field)?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn config(data_dir: &std::path::Path) -> RunnerConfig {
        RunnerConfig {
            urls: vec!["http://127.0.0.1:1".into()],
            token: "secret".into(),
            ca_pem: None,
            joined: None,
            host: "h".into(),
            slots: 1,
            queues: Vec::new(),
            labels: BTreeMap::new(),
            slot_labels: BTreeMap::new(),
            data_dir: data_dir.to_owned(),
            kill_grace: Duration::from_secs(1),
            warden: Origin::Elsewhere,
            drain_wait: Duration::ZERO,
            adopt_window: ADOPT_WINDOW,
            policy: None,
            output_file_max: OUTPUT_FILE_MAX,
            keep_output: Keep::default(),
        }
    }

    #[test]
    fn a_wrong_setting_is_named() {
        let good = config(std::path::Path::new("/tmp/x"));
        assert!(good.check().is_ok());
        let refused = |change: fn(&mut RunnerConfig)| {
            let mut config = good.clone();
            change(&mut config);
            config.check().expect_err("must be refused").to_string()
        };
        assert!(refused(|c| c.host = "a b".into()).contains("host"));
        assert!(refused(|c| c.slots = 0).contains("slots"));
        assert!(refused(|c| c.queues = vec!["A".into()]).contains("queues"));
        assert!(refused(|c| drop(c.labels.insert("GPU".into(), "1".into()))).contains("labels"));
        let labels: BTreeMap<String, String> = [("gpu".to_owned(), "0".to_owned())].into();
        assert!(refused(|c| drop(c.slot_labels.insert(1, BTreeMap::new()))).contains("labels of slot 1"));
        let mut of_slot = good.clone();
        of_slot.slot_labels.insert(0, labels);
        assert!(of_slot.check().is_ok());
        assert!(!format!("{good:?}").contains("secret"));
    }
}
