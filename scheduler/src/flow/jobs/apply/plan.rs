//! What becomes of the triggers of a job that is applied, and what they fire next.

use super::{Coming, Wanted, wrong};
use crate::flow::Refusal;
use crate::flow::jobs::fire::judge_pause;
use crate::store::jobs::JobRow;
use crate::store::jobs::compiled::{self, Calendars};
use crate::store::jobs::triggers::{TriggerRow, TriggerWrite};
use systole_shared::error::Invalid;
use systole_shared::job::Job;
use systole_shared::policy::pause::{Held, Pause, due_ms, held};
use systole_shared::trigger::definition::TriggerSpec;
use systole_shared::trigger::plan::Trigger;
use systole_shared::trigger::schedule::{Schedule, Times as _};
use systole_shared::trigger::state::Phase;
use systole_shared::trigger::words;
use systole_shared::trigger::zone::Zone;

/// Fires that a result shows.
pub const SHOWN_FIRES: usize = 5;
/// Odd days that a result names, of each trigger.
const SHOWN_ODD_DAYS: usize = 3;

/// What becomes of the triggers.
#[derive(Default)]
pub struct TriggerPlan {
    pub new: Vec<TriggerWrite>,
    pub changed: Vec<TriggerWrite>,
    pub moved: Vec<TriggerRow>,
    pub gone: Vec<i64>,
    pub next: Vec<Coming>,
    pub warnings: Vec<String>,
}

fn same_but_pause(one: &TriggerSpec, other: &TriggerSpec) -> bool {
    TriggerSpec {
        paused: other.paused,
        ..one.clone()
    } == *other
}

/// The trigger with the zone that its times are meant in. Without one, it keeps the zone that it was stored with, whatever a
/// replica's default is; a new one, and one that changes, gets the default.
fn in_zone(spec: &TriggerSpec, before: Option<&TriggerSpec>, default_zone: &Zone) -> TriggerSpec {
    let mut spec = spec.clone();
    if spec.zone.is_some() || !spec.takes_zone() {
        return spec;
    }
    let stored = before.filter(|before| {
        let mut plain = (*before).clone();
        plain.zone = None;
        same_but_pause(&plain, &spec)
    });
    spec.zone = match stored {
        Some(stored) => stored.zone.clone(),
        // What was stored before there was a default has none, and means UTC: the same text.
        None if default_zone.name() == Zone::utc().name() => None,
        None => Some(default_zone.name().to_owned()),
    };
    spec
}

pub fn plan_triggers(
    wanted: &Wanted,
    stored: Option<&JobRow>,
    rows: Vec<TriggerRow>,
    lanes: &[i64],
    (calendars, default_zone): (&Calendars, &Zone),
    now: i64,
) -> Result<TriggerPlan, Refusal> {
    let job = &wanted.job;
    let job_pause = stored.map_or(
        Pause {
            paused: job.paused,
            until_ms: None,
        },
        JobRow::pause,
    );
    let mut plan = TriggerPlan {
        warnings: job.warnings.iter().map(ToString::to_string).collect(),
        ..TriggerPlan::default()
    };
    let mut rows: std::collections::HashMap<String, TriggerRow> =
        rows.into_iter().map(|row| (row.name.clone(), row)).collect();
    for (index, spec) in job.triggers.iter().enumerate() {
        let place = |fault: Invalid| wrong(Invalid::new(format!("trigger[{index}].{}", fault.field), fault.message));
        let row = rows.remove(&spec.name);
        let before = row.as_ref().and_then(|row| compiled::trigger_spec(row).ok());
        let spec = &in_zone(spec, before.as_deref(), default_zone);
        let created_ms = row.as_ref().map_or(now, |row| row.created_at_ms);
        let trigger = compiled::trigger(&job.name, spec, created_ms, calendars).map_err(place)?;
        let kept = before.as_deref().is_some_and(|old| same_but_pause(old, spec));
        if !kept {
            spec.check_fires(&trigger, now).map_err(place)?;
        }
        for day in trigger.schedule.odd_days(now, SHOWN_ODD_DAYS) {
            plan.warnings
                .push(format!("trigger {:?}: {}", spec.name, words::odd_day(&day)));
        }
        let mut write = write_of(spec, &trigger, lanes[index + 1], now).map_err(place)?;
        let broken = |error: String| wrong(Invalid::new(format!("trigger[{index}]"), error));
        match row {
            None => {
                let cursor = trigger.first_cursor(now).map_err(|error| broken(error.to_string()))?;
                (write.judged_ms, write.next_ms) = (cursor.judged_ms, cursor.next_ms);
                let pause = Pause {
                    paused: spec.paused,
                    until_ms: None,
                };
                write.due_ms = due_ms(cursor.next_ms, held(pause, job_pause));
                foretell(
                    &mut plan.next,
                    job,
                    spec,
                    &trigger,
                    write.next_ms,
                    held(pause, job_pause),
                );
                plan.new.push(write);
            }
            Some(mut row) => {
                write.id = row.id;
                if !kept {
                    redefined(&mut row, &trigger, now).map_err(broken)?;
                } else if row.phase() == Phase::Error {
                    row.try_again(&trigger).map_err(broken)?;
                }
                let held = held(row.pause(), job_pause);
                row.due_ms = if row.phase() == Phase::Waiting {
                    due_ms(row.next_ms, held)
                } else {
                    None
                };
                foretell(&mut plan.next, job, spec, &trigger, row.next_ms, held);
                plan.changed.push(write);
                plan.moved.push(row);
            }
        }
    }
    plan.gone = rows.into_values().map(|row| row.id).collect();
    Ok(plan)
}

