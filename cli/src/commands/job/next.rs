//! `systole next` and `systole job next`: the fires to come.

use super::list::utc;
use crate::args::{Format, Global, JobNextArgs, NextArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, plain};
use crate::output::{self, Output, json, text};
use serde::Serialize;
use std::collections::BTreeMap;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;

const FIRES_MAX: u64 = 1_000;

pub(super) const COLUMNS: [Column; 3] = [Column::whole("FIRE"), Column::cut("JOB", 8), Column::cut("TRIGGER", 6)];

#[derive(Serialize)]
struct Line {
    at: Option<String>,
    job: String,
    trigger: String,
}

pub async fn next(global: &Global, args: &NextArgs) -> Result<u8, Failure> {
    let request = v1::NextRequest {
        job: args.job.clone().unwrap_or_default(),
        runner: args.runner.clone().unwrap_or_default(),
        until_ms: args.until.map_or(0, time_to_wire),
        limit: limit(args.limit),
    };
    ask(global, request).await
}

pub async fn of_job(global: &Global, args: &JobNextArgs) -> Result<u8, Failure> {
    let request = v1::NextRequest {
        job: args.job.clone().unwrap_or_default(),
        until_ms: args.until.map_or(0, time_to_wire),
        limit: limit(args.limit),
        ..v1::NextRequest::default()
    };
    ask(global, request).await
}

fn limit(asked: u64) -> u32 {
    u32::try_from(asked.min(FIRES_MAX)).unwrap_or(0)
}

async fn ask(global: &Global, request: v1::NextRequest) -> Result<u8, Failure> {
    let output = Output::new(global);
    let limit = request.limit;
    let response = Client::new(global)?.next_fires(request).await?;
    let lines = response.coming.iter().map(|coming| Line {
        at: utc(coming.scheduled_at_ms),
        job: coming.job.clone(),
        trigger: coming.trigger.clone(),
    });
    match output.format {
        Format::Json => json::document(&BTreeMap::from([("coming", lines.collect::<Vec<_>>())])),
        Format::Jsonl => lines.for_each(|line| json::object(&line)),
        Format::Id => lines.for_each(|line| output::line(&text::clean(&line.job))),
        Format::Table | Format::Wide => {
            // One clock for all of them: that of whoever looks.
            let row = |coming: &v1::Coming| {
                let at = text::full_time(coming.scheduled_at_ms);
                vec![plain(at), plain(coming.job.as_str()), plain(coming.trigger.as_str())]
            };
            let rows: Vec<_> = response.coming.iter().map(row).collect();
            table::print(&COLUMNS, &rows, &output);
        }
    }
    if response.coming.len() == usize::try_from(limit).unwrap_or(usize::MAX) && output.format.is_for_people() {
        output.note("there may be more; -n shows more");
    }
    Ok(if response.coming.is_empty() {
        exit_code::NO
    } else {
        exit_code::OK
    })
}
