//! Tasks that waited too long: for a runner, or for that runner to start them.

use super::after_end;
use crate::context::Context;
use crate::store::finish::{self, End, Ended};
use crate::store::{Class, StoreError, Tx, clocks};
use std::collections::HashMap;
use systole_shared::heartbeat::end;
use systole_shared::task::TaskState;

/// QUEUED for longer than the queue timeout → FAILED. Returns how many.
pub async fn expire_waiting(ctx: &Context, until_ms: i64) -> Result<usize, StoreError> {
    let ended = ctx
        .db
        .write("queue_timeouts", Class::Api, move |tx| {
            Box::pin(end_waiting(tx, until_ms))
        })
        .await?;
    after_end(ctx, &ended);
    Ok(ended.ids.len())
}

async fn end_waiting(tx: &mut Tx, until_ms: i64) -> Result<Ended, StoreError> {
    let timeouts: HashMap<i64, i64> = clocks::lock_queue_timeouts(tx, until_ms)
        .await?
        .into_iter()
        .map(|task| (task.id, task.queue_timeout_ms))
        .collect();
    let ids: Vec<i64> = timeouts.keys().copied().collect();
    let mut ends = Vec::with_capacity(ids.len());
    for task in finish::lock_tasks(tx, &ids).await? {
        if task.state()? == TaskState::Queued {
            let timeout = timeouts
                .get(&task.id)
                .and_then(|&ms| u64::try_from(ms).ok())
                .unwrap_or(0);
            ends.push(End::without_report(task, end::waited_too_long(timeout)));
        }
    }
    finish::end_tasks(tx, &ends).await
}

/// DISPATCHED for longer than the start timeout → TERMINATING: its runner is told to let go of it, whether it has
/// started it or not. Returns how many.
pub async fn expire_dispatched(ctx: &Context, until_ms: i64) -> Result<usize, StoreError> {
    let held = ctx
        .db
        .write("start_timeouts", Class::Api, move |tx| {
            Box::pin(clocks::time_out_starts(tx, until_ms))
        })
        .await?;
    ctx.wake
        .stop(held.iter().map(|held| (held.host.as_str(), held.slot, held.id)));
    ctx.wake.changed(held.iter().map(|held| held.id).collect());
    Ok(held.len())
}
