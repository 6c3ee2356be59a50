//! Results of a process that does not hold its host any more. A result is true whoever brings it: it is recorded for the
//! task and the start that it names. Nothing else of such a beat acts, and it is refused all the same: an answer would tell
//! the process that the cluster counts on it, and put off the end of children that must not outlive a verdict.

use super::Beat;
use super::decide::{Turn, Work, record};
use super::transaction::store_output;
use crate::context::Context;
use crate::flow::{Refusal, after_end};
use crate::store::finish::{self, Ended, LiveTask};
use crate::store::{Class, StoreError, Tx, beats};
use std::collections::HashMap;
use std::sync::Arc;
use systole_shared::error::Code;

/// Records what it can of the results of a refused beat. Returns their tasks.
pub(super) async fn deliver(ctx: &Context, beat: &Arc<Beat>, refusal: &Refusal) -> Vec<i64> {
    if beat.results.is_empty() || refusal.code != Code::RunnerIdInUse {
        return Vec::new();
    }
    let beat = Arc::clone(beat);
    let done = ctx
        .db
        .write("deliver", Class::Beats, move |tx| {
            let beat = Arc::clone(&beat);
            Box::pin(async move { settle(tx, &beat).await })
        })
        .await;
    match done {
        Ok((recorded, ended)) => {
            after_end(ctx, &ended);
            recorded
        }
        Err(error) => {
            // It comes again with the next beat.
            tracing::warn!(%error, "results of a process that was replaced");
            Vec::new()
        }
    }
}

async fn settle(tx: &mut Tx, beat: &Arc<Beat>) -> Result<(Vec<i64>, Ended), StoreError> {
    let mut ids: Vec<i64> = beat.results.iter().map(|result| result.task_id).collect();
    ids.sort_unstable();
    ids.dedup();
    let tasks: HashMap<i64, LiveTask> = finish::lock_tasks(tx, &ids)
        .await?
        .into_iter()
        .map(|task| (task.id, task))
        .collect();
    let mut work = Work::default();
    let mut turn = Turn::without_row(beat);
    for result in &beat.results {
        record(result, &mut turn, &tasks, &mut work)?;
    }
    let ended = finish::end_tasks(tx, &work.ends).await?;
    for late in work.late {
        beats::keep_late_result(tx, late).await?;
    }
    store_output(tx, std::slice::from_ref(beat), &work.recorded).await?;
    Ok((turn.acknowledged, ended))
}
