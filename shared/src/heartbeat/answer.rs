//! What a beat means: the matrix of 4 runner statuses × 10 task states, plus "nothing held",
//! "somebody else's task" and "no such task". Flat and exhaustive on purpose.

use super::{ResetReason, Said};
use crate::limits::REDELIVERIES_MAX;
use crate::task::TaskState;

/// The task that a beat is about, as the store sees it from this runner's side.
///
/// For IDLE it is the task that the store says this runner holds. For the other statuses it is the task
/// that the beat names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// IDLE, and the store agrees.
    Nothing,
    /// A task that was dispatched to this runner, in this state.
    Mine(TaskState),
    /// A task that exists but was not dispatched to this runner process.
    Foreign,
    /// No such task.
    Unknown,
}

/// What should happen. The caller makes it happen in one transaction, then answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The runner is free: give it a task, or park the beat.
    Offer,
    /// Nothing to say; the beat may be parked.
    GoOn,
    /// Say RESET; write nothing.
    Reset(ResetReason),
    /// DISPATCHED → RUNNING, then as `GoOn`.
    Started,
    /// Record the end (see [`super::end`]), then RESET ack.
    Ended,
    /// Keep the true result of a task that has ended otherwise, then RESET ack.
    KeepLateResult,
    /// The answer with RUN_NEW was lost: give the same task again, or, when that was tried often
    /// enough, end it as never started and go on with `Offer`.
    Redeliver,
    /// The child is gone without a result: FAILED, then `Offer`.
    ChildGone,
    /// A task to be ended has no child (any more): end it, then `Offer`.
    Stopped,
}

pub fn answer(said: Said, subject: Subject) -> Step {
    use Said::*;
    use Subject::*;
    use TaskState as S;
    match (said, subject) {
        (Idle, Nothing) => Step::Offer,
        // The state cannot be held; the runner is free all the same.
        (Idle, Mine(S::Created | S::Queued)) => Step::Offer,
        (Idle, Mine(S::Dispatched)) => Step::Redeliver,
        (Idle, Mine(S::Running)) => Step::ChildGone,
        (Idle, Mine(S::Terminating)) => Step::Stopped,
        // Settled before: the runner is free, whatever follows the task.
        (Idle, Mine(S::Callback | S::Finished | S::Failed | S::Skipped | S::Terminated)) => Step::Offer,
        (Idle, Foreign | Unknown) => Step::Offer,

        // A busy runner that names no task has no task of ours.
        (Running | Finished | Failed, Nothing) => Step::Reset(ResetReason::Unknown),

        (Running, Mine(S::Dispatched)) => Step::Started,
        (Running, Mine(S::Running)) => Step::GoOn,
        (Running, Mine(S::Terminating)) => Step::Reset(ResetReason::Stop),
        // Ended for the cluster (lost, or taken back): the child must go, and its result is kept.
        (Running, Mine(S::Callback | S::Finished | S::Failed | S::Skipped | S::Terminated)) => {
            Step::Reset(ResetReason::Stop)
        }
        (Running, Mine(S::Created | S::Queued)) => Step::Reset(ResetReason::Unknown),
        (Running, Foreign | Unknown) => Step::Reset(ResetReason::Unknown),

        (Finished | Failed, Mine(S::Dispatched | S::Running | S::Terminating)) => Step::Ended,
        // The first result stands; a repeated one changes nothing.
        (Finished | Failed, Mine(S::Callback | S::Finished | S::Skipped)) => Step::Reset(ResetReason::Ack),
        // The verdict came first: the true result is kept beside it.
        (Finished | Failed, Mine(S::Failed | S::Terminated)) => Step::KeepLateResult,
        (Finished | Failed, Mine(S::Created | S::Queued)) => Step::Reset(ResetReason::Unknown),
        (Finished | Failed, Foreign | Unknown) => Step::Reset(ResetReason::Unknown),
    }
}

/// The same for a RUNNING whose runner does not know yet whether its warden has begun the task: that it was given is true, and
/// that it runs is not told. It is not given again either, since the order may still be obeyed.
pub fn not_yet_started(step: Step) -> Step {
    match step {
        Step::Started => Step::GoOn,
        other => other,
    }
}

/// What [`Step::Redeliver`] means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redelivery {
    /// The same RUN_NEW again.
    Again,
    /// Tried often enough: it never started, and is replaced elsewhere.
    NeverStarted,
    /// Another boot of the host: its journal may have lost the last entry, so nobody knows.
    Unknowable,
}

/// `same_boot`: the host was not rebooted since the task was dispatched, so its journal decides
/// whether the task was begun (an IDLE beat says that it was not).
pub fn redelivery(redeliveries: u32, same_boot: bool) -> Redelivery {
    if !same_boot {
        Redelivery::Unknowable
    } else if redeliveries < REDELIVERIES_MAX {
        Redelivery::Again
    } else {
        Redelivery::NeverStarted
    }
}

/// The matrix as Markdown, for the documentation (a test compares it).
pub fn markdown() -> String {
    let mut text = String::from("| task \\ beat |");
    for said in Said::ALL {
        text.push_str(&format!(" {} |", said.name()));
    }
    text.push_str("\n| --- | --- | --- | --- | --- |\n");
    let mut rows: Vec<(String, Subject)> = TaskState::ALL.map(|s| (s.name().to_owned(), Subject::Mine(s))).to_vec();
    rows.push(("nothing held".into(), Subject::Nothing));
    rows.push(("somebody else's".into(), Subject::Foreign));
    rows.push(("no such task".into(), Subject::Unknown));
    for (name, subject) in rows {
        text.push_str(&format!("| {name} |"));
        for said in Said::ALL {
            text.push_str(&format!(" {} |", describe(answer(said, subject))));
        }
        text.push('\n');
    }
    text
}

