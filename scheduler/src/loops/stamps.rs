//! Puts right what a clock wrote that was ahead: once at the start, and whenever the clock is believed again.

use crate::context::Context;
use crate::flow::callback::WAIT_MAX;
use crate::store::StoreError;
use crate::store::stamps::{KINDS, STEP_MAX};
use std::sync::Arc;
use std::time::Duration;

/// What a lease of a delivery lasts beyond the deadline of one, at most.
const LEASE_SLACK: Duration = Duration::from_secs(60);

pub async fn run(ctx: Arc<Context>) {
    loop {
        let mut rest = Duration::MAX;
        if let Err(error) = pass(&ctx).await {
            tracing::warn!(%error, "times that lie ahead");
            rest = ctx.config.timing.poll;
        }
        tokio::select! {
            () = ctx.wake.believed.notified() => {}
            () = tokio::time::sleep(rest) => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}

/// The longest time from one try of a delivery to the next, ms: the back-off, or the lease of a try that nobody ended.
fn longest_ms(ctx: &Context) -> i64 {
    let lease = ctx.config.callbacks.timeout.max(ctx.config.alarms.timeout) + LEASE_SLACK;
    i64::try_from(lease.max(WAIT_MAX).as_millis()).unwrap_or(i64::MAX)
}

/// Ends: each step moves what it finds to now, and the last finds less than a step.
async fn pass(ctx: &Context) -> Result<(), StoreError> {
    let longest_ms = longest_ms(ctx);
    // By a clock that is not believed nothing can be said to lie ahead. That it is again rings.
    if ctx.clock.until_ms().is_none() || !ctx.db.any_ahead(longest_ms).await? {
        return Ok(());
    }
    for &kind in KINDS {
        let mut rows = 0;
        while let Some(until_ms) = ctx.clock.until_ms() {
            let moved = ctx.db.mend_ahead(kind, until_ms, longest_ms).await?;
            rows += moved;
            if moved < STEP_MAX || ctx.draining.is_cancelled() {
                break;
            }
        }
        if rows > 0 {
            tracing::warn!(
                rows,
                "times of {} lay ahead, since the database's clock was wrong when they were written; they count from now",
                kind.what
            );
        }
    }
    let wake = &ctx.wake;
    for duty in [&wake.admit, &wake.fire, &wake.callbacks, &wake.alarms] {
        duty.notify_one();
    }
    Ok(())
}
