//! Rules of alarms that the clock decides: until when a job should have succeeded, and how long a run may take.

use super::super::db::{Db, Tx, batch};
use super::super::error::StoreError;
use super::super::sql::Sql;
use serde::Serialize;

/// Rules that one step looks at.
pub const STEP_MAX: i64 = 256;
/// Rows of a list.
const LATE_MAX: i64 = 100;

/// In one read, so that a quiet cluster asks one question: rules that are due, and definitions that are not watched yet.
pub(in crate::store) static NEXT_LOOK: Sql = Sql::new(
    "next_look",
    "SELECT (SELECT min(due_ms) FROM alarm_watch WHERE due_ms IS NOT NULL) - {now} AS due_in_ms, \
       (SELECT min(id) FROM job WHERE watched_version <> version) AS unwatched, \
       (SELECT min(job_id) FROM alarm_watch WHERE slow_ms IS NOT NULL) AS slow",
);
static LOCK_UNWATCHED: Sql = Sql::new(
    "lock_unwatched",
    "SELECT id FROM job WHERE watched_version <> version AND {now} <= $2 ORDER BY id LIMIT $1 {skip_locked}",
);
static WATCHED: Sql = Sql::new(
    "watched",
    "UPDATE job SET watched_version = version WHERE id {among:$1}",
);
static OF_JOBS: Sql = Sql::new(
    "watches_of_jobs",
    "SELECT job_id, rule, base_ms, since_ms, due_ms FROM alarm_watch WHERE job_id {among:$1} ORDER BY job_id, rule",
);
static PUT: Sql = Sql::new(
    "put_watches",
    "INSERT INTO alarm_watch (job_id, rule, base_ms, due_ms, slow_ms, words) SELECT CAST(e.value->>'job_id' AS BIGINT), e.value->>'rule', \
       {now}, CASE WHEN e.value->>'slow_ms' IS NULL THEN {now} END, CAST(e.value->>'slow_ms' AS BIGINT), e.value->>'words' \
     FROM {each:$1} WHERE TRUE ON CONFLICT (job_id, rule) DO UPDATE SET due_ms = excluded.due_ms, words = excluded.words",
);
static DELETE: Sql = Sql::new(
    "delete_watches",
    "DELETE FROM alarm_watch WHERE job_id = $1 AND rule IN (SELECT e.value->>'rule' FROM {each:$2})",
);
static FORGET: Sql = Sql::new("forget_watches", "DELETE FROM alarm_watch WHERE job_id {among:$1}");
static DUE: Sql = Sql::new(
    "due_watches",
    "SELECT DISTINCT job_id AS id FROM (SELECT job_id FROM alarm_watch WHERE due_ms <= (SELECT {now} + 0) AND (SELECT {now} + 0) <= $1 \
       ORDER BY due_ms LIMIT $2) AS x",
);
static LOCK_DUE: Sql = Sql::new(
    "lock_due_watches",
    "SELECT job_id, rule, base_ms, since_ms, due_ms FROM alarm_watch WHERE job_id {among:$1} AND due_ms <= $2 \
     ORDER BY job_id, rule {for_update}",
);
static MOVE: Sql = Sql::new(
    "move_watches",
    "UPDATE alarm_watch SET base_ms = x.base_ms, since_ms = x.since_ms, due_ms = x.due_ms \
     FROM (SELECT CAST(e.value->>'job_id' AS BIGINT) AS job_id, e.value->>'rule' AS rule, CAST(e.value->>'base_ms' AS BIGINT) AS base_ms, \
       CAST(e.value->>'since_ms' AS BIGINT) AS since_ms, CAST(e.value->>'due_ms' AS BIGINT) AS due_ms FROM {each:$1}) AS x \
     WHERE {is:alarm_watch.job_id,x.job_id} AND alarm_watch.rule = x.rule",
);
/// They have succeeded: not late any more, and looked at again at once, whatever the clock says then.
static PUT_RIGHT: Sql = Sql::new(
    "put_right",
    "UPDATE alarm_watch SET since_ms = NULL, due_ms = 0 WHERE job_id {among:$1} AND since_ms IS NOT NULL",
);
static LATE: Sql = Sql::new(
    "late_jobs",
    "SELECT j.name AS job, w.since_ms, w.words FROM alarm_watch AS w JOIN job AS j ON {is:j.id,w.job_id} \
     WHERE w.since_ms IS NOT NULL ORDER BY w.since_ms, j.name LIMIT $1",
);
/// Runs that take longer than a rule of their job wants, and of which nobody was told.
static SLOW: Sql = Sql::new(
    "slow_runs",
    "SELECT t.id, t.job_id, w.rule, t.host, t.slot, t.attempt, t.max_retries, t.started_at_ms FROM task AS t \
     JOIN alarm_watch AS w ON {is:w.job_id,t.job_id} AND w.slow_ms IS NOT NULL \
     WHERE t.status IN (3, 4, 9) AND t.orphaned_at_ms IS NULL AND t.job_id IS NOT NULL AND t.started_at_ms < {now} - w.slow_ms AND {now} <= $1 \
       AND NOT EXISTS (SELECT 1 FROM alarm AS a WHERE a.cause = 'j' || t.job_id || ':' || w.rule || ':' || t.id) \
     ORDER BY t.id LIMIT $2",
);

