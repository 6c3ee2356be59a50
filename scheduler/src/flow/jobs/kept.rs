//! Calendars and concurrency groups: applied, listed, deleted.

use super::Refusal;
use super::apply::{Applied, Definition, Manner, Outcome, check_json, unexpected};
use super::chains;
use crate::context::Context;
use crate::store::audit::audit;
use crate::store::jobs::kept::{CalendarRow, GroupRow};
use crate::store::jobs::triggers::{self, TriggerRow};
use crate::store::jobs::{self as store, compiled, kept, settle, slots};
use crate::store::{Class, StoreError, Tx};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use systole_shared::error::{Code, Invalid};
use systole_shared::job::Group;
use systole_shared::job::definition::canonical;
use systole_shared::limits::{CONCURRENT_MAX, ICS_BYTES_MAX};
use systole_shared::near::did_you_mean;
use systole_shared::policy::pause::{due_ms, held};
use systole_shared::task::spec::check_word;
use systole_shared::trigger::calendar::CalendarSpec;
use systole_shared::trigger::definition::TriggerSpec;
use systole_shared::trigger::state::Phase;
use systole_shared::trigger::zone::Zone;

fn wrong(invalid: Invalid) -> Refusal {
    Refusal {
        code: Code::InvalidJob,
        message: invalid.to_string(),
        field: invalid.field,
    }
}

fn outcome(name: &str, before: Option<&str>, after: &str, version: i64) -> Outcome {
    let applied = match before {
        None => Applied::Created,
        Some(before) if before == after => Applied::Unchanged,
        Some(_) => Applied::Changed,
    };
    Outcome {
        before: before.unwrap_or_default().to_owned(),
        after: after.to_owned(),
        ..Outcome::of(name, applied, version)
    }
}

/// Stores a calendar; the triggers that leave out its times go by it from now on.
pub async fn apply_calendar(
    ctx: &Context,
    definition: &Definition,
    ics: &str,
    manner: &Manner,
) -> Result<Outcome, Refusal> {
    check_json(&definition.json)?;
    if ics.len() > ICS_BYTES_MAX {
        let message = format!("has {} bytes; at most {ICS_BYTES_MAX} are kept", ics.len());
        return Err(wrong(Invalid::new("ics", message)));
    }
    let ics = (!ics.is_empty()).then(|| ics.to_owned());
    let (spec, _) = compiled::calendar(&definition.json, ics.as_deref()).map_err(wrong)?;
    check_word(&spec.name, "name").map_err(wrong)?;
    let default_zone = ctx.default_zone.clone();
    let args = Arc::new((spec, default_zone, ics, definition.expected_version, manner.clone()));
    let result = ctx
        .db
        .write("apply_calendar", Class::Api, move |tx| {
            let args = Arc::clone(&args);
            Box::pin(async move {
                let (spec, default_zone, ics, expected, manner) = &*args;
                let name = spec.name.as_str();
                let stored = kept::calendars_by_name(tx, &[name]).await?.pop();
                let json = &calendar_json(spec, stored.as_ref(), default_zone);
                let version = stored.as_ref().map_or(0, |row| row.version);
                if let Some(refusal) = unexpected(name, version, *expected) {
                    return Ok(Err(refusal));
                }
                let mut done = outcome(name, stored.as_ref().map(|row| row.definition.as_str()), json, version);
                let same_file = stored.as_ref().is_none_or(|row| row.ics == *ics);
                if done.applied == Applied::Unchanged && !same_file {
                    done.applied = Applied::Changed;
                }
                if done.applied != Applied::Unchanged {
                    done.version = version + 1;
                    if !manner.dry_run {
                        // Before the calendar, as everybody locks them: whoever fires now goes by the old one.
                        let jobs = triggers::jobs_with_calendars(tx).await?;
                        let rows = triggers::lock_of_jobs(tx, &jobs).await?;
                        kept::put_calendar(tx, name, json, ics.clone(), &manner.by, version).await?;
                        look_again(tx, rows).await?;
                        audit(tx, &manner.by, "calendar change", name, &manner.reason).await?;
                    }
                }
                Ok(Ok(done))
            })
        })
        .await?;
    ctx.wake.fire.notify_one();
    result
}

/// The definition with the zone that its dates are meant in, as with triggers: without one, it keeps that which it was stored with.
fn calendar_json(spec: &CalendarSpec, stored: Option<&CalendarRow>, default_zone: &Zone) -> String {
    let mut spec = spec.clone();
    if spec.zone.is_none() {
        let stored = stored.and_then(|row| serde_json::from_str::<CalendarSpec>(&row.definition).ok());
        let same = stored.filter(|stored| {
            let mut plain = stored.clone();
            plain.zone = None;
            plain == spec
        });
        spec.zone = match same {
            Some(stored) => stored.zone,
            None if default_zone.name() == Zone::utc().name() => None,
            None => Some(default_zone.name().to_owned()),
        };
    }
    canonical(&serde_json::to_value(&spec).unwrap_or_default())
}

