//! Changes by people and by time: cancel, admission of delayed tasks, retention.

use super::db::{Class, Db, Tx, batch};
use super::error::StoreError;
use super::sql::Sql;
use std::sync::Arc;
use systole_shared::limits::KEY_KEEP_MS;
use systole_shared::task::TaskState;

static CANCEL_HELD: Sql = Sql::new(
    "cancel_held",
    "UPDATE task SET status = 9, terminating = 'user', cancelled_by = $2, cancel_reason = $3 \
     WHERE status + 0 IN (3, 4, 9) AND (terminating IS NULL OR terminating <> 'user') \
       AND id {among:$1} RETURNING id, host, slot, start_no",
);
/// A newer run of the job takes its place; a person's cancel is stronger.
static SUPERSEDE_HELD: Sql = Sql::new(
    "supersede_held",
    "UPDATE task SET status = 9, terminating = 'superseded' WHERE status + 0 IN (3, 4, 9) \
       AND (terminating IS NULL OR terminating NOT IN ('superseded', 'user')) AND id {among:$1} RETURNING id, host, slot, start_no",
);
static ADMIT: Sql = Sql::new(
    "admit",
    "UPDATE task SET status = 2, eligible_at_ms = {now} WHERE status + 0 = 1 AND id IN ( \
       SELECT id FROM task WHERE status = 1 AND waiting_ms IS NULL AND run_at_ms <= {now} AND {now} <= $1 \
         AND (job_id IS NULL OR EXISTS (SELECT 1 FROM job AS j WHERE j.id = task.job_id)) ORDER BY run_at_ms, id LIMIT 1000 {skip_locked}) \
     RETURNING id, lane_id, target_host",
);
pub(super) static NEXT_DUE: Sql = Sql::new(
    "next_due",
    "SELECT min(run_at_ms) - {now} AS n FROM task WHERE status = 1 AND waiting_ms IS NULL",
);
static LANES_WITH_WORK: Sql = Sql::new(
    "lanes_with_work",
    "SELECT id FROM lane WHERE EXISTS (SELECT 1 FROM task WHERE task.status = 2 AND task.target_host IS NULL AND task.lane_id = lane.id)",
);
static TARGETS_WITH_WORK: Sql = Sql::new(
    "targets_with_work",
    "SELECT DISTINCT target_host AS host FROM task WHERE status = 2 AND target_host IS NOT NULL AND target_host <> '' LIMIT 10000",
);
static OLD_TASKS: Sql = Sql::new(
    "old_tasks",
    "SELECT t.id, t.status, t.created_at_ms, t.ended_at_ms, {now} AS now_ms, t.output_keep_ms, c.status AS callback FROM task AS t \
     LEFT JOIN callback AS c ON c.task_id = t.id WHERE t.id > $1 ORDER BY t.id LIMIT $2",
);
static DELETE_CHUNKS: Sql = Sql::new("delete_chunks", "DELETE FROM output_chunk WHERE task_id {among:$1}");
static DELETE_OUTPUT: Sql = Sql::new("delete_output", "DELETE FROM output WHERE task_id {among:$1}");
static DELETE_TAGS: Sql = Sql::new("delete_tags", "DELETE FROM task_tag WHERE task_id {among:$1}");
static DELETE_CALLBACKS: Sql = Sql::new("delete_callbacks", "DELETE FROM callback WHERE task_id {among:$1}");
static DELETE_TASKS: Sql = Sql::new(
    "delete_tasks",
    "DELETE FROM task WHERE status IN (6, 7, 8, 10) AND id {among:$1}",
);
/// Dropped output keeps its row, all of it a gap: the length of the stream stays known.
static OLDEST_OUTPUT: Sql = Sql::new(
    "oldest_output",
    "SELECT o.task_id AS id, CAST(sum(o.stored_bytes) AS BIGINT) AS bytes FROM output AS o JOIN task AS t ON t.id = o.task_id \
     WHERE o.stored_bytes > 0 AND t.status IN (6, 7, 8, 10) GROUP BY o.task_id ORDER BY o.task_id LIMIT $1",
);
static EMPTY_OUTPUT: Sql = Sql::new(
    "empty_output",
    "UPDATE output SET total_bytes = COALESCE(total_bytes, stored_bytes + gap_bytes), stored_bytes = 0, gap_start = 0, \
       gap_bytes = COALESCE(total_bytes, stored_bytes + gap_bytes) WHERE task_id {among:$1}",
);
static OUTPUT_EXPIRED: Sql = Sql::new(
    "output_expired",
    "SELECT id FROM task WHERE output_keep_ms IS NOT NULL AND ended_at_ms IS NOT NULL \
       AND ended_at_ms + output_keep_ms <= (SELECT {now} + 0) AND (SELECT {now} + 0) <= $2 AND status IN (6, 7, 8, 10) \
     ORDER BY ended_at_ms + output_keep_ms LIMIT $1 {skip_locked}",
);
/// Done: out of the index of what is still to be looked at.
static OUTPUT_KEPT: Sql = Sql::new(
    "output_kept",
    "UPDATE task SET output_keep_ms = NULL WHERE id {among:$1}",
);
static DELETE_KEYS: Sql = Sql::new(
    "delete_keys",
    "DELETE FROM submission WHERE key IN (SELECT key FROM submission WHERE (created_at_ms < {now} - $1 AND created_at_ms < $2 - $1) \
       OR (created_at_ms < {now} - 3600000 AND created_at_ms < $2 - 3600000 AND key LIKE 'batch:%') ORDER BY created_at_ms LIMIT 5000)",
);

