//! How a task ends by what its runner says, and what is kept of that.

use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_result_is_recorded_once,
    a_late_result_is_kept_beside_the_verdict,
    a_report_that_comes_twice_is_not_a_late_result,
    a_restarted_runner_without_the_child_fails_the_task,
    a_task_given_again_to_a_restarted_runner_ends_with_its_result,
    a_short_task_that_ends_before_its_first_beat_is_finished,
    the_times_of_an_end_lie_between_its_dispatch_and_now,
    the_detail_of_an_end_is_kept_within_its_bounds,
    the_detail_of_a_late_result_is_kept_beside_the_verdict,
);

async fn a_result_is_recorded_once(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    runner.running(id).await;
    let result = runner.result(id, "exit_code", Some(3));
    let response = runner.ended(result.clone()).await;
    assert_eq!(response.acknowledged, [id]);
    let first = replica.task(id).await;
    assert_eq!(first.outcome.as_ref().and_then(|o| o.exit_code), Some(3));
    // Sent again, and with another code: the first result stands.
    for code in [3, 0] {
        let mut again = result.clone();
        again.exit_code = Some(code);
        again.kind = if code == 0 {
            "success".into()
        } else {
            "exit_code".into()
        };
        assert_eq!(runner.ended(again).await.acknowledged, [id]);
    }
    let after = replica.task(id).await;
    assert_eq!(
        (after.state(), &after.outcome, after.ended_at_ms),
        (S::Failed, &first.outcome, first.ended_at_ms)
    );
    assert_eq!(after.late_result, None);
    replica.stop().await;
}

async fn a_late_result_is_kept_beside_the_verdict(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    runner.running(id).await;
    replica.until_state(id, S::Failed).await;
    // The child is alive after all: it is to go, and its result is kept.
    assert_eq!(
        runner.running(id).await.reset.expect("RESET").reason(),
        v1::ResetReason::Stop
    );
    let result = runner.success(id);
    assert_eq!(runner.ended(result).await.acknowledged, [id]);
    let task = replica.task(id).await;
    assert_eq!(task.state(), S::Failed);
    assert_eq!(task.outcome.expect("outcome").kind, "runner_lost");
    assert_eq!(task.late_result.expect("late result").kind, "success");
    replica.stop().await;
}

async fn a_report_that_comes_twice_is_not_a_late_result(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    runner.running(id).await;
    let mut result = runner.result(id, "signal", None);
    result.signal = Some(15);
    result.stopped_by = v1::StoppedBy::Timeout.into();
    runner.ended(result.clone()).await;
    // The acknowledgement was lost: the same report again.
    assert_eq!(runner.ended(result).await.acknowledged, [id]);
    let task = replica.task(id).await;
    assert_eq!(
        (task.outcome.expect("outcome").kind.as_str(), task.late_result),
        ("timeout", None)
    );
    replica.stop().await;
}

async fn a_restarted_runner_without_the_child_fails_the_task(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    runner.running(id).await;
    runner.beat.start_no = 2;
    runner.beat.seq = 0;
    runner.idle().await;
    let task = replica.task(id).await;
    assert_eq!(
        (task.state(), task.outcome.expect("outcome").kind.as_str()),
        (S::Failed, "runner_restarted")
    );
    // But a restart that brings the result along is believed.
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(runner.take().await.task_id, id);
    let result = runner.success(id);
    runner.beat.start_no = 3;
    runner.beat.seq = 0;
    assert_eq!(runner.ended(result).await.acknowledged, [id]);
    assert_eq!(replica.state(id).await, S::Finished);
    replica.stop().await;
}

async fn a_task_given_again_to_a_restarted_runner_ends_with_its_result(db: TestDb) {
    // The answer with RUN_NEW dies with the process; the next start of the same boot is given the task, and
    // its result names that start.
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, id);
    runner.beat.start_no = 2;
    runner.beat.seq = 0;
    assert_eq!(runner.idle().await.run.expect("the same task").task_id, id);
    let result = runner.success(id);
    assert_eq!(result.dispatched_start_no, 2);
    assert_eq!(runner.ended(result).await.acknowledged, [id]);
    assert_eq!(replica.state(id).await, S::Finished);
    let next = replica.submit(command(&["true"])).await;
    assert_eq!(runner.take().await.task_id, next, "the slot is free");
    replica.stop().await;
}

