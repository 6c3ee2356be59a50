//! Many tasks at once, and once more: batches, unique keys, cancel and rerun by condition.

use std::io::Write as _;
use std::process::Stdio;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::{SimRunner, System, TestDb, on_both_databases};

on_both_databases!(
    one_task_of_a_unique_key_waits_or_runs,
    a_unique_key_goes_over_to_the_retry,
    a_key_that_met_a_unique_key_means_that_task_for_ever,
    many_submissions_of_a_unique_key_at_once_make_one_task,
    a_cancel_by_filter_takes_what_lives_page_by_page,
    a_batch_keeps_its_retries,
);

fn unique(command: v1::TaskSpec, key: &str) -> v1::TaskSpec {
    v1::TaskSpec {
        unique_key: key.into(),
        ..command
    }
}

fn of_batch(line: u64, batch: &str) -> v1::TaskSpec {
    v1::TaskSpec {
        batch: batch.into(),
        batch_line: line,
        ..command(&["true"])
    }
}

async fn one_task_of_a_unique_key_waits_or_runs(db: TestDb) {
    let replica = Replica::start(&db).await;
    let spec = || unique(command(&["true"]), "nightly");
    let first = replica.submit_keyed(spec(), "").await;
    let again = replica.submit_keyed(spec(), "").await;
    assert_eq!((first.existing, again.existing), (false, true));
    assert_eq!(first.id, again.id);
    // Another body, and with tags: what counts is the key.
    let tagged = v1::TaskSpec {
        tags: vec!["t".into()],
        ..unique(command(&["false"]), "nightly")
    };
    assert_eq!(replica.submit_keyed(tagged, "").await.id, first.id);
    let other = replica.submit_keyed(unique(command(&["true"]), "weekly"), "").await;
    assert!(!other.existing);
    // Plain tasks beside it in one call are stored as ever.
    let items = [command(&["a"]), spec(), command(&["b"])].map(|spec| v1::SubmitItem {
        spec: Some(spec),
        key: String::new(),
    });
    let request = v1::SubmitRequest {
        items: items.to_vec(),
        reason: String::new(),
    };
    let results = replica
        .tasks()
        .submit(request)
        .await
        .expect("submitted")
        .into_inner()
        .results;
    let existing: Vec<bool> = results.iter().map(|result| result.existing).collect();
    assert_eq!(existing, [false, true, false]);
    assert_eq!(results[1].id, first.id);
    let mut runner = SimRunner::new(&replica, "a", 0);
    let task = runner.take().await.task_id;
    assert_eq!(task, first.id);
    runner.running(task).await;
    assert_eq!(replica.submit_keyed(spec(), "").await.id, task, "while it runs");
    runner.ended(runner.success(task)).await;
    let next = replica.submit_keyed(spec(), "").await;
    assert!(!next.existing && next.id != task, "once it has ended");
    replica.cancel(next.id).await;
    assert!(
        !replica.submit_keyed(spec(), "").await.existing,
        "once it was cancelled"
    );
    // The database itself allows no second one.
    let text = db.sql("SELECT count(*) FROM task WHERE unique_key = 'nightly' AND status IN (1, 2, 3, 4, 9)");
    assert_eq!(text, "1");
    replica.stop().await;
}

async fn a_unique_key_goes_over_to_the_retry(db: TestDb) {
    let replica = Replica::start(&db).await;
    let spec = || v1::TaskSpec {
        retry: Some(v1::Retry {
            max_retries: 1,
            delay_ms: 3_600_000,
        }),
        ..unique(command(&["false"]), "k")
    };
    let first = replica.submit_keyed(spec(), "").await.id;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, first);
    runner.running(first).await;
    runner.ended(runner.result(first, "exit_code", Some(1))).await;
    let retry = replica.until_state(first, S::Failed).await.retried_by;
    assert_ne!(retry, 0);
    let again = replica.submit_keyed(spec(), "").await;
    assert_eq!((again.existing, again.id), (true, retry), "it waits for its time");
    replica.stop().await;
}

