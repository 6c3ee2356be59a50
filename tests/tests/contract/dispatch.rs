//! Who is given which task, and when.

use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    two_claims_never_return_one_task,
    a_claim_follows_priority_then_age,
    a_target_is_honoured,
    required_labels_and_queues_are_honoured,
    a_dispatched_task_is_delivered_again_three_times_then_replaced,
    a_deaf_runner_gets_no_new_task,
    a_task_aimed_at_a_cordoned_host_neither_spins_nor_blocks_others,
    a_cordoned_runner_gets_nothing_new,
    a_parked_beat_is_answered_when_work_arrives,
    a_result_and_the_next_task_share_one_answer,
    a_task_whose_commit_came_late_is_claimed_within_a_second,
);

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

async fn a_task_whose_commit_came_late_is_claimed_within_a_second(db: TestDb) {
    // Behind the product's back: as if a slow transaction made a task with an old key QUEUED.
    let replica = Replica::start(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let id = runner.runs_one(&replica).await;
    let lane = db.sql("SELECT lane_id FROM task LIMIT 1");
    db.sql(&format!(
        "INSERT INTO task (status, lane_id, priority, name, spec, submitted_by, created_at_ms, eligible_at_ms) \
         VALUES (2, {lane}, 5, 'late', '{{\"command\":[\"true\"],\"name\":\"late\",\"queue\":\"default\"}}', 'test', 1, 1)"
    ));
    assert_ne!(runner.take().await.task_id, id);
    replica.stop().await;
}
