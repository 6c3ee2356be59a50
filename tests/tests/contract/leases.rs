//! Leases of applications: one holder of a resource at a time, with a token that rises.

use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::lease_service_client::LeaseServiceClient;
use systole_scheduler::loops::retention::{STEPS_MAX, Walk};
use systole_tests::replica::Replica;
use systole_tests::wait::until;
use systole_tests::{TestDb, on_both_databases};

on_both_databases!(
    one_holds_it_and_the_token_rises_with_each_holder,
    the_same_acquisition_may_be_repeated_and_another_one_is_refused,
    a_lease_that_is_not_renewed_is_given_on_and_its_holder_learns_it,
    those_who_wait_are_woken_when_it_is_given_back,
    many_who_want_it_at_once_get_it_one_after_the_other,
    a_clock_that_jumps_gives_no_lease_away,
    a_new_replica_gives_nothing_on_that_it_has_not_seen_unrenewed,
    one_that_was_taken_away_is_not_renewed_and_free_when_it_is_over,
    a_token_never_comes_twice_though_leases_are_forgotten,
    what_is_no_lease_is_refused_by_its_field,
);

type Client = LeaseServiceClient<
    tonic::service::interceptor::InterceptedService<tonic::transport::Channel, systole_tests::replica::Token>,
>;

fn client(replica: &Replica) -> Client {
    LeaseServiceClient::with_interceptor(replica.channel(), replica.admin_token())
}

fn ask(holder: &str, ttl_ms: u64, wait_ms: u64) -> v1::AcquireRequest {
    v1::AcquireRequest {
        resource: "r".into(),
        holder: holder.into(),
        ttl_ms,
        wait_ms,
    }
}

async fn acquire(replica: &Replica, holder: &str, ttl_ms: u64, wait_ms: u64) -> Result<v1::Lease, tonic::Status> {
    let response = client(replica).acquire(ask(holder, ttl_ms, wait_ms)).await?;
    Ok(response.into_inner().lease.expect("a lease"))
}

async fn renew(replica: &Replica, lease: &v1::Lease) -> Result<v1::Lease, tonic::Status> {
    let request = v1::RenewRequest {
        resource: lease.resource.clone(),
        token: lease.token,
        holder: lease.holder.clone(),
    };
    let response = client(replica).renew(request).await?;
    Ok(response.into_inner().lease.expect("a lease"))
}

async fn release(replica: &Replica, lease: &v1::Lease) -> bool {
    let request = v1::ReleaseRequest {
        resource: lease.resource.clone(),
        token: lease.token,
        holder: lease.holder.clone(),
    };
    client(replica)
        .release(request)
        .await
        .expect("release")
        .into_inner()
        .released
}

fn code(status: &tonic::Status) -> String {
    let code = status.metadata().get("systole-error-code");
    code.expect("a code").to_str().expect("text").to_owned()
}

async fn one_holds_it_and_the_token_rises_with_each_holder(db: TestDb) {
    let replica = Replica::start(&db).await;
    let first = acquire(&replica, "one", 30_000, 0).await.expect("it is free");
    let refused = acquire(&replica, "two", 30_000, 0).await.expect_err("it is held");
    assert_eq!(
        (code(&refused).as_str(), refused.code()),
        ("CONFLICT_002", tonic::Code::Aborted)
    );
    assert!(
        refused.message().contains("is held by one (admin)"),
        "{}",
        refused.message()
    );
    let renewed = renew(&replica, &first).await.expect("it is held");
    assert!(renewed.token == first.token && renewed.expires_at_ms >= first.expires_at_ms);
    let request = v1::GetLeaseRequest { resource: "r".into() };
    let shown = client(&replica)
        .get(request.clone())
        .await
        .expect("get")
        .into_inner()
        .lease;
    assert_eq!(
        shown.map(|lease| (lease.holder, lease.token)),
        Some(("one".into(), first.token))
    );
    let listed = client(&replica)
        .list(v1::ListLeasesRequest::default())
        .await
        .expect("list")
        .into_inner();
    assert_eq!(listed.leases.len(), 1);

    assert!(release(&replica, &first).await);
    assert!(!release(&replica, &first).await, "it was given back");
    assert_eq!(
        client(&replica).get(request).await.expect("get").into_inner().lease,
        None
    );
    assert_eq!(
        code(&renew(&replica, &first).await.expect_err("it was given back")),
        "CONFLICT_002"
    );
    let second = acquire(&replica, "two", 30_000, 0).await.expect("it is free");
    assert!(second.token > first.token);
    // The first holder's late word changes nothing.
    assert!(!release(&replica, &first).await);
    renew(&replica, &second).await.expect("it is held");
    replica.stop().await;
}

