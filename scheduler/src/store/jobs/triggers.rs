//! Where triggers stand. A trigger moves only under the lock of its row.

use super::super::db::{Db, Tx, batch};
use super::super::error::StoreError;
use super::super::sql::Sql;
use serde::Serialize;
use std::collections::HashSet;
use systole_shared::policy::pause::Pause;
use systole_shared::trigger::plan::{Cursor, Trigger};
use systole_shared::trigger::state::{Phase, TriggerState};

macro_rules! trigger_columns {
    () => {
        "t.id, t.job_id, t.name, t.definition, t.kind, t.lane_id, t.after_job, t.after_outcome, t.created_at_ms, t.judged_ms, t.next_ms, \
         t.fires, t.due_ms, t.phase, t.error, t.run_root, t.paused, t.paused_until_ms, t.paused_by, t.pause_reason, t.paused_at_ms, t.frozen"
    };
}

pub(in crate::store) static NEXT_DUE: Sql = Sql::new(
    "next_trigger",
    "SELECT min(due_ms) - {now} AS n FROM job_trigger WHERE due_ms IS NOT NULL",
);
/// Those that another replica has in hand are left to it. The time is asked for by a number: see `clocks`.
static LOCK_DUE: Sql = Sql::new(
    "lock_due_triggers",
    concat!(
        "SELECT ",
        trigger_columns!(),
        " FROM job_trigger AS t WHERE t.due_ms <= $1 ORDER BY t.due_ms LIMIT $2 {skip_locked}"
    ),
);
static OF_JOBS: Sql = Sql::new(
    "triggers_of_jobs",
    concat!(
        "SELECT ",
        trigger_columns!(),
        " FROM job_trigger AS t WHERE t.job_id {among:$1} ORDER BY t.id"
    ),
);
static LOCK_OF_JOBS: Sql = Sql::new(
    "lock_triggers_of_jobs",
    concat!(
        "SELECT ",
        trigger_columns!(),
        " FROM job_trigger AS t WHERE t.job_id {among:$1} ORDER BY t.id {for_update}"
    ),
);
/// What the end of chains moves: triggers that wait for these runs, and those after the jobs.
static LOCK_AFTER: Sql = Sql::new(
    "lock_triggers_after",
    concat!(
        "SELECT ",
        trigger_columns!(),
        " FROM job_trigger AS t WHERE t.id IN (SELECT a.id FROM job_trigger AS a WHERE a.run_root {among:$1} UNION \
           SELECT b.id FROM job AS j JOIN job_trigger AS b ON {is:b.after_job,j.name} WHERE j.id {among:$2}) ORDER BY t.id {for_update}"
    ),
);
/// Triggers that wait for a run that is over, or gone.
static STALE_RUNS: Sql = Sql::new(
    "stale_runs",
    "SELECT t.run_root AS id FROM job_trigger AS t WHERE t.run_root IS NOT NULL \
       AND NOT EXISTS (SELECT 1 FROM slot AS s WHERE s.root_id = t.run_root) LIMIT 1000",
);
/// Triggers of these jobs whose runs wait for a place; of a broadcast its head does.
static WITH_WAITING_RUNS: Sql = Sql::new(
    "triggers_with_waiting_runs",
    "SELECT DISTINCT trigger_id AS id FROM task WHERE status = 1 AND waiting_ms IS NOT NULL AND set_id IS NULL \
       AND trigger_id IS NOT NULL AND job_id {among:$1}",
);
static USING_CALENDAR: Sql = Sql::new(
    "jobs_using_calendars",
    "SELECT DISTINCT job_id AS id FROM job_trigger WHERE definition LIKE '%\"exclude_calendars\"%'",
);
static PUT_TRIGGERS: Sql = Sql::new(
    "put_triggers",
    "INSERT INTO job_trigger (job_id, name, definition, kind, lane_id, after_job, after_outcome, created_at_ms, judged_ms, next_ms, \
       fires, due_ms, phase, paused, paused_by, paused_at_ms) \
     SELECT $2, e.value->>'name', e.value->>'definition', e.value->>'kind', CAST(e.value->>'lane_id' AS BIGINT), \
       e.value->>'after_job', e.value->>'after_outcome', CAST(e.value->>'created_at_ms' AS BIGINT), \
       CAST(e.value->>'judged_ms' AS BIGINT), CAST(e.value->>'next_ms' AS BIGINT), 0, CAST(e.value->>'due_ms' AS BIGINT), \
       e.value->>'phase', CAST(e.value->>'paused' AS BIGINT) = 1, \
       CASE WHEN CAST(e.value->>'paused' AS BIGINT) = 1 THEN $3 END, CASE WHEN CAST(e.value->>'paused' AS BIGINT) = 1 THEN {now} END \
     FROM {each:$1}",
);
static SET_TRIGGERS: Sql = Sql::new(
    "set_triggers",
    "UPDATE job_trigger SET definition = x.definition, kind = x.kind, lane_id = x.lane_id, after_job = x.after_job, \
       after_outcome = x.after_outcome \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, e.value->>'definition' AS definition, e.value->>'kind' AS kind, \
       CAST(e.value->>'lane_id' AS BIGINT) AS lane_id, e.value->>'after_job' AS after_job, \
       e.value->>'after_outcome' AS after_outcome FROM {each:$1}) AS x WHERE {is:job_trigger.id,x.id}",
);
static MOVE_TRIGGERS: Sql = Sql::new(
    "move_triggers",
    "UPDATE job_trigger SET judged_ms = x.judged_ms, next_ms = x.next_ms, fires = x.fires, due_ms = x.due_ms, phase = x.phase, \
       error = x.error, run_root = x.run_root, paused = x.paused, paused_until_ms = x.paused_until_ms, frozen = x.frozen \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, CAST(e.value->>'judged_ms' AS BIGINT) AS judged_ms, \
       CAST(e.value->>'next_ms' AS BIGINT) AS next_ms, CAST(e.value->>'fires' AS BIGINT) AS fires, \
       CAST(e.value->>'due_ms' AS BIGINT) AS due_ms, e.value->>'phase' AS phase, e.value->>'error' AS error, \
       CAST(e.value->>'run_root' AS BIGINT) AS run_root, CAST(e.value->>'paused' AS BIGINT) = 1 AS paused, \
       CAST(e.value->>'paused_until_ms' AS BIGINT) AS paused_until_ms, CAST(e.value->>'frozen' AS BIGINT) = 1 AS frozen \
       FROM {each:$1}) AS x WHERE {is:job_trigger.id,x.id}",
);
static SIGN_PAUSE: Sql = Sql::new(
    "sign_pause",
    "UPDATE job_trigger SET paused_by = $2, pause_reason = $3, paused_at_ms = {now} WHERE id = $1",
);
static DELETE_TRIGGERS: Sql = Sql::new("delete_triggers", "DELETE FROM job_trigger WHERE id {among:$1}");

