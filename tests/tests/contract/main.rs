//! The contract of the store and of the heartbeat, on both databases: facts, each over real sockets.

mod alarms;
mod backfills;
mod callbacks;
mod claims;
mod cordons;
mod environment;
mod explain;
mod fetch;
mod freezes;
mod holds;
mod host_faults;
mod hosts;
mod job_alarms;
mod job_calls;
mod job_kinds;
mod job_places;
mod job_retries;
mod job_routes;
mod job_sets;
mod job_states;
mod jobs;
mod leases;
mod locales;
mod output;

use std::sync::Arc;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_scheduler::store::{self, Class, Db};
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_submission_is_stored_once_per_key,
    the_same_key_with_another_body_is_refused,
    a_bad_item_does_not_spoil_its_batch,
    two_claims_never_return_one_task,
    a_claim_follows_priority_then_age,
    a_target_is_honoured,
    required_labels_and_queues_are_honoured,
    a_stale_beat_changes_nothing,
    an_equal_seq_repeats_run_new_and_changes_nothing,
    a_higher_start_no_takes_over_and_a_lower_one_is_refused,
    a_second_process_with_the_same_host_name_waits,
    a_foreign_report_changes_nothing,
    an_unknown_task_is_reset,
    a_result_is_recorded_once,
    a_late_result_is_kept_beside_the_verdict,
    a_report_that_comes_twice_is_not_a_late_result,
    one_bad_beat_does_not_spoil_its_batch,
    a_dispatched_task_is_delivered_again_three_times_then_replaced,
    a_deaf_runner_gets_no_new_task,
    a_cancel_ends_waiting_tasks_at_once,
    a_cancel_of_a_running_task_waits_for_its_runner,
    a_failed_task_with_retries_left_makes_the_next_attempt,
    a_cancel_in_the_backoff_of_a_retry_ends_the_chain,
    a_delayed_task_waits_for_its_time,
    the_reaper_fails_the_tasks_of_a_silent_runner,
    the_reaper_ends_dispatched_and_terminating_tasks_too,
    a_restarted_runner_without_the_child_fails_the_task,
    ids_never_return,
    output_is_stored_once_whatever_is_sent_twice,
    retention_deletes_ended_tasks_only,
    the_output_budget_drops_the_oldest,
    a_callback_row_is_written_with_the_end,
    a_cordoned_runner_gets_nothing_new,
    a_parked_beat_is_answered_when_work_arrives,
    a_short_task_that_ends_before_its_first_beat_is_finished,
    a_result_and_the_next_task_share_one_answer,
    lists_page_newest_first_and_filter,
    a_watch_tells_every_end,
    every_call_needs_a_token,
    every_statement_prepares_on_both_databases,
    a_task_given_again_to_a_restarted_runner_ends_with_its_result,
    a_live_task_that_no_runner_holds_is_ended_as_lost,
    a_task_aimed_at_a_cordoned_host_neither_spins_nor_blocks_others,
    an_upload_and_a_result_with_the_same_bytes_lose_nothing,
    a_watch_by_filter_misses_none_of_a_large_batch,
    any_store_call_may_fail_and_the_task_still_ends_once,
    a_task_whose_commit_came_late_is_claimed_within_a_second,
    a_task_that_no_runner_takes_fails_by_its_queue_timeout,
    a_queue_timeout_counts_from_queued_and_not_while_a_runner_has_the_task,
    a_start_timeout_ends_when_the_runner_confirms_it,
    a_cancel_replaces_a_start_timeout,
    a_lost_runner_turns_a_start_timeout_into_a_loss_without_a_retry,
    the_detail_of_an_end_is_kept_within_its_bounds,
    the_detail_of_a_late_result_is_kept_beside_the_verdict,
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

