//! Firing: triggers whose time has come. Sleeps until the next is due.

use crate::context::Context;
use crate::flow::jobs::fire;
use crate::store::StoreError;
use std::sync::Arc;
use std::time::Duration;

pub async fn run(ctx: Arc<Context>) {
    loop {
        let wait = match tick(&ctx).await {
            Ok(wait) => {
                ctx.progress.fired();
                wait
            }
            Err(error) => {
                tracing::warn!(%error, "triggers");
                ctx.config.timing.poll
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = ctx.wake.fire.notified() => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}

/// Fires what is due. Returns how long to wait.
async fn tick(ctx: &Context) -> Result<Duration, StoreError> {
    let poll = ctx.config.timing.poll;
    // Without a write when nothing is due, so that an idle database stays idle. What another replica has changed meanwhile is rung
    // for by the outlook.
    match ctx.db.next_trigger().await? {
        Some(ms) if ms <= 0 => {}
        next => {
            let rest = super::outlook::rest(ctx);
            return Ok(next.map_or(rest, |ms| Duration::from_millis(ms.unsigned_abs()).min(rest)));
        }
    }
    let Some(until_ms) = ctx.clock.until_ms() else {
        return Ok(poll);
    };
    let fired = fire::fire_due(ctx, until_ms).await?;
    // None in hand: others have them, or the clock has jumped. No reason to ask again and again.
    Ok(if fired == 0 {
        poll.min(Duration::from_millis(100))
    } else {
        Duration::ZERO
    })
}
