//! What a task waits for and who can lift it, and what became of one that has ended.

use super::jobs::{apply, job, put, start};
use serde_json::json;
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_queued_task_names_the_cordon_the_busy_slot_and_what_comes_before_it,
    a_label_that_nobody_has_is_named_with_the_host_that_had_it,
    a_run_that_waits_for_its_place_names_the_run_that_has_it,
    a_full_group_names_the_runs_of_other_jobs,
    a_delayed_task_and_a_jumped_clock_are_told,
    an_ended_task_tells_its_chain_and_who_cancelled_it,
    a_task_at_a_silent_runner_says_so,
    a_task_that_is_not_there_is_refused,
);

async fn explain(replica: &Replica, task_id: i64) -> v1::ExplainResponse {
    let request = v1::ExplainRequest { task_id };
    replica.tasks().explain(request).await.expect("explained").into_inner()
}

fn said(explained: &v1::ExplainResponse) -> Vec<(&str, &str, &str)> {
    explained
        .blockers
        .iter()
        .map(|blocker| {
            (
                blocker.kind.as_str(),
                blocker.message.as_str(),
                blocker.command.as_str(),
            )
        })
        .collect()
}

/// Nobody is lost by itself.
async fn patient(db: &TestDb) -> Replica {
    let mut config = Replica::config(db);
    config.timing.lost_after = Duration::from_secs(600);
    Replica::start_with(config).await
}

async fn a_queued_task_names_the_cordon_the_busy_slot_and_what_comes_before_it(db: TestDb) {
    let replica = patient(&db).await;
    let mut runner = SimRunner::new(&replica, "etl", 0);
    let running = replica.submit(command(&["true"])).await;
    assert_eq!(runner.take().await.task_id, running);
    runner.running(running).await;
    SimRunner::new(&replica, "db-01", 0).idle().await;
    let cordon = v1::CordonRequest {
        runners: vec!["db-01".into()],
        reason: "kernel".into(),
        for_ms: 3_600_000,
        ..v1::CordonRequest::default()
    };
    replica.admin().cordon(cordon).await.expect("cordon");
    let urgent = v1::TaskSpec {
        priority: Some(9),
        ..command(&["true"])
    };
    replica.submit(urgent).await;
    replica.submit(command(&["true"])).await;
    // Of another queue: nobody who could take ours takes it.
    let elsewhere = v1::TaskSpec {
        queue: "elsewhere".into(),
        priority: Some(9),
        ..command(&["true"])
    };
    replica.submit(elsewhere).await;
    let task = replica.submit(command(&["true"])).await;
    let explained = until("both hosts are seen", || async {
        let explained = explain(&replica, task).await;
        (explained.blockers.len() == 3).then_some(explained)
    })
    .await;
    let said = said(&explained);
    assert_eq!(
        (said[0].0, said[0].2),
        ("busy", format!("systole cancel {running}").as_str())
    );
    assert_eq!(said[1].1, "2 tasks that wait are taken before it");
    assert_eq!(
        said[2],
        (
            "cordoned",
            "db-01 cordoned by admin, \"kernel\"",
            "systole runners uncordon db-01"
        )
    );
    let cordoned = &explained.blockers[2];
    assert_eq!(cordoned.roles, "operator or admin");
    // Two looks at the clock in one transaction.
    let lasts = cordoned.until_ms - cordoned.since_ms;
    assert!((3_590_000..=3_600_000).contains(&lasts), "{lasts}");
    assert!(explained.story.is_empty());
    replica.stop().await;
}

async fn a_label_that_nobody_has_is_named_with_the_host_that_had_it(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut gpu = SimRunner::new(&replica, "gpu-03", 0);
    gpu.beat.labels = vec![v1::Label {
        key: "gpu".into(),
        value: "1".into(),
    }];
    gpu.idle().await;
    let spec = v1::TaskSpec {
        require: gpu.beat.labels.clone(),
        ..command(&["true"])
    };
    let cordon = v1::CordonRequest {
        runners: vec!["gpu-03".into()],
        ..v1::CordonRequest::default()
    };
    // So that it does not get it first.
    replica.admin().cordon(cordon).await.expect("cordon");
    let task = replica.submit(spec).await;
    let explained = until("its host is lost", || async {
        let explained = explain(&replica, task).await;
        let lost = explained.blockers.iter().any(|blocker| blocker.kind == "runner_lost");
        lost.then_some(explained)
    })
    .await;
    assert_eq!(
        said(&explained),
        [
            (
                "no_runner",
                "no runner is live",
                "systole runner --url URL --label gpu=1"
            ),
            (
                "runner_lost",
                "gpu-03 has gpu=1 and is lost",
                "systole runners rm gpu-03"
            ),
        ]
    );
    assert!(explained.blockers[1].since_ms > 0);
    replica.stop().await;
}

