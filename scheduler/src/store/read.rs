//! Reads for people and programs: tasks by id, lists, counts, runners.

use super::db::{Arg, Db, Tx, batch};
use super::error::StoreError;
use super::outcome::OutcomeColumns;
use super::sql::{Dialect, Sql};
use std::sync::Arc;
use systole_shared::id::Target;
use systole_shared::task::{EndDetail, Outcome, OutcomeKind, TaskSpec, TaskState};

/// What a list shows of a task; the spec comes by itself.
macro_rules! columns {
    () => {
        "t.id, t.root_id, t.retry_of, t.retried_by, t.attempt, t.max_retries, t.status, t.name, t.host, t.slot, t.start_no, t.created_at_ms, \
         t.run_at_ms, t.job_id, t.lane_id, t.eligible_at_ms, t.dispatched_at_ms, t.started_at_ms, t.ended_at_ms, t.terminating, t.cancelled_by, \
         t.cancel_reason, t.outcome_kind, t.exit_code, t.signal, t.outcome_message, t.late_result, t.end_detail, t.submitted_by, \
         t.submit_reason, t.callback_url, c.status AS callback_status, c.tries AS callback_tries, c.last_error AS callback_error, \
         c.delivery_id, t.recoveries, t.waiting_ms, t.route, t.avoid_host, t.routed_ms, t.target_host, t.set_id, t.set_size, t.shard_index, t.shard_total, \
         o.stored_bytes AS stdout_bytes, o.total_bytes AS stdout_total, p.stored_bytes AS stderr_bytes, \
         p.total_bytes AS stderr_total, o.gap_start AS stdout_gap_start, o.gap_bytes AS stdout_gap_bytes, \
         p.gap_start AS stderr_gap_start, p.gap_bytes AS stderr_gap_bytes"
    };
}
macro_rules! tables {
    () => {
        "task AS t LEFT JOIN callback AS c ON {is:c.task_id,t.id} LEFT JOIN output AS o ON {is:o.task_id,t.id} AND o.stream = 1 \
         LEFT JOIN output AS p ON {is:p.task_id,t.id} AND p.stream = 2"
    };
}

static GET_TASKS: Sql = Sql::new(
    "get_tasks",
    concat!(
        "SELECT ",
        columns!(),
        ", t.spec FROM ",
        tables!(),
        " WHERE t.id {among:$1}"
    ),
);
static STATES: Sql = Sql::new("states", "SELECT id, status, retried_by FROM task WHERE id {among:$1}");
static CHAIN_ENDS: Sql = Sql::new(
    "chain_ends",
    "SELECT x.id AS asked, COALESCE((SELECT max(c.id) FROM task AS c WHERE c.root_id = t.root_id AND c.retry_of IS NOT NULL), t.id) AS live \
     FROM (SELECT CAST(e.value AS BIGINT) AS id FROM {each:$1}) AS x JOIN task AS t ON {is:t.id,x.id}",
);
/// From the sequence, not from the rows: those may all be deleted, and ids never return.
static NEWEST_ID_POSTGRES: Sql = Sql::new(
    "newest_id_postgres",
    "SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS id, (SELECT count(*) FROM ahead) AS ahead FROM task_id_seq",
);
static NEWEST_ID_SQLITE: Sql = Sql::new(
    "newest_id_sqlite",
    "SELECT COALESCE(max(seq), 0) AS id, (SELECT count(*) FROM ahead) AS ahead FROM sqlite_sequence WHERE name = 'task'",
);
static RUNNERS: Sql = Sql::new(
    "runners",
    "SELECT r.host, r.slot, r.start_no, r.seen_ms, {now} - r.seen_ms AS age_ms, {now} AS now_ms, r.leaving, r.task_id, r.cordoned, \
       r.cordoned_by, r.cordon_reason, r.cordoned_at_ms, r.cordon_until_ms, r.fault, r.fault_detail, r.fault_at_ms, h.cordoned AS host_cordoned, h.queues, h.labels, r.labels AS slot_labels, h.version, h.facts, h.clock_skew_ms, \
       t.status AS task_status, COALESCE(t.started_at_ms, t.dispatched_at_ms) AS busy_since_ms \
     FROM runner AS r JOIN host AS h ON h.host = r.host LEFT JOIN task AS t ON t.id = r.task_id \
     WHERE (r.host > $1 OR (r.host = $1 AND r.slot > $2)) AND ($3 = '' OR r.host = $3) ORDER BY r.host, r.slot LIMIT $4",
);

