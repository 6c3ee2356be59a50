//! Whether a job is late: what should have succeeded by now and did not, whether or not anything ran.

use super::rule::Deadline;
use crate::trigger::wall::DAY;
use crate::trigger::zone::Zone;

/// How soon a job that is late, or paused, is looked at again, ms. What ends either is told at once in other ways.
pub const AGAIN_MS: i64 = 60_000;

/// What is known of a job and one of its deadlines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub now_ms: i64,
    /// What lies before does not count: the rule was made then, or a pause ended, or it was judged already.
    pub base_ms: i64,
    /// Late since then.
    pub since_ms: Option<i64>,
    pub success_ms: Option<i64>,
    pub success_scheduled_ms: Option<i64>,
    /// `Some(until)`: the job does not fire now, until then if that is known.
    pub paused: Option<Option<i64>>,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    pub base_ms: i64,
    pub since_ms: Option<i64>,
    /// When to look again.
    pub due_ms: i64,
    /// To be told: the deadline that was missed.
    pub missed_ms: Option<i64>,
}

/// The slots of the triggers whose times are known: the first after an instant, ms; outer `None`: no trigger has times.
pub type NextSlot<'a> = &'a dyn Fn(i64) -> Option<Option<i64>>;

pub fn judge(deadline: &Deadline, known: &Known, next_slot: NextSlot<'_>) -> Judged {
    if let Some(until) = known.paused {
        let again = known.now_ms + AGAIN_MS;
        return Judged {
            base_ms: known.now_ms,
            since_ms: known.since_ms,
            due_ms: until.map_or(again, |until| until.clamp(known.now_ms, again)),
            missed_ms: None,
        };
    }
    match deadline {
        Deadline::By { second, zone } => by(*second, zone, known, next_slot),
        Deadline::Within(ms) => {
            let from = known.base_ms.max(known.success_scheduled_ms.unwrap_or(i64::MIN));
            let slot = next_slot(from).flatten();
            episode(known, slot.map(|slot| slot.saturating_add(*ms)))
        }
        Deadline::MaxAge(ms) => {
            let from = known.base_ms.max(known.success_ms.unwrap_or(i64::MIN));
            episode(known, Some(from.saturating_add(*ms)))
        }
    }
}

/// One lateness until the next success, told once.
fn episode(known: &Known, deadline_ms: Option<i64>) -> Judged {
    let again = known.now_ms + AGAIN_MS;
    match deadline_ms {
        Some(deadline) if deadline <= known.now_ms => Judged {
            base_ms: known.base_ms,
            since_ms: known.since_ms.or(Some(deadline)),
            due_ms: again,
            missed_ms: known.since_ms.is_none().then_some(deadline),
        },
        // A success moves the deadline without a word to here; a day is long enough to look again.
        other => Judged {
            base_ms: known.base_ms,
            since_ms: None,
            due_ms: other.map_or(known.now_ms + DAY * 1_000, |at| at.min(known.now_ms + DAY * 1_000)),
            missed_ms: None,
        },
    }
}

/// The time of day on this day, as an instant, ms.
fn on_day(day: i64, second: i64, zone: &Zone) -> i64 {
    zone.instant(day * DAY + second) * 1_000
}

