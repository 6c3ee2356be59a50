//! The slow poll behind all notifications, and the messages between replicas. A message that is lost
//! costs the time until the next poll.

use crate::clock::boottime_ms;
use crate::context::Context;
use crate::flow::{alarms, freezes, leases};
use crate::store::StoreError;
use crate::store::lost::TerminatingRow;
use crate::wake::Message;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Messages are collected for this long, so that a flood of submissions is not a flood of messages.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// How often the listening connection is asked whether it lives.
const PING_EVERY: Duration = Duration::from_secs(15);
/// A poll that took long is repeated only after this many times its length.
const REST_FACTOR: u32 = 20;
/// … but never later than this.
const REST_MAX: Duration = Duration::from_secs(10);
/// Lane ids become visible out of order; this many below the newest are read again.
const LANE_OVERLAP: i64 = 100;

pub async fn run(ctx: Arc<Context>) {
    loop {
        let began = Instant::now();
        let poll = ctx.config.timing.poll;
        let rest = match tick(&ctx).await {
            Ok(()) => {
                ctx.progress.dispatched();
                poll.max((began.elapsed() * REST_FACTOR).min(REST_MAX))
            }
            Err(error) => {
                tracing::warn!(%error, "poll");
                poll
            }
        };
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            () = ctx.wake.poll.notified() => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}

/// Proves again and again that this replica can commit, and watches the database's clock. On a quiet cluster nothing else
/// does.
pub async fn pulse(ctx: Arc<Context>) {
    loop {
        // A write: a database that reads but does not commit must not look healthy.
        let asked = boottime_ms();
        match ctx.db.tick(ctx.replica.clone()).await {
            Ok(db_ms) => {
                ctx.health.committed();
                alarms::saw_time(&ctx, asked, db_ms).await;
            }
            Err(error) => tracing::warn!(%error, "pulse"),
        }
        if !super::pause(&ctx, ctx.config.timing.poll).await {
            break;
        }
    }
    // By the one who writes the row, so that no write of it comes after.
    if let Err(error) = ctx.db.leave(ctx.replica.clone()).await {
        tracing::debug!(%error, "this replica is shown for a while yet");
    }
    ctx.left.cancel();
}

/// Looks at everything that a notification may have told.
async fn tick(ctx: &Context) -> Result<(), StoreError> {
    let tokens = ctx.tokens.begin_read();
    let look = ctx
        .db
        .look(ctx.lanes.newest() - LANE_OVERLAP, leases::WATCHED_MAX)
        .await?;
    ctx.tokens.set(tokens, look.tokens);
    let used = ctx.tokens.take_used();
    if !used.is_empty() {
        ctx.db.tokens_used(used, crate::auth::USED_WRITE_MS).await?;
    }
    for (id, lane) in look.lanes {
        ctx.lanes.add(id, lane);
    }
    // Before the ids are known here: they may have been moved past what these hosts have named.
    alarms::look_for_hosts_ahead(ctx, look.newest_task_id, look.ahead).await?;
    ctx.newest_task_id.fetch_max(look.newest_task_id, Ordering::Relaxed);
    freezes::saw(ctx, look.frozen).await?;
    leases::saw(ctx, look.leases);
    let (lanes, targets) = look.work;
    ctx.parked.offer_all();
    if !lanes.is_empty() || !targets.is_empty() {
        ctx.wake.work_here(&lanes, &targets);
    }
    stop(ctx, &look.terminating);
    ctx.asked.saw(look.asked);
    Ok(())
}

async fn look_for_stops(ctx: &Context) -> Result<(), StoreError> {
    if !ctx.parked.is_empty() {
        stop(ctx, &ctx.db.terminating_tasks().await?);
    }
    Ok(())
}

fn stop(ctx: &Context, tasks: &[TerminatingRow]) {
    for task in tasks {
        ctx.parked.stop(&task.host, task.slot, task.id);
    }
}

/// Sends what this replica has to tell, collected.
pub async fn notifier(ctx: Arc<Context>) {
    loop {
        tokio::select! {
            () = ctx.wake.notify.notified() => {}
            () = ctx.draining.cancelled() => return,
        }
        let Some(mut message) = ctx.wake.take_message() else {
            continue;
        };
        message.from.clone_from(&ctx.replica);
        match serde_json::to_string(&message) {
            Ok(payload) => {
                if let Err(error) = ctx.db.notify(payload).await {
                    tracing::debug!(%error, "notify");
                }
            }
            Err(error) => tracing::error!(%error, "notify"),
        }
        tokio::time::sleep(DEBOUNCE).await;
    }
}

/// Listens to the other replicas, on a connection of its own that is made again whenever it is lost.
pub async fn listener(ctx: Arc<Context>) {
    let mut backoff = Duration::from_millis(100);
    loop {
        let began = Instant::now();
        match listen(&ctx).await {
            Ok(()) => return,
            Err(error) => {
                if ctx.draining.is_cancelled() {
                    return;
                }
                tracing::warn!(%error, "the listening connection is made again");
                // Messages may have been missed.
                ctx.wake.poll.notify_one();
            }
        }
        if !super::pause(&ctx, backoff).await {
            return;
        }
        // A session that held for a while says that the trouble is over.
        backoff = if began.elapsed() > PING_EVERY {
            Duration::from_millis(100)
        } else {
            (backoff * 2).min(Duration::from_secs(5))
        };
    }
}

async fn listen(ctx: &Context) -> Result<(), StoreError> {
    let Some(mut listener) = ctx.db.listen().await? else {
        return Ok(());
    };
    ctx.wake.poll.notify_one();
    loop {
        tokio::select! {
            message = tokio::time::timeout(PING_EVERY, listener.next()) => match message {
                Ok(payload) => hear(ctx, &payload?).await?,
                Err(_) => listener.ping().await?,
            },
            () = ctx.draining.cancelled() => return Ok(()),
        }
    }
}

async fn hear(ctx: &Context, payload: &str) -> Result<(), StoreError> {
    let message: Message = match serde_json::from_str(payload) {
        Ok(message) => message,
        // From a replica of another version, or from a person: the poll finds what it meant.
        Err(_) => Message {
            all: true,
            ..Message::default()
        },
    };
    if message.from == ctx.replica {
        return Ok(());
    }
    let known = ctx.lanes.all_ids();
    if message.all || message.lanes.iter().any(|id| !known.contains(id)) {
        ctx.wake.poll.notify_one();
    }
    let lanes: Vec<i64> = message.lanes.into_iter().collect();
    let targets: Vec<String> = message.targets.into_iter().collect();
    if !lanes.is_empty() || !targets.is_empty() {
        ctx.wake.work_here(&lanes, &targets);
    }
    if message.leases {
        leases::look(ctx).await?;
    }
    if message.stop {
        look_for_stops(ctx).await?;
    }
    Ok(())
}
