//! How many runs of a backfill may run beside each other.

use super::blocking::Load;
use crate::job::Blocking;

/// Whether one more run may start. With a number of its own (`own`: how many may, and how many do) a backfill has places of its own;
/// otherwise those of its job, of which it takes only what nobody waits for. A concurrency group holds in both cases. It never waits in
/// line, so that nothing of it is dropped or drops others.
pub fn may_start(own: Option<(u32, u32)>, blocking: Blocking, load: Load) -> bool {
    if load.group_full {
        return false;
    }
    match own {
        Some((max, running)) => running < max,
        None => load.waiting == 0 && load.running < blocking.places(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backfill_takes_its_own_places_or_those_of_its_job_that_nobody_waits_for() {
        let load = |running, waiting, group_full| Load {
            running,
            waiting,
            group_full,
        };
        for (own, blocking, load, expected) in [
            (None, Blocking::Serial, load(0, 0, false), true),
            (None, Blocking::Serial, load(1, 0, false), false),
            (None, Blocking::Serial, load(0, 1, false), false),
            (None, Blocking::Serial, load(0, 0, true), false),
            (None, Blocking::CoverEarly, load(1, 0, false), false),
            (None, Blocking::Concurrent(3), load(2, 0, false), true),
            (None, Blocking::Concurrent(3), load(3, 0, false), false),
            // Beside the job, which may run and wait as it likes.
            (Some((2, 1)), Blocking::Serial, load(1, 5, false), true),
            (Some((2, 2)), Blocking::Serial, load(0, 0, false), false),
            (Some((2, 0)), Blocking::Serial, load(0, 0, true), false),
        ] {
            assert_eq!(
                may_start(own, blocking, load),
                expected,
                "{own:?} {blocking:?} {load:?}"
            );
        }
    }
}
