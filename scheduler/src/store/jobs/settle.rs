//! What goes on when a chain of tasks of a job is over: its places are free for those that wait, triggers that counted from
//! its end are due again, and triggers after it fire. All in the transaction that ends it.
//!
//! A chain that ended without proof that its child is dead is not over: it keeps its places until there is proof.

use super::super::db::{Tx, batch};
use super::super::error::StoreError;
use super::super::finish::{self, End, Ended};
use super::super::freeze;
use super::super::sql::Sql;
use super::compiled::{self, ReadJob};
use super::launch::{self, Wish};
use super::ledger::{self, Entry};
use super::orphans;
use super::recover;
use super::slots::{self, Places};
use super::triggers::{self, TriggerRow};
use super::{JobRow, health};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use systole_shared::job::route::data_of;
use systole_shared::job::task::Occasion;
use systole_shared::policy::freeze::{Freeze, over};
use systole_shared::policy::pause::{Held, due_ms, held};
use systole_shared::policy::retry::is_lost;
use systole_shared::task::spec::OnDisconnect;
use systole_shared::task::{OutcomeKind, TaskSpec, TaskState};
use systole_shared::trigger::plan::run_ended;
use systole_shared::trigger::state::{Event, Phase};

static NOW: Sql = Sql::new("settle_now", "SELECT {now} AS n");
static RUNS: Sql = Sql::new("runs", "SELECT id, scheduled_ms, spec FROM task WHERE id {among:$1}");
/// The last task of each chain.
static LAST_OF_CHAINS: Sql = Sql::new(
    "last_of_chains",
    "SELECT id, COALESCE(root_id, id) AS root_id, job_id, status, set_id FROM task WHERE retried_by IS NULL AND (id {among:$1} \
       OR (retry_of IS NOT NULL AND root_id {among:$1}))",
);

pub static STATEMENTS: &[&Sql] = &[&NOW, &RUNS, &LAST_OF_CHAINS];

/// A chain that is over.
#[derive(Clone, Debug)]
struct Over {
    root: i64,
    job_id: Option<i64>,
    task_id: i64,
    state: TaskState,
}

#[derive(sqlx::FromRow)]
struct Now {
    n: i64,
}

#[derive(sqlx::FromRow)]
struct RunRow {
    id: i64,
    scheduled_ms: Option<i64>,
    spec: String,
}

#[derive(sqlx::FromRow)]
struct LastRow {
    id: i64,
    root_id: i64,
    job_id: Option<i64>,
    status: i16,
    set_id: Option<i64>,
}

pub async fn now_ms(tx: &mut Tx) -> Result<i64, StoreError> {
    Ok(tx.one::<Now>(&NOW, vec![]).await?.n)
}

/// The jobs whose tasks have failed, with their policies. Where a job is gone nothing follows.
pub async fn jobs_of_failed(tx: &mut Tx, ended: &[&End]) -> Result<HashMap<i64, ReadJob>, StoreError> {
    let ids: BTreeSet<i64> = ended
        .iter()
        .filter(|end| end.transition.to() == TaskState::Failed)
        .filter_map(|end| end.task.job_id)
        .collect();
    let ids: Vec<i64> = ids.into_iter().collect();
    Ok(super::by_id(tx, &ids)
        .await?
        .iter()
        .filter_map(|row| Some((row.id, compiled::job(row).ok()?)))
        .collect())
}

