//! `systole job ls` and `show`: the jobs that a scheduler has.

use super::words::{job_zone, pause, spec_in_zones, trigger_zone, wire_fire};
use crate::args::{Format, Global, JobLsArgs, JobShowArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json, text};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_shared::job::{JobSpec, write};
use systole_shared::plural::counted;
use systole_shared::task::TaskState;
use systole_shared::time::format_utc;

const PAGE: u32 = 1_000;

const COLUMNS: [Column; 7] = [
    Column::cut("JOB", 8),
    Column::cut("STATE", 6),
    Column::cut("TRIGGERS", 6).droppable(2),
    Column::cut("LAST RUN", 8).droppable(1),
    Column::whole("NEXT FIRE").droppable(1),
    Column::whole("RUNS").droppable(3),
    Column::whole("WAITS").droppable(3),
];

/// A job as data.
#[derive(Serialize)]
struct Line {
    name: String,
    version: String,
    origin: String,
    fingerprint: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    source: String,
    paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<PauseLine>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    frozen: Vec<json::Freeze>,
    triggers: Vec<TriggerLine>,
    /// Roots of the chains that run.
    running: Vec<String>,
    waiting: u32,
    /// Tasks that ended without proof that their child is dead.
    unproven: Vec<String>,
    /// Why no live runner can take its runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    unserved: String,
    /// The newest run that is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_run: Option<LastLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_at: Option<String>,
    changed_by: String,
    definition: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    code_definition: Option<Value>,
}

#[derive(Serialize)]
struct LastLine {
    /// The task that it ended with.
    task: String,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<json::Outcome>,
    scheduled_at: Option<String>,
    ended_at: Option<String>,
}

#[derive(Serialize)]
pub struct PauseLine {
    by: String,
    reason: String,
    since: Option<String>,
    until: Option<String>,
}

#[derive(Serialize)]
struct TriggerLine {
    name: String,
    kind: String,
    state: String,
    /// In which its times are meant.
    #[serde(skip_serializing_if = "String::is_empty")]
    zone: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
    next: Option<String>,
    fires: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause: Option<PauseLine>,
}

pub fn utc(ms: u64) -> Option<String> {
    i64::try_from(ms).ok().filter(|&ms| ms > 0).map(format_utc)
}

pub fn pause_line(pause: Option<&v1::Pause>) -> Option<PauseLine> {
    pause.filter(|pause| pause.paused).map(|pause| PauseLine {
        by: pause.by.clone(),
        reason: pause.reason.clone(),
        since: utc(pause.since_ms),
        until: utc(pause.until_ms),
    })
}

fn line(job: &v1::Job) -> Line {
    let triggers = job.triggers.iter().map(|trigger| TriggerLine {
        name: trigger.name.clone(),
        kind: trigger.kind.clone(),
        state: trigger.state.clone(),
        zone: trigger.zone.clone(),
        error: trigger.error.clone(),
        next: utc(trigger.next_at_ms),
        fires: trigger.fires,
        pause: pause_line(trigger.pause.as_ref()),
    });
    Line {
        name: job.name.clone(),
        version: job.version.to_string(),
        origin: job.origin.clone(),
        fingerprint: job.fingerprint.clone(),
        source: job.source.clone(),
        paused: job.pause.as_ref().is_some_and(|pause| pause.paused),
        pause: pause_line(job.pause.as_ref()),
        frozen: job.frozen.iter().map(json::Freeze::from).collect(),
        triggers: triggers.collect(),
        running: job.running.iter().map(ToString::to_string).collect(),
        waiting: job.waiting,
        unproven: job
            .unproven
            .iter()
            .map(|unproven| unproven.task_id.to_string())
            .collect(),
        unserved: job.unserved.clone(),
        last_run: job.last_run.as_ref().map(last_line),
        changed_at: utc(job.changed_at_ms),
        changed_by: job.changed_by.clone(),
        definition: serde_json::from_str(&job.json).unwrap_or_default(),
        code_definition: serde_json::from_str(&job.code_json).ok(),
    }
}

fn last_line(last: &v1::LastRun) -> LastLine {
    LastLine {
        task: last.task_id.to_string(),
        state: text::state_name(last.state),
        outcome: last.outcome.as_ref().map(Into::into),
        scheduled_at: utc(last.scheduled_at_ms),
        ended_at: utc(last.ended_at_ms),
    }
}

/// How the newest run that is over ended: `FINISHED`, or why not.
fn last_in_words(last: Option<&v1::LastRun>) -> String {
    let Some(last) = last else { return String::new() };
    match (state_from_wire(last.state), &last.outcome) {
        (Some(TaskState::Failed), Some(outcome)) => format!("FAILED {}", text::outcome(outcome)),
        _ => text::state_name(last.state),
    }
}