pub static STATEMENTS: &[&Sql] = &[
    &NEXT_LOOK,
    &LOCK_UNWATCHED,
    &WATCHED,
    &OF_JOBS,
    &PUT,
    &DELETE,
    &FORGET,
    &DUE,
    &LOCK_DUE,
    &MOVE,
    &PUT_RIGHT,
    &LATE,
    &SLOW,
];

/// What there is to look at.
#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub struct NextLook {
    /// ms until a rule is due, negative when it is.
    pub due_in_ms: Option<i64>,
    /// A job whose definition is not watched yet.
    pub unwatched: Option<i64>,
    /// Some job wants to know of runs that take long.
    pub slow: Option<i64>,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct WatchRow {
    pub job_id: i64,
    pub rule: String,
    pub base_ms: i64,
    pub since_ms: Option<i64>,
    pub due_ms: Option<i64>,
}

/// A rule to be watched from now on.
#[derive(Clone, Debug, Serialize)]
pub struct NewWatch {
    pub job_id: i64,
    pub rule: String,
    pub slow_ms: Option<i64>,
    pub words: String,
}

#[derive(Serialize)]
struct RuleJson<'a> {
    rule: &'a str,
}

#[derive(Serialize)]
struct MoveJson<'a> {
    job_id: i64,
    rule: &'a str,
    base_ms: i64,
    since_ms: Option<i64>,
    due_ms: Option<i64>,
}

/// A job that is late.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct LateRow {
    pub job: String,
    pub since_ms: i64,
    /// What was wanted.
    pub words: String,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct SlowRow {
    pub id: i64,
    pub job_id: i64,
    pub rule: String,
    pub host: Option<String>,
    pub slot: Option<i64>,
    pub attempt: i64,
    pub max_retries: i64,
    pub started_at_ms: i64,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

impl Db {
    pub async fn next_look(&self) -> Result<NextLook, StoreError> {
        self.read("next_look", |tx| {
            Box::pin(async move { tx.one(&NEXT_LOOK, vec![]).await })
        })
        .await
    }

    /// Jobs that are late, the oldest first.
    pub async fn late_jobs(&self) -> Result<Vec<LateRow>, StoreError> {
        self.read("late_jobs", |tx| {
            Box::pin(async move { tx.all(&LATE, vec![LATE_MAX.into()]).await })
        })
        .await
    }

    /// Jobs with a rule that is due; none when the clock is past `until_ms`.
    pub async fn due_watches(&self, until_ms: i64) -> Result<Vec<i64>, StoreError> {
        let rows: Vec<OnlyId> = self
            .read("due_watches", move |tx| {
                Box::pin(async move { tx.all(&DUE, vec![until_ms.into(), STEP_MAX.into()]).await })
            })
            .await?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }
}

/// Jobs whose definition changed since its alarms were read; locked. None when the clock is past `until_ms`: new rules count from now.
pub async fn lock_unwatched(tx: &mut Tx, until_ms: i64) -> Result<Vec<i64>, StoreError> {
    let rows: Vec<OnlyId> = tx.all(&LOCK_UNWATCHED, vec![STEP_MAX.into(), until_ms.into()]).await?;
    Ok(rows.into_iter().map(|row| row.id).collect())
}

pub async fn watched(tx: &mut Tx, jobs: &[i64]) -> Result<(), StoreError> {
    tx.exec(&WATCHED, vec![batch(jobs)?]).await.map(drop)
}

pub async fn of_jobs(tx: &mut Tx, jobs: &[i64]) -> Result<Vec<WatchRow>, StoreError> {
    tx.all(&OF_JOBS, vec![batch(jobs)?]).await
}

/// New rules count from now; known ones go on, and are looked at.
pub async fn put(tx: &mut Tx, rows: &[NewWatch]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    tx.exec(&PUT, vec![batch(rows)?]).await.map(drop)
}

pub async fn delete(tx: &mut Tx, job_id: i64, rules: &[&str]) -> Result<(), StoreError> {
    if rules.is_empty() {
        return Ok(());
    }
    let rules: Vec<RuleJson<'_>> = rules.iter().map(|rule| RuleJson { rule }).collect();
    tx.exec(&DELETE, vec![job_id.into(), batch(&rules)?]).await.map(drop)
}

/// Of jobs that are gone.
pub async fn forget(tx: &mut Tx, jobs: &[i64]) -> Result<(), StoreError> {
    tx.exec(&FORGET, vec![batch(jobs)?]).await.map(drop)
}

pub async fn lock_due(tx: &mut Tx, jobs: &[i64], now: i64) -> Result<Vec<WatchRow>, StoreError> {
    tx.all(&LOCK_DUE, vec![batch(jobs)?, now.into()]).await
}

pub async fn save(tx: &mut Tx, rows: &[WatchRow]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let rows: Vec<MoveJson<'_>> = rows
        .iter()
        .map(|row| MoveJson {
            job_id: row.job_id,
            rule: &row.rule,
            base_ms: row.base_ms,
            since_ms: row.since_ms,
            due_ms: row.due_ms,
        })
        .collect();
    tx.exec(&MOVE, vec![batch(&rows)?]).await.map(drop)
}

pub async fn put_right(tx: &mut Tx, jobs: &[i64]) -> Result<(), StoreError> {
    tx.exec(&PUT_RIGHT, vec![batch(jobs)?]).await.map(drop)
}

pub async fn slow_runs(tx: &mut Tx, until_ms: i64) -> Result<Vec<SlowRow>, StoreError> {
    tx.all(&SLOW, vec![until_ms.into(), STEP_MAX.into()]).await
}