pub static STATEMENTS: &[&Sql] = &[
    &NEXT_DUE,
    &LOCK_DUE,
    &OF_JOBS,
    &LOCK_OF_JOBS,
    &LOCK_AFTER,
    &STALE_RUNS,
    &WITH_WAITING_RUNS,
    &USING_CALENDAR,
    &PUT_TRIGGERS,
    &SET_TRIGGERS,
    &MOVE_TRIGGERS,
    &SIGN_PAUSE,
    &DELETE_TRIGGERS,
];

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct TriggerRow {
    pub id: i64,
    pub job_id: i64,
    pub name: String,
    pub definition: String,
    pub kind: String,
    pub lane_id: i64,
    pub after_job: Option<String>,
    pub after_outcome: Option<String>,
    pub created_at_ms: i64,
    pub judged_ms: i64,
    pub next_ms: Option<i64>,
    pub fires: i64,
    pub due_ms: Option<i64>,
    pub phase: String,
    pub error: String,
    pub run_root: Option<i64>,
    pub paused: bool,
    pub paused_until_ms: Option<i64>,
    pub paused_by: Option<String>,
    pub pause_reason: Option<String>,
    pub paused_at_ms: Option<i64>,
    /// Put aside by a freeze.
    pub frozen: bool,
}

pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Acquired => "acquired",
        Phase::Complete => "complete",
        Phase::Error => "error",
    }
}

