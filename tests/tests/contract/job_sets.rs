//! Broadcasts: one run on each host, as one set with one outcome.

use super::jobs::{get, job, ledger, put, start};
use serde_json::{Value, json};
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_scheduler::flow::jobs::{chains, sets};
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_fire_is_a_set_with_a_member_for_each_host,
    hosts_that_cannot_take_their_part_are_skipped_members,
    a_set_holds_the_place_of_its_job_until_its_last_member_has_ended,
    as_many_members_run_as_allowed,
    no_member_is_begun_after_enough_failures,
    a_retry_is_that_of_the_member_and_keeps_its_number,
    a_cancel_of_the_set_ends_its_members,
    a_newer_run_covers_a_set,
    a_member_whose_host_goes_before_it_starts_is_skipped,
    a_set_waits_for_the_proof_that_a_lost_member_is_dead,
    a_retry_of_a_member_waits_for_the_proof_that_nothing_of_it_is_left,
    a_member_of_a_cancelled_set_is_not_retried_when_the_proof_comes,
    no_host_is_left_out_by_a_clock_that_is_not_believed,
    a_set_without_a_host_waits_for_one,
);

/// Nobody is silent for too long.
async fn patient(db: &TestDb) -> Replica {
    let mut config = Replica::config(db);
    config.timing.lost_after = Duration::from_secs(600);
    Replica::start_with(config).await
}

fn broadcast(more: &Value) -> Value {
    let mut all = json!({"route": "broadcast"});
    let (Some(map), Some(more)) = (all.as_object_mut(), more.as_object()) else {
        panic!("objects")
    };
    map.extend(more.clone());
    all
}

async fn hosts<const N: usize>(replica: &Replica, names: [&str; N]) -> [SimRunner; N] {
    let mut runners = names.map(|name| SimRunner::new(replica, name, 0));
    for runner in &mut runners {
        runner.idle().await;
    }
    runners
}

/// The last task of each member, by host.
async fn members(replica: &Replica, set: i64) -> Vec<v1::Task> {
    let request = v1::ListRequest {
        filter: Some(v1::TaskFilter {
            set_id: set,
            last_attempts: true,
            ..v1::TaskFilter::default()
        }),
        ..v1::ListRequest::default()
    };
    let mut tasks = replica.tasks().list(request).await.expect("list").into_inner().tasks;
    tasks.sort_by_key(host);
    tasks
}

fn host(task: &v1::Task) -> String {
    task.spec.as_ref().expect("spec").target_host.clone()
}

fn shard(run: &v1::RunNew) -> (String, String) {
    let env = &run.spec.as_ref().expect("spec").env;
    let of = |name: &str| {
        let found = env.iter().find(|variable| variable.name == name);
        found.map(|variable| variable.value.clone()).unwrap_or_default()
    };
    (of("SYSTOLE_SHARD_INDEX"), of("SYSTOLE_SHARD_TOTAL"))
}

async fn succeed(runner: &mut SimRunner, task: i64) {
    let result = runner.success(task);
    runner.ended(result).await;
}

async fn fail(runner: &mut SimRunner, task: i64) {
    let result = runner.result(task, "exit_code", Some(7));
    runner.ended(result).await;
}

async fn a_fire_is_a_set_with_a_member_for_each_host(db: TestDb) {
    let replica = patient(&db).await;
    let runners = hosts(&replica, ["a", "b", "c"]).await;
    // Two slots are one host.
    SimRunner::new(&replica, "a", 1).idle().await;
    put(&replica, job("j", &broadcast(&json!({})))).await;
    let set = start(&replica, "j").await.task_id;
    let head = replica.until_state(set, S::Running).await;
    assert_eq!((head.set_size, head.host.as_str()), (3, ""));
    for (index, mut runner) in runners.into_iter().enumerate() {
        let run = runner.take().await;
        assert_eq!(shard(&run), (index.to_string(), "3".into()));
        let task = replica.task(run.task_id).await;
        assert_eq!(
            (task.set_id, task.shard_index, task.shard_total),
            (set, u32::try_from(index).expect("small"), 3)
        );
        succeed(&mut runner, run.task_id).await;
    }
    let head = replica.until_state(set, S::Finished).await;
    let outcome = head.outcome.expect("outcome");
    assert_eq!(
        (outcome.kind.as_str(), outcome.message.as_str()),
        ("success", "3 of 3 members ended with exit code 0")
    );
    assert_eq!(ledger(&replica, "j").await[0].task_id, set);
    replica.stop().await;
}

