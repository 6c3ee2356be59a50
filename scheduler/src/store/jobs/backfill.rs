//! Backfills: what the ledger has of the slots that are to be made up, and the rows of the backfills themselves.
//!
//! Each slot of a backfill gets a row of the ledger of its own, with the verdict that it had, when the backfill is made; it
//! becomes `fired` in the transaction that makes its task. So at any moment a slot has one verdict, and it is the true one.

use super::super::db::{Db, Tx, batch};
use super::super::error::StoreError;
use super::super::sql::Sql;
use super::launch::{self, Launched, Wish};
use super::slots::Places;
use serde::Serialize;

/// Rows of the ledger for a trigger, from the last one that begins before the time asked for. Ranges do not overlap.
static LEDGER: Sql = Sql::new(
    "ledger_between",
    "SELECT id, scheduled_ms, until_ms, fires, verdict, reason, into_ms, blocked_by, CAST(CASE WHEN misfired THEN 1 ELSE 0 END AS BIGINT) AS misfired, \
       at_ms, backfill_id FROM occurrence WHERE trigger_id = $1 AND parent_root = 0 AND scheduled_ms <= $3 \
       AND scheduled_ms >= COALESCE((SELECT max(o.scheduled_ms) FROM occurrence AS o WHERE o.trigger_id = $1 AND o.parent_root = 0 \
         AND o.scheduled_ms < $2), $2) ORDER BY scheduled_ms LIMIT $4",
);
static CUT: Sql = Sql::new("cut_occurrences", "DELETE FROM occurrence WHERE id {among:$1}");
static PUT_PIECES: Sql = Sql::new(
    "put_pieces",
    "INSERT INTO occurrence (job_id, trigger_id, trigger_name, scheduled_ms, until_ms, fires, verdict, reason, into_ms, blocked_by, \
       misfired, at_ms, backfill_id) \
     SELECT CAST(e.value->>'job_id' AS BIGINT), CAST(e.value->>'trigger_id' AS BIGINT), e.value->>'trigger_name', \
       CAST(e.value->>'scheduled_ms' AS BIGINT), CAST(e.value->>'until_ms' AS BIGINT), CAST(e.value->>'fires' AS BIGINT), \
       e.value->>'verdict', e.value->>'reason', CAST(e.value->>'into_ms' AS BIGINT), CAST(e.value->>'blocked_by' AS BIGINT), \
       CAST(e.value->>'misfired' AS BIGINT) = 1, COALESCE(CAST(e.value->>'at_ms' AS BIGINT), {now}), \
       CAST(e.value->>'backfill_id' AS BIGINT) FROM {each:$1} WHERE TRUE ON CONFLICT DO NOTHING",
);
static JOIN: Sql = Sql::new(
    "join_backfill",
    "UPDATE occurrence SET backfill_id = $2 WHERE id {among:$1} AND verdict <> 'fired' AND backfill_id IS NULL",
);
static PUT: Sql = Sql::new(
    "put_backfill",
    "INSERT INTO backfill (job_id, job, trigger_name, from_ms, to_ms, fires, max_concurrent, state, created_by, reason, created_ms) \
     SELECT CAST(e.value->>'job_id' AS BIGINT), e.value->>'job', e.value->>'trigger', CAST(e.value->>'from_ms' AS BIGINT), \
       CAST(e.value->>'to_ms' AS BIGINT), CAST(e.value->>'fires' AS BIGINT), CAST(e.value->>'max_concurrent' AS BIGINT), 'running', \
       e.value->>'by', e.value->>'reason', {now} FROM {each:$1} RETURNING id",
);
macro_rules! columns {
    () => {
        "id, job_id, job, trigger_name, from_ms, to_ms, fires, made, max_concurrent, state, created_by, reason, created_ms, ended_ms, ended_by"
    };
}
static LOCK_RUNNING: Sql = Sql::new(
    "lock_backfill",
    concat!(
        "SELECT ",
        columns!(),
        " FROM backfill WHERE id = $1 AND state = 'running' {skip_locked}"
    ),
);
pub(in crate::store) static RUNNING: Sql = Sql::new(
    "running_backfills",
    "SELECT id FROM backfill WHERE state = 'running' ORDER BY id LIMIT 100",
);
static OF_ID: Sql = Sql::new(
    "backfill_of_id",
    concat!("SELECT ", columns!(), " FROM backfill WHERE id = $1"),
);
static LIST: Sql = Sql::new(
    "list_backfills",
    concat!(
        "SELECT ",
        columns!(),
        " FROM backfill WHERE ($1 = '' OR job = $1) ORDER BY id DESC LIMIT $2"
    ),
);
static PENDING: Sql = Sql::new(
    "pending_fills",
    "SELECT id, trigger_id, trigger_name, scheduled_ms FROM occurrence WHERE backfill_id = $1 AND verdict <> 'fired' \
     ORDER BY scheduled_ms, id LIMIT $2",
);
static FILL: Sql = Sql::new(
    "fill_occurrences",
    "UPDATE occurrence SET was = CASE WHEN occurrence.reason = 'backfill' THEN '' WHEN occurrence.verdict = 'coalesced' THEN 'coalesced' \
         ELSE occurrence.reason END, \
       verdict = 'fired', reason = 'backfill', into_ms = NULL, blocked_by = NULL, task_id = x.task_id, at_ms = {now} \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, CAST(e.value->>'task_id' AS BIGINT) AS task_id FROM {each:$1}) AS x \
     WHERE {is:occurrence.id,x.id} AND occurrence.verdict <> 'fired'",
);
static MADE: Sql = Sql::new("made_fills", "UPDATE backfill SET made = made + $2 WHERE id = $1");
static END: Sql = Sql::new(
    "end_backfill",
    "UPDATE backfill SET state = $2, ended_ms = {now}, ended_by = $3 WHERE id = $1 AND state = 'running'",
);
/// Slots that had no verdict before.
static DROP_UNMADE: Sql = Sql::new(
    "drop_unmade",
    "DELETE FROM occurrence WHERE backfill_id = $1 AND verdict = 'skipped' AND reason = 'backfill'",
);
static LEAVE: Sql = Sql::new(
    "leave_backfill",
    "UPDATE occurrence SET backfill_id = NULL WHERE backfill_id = $1 AND verdict <> 'fired'",
);
static LIVE: Sql = Sql::new(
    "live_of_batch",
    "SELECT EXISTS (SELECT 1 FROM task WHERE batch = $1 AND status IN (1, 2, 3, 4, 9)) AS live",
);
static DELETE_OLD: Sql = Sql::new(
    "delete_backfills",
    "DELETE FROM backfill WHERE state <> 'running' AND ended_ms < {now} - $1 AND ended_ms < $2 - $1",
);