async fn a_key_that_met_a_unique_key_means_that_task_for_ever(db: TestDb) {
    let replica = Replica::start(&db).await;
    let spec = || unique(command(&["true"]), "u");
    let first = replica.submit_keyed(spec(), "k1").await;
    let second = replica.submit_keyed(spec(), "k2").await;
    assert_eq!((second.existing, second.id), (true, first.id));
    // The answer was lost and the call comes again, after the task has ended.
    replica.cancel(first.id).await;
    let again = replica.submit_keyed(spec(), "k2").await;
    assert_eq!((again.existing, again.id), (true, first.id));
    // The same key twice in one call.
    let item = || v1::SubmitItem {
        spec: Some(spec()),
        key: "k3".into(),
    };
    let holder = replica.submit_keyed(spec(), "k4").await;
    let request = v1::SubmitRequest {
        items: vec![item(), item()],
        reason: String::new(),
    };
    let results = replica
        .tasks()
        .submit(request)
        .await
        .expect("submitted")
        .into_inner()
        .results;
    assert_eq!([results[0].id, results[1].id], [holder.id; 2]);
    replica.stop().await;
}

async fn many_submissions_of_a_unique_key_at_once_make_one_task(db: TestDb) {
    let (one, two) = match db.postgres {
        Some(_) => (Replica::start(&db).await, Some(Replica::start(&db).await)),
        None => (Replica::start(&db).await, None),
    };
    let replicas = [&one, two.as_ref().unwrap_or(&one)];
    let calls: Vec<_> = (0..40)
        .map(|n| {
            let mut tasks = replicas[n % 2].tasks();
            let request = v1::SubmitRequest {
                items: vec![v1::SubmitItem {
                    spec: Some(unique(command(&["true"]), "u")),
                    key: String::new(),
                }],
                reason: String::new(),
            };
            tokio::spawn(async move { tasks.submit(request).await.expect("submitted").into_inner() })
        })
        .collect();
    let mut ids = std::collections::HashSet::new();
    for call in calls {
        ids.insert(call.await.expect("call").results[0].id);
    }
    assert_eq!(ids.len(), 1);
    if let Some(two) = two {
        two.stop().await;
    }
    one.stop().await;
}

async fn a_cancel_by_filter_takes_what_lives_page_by_page(db: TestDb) {
    let replica = Replica::start(&db).await;
    let items: Vec<v1::SubmitItem> = (1..=1_500)
        .map(|line| v1::SubmitItem {
            spec: Some(of_batch(line, "b1")),
            key: String::new(),
        })
        .collect();
    let request = v1::SubmitRequest {
        items,
        reason: String::new(),
    };
    replica.tasks().submit(request).await.expect("submitted");
    let other = replica.submit(command(&["true"])).await;
    let cancel = |filter: v1::TaskFilter, page_token: String| v1::CancelRequest {
        filter: Some(filter),
        page_token,
        reason: "all of it".into(),
        ..Default::default()
    };
    let mine = v1::TaskFilter {
        batch: "b1".into(),
        ..Default::default()
    };
    let first = replica.tasks().cancel(cancel(mine.clone(), String::new())).await;
    let first = first.expect("cancelled").into_inner();
    assert_eq!(first.results.len(), 1_000);
    let rest = replica
        .tasks()
        .cancel(cancel(mine.clone(), first.next_page_token))
        .await;
    let rest = rest.expect("cancelled").into_inner();
    assert_eq!((rest.results.len(), rest.next_page_token.as_str()), (500, ""));
    assert!(rest.results.iter().all(|result| result.error.is_none()));
    let task = replica.task(rest.results[0].id).await;
    assert_eq!(
        (task.state(), task.cancel_reason.as_str()),
        (S::Terminated, "all of it")
    );
    assert_eq!(replica.state(other).await, S::Queued);
    // Nothing is left, and nothing is told twice in the audit.
    let again = replica.tasks().cancel(cancel(mine, String::new())).await;
    assert_eq!(again.expect("nothing to do").into_inner().results.len(), 0);
    assert_eq!(db.sql("SELECT count(*) FROM audit WHERE action = 'cancel'"), "1500");
    // Every task there is: that is a mistake.
    let all = replica
        .tasks()
        .cancel(cancel(v1::TaskFilter::default(), String::new()))
        .await
        .expect_err("refused");
    assert_eq!(all.metadata().get("systole-error-field").expect("field"), "filter");
    let ended = v1::TaskFilter {
        states: vec![S::Finished.into()],
        ..Default::default()
    };
    let ended = replica
        .tasks()
        .cancel(cancel(ended, String::new()))
        .await
        .expect("nothing");
    assert_eq!(ended.into_inner().results.len(), 0);
    replica.stop().await;
}