pub static STATEMENTS: &[&Sql] = &[&GET_TASKS, &STATES, &CHAIN_ENDS, &RUNNERS];

/// Specs above this size are fetched one by one in lists, so that a page stays bounded.
const SPEC_IN_LIST_BYTES_MAX: usize = 4_096;
/// Specs of one page, bytes.
const PAGE_SPEC_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A task as it is stored.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct TaskRow {
    pub id: i64,
    root_id: Option<i64>,
    pub retry_of: Option<i64>,
    pub retried_by: Option<i64>,
    pub attempt: i64,
    pub max_retries: i64,
    status: i16,
    pub name: String,
    pub host: Option<String>,
    pub slot: Option<i64>,
    pub start_no: Option<i64>,
    pub created_at_ms: i64,
    pub run_at_ms: Option<i64>,
    /// Since when it waits for a place of its job.
    pub job_id: Option<i64>,
    pub lane_id: i64,
    pub eligible_at_ms: Option<i64>,
    pub dispatched_at_ms: Option<i64>,
    pub started_at_ms: Option<i64>,
    pub ended_at_ms: Option<i64>,
    pub terminating: Option<String>,
    pub cancelled_by: Option<String>,
    pub cancel_reason: Option<String>,
    #[sqlx(flatten)]
    outcome: OutcomeColumns,
    late_result: Option<String>,
    end_detail: Option<String>,
    pub submitted_by: String,
    pub submit_reason: Option<String>,
    pub callback_url: Option<String>,
    pub callback_status: Option<String>,
    pub callback_tries: Option<i64>,
    pub callback_error: Option<String>,
    pub delivery_id: Option<String>,
    pub recoveries: i64,
    /// Since when it waits for a place of its job, or for its turn in a broadcast.
    pub waiting_ms: Option<i64>,
    pub route: Option<String>,
    pub avoid_host: Option<String>,
    pub routed_ms: Option<i64>,
    pub target_host: Option<String>,
    pub set_id: Option<i64>,
    pub set_size: Option<i64>,
    pub shard_index: Option<i64>,
    pub shard_total: Option<i64>,
    pub stdout_bytes: Option<i64>,
    pub stdout_total: Option<i64>,
    pub stderr_bytes: Option<i64>,
    pub stderr_total: Option<i64>,
    pub stdout_gap_start: Option<i64>,
    pub stdout_gap_bytes: Option<i64>,
    pub stderr_gap_start: Option<i64>,
    pub stderr_gap_bytes: Option<i64>,
    spec: Option<String>,
}

impl TaskRow {
    pub fn root_id(&self) -> i64 {
        self.root_id.unwrap_or(self.id)
    }

    pub fn state(&self) -> Result<TaskState, StoreError> {
        TaskState::from_number(self.status).ok_or_else(|| self.corrupt("status"))
    }

    pub fn spec(&self) -> Result<TaskSpec, StoreError> {
        let text = self.spec.as_deref().ok_or_else(|| self.corrupt("spec"))?;
        serde_json::from_str(text).map_err(|_| self.corrupt("spec"))
    }

    pub fn outcome(&self) -> Result<Option<Outcome>, StoreError> {
        self.outcome.read(self.id)
    }

    /// A true result that came after the verdict; one that cannot be read is none.
    pub fn late_outcome(&self) -> Option<Outcome> {
        let value: serde_json::Value = serde_json::from_str(self.late_result.as_deref()?).ok()?;
        let number = |name: &str| value[name].as_i64().and_then(|n| i32::try_from(n).ok());
        Some(Outcome {
            kind: OutcomeKind::parse(value["kind"].as_str()?)?,
            exit_code: number("exit_code"),
            signal: number("signal"),
            message: value["message"].as_str().unwrap_or_default().to_owned(),
        })
    }

