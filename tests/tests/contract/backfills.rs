//! Backfills: fires that did not happen are made up, with their scheduled time unchanged.

use super::jobs::{get, job, ledger, put, start};
use serde_json::json;
use std::collections::BTreeSet;
use systole_proto::v1;
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_range_that_was_paused_is_made_up_slot_by_slot_and_the_rest_of_it_stays,
    what_fired_is_left_out_and_a_dry_run_stores_nothing,
    what_was_due_before_the_trigger_existed_is_made_up_and_forgotten_by_a_cancel,
    a_backfill_takes_the_places_of_its_job_one_after_the_other,
    a_number_of_its_own_stands_beside_the_runs_of_the_job,
    a_backfill_goes_on_after_its_replica,
    a_repeated_call_makes_one_backfill,
    what_is_no_backfill_is_refused_by_its_field,
);

const HOUR_MS: i64 = 3_600_000;
/// 2026-01-01T00:00:00Z.
const JANUARY_MS: i64 = 1_767_225_600_000;

fn ms(at: i64) -> u64 {
    u64::try_from(at).expect("after 1970")
}

/// It does not fire by itself, whatever the time of the day: a pause holds no backfill back.
fn hourly() -> serde_json::Value {
    json!({"trigger": [{"name": "t", "cron": "0 * * * *", "paused": true}]})
}

fn request(from: i64, to: i64) -> v1::BackfillRequest {
    v1::BackfillRequest {
        job: "a".into(),
        from_ms: ms(from),
        to_ms: ms(to),
        reason: "CHG-7".into(),
        ..v1::BackfillRequest::default()
    }
}

async fn backfill(replica: &Replica, request: v1::BackfillRequest) -> v1::BackfillResponse {
    replica.jobs().backfill(request).await.expect("backfill").into_inner()
}

async fn state(replica: &Replica, id: i64) -> v1::Backfill {
    let request = v1::ListBackfillsRequest::default();
    let rows = replica
        .jobs()
        .list_backfills(request)
        .await
        .expect("list")
        .into_inner()
        .backfills;
    rows.into_iter().find(|row| row.id == id).expect("the backfill")
}

/// The job is there since long ago, and of the hours of 2026-01-01 up to 10:00 the ledger says that they were left out by a pause: one row.
async fn paused_morning(replica: &Replica, db: &TestDb, more: serde_json::Value) {
    let mut definition = hourly();
    let map = definition.as_object_mut().expect("an object");
    map.extend(more.as_object().expect("an object").clone());
    put(replica, job("a", &definition)).await;
    db.sql(&format!(
        "UPDATE job_trigger SET created_at_ms = {}",
        JANUARY_MS - HOUR_MS
    ));
    db.sql(&format!(
        "INSERT INTO occurrence (job_id, trigger_id, trigger_name, scheduled_ms, until_ms, fires, verdict, reason, at_ms) \
         SELECT job_id, id, name, {JANUARY_MS}, {}, 11, 'skipped', 'paused', {} FROM job_trigger",
        JANUARY_MS + 10 * HOUR_MS,
        systole_shared::clock::now_ms()
    ));
}

async fn end(runner: &mut SimRunner, id: i64) {
    let result = runner.success(id);
    runner.ended(result).await;
}

fn scheduled(run: &v1::RunNew) -> String {
    let spec = run.spec.as_ref().expect("a spec");
    let found = spec.env.iter().find(|var| var.name == "SYSTOLE_SCHEDULED_TIME");
    found.expect("the scheduled time").value.clone()
}