impl TriggerRow {
    pub fn cursor(&self) -> Cursor {
        Cursor {
            judged_ms: self.judged_ms,
            next_ms: self.next_ms,
            fires: u64::try_from(self.fires).unwrap_or(0),
        }
    }

    pub fn set_cursor(&mut self, cursor: Cursor) {
        self.judged_ms = cursor.judged_ms;
        self.next_ms = cursor.next_ms;
        self.fires = i64::try_from(cursor.fires).unwrap_or(i64::MAX);
    }

    pub fn phase(&self) -> Phase {
        match self.phase.as_str() {
            "acquired" => Phase::Acquired,
            "complete" => Phase::Complete,
            "error" => Phase::Error,
            _ => Phase::Waiting,
        }
    }

    pub fn set_phase(&mut self, phase: Phase) {
        self.phase = phase_name(phase).into();
    }

    /// `blocked`: a run that it made waits for a place ([`with_waiting_runs`]). A pause whose end has passed is over, also before
    /// somebody has seen that.
    pub fn state(&self, blocked: bool, now_ms: i64) -> TriggerState {
        TriggerState {
            phase: self.phase(),
            paused: self.pause().holds_at(now_ms),
            blocked,
        }
    }

    pub fn pause(&self) -> Pause {
        Pause {
            paused: self.paused,
            until_ms: self.paused_until_ms,
        }
    }

    /// Out of ERROR. Its cursor stays: what was due meanwhile gets its verdicts by its misfire policy, as after an outage.
    pub fn try_again(&mut self, trigger: &Trigger) -> Result<(), String> {
        self.next_ms = trigger.next_after(self.judged_ms).map_err(|error| error.to_string())?;
        self.error.clear();
        self.run_root = None;
        self.set_phase(Phase::Waiting);
        Ok(())
    }

    /// It cannot be evaluated: it stands still until it is changed or reset, and no other one does.
    pub fn fail(&mut self, error: impl Into<String>) {
        self.set_phase(Phase::Error);
        self.error = error.into();
        self.due_ms = None;
        self.frozen = false;
    }
}

/// A new trigger, or what the definition of one became.
#[derive(Clone, Debug, Serialize)]
pub struct TriggerWrite {
    /// 0: a new one.
    pub id: i64,
    pub name: String,
    pub definition: String,
    pub kind: String,
    pub lane_id: i64,
    pub after_job: Option<String>,
    pub after_outcome: Option<String>,
    pub created_at_ms: i64,
    pub judged_ms: i64,
    pub next_ms: Option<i64>,
    pub due_ms: Option<i64>,
    pub phase: &'static str,
    /// 0 or 1.
    pub paused: i64,
}

#[derive(Serialize)]
struct MoveJson<'a> {
    id: i64,
    judged_ms: i64,
    next_ms: Option<i64>,
    fires: i64,
    due_ms: Option<i64>,
    phase: &'a str,
    error: &'a str,
    run_root: Option<i64>,
    paused: i64,
    paused_until_ms: Option<i64>,
    frozen: i64,
}

#[derive(sqlx::FromRow)]
struct Wait {
    n: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

impl Db {
    /// ms until the next trigger is due, negative when it is; `None`: none will be.
    pub async fn next_trigger(&self) -> Result<Option<i64>, StoreError> {
        let row: Wait = self
            .read("next_trigger", |tx| {
                Box::pin(async move { tx.one(&NEXT_DUE, vec![]).await })
            })
            .await?;
        Ok(row.n)
    }
}

pub async fn lock_due(tx: &mut Tx, until_ms: i64, limit: usize) -> Result<Vec<TriggerRow>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    tx.all(&LOCK_DUE, vec![until_ms.into(), limit.into()]).await
}

