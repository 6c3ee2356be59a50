//! Jobs: what is applied, what fires, and what the ledger says of it.

use serde_json::{Value, json};
use systole_proto::v1;
use systole_proto::v1::{Applied as A, TaskState as S};
use systole_tests::replica::{Jobs, Replica};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_definition_is_created_then_unchanged_then_changed,
    a_dry_run_stores_nothing_and_says_the_same,
    a_plan_knows_the_calendars_and_groups_that_it_would_store,
    an_item_that_is_wrong_names_its_field_and_stops_no_other,
    a_change_of_an_older_version_is_refused,
    a_change_of_a_job_from_a_file_survives_until_the_file_changes,
    what_left_the_files_is_orphaned_and_goes_with_prune,
    every_slot_fires_once_however_many_replicas_fire,
    no_slot_is_lost_when_a_replica_goes,
    an_outage_is_made_up_by_one_fire_that_names_the_last_slot,
    a_pause_is_one_row_and_nothing_is_made_up,
    a_pause_ends_by_itself,
    a_pause_of_a_job_ends_for_each_of_its_triggers,
    a_trigger_that_cannot_be_read_fails_alone,
    a_cursor_that_was_set_back_moves_behind_the_ledger,
    a_run_carries_its_trigger_its_time_and_its_data,
    fixed_delay_counts_from_the_end_of_the_run,
    a_trigger_after_another_job_fires_once_per_chain,
    only_the_failures_that_the_policy_names_are_retried,
    what_is_to_come_is_told_in_order,
);

pub fn job(name: &str, more: &Value) -> Value {
    let mut job = json!({"name": name, "command": ["true"]});
    let (Some(job_map), Some(more)) = (job.as_object_mut(), more.as_object()) else {
        panic!("objects")
    };
    job_map.extend(more.clone());
    job
}

pub fn definition(value: &Value, source: &str) -> v1::Definition {
    v1::Definition {
        json: value.to_string(),
        source: source.into(),
        ..v1::Definition::default()
    }
}

pub async fn apply(jobs: &mut Jobs, request: v1::ApplyRequest) -> Vec<v1::ApplyResult> {
    jobs.apply(request).await.expect("apply").into_inner().results
}

/// Applies one job by a call, which must work.
pub async fn put(replica: &Replica, value: Value) -> v1::ApplyResult {
    let request = v1::ApplyRequest {
        jobs: vec![definition(&value, "")],
        ..v1::ApplyRequest::default()
    };
    let result = apply(&mut replica.jobs(), request).await.remove(0);
    assert_eq!(result.error, None);
    result
}

pub async fn get(replica: &Replica, name: &str) -> v1::Job {
    let request = v1::GetJobsRequest {
        names: vec![name.into()],
    };
    let mut results = replica.jobs().get(request).await.expect("get").into_inner().results;
    results.remove(0).job.expect("the job exists")
}

pub async fn ledger(replica: &Replica, job: &str) -> Vec<v1::Occurrence> {
    let request = v1::OccurrencesRequest {
        job: job.into(),
        limit: 1_000,
        ..v1::OccurrencesRequest::default()
    };
    replica
        .jobs()
        .occurrences(request)
        .await
        .expect("occurrences")
        .into_inner()
        .occurrences
}

pub async fn start(replica: &Replica, job: &str) -> v1::TriggerJobResponse {
    let request = v1::TriggerJobRequest {
        job: job.into(),
        ..v1::TriggerJobRequest::default()
    };
    replica.jobs().trigger(request).await.expect("trigger").into_inner()
}

pub async fn pause(replica: &Replica, name: &str, paused: bool, until_ms: u64) -> v1::SetPausedResult {
    let request = v1::SetPausedRequest {
        names: vec![name.into()],
        paused,
        until_ms,
        reason: "test".into(),
    };
    let mut results = replica
        .jobs()
        .set_paused(request)
        .await
        .expect("pause")
        .into_inner()
        .results;
    results.remove(0)
}

fn every_second() -> Value {
    json!({"blocking": "concurrent", "max_concurrent": 1000, "trigger": [{"name": "tick", "fixed_rate": "1s", "misfire": "catch_up", "max_catch_up": 1000}]})
}

