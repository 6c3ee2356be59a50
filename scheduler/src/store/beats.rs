//! Runner rows, and the one write that makes a beat act.

use super::db::{Tx, batch};
use super::error::StoreError;
use super::finish::{self, LiveTask, detail_json, live_columns};
use super::sql::Sql;
use serde::Serialize;
use std::collections::HashMap;
use systole_shared::task::{EndDetail, OutcomeKind};

macro_rules! runner_columns {
    ($closed:literal) => {
        concat!(
            "r.host, r.slot, r.instance_id, r.start_no, r.seq, r.task_id, r.held_boot, r.redeliveries, ",
            $closed,
            ", r.leaving"
        )
    };
}
/// The rows of the runners in `$1`, locked by host and slot.
macro_rules! locked_runners {
    () => {
        concat!(
            "SELECT ",
            runner_columns!("(r.cordoned OR r.fault IS NOT NULL) AS closed"),
            " FROM runner AS r JOIN {each:$1} ON {is:r.host,e.value->>'host'} AND {is:r.slot,CAST(e.value->>'slot' AS BIGINT)} \
             ORDER BY r.host, r.slot {for_update_of:r}"
        )
    };
}

static LOCK_RUNNERS: Sql = Sql::new("lock_runners", locked_runners!());
/// Runner rows, and the tasks that they hold or that the beats name, with one round trip. The runners first: which
/// task a runner holds is known under its lock.
static LOCK_BEATS: Sql = Sql::new(
    "lock_beats",
    concat!(
        "WITH r AS (",
        locked_runners!(),
        "), t AS (SELECT ",
        live_columns!(),
        " FROM task WHERE task.id {among_query:SELECT r.task_id FROM r WHERE r.task_id IS NOT NULL UNION ALL SELECT CAST(e.value AS BIGINT) FROM {each:$2}} \
           ORDER BY task.id {for_update}) SELECT ",
        runner_columns!("r.closed"),
        ", CAST(NULL AS BIGINT) AS id, CAST(NULL AS SMALLINT) AS status, CAST(NULL AS TEXT) AS terminating, \
           CAST(NULL AS TEXT) AS callback_url, CAST(NULL AS BIGINT) AS attempt, CAST(NULL AS BIGINT) AS max_retries, \
           CAST(NULL AS BIGINT) AS retry_delay_ms, CAST(NULL AS BIGINT) AS replacements, CAST(NULL AS BIGINT) AS timeout_ms, \
           CAST(NULL AS BIGINT) AS ran_ms, CAST(NULL AS BIGINT) AS held_ms, CAST(NULL AS BIGINT) AS root_id, CAST(NULL AS BIGINT) AS job_id, \
           CAST(NULL AS BIGINT) AS scheduled_ms, CAST(NULL AS BIGINT) AS set_id FROM r \
         UNION ALL SELECT t.host, t.slot, NULL, t.start_no, NULL, NULL, NULL, NULL, NULL, NULL, \
           t.id, t.status, t.terminating, t.callback_url, t.attempt, t.max_retries, t.retry_delay_ms, t.replacements, t.timeout_ms, \
           t.ran_ms, t.held_ms, t.root_id, t.job_id, t.scheduled_ms, t.set_id FROM t"
    ),
);
/// The write that wins the row: a beat acts only with the start_no of the row and a higher seq.
static WIN_RUNNERS: Sql = Sql::new(
    "win_runners",
    "UPDATE runner SET seq = x.seq, seen_ms = {now}, leaving = x.leaving, task_id = x.task_id, held_boot = x.held_boot, \
       redeliveries = x.redeliveries \
     FROM (SELECT e.value->>'host' AS host, CAST(e.value->>'slot' AS BIGINT) AS slot, \
       CAST(e.value->>'start_no' AS BIGINT) AS start_no, CAST(e.value->>'seq' AS BIGINT) AS seq, \
       CAST(e.value->>'leaving' AS BIGINT) = 1 AS leaving, CAST(e.value->>'task_id' AS BIGINT) AS task_id, \
       e.value->>'held_boot' AS held_boot, CAST(e.value->>'redeliveries' AS BIGINT) AS redeliveries FROM {each:$1}) AS x \
     WHERE {is:runner.host,x.host} AND {is:runner.slot,x.slot} AND runner.start_no = x.start_no AND runner.seq < x.seq",
);
/// A claim for a parked beat: wins the row as that beat left it.
static GIVE_RUNNERS: Sql = Sql::new(
    "give_runners",
    "UPDATE runner SET task_id = x.task_id, held_boot = x.held_boot, redeliveries = 0 \
     FROM (SELECT e.value->>'host' AS host, CAST(e.value->>'slot' AS BIGINT) AS slot, \
       CAST(e.value->>'start_no' AS BIGINT) AS start_no, CAST(e.value->>'seq' AS BIGINT) AS seq, \
       CAST(e.value->>'task_id' AS BIGINT) AS task_id, e.value->>'held_boot' AS held_boot FROM {each:$1}) AS x \
     WHERE {is:runner.host,x.host} AND {is:runner.slot,x.slot} AND runner.start_no = x.start_no AND runner.seq = x.seq \
       AND runner.task_id IS NULL AND NOT runner.cordoned AND runner.fault IS NULL AND NOT runner.leaving",
);
static FREE_RUNNER: Sql = Sql::new(
    "free_runner",
    "UPDATE runner SET task_id = NULL, held_boot = NULL, redeliveries = 0 WHERE host = $1 AND slot = $2 AND task_id = $3",
);
static START_TASKS: Sql = Sql::new(
    "start_tasks",
    "UPDATE task SET status = 4, started_at_ms = {now} WHERE status + 0 = 3 \
       AND id {among:$1} \
     RETURNING id, started_at_ms - CASE WHEN run_at_ms > created_at_ms THEN run_at_ms ELSE created_at_ms END AS start_ms",
);
static TIME_OUT_TASKS: Sql = Sql::new(
    "time_out_tasks",
    "UPDATE task SET status = 9, terminating = 'timeout' WHERE status + 0 = 4 \
       AND id {among:$1}",
);
/// Only beside a verdict, which knows no exit code and no signal: a report that comes twice is not late.
static LATE_RESULT: Sql = Sql::new(
    "late_result",
    "UPDATE task SET late_result = $2, end_detail = COALESCE(end_detail, $4) WHERE id = $1 AND status IN (7, 10) AND late_result IS NULL \
       AND exit_code IS NULL AND signal IS NULL AND outcome_kind <> $3 \
       AND outcome_kind IN ('runner_lost', 'runner_restarted', 'cancelled', 'timeout', 'start_timeout', 'not_started')",
);

