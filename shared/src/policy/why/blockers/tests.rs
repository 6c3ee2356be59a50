use super::*;
use crate::id::{RunnerId, Target};
use crate::job::Blocking;
use crate::policy::freeze::{Freeze, Scope};
use crate::policy::lane::Labels;
use crate::policy::why::{Cordon, Fault, RunnerView, Wanted};
use crate::task::TaskState;
use std::collections::HashSet;

const NOW: i64 = 10_000_000;

fn runner(host: &str, slot: u32) -> RunnerView {
    RunnerView::ready(RunnerId::new(host, slot))
}

fn busy_with(task: i64, since_ms: i64, host: &str, slot: u32) -> RunnerView {
    RunnerView {
        busy: Some((task, since_ms)),
        ..runner(host, slot)
    }
}

fn ask(require: &[(&str, &str)], target: Option<&str>, runners: &[RunnerView], before: u64) -> Vec<Blocker> {
    let require: Labels = require
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let target = target.map(|target| Target::parse(target, "runner").expect("valid"));
    queued(&Queued {
        wanted: Wanted {
            queue: "default",
            require: &require,
            target: target.as_ref(),
        },
        runners,
        freezes: Vec::new(),
        ahead: &HashSet::from(["ahead".to_owned()]),
        before,
        now_ms: NOW,
    })
}

fn said(blockers: &[Blocker]) -> Vec<(&'static str, &str, &str)> {
    blockers
        .iter()
        .map(|blocker| (blocker.kind.name(), blocker.message.as_str(), blocker.command.as_str()))
        .collect()
}

#[test]
fn every_blocker_of_a_queued_task_is_named_with_what_lifts_it() {
    let mut cordoned = runner("db-01", 0);
    cordoned.cordon = Some(Cordon {
        by: "ann".into(),
        reason: "kernel".into(),
        since_ms: Some(5),
        until_ms: Some(NOW + 5),
    });
    let mut full = runner("db-02", 0);
    full.fault = Some(Fault {
        kind: "disk_full".into(),
        detail: "8K are free".into(),
        since_ms: Some(7),
    });
    let lost = RunnerView {
        live: false,
        seen_ms: 9,
        ..runner("db-03", 0)
    };
    let left = RunnerView {
        live: false,
        left: true,
        seen_ms: 8,
        ..runner("db-04", 0)
    };
    let all = [
        cordoned,
        full,
        lost,
        left,
        runner("ahead", 0),
        busy_with(1830, NOW - 720_000, "etl", 0),
        busy_with(1840, NOW - 60_000, "etl", 1),
    ];
    let found = ask(&[], None, &all, 3);
    assert_eq!(
        said(&found),
        [
            (
                "busy",
                "all 2 slots that may take it are busy; the longest with task 1830, for 12m00s",
                "systole cancel 1830"
            ),
            (
                "backlog",
                "3 tasks that wait are taken before it",
                "systole ls --state queued"
            ),
            (
                "cordoned",
                "db-01 cordoned by ann, \"kernel\"",
                "systole runners uncordon db-01"
            ),
            ("faulty", "db-02 can start nothing: disk full (8K are free)", ""),
            (
                "restored",
                "the database was set back, and these hosts have held newer tasks than it knows: ahead",
                "systole admin confirm restore"
            ),
            (
                "runner_lost",
                "db-03 could take it and is lost",
                "systole runners rm db-03"
            ),
            ("runner_left", "db-04 could take it and was shut down", ""),
        ]
    );
    assert_eq!((found[2].since_ms, found[2].until_ms), (Some(5), Some(NOW + 5)));
    assert_eq!(found[2].needs, Some(Needs::Operate));
    assert_eq!(found[4].needs, Some(Needs::Administer));
    // One that is free ends all of that.
    let free = [all.to_vec(), vec![runner("new", 0)]].concat();
    assert_eq!(ask(&[], None, &free, 3), []);
}

#[test]
fn a_missing_label_names_the_host_that_had_it() {
    let with = |mut runner: RunnerView| {
        runner.labels = Labels::from([("gpu".into(), "1".into())]);
        runner
    };
    let lost = RunnerView {
        live: false,
        seen_ms: 411,
        ..with(runner("gpu-03", 0))
    };
    let found = ask(&[("gpu", "1")], None, &[runner("db-01", 0), lost], 0);
    assert_eq!(
        said(&found),
        [
            (
                "no_runner",
                "no live runner has gpu=1",
                "systole runner --url URL --label gpu=1"
            ),
            (
                "runner_lost",
                "gpu-03 has gpu=1 and is lost",
                "systole runners rm gpu-03"
            ),
        ]
    );
    assert_eq!(found[1].since_ms, Some(411));
    let found = ask(&[], Some("gpu-03"), &[], 0);
    assert_eq!(
        said(&found),
        [(
            "no_runner",
            "no runner gpu-03 is known",
            "systole runner --url URL --name gpu-03"
        )]
    );
}

#[test]
fn single_slots_are_uncordoned_as_such() {
    let mut one = runner("db-01", 1);
    one.cordon = Some(Cordon::default());
    let found = ask(&[], None, &[one, busy_with(7, 0, "db-01", 0)], 0);
    assert_eq!(
        said(&found)[1],
        ("cordoned", "db-01/1 cordoned", "systole runners uncordon db-01/1")
    );
    assert!(
        found[0]
            .message
            .starts_with("the only slot that may take it is busy with task 7")
    );
}

