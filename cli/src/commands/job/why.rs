//! `systole why JOB`: one of its times in sentences, and how it stands now.

use super::history::{Chain, Line, PAGE, chains, chains_of, id, line, note};
use super::words::{job_zone, pause, spec_in_zones, trigger_zone, wire_fire, zone_of};
use crate::args::{Format, Global};
use crate::client::Client;
use crate::commands::cron::machine_zone;
use crate::commands::why::blocker_lines;
use crate::commands::{freeze, now_ms};
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systole_proto::convert::{state_from_wire, time_to_wire};
use systole_proto::v1;
use systole_shared::job::JobSpec;
use systole_shared::job::compile::trigger_names;
use systole_shared::task::TaskState;
use systole_shared::time::{depends_on_zone, parse_time_in};
use systole_shared::trigger::calendar::{Calendar, Exclusions};
use systole_shared::trigger::custom::Registry;
use systole_shared::trigger::definition::{Environment, TriggerSpec};
use systole_shared::trigger::zone::Zone;

type Calendars = BTreeMap<String, Arc<Calendar>>;

/// How far from a time that was asked for an occurrence is looked for, ms (36 h).
const NEAR_MS: i64 = 36 * 3_600_000;
/// A time of day is typed without seconds, ms.
const MINUTE_MS: i64 = 60_000;
/// Fires that are foretold.
const FIRES: u32 = 3;

/// A time that was asked for.
#[derive(Debug)]
pub struct Asked {
    ms: i64,
    text: String,
    zone: Zone,
}

impl Asked {
    /// As it was typed, read in the zone with this name, or in that of this machine.
    pub fn new(text: &str, zone: Option<&str>) -> Result<Self, Failure> {
        let zone = zone.map_or_else(|| Ok(machine_zone()), Zone::parse)?;
        let ms = parse_time_in(text, systole_shared::clock::now_ms(), &zone)
            .map_err(|error| Failure::usage(format!("--at: {error}")))?;
        Ok(Self {
            ms,
            text: text.trim().to_owned(),
            zone,
        })
    }

    /// In which zone it was read, and how to read it in that of the job; nothing where it says itself when it is.
    fn in_words(&self, spec: &JobSpec) -> Option<String> {
        if !depends_on_zone(&self.text) {
            return None;
        }
        let said = format!(
            "{} is read in {}: {}.",
            self.text,
            self.zone.name(),
            wire_fire(&self.zone, time_to_wire(self.ms))
        );
        let zones: Vec<Zone> = spec.trigger.iter().map(zone_of).collect();
        let at = self.ms.div_euclid(1_000);
        // Zones of other names may have the same clock.
        let is_there = zones.iter().any(|zone| zone.offset(at) == self.zone.offset(at));
        match zones.first() {
            Some(first) if !is_there => Some(format!(
                "{said} The job is in {0}: --zone {0} reads it there.",
                first.name()
            )),
            _ => Some(said),
        }
    }
}

/// What `why` found out.
#[derive(Serialize)]
struct Why {
    job: String,
    sentences: Vec<String>,
    /// What the task of the occurrence waits for.
    blockers: Vec<json::Blocker>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occurrence: Option<Line>,
}

/// One occurrence in sentences.
fn explain(occurrence: &v1::Occurrence, chain: Option<&Chain>, zone: &Zone, now: u64) -> Vec<String> {
    let trigger = match occurrence.trigger.as_str() {
        "" => "Asked for".to_owned(),
        name => format!("Trigger {name}"),
    };
    let mut out = vec![format!(
        "{trigger}, {} ({}).",
        wire_fire(zone, occurrence.scheduled_at_ms),
        zone.name()
    )];
    let note = note(occurrence, zone);
    match occurrence.verdict.as_str() {
        "fired" => {
            let note = if note.is_empty() {
                String::new()
            } else {
                format!(", {note}")
            };
            out.push(format!(
                "Fired {} as task {}{note}.",
                wire_fire(zone, occurrence.at_ms),
                occurrence.task_id
            ));
        }
        "coalesced" => out.push(format!(
            "It did not fire by itself: it went {note} (misfire = \"fire_once\")."
        )),
        _ => {
            let remedy = match occurrence.reason.as_str() {
                "blocked" => " Set blocking = \"serial\" to let it wait, or \"concurrent\" to let both run.",
                "misfire" => " Set misfire = \"fire_once\" or \"catch_up\" to make such times up.",
                "paused" => " Make such times up: systole backfill.",
                "backlog_full" => {
                    " Runs take longer than the time between them, or nobody takes them: systole ls --job."
                }
                _ => "",
            };
            out.push(format!("It was skipped: {note}.{remedy}"));
        }
    }
    if let Some(chain) = chain {
        out.push(stands(&chain.first, zone, now));
        if let Some(retry) = &chain.retry {
            out.push(format!("It was retried: {}.", text::attempt(retry)));
            out.push(stands(retry, zone, now));
        }
        let last = chain.last();
        if state_from_wire(last.state) == Some(TaskState::Failed) {
            out.push(format!("Its output: systole logs {}.", last.id));
        }
    } else if occurrence.task_id != 0 {
        out.push(format!("Task {} is not kept any more.", occurrence.task_id));
    }
    out
}

