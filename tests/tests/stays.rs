//! What stays: `up` in the background, units of systemd, backups of a database in use.

use nix::sys::signal::Signal;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use systole_tests::home::{Home, json};
use systole_tests::postgres::free_port;
use systole_tests::system::{Said, System, alive, until};

#[test]
fn up_detached_takes_tasks_when_it_returns_and_stays_until_down() {
    let home = Home::new();
    let first = home.detach();
    let up = json(&first);
    let pid = up["pid"].to_string();
    assert!(up["started"] == true && alive(&pid), "{first:?}");
    let log = up["log"].as_str().expect("a log");
    assert!(
        first.stderr.contains(&format!("process {pid}")) && first.stderr.contains("up.log"),
        "{first:?}"
    );
    let mode = std::fs::metadata(log).expect("the log exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A session of its own: the terminal's end is nothing to it.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let session = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.split(' ').nth(3))
        .expect("a session");
    assert_eq!(session, pid);

    let runners = json(&home.say(&["-o", "json", "runners"]));
    assert!(
        !runners["runners"].as_array().expect("a list").is_empty(),
        "its runner is there: {runners}"
    );
    let ran = home.say(&["run", "--", "sh", "-c", "echo hello; exit 7"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(7), "hello\n"), "{ran:?}");

    let again = home.detach();
    let same = json(&again);
    assert_eq!(
        (&same["pid"], &same["started"]),
        (&up["pid"], &serde_json::json!(false))
    );
    assert!(again.stderr.contains("is running at http://127.0.0.1:"), "{again:?}");
    let other = home.say(&["up", "-d", "--listen", &format!("127.0.0.1:{}", free_port())]);
    assert!(
        other.code == Some(4) && other.stderr.contains("systole down"),
        "{other:?}"
    );
    let in_front = home.say(&["up", "--listen", &home.listen()]);
    assert!(
        in_front.code == Some(4) && in_front.stderr.contains(&format!("process {pid}")),
        "{in_front:?}"
    );

    let running = home.say(&["-o", "id", "submit", "--", "sleep", "1000"]);
    let id = running.stdout.trim().to_owned();
    until("it runs", || home.say(&["show", &id]).stdout.contains("RUNNING"));
    let down = home.say(&["down"]);
    assert!(down.code == Some(0) && down.stderr.ends_with("stopped\n"), "{down:?}");
    assert!(!alive(&pid), "down returns when it has ended");
    let again = home.say(&["down"]);
    assert!(
        again.code == Some(0) && again.stderr.contains("nothing to stop"),
        "{again:?}"
    );

    // What was there is there after the next start, and the task was ended and reported.
    json(&home.detach());
    let shown = json(&home.say(&["-o", "json", "show", &id]));
    assert_eq!(shown["task"]["outcome"]["kind"], "runner_stopped", "{shown}");
}

#[test]
fn up_detached_that_cannot_start_says_why_and_leaves_nothing() {
    let home = Home::new();
    for (options, code, words) in [
        (vec!["--database", "mysql://x"], 2, "mysql://x"),
        (
            vec!["--listen", "192.0.2.1:7410", "--insecure-plaintext"],
            1,
            "192.0.2.1:7410",
        ),
        (vec!["--label", "GPU=1"], 2, "--label"),
        (vec!["--policy", "/nowhere/runner.toml"], 2, "/nowhere/runner.toml"),
    ] {
        let listen = home.listen();
        let mut args = vec!["up", "--detach"];
        if !options.contains(&"--listen") {
            args.extend(["--listen", &listen]);
        }
        args.extend(&options);
        let said = home.say(&args);
        assert!(
            said.code == Some(code) && said.stderr.contains(words),
            "{options:?}: {said:?}"
        );
        assert!(home.say(&["down"]).stderr.contains("nothing to stop"));
    }
}

#[test]
fn a_kill_of_up_leaves_a_folder_that_the_next_one_takes() {
    let home = Home::new();
    let first = json(&home.detach());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(first["pid"].as_i64().expect("pid")).expect("pid"));
    let id = home.say(&[
        "-o",
        "id",
        "submit",
        "--",
        "sh",
        "-c",
        "until test -e go; do sleep 0.05; done; exit 5",
    ]);
    let id = id.stdout.trim().to_owned();
    let dir = home.say(&["-o", "json", "show", &id]);
    assert_eq!(dir.code, Some(0));
    until("it runs", || home.say(&["show", &id]).stdout.contains("RUNNING"));
    nix::sys::signal::kill(pid, Signal::SIGKILL).expect("killed");
    until("it is gone", || home.say(&["down"]).stderr.contains("nothing to stop"));
    let second = json(&home.detach());
    assert!(second["started"] == true && second["pid"] != first["pid"]);
    // Its task went on meanwhile.
    assert!(home.say(&["show", &id]).stdout.contains("RUNNING"));
    let cancelled = home.say(&["cancel", &id]);
    assert_eq!(cancelled.code, Some(0), "{cancelled:?}");
}