async fn a_range_that_was_paused_is_made_up_slot_by_slot_and_the_rest_of_it_stays(db: TestDb) {
    let replica = Replica::start(&db).await;
    paused_morning(&replica, &db, json!({})).await;
    let made = backfill(&replica, request(JANUARY_MS + 3 * HOUR_MS, JANUARY_MS + 5 * HOUR_MS)).await;
    assert_eq!((made.count, made.fired, made.at_once), (3, 0, 1));
    let mut runner = SimRunner::new(&replica, "h", 0);
    for hour in 3..6 {
        let run = runner.take().await;
        assert_eq!(scheduled(&run), format!("2026-01-01T0{hour}:00:00+00:00"));
        assert_eq!(
            run.spec.as_ref().expect("a spec").batch,
            format!("backfill-{}", made.id)
        );
        end(&mut runner, run.task_id).await;
    }
    until("it is done", || async {
        let row = state(&replica, made.id).await;
        (row.state == "done" && row.made == 3).then_some(())
    })
    .await;
    let rows: Vec<v1::Occurrence> = ledger(&replica, "a")
        .await
        .into_iter()
        .filter(|row| row.scheduled_at_ms <= ms(JANUARY_MS + 10 * HOUR_MS))
        .collect();
    let told: Vec<(i64, u64, &str, &str, &str)> = rows
        .iter()
        .rev()
        .map(|row| {
            let hour = (i64::try_from(row.scheduled_at_ms).expect("a time") - JANUARY_MS) / HOUR_MS;
            (
                hour,
                row.fires,
                row.verdict.as_str(),
                row.reason.as_str(),
                row.was.as_str(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            (0, 3, "skipped", "paused", ""),
            (3, 1, "fired", "backfill", "paused"),
            (4, 1, "fired", "backfill", "paused"),
            (5, 1, "fired", "backfill", "paused"),
            (6, 5, "skipped", "paused", ""),
        ]
    );
    assert!(
        rows[1..4]
            .iter()
            .all(|row| row.backfill_id == made.id && row.task_id != 0)
    );
    assert_eq!(
        (rows[0].until_ms, rows[4].until_ms),
        (ms(JANUARY_MS + 10 * HOUR_MS), ms(JANUARY_MS + 2 * HOUR_MS))
    );
    replica.stop().await;
}

async fn what_fired_is_left_out_and_a_dry_run_stores_nothing(db: TestDb) {
    let replica = Replica::start(&db).await;
    paused_morning(&replica, &db, json!({})).await;
    let whole = || request(JANUARY_MS, JANUARY_MS + 10 * HOUR_MS);
    let before = ledger(&replica, "a").await;
    let dry = v1::BackfillRequest {
        dry_run: true,
        ..whole()
    };
    let plan = backfill(&replica, dry.clone()).await;
    assert_eq!((plan.id, plan.count, plan.fires.len(), plan.unknown), (0, 11, 11, 0));
    assert_eq!(plan.fires[0].scheduled_at_ms, ms(JANUARY_MS));
    assert_eq!(ledger(&replica, "a").await, before);
    // Two hours are made up; the rest of the range is what another one is about.
    let first = backfill(&replica, request(JANUARY_MS + HOUR_MS, JANUARY_MS + 2 * HOUR_MS)).await;
    let plan = backfill(&replica, dry.clone()).await;
    assert_eq!(plan.count, 9, "{plan:?}");
    assert_eq!(plan.fired + plan.pending, 2, "{plan:?}");
    let mut runner = SimRunner::new(&replica, "h", 0);
    for _ in 0..2 {
        let id = runner.take().await.task_id;
        end(&mut runner, id).await;
    }
    until("it is done", || async {
        (state(&replica, first.id).await.state == "done").then_some(())
    })
    .await;
    let plan = backfill(&replica, dry).await;
    assert_eq!((plan.count, plan.fired, plan.pending), (9, 2, 0));
    // Nothing is left of these two.
    let none = backfill(&replica, request(JANUARY_MS + HOUR_MS, JANUARY_MS + 2 * HOUR_MS)).await;
    assert_eq!((none.id, none.count, none.fired), (0, 0, 2));
    replica.stop().await;
}

async fn what_was_due_before_the_trigger_existed_is_made_up_and_forgotten_by_a_cancel(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &hourly())).await;
    let known = ledger(&replica, "a").await.len();
    let made = backfill(&replica, request(JANUARY_MS, JANUARY_MS + 3 * HOUR_MS)).await;
    assert_eq!((made.count, made.unknown), (4, 4));
    let mut runner = SimRunner::new(&replica, "h", 0);
    let first = runner.take().await;
    assert_eq!(scheduled(&first), "2026-01-01T00:00:00+00:00");
    let cancel = v1::CancelBackfillRequest {
        id: made.id,
        reason: "wrong month".into(),
    };
    let done = replica
        .jobs()
        .cancel_backfill(cancel.clone())
        .await
        .expect("cancel")
        .into_inner();
    assert!(!done.already);
    let again = replica
        .jobs()
        .cancel_backfill(cancel)
        .await
        .expect("cancel")
        .into_inner();
    assert!(again.already);
    // What runs goes on; of the others nothing is recorded, as before.
    end(&mut runner, first.task_id).await;
    assert_eq!(runner.idle_parked(700).await.command(), v1::Command::GoOn);
    let rows = ledger(&replica, "a").await;
    assert_eq!(rows.len(), known + 1, "{rows:?}");
    let row = state(&replica, made.id).await;
    assert_eq!(
        (row.state.as_str(), row.made, row.ended_by.as_str()),
        ("cancelled", 1, "admin")
    );
    // They can be made up by another one.
    let again = backfill(&replica, request(JANUARY_MS, JANUARY_MS + 3 * HOUR_MS)).await;
    assert_eq!((again.count, again.fired), (3, 1));
    replica.stop().await;
}

async fn a_backfill_takes_the_places_of_its_job_one_after_the_other(db: TestDb) {
    let replica = Replica::start(&db).await;
    paused_morning(&replica, &db, json!({})).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    let mut second = SimRunner::new(&replica, "i", 0);
    // The job runs: a serial one has no place for a backfill.
    start(&replica, "a").await;
    let own = runner.take().await.task_id;
    let made = backfill(&replica, request(JANUARY_MS, JANUARY_MS + HOUR_MS)).await;
    assert_eq!(made.count, 2);
    assert_eq!(second.idle_parked(700).await.command(), v1::Command::GoOn);
    // A run that somebody asks for waits, and comes before the backfill.
    let asked = start(&replica, "a").await;
    assert!(asked.waiting);
    end(&mut runner, own).await;
    assert_eq!(runner.take().await.task_id, asked.task_id);
    assert_eq!(second.idle_parked(700).await.command(), v1::Command::GoOn);
    end(&mut runner, asked.task_id).await;
    let first = runner.take().await;
    assert_eq!(scheduled(&first), "2026-01-01T00:00:00+00:00");
    assert_eq!(get(&replica, "a").await.running, [first.task_id]);
    assert_eq!(second.idle_parked(700).await.command(), v1::Command::GoOn);
    end(&mut runner, first.task_id).await;
    assert_eq!(scheduled(&runner.take().await), "2026-01-01T01:00:00+00:00");
    replica.stop().await;
}