/// A trigger whose next slots lie far away.
fn yearly() -> Value {
    json!({"trigger": [{"name": "yearly", "fixed_rate": "365d"}]})
}

async fn a_definition_is_created_then_unchanged_then_changed(db: TestDb) {
    let replica = Replica::start(&db).await;
    let first = put(&replica, job("a", &yearly())).await;
    assert_eq!((first.applied(), first.version), (A::Created, 1));
    assert_eq!(first.next[0].trigger, "yearly");
    let again = put(&replica, job("a", &yearly())).await;
    assert_eq!((again.applied(), again.version), (A::Unchanged, 1));
    let before = get(&replica, "a").await.triggers[0].clone();
    let changed = put(
        &replica,
        job("a", &json!({"timeout": "5m", "trigger": [{"name": "yearly", "fixed_rate": "365d"}, {"name": "by-hand", "manual": true}]})),
    )
    .await;
    assert_eq!((changed.applied(), changed.version), (A::Changed, 2));
    let now = get(&replica, "a").await;
    assert_eq!(now.origin, "runtime");
    assert_eq!(now.triggers.len(), 2);
    // A trigger that did not change stays where it was.
    assert_eq!(now.triggers[0], before);
    let request = v1::JobVersionsRequest {
        name: "a".into(),
        limit: 0,
    };
    let versions = replica
        .jobs()
        .versions(request)
        .await
        .expect("versions")
        .into_inner()
        .versions;
    assert_eq!(versions.iter().map(|v| v.version).collect::<Vec<_>>(), [2, 1]);
    let request = v1::DeleteJobsRequest {
        names: vec!["a".into(), "b".into()],
        reason: String::new(),
        ..v1::DeleteJobsRequest::default()
    };
    let deleted = replica
        .jobs()
        .delete(request)
        .await
        .expect("delete")
        .into_inner()
        .results;
    assert_eq!(deleted[0].error, None);
    assert_eq!(deleted[1].error.as_ref().expect("no such job").code, "NOTFOUND_001");
    let listed = replica.jobs().list(v1::ListJobsRequest::default()).await.expect("list");
    assert!(listed.into_inner().jobs.is_empty());
    replica.stop().await;
}

async fn a_dry_run_stores_nothing_and_says_the_same(db: TestDb) {
    let replica = Replica::start(&db).await;
    let request = v1::ApplyRequest {
        jobs: vec![definition(&job("a", &yearly()), "")],
        dry_run: true,
        ..v1::ApplyRequest::default()
    };
    let planned = apply(&mut replica.jobs(), request).await.remove(0);
    assert_eq!((planned.applied(), planned.version), (A::Created, 1));
    let listed = replica.jobs().list(v1::ListJobsRequest::default()).await.expect("list");
    assert!(listed.into_inner().jobs.is_empty());
    replica.stop().await;
}

async fn a_plan_knows_the_calendars_and_groups_that_it_would_store(db: TestDb) {
    let replica = Replica::start(&db).await;
    let named = json!({
        "concurrency_group": "disk",
        "trigger": [{"name": "t", "cron": "0 6 25 12 *", "zone": "UTC", "exclude_calendars": ["holidays"]}],
    });
    let mut request = v1::ApplyRequest {
        calendars: vec![definition(&json!({"name": "holidays", "dates": ["2030-12-25"]}), "")],
        groups: vec![definition(&json!({"name": "disk", "limit": 1}), "")],
        jobs: vec![definition(&job("a", &named), "")],
        dry_run: true,
        ..v1::ApplyRequest::default()
    };
    let planned = apply(&mut replica.jobs(), request.clone()).await;
    assert!(planned.iter().all(|result| result.error.is_none()), "{planned:?}");
    let next = |results: &[v1::ApplyResult]| {
        results[2]
            .next
            .iter()
            .map(|one| one.scheduled_at_ms)
            .collect::<Vec<_>>()
    };
    assert!(!next(&planned).is_empty());
    request.dry_run = false;
    let done = apply(&mut replica.jobs(), request.clone()).await;
    assert_eq!(next(&done), next(&planned));
    // By itself it names what nobody has.
    (request.dry_run, request.groups) = (true, Vec::new());
    request.jobs = vec![definition(&job("b", &json!({"concurrency_group": "none"})), "")];
    let refused = apply(&mut replica.jobs(), request).await.remove(1);
    assert_eq!(
        refused.error.map(|error| error.field).as_deref(),
        Some("concurrency_group")
    );
    replica.stop().await;
}

