//! The second machine: TLS of the cluster's own, and hosts that join with one line.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::access_service_client::AccessServiceClient;
use systole_proto::v1::runner_service_client::RunnerServiceClient;
use systole_scheduler::auth;
use systole_scheduler::config::{SelfSigned, Tls};
use systole_tests::replica::{Replica, Token};
use systole_tests::system::{Process, Said, System, binary, http_get, until};
use systole_tests::{SimRunner, TestDb, on_both_databases, tls, wait};

on_both_databases!(
    replicas_share_the_authority_and_the_database_never_has_its_key,
    a_server_certificate_is_renewed_by_itself,
    of_two_hosts_with_one_join_token_one_joins,
    a_secret_is_good_until_the_next_one_was_used,
    a_host_that_joined_speaks_for_itself_alone,
    a_token_that_is_shared_keeps_its_secret,
);

fn self_signed(db: &TestDb, folder: &str) -> systole_scheduler::config::Config {
    let mut config = Replica::config(db);
    config.token_dir = db.folder.path().join(folder);
    config.tls = Some(Tls::SelfSigned(SelfSigned::default()));
    config
}

async fn replicas_share_the_authority_and_the_database_never_has_its_key(db: TestDb) {
    let first = Replica::start_with(self_signed(&db, "tokens")).await;
    let fingerprint = first
        .running
        .authority()
        .expect("an authority")
        .fingerprint()
        .to_owned();
    let key_file = db.token_dir().join("ca.key");
    let mode = std::fs::metadata(&key_file).expect("the key").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let key = std::fs::read_to_string(&key_file).expect("the key");
    let key_line = key.lines().nth(1).expect("base64");
    let settings = db.sql("SELECT value FROM setting");
    assert!(settings.contains("BEGIN CERTIFICATE"), "{settings}");
    assert!(
        !settings.contains("PRIVATE KEY") && !settings.contains(key_line),
        "{settings}"
    );
    first.stop().await;
    // Another host has no key: it is told what to copy.
    let apart = tempfile::TempDir::new().expect("folder");
    let mut other = self_signed(&db, "tokens");
    other.token_dir = apart.path().join("tokens");
    let Err(error) = Replica::try_start(other.clone()).await else {
        panic!("a replica without the key must not start")
    };
    assert!(error.to_string().contains("Copy ca.key"), "{error}");
    std::fs::create_dir_all(&other.token_dir).expect("made");
    for file in ["ca.key", "admin.token", "runner.token"] {
        std::fs::copy(db.token_dir().join(file), other.token_dir.join(file)).expect("copied");
    }
    let second = Replica::start_with(other).await;
    let port = second.running.addr.port();
    assert_eq!(
        second.running.authority().expect("an authority").fingerprint(),
        fingerprint
    );
    let chain = tokio::task::spawn_blocking(move || tls::chain(port, &rustls::version::TLS13))
        .await
        .expect("joined")
        .expect("TLS 1.3");
    assert_eq!(chain.len(), 2, "the authority comes with the certificate");
    assert_eq!(
        chain[1],
        second.running.authority().expect("an authority").der().to_vec()
    );
    let old = tokio::task::spawn_blocking(move || tls::chain(port, &rustls::version::TLS12))
        .await
        .expect("joined");
    assert!(old.is_err(), "TLS 1.2 is refused");
    second.stop().await;
    // The same authority after a restart; a new one where that is said.
    let again = Replica::start_with(self_signed(&db, "tokens")).await;
    assert_eq!(
        again.running.authority().expect("an authority").fingerprint(),
        fingerprint
    );
    again.stop().await;
    let mut config = self_signed(&db, "tokens");
    config.tls = Some(Tls::SelfSigned(SelfSigned {
        new_ca: true,
        ..SelfSigned::default()
    }));
    let renewed = Replica::start_with(config).await;
    assert_ne!(
        renewed.running.authority().expect("an authority").fingerprint(),
        fingerprint
    );
    renewed.stop().await;
}

async fn a_server_certificate_is_renewed_by_itself(db: TestDb) {
    let mut config = self_signed(&db, "tokens");
    config.tls = Some(Tls::SelfSigned(SelfSigned {
        lifetime: Duration::from_secs(3),
        ..SelfSigned::default()
    }));
    let replica = Replica::start_with(config).await;
    let port = replica.running.addr.port();
    let look = || async move {
        tokio::task::spawn_blocking(move || tls::chain(port, &rustls::version::TLS13))
            .await
            .expect("joined")
            .expect("a handshake")
    };
    let first = look().await;
    let second = wait::until("the certificate is another one", || async {
        let chain = look().await;
        (chain[0] != first[0]).then_some(chain)
    })
    .await;
    assert_eq!(first[1], second[1], "by the same authority");
    replica.stop().await;
}

