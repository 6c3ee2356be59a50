//! The states of a trigger and what moves them.
//!
//! Whether it is paused and where it stands are two facts: a trigger that is blocked and is paused, is both, and
//! neither is lost when the other ends.

use serde::{Deserialize, Serialize};

/// Where a trigger stands, pausing aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waits for its time.
    #[default]
    Waiting,
    /// `fixed_delay`: has fired, and stays so until that run's chain has ended. Belongs to a task, never to a replica.
    Acquired,
    /// Due, but its job does not allow another run now.
    Blocked,
    /// Has no next time.
    Complete,
    /// Cannot be evaluated; the reason is beside it. Only a reset or an edit leaves it.
    Error,
}

/// The state of a trigger, as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TriggerState {
    pub phase: Phase,
    pub paused: bool,
}

/// The one word of the six that people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shown {
    Waiting,
    Paused,
    Acquired,
    Blocked,
    Complete,
    Error,
}

impl Shown {
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::Paused => "PAUSED",
            Self::Acquired => "ACQUIRED",
            Self::Blocked => "BLOCKED",
            Self::Complete => "COMPLETE",
            Self::Error => "ERROR",
        }
    }
}

/// What happens to a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    Pause,
    Resume,
    /// It fired, and has a next time.
    Fired,
    /// It fired, and its next time is counted from the end of the run.
    FiredUntilRunEnds,
    /// The chain that it waits for has ended.
    RunEnded,
    /// It is due, but its job has no room.
    Block,
    Unblock,
    /// No next time: fired once, count used up, or past its end.
    NoNext,
    /// Its evaluation failed.
    Fail,
    /// An operator reset it, or its definition was changed.
    Reset,
}

impl TriggerState {
    /// What people see. What is final or broken is said first; then that it is paused.
    pub fn shown(self) -> Shown {
        match (self.phase, self.paused) {
            (Phase::Error, _) => Shown::Error,
            (Phase::Complete, _) => Shown::Complete,
            (_, true) => Shown::Paused,
            (Phase::Waiting, false) => Shown::Waiting,
            (Phase::Acquired, false) => Shown::Acquired,
            (Phase::Blocked, false) => Shown::Blocked,
        }
    }

    /// The state in full: `PAUSED (blocked)` where one word hides the other.
    pub fn in_full(self) -> String {
        let name = self.shown().name();
        match (self.paused, self.phase) {
            (true, Phase::Blocked) => format!("{name} (blocked)"),
            (true, Phase::Acquired) => format!("{name} (acquired)"),
            (true, Phase::Complete | Phase::Error) => format!("{name} (paused)"),
            _ => name.to_owned(),
        }
    }

    /// May fire when its time has come.
    pub fn may_fire(self) -> bool {
        self.phase == Phase::Waiting && !self.paused
    }

    /// The state after an event, or `None` where the event changes nothing there (a late or doubled one).
    pub fn after(self, event: Event) -> Option<Self> {
        use Phase::{Acquired, Blocked, Complete, Error, Waiting};
        let phase = |phase| Some(Self { phase, ..self });
        match (event, self.phase) {
            (Event::Pause, _) => (!self.paused).then_some(Self { paused: true, ..self }),
            (Event::Resume, _) => self.paused.then_some(Self { paused: false, ..self }),
            // A reset starts again; that it was paused stays.
            (Event::Reset, Waiting) => None,
            (Event::Reset, _) => phase(Waiting),
            // Nothing else leaves these two.
            (_, Complete | Error) => None,
            (Event::Fail, _) => phase(Error),
            (Event::NoNext, _) => phase(Complete),
            (Event::Fired, Waiting) => Some(self),
            (Event::Fired, Blocked) => phase(Waiting),
            (Event::FiredUntilRunEnds, Waiting | Blocked) => phase(Acquired),
            (Event::RunEnded, Acquired) => phase(Waiting),
            (Event::Block, Waiting) => phase(Blocked),
            (Event::Unblock, Blocked) => phase(Waiting),
            (Event::Fired | Event::FiredUntilRunEnds | Event::Block, Acquired)
            | (Event::RunEnded, Waiting | Blocked)
            | (Event::Block, Blocked)
            | (Event::Unblock, Waiting | Acquired) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 5] = [
        Phase::Waiting,
        Phase::Acquired,
        Phase::Blocked,
        Phase::Complete,
        Phase::Error,
    ];

    /// Each row: an event, and the phase after it for each phase before it, or `None`.
    #[test]
    fn all_cells_of_the_table() {
        use Phase::{Acquired as A, Blocked as B, Complete as C, Error as E, Waiting as W};
        let table: [(Event, [Option<Phase>; 5]); 8] = [
            (Event::Fired, [Some(W), None, Some(W), None, None]),
            (Event::FiredUntilRunEnds, [Some(A), None, Some(A), None, None]),
            (Event::RunEnded, [None, Some(W), None, None, None]),
            (Event::Block, [Some(B), None, None, None, None]),
            (Event::Unblock, [None, None, Some(W), None, None]),
            (Event::NoNext, [Some(C), Some(C), Some(C), None, None]),
            (Event::Fail, [Some(E), Some(E), Some(E), None, None]),
            (Event::Reset, [None, Some(W), Some(W), Some(W), Some(W)]),
        ];
        for (event, row) in table {
            for (before, after) in PHASES.into_iter().zip(row) {
                for paused in [false, true] {
                    let state = TriggerState { phase: before, paused };
                    let expected = after.map(|phase| TriggerState { phase, paused });
                    assert_eq!(state.after(event), expected, "{event:?} in {state:?}");
                }
            }
        }
    }

    #[test]
    fn pausing_changes_the_pause_alone_and_twice_is_once() {
        for phase in PHASES {
            let running = TriggerState { phase, paused: false };
            let paused = TriggerState { phase, paused: true };
            assert_eq!(running.after(Event::Pause), Some(paused));
            assert_eq!(paused.after(Event::Pause), None);
            assert_eq!(paused.after(Event::Resume), Some(running));
            assert_eq!(running.after(Event::Resume), None);
        }
    }

    #[test]
    fn paused_and_blocked_is_not_lost() {
        let blocked = TriggerState::default().after(Event::Block).expect("blocked");
        let both = blocked.after(Event::Pause).expect("paused");
        assert_eq!(both.in_full(), "PAUSED (blocked)");
        // Whichever ends first, the other stays.
        assert_eq!(both.after(Event::Resume).map(TriggerState::shown), Some(Shown::Blocked));
        assert_eq!(both.after(Event::Unblock).map(TriggerState::shown), Some(Shown::Paused));
        assert!(!both.after(Event::Unblock).expect("unblocked").may_fire());
    }

    #[test]
    fn six_words_are_shown() {
        let shown = |phase, paused| TriggerState { phase, paused }.shown().name();
        assert_eq!(
            PHASES.map(|phase| shown(phase, false)),
            ["WAITING", "ACQUIRED", "BLOCKED", "COMPLETE", "ERROR"]
        );
        assert_eq!(
            PHASES.map(|phase| shown(phase, true)),
            ["PAUSED", "PAUSED", "PAUSED", "COMPLETE", "ERROR"]
        );
    }
}
