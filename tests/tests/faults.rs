//! Faults of the database, the network and the balancer, with the real binary.

use base64::Engine as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use nix::sys::signal::Signal;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};
use systole_tests::door::Door;
use systole_tests::postgres::{Cluster, free_port};
use systole_tests::system::{Process, http_get, until};
use systole_tests::{System, TestDb};

/// quartznet/quartznet#740, xuxueli/xxl-job#3884: after a short outage scheduling never came back, and
/// results of that time were lost.
#[test]
fn d28_a_database_restart_fails_nothing() {
    let cluster = Cluster::new();
    let name = cluster.create_database();
    let system = System::new(TestDb {
        url: cluster.url(&name),
        postgres: None,
        folder: tempfile::TempDir::new().expect("folder"),
    });
    let mut scheduler = system.scheduler(0);
    let mut runner = system.runner("w", 2, &[]);
    let id = system.submit(&["--", "sh", "-c", "sleep 3; echo end"]);
    system.until(&id, &["RUNNING"]);
    // Hard, for longer than the lost limit, so that the task ends inside the outage.
    cluster.stop("immediate");
    until("not ready", || {
        http_get(system.ports[0], "/readyz").is_some_and(|(status, _)| status == 503)
    });
    assert_eq!(
        http_get(system.ports[0], "/healthz").map(|(status, _)| status),
        Some(200),
        "alive all the same"
    );
    let refused = system.say(&["submit", "--", "true"]);
    assert_ne!(refused.code, Some(0), "never acknowledged: {refused:?}");
    std::thread::sleep(Duration::from_secs(8));
    cluster.start();
    let back = Instant::now();
    let task = system.until(&id, &["FINISHED", "FAILED", "TERMINATED"]);
    assert_eq!(task["state"], "FINISHED", "{task}");
    assert_eq!(system.say(&["logs", &id]).stdout, "end\n");
    assert_eq!(system.say(&["run", "--", "true"]).code, Some(0));
    assert!(back.elapsed() < Duration::from_secs(30), "{:?}", back.elapsed());
    // Idle, a second time.
    cluster.stop("fast");
    cluster.start();
    until("work goes on", || system.say(&["run", "--", "true"]).code == Some(0));
    assert!(
        scheduler.child.try_wait().expect("wait").is_none() && runner.child.try_wait().expect("wait").is_none(),
        "nobody exits"
    );
}

/// timgit/pg-boss#850, graphile/worker#541, taskforcesh/bullmq#4729: the listening session was cut, and work
/// was picked up late for the rest of the process's life.
#[test]
fn d29_the_listener_dies_alone() {
    let mut system = System::postgres();
    let second = system.another_port();
    let _one = system.scheduler(0);
    let _two = system.scheduler(1);
    // The runner is parked at the second replica, submissions go to the first.
    let _runner = system.runner_at(&[&format!("http://127.0.0.1:{second}")], "w", 1, &[]);
    until("it works", || system.say(&["run", "--", "true"]).code == Some(0));
    let database = system.db.postgres.clone().expect("postgres");
    let listeners =
        format!("FROM pg_stat_activity WHERE datname = '{database}' AND application_name = 'systole listener'");
    until("both listen", || {
        system.db.sql(&format!("SELECT count(*) {listeners}")) == "2"
    });
    let before = system
        .db
        .sql(&format!("SELECT string_agg(pid::text, ',' ORDER BY pid) {listeners}"));
    system.db.sql(&format!("SELECT pg_terminate_backend(pid) {listeners}"));
    // At once: the poll is the safety net.
    let began = Instant::now();
    assert_eq!(system.say(&["run", "--", "true"]).code, Some(0));
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    until("new listening sessions", || {
        system.db.sql(&format!("SELECT count(*) {listeners}")) == "2"
            && system
                .db
                .sql(&format!("SELECT string_agg(pid::text, ',' ORDER BY pid) {listeners}"))
                != before
    });
    assert_eq!(system.say(&["run", "--", "true"]).code, Some(0));
}

