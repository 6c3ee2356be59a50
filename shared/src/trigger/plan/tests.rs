use super::*;
use crate::trigger::calendar::{Calendar, CalendarSpec};
use crate::trigger::cron::{Cron, Dialect};
use crate::trigger::dst::Dst;
use crate::trigger::schedule::{Local, Times};
use crate::trigger::zone::Zone;
use std::sync::Arc;

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// 2026-11-30T00:00:00Z, a Monday.
const T0: i64 = 1_795_996_800_000;

fn trigger(schedule: Schedule) -> Trigger {
    Trigger {
        key: "job/trigger".into(),
        schedule,
        start_ms: None,
        end_ms: None,
        max_fires: None,
        exclusions: Exclusions::default(),
        jitter_ms: 0,
        misfire: Misfire::FireOnce,
        misfire_threshold_ms: None,
        max_catch_up: 100,
    }
}

fn cron(text: &str) -> Schedule {
    let cron = Cron::parse(text, Dialect::Unix).expect(text);
    Schedule::Local(Local::new(cron, Zone::utc(), Dst::default()))
}

fn rate(period_ms: i64) -> Schedule {
    Schedule::FixedRate {
        anchor_ms: T0,
        period_ms,
    }
}

fn first(trigger: &Trigger) -> Cursor {
    trigger.first_cursor(T0).expect("cursor")
}

fn at(trigger: &Trigger, cursor: Cursor, now: i64) -> Plan {
    plan(trigger, cursor, now, false, 256).expect("plan")
}

fn slots(plan: &Plan) -> Vec<i64> {
    plan.fires.iter().map(|fire| fire.scheduled_ms).collect()
}

#[test]
fn a_due_slot_fires_once_with_its_scheduled_time() {
    let minutely = trigger(cron("* * * * *"));
    let cursor = first(&minutely);
    assert_eq!(cursor.next_ms, Some(T0 + MINUTE));
    // Nothing before its time; a little late is ordinary.
    assert_eq!(at(&minutely, cursor, T0 + MINUTE - 1).fires, []);
    let plan = at(&minutely, cursor, T0 + MINUTE + 700);
    assert_eq!(slots(&plan), [T0 + MINUTE]);
    assert_eq!(plan.ranges, []);
    assert!(!plan.fires[0].misfired);
    assert_eq!(plan.cursor.next_ms, Some(T0 + 2 * MINUTE));
    // The same cursor again gives the same plan; the moved one nothing.
    assert_eq!(at(&minutely, cursor, T0 + MINUTE + 700), plan);
    assert_eq!(at(&minutely, plan.cursor, T0 + MINUTE + 800).fires, []);
}

#[test]
fn d04_three_hours_without_a_scheduler() {
    let now = T0 + 3 * HOUR + 40_000;
    for (misfire, fires, ranges) in [
        (Misfire::FireOnce, 1, 1),
        (Misfire::Skip, 0, 1),
        (Misfire::CatchUp, 100, 1),
    ] {
        let minutely = Trigger {
            misfire,
            ..trigger(cron("* * * * *"))
        };
        let plan = at(&minutely, first(&minutely), now);
        assert_eq!(plan.fires.len(), fires, "{misfire:?}");
        assert_eq!(plan.ranges.len(), ranges, "{misfire:?}");
        let total = plan.fires.len() as u64 + plan.ranges.iter().map(|range| range.count).sum::<u64>();
        assert_eq!(total, 180, "{misfire:?}");
        // The next ordinary minute fires, and the trigger goes on.
        assert_eq!(plan.cursor.next_ms, Some(T0 + 181 * MINUTE), "{misfire:?}");
        assert_eq!((plan.then, plan.more), (Then::Waits, false));
        assert_eq!(
            slots(&at(&minutely, plan.cursor, T0 + 181 * MINUTE)),
            [T0 + 181 * MINUTE]
        );
        match misfire {
            Misfire::FireOnce => {
                let last = T0 + 180 * MINUTE;
                assert_eq!((plan.fires[0].scheduled_ms, plan.fires[0].coalesced), (last, 179));
                assert_eq!(plan.ranges[0].verdict, Verdict::Coalesced { into_ms: last });
                assert_eq!(
                    (plan.ranges[0].from_ms, plan.ranges[0].to_ms),
                    (T0 + MINUTE, T0 + 179 * MINUTE)
                );
            }
            Misfire::Skip => assert_eq!(plan.ranges[0].verdict, Verdict::Skipped(SkipReason::Misfire)),
            Misfire::CatchUp => {
                // The newest, oldest first; the dropped number is recorded.
                assert_eq!(plan.ranges[0].count, 80);
                assert_eq!(plan.fires[0].scheduled_ms, T0 + 81 * MINUTE);
                assert!(
                    plan.fires
                        .windows(2)
                        .all(|pair| pair[0].scheduled_ms < pair[1].scheduled_ms)
                );
            }
        }
    }
}

