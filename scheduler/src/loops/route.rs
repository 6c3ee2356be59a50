//! Hosts for the runs whose job leaves the choice to the scheduler.

use crate::context::Context;
use crate::flow::jobs::route;
use std::sync::Arc;

pub async fn run(ctx: Arc<Context>) {
    loop {
        let mut rest = super::outlook::rest(&ctx);
        match route::route_due(&ctx).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "routing");
                rest = ctx.config.timing.poll;
            }
        }
        tokio::select! {
            () = ctx.wake.route.notified() => {}
            () = tokio::time::sleep(rest) => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}
