//! Chains that hold places of jobs: those that a newer run replaces, those that ended without proof that their child is dead,
//! and those that were forgotten.

use super::locked;
use crate::context::Context;
use crate::flow::heartbeat::Beat;
use crate::store::admin::{self, Held};
use crate::store::audit::audit;
use crate::store::finish::{self, End, Ended};
use crate::store::jobs::settle;
use crate::store::jobs::slots::{self, Idle, LostSlot};
use crate::store::{Class, StoreError, Tx};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use systole_shared::task::{Outcome, OutcomeKind, TaskState, Transition};

/// What follows the commit of ended or launched runs.
pub fn after_end(ctx: &Context, ended: &Ended) {
    let queued = |status: i16| status == TaskState::Queued.number();
    let ready = || ended.admitted.iter().filter(|task| queued(task.status));
    let mut lanes: Vec<i64> = ready()
        .filter(|task| task.target_host.is_none())
        .map(|task| task.lane_id)
        .collect();
    lanes.sort_unstable();
    lanes.dedup();
    let targets: Vec<String> = ready().filter_map(|task| task.target_host.clone()).collect();
    ctx.wake.work(&lanes, &targets);
    if ended.admitted.iter().any(|task| !queued(task.status)) {
        ctx.wake.admit.notify_one();
    }
    ctx.wake.changed(ended.admitted.iter().map(|task| task.id).collect());
    if !ended.ids.is_empty() && ctx.jobs.backfills.load(Ordering::Relaxed) {
        ctx.wake.backfills.notify_one();
    }
    if ended.sets {
        ctx.wake.sets.notify_one();
    }
    if ended.triggers {
        ctx.wake.fire.notify_one();
    }
    if !ended.supersede.is_empty() {
        locked(&ctx.jobs.supersede).extend(&ended.supersede);
        ctx.wake.chains.notify_one();
    }
    if ended.held {
        tracing::warn!(
            tasks = ?ended.ids,
            "ended without proof that the child is dead: the place of the job stays taken until its host is back, or is declared dead"
        );
        ctx.wake.chains.notify_one();
    }
}

/// Ends the chains that newer runs replace, and looks whose word is waited for.
pub async fn supersede(ctx: &Context) -> Result<(), StoreError> {
    let lost = Arc::new(ctx.db.lost_slots().await?);
    *locked(&ctx.jobs.lost) = lost;
    let roots: Vec<i64> = locked(&ctx.jobs.supersede).drain().collect();
    if roots.is_empty() {
        return Ok(());
    }
    let roots = Arc::new(roots);
    let (ended, held) = ctx
        .db
        .write("supersede", Class::Api, move |tx| {
            let roots = Arc::clone(&roots);
            Box::pin(async move { end_superseded(tx, &roots).await })
        })
        .await?;
    crate::flow::after_end(ctx, &ended);
    ctx.wake
        .stop(held.iter().map(|held| (held.host.as_str(), held.slot, held.id)));
    ctx.wake.changed(held.iter().map(|held| held.id).collect());
    Ok(())
}

async fn end_superseded(tx: &mut Tx, roots: &[i64]) -> Result<(Ended, Vec<Held>), StoreError> {
    let mut ends = Vec::new();
    let mut held = Vec::new();
    for task in settle::live_members(tx, roots).await? {
        match task.state()? {
            TaskState::Created | TaskState::Queued => {
                let outcome = Outcome::new(
                    OutcomeKind::Cancelled,
                    "superseded by a newer run of its job before it started",
                );
                ends.push(End::without_report(task, (Transition::CancelWaiting, outcome)));
            }
            state if state.is_held() => held.push(task.id),
            _ => {}
        }
    }
    let ended = finish::end_tasks(tx, &ends).await?;
    Ok((ended, admin::supersede_held(tx, &held).await?))
}

/// A runner has empty hands. If places are held for a child that it had, that is the proof that it is dead.
pub fn heard_idle(ctx: &Arc<Context>, beat: &Beat) {
    let lost = Arc::clone(&locked(&ctx.jobs.lost));
    if lost.is_empty() {
        return;
    }
    let who = &beat.registration;
    let slot = LostSlot {
        host: who.host.clone(),
        slot: who.slot,
    };
    if !lost.contains(&slot) {
        return;
    }
    let idle = Idle {
        host: slot.host,
        slot: slot.slot,
        instance_id: who.instance_id.clone(),
        start_no: who.start_no,
        seq: beat.seq,
    };
    let ctx = Arc::clone(ctx);
    tokio::spawn(async move {
        if let Err(error) = prove(&ctx, idle).await {
            tracing::warn!(%error, "a proof is looked for again with the next beat");
        }
    });
}

async fn prove(ctx: &Context, idle: Idle) -> Result<(), StoreError> {
    let idle = Arc::new(idle);
    let (ended, tasks) = ctx
        .db
        .write("prove", Class::Api, move |tx| {
            let idle = Arc::clone(&idle);
            Box::pin(async move {
                let roots = slots::proven_by(tx, &idle).await?;
                let mut ended = Ended::default();
                let tasks = settle::proven(tx, &roots, &mut ended).await?;
                Ok((ended, tasks))
            })
        })
        .await?;
    if !tasks.is_empty() {
        tracing::info!(
            ?tasks,
            "their host is back with empty hands: the places of their jobs are free"
        );
        ctx.wake.chains.notify_one();
    }
    crate::flow::after_end(ctx, &ended);
    Ok(())
}

/// A person says that a host is dead, and with it whatever ran there. Returns the tasks whose places were freed.
pub async fn declare_dead(ctx: &Context, host: &str, by: &str, reason: &str) -> Result<Vec<i64>, StoreError> {
    let args = Arc::new((host.to_owned(), by.to_owned(), reason.to_owned()));
    let (ended, tasks) = ctx
        .db
        .write("declare_dead", Class::Api, move |tx| {
            let args = Arc::clone(&args);
            Box::pin(async move {
                let (host, by, reason) = &*args;
                let roots = slots::lost_on(tx, host).await?;
                let mut ended = Ended::default();
                let tasks = settle::proven(tx, &roots, &mut ended).await?;
                audit(tx, by, "declare dead", host, reason).await?;
                Ok((ended, tasks))
            })
        })
        .await?;
    crate::flow::after_end(ctx, &ended);
    Ok(tasks)
}

/// A definition has changed: there may be room for those that wait.
pub async fn more_places(ctx: &Context) {
    if let Err(error) = sweep(ctx).await {
        tracing::warn!(%error, "those that wait get their places with the next sweep");
    }
}

/// Looks for what was forgotten.
pub async fn sweep(ctx: &Context) -> Result<(), StoreError> {
    let (ended, strays) = ctx
        .db
        .write("sweep_places", Class::Api, |tx| {
            Box::pin(async move {
                let mut ended = Ended::default();
                let strays = settle::sweep(tx, &mut ended).await?;
                Ok((ended, strays))
            })
        })
        .await?;
    if !strays.is_empty() {
        tracing::error!(chains = ?strays, "chains that are over still had places of their jobs: this is a bug, and they were freed");
    }
    crate::flow::after_end(ctx, &ended);
    Ok(())
}