#[test]
fn skip_does_not_drop_the_slot_that_is_due_now() {
    // The scheduler was down over yesterday's run and starts a little after today's.
    let daily = Trigger {
        misfire: Misfire::Skip,
        ..trigger(cron("0 3 * * *"))
    };
    let plan = at(&daily, first(&daily), T0 + DAY + 3 * HOUR + 200);
    assert_eq!(slots(&plan), [T0 + DAY + 3 * HOUR]);
    assert_eq!(plan.ranges.len(), 1);
    assert_eq!((plan.ranges[0].from_ms, plan.ranges[0].count), (T0 + 3 * HOUR, 1));
}

#[test]
fn the_verdicts_of_a_batch_are_bounded_and_go_on() {
    let secondly = Trigger {
        misfire: Misfire::CatchUp,
        max_catch_up: 1_000,
        ..trigger(rate(1_000))
    };
    let now = T0 + 2_000_000;
    let (mut cursor, mut fires, mut rounds) = (first(&secondly), Vec::new(), 0);
    let mut dropped = 0;
    loop {
        let plan = plan(&secondly, cursor, now, false, 256).expect("plan");
        assert!(plan.fires.len() <= 256);
        dropped += plan.ranges.iter().map(|range| range.count).sum::<u64>();
        fires.extend(slots(&plan));
        cursor = plan.cursor;
        rounds += 1;
        if !plan.more {
            break;
        }
    }
    assert_eq!((fires.len(), dropped, rounds), (1_000, 1_000, 4));
    assert!(fires.windows(2).all(|pair| pair[0] + 1_000 == pair[1]));
    assert_eq!(cursor.next_ms, Some(now + 1_000));
}

#[test]
fn a_year_of_pause_is_one_row_and_no_fire() {
    for schedule in [rate(1_000), cron("* * * * *")] {
        let paused = trigger(schedule);
        let now = T0 + 365 * DAY;
        let plan = plan(&paused, first(&paused), now, true, 256).expect("plan");
        assert_eq!((plan.fires.len(), plan.ranges.len()), (0, 1));
        assert_eq!(plan.ranges[0].verdict, Verdict::Skipped(SkipReason::Paused));
        assert_eq!(plan.cursor.judged_ms, now);
        assert!(plan.cursor.next_ms > Some(now), "and nothing is caught up");
        assert!(!plan.more);
    }
    // A second is counted, not stepped through.
    let secondly = trigger(cron("* * * * *"));
    let plan = plan(&secondly, first(&secondly), T0 + 365 * DAY, true, 256).expect("plan");
    assert_eq!(plan.ranges[0].count, 365 * 1_440);
}

fn calendar(spec: &str) -> Exclusions {
    let spec: CalendarSpec = serde_json::from_str(spec).expect(spec);
    Exclusions(vec![Arc::new(
        Calendar::new(&spec, None, &Zone::utc()).expect("calendar"),
    )])
}

