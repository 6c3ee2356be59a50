//! The fires to come.

use super::apply::Coming;
use super::view::freezes_over;
use super::{Refusal, unknown};
use crate::context::Context;
use crate::flow::fleet::no_such_host;
use crate::store::freeze;
use crate::store::jobs::triggers::{self, TriggerRow};
use crate::store::jobs::{self as store, JobRow, ListFilter, compiled, settle};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use systole_shared::id::Target;
use systole_shared::policy::freeze::Freeze;
use systole_shared::policy::lane::serves;
use systole_shared::policy::pause::{Held, held_by};
use systole_shared::policy::why::RunnerView;
use systole_shared::trigger::plan::Trigger;
use systole_shared::trigger::schedule::Schedule;
use systole_shared::trigger::state::Phase;

/// The slots of a host, and what they serve.
struct Host {
    name: String,
    slots: Vec<RunnerView>,
}

impl Host {
    async fn find(ctx: &Context, name: String) -> Result<Self, Refusal> {
        let view = ctx.fleet.view(&ctx.db, ctx.lost_after_ms()).await?;
        let slots: Vec<RunnerView> = view
            .runners
            .iter()
            .filter(|runner| runner.id.host == name)
            .cloned()
            .collect();
        if slots.is_empty() {
            return Err(no_such_host(&view, &name, "runner"));
        }
        Ok(Self { name, slots })
    }

    /// Whether a run that this trigger makes may be given to it, as the host is now.
    fn may_get(&self, ctx: &Context, target: Option<&Target>, row: &TriggerRow) -> bool {
        if let Some(target) = target {
            return target.host == self.name
                && target
                    .slot
                    .is_none_or(|slot| self.slots.iter().any(|runner| runner.id.slot == slot));
        }
        let Some(lane) = ctx.lanes.lane(row.lane_id) else {
            return false;
        };
        self.slots
            .iter()
            .any(|runner| serves(&runner.queues, &runner.labels, &lane))
    }
}

/// Triggers that one call looks at.
const FORETOLD_MAX: i64 = 10_000;

/// The fires to come until a time, soonest first, of one job or of all, or of those that a host could be given; and the
/// database's time.
pub async fn next(
    ctx: &Context,
    job: Option<String>,
    host: Option<String>,
    until_ms: Option<i64>,
    limit: usize,
) -> Result<(Vec<Coming>, i64), Refusal> {
    let host = match host {
        Some(name) => Some(Host::find(ctx, name).await?),
        None => None,
    };
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
        return Err(unknown(ctx, &job).await?);
    }
    let until = until_ms.unwrap_or(now + 24 * 3_600_000);
    // Where they are pinned to, for a host that is asked about.
    let targets: HashMap<i64, Option<Target>> = match &host {
        None => HashMap::new(),
        Some(_) => jobs.iter().map(|job| (job.id, target_of(job))).collect(),
    };
    let jobs: HashMap<i64, JobRow> = jobs.into_iter().map(|job| (job.id, job)).collect();
    let mut asked: Vec<(Coming, Arc<Trigger>)> = Vec::new();
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
        if let Some(host) = &host
            && !host.may_get(ctx, targets.get(&job.id).and_then(Option::as_ref), &row)
        {
            continue;
        }
        let Ok(spec) = compiled::trigger_spec(&row) else {
            continue;
        };
        let Ok(trigger) = compiled::stored_trigger(&job.name, &row, &spec, &calendars) else {
            continue;
        };
        let first = match held {
            Held::Until(end) => trigger.next_after(row.judged_ms.max(end)).ok().flatten(),
            _ => row.next_ms,
        };
        if let Some(at) = first.filter(|&at| at <= until) {
            heap.push(Reverse((at, asked.len())));
            let coming = Coming {
                job: job.name.clone(),
                trigger: row.name,
                zone: spec.zone.clone().unwrap_or_default(),
                scheduled_ms: at,
            };
            asked.push((coming, trigger));
        }
    }
    let mut coming = Vec::new();
    while let Some(Reverse((at, index))) = heap.pop() {
        if coming.len() >= limit {
            break;
        }
        let (fire, trigger) = &asked[index];
        coming.push(Coming {
            scheduled_ms: at,
            ..fire.clone()
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

fn target_of(row: &JobRow) -> Option<Target> {
    compiled::job(row).ok()?.task.target.clone()
}
