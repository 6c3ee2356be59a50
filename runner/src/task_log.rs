//! The life of each task on its host, a line for each step, where somebody asked for it: `--log-tasks`, or the target `task` at
//! level debug. The scheduler writes the other half with the same fields.

use crate::journal::Ended;
use tracing::Level;

/// Whether anybody reads them. Asked before anything is put together for a line.
fn is_on() -> bool {
    tracing::enabled!(target: "task", Level::DEBUG)
}

/// A scheduler gave it to this runner.
pub fn arrived(task_id: i64, attempt: u32, runner: impl FnOnce() -> String) {
    if is_on() {
        tracing::debug!(target: "task", task_id, runner = runner(), attempt, "given by the scheduler");
    }
}

/// By the warden.
pub fn forked(task_id: i64, pid: i32, runner: impl FnOnce() -> String) {
    if is_on() {
        tracing::debug!(target: "task", task_id, runner = runner(), pid, "started");
    }
}

/// The warden said so.
pub fn started(task_id: i64, runner: impl FnOnce() -> String) {
    if is_on() {
        tracing::debug!(target: "task", task_id, runner = runner(), "runs");
    }
}

/// By the warden, whose word on it counts.
pub fn written(ended: &Ended) {
    let Ended {
        task_id, slot, kind, ..
    } = ended;
    tracing::debug!(
        target: "task", task_id, slot, outcome = kind, exit_code = ended.exit_code, signal = ended.signal,
        tree_empty = ended.detail.tree_empty, "its end is written down"
    );
}

/// The agent heard of it.
pub fn ended(ended: &Ended, runner: impl FnOnce() -> String) {
    if is_on() {
        let Ended { task_id, kind, .. } = ended;
        tracing::debug!(
            target: "task", task_id, runner = runner(), outcome = kind, exit_code = ended.exit_code,
            signal = ended.signal, "ended"
        );
    }
}

/// A scheduler has stored its result: there is nothing more to do here.
pub fn acknowledged(task_id: i64, runner: impl FnOnce() -> String) {
    if is_on() {
        tracing::debug!(target: "task", task_id, runner = runner(), "its result is stored");
    }
}