async fn two_claims_never_return_one_task(db: TestDb) {
    let (one, two) = match db.postgres {
        Some(_) => (Replica::start(&db).await, Some(Replica::start(&db).await)),
        None => (Replica::start(&db).await, None),
    };
    let items = vec![
        v1::SubmitItem {
            spec: Some(command(&["true"])),
            key: String::new(),
        };
        300
    ];
    let request = v1::SubmitRequest {
        items,
        reason: String::new(),
    };
    one.tasks().submit(request).await.expect("submit");
    let runners = (0..24).map(|i| {
        let replica = if i % 2 == 0 { &one } else { two.as_ref().unwrap_or(&one) };
        let mut runner = SimRunner::new(replica, &format!("h{i}"), 0);
        tokio::spawn(async move {
            let mut got = Vec::new();
            let mut response = runner.idle_parked(300).await;
            loop {
                match response.command() {
                    v1::Command::RunNew => {
                        let id = response.run.expect("task").task_id;
                        got.push(id);
                        let result = runner.success(id);
                        response = runner.ended(result).await;
                    }
                    v1::Command::Reset => response = runner.idle_parked(300).await,
                    _ => return got,
                }
            }
        })
    });
    let mut all = Vec::new();
    for runner in runners.collect::<Vec<_>>() {
        all.extend(runner.await.expect("runner"));
    }
    let distinct: std::collections::HashSet<i64> = all.iter().copied().collect();
    assert_eq!(all.len(), distinct.len(), "a task was given to two runners");
    assert_eq!(distinct.len(), 300, "every task was given to one");
    if let Some(two) = two {
        two.stop().await;
    }
    one.stop().await;
}

async fn a_claim_follows_priority_then_age(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut ids = Vec::new();
    for priority in [5, 5, 9, 0, 9] {
        let spec = v1::TaskSpec {
            priority: Some(priority),
            ..command(&["true"])
        };
        ids.push(replica.submit(spec).await);
    }
    let mut runner = SimRunner::new(&replica, "a", 0);
    let mut order = Vec::new();
    for _ in 0..5 {
        let id = runner.take().await.task_id;
        order.push(id);
        let result = runner.success(id);
        runner.ended(result).await;
    }
    // The answer to a result may carry the next task; it is delivered again when asked.
    assert_eq!(order.first(), Some(&ids[2]));
    assert_eq!(order.iter().collect::<std::collections::HashSet<_>>().len(), 5);
    let at = |id: &i64| order.iter().position(|o| o == id).expect("given");
    assert!(
        at(&ids[2]) < at(&ids[4]) && at(&ids[0]) < at(&ids[1]) && at(&ids[3]) == 4,
        "{order:?} of {ids:?}"
    );
    replica.stop().await;
}

async fn a_target_is_honoured(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut a0 = SimRunner::new(&replica, "a", 0);
    let mut b0 = SimRunner::new(&replica, "b", 0);
    let mut b1 = SimRunner::new(&replica, "b", 1);
    for runner in [&mut a0, &mut b0, &mut b1] {
        runner.idle().await;
    }
    let spec = v1::TaskSpec {
        target_host: "b".into(),
        target_slot: Some(1),
        ..command(&["true"])
    };
    let id = replica.submit(spec).await;
    assert_eq!(a0.idle_parked(100).await.command(), v1::Command::GoOn);
    assert_eq!(b0.idle_parked(100).await.command(), v1::Command::GoOn);
    assert_eq!(b1.take().await.task_id, id);
    replica.stop().await;
}

async fn required_labels_and_queues_are_honoured(db: TestDb) {
    let replica = Replica::start(&db).await;
    let gpu = v1::Label {
        key: "gpu".into(),
        value: "1".into(),
    };
    let spec = v1::TaskSpec {
        require: vec![gpu.clone()],
        queue: "batch".into(),
        ..command(&["true"])
    };
    let id = replica.submit(spec).await;
    let mut plain = SimRunner::new(&replica, "plain", 0);
    assert_eq!(plain.idle_parked(100).await.command(), v1::Command::GoOn);
    assert_eq!(replica.task(id).await.waiting_for, "no live runner serves queue batch");
    let mut fits = SimRunner::new(&replica, "fits", 0);
    fits.beat.labels = vec![gpu];
    fits.beat.queues = vec!["batch".into(), "default".into()];
    assert_eq!(fits.take().await.task_id, id);
    replica.stop().await;
}

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

async fn a_dispatched_task_is_delivered_again_three_times_then_replaced(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, id);
    for again in 1..=3 {
        let run = runner.idle().await.run.expect("the same task");
        assert_eq!((run.task_id, run.redelivery), (id, again));
    }
    runner.idle().await;
    let task = replica.until_state(id, S::Failed).await;
    assert_eq!(task.outcome.expect("outcome").kind, "not_started");
    let next = replica.task(task.retried_by).await;
    assert_eq!((next.retry_of, next.root_id, next.attempt), (id, id, 1));
    replica.stop().await;
}