async fn an_item_that_is_wrong_names_its_field_and_stops_no_other(db: TestDb) {
    let replica = Replica::start(&db).await;
    let values = [
        job("a", &json!({"timeout": "soon"})),
        job("b", &json!({"trigger": [{"name": "t", "cron": "61 * * * *"}]})),
        job("c", &json!({"concurrency_group": "none"})),
        job("d", &json!({"colour": "red"})),
        job("e", &json!({"trigger": [{"name": "t", "at": "2001-01-01T00:00:00Z"}]})),
        job("f", &json!({})),
    ];
    let request = v1::ApplyRequest {
        jobs: values.iter().map(|value| definition(value, "")).collect(),
        ..v1::ApplyRequest::default()
    };
    let results = apply(&mut replica.jobs(), request).await;
    let fields: Vec<Option<&str>> = results
        .iter()
        .map(|result| result.error.as_ref().map(|error| error.field.as_str()))
        .collect();
    assert_eq!(
        fields,
        [
            Some("timeout"),
            Some("trigger[0].cron"),
            Some("concurrency_group"),
            Some("json"),
            Some("trigger[0].at"),
            None
        ]
    );
    assert_eq!(results[5].applied(), A::Created);
    replica.stop().await;
}

async fn a_change_of_an_older_version_is_refused(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &json!({}))).await;
    let edit = |expected_version, timeout: &str| v1::ApplyRequest {
        jobs: vec![v1::Definition {
            expected_version,
            ..definition(&job("a", &json!({"timeout": timeout})), "")
        }],
        ..v1::ApplyRequest::default()
    };
    let done = apply(&mut replica.jobs(), edit(1, "1m")).await.remove(0);
    assert_eq!(done.version, 2);
    let refused = apply(&mut replica.jobs(), edit(1, "2m")).await.remove(0);
    assert_eq!(refused.error.expect("refused").code, "CONFLICT_009");
    assert!(get(&replica, "a").await.json.contains("1m"));
    replica.stop().await;
}

async fn a_change_of_a_job_from_a_file_survives_until_the_file_changes(db: TestDb) {
    let replica = Replica::start(&db).await;
    let file = |timeout: &str, at_start| v1::ApplyRequest {
        jobs: vec![definition(&job("a", &json!({"timeout": timeout})), "jobs/a.toml")],
        at_start,
        ..v1::ApplyRequest::default()
    };
    let mut jobs = replica.jobs();
    assert_eq!(apply(&mut jobs, file("1m", true)).await[0].applied(), A::Created);
    put(&replica, job("a", &json!({"timeout": "9m"}))).await;
    let job_now = get(&replica, "a").await;
    assert_eq!(job_now.origin, "overridden");
    assert!(job_now.code_json.contains("1m"));
    assert_eq!(apply(&mut jobs, file("1m", true)).await[0].applied(), A::Overridden);
    assert!(get(&replica, "a").await.json.contains("9m"));
    // The file changes: it counts.
    assert_eq!(apply(&mut jobs, file("2m", false)).await[0].applied(), A::Changed);
    assert_eq!(get(&replica, "a").await.origin, "code");
    // An old replica starts again with the old file.
    assert_eq!(apply(&mut jobs, file("1m", true)).await[0].applied(), A::Outdated);
    assert!(get(&replica, "a").await.json.contains("2m"));
    // A person says so.
    assert_eq!(apply(&mut jobs, file("1m", false)).await[0].applied(), A::Changed);
    replica.stop().await;
}

