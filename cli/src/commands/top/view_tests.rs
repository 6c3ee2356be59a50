use super::super::model::{Ask, Msg, Question, Show, Verb};
use super::*;
use crate::golden::{self, NOW, THEN};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use systole_proto::convert::state_to_wire;
use systole_shared::task::TaskState as S;

/// The screen as text.
fn screen(model: &Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("terminal");
    terminal.draw(|frame| draw(frame, model, true)).expect("drawn");
    let buffer = terminal.backend().buffer().clone();
    let mut text = String::new();
    for y in 0..height {
        let mut row = String::new();
        let mut skip = 0;
        for x in 0..width {
            if skip > 0 {
                skip -= 1;
                continue;
            }
            let symbol = buffer[(x, y)].symbol();
            skip = Span::raw(symbol).width().saturating_sub(1);
            row.push_str(symbol);
        }
        assert!(Span::raw(row.as_str()).width() <= usize::from(width), "{row:?}");
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

fn task(id: i64, state: S, name: &str, waiting_for: &str) -> v1::Task {
    let runs = !matches!(state, S::Queued | S::Created);
    v1::Task {
        id,
        attempt: 1,
        state: state_to_wire(state).into(),
        host: if runs { "etl-2".into() } else { String::new() },
        started_at_ms: if runs { THEN } else { 0 },
        ended_at_ms: if state.is_terminal() { THEN + 12_400 } else { 0 },
        waiting_for: waiting_for.into(),
        outcome: (state == S::Failed).then(|| v1::Outcome {
            kind: "exit_code".into(),
            exit_code: Some(75),
            ..v1::Outcome::default()
        }),
        spec: Some(v1::TaskSpec {
            name: name.into(),
            ..v1::TaskSpec::default()
        }),
        ..v1::Task::default()
    }
}

fn slot(host: &str, slot: u32, state: &str, task_id: i64) -> v1::Runner {
    v1::Runner {
        host: host.into(),
        slot,
        state: state.into(),
        task_id,
        labels: vec![v1::Label {
            key: "dc".into(),
            value: "fra".into(),
        }],
        ..v1::Runner::default()
    }
}

fn busy_fleet() -> Model {
    let mut model = Model::new("context prod (https://10.0.0.5:7410)");
    let tasks = vec![
        task(1851, S::Queued, "gpu-train", "no live runner has gpu=1 (gpu-03 lost)"),
        task(1850, S::Running, "nightly-backup", ""),
        task(1840, S::Failed, "etl.extract", ""),
        task(1839, S::Finished, "日本語の名前はとても長いです", ""),
    ];
    model.update(Msg::Tasks {
        question: Question::default(),
        tasks,
        more: false,
        now_ms: NOW,
    });
    let mut cordoned = slot("db-01", 0, "cordoned", 0);
    (cordoned.cordoned, cordoned.cordoned_by, cordoned.cordon_reason) = (true, "ann".into(), "kernel".into());
    let runners = vec![
        cordoned,
        slot("etl-2", 0, "busy", 1850),
        slot("etl-2", 1, "ready", 0),
        slot("gpu-03", 0, "lost", 0),
    ];
    model.update(Msg::Hosts { runners, more: false });
    model.update(Msg::Status(Box::new(v1::StatusResponse {
        running: 1,
        queued: 1,
        oldest_queued_ms: 61_000,
        hosts: Some(v1::HostCounts {
            ready: 1,
            cordoned: 1,
            lost: 1,
            slots: 4,
            busy: 1,
            ..v1::HostCounts::default()
        }),
        attention: vec!["host gpu-03 is lost".into()],
        ..v1::StatusResponse::default()
    })));
    model.update(Msg::Output {
        task: 1851,
        stderr: false,
        data: b"rows: 18204\nrows: 18205\n".to_vec(),
    });
    model.update(Msg::Output {
        task: 1851,
        stderr: true,
        data: b"warning: slow\x1b[2J\n".to_vec(),
    });
    model
}

#[test]
fn the_view_at_many_sizes_is_as_it_was() {
    let model = busy_fleet();
    for (width, height) in [(100, 24), (80, 24), (40, 24), (40, 10)] {
        golden::check(&format!("top_{width}x{height}"), &screen(&model, width, height));
    }
}

#[test]
fn a_question_is_shown_whole_at_40_columns() {
    let mut model = busy_fleet();
    model.ask = Some(Ask {
        verb: Verb::Cancel,
        task: 1850,
        text: "Cancel: task 1850 nightly-backup at context prod (https://10.0.0.5:7410)? [y/N]".into(),
    });
    let text = screen(&model, 40, 16);
    assert!(text.contains("[y/N]"), "{text}");
    golden::check("top_question_40x16", &text);
}

#[test]
fn help_why_trouble_and_an_empty_cluster_are_as_they_were() {
    let mut model = busy_fleet();
    model.help = true;
    golden::check("top_help_60x16", &screen(&model, 60, 16));
    model.help = false;
    model.why = Some((
        1851,
        vec![
            "task 1851  QUEUED for 2h04m  gpu-train".into(),
            "  no live runner has gpu=1".into(),
        ],
    ));
    model.trouble = "no scheduler at https://10.0.0.5:7410: connection refused".into();
    (model.question.show, model.question.host) = (Show::Waiting, Some("db-01".into()));
    golden::check("top_why_60x20", &screen(&model, 60, 20));
    golden::check("top_empty_60x16", &screen(&Model::new("http://127.0.0.1:7410"), 60, 16));
}

#[test]
fn no_size_makes_it_fail() {
    let mut model = busy_fleet();
    for pane in [Pane::Tasks, Pane::Hosts, Pane::Logs] {
        model.pane = pane;
        for width in [1, 2, 7, 20, 39, 200] {
            for height in 1..30 {
                screen(&model, width, height);
            }
        }
    }
}

#[test]
fn the_selected_row_is_always_seen() {
    let mut model = Model::new("here");
    let tasks = (1..=100).rev().map(|id| task(id, S::Queued, "x", "")).collect();
    model.update(Msg::Tasks {
        question: Question::default(),
        tasks,
        more: true,
        now_ms: NOW,
    });
    model.show_logs = false;
    for (row, id) in [(0, "100"), (50, "50"), (99, "1")] {
        (model.row, model.selected) = (row, id.parse().ok());
        let text = screen(&model, 40, 12);
        assert!(
            text.lines().any(|line| line.split_whitespace().next() == Some(id)),
            "{id}: {text}"
        );
        assert!(text.contains("newest 100"), "{text}");
    }
}
