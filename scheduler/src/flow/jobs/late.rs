//! Jobs that are late, and runs that take long: what only the clock can tell, whether or not anything runs.

use crate::context::Context;
use crate::store::alarms::{self, Raise};
use crate::store::jobs::compiled::{self, ReadJob};
use crate::store::jobs::health::{self, HealthRow, notice_of, raise_of, rules_of, slow_words};
use crate::store::jobs::triggers::{self, TriggerRow};
use crate::store::jobs::watch::{self, NewWatch, SlowRow, WatchRow};
use crate::store::jobs::{self as store, JobRow, settle};
use crate::store::{Class, StoreError, Tx, freeze};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use systole_shared::alarm::late::{Known, judge};
use systole_shared::alarm::notice::TaskFact;
use systole_shared::alarm::rule::has_times;
use systole_shared::alarm::{Deadline, Notice, Rule, When};
use systole_shared::job::Job;
use systole_shared::policy::freeze::{Freeze, over};
use systole_shared::policy::pause::{Held, Pause, held_by};
use systole_shared::trigger::plan::Trigger;

/// Reads the alarms of definitions that are new or changed. Returns how many definitions it had in hand.
pub async fn read_definitions(ctx: &Context, until_ms: i64) -> Result<usize, StoreError> {
    ctx.db
        .write("watch_jobs", Class::Api, move |tx| Box::pin(watch_jobs(tx, until_ms)))
        .await
}

async fn watch_jobs(tx: &mut Tx, until_ms: i64) -> Result<usize, StoreError> {
    let ids = watch::lock_unwatched(tx, until_ms).await?;
    if ids.is_empty() {
        return Ok(0);
    }
    let known = watch::of_jobs(tx, &ids).await?;
    let mut wanted: Vec<NewWatch> = Vec::new();
    for row in store::by_id(tx, &ids).await? {
        let rules = rules_of(&row).map(|job| job.alarms.clone()).unwrap_or_default();
        let new: Vec<NewWatch> = rules.iter().filter_map(|rule| new_watch(row.id, rule)).collect();
        let gone: Vec<&str> = known
            .iter()
            .filter(|old| old.job_id == row.id && !new.iter().any(|new| new.rule == old.rule))
            .map(|old| old.rule.as_str())
            .collect();
        watch::delete(tx, row.id, &gone).await?;
        wanted.extend(new);
    }
    watch::put(tx, &wanted).await?;
    watch::watched(tx, &ids).await?;
    Ok(ids.len())
}

fn new_watch(job_id: i64, rule: &Rule) -> Option<NewWatch> {
    let (slow_ms, words) = match &rule.when {
        When::Late(deadline) => (None, deadline.words()),
        When::Slow { longer_than_ms } => (Some(*longer_than_ms), slow_words(rule)),
        When::Failure { .. } | When::Recovery | When::Skipped => return None,
    };
    Some(NewWatch {
        job_id,
        rule: rule.key(),
        slow_ms,
        words,
    })
}

/// Judges the jobs whose rules are due, a bounded number. Returns how many.
pub async fn judge_due(ctx: &Context, until_ms: i64) -> Result<usize, StoreError> {
    let jobs = ctx.db.due_watches(until_ms).await?;
    if jobs.is_empty() {
        return Ok(0);
    }
    let (count, raised) = ctx
        .db
        .write("judge_late", Class::Api, move |tx| {
            let jobs = jobs.clone();
            Box::pin(async move { judge_jobs(tx, &jobs, until_ms).await })
        })
        .await?;
    if raised {
        ctx.wake.alarms.notify_one();
    }
    Ok(count)
}

/// A job with all that its lateness depends on.
struct Subject {
    row: JobRow,
    job: ReadJob,
    triggers: Vec<(TriggerRow, Arc<Trigger>)>,
    /// Some trigger has times that are known beforehand, be it one that cannot be read.
    has_times: bool,
}