fn sqlite3(file: &Path, text: &str) -> String {
    let output = Command::new("sqlite3")
        .arg(file)
        .arg(text)
        .output()
        .expect("sqlite3 starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn a_backup_of_a_database_in_use_can_be_gone_back_to() {
    let system = System::sqlite();
    let mut scheduler = system.scheduler(0);
    let mut runner = system.runner("w", 1, &[]);
    let before = system.submit(&["--", "echo", "before"]);
    system.until(&before, &["FINISHED"]);

    // While others write.
    let writing = std::sync::atomic::AtomicBool::new(true);
    let file = system.path("copy.db");
    let name = file.display().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while writing.load(std::sync::atomic::Ordering::Relaxed) {
                system.submit(&["--delay", "1h", "--", "true"]);
            }
        });
        for round in 0..3 {
            let args = [
                "-o",
                "json",
                "backup",
                &name,
                "--force",
                "--reason",
                "before the change",
            ];
            let said = system.say(&args);
            let done = json(&said);
            assert_eq!(
                done["bytes"],
                std::fs::metadata(&file).expect("there").len(),
                "round {round}"
            );
        }
        writing.store(false, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(
        std::fs::metadata(&file).expect("there").permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(sqlite3(&file, "PRAGMA integrity_check"), "ok");
    assert_eq!(sqlite3(&file, "SELECT COUNT(*) FROM task WHERE id = 1"), "1");
    let refused = system.say(&["backup", &name]);
    assert!(
        refused.code == Some(4) && refused.stderr.contains("--force"),
        "{refused:?}"
    );
    let sum = Command::new("sha256sum").arg(&file).output().expect("sha256sum starts");
    let sum = String::from_utf8_lossy(&sum.stdout)
        .split(' ')
        .next()
        .unwrap_or_default()
        .to_owned();
    let piped = system.say(&["backup", "-"]);
    assert!(
        piped.code == Some(0) && piped.stderr.contains("SHA-256"),
        "{}",
        piped.stderr
    );
    assert!(piped.stdout.starts_with("SQLite format 3\0"));
    assert_eq!(sum.len(), 64);
    let database = PathBuf::from(system.db.url.trim_start_matches("sqlite:"));
    let left: Vec<String> = std::fs::read_dir(database.parent().expect("folder"))
        .expect("listed")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("backup"))
        .collect();
    assert_eq!(left, Vec::<String>::new(), "nothing is left beside the database");
    let audit = system.say(&["audit", "--action", "backup"]).stdout;
    assert!(audit.contains("before the change"), "{audit}");

    // Back to it, as the documentation says: what came after is gone, and the host that has held more says so.
    let after = system.submit(&["--", "echo", "after"]);
    system.until(&after, &["FINISHED"]);
    scheduler.signal(Signal::SIGTERM);
    scheduler.wait(std::time::Duration::from_secs(30));
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", database.display()));
    }
    std::fs::copy(&file, &database).expect("restored");
    let _scheduler = system.scheduler(0);
    assert_eq!(system.state(&before), "FINISHED");
    assert_eq!(system.say(&["show", &after]).code, Some(3), "it is not known any more");
    until("the host that held it is noticed", || {
        system.say(&["admin", "alarms"]).stdout.contains("set back")
    });
    let held = json(&system.say(&["-o", "json", "runners"]))["runners"][0]["hold"].clone();
    assert_eq!(held["max_task_id"].as_str(), Some(after.as_str()), "{held}");
    let shown = system.say(&["-o", "wide", "runners"]).stdout;
    assert!(
        shown.contains("HELD") && shown.contains("systole admin confirm restore"),
        "{shown}"
    );
    assert_eq!(system.say(&["admin", "confirm", "restore"]).code, Some(0));
    let next = system.submit(&["--", "echo", "next"]);
    system.until(&next, &["FINISHED"]);
    let number = |id: &str| id.parse::<i64>().expect("an id");
    assert!(number(&next) > number(&after), "no id is given twice");
    runner.signal(Signal::SIGINT);
    runner.wait(std::time::Duration::from_secs(30));
}

