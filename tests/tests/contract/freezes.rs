//! Freezes: what is neither dispatched nor fired, until a time or until somebody lifts it.

use super::jobs::{get, job, ledger, put, start};
use serde_json::json;
use std::time::Duration;
use systole_proto::v1;
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_frozen_queue_waits_and_goes_on_in_its_order,
    a_frozen_tag_is_passed_over_wherever_it_is_aimed,
    a_claim_that_knows_an_older_freeze_gets_nothing,
    when_a_pause_is_answered_nothing_is_dispatched_any_more,
    a_freeze_survives_the_replica_and_ends_by_itself,
    a_freeze_does_not_end_by_a_clock_that_is_not_believed,
    fires_of_what_is_frozen_are_one_range_and_nothing_is_made_up,
    a_freeze_that_ends_by_itself_makes_up_nothing,
    a_trigger_after_another_job_is_skipped_while_it_is_frozen,
    a_run_that_somebody_asks_for_waits_with_the_freeze_as_its_reason,
    a_freeze_is_changed_by_the_next_one_and_lifted_by_its_own_name,
    what_is_no_freeze_is_refused_by_its_field,
);

const DAY_MS: u64 = 86_400_000;

fn freeze(scope: &str, name: &str, for_ms: u64) -> v1::PauseRequest {
    v1::PauseRequest {
        scope: scope.into(),
        name: name.into(),
        for_ms,
        reason: "CHG-1042".into(),
        ..v1::PauseRequest::default()
    }
}

async fn pause(replica: &Replica, scope: &str, name: &str, for_ms: u64) -> v1::PauseResponse {
    let response = replica.cluster().pause(freeze(scope, name, for_ms)).await;
    response.expect("pause").into_inner()
}

async fn resume(replica: &Replica, scope: &str, name: &str) -> v1::ResumeResponse {
    let request = v1::ResumeRequest {
        scope: scope.into(),
        name: name.into(),
        reason: "done".into(),
    };
    replica.cluster().resume(request).await.expect("resume").into_inner()
}

async fn frozen(replica: &Replica) -> Vec<v1::Freeze> {
    let request = v1::StatusRequest::default();
    replica
        .cluster()
        .status(request)
        .await
        .expect("status")
        .into_inner()
        .frozen
}

async fn audit(replica: &Replica, action: &str) -> Vec<(String, String)> {
    let request = v1::ListAuditRequest {
        action: action.into(),
        ..v1::ListAuditRequest::default()
    };
    let response = replica.access().list_audit(request).await.expect("audit");
    let entries = response.into_inner().entries;
    entries.into_iter().map(|entry| (entry.actor, entry.subject)).collect()
}

/// Nobody is lost by itself.
async fn patient(db: &TestDb) -> Replica {
    let mut config = Replica::config(db);
    config.timing.lost_after = Duration::from_secs(600);
    Replica::start_with(config).await
}

fn in_queue(queue: &str) -> v1::TaskSpec {
    v1::TaskSpec {
        queue: queue.into(),
        ..command(&["true"])
    }
}

async fn gets_nothing(runner: &mut SimRunner) {
    assert_eq!(runner.idle_parked(700).await.command(), v1::Command::GoOn);
}

/// Ends what it holds.
async fn end(runner: &mut SimRunner, id: i64) {
    let result = runner.success(id);
    runner.ended(result).await;
}

