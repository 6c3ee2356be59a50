//! What the runner says and obeys.

use crate::fake::{Fake, eventually, is_empty, order_run, spec};
use std::time::Duration;
use systole_proto::v1::{self, ResetReason, RunnerStatus, StoppedBy};
use systole_runner::RunnerError;
use tonic::Status;

#[tokio::test]
async fn a_task_runs_from_its_order_to_its_acknowledgement() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let idle = fake.beat().await;
    let said = &idle.request;
    assert_eq!(
        (said.status(), said.task_id, said.host.as_str(), said.slot),
        (RunnerStatus::Idle, 0, "h", 0)
    );
    assert_eq!(
        (said.start_no, said.unanswered, said.leaving, said.park_ms, said.slots),
        (1, 0, false, 30_000, 1)
    );
    assert!(said.seq > 0 && said.sent_at_ms > 0 && !said.boot_id.is_empty() && !said.instance_id.is_empty());
    assert_eq!(
        (said.version.as_str(), said.queues.as_slice()),
        (env!("CARGO_PKG_VERSION"), &["default".to_owned()][..])
    );
    assert!(said.labels.len() == 1 && said.host_facts.contains("\"system\":\"Linux "));
    let seq = said.seq;
    idle.run(7, &["sh", "-c", "echo hi; echo oops >&2"]);

    let beat = fake.end().await;
    assert_eq!(
        (beat.status(), beat.request.task_id, beat.request.max_task_id),
        (RunnerStatus::Finished, 7, 7)
    );
    assert!(beat.request.seq > seq);
    let result = beat.result().clone();
    assert_eq!(
        (result.kind.as_str(), result.exit_code, result.signal),
        ("success", Some(0), None)
    );
    assert_eq!(
        (result.dispatched_start_no, result.stdout_bytes, result.stderr_bytes),
        (1, 3, 5)
    );
    assert!(result.started_at_ms > 0 && result.ended_at_ms >= result.started_at_ms);
    assert_eq!(result.stopped_by(), StoppedBy::Unspecified);
    assert_eq!(fake.stdout(&result), "hi\n");
    let journal = std::fs::read_to_string(fake.data_dir().join("tasks/7/journal")).unwrap();
    assert!(journal.contains(r#"{"end":"#), "it is on disk before it is reported");
    beat.acknowledge();

    let idle = fake.beat().await;
    assert_eq!((idle.status(), idle.request.results.len()), (RunnerStatus::Idle, 0));
    let tasks = fake.data_dir().join("tasks");
    eventually("the directory of an acknowledged task goes", || is_empty(&tasks)).await;
}

#[tokio::test]
async fn a_result_is_delivered_again_until_it_is_acknowledged() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    fake.beat().await.run(7, &["false"]);
    let first = fake.end().await;
    let (result, seq) = (first.result().clone(), first.request.seq);
    first.refuse(Status::unavailable("cannot commit"));
    let second = fake.beat().await;
    assert_eq!(second.result(), &result);
    assert_eq!((second.request.unanswered, second.request.park_ms), (1, 0));
    assert!(second.request.seq > seq);
    // Another cluster cannot acknowledge it, and a GO_ON does not.
    second.answer(|answer| {
        answer.cluster_id = "other".into();
        answer.acknowledged = vec![7];
    });
    let third = fake.beat().await;
    assert_eq!((third.result(), third.request.unanswered), (&result, 0));
    third.acknowledge();
    assert_eq!(fake.beat().await.status(), RunnerStatus::Idle);
}

#[tokio::test]
async fn one_answer_acknowledges_a_task_and_brings_the_next() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    fake.beat().await.run(7, &["true"]);
    fake.end().await.answer(|answer| {
        answer.acknowledged = vec![7];
        order_run(answer, 8, spec(&["true"]));
    });
    let beat = fake.end().await;
    assert_eq!((beat.request.task_id, beat.request.results.len()), (8, 1));
}

#[tokio::test]
async fn a_result_goes_on_being_reported_beside_the_next_task() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    fake.beat().await.run(7, &["true"]);
    fake.end().await.run(8, &["sleep", "300"]);
    let beat = fake.beat().await;
    assert_eq!((beat.status(), beat.request.task_id), (RunnerStatus::Running, 8));
    assert_eq!(beat.request.command_line, "sleep 300");
    assert_eq!(beat.request.results.iter().map(|r| r.task_id).collect::<Vec<_>>(), [7]);
    beat.answer(|answer| answer.acknowledged = vec![7]);
    let beat = fake.beat().await;
    assert!(beat.request.results.is_empty());
    beat.reset(8, ResetReason::Stop);
    assert_eq!(fake.end().await.request.task_id, 8);
}

#[tokio::test]
async fn an_answer_to_an_old_seq_is_dropped() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    fake.beat().await.go_on();
    fake.beat().await.answer(|answer| {
        answer.seq -= 1;
        order_run(answer, 7, spec(&["true"]));
    });
    let beat = fake.beat().await;
    assert_eq!((beat.status(), beat.request.max_task_id), (RunnerStatus::Idle, 0));
    assert!(is_empty(&fake.data_dir().join("tasks")));
}

#[tokio::test]
async fn the_same_order_again_starts_nothing() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    fake.beat().await.run(7, &["sleep", "300"]);
    fake.beat_of(RunnerStatus::Running).await.run(7, &["sleep", "300"]);
    let beat = fake.beat().await;
    assert_eq!((beat.status(), beat.request.task_id), (RunnerStatus::Running, 7));
    beat.reset(7, ResetReason::Stop);
    assert_eq!(fake.end().await.result().signal, Some(15));
}

