//! Cordons that end by themselves, drains, and hosts that are forgotten.

use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_cordon_with_an_end_is_lifted_then_and_not_by_a_clock_that_is_not_believed,
    of_several_cordons_the_one_that_holds_longest_stays,
    a_drained_runner_keeps_its_task_and_gets_no_other,
    a_host_that_beats_is_not_forgotten,
    the_tasks_of_a_host_that_is_said_to_be_dead_end_as_lost,
    the_status_counts_and_names_what_needs_a_person,
    a_replica_that_stopped_in_order_is_not_shown,
);

const DAY_MS: u64 = 86_400_000;
const TEN_YEARS_MS: i64 = 10 * 365 * 86_400_000;

async fn runners(replica: &Replica) -> Vec<v1::Runner> {
    let request = v1::ListRunnersRequest::default();
    replica.admin().list(request).await.expect("list").into_inner().runners
}

async fn cordon(replica: &Replica, request: v1::CordonRequest) -> v1::CordonResult {
    let response = replica.admin().cordon(request).await.expect("cordon");
    response.into_inner().results.remove(0)
}

fn within(runner: &str, for_ms: u64) -> v1::CordonRequest {
    v1::CordonRequest {
        runners: vec![runner.into()],
        for_ms,
        ..v1::CordonRequest::default()
    }
}

async fn audit(replica: &Replica, action: &str) -> Vec<v1::AuditEntry> {
    let request = v1::ListAuditRequest {
        action: action.into(),
        ..v1::ListAuditRequest::default()
    };
    let response = replica.access().list_audit(request).await.expect("audit");
    response.into_inner().entries
}

/// Nobody is lost by itself.
async fn patient(db: &TestDb) -> Replica {
    let mut config = Replica::config(db);
    config.timing.lost_after = Duration::from_secs(600);
    Replica::start_with(config).await
}

fn remove(host: &str, dead: bool) -> v1::RemoveHostRequest {
    v1::RemoveHostRequest {
        host: host.into(),
        reason: "scrapped".into(),
        dead,
    }
}

async fn a_cordon_with_an_end_is_lifted_then_and_not_by_a_clock_that_is_not_believed(db: TestDb) {
    let replica = patient(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.idle().await;
    let done = cordon(&replica, within("a", DAY_MS)).await;
    assert_eq!(done.changed, 1);
    let id = replica.submit(command(&["true"])).await;
    let row = runners(&replica).await.remove(0);
    assert!(row.cordoned && row.host_cordoned);
    assert_eq!(row.cordon_until_ms, done.until_ms);
    // A slot that comes later has the same end.
    SimRunner::new(&replica, "a", 1).idle().await;
    assert_eq!(runners(&replica).await[1].cordon_until_ms, done.until_ms);

    // The stored end is over; but the clock that says so is held.
    let ctx = &replica.running.context;
    ctx.clock.skew(TEN_YEARS_MS);
    until("the clock is held", || async { ctx.clock.hold().map(drop) }).await;
    for table in ["host", "runner"] {
        db.sql(&format!(
            "UPDATE {table} SET cordon_until_ms = cordon_until_ms - {DAY_MS}"
        ));
    }
    assert_eq!(runner.idle_parked(700).await.command(), v1::Command::GoOn);
    assert!(runners(&replica).await.iter().all(|row| row.cordoned));

    ctx.clock.skew(0);
    assert_eq!(runner.take().await.task_id, id);
    let open = runners(&replica).await;
    assert!(
        open.iter()
            .all(|row| !row.cordoned && !row.host_cordoned && row.cordon_until_ms == 0),
        "{open:?}"
    );
    let entries = audit(&replica, "uncordon").await;
    let told: Vec<(&str, &str)> = entries
        .iter()
        .map(|entry| (entry.actor.as_str(), entry.subject.as_str()))
        .collect();
    assert_eq!(told, [("scheduler", "a")]);
    replica.stop().await;
}

async fn of_several_cordons_the_one_that_holds_longest_stays(db: TestDb) {
    let replica = patient(&db).await;
    SimRunner::new(&replica, "a", 0).idle().await;
    let first = cordon(&replica, within("a", DAY_MS)).await;
    let shorter = cordon(&replica, within("a", DAY_MS / 2)).await;
    assert_eq!((shorter.changed, shorter.until_ms), (0, 0));
    assert_eq!(runners(&replica).await[0].cordon_until_ms, first.until_ms);
    assert_eq!(cordon(&replica, within("a/0", 2 * DAY_MS)).await.changed, 1);
    assert_eq!(cordon(&replica, within("a", 0)).await.changed, 1);
    assert_eq!(cordon(&replica, within("a", DAY_MS)).await.changed, 0);
    let row = runners(&replica).await.remove(0);
    assert_eq!((row.cordoned, row.host_cordoned, row.cordon_until_ms), (true, true, 0));

    let past = v1::CordonRequest {
        until_ms: 1_000,
        ..within("a", 0)
    };
    let error = cordon(&replica, past).await.error.expect("it is over");
    assert_eq!((error.code.as_str(), error.field.as_str()), ("VALIDATION_003", "until"));
    let both = v1::CordonRequest {
        until_ms: 1_000,
        ..within("a", 1)
    };
    let refused = replica.admin().cordon(both).await.expect_err("both");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    let refused = replica.admin().uncordon(within("a", 1)).await.expect_err("an end");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    replica.stop().await;
}

async fn a_drained_runner_keeps_its_task_and_gets_no_other(db: TestDb) {
    let replica = patient(&db).await;
    let running = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, running);
    runner.running(running).await;
    let waiting = replica.submit(command(&["true"])).await;
    let drain = v1::CordonRequest {
        drain: true,
        reason: "kernel".into(),
        ..within("a", DAY_MS)
    };
    cordon(&replica, drain).await;
    assert_eq!(runner.running(running).await.command(), v1::Command::GoOn);
    let row = runners(&replica).await.remove(0);
    assert_eq!((row.task_id, row.cordoned), (running, true));
    let result = runner.success(running);
    runner.ended(result).await;
    assert_eq!(runner.idle_parked(300).await.command(), v1::Command::GoOn);
    assert_eq!(replica.state(waiting).await, S::Queued);
    assert_eq!(runners(&replica).await[0].task_id, 0);
    let entry = audit(&replica, "drain").await.remove(0);
    assert_eq!((entry.subject.as_str(), entry.reason.as_str()), ("a", "kernel"));
    assert!(entry.detail.starts_with("until 20"), "{}", entry.detail);
    replica.stop().await;
}

