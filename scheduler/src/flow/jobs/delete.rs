//! Deleting a job: its triggers go, what waits is cancelled, what runs goes on.

use super::apply::unexpected;
use super::{Refusal, no_such_job};
use crate::context::Context;
use crate::flow::cancel::cancel;
use crate::store::audit::audit;
use crate::store::finish::{self, End, Ended};
use crate::store::jobs::slots::{self, Places};
use crate::store::jobs::{self as store, triggers};
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
    let (ended, retries) = done?;
    let mut cancelled = ended.ids.clone();
    crate::flow::after_end(ctx, &ended);
    // Retries that wait for their time are no business of the job's row: each is cancelled like by hand.
    if !retries.is_empty() {
        let reason = format!("the job {name} was deleted");
        let results = cancel(ctx, retries.clone(), by, &reason, true).await?;
        cancelled.extend(results.into_iter().flatten().map(|done| done.id));
    }
    Ok(cancelled)
}

/// What ended, and the retries that are left to cancel.
type Deleted = (Ended, Vec<i64>);

async fn transact(
    tx: &mut Tx,
    name: &str,
    expected: i64,
    by: &str,
    reason: &str,
) -> Result<Result<Deleted, Refusal>, StoreError> {
    let Some(job) = store::by_name(tx, &[name]).await?.pop() else {
        return Ok(Err(no_such_job(name)));
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
    let ends: Vec<End> = slots::lock_to_drop(tx, job.id)
        .await?
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
    let retries = store::created_retries(tx, job.id).await?;
    audit(tx, by, "job delete", name, reason).await?;
    Ok(Ok((ended, retries)))
}
