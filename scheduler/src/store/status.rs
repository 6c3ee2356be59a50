//! What `systole status` reads: replicas, the database, hosts, and what ended badly. Each statement is bounded.

use super::db::{Class, Db};
use super::error::StoreError;
use super::sql::{Dialect, Sql};

/// Replicas and hosts that are read.
const ROWS_MAX: i64 = 10_000;

static REPLICAS: Sql = Sql::new(
    "replicas",
    "SELECT name, version, job_faults FROM replica WHERE seen_ms > {now} - $1 ORDER BY name LIMIT 1000",
);
static PUT_JOB_FAULTS: Sql = Sql::new(
    "put_job_faults",
    "INSERT INTO replica (name, version, seen_ms, job_faults) VALUES ($1, $2, {now}, $3) \
     ON CONFLICT (name) DO UPDATE SET job_faults = excluded.job_faults",
);
static SIZE_POSTGRES: Sql = Sql::new(
    "size_postgres",
    "SELECT CAST(pg_database_size(current_database()) AS BIGINT) AS bytes, current_setting('server_version') AS version",
);
static SIZE_SQLITE: Sql = Sql::new(
    "size_sqlite",
    "SELECT (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size) AS bytes, sqlite_version() AS version",
);
/// What is acknowledged is safe at a standby when it is flushed there. `flush_lag` is that of the last piece that arrived: where one
/// stalls it stays as it was, so the silence since its last word counts, too.
static STANDBYS: Sql = Sql::new(
    "standbys",
    "SELECT name, state, sync, lag_bytes, CASE WHEN lag_bytes = 0 THEN 0 ELSE GREATEST(flush_ms, silent_ms) END AS lag_ms FROM ( \
       SELECT COALESCE(NULLIF(application_name, ''), CAST(client_addr AS TEXT), CAST(pid AS TEXT)) AS name, \
         COALESCE(state, '') AS state, COALESCE(sync_state, '') AS sync, \
         CAST(pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn) AS BIGINT) AS lag_bytes, \
         CAST(extract(epoch FROM flush_lag) * 1000 AS BIGINT) AS flush_ms, \
         CAST(extract(epoch FROM clock_timestamp() - reply_time) * 1000 AS BIGINT) AS silent_ms \
       FROM pg_stat_replication ORDER BY pid LIMIT 100) AS s ORDER BY lag_bytes DESC NULLS FIRST, name",
);
static HOST_STATES: Sql = Sql::new(
    "host_states",
    "SELECT host, {now} - max(seen_ms) AS age_ms, count(*) AS slots, \
       CAST(sum(CASE WHEN leaving AND task_id IS NULL THEN 1 ELSE 0 END) AS BIGINT) AS gone, \
       CAST(sum(CASE WHEN task_id IS NULL THEN 0 ELSE 1 END) AS BIGINT) AS busy, \
       CAST(sum(CASE WHEN cordoned THEN 1 ELSE 0 END) AS BIGINT) AS cordoned, max(fault) AS fault \
     FROM runner GROUP BY host ORDER BY host LIMIT $1",
);
/// The newest of each state, from the index of those that people look for alone (SQLite takes it only for its own words). One that
/// was tried again is not counted.
static ENDED_BADLY: Sql = Sql::new(
    "ended_badly",
    "SELECT kind, count(*) AS n, max(id) AS newest FROM ( \
       SELECT * FROM (SELECT id, outcome_kind AS kind, ended_at_ms, retried_by FROM task \
         WHERE status IN (7, 8, 10) AND status = 7 ORDER BY id DESC LIMIT $2) AS x \
       UNION ALL SELECT * FROM (SELECT id, 'skipped' AS kind, ended_at_ms, retried_by FROM task \
         WHERE status IN (7, 8, 10) AND status = 8 ORDER BY id DESC LIMIT $2) AS y) AS z \
     WHERE ended_at_ms >= $1 AND retried_by IS NULL GROUP BY kind ORDER BY kind",
);

