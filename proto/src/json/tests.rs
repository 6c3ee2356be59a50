use super::*;
use crate::convert::state_to_wire;
use serde_json::{Value, json};
use systole_shared::task::TaskState;

fn value(content: &impl Serialize) -> Value {
    serde_json::to_value(Document {
        format: FORMAT,
        content,
    })
    .expect("serialises")
}

fn task() -> v1::Task {
    v1::Task {
        id: 9_007_199_254_740_993,
        root_id: 9_007_199_254_740_993,
        attempt: 1,
        state: state_to_wire(TaskState::Running) as i32,
        created_at_ms: 1_800_000_000_000,
        host: "db-01".into(),
        stdout_dropped_bytes: 3,
        stderr_dropped_bytes: 4,
        spec: Some(v1::TaskSpec {
            command: vec!["echo".into()],
            timeout_ms: 5_000,
            limits: Some(v1::Limits {
                nice: Some(0),
                ..v1::Limits::default()
            }),
            user: "ann".into(),
            require: vec![v1::Label {
                key: "gpu".into(),
                value: "1".into(),
            }],
            ..v1::TaskSpec::default()
        }),
        ..v1::Task::default()
    }
}

#[test]
fn ids_are_strings_and_times_are_utc() {
    let value = value(&OneTask {
        task: Task::from(&task()),
    });
    assert_eq!(value["format"], json!(1));
    let task = &value["task"];
    assert_eq!(task["id"], json!("9007199254740993"));
    assert_eq!(task["root_id"], json!("9007199254740993"));
    assert_eq!(task["state"], json!("RUNNING"));
    assert_eq!(task["created_at"], json!("2027-01-15T08:00:00.000Z"));
    assert_eq!(task["slot"], json!(0));
    assert_eq!(task["stdout_dropped_bytes"], json!(3));
    assert_eq!(task["stderr_dropped_bytes"], json!(4));
    assert_eq!(task["spec"]["timeout_ms"], json!(5_000));
    assert_eq!(task["spec"]["require"], json!({"gpu": "1"}));
    assert_eq!(task["spec"]["kill_signal"], json!(15));
    assert_eq!(task["spec"]["on_disconnect"], json!("continue"));
    assert_eq!(task["spec"]["on_runner_restart"], json!("adopt"));
    let limits = json!({"open_files": null, "core_bytes": 0, "file_bytes": null, "nice": 0,
        "memory_bytes": null, "cpu_millis": null, "pids": null});
    assert_eq!(task["spec"]["limits"], limits);
    assert_eq!(
        (&task["spec"]["umask"], &task["spec"]["user"]),
        (&json!("022"), &json!("ann"))
    );
}

#[test]
fn what_is_not_set_is_null() {
    let value = value(&Tasks {
        tasks: vec![Task::from(&v1::Task::default())],
    });
    let task = &value["tasks"][0];
    for field in [
        "retry_of",
        "retried_by",
        "outcome",
        "host",
        "slot",
        "started_at",
        "ended_at",
        "cancelled_by",
        "callback",
        "waiting_for",
    ] {
        assert_eq!(task.get(field), Some(&Value::Null), "{field}");
    }
    assert_eq!(task["spec"].get("run_at"), Some(&Value::Null));
}

#[test]
fn the_fields_of_a_task_are_settled() {
    let value = serde_json::to_value(Task::from(&task())).expect("serialises");
    let mut names: Vec<_> = value.as_object().expect("object").keys().cloned().collect();
    names.sort();
    assert_eq!(
        names,
        [
            "attempt",
            "callback",
            "cancel_reason",
            "cancelled_by",
            "created_at",
            "dispatched_at",
            "end_detail",
            "ended_at",
            "host",
            "id",
            "late_result",
            "outcome",
            "queued_at",
            "recoveries",
            "retried_by",
            "retry_of",
            "root_id",
            "route",
            "routed_to",
            "set_id",
            "set_size",
            "shard_index",
            "shard_total",
            "slot",
            "spec",
            "started_at",
            "state",
            "stderr_bytes",
            "stderr_dropped_bytes",
            "stderr_gap",
            "stdout_bytes",
            "stdout_dropped_bytes",
            "stdout_gap",
            "submit_reason",
            "submitted_by",
            "waiting_for"
        ]
    );
}