async fn the_same_acquisition_may_be_repeated_and_another_one_is_refused(db: TestDb) {
    let replica = Replica::start(&db).await;
    let first = acquire(&replica, "one", 30_000, 0).await.expect("it is free");
    let again = acquire(&replica, "one", 30_000, 0).await.expect("its answer was lost");
    assert_eq!(again.token, first.token);
    assert!(
        again.expires_at_ms >= first.expires_at_ms,
        "what the holder counts from now on is true"
    );
    acquire(&replica, "another", 30_000, 0).await.expect_err("it is held");
    replica.stop().await;
}

async fn a_lease_that_is_not_renewed_is_given_on_and_its_holder_learns_it(db: TestDb) {
    let replica = Replica::start(&db).await;
    let began = std::time::Instant::now();
    let first = acquire(&replica, "one", 3_000, 0).await.expect("it is free");
    acquire(&replica, "two", 3_000, 0).await.expect_err("it is held");
    let second = acquire(&replica, "two", 3_000, 20_000).await.expect("it is over");
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(second.token > first.token);
    let lost = renew(&replica, &first).await.expect_err("it is lost");
    assert_eq!(code(&lost), "CONFLICT_002");
    assert!(lost.message().contains("is lost"), "{}", lost.message());
    replica.stop().await;
}

async fn those_who_wait_are_woken_when_it_is_given_back(db: TestDb) {
    let one = Replica::start(&db).await;
    let other = match db.postgres {
        Some(_) => Some(Replica::start(&db).await),
        None => None,
    };
    let first = acquire(&one, "one", 600_000, 0).await.expect("it is free");
    let there = other.as_ref().unwrap_or(&one);
    let waiting = tokio::spawn({
        let mut client = client(there);
        async move { client.acquire(ask("two", 600_000, 60_000)).await }
    });
    let watch = &there.running.context.leases;
    until("it waits", || async { (watch.waiting() == 1).then_some(()) }).await;
    assert!(!waiting.is_finished());
    assert!(release(&one, &first).await);
    let second = waiting
        .await
        .expect("no panic")
        .expect("it is free")
        .into_inner()
        .lease
        .expect("a lease");
    assert!(second.token > first.token);
    until("nobody waits", || async { (watch.waiting() == 0).then_some(()) }).await;
    if let Some(other) = other {
        other.stop().await;
    }
    one.stop().await;
}

async fn many_who_want_it_at_once_get_it_one_after_the_other(db: TestDb) {
    let replica = Replica::start(&db).await;
    let held = std::sync::Arc::new(std::sync::atomic::AtomicI64::new(0));
    let tasks: Vec<_> = (0..12)
        .map(|n| {
            let (mut client, held) = (client(&replica), std::sync::Arc::clone(&held));
            tokio::spawn(async move {
                use std::sync::atomic::Ordering::SeqCst;
                let lease = loop {
                    match client.acquire(ask(&format!("h{n}"), 60_000, 30_000)).await {
                        Ok(response) => break response.into_inner().lease.expect("a lease"),
                        Err(status) => assert_eq!(code(&status), "CONFLICT_002"),
                    }
                };
                assert_eq!(held.fetch_add(1, SeqCst), 0, "two hold it");
                tokio::task::yield_now().await;
                assert_eq!(held.fetch_sub(1, SeqCst), 1);
                let request = v1::ReleaseRequest {
                    resource: lease.resource.clone(),
                    token: lease.token,
                    holder: lease.holder.clone(),
                };
                assert!(client.release(request).await.expect("release").into_inner().released);
                lease.token
            })
        })
        .collect();
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.push(task.await.expect("no panic"));
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 12, "each holder has a token of its own");
    replica.stop().await;
}

/// The row says that it is over, by a clock that jumped.
fn expire(db: &TestDb, ms: i64) {
    db.sql(&format!("UPDATE lease SET expires_ms = expires_ms - {ms}"));
}

async fn a_clock_that_jumps_gives_no_lease_away(db: TestDb) {
    let replica = Replica::start(&db).await;
    let lease = acquire(&replica, "one", 60_000, 0).await.expect("it is free");
    expire(&db, 61_000);
    acquire(&replica, "two", 60_000, 0)
        .await
        .expect_err("it was not seen unrenewed");
    // Its holder knows nothing of it, and goes on.
    let renewed = renew(&replica, &lease).await.expect("nobody took it over");
    assert_eq!(renewed.token, lease.token);
    replica.stop().await;
}