/// What became of the fires that were expected, of the newest rows of the ledger.
static OCCURRENCES: Sql = Sql::new(
    "occurrences_since",
    "SELECT CAST(COALESCE(sum(CASE WHEN verdict = 'fired' AND reason <> 'manual' THEN fires END), 0) AS BIGINT) AS fired, \
       CAST(COALESCE(sum(CASE WHEN verdict = 'coalesced' THEN fires END), 0) AS BIGINT) AS coalesced, \
       CAST(COALESCE(sum(CASE WHEN verdict = 'skipped' THEN fires END), 0) AS BIGINT) AS skipped, \
       CAST(COALESCE(sum(CASE WHEN verdict = 'fired' AND reason IN ('schedule', 'misfire') AND at_ms - scheduled_ms > $3 \
         THEN fires END), 0) AS BIGINT) AS late, \
       CAST(COALESCE(sum(CASE WHEN verdict = 'fired' AND reason = 'manual' THEN fires END), 0) AS BIGINT) AS asked_for \
     FROM (SELECT verdict, reason, fires, scheduled_ms, at_ms FROM occurrence WHERE at_ms >= $1 ORDER BY at_ms DESC LIMIT $2) AS x",
);
static SKIPPED: Sql = Sql::new(
    "skipped_since",
    "SELECT j.name AS job, x.reason, CAST(sum(x.fires) AS BIGINT) AS fires, min(x.scheduled_ms) AS from_ms, max(x.until_ms) AS to_ms \
     FROM (SELECT job_id, reason, fires, scheduled_ms, until_ms FROM occurrence WHERE verdict = 'skipped' AND at_ms >= $1 \
       ORDER BY at_ms DESC LIMIT $2) AS x JOIN job AS j ON {is:j.id,x.job_id} \
     GROUP BY j.name, x.reason ORDER BY fires DESC, j.name, x.reason LIMIT 20",
);
static IN_ERROR: Sql = Sql::new(
    "triggers_in_error",
    "SELECT j.name AS job, t.name AS what, t.error AS detail FROM job_trigger AS t JOIN job AS j ON {is:j.id,t.job_id} \
     WHERE t.phase = 'error' ORDER BY j.name, t.name LIMIT 1000",
);
static HELD: Sql = Sql::new(
    "held_places",
    "SELECT substr(resource, 5) AS job, CAST(lost_task_id AS TEXT) AS what, lost_host AS detail FROM slot \
     WHERE lost_host IS NOT NULL AND resource LIKE 'job:%' ORDER BY resource, n LIMIT 1000",
);

pub static STATEMENTS: &[&Sql] = &[
    &REPLICAS,
    &PUT_JOB_FAULTS,
    &HOST_STATES,
    &ENDED_BADLY,
    &OCCURRENCES,
    &SKIPPED,
    &IN_ERROR,
    &HELD,
];

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct ReplicaRow {
    pub name: String,
    pub version: String,
    job_faults: String,
}

impl ReplicaRow {
    /// What was wrong in the job files that it read at its start.
    pub fn job_faults(&self) -> Vec<String> {
        serde_json::from_str(&self.job_faults).unwrap_or_default()
    }
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct SizeRow {
    pub bytes: i64,
    pub version: String,
}

/// A copy of the database that follows it.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct StandbyRow {
    pub name: String,
    /// Empty where this user may not see it.
    pub state: String,
    pub sync: String,
    pub lag_bytes: Option<i64>,
    pub lag_ms: Option<i64>,
}

/// The slots of a host together.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct HostRow {
    pub host: String,
    /// Since the last beat of any slot.
    pub age_ms: i64,
    pub slots: i64,
    /// Slots that said goodbye and hold nothing.
    pub gone: i64,
    pub busy: i64,
    pub cordoned: i64,
    pub fault: Option<String>,
}

/// Ends of one kind.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct BadRow {
    pub kind: String,
    pub n: i64,
    pub newest: i64,
}

