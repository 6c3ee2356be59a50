//! What is submitted: once for each key, and refused by itself.

use systole_proto::v1;
use systole_tests::replica::{Replica, command};
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_submission_is_stored_once_per_key,
    the_same_key_with_another_body_is_refused,
    a_bad_item_does_not_spoil_its_batch,
    a_fence_that_cannot_work_is_refused_at_the_submission,
);

async fn a_submission_is_stored_once_per_key(db: TestDb) {
    let replica = Replica::start(&db).await;
    let first = replica.submit_keyed(command(&["true"]), "k").await;
    let again = replica.submit_keyed(command(&["true"]), "k").await;
    assert_eq!((first.existing, again.existing), (false, true));
    assert_eq!(first.id, again.id);
    // Many at once, and twice in one batch.
    let item = |key: &str| v1::SubmitItem {
        spec: Some(command(&["true"])),
        key: key.into(),
    };
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let mut tasks = replica.tasks();
            let request = v1::SubmitRequest {
                items: vec![item("same"), item("same")],
                reason: String::new(),
            };
            tokio::spawn(async move { tasks.submit(request).await.expect("submit").into_inner() })
        })
        .collect();
    let mut ids = std::collections::HashSet::new();
    for call in calls {
        ids.extend(call.await.expect("call").results.iter().map(|result| result.id));
    }
    assert_eq!(ids.len(), 1);
    replica.stop().await;
}

async fn the_same_key_with_another_body_is_refused(db: TestDb) {
    let replica = Replica::start(&db).await;
    replica.submit_keyed(command(&["true"]), "k").await;
    let refused = replica
        .submit_keyed(command(&["false"]), "k")
        .await
        .error
        .expect("refused");
    assert_eq!((refused.code.as_str(), refused.field.as_str()), ("CONFLICT_005", "key"));
    replica.stop().await;
}

async fn a_bad_item_does_not_spoil_its_batch(db: TestDb) {
    let replica = Replica::start(&db).await;
    let items = [
        command(&["true"]),
        command(&[]),
        command(&["a\0b"]),
        command(&["echo", "日本 \" ' \n"]),
    ]
    .map(|spec| v1::SubmitItem {
        spec: Some(spec),
        key: String::new(),
    })
    .to_vec();
    let request = v1::SubmitRequest {
        items,
        reason: String::new(),
    };
    let results = replica
        .tasks()
        .submit(request)
        .await
        .expect("submit")
        .into_inner()
        .results;
    let fields: Vec<Option<&str>> = results
        .iter()
        .map(|r| r.error.as_ref().map(|e| e.field.as_str()))
        .collect();
    assert_eq!(fields, [None, Some("command"), Some("command[0]"), None]);
    let stored = replica.task(results[3].id).await.spec.expect("spec");
    assert_eq!(stored.command, ["echo", "日本 \" ' \n"]);
    let too_many = v1::SubmitRequest {
        items: vec![v1::SubmitItem::default(); 10_001],
        reason: String::new(),
    };
    let refused = replica.tasks().submit(too_many).await.expect_err("too many");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    replica.stop().await;
}

async fn a_fence_that_cannot_work_is_refused_at_the_submission(db: TestDb) {
    // Its beats are one second apart.
    let replica = Replica::start(&db).await;
    let fenced = |kill_grace_ms| v1::TaskSpec {
        on_disconnect: v1::OnDisconnect::Kill.into(),
        kill_grace_ms,
        ..command(&["true"])
    };
    for grace in [None, Some(941), Some(86_400_000)] {
        let refused = replica.submit_keyed(fenced(grace), "").await.error.expect("refused");
        assert_eq!(
            (refused.code.as_str(), refused.field.as_str()),
            ("VALIDATION_003", "kill_grace_ms")
        );
        assert!(refused.message.contains("at most 940ms"), "{}", refused.message);
    }
    let id = replica.submit(fenced(Some(940))).await;
    let run = SimRunner::new(&replica, "a", 0).take().await;
    let spec = run.spec.expect("spec");
    assert_eq!(
        (run.task_id, spec.on_disconnect(), spec.kill_grace_ms),
        (id, v1::OnDisconnect::Kill, Some(940))
    );
    // Without a fence any grace will do.
    let plain = v1::TaskSpec {
        kill_grace_ms: Some(86_400_000),
        ..command(&["true"])
    };
    replica.submit(plain).await;
    replica.stop().await;
}
