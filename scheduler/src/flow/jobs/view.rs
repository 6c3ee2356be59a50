//! What is shown of jobs: their state, their history, and what is to come.

use super::apply::Coming;
use super::{Refusal, no_such_job};
use crate::context::Context;
use crate::store::jobs::kept::{CalendarRow, GroupRow};
use crate::store::jobs::ledger::{self, OccurrenceFilter, OccurrenceRow};
use crate::store::jobs::slots::{self, SlotRow};
use crate::store::jobs::triggers::{self, TriggerRow};
use crate::store::jobs::{self as store, JobRow, ListFilter, VersionRow, compiled, kept, settle};
use crate::store::{StoreError, freeze};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use systole_shared::job::route::BROADCAST;
use systole_shared::policy::freeze::{Freeze, over};
use systole_shared::policy::pause::{Held, held_by};
use systole_shared::trigger::plan::Trigger;
use systole_shared::trigger::schedule::Schedule;
use systole_shared::trigger::state::Phase;

/// A job and where it stands.
#[derive(Clone, Debug)]
pub struct JobView {
    pub row: JobRow,
    pub triggers: Vec<TriggerRow>,
    /// Its places.
    pub slots: Vec<SlotRow>,
    /// Of members of its broadcasts that ended without proof.
    pub members: Vec<SlotRow>,
    pub waiting: u32,
    pub freezes: Vec<Freeze>,
}

/// What is frozen of a job. One that cannot be read is as its lane says: by everything.
fn freezes_over(freezes: &[Freeze], job: &JobRow) -> Vec<Freeze> {
    if freezes.is_empty() {
        return Vec::new();
    }
    match compiled::job(job) {
        Ok(job) => over(freezes, &job.task.queue, &job.task.tags).cloned().collect(),
        Err(_) => over(freezes, "", &[]).cloned().collect(),
    }
}

async fn views(tx: &mut crate::store::Tx, jobs: Vec<JobRow>) -> Result<Vec<JobView>, StoreError> {
    let ids: Vec<i64> = jobs.iter().map(|job| job.id).collect();
    let mut of_job: HashMap<i64, Vec<TriggerRow>> = HashMap::new();
    for row in triggers::of_jobs(tx, &ids).await? {
        of_job.entry(row.job_id).or_default().push(row);
    }
    let resources: Vec<String> = jobs.iter().map(|job| slots::job_resource(&job.name)).collect();
    let names: Vec<&str> = resources.iter().map(String::as_str).collect();
    let mut taken: HashMap<String, Vec<SlotRow>> = HashMap::new();
    for row in slots::taken(tx, &names).await? {
        taken.entry(row.resource.clone()).or_default().push(row);
    }
    let sets: Vec<String> = jobs
        .iter()
        .zip(&resources)
        .filter(|(job, _)| job.definition.contains(BROADCAST))
        .filter_map(|(_, resource)| taken.get(resource))
        .flatten()
        .map(|row| slots::set_resource(row.root_id))
        .collect();
    let names: Vec<&str> = sets.iter().map(String::as_str).collect();
    let mut members: HashMap<String, Vec<SlotRow>> = HashMap::new();
    for row in slots::taken(tx, &names).await? {
        members.entry(row.resource.clone()).or_default().push(row);
    }
    let mut of = |slots: &[SlotRow]| -> Vec<SlotRow> {
        let sets = slots.iter().map(|row| slots::set_resource(row.root_id));
        sets.filter_map(|set| members.remove(&set)).flatten().collect()
    };
    let waiting = slots::waiting_counts(tx, &ids).await?;
    let freezes = freeze::since(tx, i64::MAX).await?;
    Ok(jobs
        .into_iter()
        .zip(resources)
        .map(|(row, resource)| {
            let places = taken.remove(&resource).unwrap_or_default();
            JobView {
                triggers: of_job.remove(&row.id).unwrap_or_default(),
                members: of(&places),
                slots: places,
                waiting: waiting.get(&row.id).copied().unwrap_or(0),
                freezes: freezes_over(&freezes, &row),
                row,
            }
        })
        .collect())
}

pub async fn get(ctx: &Context, names: Vec<String>) -> Result<Vec<Result<JobView, Refusal>>, Refusal> {
    let names = Arc::new(names);
    let asked = Arc::clone(&names);
    let mut found: HashMap<String, JobView> = ctx
        .db
        .read("get_jobs", move |tx| {
            let names = Arc::clone(&names);
            Box::pin(async move {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let rows = store::by_name(tx, &names).await?;
                views(tx, rows).await
            })
        })
        .await?
        .into_iter()
        .map(|view| (view.row.name.clone(), view))
        .collect();
    Ok(asked
        .iter()
        .map(|name| found.remove(name).ok_or_else(|| no_such_job(name)))
        .collect())
}

pub async fn list(ctx: &Context, filter: ListFilter, after: String, limit: i64) -> Result<Vec<JobView>, Refusal> {
    Ok(ctx
        .db
        .read("list_jobs", move |tx| {
            let (filter, after) = (filter.clone(), after.clone());
            Box::pin(async move {
                let rows = store::list(tx, &filter, &after, limit).await?;
                views(tx, rows).await
            })
        })
        .await?)
}

