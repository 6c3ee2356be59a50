//! Which beats act: their order, who may speak, and of which tasks.

use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_stale_beat_changes_nothing,
    an_equal_seq_repeats_run_new_and_changes_nothing,
    a_higher_start_no_takes_over_and_a_lower_one_is_refused,
    a_second_process_with_the_same_host_name_waits,
    a_foreign_report_changes_nothing,
    an_unknown_task_is_reset,
    one_bad_beat_does_not_spoil_its_batch,
    a_task_whose_begin_is_not_known_stays_dispatched_and_is_replaced_when_it_never_began,
    a_task_that_was_cancelled_before_it_began_says_so,
);

async fn a_stale_beat_changes_nothing(db: TestDb) {
    // stale_idle_after_running and stale_idle_after_cancel: an IDLE beat that was overtaken.
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, id);
    let stale_seq = runner.beat.seq;
    runner.running(id).await;
    let mut late = runner.clone();
    late.beat.seq = stale_seq - 1;
    late.idle().await;
    assert_eq!(replica.state(id).await, S::Running);
    replica.cancel(id).await;
    late.beat.seq = stale_seq - 1;
    late.idle().await;
    assert_eq!(
        replica.state(id).await,
        S::Terminating,
        "the child is alive: nothing is confirmed"
    );
    replica.stop().await;
}

async fn an_equal_seq_repeats_run_new_and_changes_nothing(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, id);
    let again = v1::HeartbeatRequest {
        status: v1::RunnerStatus::Idle.into(),
        ..runner.beat.clone()
    };
    for _ in 0..10 {
        let response = runner.send(again.clone()).await.expect("beat");
        assert_eq!(response.run.map(|run| run.task_id), Some(id));
    }
    assert_eq!(replica.state(id).await, S::Dispatched);
    replica.stop().await;
}

async fn a_higher_start_no_takes_over_and_a_lower_one_is_refused(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut old = SimRunner::new(&replica, "a", 0);
    old.idle().await;
    let mut new = old.clone();
    new.beat.start_no = 2;
    new.beat.seq = 0;
    new.idle().await;
    let refused = old.try_idle().await.expect_err("the old process is refused for ever");
    assert_eq!(refused.code(), tonic::Code::AlreadyExists);
    assert_eq!(
        refused.metadata().get("systole-error-code").map(|v| v.as_bytes()),
        Some(b"CONFLICT_004".as_slice())
    );
    // The refused beat did not keep the id alive, and the holder goes on.
    new.idle().await;
    replica.stop().await;
}

async fn a_second_process_with_the_same_host_name_waits(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut first = SimRunner::new(&replica, "a", 0);
    first.idle().await;
    let mut second = SimRunner::new(&replica, "a", 0);
    second.beat.instance_id = "another".into();
    assert_eq!(
        second.try_idle().await.expect_err("waits").code(),
        tonic::Code::AlreadyExists
    );
    // The holder says goodbye: the id is free at once.
    first.beat.leaving = true;
    first.idle().await;
    second.idle().await;
    assert_eq!(
        first.try_idle().await.expect_err("waits").code(),
        tonic::Code::AlreadyExists
    );
    replica.stop().await;
}

async fn a_foreign_report_changes_nothing(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut mine = SimRunner::new(&replica, "a", 0);
    assert_eq!(mine.take().await.task_id, id);
    mine.running(id).await;
    let mut foreign = SimRunner::new(&replica, "b", 0);
    let reset = foreign.running(id).await.reset.expect("RESET");
    assert_eq!((reset.task_id, reset.reason()), (id, v1::ResetReason::Unknown));
    let result = foreign.success(id);
    assert_eq!(
        foreign.ended(result).await.reset.expect("RESET").reason(),
        v1::ResetReason::Unknown
    );
    // The same host, but a start that never had the task.
    let mut result = mine.success(id);
    result.dispatched_start_no = 7;
    assert_eq!(
        mine.ended(result).await.reset.expect("RESET").reason(),
        v1::ResetReason::Unknown
    );
    assert_eq!(replica.state(id).await, S::Running);
    replica.stop().await;
}

