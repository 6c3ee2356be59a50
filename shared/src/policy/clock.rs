//! Whether the database's clock may be acted on. One jump of it, and be it for five seconds, could start every delayed
//! task, end every waiting one and delete all history; so a jump needs a second clock that tells the same.

/// Clocks that tell the same time differ by at most this.
pub const CLOCK_TOLERANCE_MS: i64 = 60_000;
/// Where no other clock tells the wall time, a step that has stood this long is believed …
pub const STEP_STANDS_MS: i64 = 10 * 60_000;
/// … unless it is longer than this: then a person must look.
pub const STEP_BELIEVED_MS_MAX: i64 = 31 * 24 * 3_600_000;

/// What a replica read at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// The database's clock, ms since the epoch.
    pub db_ms: i64,
    /// `CLOCK_BOOTTIME` of the replica's machine, which goes on in a suspend and which nobody sets.
    pub boot_ms: i64,
    /// The wall clock of the replica's machine.
    pub wall_ms: i64,
    /// The wall clock is another one than the database's, as far as is known.
    pub wall_is_another: bool,
}

/// A jump that nothing confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockHold {
    /// The sample that showed it.
    pub first: ClockSample,
    /// How far the database's clock is from where it should be.
    pub off_ms: i64,
}

/// What a sample changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockChange {
    None,
    /// From now on nothing that depends on the time is done.
    Held(ClockHold),
    /// The clock is believed again.
    Released,
    /// It jumped, and a second clock tells the same: it is believed at once.
    Stepped,
}

/// The memory of one replica.
#[derive(Clone, Debug, Default)]
pub struct ClockGuard {
    believed: Option<ClockSample>,
    hold: Option<ClockHold>,
}

impl ClockGuard {
    /// Takes a sample. `confirmed_ms`: the database's time at which a person last said that it is right.
    pub fn observe(&mut self, now: ClockSample, confirmed_ms: Option<i64>) -> ClockChange {
        let agrees = |off: i64| off.abs() <= CLOCK_TOLERANCE_MS;
        let by_boot = self
            .believed
            .map(|last| (now.db_ms - last.db_ms) - (now.boot_ms - last.boot_ms));
        let by_wall = now.db_ms - now.wall_ms;
        // The very first sample has nothing else to be compared with.
        let wall_counts = now.wall_is_another || self.believed.is_none();
        // A second jump is held for itself: what was said of the first does not hold for it.
        let hold = self
            .hold
            .filter(|hold| agrees((now.db_ms - hold.first.db_ms) - (now.boot_ms - hold.first.boot_ms)));
        let stands = hold.is_some_and(|hold| {
            !now.wall_is_another
                && hold.off_ms.abs() <= STEP_BELIEVED_MS_MAX
                && now.boot_ms - hold.first.boot_ms >= STEP_STANDS_MS
        });
        let confirmed = hold.zip(confirmed_ms).is_some_and(|(hold, at)| {
            (hold.first.db_ms - CLOCK_TOLERANCE_MS..=now.db_ms + CLOCK_TOLERANCE_MS).contains(&at)
        });
        if by_boot.is_some_and(agrees) || (wall_counts && agrees(by_wall)) || stands || confirmed {
            self.believed = Some(now);
            return match self.hold.take() {
                Some(_) => ClockChange::Released,
                None if by_boot.is_some_and(|off| !agrees(off)) => ClockChange::Stepped,
                None => ClockChange::None,
            };
        }
        if hold.is_some() {
            return ClockChange::None;
        }
        let hold = ClockHold {
            first: now,
            off_ms: by_boot.unwrap_or(by_wall),
        };
        self.hold = Some(hold);
        ClockChange::Held(hold)
    }

    pub fn hold(&self) -> Option<ClockHold> {
        self.hold
    }