pub async fn versions(ctx: &Context, name: &str, limit: i64) -> Result<Vec<VersionRow>, Refusal> {
    let key = name.to_owned();
    let rows = ctx
        .db
        .read("job_versions", move |tx| {
            let name = key.clone();
            Box::pin(async move { store::versions(tx, &name, limit).await })
        })
        .await?;
    if rows.is_empty() {
        return Err(no_such_job(name));
    }
    Ok(rows)
}

pub async fn occurrences(
    ctx: &Context,
    job: &str,
    filter: OccurrenceFilter,
    limit: i64,
) -> Result<Vec<OccurrenceRow>, Refusal> {
    let name = job.to_owned();
    let rows = ctx
        .db
        .read("occurrences", move |tx| {
            let (name, mut filter) = (name.clone(), filter.clone());
            Box::pin(async move {
                let Some(job) = store::by_name(tx, &[&name]).await?.pop() else {
                    return Ok(None);
                };
                filter.job_id = job.id;
                ledger::list(tx, &filter, limit).await.map(Some)
            })
        })
        .await?;
    rows.ok_or_else(|| no_such_job(job))
}

pub async fn calendars(ctx: &Context) -> Result<Vec<CalendarRow>, Refusal> {
    Ok(ctx.db.read("calendars", |tx| Box::pin(kept::calendars(tx))).await?)
}

/// Groups, and who has their places.
pub async fn groups(ctx: &Context) -> Result<Vec<(GroupRow, Vec<i64>)>, Refusal> {
    Ok(ctx
        .db
        .read("groups", |tx| {
            Box::pin(async move {
                let groups = kept::groups(tx).await?;
                let resources: Vec<String> = groups.iter().map(|group| slots::group_resource(&group.name)).collect();
                let names: Vec<&str> = resources.iter().map(String::as_str).collect();
                let mut taken: HashMap<String, Vec<i64>> = HashMap::new();
                for row in slots::taken(tx, &names).await? {
                    taken.entry(row.resource).or_default().push(row.root_id);
                }
                Ok(groups
                    .into_iter()
                    .zip(resources)
                    .map(|(group, resource)| (group, taken.remove(&resource).unwrap_or_default()))
                    .collect())
            })
        })
        .await?)
}

/// Triggers that one call looks at.
const FORETOLD_MAX: i64 = 10_000;

/// The fires to come until a time, soonest first, of one job or of all; and the database's time.
pub async fn next(
    ctx: &Context,
    job: Option<String>,
    until_ms: Option<i64>,
    limit: usize,
) -> Result<(Vec<Coming>, i64), Refusal> {
    let key = job.clone();
    let read = ctx
        .db
        .read("next_fires", move |tx| {
            let job = key.clone();
            Box::pin(async move {
                let jobs = match &job {
                    Some(name) => store::by_name(tx, &[name]).await?,
                    None => store::list(tx, &ListFilter::default(), "", FORETOLD_MAX).await?,
                };
                let ids: Vec<i64> = jobs.iter().map(|job| job.id).collect();
                let rows = triggers::of_jobs(tx, &ids).await?;
                let calendars = compiled::all_calendars(tx).await?;
                let freezes = freeze::since(tx, i64::MAX).await?;
                Ok((jobs, rows, calendars, freezes, settle::now_ms(tx).await?))
            })
        })
        .await?;
    let (jobs, rows, calendars, freezes, now) = read;
    if let Some(job) = job
        && jobs.is_empty()
    {
        return Err(no_such_job(&job));
    }
    let until = until_ms.unwrap_or(now + 24 * 3_600_000);
    let jobs: HashMap<i64, JobRow> = jobs.into_iter().map(|job| (job.id, job)).collect();
    let mut asked: Vec<(String, String, Trigger)> = Vec::new();
    let mut heap = BinaryHeap::new();
    for row in rows {
        let Some(job) = jobs.get(&row.job_id) else { continue };
        let frozen = freezes_over(&freezes, job);
        let held = held_by(
            [row.pause(), job.pause()]
                .into_iter()
                .chain(frozen.iter().map(Freeze::pause)),
        );
        if row.phase() != Phase::Waiting || held == Held::Open {
            continue;
        }
        let trigger = compiled::trigger_spec(&row)
            .ok()
            .and_then(|spec| compiled::trigger(&job.name, &spec, row.created_at_ms, &calendars).ok());
        let Some(trigger) = trigger else { continue };
        let first = match held {
            Held::Until(end) => trigger.next_after(row.judged_ms.max(end)).ok().flatten(),
            _ => row.next_ms,
        };
        if let Some(at) = first.filter(|&at| at <= until) {
            heap.push(Reverse((at, asked.len())));
            asked.push((job.name.clone(), row.name, trigger));
        }
    }
    let mut coming = Vec::new();
    while let Some(Reverse((at, index))) = heap.pop() {
        if coming.len() >= limit {
            break;
        }
        let (job, name, trigger) = &asked[index];
        coming.push(Coming {
            job: job.clone(),
            trigger: name.clone(),
            scheduled_ms: at,
        });
        // What counts from the end of a run is not foretold further.
        if !matches!(trigger.schedule, Schedule::FixedDelay { .. })
            && let Some(later) = trigger.next_after(at).ok().flatten().filter(|&later| later <= until)
        {
            heap.push(Reverse((later, index)));
        }
    }
    Ok((coming, now))
}