/// Dictionarry-Hub/profilarr#519, David-Crty/databasement#233, jentic/jentic-one#529: claims and results failed
/// now and then with "database is locked".
#[test]
fn d30_a_locked_sqlite_is_waited_for() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 4, &[]);
    let path = system.db.url.trim_start_matches("sqlite:").to_owned();
    let hold = |seconds: u64| {
        let mut locker = std::process::Command::new("sqlite3")
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("sqlite3 starts");
        let mut stdin = locker.stdin.take().expect("piped");
        writeln!(
            stdin,
            ".timeout 10000\nBEGIN IMMEDIATE;\n.shell sleep {seconds}\nCOMMIT;"
        )
        .expect("write");
        drop(stdin);
        locker
    };
    // Round 1: three seconds, again and again, while a client submits and lists.
    let mut ids = Vec::new();
    for _ in 0..3 {
        let mut locker = hold(3);
        for _ in 0..6 {
            ids.push(system.submit(&["--", "true"]));
            assert_eq!(system.say(&["ls"]).code, Some(0));
        }
        locker.wait().expect("wait");
    }
    for id in &ids {
        assert_eq!(system.until(id, &["FINISHED", "FAILED"])["state"], "FINISHED");
    }
    // Round 2: longer than anybody waits. It says "busy", and everything catches up afterwards.
    let mut locker = hold(9);
    std::thread::sleep(Duration::from_millis(300));
    let busy = system.say(&["submit", "--", "true"]);
    locker.wait().expect("wait");
    assert!(
        busy.code == Some(0) || busy.stderr.contains("busy") || busy.stderr.contains("database"),
        "{busy:?}"
    );
    until("work goes on", || system.say(&["run", "--", "true"]).code == Some(0));
    let failed = system.say(&["-o", "id", "ls", "--state", "failed"]);
    assert_eq!(failed.stdout, "", "no task failed by it");
}

/// A balancer with the configuration that is shipped.
fn balancer(system: &System, ports: &[u16]) -> (Process2, u16) {
    let front = free_port();
    let template = include_str!("../../deploy/haproxy.cfg");
    let mut text = template.replace("127.0.0.1:7400", &format!("127.0.0.1:{front}"));
    for (index, port) in ports.iter().enumerate() {
        text = text.replace(&format!("127.0.0.1:{}", 7411 + index), &format!("127.0.0.1:{port}"));
    }
    let path = system.path("haproxy.cfg");
    std::fs::write(&path, text).expect("file");
    let child = std::process::Command::new("haproxy")
        .arg("-f")
        .arg(&path)
        .stdin(Stdio::null())
        .spawn()
        .expect("haproxy starts; install it with `apt-get install haproxy`, or run scripts/test, which does");
    (Process2(child), front)
}

/// A foreign process that ends with the test.
struct Process2(std::process::Child);

