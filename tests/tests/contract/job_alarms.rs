//! What a broadcast, and a run that is started again on another machine, tell: one outcome is one alarm. And how often a run is
//! started again for a lost machine is counted apart from its retries.

use super::alarms::{arrived, config, replica, rows, with_alarms};
use super::jobs::{get, put, start};
use serde_json::{Value, json};
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{Receiver, SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_broadcast_whose_members_fail_is_one_alarm_of_the_set,
    a_broadcast_that_recovers_tells_it_once,
    a_lost_member_of_a_broadcast_is_told_with_its_set,
    a_run_that_is_started_again_has_not_failed_yet,
    a_run_that_was_lost_too_often_is_told_once,
    recoveries_and_retries_are_counted_apart,
);

/// Nobody is silent for too long.
async fn patient(db: &TestDb, receiver: &Receiver) -> Replica {
    let mut config = config(db, receiver);
    config.timing.lost_after = std::time::Duration::from_secs(600);
    Replica::start_with(config).await
}

fn with(mut value: Value, more: &Value) -> Value {
    let (Some(map), Some(more)) = (value.as_object_mut(), more.as_object()) else {
        panic!("objects")
    };
    map.extend(more.clone());
    value
}

fn told(more: &Value) -> Value {
    let rules = json!([{"when": "failure", "to": ["hook"]}, {"when": "recovery", "to": ["hook"]}]);
    with(with_alarms("a", &rules), more)
}

async fn end(runner: &mut SimRunner, task: i64, kind: &str) {
    let code = if kind == "success" { 0 } else { 7 };
    let result = runner.result(task, kind, Some(code));
    runner.ended(result).await;
}

async fn hosts<const N: usize>(replica: &Replica, names: [&str; N]) -> [SimRunner; N] {
    let mut runners = names.map(|name| SimRunner::new(replica, name, 0));
    for runner in &mut runners {
        runner.idle().await;
    }
    runners
}

/// Beats for a runner that works on until another task has failed; with what kind of outcome.
async fn beating_until_failed(runner: &SimRunner, holds: i64, replica: &Replica, task: i64) -> String {
    until(&format!("task {task} has failed"), || {
        let mut runner = runner.clone();
        // Each beat counts, whichever copy sends it.
        runner.beat.seq = u64::try_from(systole_shared::clock::now_ms()).expect("after 1970");
        async move {
            runner.running(holds).await;
            let now = replica.task(task).await;
            (now.state() == S::Failed).then(|| now.outcome.expect("outcome").kind)
        }
    })
    .await
}

fn alarm(got: &systole_tests::receiver::Got) -> Value {
    got.json()["alarm"].clone()
}

async fn a_broadcast_whose_members_fail_is_one_alarm_of_the_set(db: TestDb) {
    let receiver = Receiver::start();
    let replica = patient(&db, &receiver).await;
    let mut runners = hosts(&replica, ["a", "b", "c"]).await;
    let more = json!({"route": "broadcast", "retry": {"policy": "fixed", "max_retries": 1, "delay": "0"}});
    put(&replica, told(&more)).await;
    let set = start(&replica, "a").await.task_id;
    // Two of three fail, each twice; the third ends well.
    let mut given = Vec::new();
    for runner in &mut runners {
        given.push(runner.take().await.task_id);
    }
    let [a, b, c] = &mut runners;
    for (runner, task) in [(a, given[0]), (b, given[1])] {
        end(runner, task, "exit_code").await;
        let again = runner.take().await.task_id;
        assert_eq!(replica.task(again).await.attempt, 2);
        end(runner, again, "exit_code").await;
        assert_eq!(rows(&db), "0", "a member is not the run");
    }
    end(c, given[2], "success").await;
    replica.until_state(set, S::Failed).await;
    let got = arrived(&receiver, 1).await;
    let alarm = alarm(&got[0]);
    assert_eq!(alarm["kind"], "failure", "{alarm}");
    assert_eq!(alarm["tasks"].as_array().map(Vec::len), Some(1), "{alarm}");
    assert_eq!(alarm["tasks"][0]["id"], set.to_string());
    let outcome = alarm["tasks"][0]["outcome"].as_str().expect("a sentence");
    assert!(outcome.contains("2 of 3 members failed: a, b"), "{alarm}");
    assert_eq!(rows(&db), "1");
    replica.stop().await;
}

async fn a_broadcast_that_recovers_tells_it_once(db: TestDb) {
    let receiver = Receiver::start();
    let replica = patient(&db, &receiver).await;
    let mut runners = hosts(&replica, ["a", "b"]).await;
    put(&replica, told(&json!({"route": "broadcast"}))).await;
    for kind in ["exit_code", "success", "success"] {
        let set = start(&replica, "a").await.task_id;
        for runner in &mut runners {
            let task = runner.take().await.task_id;
            end(runner, task, kind).await;
        }
        let state = if kind == "success" { S::Finished } else { S::Failed };
        replica.until_state(set, state).await;
    }
    let got = arrived(&receiver, 2).await;
    let kinds: Vec<Value> = got.iter().map(|got| alarm(got)["kind"].clone()).collect();
    assert_eq!(kinds, ["failure", "recovery"]);
    assert_eq!(rows(&db), "2");
    replica.stop().await;
}