/// The next times of triggers whose calendars have changed. What was judged stays judged.
async fn look_again(tx: &mut Tx, rows: Vec<TriggerRow>) -> Result<(), StoreError> {
    let calendars = compiled::all_calendars(tx).await?;
    let now = settle::now_ms(tx).await?;
    let mut moved = Vec::new();
    for mut row in rows {
        let Ok(spec) = compiled::trigger_spec(&row) else {
            continue;
        };
        if spec.exclude_calendars.is_empty() || row.phase() != Phase::Waiting {
            continue;
        }
        let Some(job) = store::by_id(tx, &[row.job_id]).await?.pop() else {
            continue;
        };
        match compiled::stored_trigger(&job.name, &row, &spec, &calendars) {
            Ok(trigger) => match trigger.next_after(row.judged_ms) {
                Ok(next) => {
                    row.next_ms = next;
                    // A trigger of which everything is left out is looked at again when its calendar changes.
                    row.due_ms = due_ms(next.or(Some(now)), held(row.pause(), job.pause()));
                }
                Err(error) => row.fail(error.to_string()),
            },
            Err(error) => row.fail(error.to_string()),
        }
        moved.push(row);
    }
    triggers::save(tx, &moved).await
}

pub async fn apply_group(ctx: &Context, definition: &Definition, manner: &Manner) -> Result<Outcome, Refusal> {
    check_json(&definition.json)?;
    let group: Group =
        serde_json::from_str(&definition.json).map_err(|error| wrong(Invalid::new("json", error.to_string())))?;
    check_word(&group.name, "name").map_err(wrong)?;
    if !(1..=CONCURRENT_MAX).contains(&group.limit) {
        let message = format!("{} is outside 1 to {CONCURRENT_MAX}", group.limit);
        return Err(wrong(Invalid::new("limit", message)));
    }
    let json = serde_json::to_value(&group)
        .map(|value| canonical(&value))
        .map_err(|error| wrong(Invalid::new("json", error.to_string())))?;
    let args = Arc::new((group, json, definition.expected_version, manner.clone()));
    let done = ctx
        .db
        .write("apply_group", Class::Api, move |tx| {
            let args = Arc::clone(&args);
            Box::pin(async move {
                let (group, json, expected, manner) = &*args;
                let stored = kept::lock_groups(tx, std::slice::from_ref(&group.name)).await?.pop();
                let version = stored.as_ref().map_or(0, |row| row.version);
                if let Some(refusal) = unexpected(&group.name, version, *expected) {
                    return Ok(Err(refusal));
                }
                let before = stored.as_ref().map(group_json);
                let mut done = outcome(&group.name, before.as_deref(), json, version);
                if done.applied != Applied::Unchanged {
                    done.version = version + 1;
                    if !manner.dry_run {
                        kept::put_group(tx, &group.name, i64::from(group.limit), &manner.by, version).await?;
                        audit(tx, &manner.by, "group change", &group.name, &manner.reason).await?;
                    }
                }
                Ok(Ok(done))
            })
        })
        .await??;
    if done.applied == Applied::Changed && !manner.dry_run {
        chains::more_places(ctx).await;
    }
    Ok(done)
}

fn group_json(row: &kept::GroupRow) -> String {
    canonical(&serde_json::json!({"name": row.name, "limit": row.places}))
}

/// Users of a calendar or group that an answer names.
const USERS_MAX: usize = 100;
/// … and that a refusal names.
const NAMED_MAX: usize = 10;