impl Drop for Process2 {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_cluster_of_replicas_behind_a_balancer_loses_no_call() {
    let mut system = System::postgres();
    system.another_port();
    system.another_port();
    let mut replicas: Vec<Process> = (0..3)
        .map(|index| system.scheduler_with(index, &["--drain-wait", "1s"]))
        .collect();
    let (_balancer, front) = balancer(&system, &system.ports.clone());
    system.url = format!("http://127.0.0.1:{front}");
    let log = system.path("log");
    let _runners: Vec<Process> = (0..2)
        .map(|index| system.runner(&format!("w{index}"), 3, &[]))
        .collect();
    until("the cluster works", || {
        system.say(&["run", "--", "true"]).code == Some(0)
    });
    // Beats stay parked through the balancer: with a beat of 30 s an idle runner is there for good.
    let script = format!("echo $SYSTOLE_TASK_ID >> {}", log.display());
    let mut ids = Vec::new();
    for (round, replica) in replicas.iter_mut().enumerate() {
        // One replica after the other is replaced, in order, while calls go on.
        replica.signal(Signal::SIGTERM);
        for _ in 0..12 {
            let said = system.say(&["-o", "id", "submit", "--", "sh", "-c", &script]);
            assert_eq!(said.code, Some(0), "a client saw a failed call: {said:?}");
            ids.push(said.stdout.trim().to_owned());
            let said = system.say(&["ls"]);
            assert_eq!(said.code, Some(0), "a client saw a failed call: {said:?}");
        }
        assert_eq!(replica.wait(Duration::from_secs(30)), Some(0));
        *replica = system.scheduler_with(round, &["--drain-wait", "1s"]);
    }
    // One dies without a word.
    replicas[1].kill();
    for _ in 0..6 {
        ids.push(system.submit(&["--", "sh", "-c", &script]));
    }
    for id in &ids {
        let task = system.until(id, &["FINISHED", "FAILED", "TERMINATED"]);
        assert_eq!(task["state"], "FINISHED", "{task}");
    }
    let lines = system.lines("log");
    let distinct: std::collections::HashSet<&String> = lines.iter().collect();
    assert_eq!((lines.len(), distinct.len()), (ids.len(), ids.len()), "each once");
}

#[test]
fn a_long_parked_beat_survives_the_balancer_and_a_dead_client_ends_it() {
    let mut system = System::postgres();
    system.another_port();
    system.another_port();
    // The product's own clocks.
    let _replica = system.scheduler_with(0, &[]);
    let (_balancer, front) = balancer(&system, &system.ports.clone());
    system.url = format!("http://127.0.0.1:{front}");
    let mut runner = system.runner("w", 1, &[]);
    until("it works", || system.say(&["run", "--", "true"]).code == Some(0));
    std::thread::sleep(Duration::from_secs(33));
    let began = Instant::now();
    assert_eq!(system.say(&["run", "--", "true"]).code, Some(0));
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    // The runner's host loses power: its parked beat must not attract a task.
    runner.kill();
    std::thread::sleep(Duration::from_secs(1));
    let id = system.submit(&["--", "true"]);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(system.state(&id), "QUEUED");
    let _runner = system.runner("w", 1, &[]);
    system.until(&id, &["FINISHED"]);
}

/// A sink that fails, hangs up, and then accepts; it keeps what it was sent.
fn sink(port: u16, answers: Vec<&'static str>) -> std::sync::mpsc::Receiver<(String, String)> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).expect("bind");
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for answer in answers {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let (mut text, mut buffer) = (String::new(), [0; 4096]);
            let (head, body) = loop {
                let Ok(n) = stream.read(&mut buffer) else { return };
                text.push_str(&String::from_utf8_lossy(&buffer[..n]));
                if let Some((head, body)) = text.split_once("\r\n\r\n") {
                    let length = head.lines().find_map(|line| {
                        line.to_lowercase()
                            .strip_prefix("content-length: ")
                            .and_then(|n| n.parse::<usize>().ok())
                    });
                    if length.is_some_and(|length| body.len() >= length) {
                        break (head.to_owned(), body.to_owned());
                    }
                }
                if n == 0 {
                    break (text.clone(), String::new());
                }
            };
            if sender.send((head, body)).is_err() {
                return;
            }
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    receiver
}

#[test]
fn a_callback_is_delivered_signed_with_a_stable_id() {
    let system = System::postgres();
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 1, &[]);
    let port = free_port();
    let tries = sink(
        port,
        vec![
            "HTTP/1.1 500 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            "",
            "HTTP/1.1 204 Ok\r\nconnection: close\r\n\r\n",
        ],
    );
    let url = format!("http://127.0.0.1:{port}/hook");
    let id = system.submit(&["--callback", &url, "--", "sh", "-c", "exit 4"]);
    let seen: Vec<(String, String)> = (0..3)
        .map(|_| tries.recv_timeout(Duration::from_secs(30)).expect("a delivery"))
        .collect();
    let header = |head: &str, name: &str| {
        head.lines()
            .find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned))
            .expect("header")
    };
    let delivery = header(&seen[0].0, "webhook-id");
    let secret = system
        .db
        .sql("SELECT value FROM setting WHERE name = 'callback_secret'");
    let engine = base64::engine::general_purpose::STANDARD;
    let key = engine.decode(secret.trim_start_matches("whsec_")).expect("base64");
    for (head, body) in &seen {
        assert_eq!(header(head, "webhook-id"), delivery, "the same over all tries");
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).expect("key");
        mac.update(format!("{delivery}.{}.{body}", header(head, "webhook-timestamp")).as_bytes());
        assert_eq!(
            header(head, "webhook-signature"),
            format!("v1,{}", engine.encode(mac.finalize().into_bytes()))
        );
        let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(
            (
                json["task"]["id"].as_str(),
                json["task"]["outcome"]["exit_code"].as_i64()
            ),
            (Some(id.as_str()), Some(4))
        );
    }
    until("it is told as delivered", || {
        system.show(&id)["callback"]["status"] == "delivered"
    });
    assert_eq!(system.state(&id), "FAILED", "the outcome does not depend on it");
}