#[test]
fn up_with_tls_of_its_own_is_found_by_its_user_and_nobody_speaks_plaintext() {
    let mut system = System::sqlite();
    let port = system.another_port();
    let mut command = std::process::Command::new(systole_tests::system::binary());
    command
        .args([
            "up",
            "--listen",
            &format!("0.0.0.0:{port}"),
            "--slots",
            "1",
            "--tls-self-signed",
        ])
        .env("HOME", system.folder.path())
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_DATA_HOME");
    let mut up = system.start("up", &mut command);
    system.url = format!("https://127.0.0.1:{port}");
    let say = |args: &[&str]| -> systole_tests::system::Said {
        let mut command = system.command(args);
        command.env_remove("SYSTOLE_TOKEN_FILE");
        command.output().expect("starts").into()
    };
    until("it answers over TLS", || say(&["ls"]).code == Some(0));
    let said = say(&["run", "--", "echo", "over TLS"]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "over TLS\n"), "{said:?}");
    assert!(up.log().contains("own authority, SHA-256 "), "{}", up.log());
    // Neither plain HTTP nor a client that knows no authority gets in.
    assert_eq!(http_get(port, "/readyz"), None);
    let folder = system
        .folder
        .path()
        .join(format!(".config/systole/tokens/127.0.0.1_{port}"));
    std::fs::rename(folder.join("ca.pem"), folder.join("ca.away")).expect("moved");
    assert_ne!(say(&["ls"]).code, Some(0), "an unknown authority is refused");
    up.signal(nix::sys::signal::Signal::SIGTERM);
    up.wait(Duration::from_secs(30));
}

fn sha() -> (String, String) {
    let secret = auth::new_secret("systole_runner");
    let hash = auth::hash(&secret);
    (secret, hash)
}

fn join_request(join_token: &str, host: &str, hash: &str) -> v1::JoinRequest {
    v1::JoinRequest {
        join_token: join_token.into(),
        host: host.into(),
        secret_sha256: hash.into(),
    }
}

async fn join_token(replica: &Replica) -> String {
    let (secret, secret_sha256) = sha();
    let request = v1::CreateJoinTokenRequest {
        secret_sha256,
        reason: "a new host".into(),
    };
    let made = replica
        .access()
        .create_join_token(request)
        .await
        .expect("made")
        .into_inner();
    let left = i64::try_from(made.expires_at_ms).expect("time") - systole_shared::clock::now_ms();
    assert!((14 * 60_000..=15 * 60_000).contains(&left), "{left} ms");
    secret
}

async fn of_two_hosts_with_one_join_token_one_joins(db: TestDb) {
    let replica = Replica::start(&db).await;
    let token = join_token(&replica).await;
    let hosts: Vec<_> = (0..8).map(|n| (format!("h{n}"), sha().1)).collect();
    let mut calls = tokio::task::JoinSet::new();
    for (host, hash) in hosts.clone() {
        // Without any other token.
        let mut access = AccessServiceClient::new(replica.channel());
        let request = join_request(&token, &host, &hash);
        calls.spawn(async move { (host, hash, access.join(request).await) });
    }
    let mut joined = Vec::new();
    while let Some(call) = calls.join_next().await {
        let (host, hash, answer) = call.expect("no panic");
        match answer {
            Ok(answer) => joined.push((host, hash, answer.into_inner().name)),
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::Unauthenticated, "{status}");
                assert!(status.message().contains("was used at"), "{status}");
            }
        }
    }
    let [(host, hash, name)] = joined.as_slice() else {
        panic!("one host joins, not {joined:?}");
    };
    assert_eq!(*name, format!("runner@{host}"));
    // Its answer may have been lost: the same call again has the same answer.
    let mut access = AccessServiceClient::new(replica.channel());
    let again = access.join(join_request(&token, host, hash)).await.expect("repeated");
    assert_eq!(again.into_inner().name, *name);
    assert_eq!(db.sql("SELECT COUNT(*) FROM token WHERE name LIKE 'runner@%'"), "1");
    // The same host set up anew: the former token is not taken from whoever has it.
    let token = join_token(&replica).await;
    let second = access.join(join_request(&token, host, &sha().1)).await.expect("joined");
    assert_eq!(second.into_inner().name, format!("runner@{host}@2"));
    for (bad, code) in [
        (join_request("", "h", &sha().1), tonic::Code::InvalidArgument),
        (join_request("x", "a b", &sha().1), tonic::Code::InvalidArgument),
        (join_request("x", "h", "x"), tonic::Code::InvalidArgument),
        (join_request("x", "h", &sha().1), tonic::Code::Unauthenticated),
    ] {
        assert_eq!(access.join(bad).await.expect_err("refused").code(), code);
    }
    replica.stop().await;
}

