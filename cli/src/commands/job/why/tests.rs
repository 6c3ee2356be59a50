use super::*;

/// Mon 2026-11-30 02:30 in Berlin.
pub const AT: u64 = 1_796_002_200_000;

pub fn berlin() -> Zone {
    Zone::parse("Europe/Berlin").expect("zone")
}

pub fn occurrence(verdict: &str, reason: &str) -> v1::Occurrence {
    v1::Occurrence {
        trigger: "nightly".into(),
        scheduled_at_ms: AT,
        until_ms: AT,
        fires: 1,
        verdict: verdict.into(),
        reason: reason.into(),
        at_ms: AT + 200,
        ..v1::Occurrence::default()
    }
}

#[test]
fn every_verdict_is_explained() {
    let mut fired = occurrence("fired", "schedule");
    fired.task_id = 41;
    let said = explain(&fired, None, &berlin(), AT);
    assert_eq!(
        said,
        [
            "Trigger nightly, Mon 2026-11-30 02:30 +01:00 (Europe/Berlin).",
            "Fired Mon 2026-11-30 02:30 +01:00 as task 41.",
            "Task 41 is not kept any more.",
        ]
    );
    let chain = Chain {
        first: crate::golden::task(41, TaskState::Failed),
        retry: Some(v1::Task {
            attempt: 2,
            ..crate::golden::task(43, TaskState::Queued)
        }),
    };
    assert_eq!(
        explain(&fired, Some(&chain), &Zone::utc(), AT)[2..],
        [
            "Task 41 FAILED on etl-2/1 Fri 2027-01-15 08:07:15 +00:00 after 12.4 s: exit code 75.",
            "It was retried: attempt 2 of 2.",
            "Task 43 is QUEUED.",
        ]
    );
    fired.at_ms = AT + 4 * 3_600_000;
    assert!(explain(&fired, None, &berlin(), AT)[1].ends_with("as task 41, 4h00m late."));
    let mut blocked = occurrence("skipped", "blocked");
    blocked.blocked_by = 1846;
    let said = explain(&blocked, None, &berlin(), AT);
    assert!(
        said[1].starts_with("It was skipped: the run before still ran; behind 1846. Set blocking"),
        "{said:?}"
    );
    let mut paused = occurrence("skipped", "paused");
    (paused.fires, paused.until_ms) = (3, AT + 2 * 86_400_000);
    assert_eq!(
        note(&paused, &berlin()),
        "it was paused; 3 times until Wed 2026-12-02 02:30 +01:00"
    );
    let mut coalesced = occurrence("coalesced", "misfire");
    coalesced.into_ms = AT + 86_400_000;
    assert_eq!(note(&coalesced, &berlin()), "into that of Tue 2026-12-01 02:30 +01:00");
}

#[test]
fn a_time_that_lies_ahead_is_due_or_left_out_by_a_calendar() {
    let spec: JobSpec = serde_json::from_value(serde_json::json!({
        "name": "a",
        "command": ["x"],
        "trigger": [
            {"name": "nightly", "cron": "30 2 * * *", "zone": "Europe/Berlin", "exclude_calendars": ["holidays"]},
            {"name": "often", "fixed_rate": "7h"},
        ],
    }))
    .expect("a job");
    let days = serde_json::from_value(
        serde_json::json!({"name": "holidays", "zone": "Europe/Berlin", "dates": ["2026-12-01"]}),
    );
    let holidays = Calendar::new(&days.expect("a calendar"), None, &Zone::utc()).expect("right");
    let calendars = Calendars::from([("holidays".into(), Arc::new(holidays))]);
    let job = v1::Job {
        name: "a".into(),
        triggers: vec![v1::TriggerStatus {
            name: "often".into(),
            next_at_ms: AT + 60_000,
            ..v1::TriggerStatus::default()
        }],
        ..v1::Job::default()
    };
    let at = i64::try_from(AT).expect("small");
    let (day, hour) = (86_400_000, 3_600_000);
    for (at, said) in [
        (
            at,
            "Trigger nightly is due Mon 2026-11-30 02:30 +01:00 (Europe/Berlin).",
        ),
        (
            at + day,
            "Trigger nightly will not fire Tue 2026-12-01 02:30 +01:00 (Europe/Berlin): calendar holidays leaves that out.",
        ),
        (
            at + 7 * hour + 60_000,
            "Trigger often is due Mon 2026-11-30 08:31 +00:00 (UTC).",
        ),
    ] {
        assert_eq!(ahead(&job, &spec, &calendars, at), [said]);
    }
    assert!(ahead(&job, &spec, &calendars, at + hour).is_empty());
}

