//! Runs whose host the scheduler chooses. They are QUEUED for the host '' until then, which no runner is called.

use super::super::db::{Db, Tx, batch};
use super::super::error::StoreError;
use super::super::sql::Sql;
use serde::Serialize;
use std::collections::HashMap;
use systole_shared::policy::lane::Labels;
use systole_shared::policy::route::ROUTE_WAIT_MS;

/// A choice that has not found a host is made again after this, ms.
pub const AGAIN_MS: i64 = 2_000;
/// Runs of one transaction.
pub const BATCH_MAX: i64 = 256;

/// No host yet; one that did not take it up; or one that cannot start anything any more; or a choice that lies ahead, which was made by a
/// clock that was wrong. `$1`: a host is live so long after its last
/// beat, `$2` and `$3`: [`AGAIN_MS`] and [`ROUTE_WAIT_MS`]. Only the oldest choices are looked at, so that a pass costs the same however
/// long the queue is; the others are looked at when they are as old.
macro_rules! is_due {
    () => {
        "task.status = 2 AND task.routed_ms IS NOT NULL AND task.id {among_query:SELECT q.id FROM (SELECT id, routed_ms FROM task \
           WHERE status = 2 AND routed_ms IS NOT NULL AND set_size IS NULL ORDER BY routed_ms LIMIT 2000) AS q} \
         AND (task.routed_ms > {now} + $2 OR (task.target_host = '' AND task.routed_ms <= {now} - $2) OR (task.target_host <> '' AND (task.routed_ms <= {now} - $3 \
           OR NOT EXISTS (SELECT 1 FROM runner AS r WHERE r.host = task.target_host AND NOT r.cordoned AND r.fault IS NULL \
             AND NOT r.leaving AND r.seen_ms >= {now} - $1))))"
    };
}

pub(in crate::store) static ANY_DUE: Sql = Sql::new(
    "any_route_due",
    concat!("SELECT EXISTS (SELECT 1 FROM task WHERE ", is_due!(), ") AS due"),
);
/// Those that a claim has in hand are left to it.
static LOCK_DUE: Sql = Sql::new(
    "lock_routes_due",
    concat!(
        "SELECT id, job_id, lane_id, target_host, route, route_key, avoid_host, routed_ms, \
           (SELECT l.queue FROM lane AS l WHERE l.id = task.lane_id) AS queue, \
           (SELECT l.require FROM lane AS l WHERE l.id = task.lane_id) AS require \
         FROM task WHERE ",
        is_due!(),
        " ORDER BY routed_ms, id LIMIT $4 {skip_locked}"
    ),
);
/// Without a host it is everybody's from now on: its place in the lane is that of now, since scans do not look behind, and its queue
/// timeout goes on.
static DECIDE: Sql = Sql::new(
    "decide_routes",
    "UPDATE task SET target_host = x.host, routed_ms = CASE WHEN x.host IS NOT NULL THEN {now} END, \
       route = CASE WHEN x.host IS NOT NULL THEN task.route END, avoid_host = CASE WHEN x.avoids = 1 THEN task.avoid_host END, \
       eligible_at_ms = CASE WHEN x.host IS NOT NULL THEN task.eligible_at_ms ELSE {now} END, \
       queue_timeout_ms = CASE WHEN x.host IS NOT NULL OR task.queue_timeout_ms IS NULL THEN task.queue_timeout_ms \
         WHEN task.queue_timeout_ms > {now} - task.eligible_at_ms THEN task.queue_timeout_ms - ({now} - task.eligible_at_ms) ELSE 1 END \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, e.value->>'host' AS host, CAST(e.value->>'avoids' AS BIGINT) AS avoids \
       FROM {each:$1}) AS x \
     WHERE {is:task.id,x.id} AND task.status + 0 = 2",
);
/// Tasks that wait for a host by name.
static PROMISED: Sql = Sql::new(
    "promised",
    "SELECT q.target_host AS host, CAST(0 AS BIGINT) AS job_id, CAST(count(*) AS BIGINT) AS n FROM ( \
       SELECT target_host FROM task WHERE status = 2 AND target_host IS NOT NULL AND target_host <> '' LIMIT 100000) AS q \
     GROUP BY q.target_host",
);
/// What runs of some jobs, or was promised to a host, by host.
static OF_JOBS: Sql = Sql::new(
    "of_jobs_by_host",
    "SELECT q.host, q.job_id, CAST(count(*) AS BIGINT) AS n FROM ( \
       SELECT host, job_id FROM task WHERE status IN (3, 4, 9) AND orphaned_at_ms IS NULL AND job_id {among:$1} \
       UNION ALL SELECT target_host, job_id FROM task WHERE status = 2 AND routed_ms IS NOT NULL AND job_id {among:$1}) AS q \
     GROUP BY q.host, q.job_id",
);
static USES: Sql = Sql::new(
    "route_uses",
    "SELECT job_id, host, turn, uses FROM route_use WHERE job_id {among:$1}",
);
static PUT_USES: Sql = Sql::new(
    "put_route_uses",
    "INSERT INTO route_use (job_id, host, turn, uses) SELECT CAST(e.value->>'job_id' AS BIGINT), e.value->>'host', \
       CAST(e.value->>'turn' AS BIGINT), CAST(e.value->>'uses' AS BIGINT) FROM {each:$1} WHERE TRUE \
     ON CONFLICT (job_id, host) DO UPDATE SET turn = excluded.turn, uses = excluded.uses",
);
static FORGET_JOB: Sql = Sql::new("forget_route_uses", "DELETE FROM route_use WHERE job_id = $1");