/// Its times have changed: it goes on from now. What it has fired counts, and a run that it waits for is still waited for.
fn redefined(row: &mut TriggerRow, trigger: &Trigger, now: i64) -> Result<(), String> {
    row.error.clear();
    let waits = row.run_root.is_some() && matches!(trigger.schedule, Schedule::FixedDelay { .. });
    if waits {
        return Ok(());
    }
    row.run_root = None;
    let cursor = trigger.first_cursor(now).map_err(|error| error.to_string())?;
    (row.judged_ms, row.next_ms) = (cursor.judged_ms, cursor.next_ms);
    row.set_phase(Phase::Waiting);
    Ok(())
}

fn write_of(spec: &TriggerSpec, trigger: &Trigger, lane_id: i64, now: i64) -> Result<TriggerWrite, Invalid> {
    let (after_job, after_outcome) = match &spec.after {
        Some(after) => (
            Some(after.job.clone()),
            serde_json::to_value(after.outcome)
                .ok()
                .and_then(|word| word.as_str().map(str::to_owned)),
        ),
        None => (None, None),
    };
    Ok(TriggerWrite {
        id: 0,
        name: spec.name.clone(),
        definition: serde_json::to_string(spec).map_err(|error| Invalid::new("trigger", error.to_string()))?,
        kind: spec.kind()?.to_owned(),
        lane_id,
        after_job,
        after_outcome,
        created_at_ms: now,
        judged_ms: now,
        next_ms: trigger.next_after(now).ok().flatten(),
        due_ms: None,
        phase: "waiting",
        paused: i64::from(spec.paused),
    })
}

/// The next fires of a trigger, unless it is paused.
fn foretell(
    coming: &mut Vec<Coming>,
    job: &Job,
    spec: &TriggerSpec,
    trigger: &Trigger,
    next_ms: Option<i64>,
    held: Held,
) {
    if held == Held::Open {
        return;
    }
    let mut next = next_ms;
    for _ in 0..SHOWN_FIRES {
        let Some(at) = next else { return };
        coming.push(Coming {
            job: job.name.clone(),
            trigger: spec.name.clone(),
            zone: spec.zone.clone().unwrap_or_default(),
            scheduled_ms: at,
        });
        // What counts from the end of a run is not foretold further.
        next = match trigger.schedule {
            Schedule::FixedDelay { .. } => None,
            _ => trigger.next_after(at).ok().flatten(),
        };
    }
}

pub fn coming_of(row: &JobRow, rows: &[TriggerRow], calendars: &Calendars, now: i64) -> Vec<Coming> {
    let Ok(job) = compiled::job(row) else {
        return Vec::new();
    };
    let mut coming = Vec::new();
    for trigger_row in rows {
        let Ok(spec) = compiled::trigger_spec(trigger_row) else {
            continue;
        };
        let Ok(trigger) = compiled::stored_trigger(&row.name, trigger_row, &spec, calendars) else {
            continue;
        };
        let next = trigger_row.next_ms.map(|next| next.max(now));
        foretell(
            &mut coming,
            &job,
            &spec,
            &trigger,
            next,
            held(trigger_row.pause(), row.pause()),
        );
    }
    coming.sort_by_key(|coming| coming.scheduled_ms);
    coming.truncate(SHOWN_FIRES);
    coming
}

/// The verdicts of a pause that ends now.
pub fn end_pause(
    row: &mut TriggerRow,
    job: &str,
    calendars: &Calendars,
    now: i64,
) -> Result<Vec<systole_shared::trigger::occurrence::Range>, String> {
    let spec = compiled::trigger_spec(row)?;
    let trigger = compiled::stored_trigger(job, row, &spec, calendars).map_err(|error| error.to_string())?;
    let (ranges, then) = judge_pause(&trigger, row, now)?;
    if then == systole_shared::trigger::plan::Then::Complete {
        row.set_phase(Phase::Complete);
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_keeps_the_zone_that_it_was_stored_with() {
        let spec = |json: &str| serde_json::from_str::<TriggerSpec>(json).expect(json);
        let (berlin, tokyo, utc) = (
            Zone::parse("Europe/Berlin").expect("zone"),
            Zone::parse("Asia/Tokyo").expect("zone"),
            Zone::utc(),
        );
        let plain = spec(r#"{"name":"t","cron":"30 2 * * *"}"#);
        let zone =
            |spec: &TriggerSpec, before: Option<&TriggerSpec>, default: &Zone| in_zone(spec, before, default).zone;
        let stored = in_zone(&plain, None, &berlin);
        assert_eq!(stored.zone.as_deref(), Some("Europe/Berlin"));
        // Another replica, or the same one later, with another setting or none.
        assert_eq!(zone(&plain, Some(&stored), &tokyo).as_deref(), Some("Europe/Berlin"));
        assert_eq!(zone(&plain, Some(&stored), &utc).as_deref(), Some("Europe/Berlin"));
        // One from before there was a default is in UTC, and stays so.
        assert_eq!(zone(&plain, None, &utc), None);
        assert_eq!(zone(&plain, Some(&plain), &berlin), None);
        // One that changes is meant anew, and one that names its zone is in it.
        let other = spec(r#"{"name":"t","cron":"30 3 * * *"}"#);
        assert_eq!(zone(&other, Some(&stored), &tokyo).as_deref(), Some("Asia/Tokyo"));
        let named = spec(r#"{"name":"t","cron":"30 3 * * *","zone":"UTC"}"#);
        assert_eq!(zone(&named, Some(&stored), &tokyo).as_deref(), Some("UTC"));
        let manual = spec(r#"{"name":"t","manual":true}"#);
        assert_eq!(zone(&manual, None, &tokyo), None);
    }
}