/// After tasks of jobs have ended.
pub async fn after_ends(tx: &mut Tx, ends: &[End], ended: &mut Ended) -> Result<(), StoreError> {
    let done: HashSet<i64> = ended.ids.iter().copied().collect();
    let goes_on: HashSet<i64> = ended.successors.iter().map(|next| next.retry_of).collect();
    let last: Vec<&End> = ends
        .iter()
        .filter(|end| end.task.job_id.is_some() && done.contains(&end.task.id) && !goes_on.contains(&end.task.id))
        .collect();
    if last.is_empty() {
        return Ok(());
    }
    let unproven: Vec<&End> = last.iter().copied().filter(|end| end.is_unproven()).collect();
    let fenced = fenced(tx, &unproven).await?;
    let jobs = jobs_of(tx, last.iter().filter_map(|end| end.task.job_id)).await?;
    let mut over = Vec::new();
    let mut lost = Vec::new();
    for end in &last {
        let root = end.task.root_id();
        let unproven = end.is_unproven() && !fenced.contains(&end.task.id);
        if let Some(set) = end.task.set_id {
            // The set has the place, and ends with its last member.
            ended.sets = true;
            if unproven {
                slots::hold_member(tx, set, &end.task).await?;
                ended.held = true;
            }
            continue;
        }
        if unproven {
            slots::hold(tx, root, &end.task).await?;
            ended.held = true;
            continue;
        }
        if end.transition.to() == TaskState::Failed && is_lost(end.outcome.kind) {
            lost.push(end.task.id);
        }
        over.push(Over {
            root,
            job_id: end.task.job_id,
            task_id: end.task.id,
            state: end.transition.to(),
        });
    }
    let again = recover::recover(tx, &lost).await?;
    over.retain(|over| !again.iter().any(|next| next.retry_of == over.task_id));
    let goes_on: HashSet<i64> = again.iter().map(|next| next.retry_of).collect();
    ended.successors.extend(again);
    settle(tx, over, &jobs, ended).await?;
    // A member is no run of its job, and what is started again has not failed yet.
    let runs: Vec<&End> = last
        .into_iter()
        .filter(|end| end.task.set_id.is_none() && !goes_on.contains(&end.task.id))
        .collect();
    health::after_ends(tx, &runs, &jobs, ended).await
}

async fn jobs_of(tx: &mut Tx, ids: impl Iterator<Item = i64>) -> Result<HashMap<i64, JobRow>, StoreError> {
    let ids: BTreeSet<i64> = ids.collect();
    let ids: Vec<i64> = ids.into_iter().collect();
    let rows = super::by_id(tx, &ids).await?;
    Ok(rows.into_iter().map(|row| (row.id, row)).collect())
}

/// Tasks whose runner has ended the child by now if it could not reach anybody: that is the proof.
async fn fenced(tx: &mut Tx, unproven: &[&End]) -> Result<HashSet<i64>, StoreError> {
    let ids: Vec<i64> = unproven
        .iter()
        .filter(|end| end.outcome.kind == OutcomeKind::RunnerLost || end.lost)
        .map(|end| end.task.id)
        .collect();
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let rows: Vec<RunRow> = tx.all(&RUNS, vec![batch(&ids)?]).await?;
    Ok(rows
        .into_iter()
        .filter(|row| {
            serde_json::from_str::<TaskSpec>(&row.spec).is_ok_and(|spec| spec.on_disconnect == OnDisconnect::Kill)
        })
        .map(|row| row.id)
        .collect())
}

/// There is proof that nothing of these chains runs any more.
pub async fn proven(tx: &mut Tx, roots: &[i64], ended: &mut Ended) -> Result<Vec<i64>, StoreError> {
    if roots.is_empty() {
        return Ok(Vec::new());
    }
    let last: Vec<LastRow> = tx.all(&LAST_OF_CHAINS, vec![batch(roots)?]).await?;
    let mut over = Vec::new();
    let mut members = Vec::new();
    for &root in roots {
        let row = last.iter().find(|row| row.root_id == root);
        let state = match row {
            None => TaskState::Failed,
            Some(row) => TaskState::from_number(row.status).ok_or(StoreError::Corrupt {
                table: "task",
                column: "status",
                id: row.id,
            })?,
        };
        if state.child_is_over() {
            members.extend(row.filter(|row| row.set_id.is_some()).map(|row| row.root_id));
            over.push(Over {
                root,
                job_id: row.and_then(|row| row.job_id),
                task_id: row.map_or(root, |row| row.id),
                state,
            });
        }
    }
    let tasks: Vec<i64> = over.iter().map(|over| over.task_id).collect();
    if !members.is_empty() {
        slots::free(tx, &members).await?;
        over.retain(|over| !members.contains(&over.root));
        ended.sets = true;
    }
    let again = recover::recover(tx, &tasks).await?;
    if !again.is_empty() {
        // They keep their places, which are not held for want of proof any more.
        let (on, done): (Vec<Over>, Vec<Over>) = over
            .into_iter()
            .partition(|over| again.iter().any(|next| next.retry_of == over.task_id));
        over = done;
        let roots: Vec<i64> = on.iter().map(|over| over.root).collect();
        slots::release_hold(tx, &roots).await?;
        ended.successors.extend(again);
    }
    if !over.is_empty() {
        let jobs = jobs_of(tx, over.iter().filter_map(|over| over.job_id)).await?;
        settle(tx, over, &jobs, ended).await?;
    }
    Ok(tasks)
}