    pub fn end_detail(&self) -> Result<Option<EndDetail>, StoreError> {
        let text = self.end_detail.as_deref();
        text.map(|text| serde_json::from_str(text).map_err(|_| self.corrupt("end_detail")))
            .transpose()
    }

    /// The host that the scheduler chose for it, while it waits for it.
    pub fn routed_to(&self, state: TaskState) -> Option<&str> {
        let waits = state == TaskState::Queued && self.routed_ms.is_some();
        self.target_host.as_deref().filter(|host| waits && !host.is_empty())
    }

    fn corrupt(&self, column: &'static str) -> StoreError {
        StoreError::Corrupt {
            table: "task",
            column,
            id: self.id,
        }
    }
}

/// Tasks that runners hold are as many as there are slots.
const HELD: &str = " AND t.id IN (SELECT id FROM task WHERE status IN (3, 4, 9) AND orphaned_at_ms IS NULL \
   UNION ALL SELECT id FROM task WHERE status IN (3, 4, 9) AND orphaned_at_ms IS NOT NULL)";

/// Whether all of these states are of tasks that runners hold.
pub(super) fn are_held(states: &[TaskState]) -> bool {
    let held = [TaskState::Dispatched, TaskState::Running, TaskState::Terminating];
    !states.is_empty() && states.iter().all(|state| held.contains(state))
}

/// What ended badly, in the words of partial indexes.
pub(super) const UNHAPPY: &str = " AND t.status IN (7, 8, 10)";

/// The condition that a task is in one of these states: numbers of ours, never text of a caller. With the words of partial indexes,
/// without which few rows of these states are looked for among all.
pub(super) fn in_states(states: &[TaskState]) -> String {
    let numbers: Vec<String> = states.iter().map(|state| state.number().to_string()).collect();
    let unhappy = [TaskState::Failed, TaskState::Skipped, TaskState::Terminated];
    let words = if states.iter().all(|state| unhappy.contains(state)) {
        UNHAPPY
    } else if are_held(states) {
        HELD
    } else {
        ""
    };
    format!(" AND t.status IN ({}){words}", numbers.join(", "))
}

/// Conditions of a list. All given ones must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub states: Vec<TaskState>,
    pub job: Option<String>,
    pub name: Option<String>,
    pub runner: Option<Target>,
    pub tag: Option<String>,
    pub batch: Option<String>,
    /// Members of this broadcast.
    pub set_id: Option<i64>,
    /// Only the newest member of each chain.
    pub last_attempts: bool,
    pub since_ms: Option<i64>,
    pub until_ms: Option<i64>,
    /// Ids below this one: the next page.
    pub below_id: Option<i64>,
    /// Ids above this one: what is new.
    pub above_id: Option<i64>,
}

impl Filter {
    /// `WHERE` text and parameters; numbered from `$1`.
    fn conditions(&self) -> (String, Vec<Arg>) {
        let mut text = String::from("TRUE");
        let mut args: Vec<Arg> = Vec::new();
        let mut add = |condition: &str, arg: Arg| {
            args.push(arg);
            text.push_str(" AND ");
            text.push_str(&condition.replace('?', &format!("${}", args.len())));
        };
        if let Some(job) = &self.job {
            add("t.job = ?", job.clone().into());
        }
        if let Some(name) = &self.name {
            add("t.name = ?", name.clone().into());
        }
        if let Some(runner) = &self.runner {
            add("t.host = ?", runner.host.clone().into());
            if let Some(slot) = runner.slot {
                add("t.slot = ?", i64::from(slot).into());
            }
        }
        if let Some(tag) = &self.tag {
            add(
                "t.id IN (SELECT task_id FROM task_tag WHERE tag = ?)",
                tag.clone().into(),
            );
        }
        if let Some(batch) = &self.batch {
            add("t.batch = ?", batch.clone().into());
        }
        if let Some(set) = self.set_id {
            add("t.set_id = ?", set.into());
        }
        if let Some(since) = self.since_ms {
            add("t.created_at_ms >= ?", since.into());
        }
        if let Some(until) = self.until_ms {
            add("t.created_at_ms < ?", until.into());
        }
        if let Some(below) = self.below_id {
            add("t.id < ?", below.into());
        }
        if let Some(above) = self.above_id {
            add("t.id > ?", above.into());
        }
        if self.last_attempts {
            text.push_str(" AND t.retried_by IS NULL");
        }
        if !self.states.is_empty() {
            text.push_str(&in_states(&self.states));
        }
        (text, args)
    }
}

