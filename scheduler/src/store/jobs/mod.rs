//! Jobs in the database: definitions and their versions. In the order in which rows are locked: tasks, backfills ([`backfill`]), triggers
//! ([`triggers`]), concurrency groups, jobs; then the places that chains have ([`slots`]), and the ledger ([`ledger`]).

pub mod after;
pub mod backfill;
mod cache;
pub mod compiled;
pub mod health;
pub mod kept;
pub mod launch;
pub mod ledger;
pub mod orphans;
pub mod recover;
pub mod routes;
pub mod runs;
pub mod sets;
pub mod settle;
pub mod slots;
pub mod triggers;
pub mod watch;

use super::db::{Tx, batch};
use super::error::StoreError;
use super::sql::Sql;
use serde::Serialize;
use systole_shared::job::Blocking;
use systole_shared::policy::pause::Pause;

macro_rules! job_columns {
    () => {
        "j.id, j.name, j.version, j.definition, j.fingerprint, j.origin, j.code_definition, j.code_fingerprint, j.source, j.lane_id, \
         j.blocking, j.max_concurrent, j.max_waiting, j.concurrency_group, j.paused, j.paused_until_ms, j.paused_by, j.pause_reason, \
         j.paused_at_ms, j.created_at_ms, j.changed_at_ms, j.changed_by"
    };
}

static JOBS_BY_NAME: Sql = Sql::new(
    "jobs_by_name",
    concat!(
        "SELECT ",
        job_columns!(),
        " FROM job AS j JOIN {each:$1} ON {is:j.name,e.value->>'name'} ORDER BY j.id"
    ),
);
static LOCK_JOBS_BY_NAME: Sql = Sql::new(
    "lock_jobs_by_name",
    concat!(
        "SELECT ",
        job_columns!(),
        " FROM job AS j JOIN {each:$1} ON {is:j.name,e.value->>'name'} ORDER BY j.id {for_update_of:j}"
    ),
);
static JOBS_BY_ID: Sql = Sql::new(
    "jobs_by_id",
    concat!(
        "SELECT ",
        job_columns!(),
        " FROM job AS j WHERE j.id {among:$1} ORDER BY j.id"
    ),
);
static LOCK_JOBS: Sql = Sql::new(
    "lock_jobs",
    concat!(
        "SELECT ",
        job_columns!(),
        " FROM job AS j WHERE j.id {among:$1} ORDER BY j.id {for_update}"
    ),
);
static PUT_JOB: Sql = Sql::new(
    "put_job",
    "INSERT INTO job (name, version, definition, fingerprint, origin, code_definition, code_fingerprint, source, lane_id, blocking, \
       max_concurrent, max_waiting, concurrency_group, paused, paused_by, paused_at_ms, created_at_ms, changed_at_ms, changed_by) \
     SELECT e.value->>'name', 1, e.value->>'definition', e.value->>'fingerprint', e.value->>'origin', NULL, NULL, \
       e.value->>'source', CAST(e.value->>'lane_id' AS BIGINT), e.value->>'blocking', CAST(e.value->>'max_concurrent' AS BIGINT), \
       CAST(e.value->>'max_waiting' AS BIGINT), e.value->>'concurrency_group', CAST(e.value->>'paused' AS BIGINT) = 1, \
       CASE WHEN CAST(e.value->>'paused' AS BIGINT) = 1 THEN $2 END, CASE WHEN CAST(e.value->>'paused' AS BIGINT) = 1 THEN {now} END, \
       {now}, {now}, $2 FROM {each:$1} WHERE TRUE ON CONFLICT (name) DO NOTHING RETURNING id",
);
static SET_JOB: Sql = Sql::new(
    "set_job",
    "UPDATE job SET version = version + 1, definition = x.definition, fingerprint = x.fingerprint, origin = x.origin, \
       code_definition = x.code_definition, code_fingerprint = x.code_fingerprint, source = x.source, lane_id = x.lane_id, \
       blocking = x.blocking, max_concurrent = x.max_concurrent, max_waiting = x.max_waiting, \
       concurrency_group = x.concurrency_group, changed_at_ms = {now}, changed_by = $3 \
     FROM (SELECT e.value->>'definition' AS definition, e.value->>'fingerprint' AS fingerprint, e.value->>'origin' AS origin, \
       e.value->>'code_definition' AS code_definition, e.value->>'code_fingerprint' AS code_fingerprint, \
       e.value->>'source' AS source, CAST(e.value->>'lane_id' AS BIGINT) AS lane_id, e.value->>'blocking' AS blocking, \
       CAST(e.value->>'max_concurrent' AS BIGINT) AS max_concurrent, CAST(e.value->>'max_waiting' AS BIGINT) AS max_waiting, \
       e.value->>'concurrency_group' AS concurrency_group FROM {each:$2}) AS x WHERE id = $1",
);
static PUT_VERSION: Sql = Sql::new(
    "put_version",
    "INSERT INTO job_version (job, job_id, version, definition, fingerprint, origin, source, changed_at_ms, changed_by, reason) \
     SELECT name, id, version, definition, fingerprint, origin, source, {now}, $2, $3 FROM job WHERE id = $1",
);
/// A definition of a file that was in force and is not any more.
static WAS_CODE: Sql = Sql::new(
    "was_code",
    "SELECT CAST(count(*) AS BIGINT) AS n FROM job_version WHERE job_id = $1 AND fingerprint = $2 AND origin = 'code'",
);
static VERSIONS: Sql = Sql::new(
    "versions",
    "SELECT version, definition, fingerprint, origin, source, changed_at_ms, changed_by, reason FROM job_version \
     WHERE job = $1 ORDER BY changed_at_ms DESC, version DESC LIMIT $2",
);
/// Numbers begin anew with a job that was deleted and made again: the newest of them.
static VERSION: Sql = Sql::new(
    "version",
    "SELECT version, definition, fingerprint, origin, source, changed_at_ms, changed_by, reason FROM job_version \
     WHERE job = $1 AND version = $2 ORDER BY changed_at_ms DESC LIMIT 1",
);
static LAST_ID: Sql = Sql::new(
    "last_job_id",
    "SELECT job_id AS id FROM job_version WHERE job = $1 ORDER BY changed_at_ms DESC LIMIT 1",
);
static DELETE_JOB: Sql = Sql::new("delete_job", "DELETE FROM job WHERE id = $1");
static PAUSE_JOB: Sql = Sql::new(
    "pause_job",
    "UPDATE job SET paused = ($2 = 1), paused_until_ms = $3, paused_by = $4, pause_reason = $5, paused_at_ms = {now} WHERE id = $1",
);
/// Pauses whose end has passed, once every trigger of the job has its verdicts up to it: one that came later would take what was due
/// in the pause for missed.
static END_JOB_PAUSES: Sql = Sql::new(
    "end_job_pauses",
    "UPDATE job SET paused = FALSE, paused_until_ms = NULL WHERE id {among:$1} AND paused AND paused_until_ms <= $2 \
       AND NOT EXISTS (SELECT 1 FROM job_trigger AS t WHERE t.job_id = job.id AND t.phase = 'waiting' AND t.next_ms <= job.paused_until_ms)",
);

