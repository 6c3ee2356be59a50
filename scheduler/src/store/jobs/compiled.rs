//! From stored definitions to jobs and triggers that can be asked.

use super::super::db::Tx;
use super::super::error::StoreError;
use super::JobRow;
use super::cache::Cache;
use super::kept::{self, CalendarRow};
use super::triggers::TriggerRow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use systole_shared::error::Invalid;
use systole_shared::job::{Job, JobSpec};
use systole_shared::trigger::calendar::{Calendar, CalendarSpec};
use systole_shared::trigger::custom::Registry;
use systole_shared::trigger::definition::{Environment, TriggerSpec};
use systole_shared::trigger::plan::Trigger;
use systole_shared::trigger::zone::Zone;

pub type Calendars = BTreeMap<String, Arc<Calendar>>;

/// The zone of what was stored without one.
static DEFAULT_ZONE: LazyLock<Zone> = LazyLock::new(Zone::utc);

fn said(faults: &[Invalid]) -> String {
    let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// Definitions of each kind that are kept read: half of the most.
const KEPT_HALF: usize = 4_096;

/// By the id of the job, with the text that it was read from.
static JOBS: LazyLock<Cache<i64, (String, Job)>> = LazyLock::new(|| Cache::new(KEPT_HALF));
/// By the id of the trigger.
static SPECS: LazyLock<Cache<i64, (String, Arc<TriggerSpec>)>> = LazyLock::new(|| Cache::new(KEPT_HALF));
static TRIGGERS: LazyLock<Cache<i64, ReadTrigger>> = LazyLock::new(|| Cache::new(KEPT_HALF));

/// A trigger, and all that it was made of.
struct ReadTrigger {
    definition: String,
    job: String,
    created_ms: i64,
    trigger: Arc<Trigger>,
}

/// What is stored of a job, read once for each of its versions. It was checked when it was stored; an older version of the rules
/// may have let it pass.
pub fn job(row: &JobRow) -> Result<ReadJob, String> {
    let make = || {
        let spec: JobSpec =
            serde_json::from_str(&row.definition).map_err(|error| format!("the definition cannot be read: {error}"))?;
        let compiled = spec.compile().or_else(|faults| {
            // Stored when alarms were not checked: the job fires all the same.
            let of_alarms = |fault: &Invalid| fault.field.starts_with("alarm[");
            if faults.iter().all(of_alarms) {
                let plain = JobSpec {
                    alarm: Vec::new(),
                    ..spec.clone()
                };
                return plain.compile();
            }
            Err(faults)
        });
        let job = compiled.map_err(|faults| said(&faults))?;
        Ok((row.definition.clone(), job))
    };
    JOBS.get(&row.id, |(text, _)| *text == row.definition, make)
        .map(ReadJob)
}

/// A job as it was read, shared by all who ask for it.
#[derive(Clone, Debug)]
pub struct ReadJob(Arc<(String, Job)>);

impl std::ops::Deref for ReadJob {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.0.1
    }
}

pub fn trigger_spec(row: &TriggerRow) -> Result<Arc<TriggerSpec>, String> {
    let make = || {
        let spec =
            serde_json::from_str(&row.definition).map_err(|error| format!("the definition cannot be read: {error}"))?;
        Ok::<_, String>((row.definition.clone(), Arc::new(spec)))
    };
    let read = SPECS.get(&row.id, |(text, _)| *text == row.definition, make)?;
    Ok(Arc::clone(&read.1))
}

/// A stored trigger, to be asked. One that leaves out times by calendars is made anew each time, since they change by themselves.
pub fn stored_trigger(
    job: &str,
    row: &TriggerRow,
    spec: &TriggerSpec,
    calendars: &Calendars,
) -> Result<Arc<Trigger>, Invalid> {
    let made = || trigger(job, spec, row.created_at_ms, calendars).map(Arc::new);
    if !spec.exclude_calendars.is_empty() {
        return made();
    }
    let right = |read: &ReadTrigger| {
        read.definition == row.definition && read.created_ms == row.created_at_ms && read.job == job
    };
    let make = || {
        Ok(ReadTrigger {
            definition: row.definition.clone(),
            job: job.to_owned(),
            created_ms: row.created_at_ms,
            trigger: made()?,
        })
    };
    Ok(Arc::clone(&TRIGGERS.get(&row.id, right, make)?.trigger))
}

