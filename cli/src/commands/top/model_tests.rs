use super::*;
use systole_shared::task::TaskState as S;

pub fn task(id: i64, state: S) -> v1::Task {
    v1::Task {
        id,
        state: state_to_wire(state).into(),
        spec: Some(v1::TaskSpec {
            name: format!("job-{id}"),
            ..v1::TaskSpec::default()
        }),
        ..v1::Task::default()
    }
}

fn press(model: &mut Model, code: KeyCode) -> Vec<Effect> {
    model.update(Msg::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn key(model: &mut Model, c: char) -> Vec<Effect> {
    press(model, KeyCode::Char(c))
}

fn tell(model: &mut Model, tasks: Vec<v1::Task>) -> Vec<Effect> {
    let question = model.question.clone();
    model.update(Msg::Tasks {
        question,
        tasks,
        more: false,
        now_ms: 1,
    })
}

fn with_tasks() -> Model {
    let mut model = Model::new("context prod (http://h:7410)");
    let tasks = vec![task(9, S::Running), task(8, S::Failed), task(7, S::Queued)];
    assert_eq!(tell(&mut model, tasks), [Effect::Follow(Some(9))]);
    model
}

#[test]
fn the_selection_stays_with_its_task_when_others_come() {
    let mut model = with_tasks();
    assert_eq!(press(&mut model, KeyCode::Down), [Effect::Follow(Some(8))]);
    let more = vec![
        task(11, S::Queued),
        task(10, S::Queued),
        task(9, S::Running),
        task(8, S::Failed),
    ];
    assert_eq!(tell(&mut model, more), []);
    assert_eq!((model.selected, model.row), (Some(8), 3));
    // It is gone from the list: the one that is in its place.
    assert_eq!(
        tell(&mut model, vec![task(11, S::Queued), task(10, S::Queued)]),
        [Effect::Follow(Some(10))]
    );
    assert_eq!(tell(&mut model, vec![]), [Effect::Follow(None)]);
    assert_eq!((model.selected, model.row), (None, 0));
    assert_eq!(press(&mut model, KeyCode::Down), []);
    assert_eq!(key(&mut model, 'c'), []);
    assert_eq!(model.note, "no task is selected");
}

#[test]
fn moves_end_at_the_ends_of_the_list() {
    let mut model = with_tasks();
    assert_eq!(press(&mut model, KeyCode::Up), []);
    assert_eq!(key(&mut model, 'G'), [Effect::Follow(Some(7))]);
    assert_eq!(press(&mut model, KeyCode::PageDown), []);
    assert_eq!(press(&mut model, KeyCode::PageUp), [Effect::Follow(Some(9))]);
    assert_eq!(key(&mut model, 'j'), [Effect::Follow(Some(8))]);
    assert_eq!(key(&mut model, 'g'), [Effect::Follow(Some(9))]);
}

#[test]
fn a_cancel_asks_first_names_the_cluster_and_takes_only_yes() {
    let mut model = with_tasks();
    assert_eq!(key(&mut model, 'c'), []);
    let ask = model.ask.clone().expect("a question");
    assert_eq!(ask.text, "Cancel: task 9 job-9 at context prod (http://h:7410)? [y/N]");
    for no in ['n', 'q', ' '] {
        model.ask = Some(ask.clone());
        assert_eq!(key(&mut model, no), [], "{no}");
        assert_eq!((model.note.as_str(), &model.ask), ("nothing was changed", &None));
    }
    model.ask = Some(ask.clone());
    assert_eq!(press(&mut model, KeyCode::Enter), []);
    model.ask = Some(ask);
    // The selection moves on while somebody thinks: what was asked about is what is done.
    tell(&mut model, vec![task(11, S::Running)]);
    assert_eq!(key(&mut model, 'y'), [Effect::Cancel(9)]);
    let done = Msg::Done("task 9  TERMINATING".into());
    assert_eq!(model.update(done), [Effect::Poll]);
    assert_eq!(model.note, "task 9  TERMINATING");
}

#[test]
fn only_what_makes_sense_is_asked() {
    let mut model = with_tasks();
    assert_eq!(key(&mut model, 'r'), []);
    assert_eq!(
        (model.note.as_str(), &model.ask),
        ("task 9 has not ended; c cancels it", &None)
    );
    press(&mut model, KeyCode::Down);
    key(&mut model, 'c');
    assert_eq!(model.note, "task 8 has ended; r runs it once more");
    key(&mut model, 'r');
    assert!(
        model
            .ask
            .as_ref()
            .expect("asked")
            .text
            .starts_with("Run once more: task 8 job-8")
    );
    assert_eq!(key(&mut model, 'y'), [Effect::Rerun(8)]);
}

#[test]
fn a_filter_asks_anew_and_a_late_answer_to_the_old_question_is_not_shown() {
    let mut model = with_tasks();
    let old = model.question.clone();
    assert_eq!(key(&mut model, 'f'), [Effect::Poll]);
    assert_eq!(model.question.show, Show::Waiting);
    assert_eq!(model.question.filter().states, [1, 2, 3]);
    let late = Msg::Tasks {
        question: old,
        tasks: vec![task(99, S::Finished)],
        more: false,
        now_ms: 1,
    };
    assert_eq!(model.update(late), [Effect::Poll]);
    assert!(model.tasks.iter().all(|task| task.id != 99));
    for _ in 0..Show::ALL.len() - 1 {
        key(&mut model, 'f');
    }
    assert_eq!(model.question, Question::default());
    assert_eq!(press(&mut model, KeyCode::Esc), [], "nothing to take back");
}

#[test]
fn enter_at_a_host_shows_its_tasks_and_escape_all() {
    let mut model = with_tasks();
    let runner = |host: &str, slot, state: &str, task_id| v1::Runner {
        host: host.into(),
        slot,
        state: state.into(),
        task_id,
        ..v1::Runner::default()
    };
    let runners = vec![
        runner("a", 0, "ready", 0),
        runner("b", 0, "busy", 9),
        runner("b", 1, "ready", 0),
        runner("c", 0, "left", 0),
    ];
    model.update(Msg::Hosts { runners, more: false });
    let shown: Vec<_> = model
        .hosts
        .iter()
        .map(|host| (host.name.as_str(), host.state, host.busy, host.slots))
        .collect();
    assert_eq!(shown, [("a", "ready", 0, 1), ("b", "ready", 1, 2), ("c", "left", 0, 1)]);
    press(&mut model, KeyCode::Tab);
    press(&mut model, KeyCode::Down);
    assert_eq!((model.pane, model.selected), (Pane::Hosts, Some(9)));
    assert_eq!(press(&mut model, KeyCode::Enter), [Effect::Poll]);
    assert_eq!((model.question.host.as_deref(), model.pane), (Some("b"), Pane::Tasks));
    assert_eq!(model.question.filter().runner, "b");
    assert_eq!(press(&mut model, KeyCode::Esc), [Effect::Poll]);
    assert_eq!(model.question, Question::default());
    // Fewer hosts than before: the selection is one of them.
    model.host_row = 2;
    model.update(Msg::Hosts {
        runners: vec![runner("a", 0, "ready", 0)],
        more: false,
    });
    assert_eq!(model.host_row, 0);
}

#[test]
fn only_the_output_of_the_selected_task_is_kept() {
    let mut model = with_tasks();
    let output = |task, data: &[u8]| Msg::Output {
        task,
        stderr: false,
        data: data.to_vec(),
    };
    model.update(output(9, b"one\ntwo\n"));
    model.update(output(8, b"of another\n"));
    assert_eq!(model.log.as_ref().map(|log| log.lines().count()), Some(2));
    // Scrolled up, it stays where it is while more comes.
    press(&mut model, KeyCode::BackTab);
    assert_eq!(model.pane, Pane::Logs);
    key(&mut model, 'k');
    assert_eq!(model.scroll, 1);
    model.update(output(9, b"three\n"));
    assert_eq!(model.scroll, 2);
    key(&mut model, 'G');
    assert_eq!(model.scroll, 0);
    key(&mut model, 'g');
    assert_eq!(model.scroll, 3);
    // Without output nothing is read.
    assert_eq!(key(&mut model, 'l'), [Effect::Follow(None)]);
    assert_eq!((model.pane, model.log.is_none()), (Pane::Tasks, true));
    assert_eq!(press(&mut model, KeyCode::Down), []);
    assert_eq!(key(&mut model, 'l'), [Effect::Follow(Some(8))]);
}

#[test]
fn why_is_asked_again_with_each_poll_until_it_is_closed() {
    let mut model = with_tasks();
    assert_eq!(key(&mut model, 'w'), [Effect::Explain(9)]);
    let explained = |task, line: &str| Msg::Explained {
        task,
        lines: vec![line.into()],
    };
    model.update(explained(9, "it runs"));
    model.update(explained(8, "of another"));
    assert_eq!(model.why, Some((9, vec!["it runs".into()])));
    let tasks = model.tasks.clone();
    assert_eq!(tell(&mut model, tasks.clone()), [Effect::Explain(9)]);
    press(&mut model, KeyCode::Esc);
    assert_eq!(tell(&mut model, tasks), []);
    key(&mut model, 'w');
    key(&mut model, 'w');
    assert_eq!(model.why, None);
}

#[test]
fn nothing_new_is_not_drawn_and_trouble_is_told_until_it_is_over() {
    let mut model = with_tasks();
    let quiet = vec![task(8, S::Failed)];
    tell(&mut model, quiet.clone());
    model.dirty = false;
    tell(&mut model, quiet.clone());
    assert!(!model.dirty);
    model.update(Msg::Trouble("no scheduler".into()));
    assert!(std::mem::take(&mut model.dirty));
    model.update(Msg::Trouble("no scheduler".into()));
    assert!(!model.dirty);
    // What was known is shown on.
    assert_eq!(model.tasks, quiet);
    tell(&mut model, quiet);
    assert!(model.dirty && model.trouble.is_empty());
}

#[test]
fn q_and_ctrl_c_quit_and_help_goes_with_any_key() {
    let mut model = with_tasks();
    key(&mut model, '?');
    assert!(model.help);
    assert_eq!(key(&mut model, 'q'), []);
    assert!(!model.help);
    assert_eq!(key(&mut model, 'q'), [Effect::Quit]);
    model.ask = Some(Ask {
        verb: Verb::Cancel,
        task: 9,
        text: String::new(),
    });
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(model.update(Msg::Key(ctrl_c)), [Effect::Quit]);
}

#[test]
fn a_host_is_one_word_the_worst_of_what_is_true_of_it() {
    let slot = |state: &str, cordoned, fault: Option<&str>| v1::Runner {
        host: "a".into(),
        state: state.into(),
        cordoned,
        cordoned_by: "ann".into(),
        cordon_reason: "kernel".into(),
        fault: fault.map(|kind| v1::HostFault {
            kind: kind.into(),
            detail: "8K".into(),
        }),
        task_id: i64::from(state == "busy"),
        ..v1::Runner::default()
    };
    let held = v1::Runner {
        hold: Some(v1::HostHold {
            message: "look first".into(),
            ..v1::HostHold::default()
        }),
        ..slot("held", true, None)
    };
    for (slots, state, note) in [
        (vec![slot("ready", false, None), slot("busy", false, None)], "ready", ""),
        (vec![slot("busy", false, None)], "busy", ""),
        (
            vec![slot("ready", true, None), slot("ready", false, None)],
            "ready",
            "cordoned by ann, \"kernel\"",
        ),
        (
            vec![slot("cordoned", true, None)],
            "cordoned",
            "cordoned by ann, \"kernel\"",
        ),
        (
            vec![slot("faulty", false, Some("disk_full"))],
            "faulty",
            "disk full: 8K",
        ),
        (vec![held], "held", "look first"),
        (vec![slot("lost", false, None), slot("ready", false, None)], "lost", ""),
        (vec![slot("left", false, None)], "left", ""),
    ] {
        let hosts = hosts(&slots);
        assert_eq!((hosts.len(), hosts[0].state, hosts[0].note.as_str()), (1, state, note));
    }
}