async fn hosts_that_cannot_take_their_part_are_skipped_members(db: TestDb) {
    let replica = patient(&db).await;
    let [mut a, _b, mut c, mut gone] = hosts(&replica, ["a", "b", "c", "d"]).await;
    let request = v1::CordonRequest {
        runners: vec!["b".into()],
        ..v1::CordonRequest::default()
    };
    replica.admin().cordon(request).await.expect("cordon");
    gone.beat.leaving = true;
    gone.idle().await;
    put(&replica, job("j", &broadcast(&json!({})))).await;
    let set = start(&replica, "j").await.task_id;
    replica.until_state(set, S::Running).await;
    let said: Vec<(String, S, String)> = members(&replica, set)
        .await
        .into_iter()
        .filter(|task| task.state() == S::Skipped)
        .map(|task| (host(&task), task.state(), task.outcome.unwrap_or_default().message))
        .collect();
    assert_eq!(
        said,
        [
            ("b".into(), S::Skipped, "it is cordoned".into()),
            ("d".into(), S::Skipped, "it is offline".into())
        ]
    );
    for (index, runner) in [&mut a, &mut c].into_iter().enumerate() {
        let run = runner.take().await;
        // Those that run share the work among them.
        assert_eq!(shard(&run), (index.to_string(), "2".into()));
        succeed(runner, run.task_id).await;
    }
    let outcome = replica.until_state(set, S::Finished).await.outcome.expect("outcome");
    assert_eq!(
        outcome.message,
        "2 of 4 members ended with exit code 0; 2 of 4 were skipped: b, d"
    );
    replica.stop().await;
}

async fn a_set_holds_the_place_of_its_job_until_its_last_member_has_ended(db: TestDb) {
    let replica = patient(&db).await;
    let [mut a, mut b] = hosts(&replica, ["a", "b"]).await;
    let after = json!({"trigger": [{"after": {"job": "j", "outcome": "failed"}}]});
    put(&replica, job("k", &after)).await;
    put(&replica, job("j", &broadcast(&json!({})))).await;
    let set = start(&replica, "j").await.task_id;
    let next = start(&replica, "j").await;
    assert!(next.waiting);
    let (one, two) = (a.take().await.task_id, b.take().await.task_id);
    fail(&mut a, one).await;
    replica.until_state(one, S::Failed).await;
    assert_eq!(get(&replica, "j").await.running, [set]);
    assert_eq!(replica.state(next.task_id).await, S::Created);
    assert!(ledger(&replica, "k").await.is_empty(), "one member is not the run");
    succeed(&mut b, two).await;
    let outcome = replica.until_state(set, S::Failed).await.outcome.expect("outcome");
    assert_eq!(
        (outcome.kind.as_str(), outcome.message.as_str()),
        ("members_failed", "1 of 2 members failed: a")
    );
    replica.until_state(next.task_id, S::Running).await;
    // What follows the job follows the set, once.
    assert_eq!(ledger(&replica, "k").await.len(), 1);
    replica.stop().await;
}

async fn as_many_members_run_as_allowed(db: TestDb) {
    let replica = patient(&db).await;
    let runners = hosts(&replica, ["a", "b", "c"]).await;
    let more = json!({"broadcast": {"max_parallel": 1}});
    put(&replica, job("j", &broadcast(&more))).await;
    let set = start(&replica, "j").await.task_id;
    for (index, mut runner) in runners.into_iter().enumerate() {
        let run = runner.take().await.task_id;
        let waiting: Vec<v1::Task> = members(&replica, set)
            .await
            .into_iter()
            .filter(|task| task.state() == S::Created)
            .collect();
        assert_eq!(waiting.len(), 2 - index);
        assert!(waiting.iter().all(|task| task.waiting_for.contains("max_parallel")));
        succeed(&mut runner, run).await;
    }
    replica.until_state(set, S::Finished).await;
    replica.stop().await;
}

