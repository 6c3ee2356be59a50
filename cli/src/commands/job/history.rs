//! `systole job history`: what became of each expected fire.

use super::words::{spec_in_zones, trigger_zone, wire_fire};
use crate::args::{Format, Global, JobHistoryArgs};
use crate::client::Client;
use crate::commands::now_ms;
use crate::commands::pages::Pages;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json, text};
use serde::Serialize;
use std::collections::BTreeMap;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;
use systole_shared::job::JobSpec;
use systole_shared::time::{format_duration, format_utc};
use systole_shared::trigger::zone::Zone;

pub const PAGE: u64 = 1_000;
/// Later than this is worth a word, ms.
const LATE_MS: u64 = 5_000;
/// Tasks of one chain that are followed; more than a run can have.
const CHAIN_MAX: usize = 256;

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
pub struct Line {
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
    /// The last one of its chain, where it was retried: `state` and `outcome` are those of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_task: Option<String>,
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

pub fn id(id: i64) -> Option<String> {
    (id != 0).then(|| id.to_string())
}

/// The tasks of a fire.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The one that it made.
    pub first: v1::Task,
    /// The one that its retries have come to, if there are any.
    pub retry: Option<v1::Task>,
}

impl Chain {
    pub fn last(&self) -> &v1::Task {
        self.retry.as_ref().unwrap_or(&self.first)
    }

    /// That it was retried, in a few words; empty where it was not.
    fn retried(&self) -> String {
        self.retry.as_ref().map_or_else(String::new, |retry| {
            format!(
                "{}; {} {}",
                text::attempt(retry),
                self.first.id,
                outcome(Some(&self.first))
            )
        })
    }
}

pub fn line(occurrence: &v1::Occurrence, chain: Option<&Chain>, zone: &Zone) -> Line {
    let task = chain.map(Chain::last);
    Line {
        trigger: occurrence.trigger.clone(),
        scheduled_at: utc(occurrence.scheduled_at_ms),
        until: utc(occurrence.until_ms).filter(|_| occurrence.until_ms > occurrence.scheduled_at_ms),
        fires: occurrence.fires,
        verdict: occurrence.verdict.clone(),
        reason: occurrence.reason.clone(),
        into: utc(occurrence.into_ms),
        task: id(occurrence.task_id),
        last_task: chain
            .and_then(|chain| chain.retry.as_ref())
            .and_then(|retry| id(retry.id)),
        state: task.map(|task| text::state_name(task.state)),
        outcome: task
            .and_then(|task| task.outcome.as_ref())
            .map(|outcome| outcome.kind.clone()),
        backfill: id(occurrence.backfill_id),
        was: occurrence.was.clone(),
        blocked_by: id(occurrence.blocked_by),
        after_root: id(occurrence.parent_root),
        decided_at: utc(occurrence.at_ms),
        note: full_note(occurrence, chain, zone),
    }
}

