//! The life of each task, a line for each step, where somebody asked for it: `--log-tasks`, or the target `task` at level debug.
//! The runner writes the other half with the same fields: `task_id` and `runner` (`HOST/SLOT`).

use crate::store::claims::Run;
use crate::store::finish::{EndLine, Ended};
use tracing::Level;

/// Whether anybody reads them. Asked before anything is put together for a line.
pub fn is_on() -> bool {
    tracing::enabled!(target: "task", Level::DEBUG)
}

/// Within its call, whose request id is in the line, too.
pub fn submitted(task_id: i64, existing: bool, by: &str) {
    if existing {
        tracing::debug!(target: "task", task_id, by, "submitted again: the key is known");
    } else {
        tracing::debug!(target: "task", task_id, by, "submitted");
    }
}

pub fn cancel_asked(task_id: i64, by: &str, reason: &str) {
    tracing::debug!(target: "task", task_id, by, reason, "cancel asked for");
}

pub fn dispatched(runs: &[Run]) {
    if is_on() {
        for run in runs {
            let runner = format!("{}/{}", run.host, run.slot);
            tracing::debug!(target: "task", task_id = run.task_id, runner, attempt = run.attempt, "dispatched");
        }
    }
}

pub fn started(ids: &[i64]) {
    if is_on() {
        for task_id in ids {
            tracing::debug!(target: "task", task_id, "runs");
        }
    }
}

pub fn ended(ended: &Ended) {
    for line in &ended.lines {
        let EndLine {
            task_id,
            state,
            kind,
            runner,
        } = line;
        tracing::debug!(target: "task", task_id, runner, state = state.name(), outcome = kind.name(), "ended");
    }
    if is_on() {
        for next in &ended.successors {
            tracing::debug!(target: "task", task_id = next.id, retry_of = next.retry_of, "follows");
        }
    }
}