#[test]
fn a_calendar_is_no_misfire_and_one_row() {
    let office = Trigger {
        exclusions: calendar(r#"{"name":"night","daily":[{"from":"18:00","to":"08:00"}]}"#),
        ..trigger(cron("*/15 * * * *"))
    };
    // Due times are looked for in free time only.
    let cursor = first(&office);
    assert_eq!(cursor.next_ms, Some(T0 + 8 * HOUR));
    let plan = at(&office, cursor, T0 + 8 * HOUR);
    assert_eq!(slots(&plan), [T0 + 8 * HOUR]);
    assert_eq!(plan.ranges.len(), 1);
    let night = plan.ranges[0];
    assert_eq!(night.verdict, Verdict::Skipped(SkipReason::Calendar));
    assert_eq!(
        (night.from_ms, night.to_ms, night.count),
        (T0 + 15 * MINUTE, T0 + 8 * HOUR - 15 * MINUTE, 31)
    );
    // An outage over two nights: what the calendar leaves out is not counted as missed.
    let plan = at(&office, plan.cursor, T0 + 2 * DAY + 12 * HOUR);
    assert_eq!(slots(&plan), [T0 + 2 * DAY + 12 * HOUR]);
    let missed: u64 = plan.fires[0].coalesced;
    // 39 left on the first day, 40 on the second, 16 on the third.
    assert_eq!(missed, 39 + 40 + 16);
    let left_out: u64 = plan
        .ranges
        .iter()
        .filter(|range| range.verdict == Verdict::Skipped(SkipReason::Calendar))
        .map(|range| range.count)
        .sum();
    assert_eq!(left_out, 2 * 56);
}

#[test]
fn what_a_calendar_leaves_out_before_the_end_has_its_verdict_when_the_trigger_completes() {
    let bounded = Trigger {
        exclusions: calendar(r#"{"name":"night","daily":[{"from":"01:00","to":"02:30"}]}"#),
        misfire: Misfire::Skip,
        misfire_threshold_ms: Some(0),
        end_ms: Some(T0 + HOUR + 32 * MINUTE),
        ..trigger(cron("*/5 * * * *"))
    };
    let mut cursor = first(&bounded);
    // Looked at within the night: what is missed is judged, and what is left of the night up to the end.
    cursor.judged_ms = T0 + 50 * MINUTE;
    let night = at(&bounded, cursor, T0 + HOUR + 12 * MINUTE);
    let words: Vec<_> = night
        .ranges
        .iter()
        .map(|range| (range.from_ms, range.to_ms, range.verdict))
        .collect();
    assert_eq!(
        words,
        [
            (
                T0 + 55 * MINUTE,
                T0 + 55 * MINUTE,
                Verdict::Skipped(SkipReason::Misfire)
            ),
            (
                T0 + HOUR,
                T0 + HOUR + 30 * MINUTE,
                Verdict::Skipped(SkipReason::Calendar)
            ),
        ]
    );
    assert_eq!((night.then, night.cursor.next_ms), (Then::Complete, None));
    // With time behind the night it waits for that, and the night is judged then.
    let longer = Trigger {
        end_ms: Some(T0 + 3 * HOUR),
        ..bounded
    };
    let night = at(&longer, cursor, T0 + HOUR + 12 * MINUTE);
    assert_eq!(
        (night.then, night.cursor.next_ms),
        (Then::Waits, Some(T0 + 2 * HOUR + 30 * MINUTE))
    );
}

#[test]
fn only_real_fires_use_up_the_count() {
    let thrice = Trigger {
        max_fires: Some(3),
        ..trigger(cron("* * * * *"))
    };
    let plan = at(&thrice, first(&thrice), T0 + 3 * HOUR);
    assert_eq!((plan.cursor.fires, plan.then), (1, Then::Waits));
    let plan = at(&thrice, plan.cursor, T0 + 181 * MINUTE);
    let plan = at(&thrice, plan.cursor, T0 + 182 * MINUTE);
    assert_eq!(
        (plan.cursor.fires, plan.then, plan.cursor.next_ms),
        (3, Then::Complete, None)
    );
    assert_eq!(at(&thrice, plan.cursor, T0 + DAY).fires, []);
}

#[test]
fn start_and_end_are_kept() {
    let bounded = Trigger {
        start_ms: Some(T0 + HOUR),
        end_ms: Some(T0 + 2 * HOUR),
        ..trigger(cron("0,30 * * * *"))
    };
    let cursor = first(&bounded);
    assert_eq!(cursor.next_ms, Some(T0 + HOUR), "the start is included");
    let mut fired = Vec::new();
    let mut cursor = cursor;
    while let Some(next) = cursor.next_ms {
        let plan = at(&bounded, cursor, next + 5);
        fired.extend(slots(&plan));
        cursor = plan.cursor;
    }
    assert_eq!(fired, [T0 + HOUR, T0 + 90 * MINUTE, T0 + 2 * HOUR], "and so is the end");
    // Found only long after its end: nothing is made up.
    let plan = at(&bounded, first(&bounded), T0 + DAY);
    assert_eq!((plan.fires.len(), plan.then), (0, Then::Complete));
    assert_eq!(plan.ranges.len(), 1);
    assert_eq!(
        (plan.ranges[0].count, plan.ranges[0].verdict),
        (3, Verdict::Skipped(SkipReason::Ended))
    );
}

#[test]
fn a_one_off_that_was_missed_runs_or_is_dropped() {
    for (misfire, fires) in [(Misfire::FireOnce, 1), (Misfire::CatchUp, 1), (Misfire::Skip, 0)] {
        let once = Trigger {
            misfire,
            ..trigger(Schedule::Once(T0 + HOUR))
        };
        let plan = at(&once, first(&once), T0 + 5 * HOUR);
        assert_eq!((plan.fires.len(), plan.ranges.len()), (fires, 1 - fires), "{misfire:?}");
        assert_eq!((plan.then, plan.cursor.next_ms), (Then::Complete, None));
    }
}

#[test]
fn a_fixed_delay_counts_from_the_end_of_its_run() {
    let delay = trigger(Schedule::FixedDelay { delay_ms: 10 * MINUTE });
    let cursor = first(&delay);
    assert_eq!(cursor.next_ms, Some(T0 + 10 * MINUTE));
    let plan = at(&delay, cursor, T0 + 10 * MINUTE);
    assert_eq!((slots(&plan), plan.then), (vec![T0 + 10 * MINUTE], Then::WaitsForRun));
    // While it runs nothing is due, however long it takes.
    assert_eq!(plan.cursor.next_ms, None);
    assert_eq!(at(&delay, plan.cursor, T0 + DAY).fires, []);
    let cursor = run_ended(&delay, plan.cursor, T0 + 25 * MINUTE).expect("cursor");
    assert_eq!(cursor.next_ms, Some(T0 + 35 * MINUTE));
    // An outage: once, or not and again after the delay.
    let missed = at(&delay, cursor, T0 + 9 * HOUR);
    assert!(missed.fires.len() == 1 && missed.fires[0].misfired);
    let skip = Trigger {
        misfire: Misfire::Skip,
        ..delay.clone()
    };
    let skipped = at(&skip, cursor, T0 + 9 * HOUR);
    assert_eq!((skipped.fires.len(), skipped.ranges.len()), (0, 1));
    assert_eq!(skipped.cursor.next_ms, Some(T0 + 9 * HOUR + 10 * MINUTE));
}

#[test]
fn jitter_moves_the_start_and_not_the_scheduled_time() {
    let spread = Trigger {
        jitter_ms: 120_000,
        ..trigger(cron("0 * * * *"))
    };
    let plan = at(&spread, first(&spread), T0 + HOUR);
    let fire = plan.fires[0];
    assert_eq!(fire.scheduled_ms, T0 + HOUR);
    assert!((T0 + HOUR..=T0 + HOUR + 120_000).contains(&fire.run_at_ms));
    assert_eq!(
        at(&spread, first(&spread), T0 + HOUR + 10).fires[0].run_at_ms,
        fire.run_at_ms
    );
}

#[derive(Debug)]
struct Stuck;

impl Times for Stuck {
    fn next_after(&self, after_ms: i64) -> Option<i64> {
        Some(after_ms)
    }
}

#[test]
fn a_schedule_that_does_not_go_on_is_an_error_and_no_loop() {
    let stuck = trigger(Schedule::Custom(Arc::new(Stuck)));
    assert!(stuck.first_cursor(T0).is_err());
    let cursor = Cursor {
        judged_ms: T0,
        next_ms: Some(T0),
        fires: 0,
    };
    let broken = plan(&stuck, cursor, T0 + DAY, false, 256).expect_err("broken");
    assert!(broken.to_string().contains("must be later"), "{broken}");
}

#[test]
fn nobody_s_clock_moves_manual_and_after() {
    for schedule in [
        Schedule::Manual,
        Schedule::After {
            job: "a".into(),
            outcome: crate::trigger::schedule::AfterOutcome::Finished,
        },
    ] {
        let asked = trigger(schedule);
        let plan = at(&asked, first(&asked), T0 + 365 * DAY);
        assert_eq!((plan.fires.len(), plan.ranges.len(), plan.then), (0, 0, Then::Waits));
    }
}

/// Random outages, pauses, batches and calendars: each slot has exactly one verdict.
#[test]
fn every_slot_has_exactly_one_verdict() {
    let mut seed = 4_711_u64;
    let mut random = |bound: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let mut judged = 0_u64;
    for round in 0..200 {
        let schedule = match random(4) {
            0 => rate([1_000, 7_000, 90_000][random(3) as usize]),
            1 => cron("*/7 * * * *"),
            2 => cron("0,1,30 6-20 * * *"),
            _ => cron("* * * * *"),
        };
        let trigger = Trigger {
            misfire: [Misfire::FireOnce, Misfire::Skip, Misfire::CatchUp][random(3) as usize],
            max_catch_up: 1 + random(200),
            exclusions: if random(2) == 0 {
                calendar(
                    r#"{"name":"x","dates":["2026-12-01"],"daily":[{"from":"12:00","to":"13:30"},{"from":"23:00","to":"01:00"}]}"#,
                )
            } else {
                Exclusions::default()
            },
            ..trigger(schedule)
        };
        let mut cursor = first(&trigger);
        let mut now = T0;
        // Verdicts as stretches: from, to, count.
        let mut verdicts: Vec<(i64, i64, u64)> = Vec::new();
        for _ in 0..12 {
            now += match random(3) {
                0 => random(5_000) as i64,
                1 => random(20 * MINUTE as u64) as i64,
                _ => random(12 * HOUR as u64) as i64,
            };
            let paused = random(5) == 0;
            let fires_max = 1 + random(300) as usize;
            for turn in 0.. {
                assert!(turn < 100_000, "it must come to an end");
                let plan = plan(&trigger, cursor, now, paused, fires_max).expect("plan");
                assert!(plan.fires.len() <= fires_max && plan.cursor.judged_ms >= cursor.judged_ms);
                verdicts.extend(plan.fires.iter().map(|fire| (fire.scheduled_ms, fire.scheduled_ms, 1)));
                verdicts.extend(
                    plan.ranges
                        .iter()
                        .map(|range| (range.from_ms, range.to_ms, range.count)),
                );
                cursor = plan.cursor;
                if !plan.more {
                    break;
                }
            }
        }
        verdicts.sort_unstable();
        // Side by side, without a slot between them, and as many slots as they say.
        let mut end = T0;
        for &(from, to, count) in &verdicts {
            assert!(from > end, "round {round}: {from} is judged twice");
            assert_eq!(
                trigger.schedule.next_after(end),
                Some(from),
                "round {round}: a slot has no verdict"
            );
            assert_eq!(trigger.schedule.count(from - 1, to, u64::MAX), count, "round {round}");
            assert_eq!(
                trigger.schedule.count(to - 1, to, 1),
                1,
                "round {round}: a range ends with a slot"
            );
            end = to;
            judged += count;
        }
        assert!(
            trigger.schedule.next_after(end).is_none_or(|next| next > now),
            "round {round}: a due slot is open"
        );
    }
    assert!(judged > 100_000, "only {judged} slots");
}
