//! Who may call what: every call and every route, with each role and without a token, over real sockets.

use prost::Message as _;
use std::collections::BTreeSet;
use std::time::Duration;
use systole_proto::v1;
use systole_scheduler::auth;
use systole_scheduler::auth::rules::CALLS;
use systole_scheduler::config::{Config, SelfSigned, Strangers, Tls};
use systole_scheduler::store::tokens::Revoked;
use systole_shared::policy::access::{Needs, Role};
use systole_tests::replica::{Replica, Token, command};
use systole_tests::wait::{WAIT_MAX, until};
use systole_tests::{TestDb, on_both_databases};
use tonic::Code;

on_both_databases!(
    every_call_and_route_is_for_the_roles_that_are_declared,
    a_stream_ends_when_its_token_is_revoked,
    a_token_names_the_actor_until_it_is_revoked,
    a_revoked_token_of_the_first_start_does_not_come_back,
    an_expired_token_is_refused_by_name,
    creating_a_token_may_be_repeated,
    the_last_admin_token_stays,
    who_did_what_is_listed_in_pages,
    the_health_of_every_service_is_told,
);

/// Every call that is served, by its path.
fn served() -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    for set in [
        systole_proto::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
    ] {
        let set = prost_types::FileDescriptorSet::decode(set).expect("descriptors");
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    calls.insert(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
                }
            }
        }
    }
    calls
}

async fn the_health_of_every_service_is_told(db: TestDb) {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    let replica = Replica::start(&db).await;
    let names: BTreeSet<String> = served()
        .iter()
        .filter_map(|path| Some(path.strip_prefix('/')?.split_once('/')?.0.to_owned()))
        .filter(|name| name.starts_with("systole."))
        .collect();
    assert!(names.len() > 6, "{names:?}");
    for service in names {
        let asked = || async {
            let request = tonic_health::pb::HealthCheckRequest {
                service: service.clone(),
            };
            let told = HealthClient::new(replica.channel()).check(request).await.ok()?;
            (told.into_inner().status() == ServingStatus::Serving).then_some(())
        };
        systole_tests::wait::until(&service, asked).await;
    }
    replica.stop().await;
}

/// The status of one call with an empty message; OK where it was let in and began to answer.
async fn call(replica: &Replica, path: &str, token: &Token) -> Code {
    let mut grpc = tonic::client::Grpc::new(replica.channel());
    grpc.ready().await.expect("connected");
    let mut request = tonic::Request::new(tokio_stream::once(()));
    if let Some(token) = &token.0 {
        request.metadata_mut().insert("authorization", token.clone());
    }
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let path = path.parse().expect("path");
    // A call that is let in may wait for something to say.
    match tokio::time::timeout(Duration::from_secs(2), grpc.streaming(request, path, codec)).await {
        Ok(Ok(_)) | Err(_) => Code::Ok,
        Ok(Err(status)) => status.code(),
    }
}

/// The status of a request of plain HTTP.
async fn http(replica: &Replica, method: &str, path: &str, token: &Token) -> u16 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(replica.running.addr)
        .await
        .expect("connects");
    let authorization = match &token.0 {
        Some(token) => format!("authorization: {}\r\n", token.to_str().expect("ascii")),
        None => String::new(),
    };
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{authorization}content-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.expect("answered");
    std::str::from_utf8(&head[9..])
        .expect("status")
        .parse()
        .expect("number")
}

async fn create(replica: &Replica, name: &str, role: Role, valid_for_ms: u64) -> Token {
    let secret = auth::new_secret("test");
    let request = v1::CreateTokenRequest {
        name: name.into(),
        role: role.name().into(),
        secret_sha256: auth::hash(&secret),
        valid_for_ms,
        reason: "test".into(),
    };
    replica.access().create_token(request).await.expect("created");
    Token::bearer(&secret)
}

async fn revoke(replica: &Replica, name: &str) -> v1::RevokeTokenResult {
    let request = v1::RevokeTokensRequest {
        names: vec![name.into()],
        reason: "gone".into(),
    };
    let mut response = replica.access().revoke_tokens(request).await.expect("answered");
    response.get_mut().results.remove(0)
}

