//! Drives the delivery of alarms: claims due ones under a lease and sends them, one at a time to each channel, so that a
//! channel that hangs delays no other and a recovery does not overtake its alarm.

use crate::context::Context;
use crate::store::StoreError;
use crate::store::alarms::Claimed;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{Id, JoinError, JoinSet};

/// A replica that dies in the middle of a delivery leaves it to the others after this, on top of the deadline.
const LEASE_SLACK: Duration = Duration::from_secs(10);
/// An alarm that is due for longer goes to a channel that no scheduler has.
const STRANDED_MS: i64 = 60_000;

/// Deliveries under way, by channel.
#[derive(Default)]
struct UnderWay {
    tasks: JoinSet<()>,
    channels: HashMap<Id, String>,
}

impl UnderWay {
    fn over(&mut self, done: Result<(Id, ()), JoinError>) {
        let id = match done {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "the delivery of an alarm ended by a bug");
                error.id()
            }
        };
        self.channels.remove(&id);
    }
}

pub async fn run(ctx: Arc<Context>) {
    let lease = ctx.config.alarms.timeout + LEASE_SLACK;
    let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    let mut under_way = UnderWay::default();
    loop {
        while let Some(done) = under_way.tasks.try_join_next_with_id() {
            under_way.over(done);
        }
        let mut next = super::outlook::rest(&ctx);
        match due(&ctx, lease_ms, &under_way.channels).await {
            Ok((alarms, wait)) => {
                let more = !alarms.is_empty();
                for alarm in alarms {
                    let (ctx, channel) = (Arc::clone(&ctx), alarm.channel.clone());
                    let task = under_way
                        .tasks
                        .spawn(async move { ctx.notifier.deliver(&ctx, &alarm).await });
                    under_way.channels.insert(task.id(), channel);
                }
                if more && !ctx.draining.is_cancelled() {
                    continue;
                }
                next = next.min(wait);
            }
            Err(error) => {
                tracing::warn!(%error, "alarms");
                next = ctx.config.timing.poll;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = ctx.wake.alarms.notified() => {}
            Some(done) = under_way.tasks.join_next_with_id() => under_way.over(done),
            () = ctx.draining.cancelled() => break,
        }
    }
    // What has begun is finished; each has a deadline.
    while under_way.tasks.join_next().await.is_some() {}
}

/// Alarms for channels that are free, and how long to wait when there are none.
async fn due(ctx: &Context, lease_ms: i64, busy: &HashMap<Id, String>) -> Result<(Vec<Claimed>, Duration), StoreError> {
    let Some(ms) = ctx.db.next_alarm().await? else {
        return Ok((Vec::new(), Duration::MAX));
    };
    if ms > 0 {
        return Ok((Vec::new(), Duration::from_millis(ms.unsigned_abs())));
    }
    let believed_ms = ctx.clock.until_ms();
    if ms < -STRANDED_MS
        && let Some(until_ms) = believed_ms
    {
        let noted = ctx.db.note_stranded(until_ms).await?;
        if noted > 0 {
            tracing::error!(
                alarms = noted,
                "no running scheduler has the channel of these alarms: systole alarm ls --open"
            );
        }
    }
    let busy: HashSet<&String> = busy.values().collect();
    let free: Vec<String> = ctx
        .notifier
        .channels
        .names()
        .into_iter()
        .filter(|name| !busy.contains(name))
        .collect();
    if free.is_empty() {
        return Ok((Vec::new(), Duration::MAX));
    }
    Ok((ctx.db.claim_alarms(free, lease_ms, believed_ms).await?, Duration::MAX))
}
