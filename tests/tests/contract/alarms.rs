//! Alarms of jobs: what is told, once, and whether it arrived.

use super::jobs::{get, job, put, start};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_scheduler::config::Config;
use systole_scheduler::context::Context;
use systole_scheduler::flow::jobs::late;
use systole_tests::receiver::Got;
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{Receiver, SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_failure_is_told_once_after_the_last_attempt,
    failures_in_a_row_are_told_and_the_recovery_from_them,
    a_silence_holds_back_what_a_success_puts_right,
    a_silence_that_ends_in_trouble_tells_of_all_of_it,
    a_lost_host_is_one_alarm_with_all_its_tasks,
    a_job_is_late_though_nothing_ran,
    a_lateness_is_found_after_all_schedulers_were_away,
    a_paused_job_is_not_late,
    skipped_fires_with_one_cause_are_one_alarm,
    a_run_that_takes_long_is_told_once_while_it_runs,
    an_alarm_that_does_not_arrive_is_tried_again_and_seen,
    an_alarm_for_a_channel_that_nobody_has_is_seen,
    nobody_is_late_by_a_clock_that_is_not_believed,
    a_silence_does_not_end_by_a_clock_that_is_not_believed,
    no_alarm_is_given_up_by_a_clock_that_is_not_believed,
    a_clock_that_was_ahead_silences_nothing_afterwards,
    a_job_that_is_deleted_is_watched_no_more,
    a_job_without_alarms_leaves_no_trace,
    a_definition_whose_alarms_were_never_checked_still_runs,
);

const OUTPUT: &[u8] = b"one\ntwo \x1b[31mred\x1b[0m\n";

/// Channels "hook" and "other", both to this receiver.
pub fn config(db: &TestDb, receiver: &Receiver) -> Config {
    let file = db.folder.path().join("alarms.toml");
    let channel = |name: &str| {
        format!(
            "[[channel]]\nname = \"{name}\"\nkind = \"webhook\"\nurl = \"{}/{name}\"\n",
            receiver.url
        )
    };
    std::fs::write(&file, format!("{}{}", channel("hook"), channel("other"))).expect("channels");
    with_file(db, file)
}

fn with_file(db: &TestDb, file: PathBuf) -> Config {
    let mut config = Replica::config(db);
    config.alarms.file = Some(file);
    config.alarms.backoff = Duration::from_millis(100);
    config
}

pub async fn replica(db: &TestDb, receiver: &Receiver) -> Replica {
    Replica::start_with(config(db, receiver)).await
}