async fn what_left_the_files_is_orphaned_and_goes_with_prune(db: TestDb) {
    let replica = Replica::start(&db).await;
    let files = |names: &[&str], prune| v1::ApplyRequest {
        jobs: names
            .iter()
            .map(|name| definition(&job(name, &json!({})), "f"))
            .collect(),
        complete: true,
        prune,
        ..v1::ApplyRequest::default()
    };
    let mut jobs = replica.jobs();
    put(&replica, job("by-call", &json!({}))).await;
    apply(&mut jobs, files(&["a", "b"], false)).await;
    let results = apply(&mut jobs, files(&["a"], false)).await;
    assert_eq!((results[1].name.as_str(), results[1].applied()), ("b", A::Orphaned));
    let results = apply(&mut jobs, files(&["a"], true)).await;
    assert_eq!((results[1].name.as_str(), results[1].applied()), ("b", A::Deleted));
    let listed = jobs
        .list(v1::ListJobsRequest::default())
        .await
        .expect("list")
        .into_inner()
        .jobs;
    let names: Vec<&str> = listed.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["a", "by-call"]);
    replica.stop().await;
}

/// Each slot of the grid once, none missing between the first and the last.
fn assert_grid(rows: &[v1::Occurrence]) {
    let mut slots: Vec<u64> = rows.iter().map(|row| row.scheduled_at_ms).collect();
    slots.sort_unstable();
    for pair in slots.windows(2) {
        assert_eq!(pair[1] - pair[0], 1_000, "{slots:?}");
    }
    let tasks: std::collections::HashSet<i64> = rows.iter().map(|row| row.task_id).collect();
    assert_eq!(tasks.len(), rows.len(), "each has a task of its own");
    assert!(rows.iter().all(|row| row.verdict == "fired"), "{rows:?}");
}

async fn until_rows(replica: &Replica, job: &str, count: usize) -> Vec<v1::Occurrence> {
    until("enough verdicts", || async {
        let rows = ledger(replica, job).await;
        (rows.len() >= count).then_some(rows)
    })
    .await
}

async fn every_slot_fires_once_however_many_replicas_fire(db: TestDb) {
    let one = Replica::start(&db).await;
    let two = match db.postgres {
        Some(_) => Some(Replica::start(&db).await),
        None => None,
    };
    for name in ["a", "b", "c"] {
        put(&one, job(name, &every_second())).await;
    }
    for name in ["a", "b", "c"] {
        assert_grid(&until_rows(&one, name, 4).await);
    }
    if let Some(two) = two {
        two.stop().await;
    }
    one.stop().await;
}

async fn no_slot_is_lost_when_a_replica_goes(db: TestDb) {
    let one = Replica::start(&db).await;
    put(&one, job("a", &every_second())).await;
    until_rows(&one, "a", 2).await;
    // It stops; nobody fires for a while, or the other one does.
    let two = match db.postgres {
        Some(_) => {
            let two = Replica::start(&db).await;
            one.stop().await;
            two
        }
        None => {
            one.stop().await;
            Replica::start(&db).await
        }
    };
    assert_grid(&until_rows(&two, "a", 5).await);
    two.stop().await;
}

/// Moves all that is stored of a trigger back in time.
fn set_back(db: &TestDb, ms: i64) {
    db.sql(&format!(
        "UPDATE job_trigger SET judged_ms = judged_ms - {ms}, next_ms = next_ms - {ms}, due_ms = due_ms - {ms}, \
           created_at_ms = created_at_ms - {ms}"
    ));
}

async fn an_outage_is_made_up_by_one_fire_that_names_the_last_slot(db: TestDb) {
    let replica = Replica::start(&db).await;
    let hourly = |misfire: &str| json!({"trigger": [{"name": "t", "fixed_rate": "1h", "misfire": misfire}]});
    for misfire in ["fire_once", "skip"] {
        put(&replica, job(misfire, &hourly(misfire))).await;
    }
    set_back(&db, 180 * 3_600_000 + 1_800_000);
    let rows = until_rows(&replica, "fire_once", 2).await;
    assert_eq!(
        (rows[0].verdict.as_str(), rows[0].reason.as_str()),
        ("fired", "misfire")
    );
    assert_eq!((rows[1].verdict.as_str(), rows[1].fires), ("coalesced", 179));
    assert_eq!(rows[1].into_ms, rows[0].scheduled_at_ms);
    let rows = until_rows(&replica, "skip", 1).await;
    assert_eq!(
        (rows[0].verdict.as_str(), rows[0].reason.as_str(), rows[0].fires),
        ("skipped", "misfire", 180)
    );
    // The next ordinary slot is due.
    let next = get(&replica, "skip").await.triggers[0].next_at_ms;
    assert_eq!(next, rows[0].until_ms + 3_600_000);
    replica.stop().await;
}

