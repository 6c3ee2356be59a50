//! Triggers whose time has come: verdicts, tasks, places and the triggers' moves in one transaction, for many at once.

use crate::context::Context;
use crate::store::finish::Ended;
use crate::store::jobs::compiled::{self, ReadJob};
use crate::store::jobs::launch::{self, Launched, Wish};
use crate::store::jobs::ledger::{self, Entry};
use crate::store::jobs::slots::Places;
use crate::store::jobs::triggers::{self, TriggerRow};
use crate::store::jobs::{self as store, JobRow, health, settle};
use crate::store::{Class, StoreError, Tx, freeze};
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use systole_shared::job::Job;
use systole_shared::job::task::Occasion;
use systole_shared::policy::freeze::{Freeze, over};
use systole_shared::policy::pause::{Held, Pause, due_ms, held_by};
use systole_shared::trigger::definition::TriggerSpec;
use systole_shared::trigger::occurrence::{Fire, Range, Verdict};
use systole_shared::trigger::plan::{Cursor, Plan, Then, Trigger, plan, run_ended};
use systole_shared::trigger::state::Phase;

/// Triggers of one transaction.
const BATCH_MAX: usize = 256;
/// Tasks that one trigger makes in one transaction; more follow with the next.
const FIRES_MAX: usize = 32;
/// Plans of one pause; each goes as far as it may count.
const PAUSE_PLANS_MAX: usize = 16;

/// Fires what is due, at most so much as one transaction takes. Returns how many triggers it had in hand.
pub async fn fire_due(ctx: &Context, until_ms: i64) -> Result<usize, StoreError> {
    let (count, ended) = ctx
        .db
        .write("fire", Class::Api, move |tx| Box::pin(fire(tx, until_ms)))
        .await?;
    ctx.health.committed();
    crate::flow::after_end(ctx, &ended);
    Ok(count)
}

async fn fire(tx: &mut Tx, until_ms: i64) -> Result<(usize, Ended), StoreError> {
    let now = settle::now_ms(tx).await?;
    if now > until_ms {
        // The clock has jumped, and no sample has shown it yet. What is due up to where it is believed is not due either.
        return Ok((0, Ended::default()));
    }
    let rows = triggers::lock_due(tx, now, BATCH_MAX).await?;
    let count = rows.len();
    if rows.is_empty() {
        return Ok((0, Ended::default()));
    }
    // With the triggers locked: whoever freezes later waits for this transaction.
    let judged_ms = rows.iter().map(|row| row.judged_ms).min().unwrap_or(now);
    let freezes = freeze::since(tx, judged_ms).await?;
    let job_ids: BTreeSet<i64> = rows.iter().map(|row| row.job_id).collect();
    let job_ids: Vec<i64> = job_ids.into_iter().collect();
    let jobs: HashMap<i64, (JobRow, Result<ReadJob, String>)> = store::by_id(tx, &job_ids)
        .await?
        .into_iter()
        .map(|row| {
            let job = compiled::job(&row);
            (row.id, (row, job))
        })
        .collect();
    let specs: Vec<Result<Arc<TriggerSpec>, String>> = rows.iter().map(compiled::trigger_spec).collect();
    let calendars = compiled::calendars_of(tx, specs.iter().flatten().map(|spec| &**spec)).await?;

    let mut turns: Vec<Turn> = Vec::with_capacity(count);
    let mut pauses_over: BTreeSet<i64> = BTreeSet::new();
    for (row, spec) in rows.into_iter().zip(specs) {
        let judged = match jobs.get(&row.job_id) {
            None => Err("its job is gone".to_owned()),
            Some((job, compiled)) => spec.and_then(|spec| {
                let compiled = compiled.as_ref().map_err(Clone::clone)?;
                let trigger =
                    compiled::stored_trigger(&job.name, &row, &spec, &calendars).map_err(|error| error.to_string())?;
                judge(row.clone(), (job, compiled), &spec, trigger, &freezes, now)
            }),
        };
        turns.push(match judged {
            Ok(turn) => {
                pauses_over.extend(turn.job_pause_over.then_some(row.job_id));
                turn
            }
            Err(error) => {
                tracing::error!(job = row.job_id, trigger = row.name, error, "the trigger goes to ERROR");
                let mut turn = Turn::new(row);
                turn.row.fail(error);
                turn
            }
        });
    }
    let mut ended = Ended::default();
    carry_out(tx, &mut turns, &jobs, &mut ended, now).await?;
    let rows: Vec<TriggerRow> = turns.into_iter().map(|turn| turn.row).collect();
    triggers::save(tx, &rows).await?;
    let over: Vec<i64> = pauses_over.into_iter().collect();
    store::end_pauses(tx, &over, now).await?;
    Ok((count, ended))
}

