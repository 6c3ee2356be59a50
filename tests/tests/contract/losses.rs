//! How a task ends of which no runner says anything.

use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    the_reaper_fails_the_tasks_of_a_silent_runner,
    the_reaper_ends_dispatched_and_terminating_tasks_too,
    a_live_task_that_no_runner_holds_is_ended_as_lost,
);

async fn the_reaper_fails_the_tasks_of_a_silent_runner(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut dead = SimRunner::new(&replica, "dead", 0);
    dead.take().await;
    dead.running(id).await;
    // A runner that beats is left alone.
    let live_id = replica.submit(command(&["true"])).await;
    let mut live = SimRunner::new(&replica, "live", 0);
    live.take().await;
    let failed = until("the silent runner's task is failed", || {
        let mut live = live.clone();
        live.beat.seq += 1;
        let replica = &replica;
        async move {
            live.beat.seq = u64::try_from(systole_shared::clock::now_ms()).expect("after 1970");
            live.running(live_id).await;
            let task = replica.task(id).await;
            (task.state() == S::Failed).then_some(task)
        }
    })
    .await;
    assert_eq!(failed.outcome.expect("outcome").kind, "runner_lost");
    assert_eq!(replica.state(live_id).await, S::Running);
    replica.stop().await;
}

async fn the_reaper_ends_dispatched_and_terminating_tasks_too(db: TestDb) {
    let replica = Replica::start(&db).await;
    let dispatched = replica.submit(command(&["true"])).await;
    SimRunner::new(&replica, "a", 0).take().await;
    let terminating = replica.submit(command(&["true"])).await;
    let mut b = SimRunner::new(&replica, "b", 0);
    b.take().await;
    b.running(terminating).await;
    replica.cancel(terminating).await;
    assert_eq!(
        replica
            .until_state(dispatched, S::Failed)
            .await
            .outcome
            .expect("outcome")
            .kind,
        "runner_lost"
    );
    let ended = replica.until_state(terminating, S::Terminated).await;
    assert!(ended.outcome.expect("outcome").message.contains("not confirmed"));
    replica.stop().await;
}

async fn a_live_task_that_no_runner_holds_is_ended_as_lost(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    // Cannot happen; if it did, the task must not hang and the slot must not be poisoned.
    db.sql("UPDATE runner SET task_id = NULL");
    let next = replica.submit(command(&["true"])).await;
    assert_eq!(
        replica.until_state(id, S::Failed).await.outcome.expect("outcome").kind,
        "runner_lost"
    );
    assert_eq!(runner.take().await.task_id, next);
    replica.stop().await;
}