async fn a_pause_is_one_row_and_nothing_is_made_up(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(
        &replica,
        job("a", &json!({"trigger": [{"name": "t", "fixed_rate": "1s"}]})),
    )
    .await;
    assert!(!pause(&replica, "a", true, 0).await.already);
    assert!(pause(&replica, "a", true, 0).await.already);
    assert_eq!(get(&replica, "a").await.pause.expect("paused").by, "admin");
    let fired = ledger(&replica, "a").await.len();
    // A year passes.
    set_back(&db, 365 * 86_400_000);
    let resumed = pause(&replica, "a", false, 0).await;
    assert!(resumed.skipped >= 31_536_000, "{resumed:?}");
    let rows = ledger(&replica, "a").await;
    let paused: Vec<&v1::Occurrence> = rows.iter().filter(|row| row.reason == "paused").collect();
    assert!(paused.len() <= 2 && rows.len() <= fired + 4, "{rows:?}");
    until("it fires again", || async {
        let rows = ledger(&replica, "a").await;
        rows.first().is_some_and(|row| row.verdict == "fired").then_some(())
    })
    .await;
    replica.stop().await;
}

async fn a_pause_ends_by_itself(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &every_second())).await;
    let now = u64::try_from(systole_shared::clock::now_ms()).expect("after 1970");
    let done = pause(&replica, "a/tick", true, now + 2_500).await;
    assert_eq!(done.error, None);
    let state = get(&replica, "a").await.triggers[0].state.clone();
    assert_eq!(state, "PAUSED");
    let rows = until("it fires again", || async {
        let rows = ledger(&replica, "a").await;
        let fired_after = rows
            .iter()
            .any(|row| row.verdict == "fired" && row.scheduled_at_ms > now + 2_500);
        fired_after.then_some(rows)
    })
    .await;
    assert!(rows.iter().any(|row| row.reason == "paused"), "{rows:?}");
    assert_eq!(get(&replica, "a").await.triggers[0].state, "WAITING");
    replica.stop().await;
}

/// They are judged by different transactions, perhaps of different replicas.
async fn a_pause_of_a_job_ends_for_each_of_its_triggers(db: TestDb) {
    let replica = Replica::start(&db).await;
    let triggers = json!({"trigger": [{"name": "first", "fixed_rate": "1h"}, {"name": "second", "fixed_rate": "1h"}]});
    put(&replica, job("a", &triggers)).await;
    let until = u64::try_from(systole_shared::clock::now_ms() + 3_000).expect("after 1970");
    pause(&replica, "a", true, until).await;
    // As if ten slots of each had passed in the pause, and the second were looked at later than the first.
    let ms = 10 * 3_600_000 + 1_800_000;
    db.sql(&format!(
        "UPDATE job_trigger SET judged_ms = judged_ms - {ms}, next_ms = next_ms - {ms}, created_at_ms = created_at_ms - {ms}, \
           due_ms = {until} + CASE WHEN name = 'second' THEN 1000 ELSE 0 END"
    ));
    let rows = until_rows(&replica, "a", 2).await;
    for row in &rows {
        assert_eq!(
            (row.verdict.as_str(), row.reason.as_str(), row.fires),
            ("skipped", "paused", 10),
            "{rows:?}"
        );
    }
    assert_eq!(get(&replica, "a").await.pause, None);
    assert_eq!(db.sql("SELECT count(*) FROM job WHERE paused"), "0");
    replica.stop().await;
}

