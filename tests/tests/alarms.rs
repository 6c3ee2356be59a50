//! Alarms with real receivers: each kind of channel against a server that keeps what it gets, a mail server among them; and two
//! schedulers with a runner, where each alarm arrives once.

use serde_json::{Value, json};
use std::time::Duration;
use systole_proto::v1;
use systole_scheduler::config::LifeSign;
use systole_scheduler::loops::life_sign;
use systole_tests::replica::Replica;
use systole_tests::smtp::MailServer;
use systole_tests::system::until;
use systole_tests::{Receiver, System, TestDb, wait};

/// A replica with these channels, and what a test of the channel was answered.
async fn try_channel(db: &TestDb, channels: &str, name: &str) -> Result<String, tonic::Status> {
    let file = db.folder.path().join("alarms.toml");
    std::fs::write(&file, channels).expect("channels");
    let mut config = Replica::config(db);
    config.alarms.file = Some(file);
    let replica = Replica::start_with(config).await;
    let request = v1::TestChannelRequest { channel: name.into() };
    let answer = replica.alarms().test(request).await;
    replica.stop().await;
    answer.map(|answer| answer.into_inner().error)
}

fn secret(db: &TestDb, name: &str, text: &str) {
    std::fs::write(db.folder.path().join(name), format!("{text}\n")).expect("secret");
}

