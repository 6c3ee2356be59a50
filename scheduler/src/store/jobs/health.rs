//! Alarms of jobs, as far as runs decide them: written by the transaction that ends a run, or that finds that it does not fire.
//! A job without alarms costs no statement here.

use super::super::alarms::{self, Again, Raise};
use super::super::db::{Tx, batch};
use super::super::error::StoreError;
use super::super::finish::{End, Ended};
use super::super::sql::Sql;
use super::compiled::{self, ReadJob};
use super::ledger::Entry;
use super::{JobRow, watch};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use systole_shared::alarm::health::{Health, RunEnd, after_run};
use systole_shared::alarm::notice::TaskFact;
use systole_shared::alarm::{Kind, Notice, Rule, When};
use systole_shared::job::Job;
use systole_shared::task::{OutcomeKind, TaskState};
use systole_shared::trigger::occurrence::SkipReason;

/// Longest wait for more tasks of a lost host.
const GATHER_MS_MAX: i64 = 60_000;

static LOCK_HEALTH: Sql = Sql::new(
    "lock_health",
    "SELECT job_id, failures, success_ms, success_scheduled_ms, trouble, noted, {now} AS now_ms FROM job_health \
     WHERE job_id {among:$1} ORDER BY job_id {for_update}",
);
static PUT_HEALTH: Sql = Sql::new(
    "put_health",
    "INSERT INTO job_health (job_id) SELECT CAST(e.value AS BIGINT) FROM {each:$1} WHERE TRUE ON CONFLICT DO NOTHING",
);
static SET_HEALTH: Sql = Sql::new(
    "set_health",
    "UPDATE job_health SET failures = x.failures, success_ms = x.success_ms, success_scheduled_ms = x.success_scheduled_ms, \
       trouble = (x.trouble = 1), noted = (x.noted = 1) \
     FROM (SELECT CAST(e.value->>'job_id' AS BIGINT) AS id, CAST(e.value->>'failures' AS BIGINT) AS failures, \
       CAST(e.value->>'success_ms' AS BIGINT) AS success_ms, CAST(e.value->>'success_scheduled_ms' AS BIGINT) AS success_scheduled_ms, \
       CAST(e.value->>'trouble' AS BIGINT) AS trouble, CAST(e.value->>'noted' AS BIGINT) AS noted FROM {each:$1}) AS x \
     WHERE {is:job_health.job_id,x.id}",
);
static SET_TROUBLE: Sql = Sql::new(
    "set_trouble",
    "UPDATE job_health SET trouble = TRUE WHERE job_id {among:$1}",
);
static DELETE_HEALTH: Sql = Sql::new("delete_health", "DELETE FROM job_health WHERE job_id {among:$1}");

pub static STATEMENTS: &[&Sql] = &[&LOCK_HEALTH, &PUT_HEALTH, &SET_HEALTH, &SET_TROUBLE, &DELETE_HEALTH];

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct HealthRow {
    pub job_id: i64,
    failures: i64,
    success_ms: Option<i64>,
    success_scheduled_ms: Option<i64>,
    trouble: bool,
    /// A success has something to put right.
    pub noted: bool,
    pub now_ms: i64,
}

impl HealthRow {
    pub fn health(&self) -> Health {
        Health {
            failures: self.failures,
            success_ms: self.success_ms,
            success_scheduled_ms: self.success_scheduled_ms,
            trouble: self.trouble,
        }
    }

    pub fn set(&mut self, health: Health) {
        self.failures = health.failures;
        self.success_ms = health.success_ms;
        self.success_scheduled_ms = health.success_scheduled_ms;
        self.trouble = health.trouble;
    }

    /// Somebody is told that it is late.
    pub fn told(&mut self) {
        self.trouble = true;
    }
}

#[derive(Serialize)]
struct HealthJson {
    job_id: i64,
    failures: i64,
    success_ms: Option<i64>,
    success_scheduled_ms: Option<i64>,
    trouble: i64,
    noted: i64,
}

/// The rules of a job, and the job, if it has rules. Most have none and are not even read.
pub fn rules_of(row: &JobRow) -> Option<ReadJob> {
    if !row.definition.contains("\"alarm\"") {
        return None;
    }
    compiled::job(row).ok().filter(|job| !job.alarms.is_empty())
}

/// Reads and locks, in the order of the jobs. Rows that are missing are made.
pub async fn lock(tx: &mut Tx, jobs: &BTreeSet<i64>) -> Result<Vec<HealthRow>, StoreError> {
    let ids: Vec<i64> = jobs.iter().copied().collect();
    let rows: Vec<HealthRow> = tx.all(&LOCK_HEALTH, vec![batch(&ids)?]).await?;
    if rows.len() == ids.len() {
        return Ok(rows);
    }
    tx.exec(&PUT_HEALTH, vec![batch(&ids)?]).await?;
    tx.all(&LOCK_HEALTH, vec![batch(&ids)?]).await
}