async fn a_lost_member_of_a_broadcast_is_told_with_its_set(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    let [mut a, mut b] = hosts(&replica, ["a", "b"]).await;
    put(
        &replica,
        told(&json!({"route": "broadcast", "on_disconnect": "kill", "kill_grace": "100ms"})),
    )
    .await;
    let set = start(&replica, "a").await.task_id;
    let (one, two) = (a.take().await.task_id, b.take().await.task_id);
    b.running(two).await;
    // The first works on, the second is never heard of again.
    let kind = beating_until_failed(&a, one, &replica, two).await;
    a.beat.seq = u64::try_from(systole_shared::clock::now_ms()).expect("after 1970") + 1_000;
    assert_eq!((kind.as_str(), rows(&db).as_str()), ("runner_lost", "0"));
    end(&mut a, one, "success").await;
    replica.until_state(set, S::Failed).await;
    let alarm = alarm(&arrived(&receiver, 1).await[0]);
    let outcome = alarm["tasks"][0]["outcome"].as_str().expect("a sentence");
    assert!(outcome.contains("1 of 2 members failed: b"), "{alarm}");
    assert_eq!(
        (alarm["tasks"][0]["id"].clone(), rows(&db).as_str()),
        (json!(set.to_string()), "1")
    );
    replica.stop().await;
}

fn failover(more: &Value) -> Value {
    told(&with(json!({"on_lost": "failover", "kill_grace": "100ms"}), more))
}

/// The task that is run by this host, and lost with it; and the one that follows.
async fn lose(replica: &Replica, host: &str, task: i64) -> i64 {
    let mut runner = SimRunner::new(replica, host, 0);
    assert_eq!(runner.take().await.task_id, task);
    runner.running(task).await;
    let lost = replica.until_state(task, S::Failed).await;
    assert_eq!(lost.outcome.expect("outcome").kind, "runner_lost");
    replica.task(task).await.retried_by
}

async fn a_run_that_is_started_again_has_not_failed_yet(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    put(&replica, failover(&json!({}))).await;
    let first = start(&replica, "a").await.task_id;
    let again = lose(&replica, "h1", first).await;
    assert_ne!(again, 0);
    let mut other = SimRunner::new(&replica, "h2", 0);
    assert_eq!(other.take().await.task_id, again);
    end(&mut other, again, "success").await;
    replica.until_state(again, S::Finished).await;
    assert_eq!(rows(&db), "0", "the run ended well, and nobody has to know more");
    replica.stop().await;
}

async fn a_run_that_was_lost_too_often_is_told_once(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    put(&replica, failover(&json!({"max_recoveries": 2}))).await;
    let mut task = start(&replica, "a").await.task_id;
    for (host, recoveries) in [("h1", 1), ("h2", 2)] {
        task = lose(&replica, host, task).await;
        let next = replica.task(task).await;
        assert_eq!((next.attempt, next.recoveries), (1, recoveries));
        assert_eq!(rows(&db), "0");
    }
    assert_eq!(lose(&replica, "h3", task).await, 0);
    let alarm = alarm(&arrived(&receiver, 1).await[0]);
    assert_eq!(
        (&alarm["kind"], &alarm["host"]),
        (&json!("host_lost"), &json!("h3")),
        "{alarm}"
    );
    assert_eq!(alarm["tasks"][0]["id"], task.to_string());
    assert_eq!(rows(&db), "1");
    replica.stop().await;
}

async fn recoveries_and_retries_are_counted_apart(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    let retry = json!({"policy": "fixed", "max_retries": 1, "delay": "1s"});
    put(&replica, failover(&json!({"max_recoveries": 2, "retry": retry}))).await;
    let root = start(&replica, "a").await.task_id;
    // With a delay, so that no retry rides on the acknowledgement to a runner that is not there any more.
    // A loss uses up no retry, and a failure no recovery.
    let mut task = lose(&replica, "h1", root).await;
    let counts = |task: v1::Task| (task.attempt, task.recoveries);
    assert_eq!(counts(replica.task(task).await), (1, 1));
    let mut runner = SimRunner::new(&replica, "h2", 0);
    assert_eq!(runner.take().await.task_id, task);
    end(&mut runner, task, "exit_code").await;
    task = replica.until_state(task, S::Failed).await.retried_by;
    assert_eq!(counts(replica.task(task).await), (2, 1));
    task = lose(&replica, "h3", task).await;
    assert_eq!(counts(replica.task(task).await), (2, 2));
    assert_eq!(get(&replica, "a").await.running, [root], "one run all the time");
    let mut runner = SimRunner::new(&replica, "h4", 0);
    assert_eq!(runner.take().await.task_id, task);
    end(&mut runner, task, "exit_code").await;
    // Its one retry was the second attempt.
    assert_eq!(replica.until_state(task, S::Failed).await.retried_by, 0);
    until("the place is free", || async {
        get(&replica, "a").await.running.is_empty().then_some(())
    })
    .await;
    let alarm = alarm(&arrived(&receiver, 1).await[0]);
    assert_eq!(
        (&alarm["tasks"][0]["attempt"], &alarm["tasks"][0]["attempts"]),
        (&json!(2), &json!(2)),
        "{alarm}"
    );
    assert_eq!(rows(&db), "1");
    replica.stop().await;
}
