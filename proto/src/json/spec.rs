//! What a task is made of, as it is shown. [`super::sent`] is the way back.

use super::values::{map, span, text, time};
use crate::v1;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use systole_shared::limits::{OUTPUT_MAX_BYTES_DEFAULT, UMASK_DEFAULT};
use systole_shared::task::signal::SIGTERM;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    pub command: Vec<String>,
    pub name: String,
    pub queue: String,
    pub require: BTreeMap<String, String>,
    pub tags: Vec<String>,
    pub target_host: Option<String>,
    pub target_slot: Option<u32>,
    pub priority: Option<u32>,
    pub run_at: Option<String>,
    pub delay_ms: Option<u64>,
    pub timeout_ms: Option<u64>,
    pub queue_timeout_ms: Option<u64>,
    pub start_timeout_ms: Option<u64>,
    pub silence_timeout_ms: Option<u64>,
    pub warn_signal: Option<i32>,
    pub warn_before_ms: Option<u64>,
    pub kill_signal: i32,
    /// Null: the runner's own.
    pub kill_grace_ms: Option<u64>,
    pub on_disconnect: String,
    pub on_runner_restart: String,
    pub limits: Limits,
    pub output: OutputPolicy,
    /// Octal digits.
    pub umask: String,
    /// Null: the runner's own.
    pub user: Option<String>,
    pub group: Option<String>,
    /// In their order, which is the order of the child's environment.
    pub env: Vec<EnvVar>,
    pub env_file: Option<String>,
    pub dir: Option<String>,
    pub keep_workdir: bool,
    /// Null: no terminal.
    pub tty: Option<Terminal>,
    pub callback_url: Option<String>,
    pub retry: Retry,
    pub job: Option<String>,
    pub batch: Option<String>,
    /// Counts from 1.
    pub batch_line: Option<u64>,
    pub unique_key: Option<String>,
}

/// Null: as the runner has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    pub open_files: Option<u32>,
    pub core_bytes: u64,
    pub file_bytes: Option<u64>,
    pub nice: Option<u32>,
    pub memory_bytes: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u32>,
    pub pids: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputPolicy {
    pub max_bytes: u64,
    pub on_limit: String,
    /// Null: as long as the task.
    pub keep_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnvVar {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Terminal {
    pub rows: u32,
    pub columns: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    pub max_retries: u32,
    pub delay_ms: u64,
}

impl From<&v1::TaskSpec> for Spec {
    fn from(spec: &v1::TaskSpec) -> Self {
        let retry = spec.retry.unwrap_or_default();
        let limits = spec.limits.unwrap_or_default();
        let output = spec.output.unwrap_or_default();
        Self {
            command: spec.command.clone(),
            name: spec.name.clone(),
            queue: spec.queue.clone(),
            require: map(&spec.require),
            tags: spec.tags.clone(),
            target_host: text(&spec.target_host),
            target_slot: spec.target_slot,
            priority: spec.priority,
            run_at: time(spec.run_at_ms),
            delay_ms: span(spec.delay_ms),
            timeout_ms: span(spec.timeout_ms),
            queue_timeout_ms: span(spec.queue_timeout_ms),
            start_timeout_ms: span(spec.start_timeout_ms),
            silence_timeout_ms: span(spec.silence_timeout_ms),
            warn_signal: (spec.warn_signal != 0).then_some(spec.warn_signal),
            warn_before_ms: span(spec.warn_before_ms),
            kill_signal: if spec.kill_signal == 0 {
                SIGTERM
            } else {
                spec.kill_signal
            },
            kill_grace_ms: spec.kill_grace_ms,
            on_disconnect: on_disconnect(spec),
            on_runner_restart: on_runner_restart(spec),
            limits: Limits {
                open_files: (limits.open_files != 0).then_some(limits.open_files),
                core_bytes: limits.core_bytes,
                file_bytes: (limits.file_bytes != 0).then_some(limits.file_bytes),
                nice: limits.nice,
                memory_bytes: span(limits.memory_bytes),
                cpu_millis: (limits.cpu_millis != 0).then_some(limits.cpu_millis),
                pids: (limits.pids != 0).then_some(limits.pids),
            },
            output: OutputPolicy {
                max_bytes: span(output.max_bytes).unwrap_or(OUTPUT_MAX_BYTES_DEFAULT),
                on_limit: on_output_limit(output.on_limit),
                keep_ms: span(output.keep_ms),
            },
            umask: format!("{:03o}", spec.umask.unwrap_or(UMASK_DEFAULT)),
            user: text(&spec.user),
            group: text(&spec.group),
            env: spec
                .env
                .iter()
                .map(|var| EnvVar {
                    name: var.name.clone(),
                    value: var.value.clone(),
                })
                .collect(),
            env_file: text(&spec.env_file),
            dir: text(&spec.dir),
            keep_workdir: spec.keep_workdir,
            tty: spec.tty.map(|tty| Terminal {
                rows: tty.rows,
                columns: tty.columns,
            }),
            callback_url: text(&spec.callback_url),
            retry: Retry {
                max_retries: retry.max_retries,
                delay_ms: retry.delay_ms,
            },
            job: text(&spec.job),
            batch: text(&spec.batch),
            batch_line: (spec.batch_line != 0).then_some(spec.batch_line),
            unique_key: text(&spec.unique_key),
        }
    }
}

/// A policy of a later version is shown as its number.
pub fn on_disconnect(spec: &v1::TaskSpec) -> String {
    match v1::OnDisconnect::try_from(spec.on_disconnect) {
        Ok(v1::OnDisconnect::Unspecified | v1::OnDisconnect::Continue) => "continue".into(),
        Ok(v1::OnDisconnect::Kill) => "kill".into(),
        Err(_) => spec.on_disconnect.to_string(),
    }
}

/// As [`on_disconnect`].
pub fn on_runner_restart(spec: &v1::TaskSpec) -> String {
    match v1::OnRunnerRestart::try_from(spec.on_runner_restart) {
        Ok(v1::OnRunnerRestart::Unspecified | v1::OnRunnerRestart::Adopt) => "adopt".into(),
        Ok(v1::OnRunnerRestart::Kill) => "kill".into(),
        Err(_) => spec.on_runner_restart.to_string(),
    }
}

/// As [`on_disconnect`].
pub fn on_output_limit(number: i32) -> String {
    match v1::OnOutputLimit::try_from(number) {
        Ok(v1::OnOutputLimit::Unspecified | v1::OnOutputLimit::Truncate) => "truncate".into(),
        Ok(v1::OnOutputLimit::Kill) => "kill".into(),
        Err(_) => number.to_string(),
    }
}