/// What one trigger is to do.
struct Turn {
    row: TriggerRow,
    /// `None`: it cannot be evaluated, and stands still.
    trigger: Option<Arc<Trigger>>,
    ranges: Vec<Range>,
    wishes: Vec<Wish>,
    then: Then,
    more: bool,
    job_pause_over: bool,
    held: Held,
}

impl Turn {
    fn new(row: TriggerRow) -> Self {
        Self {
            row,
            trigger: None,
            ranges: Vec::new(),
            wishes: Vec::new(),
            then: Then::Waits,
            more: false,
            job_pause_over: false,
            held: Held::No,
        }
    }
}

/// A plan of a trigger. One of a kind of somebody's own may panic; that is its own error and nobody else's.
fn ask(trigger: &Trigger, cursor: Cursor, now: i64, paused: bool) -> Result<Plan, String> {
    catch_unwind(AssertUnwindSafe(|| plan(trigger, cursor, now, paused, FIRES_MAX)))
        .map_err(|_| "its schedule panicked; see the scheduler's log".to_owned())?
        .map_err(|error| error.to_string())
}

/// Gives every slot up to the end of a pause the verdict "paused".
pub fn judge_pause(trigger: &Trigger, row: &mut TriggerRow, until_ms: i64) -> Result<(Vec<Range>, Then), String> {
    let mut ranges: Vec<Range> = Vec::new();
    for _ in 0..PAUSE_PLANS_MAX {
        let plan = ask(trigger, row.cursor(), until_ms, true)?;
        ranges.extend(plan.ranges);
        row.set_cursor(plan.cursor);
        if !plan.more {
            return Ok((ranges, plan.then));
        }
    }
    // Beyond what is counted: it goes on from the end of the pause.
    row.judged_ms = until_ms;
    row.next_ms = trigger.next_after(until_ms).map_err(|error| error.to_string())?;
    Ok((ranges, Then::Waits))
}

/// The freezes over a job as pauses. Those that ended before the trigger's last verdict are over.
pub fn frozen(freezes: &[Freeze], job: &Job, judged_ms: i64) -> Vec<Pause> {
    over(freezes, &job.task.queue, &job.task.tags)
        .map(Freeze::pause)
        .filter(|pause| pause.until_ms.is_none_or(|until| until > judged_ms))
        .collect()
}

fn judge(
    row: TriggerRow,
    (job, compiled): (&JobRow, &Job),
    spec: &TriggerSpec,
    trigger: Arc<Trigger>,
    freezes: &[Freeze],
    now: i64,
) -> Result<Turn, String> {
    let mut turn = Turn::new(row);
    let frozen = frozen(freezes, compiled, turn.row.judged_ms);
    turn.held = held_by(
        [turn.row.pause(), job.pause()]
            .into_iter()
            .chain(frozen.iter().copied()),
    );
    if let Held::Until(until) = turn.held
        && until <= now
    {
        (turn.ranges, turn.then) = judge_pause(&trigger, &mut turn.row, until)?;
        turn.row.paused = false;
        turn.row.paused_until_ms = None;
        turn.job_pause_over = job.paused;
        turn.held = Held::No;
    }
    turn.row.frozen = turn.held != Held::No && !frozen.is_empty();
    if turn.held == Held::No && turn.then != Then::Complete {
        let plan = ask(&trigger, turn.row.cursor(), now, false)?;
        turn.row.set_cursor(plan.cursor);
        turn.ranges.extend(plan.ranges);
        turn.then = plan.then;
        turn.more = plan.more;
        for fire in plan.fires {
            turn.wishes.push(wish(&turn.row, job, compiled, spec, fire, now)?);
        }
    }
    turn.trigger = Some(trigger);
    Ok(turn)
}

fn wish(
    row: &TriggerRow,
    job: &JobRow,
    compiled: &Job,
    spec: &TriggerSpec,
    fire: Fire,
    now: i64,
) -> Result<Wish, String> {
    let mut task = compiled
        .make_task(&Occasion {
            trigger: Some(&row.name),
            scheduled_ms: fire.scheduled_ms,
            zone: &compiled::zone(spec),
            priority: spec.priority,
            trigger_data: Some(&spec.data),
            request_data: None,
        })
        .map_err(|error| error.to_string())?;
    let route = launch::routed(compiled, &task);
    task.run_at_ms = (fire.run_at_ms > now).then_some(fire.run_at_ms);
    Ok(Wish {
        job_id: job.id,
        spec: Arc::new(task),
        max_retries: compiled.retry.max_retries,
        lane_id: row.lane_id,
        route,
        trigger_id: Some(row.id),
        trigger_name: row.name.clone(),
        scheduled_ms: fire.scheduled_ms,
        source: if fire.misfired { "misfire" } else { "schedule" },
        parent_root: 0,
        by: launch::BY_TRIGGER.into(),
        why: None,
    })
}

