//! The end of a task: one guarded write, and in the same transaction its callback row and its successor.

use super::db::{Tx, batch};
use super::error::StoreError;
use super::jobs::settle;
use super::jobs::slots::Admitted;
use super::outbox;
use super::sql::Sql;
use crate::task_log;
use serde::Serialize;
use std::collections::HashMap;
use systole_shared::heartbeat::end::Terminating;
use systole_shared::job::Job;
use systole_shared::policy::retry::{FollowUp, follow_up};
use systole_shared::task::{EndDetail, Outcome, OutcomeKind, TaskState, Transition};
use systole_shared::trigger::jitter;

static END_TASKS: Sql = Sql::new(
    "end_tasks",
    "UPDATE task SET status = x.to_status, outcome_kind = x.kind, exit_code = x.exit_code, signal = x.signal, \
       outcome_message = x.message, ended_at_ms = {now} - x.ended_age, \
       started_at_ms = COALESCE({now} - x.started_age, task.started_at_ms), \
       cancelled_by = COALESCE(task.cancelled_by, x.cancelled_by), cancel_reason = COALESCE(task.cancel_reason, x.cancel_reason), \
       end_detail = x.detail \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, CAST(e.value->>'from' AS BIGINT) AS from_status, \
       CAST(e.value->>'to' AS SMALLINT) AS to_status, e.value->>'kind' AS kind, \
       CAST(e.value->>'exit_code' AS BIGINT) AS exit_code, CAST(e.value->>'signal' AS BIGINT) AS signal, \
       e.value->>'message' AS message, CAST(e.value->>'ended_age' AS BIGINT) AS ended_age, \
       CAST(e.value->>'started_age' AS BIGINT) AS started_age, e.value->>'cancelled_by' AS cancelled_by, \
       e.value->>'cancel_reason' AS cancel_reason, e.value->>'detail' AS detail FROM {each:$1}) AS x \
     WHERE {is:task.id,x.id} AND task.status = x.from_status \
     RETURNING task.id, task.started_at_ms - CASE WHEN task.run_at_ms > task.created_at_ms THEN task.run_at_ms ELSE task.created_at_ms END AS start_ms",
);
static PUT_CALLBACKS: Sql = Sql::new(
    "put_callbacks",
    "INSERT INTO callback (task_id, delivery_id, url, receiver, status, next_at_ms) \
     SELECT task.id, e.value->>'delivery', task.callback_url, e.value->>'receiver', 'pending', {now} \
     FROM {each:$1} JOIN task ON {is:task.id,CAST(e.value->>'id' AS BIGINT)} WHERE task.callback_url IS NOT NULL \
     ON CONFLICT DO NOTHING",
);
/// A task has at most one successor (unique index), so a repeated end makes no second one.
static PUT_SUCCESSORS: Sql = Sql::new(
    "put_successors",
    "INSERT INTO task (root_id, retry_of, attempt, replacements, status, lane_id, priority, target_host, target_slot, name, job, \
       spec, max_retries, retry_delay_ms, timeout_ms, queue_timeout_ms, start_timeout_ms, callback_url, submitted_by, submit_reason, \
       created_at_ms, run_at_ms, eligible_at_ms, output_max_bytes, output_keep_ms, batch, batch_line, unique_key, job_id, trigger_id, \
       scheduled_ms, recoveries, route, route_key, avoid_host, routed_ms, set_id, shard_index, shard_total) \
     SELECT COALESCE(t.root_id, t.id), t.id, t.attempt + x.attempts, t.replacements + x.replacements, \
       CASE WHEN x.delay = 0 THEN 2 ELSE 1 END, t.lane_id, t.priority, \
       CASE WHEN t.route IS NOT NULL OR x.avoid = 1 THEN '' ELSE t.target_host END, t.target_slot, t.name, t.job, t.spec, \
       t.max_retries, t.retry_delay_ms, t.timeout_ms, t.queue_timeout_ms, t.start_timeout_ms, t.callback_url, t.submitted_by, \
       t.submit_reason, {now}, {now} + x.delay, \
       CASE WHEN x.delay = 0 THEN {now} END, t.output_max_bytes, t.output_keep_ms, t.batch, t.batch_line, t.unique_key, t.job_id, \
       t.trigger_id, t.scheduled_ms, t.recoveries + x.recoveries, CASE WHEN x.avoid = 1 THEN COALESCE(t.route, 'any') ELSE t.route END, \
       t.route_key, CASE WHEN x.avoid = 1 THEN t.host END, CASE WHEN t.route IS NOT NULL OR x.avoid = 1 THEN 0 END, \
       t.set_id, t.shard_index, t.shard_total \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, CAST(e.value->>'attempts' AS BIGINT) AS attempts, \
       CAST(e.value->>'replacements' AS BIGINT) AS replacements, CAST(e.value->>'recoveries' AS BIGINT) AS recoveries, \
       CAST(e.value->>'delay' AS BIGINT) AS delay, CAST(e.value->>'avoid' AS BIGINT) AS avoid FROM {each:$1}) AS x \
     JOIN task AS t ON {is:t.id,x.id} WHERE TRUE \
     ON CONFLICT DO NOTHING RETURNING id, retry_of, status, lane_id, target_host, run_at_ms",
);
static LINK_SUCCESSORS: Sql = Sql::new(
    "link_successors",
    "UPDATE task SET retried_by = x.new_id FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, \
       CAST(e.value->>'new_id' AS BIGINT) AS new_id FROM {each:$1}) AS x WHERE {is:task.id,x.id}",
);
static COPY_TAGS: Sql = Sql::new(
    "copy_tags",
    "INSERT INTO task_tag (tag, task_id) SELECT tag, x.new_id FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, \
       CAST(e.value->>'new_id' AS BIGINT) AS new_id FROM {each:$1}) AS x JOIN task_tag ON {is:task_tag.task_id,x.id} WHERE TRUE \
     ON CONFLICT DO NOTHING",
);
/// What the end of a task depends on: the columns of [`LiveTask`].
macro_rules! live_columns {
    () => {
        "task.id, task.status, task.host, task.slot, task.start_no, task.terminating, task.callback_url, task.attempt, \
         task.max_retries, task.retry_delay_ms, task.replacements, task.timeout_ms, {now} - task.started_at_ms AS ran_ms, \
         {now} - task.dispatched_at_ms AS held_ms, task.root_id, task.job_id, task.scheduled_ms, task.set_id"
    };
}
pub(super) use live_columns;

