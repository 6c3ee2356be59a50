//! `systole job history` and `systole why`: what became of each expected fire.

use super::words::{job_zone, pause, trigger_zone, wire_fire};
use crate::args::{Format, Global, JobHistoryArgs, WhyArgs};
use crate::client::Client;
use crate::commands::{freeze, now_ms};
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json, text};
use serde::Serialize;
use std::collections::BTreeMap;
use systole_proto::convert::{state_from_wire, time_to_wire};
use systole_proto::v1;
use systole_shared::job::JobSpec;
use systole_shared::time::{format_duration, format_utc};
use systole_shared::trigger::zone::Zone;

/// Rows of a table when nobody says otherwise.
const TABLE_ROWS: u64 = 20;
const PAGE: u64 = 1_000;
/// Later than this is worth a word, ms.
const LATE_MS: u64 = 5_000;
/// How far from a time that was asked for an occurrence is looked for, ms (36 h).
const NEAR_MS: i64 = 36 * 3_600_000;
/// Fires that are foretold.
const FIRES: u32 = 3;

const COLUMNS: [Column; 7] = [
    Column::whole("SCHEDULED"),
    Column::cut("TRIGGER", 6).droppable(3),
    Column::whole("VERDICT"),
    Column::whole("TASK"),
    Column::cut("OUTCOME", 8),
    Column::whole("TOOK").droppable(2),
    Column::cut("NOTE", 8).droppable(1),
];

#[derive(Serialize)]
struct Line {
    trigger: String,
    scheduled_at: Option<String>,
    /// Of several in a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    fires: u64,
    verdict: String,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    into: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    /// What made it up, or will.
    #[serde(skip_serializing_if = "Option::is_none")]
    backfill: Option<String>,
    /// Of one that was made up: what it was before.
    #[serde(skip_serializing_if = "String::is_empty")]
    was: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after_root: Option<String>,
    decided_at: Option<String>,
    note: String,
}

fn utc(ms: u64) -> Option<String> {
    i64::try_from(ms).ok().filter(|&ms| ms > 0).map(format_utc)
}

fn id(id: i64) -> Option<String> {
    (id != 0).then(|| id.to_string())
}

fn line(occurrence: &v1::Occurrence, task: Option<&v1::Task>, zone: &Zone) -> Line {
    Line {
        trigger: occurrence.trigger.clone(),
        scheduled_at: utc(occurrence.scheduled_at_ms),
        until: utc(occurrence.until_ms).filter(|_| occurrence.until_ms > occurrence.scheduled_at_ms),
        fires: occurrence.fires,
        verdict: occurrence.verdict.clone(),
        reason: occurrence.reason.clone(),
        into: utc(occurrence.into_ms),
        task: id(occurrence.task_id),
        state: task.map(|task| text::state_name(task.state)),
        outcome: task
            .and_then(|task| task.outcome.as_ref())
            .map(|outcome| outcome.kind.clone()),
        backfill: id(occurrence.backfill_id),
        was: occurrence.was.clone(),
        blocked_by: id(occurrence.blocked_by),
        after_root: id(occurrence.parent_root),
        decided_at: utc(occurrence.at_ms),
        note: note(occurrence, zone),
    }
}

/// Why, in a few words; the rest of a row.
fn note(occurrence: &v1::Occurrence, zone: &Zone) -> String {
    let skipped = match occurrence.reason.as_str() {
        "misfire" => "no scheduler was up in time".to_owned(),
        "blocked" => "the run before still ran".into(),
        "backlog_full" => "too many waited already (max_waiting)".into(),
        "calendar" => "left out by a calendar".into(),
        "paused" => "it was paused".into(),
        "discarded" => "a later one took its place".into(),
        "ended" => "the trigger had ended".into(),
        "backfill" => "nothing was recorded of it".into(),
        other => other.replace('_', " "),
    };
    let mut parts = Vec::new();
    match occurrence.verdict.as_str() {
        "coalesced" => parts.push(format!("into that of {}", wire_fire(zone, occurrence.into_ms))),
        "skipped" => parts.push(skipped),
        _ => {
            let late = occurrence.at_ms.saturating_sub(occurrence.scheduled_at_ms);
            if occurrence.reason == "manual" {
                parts.push("asked for".into());
            } else if occurrence.reason == "backfill" {
                let was = match occurrence.was.as_str() {
                    "" => "nothing was recorded of it".to_owned(),
                    was => format!("it was {}", was.replace('_', " ")),
                };
                parts.push(format!("made up by backfill {}; {was}", occurrence.backfill_id));
            } else if occurrence.scheduled_at_ms > 0 && late > LATE_MS && occurrence.reason != "after" {
                parts.push(format!("{} late", format_duration(late)));
            }
            if occurrence.parent_root != 0 {
                parts.push(format!("after {}", occurrence.parent_root));
            }
        }
    }
    if occurrence.backfill_id != 0 && occurrence.verdict != "fired" {
        parts.push(format!("backfill {} will make it up", occurrence.backfill_id));
    }
    if occurrence.blocked_by != 0 {
        parts.push(format!("behind {}", occurrence.blocked_by));
    }
    if occurrence.fires > 1 {
        parts.push(format!(
            "{} times until {}",
            occurrence.fires,
            wire_fire(zone, occurrence.until_ms)
        ));
    }
    parts.join("; ")
}

