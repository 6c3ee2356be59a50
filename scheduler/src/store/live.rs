//! Numbers of the whole cluster, for monitoring: read from the partial indexes of what is not over.

use super::db::Db;
use super::error::StoreError;
use super::sql::Sql;

static LIVE_TASKS: Sql = Sql::new(
    "live_tasks",
    "SELECT CAST(status AS BIGINT) AS status, count(*) AS count, {now} - min(COALESCE(eligible_at_ms, created_at_ms)) AS oldest_ms \
       FROM task WHERE status = 1 GROUP BY status \
     UNION ALL SELECT CAST(status AS BIGINT), count(*), {now} - min(eligible_at_ms) \
       FROM task WHERE status = 2 GROUP BY status \
     UNION ALL SELECT CAST(status AS BIGINT), count(*), {now} - min(dispatched_at_ms) \
       FROM task WHERE status IN (3, 4, 9) AND set_size IS NULL GROUP BY status",
);

pub static STATEMENTS: &[&Sql] = &[&LIVE_TASKS];

/// Tasks of one state that are not over.
#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub struct LiveTasks {
    pub status: i64,
    pub count: i64,
    /// Age of the oldest in this state, ms.
    pub oldest_ms: Option<i64>,
}

impl Db {
    /// Tasks per state, of the states that are not over.
    pub async fn live_tasks(&self) -> Result<Vec<LiveTasks>, StoreError> {
        self.read("live_tasks", |tx| {
            Box::pin(async move { tx.all(&LIVE_TASKS, vec![]).await })
        })
        .await
    }
}