/// One word for the state of a job, the worst first.
fn state(job: &v1::Job) -> String {
    let errors = job
        .triggers
        .iter()
        .filter(|trigger| trigger.state.starts_with("ERROR"))
        .count();
    let paused = job
        .triggers
        .iter()
        .filter(|trigger| trigger.pause.as_ref().is_some_and(|pause| pause.paused))
        .count();
    if errors > 0 {
        format!("ERROR ({errors} trigger{})", if errors == 1 { "" } else { "s" })
    } else if !job.unproven.is_empty() {
        "HELD".into()
    } else if !job.frozen.is_empty() {
        "frozen".into()
    } else if job.pause.as_ref().is_some_and(|pause| pause.paused) {
        "paused".into()
    } else if paused > 0 {
        format!("{paused} of {} paused", job.triggers.len())
    } else {
        "active".into()
    }
}

/// The soonest fire of a job, and its trigger.
fn soonest(job: &v1::Job) -> Option<(&v1::TriggerStatus, u64)> {
    let timed = job.triggers.iter().filter(|trigger| trigger.next_at_ms > 0);
    timed
        .map(|trigger| (trigger, trigger.next_at_ms))
        .min_by_key(|(_, at)| *at)
}

fn row(job: &v1::Job) -> Vec<Text> {
    let spec = spec_in_zones(job);
    let is_paused = job.pause.as_ref().is_some_and(|pause| pause.paused);
    let next = soonest(job)
        .filter(|_| !is_paused && job.frozen.is_empty())
        .map(|(trigger, at)| wire_fire(&trigger_zone(&spec, &trigger.name), at));
    let kinds: Vec<&str> = job.triggers.iter().map(|trigger| trigger.name.as_str()).collect();
    vec![
        plain(job.name.as_str()),
        plain(state(job)),
        plain(kinds.join(", ")),
        plain(last_in_words(job.last_run.as_ref())),
        plain(next.unwrap_or_default()),
        plain(job.running.len().to_string()),
        plain(job.waiting.to_string()),
    ]
}

pub async fn ls(global: &Global, args: &JobLsArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let mut jobs = Vec::new();
    let mut page_token = String::new();
    loop {
        let response = client
            .list_jobs(v1::ListJobsRequest {
                name_prefix: args.prefix.clone().unwrap_or_default(),
                paused: args.paused,
                in_trouble: args.in_trouble,
                limit: PAGE,
                page_token,
                ..v1::ListJobsRequest::default()
            })
            .await?;
        match output.format {
            Format::Jsonl => response.jobs.iter().for_each(|job| json::object(&line(job))),
            Format::Id => response
                .jobs
                .iter()
                .for_each(|job| output::line(&text::clean(&job.name))),
            _ => jobs.extend(response.jobs),
        }
        if response.next_page_token.is_empty() {
            break;
        }
        page_token = response.next_page_token;
    }
    match output.format {
        Format::Jsonl | Format::Id => {}
        Format::Json => json::document(&BTreeMap::from([("jobs", jobs.iter().map(line).collect::<Vec<_>>())])),
        Format::Table | Format::Wide => {
            let rows: Vec<_> = jobs.iter().map(row).collect();
            let none = if args.prefix.is_some() || args.paused || args.in_trouble {
                "no job matches"
            } else {
                "no jobs yet: systole job init NAME"
            };
            table::print_or(&COLUMNS, &rows, &output, none);
        }
    }
    Ok(exit_code::OK)
}

/// Everything about a job, for people.
fn in_full(job: &v1::Job) -> String {
    let spec = spec_in_zones(job);
    let zone = job_zone(&spec);
    let mut out = String::new();
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            out.push_str(&format!("{name:<12} {}\n", text::clean(&value)));
        }
    };
    fact("job", job.name.clone());
    fact("state", state(job));
    fact("pause", pause(job.pause.as_ref(), &zone));
    let source = if job.source.is_empty() {
        String::new()
    } else {
        format!(", {}", job.source)
    };
    fact("origin", format!("{}{source}", job.origin));
    let by = if job.changed_by.is_empty() {
        String::new()
    } else {
        format!(" by {}", job.changed_by)
    };
    fact(
        "changed",
        format!("{}{by}, version {}", wire_fire(&zone, job.changed_at_ms), job.version),
    );
    fact("fingerprint", job.fingerprint.clone());
    if let Some(last) = &job.last_run {
        let at = wire_fire(&zone, last.ended_at_ms);
        let words = last_in_words(Some(last));
        fact("last run", format!("{words} {at}, task {}", last.task_id));
    }
    fact(
        "running",
        job.running
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    );
    fact(
        "waiting",
        if job.waiting == 0 {
            String::new()
        } else {
            job.waiting.to_string()
        },
    );
    fact("unserved", job.unserved.clone());
    for unproven in &job.unproven {
        let since = wire_fire(&zone, unproven.since_ms);
        let place = format!("{}/{}", unproven.host, unproven.slot);
        fact(
            "held",
            format!(
                "task {} on {place} since {since}: nobody saw its processes end",
                unproven.task_id
            ),
        );
    }
    for trigger in &job.triggers {
        let zone = trigger_zone(&spec, &trigger.name);
        let mut value = format!("{} ({}) {}", trigger.name, trigger.kind, trigger.state);
        for part in [
            pause(trigger.pause.as_ref(), &zone),
            trigger.error.clone(),
            wire_fire(&zone, trigger.next_at_ms),
        ] {
            if !part.is_empty() {
                value.push_str(&format!(", {part}"));
            }
        }
        fact("trigger", format!("{value}; {} so far", counted(trigger.fires, "fire")));
    }
    out.push('\n');
    // Line by line: the definition has newlines of its own.
    let written: JobSpec = serde_json::from_str(&job.json).unwrap_or_default();
    for line in write::job(&written).lines() {
        out.push_str(&text::clean(line));
        out.push('\n');
    }
    if let Ok(code) = serde_json::from_str::<JobSpec>(&job.code_json) {
        out.push_str("\n# The file says:\n");
        for change in systole_shared::job::diff::diff(&code, &written) {
            let value = change.before.unwrap_or_else(|| "(not set)".into());
            out.push_str(&format!("# {} = {}\n", text::clean(&change.field), text::clean(&value)));
        }
    }
    out
}

