//! What is held until a person has looked: a clock of the database that jumped, and a database that was set back.

use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_scheduler::loops::retention::{STEPS_MAX, Walk};
use systole_tests::replica::{Replica, command};
use systole_tests::system::http_get;
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_clock_that_jumps_to_2036_starts_nothing_and_deletes_nothing,
    a_clock_that_a_person_confirmed_is_believed,
    a_host_ahead_of_a_restored_database_waits_for_a_person,
    ids_that_a_host_has_named_are_not_given_again,
    a_number_that_is_no_task_id_is_refused_and_moves_no_ids,
);

const TEN_YEARS_MS: i64 = 3_652 * 24 * 3_600_000;

async fn alarms(replica: &Replica) -> Vec<v1::Alarm> {
    replica
        .cluster()
        .alarms(v1::AlarmsRequest {})
        .await
        .expect("alarms")
        .into_inner()
        .alarms
}

async fn until_alarms(replica: &Replica, kinds: &[&str]) -> Vec<v1::Alarm> {
    until(&format!("the alarms are {kinds:?}"), || async {
        let alarms = alarms(replica).await;
        let found: Vec<&str> = alarms.iter().map(|alarm| alarm.kind.as_str()).collect();
        (found == kinds).then_some(alarms)
    })
    .await
}

async fn confirm(replica: &Replica, kind: &str) -> Result<String, tonic::Status> {
    let request = v1::ConfirmRequest {
        kind: kind.into(),
        reason: "test".into(),
    };
    let response = replica.cluster().confirm(request).await?;
    Ok(response.into_inner().message)
}

/// A second replica, where the database can have one.
async fn another(db: &TestDb) -> Option<Replica> {
    match db.postgres {
        Some(_) => Some(Replica::start(db).await),
        None => None,
    }
}

async fn readyz(replica: &Replica) -> String {
    let port = replica.running.addr.port();
    let answer = tokio::task::spawn_blocking(move || http_get(port, "/readyz")).await;
    let (status, text) = answer.expect("no panic").expect("an answer");
    assert_eq!(status, 200, "{text}");
    text
}

/// A task that is due in an hour, and an old ended one.
async fn delayed_and_ended(replica: &Replica, db: &TestDb) -> (i64, i64) {
    let delayed = replica
        .submit(v1::TaskSpec {
            delay_ms: 3_600_000,
            ..command(&["true"])
        })
        .await;
    let ended = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(replica, "a", 0);
    let run = runner.take().await;
    assert_eq!(run.task_id, ended);
    let result = runner.success(ended);
    runner.ended(result).await;
    assert_eq!(replica.state(ended).await, S::Finished);
    // For the database both times are over; only the replica knows that its clock cannot be right.
    db.sql(&format!(
        "UPDATE task SET run_at_ms = run_at_ms - 7200000 WHERE id = {delayed}"
    ));
    db.sql(&format!(
        "UPDATE task SET created_at_ms = created_at_ms - {TEN_YEARS_MS}, ended_at_ms = ended_at_ms - {TEN_YEARS_MS} WHERE id = {ended}"
    ));
    (delayed, ended)
}

async fn a_clock_that_jumps_to_2036_starts_nothing_and_deletes_nothing(db: TestDb) {
    let mut config = Replica::config(&db);
    config.retention.keep = Duration::from_secs(3_600);
    config.retention.period = Duration::from_millis(100);
    let replica = Replica::start_with(config).await;
    let ctx = &replica.running.context;
    assert!(ctx.clock.until_ms().is_some());
    assert!(alarms(&replica).await.is_empty());

    ctx.clock.skew(TEN_YEARS_MS);
    let alarm = until_alarms(&replica, &["clock"]).await.remove(0);
    assert!(alarm.message.contains("admin confirm clock"), "{}", alarm.message);
    assert!(readyz(&replica).await.contains("alarm: the database's clock"));
    let (delayed, ended) = delayed_and_ended(&replica, &db).await;
    // What has its own cause goes on; each duty has had its turn when the next task has run.
    Walk::new(STEPS_MAX).pass(ctx).await.expect("pass");
    let plain = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "b", 0);
    assert_eq!(runner.take().await.task_id, plain);
    assert_eq!(replica.state(delayed).await, S::Created);
    assert_eq!(replica.state(ended).await, S::Finished);

    ctx.clock.skew(0);
    until_alarms(&replica, &[]).await;
    replica.until_state(delayed, S::Queued).await;
    until("the old task is deleted", || async {
        let found = db.sql(&format!("SELECT count(*) FROM task WHERE id = {ended}"));
        (found == "0").then_some(())
    })
    .await;
    assert_eq!(readyz(&replica).await, "ready\n");
    replica.stop().await;
}

async fn a_clock_that_a_person_confirmed_is_believed(db: TestDb) {
    let replica = Replica::start(&db).await;
    let refused = confirm(&replica, "clock").await.expect_err("nothing is held");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    let ctx = &replica.running.context;
    // The clock stays where it is, but the replica believes that it came from somewhere else.
    ctx.clock.skew(-TEN_YEARS_MS);
    until_alarms(&replica, &["clock"]).await;
    ctx.clock.skew(0);
    until_alarms(&replica, &[]).await;

    let second = another(&db).await;
    for replica in std::iter::once(&replica).chain(&second) {
        replica.running.context.clock.skew(-TEN_YEARS_MS);
        until_alarms(replica, &["clock"]).await;
    }
    // Said of the database's own time, which the replicas do not believe to have seen: it counts for no other time.
    confirm(&replica, "clock").await.expect("held");
    assert_eq!(alarms(&replica).await.len(), 1);
    db.sql(&format!(
        "UPDATE setting SET value = CAST(CAST(value AS BIGINT) - {TEN_YEARS_MS} AS TEXT) WHERE name = 'clock_confirmed_ms'"
    ));
    until_alarms(&replica, &[]).await;
    if let Some(second) = second {
        until_alarms(&second, &[]).await;
        second.stop().await;
    }
    assert_eq!(
        db.sql("SELECT actor || ' ' || action || ' ' || reason FROM audit WHERE action = 'confirm clock'"),
        "admin confirm clock test"
    );
    replica.stop().await;
}

