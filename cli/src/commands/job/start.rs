//! `systole job trigger` and `enqueue`: runs that somebody asks for.

use crate::args::{Format, Global, JobEnqueueArgs, JobTriggerArgs};
use crate::client::Client;
use crate::commands::run::{Started, start_and_follow};
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;
use uuid::Uuid;

/// `KEY=VALUE`: JSON where it is JSON, else a text.
fn data(pairs: &[(String, String)]) -> String {
    if pairs.is_empty() {
        return String::new();
    }
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    let map: Map<String, Value> = pairs.iter().map(|(key, text)| (key.clone(), value(text))).collect();
    Value::Object(map).to_string()
}

#[derive(Serialize)]
struct Asked {
    job: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    existing: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Asked {
    fn new(job: &str, run: Option<v1::TriggerJobResponse>, error: Option<&v1::ItemError>) -> Self {
        Self {
            job: job.to_owned(),
            id: run.map(|run| run.task_id.to_string()),
            existing: run.map(|run| run.existing),
            waiting: run.map(|run| run.waiting),
            error: error.map(|error| Failure::from_item(error).to_string()),
        }
    }
}

pub async fn trigger(global: &Global, args: &JobTriggerArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global);
    // Only one that is followed ends like its task.
    let client = Arc::new(if args.detach {
        client?
    } else {
        client.map_err(Failure::of_start)?
    });
    let request = v1::TriggerJobRequest {
        job: args.job.clone(),
        trigger: args.trigger.clone().unwrap_or_default(),
        data: data(&args.data),
        scheduled_at_ms: args.scheduled.map_or(0, time_to_wire),
        // A call whose answer was lost is repeated: it must not run twice.
        key: args.key.clone().unwrap_or_else(|| Uuid::new_v4().to_string()),
        reason: args.reason.clone().unwrap_or_default(),
    };
    let key = request.key.clone();
    if args.detach {
        let response = client.trigger_job(request).await?;
        output::submitted(response.task_id);
        let asked = Asked::new(&args.job, Some(response), None);
        match output.format {
            Format::Json => json::document(&asked),
            Format::Jsonl => json::object(&asked),
            Format::Id | Format::Table | Format::Wide => output::line(&response.task_id.to_string()),
        }
        return Ok(exit_code::OK);
    }
    let start = async {
        let response = client.trigger_job(request).await?;
        let note = if response.existing && args.key.is_some() {
            Some("this key was used before; this is its output".to_owned())
        } else if response.waiting {
            Some(format!("waits for its turn: {} still runs", text::clean(&args.job)))
        } else {
            None
        };
        Ok(Started {
            id: response.task_id,
            note,
        })
    };
    start_and_follow(&client, output, &key, start).await
}

pub async fn enqueue(global: &Global, args: &JobEnqueueArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let item = |job: &String| v1::TriggerJobRequest {
        job: job.clone(),
        trigger: args.trigger.clone().unwrap_or_default(),
        data: data(&args.data),
        scheduled_at_ms: args.scheduled.map_or(0, time_to_wire),
        // A call whose answer was lost is repeated: it must not run twice.
        key: args.key.clone().unwrap_or_else(|| Uuid::new_v4().to_string()),
        reason: args.reason.clone().unwrap_or_default(),
    };
    let items: Vec<v1::TriggerJobRequest> = args.jobs.iter().map(item).collect();
    let results = Client::new(global)?.enqueue_jobs(v1::EnqueueRequest { items }).await?;
    let asked: Vec<Asked> = args
        .jobs
        .iter()
        .zip(&results)
        .map(|(job, result)| Asked::new(job, result.run, result.error.as_ref()))
        .collect();
    match output.format {
        Format::Json => json::document(&BTreeMap::from([("results", &asked)])),
        Format::Jsonl => asked.iter().for_each(json::object),
        Format::Id => asked
            .iter()
            .filter_map(|one| one.id.as_ref())
            .for_each(|id| output::line(id)),
        Format::Table | Format::Wide => {
            for one in &asked {
                let Some(id) = &one.id else { continue };
                let state = match (one.existing, one.waiting) {
                    (Some(true), _) => "was asked for before with this key",
                    (_, Some(true)) => "waits for its turn",
                    _ => "queued",
                };
                output::line(&format!("{}: task {id}, {state}", text::clean(&one.job)));
            }
        }
    }
    Ok(crate::commands::tell_errors(
        results.iter().filter_map(|result| result.error.as_ref()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_the_command_line_are_json_where_they_look_like_it() {
        let pairs = [
            ("table", "quotes"),
            ("n", "7"),
            ("list", "[1,2]"),
            ("text", "a b"),
            ("quoted", "\"7\""),
        ];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let value: Value = serde_json::from_str(&data(&pairs)).expect("json");
        assert_eq!(
            value,
            serde_json::json!({"table": "quotes", "n": 7, "list": [1, 2], "text": "a b", "quoted": "7"})
        );
        assert_eq!(data(&[]), "");
    }
}