#[test]
fn a_damaged_database_is_named_with_what_to_do_and_a_copy_brings_it_back() {
    let system = System::sqlite();
    let mut scheduler = system.scheduler(0);
    let id = system.submit(&["--delay", "1h", "--", "true"]);
    let copy = system.path("copy.db");
    assert_eq!(system.say(&["backup", &copy.display().to_string()]).code, Some(0));
    scheduler.signal(Signal::SIGTERM);
    scheduler.wait(std::time::Duration::from_secs(30));
    let database = PathBuf::from(system.db.url.trim_start_matches("sqlite:"));
    let sound = std::fs::read(&copy).expect("read");
    // Of 4 KiB each.
    let mut pages = sound.clone();
    pages[4_096..].fill(0xff);
    let mut head = sound.clone();
    head[..100].fill(b'x');
    for (damaged, words) in [
        (pages, "database disk image is malformed"),
        (head, "file is not a database"),
        (b"a letter\n".repeat(1_000), "file is not a database"),
    ] {
        for suffix in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", database.display()));
        }
        std::fs::write(&database, &damaged).expect("written");
        let listen = format!("127.0.0.1:{}", system.ports[0]);
        let mut command = system.command(&["scheduler", "--database", &system.db.url, "--listen", &listen]);
        command.arg("--token-dir").arg(system.db.token_dir());
        let refused: Said = command.output().expect("systole starts").into();
        assert_eq!(refused.code, Some(2), "{refused:?}");
        let shown = database.display().to_string();
        for part in [words, shown.as_str(), "systole backup", ".recover"] {
            assert!(refused.stderr.contains(part), "{part}: {refused:?}");
        }
    }
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", database.display()));
    }
    std::fs::copy(&copy, &database).expect("restored");
    let _scheduler = system.scheduler(0);
    assert_eq!(system.state(&id), "CREATED");
}

#[test]
fn of_postgresql_the_line_for_its_own_tool_is_told_and_it_works() {
    let system = System::postgres();
    let _scheduler = system.scheduler(0);
    let id = system.submit(&["--delay", "1h", "--", "true"]);
    let file = system.path("copy.dump");
    let said = system.say(&["backup", &file.display().to_string()]);
    assert_eq!(said.code, Some(4), "{said:?}");
    let line = said.stdout.trim();
    assert!(
        line.starts_with("pg_dump ") && said.stderr.contains("the line above"),
        "{said:?}"
    );
    let Some(tool) = glob_pg_dump() else {
        panic!("pg_dump is not beside the server");
    };
    let line = line.replacen("pg_dump", &tool.display().to_string(), 1);
    let output = Command::new("sh").args(["-c", &line]).output().expect("sh starts");
    assert!(output.status.success(), "{line}: {output:?}");
    assert!(std::fs::read(&file).expect("written").starts_with(b"PGDMP"));
    assert_eq!(system.state(&id), "CREATED");
}

fn glob_pg_dump() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions
        .flatten()
        .map(|entry| entry.path().join("bin/pg_dump"))
        .collect();
    found.retain(|path| path.exists());
    found.sort();
    found.pop()
}

/// Takes the place of systemd: it writes down what it is told, and says that what was started runs.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >> "$HOME/calls"
case "$*" in
  *--property=Version*) echo 252 ;;
  *--property=ActiveState*) test -e "$HOME/broken" && echo failed || echo active ;;
  *--property=UnitFileState*) echo enabled ;;
  *--property=MainPID*) echo 4711 ;;
esac
"#;

fn executable(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("folder")).expect("made");
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("set");
}