async fn a_run_that_waits_for_its_place_names_the_run_that_has_it(db: TestDb) {
    let replica = patient(&db).await;
    put(&replica, job("a", &json!({}))).await;
    let first = start(&replica, "a").await.task_id;
    let second = start(&replica, "a").await.task_id;
    let third = start(&replica, "a").await.task_id;
    let mut runner = SimRunner::new(&replica, "h", 0);
    assert_eq!(runner.take().await.task_id, first);
    runner.running(first).await;
    let explained = explain(&replica, third).await;
    assert_eq!(
        said(&explained),
        [
            (
                "place",
                format!("job a is serial: {first} is RUNNING on h/0").as_str(),
                format!("systole cancel {first}").as_str()
            ),
            (
                "behind",
                format!("1 run of job a waits before it, {second} first").as_str(),
                format!("systole cancel {second}").as_str()
            ),
        ]
    );
    let task = explained.task.expect("task");
    assert!(
        task.waiting_for.starts_with("held: waits for a place of job a"),
        "{task:?}"
    );
    assert_eq!(explain(&replica, second).await.blockers.len(), 1);
    replica.stop().await;
}

async fn a_full_group_names_the_runs_of_other_jobs(db: TestDb) {
    let replica = patient(&db).await;
    let group = v1::ApplyRequest {
        groups: vec![v1::Definition {
            json: json!({"name": "disk", "limit": 1}).to_string(),
            ..v1::Definition::default()
        }],
        ..v1::ApplyRequest::default()
    };
    apply(&mut replica.jobs(), group).await;
    for name in ["a", "b"] {
        put(&replica, job(name, &json!({"concurrency_group": "disk"}))).await;
    }
    let first = start(&replica, "a").await.task_id;
    let second = start(&replica, "b").await.task_id;
    assert_eq!(
        said(&explain(&replica, second).await),
        [(
            "group",
            format!("concurrency group disk has all of its 1 places taken: {first} of job a is QUEUED").as_str(),
            format!("systole cancel {first}").as_str()
        )]
    );
    replica.stop().await;
}

async fn a_delayed_task_and_a_jumped_clock_are_told(db: TestDb) {
    let replica = patient(&db).await;
    let spec = v1::TaskSpec {
        delay_ms: 3_600_000,
        ..command(&["true"])
    };
    let task = replica.submit(spec).await;
    let explained = explain(&replica, task).await;
    assert_eq!(explained.blockers.len(), 1);
    let delayed = &explained.blockers[0];
    assert_eq!(
        (delayed.kind.as_str(), delayed.roles.as_str()),
        ("delayed", "operator or admin")
    );
    assert!(delayed.until_ms > explained.now_ms + 3_000_000);
    replica.running.context.clock.skew(10 * 365 * 86_400_000);
    let explained = until("the clock is not believed", || async {
        let explained = explain(&replica, task).await;
        (explained.blockers.len() == 2).then_some(explained)
    })
    .await;
    let clock = &explained.blockers[1];
    assert_eq!(
        (clock.kind.as_str(), clock.command.as_str(), clock.roles.as_str()),
        ("clock", "systole admin confirm clock", "admin")
    );
    replica.stop().await;
}

async fn an_ended_task_tells_its_chain_and_who_cancelled_it(db: TestDb) {
    let replica = patient(&db).await;
    let spec = v1::TaskSpec {
        retry: Some(v1::Retry {
            max_retries: 1,
            delay_ms: 3_600_000,
        }),
        ..command(&["false"])
    };
    let first = replica.submit(spec).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    assert_eq!(runner.take().await.task_id, first);
    let result = runner.result(first, "exit_code", Some(3));
    runner.ended(result).await;
    let second = replica.until_state(first, S::Failed).await.retried_by;
    let story = explain(&replica, first).await.story;
    assert!(
        story[0].starts_with("It failed after ") && story[0].ends_with(" on h/0: exit code 3."),
        "{story:?}"
    );
    assert_eq!(story[2], format!("It was tried again, as {second}, which is CREATED."));
    let cancel = v1::CancelRequest {
        ids: vec![second],
        reason: "wrong month".into(),
        ..v1::CancelRequest::default()
    };
    replica.tasks().cancel(cancel).await.expect("cancel");
    let story = explain(&replica, second).await.story;
    assert!(story[0].ends_with("nothing of it ran."), "{story:?}");
    assert_eq!(story[1], "admin cancelled it: \"wrong month\".");
    assert_eq!(
        story[2],
        format!("It was attempt 2 of 2; the one before it, {first}, ended with exit code 3.")
    );
    replica.stop().await;
}

async fn a_task_at_a_silent_runner_says_so(db: TestDb) {
    let mut config = Replica::config(&db);
    // Silent for the eyes of people, and not yet ended by the reaper.
    config.timing.check = Duration::from_secs(600);
    let replica = Replica::start_with(config).await;
    let task = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    runner.take().await;
    assert_eq!(explain(&replica, task).await.blockers[0].kind, "unreported");
    runner.running(task).await;
    assert_eq!(said(&explain(&replica, task).await), []);
    let explained = until("it is silent", || async {
        let explained = explain(&replica, task).await;
        (!explained.blockers.is_empty()).then_some(explained)
    })
    .await;
    assert_eq!(
        said(&explained),
        [("runner_silent", "h/0 says nothing", "systole runners rm h --dead")]
    );
    replica.stop().await;
}

async fn a_task_that_is_not_there_is_refused(db: TestDb) {
    let replica = Replica::start(&db).await;
    let request = v1::ExplainRequest { task_id: 9_999 };
    let refused = replica.tasks().explain(request).await.expect_err("unknown");
    assert_eq!(refused.code(), tonic::Code::NotFound);
    assert!(refused.message().contains("no task 9999"), "{refused}");
    replica.stop().await;
}
