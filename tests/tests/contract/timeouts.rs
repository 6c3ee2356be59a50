//! Tasks that wait for their time, and what becomes of those that wait too long.

use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_delayed_task_waits_for_its_time,
    a_task_that_no_runner_takes_fails_by_its_queue_timeout,
    a_queue_timeout_counts_from_queued_and_not_while_a_runner_has_the_task,
    a_start_timeout_ends_when_the_runner_confirms_it,
    a_cancel_replaces_a_start_timeout,
    a_lost_runner_turns_a_start_timeout_into_a_loss_without_a_retry,
);

async fn a_delayed_task_waits_for_its_time(db: TestDb) {
    let replica = Replica::start(&db).await;
    let spec = v1::TaskSpec {
        delay_ms: 700,
        ..command(&["true"])
    };
    let id = replica.submit(spec).await;
    assert_eq!(replica.state(id).await, S::Created);
    assert!(replica.task(id).await.waiting_for.starts_with("starts at"));
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, id);
    let task = replica.task(id).await;
    let waited = task.dispatched_at_ms - task.created_at_ms;
    assert!(
        (700..5_000).contains(&waited),
        "dispatched {waited} ms after its submission"
    );
    replica.stop().await;
}

async fn a_task_that_no_runner_takes_fails_by_its_queue_timeout(db: TestDb) {
    let replica = Replica::start(&db).await;
    let unlimited = replica.submit(command(&["true"])).await;
    let spec = v1::TaskSpec {
        queue_timeout_ms: 300,
        callback_url: "http://127.0.0.1:1/x".into(),
        retry: Some(v1::Retry {
            max_retries: 3,
            delay_ms: 0,
        }),
        ..command(&["true"])
    };
    let id = replica.submit(spec).await;
    let task = replica.until_state(id, S::Failed).await;
    let outcome = task.outcome.expect("outcome");
    assert_eq!(outcome.kind, "queue_timeout");
    assert!(outcome.message.contains("300ms"), "{}", outcome.message);
    let waited = task.ended_at_ms - task.queued_at_ms;
    assert!((300..5_000).contains(&waited), "after {waited} ms");
    assert_eq!((task.host.as_str(), task.dispatched_at_ms), ("", 0));
    assert_eq!(task.retried_by, 0, "the next one would wait in the same queue");
    assert_eq!(
        db.sql(&format!("SELECT count(*) FROM callback WHERE task_id = {id}")),
        "1"
    );
    assert_eq!(replica.state(unlimited).await, S::Queued);
    // Nothing is left of it that a claim could find.
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, unlimited);
    replica.stop().await;
}

async fn a_queue_timeout_counts_from_queued_and_not_while_a_runner_has_the_task(db: TestDb) {
    let replica = Replica::start(&db).await;
    let spec = v1::TaskSpec {
        queue_timeout_ms: 1_000,
        ..command(&["true"])
    };
    let held = replica.submit(spec.clone()).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, held);
    runner.running(held).await;
    let delayed = replica
        .submit(v1::TaskSpec {
            delay_ms: 1_500,
            ..spec
        })
        .await;
    let task = until("the delayed task is failed", || {
        let mut runner = runner.clone();
        let replica = &replica;
        async move {
            runner.beat.seq = u64::try_from(systole_shared::clock::now_ms()).expect("after 1970");
            runner.running(held).await;
            let task = replica.task(delayed).await;
            (task.state() == S::Failed).then_some(task)
        }
    })
    .await;
    assert_eq!(task.outcome.expect("outcome").kind, "queue_timeout");
    assert!(task.queued_at_ms - task.created_at_ms >= 1_500);
    assert!(task.ended_at_ms - task.queued_at_ms >= 1_000);
    assert_eq!(replica.state(held).await, S::Running);
    replica.stop().await;
}

/// A task with this start timeout and one retry, given to a runner that says nothing more.
async fn taken_and_silent(replica: &Replica) -> (SimRunner, i64) {
    let spec = v1::TaskSpec {
        start_timeout_ms: 300,
        queue_timeout_ms: 60_000,
        retry: Some(v1::Retry {
            max_retries: 1,
            delay_ms: 0,
        }),
        ..command(&["true"])
    };
    let id = replica.submit(spec).await;
    let mut runner = SimRunner::new(replica, "a", 0);
    assert_eq!(runner.take().await.task_id, id);
    (runner, id)
}

async fn a_start_timeout_ends_when_the_runner_confirms_it(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (mut runner, id) = taken_and_silent(&replica).await;
    replica.until_state(id, S::Terminating).await;
    // It has started it after all: told to stop, and no retry before that.
    let reset = runner.running(id).await.reset.expect("RESET");
    assert_eq!((reset.task_id, reset.reason()), (id, v1::ResetReason::Stop));
    let task = replica.task(id).await;
    assert_eq!((task.state(), task.retried_by), (S::Terminating, 0));
    let mut result = runner.result(id, "signal", None);
    result.signal = Some(15);
    result.stopped_by = v1::StoppedBy::Reset.into();
    let response = runner.ended(result).await;
    assert_eq!(response.acknowledged, [id]);
    let task = replica.task(id).await;
    let state = task.state();
    let outcome = task.outcome.expect("outcome");
    assert_eq!(
        (state, outcome.kind.as_str(), outcome.signal),
        (S::Failed, "start_timeout", Some(15))
    );
    // The retry has the same clocks. This time the runner says that it holds nothing.
    let next = match response.run {
        Some(run) => run,
        None => runner.take().await,
    };
    assert_eq!((next.task_id, next.attempt), (task.retried_by, 2));
    assert_eq!(next.spec.expect("spec").start_timeout_ms, 300);
    let clocks = format!(
        "SELECT queue_timeout_ms + start_timeout_ms FROM task WHERE id = {}",
        next.task_id
    );
    assert_eq!(db.sql(&clocks), "60300");
    replica.until_state(next.task_id, S::Terminating).await;
    runner.idle().await;
    let task = replica.task(next.task_id).await;
    let state = task.state();
    assert_eq!(
        (state, task.outcome.expect("outcome").kind.as_str()),
        (S::Failed, "start_timeout")
    );
    assert_eq!(task.retried_by, 0, "max_retries = 1 means two attempts");
    // A runner that notices it by itself.
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(runner.take().await.task_id, id);
    let result = runner.result(id, "start_timeout", None);
    runner.ended(result).await;
    assert_eq!(replica.task(id).await.outcome.expect("outcome").kind, "start_timeout");
    replica.stop().await;
}

async fn a_cancel_replaces_a_start_timeout(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (mut runner, id) = taken_and_silent(&replica).await;
    replica.until_state(id, S::Terminating).await;
    let cancelled = replica.cancel(id).await;
    assert_eq!((cancelled.state(), cancelled.already), (S::Terminating, false));
    runner.idle().await;
    let task = replica.task(id).await;
    assert_eq!((task.state(), task.retried_by), (S::Terminated, 0));
    assert_eq!(task.outcome.expect("outcome").kind, "cancelled");
    replica.stop().await;
}

async fn a_lost_runner_turns_a_start_timeout_into_a_loss_without_a_retry(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (_, id) = taken_and_silent(&replica).await;
    let task = replica.until_state(id, S::Failed).await;
    assert_eq!(task.retried_by, 0, "nothing proves that it was not started");
    assert_eq!(task.outcome.expect("outcome").kind, "runner_lost");
    replica.stop().await;
}