/// A trigger of the definition, to be asked.
pub fn trigger(job: &str, spec: &TriggerSpec, created_ms: i64, calendars: &Calendars) -> Result<Trigger, Invalid> {
    spec.compile(&Environment {
        job,
        created_ms,
        default_zone: &DEFAULT_ZONE,
        calendars,
        registry: &Registry::shared(),
    })
}

/// The zone in which its times are told.
pub fn zone(spec: &TriggerSpec) -> Zone {
    let named = spec.zone.as_deref().and_then(|name| Zone::parse(name).ok());
    named.unwrap_or_else(|| DEFAULT_ZONE.clone())
}

pub fn calendar(definition: &str, ics: Option<&str>) -> Result<(CalendarSpec, Calendar), Invalid> {
    let spec: CalendarSpec =
        serde_json::from_str(definition).map_err(|error| Invalid::new("json", error.to_string()))?;
    let calendar = Calendar::new(&spec, ics, &DEFAULT_ZONE)?;
    Ok((spec, calendar))
}

fn compile_all(rows: Vec<CalendarRow>) -> Calendars {
    rows.into_iter()
        .filter_map(|row| {
            // One that cannot be read is one that does not exist: the triggers that name it say so.
            let (_, calendar) = calendar(&row.definition, row.ics.as_deref()).ok()?;
            Some((row.name, Arc::new(calendar)))
        })
        .collect()
}

pub async fn all_calendars(tx: &mut Tx) -> Result<Calendars, StoreError> {
    Ok(compile_all(kept::calendars(tx).await?))
}

/// The calendars that these definitions name.
pub async fn calendars_of(tx: &mut Tx, specs: impl IntoIterator<Item = &TriggerSpec>) -> Result<Calendars, StoreError> {
    let names: BTreeSet<&str> = specs
        .into_iter()
        .flat_map(|spec| spec.exclude_calendars.iter().map(String::as_str))
        .collect();
    let names: Vec<&str> = names.into_iter().collect();
    Ok(compile_all(kept::calendars_by_name(tx, &names).await?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(id: i64, definition: &str) -> TriggerRow {
        TriggerRow {
            id,
            job_id: 1,
            name: "t".into(),
            definition: definition.into(),
            kind: "cron".into(),
            lane_id: 1,
            after_job: None,
            after_outcome: None,
            created_at_ms: 1_796_002_200_000,
            judged_ms: 1_796_002_200_000,
            next_ms: None,
            fires: 0,
            due_ms: None,
            phase: "waiting".into(),
            error: String::new(),
            run_root: None,
            paused: false,
            paused_until_ms: None,
            paused_by: None,
            pause_reason: None,
            paused_at_ms: None,
            frozen: false,
        }
    }

    #[test]
    fn a_definition_is_read_once_for_each_of_its_versions() {
        let calendars = Calendars::new();
        let read = |row: &TriggerRow, job: &str| {
            let spec = trigger_spec(row).expect("spec");
            stored_trigger(job, row, &spec, &calendars).expect("trigger")
        };
        let first = row(-71, r#"{"name":"t","cron":"30 2 * * *","zone":"Europe/Berlin"}"#);
        let trigger = read(&first, "a");
        assert!(Arc::ptr_eq(&trigger, &read(&first, "a")));
        // Another definition, another job with this id in another database: never what was kept.
        let second = row(-71, r#"{"name":"t","cron":"30 3 * * *","zone":"Europe/Berlin"}"#);
        let at = 1_796_002_200_000;
        assert_ne!(trigger.next_after(at), read(&second, "a").next_after(at));
        assert_eq!(read(&first, "b").key, "b/t");
        // What cannot be read is said each time, and is not kept.
        let bad = row(-72, "{\"cron\": 7}");
        assert!(trigger_spec(&bad).is_err() && trigger_spec(&bad).is_err());
    }
}
