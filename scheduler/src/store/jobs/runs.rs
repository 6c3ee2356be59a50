//! Runs of jobs for people: a run is a task and its retries, of which the newest stands for all.

use super::super::db::{Arg, Tx, batch};
use super::super::error::StoreError;
use super::super::outcome::OutcomeColumns;
use super::super::read::{UNHAPPY, are_held, in_states};
use super::super::sql::Sql;
use systole_shared::id::Target;
use systole_shared::task::{Outcome, TaskState};

macro_rules! run_columns {
    () => {
        "t.id, COALESCE(t.root_id, t.id) AS root_id, t.attempt, t.status, t.scheduled_ms, t.host, t.slot, t.started_at_ms, t.ended_at_ms, t.outcome_kind, \
         t.exit_code, t.signal, t.outcome_message"
    };
}

/// Of each job the newest run that is over: its tasks have ended, and it has no place but one that is held for want of proof.
static LAST_RUNS: Sql = Sql::new(
    "last_runs",
    concat!(
        "SELECT x.job_id, NULL AS trigger_name, ",
        "t.id, x.root AS root_id, t.attempt, t.status, COALESCE(t.scheduled_ms, 0) AS scheduled_ms, t.host, t.slot, t.started_at_ms, \
         t.ended_at_ms, t.outcome_kind, t.exit_code, t.signal, t.outcome_message ",
        "FROM (SELECT j.id AS job_id, (SELECT o.task_id FROM occurrence AS o JOIN task AS f ON {is:f.id,o.task_id} \
             WHERE o.job_id = j.id AND o.verdict = 'fired' AND f.ended_at_ms IS NOT NULL \
               AND NOT EXISTS (SELECT 1 FROM slot AS s WHERE s.root_id = o.task_id AND s.lost_task_id IS NULL) \
             ORDER BY o.scheduled_ms DESC, o.id DESC LIMIT 1) AS root \
           FROM job AS j WHERE j.id {among:$1}) AS x \
         JOIN task AS t ON t.id = COALESCE((SELECT max(c.id) FROM task AS c WHERE c.root_id = x.root AND c.retry_of IS NOT NULL), x.root)"
    ),
);

pub static STATEMENTS: &[&Sql] = &[&LAST_RUNS];

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct RunRow {
    pub job_id: i64,
    /// `None`, or empty: somebody asked for it without a trigger.
    pub trigger_name: Option<String>,
    /// The newest attempt.
    pub id: i64,
    pub root_id: i64,
    pub attempt: i64,
    status: i16,
    pub scheduled_ms: i64,
    pub host: Option<String>,
    pub slot: Option<i64>,
    pub started_at_ms: Option<i64>,
    pub ended_at_ms: Option<i64>,
    #[sqlx(flatten)]
    outcome: OutcomeColumns,
}

impl RunRow {
    pub fn state(&self) -> Result<TaskState, StoreError> {
        TaskState::from_number(self.status).ok_or(StoreError::Corrupt {
            table: "task",
            column: "status",
            id: self.id,
        })
    }

    pub fn outcome(&self) -> Result<Option<Outcome>, StoreError> {
        self.outcome.read(self.id)
    }
}

/// Which runs are asked for. All conditions must hold.
#[derive(Clone, Debug, Default)]
pub struct RunQuery {
    pub job: String,
    pub states: Vec<TaskState>,
    /// Scheduled at or after, and before.
    pub from_ms: Option<i64>,
    pub to_ms: Option<i64>,
    pub trigger: String,
    pub runner: Option<Target>,
    pub failed: bool,
    pub skip: i64,
    pub limit: i64,
}

impl RunQuery {
    /// What follows `FROM`, and its parameters. `named`: with the triggers, as `o`.
    fn conditions(&self, job_id: i64, named: bool) -> (String, Vec<Arg>) {
        let mut text = String::from("task AS t");
        if named {
            text.push_str(
                " LEFT JOIN occurrence AS o ON o.job_id = t.job_id AND o.scheduled_ms = t.scheduled_ms \
                   AND o.task_id = COALESCE(t.root_id, t.id)",
            );
        }
        // The few that runners hold are looked for among those, and not among all runs of the job.
        let of_job = if are_held(&self.states) {
            "t.job_id + 0"
        } else {
            "t.job_id"
        };
        text.push_str(&format!(
            " WHERE {of_job} = $1 AND t.scheduled_ms IS NOT NULL AND t.retried_by IS NULL"
        ));
        let mut args: Vec<Arg> = vec![job_id.into()];
        let mut add = |text: &mut String, condition: &str, arg: Arg| {
            args.push(arg);
            text.push_str(&format!(" AND {condition} ${}", args.len()));
        };
        if let Some(from) = self.from_ms {
            add(&mut text, "t.scheduled_ms >=", from.into());
        }
        if let Some(to) = self.to_ms {
            add(&mut text, "t.scheduled_ms <", to.into());
        }
        if !self.trigger.is_empty() {
            add(&mut text, "o.trigger_name =", self.trigger.clone().into());
        }
        if let Some(runner) = &self.runner {
            add(&mut text, "t.host =", runner.host.clone().into());
            if let Some(slot) = runner.slot {
                add(&mut text, "t.slot =", i64::from(slot).into());
            }
        }
        if self.failed {
            text.push_str(UNHAPPY);
        }
        if !self.states.is_empty() {
            text.push_str(&in_states(&self.states));
        }
        (text, args)
    }
}

#[derive(sqlx::FromRow)]
struct Count {
    n: i64,
}

/// By scheduled time, newest first.
pub async fn list(tx: &mut Tx, query: &RunQuery, job_id: i64) -> Result<Vec<RunRow>, StoreError> {
    let (conditions, mut args) = query.conditions(job_id, true);
    args.push(query.limit.into());
    args.push(query.skip.into());
    let (limit, skip) = (args.len() - 1, args.len());
    let text = format!(
        "SELECT t.job_id, o.trigger_name, {} FROM {conditions} ORDER BY t.scheduled_ms DESC, t.id DESC LIMIT ${limit} OFFSET ${skip}",
        run_columns!()
    );
    tx.all_text(text, args).await
}

pub async fn count(tx: &mut Tx, query: &RunQuery, job_id: i64) -> Result<u64, StoreError> {
    let (conditions, args) = query.conditions(job_id, !query.trigger.is_empty());
    let rows: Vec<Count> = tx
        .all_text(format!("SELECT CAST(count(*) AS BIGINT) AS n FROM {conditions}"), args)
        .await?;
    Ok(rows.first().and_then(|row| u64::try_from(row.n).ok()).unwrap_or(0))
}

/// The newest run of each of these jobs that is over.
pub async fn last(tx: &mut Tx, jobs: &[i64]) -> Result<Vec<RunRow>, StoreError> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&LAST_RUNS, vec![batch(jobs)?]).await
}