async fn no_member_is_begun_after_enough_failures(db: TestDb) {
    let replica = patient(&db).await;
    let [mut a, _b, _c] = hosts(&replica, ["a", "b", "c"]).await;
    let more = json!({"broadcast": {"max_parallel": 1, "stop_after_failures": 1}});
    put(&replica, job("j", &broadcast(&more))).await;
    let set = start(&replica, "j").await.task_id;
    let run = a.take().await.task_id;
    fail(&mut a, run).await;
    let outcome = replica.until_state(set, S::Failed).await.outcome.expect("outcome");
    assert_eq!(outcome.message, "1 of 3 members failed: a; 2 of 3 were skipped: b, c");
    let all = members(&replica, set).await;
    assert!(
        all[1]
            .outcome
            .as_ref()
            .expect("outcome")
            .message
            .contains("stop_after_failures")
    );
    replica.stop().await;
}

async fn a_retry_is_that_of_the_member_and_keeps_its_number(db: TestDb) {
    let replica = patient(&db).await;
    let [mut a, mut b] = hosts(&replica, ["a", "b"]).await;
    let more = json!({"retry": {"policy": "fixed", "max_retries": 1, "delay": "0"}});
    put(&replica, job("j", &broadcast(&more))).await;
    let set = start(&replica, "j").await.task_id;
    let first = b.take().await.task_id;
    fail(&mut b, first).await;
    let run = b.take().await;
    assert_eq!(shard(&run), ("1".into(), "2".into()));
    let retry = replica.task(run.task_id).await;
    assert_eq!(
        (retry.retry_of, retry.set_id, retry.shard_index, retry.shard_total),
        (first, set, 1, 2)
    );
    succeed(&mut b, run.task_id).await;
    let other = a.take().await.task_id;
    succeed(&mut a, other).await;
    let head = replica.until_state(set, S::Finished).await;
    assert_eq!(head.set_size, 2);
    replica.stop().await;
}

async fn a_cancel_of_the_set_ends_its_members(db: TestDb) {
    let replica = patient(&db).await;
    let [mut a, _b] = hosts(&replica, ["a", "b"]).await;
    put(
        &replica,
        job("j", &broadcast(&json!({"broadcast": {"max_parallel": 1}}))),
    )
    .await;
    let set = start(&replica, "j").await.task_id;
    let run = a.take().await.task_id;
    a.running(run).await;
    replica.cancel(set).await;
    replica.until_state(run, S::Terminating).await;
    assert_eq!(replica.state(set).await, S::Terminating);
    assert_eq!(a.running(run).await.command(), v1::Command::Reset);
    let mut result = a.result(run, "signal", None);
    result.stopped_by = v1::StoppedBy::Reset.into();
    a.ended(result).await;
    let head = replica.until_state(set, S::Terminated).await;
    assert_eq!(head.cancel_reason, "test");
    let states: Vec<S> = members(&replica, set).await.iter().map(v1::Task::state).collect();
    assert_eq!(states, [S::Terminated, S::Terminated]);
    assert!(get(&replica, "j").await.running.is_empty());
    replica.stop().await;
}

async fn a_newer_run_covers_a_set(db: TestDb) {
    let replica = patient(&db).await;
    let [mut a] = hosts(&replica, ["a"]).await;
    put(&replica, job("j", &broadcast(&json!({"blocking": "cover_early"})))).await;
    let old = start(&replica, "j").await.task_id;
    let run = a.take().await.task_id;
    a.running(run).await;
    let new = start(&replica, "j").await.task_id;
    replica.until_state(run, S::Terminating).await;
    assert_eq!(replica.state(new).await, S::Created);
    let mut result = a.result(run, "signal", None);
    result.stopped_by = v1::StoppedBy::Reset.into();
    a.ended(result).await;
    replica.until_state(old, S::Terminated).await;
    let next = a.take().await.task_id;
    assert_eq!(replica.task(next).await.set_id, new);
    replica.stop().await;
}