async fn a_secret_is_good_until_the_next_one_was_used(db: TestDb) {
    let replica = Replica::start(&db).await;
    let (old, old_hash) = sha();
    let (new, new_hash) = sha();
    let token = join_token(&replica).await;
    let mut access = AccessServiceClient::new(replica.channel());
    access.join(join_request(&token, "h", &old_hash)).await.expect("joined");
    let rotate = |secret: &str, hash: &str| {
        let mut access = AccessServiceClient::with_interceptor(replica.channel(), Token::bearer(secret));
        let request = v1::RotateTokenRequest {
            secret_sha256: hash.to_owned(),
        };
        async move {
            access
                .rotate_token(request)
                .await
                .map(|answer| answer.into_inner().replaced)
        }
    };
    // A runner's token is known, and may not list; another is not known.
    let known = |secret: &str| {
        let mut tasks = replica.tasks_with(Token::bearer(secret));
        async move {
            match tasks
                .count(v1::CountRequest::default())
                .await
                .expect_err("not for runners")
                .code()
            {
                tonic::Code::PermissionDenied => true,
                tonic::Code::Unauthenticated => false,
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!((known(&old).await, known(&new).await), (true, false));
    assert_eq!(
        rotate(&new, &new_hash).await.expect_err("not known").code(),
        tonic::Code::Unauthenticated
    );
    for _ in 0..2 {
        assert!(!rotate(&old, &new_hash).await.expect("offered"));
        assert_eq!((known(&old).await, known(&new).await), (true, true));
    }
    // Repeated, too: an answer may be lost.
    for _ in 0..2 {
        assert!(rotate(&new, &new_hash).await.expect("taken"));
        assert_eq!((known(&old).await, known(&new).await), (false, true));
    }
    // A revoked token has neither of its secrets left.
    let (_, third) = sha();
    assert!(!rotate(&new, &third).await.expect("offered"));
    let request = v1::RevokeTokensRequest {
        names: vec!["runner@h".into()],
        reason: String::new(),
    };
    replica.access().revoke_tokens(request).await.expect("revoked");
    assert!(!known(&new).await);
    assert_eq!(db.sql("SELECT COUNT(*) FROM token WHERE next_hash IS NOT NULL"), "0");
    replica.stop().await;
}

async fn a_host_that_joined_speaks_for_itself_alone(db: TestDb) {
    let replica = Replica::start(&db).await;
    let mut access = AccessServiceClient::new(replica.channel());
    let (secret, hash) = sha();
    let token = join_token(&replica).await;
    access.join(join_request(&token, "mine", &hash)).await.expect("joined");
    let as_joined = |secret: &str| RunnerServiceClient::with_interceptor(replica.channel(), Token::bearer(secret));

    let mut other = SimRunner::new(&replica, "other", 0);
    other.idle().await;
    other.client = as_joined(&secret);
    let mut refused = vec![other.try_idle().await.expect_err("another host")];
    let mut client = as_joined(&secret);
    let upload = v1::UploadOutputRequest {
        host: "other".into(),
        chunks: vec![v1::OutputChunk::default()],
        ..Default::default()
    };
    refused.push(client.upload_output(upload).await.expect_err("another host"));
    let next = v1::NextFetchRequest {
        host: "other".into(),
        ..Default::default()
    };
    refused.push(client.next_fetch(next).await.expect_err("another host"));
    let put = v1::PutFetchedRequest {
        host: "other".into(),
        ..Default::default()
    };
    refused.push(client.put_fetched(put).await.expect_err("another host"));
    for status in refused {
        assert_eq!(status.code(), tonic::Code::PermissionDenied, "{status}");
        assert_eq!(
            status.metadata().get("systole-error-code").map(|v| v.as_bytes()),
            Some(b"AUTH_002".as_slice())
        );
        let message = status.message();
        assert!(
            message.contains("the host mine") && message.contains("for other"),
            "{message}"
        );
    }

    // With the secret that follows as with the first, before and after it took its place; the common token speaks for every host.
    let mut mine = SimRunner::new(&replica, "mine", 0);
    mine.client = as_joined(&secret);
    mine.idle().await;
    let (next_secret, next_hash) = sha();
    for by in [&secret, &next_secret] {
        let request = v1::RotateTokenRequest {
            secret_sha256: next_hash.clone(),
        };
        AccessServiceClient::with_interceptor(replica.channel(), Token::bearer(by))
            .rotate_token(request)
            .await
            .expect("its own");
        mine.client = as_joined(&next_secret);
        mine.idle().await;
        other.client = as_joined(&next_secret);
        let refused = other.try_idle().await.expect_err("another host");
        assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused}");
    }
    mine.client = replica.beats();
    mine.idle().await;
    replica.stop().await;
}

async fn a_token_that_is_shared_keeps_its_secret(db: TestDb) {
    let replica = Replica::start(&db).await;
    for token in [replica.runner_token(), replica.admin_token()] {
        let request = v1::RotateTokenRequest { secret_sha256: sha().1 };
        let refused = AccessServiceClient::with_interceptor(replica.channel(), token)
            .rotate_token(request)
            .await
            .expect_err("not of a machine that joined");
        assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused}");
        assert!(refused.message().contains("machines that joined"), "{refused}");
    }
    assert_eq!(db.sql("SELECT COUNT(*) FROM token WHERE next_hash IS NOT NULL"), "0");
    // Both are good as before.
    SimRunner::new(&replica, "a", 0).idle().await;
    join_token(&replica).await;
    replica.stop().await;
}

/// A scheduler with TLS of its own, as processes, and its command line.
struct Secure {
    system: System,
    scheduler: Process,
    port: u16,
}

impl Secure {
    fn start() -> Self {
        let mut system = System::sqlite();
        let port = system.ports[0];
        let mut command = std::process::Command::new(binary());
        command
            .args(["scheduler", "--database", &system.db.url, "--tls-self-signed"])
            .args([
                "--listen",
                &format!("0.0.0.0:{port}"),
                "--beat",
                "2s",
                "--lost-after",
                "6s",
            ])
            .arg("--token-dir")
            .arg(system.db.token_dir());
        let scheduler = system.start("scheduler", &mut command);
        system.url = format!("https://127.0.0.1:{port}");
        let secure = Self {
            system,
            scheduler,
            port,
        };
        until("it answers over TLS", || secure.say(&["ls"]).code == Some(0));
        secure
    }

    fn say(&self, args: &[&str]) -> Said {
        let mut command = self.system.command(args);
        command.env("SYSTOLE_CA", self.system.db.token_dir().join("ca.pem"));
        command.output().expect("starts").into()
    }

    /// What another host is told to paste.
    fn line(&self) -> String {
        let said = self.say(&["join-command", "--address", &self.system.url]);
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout.trim().to_owned()
    }

    /// Pastes a line on a host that has nothing but the program, and lets it end when it has joined.
    fn paste(&self, line: &str, host: &str) -> Said {
        let folder = self.system.folder.path().join(host);
        let bin = binary();
        let path = format!("{}:/usr/bin:/bin", bin.parent().expect("folder").display());
        std::process::Command::new("sh")
            .arg("-c")
            .arg(format!(
                "{line} --join-only --name {host} --data-dir {}",
                folder.display()
            ))
            .env_clear()
            .env("PATH", path)
            .stdin(std::process::Stdio::null())
            .output()
            .expect("sh starts")
            .into()
    }

    /// The next start on such a host: nothing is named but the folder.
    fn runner(&self, host: &str, options: &[&str]) -> Process {
        let mut command = std::process::Command::new(binary());
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .args(["runner", "--slots", "1", "--data-dir"])
            .arg(self.system.folder.path().join(host))
            .args(options);
        self.system.start(host, &mut command)
    }

    fn credential(&self, host: &str) -> serde_json::Value {
        let path = self.system.folder.path().join(host).join("credential.json");
        let mode = std::fs::metadata(&path).expect("the credential").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("JSON")
    }
}

#[test]
fn a_second_host_joins_with_the_printed_line_and_is_cut_off_by_its_name() {
    let secure = Secure::start();
    let line = secure.line();
    assert!(line.starts_with("echo systole_join_"), "{line}");
    let joined = secure.paste(&line, "w");
    assert_eq!(joined.code, Some(0), "{joined:?}");
    assert_eq!(secure.credential("w")["name"], "runner@w");
    let used = secure.paste(&line, "x");
    assert_eq!(used.code, Some(4), "{used:?}");
    assert!(
        used.stderr.contains("was used at") && used.stderr.contains("runner@w"),
        "{used:?}"
    );
    assert!(!secure.system.path("x").join("credential.json").exists());
    let runner = secure.runner("w", &[]);
    let said = secure.say(&["run", "--", "echo", "from the second machine"]);
    assert_eq!(
        (said.code, said.stdout.as_str()),
        (Some(0), "from the second machine\n"),
        "{said:?}"
    );
    let tokens = secure.say(&["token", "ls"]).stdout;
    assert!(tokens.contains("runner@w"), "{tokens}");
    let audit = secure.say(&["-o", "jsonl", "audit", "--action", "join"]).stdout;
    assert!(
        audit.contains("\"subject\":\"runner@w\"") && audit.contains("host w"),
        "{audit}"
    );
    let revoked = secure.say(&["token", "revoke", "runner@w", "--reason", "stolen"]);
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    until("the runner is refused", || {
        runner.log().contains("not known here, or was revoked")
    });
    drop(runner);
    // The name is free again, and the host joins anew in the same folder.
    let again = secure.paste(&secure.line(), "w");
    assert_eq!(again.code, Some(0), "{again:?}");
    let _runner = secure.runner("w", &[]);
    let said = secure.say(&["run", "--", "true"]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn a_host_that_must_not_join_is_told_why_and_sends_nothing() {
    let secure = Secure::start();
    let line = secure.line();
    let fingerprint = line.rsplit(' ').next().expect("a fingerprint").to_owned();
    let other = secure.paste(&line.replace(&fingerprint, &"a".repeat(64)), "w");
    assert_eq!(other.code, Some(4), "{other:?}");
    assert!(
        other.stderr.contains("has not the authority with this fingerprint"),
        "{other:?}"
    );
    let no_name = secure.paste(&line.replace("127.0.0.1", "127.0.0.9"), "w");
    assert_eq!(no_name.code, Some(4), "{no_name:?}");
    assert!(no_name.stderr.contains("--tls-name 127.0.0.9"), "{no_name:?}");
    let plain = secure.paste(&line.replace("https://", "http://"), "w");
    assert_eq!(plain.code, Some(2), "{plain:?}");
    assert!(plain.stderr.contains("is not https"), "{plain:?}");
    let untrusted = secure.paste(&line.replace(&format!(" --ca-sha256 {fingerprint}"), ""), "w");
    assert_ne!(untrusted.code, Some(0), "{untrusted:?}");
    // None of them has used the token up.
    assert!(!secure.system.path("w").join("credential.json").exists());
    assert_eq!(secure.paste(&line, "w").code, Some(0));
    // The other end of a plaintext address is refused later, too.
    let url = format!("http://127.0.0.1:{}", secure.port);
    let mut runner = secure.runner("w", &["--url", &url]);
    assert_eq!(runner.wait(Duration::from_secs(20)), Some(2));
    let late = secure.line();
    secure
        .system
        .db
        .sql("UPDATE join_token SET expires_at_ms = created_at_ms - 1 WHERE used_at_ms IS NULL");
    let expired = secure.paste(&late, "y");
    assert_eq!(expired.code, Some(4), "{expired:?}");
    assert!(expired.stderr.contains("expired at"), "{expired:?}");
    assert!(secure.scheduler.log().contains("SHA-256"), "{}", secure.scheduler.log());
}

#[test]
fn no_line_is_printed_where_nobody_could_join() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let said = system.say(&["join-command"]);
    assert_eq!(said.code, Some(4), "{said:?}");
    assert!(
        said.stdout.is_empty() && said.stderr.contains("--tls-self-signed"),
        "{said:?}"
    );
}

#[test]
fn a_host_changes_its_secret_by_itself_and_goes_on_working() {
    let secure = Secure::start();
    assert_eq!(secure.paste(&secure.line(), "w").code, Some(0));
    let secret = || secure.credential("w")["secret"].as_str().expect("a secret").to_owned();
    let first = secret();
    let mut runner = secure.runner("w", &["--rotate-every", "2s"]);
    until("the secret is another one", || secret() != first);
    let said = secure.say(&["run", "--", "true"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    // The first one is not known any more.
    let old = secure.system.path("old.token");
    std::fs::write(&old, &first).expect("written");
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o600)).expect("set");
    let mut command = secure.system.command(&["ls"]);
    command
        .env("SYSTOLE_CA", secure.system.db.token_dir().join("ca.pem"))
        .env("SYSTOLE_TOKEN_FILE", &old);
    let said: Said = command.output().expect("starts").into();
    assert!(said.stderr.contains("AUTH_001"), "{said:?}");
    // Killed at any moment, it starts with a secret that is valid.
    for _ in 0..3 {
        let before = secret();
        runner.kill();
        drop(runner);
        runner = secure.runner("w", &["--rotate-every", "1s"]);
        until("the secret is another one", || secret() != before);
    }
    let said = secure.say(&["run", "--", "true"]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn contexts_lead_to_their_clusters_with_their_tokens() {
    let one = Secure::start();
    let two = System::sqlite();
    let _scheduler = two.scheduler(0);
    let _runner = two.runner("two", 1, &[]);
    let home = tempfile::TempDir::new().expect("folder");
    let say = |args: &[&str], env: &[(&str, &str)]| -> Said {
        std::process::Command::new(binary())
            .args(args)
            .env_clear()
            .env("HOME", home.path())
            .envs(env.iter().copied())
            .stdin(std::process::Stdio::null())
            .output()
            .expect("starts")
            .into()
    };
    let file = |system: &System, name: &str| system.db.token_dir().join(name).display().to_string();
    let (ca, first) = (file(&one.system, "ca.pem"), file(&one.system, "admin.token"));
    let second = file(&two, "admin.token");
    let add = say(
        &[
            "context",
            "add",
            "one",
            "--url",
            &one.system.url,
            "--ca",
            &ca,
            "--token-file",
            &first,
        ],
        &[],
    );
    assert_eq!(add.code, Some(0), "{add:?}");
    let add = ["context", "add", "two", "--url", &two.url, "--token-file", &second];
    assert_eq!(say(&add, &[]).code, Some(0));
    let twice = say(&add, &[]);
    assert_eq!(twice.code, Some(2), "{twice:?}");
    assert!(twice.stderr.contains("a context two exists already"), "{twice:?}");
    // The first one is the current one.
    assert_eq!(say(&["submit", "-q", "--", "true"], &[]).code, Some(0));
    let count = |system: &System| system.db.sql("SELECT COUNT(*) FROM task");
    assert_eq!((count(&one.system).as_str(), count(&two).as_str()), ("1", "0"));
    // An explicit context goes with its own token, whatever the environment says.
    let env = [
        ("SYSTOLE_URL", one.system.url.as_str()),
        ("SYSTOLE_TOKEN_FILE", first.as_str()),
    ];
    assert_eq!(say(&["--context", "two", "submit", "--", "true"], &env).code, Some(0));
    assert_eq!(
        say(&["submit", "--", "true"], &[("SYSTOLE_CONTEXT", "two")]).code,
        Some(0)
    );
    assert_eq!((count(&one.system).as_str(), count(&two).as_str()), ("1", "2"));
    assert_eq!(say(&["context", "use", "two"], &[]).code, Some(0));
    assert_eq!(say(&["run", "--", "true"], &[]).code, Some(0));
    // Something that waits, so that there is something to ask about.
    assert_eq!(
        say(&["submit", "--delay", "1h", "--name", "later", "--", "true"], &[]).code,
        Some(0)
    );
    let question = say(&["cancel", "--name", "later"], &[]);
    assert!(question.stderr.contains("context two"), "{question:?}");
    let list = say(&["-o", "json", "context"], &[]).stdout;
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(
        (
            list["contexts"][0]["current"].as_bool(),
            list["contexts"][1]["current"].as_bool()
        ),
        (Some(false), Some(true))
    );
    let unknown = say(&["--context", "three", "ls"], &[]);
    assert!(
        unknown.code == Some(2) && unknown.stderr.contains("there are one, two"),
        "{unknown:?}"
    );
    assert_eq!(say(&["context", "rm", "two"], &[]).code, Some(0));
    assert_eq!(say(&["context", "rm", "two"], &[]).code, Some(2));
    let nowhere = say(&["--context", "one", "runner"], &[]);
    assert_eq!(nowhere.code, Some(2), "{nowhere:?}");
}
