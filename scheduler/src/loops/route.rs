//! Hosts for the runs whose job leaves the choice to the scheduler.

use crate::context::Context;
use crate::flow::jobs::route;
use crate::store::StoreError;
use std::sync::Arc;

pub async fn run(ctx: Arc<Context>) {
    let mut told = false;
    loop {
        let mut rest = super::outlook::rest(&ctx);
        match pass(&ctx, told).await {
            Ok(true) => {
                told = true;
                continue;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "routing");
                rest = ctx.config.timing.poll;
            }
        }
        told = tokio::select! {
            () = ctx.wake.route.notified() => true,
            () = tokio::time::sleep(rest) => false,
            () = ctx.draining.cancelled() => return,
        };
    }
}

/// Who rings has just asked, or stored a run without a host. A look of its own asks first, so that an idle database stays idle.
async fn pass(ctx: &Context, told: bool) -> Result<bool, StoreError> {
    if !told && !ctx.db.any_route_due(route::live_ms(ctx)).await? {
        return Ok(false);
    }
    route::route_due(ctx).await
}
