//! Applying definitions of jobs: what changes, decided and written in one transaction for each job.

mod plan;
mod ring;

pub use plan::end_pause;
pub use ring::{after_names, is_ring};

use super::Refusal;
use super::chains;
use crate::context::Context;
use crate::store::audit::audit_with;
use crate::store::jobs::compiled::{self, Calendars};
use crate::store::jobs::triggers;
use crate::store::jobs::{self as store, JobRow, JobWrite, blocking_columns, kept, settle};
use crate::store::{Class, StoreError, Tx};
use plan::{SHOWN_FIRES, coming_of, plan_triggers};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systole_shared::error::{Code, Invalid};
use systole_shared::job::{Job, JobSpec};
use systole_shared::json::check_keys;
use systole_shared::policy::fence::check_fence;
use systole_shared::policy::lane::Lane;
use systole_shared::trigger::zone::Zone;

/// Bytes of one definition.
pub const DEFINITION_BYTES_MAX: usize = 256 * 1024;
/// How often a job is tried that somebody else stores at the same time.
const TRIES_MAX: u32 = 3;

/// What is to be applied.
#[derive(Clone, Debug)]
pub struct Definition {
    pub json: String,
    /// 0: any; -1: none.
    pub expected_version: i64,
    pub source: String,
}

/// How.
#[derive(Clone, Debug, Default)]
pub struct Manner {
    pub dry_run: bool,
    pub at_start: bool,
    pub restore: bool,
    pub by: String,
    pub reason: String,
    /// Of a dry run: what would be stored by then.
    pub planned: Planned,
}

/// What the jobs of a plan may name though it is not stored.
#[derive(Clone, Debug, Default)]
pub struct Planned {
    pub groups: BTreeSet<String>,
    pub calendars: Calendars,
    /// Of the jobs that would change: the jobs that they would start after.
    pub after: Arc<BTreeMap<String, Vec<String>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Created,
    Changed,
    Unchanged,
    Overridden,
    Orphaned,
    Deleted,
    Outdated,
}

/// A fire to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coming {
    pub job: String,
    pub trigger: String,
    /// Of the trigger; empty: UTC.
    pub zone: String,
    pub scheduled_ms: i64,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub name: String,
    pub applied: Applied,
    pub version: i64,
    /// 0: there was none.
    pub before_version: i64,
    pub before: String,
    pub after: String,
    pub warnings: Vec<String>,
    pub next_before: Vec<Coming>,
    pub next: Vec<Coming>,
    /// A change that was made by hand is given up for what the file says.
    pub gave_up: bool,
}

impl Outcome {
    /// Without the definitions and the fires.
    pub fn of(name: &str, applied: Applied, version: i64) -> Self {
        Self {
            name: name.to_owned(),
            applied,
            version,
            before_version: version,
            before: String::new(),
            after: String::new(),
            warnings: Vec::new(),
            next_before: Vec::new(),
            next: Vec::new(),
            gave_up: false,
        }
    }
}

/// A refusal of an item: the field has its place in the definition.
fn wrong(invalid: Invalid) -> Refusal {
    Refusal {
        code: Code::InvalidJob,
        message: invalid.to_string(),
        field: invalid.field,
    }
}

fn all_wrong(faults: Vec<Invalid>) -> Refusal {
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    Refusal {
        code: Code::InvalidJob,
        message: texts.join("; "),
        field: faults.into_iter().next().map(|fault| fault.field).unwrap_or_default(),
    }
}

/// Whether it can be stored, and is read in one way only.
pub fn check_json(json: &str) -> Result<(), Refusal> {
    if json.len() > DEFINITION_BYTES_MAX {
        let message = format!("has {} bytes; at most {DEFINITION_BYTES_MAX} are kept", json.len());
        return Err(wrong(Invalid::new("json", message)));
    }
    if json.contains("\\u0000") {
        return Err(wrong(Invalid::new(
            "json",
            "contains the character NUL, which cannot be stored",
        )));
    }
    check_keys(json.as_bytes(), "json").map_err(wrong)
}

/// A definition, read and checked by itself.
struct Wanted {
    spec: JobSpec,
    job: Job,
    json: String,
    fingerprint: String,
}