async fn judge_jobs(tx: &mut Tx, ids: &[i64], until_ms: i64) -> Result<(usize, bool), StoreError> {
    let now = settle::now_ms(tx).await?;
    if now > until_ms {
        // The clock has jumped, and no sample has shown it yet: nobody is late by it.
        return Ok((0, false));
    }
    let wanted: BTreeSet<i64> = ids.iter().copied().collect();
    let subjects = subjects(tx, ids).await?;
    let gone: Vec<i64> = wanted.iter().copied().filter(|id| !subjects.contains_key(id)).collect();
    if !gone.is_empty() {
        watch::forget(tx, &gone).await?;
        health::forget(tx, &gone).await?;
    }
    let alive: BTreeSet<i64> = subjects.keys().copied().collect();
    if alive.is_empty() {
        return Ok((ids.len(), false));
    }
    // Held while it is decided: a success that comes meanwhile is seen before, or puts it right after.
    let mut rows: HashMap<i64, HealthRow> = health::lock(tx, &alive)
        .await?
        .into_iter()
        .map(|row| (row.job_id, row))
        .collect();
    // Anew: other transactions may have been waited for.
    let now = settle::now_ms(tx).await?;
    if now > until_ms {
        return Ok((0, false));
    }
    let alive: Vec<i64> = alive.into_iter().collect();
    let due = watch::lock_due(tx, &alive, now).await?;
    let oldest = due.iter().map(|watch| watch.base_ms).min().unwrap_or(now);
    let freezes = freeze::since(tx, oldest).await?;
    let mut moved: Vec<WatchRow> = Vec::with_capacity(due.len());
    let mut raises: Vec<Raise> = Vec::new();
    for mut watch in due {
        let (Some(subject), Some(health)) = (subjects.get(&watch.job_id), rows.get_mut(&watch.job_id)) else {
            continue;
        };
        let rule = subject.job.alarms.iter().find(|rule| rule.key() == watch.rule);
        let Some((rule, When::Late(deadline))) = rule.map(|rule| (rule, &rule.when)) else {
            // The definition changed; its alarms are read again soon.
            watch.due_ms = None;
            moved.push(watch);
            continue;
        };
        let frozen = frozen(&freezes, &subject.job);
        let raise = judge_one((subject, &frozen), rule, deadline, health, &mut watch, now);
        if raise.is_some() {
            health.noted = true;
        }
        raises.extend(raise);
        moved.push(watch);
    }
    let told = alarms::raise(tx, &raises).await?;
    for (raise, told) in raises.iter().zip(told) {
        if let (true, Some(health)) = (told, rows.get_mut(&raise.job_id)) {
            health.told();
        }
    }
    watch::save(tx, &moved).await?;
    let changed: BTreeSet<i64> = raises.iter().map(|raise| raise.job_id).collect();
    let rows: Vec<HealthRow> = rows.into_values().filter(|row| changed.contains(&row.job_id)).collect();
    health::save(tx, &rows).await?;
    Ok((moved.len().max(gone.len()), !raises.is_empty()))
}

async fn subjects(tx: &mut Tx, ids: &[i64]) -> Result<HashMap<i64, Subject>, StoreError> {
    let mut triggers = triggers::of_jobs(tx, ids).await?;
    let jobs: Vec<(JobRow, ReadJob)> = store::by_id(tx, ids)
        .await?
        .into_iter()
        .filter_map(|row| {
            let job = rules_of(&row)?;
            Some((row, job))
        })
        .collect();
    let calendars = compiled::calendars_of(tx, jobs.iter().flat_map(|(_, job)| &job.triggers)).await?;
    let mut subjects = HashMap::with_capacity(jobs.len());
    for (row, job) in jobs {
        let own: Vec<TriggerRow> = triggers.extract_if(.., |trigger| trigger.job_id == row.id).collect();
        let own = own.into_iter().filter_map(|trigger| {
            let spec = compiled::trigger_spec(&trigger).ok().filter(|spec| has_times(spec))?;
            let ready = compiled::stored_trigger(&row.name, &trigger, &spec, &calendars).ok()?;
            Some((trigger, ready))
        });
        subjects.insert(
            row.id,
            Subject {
                has_times: job.triggers.iter().any(has_times),
                triggers: own.collect(),
                row,
                job,
            },
        );
    }
    Ok(subjects)
}

/// Until when the job does not fire, if it does not; a pause whose end has passed is over.
fn paused(subject: &Subject, frozen: &[Pause], now: i64) -> Option<Option<i64>> {
    let of_job = || frozen.iter().copied().chain([subject.row.pause()]);
    // One whose end has passed is over, and does not hide another.
    let lasts = |pause: &Pause| pause.until_ms.is_none_or(|until| now < until);
    let holds = |pause: Pause| match held_by(of_job().chain([pause]).filter(lasts)) {
        Held::No => None,
        Held::Until(until) => Some(Some(until)),
        Held::Open => Some(None),
    };
    match subject.triggers.as_slice() {
        [] => holds(Pause::default()),
        // All of them: then nothing is due until the first comes back.
        triggers => triggers
            .iter()
            .map(|(row, _)| holds(row.pause()))
            .collect::<Option<Vec<Option<i64>>>>()
            .map(|ends| ends.into_iter().flatten().min()),
    }
}

