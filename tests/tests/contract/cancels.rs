//! Cancels, and the chains of retries that they end.

use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_cancel_ends_waiting_tasks_at_once,
    a_cancel_of_a_running_task_waits_for_its_runner,
    a_failed_task_with_retries_left_makes_the_next_attempt,
    a_cancel_in_the_backoff_of_a_retry_ends_the_chain,
);

async fn a_cancel_ends_waiting_tasks_at_once(db: TestDb) {
    let replica = Replica::start(&db).await;
    let queued = replica.submit(command(&["true"])).await;
    let spec = v1::TaskSpec {
        delay_ms: 3_600_000,
        ..command(&["true"])
    };
    let created = replica.submit(spec).await;
    for id in [queued, created] {
        let result = replica.cancel(id).await;
        assert_eq!((result.state(), result.already), (S::Terminated, false));
        assert!(
            replica.cancel(id).await.already,
            "a second cancel changes nothing and says so"
        );
        let task = replica.task(id).await;
        assert_eq!(
            (task.cancelled_by.as_str(), task.cancel_reason.as_str()),
            ("admin", "test")
        );
        assert_eq!(task.outcome.expect("outcome").kind, "cancelled");
    }
    let missing = replica.cancel(9_999).await.error.expect("no such task");
    assert_eq!(missing.code, "NOTFOUND_004");
    replica.stop().await;
}

async fn a_cancel_of_a_running_task_waits_for_its_runner(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    let parked = {
        let mut runner = runner.clone();
        tokio::spawn(async move { (runner.running_parked(id, 1_000).await, runner) })
    };
    replica.until_state(id, S::Running).await;
    assert_eq!(replica.cancel(id).await.state(), S::Terminating);
    let (response, mut runner) = parked.await.expect("beat");
    let reset = response.reset.expect("the parked beat is answered with RESET");
    assert_eq!((reset.task_id, reset.reason()), (id, v1::ResetReason::Stop));
    assert_eq!(replica.state(id).await, S::Terminating);
    let mut result = runner.result(id, "signal", None);
    result.signal = Some(15);
    result.stopped_by = v1::StoppedBy::Reset.into();
    runner.ended(result).await;
    let task = replica.task(id).await;
    assert_eq!(task.state(), S::Terminated);
    assert_eq!(task.outcome.and_then(|o| o.signal), Some(15));
    let late = replica.cancel(id).await;
    assert!(late.already);
    replica.stop().await;
}

async fn a_failed_task_with_retries_left_makes_the_next_attempt(db: TestDb) {
    let replica = Replica::start(&db).await;
    let spec = v1::TaskSpec {
        retry: Some(v1::Retry {
            max_retries: 2,
            delay_ms: 0,
        }),
        tags: vec!["nightly".into()],
        ..command(&["false"])
    };
    let root = replica.submit(spec).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let mut seen = Vec::new();
    let mut next = Some(runner.take().await.task_id);
    while let Some(id) = next {
        seen.push(id);
        let result = runner.result(id, "exit_code", Some(1));
        let response = runner.ended(result).await;
        next = match response.run {
            Some(run) => Some(run.task_id),
            None if seen.len() < 3 => Some(runner.take().await.task_id),
            None => None,
        };
    }
    assert_eq!(seen.len(), 3, "max_retries = 2 means three attempts");
    let last = replica.task(seen[2]).await;
    assert_eq!(
        (last.attempt, last.root_id, last.retry_of, last.retried_by),
        (3, root, seen[1], 0)
    );
    assert_eq!(last.spec.expect("spec").tags, ["nightly"]);
    let filter = v1::TaskFilter {
        tag: "nightly".into(),
        ..Default::default()
    };
    let count = replica
        .tasks()
        .count(v1::CountRequest { filter: Some(filter) })
        .await
        .expect("count");
    assert_eq!(count.into_inner().total, 3, "tags travel along the chain");
    replica.stop().await;
}

async fn a_cancel_in_the_backoff_of_a_retry_ends_the_chain(db: TestDb) {
    let replica = Replica::start(&db).await;
    let spec = v1::TaskSpec {
        retry: Some(v1::Retry {
            max_retries: 5,
            delay_ms: 60_000,
        }),
        ..command(&["false"])
    };
    let root = replica.submit(spec).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    let result = runner.result(root, "exit_code", Some(1));
    runner.ended(result).await;
    let waiting = replica.task(root).await.retried_by;
    assert_eq!(replica.state(waiting).await, S::Created);
    // The root is named, the live member is meant.
    let result = replica.cancel(root).await;
    assert_eq!((result.id, result.state()), (waiting, S::Terminated));
    assert_eq!(replica.task(waiting).await.retried_by, 0);
    replica.stop().await;
}
