//! Where runs of jobs go, and what follows when their runner is lost.

use super::jobs::{get, job, put, start};
use serde_json::{Value, json};
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_retry_goes_to_another_host_where_one_can_take_it,
    a_retry_takes_the_same_host_at_once_when_no_other_matches,
    a_run_whose_runner_is_lost_is_started_again_and_keeps_its_place,
    a_run_is_started_again_only_so_often,
    a_run_is_not_started_again_before_the_old_child_is_proven_dead,
    a_run_that_was_done_after_all_is_not_started_again,
    a_fenced_child_is_a_lost_run,
    runs_go_round_the_hosts,
    one_key_has_one_host_whatever_is_free,
    a_run_goes_to_the_host_with_the_most_free_slots,
    a_choice_is_made_again_when_its_host_closes,
    a_choice_is_made_again_when_its_host_is_silent,
    what_nobody_can_serve_says_so_and_fails_by_its_queue_timeout_only,
);

/// Nobody is silent for too long.
async fn patient(db: &TestDb) -> Replica {
    let mut config = Replica::config(db);
    config.timing.lost_after = Duration::from_secs(600);
    Replica::start_with(config).await
}

async fn fail(runner: &mut SimRunner, task: i64) {
    let result = runner.result(task, "exit_code", Some(7));
    runner.ended(result).await;
}

async fn succeed(runner: &mut SimRunner, task: i64) {
    let result = runner.success(task);
    runner.ended(result).await;
}

/// The task that follows this one.
async fn next(replica: &Replica, task: i64) -> v1::Task {
    let id = until("it is followed", || async {
        let next = replica.task(task).await.retried_by;
        (next != 0).then_some(next)
    })
    .await;
    replica.task(id).await
}

async fn routed(replica: &Replica, task: i64) -> String {
    until(&format!("task {task} has a host"), || async {
        let host = replica.task(task).await.routed_to;
        (!host.is_empty()).then_some(host)
    })
    .await
}

/// Hosts that are there, each with a free slot.
async fn hosts<const N: usize>(replica: &Replica, names: [&str; N]) -> [SimRunner; N] {
    let mut runners = names.map(|name| SimRunner::new(replica, name, 0));
    for runner in &mut runners {
        runner.idle().await;
    }
    runners
}

fn concurrent(more: &Value) -> Value {
    let mut all = json!({"blocking": "concurrent", "max_concurrent": 100});
    let (Some(map), Some(more)) = (all.as_object_mut(), more.as_object()) else {
        panic!("objects")
    };
    map.extend(more.clone());
    all
}

fn elsewhere() -> Value {
    json!({"retry": {"policy": "fixed", "max_retries": 1, "delay": "0", "avoid_last_runner": true}})
}

async fn a_retry_goes_to_another_host_where_one_can_take_it(db: TestDb) {
    let replica = patient(&db).await;
    let [mut a, mut b] = hosts(&replica, ["a", "b"]).await;
    put(&replica, job("j", &elsewhere())).await;
    let first = start(&replica, "j").await.task_id;
    assert_eq!(a.take().await.task_id, first);
    fail(&mut a, first).await;
    let second = next(&replica, first).await.id;
    assert_eq!(routed(&replica, second).await, "b");
    assert_eq!(a.idle().await.command(), v1::Command::GoOn);
    assert_eq!(b.take().await.task_id, second);
    assert_eq!(replica.task(second).await.attempt, 2);
    replica.stop().await;
}

async fn a_retry_takes_the_same_host_at_once_when_no_other_matches(db: TestDb) {
    let replica = patient(&db).await;
    let [mut a] = hosts(&replica, ["a"]).await;
    let mut other = SimRunner::new(&replica, "b", 0);
    other.beat.queues = vec!["gpu".into()];
    other.idle().await;
    put(&replica, job("j", &elsewhere())).await;
    let first = start(&replica, "j").await.task_id;
    assert_eq!(a.take().await.task_id, first);
    fail(&mut a, first).await;
    let second = next(&replica, first).await.id;
    assert_eq!(a.take().await.task_id, second);
    replica.stop().await;
}

fn failover(more: &Value) -> Value {
    let mut all = json!({"on_lost": "failover", "kill_grace": "100ms"});
    let (Some(map), Some(more)) = (all.as_object_mut(), more.as_object()) else {
        panic!("objects")
    };
    map.extend(more.clone());
    all
}