/// With what became of the task before it was retried.
fn full_note(occurrence: &v1::Occurrence, chain: Option<&Chain>, zone: &Zone) -> String {
    let parts = [note(occurrence, zone), chain.map(Chain::retried).unwrap_or_default()];
    parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// Why, in a few words; the rest of a row.
pub fn note(occurrence: &v1::Occurrence, zone: &Zone) -> String {
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
pub fn outcome(task: Option<&v1::Task>) -> String {
    let Some(task) = task else { return String::new() };
    let state = text::state_name(task.state);
    match text::why_or_outcome(task) {
        why if why.is_empty() => state,
        why => format!("{state} {why}"),
    }
}

fn row(occurrence: &v1::Occurrence, chain: Option<&Chain>, spec: &JobSpec, now: u64) -> Vec<Text> {
    let zone = trigger_zone(spec, &occurrence.trigger);
    let task = chain.map(Chain::last);
    vec![
        plain(wire_fire(&zone, occurrence.scheduled_at_ms)),
        plain(occurrence.trigger.as_str()),
        plain(occurrence.verdict.as_str()),
        plain(id(task.map_or(occurrence.task_id, |task| task.id)).unwrap_or_default()),
        plain(outcome(task)),
        plain(task.map(|task| text::took(task, now)).unwrap_or_default()),
        plain(full_note(occurrence, chain, &zone)),
    ]
}

async fn tasks(client: &Client, ids: &[i64]) -> Result<BTreeMap<i64, v1::Task>, Failure> {
    let found = client.get_many(ids).await?.into_iter().filter_map(|result| result.task);
    Ok(found.map(|task| (task.id, task)).collect())
}

/// The tasks of these occurrences, by the one that the fire made. Those that are forgotten are left out.
pub async fn chains(client: &Client, occurrences: &[v1::Occurrence]) -> Result<BTreeMap<i64, Chain>, Failure> {
    let ids: Vec<i64> = occurrences
        .iter()
        .map(|one| one.task_id)
        .filter(|&id| id != 0)
        .collect();
    chains_of(client, &ids).await
}

/// The chains that begin with these tasks, by them. Those that are forgotten are left out.
pub async fn chains_of(client: &Client, ids: &[i64]) -> Result<BTreeMap<i64, Chain>, Failure> {
    let first = tasks(client, ids).await?.into_iter();
    let mut chains: BTreeMap<i64, Chain> = first.map(|(id, first)| (id, Chain { first, retry: None })).collect();
    // Of all of them one step at a time.
    let mut ahead: Vec<i64> = chains.keys().copied().collect();
    for _ in 0..CHAIN_MAX {
        let next = |id: &i64| chains.get(id).map_or(0, |chain| chain.last().retried_by);
        ahead.retain(|id| next(id) != 0);
        if ahead.is_empty() {
            break;
        }
        let mut found = tasks(client, &ahead.iter().map(next).collect::<Vec<_>>()).await?;
        ahead.retain(|id| {
            let Some(chain) = chains.get_mut(id) else { return false };
            let retry = found.remove(&chain.last().retried_by);
            let goes_on = retry.is_some();
            if goes_on {
                // Who comes after it is known from here on.
                chain.first.retried_by = 0;
                chain.retry = retry;
            }
            goes_on
        });
    }
    Ok(chains)
}

pub async fn history(global: &Global, args: &JobHistoryArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    // A job that is gone has a history all the same.
    let spec = match client.job(&args.job).await {
        Ok(job) => spec_in_zones(&job),
        Err(failure) if failure.exit == exit_code::NOT_FOUND => JobSpec::default(),
        Err(failure) => return Err(failure),
    };
    let mut pages = Pages::new(args.limit, output.format.is_for_people(), PAGE);
    let mut all = Vec::new();
    loop {
        let response = client
            .occurrences(v1::OccurrencesRequest {
                job: args.job.clone(),
                trigger: args.trigger.clone().unwrap_or_default(),
                since_ms: args.since.map_or(0, time_to_wire),
                until_ms: args.until.map_or(0, time_to_wire),
                verdict: args.verdict.clone().unwrap_or_default(),
                limit: pages.limit(),
                page_token: pages.token(),
            })
            .await?;
        let got = response.occurrences.len();
        let chains = match output.format {
            Format::Id => BTreeMap::new(),
            _ => chains(&client, &response.occurrences).await?,
        };
        let with_chain = response.occurrences.into_iter().map(|one| {
            let chain = chains.get(&one.task_id).cloned();
            (one, chain)
        });
        match output.format {
            Format::Jsonl => with_chain.for_each(|(one, chain)| {
                let zone = trigger_zone(&spec, &one.trigger);
                json::object(&line(&one, chain.as_ref(), &zone));
            }),
            Format::Id => with_chain
                .filter_map(|(one, _)| id(one.task_id))
                .for_each(|id| output::line(&id)),
            _ => all.extend(with_chain),
        }
        if !pages.go_on(got, response.next_page_token) {
            break;
        }
    }
    match output.format {
        Format::Jsonl | Format::Id => {}
        Format::Json => {
            let lines = all
                .iter()
                .map(|(one, chain)| line(one, chain.as_ref(), &trigger_zone(&spec, &one.trigger)));
            json::document(&BTreeMap::from([("occurrences", lines.collect::<Vec<_>>())]));
        }
        Format::Table | Format::Wide => {
            let now = now_ms();
            let rows: Vec<_> = all
                .iter()
                .map(|(one, chain)| row(one, chain.as_ref(), &spec, now))
                .collect();
            table::print(&COLUMNS, &rows, &output);
        }
    }
    pages.tell_rest(&output);
    Ok(exit_code::OK)
}

#[cfg(test)]
mod tests {
    use super::super::why::tests::{AT, occurrence};
    use super::*;
    use systole_shared::task::TaskState;

    #[test]
    fn a_row_fits_60_columns() {
        let chain = Chain {
            first: v1::Task {
                id: 41,
                ..v1::Task::default()
            },
            retry: None,
        };
        let row = row(
            &v1::Occurrence {
                trigger: "nightly".into(),
                scheduled_at_ms: 1_796_002_200_000,
                verdict: "fired".into(),
                ..v1::Occurrence::default()
            },
            Some(&chain),
            &JobSpec::default(),
            0,
        );
        assert_eq!(row.len(), COLUMNS.len());
        for line in table::render(&COLUMNS, &[row], Some(60), false).lines() {
            assert!(line.chars().count() <= 60, "{line}");
        }
    }

    #[test]
    fn the_list_is_as_it_was() {
        let mut fired = occurrence("fired", "schedule");
        fired.task_id = 2_143;
        let mut late = occurrence("fired", "misfire");
        (late.task_id, late.at_ms) = (2_101, AT + 4 * 3_600_000);
        let mut blocked = occurrence("skipped", "blocked");
        blocked.blocked_by = 2_101;
        let mut paused = occurrence("skipped", "paused");
        (paused.fires, paused.until_ms) = (3, AT + 2 * 86_400_000);
        let mut coalesced = occurrence("coalesced", "misfire");
        coalesced.into_ms = AT + 86_400_000;
        let first = crate::golden::task(2_143, TaskState::Failed);
        let chain = Chain { first, retry: None };
        let again = Chain {
            first: crate::golden::task(2_139, TaskState::Failed),
            retry: Some(v1::Task {
                attempt: 2,
                ..crate::golden::task(2_142, TaskState::Finished)
            }),
        };
        let mut retried = occurrence("fired", "schedule");
        retried.task_id = 2_139;
        let rows: Vec<_> = [
            (&fired, Some(&chain)),
            (&retried, Some(&again)),
            (&late, None),
            (&blocked, None),
            (&paused, None),
            (&coalesced, None),
        ]
        .into_iter()
        .map(|(one, chain)| row(one, chain, &JobSpec::default(), AT))
        .collect();
        crate::golden::table("job_history", &COLUMNS, &rows);
    }
}