async fn a_deaf_runner_gets_no_new_task(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.beat.unanswered = 1;
    for _ in 0..5 {
        assert_eq!(runner.idle_parked(1_000).await.command(), v1::Command::GoOn);
    }
    assert_eq!(replica.state(id).await, S::Queued);
    runner.beat.unanswered = 0;
    assert_eq!(runner.take().await.task_id, id);
    replica.stop().await;
}

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

async fn ids_never_return(db: TestDb) {
    let replica = Replica::start(&db).await;
    let first = replica.submit(command(&["true"])).await;
    replica.cancel(first).await;
    db.sql("DELETE FROM task");
    let second = replica.submit(command(&["true"])).await;
    assert!(second > first);
    replica.stop().await;
}

async fn output_is_stored_once_whatever_is_sent_twice(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000).collect();
    let chunk = |from: usize, to: usize| v1::OutputChunk {
        age_ms: 0,
        task_id: id,
        stream: v1::OutputStream::Stdout.into(),
        offset: from as u64,
        data: bytes[from..to].to_vec(),
    };
    // In pieces, repeated, overlapping, with a gap that is refused, and for a task that does not exist.
    for (from, to, stored) in [(0, 400, 400), (0, 400, 400), (200, 700, 700), (900, 1_000, 700)] {
        let request = v1::UploadOutputRequest {
            chunks: vec![chunk(from, to)],
            host: "a".into(),
            ..Default::default()
        };
        let answer = runner
            .client
            .upload_output(request)
            .await
            .expect("upload")
            .into_inner()
            .results
            .remove(0);
        assert_eq!(answer.stored_to, stored, "{from}..{to}");
    }
    let nobody = v1::UploadOutputRequest {
        chunks: vec![v1::OutputChunk {
            age_ms: 0,
            task_id: 999,
            ..chunk(0, 1)
        }],
        ..Default::default()
    };
    let refused = runner
        .client
        .upload_output(nobody)
        .await
        .expect("upload")
        .into_inner()
        .results
        .remove(0);
    assert_eq!(refused.error.expect("no task").code, "NOTFOUND_004");
    // Another host has no business with it.
    let foreign = v1::UploadOutputRequest {
        chunks: vec![chunk(700, 800)],
        host: "b".into(),
        ..Default::default()
    };
    let refused = runner
        .client
        .upload_output(foreign)
        .await
        .expect("upload")
        .into_inner()
        .results
        .remove(0);
    assert_eq!(refused.error.expect("not its task").code, "NOTFOUND_004");
    let mut result = runner.success(id);
    result.stdout_bytes = 1_000;
    result.output = vec![chunk(600, 1_000)];
    runner.ended(result).await;
    assert_eq!(read_all(&replica, id, 0).await, bytes);
    assert_eq!(read_all(&replica, id, 333).await, bytes[333..]);
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

async fn a_task_aimed_at_a_cordoned_host_neither_spins_nor_blocks_others(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut aimed_at = SimRunner::new(&replica, "a", 0);
    aimed_at.idle().await;
    let cordon = v1::CordonRequest {
        runners: vec!["a".into()],
        reason: String::new(),
        ..v1::CordonRequest::default()
    };
    replica.admin().cordon(cordon).await.expect("cordon");
    let parked = tokio::spawn(async move { aimed_at.idle_parked(900).await });
    let spec = v1::TaskSpec {
        target_host: "a".into(),
        ..command(&["true"])
    };
    let pinned = replica.submit(spec).await;
    let mut other = SimRunner::new(&replica, "b", 0);
    other.idle().await;
    let waiting = tokio::spawn(async move { other.idle_parked(900).await });
    until("both are parked", || async {
        (replica.running.context.parked_beats() == 2).then_some(())
    })
    .await;
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(waiting.await.expect("beat").run.map(|run| run.task_id), Some(id));
    assert_eq!(parked.await.expect("beat").command(), v1::Command::GoOn);
    assert_eq!(replica.state(pinned).await, S::Queued);
    replica.stop().await;
}