/// What a forgotten path left: chains that are over and still have a place, or are waited for. Each is a bug. And those that wait
/// though there is room: whoever made it passed over them, since somebody had them in hand.
pub async fn sweep(tx: &mut Tx, ended: &mut Ended) -> Result<Vec<i64>, StoreError> {
    orphans::end(tx, ended).await?;
    let strays = slots::strays(tx).await?;
    let mut roots: BTreeSet<i64> = strays.iter().copied().collect();
    roots.extend(triggers::stale_runs(tx).await?);
    let roots: Vec<i64> = roots.into_iter().collect();
    proven(tx, &roots, ended).await?;
    let waiting = slots::with_waiting(tx).await?;
    if !waiting.is_empty() {
        let mut places = Places::lock(tx, &waiting, &BTreeSet::new()).await?;
        ended.admitted.extend(places.admit(tx).await?);
        // Whatever runs of a job whose newest run waits to take its place is to be ended.
        for job in places.jobs.values() {
            if job.blocking() == systole_shared::job::Blocking::CoverEarly && places.load(job).waiting > 0 {
                ended.supersede.extend(places.roots(job));
            }
        }
    }
    Ok(strays)
}

/// `known`: the jobs of these chains, as far as they exist.
async fn settle(
    tx: &mut Tx,
    over: Vec<Over>,
    known: &HashMap<i64, JobRow>,
    ended: &mut Ended,
) -> Result<(), StoreError> {
    if over.is_empty() {
        return Ok(());
    }
    let roots: Vec<i64> = over.iter().map(|over| over.root).collect();
    let jobs: BTreeSet<i64> = over.iter().filter_map(|over| over.job_id).collect();
    let jobs: Vec<i64> = jobs.into_iter().collect();
    let moved = triggers::lock_after(tx, &roots, &jobs).await?;
    let names: HashMap<i64, String> = known
        .values()
        .filter(|job| jobs.contains(&job.id))
        .map(|job| (job.id, job.name.clone()))
        .collect();

    // Groups whose places become free, and every job that is concerned.
    let held_places = slots::of_roots(tx, &roots).await?;
    let groups: BTreeSet<String> = held_places
        .iter()
        .filter_map(|row| row.resource.strip_prefix("group:").map(str::to_owned))
        .collect();
    let mut concerned: BTreeSet<i64> = jobs.iter().copied().chain(moved.iter().map(|row| row.job_id)).collect();
    // A job that was deleted and made again has the places of the old one's runs.
    let heirs: Vec<&str> = held_places
        .iter()
        .filter_map(|row| row.resource.strip_prefix("job:"))
        .filter(|name| !names.values().any(|known| known == name))
        .collect();
    if !heirs.is_empty() {
        concerned.extend(super::by_name(tx, &heirs).await?.into_iter().map(|job| job.id));
    }
    let concerned: Vec<i64> = concerned.into_iter().collect();
    let mut places = Places::lock(tx, &concerned, &groups).await?;
    if !held_places.is_empty() {
        slots::free(tx, &roots).await?;
        places.forget(&roots.iter().copied().collect());
    }
    ended.admitted.extend(places.admit(tx).await?);

    let now = now_ms(tx).await?;
    let (mut waited, after): (Vec<TriggerRow>, Vec<TriggerRow>) =
        moved.into_iter().partition(|row| row.run_root.is_some());
    for row in &mut waited {
        let job = places.jobs.get(&row.job_id).cloned();
        count_from_end(tx, row, job.as_ref(), now).await?;
    }
    triggers::save(tx, &waited).await?;
    ended.triggers |= !waited.is_empty();
    fire_after(tx, &mut places, &over, &names, after, now, ended).await
}