async fn an_unknown_task_is_reset(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let reset = runner.running(4_711).await.reset.expect("RESET");
    assert_eq!((reset.task_id, reset.reason()), (4_711, v1::ResetReason::Unknown));
    replica.stop().await;
}

async fn one_bad_beat_does_not_spoil_its_batch(db: TestDb) {
    // one_nul_in_a_batch: a text that the database cannot store, among many beats at once.
    let replica = Replica::start(&db).await;
    let ids: Vec<i64> = {
        let mut ids = Vec::new();
        for _ in 0..20 {
            ids.push(replica.submit(command(&["true"])).await);
        }
        ids
    };
    let mut runners = Vec::new();
    for index in 0..20 {
        let mut runner = SimRunner::new(&replica, &format!("h{index}"), 0);
        let id = runner.take().await.task_id;
        runners.push((runner, id));
    }
    let beats = runners.into_iter().enumerate().map(|(index, (mut runner, id))| {
        let mut result = runner.result(id, "exit_code", Some(1));
        if index == 7 {
            result.message = "odd \u{0} text".into();
        }
        tokio::spawn(async move { runner.try_ended(result).await })
    });
    for beat in beats.collect::<Vec<_>>() {
        let response = beat.await.expect("task").expect("every beat is answered");
        assert_eq!(response.acknowledged.len(), 1);
    }
    for id in ids {
        assert_eq!(replica.state(id).await, S::Failed);
    }
    replica.stop().await;
}

async fn a_task_whose_begin_is_not_known_stays_dispatched_and_is_replaced_when_it_never_began(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    runner.beat.starting = true;
    // More often than a RUN_NEW is given again that was lost.
    for _ in 0..5 {
        assert_eq!(runner.running(id).await.command(), v1::Command::GoOn);
    }
    assert_eq!(replica.state(id).await, S::Dispatched);
    runner.beat.starting = false;
    let result = runner.result(id, "not_started", None);
    assert_eq!(runner.ended(result).await.acknowledged, [id]);
    let task = replica.task(id).await;
    assert_eq!((task.state(), task.attempt), (S::Failed, 1));
    assert_eq!(task.outcome.expect("outcome").kind, "not_started");
    assert_eq!(
        replica.task(task.retried_by).await.attempt,
        1,
        "replaced, not tried again"
    );

    // The begin becomes known: from then on it runs.
    let id = runner.take().await.task_id;
    runner.beat.starting = true;
    runner.running(id).await;
    runner.beat.starting = false;
    runner.running(id).await;
    assert_eq!(replica.state(id).await, S::Running);
    runner.beat.starting = true;
    assert_eq!(runner.running(id).await.command(), v1::Command::GoOn);
    assert_eq!(replica.state(id).await, S::Running, "what runs is not taken back");
    replica.stop().await;
}

async fn a_task_that_was_cancelled_before_it_began_says_so(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    runner.beat.starting = true;
    runner.running(id).await;
    assert_eq!(replica.cancel(id).await.state(), S::Terminating);
    let reset = runner.running(id).await.reset.expect("RESET");
    assert_eq!((reset.task_id, reset.reason()), (id, v1::ResetReason::Stop));
    assert_eq!(replica.state(id).await, S::Terminating, "nothing is known yet");
    let result = runner.result(id, "not_started", None);
    assert_eq!(runner.ended(result).await.acknowledged, [id]);
    let task = replica.task(id).await;
    let outcome = task.outcome.clone().expect("outcome");
    assert_eq!((task.state(), outcome.kind.as_str()), (S::Terminated, "cancelled"));
    assert_eq!(outcome.message, "cancelled; it was never started");
    assert_eq!(task.retried_by, 0);
    replica.stop().await;
}
