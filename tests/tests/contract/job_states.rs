//! The six states of a trigger, as they are shown.

use super::jobs::{apply, definition, get, job, put, start};
use serde_json::json;
use systole_proto::v1;
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_trigger_is_blocked_while_its_run_waits_also_while_it_is_paused,
    a_trigger_that_waits_for_its_run_is_acquired_and_says_that_the_run_waits,
    a_trigger_is_blocked_by_the_group_of_its_job,
    each_of_the_six_states_is_shown,
);

async fn state(replica: &Replica, name: &str, trigger: &str) -> String {
    let job = get(replica, name).await;
    let found = job.triggers.into_iter().find(|one| one.name == trigger);
    found.expect("the trigger").state
}

async fn until_shown(replica: &Replica, name: &str, trigger: &str, expected: &str) {
    until(&format!("{name}/{trigger} is {expected}"), || async {
        (state(replica, name, trigger).await == expected).then_some(())
    })
    .await;
}

async fn set_paused(replica: &Replica, name: &str, paused: bool) {
    let paused = super::jobs::pause(replica, name, paused, 0).await;
    assert_eq!(paused.error, None);
}

async fn end(runner: &mut SimRunner) -> i64 {
    let task = runner.take().await.task_id;
    let result = runner.success(task);
    runner.ended(result).await;
    task
}

async fn a_trigger_is_blocked_while_its_run_waits_also_while_it_is_paused(db: TestDb) {
    let replica = Replica::start(&db).await;
    let triggers = json!([{"name": "t", "fixed_rate": "1s"}, {"name": "other", "fixed_rate": "365d"}]);
    put(&replica, job("a", &json!({"max_waiting": 1, "trigger": triggers}))).await;
    until_shown(&replica, "a", "t", "BLOCKED").await;
    // Its neighbour has no run that waits.
    assert_eq!(state(&replica, "a", "other").await, "WAITING");
    set_paused(&replica, "a/t", true).await;
    assert_eq!(state(&replica, "a", "t").await, "PAUSED (blocked)");
    // The pause ends first: what it was stays.
    set_paused(&replica, "a/t", false).await;
    assert_eq!(state(&replica, "a", "t").await, "BLOCKED");
    // The run goes first: so does the pause.
    set_paused(&replica, "a/t", true).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    let first = end(&mut runner).await;
    until_shown(&replica, "a", "t", "PAUSED").await;
    assert!(end(&mut runner).await > first, "the run that waited");
    set_paused(&replica, "a/t", false).await;
    // And again, with the next run in its way.
    until_shown(&replica, "a", "t", "BLOCKED").await;
    replica.stop().await;
}

async fn a_trigger_that_waits_for_its_run_is_acquired_and_says_that_the_run_waits(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &json!({}))).await;
    let by_hand = start(&replica, "a").await.task_id;
    put(
        &replica,
        job("a", &json!({"trigger": [{"name": "t", "fixed_delay": "1s"}]})),
    )
    .await;
    until_shown(&replica, "a", "t", "ACQUIRED (blocked)").await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    assert_eq!(end(&mut runner).await, by_hand);
    until_shown(&replica, "a", "t", "ACQUIRED").await;
    set_paused(&replica, "a/t", true).await;
    assert_eq!(state(&replica, "a", "t").await, "PAUSED (acquired)");
    end(&mut runner).await;
    until_shown(&replica, "a", "t", "PAUSED").await;
    replica.stop().await;
}

async fn a_trigger_is_blocked_by_the_group_of_its_job(db: TestDb) {
    let replica = Replica::start(&db).await;
    let every_second = json!({"concurrency_group": "g", "trigger": [{"name": "t", "fixed_rate": "1s", "max_fires": 1}, {"name": "u", "fixed_rate": "1s"}]});
    let request = v1::ApplyRequest {
        groups: vec![definition(&json!({"name": "g", "limit": 1}), "")],
        jobs: vec![definition(&job("first", &json!({"concurrency_group": "g"})), "")],
        ..v1::ApplyRequest::default()
    };
    let results = apply(&mut replica.jobs(), request).await;
    assert!(results.iter().all(|result| result.error.is_none()), "{results:?}");
    let first = start(&replica, "first").await;
    assert!(!first.waiting);
    put(&replica, job("second", &every_second)).await;
    until_shown(&replica, "second", "u", "BLOCKED").await;
    // One whose count is used up has no next time, and its run waits all the same.
    until_shown(&replica, "second", "t", "COMPLETE (blocked)").await;
    replica.stop().await;
}

async fn each_of_the_six_states_is_shown(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(
        &replica,
        job("busy", &json!({"trigger": [{"name": "blocked", "fixed_rate": "1s"}]})),
    )
    .await;
    let triggers = json!([
        {"name": "waiting", "fixed_rate": "365d"},
        {"name": "paused", "fixed_rate": "365d", "paused": true},
        {"name": "acquired", "fixed_delay": "1s"},
        {"name": "complete", "fixed_rate": "1s", "max_fires": 1},
        {"name": "error", "fixed_rate": "1s"},
    ]);
    put(
        &replica,
        job(
            "a",
            &json!({"blocking": "concurrent", "max_concurrent": 9, "trigger": triggers}),
        ),
    )
    .await;
    db.sql("UPDATE job_trigger SET definition = '{\"cron\": 7}' WHERE name = 'error'");
    for name in ["waiting", "paused", "acquired", "complete", "error"] {
        until_shown(&replica, "a", name, &name.to_uppercase()).await;
    }
    until_shown(&replica, "busy", "blocked", "BLOCKED").await;
    replica.stop().await;
}