async fn a_frozen_queue_waits_and_goes_on_in_its_order(db: TestDb) {
    let replica = patient(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.beat.queues = vec!["etl".into(), "default".into()];
    let running = replica.submit(in_queue("etl")).await;
    assert_eq!(runner.take().await.task_id, running);
    pause(&replica, "queue", "etl", 0).await;
    // What runs goes on.
    assert_eq!(runner.running(running).await.command(), v1::Command::GoOn);
    let first = replica.submit(in_queue("etl")).await;
    let second = replica.submit(in_queue("etl")).await;
    let other = replica.submit(in_queue("default")).await;
    end(&mut runner, running).await;
    assert_eq!(runner.take().await.task_id, other);
    end(&mut runner, other).await;
    gets_nothing(&mut runner).await;
    let waits = replica.task(first).await.waiting_for;
    assert_eq!(
        waits,
        "queue etl is frozen by admin, \"CHG-1042\"; lift: systole resume --queue etl"
    );
    let status = frozen(&replica).await;
    assert_eq!(status.len(), 1);
    assert_eq!(
        (status[0].scope.as_str(), status[0].name.as_str(), status[0].until_ms),
        ("queue", "etl", 0)
    );

    let lifted = resume(&replica, "queue", "etl").await;
    assert!(lifted.lifted.is_some() && lifted.frozen.is_empty());
    assert_eq!(runner.take().await.task_id, first);
    end(&mut runner, first).await;
    assert_eq!(runner.take().await.task_id, second);
    assert!(frozen(&replica).await.is_empty());
    let one = |action: &str| (action.to_owned(), "queue etl".to_owned());
    assert_eq!(audit(&replica, "pause").await, [one("admin")]);
    assert_eq!(audit(&replica, "resume").await, [one("admin")]);
    replica.stop().await;
}

async fn a_frozen_tag_is_passed_over_wherever_it_is_aimed(db: TestDb) {
    let replica = patient(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.idle().await;
    let aimed = |tag: &str| v1::TaskSpec {
        target_host: "a".into(),
        tags: vec![tag.into()],
        ..command(&["true"])
    };
    let tagged = |tag: &str| v1::TaskSpec {
        tags: vec!["y".into(), tag.into()],
        ..command(&["true"])
    };
    pause(&replica, "tag", "x", 0).await;
    let frozen_tasks = [replica.submit(aimed("x")).await, replica.submit(tagged("x")).await];
    for open in [aimed("z"), tagged("z"), command(&["true"])] {
        let id = replica.submit(open).await;
        assert_eq!(runner.take().await.task_id, id);
        end(&mut runner, id).await;
    }
    gets_nothing(&mut runner).await;
    for id in frozen_tasks {
        let waits = replica.task(id).await.waiting_for;
        assert!(waits.starts_with("tag x is frozen by admin"), "{waits}");
    }
    resume(&replica, "tag", "x").await;
    let mut got = Vec::new();
    for _ in 0..2 {
        let id = runner.take().await.task_id;
        end(&mut runner, id).await;
        got.push(id);
    }
    got.sort_unstable();
    assert_eq!(got, frozen_tasks);
    replica.stop().await;
}

/// What a replica remembers saves work; the transaction decides.
async fn a_claim_that_knows_an_older_freeze_gets_nothing(db: TestDb) {
    let mut config = Replica::config(&db);
    config.timing.lost_after = Duration::from_secs(600);
    // It does not look by itself.
    config.timing.poll = Duration::from_secs(600);
    let replica = Replica::start_with(config).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.idle().await;
    let known = replica.running.context.lanes.plan([], []).generation;
    // Another replica froze everything, and its message was lost.
    db.sql("INSERT INTO frozen (scope, frozen_by, since_ms) VALUES ('all', 'bob', 0)");
    db.sql("UPDATE freeze_state SET generation = generation + 1");
    let specs = [
        command(&["true"]),
        v1::TaskSpec {
            target_host: "a".into(),
            ..command(&["true"])
        },
    ];
    for spec in specs {
        let id = replica.submit(spec).await;
        assert_eq!(runner.idle().await.command(), v1::Command::GoOn, "{id}");
        gets_nothing(&mut runner).await;
    }
    assert_eq!(
        replica.running.context.lanes.plan([], []).generation,
        known,
        "it has not looked"
    );
    replica.stop().await;
}

/// Whoever claims at that moment was before it, or gets nothing: under load, over two replicas.
async fn when_a_pause_is_answered_nothing_is_dispatched_any_more(db: TestDb) {
    let one = patient(&db).await;
    let other = match db.postgres {
        Some(_) => Some(patient(&db).await),
        None => None,
    };
    let over = tokio_util::sync::CancellationToken::new();
    let runners: Vec<_> = (0..8)
        .map(|n| {
            let replica = if n % 2 == 0 {
                &one
            } else {
                other.as_ref().unwrap_or(&one)
            };
            let mut runner = SimRunner::new(replica, &format!("h{n}"), 0);
            let over = over.clone();
            tokio::spawn(async move {
                while !over.is_cancelled() {
                    let response = runner.idle_parked(300).await;
                    if let Some(run) = response.run {
                        end(&mut runner, run.task_id).await;
                    }
                }
            })
        })
        .collect();
    let dispatched = || {
        db.sql("SELECT count(*) FROM task WHERE dispatched_at_ms IS NOT NULL")
            .parse::<i64>()
    };
    let mut lifted = 0;
    for round in 1..=3 {
        for _ in 0..120 {
            one.submit(command(&["true"])).await;
        }
        until("they run", || async {
            dispatched().is_ok_and(|count| count >= lifted + 20).then_some(())
        })
        .await;
        let freeze = pause(&one, "all", "", 0).await.freeze.expect("frozen");
        let known = dispatched().expect("a number");
        let queued = one.submit(command(&["true"])).await;
        // Each runner has asked again since.
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(dispatched().expect("a number"), known, "round {round}");
        let late = db.sql(&format!(
            "SELECT count(*) FROM task WHERE dispatched_at_ms > {}",
            freeze.since_ms
        ));
        assert_eq!(late, "0", "round {round}");
        assert_eq!(one.state(queued).await, v1::TaskState::Queued);
        lifted = known;
        resume(&one, "all", "").await;
        one.until_state(queued, v1::TaskState::Finished).await;
        lifted = lifted.max(dispatched().expect("a number"));
    }
    over.cancel();
    for runner in runners {
        runner.await.expect("no panic");
    }
    if let Some(other) = other {
        other.stop().await;
    }
    one.stop().await;
}

async fn a_freeze_survives_the_replica_and_ends_by_itself(db: TestDb) {
    let replica = patient(&db).await;
    let done = pause(&replica, "all", "", DAY_MS).await.freeze.expect("frozen");
    let id = replica.submit(command(&["true"])).await;
    replica.stop().await;

    let replica = patient(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    gets_nothing(&mut runner).await;
    assert_eq!(frozen(&replica).await, [done]);
    db.sql(&format!("UPDATE frozen SET until_ms = until_ms - {DAY_MS}"));
    assert_eq!(runner.take().await.task_id, id);
    assert!(frozen(&replica).await.is_empty());
    assert_eq!(
        audit(&replica, "resume").await,
        [("scheduler".to_owned(), "everything".to_owned())]
    );
    replica.stop().await;
}

async fn a_freeze_does_not_end_by_a_clock_that_is_not_believed(db: TestDb) {
    let replica = patient(&db).await;
    pause(&replica, "all", "", DAY_MS).await;
    let id = replica.submit(command(&["true"])).await;
    let ctx = &replica.running.context;
    ctx.clock.skew(10 * 365 * 86_400_000);
    until("the clock is held", || async { ctx.clock.hold().map(drop) }).await;
    db.sql(&format!("UPDATE frozen SET until_ms = until_ms - {DAY_MS}"));
    let mut runner = SimRunner::new(&replica, "a", 0);
    gets_nothing(&mut runner).await;
    ctx.clock.skew(0);
    assert_eq!(runner.take().await.task_id, id);
    replica.stop().await;
}

/// A time without a word of it: all that is stored of triggers lies further back.
fn set_back(db: &TestDb, ms: i64) {
    db.sql(&format!(
        "UPDATE job_trigger SET created_at_ms = created_at_ms - {ms}, judged_ms = judged_ms - {ms}, next_ms = next_ms - {ms}, \
         due_ms = due_ms - {ms}"
    ));
    db.sql(&format!(
        "UPDATE occurrence SET scheduled_ms = scheduled_ms - {ms}, until_ms = until_ms - {ms}"
    ));
}

async fn fires_of_what_is_frozen_are_one_range_and_nothing_is_made_up(db: TestDb) {
    let replica = Replica::start(&db).await;
    let trigger = json!({"tags": ["x"], "trigger": [{"name": "t", "fixed_rate": "1s", "misfire": "catch_up"}]});
    put(&replica, job("a", &trigger)).await;
    put(
        &replica,
        job("b", &json!({"trigger": [{"name": "t", "fixed_rate": "1s"}]})),
    )
    .await;
    pause(&replica, "tag", "x", 0).await;
    // It is put aside once, and not looked at again and again.
    until("the trigger is put aside", || async {
        (db.sql("SELECT count(*) FROM job_trigger WHERE frozen AND due_ms IS NULL") == "1").then_some(())
    })
    .await;
    let fired = ledger(&replica, "a").await.len();
    let stood = get(&replica, "a").await;
    assert_eq!((stood.frozen.len(), get(&replica, "b").await.frozen.len()), (1, 0));
    let foretold = v1::NextRequest {
        job: "a".into(),
        ..v1::NextRequest::default()
    };
    let coming = replica.jobs().next(foretold).await.expect("next").into_inner().coming;
    assert!(coming.is_empty(), "{coming:?}");
    // A year passes.
    set_back(&db, 365 * 86_400_000);
    assert_eq!(ledger(&replica, "a").await.len(), fired);
    resume(&replica, "tag", "x").await;
    let rows = until("it fires again", || async {
        let rows = ledger(&replica, "a").await;
        rows.first().is_some_and(|row| row.verdict == "fired").then_some(rows)
    })
    .await;
    let (paused, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.reason == "paused");
    assert_eq!(paused.len(), 1, "{rows:?}");
    assert!(paused[0].fires >= 31_536_000, "{paused:?}");
    // Of the others, none is a burst: each has its own second, and none is a misfire.
    assert!(others.iter().all(|row| row.reason == "schedule"), "{rows:?}");
    // The other job has known nothing of it but its outage.
    assert!(ledger(&replica, "b").await.iter().all(|row| row.reason != "paused"));
    replica.stop().await;
}

async fn a_freeze_that_ends_by_itself_makes_up_nothing(db: TestDb) {
    let replica = Replica::start(&db).await;
    let trigger = json!({"trigger": [{"name": "t", "fixed_rate": "1s", "misfire": "catch_up"}]});
    put(&replica, job("a", &trigger)).await;
    let done = pause(&replica, "queue", "default", 3_000).await.freeze.expect("frozen");
    let (since, end) = (done.since_ms, done.until_ms);
    let rows = until("it fires again", || async {
        let rows = ledger(&replica, "a").await;
        rows.iter()
            .any(|row| row.verdict == "fired" && row.scheduled_at_ms > end)
            .then_some(rows)
    })
    .await;
    let paused: Vec<_> = rows.iter().filter(|row| row.reason == "paused").collect();
    assert_eq!(paused.len(), 1, "{rows:?}");
    assert!(paused[0].until_ms <= end && paused[0].fires >= 2, "{paused:?}");
    assert!(
        rows.iter()
            .all(|row| row.verdict != "fired" || row.scheduled_at_ms > end || row.at_ms <= since),
        "{rows:?}"
    );
    replica.stop().await;
}

async fn a_trigger_after_another_job_is_skipped_while_it_is_frozen(db: TestDb) {
    let replica = patient(&db).await;
    put(&replica, job("extract", &json!({}))).await;
    let after = json!({"queue": "etl", "trigger": [{"name": "t", "after": {"job": "extract", "outcome": "finished"}}]});
    put(&replica, job("load", &after)).await;
    pause(&replica, "queue", "etl", 0).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    start(&replica, "extract").await;
    let id = runner.take().await.task_id;
    end(&mut runner, id).await;
    let rows = ledger(&replica, "load").await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(
        (rows[0].verdict.as_str(), rows[0].reason.as_str()),
        ("skipped", "paused")
    );
    resume(&replica, "queue", "etl").await;
    start(&replica, "extract").await;
    let id = runner.take().await.task_id;
    end(&mut runner, id).await;
    let rows = ledger(&replica, "load").await;
    assert_eq!(rows.iter().filter(|row| row.verdict == "fired").count(), 1, "{rows:?}");
    replica.stop().await;
}

async fn a_run_that_somebody_asks_for_waits_with_the_freeze_as_its_reason(db: TestDb) {
    let replica = patient(&db).await;
    put(&replica, job("a", &json!({}))).await;
    pause(&replica, "all", "", DAY_MS).await;
    let id = start(&replica, "a").await.task_id;
    let task = replica.task(id).await;
    assert_eq!(task.state(), v1::TaskState::Queued);
    assert!(
        task.waiting_for.starts_with("frozen by admin until ") && task.waiting_for.ends_with("systole resume --all"),
        "{}",
        task.waiting_for
    );
    replica.stop().await;
}

async fn a_freeze_is_changed_by_the_next_one_and_lifted_by_its_own_name(db: TestDb) {
    let replica = patient(&db).await;
    put(
        &replica,
        job("a", &json!({"trigger": [{"name": "t", "fixed_rate": "1s"}]})),
    )
    .await;
    let first = pause(&replica, "all", "", DAY_MS).await;
    assert!(!first.already);
    until("the trigger is put aside", || async {
        (db.sql("SELECT count(*) FROM job_trigger WHERE frozen") == "1").then_some(())
    })
    .await;
    pause(&replica, "queue", "etl", 0).await;
    let second = pause(&replica, "all", "", DAY_MS / 2).await;
    assert!(second.already);
    let (first, second) = (first.freeze.expect("one"), second.freeze.expect("one"));
    assert!(second.until_ms < first.until_ms && second.since_ms == first.since_ms);
    // The trigger does not wait for the old end.
    until("the trigger has the new end", || async {
        let due = db.sql("SELECT due_ms FROM job_trigger WHERE frozen");
        (due == second.until_ms.to_string()).then_some(())
    })
    .await;
    let lifted = resume(&replica, "all", "").await;
    assert_eq!(lifted.lifted.map(|freeze| freeze.scope), Some("all".into()));
    let left: Vec<&str> = lifted.frozen.iter().map(|freeze| freeze.name.as_str()).collect();
    assert_eq!(left, ["etl"]);
    assert_eq!(resume(&replica, "all", "").await.lifted, None);
    assert_eq!(frozen(&replica).await.len(), 1);
    replica.stop().await;
}

async fn what_is_no_freeze_is_refused_by_its_field(db: TestDb) {
    let replica = patient(&db).await;
    let past = v1::PauseRequest {
        until_ms: 1_000,
        ..freeze("all", "", 0)
    };
    let both = v1::PauseRequest {
        until_ms: 1_000,
        ..freeze("all", "", 1)
    };
    for (request, field) in [
        (freeze("job", "a", 0), "scope"),
        (freeze("all", "a", 0), "name"),
        (freeze("queue", "", 0), "name"),
        (freeze("all", "", 400 * DAY_MS), "for_ms"),
        (past, "until"),
        (both, "until_ms"),
    ] {
        let status = replica.cluster().pause(request).await.expect_err("no freeze");
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        let named = status.metadata().get("systole-error-field").expect("a field");
        assert_eq!(named, field, "{}", status.message());
    }
    for n in 0..100 {
        pause(&replica, "tag", &format!("t{n}"), 0).await;
    }
    let status = replica
        .cluster()
        .pause(freeze("tag", "more", 0))
        .await
        .expect_err("too many");
    assert!(status.message().contains("100 freezes"), "{}", status.message());
    // One that is there can be changed all the same.
    assert!(pause(&replica, "tag", "t7", DAY_MS).await.already);
    replica.stop().await;
}
