use super::*;

#[test]
fn states_keep_their_numbers_on_the_wire() {
    for state in TaskState::ALL {
        assert_eq!(state_to_wire(state) as i32, i32::from(state.number()));
        assert_eq!(state_from_wire(state_to_wire(state) as i32), Some(state));
        assert_eq!(
            state_to_wire(state).as_str_name(),
            format!("TASK_STATE_{}", state.name())
        );
    }
    assert_eq!(state_from_wire(0), None);
    assert_eq!(state_from_wire(77), None);
}

#[test]
fn a_spec_survives_the_wire() {
    let spec = TaskSpec {
        command: vec!["sh".into(), "-c".into(), "printf 'a\\n'".into()],
        target: Some(Target {
            host: "db-01".into(),
            slot: Some(0),
        }),
        env: vec![("A".into(), "x\ny".into())],
        timeout_ms: Some(5_000),
        retry: Retry {
            max_retries: 2,
            delay_ms: 100,
        },
        ..TaskSpec::default()
    }
    .with_defaults();
    assert_eq!(spec_from_wire(spec_to_wire(&spec)), Ok(spec.clone()));
    let stopping = TaskSpec {
        queue_timeout_ms: Some(1),
        start_timeout_ms: Some(2),
        silence_timeout_ms: Some(3),
        warn_signal: Some(10),
        warn_before_ms: Some(1_000),
        kill_signal: 2,
        kill_grace_ms: Some(0),
        on_disconnect: OnDisconnect::Kill,
        on_runner_restart: OnRunnerRestart::Kill,
        ..spec
    };
    assert_eq!(spec_from_wire(spec_to_wire(&stopping)), Ok(stopping.clone()));
    let confined = TaskSpec {
        limits: Limits {
            open_files: Some(64),
            core_bytes: 1,
            file_bytes: Some(2),
            nice: Some(0),
            memory_bytes: Some(3),
            cpu_millis: Some(4),
            pids: Some(5),
        },
        output: OutputPolicy {
            max_bytes: Some(1 << 20),
            on_limit: OnLimit::Kill,
            keep_ms: Some(7),
        },
        umask: 0,
        user: Some("ann".into()),
        group: Some("staff".into()),
        env_file: Some("/etc/x.env".into()),
        keep_workdir: true,
        tty: Some(Terminal { rows: 1, columns: 2 }),
        ..stopping
    };
    assert_eq!(spec_from_wire(spec_to_wire(&confined)), Ok(confined));
}

#[test]
fn a_policy_of_a_later_version_is_refused_by_name() {
    let mut spec = v1::TaskSpec {
        on_disconnect: 9,
        ..v1::TaskSpec::default()
    };
    assert_eq!(
        spec_from_wire(spec.clone()).expect_err("refused").field,
        "on_disconnect"
    );
    spec.on_disconnect = 0;
    spec.on_runner_restart = 9;
    assert_eq!(spec_from_wire(spec).expect_err("refused").field, "on_runner_restart");
}

#[test]
fn what_stopped_a_child_survives_the_wire() {
    for by in [
        None,
        Some(StoppedBy::Reset),
        Some(StoppedBy::Timeout),
        Some(StoppedBy::Fence),
        Some(StoppedBy::Drain),
        Some(StoppedBy::Silence),
        Some(StoppedBy::RunnerRestart),
    ] {
        assert_eq!(stopper_from_wire(stopped_by_to_wire(by).into()), by);
    }
}

#[test]
fn a_report_that_contradicts_itself_ends_its_task_as_unknown() {
    let result = |kind: &str, exit_code, signal| v1::TaskResult {
        kind: kind.into(),
        exit_code,
        signal,
        message: "as it was said".into(),
        stopped_by: v1::StoppedBy::Timeout.into(),
        started_at_ms: 1_000,
        ended_at_ms: 3_500,
        ..v1::TaskResult::default()
    };
    for (kind, code, signal, why) in [
        ("success", Some(7), None, "success with exit code 7"),
        ("success", None, Some(9), "success with SIGKILL"),
        ("success", Some(0), Some(9), "both exit code 0 and signal 9"),
        ("exit_code", Some(0), None, "exit_code with exit code 0"),
        ("exit_code", None, None, "exit_code without an exit code"),
        ("exit_code", None, Some(9), "exit_code without an exit code"),
        ("signal", None, Some(-5), "-5 is no signal"),
        ("signal", None, Some(0), "0 is no signal"),
        ("out_of_memory", None, Some(65), "65 is no signal"),
        ("runner_lost", None, None, "\"runner_lost\" is no kind"),
        ("cancelled", None, None, "\"cancelled\" is no kind"),
        ("skipped", None, None, "\"skipped\" is no kind"),
        ("never_heard_of", None, None, "\"never_heard_of\" is no kind"),
        ("", None, None, "\"\" is no kind"),
    ] {
        let report = report_from_wire(&result(kind, code, signal));
        assert_eq!(report.kind, OutcomeKind::RunnerRestarted, "{why}");
        assert_eq!((report.exit_code, report.signal, report.stopped_by), (None, None, None));
        assert!(
            report.message.starts_with("its runner's report makes no sense: ") && report.message.contains(why),
            "{why}: {}",
            report.message
        );
    }
    for (kind, code, signal) in [
        ("success", Some(0), None),
        ("success", None, None),
        ("exit_code", Some(1), None),
        ("signal", None, Some(64)),
        ("signal", None, None),
        ("out_of_memory", Some(137), None),
        ("out_of_memory", None, Some(9)),
        ("not_started", None, None),
    ] {
        let report = report_from_wire(&result(kind, code, signal));
        assert_eq!(
            (report.kind.name(), report.exit_code, report.signal),
            (kind, code, signal)
        );
        assert_eq!((report.message.as_str(), report.ran_ms), ("as it was said", 2_500));
        assert_eq!(report.stopped_by, Some(StoppedBy::Timeout));
    }
}

#[test]
fn a_detail_survives_the_wire_within_its_bounds() {
    let detail = EndDetail {
        tree_empty: Some(false),
        signals: vec![SignalSent { signal: 15, at_ms: 7 }],
        leftovers: 2,
        usage: Some(Usage {
            user_cpu_us: Some(1),
            system_cpu_us: Some(2),
            peak_memory_bytes: Some(3),
            read_bytes: Some(4),
            written_bytes: Some(5),
        }),
        memory_limit_bytes: Some(6),
        oom_kills: 7,
        note: "x".into(),
        output_until_ms: Some(8),
    };
    assert_eq!(detail_from_wire(detail_to_wire(detail.clone())), detail);
    let long = v1::EndDetail {
        note: "x".repeat(5_000),
        ..v1::EndDetail::default()
    };
    assert_eq!(detail_from_wire(long).note.len(), 1_024);
}

#[test]
fn a_label_given_twice_is_refused() {
    let label = v1::Label {
        key: "gpu".into(),
        value: "1".into(),
    };
    assert!(labels_from_wire(&[label.clone(), label], "require").is_err());
}
