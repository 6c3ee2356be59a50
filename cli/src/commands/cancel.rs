//! `systole cancel`: ends tasks.

use crate::args::{CancelArgs, Format, Global};
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{self, Output, color, json, text};
use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_shared::limits::BATCH_ITEMS_MAX;
use systole_shared::task::TaskState;

pub async fn run(global: &Global, args: &CancelArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let mut results = Vec::with_capacity(args.tasks.len());
    for ids in args.tasks.chunks(BATCH_ITEMS_MAX) {
        let request = v1::CancelRequest {
            ids: ids.to_vec(),
            reason: args.reason.clone().unwrap_or_default(),
            exact: args.exact,
        };
        results.extend(client.cancel(request).await?);
    }
    let results: Vec<(i64, v1::CancelResult)> = args.tasks.iter().copied().zip(results).collect();
    write(&results, &output);
    Ok(super::tell_errors(
        results.iter().filter_map(|(_, result)| result.error.as_ref()),
    ))
}

fn write(results: &[(i64, v1::CancelResult)], output: &Output) {
    let json = |(asked, result): &(i64, v1::CancelResult)| json::CancelResult::new(*asked, result);
    match output.format {
        Format::Json => json::document(&json::Results {
            results: results.iter().map(json).collect(),
        }),
        Format::Jsonl => results.iter().for_each(|result| json::object(&json(result))),
        Format::Id => {
            for (_, result) in results.iter().filter(|(_, result)| result.error.is_none()) {
                output::line(&result.id.to_string());
            }
        }
        Format::Table | Format::Wide => {
            for (asked, result) in results.iter().filter(|(_, result)| result.error.is_none()) {
                output::line(&line(*asked, result, output.color));
            }
        }
    }
}

fn line(asked: i64, result: &v1::CancelResult, colored: bool) -> String {
    let state = state_from_wire(result.state);
    let painted = color::paint(&text::state_name(result.state), color::of_state(state), colored);
    let which = if result.id == asked {
        String::new()
    } else {
        format!(" (retry of {asked})")
    };
    let before = if result.already { ", cancelled before" } else { "" };
    let note = if state == Some(TaskState::Terminating) {
        ": its runner is ending it"
    } else {
        ""
    };
    format!("task {}{which}  {painted}{before}{note}", result.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_proto::convert::state_to_wire;

    #[test]
    fn each_result_is_one_line() {
        let result = |id, state: TaskState, already| v1::CancelResult {
            id,
            state: state_to_wire(state).into(),
            already,
            error: None,
        };
        assert_eq!(
            line(5, &result(5, TaskState::Terminated, false), false),
            "task 5  TERMINATED"
        );
        assert_eq!(
            line(5, &result(7, TaskState::Terminating, true), false),
            "task 7 (retry of 5)  TERMINATING, cancelled before: its runner is ending it"
        );
    }
}