pub static STATEMENTS: &[&Sql] = &[
    &LOCK_RUNNERS,
    &LOCK_BEATS,
    &WIN_RUNNERS,
    &GIVE_RUNNERS,
    &FREE_RUNNER,
    &START_TASKS,
    &TIME_OUT_TASKS,
    &LATE_RESULT,
];

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct RunnerRow {
    pub host: String,
    pub slot: i64,
    pub instance_id: String,
    pub start_no: i64,
    pub seq: i64,
    pub task_id: Option<i64>,
    pub held_boot: Option<String>,
    pub redeliveries: i64,
    /// Cordoned by a person, or faulty: it gets no new task.
    pub closed: bool,
    pub leaving: bool,
}

#[derive(Clone, Debug, Serialize)]
struct RunnerKey {
    host: String,
    slot: i64,
}

/// What a beat leaves in its runner row.
#[derive(Clone, Debug, Serialize)]
pub struct RunnerWrite {
    pub host: String,
    pub slot: i64,
    pub start_no: i64,
    pub seq: i64,
    /// 0 or 1: JSON booleans are read differently by the two databases.
    pub leaving: i64,
    pub task_id: Option<i64>,
    pub held_boot: Option<String>,
    pub redeliveries: i64,
}

/// Reads and locks runner rows, ordered by host and slot.
pub async fn lock_runners(
    tx: &mut Tx,
    keys: impl Iterator<Item = (String, i64)>,
) -> Result<HashMap<(String, i64), RunnerRow>, StoreError> {
    let keys: Vec<RunnerKey> = keys.map(|(host, slot)| RunnerKey { host, slot }).collect();
    let rows: Vec<RunnerRow> = tx.all(&LOCK_RUNNERS, vec![batch(&keys)?]).await?;
    Ok(rows
        .into_iter()
        .map(|row| ((row.host.clone(), row.slot), row))
        .collect())
}

/// A row of either kind.
#[derive(sqlx::FromRow)]
struct LockedRow {
    host: Option<String>,
    slot: Option<i64>,
    start_no: Option<i64>,
    instance_id: Option<String>,
    seq: Option<i64>,
    task_id: Option<i64>,
    held_boot: Option<String>,
    redeliveries: Option<i64>,
    closed: Option<bool>,
    leaving: Option<bool>,
    id: Option<i64>,
    status: Option<i16>,
    terminating: Option<String>,
    callback_url: Option<String>,
    attempt: Option<i64>,
    max_retries: Option<i64>,
    retry_delay_ms: Option<i64>,
    replacements: Option<i64>,
    timeout_ms: Option<i64>,
    ran_ms: Option<i64>,
    held_ms: Option<i64>,
    root_id: Option<i64>,
    job_id: Option<i64>,
    scheduled_ms: Option<i64>,
    set_id: Option<i64>,
}

impl LockedRow {
    fn task(&mut self) -> Option<LiveTask> {
        Some(LiveTask {
            id: self.id?,
            status: self.status?,
            host: self.host.take(),
            slot: self.slot,
            start_no: self.start_no,
            terminating: self.terminating.take(),
            callback_url: self.callback_url.take(),
            attempt: self.attempt?,
            max_retries: self.max_retries?,
            retry_delay_ms: self.retry_delay_ms?,
            replacements: self.replacements?,
            timeout_ms: self.timeout_ms,
            ran_ms: self.ran_ms,
            held_ms: self.held_ms,
            root_id: self.root_id,
            job_id: self.job_id,
            scheduled_ms: self.scheduled_ms,
            set_id: self.set_id,
        })
    }

