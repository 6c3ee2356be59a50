//! What survives the end of an agent, and of a warden.

use crate::fake::{Fake, eventually, processes_with, spec};
use std::time::Duration;
use systole_proto::v1::{self, OnDisconnect, OnRunnerRestart, RunnerStatus, StoppedBy};

fn shell(script: &str) -> v1::TaskSpec {
    spec(&["/bin/sh", "-c", script])
}

fn marked(mut spec: v1::TaskSpec, case: &str) -> v1::TaskSpec {
    spec.env = vec![v1::EnvVar {
        name: "CASE".into(),
        value: case.into(),
    }];
    spec
}

/// The first beat of this start.
async fn beat_of_start(fake: &mut Fake, start_no: u64) -> crate::fake::Beat {
    loop {
        let beat = fake.beat().await;
        if beat.request.start_no == start_no {
            return beat;
        }
        assert!(beat.request.start_no < start_no);
    }
}

#[tokio::test]
async fn a_result_survives_a_crash_of_the_agent() {
    let mut fake = Fake::start().await;
    let runner = fake.runner();
    fake.beat().await.run(7, &["sh", "-c", "echo out; exit 3"]);
    let beat = fake.end().await;
    let (result, instance_id) = (beat.result().clone(), beat.request.instance_id.clone());
    runner.crash().await;
    drop(beat);

    let _runner = fake.runner();
    let beat = fake.end().await;
    assert_eq!((beat.request.start_no, &beat.request.instance_id), (2, &instance_id));
    // The same in every word, with the start that it was dispatched to.
    assert_eq!(beat.result(), &result);
    assert_eq!(
        (beat.result().dispatched_start_no, fake.stdout(beat.result()).as_str()),
        (1, "out\n")
    );
    assert_eq!(beat.request.max_task_id, 7);
    beat.acknowledge();
    assert_eq!(fake.beat().await.status(), RunnerStatus::Idle);
}

#[tokio::test]
async fn a_result_survives_a_crash_of_agent_and_warden() {
    let mut fake = Fake::start().await;
    let runner = fake.runner();
    fake.beat().await.run(7, &["sh", "-c", "echo out; exit 3"]);
    let beat = fake.end().await;
    let result = beat.result().clone();
    runner.crash().await;
    fake.end_warden();
    drop(beat);

    let _runner = fake.runner();
    let beat = fake.end().await;
    assert_eq!((beat.request.start_no, beat.result()), (2, &result));
    beat.acknowledge();
}

#[tokio::test]
async fn a_running_child_is_taken_over_with_its_output_and_its_true_end() {
    let mut fake = Fake::start().await;
    let mut runner = fake.runner();
    let go = fake.dir.path().join("go");
    let script = format!(
        "echo before; until [ -e {} ]; do sleep 0.02; done; echo after; exit 9",
        go.display()
    );
    let mut parked = fake.beat().await;
    for (start_no, hand_over) in [(1, false), (2, true), (3, false)] {
        match parked.status() {
            RunnerStatus::Idle => parked.run_spec(7, shell(&script)),
            _ => parked.go_on(),
        }
        let beat = fake.beat_of(RunnerStatus::Running).await;
        assert_eq!((beat.request.start_no, beat.request.task_id), (start_no, 7));
        if hand_over {
            runner.hand_over();
            runner.left().await;
        } else {
            runner.crash().await;
        }
        drop(beat);
        runner = fake.runner();
        parked = beat_of_start(&mut fake, start_no + 1).await;
        assert_eq!((parked.status(), parked.request.task_id), (RunnerStatus::Running, 7));
    }
    std::fs::write(&go, "").unwrap();
    parked.go_on();
    let end = fake.end().await;
    let result = end.result().clone();
    assert_eq!(
        (result.exit_code, result.stopped_by(), result.dispatched_start_no),
        (Some(9), StoppedBy::Unspecified, 1)
    );
    assert_eq!(fake.stdout(&result), "before\nafter\n");
    end.acknowledge();
}

#[tokio::test]
async fn a_taken_over_child_can_be_stopped() {
    let mut fake = Fake::start().await;
    let runner = fake.runner();
    fake.beat().await.run(7, &["sleep", "300"]);
    fake.beat_of(RunnerStatus::Running).await.go_on();
    runner.crash().await;
    let _runner = fake.runner();
    beat_of_start(&mut fake, 2).await.reset(7, v1::ResetReason::Stop);
    let end = fake.end().await;
    assert_eq!(
        (end.result().signal, end.result().stopped_by()),
        (Some(15), StoppedBy::Reset)
    );
}