async fn a_member_whose_host_goes_before_it_starts_is_skipped(db: TestDb) {
    let replica = Replica::start(&db).await;
    let [mut a, _b] = hosts(&replica, ["a", "b"]).await;
    put(&replica, job("j", &broadcast(&json!({})))).await;
    let set = start(&replica, "j").await.task_id;
    let run = a.take().await.task_id;
    succeed(&mut a, run).await;
    // Host b says nothing more.
    let outcome = replica.until_state(set, S::Finished).await.outcome.expect("outcome");
    assert_eq!(
        outcome.message,
        "1 of 2 members ended with exit code 0; 1 of 2 was skipped: b"
    );
    replica.stop().await;
}

async fn a_set_waits_for_the_proof_that_a_lost_member_is_dead(db: TestDb) {
    let replica = Replica::start(&db).await;
    let [mut a] = hosts(&replica, ["a"]).await;
    put(&replica, job("j", &broadcast(&json!({})))).await;
    let set = start(&replica, "j").await.task_id;
    let run = a.take().await.task_id;
    a.running(run).await;
    let task = replica.until_state(run, S::Failed).await;
    assert_eq!(task.outcome.expect("outcome").kind, "runner_lost");
    let held = get(&replica, "j").await;
    assert_eq!(
        (held.running.as_slice(), held.unproven[0].task_id),
        ([set].as_slice(), run)
    );
    assert_eq!(replica.state(set).await, S::Running);
    let request = v1::DeclareDeadRequest {
        host: "a".into(),
        reason: "burnt".into(),
    };
    let done = replica.jobs().declare_dead(request).await.expect("declare");
    assert_eq!(done.into_inner().task_ids, [run]);
    replica.until_state(set, S::Failed).await;
    replica.stop().await;
}

/// It fails, and processes of it are left that could not be ended.
async fn fail_with_processes_left(runner: &mut SimRunner, task: i64) {
    let mut result = runner.result(task, "exit_code", Some(7));
    result.detail = Some(v1::EndDetail {
        tree_empty: Some(false),
        ..v1::EndDetail::default()
    });
    runner.ended(result).await;
}

/// A set on hosts a and b, whose member on b failed with processes left: the set, and that member.
async fn unproven_member(replica: &Replica, a: &mut SimRunner, b: &mut SimRunner) -> (i64, i64) {
    let more = json!({"retry": {"policy": "fixed", "max_retries": 1, "delay": "0"}});
    put(replica, job("j", &broadcast(&more))).await;
    let set = start(replica, "j").await.task_id;
    let first = b.take().await.task_id;
    let other = a.take().await.task_id;
    succeed(a, other).await;
    fail_with_processes_left(b, first).await;
    let failed = replica.until_state(first, S::Failed).await;
    assert_eq!((failed.retried_by, replica.state(set).await), (0, S::Running));
    let held = get(replica, "j").await;
    assert_eq!((held.running.as_slice(), held.unproven.len()), ([set].as_slice(), 1));
    assert_eq!((held.unproven[0].task_id, held.unproven[0].host.as_str()), (first, "b"));
    (set, first)
}

