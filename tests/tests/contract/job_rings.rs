//! Jobs that start each other in a ring are refused, whenever and wherever its parts are stored.

use crate::jobs::{apply, definition, get, job, pause, put};
use serde_json::{Value, json};
use systole_proto::v1;
use systole_proto::v1::Applied as A;
use systole_tests::replica::Replica;
use systole_tests::{TestDb, on_both_databases};

on_both_databases!(
    a_job_that_closes_a_ring_with_what_is_stored_is_refused,
    a_chain_is_turned_round_by_one_apply,
    a_job_that_was_deleted_does_not_come_back_into_a_ring,
    of_two_halves_of_a_ring_at_once_one_is_stored,
);

fn after(name: &str, others: &[&str]) -> Value {
    let triggers: Vec<Value> = others
        .iter()
        .enumerate()
        .map(|(n, other)| json!({"name": format!("t{n}"), "after": {"job": other, "outcome": "ended"}}))
        .collect();
    job(name, &json!({ "trigger": triggers }))
}

fn request(jobs: &[Value], dry_run: bool) -> v1::ApplyRequest {
    v1::ApplyRequest {
        jobs: jobs.iter().map(|value| definition(value, "")).collect(),
        dry_run,
        ..v1::ApplyRequest::default()
    }
}

/// Applies one job, which must be refused for a ring. The field and what is wrong with it.
async fn refused(replica: &Replica, value: Value, dry_run: bool) -> (String, String) {
    let result = apply(&mut replica.jobs(), request(&[value], dry_run)).await.remove(0);
    let error = result.error.expect("refused");
    assert_eq!(error.code, "VALIDATION_001");
    (error.field, error.message)
}

async fn a_job_that_closes_a_ring_with_what_is_stored_is_refused(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, after("a", &[])).await;
    put(&replica, after("b", &["a", "nobody"])).await;
    put(&replica, after("c", &["b"])).await;
    // A diamond is no ring, nor is a job that starts after the end of a chain.
    put(&replica, after("d", &["a", "c"])).await;
    for dry_run in [true, false] {
        let (field, message) = refused(&replica, after("a", &["x", "c"]), dry_run).await;
        assert_eq!(field, "trigger[1].after.job");
        assert!(message.contains("a -> b -> c -> a"), "{message}");
    }
    assert_eq!(get(&replica, "a").await.version, 1);
    // A job that others name before there is one.
    let (_, message) = refused(&replica, after("nobody", &["c"]), false).await;
    assert!(message.contains("nobody -> b -> c -> nobody"), "{message}");
    // What is paused starts nothing now, and will.
    assert_eq!(pause(&replica, "b", true, 0).await.error, None);
    refused(&replica, after("a", &["b"]), false).await;
    // A change that leaves the chain as it is.
    let mut changed = after("b", &["a"]);
    changed["timeout"] = json!("5m");
    assert_eq!(put(&replica, changed).await.applied(), A::Changed);
    // The remedy: one of the triggers goes.
    put(&replica, after("b", &[])).await;
    put(&replica, after("a", &["c"])).await;
    replica.stop().await;
}

async fn a_chain_is_turned_round_by_one_apply(db: TestDb) {
    let replica = Replica::start(&db).await;
    for (name, before) in [("a", vec![]), ("b", vec!["a"]), ("c", vec!["b"]), ("d", vec!["c"])] {
        put(&replica, after(name, &before)).await;
    }
    let turned = [
        after("a", &["b"]),
        after("b", &["c"]),
        after("c", &["d"]),
        after("d", &[]),
    ];
    for dry_run in [true, false] {
        let results = apply(&mut replica.jobs(), request(&turned, dry_run)).await;
        let names: Vec<&str> = results.iter().map(|result| result.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        for result in results {
            assert_eq!(
                (result.error.clone(), result.applied()),
                (None, A::Changed),
                "{result:?}"
            );
        }
    }
    // A ring within the call: what comes first is stored, what closes it is not.
    let ring = [after("d", &["e"]), after("e", &["a"])];
    for dry_run in [true, false] {
        let results = apply(&mut replica.jobs(), request(&ring, dry_run)).await;
        assert_eq!(results[0].error, None);
        let error = results[1].error.as_ref().expect("refused");
        assert!(error.message.contains("e -> d -> c -> b -> a -> e"), "{error:?}");
    }
    replica.stop().await;
}

async fn a_job_that_was_deleted_does_not_come_back_into_a_ring(db: TestDb) {
    let replica = Replica::start(&db).await;
    put(&replica, after("a", &["b"])).await;
    let request = v1::DeleteJobsRequest {
        names: vec!["a".into()],
        ..v1::DeleteJobsRequest::default()
    };
    replica.jobs().delete(request).await.expect("delete");
    // It starts nothing any more, and nobody starts it.
    put(&replica, after("b", &["a"])).await;
    let restore = v1::RestoreRequest {
        names: vec!["a".into()],
        version: 1,
        ..v1::RestoreRequest::default()
    };
    let restored = replica.jobs().restore(restore.clone()).await.expect("restore");
    let error = restored.into_inner().results.remove(0).error.expect("refused");
    assert!(error.message.contains("a -> b -> a"), "{error:?}");
    put(&replica, after("b", &[])).await;
    let restored = replica.jobs().restore(restore).await.expect("restore");
    assert_eq!(restored.into_inner().results.remove(0).error, None);
    replica.stop().await;
}

/// Each alone is right. Whoever is second sees what the first has stored, also at another replica.
async fn of_two_halves_of_a_ring_at_once_one_is_stored(db: TestDb) {
    let one = Replica::start(&db).await;
    let two = match db.postgres {
        Some(_) => Some(Replica::start(&db).await),
        None => None,
    };
    for round in 0..20 {
        let (p, q) = (format!("p{round}"), format!("q{round}"));
        let (mut here, mut there) = (one.jobs(), two.as_ref().unwrap_or(&one).jobs());
        let (first, second) = tokio::join!(
            apply(&mut here, request(&[after(&p, &[q.as_str()])], false)),
            apply(&mut there, request(&[after(&q, &[p.as_str()])], false))
        );
        let refusals = [&first[0], &second[0]]
            .iter()
            .filter(|result| result.error.is_some())
            .count();
        assert_eq!(refusals, 1, "round {round}: {first:?} {second:?}");
    }
    if let Some(two) = two {
        two.stop().await;
    }
    one.stop().await;
}