/// How its task ended or where it is; empty where there is none.
fn outcome(task: Option<&v1::Task>) -> String {
    let Some(task) = task else { return String::new() };
    let state = text::state_name(task.state);
    match text::why_or_outcome(task) {
        why if why.is_empty() => state,
        why => format!("{state} {why}"),
    }
}

fn row(occurrence: &v1::Occurrence, task: Option<&v1::Task>, spec: &JobSpec, now: u64) -> Vec<Text> {
    let zone = trigger_zone(spec, &occurrence.trigger);
    vec![
        plain(wire_fire(&zone, occurrence.scheduled_at_ms)),
        plain(occurrence.trigger.as_str()),
        plain(occurrence.verdict.as_str()),
        plain(id(occurrence.task_id).unwrap_or_default()),
        plain(outcome(task)),
        plain(task.map(|task| text::took(task, now)).unwrap_or_default()),
        plain(note(occurrence, &zone)),
    ]
}

/// The tasks of these occurrences: of each chain the member that the fire made. Those that are forgotten are left out.
async fn tasks(client: &Client, occurrences: &[v1::Occurrence]) -> Result<BTreeMap<i64, v1::Task>, Failure> {
    let ids: Vec<i64> = occurrences
        .iter()
        .map(|one| one.task_id)
        .filter(|&id| id != 0)
        .collect();
    let found = client.get_many(&ids).await?;
    Ok(found
        .into_iter()
        .filter_map(|result| result.task)
        .map(|task| (task.id, task))
        .collect())
}

pub async fn history(global: &Global, args: &JobHistoryArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    // A job that is gone has a history all the same.
    let spec = match client.job(&args.job).await {
        Ok(job) => serde_json::from_str(&job.json).unwrap_or_default(),
        Err(failure) if failure.exit == exit_code::NOT_FOUND => JobSpec::default(),
        Err(failure) => return Err(failure),
    };
    let limit = args.limit.unwrap_or(if output.format.is_for_people() {
        TABLE_ROWS
    } else {
        u64::MAX
    });
    let mut all = Vec::new();
    let mut count = 0;
    let mut page_token = String::new();
    let more = loop {
        let response = client
            .occurrences(v1::OccurrencesRequest {
                job: args.job.clone(),
                trigger: args.trigger.clone().unwrap_or_default(),
                since_ms: args.since.map_or(0, time_to_wire),
                until_ms: args.until.map_or(0, time_to_wire),
                verdict: args.verdict.clone().unwrap_or_default(),
                limit: u32::try_from((limit - count).min(PAGE)).unwrap_or(0),
                page_token,
            })
            .await?;
        count += response.occurrences.len() as u64;
        let tasks = tasks(&client, &response.occurrences).await?;
        let with_task = response.occurrences.into_iter().map(|one| {
            let task = tasks.get(&one.task_id).cloned();
            (one, task)
        });
        match output.format {
            Format::Jsonl => with_task.for_each(|(one, task)| {
                let zone = trigger_zone(&spec, &one.trigger);
                json::object(&line(&one, task.as_ref(), &zone));
            }),
            Format::Id => with_task
                .filter_map(|(one, _)| id(one.task_id))
                .for_each(|id| output::line(&id)),
            _ => all.extend(with_task),
        }
        if response.next_page_token.is_empty() {
            break false;
        }
        if count >= limit {
            break true;
        }
        page_token = response.next_page_token;
    };
    match output.format {
        Format::Jsonl | Format::Id => {}
        Format::Json => {
            let lines = all
                .iter()
                .map(|(one, task)| line(one, task.as_ref(), &trigger_zone(&spec, &one.trigger)));
            json::document(&BTreeMap::from([("occurrences", lines.collect::<Vec<_>>())]));
        }
        Format::Table | Format::Wide => {
            let now = now_ms();
            let rows: Vec<_> = all
                .iter()
                .map(|(one, task)| row(one, task.as_ref(), &spec, now))
                .collect();
            table::print(&COLUMNS, &rows, &output);
        }
    }
    if more && args.limit.is_none() {
        output.note(&format!("the newest {TABLE_ROWS} are shown; -n shows more"));
    }
    Ok(exit_code::OK)
}