pub async fn save(tx: &mut Tx, rows: &[HealthRow]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    let rows: Vec<HealthJson> = rows
        .iter()
        .map(|row| HealthJson {
            job_id: row.job_id,
            failures: row.failures,
            success_ms: row.success_ms,
            success_scheduled_ms: row.success_scheduled_ms,
            trouble: i64::from(row.trouble),
            noted: i64::from(row.noted),
        })
        .collect();
    tx.exec(&SET_HEALTH, vec![batch(&rows)?]).await.map(drop)
}

pub async fn set_trouble(tx: &mut Tx, jobs: &[i64]) -> Result<(), StoreError> {
    if jobs.is_empty() {
        return Ok(());
    }
    tx.exec(&SET_TROUBLE, vec![batch(jobs)?]).await.map(drop)
}

/// Of jobs that are gone.
pub async fn forget(tx: &mut Tx, jobs: &[i64]) -> Result<(), StoreError> {
    tx.exec(&DELETE_HEALTH, vec![batch(jobs)?]).await.map(drop)
}

fn task_fact(job: &str, end: &End) -> TaskFact {
    let task = &end.task;
    TaskFact {
        id: task.id,
        job: job.into(),
        runner: match (&task.host, task.slot) {
            (Some(host), Some(slot)) => format!("{host}/{slot}"),
            _ => String::new(),
        },
        attempt: task.attempt,
        attempts: task.max_retries + 1,
        outcome: end.outcome.message.clone(),
    }
}

/// What is told of a job, whatever it is.
pub fn notice_of(job: &Job) -> Notice {
    Notice {
        job: job.name.clone(),
        owner: job.owner.clone(),
        runbook: job.runbook.clone(),
        count: 1,
        ..Notice::default()
    }
}

/// An alarm of a rule; its cause is the rule's own.
pub fn raise_of(job_id: i64, rule: &Rule, what: &str, notice: Notice) -> Raise {
    Raise {
        job_id,
        job: notice.job.clone(),
        rule: rule.key(),
        kind: rule.kind(),
        cause: format!("j{job_id}:{}:{what}", rule.key()),
        to: rule.to.clone(),
        silence_ms: rule.silence_ms,
        gather_ms: 0,
        again: Again::Ignore,
        notice,
    }
}

/// Ends that have one cause are one alarm: the tasks of a host that was lost, whatever their jobs.
fn by_cause(raise: &mut Raise, end: &End) {
    let lost = end.outcome.kind == OutcomeKind::RunnerLost;
    if let (true, Some(host)) = (lost, &end.task.host) {
        raise.kind = Kind::HostLost;
        raise.cause = format!("lost:{host}:{}", end.task.start_no.unwrap_or(0));
        raise.notice.host.clone_from(host);
        // Its slots fall silent within one beat of each other, which is a third of this at most.
        raise.gather_ms = (end.silent_ms / 3).clamp(0, GATHER_MS_MAX);
        raise.again = Again::Tell;
    }
}

fn run_end(end: &End, now_ms: i64) -> RunEnd {
    match end.transition.to() {
        TaskState::Finished | TaskState::Callback => RunEnd::Succeeded {
            at_ms: now_ms - end.ended_age_ms,
            scheduled_ms: end.task.scheduled_ms,
        },
        TaskState::Failed => RunEnd::Failed,
        _ => RunEnd::Neither,
    }
}

