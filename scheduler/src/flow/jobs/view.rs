//! What is shown of jobs: their state, their versions, their runs and their ledger.

use super::{Refusal, no_such_job, unknown};
use crate::context::{Context, FleetView};
use crate::store::audit::AuditFilter;
use crate::store::jobs::ledger::{self, OccurrenceFilter, OccurrenceRow};
use crate::store::jobs::runs::{self, RunQuery, RunRow};
use crate::store::jobs::settle;
use crate::store::jobs::slots::{self, SlotRow};
use crate::store::jobs::triggers::{self, TriggerRow};
use crate::store::jobs::{self as store, JobRow, ListFilter, VersionRow, compiled};
use crate::store::{StoreError, freeze};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systole_shared::job::route::BROADCAST;
use systole_shared::policy::freeze::{Freeze, over};
use systole_shared::policy::why::{self, Wanted};
use systole_shared::time::format_utc;

/// Jobs that are not there for which one call looks who deleted them.
const DELETED_MAX: usize = 10;

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
    /// Those of its triggers whose runs wait for a place.
    pub blocked: HashSet<i64>,
    /// The database's time, by which pauses are over.
    pub now_ms: i64,
    /// The newest run that is over.
    pub last: Option<RunRow>,
    pub freezes: Vec<Freeze>,
    /// Why no live runner can take its runs, where that was asked.
    pub unserved: String,
}

/// What is frozen of a job. One that cannot be read is as its lane says: by everything.
pub fn freezes_over(freezes: &[Freeze], job: &JobRow) -> Vec<Freeze> {
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
    let some_wait: Vec<i64> = waiting.keys().copied().collect();
    let blocked = match some_wait.as_slice() {
        [] => HashSet::new(),
        jobs => triggers::with_waiting_runs(tx, jobs).await?,
    };
    let freezes = freeze::since(tx, i64::MAX).await?;
    let now_ms = settle::now_ms(tx).await?;
    let mut last: HashMap<i64, RunRow> = runs::last(tx, &ids)
        .await?
        .into_iter()
        .map(|run| (run.job_id, run))
        .collect();
    Ok(jobs
        .into_iter()
        .zip(resources)
        .map(|(row, resource)| {
            let places = taken.remove(&resource).unwrap_or_default();
            let triggers = of_job.remove(&row.id).unwrap_or_default();
            let ids = triggers.iter().map(|trigger| trigger.id);
            JobView {
                blocked: ids.filter(|id| blocked.contains(id)).collect(),
                triggers,
                now_ms,
                members: of(&places),
                slots: places,
                waiting: waiting.get(&row.id).copied().unwrap_or(0),
                freezes: freezes_over(&freezes, &row),
                last: last.remove(&row.id),
                unserved: String::new(),
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
    let fleet = ctx.fleet.view(&ctx.db, ctx.lost_after_ms()).await?;
    for view in found.values_mut() {
        view.unserved = unserved(&view.row, &fleet);
    }
    let mut results = Vec::with_capacity(asked.len());
    let mut looked_for = 0;
    for name in asked.iter() {
        results.push(match found.remove(name) {
            Some(view) => Ok(view),
            None if looked_for < DELETED_MAX => {
                looked_for += 1;
                Err(missing(ctx, name).await?)
            }
            None => Err(no_such_job(name)),
        });
    }
    Ok(results)
}

/// Why no live runner can take runs of the job.
fn unserved(row: &JobRow, fleet: &FleetView) -> String {
    let Ok(job) = compiled::job(row) else {
        return String::new();
    };
    let wanted = Wanted {
        queue: &job.task.queue,
        require: &job.task.require,
        target: job.task.target.as_ref(),
    };
    why::unserved(&wanted, &fleet.runners)
}

/// That there is no such job; and if there was one, who deleted it, when and why.
async fn missing(ctx: &Context, name: &str) -> Result<Refusal, Refusal> {
    let filter = AuditFilter {
        action: Some("job delete".into()),
        subject: Some(name.to_owned()),
        ..AuditFilter::default()
    };
    let (rows, _) = ctx.db.audit(filter, 1).await?;
    let Some(row) = rows.first() else {
        return unknown(ctx, name).await;
    };
    let reason = match row.reason.as_str() {
        "" => String::new(),
        reason => format!(", {reason:?}"),
    };
    let mut refusal = no_such_job(name);
    refusal.message = format!(
        "there is no job {name:?}: {} deleted it {}{reason}; systole job history {name} --versions lists what it was",
        row.actor,
        format_utc(row.at_ms)
    );
    Ok(refusal)
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
        return Err(unknown(ctx, name).await?);
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
                let Some(id) = store::known_id(tx, &name).await? else {
                    return Ok(None);
                };
                filter.job_id = id;
                ledger::list(tx, &filter, limit).await.map(Some)
            })
        })
        .await?;
    match rows {
        Some(rows) => Ok(rows),
        None => Err(unknown(ctx, job).await?),
    }
}

/// By scheduled time, newest first.
pub async fn runs(ctx: &Context, query: RunQuery) -> Result<Vec<RunRow>, Refusal> {
    let name = query.job.clone();
    let rows = ctx
        .db
        .read("runs", move |tx| {
            let query = query.clone();
            Box::pin(async move {
                let Some(id) = store::known_id(tx, &query.job).await? else {
                    return Ok(None);
                };
                runs::list(tx, &query, id).await.map(Some)
            })
        })
        .await?;
    match rows {
        Some(rows) => Ok(rows),
        None => Err(unknown(ctx, &name).await?),
    }
}

pub async fn count_runs(ctx: &Context, query: RunQuery) -> Result<u64, Refusal> {
    let name = query.job.clone();
    let count = ctx
        .db
        .read("count_runs", move |tx| {
            let query = query.clone();
            Box::pin(async move {
                let Some(id) = store::known_id(tx, &query.job).await? else {
                    return Ok(None);
                };
                runs::count(tx, &query, id).await.map(Some)
            })
        })
        .await?;
    match count {
        Some(count) => Ok(count),
        None => Err(unknown(ctx, &name).await?),
    }
}
