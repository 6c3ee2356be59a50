//! What a runner does with an answer: the mirror of [`super::answer`].

use super::ResetReason;

/// What the runner has in its slot when an answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    Empty,
    /// The child of this task is alive (or about to be started).
    Alive(i64),
    /// The child of this task is being stopped.
    Stopping(i64),
    /// The child has ended; its result waits for the acknowledgement.
    Ended(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    GoOn,
    Reset(i64, ResetReason),
    RunNew(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Beat again when it is time.
    Keep,
    /// Beat again at once: the answer does not fit what is here, and the next beat tells.
    BeatNow,
    /// End the child of this task and report its true result.
    Stop(i64),
    /// End the child of this task; keep result and output aside, and report nothing.
    StopAside(i64),
    /// The result is recorded: forget the task.
    Forget(i64),
    /// The result is not wanted by this cluster: keep it aside.
    SetAside(i64),
    /// Begin the task.
    Start(i64),
}

pub fn react(slot: Slot, command: Command) -> Action {
    match (slot, command) {
        (_, Command::GoOn) => Action::Keep,

        (Slot::Ended(held), Command::Reset(task, ResetReason::Ack)) if held == task => Action::Forget(task),
        (Slot::Alive(held) | Slot::Stopping(held), Command::Reset(task, ResetReason::Stop)) if held == task => {
            Action::Stop(task)
        }
        (Slot::Alive(held) | Slot::Stopping(held), Command::Reset(task, ResetReason::Unknown)) if held == task => {
            Action::StopAside(task)
        }
        (Slot::Ended(held), Command::Reset(task, ResetReason::Unknown)) if held == task => Action::SetAside(task),
        // Its result is on the way, or the order is about a task that is not here: the next beat tells.
        (_, Command::Reset(_, _)) => Action::BeatNow,

        (Slot::Empty, Command::RunNew(task)) => Action::Start(task),
        // The same RUN_NEW again: it was begun already.
        (Slot::Alive(held) | Slot::Stopping(held) | Slot::Ended(held), Command::RunNew(task)) if held == task => {
            Action::BeatNow
        }
        // Told to run another task while a child is there: the cluster does not know this child any more.
        (Slot::Alive(held) | Slot::Stopping(held), Command::RunNew(_)) => Action::StopAside(held),
        // A result that is not acknowledged yet goes on being reported beside the new task.
        (Slot::Ended(_), Command::RunNew(task)) => Action::Start(task),
    }
}

/// Whether an answer may be acted on at all.
///
/// `latest_seq` is the seq of the newest beat sent; `cluster` is the cluster that dispatched what is
/// here (none: nothing is here yet).
pub fn acceptable(answer_seq: u64, latest_seq: u64, answer_cluster: &str, cluster: Option<&str>) -> bool {
    answer_seq == latest_seq && cluster.is_none_or(|known| known == answer_cluster)
}

/// RUN_NEW is valid for a bounded time after its beat was sent: later the cluster may have given up.
pub const RUN_NEW_SLACK_MS: u64 = 10_000;

/// `since_send_ms`: since the beat was sent, on a clock that goes on while the machine sleeps.
pub fn still_valid(since_send_ms: u64, park_ms: u64) -> bool {
    since_send_ms <= park_ms + RUN_NEW_SLACK_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use ResetReason::{Ack, Stop, Unknown};

    #[test]
    fn every_slot_and_every_command() {
        use Action as A;
        let cases = [
            (Slot::Empty, Command::GoOn, A::Keep),
            (Slot::Alive(1), Command::GoOn, A::Keep),
            (Slot::Empty, Command::Reset(1, Ack), A::BeatNow),
            (Slot::Empty, Command::Reset(1, Stop), A::BeatNow),
            (Slot::Empty, Command::Reset(1, Unknown), A::BeatNow),
            (Slot::Alive(1), Command::Reset(1, Ack), A::BeatNow),
            (Slot::Alive(1), Command::Reset(1, Stop), A::Stop(1)),
            (Slot::Alive(1), Command::Reset(1, Unknown), A::StopAside(1)),
            (Slot::Alive(1), Command::Reset(2, Stop), A::BeatNow),
            (Slot::Alive(1), Command::Reset(2, Unknown), A::BeatNow),
            (Slot::Stopping(1), Command::Reset(1, Stop), A::Stop(1)),
            (Slot::Stopping(1), Command::Reset(1, Unknown), A::StopAside(1)),
            (Slot::Ended(1), Command::Reset(1, Ack), A::Forget(1)),
            (Slot::Ended(1), Command::Reset(2, Ack), A::BeatNow),
            (Slot::Ended(1), Command::Reset(1, Stop), A::BeatNow),
            (Slot::Ended(1), Command::Reset(1, Unknown), A::SetAside(1)),
            (Slot::Empty, Command::RunNew(1), A::Start(1)),
            (Slot::Alive(1), Command::RunNew(1), A::BeatNow),
            (Slot::Alive(1), Command::RunNew(2), A::StopAside(1)),
            (Slot::Stopping(1), Command::RunNew(2), A::StopAside(1)),
            (Slot::Ended(1), Command::RunNew(1), A::BeatNow),
            (Slot::Ended(1), Command::RunNew(2), A::Start(2)),
        ];
        for (slot, command, expected) in cases {
            assert_eq!(react(slot, command), expected, "{slot:?} {command:?}");
        }
    }

    #[test]
    fn an_answer_to_an_earlier_beat_is_dropped() {
        assert!(acceptable(7, 7, "c", None));
        assert!(!acceptable(6, 7, "c", None));
    }

    #[test]
    fn wrong_cluster_reset_is_ignored() {
        assert!(!acceptable(7, 7, "other", Some("c")));
        assert!(acceptable(7, 7, "c", Some("c")));
    }

    #[test]
    fn run_new_after_a_long_pause_is_not_started() {
        assert!(still_valid(40_000, 30_000));
        assert!(!still_valid(40_001, 30_000));
    }
}
