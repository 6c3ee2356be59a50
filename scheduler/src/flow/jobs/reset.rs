//! Triggers in ERROR that are tried again: their cause is gone, or was never theirs.

use super::{Refusal, job_and_trigger, lock_with_triggers};
use crate::context::Context;
use crate::store::audit::audit;
use crate::store::jobs::triggers::{self, TriggerRow};
use crate::store::jobs::{JobRow, compiled, settle};
use crate::store::{Class, StoreError, Tx};
use std::sync::Arc;
use systole_shared::error::Code;
use systole_shared::policy::pause::{due_ms, held};
use systole_shared::trigger::state::Phase;

/// `name`: `JOB/TRIGGER`, or a job with all its triggers. Returns how many were in ERROR.
pub async fn reset(ctx: &Context, name: &str, by: &str, reason: &str) -> Result<usize, Refusal> {
    let (job, trigger) = job_and_trigger(name);
    let args = Arc::new((job, trigger, by.to_owned(), reason.to_owned()));
    let done = ctx
        .db
        .write("reset_trigger", Class::Api, move |tx| {
            let args = Arc::clone(&args);
            Box::pin(async move { transact(tx, &args.0, args.1.as_deref(), &args.2, &args.3).await })
        })
        .await?;
    ctx.wake.fire.notify_one();
    done
}

async fn transact(
    tx: &mut Tx,
    name: &str,
    trigger: Option<&str>,
    by: &str,
    reason: &str,
) -> Result<Result<usize, Refusal>, StoreError> {
    let (job, rows) = match lock_with_triggers(tx, name, trigger).await? {
        Ok(found) => found,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let calendars = compiled::all_calendars(tx).await?;
    let now = settle::now_ms(tx).await?;
    let mut moved = Vec::new();
    for mut row in rows {
        if row.phase() != Phase::Error || trigger.is_some_and(|trigger| trigger != row.name) {
            continue;
        }
        if let Err(cause) = try_again(&mut row, &job, &calendars, now) {
            let message = format!(
                "trigger {:?} of job {name:?} cannot be evaluated: {cause}. Change its definition: systole job edit {name}",
                row.name
            );
            return Ok(Err(Refusal::new(Code::InvalidJob, message)));
        }
        moved.push(row);
    }
    triggers::save(tx, &moved).await?;
    for row in &moved {
        audit(tx, by, "trigger reset", &format!("{name}/{}", row.name), reason).await?;
    }
    Ok(Ok(moved.len()))
}

fn try_again(row: &mut TriggerRow, job: &JobRow, calendars: &compiled::Calendars, now: i64) -> Result<(), String> {
    let spec = compiled::trigger_spec(row)?;
    compiled::job(job)?;
    let trigger = compiled::stored_trigger(&job.name, row, &spec, calendars).map_err(|error| error.to_string())?;
    row.try_again(&trigger)?;
    // Looked at now, so that one of which nothing is left is COMPLETE.
    row.due_ms = due_ms(row.next_ms.or(Some(now)), held(row.pause(), job.pause()));
    Ok(())
}