#[test]
fn the_occurrence_of_a_time_is_the_one_that_holds_it() {
    let at = |from: u64, until: u64| v1::Occurrence {
        scheduled_at_ms: from,
        until_ms: until,
        ..v1::Occurrence::default()
    };
    let all = || vec![at(900, 900), at(300, 600), at(100, 100)];
    for (asked, found) in [(900, 900), (400, 300), (120, 100), (250, 300), (5_000, 900), (0, 100)] {
        assert_eq!(nearest(all(), asked).expect("one").scheduled_at_ms, found, "{asked}");
    }
    assert!(nearest(Vec::new(), 5).is_none());
}

#[test]
fn what_holds_a_job_is_said_with_the_command_that_lifts_it() {
    let mut job = v1::Job {
        name: "a".into(),
        pause: Some(v1::Pause {
            paused: true,
            by: "ann".into(),
            reason: "restore test".into(),
            ..v1::Pause::default()
        }),
        triggers: vec![v1::TriggerStatus {
            name: "t".into(),
            state: "PAUSED (blocked)".into(),
            ..v1::TriggerStatus::default()
        }],
        running: vec![7],
        waiting: 2,
        unserved: "no live runner has gpu=1".into(),
        ..v1::Job::default()
    };
    assert_eq!(
        standing(&job, &JobSpec::default(), &[], &[]),
        [
            "The job is paused by ann, \"restore test\". Lift it: systole job resume a.",
            "Trigger t is blocked: a run that it made waits for a place of the job, or of its concurrency group.",
            "It runs: 7. End it: systole cancel 7.",
            "Nobody can take its runs: no live runner has gpu=1; they wait for one, however long (no queue_timeout). Look at the runners: systole runners.",
            "2 wait for their turn.",
            "No fire is foretold for the next 366 days.",
        ]
    );
    job.running = vec![7, 12];
    let resting = [Resting {
        root: 12,
        retry: 13,
        starts_ms: AT,
    }];
    let between = format!(
        "It is between two attempts: 13 starts {}. End it: systole cancel 13.",
        text::full_time(AT)
    );
    assert_eq!(
        standing(&job, &JobSpec::default(), &resting, &[])[2..4],
        ["It runs: 7. End it: systole cancel 7.".to_owned(), between]
    );
}

#[test]
fn a_time_names_the_zone_that_it_was_read_in() {
    let spec: JobSpec = serde_json::from_value(serde_json::json!({
        "name": "a",
        "command": ["x"],
        "trigger": [{"cron": "30 2 * * *", "zone": "Europe/Berlin"}],
    }))
    .expect("a job");
    let said = |text: &str, zone: &str| Asked::new(text, Some(zone)).expect("a time").in_words(&spec);
    assert_eq!(
        said("2026-11-30 02:30", "UTC").expect("a sentence"),
        "2026-11-30 02:30 is read in UTC: Mon 2026-11-30 02:30 +00:00. \
         The job is in Europe/Berlin: --zone Europe/Berlin reads it there."
    );
    assert_eq!(
        said("2026-11-30 02:30", "europe/berlin").expect("a sentence"),
        "2026-11-30 02:30 is read in Europe/Berlin: Mon 2026-11-30 02:30 +01:00."
    );
    assert!(
        !said("2026-11-30 02:30", "Europe/Paris")
            .expect("a sentence")
            .contains("--zone")
    );
    // These say themselves when they are.
    assert_eq!(said("2026-11-30T02:30:00Z", "UTC"), None);
    assert_eq!(said("-2h", "UTC"), None);
    let bare = Asked::new("2026-11-30", Some("UTC")).expect("a time");
    assert_eq!(
        bare.in_words(&JobSpec::default()).expect("a sentence"),
        "2026-11-30 is read in UTC: Mon 2026-11-30 00:00 +00:00."
    );
    let wrong = Asked::new("02:30", Some("Europe/Berlinn")).expect_err("refused");
    assert!(wrong.message.contains("Europe/Berlin\"?"), "{wrong}");
}
