//! Times that a clock wrote which was ahead: nothing waits for them once it is right again.

use crate::alarms::{arrived, config, with_alarms};
use crate::jobs::{job, put, start};
use serde_json::json;
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_scheduler::context::Context;
use systole_shared::clock::now_ms;
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{Receiver, SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_retry_and_a_delay_of_a_wrong_clock_keep_their_length,
    a_run_that_waits_for_its_place_since_a_wrong_clock_gets_it,
    a_fixed_delay_of_a_wrong_clock_keeps_its_length,
    a_callback_of_a_wrong_clock_is_tried_again,
    an_alarm_of_a_wrong_clock_is_told_and_a_silence_keeps_its_length,
    a_runner_that_a_wrong_clock_saw_last_is_lost_all_the_same,
);

const DAY_MS: i64 = 24 * 3_600_000;

/// The database's clock is wrong. What was written meanwhile is moved ahead by hand: the clock of a test is the machine's.
async fn hold(ctx: &Context) {
    ctx.clock.skew(3_652 * DAY_MS);
    until("the clock is held", || async { ctx.clock.hold().map(drop) }).await;
}

async fn fail(runner: &mut SimRunner, id: i64) {
    assert_eq!(runner.take().await.task_id, id);
    let result = runner.result(id, "exit_code", Some(1));
    runner.ended(result).await;
}

async fn a_retry_and_a_delay_of_a_wrong_clock_keep_their_length(db: TestDb) {
    let replica = Replica::start(&db).await;
    let ctx = &replica.running.context;
    hold(ctx).await;
    let retried = v1::TaskSpec {
        retry: Some(v1::Retry {
            max_retries: 1,
            delay_ms: 1,
        }),
        ..command(&["false"])
    };
    let first = replica.submit(retried).await;
    fail(&mut SimRunner::new(&replica, "a", 0), first).await;
    let retry = replica.task(first).await.retried_by;
    let later = |delay_ms| v1::TaskSpec {
        delay_ms,
        ..command(&["true"])
    };
    let soon = replica.submit(later(1)).await;
    let hour = replica.submit(later(3_600_000)).await;
    // A time that somebody named is meant as it is, whatever the clock said then.
    let named_ms = now_ms() + 2 * DAY_MS;
    let named = v1::TaskSpec {
        run_at_ms: u64::try_from(named_ms).expect("after 1970"),
        ..command(&["true"])
    };
    let named = replica.submit(named).await;
    db.sql(&format!(
        "UPDATE task SET created_at_ms = created_at_ms + {DAY_MS}, \
           run_at_ms = CASE WHEN id = {named} THEN run_at_ms ELSE run_at_ms + {DAY_MS} END WHERE status = 1"
    ));
    ctx.clock.skew(0);
    for id in [retry, soon] {
        replica.until_state(id, S::Queued).await;
    }
    let due_ms = |id: i64| -> i64 {
        let text = db.sql(&format!("SELECT run_at_ms FROM task WHERE id = {id}"));
        text.parse().expect("a number")
    };
    let rest_ms = due_ms(hour) - now_ms();
    assert!((1..=3_600_000).contains(&rest_ms), "{rest_ms}");
    assert_eq!(due_ms(named), named_ms);
    for id in [hour, named] {
        assert_eq!(replica.state(id).await, S::Created);
    }
    replica.stop().await;
}

async fn a_run_that_waits_for_its_place_since_a_wrong_clock_gets_it(db: TestDb) {
    let replica = Replica::start(&db).await;
    let ctx = &replica.running.context;
    put(&replica, job("a", &json!({}))).await;
    let first = start(&replica, "a").await.task_id;
    let mut runner = SimRunner::new(&replica, "h", 0);
    assert_eq!(runner.take().await.task_id, first);
    runner.running(first).await;
    hold(ctx).await;
    let second = start(&replica, "a").await.task_id;
    assert_eq!(replica.state(second).await, S::Created);
    db.sql(&format!(
        "UPDATE task SET created_at_ms = created_at_ms + {DAY_MS}, run_at_ms = run_at_ms + {DAY_MS}, \
           waiting_ms = waiting_ms + {DAY_MS} WHERE id = {second}"
    ));
    ctx.clock.skew(0);
    let result = runner.success(first);
    runner.ended(result).await;
    until("it has its place and its time", || async {
        (replica.state(second).await != S::Created).then_some(())
    })
    .await;
    replica.stop().await;
}

