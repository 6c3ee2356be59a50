//! What is to be run, and how: it never changes after the submission.

pub use super::validate::{check_labels, check_text, check_word, parse_label};
use crate::id::Target;
use crate::limits::{NAME_CHARS_MAX, PRIORITY_DEFAULT, UMASK_DEFAULT};
use crate::task::limits::Limits;
use crate::task::output::OutputPolicy;
use crate::task::signal::SIGTERM;
use crate::task::terminal::Terminal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What to do when the task fails: retries are new tasks of the same chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Retries after the first attempt.
    pub max_retries: u32,
    /// From the end of an attempt to the start of the next.
    pub delay_ms: u64,
}

/// What becomes of the child when its runner cannot reach any scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    /// It goes on, and its result is reported when a scheduler is back.
    #[default]
    Continue,
    /// Its runner ends it before the cluster would declare the runner lost (see [`crate::policy::fence`]).
    Kill,
}

impl OnDisconnect {
    pub const ALL: [OnDisconnect; 2] = [OnDisconnect::Continue, OnDisconnect::Kill];

    pub fn name(self) -> &'static str {
        match self {
            OnDisconnect::Continue => "continue",
            OnDisconnect::Kill => "kill",
        }
    }
}

/// What becomes of the child when the runner's process is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnRunnerRestart {
    /// It goes on under the new process.
    #[default]
    Adopt,
    /// The new process ends it.
    Kill,
}

impl OnRunnerRestart {
    pub const ALL: [OnRunnerRestart; 2] = [OnRunnerRestart::Adopt, OnRunnerRestart::Kill];

    pub fn name(self) -> &'static str {
        match self {
            OnRunnerRestart::Adopt => "adopt",
            OnRunnerRestart::Kill => "kill",
        }
    }
}

// Fields that came later are not written when they have their default: the text of a specification is what an
// idempotency key is compared by, and must stay the same over an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Program and arguments, exactly as the child gets them.
    pub command: Vec<String>,
    /// A name for people; never empty once [`TaskSpec::with_defaults`] was applied.
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub queue: String,
    /// Labels that the runner must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub require: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    #[serde(default = "default_priority")]
    pub priority: u32,
    /// Not before this time, ms since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at_ms: Option<i64>,
    /// Not before this long after the submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Longest run of one attempt, from process start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Longest time in QUEUED.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_timeout_ms: Option<u64>,
    /// Longest time from the dispatch to the start of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout_ms: Option<u64>,
    /// Longest time without a byte of output while the process runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence_timeout_ms: Option<u64>,
    /// Sent to the main process group `warn_before_ms` before the run timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warn_signal: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warn_before_ms: Option<u64>,
    /// The first signal when the task is ended.
    #[serde(default = "default_kill_signal", skip_serializing_if = "is_default_kill_signal")]
    pub kill_signal: i32,
    /// From the first signal to SIGKILL; without it the runner's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill_grace_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_disconnect: OnDisconnect,
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_runner_restart: OnRunnerRestart,
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "is_default")]
    pub output: OutputPolicy,
    /// Permissions that files made by the task do not get.
    #[serde(default = "default_umask", skip_serializing_if = "is_default_umask")]
    pub umask: u32,
    /// Name or number of the user to run as; without it the runner's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Name or number of the main group; without it that of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Added to a clean environment, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    /// Absolute path on the runner's host of a file with more variables; those of `env` win.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_file: Option<String>,
    /// Absolute; without it a fresh directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// The fresh directory is not removed afterwards, for a while.
    #[serde(default, skip_serializing_if = "is_default")]
    pub keep_workdir: bool,
    /// A terminal of its own for stdin, stdout and stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<Terminal>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
    #[serde(default)]
    pub retry: Retry,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The batch that it was submitted with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<String>,
    /// Which line of the batch, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_line: Option<u64>,
    /// Not twice while one with this key waits or runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
}

fn default_priority() -> u32 {
    PRIORITY_DEFAULT
}