async fn a_new_replica_gives_nothing_on_that_it_has_not_seen_unrenewed(db: TestDb) {
    let replica = Replica::start(&db).await;
    let lease = acquire(&replica, "one", 600_000, 0).await.expect("it is free");
    replica.stop().await;
    let replica = Replica::start(&db).await;
    expire(&db, 600_000);
    acquire(&replica, "two", 3_000, 0)
        .await
        .expect_err("it has just expired");
    // So long ago that no jump which passes as a true time could have made it up.
    expire(&db, 61_000);
    let next = acquire(&replica, "two", 3_000, 0).await.expect("it is over");
    assert!(next.token > lease.token);
    replica.stop().await;
}

async fn one_that_was_taken_away_is_not_renewed_and_free_when_it_is_over(db: TestDb) {
    let replica = Replica::start(&db).await;
    let lease = acquire(&replica, "one", 600_000, 0).await.expect("it is free");
    let revoke = |now| v1::RevokeRequest {
        resource: "r".into(),
        token: 0,
        now,
        reason: "host gone".into(),
    };
    let other = v1::RevokeRequest {
        token: lease.token + 7,
        ..revoke(true)
    };
    let status = client(&replica).revoke(other).await.expect_err("another token");
    assert_eq!(code(&status), "NOTFOUND_009");
    client(&replica).revoke(revoke(false)).await.expect("revoke");
    let lost = renew(&replica, &lease).await.expect_err("it was taken away");
    assert_eq!(code(&lost), "CONFLICT_012");
    assert!(lost.message().contains("by admin: host gone"), "{}", lost.message());
    acquire(&replica, "two", 3_000, 0)
        .await
        .expect_err("its holder has not stopped yet");
    // It has: it gives it back.
    assert!(release(&replica, &lease).await);
    let second = acquire(&replica, "two", 600_000, 0).await.expect("it is free");
    client(&replica).revoke(revoke(true)).await.expect("revoke");
    let third = acquire(&replica, "three", 3_000, 0).await.expect("it is free at once");
    assert!(third.token > second.token);
    let request = v1::ListAuditRequest::default();
    let entries = replica
        .access()
        .list_audit(request)
        .await
        .expect("audit")
        .into_inner()
        .entries;
    let told: Vec<(&str, &str)> = entries
        .iter()
        .filter(|entry| entry.action.starts_with("lease"))
        .map(|entry| (entry.action.as_str(), entry.subject.as_str()))
        .collect();
    assert_eq!(told, [("lease free", "r"), ("lease revoke", "r")]);
    replica.stop().await;
}

async fn a_token_never_comes_twice_though_leases_are_forgotten(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut last = 0;
    for n in 0..3 {
        let lease = acquire(&replica, &format!("h{n}"), 3_000, 0).await.expect("it is free");
        assert!(lease.token > last);
        last = lease.token;
        assert!(release(&replica, &lease).await);
    }
    db.sql(&format!(
        "UPDATE lease SET expires_ms = expires_ms - {}",
        25 * 3_600_000
    ));
    // The floor first, the rows with the next pass.
    for _ in 0..2 {
        Walk::new(STEPS_MAX)
            .pass(&replica.running.context)
            .await
            .expect("a pass");
    }
    assert_eq!(db.sql("SELECT count(*) FROM lease"), "0");
    let next = acquire(&replica, "later", 3_000, 0).await.expect("it is free");
    assert!(next.token > last, "{} after {last}", next.token);
    replica.stop().await;
}

async fn what_is_no_lease_is_refused_by_its_field(db: TestDb) {
    let replica = Replica::start(&db).await;
    let unnamed = v1::AcquireRequest {
        resource: "A b".into(),
        ..ask("one", 0, 0)
    };
    for (request, field) in [
        (unnamed, "resource"),
        (ask("", 0, 0), "holder"),
        (ask(&"x".repeat(201), 0, 0), "holder"),
        (ask("one", 2_999, 0), "ttl_ms"),
        (ask("one", 86_400_001, 0), "ttl_ms"),
        (ask("one", 0, 60_001), "wait_ms"),
    ] {
        let status = client(&replica).acquire(request).await.expect_err("no lease");
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        let named = status.metadata().get("systole-error-field").expect("a field");
        assert_eq!(named, field, "{}", status.message());
    }
    let lease = acquire(&replica, "one", 0, 0).await.expect("the default");
    assert_eq!(lease.ttl_ms, 30_000);
    replica.stop().await;
}
