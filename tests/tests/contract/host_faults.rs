//! A host that can start nothing, as schedulers see it: facts on both databases, over real sockets.

use systole_proto::v1;
use systole_proto::v1::TaskState as S;
use systole_tests::replica::{Replica, command};
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    a_faulty_host_gets_nothing_new_in_any_slot_until_it_is_well,
    a_task_that_a_faulty_host_could_not_start_waits_for_another_host,
    an_older_word_about_the_health_of_a_host_changes_nothing,
    a_restarted_host_has_no_fault_until_it_says_so,
    a_fault_that_makes_no_sense_is_refused_by_its_field,
);

fn disk_full() -> Option<v1::HostFault> {
    Some(v1::HostFault {
        kind: "disk_full".into(),
        detail: "8 KiB are free".into(),
    })
}

fn slots(replica: &Replica, host: &str, n: u32) -> Vec<SimRunner> {
    let slot = |slot| {
        let mut runner = SimRunner::new(replica, host, slot);
        runner.beat.slots = n;
        runner
    };
    (0..n).map(slot).collect()
}

async fn list(replica: &Replica) -> Vec<v1::Runner> {
    let request = v1::ListRunnersRequest::default();
    replica.admin().list(request).await.expect("list").into_inner().runners
}

async fn a_faulty_host_gets_nothing_new_in_any_slot_until_it_is_well(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut host = slots(&replica, "a", 2);
    for slot in &mut host {
        slot.idle().await;
    }
    assert!(list(&replica).await.iter().all(|runner| runner.fault.is_none()));
    (host[0].beat.fault, host[0].beat.fault_no) = (disk_full(), 1);
    host[0].idle().await;
    let id = replica.submit(command(&["true"])).await;
    // The slot that said so, and one that did not know yet.
    assert_eq!(host[0].idle_parked(300).await.command(), v1::Command::GoOn);
    assert_eq!(host[1].idle_parked(300).await.command(), v1::Command::GoOn);
    let runners = list(&replica).await;
    for runner in &runners {
        assert_eq!((runner.state.as_str(), runner.fault.clone()), ("faulty", disk_full()));
        assert!(runner.fault_at_ms > 0);
    }
    let task = replica.task(id).await;
    assert_eq!((task.state(), task.attempt), (S::Queued, 1));
    assert_eq!(task.waiting_for, "2 of 2 slots faulty: disk full on a");

    (host[1].beat.fault, host[1].beat.fault_no) = (None, 2);
    assert_eq!(host[1].take().await.task_id, id);
    assert!(
        list(&replica)
            .await
            .iter()
            .all(|runner| runner.fault.is_none() && runner.fault_at_ms == 0)
    );
    replica.stop().await;
}

async fn a_task_that_a_faulty_host_could_not_start_waits_for_another_host(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut host = slots(&replica, "a", 4);
    let id = replica.submit(command(&["true"])).await;
    assert_eq!(host[0].take().await.task_id, id);
    // The others are parked and would take it at once.
    let parked: Vec<_> = host
        .split_off(1)
        .into_iter()
        .map(|mut slot| tokio::spawn(async move { slot.idle_parked(1_000).await }))
        .collect();
    let known = || async { (list(&replica).await.len() == 4).then_some(()) };
    systole_tests::wait::until("all slots are there", known).await;
    (host[0].beat.fault, host[0].beat.fault_no) = (disk_full(), 1);
    let result = host[0].result(id, "not_started", None);
    let answer = host[0].ended(result).await;
    assert_eq!(answer.acknowledged, [id]);
    for beat in parked {
        assert_eq!(beat.await.expect("no panic").command(), v1::Command::GoOn);
    }
    let first = replica.task(id).await;
    assert_eq!(first.state(), S::Failed);
    let next = replica.task(first.retried_by).await;
    assert_eq!((next.state(), next.attempt), (S::Queued, 1));
    let mut other = SimRunner::new(&replica, "b", 0);
    assert_eq!(other.take().await.task_id, next.id);
    replica.stop().await;
}

async fn an_older_word_about_the_health_of_a_host_changes_nothing(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut host = slots(&replica, "a", 2);
    for slot in &mut host {
        slot.idle().await;
    }
    (host[0].beat.fault, host[0].beat.fault_no) = (disk_full(), 3);
    host[0].idle().await;
    // Held up on its way: it says that the host is well, at a replica that remembers nothing.
    replica.stop().await;
    let replica = Replica::start(&db).await;
    for slot in &mut host {
        slot.client = replica.beats();
    }
    host[1].beat.fault_no = 2;
    host[1].idle().await;
    // And one of a time before there ever was a fault.
    host[1].beat.fault_no = 0;
    host[1].idle().await;
    assert!(list(&replica).await.iter().all(|runner| runner.fault == disk_full()));
    let since: Vec<u64> = list(&replica).await.iter().map(|runner| runner.fault_at_ms).collect();
    (host[1].beat.fault, host[1].beat.fault_no) = (disk_full(), 3);
    host[1].idle().await;
    let again: Vec<u64> = list(&replica).await.iter().map(|runner| runner.fault_at_ms).collect();
    assert_eq!(since, again, "the same fault is as old as before");
    replica.stop().await;
}

async fn a_restarted_host_has_no_fault_until_it_says_so(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut host = slots(&replica, "a", 1);
    (host[0].beat.fault, host[0].beat.fault_no) = (disk_full(), 7);
    // With its first beat, before anybody knows the host.
    host[0].idle().await;
    assert_eq!(list(&replica).await[0].fault, disk_full());
    host[0].beat.start_no += 1;
    (host[0].beat.fault, host[0].beat.fault_no) = (None, 0);
    host[0].idle().await;
    assert_eq!(list(&replica).await[0].fault, None);
    // Its count begins again, and a slot that comes with the registration of another one gets nothing either.
    (host[0].beat.fault, host[0].beat.fault_no) = (disk_full(), 1);
    host[0].idle().await;
    assert_eq!(list(&replica).await[0].fault, disk_full());
    replica.stop().await;
}

async fn a_fault_that_makes_no_sense_is_refused_by_its_field(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut host = slots(&replica, "a", 1);
    (host[0].beat.fault, host[0].beat.fault_no) = (disk_full(), 0);
    let refused = host[0].try_idle().await.expect_err("refused");
    assert!(refused.message().contains("fault_no"), "{refused}");
    host[0].beat.fault = Some(v1::HostFault {
        kind: "No Word\0".into(),
        detail: String::new(),
    });
    host[0].beat.fault_no = 1;
    let refused = host[0].try_idle().await.expect_err("refused");
    assert!(refused.message().contains("fault.kind"), "{refused}");
    replica.stop().await;
}
