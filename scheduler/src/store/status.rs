//! What `systole status` reads: replicas, the database, hosts, and what ended badly. Each statement is bounded.

use super::db::Db;
use super::error::StoreError;
use super::sql::{Dialect, Sql};

/// Replicas and hosts that are read.
const ROWS_MAX: i64 = 10_000;

static REPLICAS: Sql = Sql::new(
    "replicas",
    "SELECT name, version FROM replica WHERE seen_ms > {now} - $1 ORDER BY name LIMIT 1000",
);
static SIZE_POSTGRES: Sql = Sql::new(
    "size_postgres",
    "SELECT CAST(pg_database_size(current_database()) AS BIGINT) AS bytes, current_setting('server_version') AS version",
);
static SIZE_SQLITE: Sql = Sql::new(
    "size_sqlite",
    "SELECT (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size) AS bytes, sqlite_version() AS version",
);
static HOST_STATES: Sql = Sql::new(
    "host_states",
    "SELECT host, {now} - max(seen_ms) AS age_ms, count(*) AS slots, \
       CAST(sum(CASE WHEN leaving AND task_id IS NULL THEN 1 ELSE 0 END) AS BIGINT) AS gone, \
       CAST(sum(CASE WHEN task_id IS NULL THEN 0 ELSE 1 END) AS BIGINT) AS busy, \
       CAST(sum(CASE WHEN cordoned THEN 1 ELSE 0 END) AS BIGINT) AS cordoned, max(fault) AS fault \
     FROM runner GROUP BY host ORDER BY host LIMIT $1",
);
/// The newest of each state, by the index of those that people look for. One that was tried again is not counted.
static ENDED_BADLY: Sql = Sql::new(
    "ended_badly",
    "SELECT kind, count(*) AS n, max(id) AS newest FROM ( \
       SELECT x.id, x.outcome_kind AS kind, x.ended_at_ms, x.retried_by FROM ( \
         SELECT id, outcome_kind, ended_at_ms, retried_by FROM task WHERE status = 7 ORDER BY id DESC LIMIT $2) AS x \
       UNION ALL SELECT y.id, 'skipped', y.ended_at_ms, y.retried_by FROM ( \
         SELECT id, ended_at_ms, retried_by FROM task WHERE status = 8 ORDER BY id DESC LIMIT $2) AS y) AS z \
     WHERE ended_at_ms >= $1 AND retried_by IS NULL GROUP BY kind ORDER BY kind",
);

pub static STATEMENTS: &[&Sql] = &[&REPLICAS, &HOST_STATES, &ENDED_BADLY];

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct ReplicaRow {
    pub name: String,
    pub version: String,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct SizeRow {
    pub bytes: i64,
    pub version: String,
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

impl Db {
    /// Replicas that wrote within the last `within_ms`.
    pub async fn replicas(&self, within_ms: i64) -> Result<Vec<ReplicaRow>, StoreError> {
        self.read("replicas", move |tx| {
            Box::pin(async move { tx.all(&REPLICAS, vec![within_ms.into()]).await })
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

    pub async fn host_states(&self) -> Result<Vec<HostRow>, StoreError> {
        self.read("host_states", |tx| {
            Box::pin(async move { tx.all(&HOST_STATES, vec![ROWS_MAX.into()]).await })
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
