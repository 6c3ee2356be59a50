//! What survives the end of the process.

use crate::fake::{Fake, spec};
use systole_proto::v1::RunnerStatus;

#[tokio::test]
async fn a_result_survives_a_crash_of_the_runner() {
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