#[test]
fn what_is_named_is_bounded_and_the_rest_is_counted() {
    let many: Vec<RunnerView> = (0..500)
        .map(|n| RunnerView {
            cordon: Some(Cordon::default()),
            ..runner(&format!("h{n:03}"), 0)
        })
        .collect();
    let found = ask(&[], None, &many, BEFORE_MAX);
    assert_eq!(found.len(), 1 + NAMED_MAX + 1);
    assert_eq!(
        found.last().map(|b| b.message.as_str()),
        Some("490 more hosts are cordoned")
    );
    assert_eq!(found[0].message, "10000 tasks that wait, or more, are taken before it");
}

fn holder(task: i64, state: TaskState) -> Holder {
    Holder {
        task,
        job: "etl.load".into(),
        state,
        runner: "db-01/0".into(),
        lost: None,
        since_ms: Some(3),
        run_at_ms: None,
    }
}

#[test]
fn a_run_that_waits_for_its_place_names_who_has_it() {
    let running = [holder(1846, TaskState::Running)];
    let mut question = Held {
        job: "etl.load",
        blocking: Blocking::Serial,
        holders: &running,
        before: 0,
        first: None,
        group: None,
    };
    assert_eq!(
        said(&held(&question)),
        [(
            "place",
            "job etl.load is serial: 1846 is RUNNING on db-01/0",
            "systole cancel 1846"
        )]
    );
    (question.before, question.first) = (2, Some(1847));
    assert_eq!(
        said(&held(&question))[1],
        (
            "behind",
            "2 runs of job etl.load wait before it, 1847 first",
            "systole cancel 1847"
        )
    );
    // A free place: it is being given to the first that waits.
    question.blocking = Blocking::Concurrent(2);
    (question.before, question.first) = (0, None);
    assert_eq!(held(&question), []);
    let group = [holder(12, TaskState::Running), holder(14, TaskState::Queued)];
    question.group = Some(("nightly", 2, &group));
    assert_eq!(
        said(&held(&question)),
        [
            (
                "group",
                "concurrency group nightly has all of its 2 places taken: 12 of job etl.load is RUNNING on db-01/0",
                "systole cancel 12"
            ),
            (
                "group",
                "concurrency group nightly has all of its 2 places taken: 14 of job etl.load is QUEUED on db-01/0",
                "systole cancel 14"
            ),
        ]
    );
}

#[test]
fn a_place_without_proof_is_freed_by_its_host_or_by_a_person() {
    let mut lost = holder(9, TaskState::Failed);
    lost.lost = Some(("db-02/1".into(), Some(44)));
    let found = held(&Held {
        job: "a",
        blocking: Blocking::Serial,
        holders: &[lost],
        before: 0,
        first: None,
        group: None,
    });
    assert_eq!(
        said(&found),
        [(
            "unproven",
            "job a is serial: 9 on db-02/1 is lost, and nobody saw its processes end",
            "systole runners rm db-02 --dead"
        )]
    );
    assert_eq!(found[0].since_ms, Some(44));
}

#[test]
fn a_time_that_has_not_come_and_a_clock_that_is_not_believed_both_hold_a_task() {
    let found = delayed(5, NOW + 60_000, None, NOW, None);
    assert_eq!(
        said(&found),
        [("delayed", "its time has not come: 1m00s from now", "systole cancel 5")]
    );
    assert_eq!(found[0].until_ms, Some(NOW + 60_000));
    let found = delayed(5, NOW + 1_000, Some(4), NOW, Some(("the clock jumped", 1)));
    assert_eq!(found[0].kind, BlockerKind::RetryDelay);
    assert_eq!(
        said(&found)[1],
        ("clock", "the clock jumped", "systole admin confirm clock")
    );
    // Its time has come: the admission is under way.
    assert_eq!(delayed(5, NOW, None, NOW, None), []);
}

#[test]
fn a_silent_runner_and_the_brake_are_told() {
    let mut at = AtRunner {
        state: TaskState::Running,
        runner: "db-01/0",
        seen_ms: Some(1),
        silent: false,
        withheld: false,
        dispatched_ms: Some(0),
        lost_after_ms: 60_000,
    };
    assert_eq!(at_runner(&at), []);
    (at.silent, at.withheld, at.state) = (true, true, TaskState::Terminating);
    let kinds: Vec<&str> = at_runner(&at).iter().map(|blocker| blocker.kind.name()).collect();
    assert_eq!(kinds, ["ending", "runner_silent", "brake"]);
    assert!(
        at_runner(&at)[2]
            .advice
            .ends_with("verdicts come 10m00s after the silence began")
    );
    (at.silent, at.withheld, at.state) = (false, false, TaskState::Dispatched);
    assert_eq!(at_runner(&at)[0].kind, BlockerKind::Unreported);
}

#[test]
fn names_of_kinds_are_unique() {
    let names: HashSet<&str> = BlockerKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(names.len(), BlockerKind::ALL.len());
}

#[test]
fn a_freeze_holds_a_task_though_a_runner_is_free() {
    let freeze = Freeze {
        scope: Scope::Queue("default".into()),
        by: "ann".into(),
        reason: "CHG-1042".into(),
        since_ms: 3,
        until_ms: Some(NOW + 5),
        ended_ms: None,
    };
    let found = queued(&Queued {
        wanted: Wanted {
            queue: "default",
            require: &Labels::new(),
            target: None,
        },
        runners: &[runner("a", 0)],
        freezes: vec![&freeze],
        ahead: &HashSet::new(),
        before: 0,
        now_ms: NOW,
    });
    assert_eq!(
        said(&found),
        [(
            "frozen",
            "queue default is frozen by ann, \"CHG-1042\"",
            "systole resume --queue default"
        )]
    );
    assert_eq!((found[0].since_ms, found[0].until_ms), (Some(3), Some(NOW + 5)));
}
