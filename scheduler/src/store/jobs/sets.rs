//! Broadcasts: a head, which stands for the whole and has the place of the job, and a member for each host.

use super::super::db::{Db, Tx, batch};
use super::super::error::StoreError;
use super::super::finish::{LiveTask, live_columns};
use super::super::sql::Sql;
use super::super::submit::{self, NewTask};
use super::routes::AGAIN_MS;
use super::slots::Admitted;
use serde::Serialize;
use std::sync::Arc;
use systole_shared::id::Target;
use systole_shared::policy::broadcast::{Member, Part, Rules};
use systole_shared::task::{OutcomeKind, TaskSpec, TaskState};

/// Heads of one transaction.
const HEADS_MAX: i64 = 16;
/// Sets that one pass looks at.
const OPEN_MAX: i64 = 1_000;

/// Its place is taken, and its members are not made yet. `$1`: [`AGAIN_MS`]. A look that lies ahead was made by a clock that was wrong.
macro_rules! is_due {
    () => {
        "task.status = 2 AND task.routed_ms IS NOT NULL AND task.set_size IS NOT NULL \
           AND (task.routed_ms <= {now} - $1 OR task.routed_ms > {now} + $1)"
    };
}

pub(in crate::store) static ANY_DUE: Sql = Sql::new(
    "any_set_due",
    concat!("SELECT EXISTS (SELECT 1 FROM task WHERE ", is_due!(), ") AS due"),
);
static LOCK_DUE: Sql = Sql::new(
    "lock_sets_due",
    concat!(
        "SELECT id, job_id, trigger_id, scheduled_ms, lane_id, max_retries, submitted_by, submit_reason, spec FROM task WHERE ",
        is_due!(),
        " ORDER BY routed_ms, id LIMIT $2 {skip_locked}"
    ),
);
static PUT_OFF: Sql = Sql::new(
    "put_off_set",
    "UPDATE task SET routed_ms = {now} WHERE id = $1 AND status + 0 = 2",
);
/// It runs on no host of its own.
static SPREAD: Sql = Sql::new(
    "spread_set",
    "UPDATE task SET status = 4, host = '', slot = 0, start_no = 0, set_size = $2, dispatched_at_ms = {now}, started_at_ms = {now}, \
       routed_ms = NULL WHERE id = $1 AND status + 0 = 2",
);
/// Members wait for their turn, or were skipped from the first.
static MARK_MEMBERS: Sql = Sql::new(
    "mark_members",
    "UPDATE task SET job_id = $2, trigger_id = $3, scheduled_ms = $4, max_retries = $5, set_id = $6, eligible_at_ms = NULL, \
       run_at_ms = {now}, status = CASE WHEN x.kind IS NULL THEN 1 ELSE 8 END, waiting_ms = CASE WHEN x.kind IS NULL THEN {now} END, \
       shard_index = x.shard_index, shard_total = CASE WHEN x.kind IS NULL THEN CAST($7 AS BIGINT) END, outcome_kind = x.kind, \
       outcome_message = x.message, ended_at_ms = CASE WHEN x.kind IS NOT NULL THEN {now} END \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, CAST(e.value->>'shard_index' AS BIGINT) AS shard_index, \
       e.value->>'kind' AS kind, e.value->>'message' AS message FROM {each:$1}) AS x \
     WHERE {is:task.id,x.id}",
);
static OPEN: Sql = Sql::new(
    "open_sets",
    "SELECT id FROM task WHERE set_size IS NOT NULL AND status IN (4, 9) ORDER BY id LIMIT $1",
);
/// Whoever has it in hand does what is to be done.
static LOCK_OPEN: Sql = Sql::new(
    "lock_open_set",
    concat!(
        "SELECT ",
        live_columns!(),
        ", task.set_parallel, task.set_stop_after, task.cancelled_by, task.cancel_reason FROM task \
         WHERE task.id = $1 AND task.set_size IS NOT NULL AND task.status + 0 IN (4, 9) {skip_locked}"
    ),
);
/// The last task of each member's chain.
static PARTS: Sql = Sql::new(
    "set_parts",
    "SELECT t.id, t.status, t.target_host, t.waiting_ms IS NOT NULL AS waits, t.attempt, \
       EXISTS (SELECT 1 FROM slot AS s WHERE s.root_id = COALESCE(t.root_id, t.id) AND s.resource = $2) AS unproven \
     FROM task AS t WHERE t.set_id = $1 AND t.retried_by IS NULL ORDER BY t.id",
);
static RELEASE: Sql = Sql::new(
    "release_members",
    "UPDATE task SET status = 2, eligible_at_ms = {now}, waiting_ms = NULL WHERE status + 0 = 1 AND waiting_ms IS NOT NULL \
       AND id {among:$1} RETURNING id, status, lane_id, target_host",
);

pub static STATEMENTS: &[&Sql] = &[
    &ANY_DUE,
    &LOCK_DUE,
    &PUT_OFF,
    &SPREAD,
    &MARK_MEMBERS,
    &OPEN,
    &LOCK_OPEN,
    &PARTS,
    &RELEASE,
];

/// A broadcast whose members are to be made; locked.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct HeadRow {
    pub id: i64,
    job_id: Option<i64>,
    trigger_id: Option<i64>,
    scheduled_ms: Option<i64>,
    lane_id: i64,
    max_retries: i64,
    submitted_by: String,
    submit_reason: Option<String>,
    spec: String,
}

impl HeadRow {
    pub fn spec(&self) -> Option<TaskSpec> {
        serde_json::from_str(&self.spec).ok()
    }
}