async fn a_fixed_delay_of_a_wrong_clock_keeps_its_length(db: TestDb) {
    let replica = Replica::start(&db).await;
    let ctx = &replica.running.context;
    let trigger = json!({"trigger": [{"name": "t", "fixed_delay": "1s"}]});
    put(&replica, job("a", &trigger)).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    let first = runner.take().await.task_id;
    runner.running(first).await;
    hold(ctx).await;
    let result = runner.success(first);
    runner.ended(result).await;
    db.sql(&format!(
        "UPDATE job_trigger SET judged_ms = judged_ms + {DAY_MS}, next_ms = next_ms + {DAY_MS}, due_ms = due_ms + {DAY_MS}"
    ));
    ctx.clock.skew(0);
    assert_ne!(runner.take().await.task_id, first);
    replica.stop().await;
}

async fn a_callback_of_a_wrong_clock_is_tried_again(db: TestDb) {
    let receiver = Receiver::start();
    receiver.answer(503);
    let mut config = Replica::config(&db);
    config.callbacks.backoff = Duration::from_secs(3_600);
    let replica = Replica::start_with(config).await;
    let ctx = &replica.running.context;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let spec = v1::TaskSpec {
            callback_url: receiver.url.clone(),
            ..command(&["false"])
        };
        let id = replica.submit(spec).await;
        fail(&mut runner, id).await;
        ids.push(id);
    }
    until("both were tried", || async {
        let tried = db.sql("SELECT count(*) FROM callback WHERE status = 'pending' AND last_error <> ''");
        (tried == "2").then_some(())
    })
    .await;
    receiver.answer(200);
    hold(ctx).await;
    let [ahead, fair] = ids[..] else { panic!("two") };
    db.sql(&format!(
        "UPDATE callback SET next_at_ms = next_at_ms + {DAY_MS} WHERE task_id = {ahead}"
    ));
    ctx.clock.skew(0);
    let status = |id: i64| db.sql(&format!("SELECT status FROM callback WHERE task_id = {id}"));
    until("it is delivered", || async {
        (status(ahead) == "delivered").then_some(())
    })
    .await;
    // An hour is a wait like any other.
    assert_eq!(status(fair), "pending");
    replica.stop().await;
}

async fn an_alarm_of_a_wrong_clock_is_told_and_a_silence_keeps_its_length(db: TestDb) {
    let receiver = Receiver::start();
    receiver.answer(503);
    let mut config = config(&db, &receiver);
    config.alarms.backoff = Duration::from_secs(3_600);
    let replica = Replica::start_with(config).await;
    let ctx = &replica.running.context;
    let rules = json!([{"when": "failure", "silence": "1h", "to": ["hook"]}]);
    put(&replica, with_alarms("a", &rules)).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    for held in ["0", "1"] {
        let id = start(&replica, "a").await.task_id;
        fail(&mut runner, id).await;
        assert_eq!(db.sql("SELECT count(*) FROM alarm WHERE status = 'held'"), held);
    }
    until("the first was tried", || async {
        let tried = db.sql("SELECT count(*) FROM alarm WHERE status = 'pending' AND last_error <> ''");
        (tried == "1").then_some(())
    })
    .await;
    receiver.answer(200);
    hold(ctx).await;
    db.sql(&format!(
        "UPDATE alarm SET raised_at_ms = raised_at_ms + {DAY_MS}, next_at_ms = next_at_ms + {DAY_MS}"
    ));
    ctx.clock.skew(0);
    arrived(&receiver, 2).await;
    let next_ms: i64 = db
        .sql("SELECT next_at_ms FROM alarm WHERE status = 'held'")
        .parse()
        .expect("it is held");
    let rest_ms = next_ms - now_ms();
    assert!((1..=3_600_000).contains(&rest_ms), "{rest_ms}");
    replica.stop().await;
}

async fn a_runner_that_a_wrong_clock_saw_last_is_lost_all_the_same(db: TestDb) {
    let replica = Replica::start(&db).await;
    let ctx = &replica.running.context;
    let id = replica.submit(command(&["true"])).await;
    let mut dead = SimRunner::new(&replica, "dead", 0);
    dead.take().await;
    dead.running(id).await;
    hold(ctx).await;
    db.sql(&format!("UPDATE runner SET seen_ms = seen_ms + {DAY_MS}"));
    ctx.clock.skew(0);
    let failed = replica.until_state(id, S::Failed).await;
    assert_eq!(failed.outcome.expect("outcome").kind, "runner_lost");
    replica.stop().await;
}
