//! Jobs: what is applied ([`apply`]; together: [`set`], from a folder: [`at_start`]), shown ([`view`]), paused ([`pause`]) and
//! deleted; how triggers fire ([`fire`]), how a run is asked for ([`start`]), which host it is given to ([`route`]) or that it is
//! one on each ([`sets`]), how fires are made up ([`backfill`]), what is done about chains that hold places ([`chains`]), and
//! which jobs are late ([`late`]).

pub mod apply;
pub mod at_start;
pub mod backfill;
pub mod chains;
pub mod delete;
pub mod fire;
pub mod kept;
pub mod late;
pub mod next;
pub mod pause;
pub mod reset;
pub mod restore;
pub mod route;
pub mod set;
pub mod sets;
pub mod start;
pub mod view;

use super::Refusal;
use crate::context::Context;
use crate::store::jobs::slots::LostSlot;
use crate::store::jobs::triggers::{self, TriggerRow};
use crate::store::jobs::{self as store, JobRow};
use crate::store::{StoreError, Tx};
use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use systole_shared::error::Code;
use systole_shared::near::did_you_mean;

/// What a replica remembers of jobs: hints, whose loss costs the time until the next sweep.
#[derive(Debug, Default)]
pub struct Memory {
    /// Chains to be ended, since a newer run waits for their place.
    supersede: Mutex<HashSet<i64>>,
    /// Slots of hosts whose next IDLE proves that a child is dead.
    lost: Mutex<Arc<HashSet<LostSlot>>>,
    /// There are backfills whose next fires may start when a run ends.
    pub backfills: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn no_such_job(name: &str) -> Refusal {
    without_job(name, &[])
}

/// `known`: names of which one may be meant.
fn without_job(name: &str, known: &[String]) -> Refusal {
    let meant = did_you_mean(name, known.iter().map(String::as_str));
    Refusal {
        code: Code::JobNotFound,
        message: format!("there is no job {name:?}; {meant}`systole job ls` lists them"),
        field: "name".into(),
    }
}

/// As [`no_such_job`], with the name that was meant, perhaps.
async fn unknown_job(tx: &mut Tx, name: &str) -> Result<Refusal, StoreError> {
    Ok(without_job(name, &store::names_like(tx, name).await?))
}

/// As [`unknown_job`], outside of a transaction.
async fn unknown(ctx: &Context, name: &str) -> Result<Refusal, Refusal> {
    let key = name.to_owned();
    Ok(ctx
        .db
        .read("job_names", move |tx| {
            let name = key.clone();
            Box::pin(async move { unknown_job(tx, &name).await })
        })
        .await?)
}

/// `JOB`, or `JOB/TRIGGER`.
fn job_and_trigger(name: &str) -> (String, Option<String>) {
    match name.split_once('/') {
        Some((job, trigger)) => (job.to_owned(), Some(trigger.to_owned())),
        None => (name.to_owned(), None),
    }
}

/// A job with its triggers, of which `trigger` must be one; all of them locked.
async fn lock_with_triggers(
    tx: &mut Tx,
    name: &str,
    trigger: Option<&str>,
) -> Result<Result<(JobRow, Vec<TriggerRow>), Refusal>, StoreError> {
    let Some(found) = store::by_name(tx, &[name]).await?.pop() else {
        return Ok(Err(unknown_job(tx, name).await?));
    };
    let rows = triggers::lock_of_jobs(tx, &[found.id]).await?;
    let Some(job) = store::lock(tx, &[found.id]).await?.pop() else {
        return Ok(Err(no_such_job(name)));
    };
    if let Some(trigger) = trigger
        && !rows.iter().any(|row| row.name == trigger)
    {
        let known: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        return Ok(Err(no_such_trigger(name, trigger, &known)));
    }
    Ok(Ok((job, rows)))
}

pub fn no_such_trigger(job: &str, trigger: &str, known: &[&str]) -> Refusal {
    let known = if known.is_empty() {
        "it has none".to_owned()
    } else {
        format!("it has {}", known.join(", "))
    };
    Refusal {
        code: Code::TriggerNotFound,
        message: format!("job {job:?} has no trigger {trigger:?}; {known}"),
        field: "trigger".into(),
    }
}
