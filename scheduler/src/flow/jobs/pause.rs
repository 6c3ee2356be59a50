//! Pausing jobs and triggers. What is due meanwhile gets the verdict "paused" when the pause ends, and is not made up.

use super::apply::end_pause;
use super::fire::range_entry;
use super::{Refusal, job_and_trigger, lock_with_triggers};
use crate::context::Context;
use crate::store::audit::audit_with;
use crate::store::jobs::ledger::{self, Entry};
use crate::store::jobs::triggers::{self, TriggerRow};
use crate::store::jobs::{self as store, JobRow, compiled, settle};
use crate::store::{Class, StoreError, Tx};
use std::sync::Arc;
use systole_shared::error::{Code, Invalid};
use systole_shared::policy::pause::{Held, Pause, due_ms, held};
use systole_shared::trigger::state::Phase;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Ask {
    pub paused: bool,
    pub until_ms: Option<i64>,
    pub by: String,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub already: bool,
    /// Fires that were left out, of a resume.
    pub skipped: u64,
}

/// `name`: a job, or `JOB/TRIGGER`.
pub async fn set_paused(ctx: &Context, name: &str, ask: &Ask) -> Result<Done, Refusal> {
    let (job, trigger) = job_and_trigger(name);
    let args = Arc::new((job, trigger, ask.clone()));
    let done = ctx
        .db
        .write("set_paused", Class::Api, move |tx| {
            let args = Arc::clone(&args);
            Box::pin(async move { transact(tx, &args.0, args.1.as_deref(), &args.2).await })
        })
        .await?;
    ctx.wake.fire.notify_one();
    done
}

async fn transact(
    tx: &mut Tx,
    name: &str,
    trigger: Option<&str>,
    ask: &Ask,
) -> Result<Result<Done, Refusal>, StoreError> {
    let now = settle::now_ms(tx).await?;
    if ask.paused && ask.until_ms.is_some_and(|until| until <= now) {
        let invalid = Invalid::new("until_ms", "is not in the future by the database's clock");
        return Ok(Err(Refusal {
            code: Code::InvalidField,
            message: invalid.to_string(),
            field: invalid.field,
        }));
    }
    let (job, mut rows) = match lock_with_triggers(tx, name, trigger).await? {
        Ok(found) => found,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let calendars = compiled::all_calendars(tx).await?;
    let mut done = Done::default();
    let mut entries: Vec<Entry> = Vec::new();
    let wanted = Pause {
        paused: ask.paused,
        until_ms: ask.until_ms.filter(|_| ask.paused),
    };
    // What was due up to now belongs to the pauses that were in force.
    for row in rows
        .iter_mut()
        .filter(|row| trigger.is_none_or(|name| row.name == name))
    {
        if held(row.pause(), job.pause()) != Held::No && row.phase() == Phase::Waiting {
            judge(row, &job, &calendars, now, &mut entries);
        }
    }
    let mut job_pause = job.pause();
    match trigger {
        None => {
            done.already = job.paused == ask.paused;
            job_pause = wanted;
            store::set_paused(tx, job.id, wanted, &ask.by, &ask.reason).await?;
        }
        Some(trigger) => {
            for row in rows.iter_mut().filter(|row| row.name == trigger) {
                done.already = row.paused == ask.paused;
                (row.paused, row.paused_until_ms) = (wanted.paused, wanted.until_ms);
                triggers::sign_pause(tx, row.id, &ask.by, &ask.reason).await?;
            }
        }
    }
    for row in &mut rows {
        if row.phase() == Phase::Waiting {
            row.due_ms = due_ms(row.next_ms, held(row.pause(), job_pause));
        }
    }
    done.skipped = entries
        .iter()
        .map(|entry| u64::try_from(entry.fires).unwrap_or(0))
        .sum();
    ledger::put(tx, &entries).await?;
    triggers::save(tx, &rows).await?;
    let action = if ask.paused { "job pause" } else { "job resume" };
    let subject = trigger.map_or_else(|| name.to_owned(), |trigger| format!("{name}/{trigger}"));
    audit_with(tx, &ask.by, action, (&subject, ""), &ask.reason).await?;
    Ok(Ok(done))
}

fn judge(row: &mut TriggerRow, job: &JobRow, calendars: &compiled::Calendars, now: i64, entries: &mut Vec<Entry>) {
    match end_pause(row, &job.name, calendars, now) {
        Ok(ranges) => entries.extend(ranges.iter().map(|range| range_entry(row, range))),
        Err(error) => row.fail(error),
    }
}
