//! What the reaper reads: who was last heard of and when, and live tasks that no runner holds.

use super::db::{Class, Db, Tx};
use super::error::StoreError;
use super::sql::Sql;

static RUNNERS_SEEN: Sql = Sql::new(
    "runners_seen",
    "SELECT r.host, r.slot, r.start_no, r.seq, {now} - r.seen_ms AS age_ms, r.task_id, r.leaving FROM runner AS r",
);
static LOCK_RUNNER_AS_SEEN: Sql = Sql::new(
    "lock_runner_as_seen",
    "SELECT task_id AS id FROM runner WHERE host = $1 AND slot = $2 AND start_no = $3 AND seq = $4 AND task_id IS NOT NULL {for_update}",
);
static ORPHANS: Sql = Sql::new(
    "orphans",
    "SELECT id, {now} - orphaned_at_ms AS age_ms FROM task WHERE orphaned_at_ms IS NOT NULL AND status IN (3, 4, 9) LIMIT 10000",
);
/// Live tasks that no runner row holds do not occur, but for broadcasts, which stand for their members. If one did, it would never end: it goes to the reaper.
static ORPHAN_STRAYS: Sql = Sql::new(
    "orphan_strays",
    "UPDATE task SET orphaned_at_ms = {now} WHERE status IN (3, 4, 9) AND orphaned_at_ms IS NULL AND set_size IS NULL AND NOT EXISTS ( \
       SELECT 1 FROM runner AS r WHERE r.host = task.host AND r.slot = task.slot AND r.task_id = task.id) RETURNING id",
);
static TERMINATING_TASKS: Sql = Sql::new(
    "terminating_tasks",
    "SELECT id, host, slot, start_no FROM task WHERE status = 9 LIMIT 10000",
);

pub static STATEMENTS: &[&Sql] = &[
    &RUNNERS_SEEN,
    &LOCK_RUNNER_AS_SEEN,
    &ORPHANS,
    &ORPHAN_STRAYS,
    &TERMINATING_TASKS,
];

/// A runner as the reaper reads it.
#[derive(Clone, Debug)]
pub struct SeenRow {
    pub host: String,
    pub slot: i64,
    pub start_no: i64,
    pub seq: i64,
    pub age_ms: i64,
    pub task_id: Option<i64>,
    pub leaving: bool,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct OrphanRow {
    pub id: i64,
    pub age_ms: i64,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct TerminatingRow {
    pub id: i64,
    pub host: String,
    pub slot: i64,
    pub start_no: i64,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

pub(super) async fn read_terminating(tx: &mut Tx) -> Result<Vec<TerminatingRow>, StoreError> {
    tx.all(&TERMINATING_TASKS, vec![]).await
}

impl Db {
    pub async fn runners_seen(&self) -> Result<Vec<SeenRow>, StoreError> {
        // By their places: with ten thousand runners, columns that are found by name are the larger part of a pass.
        type Row = (String, i64, i64, i64, i64, Option<i64>, bool);
        let rows: Vec<Row> = self
            .read("reaper", |tx| {
                Box::pin(async move { tx.all(&RUNNERS_SEEN, vec![]).await })
            })
            .await?;
        let seen = |(host, slot, start_no, seq, age_ms, task_id, leaving): Row| SeenRow {
            host,
            slot,
            start_no,
            seq,
            age_ms,
            task_id,
            leaving,
        };
        Ok(rows.into_iter().map(seen).collect())
    }

    /// Hands live tasks that no runner row holds to the reaper. Each is a bug, and named as such.
    pub async fn orphan_strays(&self) -> Result<Vec<i64>, StoreError> {
        let rows: Vec<OnlyId> = self
            .write("orphan_strays", Class::Api, |tx| {
                Box::pin(async move { tx.all(&ORPHAN_STRAYS, vec![]).await })
            })
            .await?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }

    pub async fn orphans(&self) -> Result<Vec<OrphanRow>, StoreError> {
        self.read("reaper", |tx| Box::pin(async move { tx.all(&ORPHANS, vec![]).await }))
            .await
    }

    /// Tasks whose runners must be told to end them.
    pub async fn terminating_tasks(&self) -> Result<Vec<TerminatingRow>, StoreError> {
        self.read("terminating", |tx| Box::pin(read_terminating(tx))).await
    }
}

/// The task of a runner row that is still as the reaper saw it; locks the row.
pub async fn lock_as_seen(
    tx: &mut Tx,
    host: &str,
    slot: i64,
    start_no: i64,
    seq: i64,
) -> Result<Option<i64>, StoreError> {
    let row: Option<OnlyId> = tx
        .opt(
            &LOCK_RUNNER_AS_SEEN,
            vec![host.into(), slot.into(), start_no.into(), seq.into()],
        )
        .await?;
    Ok(row.map(|row| row.id))
}