/// Where a task is, or how it ended. What one waits for is said elsewhere.
fn stands(task: &v1::Task, zone: &Zone, now: u64) -> String {
    let host = match text::runner(task) {
        host if host.is_empty() => host,
        host => format!(" on {host}"),
    };
    let state = state_from_wire(task.state);
    let name = text::state_name(task.state);
    let why = match state {
        Some(TaskState::Created | TaskState::Queued | TaskState::Dispatched) => String::new(),
        _ => text::why_or_outcome(task),
    };
    let why = if why.is_empty() { why } else { format!(": {why}") };
    if task.ended_at_ms == 0 {
        return format!("Task {} is {name}{host}{why}.", task.id);
    }
    let took = match text::took(task, now) {
        took if took.is_empty() => took,
        took => format!(" after {took}"),
    };
    format!(
        "Task {} {name}{host} {}{took}{why}.",
        task.id,
        wire_fire(zone, task.ended_at_ms)
    )
}

/// A chain that has a place of the job while its retry waits for its time.
struct Resting {
    /// As the job names it.
    root: i64,
    retry: i64,
    /// 0: not known.
    starts_ms: u64,
}

/// Those of the chains that have a place which are between two attempts.
async fn resting(client: &Client, running: &[i64]) -> Result<Vec<Resting>, Failure> {
    let mut found = Vec::new();
    for (root, chain) in chains_of(client, running).await? {
        let waits = |retry: &v1::Task| state_from_wire(retry.state) == Some(TaskState::Created);
        let Some(retry) = chain.retry.filter(waits) else {
            continue;
        };
        let blockers = client.explain(retry.id).await?.blockers;
        found.push(Resting {
            root,
            retry: retry.id,
            starts_ms: blockers.iter().map(|blocker| blocker.until_ms).max().unwrap_or(0),
        });
    }
    Ok(found)
}

/// How the job stands now: what holds it, and who can lift that.
fn standing(job: &v1::Job, spec: &JobSpec, resting: &[Resting], coming: &[v1::Coming]) -> Vec<String> {
    let zone = job_zone(spec);
    let mut out: Vec<String> = job
        .frozen
        .iter()
        .map(|freeze| format!("Frozen: {}. Lift it: {}.", freeze::line(freeze), freeze::lift(freeze)))
        .collect();
    let paused = pause(job.pause.as_ref(), &zone);
    if !paused.is_empty() {
        out.push(format!(
            "The job is {paused}. Lift it: systole job resume {}.",
            job.name
        ));
    }
    for trigger in &job.triggers {
        let paused = pause(trigger.pause.as_ref(), &zone);
        if !paused.is_empty() {
            let name = format!("{}/{}", job.name, trigger.name);
            out.push(format!(
                "Trigger {} is {paused}. Lift it: systole job resume {name}.",
                trigger.name
            ));
        }
        if !trigger.error.is_empty() {
            out.push(format!(
                "Trigger {0} is in ERROR: {1}. When its cause is gone: systole trigger reset {2}/{0}.",
                trigger.name, trigger.error, job.name
            ));
        }
    }
    for trigger in job.triggers.iter().filter(|trigger| is_blocked(&trigger.state)) {
        out.push(format!(
            "Trigger {} is blocked: a run that it made waits for a place of the job, or of its concurrency group.",
            trigger.name
        ));
    }
    let rests = |root: i64| resting.iter().any(|one| one.root == root);
    let running: Vec<String> = job
        .running
        .iter()
        .filter(|&&root| !rests(root))
        .map(ToString::to_string)
        .collect();
    if !running.is_empty() {
        out.push(format!(
            "It runs: {}. End it: systole cancel {}.",
            running.join(", "),
            running[0]
        ));
    }
    for one in resting {
        let starts = match one.starts_ms {
            0 => "at any moment".to_owned(),
            ms => text::full_time(ms),
        };
        out.push(format!(
            "It is between two attempts: {0} starts {starts}. End it: systole cancel {0}.",
            one.retry
        ));
    }
    for unproven in &job.unproven {
        out.push(format!(
            "Task {} on {} ended, but nobody saw its processes end, so that nothing else may start. Look at the host.",
            unproven.task_id, unproven.host
        ));
    }
    if !job.unserved.is_empty() {
        let bound = match &spec.queue_timeout {
            Some(bound) => format!("they fail after {bound} (queue_timeout)"),
            None => "they wait for one, however long (no queue_timeout)".to_owned(),
        };
        out.push(format!(
            "Nobody can take its runs: {}; {bound}. Look at the runners: systole runners.",
            job.unserved
        ));
    }
    match job.waiting {
        0 => {}
        1 => out.push("1 waits for its turn.".into()),
        n => out.push(format!("{n} wait for their turn.")),
    }
    match coming {
        [] if job.triggers.is_empty() => out.push("It has no trigger: it runs when somebody asks.".into()),
        [] => out.push("No fire is foretold for the next 366 days.".into()),
        coming => {
            let fire = |one: &v1::Coming| wire_fire(&trigger_zone(spec, &one.trigger), one.scheduled_at_ms);
            let fires: Vec<String> = coming.iter().map(fire).collect();
            out.push(format!("Next fires: {}.", fires.join(", ")));
        }
    }
    out
}