/// Runs a task, and then sets the database back to the time before it.
async fn set_back(db: &TestDb) -> (Replica, SimRunner, i64) {
    let replica = Replica::start(db).await;
    for _ in 0..3 {
        replica.submit(command(&["true"])).await;
    }
    let mut runner = SimRunner::new(&replica, "a", 0);
    let mut last = 0;
    for _ in 0..3 {
        last = runner.take().await.task_id;
        let result = runner.success(last);
        runner.ended(result).await;
    }
    replica.stop().await;
    db.sql("DELETE FROM task");
    db.sql(match db.postgres {
        Some(_) => "SELECT setval('task_id_seq', 1)",
        None => "UPDATE sqlite_sequence SET seq = 1 WHERE name = 'task'",
    });
    let replica = Replica::start(db).await;
    runner.client = replica.beats();
    (replica, runner, last)
}

/// The first slot of a host, as people see it.
async fn host(replica: &Replica, name: &str) -> v1::Runner {
    let request = v1::ListRunnersRequest {
        host: name.into(),
        ..v1::ListRunnersRequest::default()
    };
    let listed = replica.admin().list(request).await.expect("listed");
    listed.into_inner().runners.remove(0)
}

async fn a_host_ahead_of_a_restored_database_waits_for_a_person(db: TestDb) {
    let (replica, mut runner, last) = set_back(&db).await;
    let refused = confirm(&replica, "restore").await.expect_err("nobody is ahead yet");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert_eq!(runner.idle().await.command(), v1::Command::GoOn);
    let alarm = until_alarms(&replica, &["restore"]).await.remove(0);
    assert!(
        alarm.message.contains("admin confirm restore") && alarm.message.contains("(a)"),
        "{}",
        alarm.message
    );
    assert!(readyz(&replica).await.contains("set back"));
    let shown = host(&replica, "a").await;
    let hold = shown.hold.expect("it is told with the host");
    assert_eq!(hold.max_task_id, last);
    assert!(
        hold.message.contains("admin confirm restore") && hold.since_ms > 0,
        "{hold:?}"
    );
    assert_ne!(shown.state, "ready");

    // Nothing is given to it, whatever is submitted, at this replica or at another one; other hosts work.
    let task = replica.submit(command(&["true"])).await;
    let second = another(&db).await;
    assert_eq!(runner.idle_parked(300).await.command(), v1::Command::GoOn);
    if let Some(second) = &second {
        runner.client = second.beats();
        assert_eq!(runner.idle_parked(300).await.command(), v1::Command::GoOn);
    }
    let mut fresh = SimRunner::new(&replica, "b", 0);
    assert_eq!(fresh.take().await.task_id, task);

    confirm(&replica, "restore").await.expect("a host is ahead");
    until_alarms(&replica, &[]).await;
    assert_eq!(host(&replica, "a").await.hold, None);
    let task = replica.submit(command(&["true"])).await;
    // Wherever it beats: the other replica hears of it with its next poll.
    assert_eq!(runner.take().await.task_id, task);
    if let Some(second) = second {
        second.stop().await;
    }
    replica.stop().await;
}

async fn ids_that_a_host_has_named_are_not_given_again(db: TestDb) {
    let (replica, mut runner, last) = set_back(&db).await;
    runner.idle().await;
    until("the ids are moved past what the host has named", || async {
        (replica.running.context.db.newest_task_id().await.expect("read") > last).then_some(())
    })
    .await;
    let task = replica.submit(command(&["true"])).await;
    assert!(task > last, "{task} was given before");
    // That its number is not higher any more does not make the host one that may work.
    assert_eq!(runner.idle_parked(300).await.command(), v1::Command::GoOn);
    until_alarms(&replica, &["restore"]).await;
    replica.stop().await;
}

async fn a_number_that_is_no_task_id_is_refused_and_moves_no_ids(db: TestDb) {
    let replica = Replica::start(&db).await;
    let first = replica.submit(command(&["true"])).await;
    let mut broken = SimRunner::new(&replica, "broken", 0);
    for named in [i64::MAX, first + 2_000_000_000, -1, i64::MIN] {
        broken.beat.max_task_id = named;
        let request = v1::HeartbeatRequest {
            status: v1::RunnerStatus::Idle.into(),
            ..broken.beat.clone()
        };
        let refused = broken.send(request).await.expect_err("not a task id");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        let message = refused.message();
        assert!(
            message.contains("max_task_id") && message.contains("remove that file"),
            "{message}"
        );
    }
    // Nor is a row that is there already followed, by the watch or by a person's word.
    db.sql(&format!(
        "INSERT INTO ahead (host, max_task_id, seen_ms) VALUES ('former', {}, 1)",
        i64::MAX
    ));
    until_alarms(&replica, &["restore"]).await;
    until("the row is known here", || async {
        replica.running.context.ahead.hosts().contains("former").then_some(())
    })
    .await;
    confirm(&replica, "restore").await.expect("a host is ahead");
    let next = replica.submit(command(&["true"])).await;
    assert!(next < first + 1_000_000, "{next} after {first}");
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, first);
    replica.stop().await;
}