pub async fn show(global: &Global, args: &JobShowArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let job = Client::new(global)?.job(&args.job).await?;
    match output.format {
        Format::Json => json::document(&line(&job)),
        Format::Jsonl => json::object(&line(&job)),
        Format::Id => output::line(&text::clean(&job.name)),
        Format::Table | Format::Wide => output::data(in_full(&job).as_bytes()),
    }
    Ok(exit_code::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> v1::Job {
        v1::Job {
            name: "nightly-backup".into(),
            version: 3,
            json: r#"{"name":"nightly-backup","command":["x"],"trigger":[{"name":"nightly","cron":"30 2 * * *","zone":"Europe/Berlin"}]}"#.into(),
            origin: "overridden".into(),
            code_json: r#"{"name":"nightly-backup","command":["x"],"timeout":"1h","trigger":[{"name":"nightly","cron":"30 2 * * *","zone":"Europe/Berlin"}]}"#.into(),
            triggers: vec![v1::TriggerStatus {
                name: "nightly".into(),
                kind: "cron".into(),
                state: "WAITING".into(),
                next_at_ms: 1_796_002_200_000,
                ..v1::TriggerStatus::default()
            }],
            ..v1::Job::default()
        }
    }

    #[test]
    fn a_job_is_shown_in_the_zone_of_its_trigger() {
        let table = table::render(&COLUMNS, &[row(&job())], Some(100), false);
        assert!(
            table.contains("Mon 2026-11-30 02:30 +01:00") && table.contains("active"),
            "{table}"
        );
        for line in table::render(&COLUMNS, &[row(&job())], Some(40), false).lines() {
            assert!(line.chars().count() <= 40, "{line}");
        }
        let full = in_full(&job());
        assert!(
            full.contains("cron = \"30 2 * * *\"") && full.contains("# timeout = \"1h\""),
            "{full}"
        );
    }

    #[test]
    fn the_worst_of_a_job_is_its_state() {
        let mut held = job();
        held.pause = Some(v1::Pause {
            paused: true,
            ..v1::Pause::default()
        });
        assert_eq!(state(&held), "paused");
        assert!(!table::render(&COLUMNS, &[row(&held)], None, false).contains("02:30"));
        held.unproven.push(v1::Unproven::default());
        assert_eq!(state(&held), "HELD");
        held.triggers[0].state = "ERROR".into();
        assert_eq!(state(&held), "ERROR (1 trigger)");
    }

    #[test]
    fn the_list_and_the_sheet_are_as_they_were() {
        let mut paused = job();
        paused.name = "a-job-with-a-rather-long-name".into();
        paused.pause = Some(v1::Pause {
            paused: true,
            by: "ann".into(),
            reason: "restore test".into(),
            since_ms: crate::golden::THEN,
            until_ms: crate::golden::NOW,
        });
        let mut held = job();
        held.name = "held".into();
        held.unproven = vec![v1::Unproven {
            task_id: 9,
            host: "db-02".into(),
            slot: 1,
            since_ms: crate::golden::THEN,
        }];
        let jobs = [job(), paused, held];
        crate::golden::table("job_ls", &COLUMNS, &jobs.iter().map(row).collect::<Vec<_>>());
        let sheets: Vec<String> = jobs.iter().map(in_full).collect();
        crate::golden::check("job_show", &sheets.join("---\n"));
        let fires = ["nightly", "hourly"].map(|name| {
            vec![
                plain(text::full_time(crate::golden::NOW)),
                plain("nightly-backup"),
                plain(name),
            ]
        });
        crate::golden::table("job_next", &super::super::next::COLUMNS, &fires);
    }
}