async fn a_short_task_that_ends_before_its_first_beat_is_finished(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let id = runner.runs_one(&replica).await;
    let task = replica.task(id).await;
    assert_eq!(task.state(), S::Finished);
    assert!(task.started_at_ms > 0 && task.ended_at_ms >= task.started_at_ms);
    replica.stop().await;
}

async fn the_times_of_an_end_lie_between_its_dispatch_and_now(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let latest = i64::MAX.unsigned_abs();
    for (started_at_ms, ended_at_ms) in [(1, 1), (1, latest), (latest, 1), (latest, latest), (0, 1)] {
        let id = replica.submit(command(&["true"])).await;
        assert_eq!(runner.take().await.task_id, id);
        let result = v1::TaskResult {
            started_at_ms,
            ended_at_ms,
            ..runner.success(id)
        };
        assert_eq!(runner.ended(result).await.acknowledged, [id]);
        let task = replica.task(id).await;
        assert_eq!(task.state(), S::Finished);
        let now = u64::try_from(systole_shared::clock::now_ms()).expect("after 1970");
        let began = if started_at_ms == 0 {
            task.dispatched_at_ms
        } else {
            task.started_at_ms
        };
        assert!(
            task.dispatched_at_ms > 0
                && task.dispatched_at_ms <= began
                && began <= task.ended_at_ms
                && task.ended_at_ms <= now,
            "{started_at_ms} {ended_at_ms}: {} {} {} {now}",
            task.dispatched_at_ms,
            task.started_at_ms,
            task.ended_at_ms
        );
    }
    replica.stop().await;
}

async fn the_detail_of_an_end_is_kept_within_its_bounds(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let sent = |signal, at_ms| v1::SignalSent { signal, at_ms };
    let full = v1::EndDetail {
        tree_empty: Some(true),
        signals: vec![sent(15, 1_800_000_000_000), sent(9, 1_800_000_010_000)],
        leftovers: 2,
        usage: Some(v1::Usage {
            user_cpu_us: Some(510_000),
            system_cpu_us: Some(0),
            peak_memory_bytes: Some(u64::MAX),
            read_bytes: None,
            written_bytes: Some(1),
        }),
        note: "日本 \" ' \\ \n".into(),
        output_until_ms: Some(1_800_000_000_000),
        memory_limit_bytes: Some(1 << 30),
        oom_kills: 3,
    };
    let long = v1::EndDetail {
        signals: vec![sent(9, 1); 100],
        note: format!("\0{}", "é".repeat(5_000)),
        ..full.clone()
    };
    let cut = v1::EndDetail {
        signals: vec![sent(9, 1); 32],
        note: "é".repeat(512),
        ..full.clone()
    };
    // A runner that knows nothing more says nothing more.
    for (reported, kept) in [(None, None), (Some(full.clone()), Some(full)), (Some(long), Some(cut))] {
        let id = replica.submit(command(&["true"])).await;
        assert_eq!(runner.take().await.task_id, id);
        let mut result = runner.success(id);
        result.detail = reported;
        runner.ended(result).await;
        assert_eq!(replica.task(id).await.end_detail, kept);
    }
    replica.stop().await;
}

async fn the_detail_of_a_late_result_is_kept_beside_the_verdict(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    runner.running(id).await;
    assert_eq!(replica.until_state(id, S::Failed).await.end_detail, None);
    let mut result = runner.success(id);
    result.detail = Some(v1::EndDetail {
        tree_empty: Some(true),
        ..Default::default()
    });
    runner.ended(result).await;
    let task = replica.task(id).await;
    assert_eq!(task.outcome.expect("outcome").kind, "runner_lost");
    assert_eq!(task.late_result.expect("late").kind, "success");
    assert_eq!(task.end_detail.and_then(|detail| detail.tree_empty), Some(true));
    replica.stop().await;
}
