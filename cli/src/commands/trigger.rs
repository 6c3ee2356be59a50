//! `systole trigger`: triggers by themselves.

use super::job::{self, pause_in_words, wire_fire, zone_named};
use crate::args::{Format, Global, TriggerAction, TriggerArgs, TriggerLsArgs, TriggerResetArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json, text};
use serde::Serialize;
use std::collections::BTreeMap;
use systole_proto::v1;
use systole_shared::time::format_utc;

const PAGE: u32 = 1_000;

const COLUMNS: [Column; 6] = [
    Column::cut("TRIGGER", 12),
    Column::cut("KIND", 6).droppable(2),
    Column::cut("STATE", 8),
    Column::whole("NEXT FIRE").droppable(1),
    Column::whole("FIRES").droppable(3),
    Column::cut("NOTE", 8).droppable(1),
];

pub async fn run(global: &Global, args: &TriggerArgs) -> Result<u8, Failure> {
    match &args.action {
        TriggerAction::Ls(args) => ls(global, args).await,
        TriggerAction::Pause(args) => job::pause(global, args).await,
        TriggerAction::Resume(args) => job::resume(global, args).await,
        TriggerAction::Reset(args) => reset(global, args).await,
    }
}

#[derive(Serialize)]
struct Line {
    /// `JOB/TRIGGER`.
    name: String,
    kind: String,
    state: String,
    next: Option<String>,
    fires: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

/// A trigger of a job, as it is shown.
struct Shown<'a> {
    job: &'a v1::Job,
    trigger: &'a v1::TriggerStatus,
}

impl Shown<'_> {
    fn name(&self) -> String {
        format!("{}/{}", self.job.name, self.trigger.name)
    }

    fn job_is_paused(&self) -> bool {
        self.job.pause.as_ref().is_some_and(|pause| pause.paused)
    }

    /// Its own, or that of its job.
    fn is_in(&self, state: &str) -> bool {
        let own = self
            .trigger
            .state
            .split(|c: char| !c.is_ascii_alphabetic())
            .any(|word| word.eq_ignore_ascii_case(state));
        own || (state.eq_ignore_ascii_case("PAUSED") && self.job_is_paused())
    }

    fn line(&self) -> Line {
        Line {
            name: self.name(),
            kind: self.trigger.kind.clone(),
            state: self.trigger.state.clone(),
            next: i64::try_from(self.trigger.next_at_ms)
                .ok()
                .filter(|&ms| ms > 0)
                .map(format_utc),
            fires: self.trigger.fires,
            error: self.trigger.error.clone(),
        }
    }

    fn row(&self) -> Vec<Text> {
        let zone = zone_named(&self.trigger.zone);
        let paused = pause_in_words(self.trigger.pause.as_ref(), &zone);
        let of_job = pause_in_words(self.job.pause.as_ref(), &zone);
        let note = match (self.trigger.error.as_str(), paused.as_str(), of_job.as_str()) {
            ("", "", "") => String::new(),
            ("", "", job) => format!("its job is {job}"),
            ("", own, _) => own.to_owned(),
            (error, _, _) => error.to_owned(),
        };
        let held = self.job_is_paused() || self.trigger.pause.as_ref().is_some_and(|pause| pause.paused);
        let next = if held {
            String::new()
        } else {
            wire_fire(&zone, self.trigger.next_at_ms)
        };
        vec![
            plain(self.name()),
            plain(self.trigger.kind.as_str()),
            plain(self.trigger.state.as_str()),
            plain(next),
            plain(self.trigger.fires.to_string()),
            plain(note),
        ]
    }
}

async fn ls(global: &Global, args: &TriggerLsArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let mut lines = Vec::new();
    let mut rows = Vec::new();
    let mut page_token = String::new();
    loop {
        let response = client
            .list_jobs(v1::ListJobsRequest {
                name_prefix: args.prefix.clone().unwrap_or_default(),
                limit: PAGE,
                page_token,
                ..v1::ListJobsRequest::default()
            })
            .await?;
        let shown = response
            .jobs
            .iter()
            .flat_map(|job| job.triggers.iter().map(move |trigger| Shown { job, trigger }))
            .filter(|shown| args.state.as_ref().is_none_or(|state| shown.is_in(state)));
        for one in shown {
            match output.format {
                Format::Jsonl => json::object(&one.line()),
                Format::Id => output::line(&text::clean(&one.name())),
                Format::Json => lines.push(one.line()),
                Format::Table | Format::Wide => rows.push(one.row()),
            }
        }
        if response.next_page_token.is_empty() {
            break;
        }
        page_token = response.next_page_token;
    }
    match output.format {
        Format::Jsonl | Format::Id => {}
        Format::Json => json::document(&BTreeMap::from([("triggers", lines)])),
        Format::Table | Format::Wide => {
            let none = if args.prefix.is_some() || args.state.is_some() {
                "no trigger matches"
            } else {
                "no triggers yet: they stand in jobs, see `systole job ls`"
            };
            table::print_or(&COLUMNS, &rows, &output, none);
        }
    }
    Ok(exit_code::OK)
}

#[derive(Serialize)]
struct Reset {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    already: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

async fn reset(global: &Global, args: &TriggerResetArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let request = v1::ResetTriggersRequest {
        names: args.names.clone(),
        reason: args.reason.clone().unwrap_or_default(),
    };
    let results = Client::new(global)?.reset_triggers(request).await?;
    let lines: Vec<Reset> = args
        .names
        .iter()
        .zip(&results)
        .map(|(name, result)| Reset {
            name: name.clone(),
            already: result.error.is_none().then_some(result.already),
            error: result.error.as_ref().map(|error| Failure::from_item(error).to_string()),
        })
        .collect();
    let done = || lines.iter().filter(|line| line.error.is_none());
    match output.format {
        Format::Json => json::document(&BTreeMap::from([("results", &lines)])),
        Format::Jsonl => lines.iter().for_each(json::object),
        Format::Id => done().for_each(|line| output::line(&line.name)),
        Format::Table | Format::Wide => done().for_each(|line| {
            let words = match line.already {
                Some(true) => "was not in ERROR",
                _ => "is tried again",
            };
            output::line(&format!("{}: {words}", line.name));
        }),
    }
    Ok(super::tell_errors(
        results.iter().filter_map(|result| result.error.as_ref()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_is_paused_with_its_job() {
        let trigger = v1::TriggerStatus {
            name: "t".into(),
            state: "PAUSED (blocked)".into(),
            next_at_ms: 1_796_002_200_000,
            ..v1::TriggerStatus::default()
        };
        let mut job = v1::Job {
            name: "a".into(),
            ..v1::Job::default()
        };
        let states = |job: &v1::Job, trigger: &v1::TriggerStatus| {
            ["WAITING", "paused", "BLOCKED"].map(|state| Shown { job, trigger }.is_in(state))
        };
        assert_eq!(states(&job, &trigger), [false, true, true]);
        let waiting = v1::TriggerStatus {
            state: "WAITING".into(),
            ..trigger
        };
        assert_eq!(states(&job, &waiting), [true, false, false]);
        job.pause = Some(v1::Pause {
            paused: true,
            by: "ann".into(),
            ..v1::Pause::default()
        });
        assert_eq!(states(&job, &waiting), [true, true, false]);
        let shown = Shown {
            job: &job,
            trigger: &waiting,
        };
        let table = table::render(&COLUMNS, &[shown.row()], Some(60), false);
        assert!(
            !table.contains("02:30") && table.contains("its job is paused"),
            "{table}"
        );
        assert!(table.lines().all(|line| line.chars().count() <= 60), "{table}");
    }
}
