//! Retention: ended tasks and their output go after a time, and the oldest output when there is too much.
//! Always in bounded steps.

use crate::context::Context;
use crate::store::StoreError;
use std::sync::Arc;
use std::time::Duration;

/// Rest between two steps, so that the clean-up never competes with the work.
const STEP_REST: Duration = Duration::from_millis(20);
/// Steps of one pass; the next pass goes on.
pub const STEPS_MAX: u32 = 2_000;
/// Hosts that were not seen for this long and hold nothing are forgotten.
const HOSTS_UNSEEN_MS: i64 = 7 * 24 * 3_600_000;

pub async fn run(ctx: Arc<Context>) {
    let mut walk = Walk::new(STEPS_MAX);
    loop {
        if !super::pause(&ctx, ctx.config.retention.period).await {
            return;
        }
        if let Err(error) = walk.pass(&ctx).await {
            tracing::warn!(%error, "retention");
        }
    }
}

/// Where the walk over old tasks is. A pass that had no steps left is gone on with by the next one: tasks that wait for longer
/// than others are kept, however many, do not keep it from those behind them.
#[derive(Debug)]
pub struct Walk {
    steps_max: u32,
    cursor: i64,
}

impl Walk {
    /// `steps_max`: of one pass.
    pub fn new(steps_max: u32) -> Self {
        Self { steps_max, cursor: 0 }
    }

    /// One pass. By age nothing goes while the database's clock is not believed.
    pub async fn pass(&mut self, ctx: &Context) -> Result<(), StoreError> {
        if let Some(until_ms) = ctx.clock.until_ms() {
            self.by_age(ctx, until_ms).await?;
        }
        drop_output(ctx).await
    }

    async fn by_age(&mut self, ctx: &Context, until_ms: i64) -> Result<(), StoreError> {
        let keep_ms = i64::try_from(ctx.config.retention.keep.as_millis()).unwrap_or(i64::MAX);
        if keep_ms > 0 && !self.tasks(ctx, keep_ms, until_ms).await? {
            return Ok(());
        }
        others_by_age(ctx, keep_ms, until_ms).await
    }

    /// False: the replica stops.
    async fn tasks(&mut self, ctx: &Context, keep_ms: i64, until_ms: i64) -> Result<bool, StoreError> {
        let mut deleted = 0;
        for _ in 0..self.steps_max {
            let cleaned = ctx.db.clean_tasks(self.cursor, keep_ms, until_ms).await?;
            deleted += cleaned.deleted;
            self.cursor = cleaned.cursor.unwrap_or(0);
            if self.cursor == 0 {
                break;
            }
            if !super::pause(ctx, STEP_REST).await {
                return Ok(false);
            }
        }
        if deleted > 0 {
            tracing::info!(deleted, "ended tasks deleted by age");
        }
        Ok(true)
    }
}

async fn others_by_age(ctx: &Context, keep_ms: i64, until_ms: i64) -> Result<(), StoreError> {
    if keep_ms > 0 {
        for _ in 0..STEPS_MAX {
            if !ctx.db.clean_occurrences(keep_ms, until_ms).await? || !super::pause(ctx, STEP_REST).await {
                break;
            }
        }
        for _ in 0..STEPS_MAX {
            if !ctx.db.clean_alarms(keep_ms, until_ms).await? || !super::pause(ctx, STEP_REST).await {
                break;
            }
        }
        ctx.db.clean_freezes(keep_ms, until_ms).await?;
    }
    ctx.db.clean_leases(until_ms).await?;
    ctx.db.clean_keys(until_ms).await?;
    ctx.db.forget_tokens(until_ms).await?;
    ctx.db.forget_joins(until_ms).await?;
    let keep_audit_ms = i64::try_from(ctx.config.retention.keep_audit.as_millis()).unwrap_or(i64::MAX);
    if keep_audit_ms > 0 {
        for _ in 0..STEPS_MAX {
            if !ctx.db.clean_audit(keep_audit_ms, until_ms).await? || !super::pause(ctx, STEP_REST).await {
                break;
            }
        }
    }
    ctx.db.forget_hosts(HOSTS_UNSEEN_MS, until_ms).await?;
    drop_expired_output(ctx, until_ms).await
}

/// Of tasks that want theirs kept for a time of their own.
async fn drop_expired_output(ctx: &Context, until_ms: i64) -> Result<(), StoreError> {
    let mut dropped = 0;
    for _ in 0..STEPS_MAX {
        let step = ctx.db.drop_expired_output(until_ms).await?;
        dropped += step;
        if step == 0 || !super::pause(ctx, STEP_REST).await {
            break;
        }
    }
    if dropped > 0 {
        tracing::info!(dropped, "outputs deleted by the time of their tasks");
    }
    Ok(())
}

async fn drop_output(ctx: &Context) -> Result<(), StoreError> {
    let budget = ctx.config.retention.output_budget;
    let stored = ctx.db.output_total().await?;
    let mut excess = stored.saturating_sub(budget);
    let mut freed = 0;
    for _ in 0..STEPS_MAX {
        if excess == 0 {
            break;
        }
        let step = ctx.db.drop_oldest_output(excess).await?;
        if step == 0 {
            break; // What is left belongs to tasks that still run.
        }
        freed += step;
        excess = excess.saturating_sub(step);
        if !super::pause(ctx, STEP_REST).await {
            return Ok(());
        }
    }
    if freed > 0 {
        tracing::info!(freed, budget, "output of the oldest tasks dropped: over budget");
    }
    Ok(())
}
