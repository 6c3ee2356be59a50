//! Every field of a job's retry policy, by what it does to a run that fails.

use crate::jobs::{apply, definition, get, job, put, start};
use serde_json::{Value, json};
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    max_retries_bounds_the_attempts_after_the_first,
    fixed_delays_are_all_alike,
    exponential_delays_grow_by_their_factor_up_to_their_cap,
    jitter_changes_a_delay_within_its_part,
    only_kinds_and_exit_codes_that_are_named_are_retried,
    a_retry_field_that_does_nothing_is_refused,
    a_retry_waits_for_the_proof_that_nothing_of_the_attempt_before_is_left,
);

/// A job with this policy, a runner, and the database to look into.
struct Fixture {
    db: TestDb,
    replica: Replica,
    runner: SimRunner,
}

impl Fixture {
    async fn new(db: TestDb, retry: Value) -> Self {
        let replica = Replica::start(&db).await;
        put(
            &replica,
            job(
                "a",
                &json!({"blocking": "concurrent", "max_concurrent": 100, "retry": retry}),
            ),
        )
        .await;
        let runner = SimRunner::new(&replica, "h", 0);
        Self { db, replica, runner }
    }

    /// Runs the task that waits, and lets it fail. Returns its successor, 0: none, and after how many ms that is to start.
    async fn fail(&mut self, id: i64, kind: &str, exit_code: Option<i32>) -> (i64, i64) {
        assert_eq!(self.runner.take().await.task_id, id);
        let result = self.runner.result(id, kind, exit_code);
        self.runner.ended(result).await;
        let next = self.replica.until_state(id, S::Failed).await.retried_by;
        if next == 0 {
            return (0, 0);
        }
        let delay = self
            .db
            .sql(&format!("SELECT run_at_ms - created_at_ms FROM task WHERE id = {next}"));
        // To a tenth of a second: PostgreSQL reads its clock anew for each of the two, however long that takes.
        let delay: i64 = delay.parse().expect("a number");
        (next, (delay + 50) / 100 * 100)
    }

    async fn start(&self) -> i64 {
        start(&self.replica, "a").await.task_id
    }

    /// Its time has come.
    fn hurry(&self, id: i64) {
        self.db
            .sql(&format!("UPDATE task SET run_at_ms = created_at_ms WHERE id = {id}"));
    }

    /// The delays of all attempts of one run that fails each time.
    async fn delays(&mut self) -> Vec<i64> {
        let mut id = self.start().await;
        let mut delays = Vec::new();
        loop {
            let (next, delay) = self.fail(id, "exit_code", Some(1)).await;
            if next == 0 {
                return delays;
            }
            delays.push(delay);
            self.hurry(next);
            id = next;
        }
    }
}

async fn max_retries_bounds_the_attempts_after_the_first(db: TestDb) {
    let mut fixture = Fixture::new(db, json!({"policy": "fixed", "max_retries": 3, "delay": "0s"})).await;
    assert_eq!(fixture.delays().await, [0, 0, 0]);
    fixture.replica.stop().await;
}

async fn fixed_delays_are_all_alike(db: TestDb) {
    let mut fixture = Fixture::new(db, json!({"policy": "fixed", "max_retries": 3, "delay": "7m"})).await;
    assert_eq!(fixture.delays().await, [420_000, 420_000, 420_000]);
    fixture.replica.stop().await;
}

async fn exponential_delays_grow_by_their_factor_up_to_their_cap(db: TestDb) {
    let policy = json!({"policy": "exponential", "max_retries": 4, "delay": "10s", "factor": 3, "cap": "80s"});
    let mut fixture = Fixture::new(db, policy).await;
    assert_eq!(fixture.delays().await, [10_000, 30_000, 80_000, 80_000]);
    // Without them: twice, up to a minute.
    put(
        &fixture.replica,
        job(
            "a",
            &json!({"retry": {"policy": "exponential", "max_retries": 3, "delay": "20s"}}),
        ),
    )
    .await;
    assert_eq!(fixture.delays().await, [20_000, 40_000, 60_000]);
    fixture.replica.stop().await;
}