/// What `why` found out.
#[derive(Serialize)]
struct Why {
    job: String,
    sentences: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occurrence: Option<Line>,
}

/// One occurrence in sentences.
fn explain(occurrence: &v1::Occurrence, task: Option<&v1::Task>, zone: &Zone, now: u64) -> Vec<String> {
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
    if let Some(task) = task {
        let ended = task.ended_at_ms;
        let took = text::took(task, now);
        let took = if took.is_empty() {
            String::new()
        } else {
            format!(" after {took}")
        };
        let end = if ended == 0 {
            String::new()
        } else {
            format!(" {}", wire_fire(zone, ended))
        };
        let host = text::runner(task);
        let host = if host.is_empty() {
            String::new()
        } else {
            format!(" on {host}")
        };
        out.push(format!(
            "Task {} is {}{host}{end}{}.",
            task.id,
            outcome(Some(task)),
            if ended == 0 { String::new() } else { took }
        ));
        if task.retried_by != 0 {
            out.push(format!(
                "It was retried as {}: systole show {}.",
                task.retried_by, task.retried_by
            ));
        }
        if state_from_wire(task.state).is_some_and(|state| state.name() == "FAILED") {
            out.push(format!("Its output: systole logs {}.", task.id));
        }
    } else if occurrence.task_id != 0 {
        out.push(format!("Task {} is not kept any more.", occurrence.task_id));
    }
    out
}

