//! The second machine: TLS of the cluster's own, and hosts that join with one line.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;
use systole_scheduler::config::{SelfSigned, Tls};
use systole_tests::replica::Replica;
use systole_tests::system::{System, http_get, until};
use systole_tests::{TestDb, on_both_databases, tls, wait};

on_both_databases!(
    replicas_share_the_authority_and_the_database_never_has_its_key,
    a_server_certificate_is_renewed_by_itself,
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