fn read(json: &str, beat_ms: i64) -> Result<Wanted, Refusal> {
    check_json(json)?;
    let spec: JobSpec = serde_json::from_str(json).map_err(|error| wrong(Invalid::new("json", error.to_string())))?;
    let job = spec.compile().map_err(all_wrong)?;
    check_fence(&job.task, u64::try_from(beat_ms).unwrap_or(u64::MAX)).map_err(|mut fault| {
        fault.field = fault.field.trim_end_matches("_ms").to_owned();
        wrong(fault)
    })?;
    Ok(Wanted {
        json: spec.canonical_json(),
        fingerprint: spec.fingerprint(),
        spec,
        job,
    })
}

/// What is stored, and what a change of it means.
struct Verdict {
    applied: Applied,
    origin: &'static str,
    code: Option<(String, String)>,
}

/// Which definition is in force. `known`: the file's definition was in force before.
fn decide(stored: Option<&JobRow>, wanted: &Wanted, from_file: bool, manner: &Manner, known: bool) -> Verdict {
    let verdict = |applied, origin| Verdict {
        applied,
        origin,
        code: None,
    };
    let Some(stored) = stored else {
        return verdict(Applied::Created, if from_file { "code" } else { "runtime" });
    };
    let same = stored.definition == wanted.json;
    let changed = if same { Applied::Unchanged } else { Applied::Changed };
    match (stored.origin.as_str(), from_file) {
        ("overridden", true) => {
            let same_file = stored.code_fingerprint.as_deref() == Some(wanted.fingerprint.as_str());
            if same_file && !manner.restore {
                verdict(Applied::Overridden, "overridden")
            } else if manner.at_start && known && !same_file {
                verdict(Applied::Outdated, "overridden")
            } else {
                verdict(Applied::Changed, "code")
            }
        }
        ("code", true) if !same && manner.at_start && known => verdict(Applied::Outdated, "code"),
        ("code", true) => verdict(changed, "code"),
        // A job that a call made is taken over by the file.
        (_, true) => verdict(Applied::Changed, "code"),
        ("code", false) if same => verdict(Applied::Unchanged, "code"),
        ("code", false) => Verdict {
            applied: Applied::Changed,
            origin: "overridden",
            code: Some((stored.definition.clone(), stored.fingerprint.clone())),
        },
        ("overridden", false) if stored.code_definition.as_deref() == Some(wanted.json.as_str()) => {
            verdict(Applied::Changed, "code")
        }
        ("overridden", false) => Verdict {
            applied: changed,
            origin: "overridden",
            code: stored.code_definition.clone().zip(stored.code_fingerprint.clone()),
        },
        (_, false) => verdict(changed, "runtime"),
    }
}

/// Applies one definition of a job.
pub async fn apply_job(ctx: &Context, definition: &Definition, manner: &Manner) -> Result<Outcome, Refusal> {
    let wanted = Arc::new(read(&definition.json, ctx.beat_ms())?);
    let default_zone = ctx.default_zone.clone();
    let lanes = Arc::new(lanes(ctx, &wanted.job).await?);
    let definition = Arc::new(definition.clone());
    let dry_run = manner.dry_run;
    let manner = Arc::new(manner.clone());
    for _ in 0..TRIES_MAX {
        let (wanted_in, lanes) = (Arc::clone(&wanted), Arc::clone(&lanes));
        let (definition, manner) = (Arc::clone(&definition), Arc::clone(&manner));
        let zone = default_zone.clone();
        let done = ctx
            .db
            .write("apply_job", Class::Api, move |tx| {
                let (wanted, lanes) = (Arc::clone(&wanted_in), Arc::clone(&lanes));
                let (definition, manner) = (Arc::clone(&definition), Arc::clone(&manner));
                let zone = zone.clone();
                Box::pin(async move { store_job(tx, &wanted, &lanes, &zone, &definition, &manner).await })
            })
            .await?;
        if let Some(result) = done {
            ctx.wake.fire.notify_one();
            ctx.wake.lateness.notify_one();
            if !dry_run && result.as_ref().is_ok_and(|outcome| outcome.applied == Applied::Changed) {
                chains::more_places(ctx).await;
            }
            return result.map(|outcome| with_unknown_channels(ctx, &wanted.job, outcome));
        }
    }
    Err(Refusal::new(
        Code::VersionChanged,
        format!("job {:?} is being stored by somebody else; try again", wanted.spec.name),
    ))
}