/// The one request that a channel of this kind sent.
async fn sent(kind: &str, fields: impl Fn(&TestDb, &str) -> String) -> (systole_tests::receiver::Got, Value) {
    let db = TestDb::sqlite();
    let receiver = Receiver::start();
    let fields = fields(&db, &receiver.url);
    let error = try_channel(
        &db,
        &format!("[[channel]]\nname = \"c\"\nkind = \"{kind}\"\n{fields}"),
        "c",
    )
    .await
    .expect("the channel exists");
    assert_eq!(error, "");
    let mut got = receiver.got();
    assert_eq!(got.len(), 1);
    let got = got.remove(0);
    assert_eq!(
        (got.method.as_str(), got.headers["content-type"].as_str()),
        ("POST", "application/json")
    );
    let body = got.json();
    (got, body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_signed_with_the_secret_of_its_channel() {
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let (got, body) = sent("webhook", |db, url| {
        secret(db, "hook.secret", SECRET);
        format!("url = \"{url}/alarm\"\nsecret_file = \"hook.secret\"\n")
    })
    .await;
    assert_eq!((got.path.as_str(), &body["type"]), ("/alarm", &json!("alarm.test")));
    let (id, at) = (
        &got.headers["webhook-id"],
        got.headers["webhook-timestamp"].parse().expect("seconds"),
    );
    let signature = systole_scheduler::flow::callback::sign(SECRET, id, at, &got.body);
    assert_eq!(got.headers["webhook-signature"], signature);
    assert_eq!(body["delivery_id"], json!(id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slack_gets_blocks_and_its_url_stays_in_a_file() {
    let (got, body) = sent("slack", |db, url| {
        secret(db, "slack.url", &format!("{url}/services/T0/B0/x"));
        "url_file = \"slack.url\"\n".into()
    })
    .await;
    assert_eq!(got.path, "/services/T0/B0/x");
    assert!(
        body["text"]
            .as_str()
            .expect("text")
            .contains("test of the alarm channel c")
    );
    assert_eq!(body["blocks"][0]["type"], "header");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn teams_gets_a_card() {
    let (_, body) = sent("teams", |_, url| format!("url = \"{url}/workflow\"\n")).await;
    assert_eq!(body["type"], "message");
    assert_eq!(
        body["attachments"][0]["contentType"],
        "application/vnd.microsoft.card.adaptive"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pagerduty_gets_an_event_with_its_key() {
    let (_, body) = sent("pagerduty", |db, url| {
        secret(db, "pd.key", "0123456789abcdef0123456789abcdef");
        format!("url = \"{url}/v2/enqueue\"\nkey_file = \"pd.key\"\n")
    })
    .await;
    assert_eq!(body["routing_key"], "0123456789abcdef0123456789abcdef");
    assert_eq!(
        (&body["event_action"], &body["payload"]["severity"]),
        (&json!("trigger"), &json!("info"))
    );
    assert!(body["dedup_key"].as_str().expect("key").starts_with("systole:"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ntfy_gets_a_topic_and_a_token() {
    let (got, body) = sent("ntfy", |db, url| {
        secret(db, "ntfy.token", "tk_abc");
        format!("url = \"{url}\"\ntopic = \"backups\"\ntoken_file = \"ntfy.token\"\n")
    })
    .await;
    assert_eq!(
        (got.path.as_str(), got.headers["authorization"].as_str()),
        ("/", "Bearer tk_abc")
    );
    assert_eq!((&body["topic"], &body["priority"]), (&json!("backups"), &json!(3)));
}

fn mail_channel(port: u16) -> String {
    format!(
        "[[channel]]\nname = \"mail\"\nkind = \"mail\"\nsmtp = \"smtp://127.0.0.1:{port}\"\n\
         from = \"systole <systole@example.org>\"\nto = [\"dba@example.org\", \"on-call@example.org\"]\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mail_reaches_a_real_server() {
    let server = MailServer::start();
    let error = try_channel(&TestDb::sqlite(), &mail_channel(server.port), "mail")
        .await
        .expect("a channel");
    assert_eq!(error, "");
    let mails = server.mails();
    assert_eq!(mails.len(), 1);
    for part in [
        "From: systole <systole@example.org>",
        "To: dba@example.org, on-call@example.org",
        "Subject: [systole] TEST: test of the alarm channel mail",
        "Message-ID: <msg_",
        "nothing is wrong",
    ] {
        assert!(mails[0].contains(part), "{part}\n{}", mails[0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_says_why_nothing_arrives() {
    let receiver = Receiver::start();
    receiver.answer(403);
    let channel = format!(
        "[[channel]]\nname = \"c\"\nkind = \"slack\"\nurl = \"{}\"\n",
        receiver.url
    );
    let error = try_channel(&TestDb::sqlite(), &channel, "c").await.expect("a channel");
    assert!(error.contains("403") && error.contains("well"), "{error}");
    // Nobody listens there.
    let closed = systole_tests::postgres::free_port();
    let error = try_channel(&TestDb::sqlite(), &mail_channel(closed), "mail")
        .await
        .expect("a channel");
    assert!(error.to_lowercase().contains("refused"), "{error}");
    let unknown = try_channel(&TestDb::sqlite(), &channel, "d")
        .await
        .expect_err("no channel");
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    assert!(unknown.message().contains("it has c"), "{unknown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_channels_that_is_wrong_stops_the_start() {
    let db = TestDb::sqlite();
    let file = db.folder.path().join("alarms.toml");
    std::fs::write(
        &file,
        "[[channel]]\nname = \"c\"\nkind = \"slack\"\nurl_file = \"none\"\n",
    )
    .expect("channels");
    let mut config = Replica::config(&db);
    config.alarms.file = Some(file);
    let Err(error) = Replica::try_start(config).await else {
        panic!("it must not start")
    };
    assert_eq!(error.exit_code(), 2);
    assert!(
        error.to_string().contains("channel c") && error.to_string().contains("--alarms"),
        "{error}"
    );
}

const JOB: &str = r#"
[[job]]
name  = "nightly"
shell = 'echo "disk is full" >&2; test -e ok'
runbook = "https://wiki.example.org/nightly"
dir   = "{dir}"

[[job.alarm]]
when = "failure"
to   = ["mail", "hook"]

[[job.alarm]]
when = "recovery"
to   = ["mail", "hook"]
"#;

#[test]
fn with_two_schedulers_each_alarm_arrives_once() {
    let (mail, hook) = (MailServer::start(), Receiver::start());
    let mut system = System::postgres();
    system.another_port();
    let file = system.path("alarms.toml");
    let channels = format!(
        "{}[[channel]]\nname = \"hook\"\nkind = \"webhook\"\nurl = \"{}\"\n",
        mail_channel(mail.port),
        hook.url
    );
    std::fs::write(&file, channels).expect("channels");
    let file = file.to_str().expect("path");
    let options = [
        "--beat",
        "2s",
        "--lost-after",
        "6s",
        "--check",
        "500ms",
        "--alarms",
        file,
    ];
    let (_one, _two) = (system.scheduler_with(0, &options), system.scheduler_with(1, &options));
    let _runner = system.runner("db-01", 1, &[]);
    let dir = system.path("work");
    std::fs::create_dir(&dir).expect("folder");
    let text = JOB.replace("{dir}", dir.to_str().expect("path"));
    std::fs::write(system.path("nightly.toml"), text).expect("job");
    let applied = system.say(&["job", "apply", "-f", "nightly.toml"]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    let failed = system.say(&["job", "trigger", "nightly"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    until("the failure is told", || {
        !mail.mails().is_empty() && !hook.got().is_empty()
    });
    std::fs::write(dir.join("ok"), "").expect("file");
    let well = system.say(&["job", "trigger", "nightly"]);
    assert_eq!(well.code, Some(0), "{well:?}");
    until("the recovery is told", || {
        mail.mails().len() >= 2 && hook.got().len() >= 2
    });
    let listed = system.say(&["-o", "json", "alarm", "ls"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    let states: Vec<&str> = listed["alarms"]
        .as_array()
        .expect("alarms")
        .iter()
        .filter_map(|row| row["state"].as_str())
        .collect();
    assert_eq!(states.len(), 4);
    // All are settled, and nothing arrived twice.
    until("all are delivered", || {
        system
            .db
            .sql("SELECT count(*) FROM alarm WHERE status = 'delivered' AND tries = 1")
            == "4"
    });
    assert_eq!((mail.mails().len(), hook.got().len()), (2, 2));
    let all = mail.mails().join("\n");
    for part in [
        "ALARM: nightly FAILED",
        "OK: nightly works again",
        "disk is full",
        "on db-01/0",
        "https://wiki.example.org/nightly",
        "systole logs",
    ] {
        assert!(all.contains(part), "{part}\n{all}");
    }
    let tested = system.say(&["alarm", "test", "mail"]);
    assert_eq!(tested.code, Some(0), "{tested:?}");
    assert_eq!(mail.mails().len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sign_of_life_ends_with_the_progress() {
    let outside = Receiver::start();
    let db = TestDb::sqlite();
    let mut config = Replica::config(&db);
    config.life_sign = Some(LifeSign {
        url: outside.url.clone(),
        every: Duration::from_millis(50),
    });
    let replica = Replica::start_with(config).await;
    let ctx = &replica.running.context;
    wait::until("it is heard of", || async { (outside.got().len() >= 3).then_some(()) }).await;
    assert_eq!(outside.got()[0].method, "GET");
    // The database's clock jumps: nothing is fired any more, though the database answers.
    ctx.clock.skew(7_200_000);
    wait::until("it stands still", || async {
        let why = life_sign::standstill(ctx).await.expect("readable");
        why.is_some_and(|why| why.contains("clock")).then_some(())
    })
    .await;
    let heard = outside.got().len();
    let seen = || db.sql("SELECT max(seen_ms) FROM replica").parse::<i64>().expect("time");
    let began = seen();
    wait::until("a second passes", || async { (seen() - began > 1_000).then_some(()) }).await;
    // One may have been under way.
    assert!(
        outside.got().len() <= heard + 1,
        "{} after {heard}",
        outside.got().len()
    );
    ctx.clock.skew(0);
    wait::until("it is heard of again", || async {
        (outside.got().len() > heard + 3).then_some(())
    })
    .await;
    replica.stop().await;
}
