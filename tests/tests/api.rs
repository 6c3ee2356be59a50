//! The HTTP interface for programs, and the numbers for monitoring: over real sockets, on both databases.

use serde_json::{Value, json};
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::output::{HALF, bytes, ended_with_a_gap, next_fetch, put_fetched};
use systole_tests::replica::{Replica, Token, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

on_both_databases!(
    a_task_is_submitted_read_and_cancelled,
    an_idempotency_key_makes_one_task,
    what_is_shown_of_a_task_can_be_submitted_again,
    errors_are_those_of_the_contract,
    output_comes_byte_for_byte,
    output_is_followed_to_the_end,
    output_comes_with_its_times,
    a_full_output_is_fetched_from_its_host,
    numbers_are_those_of_the_cluster,
);

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    fn error(&self) -> (u16, String, String) {
        let error = &self.json()["error"];
        let text = |name: &str| error[name].as_str().expect("text").to_owned();
        assert!(!text("message").is_empty());
        (self.status, text("code"), text("field"))
    }
}

/// One request, as HTTP/1.0: the body is what comes until the end.
async fn ask(replica: &Replica, token: &Token, line: &str, headers: &str, body: &str) -> Answer {
    let mut stream = tokio::net::TcpStream::connect(replica.running.addr)
        .await
        .expect("connects");
    let authorization = match &token.0 {
        Some(token) => format!("authorization: {}\r\n", token.to_str().expect("ascii")),
        None => String::new(),
    };
    let request = format!(
        "{line} HTTP/1.0\r\nhost: x\r\n{authorization}{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.expect("answered");
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Answer {
        status: status.expect("a status"),
        body: bytes.split_off(end + 4),
        head,
    }
}

async fn get(replica: &Replica, path: &str) -> Answer {
    ask(replica, &replica.admin_token(), &format!("GET {path}"), "", "").await
}

async fn post(replica: &Replica, headers: &str, body: &Value) -> Answer {
    let headers = format!("content-type: application/json; charset=utf-8\r\n{headers}");
    ask(
        replica,
        &replica.admin_token(),
        "POST /v1/tasks",
        &headers,
        &body.to_string(),
    )
    .await
}

async fn a_task_is_submitted_read_and_cancelled(db: TestDb) {
    let replica = Replica::start(&db).await;
    let body = json!({"spec": {"command": ["echo", "日本"], "timeout_ms": 5_000, "tags": ["t"]}, "reason": "to see"});
    let made = post(&replica, "", &body).await;
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    let document = made.json();
    let id = document["task"]["id"].as_str().expect("an id is text").to_owned();
    assert!(
        made.head.contains(&format!("location: /v1/tasks/{id}")),
        "{}",
        made.head
    );
    assert_eq!((&document["format"], &document["existing"]), (&json!(1), &json!(false)));
    let read = get(&replica, &format!("/v1/tasks/{id}")).await;
    assert_eq!(read.status, 200);
    let task = &read.json()["task"];
    assert_eq!(task["state"], json!("QUEUED"));
    assert_eq!(task["spec"]["command"], json!(["echo", "日本"]));
    assert_eq!(task["spec"]["timeout_ms"], json!(5_000));
    assert_eq!(
        (&task["submitted_by"], &task["submit_reason"]),
        (&json!("admin"), &json!("to see"))
    );
    assert_eq!(task["waiting_for"], json!("no runner has joined yet"));
    let line = format!("DELETE /v1/tasks/{id}?reason=wrong%20month");
    let ended = ask(&replica, &replica.admin_token(), &line, "", "").await;
    assert_eq!(ended.status, 200);
    assert_eq!(ended.json()["task"]["state"], json!("TERMINATED"));
    assert_eq!(ended.json()["task"]["cancel_reason"], json!("wrong month"));
    // A running one is being ended.
    let held = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, held);
    runner.running(held).await;
    let line = format!("DELETE /v1/tasks/{held}");
    let ending = ask(&replica, &replica.admin_token(), &line, "", "").await;
    assert_eq!(
        (ending.status, &ending.json()["task"]["state"]),
        (202, &json!("TERMINATING"))
    );
    replica.stop().await;
}

