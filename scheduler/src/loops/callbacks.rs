//! Drives the callback-er: claims due deliveries under a lease and sends them, a bounded number at once, each receiver with
//! places of its own.

use crate::context::Context;
use crate::flow::callback::Sender;
use crate::flow::places::Places;
use crate::store::StoreError;
use crate::store::outbox::{Delivery, Room};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{Id, JoinError, JoinSet};

/// A replica that dies in the middle of a delivery leaves it to the others after this, on top of the deadline.
const LEASE_SLACK: Duration = Duration::from_secs(5);

/// Deliveries under way.
#[derive(Default)]
struct UnderWay {
    places: Places,
    /// Each tells whether its receiver answered in time.
    tasks: JoinSet<bool>,
    receivers: HashMap<Id, String>,
}

impl UnderWay {
    fn over(&mut self, done: Result<(Id, bool), JoinError>) {
        let (id, answered) = match done {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "a delivery ended by a bug");
                (error.id(), false)
            }
        };
        if let Some(receiver) = self.receivers.remove(&id) {
            self.places.give_back(&receiver, answered);
        }
    }
}

pub async fn run(ctx: Arc<Context>) {
    let sender = match Sender::new(ctx.config.callbacks) {
        Ok(sender) => Arc::new(sender),
        Err(error) => {
            tracing::error!(%error, "callbacks cannot be delivered by this replica");
            return;
        }
    };
    let lease = ctx.config.callbacks.timeout + LEASE_SLACK;
    let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    let mut under_way = UnderWay::default();
    loop {
        while let Some(done) = under_way.tasks.try_join_next_with_id() {
            under_way.over(done);
        }
        let mut next = super::outlook::rest(&ctx);
        match due(&ctx, lease_ms, &under_way.places).await {
            Ok((deliveries, wait)) => {
                let more = !deliveries.is_empty();
                for delivery in deliveries {
                    let (ctx, sender, receiver) = (Arc::clone(&ctx), Arc::clone(&sender), delivery.receiver.clone());
                    under_way.places.take(&receiver);
                    let task = under_way
                        .tasks
                        .spawn(async move { sender.deliver(&ctx, delivery).await });
                    under_way.receivers.insert(task.id(), receiver);
                }
                if more && !ctx.draining.is_cancelled() {
                    continue;
                }
                next = next.min(wait);
            }
            Err(error) => {
                tracing::warn!(%error, "callbacks");
                next = ctx.config.timing.poll;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = ctx.wake.callbacks.notified() => {}
            Some(done) = under_way.tasks.join_next_with_id() => under_way.over(done),
            () = ctx.draining.cancelled() => break,
        }
    }
    // What has begun is finished; each has a deadline.
    while under_way.tasks.join_next().await.is_some() {}
}

/// Deliveries that have a place, and how long to wait when there are none.
async fn due(ctx: &Context, lease_ms: i64, places: &Places) -> Result<(Vec<Delivery>, Duration), StoreError> {
    let free = i64::try_from(places.free()).unwrap_or(0);
    if free == 0 {
        return Ok((Vec::new(), Duration::MAX));
    }
    match ctx.db.next_callback().await? {
        None => Ok((Vec::new(), Duration::MAX)),
        Some(ms) if ms > 0 => Ok((Vec::new(), Duration::from_millis(u64::try_from(ms).unwrap_or(0)))),
        Some(_) => {
            let rooms: Vec<Room> = places
                .rooms()
                .into_iter()
                .map(|(receiver, room)| Room {
                    receiver: receiver.to_owned(),
                    room,
                })
                .collect();
            // None though some are due: their receivers have no place. The end of a delivery wakes.
            Ok((ctx.db.claim_callbacks(lease_ms, free, rooms).await?, Duration::MAX))
        }
    }
}
