//! Deleting a job: its triggers go, what waits for its turn or its time is cancelled, what is queued or runs goes on. All of it is one
//! transaction, so that nothing of a deleted job is left to start.

use super::apply::unexpected;
use super::{Refusal, no_such_job, unknown_job};
use crate::context::Context;
use crate::store::audit::audit;
use crate::store::finish::{self, End, Ended};
use crate::store::jobs::slots::{self, Places};
use crate::store::jobs::{self as store, orphans, triggers};
use crate::store::{Class, StoreError, Tx};
use std::collections::BTreeSet;
use std::sync::Arc;
use systole_shared::task::{Outcome, OutcomeKind, Transition};

/// Deletes a job, if it has the version that is expected (0: any). Returns the tasks that were cancelled.
pub async fn delete(ctx: &Context, name: &str, expected: i64, by: &str, reason: &str) -> Result<Vec<i64>, Refusal> {
    let args = Arc::new((name.to_owned(), by.to_owned(), reason.to_owned()));
    let done = ctx
        .db
        .write("delete_job", Class::Api, move |tx| {
            let args = Arc::clone(&args);
            Box::pin(async move { transact(tx, &args.0, expected, &args.1, &args.2).await })
        })
        .await?;
    let ended = done?;
    crate::flow::after_end(ctx, &ended);
    Ok(ended.ids)
}

async fn transact(
    tx: &mut Tx,
    name: &str,
    expected: i64,
    by: &str,
    reason: &str,
) -> Result<Result<Ended, Refusal>, StoreError> {
    let Some(job) = store::by_name(tx, &[name]).await?.pop() else {
        return Ok(Err(unknown_job(tx, name).await?));
    };
    let rows = triggers::lock_of_jobs(tx, &[job.id]).await?;
    let places = Places::lock(tx, &[job.id], &BTreeSet::new()).await?;
    let Some(locked) = places.jobs.get(&job.id) else {
        return Ok(Err(no_such_job(name)));
    };
    if let Some(refusal) = unexpected(name, locked.version, expected) {
        return Ok(Err(refusal));
    }
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    triggers::delete(tx, &ids).await?;
    store::delete(tx, job.id).await?;
    // What somebody else has in hand, or makes just now, finds no job any more: it is not admitted, and the sweep ends it.
    let mut waiting = slots::lock_to_drop(tx, job.id).await?;
    waiting.extend(orphans::lock_created(tx, job.id).await?);
    let ends: Vec<End> = waiting
        .into_iter()
        .map(|task| {
            let outcome = Outcome::new(
                OutcomeKind::Cancelled,
                format!("its job was deleted by {by} before it started"),
            );
            End {
                cancelled_by: Some((by.to_owned(), (!reason.is_empty()).then(|| reason.to_owned()))),
                ..End::without_report(task, (Transition::CancelWaiting, outcome))
            }
        })
        .collect();
    let ended = finish::end_tasks(tx, &ends).await?;
    audit(tx, by, "job delete", name, reason).await?;
    Ok(Ok(ended))
}
