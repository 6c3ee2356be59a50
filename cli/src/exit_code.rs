//! Exit statuses. 0 to 5 answer "did the command work"; `run` and `wait` end like the task they follow.

use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_shared::task::TaskState;

pub const OK: u8 = 0;
/// It worked; the answer is no.
pub const NO: u8 = 1;
/// A wrong option or value.
pub const USAGE: u8 = 2;
pub const NOT_FOUND: u8 = 3;
/// Not allowed, or in conflict with what is there.
pub const REFUSED: u8 = 4;
pub const UNREACHABLE: u8 = 5;
/// A plan that was only to be shown has changes.
pub const PLAN_HAS_CHANGES: u8 = 10;

/// The runner refused the task, or the scheduler the call that was to begin it.
pub const TASK_REJECTED: u8 = 120;
pub const TASK_CANCELLED: u8 = 121;
pub const TASK_SKIPPED: u8 = 122;
/// The runner failed, not the command.
pub const TASK_RUNNER: u8 = 123;
/// One of its timeouts was over.
pub const TASK_TIMEOUT: u8 = 124;
/// The scheduler went away while the task was followed, or could not be reached at all.
pub const NO_VERDICT: u8 = 125;
pub const TASK_NOT_STARTED: u8 = 126;
pub const PROGRAM_NOT_FOUND: u8 = 127;
/// The terminal of `top` went away.
pub const HUNG_UP: u8 = 129;
pub const INTERRUPTED: u8 = 130;
/// SIGTERM ended `run` or `top` itself.
pub const TERMINATED: u8 = 143;

/// How a command that ends like a task, or like the program that it runs, ends when the call that begins it failed so: 4 and 5
/// would look like those of the task.
pub fn of_start(exit: u8) -> u8 {
    match exit {
        UNREACHABLE => NO_VERDICT,
        REFUSED => TASK_REJECTED,
        other => other,
    }
}

/// How `run` and `wait` end for this task, which must have ended (or its child, in CALLBACK).
pub fn of_task(task: &v1::Task) -> u8 {
    match state_from_wire(task.state) {
        Some(TaskState::Finished | TaskState::Callback) => OK,
        Some(TaskState::Terminated) => TASK_CANCELLED,
        Some(TaskState::Skipped) => TASK_SKIPPED,
        Some(TaskState::Failed) => task.outcome.as_ref().map_or(NO, of_failed),
        _ => NO_VERDICT,
    }
}

/// The kind is compared as text: a later scheduler may know kinds that this client does not.
fn of_failed(outcome: &v1::Outcome) -> u8 {
    match outcome.kind.as_str() {
        // A failed task never ends as success, whatever the number says.
        "exit_code" => match outcome.exit_code.and_then(|code| u8::try_from(code).ok()) {
            Some(code) if code != OK => code,
            _ => NO,
        },
        // Its child may have been ended, and the program gone on to its own end.
        "out_of_memory" if outcome.exit_code.is_some_and(|code| code != 0) => {
            outcome.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(NO)
        }
        "signal" | "out_of_memory" => outcome
            .signal
            .map_or(NO, |signal| u8::try_from(signal.saturating_add(128)).unwrap_or(u8::MAX)),
        "start_failed" if outcome.message.starts_with("program not found") => PROGRAM_NOT_FOUND,
        "start_failed" => TASK_NOT_STARTED,
        "timeout" | "queue_timeout" | "start_timeout" | "silence_timeout" => TASK_TIMEOUT,
        "runner_lost" | "runner_restarted" | "runner_stopped" | "not_started" | "unreadable" | "fenced" => TASK_RUNNER,
        "cancelled" => TASK_CANCELLED,
        "skipped" => TASK_SKIPPED,
        "rejected" => TASK_REJECTED,
        _ => NO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_proto::convert::state_to_wire;
    use systole_shared::task::OutcomeKind;

    fn task(state: TaskState, kind: &str, code: Option<i32>, signal: Option<i32>, message: &str) -> v1::Task {
        v1::Task {
            state: state_to_wire(state) as i32,
            outcome: Some(v1::Outcome {
                kind: kind.into(),
                exit_code: code,
                signal,
                message: message.into(),
            }),
            ..v1::Task::default()
        }
    }

    #[test]
    fn every_outcome_has_its_status() {
        use TaskState::*;
        for (state, kind, code, signal, message, expected) in [
            (Finished, "success", Some(0), None, "", 0),
            (Callback, "success", Some(0), None, "", 0),
            (Failed, "exit_code", Some(1), None, "", 1),
            (Failed, "exit_code", Some(7), None, "", 7),
            (Failed, "exit_code", Some(255), None, "", 255),
            (Failed, "exit_code", Some(0), None, "", 1),
            (Failed, "exit_code", None, None, "", 1),
            (Failed, "exit_code", Some(256), None, "", 1),
            (Failed, "signal", None, Some(9), "", 137),
            (Failed, "signal", None, Some(15), "", 143),
            (Failed, "signal", None, None, "", 1),
            (Failed, "out_of_memory", None, Some(9), "", 137),
            (Failed, "out_of_memory", Some(137), None, "", 137),
            (Failed, "out_of_memory", Some(300), None, "", 1),
            (Failed, "start_failed", None, None, "program not found: x", 127),
            (Failed, "start_failed", None, None, "no directory /nowhere", 126),
            (Failed, "timeout", None, Some(15), "", 124),
            (Failed, "queue_timeout", None, None, "", 124),
            (Failed, "start_timeout", None, None, "", 124),
            (Failed, "silence_timeout", None, Some(15), "", 124),
            (Failed, "output_limit", None, Some(15), "", 1),
            (Failed, "runner_lost", None, None, "", 123),
            (Failed, "runner_restarted", None, None, "", 123),
            (Failed, "runner_stopped", None, None, "", 123),
            (Failed, "not_started", None, None, "", 123),
            (Failed, "fenced", None, None, "", 123),
            (Failed, OutcomeKind::Rejected.name(), None, None, "", 120),
            (Failed, "of a later version", None, None, "", 1),
            (Terminated, "cancelled", None, Some(15), "", 121),
            (Terminated, "signal", None, Some(9), "", 121),
            (Skipped, "skipped", None, None, "", 122),
            (Running, "", None, None, "", 125),
        ] {
            assert_eq!(
                of_task(&task(state, kind, code, signal, message)),
                expected,
                "{state} {kind} {code:?} {signal:?}"
            );
        }
    }

    #[test]
    fn a_call_that_failed_is_not_the_tasks_own_status() {
        for (exit, expected) in [
            (UNREACHABLE, NO_VERDICT),
            (REFUSED, TASK_REJECTED),
            (NOT_FOUND, NOT_FOUND),
            (USAGE, USAGE),
            (INTERRUPTED, INTERRUPTED),
        ] {
            assert_eq!(of_start(exit), expected, "{exit}");
        }
    }

    #[test]
    fn no_failure_of_any_kind_ends_as_success() {
        for kind in OutcomeKind::ALL {
            assert_ne!(
                of_task(&task(TaskState::Failed, kind.name(), Some(0), None, "")),
                0,
                "{kind}"
            );
        }
        let bare = v1::Task {
            state: state_to_wire(TaskState::Failed) as i32,
            ..v1::Task::default()
        };
        assert_ne!(of_task(&bare), 0);
    }
}
