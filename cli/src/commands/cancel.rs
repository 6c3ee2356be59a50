//! `systole cancel`: ends tasks, named one by one or by what they have in common.

use super::many;
use crate::args::{CancelArgs, Format, Global};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, color, json, text};
use systole_proto::convert::{state_from_wire, state_to_wire};
use systole_proto::v1;
use systole_shared::limits::BATCH_ITEMS_MAX;
use systole_shared::task::TaskState;

pub async fn run(global: &Global, args: &CancelArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    if args.tasks.is_empty() {
        return matching(&client, &output, args).await;
    }
    if args.many.dry_run {
        return Err(Failure::usage(
            "--dry-run is for conditions such as --state; for single tasks see `systole show`",
        ));
    }
    let mut results = Vec::with_capacity(args.tasks.len());
    for ids in args.tasks.chunks(BATCH_ITEMS_MAX) {
        let request = v1::CancelRequest {
            ids: ids.to_vec(),
            reason: args.many.reason.clone().unwrap_or_default(),
            exact: args.exact,
            ..v1::CancelRequest::default()
        };
        results.extend(client.cancel(request).await?);
    }
    let results: Vec<(i64, v1::CancelResult)> = args.tasks.iter().copied().zip(results).collect();
    if output.format == Format::Json {
        json::document(&json::Results {
            results: results.iter().map(to_json).collect(),
        });
    } else {
        write(&results, &output);
    }
    Ok(super::tell_errors(
        results.iter().filter_map(|(_, result)| result.error.as_ref()),
    ))
}

/// Those that a cancel acts on.
fn live(filter: &mut v1::TaskFilter) {
    let live = |state: &TaskState| !state.is_terminal() && *state != TaskState::Callback;
    let wanted = std::mem::take(&mut filter.states);
    filter.states = TaskState::ALL
        .into_iter()
        .filter(live)
        .map(|state| state_to_wire(state).into())
        .filter(|state| wanted.is_empty() || wanted.contains(state))
        .collect();
}

async fn matching(client: &Client, output: &Output, args: &CancelArgs) -> Result<u8, Failure> {
    let mut filter = args.filter.to_wire();
    live(&mut filter);
    if filter.states.is_empty() {
        return Err(Failure::usage(
            "--state: tasks in these states have ended; a cancel acts on CREATED, QUEUED, DISPATCHED and RUNNING",
        ));
    }
    if let Some(exit) = many::agreed(client, output, &filter, &args.many, "Cancel").await? {
        return Ok(exit);
    }
    let (mut all, mut changed, mut page_token) = (Vec::new(), 0_u64, String::new());
    loop {
        let request = v1::CancelRequest {
            filter: Some(filter.clone()),
            reason: args.many.reason.clone().unwrap_or_default(),
            page_token,
            ..v1::CancelRequest::default()
        };
        let response = client.cancel_matching(request).await?;
        // One that ended meanwhile is nothing to complain about.
        let results: Vec<(i64, v1::CancelResult)> = response
            .results
            .into_iter()
            .filter(|result| result.error.is_none())
            .map(|result| (result.id, result))
            .collect();
        changed += results.len() as u64;
        match output.format {
            Format::Json => all.extend(results),
            Format::Jsonl | Format::Id | Format::Wide => write(&results, output),
            Format::Table => {}
        }
        page_token = response.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match output.format {
        Format::Json => json::document(&json::Results {
            results: all.iter().map(to_json).collect(),
        }),
        Format::Table => output::line(&format!("{} cancelled", many::tasks(changed))),
        Format::Jsonl | Format::Id | Format::Wide => {}
    }
    Ok(exit_code::OK)
}

fn to_json((asked, result): &(i64, v1::CancelResult)) -> json::CancelResult {
    json::CancelResult::new(*asked, result)
}

fn write(results: &[(i64, v1::CancelResult)], output: &Output) {
    let done = results.iter().filter(|(_, result)| result.error.is_none());
    match output.format {
        Format::Jsonl => results.iter().for_each(|result| json::object(&to_json(result))),
        Format::Id => done.for_each(|(_, result)| output::line(&result.id.to_string())),
        Format::Json | Format::Table | Format::Wide => {
            done.for_each(|(asked, result)| output::line(&line(*asked, result, output.color)));
        }
    }
}

pub(super) fn line(asked: i64, result: &v1::CancelResult, colored: bool) -> String {
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

    #[test]
    fn a_cancel_by_conditions_is_about_tasks_that_live() {
        let number = |state| i32::from(TaskState::number(state));
        let mut filter = v1::TaskFilter::default();
        live(&mut filter);
        assert_eq!(filter.states, [1, 2, 3, 4, 9]);
        filter.states = vec![number(TaskState::Queued), number(TaskState::Failed)];
        live(&mut filter);
        assert_eq!(filter.states, [2]);
    }

    #[test]
    fn the_lines_are_as_they_were() {
        let mut text = String::new();
        for (asked, id, state, already) in [
            (5, 5, TaskState::Terminated, false),
            (5, 7, TaskState::Terminating, false),
            (5, 5, TaskState::Terminated, true),
        ] {
            let result = v1::CancelResult {
                id,
                state: state_to_wire(state).into(),
                already,
                error: None,
            };
            text.push_str(&format!("{}\n", line(asked, &result, false)));
        }
        crate::golden::check("cancel", &text);
    }
}
