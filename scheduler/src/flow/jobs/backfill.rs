//! Backfills: fires that did not happen are made up, with their scheduled time unchanged, so many beside each other as is asked.

use super::{Refusal, no_such_trigger, unknown_job};
use crate::context::Context;
use crate::store::audit::{audit, audit_with};
use crate::store::finish::Ended;
use crate::store::jobs::backfill::{self as store_fill, BackfillRow, LedgerRow, NewBackfill, Pending, Piece};
use crate::store::jobs::launch::{self, Wish};
use crate::store::jobs::slots::{Admitted, Places, group_resource};
use crate::store::jobs::triggers::{self, TriggerRow};
use crate::store::jobs::{self as store, JobRow, compiled, settle};
use crate::store::{Class, StoreError, Tx, submit};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use systole_shared::error::{Code, Invalid};
use systole_shared::job::Job;
use systole_shared::job::task::Occasion;
use systole_shared::limits::{BACKFILL_FIRES_MAX, CONCURRENT_MAX};
use systole_shared::plural::counted;
use systole_shared::policy::backfill::may_start;
use systole_shared::time::format_utc;
use systole_shared::trigger::backfill::Stretch;
use systole_shared::trigger::plan::Trigger;
use systole_shared::trigger::zone::Zone;

/// Tasks of one transaction.
const FEED_MAX: usize = 64;
/// Transactions of one look at one backfill; the next look goes on.
const FEEDS_MAX: usize = 32;
/// Who ends backfills that are done.
const BY_SCHEDULER: &str = "scheduler";

/// What is asked.
#[derive(Clone, Debug)]
pub struct Ask {
    pub job: String,
    pub trigger: Option<String>,
    /// Both included.
    pub from_ms: i64,
    pub to_ms: i64,
    pub max_concurrent: Option<u32>,
    pub dry_run: bool,
    pub key: String,
    pub by: String,
    pub reason: String,
}

/// What would be, or is, done.
#[derive(Clone, Debug, Default)]
pub struct Made {
    /// 0: nothing was stored.
    pub id: i64,
    /// Trigger and scheduled time of each fire, oldest first.
    pub fires: Vec<(String, i64)>,
    /// Of the range, what fired before.
    pub fired: u64,
    /// What another backfill has in hand.
    pub pending: u64,
    /// Of the fires, those of which nothing is recorded: before the trigger was made, or forgotten.
    pub unknown: u64,
    /// Up to where slots have their verdict, where that is before the end that was asked for.
    pub judged_ms: Option<i64>,
    /// How many run beside each other.
    pub at_once: u32,
}

/// What is to be done with the slots of one trigger.
#[derive(Default)]
struct TriggerPlan {
    slots: Vec<i64>,
    fired: u64,
    pending: u64,
    unknown: u64,
    /// Ranges that are cut up.
    cut: Vec<i64>,
    pieces: Vec<Piece>,
    /// Rows of single slots.
    singles: Vec<i64>,
}

pub async fn backfill(ctx: &Context, ask: Ask) -> Result<Made, Refusal> {
    if ask.from_ms > ask.to_ms {
        return Err(Invalid::new("from_ms", "lies after to_ms; both are included").into());
    }
    if ask.max_concurrent.is_some_and(|max| max == 0 || max > CONCURRENT_MAX) {
        return Err(Invalid::new("max_concurrent", format!("must be 1 to {CONCURRENT_MAX}")).into());
    }
    let ask = Arc::new(ask);
    let asked = Arc::clone(&ask);
    let made = if ask.dry_run {
        ctx.db
            .read("plan_backfill", move |tx| {
                let ask = Arc::clone(&asked);
                Box::pin(async move { transact(tx, &ask).await })
            })
            .await?
    } else {
        ctx.db
            .write("backfill", Class::Api, move |tx| {
                let ask = Arc::clone(&asked);
                Box::pin(async move { transact(tx, &ask).await })
            })
            .await?
    };
    ctx.jobs.backfills.store(true, Ordering::Relaxed);
    ctx.wake.backfills.notify_one();
    made
}