static LOCK_TASKS: Sql = Sql::new(
    "lock_tasks",
    concat!(
        "SELECT ",
        live_columns!(),
        " FROM task WHERE task.id {among:$1} ORDER BY task.id {for_update}"
    ),
);

pub static STATEMENTS: &[&Sql] = &[
    &END_TASKS,
    &PUT_CALLBACKS,
    &PUT_SUCCESSORS,
    &LINK_SUCCESSORS,
    &COPY_TAGS,
    &LOCK_TASKS,
];

/// What decisions about a live task need to know.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct LiveTask {
    pub id: i64,
    pub(super) status: i16,
    pub host: Option<String>,
    pub slot: Option<i64>,
    pub start_no: Option<i64>,
    pub(super) terminating: Option<String>,
    pub callback_url: Option<String>,
    pub(super) attempt: i64,
    pub(super) max_retries: i64,
    pub(super) retry_delay_ms: i64,
    pub(super) replacements: i64,
    pub timeout_ms: Option<i64>,
    /// Since its start, by the database's clock.
    pub ran_ms: Option<i64>,
    /// Since it was given to its runner, by the database's clock.
    pub held_ms: Option<i64>,
    pub(super) root_id: Option<i64>,
    /// Of a run of a job.
    pub(super) job_id: Option<i64>,
    pub(super) scheduled_ms: Option<i64>,
    /// The broadcast that it is a member of.
    pub(super) set_id: Option<i64>,
}

