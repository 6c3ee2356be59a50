//! A job as it stands in files and is stored. Every field is optional here, so that a file can be read field by field and all
//! that is wrong with it said at once; what must be there is checked by [`JobSpec::compile`].

use crate::trigger::definition::TriggerSpec;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// What becomes of an occurrence while the job still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockingKind {
    /// It waits for its turn.
    #[default]
    Serial,
    /// It is skipped.
    DiscardLater,
    /// The running one is ended, and was seen ended before it starts; what waits is dropped.
    CoverEarly,
    /// Up to `max_concurrent` run at the same time.
    Concurrent,
}

/// Which of the runners that fit gets the task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Route {
    #[default]
    Any,
    Pinned,
    Broadcast,
    /// As the policy of this name chooses, built in or registered.
    Policy(String),
}

impl From<String> for Route {
    fn from(word: String) -> Self {
        match word.as_str() {
            "any" => Self::Any,
            "pinned" => Self::Pinned,
            "broadcast" => Self::Broadcast,
            _ => Self::Policy(word),
        }
    }
}

impl From<Route> for String {
    fn from(route: Route) -> Self {
        match route {
            Route::Any => "any".into(),
            Route::Pinned => "pinned".into(),
            Route::Broadcast => "broadcast".into(),
            Route::Policy(word) => word,
        }
    }
}

/// What becomes of the work when its host is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLost {
    #[default]
    Fail,
    Failover,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunAs {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<String>,
    /// Processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_size_max: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size_max: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nice: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryKind {
    #[default]
    None,
    Fixed,
    Exponential,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetrySpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<RetryKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exit_codes: Vec<i32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub avoid_last_runner: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BroadcastSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_after_failures: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offline: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CallbackSpec {
    pub url: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlarmWhen {
    Failure,
    Recovery,
    Late,
    Skipped,
    Slow,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlarmSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<AlarmWhen>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_a_row: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeded_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeded_within: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longer_than: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence: Option<String>,
}

/// How many tasks of several jobs may run at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Group {
    pub name: String,
    pub limit: u32,
}

/// A job as it is written. Durations and sizes are texts with a unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobSpec {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runbook: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,

    /// Program and arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// A text for `/bin/sh -c`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_dir: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as: Option<RunAs>,
    /// Octal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub umask: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tty: bool,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Value>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub require: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<Route>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route_key: Option<String>,
    /// `HOST` or `HOST/SLOT`, of a job that is `pinned`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<BroadcastSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocking: Option<BlockingKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_waiting: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency_group: Option<String>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warn_signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warn_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_grace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_drain: Option<String>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_max: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_on_limit: Option<crate::task::output::OnLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_keep: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_keep: Option<String>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lost: Option<OnLost>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_recoveries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<crate::task::spec::OnDisconnect>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_runner_restart: Option<crate::task::spec::OnRunnerRestart>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackSpec>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alarm: Vec<AlarmSpec>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trigger: Vec<TriggerSpec>,
}

/// Keys sorted at every depth, no blanks.
fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            out.push('{');
            for (index, (key, value)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write_canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (index, value) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(value, out);
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// A JSON value as the one text that stands for it.
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

impl JobSpec {
    /// As JSON. A definition has no values that JSON cannot say: numbers of files are finite.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The one text of this definition: what is not given is not in it.
    pub fn canonical_json(&self) -> String {
        canonical(&self.to_value())
    }

    /// SHA-256 of the canonical text without what a pause changes, in hexadecimal. Two definitions with the same
    /// fingerprint make the same tasks at the same times.
    pub fn fingerprint(&self) -> String {
        let mut plain = self.clone();
        plain.paused = false;
        for trigger in &mut plain.trigger {
            trigger.paused = false;
        }
        let hash = Sha256::digest(plain.canonical_json().as_bytes());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> JobSpec {
        serde_json::from_str(json).expect(json)
    }

    #[test]
    fn the_canonical_text_sorts_keys_and_leaves_out_what_is_not_given() {
        let job = spec(r#"{"shell":"x","name":"a","data":{"z":1,"a":{"y":"é\n","b":[1,true,null]}},"timeout":"5m"}"#);
        assert_eq!(
            job.canonical_json(),
            r#"{"data":{"a":{"b":[1,true,null],"y":"é\n"},"z":1},"name":"a","shell":"x","timeout":"5m"}"#
        );
        assert_eq!(spec(&job.canonical_json()), job);
    }

    #[test]
    fn a_fingerprint_is_that_of_the_definition_and_not_of_its_pause() {
        let job = spec(r#"{"name":"a","shell":"x","trigger":[{"name":"t","cron":"0 3 * * *"}]}"#);
        assert_eq!(
            job.fingerprint(),
            // printf '%s' '{"name":"a","shell":"x","trigger":[{"cron":"0 3 * * *","name":"t"}]}' | sha256sum
            "ecde448b931e8171440d18bc1bff5feccfc453f1940f9a9730537af15bad68f1"
        );
        let mut paused = job.clone();
        paused.paused = true;
        paused.trigger[0].paused = true;
        assert_eq!(paused.fingerprint(), job.fingerprint());
        for other in [
            r#"{"name":"b","shell":"x","trigger":[{"name":"t","cron":"0 3 * * *"}]}"#,
            r#"{"name":"a","shell":"x","trigger":[{"name":"t","cron":"0 4 * * *"}]}"#,
            r#"{"name":"a","shell":"x","trigger":[{"name":"t","cron":"0 3 * * *"}],"timeout":"1h"}"#,
        ] {
            assert_ne!(spec(other).fingerprint(), job.fingerprint(), "{other}");
        }
    }
}
