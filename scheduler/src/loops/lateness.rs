//! The watch over jobs that may be late or take long. Sleeps until the next rule is due; after an outage it judges what passed
//! meanwhile.

use crate::clock::boottime_ms;
use crate::context::Context;
use crate::flow::jobs::late;
use crate::store::StoreError;
use std::sync::Arc;
use std::time::Duration;

pub async fn run(ctx: Arc<Context>) {
    let mut slow_looked_ms = i64::MIN;
    loop {
        let wait = match tick(&ctx, &mut slow_looked_ms).await {
            Ok(wait) => wait,
            Err(error) => {
                tracing::warn!(%error, "lateness of jobs");
                ctx.config.timing.poll
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = ctx.wake.lateness.notified() => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}

/// One bounded step of each kind. Returns how long to wait.
async fn tick(ctx: &Context, slow_looked_ms: &mut i64) -> Result<Duration, StoreError> {
    let poll = ctx.config.timing.poll;
    // One read when there is nothing to do, and no write.
    let next = ctx.db.next_look().await?;
    let Some(until_ms) = ctx.clock.until_ms() else {
        return Ok(poll);
    };
    let mut done = 0;
    if next.unwatched.is_some() {
        done += late::read_definitions(ctx, until_ms).await?;
    }
    if next.due_in_ms.is_some_and(|ms| ms <= 0) {
        done += late::judge_due(ctx, until_ms).await?;
    }
    let now = boottime_ms();
    let check_ms = i64::try_from(ctx.config.timing.check.as_millis()).unwrap_or(i64::MAX);
    if next.slow.is_some() && now.saturating_sub(*slow_looked_ms) >= check_ms {
        *slow_looked_ms = now;
        late::look_for_slow(ctx, until_ms).await?;
    }
    let rest = super::outlook::rest(ctx).min(ctx.config.timing.check);
    Ok(if done > 0 {
        Duration::ZERO
    } else {
        next.due_in_ms
            .filter(|&ms| ms > 0)
            .map_or(rest, |ms| Duration::from_millis(ms.unsigned_abs()).min(rest))
    })
}