async fn transact(tx: &mut Tx, ask: &Ask) -> Result<Result<Made, Refusal>, StoreError> {
    let key = (!ask.key.is_empty()).then(|| format!("backfill:{}:{}", ask.job, ask.key));
    if let Some(key) = &key
        && let Some(id) = submit::known_key(tx, key).await?
    {
        return Ok(Ok(made_before(tx, id).await?));
    }
    let Some(job) = store::by_name(tx, &[&ask.job]).await?.pop() else {
        return Ok(Err(unknown_job(tx, &ask.job).await?));
    };
    // Whoever fires, edits or fills meanwhile waits.
    let rows = if ask.dry_run {
        triggers::of_jobs(tx, &[job.id]).await?
    } else {
        triggers::lock_of_jobs(tx, &[job.id]).await?
    };
    if let Some(name) = &ask.trigger
        && !rows.iter().any(|row| row.name == *name)
    {
        let known: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        return Ok(Err(no_such_trigger(&ask.job, name, &known)));
    }
    let mut made = Made {
        at_once: ask.max_concurrent.unwrap_or_else(|| job.blocking().places()),
        ..Made::default()
    };
    let mut plans = Vec::new();
    let now = settle::now_ms(tx).await?;
    for row in rows
        .iter()
        .filter(|row| ask.trigger.as_ref().is_none_or(|name| row.name == *name))
    {
        let judged_ms = row.judged_ms.min(now);
        if judged_ms < ask.to_ms && row.next_ms.is_some() {
            made.judged_ms = Some(made.judged_ms.map_or(judged_ms, |known| known.min(judged_ms)));
        }
        let room = BACKFILL_FIRES_MAX - made.fires.len();
        let plan = match plan(tx, &job, row, (ask.from_ms, ask.to_ms.min(judged_ms)), room).await? {
            Ok(plan) => plan,
            Err(refusal) => return Ok(Err(refusal)),
        };
        made.fired += plan.fired;
        made.pending += plan.pending;
        made.unknown += plan.unknown;
        made.fires
            .extend(plan.slots.iter().map(|&slot| (row.name.clone(), slot)));
        plans.push(plan);
    }
    made.fires.sort_by_key(|&(_, slot)| slot);
    if ask.dry_run || made.fires.is_empty() {
        return Ok(Ok(made));
    }
    made.id = create(tx, &job, ask, made.fires.len(), plans).await?;
    if let Some(key) = &key
        && !submit::put_key(tx, key, made.id).await?
    {
        return Err(StoreError::Collision("the same key twice at once".into()));
    }
    Ok(Ok(made))
}

async fn made_before(tx: &mut Tx, id: i64) -> Result<Made, StoreError> {
    let row = store_fill::of_id(tx, id).await?;
    Ok(Made {
        id,
        at_once: row
            .and_then(|row| row.max_concurrent)
            .and_then(|max| u32::try_from(max).ok())
            .unwrap_or(0),
        ..Made::default()
    })
}

async fn create(
    tx: &mut Tx,
    job: &JobRow,
    ask: &Ask,
    fires: usize,
    plans: Vec<TriggerPlan>,
) -> Result<i64, StoreError> {
    let id = store_fill::create(
        tx,
        NewBackfill {
            job_id: job.id,
            job: job.name.clone(),
            trigger: ask.trigger.clone().unwrap_or_default(),
            from_ms: ask.from_ms,
            to_ms: ask.to_ms,
            fires: u64::try_from(fires).unwrap_or(u64::MAX),
            max_concurrent: ask.max_concurrent,
            by: ask.by.clone(),
            reason: ask.reason.clone(),
        },
    )
    .await?;
    for mut plan in plans {
        for piece in plan.pieces.iter_mut().filter(|piece| piece.backfill_id.is_some()) {
            piece.backfill_id = Some(id);
        }
        store_fill::take_slots(tx, id, &plan.cut, &plan.pieces, &plan.singles).await?;
    }
    let detail = format!(
        "{} to {}, {}",
        format_utc(ask.from_ms),
        format_utc(ask.to_ms),
        counted(fires, "fire")
    );
    audit_with(tx, &ask.by, "backfill", (&job.name, &detail), &ask.reason).await?;
    Ok(id)
}

