//! Drives the callback-er: claims due deliveries under a lease and sends them, a bounded number at once.

use crate::context::Context;
use crate::flow::callback::{IN_FLIGHT_MAX, Sender};
use std::sync::Arc;
use std::time::Duration;

/// A replica that dies in the middle of a delivery leaves it to the others after this, on top of the deadline.
const LEASE_SLACK: Duration = Duration::from_secs(5);

pub async fn run(ctx: Arc<Context>) {
    let sender = match Sender::new(ctx.config.callbacks) {
        Ok(sender) => sender,
        Err(error) => {
            tracing::error!(%error, "callbacks cannot be delivered by this replica");
            return;
        }
    };
    let lease = ctx.config.callbacks.timeout + LEASE_SLACK;
    let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    loop {
        let mut next = ctx.config.timing.poll;
        match due(&ctx, lease_ms).await {
            Ok((deliveries, wait)) => {
                next = next.min(wait);
                if !deliveries.is_empty() {
                    futures_util::future::join_all(
                        deliveries.into_iter().map(|delivery| sender.deliver(&ctx, delivery)),
                    )
                    .await;
                    continue;
                }
            }
            Err(error) => tracing::warn!(%error, "callbacks"),
        }
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = ctx.wake.callbacks.notified() => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}

async fn due(
    ctx: &Context,
    lease_ms: i64,
) -> Result<(Vec<crate::store::outbox::Delivery>, Duration), crate::store::StoreError> {
    match ctx.db.next_callback().await? {
        None => Ok((Vec::new(), Duration::MAX)),
        Some(ms) if ms > 0 => Ok((Vec::new(), Duration::from_millis(u64::try_from(ms).unwrap_or(0)))),
        Some(_) => Ok((ctx.db.claim_callbacks(lease_ms, IN_FLIGHT_MAX).await?, Duration::ZERO)),
    }
}
