//! The database itself: statements, transactions that fail or are dropped, and databases that cannot be used.

use std::sync::Arc;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_scheduler::store::{self, Class, Db};
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    every_statement_prepares_on_both_databases,
    any_store_call_may_fail_and_the_task_still_ends_once,
);

async fn every_statement_prepares_on_both_databases(db: TestDb) {
    let replica = Replica::start(&db).await;
    replica.stop().await;
    let opened = Db::open(&db.url, 4).await.expect("opens");
    for sql in store::statements() {
        let text = sql.render(opened.dialect());
        // EXPLAIN prepares without running; parameters are given as NULL.
        let explained = format!(
            "EXPLAIN {}",
            (1..=9)
                .rev()
                .fold(text.to_owned(), |t, n| t.replace(&format!("${n}"), "NULL"))
        );
        if db.postgres.is_some() {
            let prepared = format!("PREPARE s AS {text}");
            db.sql(&prepared);
        } else {
            // By the SQLite that systole is built with, and not by the one of this machine.
            let plan = opened
                .write("explain", Class::Api, move |tx| {
                    let explained = explained.clone();
                    Box::pin(async move { tx.all_text::<(i64,)>(explained, Vec::new()).await })
                })
                .await;
            assert!(plan.is_ok(), "{text}: {plan:?}");
        }
    }
    opened.close().await;
}

async fn any_store_call_may_fail_and_the_task_still_ends_once(db: TestDb) {
    let replica = Replica::start(&db).await;
    let faults = Arc::clone(&replica.running.context.db.faults);
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.idle().await;
    for n in 1..=60 {
        faults.fail_nth(n);
        let key = format!("key-{n}");
        let id = until("submitted", || async {
            let request = v1::SubmitRequest {
                items: vec![v1::SubmitItem {
                    spec: Some(command(&["true"])),
                    key: key.clone(),
                }],
                reason: String::new(),
            };
            Some(
                replica
                    .tasks()
                    .submit(request)
                    .await
                    .ok()?
                    .into_inner()
                    .results
                    .remove(0)
                    .id,
            )
        })
        .await;
        let mut given = 0;
        loop {
            match runner.try_idle().await {
                Ok(response) if response.command() == v1::Command::RunNew => {
                    assert_eq!(response.run.expect("task").task_id, id);
                    given += 1;
                    break;
                }
                // Not committed, or not yet there: the next beat tells.
                Ok(_) | Err(_) => {}
            }
        }
        assert_eq!(given, 1);
        let result = runner.success(id);
        while runner.try_ended(result.clone()).await.is_err() {}
        faults.fail_nth(0);
        let task = replica.task(id).await;
        assert_eq!(task.state(), S::Finished, "fault before statement {n}");
    }
    let total = replica
        .tasks()
        .count(v1::CountRequest::default())
        .await
        .expect("count")
        .into_inner()
        .total;
    assert_eq!(total, 60, "nothing was stored twice");
    replica.stop().await;
}

