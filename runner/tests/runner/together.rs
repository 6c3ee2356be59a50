//! Idle slots beat together.

use crate::fake::{Beat, Fake};
use std::collections::BTreeSet;
use systole_proto::v1::{Command, RunnerStatus};
use tonic::Status;

/// One beat of each of `slots` slots, in their order.
async fn of_each(fake: &mut Fake, slots: u32) -> Vec<Beat> {
    let mut beats = Vec::new();
    for _ in 0..slots {
        beats.push(fake.beat().await);
    }
    beats.sort_by_key(|beat| beat.request.slot);
    let seen: BTreeSet<u32> = beats.iter().map(|beat| beat.request.slot).collect();
    assert_eq!(seen, (0..slots).collect());
    beats
}

/// Three slots whose beats wait in one call.
async fn three_together(fake: &mut Fake) -> Vec<Beat> {
    for beat in of_each(fake, 3).await {
        beat.go_on();
    }
    let beats = of_each(fake, 3).await;
    assert!(beats.iter().all(|beat| beat.request.park_ms > 1_000));
    beats
}

#[tokio::test]
async fn idle_slots_beat_in_one_call_after_each_has_beaten_by_itself() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner_with(|config| config.slots = 3);
    let beats = three_together(&mut fake).await;
    // The slots of a host beat for the first time within a moment; two calls if the machine had none to give.
    let together: usize = fake.rounds().iter().map(Vec::len).sum();
    assert!(together >= 2, "{:?}", fake.rounds());
    let seqs: Vec<u64> = beats.iter().map(|beat| beat.request.seq).collect();
    for beat in beats {
        beat.go_on();
    }
    let next = of_each(&mut fake, 3).await;
    assert!(next.iter().zip(seqs).all(|(beat, before)| beat.request.seq > before));
}

#[tokio::test]
async fn a_slot_that_is_given_a_task_leaves_the_others_waiting() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner_with(|config| config.slots = 3);
    let mut beats = three_together(&mut fake).await;
    let second = beats.remove(1);
    second.run(7, &["true"]);
    let ended = fake.beat().await;
    assert_eq!(
        (ended.status(), ended.request.slot, ended.request.task_id),
        (RunnerStatus::Finished, 1, 7)
    );
    ended.acknowledge();
    let idle = fake.beat().await;
    assert_eq!((idle.status(), idle.request.slot), (RunnerStatus::Idle, 1));
    assert!(
        idle.request.park_ms <= beats[0].request.park_ms,
        "until the end of the same round"
    );
    // The two others are still heard.
    beats.remove(0).run(8, &["true"]);
    let ended = fake.beat().await;
    assert_eq!(
        (ended.status(), ended.request.slot, ended.request.task_id),
        (RunnerStatus::Finished, 0, 8)
    );
}

#[tokio::test]
async fn a_beat_that_is_refused_among_others_is_sent_by_itself() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner_with(|config| config.slots = 3);
    let mut beats = three_together(&mut fake).await;
    let (before, rounds) = (beats[2].request.seq, fake.rounds().len());
    beats.remove(2).refuse(Status::already_exists("another process"));
    let again = fake.beat().await;
    assert_eq!((again.request.slot, again.request.seq), (2, before + 1));
    assert_eq!(fake.rounds().len(), rounds, "by itself");
    again.run(7, &["true"]);
    assert_eq!(fake.beat_of(RunnerStatus::Finished).await.request.task_id, 7);
}

#[tokio::test]
async fn slots_beat_by_themselves_where_the_scheduler_knows_no_other_way() {
    let mut fake = Fake::start().await;
    fake.forget_rounds();
    let _runner = fake.runner_with(|config| config.slots = 3);
    let mut beats = three_together(&mut fake).await;
    assert!(fake.rounds().is_empty());
    assert!(beats.iter().all(|beat| beat.request.unanswered == 0));
    beats.remove(0).answer(|answer| {
        assert_eq!(answer.command(), Command::GoOn);
        crate::fake::order_run(answer, 7, crate::fake::spec(&["true"]));
    });
    assert_eq!(fake.beat().await.request.task_id, 7);
}

#[tokio::test]
async fn a_shutdown_is_told_at_once_by_slots_that_wait_together() {
    let mut fake = Fake::start().await;
    let mut runner = fake.runner_with(|config| config.slots = 3);
    let beats = three_together(&mut fake).await;
    runner.shut_down();
    for beat in of_each(&mut fake, 3).await {
        assert!(beat.request.leaving);
        beat.go_on();
    }
    runner.left().await;
    drop(beats);
}
