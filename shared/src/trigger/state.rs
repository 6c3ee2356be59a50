//! The states of a trigger and what moves them.
//!
//! Where it stands, whether it is paused, and whether a run of its own still waits for a place are three facts: a trigger that is
//! blocked and is paused is both, and neither is lost when the other ends. The third is stored nowhere: it is that run.

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
    /// Has no next time.
    Complete,
    /// Cannot be evaluated; the reason is beside it. Only a reset or an edit leaves it.
    Error,
}

/// The state of a trigger: what is stored of it, and whether a run waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TriggerState {
    pub phase: Phase,
    pub paused: bool,
    /// It was due and has made a run, which waits for a place: its job, or the group of its job, does not allow another run now.
    pub blocked: bool,
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
    /// No next time: fired once, count used up, or past its end.
    NoNext,
    /// Its evaluation failed.
    Fail,
    /// An operator reset it, or its definition was changed.
    Reset,
}

impl TriggerState {
    /// What people see. What is final or broken is said first; then that it is paused. One that waits for the end of its run
    /// (`fixed_delay`) stays ACQUIRED while that run waits for its place.
    pub fn shown(self) -> Shown {
        match (self.phase, self.paused, self.blocked) {
            (Phase::Error, _, _) => Shown::Error,
            (Phase::Complete, _, _) => Shown::Complete,
            (_, true, _) => Shown::Paused,
            (Phase::Acquired, false, _) => Shown::Acquired,
            (Phase::Waiting, false, true) => Shown::Blocked,
            (Phase::Waiting, false, false) => Shown::Waiting,
        }
    }

    /// The state in full: `PAUSED (blocked)` where one word hides the others.
    pub fn in_full(self) -> String {
        let shown = self.shown();
        let facts = [
            (self.paused, Shown::Paused),
            (self.phase == Phase::Acquired, Shown::Acquired),
            (self.blocked, Shown::Blocked),
        ];
        let hidden: Vec<String> = facts
            .into_iter()
            .filter(|(holds, word)| *holds && *word != shown)
            .map(|(_, word)| word.name().to_lowercase())
            .collect();
        match hidden.as_slice() {
            [] => shown.name().to_owned(),
            hidden => format!("{} ({})", shown.name(), hidden.join(", ")),
        }
    }

    /// May fire when its time has come. That a run waits holds nothing back: the policy of the job decides of the next one, too.
    pub fn may_fire(self) -> bool {
        self.phase == Phase::Waiting && !self.paused
    }

    /// The state after an event, or `None` where the event changes nothing there (a late or doubled one).
    pub fn after(self, event: Event) -> Option<Self> {
        use Phase::{Acquired, Complete, Error, Waiting};
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
            (Event::FiredUntilRunEnds, Waiting) => phase(Acquired),
            (Event::RunEnded, Acquired) => phase(Waiting),
            (Event::Fired | Event::FiredUntilRunEnds, Acquired) | (Event::RunEnded, Waiting) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 4] = [Phase::Waiting, Phase::Acquired, Phase::Complete, Phase::Error];

    fn state(phase: Phase, paused: bool, blocked: bool) -> TriggerState {
        TriggerState { phase, paused, blocked }
    }

    /// Each row: an event, and the phase after it for each phase before it, or `None`.
    #[test]
    fn all_cells_of_the_table() {
        use Phase::{Acquired as A, Complete as C, Error as E, Waiting as W};
        let table: [(Event, [Option<Phase>; 4]); 6] = [
            (Event::Fired, [Some(W), None, None, None]),
            (Event::FiredUntilRunEnds, [Some(A), None, None, None]),
            (Event::RunEnded, [None, Some(W), None, None]),
            (Event::NoNext, [Some(C), Some(C), None, None]),
            (Event::Fail, [Some(E), Some(E), None, None]),
            (Event::Reset, [None, Some(W), Some(W), Some(W)]),
        ];
        for (event, row) in table {
            for (before, after) in PHASES.into_iter().zip(row) {
                for (paused, blocked) in [(false, false), (true, false), (false, true), (true, true)] {
                    let expected = after.map(|phase| state(phase, paused, blocked));
                    assert_eq!(
                        state(before, paused, blocked).after(event),
                        expected,
                        "{event:?} in {before:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn pausing_changes_the_pause_alone_and_twice_is_once() {
        for phase in PHASES {
            for blocked in [false, true] {
                let (running, paused) = (state(phase, false, blocked), state(phase, true, blocked));
                assert_eq!(running.after(Event::Pause), Some(paused));
                assert_eq!(paused.after(Event::Pause), None);
                assert_eq!(paused.after(Event::Resume), Some(running));
                assert_eq!(running.after(Event::Resume), None);
            }
        }
    }

    #[test]
    fn paused_and_blocked_is_not_lost() {
        let both = state(Phase::Waiting, true, true);
        assert_eq!(both.in_full(), "PAUSED (blocked)");
        // Whichever ends first, the other stays.
        assert_eq!(both.after(Event::Resume).map(TriggerState::shown), Some(Shown::Blocked));
        let unblocked = TriggerState { blocked: false, ..both };
        assert_eq!(unblocked.in_full(), "PAUSED");
        assert!(!unblocked.may_fire() && !both.may_fire());
        // The next time is decided of by the policy of the job.
        assert!(state(Phase::Waiting, false, true).may_fire());
    }

    #[test]
    fn six_words_are_shown_and_no_fact_is_hidden() {
        let table = |paused, blocked| PHASES.map(|phase| state(phase, paused, blocked).in_full());
        assert_eq!(table(false, false), ["WAITING", "ACQUIRED", "COMPLETE", "ERROR"]);
        assert_eq!(
            table(true, false),
            ["PAUSED", "PAUSED (acquired)", "COMPLETE (paused)", "ERROR (paused)"]
        );
        assert_eq!(
            table(false, true),
            ["BLOCKED", "ACQUIRED (blocked)", "COMPLETE (blocked)", "ERROR (blocked)"]
        );
        assert_eq!(
            table(true, true),
            [
                "PAUSED (blocked)",
                "PAUSED (acquired, blocked)",
                "COMPLETE (paused, blocked)",
                "ERROR (paused, blocked)"
            ]
        );
    }
}