/// Each day has its own deadline; of those that passed unseen only the last is told.
fn by(second: i64, zone: &Zone, known: &Known, next_slot: NextSlot<'_>) -> Judged {
    let now_s = known.now_ms.div_euclid(1_000);
    let today = (now_s + i64::from(zone.segment(now_s).offset)).div_euclid(DAY);
    // Around a change of the clock the day of a deadline may be the one beside.
    let day = (today - 1..=today + 1)
        .rev()
        .find(|&day| on_day(day, second, zone) <= known.now_ms)
        .unwrap_or(today - 2);
    let (previous, last, next) = (
        on_day(day - 1, second, zone),
        on_day(day, second, zone),
        on_day(day + 1, second, zone),
    );
    let succeeded = known.success_ms.is_some_and(|success| success > previous);
    let since_ms = known
        .since_ms
        .filter(|&since| known.success_ms.is_none_or(|success| success <= since));
    if last <= known.base_ms || succeeded {
        return Judged {
            base_ms: known.base_ms.max(last),
            since_ms,
            due_ms: next,
            missed_ms: None,
        };
    }
    let expected = match next_slot(previous) {
        None => true,
        Some(slot) => slot.is_some_and(|slot| slot <= last),
    };
    Judged {
        base_ms: last,
        since_ms: if expected { since_ms.or(Some(last)) } else { since_ms },
        due_ms: next,
        missed_ms: expected.then_some(last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: i64 = 3_600_000;
    /// 2027-01-15T00:00:00Z.
    const MIDNIGHT: i64 = 1_799_971_200_000;

    fn none(_: i64) -> Option<Option<i64>> {
        None
    }

    /// A slot each day at 02:30 UTC.
    fn nightly(after: i64) -> Option<Option<i64>> {
        let slot = after.div_euclid(24 * H) * 24 * H + 2 * H + H / 2;
        Some(Some(if slot > after { slot } else { slot + 24 * H }))
    }

    /// The same on one day only.
    fn once(after: i64) -> Option<Option<i64>> {
        let slot = MIDNIGHT + 2 * H;
        Some((slot > after).then_some(slot))
    }

    fn six() -> Deadline {
        Deadline::By {
            second: 6 * 3_600,
            zone: Zone::utc(),
        }
    }

    fn at(hours: i64) -> Known {
        Known {
            now_ms: MIDNIGHT + hours * H,
            base_ms: MIDNIGHT - 12 * H,
            ..Known::default()
        }
    }

    #[test]
    fn by_a_time_of_day_each_day_is_judged_once() {
        let six_today = MIDNIGHT + 6 * H;
        // Before the deadline: look again then.
        let early = judge(&six(), &at(5), &nightly);
        assert_eq!((early.due_ms, early.missed_ms), (six_today, None));
        // Nothing ran, or no replica did until noon: it is late.
        for hours in [6, 12] {
            let late = judge(&six(), &at(hours), &nightly);
            assert_eq!(
                (late.missed_ms, late.since_ms, late.due_ms),
                (Some(six_today), Some(six_today), six_today + 24 * H)
            );
            let again = judge(
                &six(),
                &Known {
                    base_ms: late.base_ms,
                    since_ms: late.since_ms,
                    ..at(13)
                },
                &nightly,
            );
            assert_eq!((again.missed_ms, again.since_ms), (None, Some(six_today)));
            // The next day is another one.
            let tomorrow = judge(
                &six(),
                &Known {
                    base_ms: late.base_ms,
                    since_ms: late.since_ms,
                    ..at(31)
                },
                &nightly,
            );
            assert_eq!(
                (tomorrow.missed_ms, tomorrow.since_ms),
                (Some(six_today + 24 * H), Some(six_today))
            );
        }
        // It succeeded in the night; or late, but before anybody looked.
        for success in [3, 8] {
            let fine = judge(
                &six(),
                &Known {
                    success_ms: Some(MIDNIGHT + success * H),
                    ..at(12)
                },
                &nightly,
            );
            assert_eq!((fine.missed_ms, fine.since_ms), (None, None), "{success}");
        }
        // Yesterday's success is not today's.
        let stale = judge(
            &six(),
            &Known {
                success_ms: Some(MIDNIGHT - 21 * H),
                ..at(6)
            },
            &nightly,
        );
        assert_eq!(stale.missed_ms, Some(six_today));
    }

    #[test]
    fn a_day_without_a_planned_run_is_not_late_unless_nothing_is_ever_planned() {
        let on_the_day = judge(&six(), &at(7), &once);
        assert!(on_the_day.missed_ms.is_some());
        let after = Known {
            base_ms: MIDNIGHT + 7 * H,
            ..at(31)
        };
        assert_eq!(judge(&six(), &after, &once).missed_ms, None);
        assert!(judge(&six(), &after, &none).missed_ms.is_some());
    }

    #[test]
    fn the_clock_of_the_zone_decides_also_when_it_changes() {
        let berlin = Deadline::By {
            second: 6 * 3_600,
            zone: Zone::parse("Europe/Berlin").expect("zone"),
        };
        // 2027-03-28: 06:00 is 04:00Z, the day before 05:00Z.
        let known = Known {
            now_ms: 1_806_206_400_000,
            base_ms: 1_806_206_400_000 - 12 * H,
            ..Known::default()
        };
        let late = judge(&berlin, &known, &none);
        assert_eq!(late.missed_ms, Some(1_806_206_400_000));
        assert_eq!(late.due_ms, 1_806_206_400_000 + 24 * H);
    }

    #[test]
    fn the_age_of_the_last_success_is_told_once_until_the_next() {
        let rule = Deadline::MaxAge(2 * H);
        let fresh = judge(
            &rule,
            &Known {
                success_ms: Some(MIDNIGHT),
                ..at(1)
            },
            &none,
        );
        assert_eq!((fresh.due_ms, fresh.missed_ms), (MIDNIGHT + 2 * H, None));
        let old = Known {
            success_ms: Some(MIDNIGHT),
            ..at(3)
        };
        let late = judge(&rule, &old, &none);
        assert_eq!(late.missed_ms, Some(MIDNIGHT + 2 * H));
        let still = judge(
            &rule,
            &Known {
                since_ms: late.since_ms,
                ..old
            },
            &none,
        );
        assert_eq!((still.missed_ms, still.since_ms), (None, late.since_ms));
        let well = judge(
            &rule,
            &Known {
                since_ms: late.since_ms,
                success_ms: Some(MIDNIGHT + 3 * H),
                ..old
            },
            &none,
        );
        assert_eq!((well.missed_ms, well.since_ms), (None, None));
        // Without any success it counts from when the rule was made.
        let never = judge(&rule, &at(0), &none);
        assert_eq!(never.missed_ms, Some(MIDNIGHT - 10 * H));
    }

    #[test]
    fn each_slot_has_its_time_to_succeed() {
        let rule = Deadline::Within(H);
        let slot = MIDNIGHT + 2 * H + H / 2;
        let base = MIDNIGHT;
        let known = |hours| Known {
            base_ms: base,
            ..at(hours)
        };
        assert_eq!(judge(&rule, &known(3), &nightly).due_ms, slot + H);
        let late = judge(&rule, &known(4), &nightly);
        assert_eq!((late.missed_ms, late.since_ms), (Some(slot + H), Some(slot + H)));
        // A run of another slot that ended meanwhile says nothing about this one.
        let other = Known {
            success_ms: Some(slot + H / 2),
            success_scheduled_ms: Some(slot - 24 * H),
            ..known(4)
        };
        assert!(judge(&rule, &other, &nightly).missed_ms.is_some());
        let done = Known {
            success_scheduled_ms: Some(slot),
            ..known(4)
        };
        assert_eq!(judge(&rule, &done, &nightly).missed_ms, None);
        // A trigger without further slots can miss none.
        assert_eq!(judge(&rule, &known(99), &|_| Some(None)).missed_ms, None);
    }

    #[test]
    fn what_is_paused_is_not_late_and_counts_from_the_end_of_the_pause() {
        let until = MIDNIGHT + 40 * H;
        for (paused, due) in [
            (Some(None), MIDNIGHT + 30 * H + AGAIN_MS),
            (Some(Some(until)), MIDNIGHT + 30 * H + AGAIN_MS),
            (Some(Some(MIDNIGHT + 30 * H + 5)), MIDNIGHT + 30 * H + 5),
        ] {
            for rule in [six(), Deadline::MaxAge(H), Deadline::Within(H)] {
                let judged = judge(&rule, &Known { paused, ..at(30) }, &nightly);
                assert_eq!(
                    (judged.missed_ms, judged.base_ms, judged.due_ms),
                    (None, MIDNIGHT + 30 * H, due)
                );
            }
        }
    }
}
