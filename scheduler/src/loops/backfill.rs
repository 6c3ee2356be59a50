//! Backfills: the next of their fires, whenever there is room.

use crate::context::Context;
use crate::flow::jobs::backfill;
use std::sync::Arc;

pub async fn run(ctx: Arc<Context>) {
    loop {
        let mut rest = super::outlook::rest(&ctx);
        if let Err(error) = backfill::feed(&ctx).await {
            tracing::warn!(%error, "backfills");
            rest = ctx.config.timing.poll;
        }
        tokio::select! {
            () = ctx.wake.backfills.notified() => {}
            () = tokio::time::sleep(rest) => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}