#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub struct StateRow {
    pub id: i64,
    status: i16,
    pub retried_by: Option<i64>,
}

impl StateRow {
    pub fn state(&self) -> Option<TaskState> {
        TaskState::from_number(self.status)
    }
}

#[derive(sqlx::FromRow)]
struct CountRow {
    status: i16,
    count: i64,
}

#[derive(sqlx::FromRow)]
struct ChainRow {
    asked: i64,
    live: i64,
}

#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub struct Newest {
    pub id: i64,
    /// Hosts that have held a newer one, see [`crate::ahead`].
    pub ahead: i64,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

/// A runner with its host.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct RunnerRow {
    pub host: String,
    pub slot: i64,
    pub start_no: i64,
    pub seen_ms: i64,
    pub age_ms: i64,
    pub now_ms: i64,
    pub leaving: bool,
    pub task_id: Option<i64>,
    pub cordoned: bool,
    pub cordoned_by: Option<String>,
    pub cordon_reason: Option<String>,
    pub cordoned_at_ms: Option<i64>,
    /// `None`: until somebody lifts it.
    pub cordon_until_ms: Option<i64>,
    pub fault: Option<String>,
    pub fault_detail: Option<String>,
    pub fault_at_ms: Option<i64>,
    /// Slots that are added later are cordoned, too.
    pub host_cordoned: bool,
    pub queues: String,
    pub labels: String,
    pub slot_labels: Option<String>,
    pub version: String,
    pub facts: String,
    pub clock_skew_ms: i64,
    pub task_status: Option<i16>,
    pub busy_since_ms: Option<i64>,
}

/// Runners that a choice of hosts looks at.
const RUNNERS_MAX: i64 = 100_000;

/// All runners, inside a transaction.
pub async fn all_runners(tx: &mut Tx) -> Result<Vec<RunnerRow>, StoreError> {
    let args = vec!["".into(), (-1).into(), "".into(), RUNNERS_MAX.into()];
    tx.all(&RUNNERS, args).await
}

/// The highest task id ever given, inside a transaction.
pub async fn newest_task_id(tx: &mut Tx) -> Result<Newest, StoreError> {
    let sql = match tx.dialect() {
        Dialect::Postgres => &NEWEST_ID_POSTGRES,
        Dialect::Sqlite => &NEWEST_ID_SQLITE,
    };
    tx.one(sql, vec![]).await
}

