//! `systole job pause`, `resume` and `rm`.

use crate::args::{Format, Global, JobPauseArgs, JobResumeArgs, JobRmArgs};
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use serde::Serialize;
use std::collections::BTreeMap;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;

#[derive(Serialize)]
struct Line {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    already: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cancelled: Vec<String>,
    /// For people.
    #[serde(skip)]
    words: String,
}

fn write(output: &Output, lines: &[Line]) {
    let done = || lines.iter().filter(|line| line.error.is_none());
    match output.format {
        Format::Json => json::document(&BTreeMap::from([("results", lines)])),
        Format::Jsonl => lines.iter().for_each(json::object),
        Format::Id => done().for_each(|line| output::line(&line.name)),
        Format::Table | Format::Wide => done().for_each(|line| output::line(&line.words)),
    }
}

async fn set_paused(global: &Global, request: v1::SetPausedRequest) -> Result<u8, Failure> {
    let output = Output::new(global);
    let (names, paused, until_ms) = (request.names.clone(), request.paused, request.until_ms);
    let results = Client::new(global)?.pause_jobs(request).await?;
    let lines: Vec<Line> = names
        .iter()
        .zip(&results)
        .map(|(name, result)| paused_line(name, result, paused, until_ms))
        .collect();
    write(&output, &lines);
    Ok(super::super::tell_errors(
        results.iter().filter_map(|result| result.error.as_ref()),
    ))
}

fn paused_line(name: &str, result: &v1::SetPausedResult, paused: bool, until_ms: u64) -> Line {
    let until = match until_ms {
        0 => String::new(),
        ms => format!(" until {}", text::full_time(ms)),
    };
    let words = match (paused, result.already, result.skipped) {
        (true, false, _) => format!("{name}: paused{until}"),
        (true, true, _) if until.is_empty() => format!("{name}: was paused already"),
        (true, true, _) => format!("{name}: was paused already; now{until}"),
        (false, true, _) => format!("{name}: was not paused"),
        (false, false, 0) => format!("{name}: resumed"),
        (false, false, 1) => format!("{name}: resumed; 1 fire was left out meanwhile"),
        (false, false, skipped) => format!("{name}: resumed; {skipped} fires were left out meanwhile"),
    };
    Line {
        name: name.to_owned(),
        error: result.error.as_ref().map(|error| Failure::from_item(error).to_string()),
        already: Some(result.already),
        skipped: (!paused).then_some(result.skipped),
        cancelled: Vec::new(),
        words,
    }
}

pub async fn pause(global: &Global, args: &JobPauseArgs) -> Result<u8, Failure> {
    let request = v1::SetPausedRequest {
        names: args.names.clone(),
        paused: true,
        until_ms: args.until.map_or(0, time_to_wire),
        reason: args.reason.clone().unwrap_or_default(),
    };
    set_paused(global, request).await
}

pub async fn resume(global: &Global, args: &JobResumeArgs) -> Result<u8, Failure> {
    let request = v1::SetPausedRequest {
        names: args.names.clone(),
        paused: false,
        until_ms: 0,
        reason: args.reason.clone().unwrap_or_default(),
    };
    set_paused(global, request).await
}

pub async fn rm(global: &Global, args: &JobRmArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let request = v1::DeleteJobsRequest {
        names: args.names.clone(),
        reason: args.reason.clone().unwrap_or_default(),
        expected_version: args.plan_version.unwrap_or(0),
    };
    let results = Client::new(global)?.delete_jobs(request).await?;
    let line = |(name, result): (&String, &v1::DeleteJobResult)| Line {
        name: name.clone(),
        error: result.error.as_ref().map(|error| Failure::from_item(error).to_string()),
        already: None,
        skipped: None,
        cancelled: result.cancelled.iter().map(ToString::to_string).collect(),
        words: match result.cancelled.len() {
            0 => format!("{name}: deleted"),
            1 => format!("{name}: deleted; 1 waiting task cancelled"),
            count => format!("{name}: deleted; {count} waiting tasks cancelled"),
        },
    };
    let lines: Vec<Line> = args.names.iter().zip(&results).map(line).collect();
    write(&output, &lines);
    Ok(super::super::tell_errors(
        results.iter().filter_map(|result| result.error.as_ref()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resume_says_how_much_was_left_out() {
        let result = v1::SetPausedResult {
            skipped: 12,
            ..v1::SetPausedResult::default()
        };
        assert_eq!(
            paused_line("a", &result, false, 0).words,
            "a: resumed; 12 fires were left out meanwhile"
        );
        assert_eq!(
            paused_line("a/t", &v1::SetPausedResult::default(), true, 0).words,
            "a/t: paused"
        );
    }

    #[test]
    fn a_pause_with_an_end_says_it() {
        let until = text::full_time(1_800_000_000_000);
        let mut result = v1::SetPausedResult::default();
        let words = |result: &v1::SetPausedResult| paused_line("a", result, true, 1_800_000_000_000).words;
        assert_eq!(words(&result), format!("a: paused until {until}"));
        result.already = true;
        assert_eq!(words(&result), format!("a: was paused already; now until {until}"));
    }
}