/// Names channels that this scheduler does not have: another one may.
fn with_unknown_channels(ctx: &Context, job: &Job, mut outcome: Outcome) -> Outcome {
    let channels = &ctx.notifier.channels;
    let named: std::collections::BTreeSet<&String> = job.alarms.iter().flat_map(|rule| &rule.to).collect();
    outcome.warnings.extend(
        named
            .into_iter()
            .filter(|name| channels.get(name).is_none())
            .map(|name| {
                format!("alarm: this scheduler has no channel {name:?}; see --alarms, and systole alarm channels")
            }),
    );
    outcome
}

/// Lanes of the job and of each of its triggers.
async fn lanes(ctx: &Context, job: &Job) -> Result<Vec<i64>, Refusal> {
    let mut ids = Vec::with_capacity(job.triggers.len() + 1);
    let priorities = std::iter::once(None).chain(job.triggers.iter().map(|trigger| trigger.priority));
    for priority in priorities {
        let lane = Lane {
            queue: job.task.queue.clone(),
            require: job.task.require.clone(),
            priority: priority.unwrap_or(job.task.priority),
        };
        let id = match ctx.lanes.id_of(&lane) {
            Some(id) => id,
            None => {
                let id = ctx.db.lane_id(&lane).await?;
                ctx.lanes.add(id, lane);
                id
            }
        };
        ids.push(id);
    }
    Ok(ids)
}