async fn plan(
    tx: &mut Tx,
    job: &JobRow,
    row: &TriggerRow,
    (from_ms, to_ms): (i64, i64),
    room: usize,
) -> Result<Result<TriggerPlan, Refusal>, StoreError> {
    let unreadable = |error: String| {
        Refusal::new(
            Code::InvalidJob,
            format!("trigger {}/{} cannot be asked: {error}", job.name, row.name),
        )
    };
    let spec = match compiled::trigger_spec(row) {
        Ok(spec) => spec,
        Err(error) => return Ok(Err(unreadable(error))),
    };
    let calendars = compiled::calendars_of(tx, [&*spec]).await?;
    let trigger = match compiled::stored_trigger(&job.name, row, &spec, &calendars) {
        Ok(trigger) => trigger,
        Err(error) => return Ok(Err(unreadable(error.to_string()))),
    };
    // Those that fired count, too: a range is bounded as a whole.
    let slots = match trigger.slots_between(from_ms, to_ms, BACKFILL_FIRES_MAX + 1) {
        Ok(slots) => slots,
        Err(error) => return Ok(Err(unreadable(error.to_string()))),
    };
    if slots.len() > room {
        return Ok(Err(Invalid::new(
            "from_ms",
            format!("there are more than {BACKFILL_FIRES_MAX} fires in this time; choose a shorter one"),
        )
        .into()));
    }
    let (Some(&first), Some(&last)) = (slots.first(), slots.last()) else {
        return Ok(Ok(TriggerPlan::default()));
    };
    let rows = store_fill::ledger(tx, row.id, first, last, BACKFILL_FIRES_MAX * 2).await?;
    Ok(sort_out(job, row, &trigger, &slots, &rows).map_err(|error| unreadable(error.to_string())))
}

/// What the ledger says of each slot: it fired, it did not (alone, or in a range), or it says nothing.
fn sort_out(
    job: &JobRow,
    row: &TriggerRow,
    trigger: &Trigger,
    slots: &[i64],
    rows: &[LedgerRow],
) -> Result<TriggerPlan, systole_shared::trigger::plan::Broken> {
    let mut plan = TriggerPlan::default();
    let mut rows = rows.iter().peekable();
    let mut at = 0;
    while at < slots.len() {
        let slot = slots[at];
        while rows.peek().is_some_and(|known| known.until_ms < slot) {
            rows.next();
        }
        let known = rows.peek().filter(|known| stretch(known).holds(slot));
        let Some(known) = known else {
            plan.slots.push(slot);
            plan.pieces.push(unknown_slot(job, row, slot));
            plan.unknown += 1;
            at += 1;
            continue;
        };
        let inside = slots[at..]
            .iter()
            .take_while(|&&slot| stretch(known).holds(slot))
            .count()
            .max(1);
        let taken = &slots[at..at + inside];
        at += inside;
        if known.verdict == "fired" {
            plan.fired += 1;
        } else if known.backfill_id.is_some() {
            plan.pending += 1;
        } else if known.fires <= 1 {
            plan.slots.push(slot);
            plan.singles.push(known.id);
        } else {
            plan.slots.extend(taken);
            plan.cut.push(known.id);
            let last = taken.last().copied().unwrap_or(slot);
            let count = u64::try_from(inside).unwrap_or(u64::MAX);
            for rest in trigger.rest_of(stretch(known), slot, last, count)? {
                plan.pieces.push(piece(job, row, known, rest, None));
            }
            for &slot in taken {
                let one = Stretch {
                    from_ms: slot,
                    until_ms: slot,
                    fires: 1,
                };
                plan.pieces.push(piece(job, row, known, one, Some(0)));
            }
        }
    }
    Ok(plan)
}

fn stretch(row: &LedgerRow) -> Stretch {
    Stretch {
        from_ms: row.scheduled_ms,
        until_ms: row.until_ms,
        fires: u64::try_from(row.fires).unwrap_or(0),
    }
}

