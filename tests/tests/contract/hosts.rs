//! Who holds a host, what becomes of those who did, and the cordon of a host.

use std::time::Duration;
use systole_proto::convert::{CLUSTER_KEY, RECORDED_KEY};
use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_result_of_a_replaced_process_is_recorded_and_nothing_else_of_its_beat,
    a_late_result_of_a_replaced_process_is_kept_beside_the_verdict,
    a_held_up_beat_of_a_replaced_process_takes_nothing_from_its_successors,
    a_slot_that_is_added_to_a_cordoned_host_is_cordoned,
);

/// Nobody is lost by itself.
async fn patient(db: &TestDb) -> Replica {
    let mut config = Replica::config(db);
    config.timing.lost_after = Duration::from_secs(600);
    Replica::start_with(config).await
}

fn instance(replica: &Replica, name: &str) -> SimRunner {
    let mut runner = SimRunner::new(replica, "a", 0);
    runner.beat.instance_id = name.into();
    runner
}

/// The holder has not been heard of for a minute.
fn silence(db: &TestDb) {
    db.sql("UPDATE runner SET seen_ms = seen_ms - 60000");
}

/// What a refused beat says of the results it carried.
fn recorded(status: &tonic::Status) -> &str {
    assert_eq!(status.code(), tonic::Code::AlreadyExists, "{status}");
    match status.metadata().get(RECORDED_KEY) {
        None => "",
        Some(ids) => {
            assert!(status.metadata().contains_key(CLUSTER_KEY));
            ids.to_str().expect("text")
        }
    }
}

async fn a_result_of_a_replaced_process_is_recorded_and_nothing_else_of_its_beat(db: TestDb) {
    let replica = patient(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut first = instance(&replica, "first");
    assert_eq!(first.take().await.task_id, id);
    first.running(id).await;
    silence(&db);
    let mut second = instance(&replica, "second");
    second.idle().await;
    let row = "SELECT instance_id || ' ' || start_no || ' ' || seq FROM runner";
    let before = db.sql(row);

    // A start that was not given the task is not believed.
    let mut wrong = first.success(id);
    wrong.dispatched_start_no = 7;
    let refused = first.try_ended(wrong).await.expect_err("refused");
    assert_eq!(recorded(&refused), "");
    assert_eq!(replica.state(id).await, S::Running);

    let mut result = first.success(id);
    result.stdout_bytes = 2;
    result.output = vec![v1::OutputChunk {
        age_ms: 0,
        task_id: id,
        stream: v1::OutputStream::Stdout.into(),
        offset: 0,
        data: b"hi".to_vec(),
    }];
    let refused = first.try_ended(result.clone()).await.expect_err("refused");
    assert_eq!(recorded(&refused), id.to_string());
    let task = replica.task(id).await;
    assert_eq!((task.state(), task.stdout_bytes), (S::Finished, 2));
    // Its answer was lost: the same again.
    let refused = first.try_ended(result).await.expect_err("refused");
    assert_eq!(recorded(&refused), id.to_string());
    assert_eq!(db.sql(row), before, "the runner's row is the successor's");
    let next = replica.submit(command(&["true"])).await;
    assert_eq!(second.take().await.task_id, next);
    replica.stop().await;
}

async fn a_late_result_of_a_replaced_process_is_kept_beside_the_verdict(db: TestDb) {
    let replica = Replica::start(&db).await;
    let id = replica.submit(command(&["true"])).await;
    let mut first = instance(&replica, "first");
    assert_eq!(first.take().await.task_id, id);
    first.running(id).await;
    replica.until_state(id, S::Failed).await;
    silence(&db);
    instance(&replica, "second").idle().await;
    let result = first.success(id);
    let refused = first.try_ended(result).await.expect_err("refused");
    assert_eq!(recorded(&refused), id.to_string());
    let task = replica.task(id).await;
    assert_eq!(task.state(), S::Failed);
    assert_eq!(task.outcome.expect("outcome").kind, "runner_lost");
    assert_eq!(task.late_result.expect("late result").kind, "success");
    replica.stop().await;
}

async fn a_held_up_beat_of_a_replaced_process_takes_nothing_from_its_successors(db: TestDb) {
    let replica = patient(&db).await;
    let mut first = instance(&replica, "first");
    first.idle().await;
    silence(&db);
    instance(&replica, "second").idle().await;
    silence(&db);
    let mut third = instance(&replica, "third");
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(third.take().await.task_id, id);
    third.running(id).await;
    // The third is silent for a while, and now a beat of the first arrives that was on its way all the time.
    silence(&db);
    first.try_idle().await.expect_err("it was replaced");
    third.running(id).await;
    assert_eq!(replica.state(id).await, S::Running);
    let result = third.success(id);
    third.ended(result).await;
    assert_eq!(replica.state(id).await, S::Finished);
    // It lives, though, and asks again and again: when the third is gone it has the host back.
    silence(&db);
    until("the first has the host again", || {
        let mut first = first.clone();
        first.beat.seq = u64::try_from(systole_shared::clock::now_ms()).expect("after 1970");
        async move { first.try_idle().await.ok() }
    })
    .await;
    assert_eq!(db.sql("SELECT instance_id FROM host"), "first");
    assert_eq!(
        db.sql("SELECT instance_id FROM replaced ORDER BY replaced_at_ms"),
        "second\nthird"
    );
    replica.stop().await;
}

async fn a_slot_that_is_added_to_a_cordoned_host_is_cordoned(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut first = SimRunner::new(&replica, "a", 0);
    first.idle().await;
    let request = |runner: &str| v1::CordonRequest {
        runners: vec![runner.into()],
        reason: "kernel".into(),
        ..v1::CordonRequest::default()
    };
    let changed = |response: tonic::Response<v1::CordonResponse>| response.into_inner().results[0].changed;
    let cordoned = || async {
        let request = v1::ListRunnersRequest::default();
        let runners = replica.admin().list(request).await.expect("list").into_inner().runners;
        let row = |runner: &v1::Runner| (runner.cordoned, runner.host_cordoned, runner.cordon_reason.clone());
        runners.iter().map(row).collect::<Vec<_>>()
    };
    // One slot is one slot.
    replica.admin().cordon(request("a/0")).await.expect("cordon");
    let mut second = SimRunner::new(&replica, "a", 1);
    second.idle().await;
    assert_eq!(
        cordoned().await,
        [(true, false, "kernel".into()), (false, false, String::new())]
    );
    let done = replica.admin().cordon(request("a")).await.expect("cordon");
    assert_eq!(changed(done), 1);
    let mut third = SimRunner::new(&replica, "a", 2);
    third.idle().await;
    assert_eq!(cordoned().await, vec![(true, true, String::from("kernel")); 3]);
    // Also after a restart of its process.
    third.beat.start_no = 2;
    third.beat.slots = 4;
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(third.idle_parked(300).await.command(), v1::Command::GoOn);
    assert_eq!(cordoned().await, vec![(true, true, String::from("kernel")); 4]);
    assert_eq!(replica.state(id).await, S::Queued);

    let done = replica.admin().uncordon(request("a")).await.expect("uncordon");
    assert_eq!(changed(done), 4);
    assert_eq!(cordoned().await, vec![(false, false, String::new()); 4]);
    assert_eq!(third.take().await.task_id, id);
    third.beat.start_no = 3;
    third.beat.slots = 5;
    third.try_idle().await.expect("a restart");
    assert_eq!(cordoned().await, vec![(false, false, String::new()); 5]);
    replica.stop().await;
}