async fn a_host_that_beats_is_not_forgotten(db: TestDb) {
    let replica = patient(&db).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.idle().await;
    let refused = replica.admin().remove(remove("a", true)).await.expect_err("it beats");
    assert_eq!(refused.code(), tonic::Code::Aborted, "{refused}");
    assert!(refused.message().contains("runners drain a --wait"), "{refused}");
    let refused = replica.admin().remove(remove("b", false)).await.expect_err("unknown");
    assert_eq!(refused.code(), tonic::Code::NotFound);
    let refused = replica.admin().remove(remove("a/0", false)).await.expect_err("a slot");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    // One that said goodbye is gone at once, with its cordon.
    cordon(&replica, within("a", 0)).await;
    runner.beat.leaving = true;
    runner.idle().await;
    let done = replica.admin().remove(remove("a", false)).await.expect("it left");
    assert_eq!(done.into_inner().slots, 1);
    assert!(runners(&replica).await.is_empty());
    assert_eq!(db.sql("SELECT count(*) FROM host"), "0");
    // It comes back as a new one.
    runner.beat.leaving = false;
    runner.beat.start_no += 1;
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(runner.take().await.task_id, id);
    replica.stop().await;
}

async fn the_tasks_of_a_host_that_is_said_to_be_dead_end_as_lost(db: TestDb) {
    let replica = patient(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    assert_eq!(runner.take().await.task_id, id);
    runner.running(id).await;
    let aimed = v1::TaskSpec {
        target_host: "a".into(),
        ..command(&["true"])
    };
    let waiting = replica.submit(aimed).await;
    db.sql("UPDATE runner SET seen_ms = seen_ms - 60000");
    let refused = replica
        .admin()
        .remove(remove("a", false))
        .await
        .expect_err("it holds one");
    assert_eq!(refused.code(), tonic::Code::Aborted, "{refused}");
    assert!(refused.message().contains(&format!("({id})")), "{refused}");
    assert_eq!(replica.state(id).await, S::Running);

    let done = replica
        .admin()
        .remove(remove("a", true))
        .await
        .expect("dead")
        .into_inner();
    assert_eq!(
        (done.lost, done.waiting, done.more_waiting),
        (vec![id], vec![waiting], false)
    );
    let outcome = replica.task(id).await.outcome.expect("outcome");
    assert_eq!(outcome.kind, "runner_lost");
    assert!(
        outcome.message.ends_with("said that its host is dead"),
        "{}",
        outcome.message
    );
    assert_eq!(replica.state(waiting).await, S::Queued);
    let entry = audit(&replica, "forget").await.remove(0);
    assert_eq!((entry.subject.as_str(), entry.reason.as_str()), ("a", "scrapped"));
    assert_eq!(entry.detail, format!("dead, held {id}"));
    // The person was wrong: the child is ended, and its result is kept beside the verdict.
    let result = runner.success(id);
    drop(runner.try_ended(result).await);
    assert_eq!(replica.state(id).await, S::Failed);
    replica.stop().await;
}

async fn the_status_counts_and_names_what_needs_a_person(db: TestDb) {
    let replica = patient(&db).await;
    let status = |since_ms: u64| {
        let mut cluster = replica.cluster();
        async move {
            let request = v1::StatusRequest { since_ms };
            cluster.status(request).await.expect("status").into_inner()
        }
    };
    let mut runner = SimRunner::new(&replica, "a", 0);
    runner.idle().await;
    let calm = until("the replica has written its row", || async {
        let now = status(0).await;
        (!now.replicas.is_empty()).then_some(now)
    })
    .await;
    assert_eq!(calm.replicas.len(), 1);
    assert_eq!(calm.database, if db.postgres.is_some() { "postgres" } else { "sqlite" });
    assert!(
        calm.database_bytes > 4_096 && !calm.database_version.is_empty(),
        "{calm:?}"
    );
    assert_eq!(calm.hosts.map(|hosts| (hosts.ready, hosts.slots)), Some((1, 1)));
    assert_eq!((calm.attention, calm.ended_badly), (Vec::<String>::new(), Vec::new()));

    // A command that failed is counted, and is its owner's business.
    let failed = replica.submit(command(&["false"])).await;
    assert_eq!(runner.take().await.task_id, failed);
    runner.running(failed).await;
    let result = runner.result(failed, "exit_code", Some(1));
    runner.ended(result).await;
    let now = status(0).await;
    let ends: Vec<(&str, u64, i64)> = now
        .ended_badly
        .iter()
        .map(|ends| (ends.kind.as_str(), ends.count, ends.newest_id))
        .collect();
    assert_eq!(ends, [("exit_code", 1, failed)]);
    assert!(now.attention.is_empty(), "{:?}", now.attention);
    assert!(status(now.since_ms + 2 * DAY_MS).await.ended_badly.is_empty());

    // What nobody can serve, and a host that is lost.
    replica
        .submit(v1::TaskSpec {
            queue: "gpu".into(),
            ..command(&["true"])
        })
        .await;
    db.sql("UPDATE runner SET seen_ms = seen_ms - 6000000");
    let loud = until("both are named", || async {
        let now = status(0).await;
        (now.attention.len() == 2).then_some(now)
    })
    .await;
    assert_eq!(loud.hosts.map(|hosts| (hosts.ready, hosts.lost)), Some((0, 1)));
    assert!(loud.attention[0].contains("host a is lost"), "{:?}", loud.attention);
    assert!(loud.attention[1].contains("queue gpu"), "{:?}", loud.attention);
    // A cordoned host is expected to be away.
    cordon(&replica, within("a", 0)).await;
    let now = status(0).await;
    assert_eq!(now.attention.len(), 1, "{:?}", now.attention);
    replica.stop().await;
}

async fn a_replica_that_stopped_in_order_is_not_shown(db: TestDb) {
    let shown = |replica: &Replica| {
        let mut cluster = replica.cluster();
        async move {
            let status = cluster.status(v1::StatusRequest::default()).await.expect("status");
            let replicas = status.into_inner().replicas.into_iter();
            replicas.map(|replica| replica.name).collect::<Vec<String>>()
        }
    };
    let name = |replica: &Replica| replica.running.context.replica.clone();
    let first = patient(&db).await;
    until("the first has written its row", || async {
        (shown(&first).await == [name(&first)]).then_some(())
    })
    .await;
    first.stop().await;
    let second = patient(&db).await;
    let all = until("the second has written its row", || async {
        let all = shown(&second).await;
        all.contains(&name(&second)).then_some(all)
    })
    .await;
    assert_eq!(all, [name(&second)]);
    second.stop().await;
}
