//! Many beats, one transaction: taking them from the queue, and what follows the commit.

use super::transaction::act;
use super::{BATCH_MAX, Beat, Done, Waiting};
use crate::context::Context;
use crate::flow::jobs::chains;
use crate::flow::{Refusal, after_end};
use crate::parked::Answer;
use crate::store::claims::{ClaimPlan, Claimed};
use crate::store::finish::Ended;
use crate::store::{Class, StoreError};
use crate::task_log;
use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use systole_shared::error::Code;
use systole_shared::heartbeat::Said;

/// A worker: takes beats and runs their transactions, until the replica is closed.
pub async fn worker(ctx: Arc<Context>) {
    let gathers = ctx.beats.gathers.load(Ordering::Relaxed);
    loop {
        let batch = tokio::select! {
            batch = async { ctx.beats.prompt.intake.lock().await.take(BATCH_MAX, gathers, pending()).await } => batch,
            () = ctx.closed.cancelled() => return,
        };
        if batch.is_empty() {
            return;
        }
        run_batch(&ctx, batch).await;
    }
}

/// The worker of the quiet ones: holds a batch open until there is work, or the replica drains.
pub async fn quiet_worker(ctx: Arc<Context>) {
    let mut intake = ctx.beats.quiet.intake.lock().await;
    loop {
        let cut = async {
            tokio::select! {
                () = ctx.wake.quiet.notified() => {}
                () = ctx.draining.cancelled() => {}
            }
        };
        let batch = tokio::select! {
            batch = intake.take(BATCH_MAX, true, cut) => batch,
            () = ctx.closed.cancelled() => return,
        };
        if batch.is_empty() {
            return;
        }
        run_batch(&ctx, batch).await;
    }
}

/// At most one beat per runner acts, the highest seq; the others were given up by their runner.
async fn run_batch(ctx: &Arc<Context>, batch: Vec<Waiting>) {
    let mut newest: HashMap<(String, i64, String), Waiting> = HashMap::with_capacity(batch.len());
    for waiting in batch {
        // Per process: a late beat of one that is gone must not push away one of its successor.
        let (host, slot) = waiting.0.key();
        let key = (host, slot, waiting.0.registration.instance_id.clone());
        let stale = match newest.remove(&key) {
            None => {
                newest.insert(key, waiting);
                continue;
            }
            Some(other) => {
                let rank = |w: &Waiting| (w.0.registration.start_no, w.0.seq);
                let (keep, stale) = if rank(&other) >= rank(&waiting) {
                    (other, waiting)
                } else {
                    (waiting, other)
                };
                newest.insert(key, keep);
                stale
            }
        };
        drop(stale.1.send(Ok(stale_answer())));
    }
    settle(ctx, newest.into_values().collect()).await;
}

pub(super) fn stale_answer() -> Done {
    Done::Answered {
        answer: Answer::GoOn(0),
        acknowledged: Vec::new(),
        park: false,
    }
}

/// Runs one transaction; a value that the database refuses, or a corrupt row, spoils only its own beat: the batch is halved
/// until the culprit is alone.
async fn settle(ctx: &Arc<Context>, waiting: Vec<Waiting>) {
    let mut stack = vec![waiting];
    while let Some(mut waiting) = stack.pop() {
        let beats: Arc<Vec<Arc<Beat>>> = Arc::new(waiting.iter().map(|(beat, _)| Arc::clone(beat)).collect());
        match transact(ctx, beats).await {
            Ok(done) => {
                for ((_, sender), done) in waiting.into_iter().zip(done) {
                    drop(sender.send(Ok(done)));
                }
            }
            Err(StoreError::Data(_) | StoreError::Corrupt { .. }) if waiting.len() > 1 => {
                let rest = waiting.split_off(waiting.len() / 2);
                stack.push(rest);
                stack.push(waiting);
            }
            Err(error) => {
                let refusal = match &error {
                    StoreError::Data(text) => Refusal::new(
                        Code::InvalidField,
                        format!("the beat has a value that cannot be stored: {text}"),
                    ),
                    _ => Refusal::from(error),
                };
                for (_, sender) in waiting {
                    drop(sender.send(Err(refusal.clone())));
                }
            }
        }
    }
}

/// What one transaction did, for the time after its commit.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) done: Vec<Done>,
    pub(super) ended: Ended,
    pub(super) started: Vec<i64>,
    /// Of those, from when they were due to their start.
    pub(super) start_ms: Vec<i64>,
    pub(super) claimed: Claimed,
    /// Hosts that have held a newer task than the database knows, and that task.
    pub(super) ahead: Vec<(String, i64)>,
}

async fn transact(ctx: &Arc<Context>, beats: Arc<Vec<Arc<Beat>>>) -> Result<Vec<Done>, StoreError> {
    let plan = Arc::new(if ctx.draining.is_cancelled() {
        ClaimPlan::default()
    } else {
        ctx.lanes.plan(
            beats.iter().map(|beat| beat.group),
            beats.iter().map(|beat| beat.registration.host.as_str()),
        )
    });
    let newest = ctx.newest_task_id.load(Ordering::Relaxed);
    let (beats_in, plan_in, ahead) = (Arc::clone(&beats), Arc::clone(&plan), ctx.ahead.hosts());
    let clock = Arc::clone(ctx);
    let outcome = ctx
        .db
        .write("beats", Class::Beats, move |tx| {
            let (beats, plan, ahead) = (Arc::clone(&beats_in), Arc::clone(&plan_in), Arc::clone(&ahead));
            let until_ms = clock.clock.until_ms();
            Box::pin(async move { act(tx, &beats, &plan, newest, ahead, until_ms).await })
        })
        .await?;
    ctx.health.committed();
    ctx.lanes.learn(&plan, &outcome.claimed);
    for (host, max_task_id) in &outcome.ahead {
        if ctx.ahead.note(host, *max_task_id) {
            ctx.wake.poll.notify_one();
        }
    }
    task_log::started(&outcome.started);
    ctx.metrics.started(&outcome.start_ms);
    after_end(ctx, &outcome.ended);
    task_log::dispatched(&outcome.claimed.runs);
    ctx.metrics.dispatched(&outcome.claimed.runs, true);
    for beat in beats.iter().filter(|beat| beat.said == Said::Idle) {
        chains::heard_idle(ctx, beat);
    }
    let mut changed = outcome.started;
    changed.extend(outcome.claimed.runs.iter().map(|run| run.task_id));
    ctx.wake.changed(changed);
    Ok(outcome.done)
}