async fn an_upload_and_a_result_with_the_same_bytes_lose_nothing(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    for _ in 0..15 {
        let id = replica.submit(command(&["true"])).await;
        assert_eq!(runner.take().await.task_id, id);
        let chunk = |to: usize| v1::OutputChunk {
            age_ms: 0,
            task_id: id,
            stream: v1::OutputStream::Stdout.into(),
            offset: 0,
            data: vec![b'x'; to],
        };
        let upload = v1::UploadOutputRequest {
            chunks: vec![chunk(1)],
            host: "a".into(),
            ..Default::default()
        };
        let mut result = runner.success(id);
        result.stdout_bytes = 300;
        result.output = vec![chunk(300)];
        let mut client = runner.client.clone();
        let (uploaded, ended) = tokio::join!(client.upload_output(upload), runner.ended(result));
        uploaded.expect("upload");
        assert_eq!(ended.acknowledged, [id]);
        assert_eq!(read_all(&replica, id, 0).await.len(), 300);
    }
    replica.stop().await;
}

async fn a_watch_by_filter_misses_none_of_a_large_batch(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut watch = replica
        .tasks()
        .watch(v1::WatchRequest::default())
        .await
        .expect("watch")
        .into_inner();
    let items = vec![
        v1::SubmitItem {
            spec: Some(command(&["true"])),
            key: String::new(),
        };
        2_500
    ];
    let request = v1::SubmitRequest {
        items,
        reason: String::new(),
    };
    let ids: std::collections::HashSet<i64> = replica
        .tasks()
        .submit(request)
        .await
        .expect("submit")
        .into_inner()
        .results
        .iter()
        .map(|result| result.id)
        .collect();
    let mut seen = std::collections::HashSet::new();
    while seen.len() < ids.len() {
        let message = tokio::time::timeout(systole_tests::wait::WAIT_MAX, watch.message());
        let task = message
            .await
            .expect("in time")
            .expect("state")
            .and_then(|m| m.task)
            .expect("task");
        seen.insert(task.id);
    }
    assert_eq!(seen, ids);
    drop(watch);
    replica.stop().await;
}

async fn read_all(replica: &Replica, id: i64, offset: u64) -> Vec<u8> {
    let request = v1::ReadOutputRequest {
        task_id: id,
        stream: v1::OutputStream::Stdout.into(),
        offset,
        follow: true,
        ..Default::default()
    };
    let mut stream = replica.tasks().read_output(request).await.expect("read").into_inner();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.message().await.expect("piece") {
        assert_eq!(piece.offset, offset + bytes.len() as u64);
        bytes.extend(piece.data);
    }
    bytes
}

async fn retention_deletes_ended_tasks_only(db: TestDb) {
    let mut config = Replica::config(&db);
    config.retention.keep = std::time::Duration::from_millis(300);
    config.retention.period = std::time::Duration::from_millis(100);
    let replica = Replica::start_with(config).await;
    let ended = replica.submit(command(&["true"])).await;
    replica.cancel(ended).await;
    let waiting = replica.submit(command(&["true"])).await;
    until("the ended task is deleted", || async {
        let response = replica
            .tasks()
            .get(v1::GetRequest { ids: vec![ended] })
            .await
            .expect("get")
            .into_inner();
        response.results[0].task.is_none().then_some(())
    })
    .await;
    assert_eq!(replica.state(waiting).await, S::Queued);
    replica.stop().await;
}

async fn the_output_budget_drops_the_oldest(db: TestDb) {
    let mut config = Replica::config(&db);
    config.retention.output_budget = 1_500;
    config.retention.period = std::time::Duration::from_millis(100);
    let replica = Replica::start_with(config).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let id = replica.submit(command(&["true"])).await;
        runner.take().await;
        let mut result = runner.success(id);
        result.stdout_bytes = 1_000;
        result.output = vec![v1::OutputChunk {
            age_ms: 0,
            task_id: id,
            stream: v1::OutputStream::Stdout.into(),
            offset: 0,
            data: vec![b'x'; 1_000],
        }];
        runner.ended(result).await;
        ids.push(id);
    }
    until("the older output is dropped", || async {
        (replica.task(ids[0]).await.stdout_bytes == 0).then_some(())
    })
    .await;
    assert_eq!(replica.task(ids[1]).await.stdout_bytes, 1_000);
    let request = v1::ReadOutputRequest {
        task_id: ids[0],
        follow: true,
        ..Default::default()
    };
    let mut stream = replica.tasks().read_output(request).await.expect("read").into_inner();
    let piece = stream.message().await.expect("read").expect("says what is gone");
    let gap = piece.gap.expect("all of it is a gap");
    assert_eq!((gap.offset, gap.bytes, piece.offset), (0, 1_000, 1_000));
    assert!(stream.message().await.expect("read").is_none(), "nobody waits for it");
    replica.stop().await;
}

