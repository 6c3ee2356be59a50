//! Queue and start timeouts: looks for tasks that waited too long.

use crate::context::Context;
use crate::flow::expire::{expire_dispatched, expire_waiting};
use crate::store::StoreError;
use std::sync::Arc;
use std::time::Duration;

pub async fn run(ctx: Arc<Context>) {
    loop {
        let wait = match tick(&ctx).await {
            Ok(wait) => wait,
            Err(error) => {
                tracing::warn!(%error, "timeouts");
                ctx.config.timing.poll
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = ctx.wake.timeouts.notified() => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}

/// One bounded step of each kind. Returns how long to wait.
async fn tick(ctx: &Context) -> Result<Duration, StoreError> {
    let Some(until_ms) = ctx.clock.until_ms() else {
        return Ok(ctx.config.timing.poll);
    };
    let next = ctx.db.next_timeouts().await?;
    let is_due = |ms: Option<i64>| ms.is_some_and(|ms| ms <= 0);
    let (waiting, dispatched) = (is_due(next.queue_ms), is_due(next.start_ms));
    let mut done = 0;
    if waiting {
        done += expire_waiting(ctx, until_ms).await?;
    }
    if dispatched {
        done += expire_dispatched(ctx, until_ms).await?;
    }
    let poll = ctx.config.timing.poll;
    Ok(match (waiting || dispatched, done) {
        // Somebody else has them in hand: no reason to ask again and again.
        (true, 0) => poll,
        (true, _) => Duration::ZERO,
        // A task that is submitted meanwhile may expire before all that are known: the outlook rings for it.
        (false, _) => [next.queue_ms, next.start_ms]
            .into_iter()
            .flatten()
            .map(|ms| Duration::from_millis(ms.unsigned_abs()))
            .fold(super::outlook::rest(ctx), Duration::min),
    })
}