pub static STATEMENTS: &[&Sql] = &[
    &CANCEL_HELD,
    &SUPERSEDE_HELD,
    &ADMIT,
    &NEXT_DUE,
    &LANES_WITH_WORK,
    &TARGETS_WITH_WORK,
    &OLD_TASKS,
    &DELETE_CHUNKS,
    &DELETE_OUTPUT,
    &DELETE_TAGS,
    &DELETE_CALLBACKS,
    &DELETE_TASKS,
    &OLDEST_OUTPUT,
    &EMPTY_OUTPUT,
    &OUTPUT_EXPIRED,
    &OUTPUT_KEPT,
    &DELETE_KEYS,
];

/// A task whose runner must be told.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Held {
    pub id: i64,
    pub host: String,
    pub slot: i64,
    pub start_no: i64,
}

/// DISPATCHED, RUNNING and TERMINATING(weaker reason) → TERMINATING(user). Returns those that changed.
pub async fn cancel_held(tx: &mut Tx, ids: &[i64], by: &str, reason: Option<String>) -> Result<Vec<Held>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&CANCEL_HELD, vec![batch(ids)?, by.into(), reason.into()]).await
}

/// DISPATCHED, RUNNING and TERMINATING(weaker reason) → TERMINATING(superseded). Returns those that changed.
pub async fn supersede_held(tx: &mut Tx, ids: &[i64]) -> Result<Vec<Held>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&SUPERSEDE_HELD, vec![batch(ids)?]).await
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Admitted {
    pub id: i64,
    pub lane_id: i64,
    pub target_host: Option<String>,
}

#[derive(sqlx::FromRow)]
struct Number {
    n: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

#[derive(sqlx::FromRow)]
struct OnlyHost {
    host: String,
}

#[derive(sqlx::FromRow)]
struct OldTask {
    id: i64,
    status: i16,
    created_at_ms: i64,
    ended_at_ms: Option<i64>,
    now_ms: i64,
    callback: Option<String>,
    output_keep_ms: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct OutputSize {
    id: i64,
    bytes: i64,
}

/// Output that one step drops at most, and the last task it touches: the writer must not be held for long.
const OUTPUT_STEP_BYTES: u64 = 32 * 1024 * 1024;

/// What one step of the clean-up did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleaned {
    pub deleted: u64,
    /// Go on from this id; `None`: nothing older is left.
    pub cursor: Option<i64>,
}

/// Lanes and target hosts with QUEUED tasks.
pub(super) async fn read_work(tx: &mut Tx) -> Result<(Vec<i64>, Vec<String>), StoreError> {
    let lanes: Vec<OnlyId> = tx.all(&LANES_WITH_WORK, vec![]).await?;
    let targets: Vec<OnlyHost> = tx.all(&TARGETS_WITH_WORK, vec![]).await?;
    Ok((
        lanes.into_iter().map(|row| row.id).collect(),
        targets.into_iter().map(|row| row.host).collect(),
    ))
}

impl Db {
    /// Delayed tasks whose time has come, and is not after `until_ms`, become QUEUED, a bounded number. Also: ms until the
    /// next is due.
    pub async fn admit(&self, until_ms: i64) -> Result<(Vec<Admitted>, Option<i64>), StoreError> {
        self.write("admit", Class::Api, move |tx| {
            Box::pin(async move {
                let due: Number = tx.one(&NEXT_DUE, vec![]).await?;
                if due.n.is_none_or(|n| n > 0) {
                    return Ok((Vec::new(), due.n));
                }
                let admitted: Vec<Admitted> = tx.all(&ADMIT, vec![until_ms.into()]).await?;
                let next: Number = tx.one(&NEXT_DUE, vec![]).await?;
                Ok((admitted, next.n))
            })
        })
        .await
    }

    /// ms until the next delayed task is due, without a write.
    pub async fn next_due(&self) -> Result<Option<i64>, StoreError> {
        let row: Number = self
            .read("next_due", |tx| {
                Box::pin(async move { tx.one(&NEXT_DUE, vec![]).await })
            })
            .await?;
        Ok(row.n)
    }

