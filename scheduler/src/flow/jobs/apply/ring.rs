//! Rings of jobs that start each other, over several applies: a job that would close one with what is stored is refused.
//!
//! What is stored has no ring, whatever is applied at the same time and wherever: whoever stores a job with triggers `after` others
//! takes one lock for the whole cluster first ([`lock`]), and looks under it. SQLite has one writer anyway. Nothing else adds
//! such triggers; pausing and deleting take none away that a resume or a restore could bring back unseen: a paused trigger counts,
//! and a restore is an apply. What a scheduler of an older version stored is not looked for, unless the job itself is applied again.

use super::{Planned, Wanted, wrong};
use crate::flow::Refusal;
use crate::store::jobs::after::{self, Edge};
use crate::store::{StoreError, Tx};
use std::collections::BTreeSet;
use systole_shared::error::{Code, Invalid};
use systole_shared::job::{JobSpec, ring};

/// Triggers that are looked at for one job. A ring behind more of them is not seen.
const EDGES_MAX: usize = 50_000;
/// The end of the field that a refusal names.
const FIELD: &str = ".after.job";

/// The jobs that this one starts after, with the numbers of its triggers.
fn after_of(spec: &JobSpec) -> impl Iterator<Item = (usize, &str)> {
    spec.trigger
        .iter()
        .enumerate()
        .filter_map(|(number, trigger)| Some((number, trigger.after.as_ref()?.job.as_str())))
}

/// The same of a stored definition, or of none.
pub fn after_names(definition: &str) -> Vec<String> {
    let spec: JobSpec = serde_json::from_str(definition).unwrap_or_default();
    after_of(&spec).map(|(_, name)| name.to_owned()).collect()
}

/// To be called before anything else is locked, by who is going to store the job.
pub(super) async fn lock(tx: &mut Tx, wanted: &Wanted) -> Result<(), StoreError> {
    match after_of(&wanted.spec).next() {
        Some(_) => after::lock(tx).await,
        None => Ok(()),
    }
}

/// The refusal of a job that closes a ring.
pub(super) async fn closed(tx: &mut Tx, wanted: &Wanted, planned: &Planned) -> Result<Option<Refusal>, StoreError> {
    let name = wanted.spec.name.as_str();
    let (numbers, names): (Vec<usize>, Vec<&str>) = after_of(&wanted.spec).unzip();
    // Most jobs are at an end of their chain: no ring goes through them.
    if names.is_empty() || !(is_planned_after(name, planned) || after::is_named(tx, name).await?) {
        return Ok(None);
    }
    let edges = before(tx, &names, planned).await?;
    let edges: Vec<(&str, &str)> = edges
        .iter()
        .map(|edge| (edge.earlier.as_str(), edge.later.as_str()))
        .collect();
    Ok(ring::closed(name, &names, &edges).map(|ring| {
        let message = format!(
            "makes a ring with jobs that are stored, which start each other again and again: {}; take one of these triggers out",
            ring.words
        );
        wrong(Invalid::new(format!("trigger[{}]{FIELD}", numbers[ring.edge]), message))
    }))
}

/// Whether what is changed of other jobs may make this one right.
pub fn is_ring(refusal: &Refusal) -> bool {
    refusal.code == Code::InvalidJob && refusal.field.ends_with(FIELD)
}

fn is_planned_after(name: &str, planned: &Planned) -> bool {
    planned.after.values().flatten().any(|earlier| earlier == name)
}

/// All that is before these jobs: what is planned of a job takes the place of what is stored of it.
async fn before(tx: &mut Tx, names: &[&str], planned: &Planned) -> Result<Vec<Edge>, StoreError> {
    let mut edges = Vec::new();
    let mut reached: BTreeSet<String> = BTreeSet::new();
    let mut todo: BTreeSet<String> = names.iter().map(|&name| name.to_owned()).collect();
    while !todo.is_empty() && edges.len() < EDGES_MAX {
        let mut new = std::mem::take(&mut todo);
        let stored = {
            let asked: Vec<&str> = new.iter().map(String::as_str).collect();
            after::chain(tx, &asked, EDGES_MAX).await?
        };
        new.extend(stored.iter().map(|edge| edge.earlier.clone()));
        new.retain(|name| !reached.contains(name));
        edges.extend(
            stored
                .into_iter()
                .filter(|edge| !planned.after.contains_key(&edge.later)),
        );
        for later in &new {
            for earlier in planned.after.get(later).into_iter().flatten() {
                if !reached.contains(earlier) && !new.contains(earlier) {
                    todo.insert(earlier.clone());
                }
                edges.push(Edge {
                    earlier: earlier.clone(),
                    later: later.clone(),
                });
            }
        }
        reached.extend(new);
    }
    Ok(edges)
}