async fn every_call_and_route_is_for_the_roles_that_are_declared(db: TestDb) {
    let replica = Replica::start(&db).await;
    let declared: BTreeSet<String> = CALLS
        .iter()
        .map(|(call, _)| (*call).to_owned())
        .filter(|call| call.starts_with('/'))
        .collect();
    let served = served();
    assert_eq!(
        served.difference(&declared).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "these calls have no declared role: add them to CALLS in scheduler/src/auth/rules.rs"
    );
    assert_eq!(
        declared.difference(&served).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "these calls of CALLS are served by nobody"
    );
    let mut callers: Vec<(String, Option<Role>, Token)> = vec![
        ("nobody".into(), None, Token(None)),
        ("a stranger".into(), None, Token::bearer("systole_admin_0000")),
        ("an empty token".into(), None, Token::bearer("")),
    ];
    for role in Role::ALL {
        callers.push((
            role.name().into(),
            Some(role),
            create(&replica, &format!("t-{role}"), role, 0).await,
        ));
    }
    let revoked = create(&replica, "t-revoked", Role::Admin, 0).await;
    assert_eq!(revoke(&replica, "t-revoked").await.error, None);
    callers.push(("a revoked admin".into(), None, revoked));
    for (path, needs) in CALLS {
        for (who, role, token) in &callers {
            let admitted = match role {
                Some(role) => role.may(*needs),
                None => *needs == Needs::Nothing,
            };
            match path.split_once(' ') {
                None => {
                    let code = call(&replica, path, token).await;
                    let refused = match (admitted, role) {
                        (true, _) => !matches!(
                            code,
                            Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented
                        ),
                        (false, None) => code == Code::Unauthenticated,
                        (false, Some(_)) => code == Code::PermissionDenied,
                    };
                    assert!(refused, "{path} by {who}: {code:?}");
                }
                Some((method, route)) => {
                    let path = route.replace("{id}", "1");
                    let status = http(&replica, method, &path, token).await;
                    let expected = match (admitted, role) {
                        (true, _) => !matches!(status, 401 | 403 | 405),
                        (false, None) => status == 401,
                        (false, Some(_)) => status == 403,
                    };
                    assert!(expected, "{method} {route} by {who}: {status}");
                }
            }
        }
    }
    // What is not declared is not there, for nobody and for an admin alike.
    for token in [Token(None), replica.admin_token()] {
        assert_eq!(
            call(&replica, "/systole.v1.TaskService/Undeclared", &token).await,
            Code::Unimplemented
        );
        assert_eq!(http(&replica, "GET", "/nothing", &token).await, 404);
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
            assert_eq!(http(&replica, method, "/healthz", &token).await, 405, "{method}");
        }
    }
    replica.stop().await;
}

async fn a_token_names_the_actor_until_it_is_revoked(db: TestDb) {
    let replica = Replica::start(&db).await;
    let ann = create(&replica, "ann@example.org", Role::Operator, 0).await;
    let request = v1::SubmitRequest {
        items: vec![v1::SubmitItem {
            spec: Some(command(&["true"])),
            key: String::new(),
        }],
        reason: "to see".into(),
    };
    let mut tasks = replica.tasks_with(ann.clone());
    let id = tasks.submit(request).await.expect("submitted").into_inner().results[0].id;
    let cancel = v1::CancelRequest {
        ids: vec![id],
        reason: "wrong month".into(),
        exact: false,
        ..Default::default()
    };
    tasks.cancel(cancel).await.expect("cancelled");
    let task = replica.task(id).await;
    assert_eq!(
        (task.submitted_by.as_str(), task.submit_reason.as_str()),
        ("ann@example.org", "to see")
    );
    assert_eq!(
        (task.cancelled_by.as_str(), task.cancel_reason.as_str()),
        ("ann@example.org", "wrong month")
    );
    let listed = |name: &'static str| {
        let mut access = replica.access();
        async move {
            let tokens = access.list_tokens(v1::ListTokensRequest {}).await.expect("listed");
            let tokens = tokens.into_inner().tokens;
            tokens.into_iter().find(|token| token.name == name).expect("listed")
        }
    };
    until("the use is written", || async {
        (listed("ann@example.org").await.last_used_at_ms > 0).then_some(())
    })
    .await;
    let revoked = revoke(&replica, "ann@example.org").await;
    assert_eq!((revoked.already, revoked.error), (false, None));
    let refused = tasks.count(v1::CountRequest::default()).await.expect_err("revoked");
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(revoke(&replica, "ann@example.org").await.already);
    let token = listed("ann@example.org").await;
    assert_eq!((token.valid, token.revoked_by.as_str()), (false, "admin"));
    assert_eq!(
        revoke(&replica, "nobody").await.error.expect("unknown").code,
        "NOTFOUND_008"
    );
    // The name is free again, with another role; the old secret stays dead.
    let again = create(&replica, "ann@example.org", Role::Viewer, 0).await;
    replica
        .tasks_with(again)
        .count(v1::CountRequest::default())
        .await
        .expect("valid");
    let refused = tasks.count(v1::CountRequest::default()).await.expect_err("dead");
    assert_eq!(refused.code(), Code::Unauthenticated);
    replica.stop().await;
}