#[test]
fn private_callback_addresses_are_refused() {
    let system = System::sqlite();
    // Without --callback-allow-private, which the harness gives elsewhere.
    let port = system.ports[0];
    let child = std::process::Command::new(systole_tests::system::binary())
        .args([
            "scheduler",
            "--database",
            &system.db.url,
            "--listen",
            &format!("127.0.0.1:{port}"),
        ])
        .arg("--token-dir")
        .arg(system.db.token_dir())
        .stdin(Stdio::null())
        .spawn()
        .expect("starts");
    let _scheduler = Process2(child);
    until("ready", || {
        http_get(port, "/readyz").is_some_and(|(status, _)| status == 200)
    });
    let _runner = system.runner("w", 1, &[]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let target = listener.local_addr().expect("address");
    listener.set_nonblocking(true).expect("option");
    for url in [
        format!("http://{target}/"),
        format!("http://localhost:{}/", target.port()),
        "http://[::ffff:127.0.0.1]/".into(),
    ] {
        let id = system.submit(&["--callback", &url, "--", "true"]);
        until("given up", || system.show(&id)["callback"]["status"] == "failed");
        assert!(
            system.show(&id)["callback"]["last_error"]
                .as_str()
                .is_some_and(|e| e.contains("private")),
            "{url}"
        );
        assert_eq!(system.state(&id), "FINISHED");
    }
    assert!(listener.accept().is_err(), "nobody connected");
}

#[test]
fn a_scheduler_without_its_database_stops_acknowledging() {
    // replica_without_database_stops_acknowledging: runners must not believe it.
    let cluster = Cluster::new();
    let name = cluster.create_database();
    let mut system = System::new(TestDb {
        url: cluster.url(&name),
        postgres: None,
        folder: tempfile::TempDir::new().expect("folder"),
    });
    // The first replica reaches the database through a door that closes.
    let door = Door::open(cluster.port);
    let direct = system.db.url.clone();
    system.db.url = direct.replace(&format!(":{}/", cluster.port), &format!(":{}/", door.port));
    let _cut = system.scheduler(0);
    system.db.url = direct;
    let second = system.another_port();
    let _whole = system.scheduler(1);
    let urls = [system.url.clone(), format!("http://127.0.0.1:{second}")];
    let _runner = system.runner_at(&[&urls[0], &urls[1]], "w", 1, &[]);
    let id = system.submit(&["--", "sh", "-c", "sleep 14; echo alive"]);
    system.until(&id, &["RUNNING"]);
    door.close();
    system.url = urls[1].clone();
    // Longer than the lost limit of 6 s: the runner went to the other replica in time.
    let task = system.until(&id, &["FINISHED", "FAILED"]);
    assert_eq!(task["state"], "FINISHED", "{task}");
    assert_eq!(
        http_get(system.ports[0], "/readyz").map(|(status, _)| status),
        Some(503)
    );
}