/// The calendars that its triggers name, as far as they can be read here.
async fn calendars(client: &Client, spec: &JobSpec) -> Result<Calendars, Failure> {
    let names: BTreeSet<String> = spec
        .trigger
        .iter()
        .flat_map(|trigger| trigger.exclude_calendars.iter().cloned())
        .collect();
    if names.is_empty() {
        return Ok(Calendars::new());
    }
    let read = |stored: v1::Calendar| {
        let spec = serde_json::from_str(&stored.json).ok()?;
        let ics = Some(stored.ics.as_str()).filter(|text| !text.is_empty());
        let calendar = Calendar::new(&spec, ics, &Zone::utc()).ok()?;
        Some((stored.name, Arc::new(calendar)))
    };
    let stored = client.calendars(names.into_iter().collect()).await?;
    Ok(stored.into_iter().filter_map(read).collect())
}

/// What its triggers make of the minute that begins at `at`, which lies ahead. Grids go through the next fire, which is known.
fn ahead(job: &v1::Job, spec: &JobSpec, calendars: &Calendars, at: i64) -> Vec<String> {
    let none = Calendars::new();
    let mut out = Vec::new();
    for (trigger, name) in spec.trigger.iter().zip(trigger_names(&spec.trigger)) {
        let zone = trigger_zone(spec, &name);
        let status = job.triggers.iter().find(|status| status.name == name);
        let created_ms = status.and_then(|status| i64::try_from(status.next_at_ms).ok());
        let first = |trigger: &TriggerSpec, calendars: &Calendars| {
            let environment = Environment {
                job: &job.name,
                created_ms: created_ms.filter(|&ms| ms > 0).unwrap_or(at),
                default_zone: &zone,
                calendars,
                registry: &Registry::shared(),
            };
            let compiled = trigger.compile(&environment).ok()?;
            let found = compiled.next_after(at - 1).ok().flatten()?;
            (found < at + MINUTE_MS).then_some(found)
        };
        let fire = |ms: i64| format!("{} ({})", wire_fire(&zone, time_to_wire(ms)), zone.name());
        if let Some(due) = first(trigger, calendars) {
            out.push(format!("Trigger {name} is due {}.", fire(due)));
            continue;
        }
        let bare = TriggerSpec {
            exclude_calendars: Vec::new(),
            ..trigger.clone()
        };
        let Some(left_out) = first(&bare, &none) else { continue };
        let by = trigger.exclude_calendars.iter().find(|name| {
            calendars
                .get(*name)
                .is_some_and(|calendar| Exclusions(vec![Arc::clone(calendar)]).excludes(left_out))
        });
        if let Some(by) = by {
            out.push(format!(
                "Trigger {name} will not fire {}: calendar {by} leaves that out.",
                fire(left_out)
            ));
        }
    }
    out
}

/// Whether one of the facts in the state of a trigger is that it is blocked, whatever else it is.
fn is_blocked(state: &str) -> bool {
    state
        .split(|c: char| !c.is_ascii_alphabetic())
        .any(|word| word.eq_ignore_ascii_case("BLOCKED"))
}