/// How the job stands now: what holds it, and who can lift that.
fn standing(job: &v1::Job, spec: &JobSpec, coming: &[v1::Coming]) -> Vec<String> {
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
            out.push(format!("Trigger {} is in ERROR: {}.", trigger.name, trigger.error));
        }
    }
    if !job.running.is_empty() {
        let running: Vec<String> = job.running.iter().map(ToString::to_string).collect();
        out.push(format!(
            "It runs: {}. End it: systole cancel {}.",
            running.join(", "),
            running[0]
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
    if job.waiting > 0 {
        out.push(format!("{} wait for their turn.", job.waiting));
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

pub async fn why(global: &Global, args: &WhyArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let job = client.job(&args.job).await?;
    let spec: JobSpec = serde_json::from_str(&job.json).unwrap_or_default();
    let mut request = v1::OccurrencesRequest {
        job: args.job.clone(),
        limit: 1,
        ..v1::OccurrencesRequest::default()
    };
    if let Some(at) = args.at {
        request.since_ms = time_to_wire(at - NEAR_MS);
        request.until_ms = time_to_wire(at + NEAR_MS);
        request.limit = u32::try_from(PAGE).unwrap_or(0);
    }
    let found = client.occurrences(request).await?.occurrences;
    let found = match args.at {
        Some(at) => nearest(found, time_to_wire(at)),
        None => found.into_iter().next(),
    };
    let mut sentences = Vec::new();
    let mut data = None;
    if let Some(occurrence) = &found {
        let task = tasks(&client, std::slice::from_ref(occurrence))
            .await?
            .remove(&occurrence.task_id);
        let zone = trigger_zone(&spec, &occurrence.trigger);
        if let Some(at) = args.at.map(time_to_wire)
            && (at < occurrence.scheduled_at_ms || at > occurrence.until_ms.max(occurrence.scheduled_at_ms))
        {
            sentences.push(format!(
                "Nothing was due exactly at {}; this is the nearest.",
                wire_fire(&zone, at)
            ));
        }
        sentences.extend(explain(occurrence, task.as_ref(), &zone, now_ms()));
        data = Some(line(occurrence, task.as_ref(), &zone));
    } else if let Some(at) = args.at.map(time_to_wire) {
        let zone = job_zone(&spec);
        sentences.push(format!(
            "Nothing is recorded within 36 hours of {}: no trigger was due.",
            wire_fire(&zone, at)
        ));
    } else {
        sentences.push("It has never fired.".into());
    }
    let coming = client
        .next_fires(v1::NextRequest {
            job: args.job.clone(),
            until_ms: now_ms() + systole_shared::limits::DURATION_MS_MAX,
            limit: FIRES,
        })
        .await?;
    sentences.extend(standing(&job, &spec, &coming.coming));
    let answer = Why {
        job: job.name.clone(),
        sentences,
        occurrence: data,
    };
    match output.format {
        Format::Json => json::document(&answer),
        Format::Jsonl => json::object(&answer),
        Format::Id => found
            .iter()
            .filter_map(|one| id(one.task_id))
            .for_each(|id| output::line(&id)),
        Format::Table | Format::Wide => {
            output::line(&text::clean(&answer.job));
            for sentence in &answer.sentences {
                output::line(&format!("  {}", text::clean(sentence)));
            }
        }
    }
    Ok(exit_code::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mon 2026-11-30 02:30 in Berlin.
    const AT: u64 = 1_796_002_200_000;

    fn berlin() -> Zone {
        Zone::parse("Europe/Berlin").expect("zone")
    }

    fn occurrence(verdict: &str, reason: &str) -> v1::Occurrence {
        v1::Occurrence {
            trigger: "nightly".into(),
            scheduled_at_ms: AT,
            until_ms: AT,
            fires: 1,
            verdict: verdict.into(),
            reason: reason.into(),
            at_ms: AT + 200,
            ..v1::Occurrence::default()
        }
    }

    #[test]
    fn every_verdict_is_explained() {
        let mut fired = occurrence("fired", "schedule");
        fired.task_id = 41;
        let said = explain(&fired, None, &berlin(), AT);
        assert_eq!(
            said,
            [
                "Trigger nightly, Mon 2026-11-30 02:30 +01:00 (Europe/Berlin).",
                "Fired Mon 2026-11-30 02:30 +01:00 as task 41.",
                "Task 41 is not kept any more.",
            ]
        );
        fired.at_ms = AT + 4 * 3_600_000;
        assert!(explain(&fired, None, &berlin(), AT)[1].ends_with("as task 41, 4h00m late."));
        let mut blocked = occurrence("skipped", "blocked");
        blocked.blocked_by = 1846;
        let said = explain(&blocked, None, &berlin(), AT);
        assert!(
            said[1].starts_with("It was skipped: the run before still ran; behind 1846. Set blocking"),
            "{said:?}"
        );
        let mut paused = occurrence("skipped", "paused");
        (paused.fires, paused.until_ms) = (3, AT + 2 * 86_400_000);
        assert_eq!(
            note(&paused, &berlin()),
            "it was paused; 3 times until Wed 2026-12-02 02:30 +01:00"
        );
        let mut coalesced = occurrence("coalesced", "misfire");
        coalesced.into_ms = AT + 86_400_000;
        assert_eq!(note(&coalesced, &berlin()), "into that of Tue 2026-12-01 02:30 +01:00");
    }

    #[test]
    fn the_occurrence_of_a_time_is_the_one_that_holds_it() {
        let at = |from: u64, until: u64| v1::Occurrence {
            scheduled_at_ms: from,
            until_ms: until,
            ..v1::Occurrence::default()
        };
        let all = || vec![at(900, 900), at(300, 600), at(100, 100)];
        for (asked, found) in [(900, 900), (400, 300), (120, 100), (250, 300), (5_000, 900), (0, 100)] {
            assert_eq!(nearest(all(), asked).expect("one").scheduled_at_ms, found, "{asked}");
        }
        assert!(nearest(Vec::new(), 5).is_none());
    }

    #[test]
    fn what_holds_a_job_is_said_with_the_command_that_lifts_it() {
        let job = v1::Job {
            name: "a".into(),
            pause: Some(v1::Pause {
                paused: true,
                by: "ann".into(),
                reason: "restore test".into(),
                ..v1::Pause::default()
            }),
            running: vec![7],
            waiting: 2,
            unserved: "no live runner has gpu=1".into(),
            ..v1::Job::default()
        };
        assert_eq!(
            standing(&job, &JobSpec::default(), &[]),
            [
                "The job is paused by ann, \"restore test\". Lift it: systole job resume a.",
                "It runs: 7. End it: systole cancel 7.",
                "Nobody can take its runs: no live runner has gpu=1; they wait for one, however long (no queue_timeout). Look at the runners: systole runners.",
                "2 wait for their turn.",
                "It has no trigger: it runs when somebody asks.",
            ]
        );
    }

    #[test]
    fn a_row_fits_60_columns() {
        let task = v1::Task {
            id: 41,
            ..v1::Task::default()
        };
        let row = row(&occurrence("fired", "schedule"), Some(&task), &JobSpec::default(), AT);
        assert_eq!(row.len(), COLUMNS.len());
        for line in table::render(&COLUMNS, &[row], Some(60), false).lines() {
            assert!(line.chars().count() <= 60, "{line}");
        }
    }
}