fn default_kill_signal() -> i32 {
    SIGTERM
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_default_kill_signal(signal: &i32) -> bool {
    *signal == SIGTERM
}

fn default_umask() -> u32 {
    UMASK_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_default_umask(umask: &u32) -> bool {
    *umask == UMASK_DEFAULT
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for TaskSpec {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            name: String::new(),
            queue: "default".into(),
            require: BTreeMap::new(),
            tags: Vec::new(),
            target: None,
            priority: PRIORITY_DEFAULT,
            run_at_ms: None,
            delay_ms: None,
            timeout_ms: None,
            queue_timeout_ms: None,
            start_timeout_ms: None,
            silence_timeout_ms: None,
            warn_signal: None,
            warn_before_ms: None,
            kill_signal: SIGTERM,
            kill_grace_ms: None,
            on_disconnect: OnDisconnect::default(),
            on_runner_restart: OnRunnerRestart::default(),
            limits: Limits::default(),
            output: OutputPolicy::default(),
            umask: UMASK_DEFAULT,
            user: None,
            group: None,
            env: Vec::new(),
            env_file: None,
            dir: None,
            keep_workdir: false,
            tty: None,
            callback_url: None,
            retry: Retry::default(),
            job: None,
            batch: None,
            batch_line: None,
            unique_key: None,
        }
    }
}

impl TaskSpec {
    /// Fills what the submitter left open: the queue and a name made of the program's file name.
    pub fn with_defaults(mut self) -> Self {
        if self.queue.is_empty() {
            self.queue = "default".into();
        }
        if self.name.is_empty() {
            let program = self.command.first().map_or("", String::as_str);
            let file = program.rsplit('/').find(|part| !part.is_empty()).unwrap_or(program);
            let clean: String = file.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect();
            self.name = if clean.is_empty() { "task".into() } else { clean };
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::output::OnLimit;

    fn spec(command: &[&str]) -> TaskSpec {
        TaskSpec {
            command: command.iter().map(|&c| c.to_owned()).collect(),
            ..TaskSpec::default()
        }
    }

    /// Idempotency keys compare this text: one that was stored before an upgrade must still be the same.
    #[test]
    fn a_plain_spec_is_written_as_it_always_was() {
        let text = serde_json::to_string(&spec(&["true"]).with_defaults()).expect("serialises");
        assert_eq!(
            text,
            r#"{"command":["true"],"name":"true","queue":"default","priority":5,"retry":{"max_retries":0,"delay_ms":0}}"#
        );
        assert!(serde_json::from_str::<TaskSpec>(&text).is_ok_and(|spec| spec.kill_signal == SIGTERM));
    }

    #[test]
    fn json_round_trips() {
        let mut full = spec(&["sh", "-c", "x"]).with_defaults();
        full.env.push(("A".into(), "line\nline".into()));
        full.target = Some(Target {
            host: "db-01".into(),
            slot: Some(3),
        });
        full.require.insert("gpu".into(), "1".into());
        full.timeout_ms = Some(10_000);
        full.warn_signal = Some(10);
        full.warn_before_ms = Some(1_000);
        full.queue_timeout_ms = Some(1);
        full.start_timeout_ms = Some(2);
        full.silence_timeout_ms = Some(3);
        full.kill_signal = 2;
        full.kill_grace_ms = Some(0);
        full.on_disconnect = OnDisconnect::Kill;
        full.on_runner_restart = OnRunnerRestart::Kill;
        full.limits = Limits {
            open_files: Some(64),
            core_bytes: 1,
            file_bytes: Some(2),
            nice: Some(0),
            memory_bytes: Some(3),
            cpu_millis: Some(4),
            pids: Some(5),
        };
        full.output = OutputPolicy {
            max_bytes: Some(1 << 20),
            on_limit: OnLimit::Kill,
            keep_ms: Some(1),
        };
        full.umask = 0;
        full.user = Some("nobody".into());
        full.group = Some("0".into());
        full.keep_workdir = true;
        full.tty = Some(Terminal::default());
        let text = serde_json::to_string(&full).expect("serialises");
        assert_eq!(serde_json::from_str::<TaskSpec>(&text).expect("parses"), full);
    }
}
