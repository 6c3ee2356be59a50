//! What `systole doctor` reads of the database itself.

use super::db::{Class, Db};
use super::error::StoreError;
use super::sql::Sql;

/// By the connection that writes: some of it is a setting of each connection.
static SQLITE: Sql = Sql::new(
    "doctor_sqlite",
    "SELECT (SELECT journal_mode FROM pragma_journal_mode) AS journal_mode, (SELECT synchronous FROM pragma_synchronous) AS synchronous, \
       (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size) AS bytes, \
       (SELECT freelist_count FROM pragma_freelist_count) * (SELECT page_size FROM pragma_page_size) AS free_bytes",
);
static POSTGRES: Sql = Sql::new(
    "doctor_postgres",
    "SELECT current_setting('server_version') AS version, CAST(current_setting('max_connections') AS BIGINT) AS max_connections, \
       CAST(current_setting('superuser_reserved_connections') AS BIGINT) AS reserved, \
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections, \
       current_setting('autovacuum') AS autovacuum, current_setting('fsync') AS fsync, \
       current_setting('synchronous_commit') AS synchronous_commit, current_setting('full_page_writes') AS full_page_writes, \
       CAST(COALESCE((SELECT n_live_tup FROM pg_stat_user_tables WHERE relid = CAST('task' AS regclass)), 0) AS BIGINT) AS live_rows, \
       CAST(COALESCE((SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = CAST('task' AS regclass)), 0) AS BIGINT) AS dead_rows, \
       CAST(COALESCE((SELECT extract(epoch FROM max(clock_timestamp() - xact_start)) * 1000 FROM pg_stat_activity \
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()), 0) AS BIGINT) AS oldest_ms",
);
static LAST_BACKUP: Sql = Sql::new(
    "last_backup",
    "SELECT {now} - max(at_ms) AS age_ms FROM audit WHERE action = 'backup'",
);

pub static STATEMENTS: &[&Sql] = &[&LAST_BACKUP];

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct SqliteRow {
    pub journal_mode: String,
    pub synchronous: i64,
    pub bytes: i64,
    pub free_bytes: i64,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct PostgresRow {
    pub version: String,
    pub max_connections: i64,
    pub reserved: i64,
    pub connections: i64,
    pub autovacuum: String,
    pub fsync: String,
    pub synchronous_commit: String,
    pub full_page_writes: String,
    pub live_rows: i64,
    pub dead_rows: i64,
    pub oldest_ms: i64,
}

#[derive(sqlx::FromRow)]
struct AgeRow {
    age_ms: Option<i64>,
}

impl Db {
    pub async fn sqlite_facts(&self) -> Result<SqliteRow, StoreError> {
        self.write("doctor", Class::Api, |tx| {
            Box::pin(async move { tx.one(&SQLITE, vec![]).await })
        })
        .await
    }

    pub async fn postgres_facts(&self) -> Result<PostgresRow, StoreError> {
        self.read("doctor", |tx| Box::pin(async move { tx.one(&POSTGRES, vec![]).await }))
            .await
    }

    /// How long ago somebody asked for the last backup.
    pub async fn last_backup_ms(&self) -> Result<Option<i64>, StoreError> {
        let row: AgeRow = self
            .read("last_backup", |tx| {
                Box::pin(async move { tx.one(&LAST_BACKUP, vec![]).await })
            })
            .await?;
        Ok(row.age_ms)
    }
}
