//! What a submission passes on to its children, and what slots have of their own.

use systole_proto::v1;
use systole_tests::replica::{Replica, command};
use systole_tests::{SimRunner, TestDb, on_both_databases};

on_both_databases!(
    the_trace_of_a_submission_reaches_its_children_and_is_no_part_of_its_key,
    a_slot_label_is_that_of_its_slot_alone,
);

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn submit(replica: &Replica, trace: &'static str, key: &str, spec: v1::TaskSpec) -> v1::SubmitResult {
    let mut request = tonic::Request::new(v1::SubmitRequest {
        items: vec![v1::SubmitItem {
            spec: Some(spec),
            key: key.into(),
        }],
        reason: String::new(),
    });
    request
        .metadata_mut()
        .insert("traceparent", trace.parse().expect("a header"));
    let mut response = replica.tasks().submit(request).await.expect("submit").into_inner();
    response.results.remove(0)
}

async fn the_trace_of_a_submission_reaches_its_children_and_is_no_part_of_its_key(db: TestDb) {
    let replica = Replica::start(&db).await;
    let first = submit(&replica, TRACE, "k", command(&["true"])).await;
    let mut runner = SimRunner::new(&replica, "a", 0);
    let env = |run: v1::RunNew| -> Vec<(String, String)> {
        let env = run.spec.expect("a specification").env;
        env.into_iter().map(|var| (var.name, var.value)).collect()
    };
    assert_eq!(env(runner.take().await), [("TRACEPARENT".to_owned(), TRACE.to_owned())]);
    let result = runner.success(first.id);
    runner.ended(result).await;
    // The same submission again, from another trace and from none.
    let other = "00-ffffffffffffffffffffffffffffffff-00f067aa0ba902b7-00";
    let again = submit(&replica, other, "k", command(&["true"])).await;
    assert_eq!((again.id, again.existing, again.error), (first.id, true, None));
    assert_eq!(replica.submit_keyed(command(&["true"]), "k").await.id, first.id);
    // One of its own stays, and a malformed one is ignored.
    let mut own = command(&["true"]);
    own.env = vec![v1::EnvVar {
        name: "TRACEPARENT".into(),
        value: "mine".into(),
    }];
    submit(&replica, TRACE, "", own).await;
    let run = runner.take().await;
    let result = runner.success(run.task_id);
    assert_eq!(env(run), [("TRACEPARENT".to_owned(), "mine".to_owned())]);
    runner.ended(result).await;
    submit(&replica, "00-nonsense", "", command(&["true"])).await;
    assert_eq!(env(runner.take().await), []);
    replica.stop().await;
}

async fn a_slot_label_is_that_of_its_slot_alone(db: TestDb) {
    let replica = Replica::start(&db).await;
    let label = |key: &str, value: &str| v1::Label {
        key: key.into(),
        value: value.into(),
    };
    let mut slots: Vec<SimRunner> = (0..2).map(|slot| SimRunner::new(&replica, "a", slot)).collect();
    for slot in &mut slots {
        slot.beat.slots = 2;
        slot.beat.labels = vec![label("site", "x"), label("gpu", "none")];
    }
    slots[1].beat.slot_labels = vec![label("gpu", "0")];
    let mut spec = command(&["true"]);
    spec.require = vec![label("gpu", "0"), label("site", "x")];
    let id = replica.submit(spec).await;
    assert_eq!(slots[0].idle_parked(300).await.command(), v1::Command::GoOn);
    assert_eq!(replica.task(id).await.waiting_for, "no live runner has gpu=0");
    assert_eq!(slots[1].take().await.task_id, id);
    let listed = replica
        .admin()
        .list(v1::ListRunnersRequest::default())
        .await
        .expect("list");
    let shown: Vec<Vec<String>> = listed
        .into_inner()
        .runners
        .iter()
        .map(|runner| runner.labels.iter().map(|l| format!("{}={}", l.key, l.value)).collect())
        .collect();
    assert_eq!(shown, [["gpu=none", "site=x"], ["gpu=0", "site=x"]]);
    replica.stop().await;
}
