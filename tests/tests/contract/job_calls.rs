//! Calls of the job service beside applying: runs, restores, resets, calendars and groups.

use crate::jobs::{apply, definition, get, job, ledger, put};
use serde_json::json;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    runs_are_found_by_what_is_known_of_them,
    a_job_that_is_not_there_is_told_with_the_one_that_was_meant,
    paging_out_of_range_is_refused,
    a_history_is_read_from_any_time_on_and_page_by_page,
    a_trigger_in_error_that_is_reset_loses_no_slot,
    the_default_zone_is_stored_with_what_is_applied,
    two_changes_of_one_version_are_one_change_and_one_refusal,
    a_calendar_that_is_used_in_this_moment_is_not_deleted,
    a_key_that_is_given_twice_is_refused_by_its_name,
);

async fn a_key_that_is_given_twice_is_refused_by_its_name(db: TestDb) {
    let replica = Replica::start(&db).await;
    let of = |json: &str| v1::Definition {
        json: json.into(),
        ..v1::Definition::default()
    };
    let request = v1::ApplyRequest {
        jobs: vec![of(r#"{"name": "a", "command": ["true"], "data": {"k": 1, "k": 2}}"#)],
        calendars: vec![of(r#"{"name": "c", "date": ["2027-01-01"], "date": ["2027-01-02"]}"#)],
        groups: vec![of(r#"{"name": "g", "limit": 1, "limit": 2}"#)],
        ..v1::ApplyRequest::default()
    };
    let mut keys = Vec::new();
    for result in apply(&mut replica.jobs(), request).await {
        let error = result.error.expect("refused");
        assert_eq!((error.code.as_str(), error.field.as_str()), ("VALIDATION_001", "json"));
        let key = error.message.split('"').nth(1).expect("it is named");
        keys.push(key.to_owned());
    }
    keys.sort();
    assert_eq!(keys, ["data.k", "date", "limit"]);
    put(&replica, job("a", &json!({}))).await;
    let request = v1::TriggerJobRequest {
        job: "a".into(),
        data: r#"{"k": 1, "k": 2}"#.into(),
        ..v1::TriggerJobRequest::default()
    };
    let refused = replica.jobs().trigger(request).await.expect_err("two");
    assert!(
        refused.message().contains("data: the key \"k\" is given twice"),
        "{refused:?}"
    );
    replica.stop().await;
}

fn ok<T>(response: Result<tonic::Response<T>, tonic::Status>) -> T {
    response.expect("answered").into_inner()
}

async fn runs_are_found_by_what_is_known_of_them(db: TestDb) {
    let replica = Replica::start(&db).await;
    let retry = json!({"policy": "fixed", "max_retries": 1, "delay": "0s"});
    put(
        &replica,
        job(
            "a",
            &json!({"blocking": "concurrent", "max_concurrent": 9, "retry": retry, "trigger": [{"name": "by-hand", "manual": true}]}),
        ),
    )
    .await;
    put(&replica, job("b", &json!({}))).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    // Three runs: one good, one that fails twice, one that waits.
    let mut roots = Vec::new();
    for (hour, codes) in [(0, &[0][..]), (1, &[9, 9]), (2, &[])] {
        let request = v1::TriggerJobRequest {
            job: "a".into(),
            trigger: "by-hand".into(),
            scheduled_at_ms: 1_806_195_600_000 + hour * 3_600_000,
            ..v1::TriggerJobRequest::default()
        };
        roots.push(ok(replica.jobs().trigger(request).await).task_id);
        for &code in codes {
            let id = runner.take().await.task_id;
            let result = match code {
                0 => runner.success(id),
                code => runner.result(id, "exit_code", Some(code)),
            };
            runner.ended(result).await;
        }
    }
    let ask = |change: fn(&mut v1::RunsRequest)| {
        let mut request = v1::RunsRequest {
            job: "a".into(),
            ..v1::RunsRequest::default()
        };
        change(&mut request);
        request
    };
    let all = ok(replica.jobs().runs(ask(|_| {})).await).runs;
    let found: Vec<i64> = all.iter().map(|run| run.root_id).collect();
    assert_eq!(found, [roots[2], roots[1], roots[0]], "newest scheduled first");
    let seen: Vec<(S, u32)> = all.iter().map(|run| (run.state(), run.attempts)).collect();
    assert_eq!(seen, [(S::Queued, 1), (S::Failed, 2), (S::Finished, 1)]);
    assert_eq!((all[2].trigger.as_str(), all[2].host.as_str()), ("by-hand", "h"));
    assert!(all[1].task_id > roots[1], "the newest attempt stands for the run");
    for (request, count) in [
        (ask(|_| {}), 3),
        (ask(|request| request.states = vec![S::Finished.into()]), 1),
        (ask(|request| request.from_ms = 1_806_195_600_000 + 3_600_000), 2),
        (ask(|request| request.to_ms = 1_806_195_600_000 + 3_600_000), 1),
        (ask(|request| request.trigger = "by-hand".into()), 3),
        (ask(|request| request.trigger = "other".into()), 0),
        (ask(|request| request.runner = "h/0".into()), 2),
        (ask(|request| request.failed = true), 1),
        (
            ask(|request| request.states = vec![S::Failed.into(), S::Skipped.into()]),
            1,
        ),
        (
            ask(|request| request.states = vec![S::Running.into(), S::Dispatched.into()]),
            0,
        ),
        (ask(|request| request.states = vec![S::Queued.into()]), 1),
        (ask(|request| request.runner = "h/1".into()), 0),
        (ask(|request| request.skip = 2), 3),
    ] {
        let counted = ok(replica.jobs().count_runs(request.clone()).await).count;
        assert_eq!(counted, count, "{request:?}");
        let listed = ok(replica.jobs().runs(request.clone()).await).runs.len();
        let skipped = usize::try_from(request.skip).expect("small");
        assert_eq!(u64::try_from(listed + skipped).expect("small"), count, "{request:?}");
    }
    // What is over last is told with the job.
    assert!(get(&replica, "b").await.last_run.is_none());
    let last = get(&replica, "a").await.last_run.expect("there is one");
    assert_eq!((last.root_id, last.task_id), (roots[1], all[1].task_id));
    assert_eq!((last.state(), last.ended_at_ms), (S::Failed, all[1].ended_at_ms));
    let missing = v1::RunsRequest {
        job: "none".into(),
        ..v1::RunsRequest::default()
    };
    let refused = replica.jobs().runs(missing).await.expect_err("no such job");
    assert_eq!(refused.code(), tonic::Code::NotFound);
    // One that runs, and one that has succeeded and whose callback is not delivered yet.
    let running = runner.take().await.task_id;
    runner.running(running).await;
    db.sql(&format!("UPDATE task SET status = 5 WHERE id = {}", roots[0]));
    let held = ask(|request| request.states = vec![S::Running.into(), S::Dispatched.into()]);
    let found = ok(replica.jobs().runs(held).await).runs;
    assert_eq!(found.iter().map(|run| run.root_id).collect::<Vec<_>>(), [roots[2]]);
    let failed = ask(|request| request.failed = true);
    let found = ok(replica.jobs().runs(failed).await).runs;
    assert_eq!(found.iter().map(|run| run.root_id).collect::<Vec<_>>(), [roots[1]]);
    replica.stop().await;
}

/// Newest first; a stretch of fires with one verdict belongs to each time that it reaches into.
async fn a_history_is_read_from_any_time_on_and_page_by_page(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &json!({}))).await;
    for (trigger, from, to, verdict) in [
        ("t", 1_000, 5_000, "skipped"),
        ("u", 500, 900, "coalesced"),
        ("t", 6_000, 6_000, "fired"),
        ("u", 6_000, 6_000, "fired"),
        ("t", 7_000, 7_000, "skipped"),
        ("t", 8_000, 9_000, "coalesced"),
    ] {
        db.sql(&format!(
            "INSERT INTO occurrence (job_id, trigger_name, scheduled_ms, until_ms, verdict, task_id, at_ms) \
             SELECT id, '{trigger}', {from}, {to}, '{verdict}', CASE WHEN '{verdict}' = 'fired' THEN 1 END, {} FROM job",
            systole_shared::clock::now_ms()
        ));
    }
    let read = async |since_ms, until_ms, trigger: &str, verdict: &str| {
        let mut request = v1::OccurrencesRequest {
            job: "a".into(),
            trigger: trigger.into(),
            verdict: verdict.into(),
            since_ms,
            until_ms,
            ..v1::OccurrencesRequest::default()
        };
        let whole = ok(replica.jobs().occurrences(request.clone()).await).occurrences;
        request.limit = 1;
        let mut pages = Vec::new();
        loop {
            let page = ok(replica.jobs().occurrences(request.clone()).await);
            pages.extend(page.occurrences);
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        assert_eq!(pages, whole, "{request:?}");
        whole.iter().map(|row| row.scheduled_at_ms).collect::<Vec<_>>()
    };
    for (since_ms, until_ms, trigger, verdict, found) in [
        (0, 0, "", "", &[8_000, 7_000, 6_000, 6_000, 1_000, 500][..]),
        (2_000, 0, "", "", &[8_000, 7_000, 6_000, 6_000, 1_000]),
        (5_000, 0, "", "", &[8_000, 7_000, 6_000, 6_000, 1_000]),
        (5_001, 0, "", "", &[8_000, 7_000, 6_000, 6_000]),
        (1_000, 0, "", "", &[8_000, 7_000, 6_000, 6_000, 1_000]),
        (900, 0, "", "", &[8_000, 7_000, 6_000, 6_000, 1_000, 500]),
        (2_000, 7_000, "", "", &[6_000, 6_000, 1_000]),
        (8_500, 0, "", "", &[8_000]),
        (9_001, 0, "", "", &[]),
        (2_000, 0, "t", "", &[8_000, 7_000, 6_000, 1_000]),
        (2_000, 0, "", "skipped", &[7_000, 1_000]),
        (8_500, 0, "", "coalesced", &[8_000]),
        (0, 0, "", "coalesced", &[8_000, 500]),
        (0, 0, "u", "fired", &[6_000]),
        (2_000, 0, "", "fired", &[6_000, 6_000]),
    ] {
        let what = (since_ms, until_ms, trigger, verdict);
        assert_eq!(read(since_ms, until_ms, trigger, verdict).await, found, "{what:?}");
    }
    replica.stop().await;
}

async fn a_job_that_is_not_there_is_told_with_the_one_that_was_meant(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("nightly-backup", &json!({}))).await;
    let meant = "did you mean \"nightly-backup\"? ";
    for (typed, meant) in [("nigthly-backup", meant), ("ightly-backup", meant), ("invoices", "")] {
        let expected = format!("there is no job {typed:?}; {meant}`systole job ls` lists them");
        let trigger = v1::TriggerJobRequest {
            job: typed.into(),
            ..v1::TriggerJobRequest::default()
        };
        let refused = replica.jobs().trigger(trigger).await.expect_err("no such job");
        assert!(refused.message().contains(&expected), "{refused}");
        let next = v1::NextRequest {
            job: typed.into(),
            ..v1::NextRequest::default()
        };
        let refused = replica.jobs().next(next).await.expect_err("no such job");
        assert!(refused.message().contains(&expected), "{refused}");
    }
    replica.stop().await;
}

async fn paging_out_of_range_is_refused(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &json!({}))).await;
    for (limit, skip) in [(1_001, 0), (0, 1_000_001)] {
        let request = v1::RunsRequest {
            job: "a".into(),
            limit,
            skip,
            ..v1::RunsRequest::default()
        };
        let refused = replica.jobs().runs(request).await.expect_err("out of range");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert_eq!(
            refused
                .metadata()
                .get("systole-error-code")
                .map(|code| code.to_str().expect("ascii")),
            Some("VALIDATION_002")
        );
    }
    replica.stop().await;
}

async fn a_trigger_in_error_that_is_reset_loses_no_slot(db: TestDb) {
    let replica = Replica::start(&db).await;
    let tick = json!({"blocking": "concurrent", "max_concurrent": 1000,
        "trigger": [{"name": "t", "fixed_rate": "1s", "misfire": "catch_up", "max_catch_up": 1000}]});
    put(&replica, job("a", &tick)).await;
    let right = db.sql("SELECT definition FROM job_trigger");
    db.sql("UPDATE job_trigger SET definition = '{\"cron\": 7}'");
    until("it is in ERROR", || async {
        (get(&replica, "a").await.triggers[0].state == "ERROR").then_some(())
    })
    .await;
    let reset = |names: &[&str]| v1::ResetTriggersRequest {
        names: names.iter().map(|&name| name.to_owned()).collect(),
        reason: "test".into(),
    };
    // Whoever looks is told; and while its cause is there, it stays as it is.
    let status = ok(replica.cluster().status(v1::StatusRequest::default()).await);
    assert!(
        status
            .attention
            .iter()
            .any(|line| line.contains("systole trigger reset a/t")),
        "{status:?}"
    );
    let results = ok(replica.jobs().reset_triggers(reset(&["a/t", "a/none", "none"])).await).results;
    let codes: Vec<&str> = results
        .iter()
        .map(|result| result.error.as_ref().map_or("", |error| error.code.as_str()))
        .collect();
    assert_eq!(codes, ["VALIDATION_001", "NOTFOUND_003", "NOTFOUND_001"]);
    db.sql(&format!("UPDATE job_trigger SET definition = '{right}'"));
    let results = ok(replica.jobs().reset_triggers(reset(&["a"])).await).results;
    assert_eq!((results[0].error.as_ref(), results[0].already), (None, false));
    let before = ledger(&replica, "a").await.len();
    let rows = until("it fires again", || async {
        let rows = ledger(&replica, "a").await;
        (rows.len() > before + 2).then_some(rows)
    })
    .await;
    let mut slots: Vec<u64> = rows.iter().map(|row| row.scheduled_at_ms).collect();
    slots.sort_unstable();
    for pair in slots.windows(2) {
        assert_eq!(pair[1] - pair[0], 1_000, "{rows:?}");
    }
    let results = ok(replica.jobs().reset_triggers(reset(&["a/t"])).await).results;
    assert!(results[0].already);
    replica.stop().await;
}

async fn the_default_zone_is_stored_with_what_is_applied(db: TestDb) {
    let nightly = |timeout: &str| {
        job(
            "a",
            &json!({"timeout": timeout, "trigger": [{"name": "t", "cron": "30 2 * * *"}]}),
        )
    };
    let with = |zone: Option<&str>| {
        let mut config = Replica::config(&db);
        config.zone = zone.map(str::to_owned);
        config
    };
    let berlin = Replica::start_with(with(Some("Europe/Berlin"))).await;
    let first = put(&berlin, nightly("1m")).await;
    assert_eq!(first.next[0].zone, "Europe/Berlin");
    let job_now = get(&berlin, "a").await;
    let (next, fingerprint) = (job_now.triggers[0].next_at_ms, job_now.fingerprint.clone());
    assert!(
        !job_now.json.contains("Berlin"),
        "the definition stays as it was written"
    );
    // 02:30 in Berlin is 01:30 or 00:30 by UTC.
    assert!(next % 86_400_000 != 9_000_000, "{next}");
    berlin.stop().await;
    // Another replica: the same definition, or one in which another field changed, is meant as before.
    let tokyo = Replica::start_with(with(Some("Asia/Tokyo"))).await;
    put(&tokyo, nightly("1m")).await;
    put(&tokyo, nightly("2m")).await;
    let job_now = get(&tokyo, "a").await;
    assert_eq!(
        (job_now.triggers[0].zone.as_str(), job_now.triggers[0].next_at_ms),
        ("Europe/Berlin", next)
    );
    assert_ne!(job_now.fingerprint, fingerprint);
    tokyo.stop().await;
    // One that is told nothing goes by what was decided.
    let other = Replica::start_with(with(None)).await;
    put(
        &other,
        job("b", &json!({"trigger": [{"name": "t", "cron": "30 2 * * *"}]})),
    )
    .await;
    assert_eq!(get(&other, "b").await.triggers[0].zone, "Asia/Tokyo");
    other.stop().await;
}

async fn two_changes_of_one_version_are_one_change_and_one_refusal(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, job("a", &json!({}))).await;
    let calendar = |day: &str, expected_version| v1::ApplyRequest {
        calendars: vec![v1::Definition {
            expected_version,
            ..definition(&json!({"name": "c", "dates": [day]}), "")
        }],
        ..v1::ApplyRequest::default()
    };
    let group = |limit: u32, expected_version| v1::ApplyRequest {
        groups: vec![v1::Definition {
            expected_version,
            ..definition(&json!({"name": "g", "limit": limit}), "")
        }],
        ..v1::ApplyRequest::default()
    };
    let edit = |timeout: &str, expected_version| v1::ApplyRequest {
        jobs: vec![v1::Definition {
            expected_version,
            ..definition(&job("a", &json!({"timeout": timeout})), "")
        }],
        ..v1::ApplyRequest::default()
    };
    let pairs = [
        (calendar("2027-01-01", -1), calendar("2027-01-02", -1)),
        (calendar("2027-01-03", 1), calendar("2027-01-04", 1)),
        (group(1, -1), group(2, -1)),
        (group(3, 1), group(4, 1)),
        (edit("1m", 1), edit("2m", 1)),
    ];
    for (one, two) in pairs {
        let (mut a, mut b) = (replica.jobs(), replica.jobs());
        let (one, two) = tokio::join!(apply(&mut a, one), apply(&mut b, two));
        let codes: Vec<&str> = [&one[0], &two[0]]
            .iter()
            .filter_map(|result| result.error.as_ref())
            .map(|error| error.code.as_str())
            .collect();
        assert_eq!(codes, ["CONFLICT_009"], "{one:?} {two:?}");
    }
    // Repeated, since its answer was lost: it finds itself.
    let done = apply(&mut replica.jobs(), edit("9m", 2)).await.remove(0);
    let again = apply(&mut replica.jobs(), edit("9m", 2)).await.remove(0);
    assert_eq!((done.version, again.version, again.error), (3, 3, None));
    replica.stop().await;
}

/// Whoever stores a job that names a calendar or a group, and whoever deletes it, meet at one lock.
async fn a_calendar_that_is_used_in_this_moment_is_not_deleted(db: TestDb) {
    let replica = Replica::start(&db).await;
    for round in 0..10 {
        let request = v1::ApplyRequest {
            calendars: vec![definition(&json!({"name": "c", "dates": ["2027-01-01"]}), "")],
            groups: vec![definition(&json!({"name": "g", "limit": 1}), "")],
            ..v1::ApplyRequest::default()
        };
        apply(&mut replica.jobs(), request).await;
        let uses = v1::ApplyRequest {
            jobs: vec![definition(
                &job(
                    "a",
                    &json!({"concurrency_group": "g", "timeout": format!("{}m", round + 1),
                        "trigger": [{"name": "t", "cron": "0 3 * * *", "exclude_calendars": ["c"]}]}),
                ),
                "",
            )],
            ..v1::ApplyRequest::default()
        };
        let names = |name: &str| v1::DeleteNamedRequest {
            names: vec![name.into()],
            reason: String::new(),
        };
        let (mut a, mut b, mut c) = (replica.jobs(), replica.jobs(), replica.jobs());
        let (stored, calendar, group) = tokio::join!(
            apply(&mut a, uses),
            b.delete_calendars(names("c")),
            c.delete_groups(names("g"))
        );
        let deleted = |response: Result<tonic::Response<v1::DeleteNamedResponse>, tonic::Status>| {
            ok(response).results[0].error.is_none()
        };
        let (calendar, group) = (deleted(calendar), deleted(group));
        if stored[0].error.is_none() {
            assert!(!calendar && !group, "round {round}: both are used now");
            let request = v1::DeleteJobsRequest {
                names: vec!["a".into()],
                ..v1::DeleteJobsRequest::default()
            };
            ok(replica.jobs().delete(request).await);
        } else {
            assert!(calendar || group, "round {round}: {stored:?}");
        }
    }
    replica.stop().await;
}