async fn a_batch_keeps_its_retries(db: TestDb) {
    let replica = Replica::start(&db).await;
    let spec = v1::TaskSpec {
        retry: Some(v1::Retry {
            max_retries: 1,
            delay_ms: 0,
        }),
        ..of_batch(1, "b")
    };
    let first = replica.submit(spec).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, first);
    runner.running(first).await;
    runner.ended(runner.result(first, "exit_code", Some(1))).await;
    let count = |last_attempts| {
        let filter = v1::TaskFilter {
            batch: "b".into(),
            last_attempts,
            ..Default::default()
        };
        let mut tasks = replica.tasks();
        async move {
            let request = v1::CountRequest { filter: Some(filter) };
            tasks.count(request).await.expect("counted").into_inner().total
        }
    };
    assert_eq!((count(false).await, count(true).await), (2, 1));
    for (batch, line, field) in [("b", 0, "batch_line"), ("", 1, "batch_line"), ("A b", 1, "batch")] {
        let refused = replica
            .submit_keyed(of_batch(line, batch), "")
            .await
            .error
            .expect("refused");
        assert_eq!(refused.field, field);
    }
    replica.stop().await;
}

/// What a command says that reads `input`.
fn with_input(system: &System, args: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = system
        .command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    child
        .stdin
        .take()
        .expect("piped")
        .write_all(input.as_bytes())
        .expect("written");
    let output = child.wait_with_output().expect("ends");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_batch_is_submitted_waited_for_read_and_run_again() {
    for system in [System::sqlite(), System::postgres()] {
        let _scheduler = system.scheduler(0);
        let _runner = system.runner("w", 2, &[]);
        let lines = "echo one\n\n# left out\necho two; exit 3\n{\"command\":[\"printf\",\"three\\n\"],\"name\":\"third\"}\n{\"command\":[\"x\"],\"retires\":1}\n";
        let (code, stdout, stderr) = with_input(&system, &["submit", "--batch", "-", "--key", "b1"], lines);
        assert_eq!(code, Some(2), "one line is wrong: {stderr}");
        assert!(
            stderr.contains("error: line 6: ") && stderr.contains("\"retires\""),
            "{stderr}"
        );
        assert_eq!(stdout, "batch b1: 3 tasks stored, 1 line refused\n");
        let waited = system.say(&["wait", "--batch", "b1"]);
        assert_eq!(waited.code, Some(1), "{waited:?}");
        assert!(waited.stdout.contains("2 FINISHED, 1 FAILED"), "{waited:?}");
        // In the order of the lines, whatever ran first.
        assert_eq!(system.say(&["logs", "--batch", "b1"]).stdout, "one\ntwo\nthree\n");
        let log = system.say(&["ls", "--batch", "b1", "--joblog"]).stdout;
        let mut rows: Vec<Vec<&str>> = log.lines().skip(1).map(|line| line.split('\t').collect()).collect();
        rows.sort();
        let seen: Vec<[&str; 4]> = rows.iter().map(|row| [row[0], row[6], row[7], row[8]]).collect();
        assert_eq!(
            seen,
            [
                ["1", "0", "0", "echo one"],
                ["4", "3", "0", "echo two; exit 3"],
                ["5", "0", "0", "printf 'three^J'"]
            ],
            "{log}"
        );
        // The corrected lines again: what is stored is not stored twice.
        let (code, stdout, stderr) = with_input(
            &system,
            &["submit", "--batch", "-", "--key", "b1"],
            &lines.replace(",\"retires\":1", ""),
        );
        assert_eq!(
            (code, stdout.as_str()),
            (Some(0), "batch b1: 4 tasks stored, 3 of them before\n"),
            "{stderr}"
        );
        // A line that became another task is named.
        let (code, _, stderr) = with_input(&system, &["submit", "--batch", "-", "--key", "b1"], "echo other\n");
        assert_eq!(code, Some(4));
        assert!(
            stderr.contains("line 1: ") && stderr.contains("CONFLICT_005"),
            "{stderr}"
        );
        system.say(&["wait", "--batch", "b1"]);
        // Failed ones once more, in a batch of their own: counted first, and asked for.
        let counted = system.say(&["rerun", "--batch", "b1", "--failed", "--dry-run"]);
        assert!(counted.stdout.starts_with("2 tasks (2 FAILED)"), "{counted:?}");
        assert_eq!(counted.code, Some(0), "{counted:?}");
        let none = system.say(&["cancel", "--batch", "b1", "--dry-run"]);
        assert_eq!(none.code, Some(1), "they have ended: {none:?}");
        let asked = system.say(&["rerun", "--batch", "b1", "--failed"]);
        assert_eq!(asked.code, Some(2));
        assert!(asked.stderr.contains("add --yes"), "{asked:?}");
        let again = system.say(&["rerun", "--batch", "b1", "--failed", "--yes"]);
        assert_eq!((again.code, again.stdout.lines().count()), (Some(0), 2), "{again:?}");
        let batch = again.stderr.trim().strip_prefix("batch ").expect("named").to_owned();
        assert_eq!(system.say(&["wait", "--batch", &batch]).code, Some(1));
        assert!(system.say(&["logs", "--batch", &batch]).stdout.contains("two\n"));
        let unknown = system.say(&["wait", "--batch", "b2"]);
        assert_eq!(unknown.code, Some(3), "{unknown:?}");
    }
}

#[test]
fn a_batch_of_many_lines_survives_a_restart_of_the_scheduler() {
    let system = System::sqlite();
    let mut scheduler = system.scheduler(0);
    let lines: String = (0..20_000).map(|n| format!("echo {n}\n")).collect();
    let mut child = system
        .command(&["submit", "--batch", "-", "--key", "big", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(&lines.as_bytes()[..lines.len() / 2]).expect("written");
    systole_tests::system::until("the first are stored", || {
        !system
            .say(&["ls", "--batch", "big", "-n", "1", "-o", "id"])
            .stdout
            .is_empty()
    });
    scheduler.kill();
    let _scheduler = system.scheduler(0);
    stdin.write_all(&lines.as_bytes()[lines.len() / 2..]).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("ends");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    assert_eq!(
        (told["tasks"].as_u64(), told["refused"].as_u64()),
        (Some(20_000), Some(0))
    );
    assert_eq!(system.db.sql("SELECT count(*) FROM task"), "20000");
    assert_eq!(
        system
            .db
            .sql("SELECT count(DISTINCT batch_line) FROM task WHERE batch = 'big'"),
        "20000"
    );
    let cancelled = system.say(&["cancel", "--batch", "big", "--yes", "--reason", "enough"]);
    assert_eq!(cancelled.stdout, "20000 tasks cancelled\n", "{cancelled:?}");
    assert_eq!(system.db.sql("SELECT count(*) FROM task WHERE status <> 10"), "0");
}

#[test]
fn waiting_and_following_go_along_the_chain() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 2, &[]);
    let mark = system.path("mark");
    let script = format!(
        "echo try; if [ -e {0} ]; then exit 0; fi; touch {0}; exit 1",
        mark.display()
    );
    let id = system.submit(&["--retry", "1", "--", "sh", "-c", &script]);
    let followed = system.say(&["logs", "-f", &id]);
    assert_eq!(followed.stdout, "try\ntry\n", "{followed:?}");
    assert!(followed.stderr.contains("attempt 2 of 2 follows"), "{followed:?}");
    assert_eq!(system.say(&["logs", "-f", "--exact", &id]).stdout, "try\n");
    // The first that ends answers.
    let long = system.submit(&["--", "sleep", "1000"]);
    let short = system.submit(&["--", "sh", "-c", "exit 5"]);
    let any = system.say(&["wait", "--any", &long, &short]);
    assert_eq!(any.code, Some(5), "{any:?}");
    assert!(any.stdout.contains(&format!("task {short}")), "{any:?}");
    // A task that ended, once more.
    let again = system.say(&["rerun", &short, "-o", "id"]);
    assert_eq!(system.say(&["wait", again.stdout.trim()]).code, Some(5));
    let refused = system.say(&["rerun", &long]);
    assert_eq!(refused.code, Some(4));
    assert!(refused.stderr.contains("has not ended"), "{refused:?}");
    // Not twice while one waits or runs.
    let one = system
        .say(&["submit", "--unique", "u", "-o", "id", "--", "sleep", "1000"])
        .stdout;
    let two = system.say(&["submit", "--unique", "u", "--", "sleep", "1000"]);
    assert!(two.stdout.starts_with(&format!("task {}", one.trim())), "{two:?}");
    assert!(two.stdout.contains("nothing new was submitted"), "{two:?}");
    system.say(&["cancel", one.trim(), &long]);
}