async fn an_idempotency_key_makes_one_task(db: TestDb) {
    let replica = Replica::start(&db).await;
    let body = json!({"spec": {"command": ["true"]}});
    let key = "idempotency-key: order 17\r\n";
    let first = post(&replica, key, &body).await;
    let again = post(&replica, key, &body).await;
    assert_eq!((first.status, again.status), (201, 200));
    assert_eq!(first.json()["task"]["id"], again.json()["task"]["id"]);
    assert_eq!(again.json()["existing"], json!(true));
    let other = post(&replica, key, &json!({"spec": {"command": ["false"]}})).await;
    assert_eq!(other.error(), (409, "CONFLICT_005".into(), "key".into()));
    // The key is that of gRPC.
    assert!(replica.submit_keyed(command(&["true"]), "order 17").await.existing);
    replica.stop().await;
}

async fn what_is_shown_of_a_task_can_be_submitted_again(db: TestDb) {
    let replica = Replica::start(&db).await;
    let spec = json!({"command": ["a"], "env": [{"name": "A", "value": "x"}], "umask": "027", "require": {"gpu": "1"},
        "on_runner_restart": "kill", "timeout_ms": 60_000, "retry": {"max_retries": 1, "delay_ms": 5}, "unique_key": "u"});
    let made = post(&replica, "", &json!({"spec": spec})).await.json();
    assert_eq!(made["error"], Value::Null);
    let shown = made["task"]["spec"].clone();
    for (name, value) in spec.as_object().expect("an object") {
        assert_eq!(shown[name], *value, "{name}");
    }
    // The unique key makes it the same task.
    let again = post(&replica, "", &json!({"spec": shown})).await;
    assert_eq!(
        (again.status, again.json()["task"].clone()),
        (200, made["task"].clone())
    );
    replica.stop().await;
}

async fn errors_are_those_of_the_contract(db: TestDb) {
    let replica = Replica::start(&db).await;
    for (spec, field) in [
        (json!({"command": []}), "command"),
        (json!({"command": ["a"], "priority": 77}), "priority"),
        (json!({"command": ["a"], "run_at": "-2h"}), "run_at"),
        (json!({"command": ["a"], "run_at": "1970-01-01T00:00:00Z"}), "run_at"),
        (json!({"command": ["a"], "run_at": "0966-06-23T03:16:50.2Z"}), "run_at"),
        (json!({"command": ["a"], "retires": 1}), "body"),
        (json!({"command": "a"}), "body"),
        (json!("a"), "body"),
    ] {
        let refused = post(&replica, "", &json!({"spec": spec})).await;
        assert_eq!(refused.error(), (400, "VALIDATION_003".into(), field.into()), "{spec}");
    }
    for (path, status, code, field) in [
        ("/v1/tasks/x", 400, "VALIDATION_003", "id"),
        ("/v1/tasks/999", 404, "NOTFOUND_004", "ids"),
        ("/v1/tasks/999/output", 404, "NOTFOUND_004", "ids"),
        ("/v1/tasks/1/output?stream=stdin", 400, "VALIDATION_003", "stream"),
        ("/v1/tasks/1/output?ofset=1", 400, "VALIDATION_003", "ofset"),
        ("/v1/tasks/1/output?follow=yes", 400, "VALIDATION_003", "follow"),
    ] {
        assert_eq!(
            get(&replica, path).await.error(),
            (status, code.into(), field.into()),
            "{path}"
        );
    }
    // A method that a path does not take is another thing than a path that is not there.
    for (line, allow) in [
        ("PUT /v1/tasks/1", "get, delete, head"),
        ("GET /v1/tasks", "post"),
        ("DELETE /v1/tasks/1/output", "get, head"),
        ("POST /metrics", "get, head"),
        ("TRACE /healthz", "get, head"),
    ] {
        let refused = ask(&replica, &replica.admin_token(), line, "", "").await;
        assert_eq!(refused.status, 405, "{line}");
        assert!(
            refused.head.contains(&format!("allow: {allow}\r\n")),
            "{line}: {}",
            refused.head
        );
    }
    assert_eq!(
        ask(&replica, &replica.admin_token(), "PUT /v1/nothing", "", "")
            .await
            .status,
        404
    );
    let task = json!({"spec": {"command": ["a"]}}).to_string();
    let json = "content-type: application/json\r\n";
    // Of two nobody knows which one is meant.
    for (body, key) in [
        (
            r#"{"spec": {"command": ["a"], "timeout_ms": 1000, "timeout_ms": 2000}}"#,
            "spec.timeout_ms",
        ),
        (
            r#"{"spec": {"command": ["a"], "require": {"gpu": "1", "gpu": "2"}}}"#,
            "spec.require.gpu",
        ),
        (
            r#"{"spec": {"command": ["a"]}, "reason": "b", "reason": "c"}"#,
            "reason",
        ),
    ] {
        let doubled = ask(&replica, &replica.admin_token(), "POST /v1/tasks", json, body).await;
        assert_eq!(doubled.error(), (400, "VALIDATION_003".into(), "body".into()), "{body}");
        let message = doubled.json()["error"]["message"].to_string();
        assert!(message.contains(key) && message.contains("given twice"), "{message}");
    }
    let line = "POST /v1/tasks?dry_run=true";
    let unknown = ask(&replica, &replica.admin_token(), line, json, &task).await;
    assert_eq!(unknown.error(), (400, "VALIDATION_003".into(), "dry_run".into()));
    let plain = ask(&replica, &replica.admin_token(), "POST /v1/tasks", "", "{}").await;
    assert_eq!(plain.error(), (400, "VALIDATION_003".into(), "content-type".into()));
    let nobody = ask(&replica, &Token(None), "GET /v1/tasks/1", "", "").await;
    assert_eq!(nobody.error(), (401, "AUTH_001".into(), String::new()));
    assert!(nobody.head.contains("www-authenticate: bearer"), "{}", nobody.head);
    let runner = ask(&replica, &replica.runner_token(), "GET /v1/tasks/1", "", "").await;
    assert_eq!(runner.error().1, "AUTH_002");
    // In the language that was asked for; the code is the same.
    let admin = replica.admin_token();
    let german = ask(
        &replica,
        &admin,
        "GET /v1/tasks/999",
        "accept-language: de-DE,de;q=0.9\r\n",
        "",
    )
    .await;
    assert_eq!(german.error().1, "NOTFOUND_004");
    let message = german.json()["error"]["message"].as_str().map(str::to_owned);
    let words = "Die Aufgabe gibt es nicht, oder sie ist beendet: no task 999";
    assert!(
        message.as_ref().is_some_and(|message| message.starts_with(words)),
        "{message:?}"
    );
    // Nothing of all that was stored.
    assert_eq!(db.sql("SELECT count(*) FROM task"), "0");
    replica.stop().await;
}