/// Names that may be meant by one that is not there. People mistype the first letter least.
static JOB_NAMES: Sql = Sql::new(
    "job_names",
    "SELECT name FROM job \
     ORDER BY CASE WHEN substr(name, 1, 1) = substr(CAST($1 AS TEXT), 1, 1) THEN 0 ELSE 1 END, name LIMIT 1000",
);

pub static STATEMENTS: &[&Sql] = &[
    &JOB_NAMES,
    &JOBS_BY_NAME,
    &LOCK_JOBS_BY_NAME,
    &JOBS_BY_ID,
    &LOCK_JOBS,
    &PUT_JOB,
    &SET_JOB,
    &PUT_VERSION,
    &WAS_CODE,
    &VERSIONS,
    &VERSION,
    &LAST_ID,
    &DELETE_JOB,
    &PAUSE_JOB,
    &END_JOB_PAUSES,
];

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct JobRow {
    pub id: i64,
    pub name: String,
    pub version: i64,
    pub definition: String,
    pub fingerprint: String,
    pub origin: String,
    pub code_definition: Option<String>,
    pub code_fingerprint: Option<String>,
    pub source: String,
    pub lane_id: i64,
    pub blocking: String,
    pub max_concurrent: i64,
    pub max_waiting: i64,
    pub concurrency_group: Option<String>,
    pub paused: bool,
    pub paused_until_ms: Option<i64>,
    pub paused_by: Option<String>,
    pub pause_reason: Option<String>,
    pub paused_at_ms: Option<i64>,
    pub created_at_ms: i64,
    pub changed_at_ms: i64,
    pub changed_by: String,
}