async fn a_number_of_its_own_stands_beside_the_runs_of_the_job(db: TestDb) {
    let replica = Replica::start(&db).await;
    paused_morning(&replica, &db, json!({})).await;
    start(&replica, "a").await;
    let wanted = v1::BackfillRequest {
        max_concurrent: 2,
        ..request(JANUARY_MS, JANUARY_MS + 3 * HOUR_MS)
    };
    let made = backfill(&replica, wanted).await;
    assert_eq!((made.count, made.at_once), (4, 2));
    let mut runners: Vec<SimRunner> = (0..4).map(|n| SimRunner::new(&replica, &format!("h{n}"), 0)).collect();
    let mut held = Vec::new();
    for runner in &mut runners[..3] {
        held.push(runner.take().await.task_id);
    }
    // Its own run, and two of the backfill.
    assert_eq!(runners[3].idle_parked(700).await.command(), v1::Command::GoOn);
    let of_backfill: Vec<usize> = {
        let mut found = Vec::new();
        for (at, &id) in held.iter().enumerate() {
            let spec = replica.task(id).await.spec.expect("a spec");
            if !spec.batch.is_empty() {
                found.push(at);
            }
        }
        found
    };
    assert_eq!(of_backfill.len(), 2, "{held:?}");
    let at = of_backfill[0];
    end(&mut runners[at], held[at]).await;
    runners[3].take().await;
    assert_eq!(runners[at].idle_parked(700).await.command(), v1::Command::GoOn);
    replica.stop().await;
}

async fn a_backfill_goes_on_after_its_replica(db: TestDb) {
    let replica = Replica::start(&db).await;
    paused_morning(&replica, &db, json!({"blocking": "concurrent", "max_concurrent": 3})).await;
    let made = backfill(&replica, request(JANUARY_MS, JANUARY_MS + 10 * HOUR_MS)).await;
    assert_eq!((made.count, made.at_once), (11, 3));
    let mut runner = SimRunner::new(&replica, "h", 0);
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let run = runner.take().await;
        assert!(seen.insert(scheduled(&run)));
        end(&mut runner, run.task_id).await;
    }
    replica.stop().await;
    let replica = Replica::start(&db).await;
    runner.client = replica.beats();
    for _ in 2..11 {
        let run = runner.take().await;
        assert!(seen.insert(scheduled(&run)), "{seen:?}");
        end(&mut runner, run.task_id).await;
    }
    until("it is done", || async {
        (state(&replica, made.id).await.state == "done").then_some(())
    })
    .await;
    replica.stop().await;
}

async fn a_repeated_call_makes_one_backfill(db: TestDb) {
    let replica = Replica::start(&db).await;
    paused_morning(&replica, &db, json!({})).await;
    let wanted = v1::BackfillRequest {
        key: "k1".into(),
        ..request(JANUARY_MS, JANUARY_MS + HOUR_MS)
    };
    let one = backfill(&replica, wanted.clone()).await;
    let two = backfill(&replica, wanted).await;
    assert_eq!((one.count, two.count), (2, 0));
    assert!(one.id != 0 && one.id == two.id);
    replica.stop().await;
}

async fn what_is_no_backfill_is_refused_by_its_field(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &hourly())).await;
    let year = 366 * 24 * HOUR_MS;
    let unknown = v1::BackfillRequest {
        job: "b".into(),
        ..request(JANUARY_MS, JANUARY_MS)
    };
    let no_trigger = v1::BackfillRequest {
        trigger: "u".into(),
        ..request(JANUARY_MS, JANUARY_MS)
    };
    let many = v1::BackfillRequest {
        max_concurrent: 200_000,
        ..request(JANUARY_MS, JANUARY_MS)
    };
    for (request, field) in [
        (unknown, "name"),
        (no_trigger, "trigger"),
        (request(JANUARY_MS, JANUARY_MS - 1), "from_ms"),
        (request(JANUARY_MS - 2 * year, JANUARY_MS), "from_ms"),
        (many, "max_concurrent"),
    ] {
        let status = replica.jobs().backfill(request).await.expect_err("no backfill");
        let named = status.metadata().get("systole-error-field").expect("a field");
        assert_eq!(named, field, "{}", status.message());
    }
    // What is to come has no verdict yet, and is left out.
    let now = systole_shared::clock::now_ms();
    let plan = backfill(&replica, request(now + HOUR_MS, now + 9 * HOUR_MS)).await;
    assert_eq!((plan.id, plan.count), (0, 0));
    assert!(plan.judged_ms != 0);
    replica.stop().await;
}