async fn jitter_changes_a_delay_within_its_part(db: TestDb) {
    let policy = json!({"policy": "fixed", "max_retries": 1, "delay": "100s", "jitter": 0.5});
    let mut fixture = Fixture::new(db, policy).await;
    let mut delays = Vec::new();
    for _ in 0..8 {
        let id = fixture.start().await;
        delays.push(fixture.fail(id, "exit_code", Some(1)).await.1);
    }
    assert!(
        delays.iter().all(|delay| (50_000..=150_000).contains(delay)),
        "{delays:?}"
    );
    delays.sort_unstable();
    delays.dedup();
    assert!(delays.len() > 4, "{delays:?}");
    fixture.replica.stop().await;
}

async fn only_kinds_and_exit_codes_that_are_named_are_retried(db: TestDb) {
    let policy = |more: Value| {
        let mut policy = json!({"policy": "fixed", "max_retries": 1, "delay": "1h"});
        if let (Some(policy), Some(more)) = (policy.as_object_mut(), more.as_object()) {
            policy.extend(more.clone());
        }
        job(
            "a",
            &json!({"blocking": "concurrent", "max_concurrent": 100, "retry": policy}),
        )
    };
    let mut fixture = Fixture::new(db, Value::Null).await;
    for (more, kind, code, retried) in [
        (json!({}), "exit_code", Some(1), true),
        (json!({}), "timeout", None, true),
        (json!({}), "start_failed", None, true),
        (json!({"kinds": ["timeout"]}), "exit_code", Some(1), false),
        (json!({"kinds": ["timeout"]}), "timeout", None, true),
        (json!({"kinds": ["start_failed", "signal"]}), "timeout", None, false),
        (json!({"exit_codes": [75, 3]}), "exit_code", Some(3), true),
        (json!({"exit_codes": [75, 3]}), "exit_code", Some(1), false),
        (json!({"exit_codes": [75, 3]}), "timeout", None, true),
    ] {
        put(&fixture.replica, policy(more.clone())).await;
        let id = fixture.start().await;
        let (next, _) = fixture.fail(id, kind, code).await;
        assert_eq!(next != 0, retried, "{more} {kind} {code:?}");
    }
    fixture.replica.stop().await;
}

async fn a_retry_field_that_does_nothing_is_refused(db: TestDb) {
    let replica = Replica::start(&db).await;
    let refused = |retry: Value| v1::ApplyRequest {
        jobs: vec![definition(&job("a", &json!({"retry": retry})), "")],
        ..v1::ApplyRequest::default()
    };
    for (retry, field) in [
        (
            json!({"policy": "fixed", "max_retries": 1, "delay": "1s", "factor": 2}),
            "retry.factor",
        ),
        (
            json!({"policy": "fixed", "max_retries": 1, "delay": "1s", "cap": "1m"}),
            "retry.cap",
        ),
        (json!({"policy": "none", "jitter": 0.1}), "retry.jitter"),
        (
            json!({"policy": "none", "avoid_last_runner": true}),
            "retry.avoid_last_runner",
        ),
    ] {
        let result = apply(&mut replica.jobs(), refused(retry)).await.remove(0);
        assert_eq!(result.error.map(|error| error.field).as_deref(), Some(field));
    }
    replica.stop().await;
}

/// Processes that could not be ended: beside them nothing may start.
async fn a_retry_waits_for_the_proof_that_nothing_of_the_attempt_before_is_left(db: TestDb) {
    let policy = json!({"retry": {"policy": "fixed", "max_retries": 1, "delay": "0s"}});
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &policy)).await;
    let first = start(&replica, "a").await.task_id;
    let mut runner = SimRunner::new(&replica, "h", 0);
    assert_eq!(runner.take().await.task_id, first);
    let mut result = runner.result(first, "exit_code", Some(1));
    result.detail = Some(v1::EndDetail {
        tree_empty: Some(false),
        ..v1::EndDetail::default()
    });
    runner.ended(result).await;
    let failed = replica.until_state(first, S::Failed).await;
    assert_eq!(failed.retried_by, 0);
    let held = get(&replica, "a").await;
    assert_eq!((held.running.as_slice(), held.unproven.len()), ([first].as_slice(), 1));
    // The slot says that its hands are empty.
    let second = runner.take().await.task_id;
    let task = replica.task(second).await;
    assert_eq!((task.retry_of, task.attempt), (first, 2));
    assert_eq!(get(&replica, "a").await.unproven, []);
    let result = runner.success(second);
    runner.ended(result).await;
    until("the place is free", || async {
        get(&replica, "a").await.running.is_empty().then_some(())
    })
    .await;
    replica.stop().await;
}