/// Of a row that is cut up: the same verdict for a part of it. `backfill_id`: it is to be made up.
fn piece(job: &JobRow, row: &TriggerRow, known: &LedgerRow, part: Stretch, backfill_id: Option<i64>) -> Piece {
    Piece {
        job_id: job.id,
        trigger_id: row.id,
        trigger_name: row.name.clone(),
        scheduled_ms: part.from_ms,
        until_ms: part.until_ms,
        fires: part.fires,
        verdict: known.verdict.clone(),
        reason: known.reason.clone(),
        into_ms: known.into_ms,
        blocked_by: known.blocked_by,
        misfired: known.misfired,
        at_ms: Some(known.at_ms),
        backfill_id,
    }
}

/// Before the trigger was made, or forgotten: it waits for its task and for nothing else.
fn unknown_slot(job: &JobRow, row: &TriggerRow, slot: i64) -> Piece {
    Piece {
        job_id: job.id,
        trigger_id: row.id,
        trigger_name: row.name.clone(),
        scheduled_ms: slot,
        until_ms: slot,
        fires: 1,
        verdict: "skipped".into(),
        reason: "backfill".into(),
        into_ms: None,
        blocked_by: None,
        misfired: 0,
        at_ms: None,
        backfill_id: Some(0),
    }
}

/// Starts what may start, of all backfills. Any replica may do it, each of them under its lock.
pub async fn feed(ctx: &Context) -> Result<(), StoreError> {
    let ids = ctx.db.running_backfills().await?;
    ctx.jobs.backfills.store(!ids.is_empty(), Ordering::Relaxed);
    for id in ids {
        for _ in 0..FEEDS_MAX {
            let (made, ended) = ctx
                .db
                .write("feed_backfill", Class::Api, move |tx| Box::pin(feed_one(tx, id)))
                .await?;
            crate::flow::after_end(ctx, &ended);
            if made < FEED_MAX {
                break;
            }
        }
    }
    Ok(())
}

async fn feed_one(tx: &mut Tx, id: i64) -> Result<(usize, Ended), StoreError> {
    let mut ended = Ended::default();
    let Some(row) = store_fill::lock_running(tx, id).await? else {
        return Ok((0, ended));
    };
    let Some(job) = store::by_id(tx, &[row.job_id]).await?.pop() else {
        give_up(tx, &row, "the job was deleted").await?;
        return Ok((0, ended));
    };
    let compiled = match compiled::job(&job) {
        Ok(compiled) => compiled,
        Err(error) => {
            give_up(tx, &row, &error).await?;
            return Ok((0, ended));
        }
    };
    let pending = store_fill::pending(tx, id, FEED_MAX).await?;
    if pending.is_empty() {
        if !store_fill::is_live(tx, id).await? {
            store_fill::end(tx, id, "done", BY_SCHEDULER).await?;
        }
        return Ok((0, ended));
    }
    let mut places = Places::lock(tx, &[job.id], &BTreeSet::new()).await?;
    let own = row.max_concurrent.and_then(|max| u32::try_from(max).ok());
    if own.is_some() {
        places.also(tx, &row.resource()).await?;
    }
    let ids = submit::next_ids(tx, pending.len()).await?;
    let rows = triggers::of_jobs(tx, &[job.id]).await?;
    let by_id: HashMap<i64, &TriggerRow> = rows.iter().map(|row| (row.id, row)).collect();
    let mut wishes = Vec::new();
    for (slot, &task) in pending.iter().zip(&ids) {
        let own = own.map(|max| (max, places.running_of(&row.resource())));
        if !may_start(own, job.blocking(), places.load(&job)) {
            break;
        }
        let trigger = slot.trigger_id.and_then(|id| by_id.get(&id).copied());
        let line = row.made + i64::try_from(wishes.len()).unwrap_or(0) + 1;
        match wish(&row, &job, &compiled, trigger, slot, line) {
            Ok(wish) => wishes.push(wish),
            Err(error) => {
                give_up(tx, &row, &error).await?;
                return Ok((0, ended));
            }
        }
        places.take_as(resources(&row, &job), task);
    }
    let count = wishes.len();
    if count > 0 {
        store_fill::fill(tx, &mut places, &row, &pending[..count], &wishes, &ids[..count]).await?;
        ended
            .admitted
            .extend(wishes.iter().zip(&ids).map(|(wish, &id)| Admitted {
                id,
                status: 2,
                lane_id: wish.lane_id,
                target_host: wish.spec.target.as_ref().map(|target| target.host.clone()),
            }));
    }
    Ok((count, ended))
}

