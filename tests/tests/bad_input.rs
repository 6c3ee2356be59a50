//! What goes wrong where people work: huge filters, narrow terminals, pipes that close, files that others can read, schedulers of
//! other versions, clocks that are off.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use systole_tests::home::{Home, json};
use systole_tests::system::{Said, System, binary, until};
use systole_tests::{TestDb, postgres};

/// Tasks that wait, made by SQL after one that was submitted.
fn a_million(system: &System) {
    let model = system.submit(&["--require", "gpu=1", "--", "true"]);
    const PIECE: usize = 100_000;
    for from in (2..=1_000_000).step_by(PIECE) {
        let to = (from + PIECE - 1).min(1_000_000);
        let series = match system.db.postgres {
            Some(_) => format!("generate_series({from}, {to}) AS n(i)"),
            None => {
                format!(
                    "(WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {to}) SELECT i FROM n) AS n"
                )
            }
        };
        system.db.sql(&format!(
            "INSERT INTO task (status, lane_id, priority, name, spec, submitted_by, created_at_ms, eligible_at_ms) \
             SELECT 2, m.lane_id, m.priority, m.name, m.spec, m.submitted_by, m.created_at_ms, m.created_at_ms + n.i \
             FROM {series} CROSS JOIN task AS m WHERE m.id = {model}"
        ));
    }
}

fn a_filter_of_a_million_tasks_is_shown_before_and_a_pipe_may_close(db: TestDb) {
    let system = System::new(db);
    let _scheduler = system.scheduler(0);
    a_million(&system);
    let counted = system.say(&["-o", "json", "cancel", "--state", "queued", "--dry-run"]);
    let counted: serde_json::Value = serde_json::from_str(&counted.stdout).expect("JSON");
    assert_eq!(
        (&counted["total"], &counted["states"]["QUEUED"]),
        (&1_000_000.into(), &1_000_000.into())
    );
    // Nobody can be asked here, so it says how many they are and does nothing.
    let asked = system.say(&["cancel", "--state", "queued"]);
    assert_eq!(asked.code, Some(2), "{asked:?}");
    assert!(
        asked.stderr.contains("1000000 tasks") && asked.stderr.contains("--yes"),
        "{asked:?}"
    );
    assert_eq!(system.db.sql("SELECT count(*) FROM task WHERE status = 2"), "1000000");
    // Pages without end, of which the reader wants one line. A table is made of all its rows: fewer will do.
    for list in ["-o id ls -n 1000000", "-o jsonl ls -n 1000000", "ls -n 2000"] {
        let line = format!("{} {list} 2>said | head -n 1", binary().display());
        let dressed = system.command(&[]);
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(line).current_dir(system.folder.path());
        shell.envs(dressed.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let said: Said = shell.output().expect("sh starts").into();
        assert_eq!(
            (said.code, said.stdout.lines().count()),
            (Some(0), 1),
            "{list}: {said:?}"
        );
        assert_eq!(system.lines("said"), Vec::<String>::new(), "it ends quietly: {list}");
    }
}

#[test]
fn a_filter_of_a_million_tasks_is_shown_before_and_a_pipe_may_close_on_sqlite() {
    a_filter_of_a_million_tasks_is_shown_before_and_a_pipe_may_close(TestDb::sqlite());
}

#[test]
fn a_filter_of_a_million_tasks_is_shown_before_and_a_pipe_may_close_on_postgres() {
    a_filter_of_a_million_tasks_is_shown_before_and_a_pipe_may_close(TestDb::postgres());
}

#[test]
fn on_a_terminal_of_forty_columns_every_table_fits() {
    let home = Home::new();
    json(&home.detach());
    let name = "a-task-whose-name-is-longer-than-the-terminal-is-wide";
    let reason = "for a reason that is longer than the terminal is wide";
    let made = home.say(&[
        "submit", "--name", name, "--tag", "t", "--reason", reason, "--", "sleep", "600",
    ]);
    assert_eq!(made.code, Some(0), "{made:?}");
    home.write(
        "job.toml",
        &format!("[[job]]\nname = \"{name}\"\ncommand = [\"true\"]\n[[job.trigger]]\ncron = \"30 2 * * *\"\nzone = \"America/Argentina/Buenos_Aires\"\n"),
    );
    assert_eq!(home.say(&["job", "apply", "-f", "job.toml"]).code, Some(0));
    assert_eq!(home.say(&["pause", "--tag", "x", "--reason", reason]).code, Some(0));
    for line in [
        "ls",
        "runners",
        "job ls",
        "job next",
        "trigger ls",
        "token ls",
        "audit",
        "calendar ls",
        "lock ls",
        "alarm ls",
        "backfill ls",
    ] {
        let shown = home.terminal(40, &format!("systole --no-color {line}"), None);
        let wide: Vec<&str> = shown.stdout.lines().filter(|line| line.chars().count() > 40).collect();
        assert!(wide.is_empty(), "systole {line}:\n{}", wide.join("\n"));
        assert!(!shown.stdout.trim().is_empty(), "systole {line}: {shown:?}");
    }
}

#[test]
fn a_token_file_that_others_can_read_is_refused_before_anything_is_sent() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let open = system.path("open.token");
    std::fs::copy(system.db.token_dir().join("admin.token"), &open).expect("copied");
    for mode in [0o640, 0o604, 0o660] {
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).expect("set");
        let said: Said = system
            .command(&["ls"])
            .env("SYSTOLE_TOKEN_FILE", &open)
            .output()
            .expect("starts")
            .into();
        assert_ne!(said.code, Some(0), "{mode:o}: {said:?}");
        assert!(said.stderr.contains("chmod 600"), "{mode:o}: {said:?}");
        let shown = open.display().to_string();
        let context = ["context", "add", "c", "--url", &system.url, "--token-file", &shown];
        let added = system.say(&context);
        assert!(
            added.code != Some(0) && added.stderr.contains("chmod 600"),
            "{mode:o}: {added:?}"
        );
        let runner: Said = Command::new(binary())
            .args(["runner", "--url", &system.url, "--token-file"])
            .arg(&open)
            .arg("--data-dir")
            .arg(system.path("w"))
            .output()
            .expect("starts")
            .into();
        assert!(
            runner.code != Some(0) && runner.stderr.contains("chmod 600"),
            "{mode:o}: {runner:?}"
        );
    }
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o600)).expect("set");
    let said = system
        .command(&["ls"])
        .env("SYSTOLE_TOKEN_FILE", &open)
        .output()
        .expect("starts");
    assert!(said.status.success());
}