/// `fixed_delay`: the next fire counts from now.
async fn count_from_end(tx: &mut Tx, row: &mut TriggerRow, job: Option<&JobRow>, now: i64) -> Result<(), StoreError> {
    row.run_root = None;
    let Some(state) = row.state(false, now).after(Event::RunEnded) else {
        return Ok(());
    };
    row.set_phase(state.phase);
    let Some(job) = job else { return Ok(()) };
    let spec = match compiled::trigger_spec(row) {
        Ok(spec) => spec,
        Err(error) => {
            row.fail(error);
            return Ok(());
        }
    };
    let calendars = compiled::calendars_of(tx, [&*spec]).await?;
    let next = compiled::stored_trigger(&job.name, row, &spec, &calendars)
        .map_err(|error| error.to_string())
        .and_then(|trigger| run_ended(&trigger, row.cursor(), now).map_err(|error| error.to_string()));
    match next {
        Ok(cursor) => {
            row.set_cursor(cursor);
            if cursor.next_ms.is_none() {
                row.set_phase(Phase::Complete);
            }
            row.due_ms = due_ms(cursor.next_ms, held(row.pause(), job.pause()));
        }
        Err(error) => row.fail(error),
    }
    Ok(())
}

fn fires_after(outcome: Option<&str>, state: TaskState) -> bool {
    match outcome {
        Some("finished") => matches!(state, TaskState::Finished | TaskState::Callback),
        Some("failed") => state == TaskState::Failed,
        Some("terminated") => state == TaskState::Terminated,
        // A task that was dropped before it started is no run that has ended.
        Some("ended") => state != TaskState::Skipped,
        _ => false,
    }
}

/// Triggers after these chains fire, each once for each chain. Scheduled time and data are handed on.
async fn fire_after(
    tx: &mut Tx,
    places: &mut Places,
    over: &[Over],
    names: &HashMap<i64, String>,
    after: Vec<TriggerRow>,
    now: i64,
    ended: &mut Ended,
) -> Result<(), StoreError> {
    if after.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = over.iter().map(|over| over.task_id).collect();
    let runs: Vec<RunRow> = tx.all(&RUNS, vec![batch(&ids)?]).await?;
    let runs: HashMap<i64, RunRow> = runs.into_iter().map(|row| (row.id, row)).collect();
    let freezes = freeze::since(tx, now).await?;
    let mut wishes = Vec::new();
    let mut skipped = Vec::new();
    let mut moved: Vec<TriggerRow> = Vec::new();
    for mut row in after {
        let Some(job) = places.jobs.get(&row.job_id).cloned() else {
            continue;
        };
        let parents: Vec<&Over> = over
            .iter()
            .filter(|over| {
                over.job_id.and_then(|id| names.get(&id)) == row.after_job.as_ref()
                    && fires_after(row.after_outcome.as_deref(), over.state)
            })
            .collect();
        for parent in parents {
            if row.phase() != Phase::Waiting {
                break;
            }
            let run = runs.get(&parent.task_id);
            let scheduled_ms = run.and_then(|run| run.scheduled_ms).unwrap_or(now);
            if holds(held(row.pause(), job.pause()), now) || is_frozen(&freezes, &job, now) {
                skipped.push(paused_entry(&row, scheduled_ms, parent.root));
                continue;
            }
            let data = run
                .and_then(|run| serde_json::from_str::<TaskSpec>(&run.spec).ok())
                .and_then(|spec| data_of(&spec));
            match wish_after(&row, &job, scheduled_ms, data.as_ref(), parent) {
                Ok((wish, last)) => {
                    wishes.push(wish);
                    row.fires += 1;
                    if last {
                        row.set_phase(Phase::Complete);
                    }
                }
                Err(error) => row.fail(error),
            }
        }
        moved.push(row);
    }
    ledger::put(tx, &skipped).await?;
    launch::launch(tx, places, &wishes, true, ended).await?;
    triggers::save(tx, &moved).await
}