impl LiveTask {
    pub fn state(&self) -> Result<TaskState, StoreError> {
        TaskState::from_number(self.status).ok_or(StoreError::Corrupt {
            table: "task",
            column: "status",
            id: self.id,
        })
    }

    pub fn is_of_job(&self) -> bool {
        self.job_id.is_some()
    }

    /// The first task of its chain.
    pub fn root_id(&self) -> i64 {
        self.root_id.unwrap_or(self.id)
    }

    pub fn terminating(&self) -> Option<Terminating> {
        self.terminating.as_deref().and_then(Terminating::parse)
    }
}

/// Reads and locks tasks, in the order of their ids.
pub async fn lock_tasks(tx: &mut Tx, ids: &[i64]) -> Result<Vec<LiveTask>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&LOCK_TASKS, vec![batch(ids)?]).await
}

/// One end to write.
#[derive(Clone, Debug)]
pub struct End {
    pub task: LiveTask,
    pub transition: Transition,
    pub outcome: Outcome,
    /// How long ago the child started and ended; `None`: it never started.
    pub started_age_ms: Option<i64>,
    pub ended_age_ms: i64,
    /// For a cancel of a waiting task.
    pub cancelled_by: Option<(String, Option<String>)>,
    /// What its runner knows beyond the outcome.
    pub detail: Option<EndDetail>,
    /// Its runner was lost, so that nobody has seen the child's end.
    pub lost: bool,
    /// For how long that runner had been silent.
    pub silent_ms: i64,
}

impl End {
    /// Nothing proves that no process of the task is alive.
    pub(super) fn is_unproven(&self) -> bool {
        let left = self
            .detail
            .as_ref()
            .is_some_and(|detail| detail.tree_empty == Some(false));
        self.lost || left
    }

    /// An end that no runner reported, now.
    pub fn without_report(task: LiveTask, (transition, outcome): (Transition, Outcome)) -> Self {
        Self {
            task,
            transition,
            outcome,
            started_age_ms: None,
            ended_age_ms: 0,
            cancelled_by: None,
            detail: None,
            lost: false,
            silent_ms: 0,
        }
    }
}

/// A task that another one was made to follow.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Successor {
    pub id: i64,
    pub retry_of: i64,
    status: i16,
    pub lane_id: i64,
    pub target_host: Option<String>,
    pub run_at_ms: Option<i64>,
}

impl Successor {
    pub fn is_queued(&self) -> bool {
        self.status == TaskState::Queued.number()
    }
}

impl Ended {
    pub fn extend(&mut self, more: Ended) {
        self.ids.extend(more.ids);
        self.successors.extend(more.successors);
        self.callbacks |= more.callbacks;
        self.admitted.extend(more.admitted);
        self.supersede.extend(more.supersede);
        self.triggers |= more.triggers;
        self.held |= more.held;
        self.alarms |= more.alarms;
        self.sets |= more.sets;
        self.kinds.extend(more.kinds);
        self.start_ms.extend(more.start_ms);
        self.lines.extend(more.lines);
    }
}

/// What the caller must wake or tell after the commit.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    pub ids: Vec<i64>,
    pub successors: Vec<Successor>,
    pub callbacks: bool,
    /// Runs of jobs that may start.
    pub admitted: Vec<Admitted>,
    /// Chains that a newer run of their job replaces.
    pub supersede: Vec<i64>,
    /// A trigger has another next time.
    pub triggers: bool,
    /// Places are held until there is proof that a child is dead.
    pub held: bool,
    /// Alarms were raised.
    pub alarms: bool,
    /// A member of a broadcast has ended.
    pub sets: bool,
    /// How they ended, to be counted.
    pub kinds: Vec<OutcomeKind>,
    /// Of those whose start nobody told before: from when they were due to their start.
    pub start_ms: Vec<i64>,
    /// For the log of tasks; empty where nobody asked for one.
    pub lines: Vec<EndLine>,
}

/// What the log of tasks says of an end.
#[derive(Clone, Debug)]
pub struct EndLine {
    pub task_id: i64,
    pub state: TaskState,
    pub kind: OutcomeKind,
    /// Empty: it was given to none.
    pub runner: String,
}