/// A port where gRPC is spoken, and none of our calls is known: a scheduler of long ago.
fn of_another_version() -> u16 {
    let port = postgres::free_port();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("runtime");
        runtime.block_on(async move {
            let (_, health) = tonic_health::server::health_reporter();
            let address = format!("127.0.0.1:{port}").parse().expect("address");
            let served = tonic::transport::Server::builder().add_service(health).serve(address);
            served.await.expect("serves");
        });
    });
    until("it listens", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    port
}

#[test]
fn a_scheduler_of_another_version_is_told_in_clear_words() {
    let port = of_another_version();
    let home = Home::new();
    home.write("token", "systole_admin_x\n");
    std::fs::set_permissions(home.path("token"), std::fs::Permissions::from_mode(0o600)).expect("set");
    for args in [&["status"][..], &["ls"], &["submit", "--", "true"], &["job", "ls"]] {
        let said: Said = home
            .command(args)
            .env("SYSTOLE_URL", format!("http://127.0.0.1:{port}"))
            .env("SYSTOLE_TOKEN_FILE", home.path("token"))
            .output()
            .expect("starts")
            .into();
        assert_eq!(said.code, Some(4), "{said:?}");
        assert!(
            said.stderr.contains("does not know this call")
                && said.stderr.contains("earlier version")
                && said.stdout.is_empty(),
            "{said:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_later_client_is_answered_in_clear_words() {
    use systole_proto::v1;
    let db = TestDb::sqlite();
    let replica = systole_tests::Replica::start(&db).await;
    let channel = tonic::transport::Endpoint::from_shared(replica.url())
        .expect("address")
        .connect_lazy();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.expect("ready");
    let path = "/systole.v1.TaskService/OfTheNextVersion".parse().expect("a path");
    let codec = tonic_prost::ProstCodec::<v1::CountRequest, v1::CountResponse>::default();
    let request = tonic::Request::new(v1::CountRequest::default());
    let refused = client.unary(request, path, codec).await.expect_err("it is not known");
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    assert!(
        refused.message().contains("is the client of a later version?"),
        "{refused:?}"
    );
    replica.stop().await;
}

/// A library that lets a program believe in another time of day.
fn clock_off_by(folder: &Path, seconds: i64) -> PathBuf {
    let source = format!(
        "#define _GNU_SOURCE\n#include <time.h>\n#include <sys/time.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
         int clock_gettime(clockid_t id, struct timespec *t) {{\n\
           int r = (int) syscall(SYS_clock_gettime, id, t);\n\
           if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += {seconds};\n\
           return r;\n}}\n\
         int gettimeofday(struct timeval *t, void *z) {{\n\
           struct timespec now;\n\
           clock_gettime(CLOCK_REALTIME, &now);\n\
           t->tv_sec = now.tv_sec;\n\
           t->tv_usec = now.tv_nsec / 1000;\n\
           return 0;\n}}\n\
         time_t time(time_t *t) {{\n\
           struct timespec now;\n\
           clock_gettime(CLOCK_REALTIME, &now);\n\
           if (t) *t = now.tv_sec;\n\
           return now.tv_sec;\n}}\n"
    );
    let (code, library) = (folder.join("clock.c"), folder.join(format!("clock{seconds}.so")));
    std::fs::write(&code, source).expect("written");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&code)
        .output()
        .expect("cc starts: a C compiler is needed to build systole, too");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

#[test]
fn a_host_and_a_client_whose_clocks_are_a_day_off_work_and_are_told() {
    const DAY_S: i64 = 86_400;
    for off in [-DAY_S, DAY_S] {
        let mut system = System::sqlite();
        let port = system.ports[0];
        let mut scheduler = Command::new(binary());
        scheduler
            .args([
                "scheduler",
                "--database",
                &system.db.url,
                "--tls-self-signed",
                "--beat",
                "2s",
                "--lost-after",
                "6s",
            ])
            .args(["--listen", &format!("0.0.0.0:{port}"), "--token-dir"])
            .arg(system.db.token_dir());
        let _scheduler = system.start("scheduler", &mut scheduler);
        system.url = format!("https://127.0.0.1:{port}");
        let ca = system.db.token_dir().join("ca.pem");
        let library = clock_off_by(system.folder.path(), off);
        let say = |args: &[&str]| -> Said {
            let mut command = system.command(args);
            command.env("SYSTOLE_CA", &ca).env("LD_PRELOAD", &library);
            command.output().expect("starts").into()
        };
        // Certificates hold for clocks that are a day off.
        until("the client is answered", || say(&["ls"]).code == Some(0));
        let mut runner = Command::new(binary());
        runner
            .args(["runner", "--url", &system.url, "--name", "off", "--slots", "1", "--ca"])
            .arg(&ca)
            .arg("--data-dir")
            .arg(system.path("off"))
            .arg("--token-file")
            .arg(system.db.token_dir().join("runner.token"))
            .env("LD_PRELOAD", &library);
        let mut runner = system.start("off", &mut runner);
        let ran = say(&["run", "--timeout", "20s", "--", "sh", "-c", "sleep 1; exit 7"]);
        assert_eq!(ran.code, Some(7), "{off}: {ran:?}");
        let id = json(&say(&["-o", "json", "ls", "-n", "1"]))["tasks"][0]["id"].clone();
        let task = json(&say(&["-o", "json", "show", id.as_str().expect("id")]))["task"].clone();
        let at =
            |name: &str| systole_shared::time::parse_time(task[name].as_str().expect("a time"), 0).expect("a time");
        // Times are the database's, and how long it ran is the runner's own measure.
        let now = systole_shared::clock::now_ms();
        assert!((now - at("started_at")).abs() < 120_000, "{off}: {task}");
        let ran_ms = at("ended_at") - at("started_at");
        assert!((900..30_000).contains(&ran_ms), "{off}: {ran_ms} ms");
        // It is not taken for lost, however long it stays.
        let waits = say(&["submit", "-o", "id", "--delay", "1s", "--", "true"]);
        let waits = waits.stdout.trim().to_owned();
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while json(&say(&["-o", "json", "show", &waits]))["task"]["state"] != "FINISHED" {
            assert!(std::time::Instant::now() < end, "{off}: it is not run");
        }
        let doctor = say(&["-o", "json", "doctor"]);
        let findings: serde_json::Value = serde_json::from_str(&doctor.stdout).expect("JSON");
        let told: Vec<&str> = findings["findings"]
            .as_array()
            .expect("a list")
            .iter()
            .filter(|finding| finding["check"] == "clock" && finding["level"] == "problem")
            .filter_map(|finding| finding["message"].as_str())
            .collect();
        let way = if off > 0 { "ahead of" } else { "behind" };
        // This machine and the host: both are off.
        assert!(told.len() >= 2, "{off}: {told:?}");
        assert!(told.iter().all(|message| message.contains(way)), "{off}: {told:?}");
        runner.kill();
        system.kill_warden("off");
    }
}