fn kinds(got: &[Got]) -> Vec<String> {
    got.iter()
        .map(|got| got.json()["alarm"]["kind"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Waits until so many alarms have arrived.
pub async fn arrived(receiver: &Receiver, count: usize) -> Vec<Got> {
    until(&format!("{count} alarms arrive"), || async {
        let got = receiver.got();
        (got.len() >= count).then_some(got)
    })
    .await
}

async fn run(replica: &Replica, runner: &mut SimRunner, name: &str, kind: &str) -> i64 {
    let id = start(replica, name).await.task_id;
    assert_eq!(runner.take().await.task_id, id);
    let code = if kind == "success" { 0 } else { 3 };
    let result = v1::TaskResult {
        message: if kind == "success" {
            String::new()
        } else {
            "exit code 3".into()
        },
        ..runner.result(id, kind, Some(code))
    };
    runner.ended(result).await;
    id
}

pub fn with_alarms(name: &str, alarms: &Value) -> Value {
    job(
        name,
        &json!({"runbook": "https://wiki/x", "owner": "ann", "alarm": alarms}),
    )
}

async fn status(replica: &Replica) -> v1::StatusResponse {
    replica
        .cluster()
        .status(v1::StatusRequest::default())
        .await
        .expect("status")
        .into_inner()
}

async fn alarms(replica: &Replica, open: bool) -> Vec<v1::JobAlarm> {
    let request = v1::ListAlarmsRequest {
        open,
        ..v1::ListAlarmsRequest::default()
    };
    replica.alarms().list(request).await.expect("list").into_inner().alarms
}

pub fn rows(db: &TestDb) -> String {
    db.sql("SELECT count(*) FROM alarm")
}

async fn a_failure_is_told_once_after_the_last_attempt(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    let mut value = with_alarms("a", &json!([{"when": "failure", "to": ["hook", "other"]}]));
    value["retry"] = json!({"policy": "fixed", "max_retries": 1, "delay": "0"});
    put(&replica, value).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    let first = start(&replica, "a").await.task_id;
    for attempt in 1..=2 {
        let id = runner.take().await.task_id;
        if attempt == 2 {
            // The first failure is followed by another attempt: nobody is told.
            assert_eq!((id > first, rows(&db).as_str()), (true, "0"));
        }
        let result = v1::TaskResult {
            message: "exit code 3".into(),
            stderr_bytes: OUTPUT.len() as u64,
            output: vec![v1::OutputChunk {
                task_id: id,
                stream: v1::OutputStream::Stderr.into(),
                data: OUTPUT.to_vec(),
                ..v1::OutputChunk::default()
            }],
            ..runner.result(id, "exit_code", Some(3))
        };
        runner.ended(result).await;
    }
    let got = arrived(&receiver, 2).await;
    let mut paths: Vec<&str> = got.iter().map(|got| got.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["/hook", "/other"]);
    let alarm = got[0].json()["alarm"].clone();
    assert_eq!(alarm["tasks"][0]["attempt"], 2);
    assert_eq!(alarm["tasks"][0]["attempts"], 2);
    assert_eq!(alarm["tasks"][0]["runner"], "h/0");
    assert_eq!(alarm["output"], json!(["one", "two red"]));
    assert_eq!(
        (&alarm["runbook"], &alarm["owner"]),
        (&json!("https://wiki/x"), &json!("ann"))
    );
    let signature = systole_scheduler::flow::callback::sign(
        &replica.running.context.callback_secret,
        &got[0].headers["webhook-id"],
        got[0].headers["webhook-timestamp"].parse().expect("seconds"),
        &got[0].body,
    );
    assert_eq!(got[0].headers["webhook-signature"], signature);
    until("both are settled", || async {
        let done = alarms(&replica, false).await;
        done.iter().all(|alarm| alarm.state == "delivered").then_some(())
    })
    .await;
    assert_eq!((rows(&db).as_str(), receiver.got().len()), ("2", 2));
    assert_eq!(alarms(&replica, true).await, []);
    replica.stop().await;
}

async fn failures_in_a_row_are_told_and_the_recovery_from_them(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    let rules = json!([{"when": "failure", "in_a_row": 2, "to": ["hook"]}, {"when": "recovery", "to": ["hook"]}]);
    put(&replica, with_alarms("a", &rules)).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    // One failure, and one that a success parts from the next: nothing to tell.
    for kind in ["exit_code", "success", "exit_code"] {
        run(&replica, &mut runner, "a", kind).await;
    }
    assert_eq!(rows(&db), "0");
    let failed = run(&replica, &mut runner, "a", "exit_code").await;
    // A person ends a run: neither good nor bad.
    let cancelled = start(&replica, "a").await.task_id;
    replica.cancel(cancelled).await;
    replica.until_state(cancelled, S::Terminated).await;
    let well = run(&replica, &mut runner, "a", "success").await;
    run(&replica, &mut runner, "a", "success").await;
    let got = arrived(&receiver, 2).await;
    assert_eq!(kinds(&got), ["failure", "recovery"]);
    let told = |index: usize| got[index].json()["alarm"].clone();
    assert_eq!(told(0)["failures_in_a_row"], 2);
    assert_eq!(told(0)["tasks"][0]["id"], failed.to_string());
    assert_eq!(told(1)["tasks"][0]["id"], well.to_string());
    assert_eq!(told(0)["incident"], told(1)["incident"]);
    assert_eq!(rows(&db), "2");
    replica.stop().await;
}

async fn a_silence_holds_back_what_a_success_puts_right(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    put(
        &replica,
        with_alarms("a", &json!([{"when": "failure", "silence": "1h", "to": ["hook"]}])),
    )
    .await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    run(&replica, &mut runner, "a", "exit_code").await;
    run(&replica, &mut runner, "a", "exit_code").await;
    run(&replica, &mut runner, "a", "exit_code").await;
    arrived(&receiver, 1).await;
    let states = |rows: &[v1::JobAlarm]| {
        rows.iter()
            .map(|row| (row.state.clone(), row.count))
            .collect::<Vec<_>>()
    };
    until("the first is settled", || async {
        (states(&alarms(&replica, false).await) == [("held".into(), 2), ("delivered".into(), 1)]).then_some(())
    })
    .await;
    run(&replica, &mut runner, "a", "success").await;
    assert_eq!(
        states(&alarms(&replica, false).await),
        [("silenced".into(), 2), ("delivered".into(), 1)]
    );
    // Trouble after that is held back again, since the first alarm is not an hour old.
    run(&replica, &mut runner, "a", "exit_code").await;
    assert_eq!(
        states(&alarms(&replica, false).await),
        [("held".into(), 1), ("delivered".into(), 1)]
    );
    assert_eq!(receiver.got().len(), 1);
    replica.stop().await;
}

async fn a_silence_that_ends_in_trouble_tells_of_all_of_it(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    let rules = json!([{"when": "failure", "silence": "3s", "to": ["hook"]}, {"when": "recovery", "to": ["hook"]}]);
    put(&replica, with_alarms("a", &rules)).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    run(&replica, &mut runner, "a", "exit_code").await;
    run(&replica, &mut runner, "a", "exit_code").await;
    let got = arrived(&receiver, 2).await;
    assert_eq!(got[1].json()["alarm"]["count"], 1);
    run(&replica, &mut runner, "a", "success").await;
    assert_eq!(kinds(&arrived(&receiver, 3).await), ["failure", "failure", "recovery"]);
    replica.stop().await;
}

async fn a_lost_host_is_one_alarm_with_all_its_tasks(db: TestDb) {
    let receiver = Receiver::start();
    let mut config = config(&db, &receiver);
    config.timing.lost_after = Duration::from_secs(6);
    let replica = Replica::start_with(config.clone()).await;
    let other = match db.postgres {
        Some(_) => Some(Replica::start_with(config).await),
        None => None,
    };
    let mut ids = Vec::new();
    let mut slots = Vec::new();
    for (slot, name) in ["a", "b", "c"].into_iter().enumerate() {
        put(
            &replica,
            with_alarms(name, &json!([{"when": "failure", "to": ["hook"]}])),
        )
        .await;
        let mut runner = SimRunner::new(&replica, "gpu-03", u32::try_from(slot).expect("small"));
        runner.beat.slots = 3;
        let id = start(&replica, name).await.task_id;
        assert_eq!(runner.take().await.task_id, id);
        runner.running(id).await;
        ids.push(id.to_string());
        slots.push((runner, id));
    }
    for (runner, id) in &mut slots {
        runner.running(*id).await;
    }
    // From here on it is silent.
    let got = arrived(&receiver, 1).await;
    let alarm = got[0].json()["alarm"].clone();
    assert_eq!(
        (&alarm["kind"], &alarm["host"], &alarm["count"]),
        (&json!("host_lost"), &json!("gpu-03"), &json!(3))
    );
    let mut told: Vec<&str> = alarm["tasks"]
        .as_array()
        .expect("tasks")
        .iter()
        .filter_map(|task| task["id"].as_str())
        .collect();
    told.sort_unstable();
    assert_eq!(told, ids);
    assert!(alarm["title"].as_str().expect("title").contains("lost with 3 tasks"));
    assert_eq!(rows(&db), "1");
    if let Some(other) = other {
        other.stop().await;
    }
    replica.stop().await;
}

async fn a_job_is_late_though_nothing_ran(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    let other = match db.postgres {
        Some(_) => Some(Replica::start_with(config(&db, &receiver)).await),
        None => None,
    };
    let rules = json!([{"when": "late", "max_age": "1h", "to": ["hook"]}, {"when": "recovery", "to": ["hook"]}]);
    put(&replica, with_alarms("a", &rules)).await;
    watched(&db, 1).await;
    // Two hours pass.
    db.sql("UPDATE alarm_watch SET base_ms = base_ms - 7200000, due_ms = due_ms - 7200000");
    let got = arrived(&receiver, 1).await;
    let alarm = got[0].json()["alarm"].clone();
    assert_eq!((&alarm["kind"], &alarm["tasks"]), (&json!("late"), &json!([])));
    assert!(alarm["commands"].to_string().contains("systole why a"));
    let now = status(&replica).await;
    assert_eq!((now.late.len(), now.late[0].job.as_str()), (1, "a"));
    assert!(
        now.attention.iter().any(|line| line.starts_with("LATE  a since")),
        "{:?}",
        now.attention
    );
    let mut runner = SimRunner::new(&replica, "h", 0);
    // A failure does not help, and is no alarm of its own here.
    run(&replica, &mut runner, "a", "exit_code").await;
    assert_eq!(status(&replica).await.late.len(), 1);
    run(&replica, &mut runner, "a", "success").await;
    assert_eq!(status(&replica).await.late.len(), 0);
    assert_eq!(kinds(&arrived(&receiver, 2).await), ["late", "recovery"]);
    assert_eq!(rows(&db), "2");
    if let Some(other) = other {
        other.stop().await;
    }
    replica.stop().await;
}

async fn watched(db: &TestDb, count: usize) {
    until("the rules are watched", || async {
        (db.sql("SELECT count(*) FROM alarm_watch WHERE due_ms > base_ms") == count.to_string()).then_some(())
    })
    .await;
}

async fn a_lateness_is_found_after_all_schedulers_were_away(db: TestDb) {
    let receiver = Receiver::start();
    let before = replica(&db, &receiver).await;
    let zone = "Europe/Berlin";
    let rules = json!([
        {"when": "late", "succeeded_by": "06:00", "zone": zone, "to": ["hook"]},
        {"when": "late", "succeeded_within": "1h", "to": ["hook"]},
    ]);
    let mut value = with_alarms("a", &rules);
    value["trigger"] = json!([{"name": "nightly", "cron": "30 2 * * *", "zone": zone}]);
    put(&before, value).await;
    watched(&db, 2).await;
    before.stop().await;
    // Three days pass in which nothing runs at all.
    db.sql("UPDATE alarm_watch SET base_ms = base_ms - 259200000, due_ms = due_ms - 259200000");
    db.sql("UPDATE job_trigger SET created_at_ms = created_at_ms - 259200000");
    assert_eq!(rows(&db), "0");
    let after = replica(&db, &receiver).await;
    let got = arrived(&receiver, 2).await;
    assert_eq!(kinds(&got), ["late", "late"]);
    let titles = format!("{} {}", got[0].body, got[1].body);
    assert!(
        titles.contains("by 06:00 Europe/Berlin") && titles.contains("within 1h"),
        "{titles}"
    );
    assert_eq!(status(&after).await.late.len(), 2);
    assert_eq!(rows(&db), "2");
    after.stop().await;
}

async fn a_paused_job_is_not_late(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    let late = json!([{"when": "late", "max_age": "1s", "to": ["hook"]}]);
    let mut paused = with_alarms("paused", &late);
    paused["paused"] = json!(true);
    put(&replica, paused).await;
    let freeze = v1::PauseRequest {
        scope: "queue".into(),
        name: "cold".into(),
        ..v1::PauseRequest::default()
    };
    replica.cluster().pause(freeze).await.expect("freeze");
    let mut frozen = with_alarms("frozen", &late);
    frozen["queue"] = json!("cold");
    put(&replica, frozen).await;
    put(&replica, with_alarms("free", &late)).await;
    let got = arrived(&receiver, 1).await;
    assert_eq!(got[0].json()["alarm"]["job"], "free");
    until("the paused one was judged", || async {
        let judged = db.sql(
            "SELECT count(*) FROM alarm_watch JOIN job ON job.id = alarm_watch.job_id WHERE job.name IN ('paused', 'frozen') AND alarm_watch.due_ms > alarm_watch.base_ms",
        );
        (judged == "2").then_some(())
    })
    .await;
    assert_eq!(rows(&db), "1");
    replica.stop().await;
}

/// Runners may be silent for a while.
async fn patient(db: &TestDb, receiver: &Receiver) -> Replica {
    let mut config = config(db, receiver);
    config.timing.lost_after = Duration::from_secs(300);
    Replica::start_with(config).await
}

async fn skipped_fires_with_one_cause_are_one_alarm(db: TestDb) {
    let receiver = Receiver::start();
    let replica = patient(&db, &receiver).await;
    let mut value = with_alarms("a", &json!([{"when": "skipped", "to": ["hook"]}]));
    value["blocking"] = json!("discard_later");
    value["trigger"] = json!([{"name": "tick", "fixed_rate": "1s"}]);
    put(&replica, value).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    let task = runner.take().await.task_id;
    runner.running(task).await;
    let got = arrived(&receiver, 1).await;
    let alarm = got[0].json()["alarm"].clone();
    assert_eq!(alarm["kind"], "skipped");
    assert!(alarm["text"].as_str().expect("text").contains(&format!("task {task}")));
    until("further fires are counted", || async {
        let row = alarms(&replica, false).await.remove(0);
        (row.count >= 3).then_some(())
    })
    .await;
    assert_eq!((rows(&db).as_str(), receiver.got().len()), ("1", 1));
    replica.stop().await;
}

async fn a_run_that_takes_long_is_told_once_while_it_runs(db: TestDb) {
    let receiver = Receiver::start();
    let replica = patient(&db, &receiver).await;
    put(
        &replica,
        with_alarms("a", &json!([{"when": "slow", "longer_than": "1s", "to": ["hook"]}])),
    )
    .await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    let id = start(&replica, "a").await.task_id;
    assert_eq!(runner.take().await.task_id, id);
    runner.running(id).await;
    let got = arrived(&receiver, 1).await;
    let alarm = got[0].json()["alarm"].clone();
    assert_eq!(
        (&alarm["kind"], &alarm["tasks"][0]["id"]),
        (&json!("slow"), &json!(id.to_string()))
    );
    assert_eq!(replica.state(id).await, S::Running);
    let now = u64::try_from(systole_shared::clock::now_ms()).expect("after 1970");
    let result = v1::TaskResult {
        started_at_ms: now - 60_000,
        ..runner.success(id)
    };
    runner.ended(result).await;
    replica.until_state(id, S::Finished).await;
    assert_eq!((rows(&db).as_str(), receiver.got().len()), ("1", 1));
    replica.stop().await;
}

async fn an_alarm_that_does_not_arrive_is_tried_again_and_seen(db: TestDb) {
    let receiver = Receiver::start();
    receiver.answer(503);
    let replica = replica(&db, &receiver).await;
    put(
        &replica,
        with_alarms("a", &json!([{"when": "failure", "to": ["hook"]}])),
    )
    .await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    run(&replica, &mut runner, "a", "exit_code").await;
    let got = arrived(&receiver, 2).await;
    // The same delivery, so that a receiver knows it again.
    assert_eq!(got[0].headers["webhook-id"], got[1].headers["webhook-id"]);
    let seen = status(&replica).await;
    assert_eq!(seen.alarms_undelivered, 1);
    assert!(
        seen.attention
            .iter()
            .any(|line| line.contains("systole alarm ls --open")),
        "{:?}",
        seen.attention
    );
    assert!(alarms(&replica, true).await[0].error.contains("503"));
    receiver.answer(200);
    until("it arrives", || async {
        (alarms(&replica, false).await[0].state == "delivered").then_some(())
    })
    .await;
    assert_eq!(status(&replica).await.alarms_undelivered, 0);
    // A body that is refused is refused again: given up, until somebody says that he knows.
    receiver.answer(400);
    run(&replica, &mut runner, "a", "exit_code").await;
    until("it is given up", || async {
        (alarms(&replica, false).await[0].state == "failed").then_some(())
    })
    .await;
    assert_eq!(status(&replica).await.alarms_undelivered, 1);
    let done = replica
        .alarms()
        .acknowledge(v1::AcknowledgeRequest::default())
        .await
        .expect("known");
    assert_eq!(done.into_inner().ids.len(), 1);
    assert_eq!(status(&replica).await.alarms_undelivered, 0);
    assert_eq!(alarms(&replica, false).await[0].acknowledged_by, "admin");
    replica.stop().await;
}

async fn an_alarm_for_a_channel_that_nobody_has_is_seen(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    let result = put(
        &replica,
        with_alarms("a", &json!([{"when": "failure", "to": ["nobody"]}])),
    )
    .await;
    assert!(result.warnings[0].contains("\"nobody\""), "{:?}", result.warnings);
    let mut runner = SimRunner::new(&replica, "h", 0);
    run(&replica, &mut runner, "a", "exit_code").await;
    // It has waited for two minutes.
    db.sql("UPDATE alarm SET next_at_ms = next_at_ms - 120000");
    until("it is seen", || async {
        let open = alarms(&replica, true).await;
        open.first()
            .is_some_and(|alarm| alarm.state == "pending" && alarm.error.contains("--alarms"))
            .then_some(())
    })
    .await;
    // … and then for two days.
    db.sql("UPDATE alarm SET next_at_ms = next_at_ms - 172800000");
    until("it is given up", || async {
        (alarms(&replica, true).await[0].state == "failed").then_some(())
    })
    .await;
    replica.stop().await;
}

/// The duties hold, and the tests call what they would do with a clock that is further than is believed.
async fn hold(ctx: &Context) {
    ctx.clock.skew(3_652 * 86_400_000);
    until("the clock is held", || async { ctx.clock.hold().map(drop) }).await;
}

/// Ten minutes ago: the clock has jumped by that, and no sample has shown it yet.
fn before_the_jump() -> i64 {
    systole_shared::clock::now_ms() - 600_000
}

async fn nobody_is_late_by_a_clock_that_is_not_believed(db: TestDb) {
    let receiver = Receiver::start();
    let replica = patient(&db, &receiver).await;
    let late = json!([{"when": "late", "max_age": "1h", "to": ["hook"]}]);
    let slow = json!([{"when": "slow", "longer_than": "1h", "to": ["hook"]}]);
    put(&replica, with_alarms("late", &late)).await;
    put(&replica, with_alarms("slow", &slow)).await;
    watched(&db, 1).await;
    until("both are known", || async {
        (db.sql("SELECT count(*) FROM alarm_watch") == "2").then_some(())
    })
    .await;
    let id = start(&replica, "slow").await.task_id;
    let mut runner = SimRunner::new(&replica, "h", 0);
    assert_eq!(runner.take().await.task_id, id);
    runner.running(id).await;
    let ctx = &replica.running.context;
    hold(ctx).await;
    // By the clock two hours have passed, ten minutes of them in no time.
    db.sql("UPDATE alarm_watch SET base_ms = base_ms - 7200000, due_ms = due_ms - 7200000");
    db.sql(&format!(
        "UPDATE task SET started_at_ms = started_at_ms - 7200000 WHERE id = {id}"
    ));
    put(&replica, with_alarms("new", &late)).await;
    let until_ms = before_the_jump();
    assert_eq!(late::judge_due(ctx, until_ms).await.expect("judged"), 0);
    assert_eq!(late::look_for_slow(ctx, until_ms).await.expect("looked"), 0);
    assert_eq!(late::read_definitions(ctx, until_ms).await.expect("read"), 0);
    assert_eq!(rows(&db), "0");
    assert_eq!(db.sql("SELECT count(*) FROM alarm_watch"), "2");
    ctx.clock.skew(0);
    let mut told = kinds(&arrived(&receiver, 2).await);
    told.sort_unstable();
    assert_eq!(told, ["late", "slow"]);
    watched(&db, 2).await;
    replica.stop().await;
}

/// Job `a` has failed once, and its alarm was told.
async fn silent_for_an_hour(db: &TestDb, receiver: &Receiver) -> (Replica, SimRunner) {
    let replica = patient(db, receiver).await;
    let rules = json!([{"when": "failure", "silence": "1h", "to": ["hook"]}]);
    put(&replica, with_alarms("a", &rules)).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    run(&replica, &mut runner, "a", "exit_code").await;
    arrived(receiver, 1).await;
    (replica, runner)
}

async fn a_silence_does_not_end_by_a_clock_that_is_not_believed(db: TestDb) {
    let receiver = Receiver::start();
    let (replica, mut runner) = silent_for_an_hour(&db, &receiver).await;
    let ctx = &replica.running.context;
    hold(ctx).await;
    run(&replica, &mut runner, "a", "exit_code").await;
    db.sql("UPDATE alarm SET next_at_ms = next_at_ms - 7200000 WHERE status = 'held'");
    for believed in [None, Some(before_the_jump())] {
        let claimed = ctx.db.claim_alarms(vec!["hook".into()], 60_000, believed).await;
        assert!(claimed.expect("claimed").is_empty(), "{believed:?}");
    }
    // What has a cause and waits for nothing is told all the same.
    put(
        &replica,
        with_alarms("b", &json!([{"when": "failure", "to": ["other"]}])),
    )
    .await;
    run(&replica, &mut runner, "b", "exit_code").await;
    let paths: Vec<String> = arrived(&receiver, 2).await.into_iter().map(|got| got.path).collect();
    assert_eq!(paths, ["/hook", "/other"]);
    ctx.clock.skew(0);
    assert_eq!(arrived(&receiver, 3).await[2].path, "/hook");
    replica.stop().await;
}

async fn no_alarm_is_given_up_by_a_clock_that_is_not_believed(db: TestDb) {
    let receiver = Receiver::start();
    let replica = patient(&db, &receiver).await;
    let rules = json!([{"when": "failure", "to": ["nobody"]}]);
    put(&replica, with_alarms("a", &rules)).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    let ctx = &replica.running.context;
    hold(ctx).await;
    run(&replica, &mut runner, "a", "exit_code").await;
    // Two days have passed, by the clock alone.
    db.sql("UPDATE alarm SET next_at_ms = next_at_ms - 172800000");
    assert_eq!(ctx.db.note_stranded(before_the_jump()).await.expect("noted"), 0);
    assert_eq!(alarms(&replica, false).await[0].state, "pending");
    ctx.clock.skew(0);
    until("it is given up", || async {
        (alarms(&replica, true).await.first()?.state == "failed").then_some(())
    })
    .await;
    replica.stop().await;
}

async fn a_clock_that_was_ahead_silences_nothing_afterwards(db: TestDb) {
    let receiver = Receiver::start();
    let (replica, mut runner) = silent_for_an_hour(&db, &receiver).await;
    // It was told in 2036.
    db.sql(&format!(
        "UPDATE alarm SET window_ms = window_ms + {}",
        3_652_i64 * 86_400_000
    ));
    run(&replica, &mut runner, "a", "exit_code").await;
    arrived(&receiver, 2).await;
    // And that one counts as always.
    run(&replica, &mut runner, "a", "exit_code").await;
    assert_eq!(alarms(&replica, false).await[0].state, "held");
    replica.stop().await;
}

async fn a_job_that_is_deleted_is_watched_no_more(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    let rules = json!([{"when": "slow", "longer_than": "1h", "to": ["hook"]}, {"when": "late", "max_age": "1h", "to": ["hook"]}]);
    put(&replica, with_alarms("a", &rules)).await;
    until("the rules are watched", || async {
        (db.sql("SELECT count(*) FROM alarm_watch") == "2").then_some(())
    })
    .await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    run(&replica, &mut runner, "a", "success").await;
    let request = v1::DeleteJobsRequest {
        names: vec!["a".into()],
        ..v1::DeleteJobsRequest::default()
    };
    replica.jobs().delete(request).await.expect("delete");
    assert_eq!(
        db.sql("SELECT (SELECT count(*) FROM job_health) + (SELECT count(*) FROM alarm_watch)"),
        "0"
    );
    replica.stop().await;
}

async fn a_job_without_alarms_leaves_no_trace(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    put(&replica, job("a", &json!({"data": {"alarm": "no rule"}}))).await;
    let mut runner = SimRunner::new(&replica, "h", 0);
    run(&replica, &mut runner, "a", "exit_code").await;
    run(&replica, &mut runner, "a", "success").await;
    assert_eq!(
        db.sql("SELECT (SELECT count(*) FROM alarm) + (SELECT count(*) FROM job_health) + (SELECT count(*) FROM alarm_watch)"),
        "0"
    );
    replica.stop().await;
}

async fn a_definition_whose_alarms_were_never_checked_still_runs(db: TestDb) {
    let receiver = Receiver::start();
    let replica = replica(&db, &receiver).await;
    put(&replica, job("a", &json!({}))).await;
    db.sql("UPDATE job SET definition = '{\"alarm\":[{\"when\":\"failure\"}],\"command\":[\"true\"],\"name\":\"a\"}'");
    let mut runner = SimRunner::new(&replica, "h", 0);
    run(&replica, &mut runner, "a", "exit_code").await;
    assert_eq!((rows(&db).as_str(), get(&replica, "a").await.running.len()), ("0", 0));
    replica.stop().await;
}