/// `None`: somebody else stored it in the same moment; again from the beginning.
async fn store_job(
    tx: &mut Tx,
    wanted: &Wanted,
    lanes: &[i64],
    default_zone: &Zone,
    definition: &Definition,
    manner: &Manner,
) -> Result<Option<Result<Outcome, Refusal>>, StoreError> {
    let name = wanted.spec.name.as_str();
    if !manner.dry_run {
        ring::lock(tx, wanted).await?;
    }
    let known: Vec<i64> = store::by_name(tx, &[name]).await?.iter().map(|row| row.id).collect();
    // Triggers before the job, as everybody locks them.
    let rows = triggers::lock_of_jobs(tx, &known).await?;
    // So that nobody deletes what is named here before this is stored.
    let calendars_named: BTreeSet<&str> = wanted
        .job
        .triggers
        .iter()
        .flat_map(|trigger| trigger.exclude_calendars.iter().map(String::as_str))
        .collect();
    kept::lock_calendars(tx, &calendars_named.into_iter().collect::<Vec<_>>()).await?;
    let group: Vec<String> = wanted.job.concurrency_group.iter().cloned().collect();
    let group_known = kept::lock_groups(tx, &group).await?.len() == group.len()
        || group.iter().all(|name| manner.planned.groups.contains(name));
    let stored = store::lock_by_name(tx, &[name]).await?.pop();
    if stored.as_ref().map(|row| row.id) != known.first().copied() {
        return Ok(None);
    }
    let version = stored.as_ref().map_or(0, |row| row.version);
    // A call that is repeated, since its answer was lost, finds what it stored itself.
    let is_so_already = stored.as_ref().is_some_and(|row| row.definition == wanted.json);
    if let Some(refusal) = unexpected(name, version, definition.expected_version)
        && !is_so_already
    {
        return Ok(Some(Err(refusal)));
    }
    if let Some(group) = wanted.job.concurrency_group.as_ref().filter(|_| !group_known) {
        let known: Vec<String> = kept::groups(tx).await?.into_iter().map(|group| group.name).collect();
        let message = format!(
            "there is no concurrency group {group:?}; apply a [[concurrency_group]] first. Known: {}",
            if known.is_empty() {
                "none".into()
            } else {
                known.join(", ")
            }
        );
        return Ok(Some(Err(wrong(Invalid::new("concurrency_group", message)))));
    }
    let from_file = !definition.source.is_empty();
    let was_code = match &stored {
        Some(row) if from_file && manner.at_start => store::was_code(tx, row.id, &wanted.fingerprint).await?,
        _ => false,
    };
    let verdict = decide(stored.as_ref(), wanted, from_file, manner, was_code);
    let now = settle::now_ms(tx).await?;
    let mut calendars = compiled::all_calendars(tx).await?;
    let next_before = match &stored {
        Some(row) => coming_of(row, &rows, &calendars, now),
        None => Vec::new(),
    };
    calendars.extend(manner.planned.calendars.clone());
    let before = stored.as_ref().map(|row| row.definition.clone()).unwrap_or_default();
    let outcome = |applied, after| Outcome {
        before_version: version,
        before: before.clone(),
        after: before.clone(),
        next_before: next_before.clone(),
        next: next_before.clone(),
        ..Outcome::of(name, applied, after)
    };
    if !matches!(verdict.applied, Applied::Created | Applied::Changed) {
        return Ok(Some(Ok(outcome(verdict.applied, version))));
    }

    if let Some(refusal) = ring::closed(tx, wanted, &manner.planned).await? {
        return Ok(Some(Err(refusal)));
    }
    let mut plan = match plan_triggers(wanted, stored.as_ref(), rows, lanes, (&calendars, default_zone), now) {
        Ok(plan) => plan,
        Err(refusal) => return Ok(Some(Err(refusal))),
    };
    let (blocking, max_concurrent) = blocking_columns(wanted.job.blocking);
    let write = JobWrite {
        name: name.to_owned(),
        definition: wanted.json.clone(),
        fingerprint: wanted.fingerprint.clone(),
        origin: verdict.origin,
        code_definition: verdict.code.as_ref().map(|(definition, _)| definition.clone()),
        code_fingerprint: verdict.code.map(|(_, fingerprint)| fingerprint),
        source: if from_file {
            definition.source.clone()
        } else {
            stored.as_ref().map(|row| row.source.clone()).unwrap_or_default()
        },
        lane_id: lanes[0],
        blocking,
        max_concurrent,
        max_waiting: i64::from(wanted.job.max_waiting),
        concurrency_group: wanted.job.concurrency_group.clone(),
        paused: i64::from(wanted.job.paused),
    };
    if !manner.dry_run {
        let id = match &stored {
            None => match store::insert(tx, &write, &manner.by, &manner.reason).await? {
                Some(id) => id,
                None => return Ok(None),
            },
            Some(row) => {
                store::update(tx, row.id, &write, &manner.by, &manner.reason).await?;
                row.id
            }
        };
        triggers::delete(tx, &plan.gone).await?;
        triggers::redefine(tx, &plan.changed).await?;
        triggers::save(tx, &plan.moved).await?;
        triggers::insert(tx, id, &plan.new, &manner.by).await?;
        let action = if stored.is_some() { "job change" } else { "job create" };
        let detail = format!("version {}, {}", version + 1, verdict.origin);
        audit_with(tx, &manner.by, action, (name, &detail), &manner.reason).await?;
    }
    plan.next.sort_by_key(|coming| coming.scheduled_ms);
    plan.next.truncate(SHOWN_FIRES);
    Ok(Some(Ok(Outcome {
        gave_up: from_file && stored.as_ref().is_some_and(|row| row.origin == "overridden"),
        after: wanted.json.clone(),
        warnings: plan.warnings,
        next: plan.next,
        ..outcome(verdict.applied, version + 1)
    })))
}

pub fn unexpected(name: &str, version: i64, expected: i64) -> Option<Refusal> {
    let message = match expected {
        0 => return None,
        -1 if version == 0 => return None,
        -1 => format!("{name:?} exists already, with version {version}"),
        expected if expected == version => return None,
        expected if version == 0 => format!("{name:?} does not exist any more; the call expects version {expected}"),
        expected => format!(
            "{name:?} has version {version}, the call expects {expected}: somebody changed it; read it again and repeat the change"
        ),
    };
    Some(Refusal {
        code: Code::VersionChanged,
        message,
        field: "expected_version".into(),
    })
}