pub static STATEMENTS: &[&Sql] = &[
    &LEDGER,
    &CUT,
    &PUT_PIECES,
    &JOIN,
    &PUT,
    &LOCK_RUNNING,
    &RUNNING,
    &OF_ID,
    &LIST,
    &PENDING,
    &FILL,
    &MADE,
    &END,
    &DROP_UNMADE,
    &LEAVE,
    &LIVE,
    &DELETE_OLD,
];

/// Rows that one statement writes.
const ROWS_MAX: usize = 1_000;

/// What the ledger has.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct LedgerRow {
    pub id: i64,
    pub scheduled_ms: i64,
    pub until_ms: i64,
    pub fires: i64,
    pub verdict: String,
    pub reason: String,
    pub into_ms: Option<i64>,
    pub blocked_by: Option<i64>,
    pub misfired: i64,
    pub at_ms: i64,
    pub backfill_id: Option<i64>,
}

/// A row to write: of a slot that is to be made up, or what stays of the row that it came from.
#[derive(Clone, Debug, Serialize)]
pub struct Piece {
    pub job_id: i64,
    pub trigger_id: i64,
    pub trigger_name: String,
    pub scheduled_ms: i64,
    pub until_ms: i64,
    pub fires: u64,
    pub verdict: String,
    pub reason: String,
    pub into_ms: Option<i64>,
    pub blocked_by: Option<i64>,
    pub misfired: i64,
    /// `None`: now.
    pub at_ms: Option<i64>,
    pub backfill_id: Option<i64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct NewBackfill {
    pub job_id: i64,
    pub job: String,
    /// Empty: all of the job.
    pub trigger: String,
    pub from_ms: i64,
    pub to_ms: i64,
    pub fires: u64,
    pub max_concurrent: Option<u32>,
    pub by: String,
    pub reason: String,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct BackfillRow {
    pub id: i64,
    pub job_id: i64,
    pub job: String,
    pub trigger_name: String,
    pub from_ms: i64,
    pub to_ms: i64,
    pub fires: i64,
    pub made: i64,
    pub max_concurrent: Option<i64>,
    pub state: String,
    pub created_by: String,
    pub reason: String,
    pub created_ms: i64,
    pub ended_ms: Option<i64>,
    pub ended_by: Option<String>,
}

impl BackfillRow {
    /// The batch that its tasks are in.
    pub fn batch(&self) -> String {
        batch_name(self.id)
    }

    /// Its own places, where it has a number of its own.
    pub fn resource(&self) -> String {
        format!("backfill:{}", self.id)
    }
}

pub fn batch_name(id: i64) -> String {
    format!("backfill-{id}")
}

/// A slot that waits for its task.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Pending {
    pub id: i64,
    pub trigger_id: Option<i64>,
    pub trigger_name: String,
    pub scheduled_ms: i64,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

#[derive(sqlx::FromRow)]
struct Live {
    live: bool,
}

#[derive(Serialize)]
struct FillJson {
    id: i64,
    task_id: i64,
}

pub async fn ledger(
    tx: &mut Tx,
    trigger_id: i64,
    from_ms: i64,
    to_ms: i64,
    limit: usize,
) -> Result<Vec<LedgerRow>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    tx.all(
        &LEDGER,
        vec![trigger_id.into(), from_ms.into(), to_ms.into(), limit.into()],
    )
    .await
}

pub async fn create(tx: &mut Tx, new: NewBackfill) -> Result<i64, StoreError> {
    Ok(tx.one::<OnlyId>(&PUT, vec![batch(&[new])?]).await?.id)
}

/// Ranges are replaced by their pieces, and single rows join the backfill.
pub async fn take_slots(
    tx: &mut Tx,
    id: i64,
    cut: &[i64],
    pieces: &[Piece],
    singles: &[i64],
) -> Result<(), StoreError> {
    for ids in cut.chunks(ROWS_MAX) {
        tx.exec(&CUT, vec![batch(ids)?]).await?;
    }
    for pieces in pieces.chunks(ROWS_MAX) {
        tx.exec(&PUT_PIECES, vec![batch(pieces)?]).await?;
    }
    for ids in singles.chunks(ROWS_MAX) {
        tx.exec(&JOIN, vec![batch(ids)?, id.into()]).await?;
    }
    Ok(())
}

/// Locked; `None`: it is over, or another replica has it in hand.
pub async fn lock_running(tx: &mut Tx, id: i64) -> Result<Option<BackfillRow>, StoreError> {
    tx.opt(&LOCK_RUNNING, vec![id.into()]).await
}

pub async fn of_id(tx: &mut Tx, id: i64) -> Result<Option<BackfillRow>, StoreError> {
    tx.opt(&OF_ID, vec![id.into()]).await
}

/// Newest first; `job` empty: of all.
pub async fn list(tx: &mut Tx, job: &str, limit: i64) -> Result<Vec<BackfillRow>, StoreError> {
    tx.all(&LIST, vec![job.into(), limit.into()]).await
}

/// The oldest slots that wait for their tasks.
pub async fn pending(tx: &mut Tx, id: i64, limit: usize) -> Result<Vec<Pending>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    tx.all(&PENDING, vec![id.into(), limit.into()]).await
}

