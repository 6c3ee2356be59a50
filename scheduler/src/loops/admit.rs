//! Admission: delayed tasks and retries become QUEUED when their time has come.

use crate::context::Context;
use std::sync::Arc;
use std::time::Duration;

pub async fn run(ctx: Arc<Context>) {
    loop {
        let wait = match tick(&ctx).await {
            Ok(wait) => wait,
            Err(error) => {
                tracing::warn!(%error, "admission");
                ctx.config.timing.poll
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = ctx.wake.admit.notified() => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}

/// Admits what is due. Returns how long to wait.
async fn tick(ctx: &Context) -> Result<Duration, crate::store::StoreError> {
    // Without a write when nothing is due, so that an idle database stays idle.
    let next = ctx.db.next_due().await?;
    if next.is_none_or(|ms| ms > 0) {
        return Ok(wait(ctx, next));
    }
    let Some(until_ms) = ctx.clock.until_ms() else {
        return Ok(ctx.config.timing.poll);
    };
    let (admitted, next) = ctx.db.admit(until_ms).await?;
    if admitted.is_empty() {
        // Others were faster, or the clock has jumped: no reason to ask again and again.
        return Ok(wait(ctx, next.filter(|&ms| ms > 0)));
    }
    let mut lanes: Vec<i64> = admitted
        .iter()
        .filter(|task| task.target_host.is_none())
        .map(|task| task.lane_id)
        .collect();
    lanes.sort_unstable();
    lanes.dedup();
    let targets: Vec<String> = admitted.iter().filter_map(|task| task.target_host.clone()).collect();
    ctx.wake.work(&lanes, &targets);
    ctx.wake.changed(admitted.iter().map(|task| task.id).collect());
    Ok(wait(ctx, next))
}

fn wait(ctx: &Context, next_ms: Option<i64>) -> Duration {
    let rest = super::outlook::rest(ctx);
    match next_ms {
        Some(ms) => Duration::from_millis(u64::try_from(ms).unwrap_or(0)).min(rest),
        None => rest,
    }
}
