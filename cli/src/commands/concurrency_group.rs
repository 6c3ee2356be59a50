//! `systole concurrency-group`: how many runs of several jobs go on together.

use super::calendar::write_deleted;
use crate::args::{Format, Global, GroupAction, GroupArgs, GroupRmArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, plain};
use crate::output::{self, Output, json, text};
use serde::Serialize;
use std::collections::BTreeMap;
use systole_proto::v1;

const COLUMNS: [Column; 4] = [
    Column::cut("GROUP", 8),
    Column::whole("LIMIT"),
    Column::whole("RUNS"),
    Column::cut("JOBS", 8),
];

pub async fn run(global: &Global, args: &GroupArgs) -> Result<u8, Failure> {
    match &args.action {
        GroupAction::Ls => ls(global).await,
        GroupAction::Rm(args) => rm(global, args).await,
    }
}

#[derive(Serialize)]
struct Line {
    name: String,
    version: String,
    limit: u32,
    /// Roots of the chains that have a place.
    running: Vec<String>,
    used_by: Vec<String>,
}

fn line(group: &v1::ConcurrencyGroup) -> Line {
    Line {
        name: group.name.clone(),
        version: group.version.to_string(),
        limit: group.limit,
        running: group.running.iter().map(ToString::to_string).collect(),
        used_by: group.used_by.clone(),
    }
}

async fn ls(global: &Global) -> Result<u8, Failure> {
    let output = Output::new(global);
    let groups = Client::new(global)?.concurrency_groups().await?;
    let lines = || groups.iter().map(line);
    match output.format {
        Format::Json => json::document(&BTreeMap::from([("groups", lines().collect::<Vec<_>>())])),
        Format::Jsonl => lines().for_each(|line| json::object(&line)),
        Format::Id => groups.iter().for_each(|group| output::line(&text::clean(&group.name))),
        Format::Table | Format::Wide => {
            let row = |group: &v1::ConcurrencyGroup| {
                vec![
                    plain(group.name.as_str()),
                    plain(group.limit.to_string()),
                    plain(group.running.len().to_string()),
                    plain(group.used_by.join(", ")),
                ]
            };
            let rows: Vec<_> = groups.iter().map(row).collect();
            table::print(&COLUMNS, &rows, &output);
        }
    }
    Ok(exit_code::OK)
}

async fn rm(global: &Global, args: &GroupRmArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let request = v1::DeleteNamedRequest {
        names: args.names.clone(),
        reason: args.reason.clone().unwrap_or_default(),
    };
    let results = Client::new(global)?.delete_groups(request).await?;
    Ok(write_deleted(&output, &args.names, &results))
}
