//! Numbers of the whole cluster, for monitoring: read from the partial indexes of what is not over.

use super::db::Db;
use super::error::StoreError;
use super::sql::Sql;

/// Each part is the condition of one partial index, word for word: anything less reads the whole table.
static LIVE_TASKS: Sql = Sql::new(
    "live_tasks",
    "SELECT CAST(1 AS BIGINT) AS status, count(*) AS count, CAST(NULL AS BIGINT) AS oldest_ms \
       FROM task WHERE status = 1 AND waiting_ms IS NULL \
     UNION ALL SELECT 1, count(*), NULL FROM task WHERE status = 1 AND waiting_ms IS NOT NULL \
     UNION ALL SELECT 2, count(*), {now} - min(eligible_at_ms) FROM task WHERE status = 2 AND target_host IS NULL \
     UNION ALL SELECT 2, count(*), {now} - min(eligible_at_ms) FROM task WHERE status = 2 AND target_host IS NOT NULL \
     UNION ALL SELECT CAST(status AS BIGINT), count(*), NULL \
       FROM task WHERE status IN (3, 4, 9) AND orphaned_at_ms IS NULL AND set_size IS NULL GROUP BY status \
     UNION ALL SELECT CAST(status AS BIGINT), count(*), NULL \
       FROM task WHERE status IN (3, 4, 9) AND orphaned_at_ms IS NOT NULL AND set_size IS NULL GROUP BY status",
);

pub static STATEMENTS: &[&Sql] = &[&LIVE_TASKS];

/// Tasks of one state that are not over.
#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub struct LiveTasks {
    pub status: i64,
    pub count: i64,
    /// How long the oldest has waited, ms; of QUEUED tasks only.
    pub oldest_ms: Option<i64>,
}

impl Db {
    /// Tasks per state, of the states that are not over.
    pub async fn live_tasks(&self) -> Result<Vec<LiveTasks>, StoreError> {
        let parts: Vec<LiveTasks> = self
            .read("live_tasks", |tx| {
                Box::pin(async move { tx.all(&LIVE_TASKS, vec![]).await })
            })
            .await?;
        let mut rows: Vec<LiveTasks> = Vec::new();
        for part in parts {
            match rows.iter_mut().find(|row| row.status == part.status) {
                Some(row) => {
                    row.count += part.count;
                    row.oldest_ms = row.oldest_ms.max(part.oldest_ms);
                }
                None => rows.push(part),
            }
        }
        Ok(rows)
    }
}