#[tokio::test]
async fn the_run_timeout_goes_on_while_no_agent_is_there() {
    let mut fake = Fake::start().await;
    let runner = fake.runner();
    let mut slow = marked(shell("exec sleep 300"), "alone");
    slow.timeout_ms = 600;
    fake.beat().await.run_spec(7, slow);
    let beat = fake.beat_of(RunnerStatus::Running).await;
    runner.crash().await;
    drop(beat);
    eventually("the child is ended", || processes_with("CASE=alone") == 0).await;
    let _runner = fake.runner();
    let end = fake.end().await;
    assert_eq!(
        (end.result().signal, end.result().stopped_by()),
        (Some(15), StoppedBy::Timeout)
    );
}

#[tokio::test]
async fn a_child_that_is_not_to_be_taken_over_is_ended_by_the_next_agent() {
    let mut fake = Fake::start().await;
    let runner = fake.runner();
    let mut task = shell("exec sleep 300");
    task.on_runner_restart = OnRunnerRestart::Kill.into();
    fake.beat().await.run_spec(7, task);
    let beat = fake.beat_of(RunnerStatus::Running).await;
    runner.crash().await;
    drop(beat);
    let _runner = fake.runner();
    let end = fake.end().await;
    assert_eq!(end.result().stopped_by(), StoppedBy::RunnerRestart);
}

#[tokio::test]
async fn the_death_of_the_warden_takes_the_child_with_it_and_is_told() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    fake.beat()
        .await
        .run_spec(7, marked(shell("setsid sleep 300 & sleep 300"), "orphaned"));
    fake.beat_of(RunnerStatus::Running).await.go_on();
    eventually("both are there", || processes_with("CASE=orphaned") >= 2).await;
    fake.end_warden();
    fake.start_warden();
    let end = fake.end().await;
    assert_eq!(
        (end.result().kind.as_str(), end.request.start_no),
        ("runner_restarted", 1),
        "the agent went on"
    );
    assert_eq!(processes_with("CASE=orphaned"), 0);
    end.acknowledge();
    // The slot goes on with the new warden.
    assert_eq!(fake.run(8, spec(&["true"])).await.kind, "success");
}

#[tokio::test]
async fn a_fenced_child_is_ended_when_the_cluster_has_not_heard_of_it() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner_with(|c| c.kill_grace = Duration::from_millis(100));
    let mut task = marked(shell("exec sleep 300"), "fenced");
    task.on_disconnect = OnDisconnect::Kill.into();
    // The interval that the fence is reckoned from is what the scheduler says first.
    fake.beat().await.answer(|answer| {
        answer.beat_interval_ms = 1_000;
    });
    fake.beat().await.answer(|answer| {
        answer.beat_interval_ms = 1_000;
        crate::fake::order_run(answer, 7, task);
    });
    let running = fake.beat_of(RunnerStatus::Running).await;
    assert!(running.request.park_ms <= 334, "{}", running.request.park_ms);
    running.answer(|answer| answer.beat_interval_ms = 1_000);
    for _ in 0..12 {
        let beat = fake.beat_of(RunnerStatus::Running).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        beat.answer(|answer| answer.beat_interval_ms = 1_000);
    }
    assert_eq!(processes_with("CASE=fenced"), 1, "in touch it lives on");
    // From here on nobody answers.
    let mut silent = Vec::new();
    let since = std::time::Instant::now();
    let end = loop {
        let beat = fake.beat().await;
        if beat.status() == RunnerStatus::Failed {
            break beat;
        }
        silent.push(beat);
    };
    assert_eq!(
        (end.result().signal, end.result().stopped_by()),
        (Some(15), StoppedBy::Fence)
    );
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_slot_that_is_not_offered_any_more_delivers_and_leaves() {
    let mut fake = Fake::start().await;
    let runner = fake.runner_with(|c| c.slots = 2);
    let mut parked = Vec::new();
    let (first, second) = (fake.beat().await, fake.beat().await);
    for beat in [first, second] {
        if beat.request.slot == 1 {
            beat.run_spec(7, spec(&["true"]))
        } else {
            parked.push(beat)
        }
    }
    let beat = fake.end().await;
    assert_eq!(beat.request.slot, 1);
    runner.crash().await;

    let mut runner = fake.runner();
    let mut delivered = false;
    while !delivered {
        let beat = fake.beat().await;
        match (beat.request.slot, beat.status()) {
            (1, RunnerStatus::Finished) => {
                assert!(beat.request.leaving);
                beat.acknowledge();
            }
            (1, RunnerStatus::Idle) => {
                assert!(beat.request.leaving);
                beat.go_on();
                delivered = true;
            }
            _ => parked.push(beat),
        }
    }
    runner.shut_down();
    let last = fake.beat().await;
    assert_eq!(last.request.slot, 0, "the other slot has left");
    last.go_on();
    runner.left().await;
}
