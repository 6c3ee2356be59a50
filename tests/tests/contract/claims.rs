//! Rows that cannot be read must not stand in the way of others.

use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_row_that_cannot_be_read_is_ended_by_name_and_the_others_go_on,
    a_row_that_cannot_be_read_is_ended_though_its_runner_was_parked,
    a_row_that_became_unreadable_is_not_given_again,
);

fn damage(db: &TestDb, id: i64) {
    db.sql(&format!("UPDATE task SET spec = '{{\"command\": 7' WHERE id = {id}"));
}

async fn is_unreadable(replica: &Replica, id: i64) {
    let task = replica.until_state(id, S::Failed).await;
    let outcome = task.outcome.expect("outcome");
    assert_eq!(outcome.kind, "unreadable");
    assert!(outcome.message.contains("cannot be read"), "{}", outcome.message);
    // It would be as unreadable.
    assert_eq!(task.retried_by, 0);
}

async fn a_row_that_cannot_be_read_is_ended_by_name_and_the_others_go_on(db: TestDb) {
    let replica = Replica::start(&db).await;
    // One lane; then two; then a target.
    for (priority, target) in [(5, ""), (9, ""), (5, "a")] {
        let bad = replica
            .submit(v1::TaskSpec {
                priority: Some(priority),
                target_host: target.into(),
                retry: Some(v1::Retry {
                    max_retries: 3,
                    delay_ms: 0,
                }),
                ..command(&["true"])
            })
            .await;
        damage(&db, bad);
        let good = replica.submit(command(&["true"])).await;
        let mut runner = SimRunner::new(&replica, "a", 0);
        runner.beat.seq = u64::try_from(systole_shared::clock::now_ms()).expect("after 1970");
        assert_eq!(runner.take().await.task_id, good);
        is_unreadable(&replica, bad).await;
        let result = runner.success(good);
        runner.ended(result).await;
        replica.until_state(good, S::Finished).await;
    }
    // A list with such tasks is a list all the same.
    let request = v1::ListRequest::default();
    let listed = replica.tasks().list(request).await.expect("list").into_inner().tasks;
    assert_eq!(listed.len(), 6);
    replica.stop().await;
}

async fn a_row_that_cannot_be_read_is_ended_though_its_runner_was_parked(db: TestDb) {
    let replica = Replica::start(&db).await;
    let hour = v1::TaskSpec {
        delay_ms: 3_600_000,
        ..command(&["true"])
    };
    let bad = replica.submit(hour.clone()).await;
    let good = replica.submit(hour).await;
    damage(&db, bad);
    let mut runner = SimRunner::new(&replica, "a", 0);
    let parked = tokio::spawn(async move { runner.take().await.task_id });
    systole_tests::wait::until("a beat is parked", || async {
        (replica.running.context.parked_beats() == 1).then_some(())
    })
    .await;
    db.sql("UPDATE task SET run_at_ms = run_at_ms - 7200000 + id");
    assert_eq!(parked.await.expect("no panic"), good);
    is_unreadable(&replica, bad).await;
    replica.stop().await;
}

async fn a_row_that_became_unreadable_is_not_given_again(db: TestDb) {
    let replica = Replica::start(&db).await;
    let bad = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, bad);
    damage(&db, bad);
    // It says that it has no task: the answer was lost.
    runner.idle().await;
    is_unreadable(&replica, bad).await;
    let good = replica.submit(command(&["true"])).await;
    assert_eq!(runner.take().await.task_id, good);
    replica.stop().await;
}