/// The pool's own `begin` must stay unused: nothing else guards a transaction that is dropped half-way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_caller_leaves_no_open_transaction() {
    let db = TestDb::postgres();
    let replica = Replica::start(&db).await;
    let opened = Arc::clone(&replica.running.context.db);
    for _ in 0..50 {
        let opened = Arc::clone(&opened);
        let call = tokio::spawn(async move {
            opened
                .write("slow", Class::Api, |_| {
                    Box::pin(async {
                        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                        Ok(())
                    })
                })
                .await
        });
        tokio::task::yield_now().await;
        call.abort();
    }
    until("no session is idle in a transaction", || async {
        let open = db.sql(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND state LIKE 'idle in transaction%'",
            db.postgres.as_deref().expect("postgres")
        ));
        (open == "0").then_some(())
    })
    .await;
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(db.sql(&format!("SELECT count(*) FROM task WHERE id = {id}")), "1");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_replicas_migrate_at_once() {
    let db = TestDb::postgres();
    let starts: Vec<_> = (0..5)
        .map(|_| tokio::spawn(Replica::try_start(Replica::config(&db))))
        .collect();
    let mut replicas = Vec::new();
    for start in starts {
        replicas.push(start.await.expect("task").expect("every replica starts"));
    }
    assert_eq!(db.sql("SELECT count(*) FROM token"), "2");
    let id = replicas[0].submit(command(&["true"])).await;
    assert_eq!(replicas[4].state(id).await, S::Queued, "one token for all");
    for replica in replicas {
        replica.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_is_refused() {
    for db in [TestDb::sqlite(), TestDb::postgres()] {
        Replica::start(&db).await.stop().await;
        db.sql("UPDATE _sqlx_migrations SET version = 9999 WHERE version = 2");
        let error = Replica::try_start(Replica::config(&db)).await.err().expect("refused");
        assert!(error.to_string().contains("newer than this systole"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sqlite_file_in_use_is_refused() {
    let db = TestDb::sqlite();
    let replica = Replica::start(&db).await;
    let error = Replica::try_start(Replica::config(&db)).await.err().expect("refused");
    assert!(error.to_string().contains("in use by another systole"), "{error}");
    replica.stop().await;
    Replica::start(&db).await.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sqlite_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let db = TestDb::sqlite();
    let path = db.url.trim_start_matches("sqlite:").to_owned();
    let files = ["", "-wal", "-shm"].map(|suffix| format!("{path}{suffix}"));
    let mode = |file: &str| std::fs::metadata(file).expect("a file").permissions().mode() & 0o777;
    let replica = Replica::start(&db).await;
    replica.submit(command(&["true"])).await;
    for file in &files {
        assert_eq!(mode(file), 0o600, "{file}");
    }
    replica.stop().await;
    // One of an earlier version, or put there by hand.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set");
    let replica = Replica::start(&db).await;
    replica.submit(command(&["true"])).await;
    for file in &files {
        assert_eq!(mode(file), 0o600, "{file}");
    }
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_that_cannot_work_are_refused_with_a_reason() {
    let db = TestDb::sqlite();
    let cases = [
        ("mysql://x/y", "is no database URL"),
        ("postgres://nobody@127.0.0.1:1/x", "cannot be reached"),
        ("sqlite:/proc/none/systole.db", "Check that the folder exists"),
        ("sqlite:", "names no file"),
    ];
    for (url, reason) in cases {
        let mut config = Replica::config(&db);
        config.database = url.into();
        let error = Replica::try_start(config).await.err().expect("refused");
        assert!(error.to_string().contains(reason), "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_sqlite_answers_clearly_and_keeps_what_it_has() {
    let db = TestDb::sqlite();
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    // A database that takes no more pages, as a full disk does.
    let opened = Arc::clone(&replica.running.context.db);
    static FULL: store::sql::Sql = store::sql::Sql::new("full", "PRAGMA max_page_count = 1");
    static ROOM: store::sql::Sql = store::sql::Sql::new("room", "PRAGMA max_page_count = 1000000");
    let limit = |sql: &'static store::sql::Sql| {
        let opened = Arc::clone(&opened);
        async move {
            opened
                .write("limit", Class::Api, move |tx| {
                    Box::pin(async move { tx.exec(sql, vec![]).await })
                })
                .await
        }
    };
    limit(&FULL).await.expect("pragma");
    let big = command(&["echo", &"x".repeat(100_000)]);
    let request = v1::SubmitRequest {
        items: vec![v1::SubmitItem {
            spec: Some(big.clone()),
            key: String::new(),
        }],
        reason: String::new(),
    };
    let refused = replica.tasks().submit(request).await.expect_err("full");
    assert_eq!(
        refused.metadata().get("systole-error-code").map(|v| v.as_bytes()),
        Some(b"UNAVAILABLE_006".as_slice()),
        "{refused}"
    );
    limit(&ROOM).await.expect("pragma");
    assert_eq!(replica.state(id).await, S::Queued);
    replica.submit(big).await;
    assert_eq!(db.sql("PRAGMA integrity_check"), "ok");
    replica.stop().await;
}