pub async fn of_jobs(tx: &mut Tx, jobs: &[i64]) -> Result<Vec<TriggerRow>, StoreError> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&OF_JOBS, vec![batch(jobs)?]).await
}

pub async fn lock_of_jobs(tx: &mut Tx, jobs: &[i64]) -> Result<Vec<TriggerRow>, StoreError> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&LOCK_OF_JOBS, vec![batch(jobs)?]).await
}

pub async fn lock_after(tx: &mut Tx, roots: &[i64], jobs: &[i64]) -> Result<Vec<TriggerRow>, StoreError> {
    tx.all(&LOCK_AFTER, vec![batch(roots)?, batch(jobs)?]).await
}

pub async fn stale_runs(tx: &mut Tx) -> Result<Vec<i64>, StoreError> {
    let rows: Vec<OnlyId> = tx.all(&STALE_RUNS, vec![]).await?;
    Ok(rows.into_iter().map(|row| row.id).collect())
}

/// Triggers of these jobs that are blocked: a run that they made waits for a place.
pub async fn with_waiting_runs(tx: &mut Tx, jobs: &[i64]) -> Result<HashSet<i64>, StoreError> {
    let rows: Vec<OnlyId> = tx.all(&WITH_WAITING_RUNS, vec![batch(jobs)?]).await?;
    Ok(rows.into_iter().map(|row| row.id).collect())
}

/// Jobs with a trigger that leaves out times by calendars.
pub async fn jobs_with_calendars(tx: &mut Tx) -> Result<Vec<i64>, StoreError> {
    let rows: Vec<OnlyId> = tx.all(&USING_CALENDAR, vec![]).await?;
    Ok(rows.into_iter().map(|row| row.id).collect())
}

pub async fn insert(tx: &mut Tx, job_id: i64, triggers: &[TriggerWrite], by: &str) -> Result<(), StoreError> {
    if triggers.is_empty() {
        return Ok(());
    }
    tx.exec(&PUT_TRIGGERS, vec![batch(triggers)?, job_id.into(), by.into()])
        .await
        .map(drop)
}

pub async fn redefine(tx: &mut Tx, triggers: &[TriggerWrite]) -> Result<(), StoreError> {
    if triggers.is_empty() {
        return Ok(());
    }
    tx.exec(&SET_TRIGGERS, vec![batch(triggers)?]).await.map(drop)
}

/// Writes where locked triggers stand now.
pub async fn save(tx: &mut Tx, triggers: &[TriggerRow]) -> Result<(), StoreError> {
    if triggers.is_empty() {
        return Ok(());
    }
    let rows: Vec<MoveJson<'_>> = triggers
        .iter()
        .map(|row| MoveJson {
            id: row.id,
            judged_ms: row.judged_ms,
            next_ms: row.next_ms,
            fires: row.fires,
            due_ms: row.due_ms,
            phase: &row.phase,
            error: &row.error,
            run_root: row.run_root,
            paused: i64::from(row.paused),
            paused_until_ms: row.paused_until_ms,
            frozen: i64::from(row.frozen),
        })
        .collect();
    tx.exec(&MOVE_TRIGGERS, vec![batch(&rows)?]).await.map(drop)
}

/// Who paused or resumed it, and why.
pub async fn sign_pause(tx: &mut Tx, id: i64, by: &str, reason: &str) -> Result<(), StoreError> {
    tx.exec(&SIGN_PAUSE, vec![id.into(), by.into(), reason.into()])
        .await
        .map(drop)
}

pub async fn delete(tx: &mut Tx, ids: &[i64]) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    tx.exec(&DELETE_TRIGGERS, vec![batch(ids)?]).await.map(drop)
}
