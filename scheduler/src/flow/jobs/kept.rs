//! Applying calendars and concurrency groups.

use super::Refusal;
use super::apply::{Applied, Definition, Manner, Outcome, check_size, unexpected};
use super::chains;
use crate::context::Context;
use crate::store::audit::audit;
use crate::store::jobs::triggers::{self, TriggerRow};
use crate::store::jobs::{self as store, compiled, kept, settle};
use crate::store::{Class, StoreError, Tx};
use std::sync::Arc;
use systole_shared::error::{Code, Invalid};
use systole_shared::job::Group;
use systole_shared::job::definition::canonical;
use systole_shared::limits::{CONCURRENT_MAX, ICS_BYTES_MAX};
use systole_shared::policy::pause::{due_ms, held};
use systole_shared::task::spec::check_word;
use systole_shared::trigger::state::Phase;

fn wrong(invalid: Invalid) -> Refusal {
    Refusal {
        code: Code::InvalidJob,
        message: invalid.to_string(),
        field: invalid.field,
    }
}

fn outcome(name: &str, before: Option<&str>, after: &str, version: i64) -> Outcome {
    Outcome {
        name: name.to_owned(),
        applied: match before {
            None => Applied::Created,
            Some(before) if before == after => Applied::Unchanged,
            Some(_) => Applied::Changed,
        },
        version,
        before: before.unwrap_or_default().to_owned(),
        after: after.to_owned(),
        warnings: Vec::new(),
        next_before: Vec::new(),
        next: Vec::new(),
    }
}

/// Stores a calendar; the triggers that leave out its times go by it from now on.
pub async fn apply_calendar(
    ctx: &Context,
    definition: &Definition,
    ics: &str,
    manner: &Manner,
) -> Result<Outcome, Refusal> {
    check_size(&definition.json)?;
    if ics.len() > ICS_BYTES_MAX {
        let message = format!("has {} bytes; at most {ICS_BYTES_MAX} are kept", ics.len());
        return Err(wrong(Invalid::new("ics", message)));
    }
    let ics = (!ics.is_empty()).then(|| ics.to_owned());
    let (spec, _) = compiled::calendar(&definition.json, ics.as_deref()).map_err(wrong)?;
    check_word(&spec.name, "name").map_err(wrong)?;
    let json = serde_json::to_value(&spec)
        .map(|value| canonical(&value))
        .map_err(|error| wrong(Invalid::new("json", error.to_string())))?;
    let args = Arc::new((spec.name, json, ics, definition.expected_version, manner.clone()));
    let result = ctx
        .db
        .write("apply_calendar", Class::Api, move |tx| {
            let args = Arc::clone(&args);
            Box::pin(async move {
                let (name, json, ics, expected, manner) = &*args;
                let stored = kept::calendars_by_name(tx, &[name]).await?.pop();
                let version = stored.as_ref().map_or(0, |row| row.version);
                if let Some(refusal) = unexpected(name, version, *expected) {
                    return Ok(Err(refusal));
                }
                let mut done = outcome(name, stored.as_ref().map(|row| row.definition.as_str()), json, version);
                let same_file = stored.as_ref().is_none_or(|row| row.ics == *ics);
                if done.applied == Applied::Unchanged && !same_file {
                    done.applied = Applied::Changed;
                }
                if done.applied != Applied::Unchanged {
                    done.version = version + 1;
                    if !manner.dry_run {
                        // Before the calendar, as everybody locks them: whoever fires now goes by the old one.
                        let jobs = triggers::jobs_with_calendars(tx).await?;
                        let rows = triggers::lock_of_jobs(tx, &jobs).await?;
                        kept::put_calendar(tx, name, json, ics.clone(), &manner.by).await?;
                        look_again(tx, rows).await?;
                        audit(tx, &manner.by, "calendar change", name, &manner.reason).await?;
                    }
                }
                Ok(Ok(done))
            })
        })
        .await?;
    ctx.wake.fire.notify_one();
    result
}

/// The next times of triggers whose calendars have changed. What was judged stays judged.
async fn look_again(tx: &mut Tx, rows: Vec<TriggerRow>) -> Result<(), StoreError> {
    let calendars = compiled::all_calendars(tx).await?;
    let now = settle::now_ms(tx).await?;
    let mut moved = Vec::new();
    for mut row in rows {
        let Ok(spec) = compiled::trigger_spec(&row) else {
            continue;
        };
        if spec.exclude_calendars.is_empty() || row.phase() != Phase::Waiting {
            continue;
        }
        let Some(job) = store::by_id(tx, &[row.job_id]).await?.pop() else {
            continue;
        };
        match compiled::trigger(&job.name, &spec, row.created_at_ms, &calendars) {
            Ok(trigger) => match trigger.next_after(row.judged_ms) {
                Ok(next) => {
                    row.next_ms = next;
                    // A trigger of which everything is left out is looked at again when its calendar changes.
                    row.due_ms = due_ms(next.or(Some(now)), held(row.pause(), job.pause()));
                }
                Err(error) => row.fail(error.to_string()),
            },
            Err(error) => row.fail(error.to_string()),
        }
        moved.push(row);
    }
    triggers::save(tx, &moved).await
}

pub async fn apply_group(ctx: &Context, definition: &Definition, manner: &Manner) -> Result<Outcome, Refusal> {
    check_size(&definition.json)?;
    let group: Group =
        serde_json::from_str(&definition.json).map_err(|error| wrong(Invalid::new("json", error.to_string())))?;
    check_word(&group.name, "name").map_err(wrong)?;
    if !(1..=CONCURRENT_MAX).contains(&group.limit) {
        let message = format!("{} is outside 1 to {CONCURRENT_MAX}", group.limit);
        return Err(wrong(Invalid::new("limit", message)));
    }
    let json = serde_json::to_value(&group)
        .map(|value| canonical(&value))
        .map_err(|error| wrong(Invalid::new("json", error.to_string())))?;
    let args = Arc::new((group, json, manner.clone()));
    let done = ctx
        .db
        .write("apply_group", Class::Api, move |tx| {
            let args = Arc::clone(&args);
            Box::pin(async move {
                let (group, json, manner) = &*args;
                let before = kept::group(tx, &group.name).await?.map(|row| group_json(&row));
                let done = outcome(&group.name, before.as_deref(), json, 0);
                if done.applied != Applied::Unchanged && !manner.dry_run {
                    kept::put_group(tx, &group.name, i64::from(group.limit), &manner.by).await?;
                    audit(tx, &manner.by, "group change", &group.name, &manner.reason).await?;
                }
                Ok(done)
            })
        })
        .await?;
    if done.applied == Applied::Changed {
        chains::more_places(ctx).await;
    }
    Ok(done)
}

fn group_json(row: &kept::GroupRow) -> String {
    canonical(&serde_json::json!({"name": row.name, "limit": row.places}))
}
