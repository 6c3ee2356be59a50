//! `systole ls`: the newest tasks, and why they wait or how they ended.

use super::pages::Pages;
use super::{joblog, now_ms};
use crate::args::{Format, Global, LsArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, color, json, text};
use systole_proto::convert::state_from_wire;
use systole_proto::v1;

/// Tasks of one call. A task may have 1 MiB, so pages are kept well below the bound of the contract.
const PAGE: u64 = 200;

pub(super) const COLUMNS: [Column; 7] = [
    Column::whole("ID"),
    Column::whole("STATE"),
    Column::cut("NAME", 8).droppable(1),
    Column::whole("RUNNER").droppable(3),
    Column::whole("STARTED").droppable(4),
    Column::whole("TOOK").droppable(2),
    Column::cut("WHY / OUTCOME", 12),
];

const WIDE_COLUMNS: [Column; 19] = [
    Column::whole("ID"),
    Column::whole("STATE"),
    Column::whole("NAME"),
    Column::whole("JOB"),
    Column::whole("QUEUE"),
    Column::whole("PRIORITY"),
    Column::whole("RUNNER"),
    Column::whole("CREATED"),
    Column::whole("STARTED"),
    Column::whole("ENDED"),
    Column::whole("TOOK"),
    Column::whole("BY"),
    Column::whole("CHAIN"),
    Column::whole("BATCH"),
    Column::whole("SET"),
    Column::whole("TAGS"),
    Column::whole("REQUIRE"),
    Column::whole("WHY / OUTCOME"),
    Column::whole("COMMAND"),
];

pub async fn run(global: &Global, args: &LsArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let mut filter = args.filter.to_wire();
    if args.joblog {
        joblog::only_ended(&mut filter);
        output::line(joblog::TITLES);
    }
    let mut pages = Pages::new(args.limit, !args.joblog && output.format.is_for_people(), PAGE);
    let mut tasks: Vec<v1::Task> = Vec::new();
    loop {
        let request = v1::ListRequest {
            filter: Some(filter.clone()),
            limit: pages.limit(),
            page_token: pages.token(),
        };
        let response = client.list(request).await?;
        let got = response.tasks.len();
        match output.format {
            _ if args.joblog => response.tasks.iter().for_each(|task| output::line(&joblog::line(task))),
            // These need not wait for the last page, nor hold them all.
            Format::Jsonl => response
                .tasks
                .iter()
                .for_each(|task| json::object(&json::Task::from(task))),
            Format::Id => response
                .tasks
                .iter()
                .for_each(|task| output::line(&task.id.to_string())),
            Format::Table | Format::Wide | Format::Json => tasks.extend(response.tasks),
        }
        if !pages.go_on(got, response.next_page_token) {
            break;
        }
    }
    match output.format {
        _ if args.joblog => {}
        Format::Jsonl | Format::Id => {}
        Format::Json => json::document(&json::Tasks {
            tasks: tasks.iter().map(json::Task::from).collect(),
        }),
        Format::Table => table::print(&COLUMNS, &rows(&tasks, row), &output),
        Format::Wide => table::print(&WIDE_COLUMNS, &rows(&tasks, wide_row), &output),
    }
    if output.width.is_some() {
        pages.tell_rest(&output);
    }
    Ok(exit_code::OK)
}

fn rows(tasks: &[v1::Task], row: fn(&v1::Task, u64) -> Vec<Text>) -> Vec<Vec<Text>> {
    let now = now_ms();
    tasks.iter().map(|task| row(task, now)).collect()
}

fn state(task: &v1::Task) -> Text {
    (
        text::state_name(task.state),
        color::of_state(state_from_wire(task.state)),
    )
}

pub(super) fn row(task: &v1::Task, now: u64) -> Vec<Text> {
    vec![
        plain(task.id.to_string()),
        state(task),
        plain(text::name(task)),
        plain(text::runner(task)),
        plain(text::short_time(task.started_at_ms, now)),
        plain(text::took(task, now)),
        plain(text::why_or_outcome(task)),
    ]
}

fn wide_row(task: &v1::Task, now: u64) -> Vec<Text> {
    let default = v1::TaskSpec::default();
    let spec = task.spec.as_ref().unwrap_or(&default);
    let set = match task.set_id {
        0 => String::new(),
        id => id.to_string(),
    };
    vec![
        plain(task.id.to_string()),
        state(task),
        plain(text::name(task)),
        plain(spec.job.as_str()),
        plain(spec.queue.as_str()),
        plain(spec.priority.map(|priority| priority.to_string()).unwrap_or_default()),
        plain(text::runner(task)),
        plain(text::full_time(task.created_at_ms)),
        plain(text::full_time(task.started_at_ms)),
        plain(text::full_time(task.ended_at_ms)),
        plain(text::took(task, now)),
        plain(task.submitted_by.as_str()),
        plain(task.root_id.to_string()),
        plain(spec.batch.as_str()),
        plain(set),
        plain(spec.tags.join(" ")),
        plain(text::labels(&spec.require)),
        plain(text::why_or_outcome(task)),
        plain(text::command_line(&spec.command)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{self, NOW};
    use systole_proto::convert::state_to_wire;
    use systole_shared::task::TaskState;

    #[test]
    fn a_list_fits_40_columns() {
        let tasks: Vec<v1::Task> = TaskState::ALL
            .into_iter()
            .zip(123_450..)
            .map(|(state, id)| v1::Task {
                id,
                state: state_to_wire(state).into(),
                host: "a-host-with-a-rather-long-name".into(),
                started_at_ms: 1_800_000_000_000,
                ended_at_ms: 1_800_000_700_000,
                waiting_for: "4 of 4 slots busy (longest: 1830, 12m00s)".into(),
                spec: Some(v1::TaskSpec {
                    name: "a name that is longer than any column".into(),
                    ..v1::TaskSpec::default()
                }),
                ..v1::Task::default()
            })
            .collect();
        let text = table::render(&COLUMNS, &rows(&tasks, row), Some(40), false);
        assert_eq!(text.lines().count(), 11);
        for (line, task) in text.lines().skip(1).zip(&tasks) {
            assert!(line.chars().count() <= 40, "{line:?}");
            assert!(
                line.starts_with(&format!("{}  {}", task.id, text::state_name(task.state))),
                "{line:?}"
            );
        }
        assert_eq!(wide_row(&tasks[0], 0).len(), WIDE_COLUMNS.len());
        assert_eq!(row(&tasks[0], 0).len(), COLUMNS.len());
    }

    #[test]
    fn the_lists_are_as_they_were() {
        let mut tasks = golden::tasks();
        if let Some(failed) = tasks.iter_mut().find(|task| task.state == 7) {
            (failed.attempt, failed.retried_by, failed.set_id) = (2, 1_901, 1_801);
            let spec = failed.spec.get_or_insert_default();
            (spec.job, spec.batch) = ("etl".into(), "b-3f2a91c07d".into());
            spec.require = vec![v1::Label {
                key: "gpu".into(),
                value: "1".into(),
            }];
        }
        let narrow: Vec<_> = tasks.iter().map(|task| row(task, NOW)).collect();
        golden::table("ls", &COLUMNS, &narrow);
        let wide: Vec<_> = tasks.iter().map(|task| wide_row(task, NOW)).collect();
        golden::check("ls_wide", &table::render(&WIDE_COLUMNS, &wide, None, false));
    }
}
