//! What becomes of another run of a job while the job still runs.

use crate::job::Blocking;
use crate::trigger::occurrence::SkipReason;

/// How the places of a job are taken when a new run comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Chains that have a place of the job, those without proof of their end included.
    pub running: u32,
    /// Tasks that wait for one.
    pub waiting: u32,
    /// The concurrency group of the job has no place left.
    pub group_full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Takes its places now.
    Start,
    /// Waits behind those that wait.
    Wait,
    /// Waits; what waits before it is dropped, what runs is ended.
    Cover,
    Skip(SkipReason),
}

impl Blocking {
    /// Chains that may have a place of the job at once.
    pub fn places(self) -> u32 {
        match self {
            Blocking::Concurrent(places) => places.max(1),
            Blocking::Serial | Blocking::DiscardLater | Blocking::CoverEarly => 1,
        }
    }
}

/// What a new run does. Nobody overtakes those that wait.
pub fn turn(blocking: Blocking, max_waiting: u32, load: Load) -> Turn {
    let full = load.running >= blocking.places();
    if load.waiting == 0 && !full && !load.group_full {
        return Turn::Start;
    }
    match blocking {
        // Held back by its group alone, it waits; the next one is discarded.
        Blocking::DiscardLater if full || load.waiting > 0 => Turn::Skip(SkipReason::Blocked),
        Blocking::DiscardLater => Turn::Wait,
        Blocking::CoverEarly => Turn::Cover,
        Blocking::Serial | Blocking::Concurrent(_) if load.waiting >= max_waiting => {
            Turn::Skip(SkipReason::BacklogFull)
        }
        Blocking::Serial | Blocking::Concurrent(_) => Turn::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(running: u32, waiting: u32, group_full: bool) -> Load {
        Load {
            running,
            waiting,
            group_full,
        }
    }

    #[test]
    fn each_policy_says_what_another_run_does() {
        use Blocking::{Concurrent, CoverEarly, DiscardLater, Serial};
        let backlog = Turn::Skip(SkipReason::BacklogFull);
        let blocked = Turn::Skip(SkipReason::Blocked);
        for (blocking, load, expected) in [
            (Serial, load(0, 0, false), Turn::Start),
            (Serial, load(1, 0, false), Turn::Wait),
            (Serial, load(0, 0, true), Turn::Wait),
            // A place is free, but somebody waits for it.
            (Serial, load(0, 1, false), Turn::Wait),
            (Serial, load(1, 3, false), backlog),
            (DiscardLater, load(0, 0, false), Turn::Start),
            (DiscardLater, load(1, 0, false), blocked),
            (DiscardLater, load(0, 0, true), Turn::Wait),
            (DiscardLater, load(0, 1, true), blocked),
            (CoverEarly, load(0, 0, false), Turn::Start),
            (CoverEarly, load(1, 0, false), Turn::Cover),
            (CoverEarly, load(1, 1, true), Turn::Cover),
            (Concurrent(2), load(1, 0, false), Turn::Start),
            (Concurrent(2), load(2, 2, false), Turn::Wait),
            (Concurrent(2), load(2, 3, false), backlog),
            // The number was lowered while more ran.
            (Concurrent(2), load(5, 0, false), Turn::Wait),
        ] {
            assert_eq!(turn(blocking, 3, load), expected, "{blocking:?} {load:?}");
        }
        assert_eq!(turn(Serial, 0, load(1, 0, false)), backlog);
    }
}