async fn a_retry_of_a_member_waits_for_the_proof_that_nothing_of_it_is_left(db: TestDb) {
    let replica = patient(&db).await;
    let [mut a, mut b] = hosts(&replica, ["a", "b"]).await;
    let (set, first) = unproven_member(&replica, &mut a, &mut b).await;
    // Another slot of the host proves nothing, and gets nothing of it.
    SimRunner::new(&replica, "b", 1).idle().await;
    let ctx = &replica.running.context;
    sets::drive_all(ctx, true).await.expect("drive");
    chains::sweep(ctx).await.expect("sweep");
    assert_eq!(replica.task(first).await.retried_by, 0);
    assert_eq!(replica.state(set).await, S::Running);
    // The slot says that its hands are empty.
    let run = b.take().await;
    assert_eq!(shard(&run), ("1".into(), "2".into()));
    let retry = replica.task(run.task_id).await;
    assert_eq!((retry.retry_of, retry.set_id, retry.attempt), (first, set, 2));
    assert_eq!(get(&replica, "j").await.unproven, []);
    succeed(&mut b, run.task_id).await;
    let head = replica.until_state(set, S::Finished).await;
    assert_eq!(
        head.outcome.expect("outcome").message,
        "2 of 2 members ended with exit code 0"
    );
    until("the place is free", || async {
        get(&replica, "j").await.running.is_empty().then_some(())
    })
    .await;
    replica.stop().await;
}

async fn a_member_of_a_cancelled_set_is_not_retried_when_the_proof_comes(db: TestDb) {
    let replica = patient(&db).await;
    let [mut a, mut b] = hosts(&replica, ["a", "b"]).await;
    let (set, first) = unproven_member(&replica, &mut a, &mut b).await;
    replica.cancel(set).await;
    assert_eq!(replica.state(set).await, S::Terminating);
    let next = start(&replica, "j").await.task_id;
    // The slot says that its hands are empty, and gets what comes after the set.
    let run = b.take().await.task_id;
    assert_eq!(replica.task(run).await.set_id, next);
    assert_eq!(replica.task(first).await.retried_by, 0);
    assert_eq!(replica.state(set).await, S::Terminated);
    replica.stop().await;
}

async fn no_host_is_left_out_by_a_clock_that_is_not_believed(db: TestDb) {
    let replica = patient(&db).await;
    let [mut a, mut b] = hosts(&replica, ["a", "b"]).await;
    put(&replica, job("j", &broadcast(&json!({})))).await;
    let ctx = &replica.running.context;
    let hold = || async {
        ctx.clock.skew(3_652 * 86_400_000);
        until("the clock is held", || async { ctx.clock.hold().map(drop) }).await;
        // By the clock that jumped nobody has heard of b for an hour.
        db.sql("UPDATE runner SET seen_ms = seen_ms - 3600000 WHERE host = 'b'");
    };
    hold().await;
    let set = start(&replica, "j").await.task_id;
    assert!(!sets::spread_due(ctx).await.expect("spread"));
    assert_eq!(replica.state(set).await, S::Queued);
    ctx.clock.skew(0);
    b.idle().await;
    let head = replica.until_state(set, S::Running).await;
    assert_eq!(head.set_size, 2);
    hold().await;
    sets::drive_all(ctx, true).await.expect("drive");
    let states: Vec<S> = members(&replica, set).await.iter().map(v1::Task::state).collect();
    assert_eq!(states, [S::Queued, S::Queued]);
    ctx.clock.skew(0);
    for runner in [&mut a, &mut b] {
        let run = runner.take().await.task_id;
        succeed(runner, run).await;
    }
    replica.until_state(set, S::Finished).await;
    replica.stop().await;
}

async fn a_set_without_a_host_waits_for_one(db: TestDb) {
    let replica = patient(&db).await;
    put(&replica, job("j", &broadcast(&json!({"require": {"role": "storage"}})))).await;
    let set = start(&replica, "j").await.task_id;
    let task = replica.task(set).await;
    assert_eq!(
        (task.state(), task.waiting_for.as_str()),
        (S::Queued, "no runner has joined yet")
    );
    let mut runner = SimRunner::new(&replica, "s", 0);
    runner.beat.labels = vec![v1::Label {
        key: "role".into(),
        value: "storage".into(),
    }];
    let run = runner.take().await;
    assert_eq!(shard(&run), ("0".into(), "1".into()));
    assert_eq!(replica.task(run.task_id).await.set_id, set);
    replica.stop().await;
}