async fn a_callback_row_is_written_with_the_end(db: TestDb) {
    let mut config = Replica::config(&db);
    config.callbacks.allow_private = false;
    let replica = Replica::start_with(config).await;
    let spec = v1::TaskSpec {
        callback_url: "http://127.0.0.1:9/hook".into(),
        ..command(&["true"])
    };
    let failed = replica.submit(spec.clone()).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    let result = runner.result(failed, "exit_code", Some(1));
    runner.ended(result).await;
    // A private address is refused for good, and the outcome does not depend on it.
    let task = until("the delivery is given up", || async {
        let task = replica.task(failed).await;
        (task.callback.as_ref()?.status == "failed").then_some(task)
    })
    .await;
    assert_eq!(task.state(), S::Failed);
    let callback = task.callback.expect("callback");
    assert!(callback.last_error.contains("private"), "{}", callback.last_error);
    assert!(callback.delivery_id.starts_with("msg_"));
    let finished = replica.submit(spec).await;
    runner.take().await;
    let result = runner.success(finished);
    runner.ended(result).await;
    replica.until_state(finished, S::Finished).await;
    replica.stop().await;
}

async fn a_cordoned_runner_gets_nothing_new(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.idle().await;
    let request = |runner: &str| v1::CordonRequest {
        runners: vec![runner.into(), "nobody".into()],
        reason: "kernel".into(),
        ..v1::CordonRequest::default()
    };
    let results = replica
        .admin()
        .cordon(request("a"))
        .await
        .expect("cordon")
        .into_inner()
        .results;
    assert_eq!(results[0].changed, 1);
    assert_eq!(results[1].error.as_ref().expect("unknown").code, "NOTFOUND_006");
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(runner.idle_parked(300).await.command(), v1::Command::GoOn);
    assert_eq!(replica.task(id).await.waiting_for, "runner a/0 is cordoned");
    let listed = replica
        .admin()
        .list(v1::ListRunnersRequest::default())
        .await
        .expect("list")
        .into_inner()
        .runners;
    assert_eq!(
        (listed[0].cordoned_by.as_str(), listed[0].cordon_reason.as_str()),
        ("admin", "kernel")
    );
    replica.admin().uncordon(request("a/0")).await.expect("uncordon");
    assert_eq!(runner.take().await.task_id, id);
    assert_eq!(db.sql("SELECT count(*) FROM audit WHERE action LIKE '%cordon'"), "2");
    replica.stop().await;
}

async fn a_parked_beat_is_answered_when_work_arrives(db: TestDb) {
    let mut config = Replica::config(&db);
    config.timing = systole_scheduler::config::Timing::default();
    let replica = Replica::start_with(config).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.idle().await;
    let parked = tokio::spawn(async move { runner.idle_parked(30_000).await });
    until("the beat is parked", || async {
        (replica.running.context.parked_beats() == 1).then_some(())
    })
    .await;
    let began = std::time::Instant::now();
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(parked.await.expect("beat").run.map(|run| run.task_id), Some(id));
    assert!(
        began.elapsed() < std::time::Duration::from_secs(10),
        "long before its 30 s were over"
    );
    replica.stop().await;
}

async fn a_short_task_that_ends_before_its_first_beat_is_finished(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    let result = runner.success(id);
    runner.ended(result).await;
    let task = replica.task(id).await;
    assert_eq!(task.state(), S::Finished);
    assert!(task.started_at_ms > 0 && task.ended_at_ms >= task.started_at_ms);
    replica.stop().await;
}

async fn a_result_and_the_next_task_share_one_answer(db: TestDb) {
    let replica = Replica::start(&db).await;
    let first = replica.submit(command(&["true"])).await;
    let second = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, first);
    let result = runner.success(first);
    let response = runner.ended(result).await;
    assert_eq!(response.acknowledged, [first]);
    assert_eq!(response.run.map(|run| run.task_id), Some(second));
    replica.stop().await;
}