async fn a_trigger_that_cannot_be_read_fails_alone(db: TestDb) {
    let replica = Replica::start(&db).await;
    for name in ["good", "bad"] {
        put(&replica, job(name, &yearly())).await;
    }
    db.sql(
        "UPDATE job_trigger SET definition = '{\"cron\": 7}' WHERE job_id = (SELECT id FROM job WHERE name = 'bad')",
    );
    set_back(&db, 365 * 86_400_000);
    until_rows(&replica, "good", 1).await;
    let bad = until("it is in ERROR", || async {
        let job = get(&replica, "bad").await;
        (job.triggers[0].state == "ERROR").then_some(job)
    })
    .await;
    assert!(
        bad.triggers[0].error.contains("cannot be read"),
        "{:?}",
        bad.triggers[0]
    );
    let request = v1::ListJobsRequest {
        in_trouble: true,
        ..v1::ListJobsRequest::default()
    };
    let listed = replica.jobs().list(request).await.expect("list").into_inner().jobs;
    assert_eq!(listed.len(), 1);
    assert!(ledger(&replica, "bad").await.is_empty());
    replica.stop().await;
}

async fn a_cursor_that_was_set_back_moves_behind_the_ledger(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &every_second())).await;
    let first = until_rows(&replica, "a", 2).await;
    // What an edit that was lost, or a person, may leave behind.
    db.sql("UPDATE job_trigger SET judged_ms = judged_ms - 2000, next_ms = next_ms - 2000, due_ms = due_ms - 2000");
    let rows = until_rows(&replica, "a", first.len() + 3).await;
    assert_grid(&rows);
    replica.stop().await;
}