impl From<&&End> for EndLine {
    fn from(end: &&End) -> Self {
        let task = &end.task;
        Self {
            task_id: task.id,
            state: end.transition.to(),
            kind: end.outcome.kind,
            runner: match (&task.host, task.slot) {
                (Some(host), Some(slot)) => format!("{host}/{slot}"),
                _ => String::new(),
            },
        }
    }
}

#[derive(Serialize)]
struct EndJson<'a> {
    id: i64,
    from: i16,
    to: i16,
    kind: &'a str,
    exit_code: Option<i32>,
    signal: Option<i32>,
    message: &'a str,
    started_age: Option<i64>,
    ended_age: i64,
    cancelled_by: Option<&'a str>,
    cancel_reason: Option<&'a str>,
    detail: Option<String>,
}

#[derive(Serialize)]
struct CallbackJson {
    id: i64,
    delivery: String,
    receiver: String,
}

/// A task to follow another.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Follow {
    pub id: i64,
    pub attempts: i64,
    pub replacements: i64,
    pub recoveries: i64,
    pub delay: i64,
    /// 0 or 1: not on the host of the one before, where another can take it.
    pub avoid: i64,
}

#[derive(Serialize)]
struct LinkJson {
    id: i64,
    new_id: i64,
}

#[derive(sqlx::FromRow)]
struct DoneRow {
    id: i64,
    /// From when it was due to its start.
    start_ms: Option<i64>,
}

/// The text of the column `end_detail`.
pub fn detail_json(detail: &EndDetail) -> Result<String, StoreError> {
    serde_json::to_string(detail).map_err(|error| StoreError::Data(error.to_string()))
}

/// Writes the ends of tasks that the caller has locked. Only those that were still in the state that the
/// decision saw are ended. What waits for the end of a run of a job goes on in the same transaction.
pub async fn end_tasks(tx: &mut Tx, ends: &[End]) -> Result<Ended, StoreError> {
    let mut ended = end_without_settling(tx, ends).await?;
    if ends.iter().any(|end| end.task.job_id.is_some()) {
        // Boxed: what goes on may end tasks itself.
        Box::pin(settle::after_ends(tx, ends, &mut ended)).await?;
    }
    Ok(ended)
}

/// As [`end_tasks`], for tasks that have no place of their job.
pub(super) async fn end_without_settling(tx: &mut Tx, ends: &[End]) -> Result<Ended, StoreError> {
    if ends.is_empty() {
        return Ok(Ended::default());
    }
    let mut rows = Vec::with_capacity(ends.len());
    for end in ends {
        let from = end.task.state()?;
        if !end.transition.leaves(from) {
            return Err(StoreError::Other(format!(
                "{:?} cannot leave {from} (task {})",
                end.transition, end.task.id
            )));
        }
        rows.push(EndJson {
            id: end.task.id,
            from: from.number(),
            to: end.transition.to().number(),
            kind: end.outcome.kind.name(),
            exit_code: end.outcome.exit_code,
            signal: end.outcome.signal,
            message: &end.outcome.message,
            started_age: end.started_age_ms,
            ended_age: end.ended_age_ms,
            cancelled_by: end.cancelled_by.as_ref().map(|(by, _)| by.as_str()),
            cancel_reason: end.cancelled_by.as_ref().and_then(|(_, reason)| reason.as_deref()),
            detail: end.detail.as_ref().map(detail_json).transpose()?,
        });
    }
    let done: Vec<DoneRow> = tx.all(&END_TASKS, vec![batch(&rows)?]).await?;
    let done: HashMap<i64, Option<i64>> = done.into_iter().map(|row| (row.id, row.start_ms)).collect();
    let ended: Vec<&End> = ends.iter().filter(|end| done.contains_key(&end.task.id)).collect();
    let untold = |end: &&&End| end.task.status == TaskState::Dispatched.number() && end.started_age_ms.is_some();

    let callbacks: Vec<CallbackJson> = ended
        .iter()
        .filter_map(|end| {
            Some(CallbackJson {
                id: end.task.id,
                delivery: format!("msg_{}", uuid::Uuid::now_v7().simple()),
                receiver: outbox::receiver(end.task.callback_url.as_deref()?),
            })
        })
        .collect();
    if !callbacks.is_empty() {
        tx.exec(&PUT_CALLBACKS, vec![batch(&callbacks)?]).await?;
    }
    let successors = put_successors(tx, &ended).await?;
    Ok(Ended {
        ids: ended.iter().map(|end| end.task.id).collect(),
        successors,
        callbacks: !callbacks.is_empty(),
        kinds: ended.iter().map(|end| end.outcome.kind).collect(),
        start_ms: ended
            .iter()
            .filter(untold)
            .filter_map(|end| done.get(&end.task.id).copied().flatten())
            .collect(),
        lines: if task_log::is_on() {
            ended.iter().map(EndLine::from).collect()
        } else {
            Vec::new()
        },
        ..Ended::default()
    })
}