fn describe(step: Step) -> &'static str {
    match step {
        Step::Offer => "RUN_NEW or GO_ON",
        Step::GoOn => "GO_ON",
        Step::Reset(ResetReason::Ack) => "RESET ack",
        Step::Reset(ResetReason::Stop) => "RESET stop",
        Step::Reset(ResetReason::Unknown) => "RESET unknown",
        Step::Started => "→ RUNNING, GO_ON",
        Step::Ended => "→ its end, RESET ack",
        Step::KeepLateResult => "result kept as late, RESET ack",
        Step::Redeliver => "the same RUN_NEW again, 3 times at most",
        Step::ChildGone => "→ FAILED, then RUN_NEW or GO_ON",
        Step::Stopped => "→ TERMINATED (timeout: FAILED), then RUN_NEW or GO_ON",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ResetReason::{Ack, Stop, Unknown};

    /// The table, written by hand: one row a state, one column a status.
    const TABLE: [(TaskState, [Step; 4]); 10] = [
        (
            TaskState::Created,
            [
                Step::Offer,
                Step::Reset(Unknown),
                Step::Reset(Unknown),
                Step::Reset(Unknown),
            ],
        ),
        (
            TaskState::Queued,
            [
                Step::Offer,
                Step::Reset(Unknown),
                Step::Reset(Unknown),
                Step::Reset(Unknown),
            ],
        ),
        (
            TaskState::Dispatched,
            [Step::Redeliver, Step::Started, Step::Ended, Step::Ended],
        ),
        (
            TaskState::Running,
            [Step::ChildGone, Step::GoOn, Step::Ended, Step::Ended],
        ),
        (
            TaskState::Callback,
            [Step::Offer, Step::Reset(Stop), Step::Reset(Ack), Step::Reset(Ack)],
        ),
        (
            TaskState::Finished,
            [Step::Offer, Step::Reset(Stop), Step::Reset(Ack), Step::Reset(Ack)],
        ),
        (
            TaskState::Failed,
            [
                Step::Offer,
                Step::Reset(Stop),
                Step::KeepLateResult,
                Step::KeepLateResult,
            ],
        ),
        (
            TaskState::Skipped,
            [Step::Offer, Step::Reset(Stop), Step::Reset(Ack), Step::Reset(Ack)],
        ),
        (
            TaskState::Terminating,
            [Step::Stopped, Step::Reset(Stop), Step::Ended, Step::Ended],
        ),
        (
            TaskState::Terminated,
            [
                Step::Offer,
                Step::Reset(Stop),
                Step::KeepLateResult,
                Step::KeepLateResult,
            ],
        ),
    ];

    #[test]
    fn all_forty_cells_of_the_matrix() {
        let mut cells = 0;
        for (state, row) in TABLE {
            for (said, expected) in Said::ALL.into_iter().zip(row) {
                assert_eq!(
                    answer(said, Subject::Mine(state)),
                    expected,
                    "{} × {state}",
                    said.name()
                );
                cells += 1;
            }
        }
        assert_eq!(cells, 40);
    }

    #[test]
    fn unknown_foreign_and_missing_tasks_are_reset_and_write_nothing() {
        for subject in [Subject::Foreign, Subject::Unknown] {
            assert_eq!(answer(Said::Idle, subject), Step::Offer);
            for said in [Said::Running, Said::Finished, Said::Failed] {
                assert_eq!(answer(said, subject), Step::Reset(Unknown));
                assert_eq!(answer(said, Subject::Nothing), Step::Reset(Unknown));
            }
        }
        assert_eq!(answer(Said::Idle, Subject::Nothing), Step::Offer);
    }

    #[test]
    fn a_terminal_task_is_never_written() {
        for state in TaskState::ALL.into_iter().filter(|s| s.is_terminal()) {
            for said in Said::ALL {
                let step = answer(said, Subject::Mine(state));
                assert!(
                    matches!(step, Step::Offer | Step::Reset(_) | Step::KeepLateResult),
                    "{} × {state} gives {step:?}",
                    said.name()
                );
            }
        }
    }

    #[test]
    fn a_lost_run_new_is_given_three_times_more_within_one_boot() {
        assert_eq!(redelivery(0, true), Redelivery::Again);
        assert_eq!(redelivery(2, true), Redelivery::Again);
        assert_eq!(redelivery(3, true), Redelivery::NeverStarted);
        assert_eq!(redelivery(0, false), Redelivery::Unknowable);
    }

    #[test]
    fn a_task_whose_begin_is_not_known_yet_is_not_told_as_started_and_else_as_running() {
        for state in TaskState::ALL {
            let step = answer(Said::Running, Subject::Mine(state));
            let expected = if state == TaskState::Dispatched {
                Step::GoOn
            } else {
                step
            };
            assert_eq!(not_yet_started(step), expected, "{state}");
        }
        for subject in [Subject::Nothing, Subject::Foreign, Subject::Unknown] {
            let step = answer(Said::Running, subject);
            assert_eq!(not_yet_started(step), step);
        }
    }

    #[test]
    fn the_documentation_shows_this_matrix() {
        let docs = include_str!("../../../docs/heartbeat.md");
        assert!(
            docs.contains(&markdown()),
            "docs/heartbeat.md must contain:\n{}",
            markdown()
        );
    }
}