impl JobRow {
    pub fn pause(&self) -> Pause {
        Pause {
            paused: self.paused,
            until_ms: self.paused_until_ms,
        }
    }

    pub fn blocking(&self) -> Blocking {
        match self.blocking.as_str() {
            "discard_later" => Blocking::DiscardLater,
            "cover_early" => Blocking::CoverEarly,
            "concurrent" => Blocking::Concurrent(u32::try_from(self.max_concurrent).unwrap_or(u32::MAX)),
            _ => Blocking::Serial,
        }
    }

    pub fn max_waiting(&self) -> u32 {
        u32::try_from(self.max_waiting).unwrap_or(0)
    }

    /// The places that its chains take, by their names in the table `slot`.
    pub fn resources(&self) -> Vec<String> {
        let mut resources = Vec::with_capacity(2);
        resources.extend(
            self.concurrency_group
                .as_ref()
                .map(|group| slots::group_resource(group)),
        );
        resources.push(slots::job_resource(&self.name));
        resources
    }
}

/// How a policy is stored: its word, and how many run at once.
pub fn blocking_columns(blocking: Blocking) -> (&'static str, i64) {
    let word = match blocking {
        Blocking::Serial => "serial",
        Blocking::DiscardLater => "discard_later",
        Blocking::CoverEarly => "cover_early",
        Blocking::Concurrent(_) => "concurrent",
    };
    (word, i64::from(blocking.places()))
}

/// A definition as it is written.
#[derive(Clone, Debug, Serialize)]
pub struct JobWrite {
    pub name: String,
    pub definition: String,
    pub fingerprint: String,
    pub origin: &'static str,
    pub code_definition: Option<String>,
    pub code_fingerprint: Option<String>,
    pub source: String,
    pub lane_id: i64,
    pub blocking: &'static str,
    pub max_concurrent: i64,
    pub max_waiting: i64,
    pub concurrency_group: Option<String>,
    /// 0 or 1; only of a new job.
    pub paused: i64,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct VersionRow {
    pub version: i64,
    pub definition: String,
    pub fingerprint: String,
    pub origin: String,
    pub source: String,
    pub changed_at_ms: i64,
    pub changed_by: String,
    pub reason: String,
}

#[derive(Serialize)]
struct NameJson<'a> {
    name: &'a str,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

#[derive(sqlx::FromRow)]
struct OnlyName {
    name: String,
}

#[derive(sqlx::FromRow)]
struct Count {
    n: i64,
}

pub(super) fn names_json(names: &[&str]) -> Result<super::db::Arg, StoreError> {
    batch(&names.iter().map(|&name| NameJson { name }).collect::<Vec<_>>())
}

/// At most 1,000 names of jobs, those first that begin as this one does.
pub async fn names_like(tx: &mut Tx, name: &str) -> Result<Vec<String>, StoreError> {
    let rows: Vec<OnlyName> = tx.all(&JOB_NAMES, vec![name.into()]).await?;
    Ok(rows.into_iter().map(|row| row.name).collect())
}

pub async fn by_name(tx: &mut Tx, names: &[&str]) -> Result<Vec<JobRow>, StoreError> {
    tx.all(&JOBS_BY_NAME, vec![names_json(names)?]).await
}

pub async fn lock_by_name(tx: &mut Tx, names: &[&str]) -> Result<Vec<JobRow>, StoreError> {
    tx.all(&LOCK_JOBS_BY_NAME, vec![names_json(names)?]).await
}

pub async fn by_id(tx: &mut Tx, ids: &[i64]) -> Result<Vec<JobRow>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&JOBS_BY_ID, vec![batch(ids)?]).await
}

/// Reads and locks jobs, in the order of their ids: no chain takes or leaves a place of theirs meanwhile.
pub async fn lock(tx: &mut Tx, ids: &[i64]) -> Result<Vec<JobRow>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&LOCK_JOBS, vec![batch(ids)?]).await
}

/// `None`: a job of this name was stored meanwhile.
pub async fn insert(tx: &mut Tx, job: &JobWrite, by: &str, reason: &str) -> Result<Option<i64>, StoreError> {
    let row: Option<OnlyId> = tx
        .opt(&PUT_JOB, vec![batch(std::slice::from_ref(job))?, by.into()])
        .await?;
    let Some(OnlyId { id }) = row else {
        return Ok(None);
    };
    tx.exec(&PUT_VERSION, vec![id.into(), by.into(), reason.into()]).await?;
    Ok(Some(id))
}