/// A run that is lost with its runner.
async fn lost(replica: &Replica, more: &Value) -> (SimRunner, i64) {
    put(replica, job("j", &failover(more))).await;
    let task = start(replica, "j").await.task_id;
    let mut runner = SimRunner::new(replica, "a", 0);
    assert_eq!(runner.take().await.task_id, task);
    runner.running(task).await;
    let ended = replica.until_state(task, S::Failed).await;
    assert_eq!(ended.outcome.expect("outcome").kind, "runner_lost");
    (runner, task)
}

async fn a_run_whose_runner_is_lost_is_started_again_and_keeps_its_place(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (_, first) = lost(&replica, &json!({})).await;
    let later = start(&replica, "j").await;
    assert!(later.waiting);
    let again = next(&replica, first).await;
    assert_eq!((again.attempt, again.recoveries, again.root_id), (1, 1, first));
    assert_eq!(get(&replica, "j").await.running, [first]);
    let mut b = SimRunner::new(&replica, "b", 0);
    assert_eq!(b.take().await.task_id, again.id);
    succeed(&mut b, again.id).await;
    assert_eq!(b.take().await.task_id, later.task_id);
    replica.stop().await;
}

async fn a_run_is_started_again_only_so_often(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (_, first) = lost(&replica, &json!({})).await;
    let again = next(&replica, first).await.id;
    let mut b = SimRunner::new(&replica, "b", 0);
    assert_eq!(b.take().await.task_id, again);
    b.running(again).await;
    replica.until_state(again, S::Failed).await;
    // The chain is over, and its place is free.
    until("the place is free", || async {
        get(&replica, "j").await.running.is_empty().then_some(())
    })
    .await;
    assert_eq!(replica.task(again).await.retried_by, 0);
    replica.stop().await;
}

async fn a_run_is_not_started_again_before_the_old_child_is_proven_dead(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (_, first) = lost(&replica, &json!({"on_disconnect": "continue"})).await;
    let held = get(&replica, "j").await;
    assert_eq!((held.running.as_slice(), held.unproven.len()), ([first].as_slice(), 1));
    assert_eq!(replica.task(first).await.retried_by, 0);
    let request = v1::DeclareDeadRequest {
        host: "a".into(),
        reason: "burnt".into(),
    };
    let done = replica.jobs().declare_dead(request).await.expect("declare");
    assert_eq!(done.into_inner().task_ids, [first]);
    let again = next(&replica, first).await;
    let job = get(&replica, "j").await;
    assert_eq!((job.running.as_slice(), job.unproven.len()), ([first].as_slice(), 0));
    let mut b = SimRunner::new(&replica, "b", 0);
    assert_eq!(b.take().await.task_id, again.id);
    replica.stop().await;
}

async fn a_run_that_was_done_after_all_is_not_started_again(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (mut a, first) = lost(&replica, &json!({"on_disconnect": "continue"})).await;
    succeed(&mut a, first).await;
    until("the place is free", || async {
        get(&replica, "j").await.running.is_empty().then_some(())
    })
    .await;
    let task = replica.task(first).await;
    assert_eq!((task.state(), task.retried_by), (S::Failed, 0));
    assert_eq!(task.late_result.expect("late result").kind, "success");
    replica.stop().await;
}

async fn a_fenced_child_is_a_lost_run(db: TestDb) {
    let replica = patient(&db).await;
    put(&replica, job("j", &failover(&json!({})))).await;
    let task = start(&replica, "j").await.task_id;
    let [mut a] = hosts(&replica, ["b"]).await;
    assert_eq!(a.take().await.task_id, task);
    a.running(task).await;
    let mut result = a.result(task, "signal", None);
    result.stopped_by = v1::StoppedBy::Fence.into();
    a.ended(result).await;
    let again = next(&replica, task).await;
    assert_eq!((again.attempt, again.recoveries), (1, 1));
    assert_eq!(a.take().await.task_id, again.id);
    replica.stop().await;
}

async fn runs_go_round_the_hosts(db: TestDb) {
    let replica = patient(&db).await;
    let runners = hosts(&replica, ["a", "b", "c"]).await;
    put(&replica, job("j", &concurrent(&json!({"route": "round_robin"})))).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        let run = start(&replica, "j").await;
        seen.push(routed(&replica, run.task_id).await);
    }
    assert_eq!(seen, ["a", "b", "c", "a"]);
    for mut runner in runners {
        let run = runner.take().await;
        assert_eq!(replica.task(run.task_id).await.host, runner.beat.host);
    }
    replica.stop().await;
}