/// Fires, by their verdicts.
#[derive(Clone, Copy, Debug, Default, sqlx::FromRow)]
pub struct OccurrenceCounts {
    pub fired: i64,
    pub coalesced: i64,
    pub skipped: i64,
    pub late: i64,
    pub asked_for: i64,
}

/// Fires of one job that were left out for one reason.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct SkippedRow {
    pub job: String,
    pub reason: String,
    pub fires: i64,
    pub from_ms: i64,
    pub to_ms: i64,
}

/// Something of a job that needs a person: a trigger and its error, or a task and its host.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct TroubleRow {
    pub job: String,
    pub what: String,
    pub detail: String,
}

/// What `systole status` says of jobs.
#[derive(Clone, Debug, Default)]
pub struct JobsStatus {
    pub counts: OccurrenceCounts,
    pub skipped: Vec<SkippedRow>,
    pub in_error: Vec<TroubleRow>,
    pub held: Vec<TroubleRow>,
}

impl Db {
    /// Replicas that wrote within the last `within_ms`.
    pub async fn replicas(&self, within_ms: i64) -> Result<Vec<ReplicaRow>, StoreError> {
        self.read("replicas", move |tx| {
            Box::pin(async move { tx.all(&REPLICAS, vec![within_ms.into()]).await })
        })
        .await
    }

    /// Replaces what was wrong in the job files of a replica.
    pub async fn put_job_faults(&self, replica: String, faults: Vec<String>) -> Result<(), StoreError> {
        let text = serde_json::Value::from(faults).to_string();
        self.write("put_job_faults", Class::Api, move |tx| {
            let args = vec![
                replica.clone().into(),
                env!("CARGO_PKG_VERSION").into(),
                text.clone().into(),
            ];
            Box::pin(async move { tx.exec(&PUT_JOB_FAULTS, args).await.map(drop) })
        })
        .await
    }

    pub async fn size(&self) -> Result<SizeRow, StoreError> {
        self.read("size", |tx| {
            Box::pin(async move {
                let sql = match tx.dialect() {
                    Dialect::Postgres => &SIZE_POSTGRES,
                    Dialect::Sqlite => &SIZE_SQLITE,
                };
                tx.one(sql, vec![]).await
            })
        })
        .await
    }

    /// Those that stream from a PostgreSQL server; SQLite has none.
    pub async fn standbys(&self) -> Result<Vec<StandbyRow>, StoreError> {
        self.read("standbys", |tx| {
            Box::pin(async move {
                match tx.dialect() {
                    Dialect::Postgres => tx.all(&STANDBYS, vec![]).await,
                    Dialect::Sqlite => Ok(Vec::new()),
                }
            })
        })
        .await
    }

    pub async fn host_states(&self) -> Result<Vec<HostRow>, StoreError> {
        self.read("host_states", |tx| {
            Box::pin(async move { tx.all(&HOST_STATES, vec![ROWS_MAX.into()]).await })
        })
        .await
    }

    /// Of jobs, with verdicts since then, of the newest `look_at` rows of the ledger.
    pub async fn jobs_status(&self, since_ms: i64, look_at: i64, late_ms: i64) -> Result<JobsStatus, StoreError> {
        self.read("jobs_status", move |tx| {
            Box::pin(async move {
                let newest = || vec![since_ms.into(), look_at.into()];
                Ok(JobsStatus {
                    counts: tx
                        .one(&OCCURRENCES, vec![since_ms.into(), look_at.into(), late_ms.into()])
                        .await?,
                    skipped: tx.all(&SKIPPED, newest()).await?,
                    in_error: tx.all(&IN_ERROR, vec![]).await?,
                    held: tx.all(&HELD, vec![]).await?,
                })
            })
        })
        .await
    }

    /// What ended badly since then, of the newest `look_at` of each state.
    pub async fn ended_badly(&self, since_ms: i64, look_at: i64) -> Result<Vec<BadRow>, StoreError> {
        self.read("ended_badly", move |tx| {
            Box::pin(async move { tx.all(&ENDED_BADLY, vec![since_ms.into(), look_at.into()]).await })
        })
        .await
    }
}