/// Makes the tasks of slots, whose places were taken, and their verdicts. `wishes` and `ids` go with `pending`.
pub async fn fill(
    tx: &mut Tx,
    places: &mut Places,
    backfill: &BackfillRow,
    pending: &[Pending],
    wishes: &[Wish],
    ids: &[i64],
) -> Result<(), StoreError> {
    let launched: Vec<Launched> = ids.iter().map(|&id| Launched::Queued(id)).collect();
    launch::put_tasks(tx, wishes, &launched).await?;
    places.write(tx).await?;
    let fills: Vec<FillJson> = pending
        .iter()
        .zip(ids)
        .map(|(slot, &task_id)| FillJson { id: slot.id, task_id })
        .collect();
    tx.exec(&FILL, vec![batch(&fills)?]).await?;
    let made = i64::try_from(ids.len()).unwrap_or(i64::MAX);
    tx.exec(&MADE, vec![backfill.id.into(), made.into()]).await.map(drop)
}

/// Ends it; slots that have no task keep the verdict that they had. False: it was over already.
pub async fn end(tx: &mut Tx, id: i64, state: &str, by: &str) -> Result<bool, StoreError> {
    if tx.exec(&END, vec![id.into(), state.into(), by.into()]).await? == 0 {
        return Ok(false);
    }
    tx.exec(&DROP_UNMADE, vec![id.into()]).await?;
    tx.exec(&LEAVE, vec![id.into()]).await?;
    Ok(true)
}

/// Whether a task of it waits or runs.
pub async fn is_live(tx: &mut Tx, id: i64) -> Result<bool, StoreError> {
    Ok(tx.one::<Live>(&LIVE, vec![batch_name(id).into()]).await?.live)
}

impl Db {
    /// At most 100; the others come when these are over.
    pub async fn running_backfills(&self) -> Result<Vec<i64>, StoreError> {
        let rows: Vec<OnlyId> = self
            .read("running_backfills", |tx| {
                Box::pin(async move { tx.all(&RUNNING, vec![]).await })
            })
            .await?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }
}

/// Forgets those that ended longer ago than this.
pub async fn delete_old(tx: &mut Tx, keep_ms: i64, until_ms: i64) -> Result<(), StoreError> {
    tx.exec(&DELETE_OLD, vec![keep_ms.into(), until_ms.into()])
        .await
        .map(drop)
}