async fn lists_page_newest_first_and_filter(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut ids = Vec::new();
    for index in 0..25 {
        let spec = v1::TaskSpec {
            name: if index % 5 == 0 { "five".into() } else { String::new() },
            tags: if index % 2 == 0 { vec!["even".into()] } else { vec![] },
            ..command(&["true", &"x".repeat(index * 500)])
        };
        ids.push(replica.submit(spec).await);
    }
    replica.cancel(ids[3]).await;
    let list = |filter: v1::TaskFilter, limit: u32| {
        let mut tasks = replica.tasks();
        async move {
            let mut all = Vec::new();
            let mut page_token = String::new();
            loop {
                let request = v1::ListRequest {
                    filter: Some(filter.clone()),
                    limit,
                    page_token,
                };
                let page = tasks.list(request).await.expect("list").into_inner();
                assert!(page.tasks.len() <= usize::try_from(limit).expect("small"));
                all.extend(page.tasks.iter().map(|task| task.id));
                page_token = page.next_page_token;
                if page_token.is_empty() {
                    return all;
                }
            }
        }
    };
    let newest_first: Vec<i64> = ids.iter().rev().copied().collect();
    assert_eq!(list(v1::TaskFilter::default(), 10).await, newest_first);
    let named = v1::TaskFilter {
        name: "five".into(),
        ..Default::default()
    };
    assert_eq!(list(named, 2).await.len(), 5);
    let tagged = v1::TaskFilter {
        tag: "even".into(),
        ..Default::default()
    };
    assert_eq!(list(tagged, 100).await.len(), 13);
    let cancelled = v1::TaskFilter {
        states: vec![S::Terminated.into()],
        ..Default::default()
    };
    assert_eq!(list(cancelled, 100).await, [ids[3]]);
    for (limit, token) in [(1_001, ""), (1, "x")] {
        let request = v1::ListRequest {
            filter: None,
            limit,
            page_token: token.into(),
        };
        let refused = replica.tasks().list(request).await.expect_err("refused");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    }
    replica.stop().await;
}

async fn a_watch_tells_every_end(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let request = v1::WatchRequest {
        ids: vec![id],
        ..Default::default()
    };
    let mut watch = replica.tasks().watch(request).await.expect("watch").into_inner();
    assert_eq!(
        watch
            .message()
            .await
            .expect("state")
            .and_then(|m| m.task)
            .expect("task")
            .state(),
        S::Queued
    );
    let matching = v1::WatchRequest::default();
    let mut all = replica.tasks().watch(matching).await.expect("watch").into_inner();
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    let result = runner.success(id);
    runner.ended(result).await;
    let mut last = S::Unspecified;
    while let Some(message) = watch.message().await.expect("state") {
        last = message.task.expect("task").state();
    }
    assert_eq!(last, S::Finished);
    let other = replica.submit(command(&["true"])).await;
    replica.cancel(other).await;
    loop {
        let task = all.message().await.expect("state").and_then(|m| m.task).expect("task");
        if task.id == other && task.state() == S::Terminated {
            break;
        }
    }
    let missing = v1::WatchRequest {
        ids: vec![9_999],
        ..Default::default()
    };
    let mut missing = replica.tasks().watch(missing).await.expect("watch").into_inner();
    assert_eq!(
        missing.message().await.expect_err("no such task").code(),
        tonic::Code::NotFound
    );
    drop((watch, all, missing));
    replica.stop().await;
}

async fn every_call_needs_a_token(db: TestDb) {
    use systole_tests::replica::Token;
    let replica = Replica::start(&db).await;
    let wrong = Token(Some("Bearer systole_admin_0000".parse().expect("header")));
    for token in [Token(None), wrong] {
        let mut tasks = replica.tasks_with(token);
        let refused = tasks.count(v1::CountRequest::default()).await.expect_err("refused");
        assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    }
    // A runner may beat, and nothing else.
    let mut tasks = replica.tasks_with(replica.runner_token());
    let refused = tasks.count(v1::CountRequest::default()).await.expect_err("refused");
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    replica.stop().await;
}

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

async fn a_task_whose_commit_came_late_is_claimed_within_a_second(db: TestDb) {
    // Behind the product's back: as if a slow transaction made a task with an old key QUEUED.
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.take().await;
    let result = runner.success(id);
    runner.ended(result).await;
    let lane = db.sql("SELECT lane_id FROM task LIMIT 1");
    db.sql(&format!(
        "INSERT INTO task (status, lane_id, priority, name, spec, submitted_by, created_at_ms, eligible_at_ms) \
         VALUES (2, {lane}, 5, 'late', '{{\"command\":[\"true\"],\"name\":\"late\",\"queue\":\"default\"}}', 'test', 1, 1)"
    ));
    assert_ne!(runner.take().await.task_id, id);
    replica.stop().await;
}

/// The pool's own `begin` must stay unused: nothing else guards a transaction that is dropped half-way.
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