/// A task whose runner reported these bytes.
async fn with_output(replica: &Replica, runner: &mut SimRunner, bytes: &[u8]) -> i64 {
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(runner.take().await.task_id, id);
    runner.running(id).await;
    let mut result = runner.success(id);
    result.stdout_bytes = bytes.len() as u64;
    result.output = vec![v1::OutputChunk {
        task_id: id,
        stream: v1::OutputStream::Stdout.into(),
        offset: 0,
        data: bytes.to_vec(),
        ..Default::default()
    }];
    runner.ended(result).await;
    id
}

async fn output_comes_byte_for_byte(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let bytes: Vec<u8> = (0..=255).collect();
    let id = with_output(&replica, &mut runner, &bytes).await;
    replica.until_state(id, S::Finished).await;
    let all = get(&replica, &format!("/v1/tasks/{id}/output")).await;
    assert_eq!((all.status, all.body), (200, bytes.clone()));
    assert!(
        all.head.contains("content-type: application/octet-stream"),
        "{}",
        all.head
    );
    assert!(all.head.contains("x-content-type-options: nosniff"), "{}", all.head);
    let rest = get(&replica, &format!("/v1/tasks/{id}/output?offset=250")).await;
    assert_eq!(rest.body, bytes[250..]);
    let beyond = get(&replica, &format!("/v1/tasks/{id}/output?offset=999")).await;
    assert_eq!((beyond.status, beyond.body.len()), (200, 0));
    let stderr = get(&replica, &format!("/v1/tasks/{id}/output?stream=stderr")).await;
    assert_eq!((stderr.status, stderr.body.len()), (200, 0));
    replica.stop().await;
}