impl Db {
    /// Tasks by id, in no order; unknown ids are left out.
    pub async fn tasks(&self, ids: Vec<i64>) -> Result<Vec<TaskRow>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.read("get", move |tx| {
            let ids = ids.clone();
            Box::pin(async move { tx.all(&GET_TASKS, vec![batch(&ids)?]).await })
        })
        .await
    }

    /// State and successor of tasks; cheap, for watchers.
    pub async fn states(&self, ids: Vec<i64>) -> Result<Vec<StateRow>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.read("states", move |tx| {
            let ids = ids.clone();
            Box::pin(async move { tx.all(&STATES, vec![batch(&ids)?]).await })
        })
        .await
    }

    /// For each known id the newest member of its chain.
    pub async fn chain_ends(&self, ids: Vec<i64>) -> Result<Vec<(i64, i64)>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<ChainRow> = self
            .read("chain", move |tx| {
                let ids = ids.clone();
                Box::pin(async move { tx.all(&CHAIN_ENDS, vec![batch(&ids)?]).await })
            })
            .await?;
        Ok(rows.into_iter().map(|row| (row.asked, row.live)).collect())
    }

    /// The highest task id ever given.
    pub async fn newest_task_id(&self) -> Result<i64, StoreError> {
        Ok(self.read("newest", |tx| Box::pin(newest_task_id(tx))).await?.id)
    }

    /// A page, newest first. The second value says whether there is more.
    pub async fn list(&self, filter: Arc<Filter>, limit: usize) -> Result<(Vec<TaskRow>, bool), StoreError> {
        let (conditions, args) = filter.conditions();
        let text = [
            concat!("SELECT ", columns!(), ", "),
            &format!("CASE WHEN length(t.spec) <= {SPEC_IN_LIST_BYTES_MAX} THEN t.spec END AS spec FROM "),
            tables!(),
            &format!(" WHERE {conditions} ORDER BY t.id DESC LIMIT {}", limit + 1),
        ]
        .concat();
        let mut rows: Vec<TaskRow> = self
            .read("list", move |tx| {
                let (text, args) = (text.clone(), args.clone());
                Box::pin(async move { tx.all_text(text, args).await })
            })
            .await?;
        let mut more = rows.len() > limit;
        rows.truncate(limit);
        let mut bytes = 0;
        for at in 0..rows.len() {
            if rows[at].spec.is_none() {
                let full = self.tasks(vec![rows[at].id]).await?;
                rows[at].spec = full.into_iter().next().and_then(|row| row.spec);
            }
            bytes += rows[at].spec.as_ref().map_or(0, String::len);
            if bytes > PAGE_SPEC_BYTES_MAX && at + 1 < rows.len() {
                rows.truncate(at + 1);
                more = true;
                break;
            }
        }
        // A task that retention took between the two reads has no spec any more.
        rows.retain(|row| row.spec.is_some());
        Ok((rows, more))
    }

    /// Ids that match, oldest first; those that a person cancelled and whose runner is ending them are left out.
    pub async fn to_cancel(&self, filter: Arc<Filter>, limit: usize) -> Result<Vec<i64>, StoreError> {
        let (conditions, args) = filter.conditions();
        let text = format!(
            "SELECT t.id FROM task AS t WHERE {conditions} AND (t.terminating IS NULL OR t.terminating <> 'user') \
             ORDER BY t.id LIMIT {limit}"
        );
        let rows: Vec<OnlyId> = self
            .read("to_cancel", move |tx| {
                let (text, args) = (text.clone(), args.clone());
                Box::pin(async move { tx.all_text(text, args).await })
            })
            .await?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }

    /// Tasks per state.
    pub async fn count(&self, filter: Arc<Filter>) -> Result<Vec<(TaskState, u64)>, StoreError> {
        let (conditions, args) = filter.conditions();
        let text = format!(
            "SELECT t.status, count(*) AS count FROM task AS t WHERE {conditions} GROUP BY t.status ORDER BY t.status"
        );
        let rows: Vec<CountRow> = self
            .read("count", move |tx| {
                let (text, args) = (text.clone(), args.clone());
                Box::pin(async move { tx.all_text(text, args).await })
            })
            .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| Some((TaskState::from_number(row.status)?, u64::try_from(row.count).ok()?)))
            .collect())
    }

    /// Runners after `(host, slot)`, by host and slot; of one host when `only` is not empty.
    pub async fn runners(&self, after: (String, i64), only: String, limit: i64) -> Result<Vec<RunnerRow>, StoreError> {
        self.read("runners", move |tx| {
            let args = vec![
                after.0.clone().into(),
                after.1.into(),
                only.clone().into(),
                limit.into(),
            ];
            Box::pin(async move { tx.all(&RUNNERS, args).await })
        })
        .await
    }
}