async fn one_key_has_one_host_whatever_is_free(db: TestDb) {
    let replica = patient(&db).await;
    let _runners = hosts(&replica, ["a", "b", "c", "d"]).await;
    let route = json!({"route": "hash", "route_key": "{{ data.shop }}", "data": {"shop": 0}});
    put(&replica, job("j", &concurrent(&route))).await;
    let mut seen = std::collections::BTreeSet::new();
    for shop in 0..12 {
        let request = v1::TriggerJobRequest {
            job: "j".into(),
            data: json!({"shop": shop}).to_string(),
            ..v1::TriggerJobRequest::default()
        };
        let mut hosts = Vec::new();
        for _ in 0..2 {
            let run = replica
                .jobs()
                .trigger(request.clone())
                .await
                .expect("trigger")
                .into_inner();
            hosts.push(routed(&replica, run.task_id).await);
        }
        assert_eq!(hosts[0], hosts[1], "{shop}");
        seen.extend(hosts);
    }
    assert!(seen.len() > 1, "{seen:?}");
    replica.stop().await;
}

async fn a_run_goes_to_the_host_with_the_most_free_slots(db: TestDb) {
    let replica = patient(&db).await;
    let _small = hosts(&replica, ["a"]).await;
    for slot in 0..3 {
        SimRunner::new(&replica, "b", slot).idle().await;
    }
    put(&replica, job("j", &concurrent(&json!({"route": "least_loaded"})))).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        let run = start(&replica, "j").await;
        seen.push(routed(&replica, run.task_id).await);
    }
    // Three free, then two against one, then one each: the less busy one.
    assert_eq!(seen, ["b", "b", "a", "b"]);
    replica.stop().await;
}

async fn a_choice_is_made_again_when_its_host_closes(db: TestDb) {
    let replica = patient(&db).await;
    let [_a, mut b] = hosts(&replica, ["a", "b"]).await;
    put(&replica, job("j", &concurrent(&json!({"route": "first"})))).await;
    let run = start(&replica, "j").await.task_id;
    assert_eq!(routed(&replica, run).await, "a");
    let request = v1::CordonRequest {
        runners: vec!["a".into()],
        ..v1::CordonRequest::default()
    };
    replica.admin().cordon(request).await.expect("cordon");
    assert_eq!(b.take().await.task_id, run);
    replica.stop().await;
}

async fn a_choice_is_made_again_when_its_host_is_silent(db: TestDb) {
    let replica = Replica::start(&db).await;
    let [_a, mut b] = hosts(&replica, ["a", "b"]).await;
    put(&replica, job("j", &concurrent(&json!({"route": "first"})))).await;
    let run = start(&replica, "j").await.task_id;
    assert_eq!(routed(&replica, run).await, "a");
    // Host a says nothing more; b goes on.
    assert_eq!(b.take().await.task_id, run);
    replica.stop().await;
}

async fn what_nobody_can_serve_says_so_and_fails_by_its_queue_timeout_only(db: TestDb) {
    let replica = patient(&db).await;
    let _runners = hosts(&replica, ["a"]).await;
    let more = json!({"route": "least_loaded", "require": {"gpu": "1"}});
    put(&replica, job("j", &concurrent(&more))).await;
    let run = start(&replica, "j").await.task_id;
    let said = until("it says why", || async {
        let task = replica.task(run).await;
        (!task.waiting_for.is_empty()).then_some(task.waiting_for)
    })
    .await;
    assert_eq!(said, "no live runner has gpu=1");
    assert_eq!(get(&replica, "j").await.unserved, "no live runner has gpu=1");
    // One that joins takes it, and is enough.
    let mut gpu = SimRunner::new(&replica, "g", 0);
    gpu.beat.labels = vec![v1::Label {
        key: "gpu".into(),
        value: "1".into(),
    }];
    assert_eq!(gpu.take().await.task_id, run);
    until("it is served", || async {
        get(&replica, "j").await.unserved.is_empty().then_some(())
    })
    .await;
    let more = json!({"route": "hash", "require": {"gpu": "2"}, "queue_timeout": "300ms"});
    put(&replica, job("k", &concurrent(&more))).await;
    let run = start(&replica, "k").await.task_id;
    let task = replica.until_state(run, S::Failed).await;
    assert_eq!(task.outcome.expect("outcome").kind, "queue_timeout");
    replica.stop().await;
}