pub async fn update(tx: &mut Tx, id: i64, job: &JobWrite, by: &str, reason: &str) -> Result<(), StoreError> {
    let args = vec![id.into(), batch(std::slice::from_ref(job))?, by.into()];
    tx.exec(&SET_JOB, args).await?;
    tx.exec(&PUT_VERSION, vec![id.into(), by.into(), reason.into()])
        .await
        .map(drop)
}

pub async fn was_code(tx: &mut Tx, id: i64, fingerprint: &str) -> Result<bool, StoreError> {
    let row: Count = tx.one(&WAS_CODE, vec![id.into(), fingerprint.into()]).await?;
    Ok(row.n > 0)
}

pub async fn versions(tx: &mut Tx, name: &str, limit: i64) -> Result<Vec<VersionRow>, StoreError> {
    tx.all(&VERSIONS, vec![name.into(), limit.into()]).await
}

pub async fn version(tx: &mut Tx, name: &str, version: i64) -> Result<Option<VersionRow>, StoreError> {
    tx.opt(&VERSION, vec![name.into(), version.into()]).await
}

/// The id of the job with this name, also of one that was deleted: its runs and its ledger outlive it.
pub async fn known_id(tx: &mut Tx, name: &str) -> Result<Option<i64>, StoreError> {
    if let Some(job) = by_name(tx, &[name]).await?.pop() {
        return Ok(Some(job.id));
    }
    let row: Option<OnlyId> = tx.opt(&LAST_ID, vec![name.into()]).await?;
    Ok(row.map(|row| row.id))
}

pub async fn delete(tx: &mut Tx, id: i64) -> Result<(), StoreError> {
    routes::forget_job(tx, id).await?;
    tx.exec(&DELETE_JOB, vec![id.into()]).await?;
    health::forget(tx, &[id]).await?;
    watch::forget(tx, &[id]).await
}

pub async fn set_paused(tx: &mut Tx, id: i64, pause: Pause, by: &str, reason: &str) -> Result<(), StoreError> {
    let args = vec![
        id.into(),
        i64::from(pause.paused).into(),
        pause.until_ms.into(),
        by.into(),
        reason.into(),
    ];
    tx.exec(&PAUSE_JOB, args).await.map(drop)
}

/// `ids`: jobs with triggers whose verdicts were saved just now.
pub async fn end_pauses(tx: &mut Tx, ids: &[i64], until_ms: i64) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    // Of two who fire triggers of one job at once the second sees what the first has saved.
    lock(tx, ids).await?;
    tx.exec(&END_JOB_PAUSES, vec![batch(ids)?, until_ms.into()])
        .await
        .map(drop)
}

/// One page of jobs, by name. `after`: names that follow this one.
pub async fn list(tx: &mut Tx, filter: &ListFilter, after: &str, limit: i64) -> Result<Vec<JobRow>, StoreError> {
    let mut text = format!("SELECT {} FROM job AS j WHERE j.name > $1", job_columns!());
    let mut args: Vec<super::db::Arg> = vec![after.into()];
    if !filter.prefix.is_empty() {
        args.push(filter.prefix.clone().into());
        let n = args.len();
        text.push_str(&format!(" AND substr(j.name, 1, length(${n})) = ${n}"));
    }
    if !filter.origin.is_empty() {
        args.push(filter.origin.clone().into());
        text.push_str(&format!(" AND j.origin = ${}", args.len()));
    }
    if filter.paused {
        text.push_str(" AND (j.paused OR EXISTS (SELECT 1 FROM job_trigger AS t WHERE t.job_id = j.id AND t.paused))");
    }
    if filter.in_trouble {
        text.push_str(
            " AND (EXISTS (SELECT 1 FROM job_trigger AS t WHERE t.job_id = j.id AND t.phase = 'error') \
             OR EXISTS (SELECT 1 FROM slot AS s WHERE s.lost_host IS NOT NULL AND s.resource = 'job:' || j.name))",
        );
    }
    args.push(limit.into());
    text.push_str(&format!(" ORDER BY j.name LIMIT ${}", args.len()));
    tx.all_text(text, args).await
}

#[derive(Clone, Debug, Default)]
pub struct ListFilter {
    pub prefix: String,
    pub origin: String,
    pub paused: bool,
    pub in_trouble: bool,
}
