//! Forgetting a host that is gone. A person's word that it is dead is worth more than any silence: what it held ends at once.

use super::fleet::no_such_host;
use super::{Refusal, after_end};
use crate::context::Context;
use crate::store::audit::audit_with;
use crate::store::finish::{self, End, Ended};
use crate::store::forget::{SlotRow, delete_host, lock_slots, waiting_for};
use crate::store::jobs::{settle, slots};
use crate::store::{Class, StoreError, Tx, hosts};
use systole_shared::error::Code;
use systole_shared::heartbeat::end;
use systole_shared::heartbeat::identity::TAKE_OVER_SLACK_MS;
use systole_shared::plural::counted;
use systole_shared::time::format_duration;

/// Waiting tasks that are named.
const WAITING_MAX: usize = 100;
/// Tasks that a message or an entry of the audit names.
const NAMED_MAX: usize = 20;

#[derive(Clone, Debug)]
pub struct ForgetOrder {
    pub host: String,
    /// The person's word: nothing runs there any more.
    pub dead: bool,
    pub by: String,
    pub reason: String,
}

/// What was forgotten.
#[derive(Clone, Debug, Default)]
pub struct Forgotten {
    pub slots: usize,
    /// Tasks that it held: they ended as lost.
    pub lost: Vec<i64>,
    /// QUEUED tasks that only this host may take, at most 100.
    pub waiting: Vec<i64>,
    pub more_waiting: bool,
}

enum Step {
    Unknown,
    Beats { age_ms: i64 },
    Holds(Vec<i64>),
    Done(Forgotten, Box<Ended>),
}

pub async fn forget(ctx: &Context, order: ForgetOrder) -> Result<Forgotten, Refusal> {
    let alive_ms = ctx.beat_ms().saturating_add(TAKE_OVER_SLACK_MS);
    let refuse = |code: Code, message: String| Refusal {
        code,
        message,
        field: "host".into(),
    };
    let order_in = order.clone();
    let step = ctx
        .db
        .write("forget_host", Class::Api, move |tx| {
            let order = order_in.clone();
            Box::pin(async move { one_step(tx, &order, alive_ms).await })
        })
        .await?;
    let host = &order.host;
    match step {
        Step::Unknown => {
            let known = ctx.fleet.view(&ctx.db, ctx.lost_after_ms()).await?;
            Err(no_such_host(&known, host, "host"))
        }
        Step::Beats { age_ms } => Err(refuse(
            Code::HostInUse,
            format!(
                "host {host} was heard of {} ago, so it is not gone. `systole runners drain {host} --wait`, stop its runner, and \
                 forget it then; a host that died can be forgotten once it is silent for {}",
                format_duration(u64::try_from(age_ms).unwrap_or(0)),
                format_duration(u64::try_from(alive_ms).unwrap_or(0)),
            ),
        )),
        Step::Holds(ids) => Err(refuse(
            Code::HostInUse,
            format!(
                "host {host} holds {} ({}), and what it holds may still run there. Make sure that the machine is off and say so with \
                 --dead: it ends as lost then, and `systole rerun` runs it elsewhere",
                counted(ids.len(), "task"),
                named(&ids)
            ),
        )),
        Step::Done(forgotten, ended) => {
            tracing::warn!(host = host.as_str(), by = order.by.as_str(), task_ids = ?forgotten.lost, "a host was forgotten");
            after_end(ctx, &ended);
            Ok(forgotten)
        }
    }
}

fn named(ids: &[i64]) -> String {
    let mut names: Vec<String> = ids.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    if ids.len() > NAMED_MAX {
        names.push(format!("and {} more", ids.len() - NAMED_MAX));
    }
    names.join(", ")
}

async fn one_step(tx: &mut Tx, order: &ForgetOrder, alive_ms: i64) -> Result<Step, StoreError> {
    let host = order.host.as_str();
    // Host, runners, tasks: the order in which everybody locks.
    if !hosts::lock_host(tx, host).await? {
        return if order.dead {
            free_places(tx, order).await
        } else {
            Ok(Step::Unknown)
        };
    }
    let rows = lock_slots(tx, host).await?;
    if let Some(age_ms) = youngest_ms(&rows).filter(|&age_ms| age_ms <= alive_ms) {
        return Ok(Step::Beats { age_ms });
    }
    let mut held: Vec<i64> = rows.iter().filter_map(|slot| slot.task_id).collect();
    held.sort_unstable();
    if !held.is_empty() && !order.dead {
        return Ok(Step::Holds(held));
    }
    let silent_ms = u64::try_from(youngest_ms(&rows).unwrap_or(0)).unwrap_or(0);
    let mut ends = Vec::new();
    for task in finish::lock_tasks(tx, &held).await? {
        let state = task.state()?;
        if !state.is_held() {
            continue;
        }
        let reason = task.terminating();
        let (transition, mut outcome) = end::lost(state, reason, silent_ms);
        outcome.message = format!("{}; {} said that its host is dead", outcome.message, order.by);
        ends.push(End::without_report(task, (transition, outcome)));
    }
    let mut ended = finish::end_tasks(tx, &ends).await?;
    if order.dead {
        // Of runs that were lost there before.
        let roots = slots::lost_on(tx, host).await?;
        settle::proven(tx, &roots, &mut ended).await?;
    }
    delete_host(tx, host).await?;
    let limit = i64::try_from(WAITING_MAX + 1).unwrap_or(i64::MAX);
    let mut waiting = waiting_for(tx, host, limit).await?;
    let more_waiting = waiting.len() > WAITING_MAX;
    waiting.truncate(WAITING_MAX);
    let detail = if held.is_empty() {
        String::new()
    } else {
        format!("dead, held {}", named(&held))
    };
    audit_with(tx, &order.by, "forget", (host, detail.as_str()), &order.reason).await?;
    let forgotten = Forgotten {
        slots: rows.len(),
        lost: ended.ids.clone(),
        waiting,
        more_waiting,
    };
    Ok(Step::Done(forgotten, Box::new(ended)))
}

/// A host that was forgotten before: what jobs still hold for lack of proof is freed by the same word.
async fn free_places(tx: &mut Tx, order: &ForgetOrder) -> Result<Step, StoreError> {
    let host = order.host.as_str();
    let roots = slots::lost_on(tx, host).await?;
    if roots.is_empty() {
        return Ok(Step::Unknown);
    }
    let mut ended = Ended::default();
    let tasks = settle::proven(tx, &roots, &mut ended).await?;
    let detail = format!("dead, places of {}", named(&tasks));
    audit_with(tx, &order.by, "forget", (host, detail.as_str()), &order.reason).await?;
    Ok(Step::Done(Forgotten::default(), Box::new(ended)))
}

/// Since the last beat of any slot that did not say goodbye.
fn youngest_ms(slots: &[SlotRow]) -> Option<i64> {
    slots
        .iter()
        .filter(|slot| !slot.leaving || slot.task_id.is_some())
        .map(|slot| slot.age_ms)
        .min()
}