async fn output_comes_with_its_times(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let bytes: Vec<u8> = (0..=255).collect();
    let id = with_output(&replica, &mut runner, &bytes).await;
    let answer = get(&replica, &format!("/v1/tasks/{id}/output?times=true&offset=250")).await;
    assert_eq!(answer.status, 200);
    assert!(
        answer.head.contains("content-type: application/x-ndjson"),
        "{}",
        answer.head
    );
    let lines: Vec<Value> = answer
        .body
        .split_inclusive(|&byte| byte == b'\n')
        .map(|line| serde_json::from_slice(line).expect("JSON"))
        .collect();
    let [line] = lines.as_slice() else {
        panic!("one piece: {lines:?}");
    };
    // The bytes 250 to 255.
    assert_eq!((&line["offset"], &line["data"]), (&json!(250), &json!("+vv8/f7/")));
    assert_eq!((&line["gap"], &line["dropped"]), (&json!(0), &json!(0)));
    assert!(
        line["seen_at"].as_str().is_some_and(|time| time.ends_with('Z')),
        "{line}"
    );
    replica.stop().await;
}

async fn a_full_output_is_fetched_from_its_host(db: TestDb) {
    const SIZE: u64 = 100_000;
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let id = ended_with_a_gap(&replica, &mut runner, SIZE).await;
    replica.until_state(id, S::Finished).await;
    let stored = get(&replica, &format!("/v1/tasks/{id}/output")).await.body;
    assert!(stored == [bytes(0, HALF), bytes(SIZE - HALF, SIZE)].concat());
    let path = format!("/v1/tasks/{id}/output?full=true");
    let mut host = runner.clone();
    let serve = async {
        let order = next_fetch(&mut host, 20_000).await;
        put_fetched(&mut host, order.fetch_id, order.offset, order.end).await;
    };
    let (full, ()) = tokio::join!(get(&replica, &path), serve);
    assert!(
        full.status == 200 && full.body == bytes(0, SIZE),
        "{} bytes",
        full.body.len()
    );
    replica.stop().await;
}

async fn output_is_followed_to_the_end(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let id = replica.submit(command(&["true"])).await;
    let path = format!("/v1/tasks/{id}/output?follow=true");
    let follow = get(&replica, &path);
    let work = async {
        assert_eq!(runner.take().await.task_id, id);
        runner.running(id).await;
        let mut result = runner.success(id);
        result.stdout_bytes = 5;
        result.output = vec![v1::OutputChunk {
            task_id: id,
            stream: v1::OutputStream::Stdout.into(),
            offset: 0,
            data: b"hello".to_vec(),
            ..Default::default()
        }];
        runner.ended(result).await;
    };
    let (answer, ()) = tokio::join!(follow, work);
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"hello"[..]));
    replica.stop().await;
}

async fn numbers_are_those_of_the_cluster(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.idle().await;
    replica.submit(command(&["true"])).await;
    let delayed = v1::TaskSpec {
        delay_ms: 3_600_000,
        ..command(&["true"])
    };
    replica.submit(delayed).await;
    ask(&replica, &Token(None), "GET /v1/tasks/1", "", "").await;
    // What is read from the database may be some seconds old.
    let text = until("the numbers are there", || async {
        let answer = get(&replica, "/metrics").await;
        assert_eq!(answer.status, 200);
        let text = String::from_utf8(answer.body).expect("text");
        let ready =
            text.contains("systole_runners{state=\"ready\"} 1") && text.contains("systole_tasks{state=\"QUEUED\"} 1");
        ready.then_some(text)
    })
    .await;
    for line in [
        "systole_tasks{state=\"CREATED\"} 1",
        "systole_tasks{state=\"RUNNING\"} 0",
        "systole_runners{state=\"busy\"} 0",
        "systole_ready 1",
        "systole_call_seconds_count{call=\"systole.v1.TaskService/Submit\"} 2",
        "systole_calls_refused_total{call=\"GET /v1/tasks/{id}\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }
    // Each line is a sample of a metric that was announced, and none occurs twice.
    let (mut announced, mut seen) = (std::collections::HashSet::new(), std::collections::HashSet::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            announced.insert(rest.split(' ').next().expect("a name"));
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').expect("a sample");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(seen.insert(series), "{series} occurs twice");
            let name = series.split('{').next().expect("a name");
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .unwrap_or(name);
            assert!(announced.contains(base) || announced.contains(name), "{line}");
        }
    }
    // Fifteen for each call that there is, and few besides.
    assert!(seen.len() < 2_000, "{} series", seen.len());
    replica.stop().await;
}
