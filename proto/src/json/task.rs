//! A task, and what became of it.

use super::values::{id, state, text, time};
use super::{Problem, Spec};
use crate::v1;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Tasks {
    pub tasks: Vec<Task>,
}

#[derive(Debug, Serialize)]
pub struct OneTask {
    pub task: Task,
}

#[derive(Debug, Serialize)]
pub struct Submitted {
    pub id: String,
    /// The key was known and nothing new was stored.
    pub existing: bool,
}

#[derive(Debug, Serialize)]
pub struct Task {
    pub id: String,
    pub root_id: String,
    pub retry_of: Option<String>,
    pub retried_by: Option<String>,
    pub attempt: u32,
    pub recoveries: u32,
    pub state: String,
    pub outcome: Option<Outcome>,
    pub spec: Spec,
    pub host: Option<String>,
    pub slot: Option<u32>,
    pub created_at: Option<String>,
    pub queued_at: Option<String>,
    pub dispatched_at: Option<String>,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub submitted_by: Option<String>,
    pub submit_reason: Option<String>,
    pub cancelled_by: Option<String>,
    pub cancel_reason: Option<String>,
    pub late_result: Option<Outcome>,
    pub end_detail: Option<EndDetail>,
    pub callback: Option<Callback>,
    pub waiting_for: Option<String>,
    pub route: Option<String>,
    /// The host that was chosen, while it waits for it.
    pub routed_to: Option<String>,
    pub set_id: Option<String>,
    pub shard_index: Option<u32>,
    pub shard_total: Option<u32>,
    pub set_size: Option<u32>,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Written by the command beyond what is stored.
    pub stdout_dropped_bytes: u64,
    pub stderr_dropped_bytes: u64,
    /// Null: no stored bytes follow on what is not stored.
    pub stdout_gap: Option<Gap>,
    pub stderr_gap: Option<Gap>,
}

impl From<&v1::Task> for Task {
    fn from(task: &v1::Task) -> Self {
        let default = v1::TaskSpec::default();
        Self {
            id: task.id.to_string(),
            root_id: task.root_id.to_string(),
            retry_of: id(task.retry_of),
            retried_by: id(task.retried_by),
            attempt: task.attempt,
            recoveries: task.recoveries,
            state: state(task.state),
            outcome: task.outcome.as_ref().map(Outcome::from),
            spec: Spec::from(task.spec.as_ref().unwrap_or(&default)),
            host: text(&task.host),
            slot: (!task.host.is_empty()).then_some(task.slot),
            created_at: time(task.created_at_ms),
            queued_at: time(task.queued_at_ms),
            dispatched_at: time(task.dispatched_at_ms),
            started_at: time(task.started_at_ms),
            ended_at: time(task.ended_at_ms),
            submitted_by: text(&task.submitted_by),
            submit_reason: text(&task.submit_reason),
            cancelled_by: text(&task.cancelled_by),
            cancel_reason: text(&task.cancel_reason),
            late_result: task.late_result.as_ref().map(Outcome::from),
            end_detail: task.end_detail.as_ref().map(EndDetail::from),
            callback: task.callback.as_ref().map(Callback::from),
            waiting_for: text(&task.waiting_for),
            route: text(&task.route),
            routed_to: text(&task.routed_to),
            set_id: id(task.set_id),
            shard_index: (task.shard_total != 0).then_some(task.shard_index),
            shard_total: (task.shard_total != 0).then_some(task.shard_total),
            set_size: (task.set_size != 0).then_some(task.set_size),
            stdout_bytes: task.stdout_bytes,
            stderr_bytes: task.stderr_bytes,
            stdout_dropped_bytes: task.stdout_dropped_bytes,
            stderr_dropped_bytes: task.stderr_dropped_bytes,
            stdout_gap: task.stdout_gap.as_ref().map(Gap::from),
            stderr_gap: task.stderr_gap.as_ref().map(Gap::from),
        }
    }
}

/// Bytes that are not stored although later ones are.
#[derive(Debug, Serialize)]
pub struct Gap {
    pub offset: u64,
    pub bytes: u64,
}

impl From<&v1::OutputGap> for Gap {
    fn from(gap: &v1::OutputGap) -> Self {
        Self {
            offset: gap.offset,
            bytes: gap.bytes,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Outcome {
    pub kind: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub message: String,
}

impl From<&v1::Outcome> for Outcome {
    fn from(outcome: &v1::Outcome) -> Self {
        Self {
            kind: outcome.kind.clone(),
            exit_code: outcome.exit_code,
            signal: outcome.signal,
            message: outcome.message.clone(),
        }
    }
}

/// What the runner knows of the end; what it does not know is null.
#[derive(Debug, Serialize)]
pub struct EndDetail {
    /// No process of the task was left.
    pub tree_empty: Option<bool>,
    pub signals: Vec<SignalSent>,
    /// Processes that the command left behind and that were killed.
    pub leftovers: u32,
    pub usage: Usage,
    /// Of all processes together; null: no limit.
    pub memory_limit_bytes: Option<u64>,
    /// Processes that the kernel ended for want of memory.
    pub oom_kills: u32,
    pub note: Option<String>,
    /// Until when the runner keeps the full output; null: it does not, or all is stored.
    pub output_until: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct SignalSent {
    pub signal: i32,
    pub at: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Usage {
    pub user_cpu_us: Option<u64>,
    pub system_cpu_us: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
}

impl From<&v1::EndDetail> for EndDetail {
    fn from(detail: &v1::EndDetail) -> Self {
        let usage = detail.usage.unwrap_or_default();
        Self {
            tree_empty: detail.tree_empty,
            signals: detail
                .signals
                .iter()
                .map(|sent| SignalSent {
                    signal: sent.signal,
                    at: time(u64::try_from(sent.at_ms).unwrap_or(0)),
                })
                .collect(),
            leftovers: detail.leftovers,
            usage: Usage {
                user_cpu_us: usage.user_cpu_us,
                system_cpu_us: usage.system_cpu_us,
                peak_memory_bytes: usage.peak_memory_bytes,
                read_bytes: usage.read_bytes,
                written_bytes: usage.written_bytes,
            },
            output_until: detail
                .output_until_ms
                .and_then(|ms| u64::try_from(ms).ok())
                .and_then(time),
            memory_limit_bytes: detail.memory_limit_bytes,
            oom_kills: detail.oom_kills,
            note: text(&detail.note),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Callback {
    pub url: String,
    pub status: String,
    pub tries: u32,
    pub last_error: Option<String>,
    pub delivery_id: String,
}

impl From<&v1::Callback> for Callback {
    fn from(callback: &v1::Callback) -> Self {
        Self {
            url: callback.url.clone(),
            status: callback.status.clone(),
            tries: callback.tries,
            last_error: text(&callback.last_error),
            delivery_id: callback.delivery_id.clone(),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct CancelResult {
    /// The id that was asked for.
    pub asked: String,
    /// The task that was acted on: the live one of the chain.
    pub id: Option<String>,
    pub state: Option<String>,
    pub already: bool,
    pub error: Option<Problem>,
}

impl CancelResult {
    pub fn new(asked: i64, result: &v1::CancelResult) -> Self {
        let refused = result.error.is_some();
        Self {
            asked: asked.to_string(),
            id: if refused { None } else { id(result.id) },
            state: (!refused).then(|| state(result.state)),
            already: result.already,
            error: result.error.as_ref().map(Problem::from),
        }
    }
}
