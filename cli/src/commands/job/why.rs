//! `systole why JOB`: one of its times in sentences, and how it stands now.

use super::history::{Line, PAGE, id, line, note, outcome, tasks};
use super::words::{job_zone, pause, spec_in_zones, trigger_zone, wire_fire};
use crate::args::{Format, Global};
use crate::client::Client;
use crate::commands::why::blocker_lines;
use crate::commands::{freeze, now_ms};
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use serde::Serialize;
use systole_proto::convert::{state_from_wire, time_to_wire};
use systole_proto::v1;
use systole_shared::job::JobSpec;
use systole_shared::trigger::zone::Zone;

/// How far from a time that was asked for an occurrence is looked for, ms (36 h).
const NEAR_MS: i64 = 36 * 3_600_000;
/// Fires that are foretold.
const FIRES: u32 = 3;

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
pub async fn run(global: &Global, name: &str, at: Option<i64>) -> Result<u8, Failure> {
    let output = Output::new(global);
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
    let found = client.occurrences(request).await?.occurrences;
    let found = match at {
        Some(at) => nearest(found, time_to_wire(at)),
        None => found.into_iter().next(),
    };
    let mut sentences = Vec::new();
    let mut blockers = Vec::new();
    let mut data = None;
    if let Some(occurrence) = &found {
        let task = tasks(&client, std::slice::from_ref(occurrence))
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
        sentences.extend(explain(occurrence, task.as_ref(), &zone, now_ms()));
        if let Some(task) = task.as_ref().filter(|task| task.ended_at_ms == 0) {
            blockers = client.explain(task.id).await?.blockers;
        }
        data = Some(line(occurrence, task.as_ref(), &zone));
    } else if let Some(at) = at.map(time_to_wire) {
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
            job: name.to_owned(),
            until_ms: now_ms() + systole_shared::limits::DURATION_MS_MAX,
            limit: FIRES,
            ..v1::NextRequest::default()
        })
        .await?;
    let standing = standing(&job, &spec, &coming.coming);
    let (of_task, of_job) = (sentences, standing);
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
pub(super) mod tests {
    use super::*;

    /// Mon 2026-11-30 02:30 in Berlin.
    pub const AT: u64 = 1_796_002_200_000;

    pub fn berlin() -> Zone {
        Zone::parse("Europe/Berlin").expect("zone")
    }

    pub fn occurrence(verdict: &str, reason: &str) -> v1::Occurrence {
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
            triggers: vec![v1::TriggerStatus {
                name: "t".into(),
                state: "PAUSED (blocked)".into(),
                ..v1::TriggerStatus::default()
            }],
            running: vec![7],
            waiting: 2,
            unserved: "no live runner has gpu=1".into(),
            ..v1::Job::default()
        };
        assert_eq!(
            standing(&job, &JobSpec::default(), &[]),
            [
                "The job is paused by ann, \"restore test\". Lift it: systole job resume a.",
                "Trigger t is blocked: a run that it made waits for a place of the job, or of its concurrency group.",
                "It runs: 7. End it: systole cancel 7.",
                "Nobody can take its runs: no live runner has gpu=1; they wait for one, however long (no queue_timeout). Look at the runners: systole runners.",
                "2 wait for their turn.",
                "No fire is foretold for the next 366 days.",
            ]
        );
    }
}
