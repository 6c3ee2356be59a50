//! Hosts that a person says are gone.

use super::db::Tx;
use super::error::StoreError;
use super::sql::Sql;

static HOST_SLOTS: Sql = Sql::new(
    "host_slots",
    "SELECT slot, {now} - seen_ms AS age_ms, task_id, leaving FROM runner WHERE host = $1 ORDER BY slot {for_update}",
);
static DELETE_RUNNERS: Sql = Sql::new("delete_runners", "DELETE FROM runner WHERE host = $1");
static DELETE_HOST: Sql = Sql::new("delete_host", "DELETE FROM host WHERE host = $1");
static DELETE_REPLACED: Sql = Sql::new("delete_replaced", "DELETE FROM replaced WHERE host = $1");
static WAITING_FOR: Sql = Sql::new(
    "waiting_for",
    "SELECT id FROM task WHERE status = 2 AND target_host = $1 ORDER BY eligible_at_ms, id LIMIT $2",
);

pub static STATEMENTS: &[&Sql] = &[
    &HOST_SLOTS,
    &DELETE_RUNNERS,
    &DELETE_HOST,
    &DELETE_REPLACED,
    &WAITING_FOR,
];

/// A slot of the host, locked.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct SlotRow {
    pub slot: i64,
    /// Since its last beat.
    pub age_ms: i64,
    pub task_id: Option<i64>,
    pub leaving: bool,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

/// The slots of a host; locks them.
pub async fn lock_slots(tx: &mut Tx, host: &str) -> Result<Vec<SlotRow>, StoreError> {
    tx.all(&HOST_SLOTS, vec![host.into()]).await
}

/// Deletes all that is known of a host; the caller has its locks and has ended its tasks.
pub async fn delete_host(tx: &mut Tx, host: &str) -> Result<(), StoreError> {
    for sql in [&DELETE_RUNNERS, &DELETE_REPLACED, &DELETE_HOST] {
        tx.exec(sql, vec![host.into()]).await?;
    }
    Ok(())
}

/// QUEUED tasks that only this host may take, the oldest first.
pub async fn waiting_for(tx: &mut Tx, host: &str, limit: i64) -> Result<Vec<i64>, StoreError> {
    let rows: Vec<OnlyId> = tx.all(&WAITING_FOR, vec![host.into(), limit.into()]).await?;
    Ok(rows.into_iter().map(|row| row.id).collect())
}