/// The occurrence that has this time, or the nearest one.
fn nearest(occurrences: Vec<v1::Occurrence>, at: u64) -> Option<v1::Occurrence> {
    occurrences.into_iter().min_by_key(|one| {
        let end = one.until_ms.max(one.scheduled_at_ms);
        if at < one.scheduled_at_ms {
            one.scheduled_at_ms - at
        } else {
            at.saturating_sub(end)
        }
    })
}

/// `job`, now or at one of its times.
pub async fn run(global: &Global, name: &str, asked: Option<&Asked>) -> Result<u8, Failure> {
    let output = Output::new(global);
    let at = asked.map(|asked| asked.ms);
    let client = Client::new(global)?;
    let job = client.job(name).await?;
    let spec = spec_in_zones(&job);
    let mut request = v1::OccurrencesRequest {
        job: name.to_owned(),
        limit: 1,
        ..v1::OccurrencesRequest::default()
    };
    if let Some(at) = at {
        request.since_ms = time_to_wire(at - NEAR_MS);
        request.until_ms = time_to_wire(at + NEAR_MS);
        request.limit = u32::try_from(PAGE).unwrap_or(0);
    }
    let mut sentences = match at.filter(|&at| time_to_wire(at) > now_ms()) {
        Some(at) => ahead(&job, &spec, &calendars(&client, &spec).await?, at),
        None => Vec::new(),
    };
    // What is foretold needs no record beside it.
    let found = match sentences.as_slice() {
        [] => client.occurrences(request).await?.occurrences,
        _ => Vec::new(),
    };
    let found = match at {
        Some(at) => nearest(found, time_to_wire(at)),
        None => found.into_iter().next(),
    };
    let mut blockers = Vec::new();
    let mut data = None;
    if let Some(occurrence) = &found {
        let chain = chains(&client, std::slice::from_ref(occurrence))
            .await?
            .remove(&occurrence.task_id);
        let zone = trigger_zone(&spec, &occurrence.trigger);
        if let Some(at) = at.map(time_to_wire)
            && (at < occurrence.scheduled_at_ms || at > occurrence.until_ms.max(occurrence.scheduled_at_ms))
        {
            sentences.push(format!(
                "Nothing was due exactly at {}; this is the nearest.",
                wire_fire(&zone, at)
            ));
        }
        sentences.extend(explain(occurrence, chain.as_ref(), &zone, now_ms()));
        if let Some(task) = chain.as_ref().map(Chain::last).filter(|task| task.ended_at_ms == 0) {
            blockers = client.explain(task.id).await?.blockers;
        }
        data = Some(line(occurrence, chain.as_ref(), &zone));
    } else if !sentences.is_empty() {
        // It lies ahead.
    } else if let Some(at) = at.map(time_to_wire) {
        let time = wire_fire(&job_zone(&spec), at);
        sentences.push(if at > now_ms() {
            format!("No trigger is due at {time}.")
        } else {
            format!("Nothing is recorded within 36 hours of {time}: no trigger was due.")
        });
    } else {
        sentences.push("It has never fired.".into());
    }
    let coming = client
        .next_fires(v1::NextRequest {
            job: name.to_owned(),
            until_ms: now_ms() + systole_shared::limits::DURATION_MS_MAX,
            limit: FIRES,
            ..v1::NextRequest::default()
        })
        .await?;
    let resting = resting(&client, &job.running).await?;
    let standing = standing(&job, &spec, &resting, &coming.coming);
    let read = asked.and_then(|asked| asked.in_words(&spec));
    let of_task: Vec<String> = read.into_iter().chain(sentences).collect();
    let of_job = standing;
    match output.format {
        Format::Json | Format::Jsonl => {
            let answer = Why {
                job: job.name.clone(),
                sentences: [of_task, of_job].concat(),
                blockers: blockers.iter().map(json::Blocker::from).collect(),
                occurrence: data,
            };
            json::one(output.format, &answer);
        }
        Format::Id => found
            .iter()
            .filter_map(|one| id(one.task_id))
            .for_each(|id| output::line(&id)),
        Format::Table | Format::Wide => {
            output::line(&text::clean(&job.name));
            let blocked = blockers.iter().flat_map(|blocker| blocker_lines(blocker, now_ms()));
            for sentence in of_task.into_iter().chain(blocked).chain(of_job) {
                output::line(&format!("  {}", text::clean(&sentence)));
            }
        }
    }
    Ok(exit_code::OK)
}

#[cfg(test)]
pub(super) mod tests;