    /// The latest time, by the database's clock, that may be acted on at this moment. A jump that no sample has shown
    /// yet changes nothing before this. `None`: nothing that depends on the time is done.
    pub fn until_ms(&self, boot_ms: i64) -> Option<i64> {
        match (self.hold, self.believed) {
            (None, Some(last)) => Some(last.db_ms + (boot_ms - last.boot_ms) + CLOCK_TOLERANCE_MS),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_800_000_000_000;
    const TEN_YEARS: i64 = 3_652 * 24 * 3_600_000;
    const HOUR: i64 = 3_600_000;

    /// A row: what passed since the last sample, by the database's clock, by BOOTTIME, by the wall clock; a
    /// confirmation, its age by the database's clock; and whether the clock is believed then.
    type Row = (i64, i64, i64, Option<i64>, bool);

    fn believed(another: bool, rows: &[Row]) {
        let mut guard = ClockGuard::default();
        let mut at = ClockSample {
            db_ms: START,
            boot_ms: 5_000,
            wall_ms: START,
            wall_is_another: another,
        };
        guard.observe(at, None);
        assert_eq!(guard.until_ms(5_000), Some(START + CLOCK_TOLERANCE_MS));
        for (number, &(db, boot, wall, confirmed, expected)) in rows.iter().enumerate() {
            at.db_ms += db;
            at.boot_ms += boot;
            at.wall_ms += wall;
            guard.observe(at, confirmed.map(|age| at.db_ms - age));
            let until = guard.until_ms(at.boot_ms);
            let told = expected.then_some(at.db_ms + CLOCK_TOLERANCE_MS);
            assert_eq!(until, told, "row {number} (another machine: {another}): {guard:?}");
        }
    }

    #[test]
    fn db_clock_2036_and_back() {
        for another in [true, false] {
            let wall = |db: i64| if another { 1_000 } else { db };
            believed(
                another,
                &[
                    (1_000, 1_000, 1_000, None, true),
                    (TEN_YEARS, 1_000, wall(TEN_YEARS), None, false),
                    (5_000, 5_000, 5_000, None, false),
                    (1_000 - TEN_YEARS, 1_000, wall(1_000 - TEN_YEARS), None, true),
                ],
            );
        }
    }

    #[test]
    fn it_is_told_when_the_clock_is_another_one_than_before() {
        let mut guard = ClockGuard::default();
        let mut at = ClockSample {
            db_ms: START,
            boot_ms: 0,
            wall_ms: START,
            wall_is_another: true,
        };
        assert_eq!(guard.observe(at, None), ClockChange::None);
        let mut passes = |db: i64, wall: i64| {
            at.db_ms += db;
            at.boot_ms += 1_000;
            at.wall_ms += wall;
            guard.observe(at, None)
        };
        assert_eq!(passes(1_000, 1_000), ClockChange::None);
        // Both were wrong, and were put right.
        assert_eq!(passes(HOUR, HOUR), ClockChange::Stepped);
        assert_eq!(passes(-HOUR, -HOUR), ClockChange::Stepped);
        assert_eq!(passes(1_000, 1_000), ClockChange::None);
        // The database's alone.
        assert!(matches!(passes(HOUR, 1_000), ClockChange::Held(_)));
        assert_eq!(passes(-HOUR, 1_000), ClockChange::Released);
    }

    #[test]
    fn a_suspend_is_confirmed_by_boottime() {
        // Of this machine, with the database or alone; the wall clock is put right some time after the wake-up.
        believed(false, &[(8 * HOUR, 8 * HOUR, 8 * HOUR, None, true)]);
        believed(
            true,
            &[
                (8 * HOUR, 8 * HOUR, 0, None, true),
                (1_000, 1_000, 8 * HOUR, None, true),
            ],
        );
    }

    #[test]
    fn a_step_of_the_replicas_own_clock_alone_changes_nothing() {
        believed(
            true,
            &[
                (1_000, 1_000, -3 * HOUR, None, true),
                (1_000, 1_000, TEN_YEARS, None, true),
            ],
        );
    }

    #[test]
    fn a_wrong_clock_of_the_database_that_is_put_right_agrees_with_the_wall_clock() {
        // The machine of the replica stood still without its BOOTTIME going on; its clock was put right.
        believed(
            true,
            &[(HOUR, 1_000, 1_000, None, false), (1_000, 1_000, HOUR, None, true)],
        );
    }

    #[test]
    fn a_drift_is_followed() {
        let rows: Vec<Row> = (0..100).map(|_| (HOUR + 30_000, HOUR, HOUR, None, true)).collect();
        believed(true, &rows);
        believed(false, &rows);
    }

    #[test]
    fn a_person_confirms_a_jump_and_not_the_one_after_it() {
        believed(
            true,
            &[
                (HOUR, 1_000, 1_000, None, false),
                // Said before the jump.
                (1_000, 1_000, 1_000, Some(HOUR), false),
                (1_000, 1_000, 1_000, Some(500), true),
                (2 * HOUR, 1_000, 1_000, Some(2 * HOUR + 500), false),
                // Back from the future: what was said there is not said of now.
                (-3 * HOUR, 1_000, 1_000, Some(-2 * HOUR), true),
            ],
        );
    }

    #[test]
    fn without_another_clock_a_step_is_believed_when_it_stands_unless_it_is_of_years() {
        let stands = STEP_STANDS_MS;
        believed(
            false,
            &[
                (HOUR, 0, HOUR, None, false),
                (stands - 1, stands - 1, stands - 1, None, false),
                (1, 1, 1, None, true),
            ],
        );
        believed(
            false,
            &[
                (TEN_YEARS, 0, TEN_YEARS, None, false),
                (2 * stands, 2 * stands, 2 * stands, None, false),
            ],
        );
        // With one, they must agree, or a person says so.
        believed(
            true,
            &[
                (HOUR, 0, 0, None, false),
                (2 * stands, 2 * stands, 2 * stands, None, false),
            ],
        );
    }

    #[test]
    fn the_first_sample_is_believed_when_the_wall_clock_agrees() {
        for (wall_ms, expected) in [
            (START + 60_000, true),
            (START + 60_001, false),
            (START - TEN_YEARS, false),
        ] {
            let mut guard = ClockGuard::default();
            assert_eq!(guard.until_ms(0), None, "nothing is known yet");
            guard.observe(
                ClockSample {
                    db_ms: START,
                    boot_ms: 0,
                    wall_ms,
                    wall_is_another: true,
                },
                None,
            );
            assert_eq!(guard.until_ms(0).is_some(), expected, "{wall_ms}");
        }
    }

    #[test]
    fn a_jump_that_no_sample_has_shown_yet_is_bounded() {
        let mut guard = ClockGuard::default();
        guard.observe(
            ClockSample {
                db_ms: START,
                boot_ms: 0,
                wall_ms: START,
                wall_is_another: true,
            },
            None,
        );
        assert_eq!(guard.until_ms(900), Some(START + 900 + CLOCK_TOLERANCE_MS));
    }
}