/// The freezes over a job as pauses, those that have ended since among them.
fn frozen(freezes: &[Freeze], job: &Job) -> Vec<Pause> {
    over(freezes, &job.task.queue, &job.task.tags)
        .map(Freeze::pause)
        .collect()
}

fn judge_one(
    (subject, frozen): (&Subject, &[Pause]),
    rule: &Rule,
    deadline: &Deadline,
    health: &HealthRow,
    watch: &mut WatchRow,
    now: i64,
) -> Option<Raise> {
    let known_health = health.health();
    let thawed = frozen
        .iter()
        .filter_map(|pause| pause.until_ms)
        .filter(|&until| until <= now);
    let resumed = subject.row.paused_at_ms.into_iter().chain(thawed).max();
    let known = Known {
        now_ms: now,
        // What lies before a pause ended is not missed.
        base_ms: watch.base_ms.max(resumed.unwrap_or(0).min(now)),
        since_ms: watch.since_ms,
        success_ms: known_health.success_ms,
        success_scheduled_ms: known_health.success_scheduled_ms,
        paused: paused(subject, frozen, now),
    };
    let next_slot = |after: i64| {
        if !subject.has_times {
            return None;
        }
        let slots = subject
            .triggers
            .iter()
            .filter(|(row, _)| !row.paused)
            .map(|(row, trigger)| {
                let from = after
                    .max(row.created_at_ms - 1)
                    .max(row.paused_at_ms.unwrap_or(i64::MIN));
                // A schedule that is broken still says that something was to run.
                trigger.next_after(from).unwrap_or(Some(from + 1))
            });
        Some(slots.flatten().min())
    };
    let judged = judge(deadline, &known, &next_slot);
    watch.base_ms = judged.base_ms;
    watch.since_ms = judged.since_ms;
    watch.due_ms = Some(judged.due_ms);
    let missed = judged.missed_ms?;
    let notice = Notice {
        rule: deadline.words(),
        since_ms: judged.since_ms.unwrap_or(missed),
        success_ms: known_health.success_ms.unwrap_or(0),
        failures: known_health.failures,
        ..notice_of(&subject.job)
    };
    Some(raise_of(subject.row.id, rule, &missed.to_string(), notice))
}

/// Tells of runs that take longer than their jobs want. Returns how many were found.
pub async fn look_for_slow(ctx: &Context, until_ms: i64) -> Result<usize, StoreError> {
    let found = ctx
        .db
        .write("slow_runs", Class::Api, move |tx| {
            Box::pin(async move { raise_slow(tx, until_ms).await })
        })
        .await?;
    if found > 0 {
        ctx.wake.alarms.notify_one();
    }
    Ok(found)
}

async fn raise_slow(tx: &mut Tx, until_ms: i64) -> Result<usize, StoreError> {
    let rows = watch::slow_runs(tx, until_ms).await?;
    if rows.is_empty() {
        return Ok(0);
    }
    let ids: BTreeSet<i64> = rows.iter().map(|row| row.job_id).collect();
    let ids: Vec<i64> = ids.into_iter().collect();
    let jobs: HashMap<i64, ReadJob> = store::by_id(tx, &ids)
        .await?
        .into_iter()
        .filter_map(|row| Some((row.id, rules_of(&row)?)))
        .collect();
    let raises: Vec<Raise> = rows
        .iter()
        .filter_map(|row| {
            let job = jobs.get(&row.job_id)?;
            let rule = job.alarms.iter().find(|rule| rule.key() == row.rule)?;
            let notice = Notice {
                rule: slow_words(rule),
                since_ms: row.started_at_ms,
                tasks: vec![slow_fact(&job.name, row)],
                ..notice_of(job)
            };
            Some(raise_of(row.job_id, rule, &row.id.to_string(), notice))
        })
        .collect();
    alarms::raise(tx, &raises).await?;
    Ok(raises.len())
}

fn slow_fact(job: &str, row: &SlowRow) -> TaskFact {
    TaskFact {
        id: row.id,
        job: job.into(),
        runner: match (&row.host, row.slot) {
            (Some(host), Some(slot)) => format!("{host}/{slot}"),
            _ => String::new(),
        },
        attempt: row.attempt,
        attempts: row.max_retries + 1,
        outcome: String::new(),
    }
}