/// With a number of its own it has places beside those of its job; the group holds for both.
fn resources(row: &BackfillRow, job: &JobRow) -> Vec<String> {
    if row.max_concurrent.is_none() {
        return job.resources();
    }
    let group = job.concurrency_group.as_deref().map(group_resource);
    group.into_iter().chain([row.resource()]).collect()
}

/// It cannot go on; what has no task keeps the verdict that it had.
async fn give_up(tx: &mut Tx, row: &BackfillRow, error: &str) -> Result<(), StoreError> {
    tracing::error!(backfill = row.id, job = row.job, error, "a backfill cannot go on");
    store_fill::end(tx, row.id, "cancelled", BY_SCHEDULER).await?;
    audit(tx, BY_SCHEDULER, "backfill cancel", &row.id.to_string(), error).await
}

fn wish(
    row: &BackfillRow,
    job: &JobRow,
    compiled: &Job,
    trigger: Option<&TriggerRow>,
    slot: &Pending,
    line: i64,
) -> Result<Wish, String> {
    // A trigger that is gone: its job alone.
    let spec = trigger.map(compiled::trigger_spec).transpose()?;
    let mut task = compiled
        .make_task(&Occasion {
            trigger: Some(&slot.trigger_name),
            scheduled_ms: slot.scheduled_ms,
            zone: &spec.as_deref().map_or_else(Zone::utc, compiled::zone),
            priority: spec.as_ref().and_then(|spec| spec.priority),
            trigger_data: spec.as_ref().map(|spec| &spec.data),
            request_data: None,
        })
        .map_err(|error| error.to_string())?;
    task.batch = Some(row.batch());
    task.batch_line = u64::try_from(line).ok();
    let route = launch::routed(compiled, &task);
    Ok(Wish {
        job_id: job.id,
        spec: Arc::new(task),
        max_retries: compiled.retry.max_retries,
        lane_id: trigger.map_or(job.lane_id, |trigger| trigger.lane_id),
        route,
        trigger_id: slot.trigger_id,
        trigger_name: slot.trigger_name.clone(),
        scheduled_ms: slot.scheduled_ms,
        source: "backfill",
        parent_root: 0,
        by: row.created_by.as_str().into(),
        why: (!row.reason.is_empty()).then(|| row.reason.as_str().into()),
    })
}

/// Newest first.
pub async fn list(ctx: &Context, job: String, limit: i64) -> Result<Vec<BackfillRow>, Refusal> {
    Ok(ctx
        .db
        .read("list_backfills", move |tx| {
            let job = job.clone();
            Box::pin(async move { store_fill::list(tx, &job, limit).await })
        })
        .await?)
}

/// Starts nothing more of it. What has a task goes on. The second value: it was over before.
pub async fn cancel(ctx: &Context, id: i64, by: String, reason: String) -> Result<(BackfillRow, bool), Refusal> {
    let done = ctx
        .db
        .write("cancel_backfill", Class::Api, move |tx| {
            let (by, reason) = (by.clone(), reason.clone());
            Box::pin(async move {
                let ended = store_fill::end(tx, id, "cancelled", &by).await?;
                if ended {
                    audit(tx, &by, "backfill cancel", &id.to_string(), &reason).await?;
                }
                Ok(store_fill::of_id(tx, id).await?.map(|row| (row, !ended)))
            })
        })
        .await?;
    done.ok_or_else(|| Refusal {
        code: Code::JobNotFound,
        message: format!("there is no backfill {id}; `systole backfill ls` lists them"),
        field: "id".into(),
    })
}
