//! Broadcasts: makes their members, and lets them go on.

use crate::context::Context;
use crate::flow::jobs::sets;
use crate::store::StoreError;
use std::sync::Arc;
use std::time::Instant;

pub async fn run(ctx: Arc<Context>) {
    let mut looked: Option<Instant> = None;
    let mut told = true;
    loop {
        let look = looked.is_none_or(|at| at.elapsed() >= ctx.config.timing.check);
        if look {
            looked = Some(Instant::now());
        }
        let mut rest = super::outlook::rest(&ctx).min(ctx.config.timing.check);
        if let Err(error) = pass(&ctx, told, look).await {
            tracing::warn!(%error, "broadcasts");
            rest = ctx.config.timing.poll;
        }
        // A member that ended elsewhere is looked after there; what was forgotten is found with the next look.
        told = tokio::select! {
            () = ctx.wake.sets.notified() => true,
            () = ctx.wake.spread.notified() => false,
            () = tokio::time::sleep(rest) => false,
            () = ctx.draining.cancelled() => return,
        };
    }
}

async fn pass(ctx: &Context, told: bool, look: bool) -> Result<(), StoreError> {
    let made = sets::spread_due(ctx).await?;
    if made || told || look {
        sets::drive_all(ctx, look).await?;
    }
    Ok(())
}