async fn a_run_carries_its_trigger_its_time_and_its_data(db: TestDb) {
    let replica = Replica::start(&db).await;
    let definition = json!({
        "name": "load", "command": ["load", "{{ data.table }}", "{{ scheduled_date }}"], "data": {"table": "sales", "mode": "full"},
        "trigger": [{"name": "by-hand", "manual": true, "data": {"mode": "delta"}, "priority": 8}]
    });
    put(&replica, definition).await;
    let request = v1::TriggerJobRequest {
        job: "load".into(),
        trigger: "by-hand".into(),
        data: r#"{"table": "quotes"}"#.into(),
        scheduled_at_ms: 1_806_195_600_000,
        key: "k".into(),
        ..v1::TriggerJobRequest::default()
    };
    let started = replica
        .jobs()
        .trigger(request.clone())
        .await
        .expect("trigger")
        .into_inner();
    let again = replica.jobs().trigger(request).await.expect("trigger").into_inner();
    assert_eq!((again.task_id, again.existing), (started.task_id, true));
    let mut runner = SimRunner::new(&replica, "h", 0);
    let run = runner.take().await;
    let spec = run.spec.expect("spec");
    assert_eq!(spec.command, ["load", "quotes", "2027-03-28"]);
    assert_eq!((spec.job.as_str(), spec.priority), ("load", Some(8)));
    let env = |name: &str| {
        spec.env
            .iter()
            .find(|var| var.name == name)
            .map(|var| var.value.as_str())
    };
    assert_eq!(env("SYSTOLE_TRIGGER"), Some("by-hand"));
    assert_eq!(env("SYSTOLE_SCHEDULED_TIME"), Some("2027-03-28T01:00:00+00:00"));
    assert_eq!(env("SYSTOLE_DATA"), Some(r#"{"mode":"delta","table":"quotes"}"#));
    assert_eq!(env("SYSTOLE_DATA_TABLE"), Some("quotes"));
    let rows = ledger(&replica, "load").await;
    assert_eq!((rows[0].task_id, rows[0].reason.as_str()), (started.task_id, "manual"));
    replica.stop().await;
}

async fn fixed_delay_counts_from_the_end_of_the_run(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(
        &replica,
        job("a", &json!({"trigger": [{"name": "t", "fixed_delay": "1s"}]})),
    )
    .await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    let first = runner.take().await.task_id;
    runner.running(first).await;
    let job_now = get(&replica, "a").await;
    assert_eq!(
        (job_now.triggers[0].state.as_str(), job_now.triggers[0].next_at_ms),
        ("ACQUIRED", 0)
    );
    let result = runner.result(first, "exit_code", Some(1));
    runner.ended(result).await;
    let ended = replica.until_state(first, S::Failed).await.ended_at_ms;
    let second = runner.take().await.task_id;
    let rows = ledger(&replica, "a").await;
    assert_eq!((rows.len(), rows[0].task_id), (2, second));
    assert!(
        rows[0].scheduled_at_ms >= ended + 900,
        "{} after {ended}",
        rows[0].scheduled_at_ms
    );
    replica.stop().await;
}

async fn a_trigger_after_another_job_fires_once_per_chain(db: TestDb) {
    let replica = Replica::start(&db).await;
    let retry = json!({"policy": "fixed", "max_retries": 1, "delay": "0s"});
    put(
        &replica,
        job("extract", &json!({"data": {"table": "sales"}, "retry": retry})),
    )
    .await;
    put(
        &replica,
        job(
            "load",
            &json!({"trigger": [{"name": "after-extract", "after": {"job": "extract", "outcome": "finished"}}]}),
        ),
    )
    .await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    let root = start(&replica, "extract").await.task_id;
    // The first attempt fails: the chain is not over.
    let first = runner.take().await.task_id;
    assert_eq!(first, root);
    let result = runner.result(first, "exit_code", Some(1));
    runner.ended(result).await;
    let second = runner.take().await.task_id;
    assert!(ledger(&replica, "load").await.is_empty());
    let result = runner.success(second);
    runner.ended(result).await;
    let run = runner.take().await;
    let spec = run.spec.expect("spec");
    assert_eq!(spec.job, "load");
    let data = spec.env.iter().find(|var| var.name == "SYSTOLE_DATA").expect("data");
    assert_eq!(data.value, r#"{"table":"sales"}"#);
    let (parent, rows) = (ledger(&replica, "extract").await, ledger(&replica, "load").await);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].parent_root, root);
    assert_eq!(rows[0].scheduled_at_ms, parent[0].scheduled_at_ms);
    replica.stop().await;
}

async fn only_the_failures_that_the_policy_names_are_retried(db: TestDb) {
    let replica = Replica::start(&db).await;
    let retry = json!({"policy": "exponential", "max_retries": 2, "delay": "1h", "cap": "3h", "exit_codes": [75]});
    put(&replica, job("a", &json!({"retry": retry}))).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    let once = start(&replica, "a").await.task_id;
    assert_eq!(runner.take().await.task_id, once);
    let result = runner.result(once, "exit_code", Some(1));
    runner.ended(result).await;
    assert_eq!(replica.until_state(once, S::Failed).await.retried_by, 0);
    let again = start(&replica, "a").await.task_id;
    assert_eq!(runner.take().await.task_id, again);
    let result = runner.result(again, "exit_code", Some(75));
    runner.ended(result).await;
    let retried = replica.until_state(again, S::Failed).await;
    let next = replica.task(retried.retried_by).await;
    assert_eq!((next.state(), next.attempt), (S::Created, 2));
    // While it waits for its second attempt, the run has the place of the job.
    assert_eq!(get(&replica, "a").await.running, [again]);
    assert!(start(&replica, "a").await.waiting);
    replica.stop().await;
}

async fn what_is_to_come_is_told_in_order(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(
        &replica,
        job("h", &json!({"trigger": [{"name": "t", "fixed_rate": "1h"}]})),
    )
    .await;
    put(
        &replica,
        job("m", &json!({"trigger": [{"name": "t", "fixed_rate": "30m"}]})),
    )
    .await;
    put(
        &replica,
        job(
            "p",
            &json!({"paused": true, "trigger": [{"name": "t", "fixed_rate": "1m"}]}),
        ),
    )
    .await;
    let coming = replica
        .jobs()
        .next(v1::NextRequest::default())
        .await
        .expect("next")
        .into_inner()
        .coming;
    assert!(
        coming
            .windows(2)
            .all(|pair| pair[0].scheduled_at_ms <= pair[1].scheduled_at_ms)
    );
    let count = |job: &str| coming.iter().filter(|fire| fire.job == job).count();
    assert_eq!((count("h"), count("m"), count("p")), (24, 48, 0));
    replica.stop().await;
}