/// A broadcast that runs; locked.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct OpenSet {
    #[sqlx(flatten)]
    pub task: LiveTask,
    set_parallel: Option<i64>,
    set_stop_after: Option<i64>,
    pub cancelled_by: Option<String>,
    pub cancel_reason: Option<String>,
}

impl OpenSet {
    pub fn rules(&self) -> Rules {
        let number = |n: Option<i64>| n.and_then(|n| u32::try_from(n).ok());
        Rules {
            max_parallel: number(self.set_parallel),
            stop_after_failures: number(self.set_stop_after),
        }
    }
}

#[derive(sqlx::FromRow)]
struct PartRow {
    id: i64,
    status: i16,
    target_host: Option<String>,
    waits: bool,
    attempt: i64,
    unproven: bool,
}

#[derive(sqlx::FromRow)]
struct Due {
    due: bool,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

#[derive(Serialize)]
struct MemberJson<'a> {
    id: i64,
    shard_index: Option<usize>,
    kind: Option<&'a str>,
    message: Option<String>,
}

pub async fn lock_due(tx: &mut Tx) -> Result<Vec<HeadRow>, StoreError> {
    tx.all(&LOCK_DUE, vec![AGAIN_MS.into(), HEADS_MAX.into()]).await
}

/// No host can take its part now.
pub async fn put_off(tx: &mut Tx, id: i64) -> Result<(), StoreError> {
    tx.exec(&PUT_OFF, vec![id.into()]).await.map(drop)
}

/// Makes the members of a set, each with its host; those that run have numbers. None of them is released yet.
pub async fn spread(tx: &mut Tx, head: &HeadRow, spec: &TaskSpec, members: &[Member]) -> Result<(), StoreError> {
    let ids = submit::next_ids(tx, members.len()).await?;
    let total = members.iter().filter(|member| member.closed.is_empty()).count();
    let by: Arc<str> = head.submitted_by.as_str().into();
    let why: Option<Arc<str>> = head.submit_reason.as_deref().map(Into::into);
    let mut tasks = Vec::with_capacity(members.len());
    let mut marks = Vec::with_capacity(members.len());
    let mut shard = 0;
    for (member, &id) in members.iter().zip(&ids) {
        let mut spec = spec.clone();
        spec.run_at_ms = None;
        // The set is the run that is counted.
        (spec.batch, spec.batch_line) = (None, None);
        spec.target = Some(Target {
            host: member.host.clone(),
            slot: None,
        });
        let open = member.closed.is_empty();
        if open {
            spec.env.push(("SYSTOLE_SHARD_INDEX".into(), shard.to_string()));
            spec.env.push(("SYSTOLE_SHARD_TOTAL".into(), total.to_string()));
        }
        marks.push(MemberJson {
            id,
            shard_index: open.then_some(shard),
            kind: (!open).then_some(OutcomeKind::Skipped.name()),
            message: (!open).then(|| member.closed.clone()),
        });
        shard += usize::from(open);
        tasks.push(NewTask {
            spec: Arc::new(spec),
            lane_id: head.lane_id,
            key: None,
            submitted_by: Arc::clone(&by),
            reason: why.clone(),
        });
    }
    submit::insert_new(tx, &tasks, &ids).await?;
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let args = vec![
        batch(&marks)?,
        head.job_id.into(),
        head.trigger_id.into(),
        head.scheduled_ms.into(),
        head.max_retries.into(),
        head.id.into(),
        number(total).into(),
    ];
    tx.exec(&MARK_MEMBERS, args).await?;
    tx.exec(&SPREAD, vec![head.id.into(), number(members.len()).into()])
        .await
        .map(drop)
}

pub async fn lock_open(tx: &mut Tx, id: i64) -> Result<Option<OpenSet>, StoreError> {
    tx.opt(&LOCK_OPEN, vec![id.into()]).await
}

/// All members of a set; and of each whether it was begun before.
pub async fn parts(tx: &mut Tx, set: i64) -> Result<Vec<(Part, bool)>, StoreError> {
    let args = vec![set.into(), super::slots::set_resource(set).into()];
    let rows: Vec<PartRow> = tx.all(&PARTS, args).await?;
    rows.into_iter()
        .map(|row| {
            let state = TaskState::from_number(row.status).ok_or(StoreError::Corrupt {
                table: "task",
                column: "status",
                id: row.id,
            })?;
            let part = Part {
                id: row.id,
                host: row.target_host.unwrap_or_default(),
                state,
                waits: row.waits && state == TaskState::Created,
                unproven: row.unproven,
            };
            Ok((part, row.attempt > 1))
        })
        .collect()
}

pub async fn release(tx: &mut Tx, ids: &[i64]) -> Result<Vec<Admitted>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&RELEASE, vec![batch(ids)?]).await
}

impl Db {
    /// Without a write, so that an idle database stays idle.
    pub async fn any_set_due(&self) -> Result<bool, StoreError> {
        let row: Due = self
            .read("any_set_due", |tx| {
                Box::pin(async move { tx.one(&ANY_DUE, vec![AGAIN_MS.into()]).await })
            })
            .await?;
        Ok(row.due)
    }

    /// Broadcasts that run.
    pub async fn open_sets(&self) -> Result<Vec<i64>, StoreError> {
        let rows: Vec<OnlyId> = self
            .read("open_sets", |tx| {
                Box::pin(async move { tx.all(&OPEN, vec![OPEN_MAX.into()]).await })
            })
            .await?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }
}
