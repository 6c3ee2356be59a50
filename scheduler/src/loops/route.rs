//! Hosts for the runs whose job leaves the choice to the scheduler.

use crate::context::Context;
use crate::flow::jobs::route;
use std::sync::Arc;

pub async fn run(ctx: Arc<Context>) {
    loop {
        match route::route_due(&ctx).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "routing"),
        }
        tokio::select! {
            () = ctx.wake.route.notified() => {}
            () = tokio::time::sleep(ctx.config.timing.poll) => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}
