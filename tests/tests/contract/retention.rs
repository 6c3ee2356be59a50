//! What is deleted, and what stays.

use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_scheduler::loops::retention::Walk;
use systole_tests::replica::{Replica, command};
use systole_tests::wait::until;
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    ids_never_return,
    retention_deletes_ended_tasks_only,
    tasks_that_wait_for_long_do_not_keep_retention_from_those_behind_them,
    the_output_budget_drops_the_oldest,
);

async fn ids_never_return(db: TestDb) {
    let replica = Replica::start(&db).await;
    let first = replica.submit(command(&["true"])).await;
    replica.cancel(first).await;
    db.sql("DELETE FROM task");
    let second = replica.submit(command(&["true"])).await;
    assert!(second > first);
    replica.stop().await;
}

async fn retention_deletes_ended_tasks_only(db: TestDb) {
    let mut config = Replica::config(&db);
    config.retention.keep = std::time::Duration::from_millis(300);
    config.retention.period = std::time::Duration::from_millis(100);
    let replica = Replica::start_with(config).await;
    let ended = replica.submit(command(&["true"])).await;
    replica.cancel(ended).await;
    let waiting = replica.submit(command(&["true"])).await;
    until("the ended task is deleted", || async {
        let response = replica
            .tasks()
            .get(v1::GetRequest { ids: vec![ended] })
            .await
            .expect("get")
            .into_inner();
        response.results[0].task.is_none().then_some(())
    })
    .await;
    assert_eq!(replica.state(waiting).await, S::Queued);
    replica.stop().await;
}

async fn tasks_that_wait_for_long_do_not_keep_retention_from_those_behind_them(db: TestDb) {
    let mut config = Replica::config(&db);
    config.retention.keep = std::time::Duration::from_millis(1);
    let replica = Replica::start_with(config).await;
    // More than two steps of a pass look at.
    let items = vec![
        v1::SubmitItem {
            spec: Some(command(&["true"])),
            key: String::new(),
        };
        250
    ];
    let request = v1::SubmitRequest {
        items,
        reason: String::new(),
    };
    replica.tasks().submit(request).await.expect("submit");
    let ended = replica.submit(command(&["true"])).await;
    replica.cancel(ended).await;
    let count = || db.sql(&format!("SELECT count(*) FROM task WHERE id = {ended}"));
    let mut walk = Walk::new(2);
    // Older than what is kept, by the database's clock.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    walk.pass(&replica.running.context).await.expect("pass");
    assert_eq!(count(), "1", "the first pass does not come so far");
    walk.pass(&replica.running.context).await.expect("pass");
    assert_eq!(count(), "0");
    assert_eq!(db.sql("SELECT count(*) FROM task"), "250");
    replica.stop().await;
}

async fn the_output_budget_drops_the_oldest(db: TestDb) {
    let mut config = Replica::config(&db);
    config.retention.output_budget = 1_500;
    config.retention.period = std::time::Duration::from_millis(100);
    let replica = Replica::start_with(config).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let id = replica.submit(command(&["true"])).await;
        runner.take().await;
        let mut result = runner.success(id);
        result.stdout_bytes = 1_000;
        result.output = vec![v1::OutputChunk {
            age_ms: 0,
            task_id: id,
            stream: v1::OutputStream::Stdout.into(),
            offset: 0,
            data: vec![b'x'; 1_000],
        }];
        runner.ended(result).await;
        ids.push(id);
    }
    until("the older output is dropped", || async {
        (replica.task(ids[0]).await.stdout_bytes == 0).then_some(())
    })
    .await;
    assert_eq!(replica.task(ids[1]).await.stdout_bytes, 1_000);
    let request = v1::ReadOutputRequest {
        task_id: ids[0],
        follow: true,
        ..Default::default()
    };
    let mut stream = replica.tasks().read_output(request).await.expect("read").into_inner();
    let piece = stream.message().await.expect("read").expect("says what is gone");
    let gap = piece.gap.expect("all of it is a gap");
    assert_eq!((gap.offset, gap.bytes, piece.offset), (0, 1_000, 1_000));
    assert!(stream.message().await.expect("read").is_none(), "nobody waits for it");
    replica.stop().await;
}