/// Runs have ended, each with its last attempt. `jobs`: those of these runs, as far as they exist.
pub async fn after_ends(
    tx: &mut Tx,
    last: &[&End],
    jobs: &HashMap<i64, JobRow>,
    ended: &mut Ended,
) -> Result<(), StoreError> {
    let with_rules: HashMap<i64, ReadJob> = jobs.values().filter_map(|row| Some((row.id, rules_of(row)?))).collect();
    if with_rules.is_empty() {
        return Ok(());
    }
    let ids: BTreeSet<i64> = with_rules.keys().copied().collect();
    let mut rows: HashMap<i64, HealthRow> = lock(tx, &ids).await?.into_iter().map(|row| (row.job_id, row)).collect();
    let mut raises: Vec<Raise> = Vec::new();
    // Of each job, how many alarms there were when it last succeeded in this call.
    let mut well_since: HashMap<i64, usize> = HashMap::new();
    let mut well: Vec<i64> = Vec::new();
    for end in last {
        let found = end
            .task
            .job_id
            .and_then(|id| Some((id, with_rules.get(&id)?, rows.get_mut(&id)?)));
        let Some((job_id, job, row)) = found else { continue };
        let run = run_end(end, row.now_ms);
        let (health, told) = after_run(row.health(), run, &job.alarms);
        row.set(health);
        if matches!(run, RunEnd::Succeeded { .. }) {
            well_since.insert(job_id, raises.len());
            if row.noted {
                row.noted = false;
                well.push(job_id);
            }
        }
        for index in told {
            let rule = &job.alarms[index];
            let notice = Notice {
                failures: health.failures,
                success_ms: health.success_ms.unwrap_or(0),
                tasks: vec![task_fact(&job.name, end)],
                ..notice_of(job)
            };
            let mut raise = raise_of(job_id, rule, &end.task.root_id().to_string(), notice);
            if matches!(rule.when, When::Failure { .. }) {
                by_cause(&mut raise, end);
                row.noted = true;
            }
            raises.push(raise);
        }
        raises.extend(slow_raise(job_id, job, end, row.now_ms));
    }
    let told = alarms::raise(tx, &raises).await?;
    for (index, (raise, told)) in raises.iter().zip(told).enumerate() {
        let is_trouble = matches!(raise.kind, Kind::Failure | Kind::HostLost);
        let over = well_since.get(&raise.job_id).is_some_and(|&since| index < since);
        if let (true, true, false, Some(row)) = (is_trouble, told, over, rows.get_mut(&raise.job_id)) {
            row.told();
        }
    }
    let rows: Vec<HealthRow> = rows.into_values().collect();
    save(tx, &rows).await?;
    if !well.is_empty() {
        alarms::silence_held(tx, &well).await?;
        watch::put_right(tx, &well).await?;
    }
    ended.alarms |= !raises.is_empty();
    Ok(())
}

/// A run that took long and has ended before anybody noticed.
fn slow_raise(job_id: i64, job: &Job, end: &End, now_ms: i64) -> Vec<Raise> {
    let Some(started_age) = end.started_age_ms else {
        return Vec::new();
    };
    let ran_ms = started_age - end.ended_age_ms;
    job.alarms
        .iter()
        .filter(|rule| matches!(rule.when, When::Slow { longer_than_ms } if ran_ms > longer_than_ms))
        .map(|rule| {
            let notice = Notice {
                rule: slow_words(rule),
                since_ms: now_ms - started_age,
                tasks: vec![task_fact(&job.name, end)],
                ..notice_of(job)
            };
            raise_of(job_id, rule, &end.task.id.to_string(), notice)
        })
        .collect()
}

/// `runs longer than 1h`.
pub fn slow_words(rule: &Rule) -> String {
    match rule.when {
        When::Slow { longer_than_ms } => format!(
            "runs longer than {}",
            systole_shared::time::exact_duration(longer_than_ms.unsigned_abs())
        ),
        _ => String::new(),
    }
}

/// Whether a job should be told of fires that were skipped for this reason: nobody has asked for it.
fn is_unwanted(reason: &str) -> bool {
    SkipReason::ALL
        .into_iter()
        .find(|known| known.name() == reason)
        .is_some_and(|reason| !matches!(reason, SkipReason::Calendar | SkipReason::Paused))
}

fn skip_words(reason: &str) -> &'static str {
    match reason {
        "misfire" => "its time was missed, and its policy does not make it up",
        "blocked" => "another run was in the way",
        "backlog_full" => "too many runs wait already",
        "discarded" => "a newer run took its place",
        "ended" => "its time was missed, and its trigger has ended since",
        _ => "it was skipped",
    }
}

/// Verdicts were written. `entries`: those that are new.
pub async fn after_verdicts<'a>(
    tx: &mut Tx,
    entries: impl Iterator<Item = &'a Entry>,
    job_of: impl Fn(i64) -> Option<&'a JobRow>,
    ended: &mut Ended,
) -> Result<(), StoreError> {
    let mut raises: Vec<Raise> = Vec::new();
    let mut rules: HashMap<i64, Option<ReadJob>> = HashMap::new();
    for entry in entries.filter(|entry| entry.verdict == "skipped" && is_unwanted(entry.reason)) {
        let job = rules
            .entry(entry.job_id)
            .or_insert_with(|| job_of(entry.job_id).and_then(rules_of));
        let Some(job) = job else { continue };
        for rule in job.alarms.iter().filter(|rule| rule.when == When::Skipped) {
            let notice = Notice {
                rule: skip_words(entry.reason).into(),
                since_ms: entry.scheduled_ms,
                blocked_by: entry.blocked_by.unwrap_or(0),
                count: u64::try_from(entry.fires).unwrap_or(1),
                ..notice_of(job)
            };
            // As long as one run is in the way, that is one cause.
            let what = match entry.blocked_by {
                Some(by) => format!("by {by}"),
                None => format!("{}@{}", entry.trigger_name, entry.scheduled_ms),
            };
            raises.push(Raise {
                again: Again::Count,
                ..raise_of(entry.job_id, rule, &what, notice)
            });
        }
    }
    ended.alarms |= !raises.is_empty();
    alarms::raise(tx, &raises).await.map(drop)
}