#[derive(Clone, Debug)]
pub struct CalendarView {
    pub row: CalendarRow,
    /// `JOB/TRIGGER`.
    pub used_by: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct GroupView {
    pub row: GroupRow,
    /// Roots of the chains that have a place.
    pub running: Vec<i64>,
    /// Jobs.
    pub used_by: Vec<String>,
}

/// `JOB/TRIGGER` for each calendar, by its name.
async fn users_of_calendars(tx: &mut Tx) -> Result<BTreeMap<String, Vec<String>>, StoreError> {
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in kept::triggers_with_calendars(tx).await? {
        // One that cannot be read uses nothing: it does not fire.
        let Ok(spec) = serde_json::from_str::<TriggerSpec>(&row.definition) else {
            continue;
        };
        for calendar in spec.exclude_calendars {
            users
                .entry(calendar)
                .or_default()
                .push(format!("{}/{}", row.job, row.name));
        }
    }
    Ok(users)
}

fn bounded(mut users: Vec<String>) -> Vec<String> {
    users.truncate(USERS_MAX);
    users
}

/// Calendars with these names, with the texts of their iCalendar files; no name: all, without them.
pub async fn calendars(ctx: &Context, names: Vec<String>) -> Result<Vec<CalendarView>, Refusal> {
    Ok(ctx
        .db
        .read("calendars", move |tx| {
            let names = names.clone();
            Box::pin(async move {
                let rows = if names.is_empty() {
                    let mut rows = kept::calendars(tx).await?;
                    rows.iter_mut().for_each(|row| row.ics = None);
                    rows
                } else {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    kept::calendars_by_name(tx, &names).await?
                };
                let mut users = users_of_calendars(tx).await?;
                Ok(rows
                    .into_iter()
                    .map(|row| CalendarView {
                        used_by: bounded(users.remove(&row.name).unwrap_or_default()),
                        row,
                    })
                    .collect())
            })
        })
        .await?)
}

/// Groups, and who has their places.
pub async fn groups(ctx: &Context) -> Result<Vec<GroupView>, Refusal> {
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
                let mut views = Vec::with_capacity(groups.len());
                for (row, resource) in groups.into_iter().zip(resources) {
                    views.push(GroupView {
                        running: taken.remove(&resource).unwrap_or_default(),
                        used_by: bounded(kept::jobs_in_group(tx, &row.name).await?),
                        row,
                    });
                }
                Ok(views)
            })
        })
        .await?)
}

/// What is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Calendar,
    Group,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Calendar => "calendar",
            Self::Group => "concurrency group",
        }
    }
}

/// Deletes a calendar or a group that nothing uses.
pub async fn delete(ctx: &Context, what: What, name: &str, by: &str, reason: &str) -> Result<(), Refusal> {
    let args = Arc::new((name.to_owned(), by.to_owned(), reason.to_owned()));
    ctx.db
        .write("delete_named", Class::Api, move |tx| {
            let args = Arc::clone(&args);
            Box::pin(async move { delete_unused(tx, what, &args.0, &args.1, &args.2).await })
        })
        .await?
}

async fn delete_unused(
    tx: &mut Tx,
    what: What,
    name: &str,
    by: &str,
    reason: &str,
) -> Result<Result<(), Refusal>, StoreError> {
    // Who applies a job that names it waits for this lock, and whoever has it now is seen by what is read after it.
    let users = match what {
        What::Calendar => {
            if kept::lock_calendars(tx, &[name]).await?.is_empty() {
                let known = kept::calendars(tx).await?;
                return Ok(Err(no_such(what, name, known.iter().map(|row| row.name.as_str()))));
            }
            users_of_calendars(tx).await?.remove(name).unwrap_or_default()
        }
        What::Group => {
            if kept::lock_groups(tx, &[name.to_owned()]).await?.is_empty() {
                let known = kept::groups(tx).await?;
                return Ok(Err(no_such(what, name, known.iter().map(|row| row.name.as_str()))));
            }
            let resource = slots::group_resource(name);
            let runs = slots::taken(tx, &[&resource]).await?;
            let mut users = kept::jobs_in_group(tx, name).await?;
            users.extend(runs.iter().map(|slot| format!("task {}", slot.root_id)));
            users
        }
    };
    if !users.is_empty() {
        return Ok(Err(in_use(what, name, &users)));
    }
    match what {
        What::Calendar => kept::delete_calendar(tx, name).await?,
        What::Group => kept::delete_group(tx, name).await?,
    }
    let action = match what {
        What::Calendar => "calendar delete",
        What::Group => "group delete",
    };
    audit(tx, by, action, name, reason).await?;
    Ok(Ok(()))
}

/// `known`: names of which one may be meant.
fn no_such<'a>(what: What, name: &str, known: impl Iterator<Item = &'a str>) -> Refusal {
    let (word, meant) = (what.name(), did_you_mean(name, known));
    let list = word.replace(' ', "-");
    Refusal {
        code: Code::NamedNotFound,
        message: format!("there is no {word} {name:?}; {meant}`systole {list} ls` lists them"),
        field: "name".into(),
    }
}

fn in_use(what: What, name: &str, users: &[String]) -> Refusal {
    let mut named: Vec<String> = users.iter().take(NAMED_MAX).cloned().collect();
    if users.len() > NAMED_MAX {
        named.push(format!("and {} more", users.len() - NAMED_MAX));
    }
    Refusal::new(
        Code::InUse,
        format!(
            "{} {name:?} is used by {}; nothing was deleted. Change or delete these first",
            what.name(),
            named.join(", ")
        ),
    )
}