#[test]
fn a_service_is_installed_shown_and_taken_away() {
    let home = Home::new();
    executable(&home.path("bin/systemctl"), SYSTEMCTL);
    executable(&home.path("bin/loginctl"), "#!/bin/sh\necho no\n");
    let path = format!("{}:/usr/bin:/bin", home.path("bin").display());
    let say = |args: &[&str]| -> Said {
        let mut command = home.command(args);
        command.env("PATH", &path).output().expect("systole starts").into()
    };
    let unit = home.path(".config/systemd/user/systole.service");
    let calls = || std::fs::read_to_string(home.path("calls")).unwrap_or_default();

    let none = say(&["service", "status"]);
    assert!(
        none.code == Some(1) && none.stderr.contains("service install"),
        "{none:?}"
    );
    let planned = say(&["service", "install", "--dry-run", "--", "--slots", "3"]);
    assert!(
        planned.code == Some(0) && planned.stdout.contains(" up --slots 3 $SYSTOLE_OPTIONS\n"),
        "{planned:?}"
    );
    assert!(
        !unit.exists() && calls().is_empty(),
        "a dry run asks and changes nothing"
    );
    let wrong = say(&["service", "install", "--", "--slots", "0"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("--slots"), "{wrong:?}");
    assert!(!unit.exists());

    let done = say(&["service", "install", "--", "--slots", "3"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("loginctl enable-linger"), "{done:?}");
    let text = std::fs::read_to_string(&unit).expect("written");
    assert!(planned.stdout.contains(&text), "what was planned is what is there");
    for call in ["daemon-reload", "enable systole.service", "restart systole.service"] {
        assert!(calls().contains(call), "{call}: {}", calls());
    }
    assert!(calls().lines().all(|call| call.starts_with("--user ")), "{}", calls());
    std::fs::remove_file(home.path("calls")).expect("removed");
    assert_eq!(
        say(&["service", "install", "--", "--slots", "3"]).code,
        Some(0),
        "again"
    );
    assert!(
        !calls().contains("restart"),
        "what is the same is not restarted: {}",
        calls()
    );

    let shown = say(&["-o", "json", "service", "status"]);
    let shown = json(&shown);
    assert_eq!(shown["units"][0]["pid"], 4711, "{shown}");
    assert_eq!(
        (&shown["scope"], &shown["lingers"]),
        (&"user".into(), &false.into()),
        "{shown}"
    );

    let away = say(&["service", "uninstall"]);
    assert!(away.code == Some(0) && !unit.exists(), "{away:?}");
    assert!(calls().contains("disable --now systole.service"), "{}", calls());
    assert_eq!(say(&["service", "uninstall"]).code, Some(0), "twice");

    // One that does not run is not installed in silence.
    std::fs::write(home.path("broken"), "").expect("written");
    let broken = say(&["service", "install"]);
    assert!(
        broken.code == Some(1) && broken.stderr.contains("journalctl --user -u systole"),
        "{broken:?}"
    );
    // What somebody else wrote stays.
    std::fs::write(&unit, "[Unit]\nDescription=mine\n").expect("written");
    let foreign = say(&["service", "install"]);
    assert!(
        foreign.code == Some(4) && foreign.stderr.contains("left alone"),
        "{foreign:?}"
    );
    assert_eq!(say(&["service", "status"]).code, Some(1));
}

#[test]
fn without_systemd_it_says_what_to_do() {
    let home = Home::new();
    executable(
        &home.path("bin/systemctl"),
        "#!/bin/sh\necho 'Failed to connect to bus: No medium found' >&2\nexit 1\n",
    );
    for (path, cause) in [
        (home.path("bin").display().to_string(), "No medium found"),
        (home.path("nothing").display().to_string(), "there is no systemctl"),
    ] {
        let mut command = home.command(&["service", "install"]);
        let said: Said = command.env("PATH", path).output().expect("systole starts").into();
        assert_eq!(said.code, Some(4), "{said:?}");
        for part in [cause, "systole up --detach", "@reboot", "--dry-run"] {
            assert!(said.stderr.contains(part), "{part}: {said:?}");
        }
    }
    let scheduler = home.say(&[
        "service",
        "install",
        "scheduler",
        "--dry-run",
        "--",
        "--database",
        "sqlite:/x",
    ]);
    assert!(
        scheduler
            .stdout
            .contains("scheduler --database sqlite:/x $SYSTOLE_OPTIONS"),
        "{scheduler:?}"
    );
}

#[test]
fn a_machine_that_trusts_no_authority_has_a_scheduler_all_the_same() {
    let home = Home::new();
    let mut up = home.command(&["up", "--detach", "--slots", "1", "--listen", &home.listen()]);
    up.env("SSL_CERT_FILE", "/nowhere").env("SSL_CERT_DIR", "/nowhere");
    let said: Said = up.output().expect("systole starts").into();
    assert_eq!(said.code, Some(0), "{said:?}");
    let log = std::fs::read_to_string(home.path(".local/share/systole/up.log")).expect("a log");
    assert!(
        log.contains("over https will fail") && log.contains("ca-certificates"),
        "{log}"
    );
    let ran = home.say(&["run", "--", "echo", "hello"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "hello\n"), "{ran:?}");
}