    /// Lanes and target hosts with QUEUED tasks, from the beginning of their ranges.
    pub async fn work(&self) -> Result<(Vec<i64>, Vec<String>), StoreError> {
        self.read("work", |tx| Box::pin(read_work(tx))).await
    }

    /// One bounded step: deletes ended tasks among the next 100 after `cursor` that ended before `keep_ms` ago.
    /// Ids rise with creation, so the walk stops at the first task that is too young to have expired.
    pub async fn clean_tasks(&self, cursor: i64, keep_ms: i64, until_ms: i64) -> Result<Cleaned, StoreError> {
        const STEP: i64 = 100;
        let rows: Vec<OldTask> = self
            .read("old_tasks", move |tx| {
                Box::pin(async move { tx.all(&OLD_TASKS, vec![cursor.into(), STEP.into()]).await })
            })
            .await?;
        let full = i64::try_from(rows.len()).unwrap_or(0) == STEP;
        let last = rows.last().map(|row| row.id);
        let limit = |row: &OldTask| row.now_ms.min(until_ms) - keep_ms;
        let young = rows.last().is_none_or(|row| row.created_at_ms > limit(row));
        let expired: Vec<i64> = rows
            .iter()
            .filter(|row| TaskState::from_number(row.status).is_some_and(TaskState::is_terminal))
            .filter(|row| {
                // Not before its output is to go.
                let longer = row.output_keep_ms.map_or(0, |output_ms| (output_ms - keep_ms).max(0));
                row.ended_at_ms.is_some_and(|ended| ended < limit(row) - longer)
            })
            .filter(|row| row.callback.as_deref() != Some("pending"))
            .map(|row| row.id)
            .collect();
        let deleted = expired.len() as u64;
        self.delete_tasks(expired).await?;
        Ok(Cleaned {
            deleted,
            cursor: if full && !young { last } else { None },
        })
    }

    async fn delete_tasks(&self, ids: Vec<i64>) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let ids = Arc::new(ids);
        self.write("delete_tasks", Class::Api, move |tx| {
            let ids = Arc::clone(&ids);
            Box::pin(async move {
                let ids = batch(&ids)?;
                for sql in [
                    &DELETE_CHUNKS,
                    &DELETE_OUTPUT,
                    &DELETE_TAGS,
                    &DELETE_CALLBACKS,
                    &DELETE_TASKS,
                ] {
                    tx.exec(sql, vec![ids.clone()]).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Drops the stored output of the oldest ended tasks, at least `excess` bytes if there are, in a bounded
    /// step. Returns what was freed.
    pub async fn drop_oldest_output(&self, excess: u64) -> Result<u64, StoreError> {
        self.write("drop_output", Class::Api, move |tx| {
            Box::pin(async move {
                let rows: Vec<OutputSize> = tx.all(&OLDEST_OUTPUT, vec![200.into()]).await?;
                let mut freed = 0;
                let mut ids = Vec::new();
                for row in rows {
                    if freed >= excess.min(OUTPUT_STEP_BYTES) {
                        break;
                    }
                    freed += u64::try_from(row.bytes).unwrap_or(0);
                    ids.push(row.id);
                }
                if !ids.is_empty() {
                    let ids = batch(&ids)?;
                    tx.exec(&DELETE_CHUNKS, vec![ids.clone()]).await?;
                    tx.exec(&EMPTY_OUTPUT, vec![ids]).await?;
                }
                Ok(freed)
            })
        })
        .await
    }

    /// Drops the output of tasks whose own time for it is over, a bounded step. Returns how many.
    pub async fn drop_expired_output(&self, until_ms: i64) -> Result<usize, StoreError> {
        const STEP: i64 = 50;
        self.write("drop_output", Class::Api, move |tx| {
            Box::pin(async move {
                let rows: Vec<OnlyId> = tx.all(&OUTPUT_EXPIRED, vec![STEP.into(), until_ms.into()]).await?;
                let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
                if !ids.is_empty() {
                    let ids = batch(&ids)?;
                    tx.exec(&DELETE_CHUNKS, vec![ids.clone()]).await?;
                    tx.exec(&EMPTY_OUTPUT, vec![ids.clone()]).await?;
                    tx.exec(&OUTPUT_KEPT, vec![ids]).await?;
                }
                Ok(ids.len())
            })
        })
        .await
    }

    /// Forgets idempotency keys that are old enough.
    pub async fn clean_keys(&self, until_ms: i64) -> Result<u64, StoreError> {
        self.write("clean_keys", Class::Api, move |tx| {
            Box::pin(async move { tx.exec(&DELETE_KEYS, vec![KEY_KEEP_MS.into(), until_ms.into()]).await })
        })
        .await
    }
}