/// A row of the ledger for slots that did not fire.
pub fn range_entry(row: &TriggerRow, range: &Range) -> Entry {
    let (reason, into_ms) = match range.verdict {
        Verdict::Skipped(reason) => (reason.name(), None),
        Verdict::Coalesced { into_ms } => ("", Some(into_ms)),
        Verdict::Fired => ("", None),
    };
    Entry {
        job_id: row.job_id,
        trigger_id: Some(row.id),
        trigger_name: row.name.clone(),
        scheduled_ms: range.from_ms,
        until_ms: range.to_ms,
        fires: i64::try_from(range.count).unwrap_or(i64::MAX),
        parent_root: 0,
        verdict: range.verdict.name(),
        reason,
        into_ms,
        task_id: None,
        blocked_by: None,
        misfired: 0,
    }
}

/// Writes verdicts, tasks and places, and lets each trigger stand where that leaves it.
async fn carry_out(
    tx: &mut Tx,
    turns: &mut [Turn],
    jobs: &HashMap<i64, (JobRow, Result<ReadJob, String>)>,
    ended: &mut Ended,
    now: i64,
) -> Result<(), StoreError> {
    let entries: Vec<Entry> = turns
        .iter()
        .flat_map(|turn| turn.ranges.iter().map(|range| range_entry(&turn.row, range)))
        .collect();
    let written = ledger::put(tx, &entries).await?;
    let new = entries.iter().zip(&written).filter(|(_, written)| **written);
    let job_of = |id| jobs.get(&id).map(|(row, _)| row);
    health::after_verdicts(tx, new.map(|(entry, _)| entry), job_of, ended).await?;
    let mut written = written.into_iter();
    let wishes: Vec<Wish> = turns.iter().flat_map(|turn| turn.wishes.iter().cloned()).collect();
    let mut launched = Vec::new();
    if !wishes.is_empty() {
        let wanted: BTreeSet<i64> = wishes.iter().map(|wish| wish.job_id).collect();
        let wanted: Vec<i64> = wanted.into_iter().collect();
        let mut places = Places::lock(tx, &wanted, &BTreeSet::new()).await?;
        launched = launch::launch(tx, &mut places, &wishes, true, ended).await?;
    }
    let mut launched = launched.into_iter();
    for turn in turns {
        let known = written
            .by_ref()
            .take(turn.ranges.len())
            .filter(|written| !written)
            .count();
        let results: Vec<Launched> = launched.by_ref().take(turn.wishes.len()).collect();
        let Some(trigger) = turn.trigger.take() else {
            continue;
        };
        let conflict = known > 0 || results.contains(&Launched::Recorded);
        if let Err(error) = stand(tx, turn, &trigger, &results, conflict, now).await? {
            turn.row.fail(error);
        }
    }
    Ok(())
}

async fn stand(
    tx: &mut Tx,
    turn: &mut Turn,
    trigger: &Trigger,
    results: &[Launched],
    conflict: bool,
    now: i64,
) -> Result<Result<(), String>, StoreError> {
    let row = &mut turn.row;
    row.error.clear();
    if conflict {
        // Its cursor was behind what the ledger knows: an edit that was lost, or a database that was changed by hand.
        let newest = ledger::newest(tx, row.id).await?.unwrap_or(row.judged_ms);
        row.judged_ms = row.judged_ms.max(newest);
        match trigger.next_after(row.judged_ms) {
            Ok(next) => row.next_ms = next,
            Err(error) => return Ok(Err(error.to_string())),
        }
    }
    Ok(land(turn, trigger, results.iter().find_map(Launched::task_id), now))
}

/// Where a trigger stands after its turn. `root`: the run that it started.
fn land(turn: &mut Turn, trigger: &Trigger, root: Option<i64>, now: i64) -> Result<(), String> {
    let row = &mut turn.row;
    match turn.then {
        Then::Complete => {
            row.set_phase(Phase::Complete);
            row.next_ms = None;
        }
        Then::WaitsForRun => match root {
            Some(root) => {
                row.set_phase(Phase::Acquired);
                row.run_root = Some(root);
                row.next_ms = None;
            }
            // Nothing was started whose end could be waited for.
            None => row.set_cursor(run_ended(trigger, row.cursor(), now).map_err(|error| error.to_string())?),
        },
        Then::Waits => {}
    }
    let next = if turn.more { Some(now) } else { row.next_ms };
    row.due_ms = due_ms(next, turn.held);
    Ok(())
}

#[cfg(test)]
mod model;