pub static STATEMENTS: &[&Sql] = &[
    &ANY_DUE,
    &LOCK_DUE,
    &DECIDE,
    &PROMISED,
    &OF_JOBS,
    &USES,
    &PUT_USES,
    &FORGET_JOB,
];

/// A run whose host is to be chosen; locked.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct RouteRow {
    pub id: i64,
    pub job_id: Option<i64>,
    pub lane_id: i64,
    /// Empty: none was chosen yet.
    pub target_host: String,
    pub route: Option<String>,
    pub route_key: Option<String>,
    pub avoid_host: Option<String>,
    /// When a host was looked for last; 0: never.
    pub routed_ms: i64,
    pub queue: Option<String>,
    require: Option<String>,
}

impl RouteRow {
    pub fn require(&self) -> Labels {
        let text = self.require.as_deref().unwrap_or("{}");
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// What was chosen for a run.
#[derive(Clone, Debug, Serialize)]
pub struct Decision {
    pub id: i64,
    /// `None`: whoever comes first takes it. Empty: there is none now.
    pub host: Option<String>,
    /// 0 or 1: it still avoids where it ran last.
    pub avoids: i64,
}

#[derive(sqlx::FromRow)]
struct Due {
    due: bool,
}

#[derive(sqlx::FromRow)]
struct Count {
    host: Option<String>,
    job_id: Option<i64>,
    n: i64,
}

#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct UseRow {
    pub job_id: i64,
    pub host: String,
    pub turn: i64,
    pub uses: i64,
}

/// Tasks by job and host; job 0: of all jobs.
pub type Counts = HashMap<(i64, String), u32>;

fn counts(rows: Vec<Count>) -> Counts {
    rows.into_iter()
        .filter_map(|row| Some(((row.job_id?, row.host?), u32::try_from(row.n).unwrap_or(u32::MAX))))
        .collect()
}

pub async fn lock_due(tx: &mut Tx, live_ms: i64) -> Result<Vec<RouteRow>, StoreError> {
    let args = vec![live_ms.into(), AGAIN_MS.into(), ROUTE_WAIT_MS.into(), BATCH_MAX.into()];
    tx.all(&LOCK_DUE, args).await
}

pub async fn decide(tx: &mut Tx, decisions: &[Decision]) -> Result<(), StoreError> {
    tx.exec(&DECIDE, vec![batch(decisions)?]).await.map(drop)
}

pub async fn promised(tx: &mut Tx) -> Result<Counts, StoreError> {
    tx.all(&PROMISED, vec![]).await.map(counts)
}

pub async fn of_jobs(tx: &mut Tx, jobs: &[i64]) -> Result<Counts, StoreError> {
    if jobs.is_empty() {
        return Ok(Counts::new());
    }
    tx.all(&OF_JOBS, vec![batch(jobs)?]).await.map(counts)
}

pub async fn uses(tx: &mut Tx, jobs: &[i64]) -> Result<Vec<UseRow>, StoreError> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&USES, vec![batch(jobs)?]).await
}

pub async fn put_uses(tx: &mut Tx, rows: &[UseRow]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    tx.exec(&PUT_USES, vec![batch(rows)?]).await.map(drop)
}

pub async fn forget_job(tx: &mut Tx, id: i64) -> Result<(), StoreError> {
    tx.exec(&FORGET_JOB, vec![id.into()]).await.map(drop)
}

impl Db {
    /// Without a write, so that an idle database stays idle.
    pub async fn any_route_due(&self, live_ms: i64) -> Result<bool, StoreError> {
        let row: Due = self
            .read("any_route_due", move |tx| {
                let args = vec![live_ms.into(), AGAIN_MS.into(), ROUTE_WAIT_MS.into()];
                Box::pin(async move { tx.one(&ANY_DUE, args).await })
            })
            .await?;
        Ok(row.due)
    }
}
