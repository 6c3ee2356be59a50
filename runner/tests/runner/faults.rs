//! What a runner does on a host that can start nothing.

use crate::fake::{Fake, eventually, spec};
use std::fs::File;
use std::process::Command;
use systole_proto::v1;
use v1::RunnerStatus as R;

/// No task can have a folder any more, by whichever user this test runs.
fn break_folder(fake: &Fake) {
    let tasks = fake.data_dir().join("tasks");
    std::fs::rename(&tasks, fake.data_dir().join("away")).expect("the folder changes");
    std::fs::write(&tasks, "").expect("the folder changes");
}

fn mend_folder(fake: &Fake) {
    let tasks = fake.data_dir().join("tasks");
    std::fs::remove_file(&tasks).expect("the folder changes");
    std::fs::rename(fake.data_dir().join("away"), &tasks).expect("the folder changes");
}

#[tokio::test]
async fn a_host_that_cannot_begin_a_task_says_so_gives_it_back_and_heals_by_itself() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let beat = fake.beat_of(R::Idle).await;
    assert_eq!((beat.request.fault.clone(), beat.request.fault_no), (None, 0));
    break_folder(&fake);
    beat.run(1, &["true"]);
    let beat = fake.end().await;
    let result = beat.result();
    assert_eq!((result.kind.as_str(), result.started_at_ms), ("not_started", 0));
    // With the very beat that brings the task back.
    let fault = beat.request.fault.clone().expect("a fault");
    assert_eq!((fault.kind.as_str(), beat.request.fault_no), ("folder_unwritable", 1));
    assert!(
        fault.detail.contains(&fake.data_dir().display().to_string()),
        "{fault:?}"
    );
    assert!(result.message.contains(&fault.detail), "{}", result.message);
    beat.acknowledge();

    mend_folder(&fake);
    loop {
        let beat = fake.beat().await;
        if beat.request.fault.is_none() {
            assert_eq!((beat.status(), beat.request.fault_no), (R::Idle, 2));
            beat.run(2, &["true"]);
            break;
        }
        beat.go_on();
    }
    let beat = fake.end().await;
    assert_eq!((beat.result().task_id, beat.result().kind.as_str()), (2, "success"));
    beat.acknowledge();
}

#[tokio::test]
async fn a_parked_slot_tells_the_fault_that_another_one_met() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner_with(|config| config.slots = 2);
    let (one, two) = (fake.beat_of(R::Idle).await, fake.beat_of(R::Idle).await);
    assert_ne!(one.request.slot, two.request.slot);
    let parked = two.request.slot;
    break_folder(&fake);
    one.run(1, &["true"]);
    // Its own beat is never answered: it gives it up.
    loop {
        let beat = fake.beat().await;
        if beat.request.slot == parked {
            assert_eq!(
                beat.request.fault.as_ref().map(|fault| fault.kind.as_str()),
                Some("folder_unwritable")
            );
            break;
        }
        if beat.status() == R::Idle {
            beat.go_on()
        } else {
            beat.acknowledge()
        }
    }
    drop(two);
}

#[tokio::test]
async fn a_new_agent_learns_the_fault_from_the_warden() {
    let mut fake = Fake::start().await;
    let runner = fake.runner();
    let beat = fake.beat_of(R::Idle).await;
    break_folder(&fake);
    beat.run(1, &["true"]);
    fake.end().await.acknowledge();
    runner.crash().await;
    let _runner = fake.runner();
    loop {
        let beat = fake.beat().await;
        if beat.request.start_no == 2 {
            assert_eq!(beat.request.fault_no, 1, "with its first beat");
            assert!(beat.request.fault.is_some());
            break;
        }
    }
}

/// Kept in memory and reported meanwhile.
#[tokio::test]
async fn an_end_that_cannot_be_written_down_is_written_when_the_host_is_well_again() {
    let mut fake = Fake::start().await;
    let runner = fake.runner();
    let beat = fake.beat_of(R::Idle).await;
    break_folder(&fake);
    beat.run(1, &["true"]);
    let beat = fake.end().await;
    assert_eq!(beat.result().kind, "not_started");
    assert!(beat.request.fault.is_some());
    // Nobody acknowledges it.
    beat.go_on();
    mend_folder(&fake);
    loop {
        let beat = fake.end().await;
        if beat.request.fault.is_none() {
            break;
        }
        beat.go_on();
    }
    runner.crash().await;
    fake.end_warden();
    let _runner = fake.runner();
    loop {
        let beat = fake.end().await;
        if beat.request.start_no == 2 {
            assert_eq!((beat.result().task_id, beat.result().kind.as_str()), (1, "not_started"));
            beat.acknowledge();
            break;
        }
    }
    let tasks = fake.data_dir().join("tasks");
    eventually("nothing is left of it", || crate::fake::is_empty(&tasks)).await;
}

/// A file server that is gone: every call to it waits for ever. Here it is a file system in whose name nobody answers.
#[tokio::test]
async fn a_folder_that_never_answers_fails_its_task_and_holds_up_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let Ok(server) = File::options().read(true).write(true).open("/dev/fuse") else {
        println!("no file system without a server can be made here");
        return;
    };
    let mounted = Command::new("mount")
        .args([
            "-i",
            "-t",
            "fuse",
            "-o",
            "fd=0,rootmode=40000,user_id=0,group_id=0",
            "x",
        ])
        .arg(folder.path())
        .stdin(server.try_clone().unwrap())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("no file system without a server can be made here");
        return;
    }
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let dead = folder.path().join("dir").display().to_string();
    let in_dir = v1::TaskSpec {
        dir: dead.clone(),
        ..spec(&["true"])
    };
    let results = [
        fake.run(1, in_dir).await,
        fake.run(2, spec(&[&format!("{dead}/program")])).await,
        fake.run(3, spec(&["true"])).await,
    ];
    let left = Command::new("umount").arg("-l").arg(folder.path()).status();
    // Whoever waits is told that nobody will answer.
    drop(server);
    assert!(left.is_ok_and(|status| status.success()));
    let [dir, program, other] = results;
    for result in [dir, program] {
        assert_eq!(result.kind, "start_failed", "{result:?}");
        assert!(result.message.contains("does not answer on h"), "{}", result.message);
    }
    assert_eq!(other.kind, "success", "{other:?}");
}