/// What cannot be read says so where its run is made.
fn is_frozen(freezes: &[Freeze], job: &JobRow, now: i64) -> bool {
    !freezes.is_empty()
        && compiled::job(job).is_ok_and(|job| {
            over(freezes, &job.task.queue, &job.task.tags)
                .any(|freeze| freeze.pause().until_ms.is_none_or(|until| until > now))
        })
}

fn holds(held: Held, now: i64) -> bool {
    match held {
        Held::No => false,
        Held::Until(until) => now < until,
        Held::Open => true,
    }
}

fn paused_entry(row: &TriggerRow, scheduled_ms: i64, parent_root: i64) -> Entry {
    Entry {
        job_id: row.job_id,
        trigger_id: Some(row.id),
        trigger_name: row.name.clone(),
        scheduled_ms,
        until_ms: scheduled_ms,
        fires: 1,
        parent_root,
        verdict: "skipped",
        reason: "paused",
        into_ms: None,
        task_id: None,
        blocked_by: None,
        misfired: 0,
    }
}

/// The run after one of another job, and whether it is the trigger's last.
fn wish_after(
    row: &TriggerRow,
    job: &JobRow,
    scheduled_ms: i64,
    data: Option<&serde_json::Map<String, serde_json::Value>>,
    parent: &Over,
) -> Result<(Wish, bool), String> {
    let compiled = compiled::job(job)?;
    let spec = compiled::trigger_spec(row)?;
    let task = compiled
        .make_task(&Occasion {
            trigger: Some(&row.name),
            scheduled_ms,
            zone: &compiled::zone(&spec),
            priority: spec.priority,
            trigger_data: Some(&spec.data),
            request_data: data,
        })
        .map_err(|error| error.to_string())?;
    let route = launch::routed(&compiled, &task);
    let fires = u64::try_from(row.fires).unwrap_or(0) + 1;
    let wish = Wish {
        job_id: job.id,
        spec: Arc::new(task),
        max_retries: compiled.retry.max_retries,
        lane_id: row.lane_id,
        route,
        trigger_id: Some(row.id),
        trigger_name: row.name.clone(),
        scheduled_ms,
        source: "after",
        parent_root: parent.root,
        by: launch::BY_TRIGGER.into(),
        why: None,
    };
    Ok((wish, spec.max_fires.is_some_and(|max| fires >= max)))
}

/// Chains of these tasks are held for lack of proof, which has come.
pub async fn results_came(tx: &mut Tx, tasks: &[i64], ended: &mut Ended) -> Result<(), StoreError> {
    let roots = slots::lost_tasks(tx, tasks).await?;
    proven(tx, &roots, ended).await.map(drop)
}

/// Members of chains that may still start or run; locked.
pub async fn live_members(tx: &mut Tx, roots: &[i64]) -> Result<Vec<finish::LiveTask>, StoreError> {
    if roots.is_empty() {
        return Ok(Vec::new());
    }
    let last: Vec<LastRow> = tx.all(&LAST_OF_CHAINS, vec![batch(roots)?]).await?;
    let mut ids: Vec<i64> = last.into_iter().map(|row| row.id).collect();
    ids.sort_unstable();
    finish::lock_tasks(tx, &ids).await
}
