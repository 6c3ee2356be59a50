//! Broadcasts: makes their members, and lets them go on.

use crate::context::Context;
use crate::flow::jobs::sets;
use crate::store::StoreError;
use std::sync::Arc;
use std::time::Instant;

/// Why there is a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// Members have ended, or are to be ended.
    Members,
    /// There is a broadcast without members: who rings has just asked, or stored it.
    Heads,
    Nothing,
}

pub async fn run(ctx: Arc<Context>) {
    let mut looked: Option<Instant> = None;
    let mut told = Told::Nothing;
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
            () = ctx.wake.sets.notified() => Told::Members,
            () = ctx.wake.spread.notified() => Told::Heads,
            () = tokio::time::sleep(rest) => Told::Nothing,
            () = ctx.draining.cancelled() => return,
        };
    }
}

async fn pass(ctx: &Context, told: Told, look: bool) -> Result<(), StoreError> {
    let due = match told {
        Told::Members => false,
        Told::Heads => true,
        // So that an idle database stays idle.
        Told::Nothing => ctx.db.any_set_due().await?,
    };
    let made = due && sets::spread_due(ctx).await?;
    if made {
        // There may be more than one transaction takes.
        ctx.wake.spread.notify_one();
    }
    if made || told == Told::Members || look {
        sets::drive_all(ctx, look).await?;
    }
    Ok(())
}