#[tokio::test]
async fn reset_stop_ends_the_child_and_its_true_end_is_reported() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    fake.beat().await.run(7, &["sleep", "300"]);
    fake.beat_of(RunnerStatus::Running).await.reset(7, ResetReason::Stop);
    let beat = fake.end().await;
    let result = beat.result();
    assert_eq!(
        (beat.status(), result.kind.as_str(), result.signal),
        (RunnerStatus::Failed, "signal", Some(15))
    );
    assert_eq!((result.exit_code, result.stopped_by()), (None, StoppedBy::Reset));
}

#[tokio::test]
async fn reset_unknown_keeps_the_result_aside_and_reports_nothing() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    fake.beat().await.run(7, &["sh", "-c", "echo kept; exec sleep 300"]);
    fake.beat_of(RunnerStatus::Running).await.reset(7, ResetReason::Unknown);
    let beat = fake.beat_of(RunnerStatus::Idle).await;
    assert!(beat.request.results.is_empty());
    let aside = fake.data_dir().join("unclaimed/7");
    eventually("it is aside", || aside.join("journal").exists()).await;
    assert_eq!(std::fs::read_to_string(aside.join("stdout")).unwrap(), "kept\n");
    assert!(is_empty(&fake.data_dir().join("tasks")));

    // The same for a child that has ended.
    beat.run(8, &["true"]);
    fake.end().await.reset(8, ResetReason::Unknown);
    assert_eq!(fake.beat().await.status(), RunnerStatus::Idle);
    let aside = fake.data_dir().join("unclaimed/8");
    eventually("it is aside", || aside.exists()).await;
}

#[tokio::test]
async fn wrong_cluster_reset_is_ignored() {
    let mut fake = Fake::start().await;
    // Two ways to the same fake, so that the next address is another connection.
    let _runner = fake.runner_with(|c| c.urls.push(c.urls[0].clone()));
    fake.beat()
        .await
        .run(7, &["sh", "-c", "trap 'exit 3' TERM; sleep 300 & wait"]);
    fake.beat_of(RunnerStatus::Running).await.answer(|answer| {
        answer.cluster_id = "other".into();
        answer.command = v1::Command::Reset.into();
        answer.reset = Some(v1::Reset {
            task_id: 7,
            reason: ResetReason::Unknown.into(),
        });
    });
    // It is still there for the cluster that dispatched it.
    let beat = fake.beat().await;
    assert_eq!((beat.status(), beat.request.task_id), (RunnerStatus::Running, 7));
    beat.reset(7, ResetReason::Stop);
    let end = fake.end().await;
    assert_eq!(
        (end.result().kind.as_str(), end.result().exit_code),
        ("exit_code", Some(3))
    );
}

#[tokio::test]
async fn an_address_that_does_not_answer_is_passed_over_and_told() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner_with(|c| c.urls.insert(0, "http://127.0.0.1:1".into()));
    let beat = fake.beat().await;
    assert_eq!((beat.request.unanswered, beat.request.park_ms), (1, 0));
    beat.go_on();
    let beat = fake.beat().await;
    assert_eq!((beat.request.unanswered, beat.request.park_ms), (0, 30_000));
}

#[tokio::test]
async fn a_runner_whose_id_is_taken_waits() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    fake.beat()
        .await
        .refuse(Status::already_exists("held by another process"));
    let waited = std::time::Instant::now();
    let beat = fake.beat().await;
    assert!(waited.elapsed() > Duration::from_secs(3));
    assert_eq!((beat.status(), beat.request.unanswered), (RunnerStatus::Idle, 0));
}

#[tokio::test]
async fn an_idle_slot_leaves_when_it_was_told_go_on() {
    let mut fake = Fake::start().await;
    let mut runner = fake.runner_with(|c| c.slots = 3);
    let parked = [fake.beat().await, fake.beat().await, fake.beat().await];
    runner.shut_down();
    for _ in 0..3 {
        let beat = fake.beat().await;
        assert!(beat.request.leaving && beat.request.park_ms == 0);
        beat.go_on();
    }
    runner.left().await;
    drop(parked);
}

#[tokio::test]
async fn a_task_that_crosses_with_the_shutdown_is_not_started() {
    let mut fake = Fake::start().await;
    let mut runner = fake.runner();
    let _parked = fake.beat().await;
    runner.shut_down();
    fake.beat().await.run(7, &["true"]);
    let beat = fake.beat().await;
    let result = beat.result();
    assert_eq!(
        (beat.status(), result.kind.as_str()),
        (RunnerStatus::Failed, "not_started")
    );
    assert_eq!(
        (result.message.as_str(), result.started_at_ms),
        ("the runner was shutting down", 0)
    );
    beat.acknowledge();
    let beat = fake.beat().await;
    assert!(beat.request.leaving);
    beat.go_on();
    runner.left().await;
}

#[tokio::test]
async fn a_shutdown_stops_the_child_and_delivers_its_result() {
    let mut fake = Fake::start().await;
    let mut runner = fake.runner();
    fake.beat().await.run(7, &["sleep", "300"]);
    fake.beat_of(RunnerStatus::Running).await.go_on();
    runner.shut_down();
    let beat = fake.end().await;
    assert!(beat.request.leaving);
    assert_eq!(
        (beat.result().signal, beat.result().stopped_by()),
        (Some(15), StoppedBy::Drain)
    );
    beat.acknowledge();
    fake.beat_of(RunnerStatus::Idle).await.go_on();
    runner.left().await;
}

#[tokio::test]
async fn a_second_process_on_the_same_directory_is_refused() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    fake.beat().await.go_on();
    let refused = Box::pin(systole_runner::run(fake.config(), systole_runner::Shutdown::new()))
        .await
        .unwrap_err();
    assert!(matches!(refused, RunnerError::DataDirInUse(_)), "{refused}");
}