async fn a_stream_ends_when_its_token_is_revoked(db: TestDb) {
    let replica = Replica::start(&db).await;
    let leaver = create(&replica, "leaver", Role::Viewer, 0).await;
    let watch = v1::WatchRequest::default();
    let mut told = replica
        .tasks_with(leaver)
        .watch(watch)
        .await
        .expect("open")
        .into_inner();
    let submit = || async {
        let request = v1::SubmitRequest {
            items: vec![v1::SubmitItem {
                spec: Some(command(&["true"])),
                key: String::new(),
            }],
            reason: String::new(),
        };
        replica.tasks().submit(request).await.expect("submitted");
    };
    submit().await;
    told.message().await.expect("told").expect("of the first task");
    assert_eq!(revoke(&replica, "leaver").await.error, None);
    // It is asked for its token once a second, when it has something to say.
    let end = tokio::time::timeout(std::time::Duration::from_secs(60), async {
        loop {
            submit().await;
            match told.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended as if it were complete"),
                Err(status) => return status,
            }
        }
    });
    let end = end.await.expect("it ends");
    assert_eq!(end.code(), Code::Unauthenticated, "{end:?}");
    replica.stop().await;
}

async fn a_revoked_token_of_the_first_start_does_not_come_back(db: TestDb) {
    let replica = Replica::start(&db).await;
    let old = replica.admin_token();
    create(&replica, "ann", Role::Admin, 0).await;
    assert_eq!(revoke(&replica, "admin").await.error, None);
    replica.stop().await;
    // Its file is still there.
    let replica = Replica::start(&db).await;
    let note = replica.running.tokens.note.clone().expect("a note");
    assert!(note.contains("admin token was revoked"), "{note}");
    let refused = replica
        .tasks_with(old.clone())
        .count(v1::CountRequest::default())
        .await
        .expect_err("revoked");
    assert_eq!(refused.code(), Code::Unauthenticated);
    replica.stop().await;
    // Whoever can start the scheduler can make new ones.
    let mut config = Replica::config(&db);
    config.renew_tokens = true;
    let replica = Replica::start_with(config).await;
    replica
        .tasks()
        .count(v1::CountRequest::default())
        .await
        .expect("the new one is valid");
    replica.stop().await;
}

async fn an_expired_token_is_refused_by_name(db: TestDb) {
    let replica = Replica::start(&db).await;
    let short = create(&replica, "short", Role::Viewer, 1).await;
    let long = create(&replica, "long", Role::Viewer, 60_000).await;
    until("it expires", || async {
        let refused = replica
            .tasks_with(short.clone())
            .count(v1::CountRequest::default())
            .await
            .err()?;
        assert_eq!(refused.code(), Code::Unauthenticated);
        assert!(refused.message().contains("short has expired"), "{refused}");
        Some(())
    })
    .await;
    replica
        .tasks_with(long)
        .count(v1::CountRequest::default())
        .await
        .expect("valid for a minute");
    replica.stop().await;
}

async fn creating_a_token_may_be_repeated(db: TestDb) {
    let replica = Replica::start(&db).await;
    let request = |name: &str, role: &str, hash: String| v1::CreateTokenRequest {
        name: name.into(),
        role: role.into(),
        secret_sha256: hash,
        ..Default::default()
    };
    let hash = auth::hash("secret");
    let mut access = replica.access();
    let first = access
        .create_token(request("ci", "viewer", hash.clone()))
        .await
        .expect("made")
        .into_inner();
    let again = access
        .create_token(request("ci", "viewer", hash.clone()))
        .await
        .expect("the same")
        .into_inner();
    assert_eq!((first.existing, again.existing), (false, true));
    for (name, role, hash, field) in [
        ("ci", "admin", hash.clone(), "name"),
        ("ci", "viewer", auth::hash("other"), "name"),
        ("other", "viewer", hash.clone(), "secret_sha256"),
    ] {
        let refused = access.create_token(request(name, role, hash)).await.expect_err("taken");
        assert_eq!(
            refused.metadata().get("systole-error-code").expect("code"),
            "CONFLICT_007"
        );
        assert_eq!(refused.metadata().get("systole-error-field").expect("field"), field);
    }
    for (name, role, hash, field) in [
        ("a b", "viewer", hash.clone(), "name"),
        ("x", "root", hash.clone(), "role"),
        ("x", "viewer", "abc".into(), "secret_sha256"),
    ] {
        let refused = access.create_token(request(name, role, hash)).await.expect_err("wrong");
        assert_eq!(refused.metadata().get("systole-error-field").expect("field"), field);
    }
    replica.stop().await;
}

