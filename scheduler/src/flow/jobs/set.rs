//! Applying what belongs together: the definitions of a call, or of the folder that a scheduler reads at its start.

use super::apply::{self, Applied, Definition, Manner, Outcome};
use super::{Refusal, delete, kept, view};
use crate::context::Context;
use crate::store::jobs::{ListFilter, compiled};
use std::collections::HashSet;
use std::sync::Arc;
use systole_shared::error::{Invalid, Kind};

/// A path, for people.
const SOURCE_BYTES_MAX: usize = 1_000;
/// Jobs of a page when those that are in no file any more are looked for.
const PAGE: i64 = 1_000;
/// How often jobs are tried again that wait for others of their call.
const PASSES_MAX: usize = 16;

/// Definitions that are applied together: calendars and groups first, since jobs name them.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// With the text of the iCalendar file, empty where there is none.
    pub calendars: Vec<(Definition, String)>,
    pub groups: Vec<Definition>,
    pub jobs: Vec<Definition>,
    /// `jobs` is everything that the files hold: what is missing is orphaned.
    pub complete: bool,
    /// … and goes.
    pub prune: bool,
}

/// What became of one definition.
#[derive(Debug)]
pub struct Item {
    /// `job`, `calendar` or `concurrency_group`.
    pub kind: &'static str,
    pub name: String,
    pub result: Result<Outcome, Refusal>,
}

/// What the definition calls itself, for the results of those that are wrong.
fn name_of(json: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
    let name = value.get("name").and_then(serde_json::Value::as_str);
    name.unwrap_or_default().chars().take(200).collect()
}

fn check_source(definition: &Definition) -> Result<(), Refusal> {
    if definition.source.len() > SOURCE_BYTES_MAX || definition.source.contains('\0') {
        return Err(Invalid::new("source", format!("has more than {SOURCE_BYTES_MAX} bytes, or a NUL")).into());
    }
    Ok(())
}

/// Each definition is a transaction of its own: one that is wrong is its own result. That the database cannot be reached is
/// the call's.
pub async fn apply(ctx: &Context, batch: &Batch, manner: &Manner) -> Result<Vec<Item>, Refusal> {
    let mut items = Vec::with_capacity(batch.calendars.len() + batch.groups.len() + batch.jobs.len());
    let mut manner = manner.clone();
    for (definition, ics) in &batch.calendars {
        let result = match check_source(definition) {
            Ok(()) => kept::apply_calendar(ctx, definition, ics, &manner).await,
            Err(refusal) => Err(refusal),
        };
        if let Ok(outcome) = &result
            && manner.dry_run
            && let Ok((_, calendar)) = compiled::calendar(&definition.json, (!ics.is_empty()).then_some(ics))
        {
            manner
                .planned
                .calendars
                .insert(outcome.name.clone(), Arc::new(calendar));
        }
        items.push(item("calendar", definition, result)?);
    }
    for definition in &batch.groups {
        let result = match check_source(definition) {
            Ok(()) => kept::apply_group(ctx, definition, &manner).await,
            Err(refusal) => Err(refusal),
        };
        if let Ok(outcome) = &result
            && manner.dry_run
        {
            manner.planned.groups.insert(outcome.name.clone());
        }
        items.push(item("concurrency_group", definition, result)?);
    }
    let first = items.len();
    for definition in &batch.jobs {
        let result = apply_one(ctx, definition, &mut manner).await;
        items.push(item("job", definition, result)?);
    }
    again(ctx, &batch.jobs, &mut manner, &mut items[first..]).await?;
    // With one that is wrong, it is not known what belongs to the files.
    if batch.complete && items.iter().all(|item| item.result.is_ok()) {
        orphans(ctx, batch, &manner, &mut items).await?;
    }
    Ok(items)
}

async fn apply_one(ctx: &Context, definition: &Definition, manner: &mut Manner) -> Result<Outcome, Refusal> {
    check_source(definition)?;
    let outcome = apply::apply_job(ctx, definition, manner).await?;
    if manner.dry_run && matches!(outcome.applied, Applied::Created | Applied::Changed) {
        let (before, after) = (apply::after_names(&outcome.before), apply::after_names(&outcome.after));
        if !before.is_empty() || !after.is_empty() {
            Arc::make_mut(&mut manner.planned.after).insert(outcome.name.clone(), after);
        }
    }
    Ok(outcome)
}

/// Jobs that close a ring with what others of this call were before it: once those are stored there is none. Each pass goes the other
/// way round, so that a chain that is turned takes one.
async fn again(ctx: &Context, jobs: &[Definition], manner: &mut Manner, items: &mut [Item]) -> Result<(), Refusal> {
    let is_ring = |item: &Item| item.result.as_ref().is_err_and(apply::is_ring);
    let mut left: Vec<usize> = (0..items.len()).filter(|&index| is_ring(&items[index])).collect();
    let mut before = items.len();
    for _ in 0..PASSES_MAX {
        if left.is_empty() || left.len() == before {
            break;
        }
        before = left.len();
        left.reverse();
        for &index in &left {
            let result = apply_one(ctx, &jobs[index], manner).await;
            items[index] = item("job", &jobs[index], result)?;
        }
        left.retain(|&index| is_ring(&items[index]));
    }
    Ok(())
}

fn item(kind: &'static str, definition: &Definition, result: Result<Outcome, Refusal>) -> Result<Item, Refusal> {
    let name = match &result {
        Ok(outcome) => outcome.name.clone(),
        Err(_) => name_of(&definition.json),
    };
    one(kind, name, result)
}

fn one(kind: &'static str, name: String, result: Result<Outcome, Refusal>) -> Result<Item, Refusal> {
    match result {
        Err(refusal) if refusal.code.kind() == Kind::Unavailable => Err(refusal),
        result => Ok(Item { kind, name, result }),
    }
}

/// Jobs that come from files which do not hold them any more.
async fn orphans(ctx: &Context, batch: &Batch, manner: &Manner, items: &mut Vec<Item>) -> Result<(), Refusal> {
    let kept: HashSet<String> = batch.jobs.iter().map(|definition| name_of(&definition.json)).collect();
    for origin in ["code", "overridden"] {
        let mut after = String::new();
        loop {
            let filter = ListFilter {
                origin: origin.into(),
                ..ListFilter::default()
            };
            let page = view::list(ctx, filter, after.clone(), PAGE).await?;
            let Some(last) = page.last() else { break };
            after.clone_from(&last.row.name);
            for view in page.into_iter().filter(|view| !kept.contains(&view.row.name)) {
                let (name, version) = (view.row.name, view.row.version);
                let applied = if batch.prune {
                    Applied::Deleted
                } else {
                    Applied::Orphaned
                };
                let deleted = if batch.prune && !manner.dry_run {
                    delete::delete(ctx, &name, version, &manner.by, &manner.reason)
                        .await
                        .map(drop)
                } else {
                    Ok(())
                };
                let result = deleted.map(|()| Outcome {
                    before: view.row.definition,
                    ..Outcome::of(&name, applied, version)
                });
                items.push(one("job", name, result)?);
            }
        }
    }
    Ok(())
}
