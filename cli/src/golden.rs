//! What people see, kept as files: `cli/tests/golden/NAME.txt`. A change shows in the difference of a commit, to be looked at.
//! `UPDATE_GOLDEN=1 cargo test -p systole` writes them anew.

use crate::output::table::{self, Column, Text};
use std::path::Path;
use systole_proto::convert::state_to_wire;
use systole_proto::v1;
use systole_shared::task::TaskState;
use unicode_width::UnicodeWidthStr as _;

/// Fri 2027-01-15 08:07 UTC.
pub const THEN: u64 = 1_800_000_420_000;
/// Half an hour later.
pub const NOW: u64 = THEN + 1_800_000;

/// A table as it is in a file, on a usual terminal and on a narrow one.
#[track_caller]
pub fn table(name: &str, columns: &[Column], rows: &[Vec<Text>]) {
    let mut text = String::new();
    for (title, width) in [
        ("as wide as it is", None),
        ("80 columns", Some(80)),
        ("40 columns", Some(40)),
    ] {
        assert!(
            rows.iter().all(|row| row.len() == columns.len()),
            "{name}: cells and columns differ"
        );
        let shown = table::render(columns, rows, width, false);
        for line in shown.lines() {
            let columns = line.width();
            assert!(
                width.is_none_or(|width| columns <= usize::from(width)),
                "{name}: {columns} columns: {line}"
            );
        }
        text.push_str(&format!("--- {title}\n{shown}"));
    }
    check(name, &text);
}

/// A task in each state, with what is usual there.
pub fn tasks() -> Vec<v1::Task> {
    TaskState::ALL
        .into_iter()
        .zip(1_840..)
        .map(|(state, id)| task(id, state))
        .collect()
}

pub fn task(id: i64, state: TaskState) -> v1::Task {
    let started = !matches!(
        state,
        TaskState::Created | TaskState::Queued | TaskState::Dispatched | TaskState::Skipped
    );
    let outcome = |kind: &str, message: &str| v1::Outcome {
        kind: kind.into(),
        message: message.into(),
        ..v1::Outcome::default()
    };
    v1::Task {
        id,
        root_id: id,
        attempt: 1,
        state: state_to_wire(state).into(),
        host: if started { "etl-2".into() } else { String::new() },
        slot: 1,
        created_at_ms: THEN,
        queued_at_ms: if state == TaskState::Created { 0 } else { THEN + 1_000 },
        dispatched_at_ms: if started { THEN + 2_000 } else { 0 },
        started_at_ms: if started { THEN + 3_000 } else { 0 },
        ended_at_ms: if state.child_is_over() { THEN + 15_400 } else { 0 },
        submitted_by: "ann".into(),
        submit_reason: "CHG-1042".into(),
        waiting_for: match state {
            TaskState::Created => "held: waits for a place of job etl.load (systole why 1840)".into(),
            TaskState::Queued => "no live runner has gpu=1".into(),
            TaskState::Dispatched => "given to etl-2/1, which has not reported it yet".into(),
            _ => String::new(),
        },
        outcome: match state {
            TaskState::Finished | TaskState::Callback => Some(v1::Outcome {
                exit_code: Some(0),
                ..outcome("success", "exit code 0")
            }),
            TaskState::Failed => Some(v1::Outcome {
                exit_code: Some(75),
                ..outcome("exit_code", "exit code 75")
            }),
            TaskState::Skipped => Some(outcome("skipped", "a later run of its job took its place")),
            TaskState::Terminated => Some(v1::Outcome {
                signal: Some(15),
                ..outcome("cancelled", "cancelled; ended with SIGTERM")
            }),
            _ => None,
        },
        cancelled_by: if state == TaskState::Terminated {
            "bob".into()
        } else {
            String::new()
        },
        cancel_reason: if state == TaskState::Terminated {
            "wrong month".into()
        } else {
            String::new()
        },
        stdout_bytes: if started { 18_204 } else { 0 },
        spec: Some(v1::TaskSpec {
            command: vec!["./load".into(), "28 Nov".into()],
            name: "etl.load".into(),
            queue: "default".into(),
            tags: vec!["nightly".into()],
            ..v1::TaskSpec::default()
        }),
        ..v1::Task::default()
    }
}

/// Compares with the file of this name.
#[track_caller]
pub fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("{name}.txt"));
    // Editors and reviewers do not see blanks at the ends of lines.
    let text: String = text.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().expect("folder")).expect("folder");
        std::fs::write(&path, &text).expect("written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; UPDATE_GOLDEN=1 writes it, to be looked at",
            path.display()
        )
    });
    assert!(
        expected == text,
        "{} has another text; UPDATE_GOLDEN=1 writes it anew, to be looked at\n--- expected\n{expected}--- now\n{text}",
        path.display()
    );
}