async fn the_last_admin_token_stays(db: TestDb) {
    let replica = Replica::start(&db).await;
    create(&replica, "short", Role::Admin, 60_000).await;
    let refused = revoke(&replica, "admin").await.error.expect("refused");
    assert_eq!(refused.code, "CONFLICT_008");
    assert!(refused.message.contains("systole token create"), "{}", refused.message);
    create(&replica, "ann", Role::Admin, 0).await;
    // Of the last two, whoever revokes them at once, one stays.
    let db = &replica.running.context.db;
    let gone = |name: &str| db.revoke_token(name.into(), "test".into(), String::new());
    let (one, two) = tokio::join!(gone("admin"), gone("ann"));
    let mut both = [one.expect("answered"), two.expect("answered")];
    both.sort_by_key(|revoked| *revoked == Revoked::LastAdmin);
    assert_eq!(both, [Revoked::Now, Revoked::LastAdmin]);
    replica.stop().await;
}

async fn who_did_what_is_listed_in_pages(db: TestDb) {
    let replica = Replica::start(&db).await;
    let ids = [
        replica.submit(command(&["a"])).await,
        replica.submit(command(&["b"])).await,
    ];
    for id in ids {
        replica.cancel(id).await;
    }
    // What was cancelled already is not told again.
    assert!(replica.cancel(ids[0]).await.already);
    create(&replica, "ann", Role::Viewer, 60_000).await;
    let list = |request: v1::ListAuditRequest| {
        let mut access = replica.access();
        async move { access.list_audit(request).await.expect("listed").into_inner() }
    };
    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let page = list(v1::ListAuditRequest {
            limit: 1,
            page_token,
            ..Default::default()
        })
        .await;
        assert!(page.entries.len() <= 1);
        seen.extend(
            page.entries
                .into_iter()
                .map(|e| (e.action, e.subject, e.actor, e.reason)),
        );
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let of = |action: &str, subject: &str, actor: &str, reason: &str| {
        (
            action.to_owned(),
            subject.to_owned(),
            actor.to_owned(),
            reason.to_owned(),
        )
    };
    assert_eq!(
        seen[..3],
        [
            of("token create", "ann", "admin", "test"),
            of("cancel", &ids[1].to_string(), "admin", "test"),
            of("cancel", &ids[0].to_string(), "admin", "test"),
        ]
    );
    // The tokens of the first start were made by the replica.
    assert_eq!(seen.len(), 5, "{seen:?}");
    assert_eq!(seen[4].3, "first start");
    let filtered = list(v1::ListAuditRequest {
        actor: "admin".into(),
        subject: ids[0].to_string(),
        ..Default::default()
    })
    .await;
    assert_eq!(filtered.entries.len(), 1);
    let detail = list(v1::ListAuditRequest {
        action: "token create".into(),
        subject: "ann".into(),
        ..Default::default()
    })
    .await;
    assert!(detail.entries[0].detail.starts_with("viewer, until 2"), "{detail:?}");
    let later = list(v1::ListAuditRequest {
        since_ms: u64::MAX,
        ..Default::default()
    })
    .await;
    assert_eq!(later.entries.len(), 0);
    // Submissions are the tasks themselves.
    let submitted = list(v1::ListAuditRequest {
        action: "submit".into(),
        actor: "admin".into(),
        ..Default::default()
    })
    .await;
    let subjects: Vec<String> = submitted.entries.iter().map(|entry| entry.subject.clone()).collect();
    assert_eq!(subjects, [ids[1].to_string(), ids[0].to_string()]);
    let more = replica.running.context.db.clean_audit(3_600_000, i64::MAX).await;
    assert!(!more.expect("cleaned"), "nothing is that old");
    assert_eq!(list(v1::ListAuditRequest::default()).await.entries.len(), 5);
    replica
        .running
        .context
        .db
        .clean_audit(-1_000, i64::MAX / 2)
        .await
        .expect("cleaned");
    assert_eq!(list(v1::ListAuditRequest::default()).await.entries.len(), 0);
    replica.stop().await;
}

