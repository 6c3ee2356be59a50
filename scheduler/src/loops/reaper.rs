//! The reaper: ends the tasks of runners that are silent for too long. See
//! `systole_shared::policy::stale` for what a verdict needs.

use crate::clock::boottime_ms;
use crate::context::Context;
use crate::flow::after_end;
use crate::flow::lost::{end_lost, end_lost_task};
use crate::store::finish::Ended;
use crate::store::{Class, StoreError};
use std::collections::HashMap;
use std::sync::Arc;
use systole_shared::policy::stale::{Observer, Seen, StaleRule};

pub async fn run(ctx: Arc<Context>) {
    let mut reaper = Reaper::default();
    loop {
        if let Err(error) = reaper.pass(&ctx).await {
            tracing::warn!(%error, "reaper");
        }
        if !super::pause(&ctx, ctx.config.timing.check).await {
            return;
        }
    }
}

/// The memory of one reaper: what it saw with its own reads.
#[derive(Default)]
pub struct Reaper {
    observer: Observer,
    /// Orphaned tasks and since when they are seen.
    orphans: HashMap<i64, i64>,
    withheld: usize,
}

impl Reaper {
    /// One pass over all runners.
    pub async fn pass(&mut self, ctx: &Context) -> Result<(), StoreError> {
        let check_ms = i64::try_from(ctx.config.timing.check.as_millis()).unwrap_or(i64::MAX);
        let rule = StaleRule {
            lost_after_ms: ctx.lost_after_ms(),
            // A pass may be late; one that is missing altogether makes the observation worthless.
            read_gap_max_ms: check_ms.saturating_mul(2) + ctx.beat_ms(),
        };
        let rows = ctx.db.runners_seen().await?;
        let now = boottime_ms();
        let seen: Vec<Seen> = rows
            .iter()
            .map(|row| Seen {
                host: row.host.clone(),
                slot: u32::try_from(row.slot).unwrap_or(0),
                start_no: row.start_no,
                seq: row.seq,
                age_ms: row.age_ms,
                holds_task: row.task_id.is_some(),
                leaving: row.leaving && row.task_id.is_none(),
            })
            .collect();
        let verdicts = self.observer.pass(now, &seen, rule);
        ctx.withheld.set(&verdicts.withheld);
        if verdicts.withheld.len() != self.withheld {
            self.withheld = verdicts.withheld.len();
            if self.withheld > 0 {
                tracing::error!(
                    hosts = self.withheld,
                    "many hosts fell silent at once: their tasks are not declared lost yet; look at the network between runners and schedulers"
                );
            }
        }
        for (host, slot, start_no, seq) in verdicts.lost {
            let silent = rows
                .iter()
                .find(|row| row.host == host && row.slot == i64::from(slot))
                .map_or(rule.lost_after_ms, |row| row.age_ms);
            let key = host.clone();
            let ended = ctx
                .db
                .write("reaper", Class::Api, move |tx| {
                    let host = key.clone();
                    Box::pin(async move { end_lost(tx, &host, i64::from(slot), start_no, seq, silent).await })
                })
                .await?;
            if let Some(ended) = ended {
                tell(ctx, &host, i64::from(slot), &ended);
            }
        }
        self.end_orphans(ctx, now).await
    }

    /// Tasks whose host was taken over by another process: nothing proves that their children are dead, so
    /// they get the same time as those of a lost runner.
    async fn end_orphans(&mut self, ctx: &Context, now: i64) -> Result<(), StoreError> {
        let strays = ctx.db.orphan_strays().await?;
        if !strays.is_empty() {
            tracing::error!(task_ids = ?strays, "live tasks that no runner holds: this is a bug, and they are ended as lost");
        }
        let rows = ctx.db.orphans().await?;
        let limit = ctx.lost_after_ms();
        self.orphans.retain(|id, _| rows.iter().any(|row| row.id == *id));
        for row in rows {
            let since = *self.orphans.entry(row.id).or_insert(now);
            if row.age_ms < limit || now - since < limit {
                continue;
            }
            let ended = ctx
                .db
                .write("reaper", Class::Api, move |tx| {
                    Box::pin(async move { end_lost_task(tx, row.id, row.age_ms).await })
                })
                .await?;
            tell(ctx, "(taken over)", 0, &ended);
        }
        Ok(())
    }
}

fn tell(ctx: &Context, host: &str, slot: i64, ended: &Ended) {
    if !ended.ids.is_empty() {
        tracing::warn!(runner = format!("{host}/{slot}"), task_ids = ?ended.ids, "runner lost");
    }
    after_end(ctx, ended);
}
