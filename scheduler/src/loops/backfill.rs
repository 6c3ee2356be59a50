//! Backfills: the next of their fires, whenever there is room.

use crate::context::Context;
use crate::flow::jobs::backfill;
use std::sync::Arc;

pub async fn run(ctx: Arc<Context>) {
    loop {
        if let Err(error) = backfill::feed(&ctx).await {
            tracing::warn!(%error, "backfills");
        }
        tokio::select! {
            () = ctx.wake.backfills.notified() => {}
            () = tokio::time::sleep(ctx.config.timing.poll) => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}