async fn put_successors(tx: &mut Tx, ended: &[&End]) -> Result<Vec<Successor>, StoreError> {
    let jobs = settle::jobs_of_failed(tx, ended).await?;
    let wanted: Vec<Follow> = ended
        .iter()
        .filter_map(|end| successor(end, end.task.job_id.and_then(|job| jobs.get(&job)).map(|job| &**job)))
        .collect();
    follow(tx, &wanted).await
}

/// Makes tasks that follow others.
pub(super) async fn follow(tx: &mut Tx, wanted: &[Follow]) -> Result<Vec<Successor>, StoreError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let made: Vec<Successor> = tx.all(&PUT_SUCCESSORS, vec![batch(wanted)?]).await?;
    let links: Vec<LinkJson> = made
        .iter()
        .map(|new| LinkJson {
            id: new.retry_of,
            new_id: new.id,
        })
        .collect();
    if !links.is_empty() {
        let links = batch(&links)?;
        tx.exec(&LINK_SUCCESSORS, vec![links.clone()]).await?;
        tx.exec(&COPY_TAGS, vec![links]).await?;
    }
    Ok(made)
}

/// A number from 0 to 1 that is always the same for a task: a repeated transaction decides the same.
fn unit_of(task_id: i64) -> f64 {
    jitter::delay_ms("retry", task_id, UNIT) as f64 / UNIT as f64
}

const UNIT: u64 = 1_000_000;

/// The next attempt of a run, as its job wants it.
pub(super) fn retry(job: &Job, id: i64, attempt: i64, set_id: Option<i64>) -> Follow {
    let attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
    let delay = job.retry.delay_ms(attempt, unit_of(id));
    Follow {
        id,
        attempts: 1,
        delay: i64::try_from(delay).unwrap_or(i64::MAX),
        avoid: i64::from(set_id.is_none() && job.avoids_last_host()),
        ..Follow::default()
    }
}

/// `job`: its own, which may say more than the task itself.
fn successor(end: &End, job: Option<&Job>) -> Option<Follow> {
    if end.transition.to() != TaskState::Failed {
        return None;
    }
    let task = &end.task;
    let number = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
    let follow = follow_up(
        end.outcome.kind,
        number(task.attempt),
        number(task.max_retries),
        number(task.replacements),
    );
    let next = Follow {
        id: task.id,
        ..Follow::default()
    };
    match follow {
        FollowUp::Nothing => None,
        FollowUp::Retry => match job {
            None if task.job_id.is_none() => Some(Follow {
                attempts: 1,
                delay: task.retry_delay_ms,
                ..next
            }),
            // Beside what is left of it nothing may start: `recover` makes it once that is proven dead.
            Some(_) if end.is_unproven() => None,
            Some(job) if job.retry.counts(end.outcome.kind, end.outcome.exit_code) => {
                Some(retry(job, task.id, task.attempt, task.set_id))
            }
            // Not a failure that the job retries, or the job is gone.
            None | Some(_) => None,
        },
        FollowUp::Replace => Some(Follow {
            replacements: 1,
            ..next
        }),
    }
}