/// Strangers are given two seconds for each thing; a machine that is busy still brings a first call within them.
fn in_haste(db: &TestDb) -> Config {
    let mut config = Replica::config(db);
    config.strangers = Strangers {
        handshake_max: Duration::from_secs(2),
        admission_max: Duration::from_secs(2),
    };
    config
}

/// Says this and nothing more; returns what it was told when the other side has ended the connection.
async fn told_until_the_end(addr: std::net::SocketAddr, opening: &[u8]) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(addr).await.expect("connects");
    stream.write_all(opening).await.expect("sent");
    let mut told = Vec::new();
    // A reset is an end, too.
    let ended = tokio::time::timeout(WAIT_MAX, stream.read_to_end(&mut told)).await;
    assert!(ended.is_ok(), "still open: {}", String::from_utf8_lossy(opening));
    String::from_utf8_lossy(&told).into_owned()
}

/// A connection of its own, which answers what keeps it alive.
fn channel(replica: &Replica) -> tonic::transport::Channel {
    tonic::transport::Endpoint::from_shared(replica.url())
        .expect("address")
        .connect_lazy()
}

/// Slow loris and its relatives: each holds one of the places that all share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_an_admitted_call_is_closed_and_another_lives_on() {
    let db = TestDb::sqlite();
    let replica = Replica::start_with(in_haste(&db)).await;
    // The first of all, so that its time is over when that of the others is.
    let mut watched = replica
        .tasks()
        .watch(v1::WatchRequest::default())
        .await
        .expect("open")
        .into_inner();
    let addr = replica.running.addr;
    let openings: [&[u8]; 7] = [
        b"",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ];
    let strangers: Vec<_> = openings
        .map(|opening| tokio::spawn(told_until_the_end(addr, opening)))
        .into_iter()
        .collect();
    // A call that needs no token, and whose message never comes.
    let mut join = tonic::client::Grpc::new(channel(&replica));
    join.ready().await.expect("connected");
    let joins = join.streaming(
        tonic::Request::new(tokio_stream::pending::<()>()),
        "/systole.v1.AccessService/Join".parse().expect("path"),
        tonic_prost::ProstCodec::<(), ()>::default(),
    );
    // One whose answer never ends.
    let request = tonic_health::pb::HealthCheckRequest::default();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel(&replica));
    let mut health = health.watch(request).await.expect("open").into_inner();
    health.message().await.expect("told").expect("the state");
    let cut = tokio::time::timeout(WAIT_MAX, joins).await.expect("it ends");
    assert!(cut.is_err(), "nothing was answered");
    tokio::time::timeout(WAIT_MAX, async { while let Ok(Some(_)) = health.message().await {} })
        .await
        .expect("it ends");
    let mut told = Vec::new();
    for stranger in strangers {
        told.push(stranger.await.expect("it ends"));
    }
    assert!(
        told[2].starts_with("HTTP/1.1 200") && told[3].starts_with("HTTP/1.1 401"),
        "{told:?}"
    );
    replica.submit(command(&["true"])).await;
    watched.message().await.expect("it lives on").expect("of the task");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_tls_handshake_is_not_waited_for() {
    let db = TestDb::sqlite();
    let mut config = in_haste(&db);
    config.tls = Some(Tls::SelfSigned(SelfSigned::default()));
    let replica = Replica::start_with(config).await;
    told_until_the_end(replica.running.addr, b"\x16\x03\x01\x02\0\x01").await;
    replica.stop().await;
}

/// As a balancer asks, again and again over one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_public_calls_ends_between_two_of_them() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let db = TestDb::sqlite();
    let replica = Replica::start_with(in_haste(&db)).await;
    let mut stream = tokio::net::TcpStream::connect(replica.running.addr)
        .await
        .expect("connects");
    let calls = async {
        let mut answered = 0;
        let mut piece = [0; 1_024];
        while stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .is_ok()
        {
            let mut answer = Vec::new();
            while !answer.ends_with(b"alive\n") {
                match stream.read(&mut piece).await {
                    Ok(0) | Err(_) if answer.is_empty() => return answered,
                    Ok(0) | Err(_) => panic!("it ends in an answer: {}", String::from_utf8_lossy(&answer)),
                    Ok(read) => answer.extend_from_slice(&piece[..read]),
                }
            }
            answered += 1;
        }
        answered
    };
    let answered = tokio::time::timeout(WAIT_MAX, calls).await.expect("it ends");
    assert!(answered > 0);
    replica.stop().await;
}