#[test]
fn the_end_has_what_the_runner_knows() {
    let mut task = task();
    task.end_detail = Some(v1::EndDetail {
        tree_empty: Some(true),
        signals: vec![v1::SignalSent {
            signal: 15,
            at_ms: 1_800_000_000_000,
        }],
        leftovers: 2,
        usage: Some(v1::Usage {
            user_cpu_us: Some(5),
            ..v1::Usage::default()
        }),
        memory_limit_bytes: Some(7),
        oom_kills: 1,
        note: String::new(),
        output_until_ms: Some(1_800_000_000_000),
    });
    let value = serde_json::to_value(Task::from(&task)).expect("serialises");
    let detail = &value["end_detail"];
    assert_eq!(detail["tree_empty"], json!(true));
    assert_eq!(
        (&detail["memory_limit_bytes"], &detail["oom_kills"]),
        (&json!(7), &json!(1))
    );
    assert_eq!(
        detail["signals"],
        json!([{"signal": 15, "at": "2027-01-15T08:00:00.000Z"}])
    );
    assert_eq!(detail["leftovers"], json!(2));
    assert_eq!(detail["usage"]["user_cpu_us"], json!(5));
    assert_eq!(detail["usage"].get("read_bytes"), Some(&Value::Null));
    assert_eq!(detail.get("note"), Some(&Value::Null));
    assert_eq!(detail["output_until"], json!("2027-01-15T08:00:00.000Z"));
}

#[test]
fn a_refused_cancel_has_its_error() {
    let result = v1::CancelResult {
        id: 5,
        error: Some(v1::ItemError {
            code: "NOTFOUND_004".into(),
            message: "task 5 has ended".into(),
            field: String::new(),
        }),
        ..v1::CancelResult::default()
    };
    let value = serde_json::to_value(CancelResult::new(5, &result)).expect("serialises");
    assert_eq!(value["error"]["code"], json!("NOTFOUND_004"));
    assert_eq!(
        (value["asked"].clone(), value["state"].clone()),
        (json!("5"), Value::Null)
    );
}

#[test]
fn what_is_shown_can_be_sent_again() {
    let mut sent = task().spec.expect("a specification");
    sent.env = vec![v1::EnvVar {
        name: "A".into(),
        value: "x".into(),
    }];
    sent.run_at_ms = 1_800_000_000_123;
    sent.on_disconnect = v1::OnDisconnect::Kill.into();
    sent.umask = Some(0o27);
    (sent.batch, sent.batch_line, sent.unique_key) = ("b".into(), 7, "u".into());
    let shown = serde_json::to_string(&Spec::from(&sent)).expect("serialises");
    let read: Spec = serde_json::from_str(&shown).expect("reads");
    let again = v1::TaskSpec::try_from(&read).expect("converts");
    assert_eq!(Spec::from(&again), Spec::from(&sent));
    assert_eq!(
        crate::convert::spec_from_wire(again),
        crate::convert::spec_from_wire(sent)
    );
}

#[test]
fn a_field_that_is_not_known_is_refused_by_name() {
    let error = serde_json::from_str::<Spec>(r#"{"command":["a"],"retires":1}"#).expect_err("refused");
    assert!(error.to_string().contains("`retires`"), "{error}");
    let wrong = |spec: &str| {
        let spec: Spec = serde_json::from_str(spec).expect("reads");
        v1::TaskSpec::try_from(&spec).expect_err("refused").field
    };
    assert_eq!(wrong(r#"{"run_at":"-2h"}"#), "run_at");
    assert_eq!(wrong(r#"{"umask":"9"}"#), "umask");
    assert_eq!(wrong(r#"{"on_disconnect":"die"}"#), "on_disconnect");
}
