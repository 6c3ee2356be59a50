//! Chains of jobs: ends those that a newer run replaces, and looks for what was forgotten.

use crate::context::Context;
use crate::flow::jobs::chains;
use std::sync::Arc;

pub async fn run(ctx: Arc<Context>) {
    loop {
        if let Err(error) = chains::supersede(&ctx).await {
            tracing::warn!(%error, "superseding");
        }
        tokio::select! {
            () = ctx.wake.chains.notified() => continue,
            () = tokio::time::sleep(ctx.config.timing.check) => {}
            () = ctx.draining.cancelled() => return,
        }
        if let Err(error) = chains::sweep(&ctx).await {
            tracing::warn!(%error, "sweep of job places");
        }
    }
}