    fn runner(self) -> Option<RunnerRow> {
        Some(RunnerRow {
            host: self.host?,
            slot: self.slot?,
            instance_id: self.instance_id?,
            start_no: self.start_no?,
            seq: self.seq?,
            task_id: self.task_id,
            held_boot: self.held_boot,
            redeliveries: self.redeliveries?,
            closed: self.closed?,
            leaving: self.leaving?,
        })
    }
}

/// Runner rows by their key.
pub type Runners = HashMap<(String, i64), RunnerRow>;
/// Tasks by their id.
pub type Tasks = HashMap<i64, LiveTask>;

/// Reads and locks runner rows, and with them the tasks that they hold and those that are named.
pub async fn lock_beats(
    tx: &mut Tx,
    keys: impl Iterator<Item = (String, i64)>,
    named: &[i64],
) -> Result<(Runners, Tasks), StoreError> {
    let keys: Vec<RunnerKey> = keys.map(|(host, slot)| RunnerKey { host, slot }).collect();
    let rows: Vec<LockedRow> = tx.all(&LOCK_BEATS, vec![batch(&keys)?, batch(named)?]).await?;
    let (mut runners, mut tasks) = (Runners::with_capacity(keys.len()), Tasks::with_capacity(rows.len()));
    for mut row in rows {
        if let Some(task) = row.task() {
            tasks.insert(task.id, task);
        } else if let Some(runner) = row.runner() {
            runners.insert((runner.host.clone(), runner.slot), runner);
        }
    }
    // A task that was stored and dispatched while this statement waited for a runner's lock is not in its picture
    // of the tasks. The next statement has a new one.
    let missing: Vec<i64> = runners
        .values()
        .filter_map(|row| row.task_id)
        .chain(named.iter().copied())
        .filter(|id| !tasks.contains_key(id))
        .collect();
    for task in finish::lock_tasks(tx, &missing).await? {
        tasks.insert(task.id, task);
    }
    Ok((runners, tasks))
}

/// The number of rows must be that of the writes: the caller holds their locks.
pub async fn win_runners(tx: &mut Tx, writes: &[RunnerWrite]) -> Result<(), StoreError> {
    if writes.is_empty() {
        return Ok(());
    }
    let won = tx.exec(&WIN_RUNNERS, vec![batch(writes)?]).await?;
    expect_rows("win_runners", won, writes.len())
}

/// As [`win_runners`], for claims of parked beats.
pub async fn give_runners(tx: &mut Tx, writes: &[RunnerWrite]) -> Result<(), StoreError> {
    if writes.is_empty() {
        return Ok(());
    }
    let given = tx.exec(&GIVE_RUNNERS, vec![batch(writes)?]).await?;
    expect_rows("give_runners", given, writes.len())
}

fn expect_rows(name: &str, changed: u64, expected: usize) -> Result<(), StoreError> {
    if u64::try_from(expected) == Ok(changed) {
        Ok(())
    } else {
        Err(StoreError::Collision(format!("{name}: {changed} of {expected} rows")))
    }
}

#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub struct StartedRow {
    pub id: i64,
    /// From when it was due to its start.
    pub start_ms: i64,
}

/// DISPATCHED → RUNNING. Returns those that were.
pub async fn start_tasks(tx: &mut Tx, ids: &[i64]) -> Result<Vec<StartedRow>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&START_TASKS, vec![batch(ids)?]).await
}

/// RUNNING → TERMINATING(timeout), for tasks whose runner did not end them in time.
pub async fn time_out_tasks(tx: &mut Tx, ids: &[i64]) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    tx.exec(&TIME_OUT_TASKS, vec![batch(ids)?]).await.map(drop)
}

/// A true result that arrived after the verdict.
#[derive(Clone, Debug)]
pub struct LateResult {
    pub task_id: i64,
    pub kind: OutcomeKind,
    /// JSON text.
    pub result: String,
    pub detail: Option<EndDetail>,
}

/// Keeps a true result that arrived after the verdict. State and outcome stay.
pub async fn keep_late_result(tx: &mut Tx, late: LateResult) -> Result<(), StoreError> {
    let detail = late.detail.as_ref().map(detail_json).transpose()?;
    let args = vec![
        late.task_id.into(),
        late.result.into(),
        late.kind.name().into(),
        detail.into(),
    ];
    tx.exec(&LATE_RESULT, args).await.map(drop)
}

/// Takes the task out of a runner row whose task was ended by somebody else.
pub async fn free_runner(tx: &mut Tx, host: &str, slot: i64, task_id: i64) -> Result<(), StoreError> {
    tx.exec(&FREE_RUNNER, vec![host.into(), slot.into(), task_id.into()])
        .await
        .map(drop)
}
