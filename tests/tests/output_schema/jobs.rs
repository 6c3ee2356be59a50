//! Jobs, what fires them, and what is told of them.

use crate::documents::Shell;
use serde_json::json;
use std::path::Path;
use systole_tests::system::{Said, until};

const JOBS: &str = r#"
[[concurrency_group]]
name = "disk"
limit = 1
[[concurrency_group]]
name = "unused"
limit = 2
[[calendar]]
name = "holidays"
zone = "Europe/Berlin"
dates = ["2030-12-24"]
[[calendar]]
name = "unused"
weekly = ["sat"]
[[job]]
name = "nightly"
command = ["sleep", "600"]
# Its host has slots for the others too.
require = { dc = "fra" }
concurrency_group = "disk"
[[job.trigger]]
name = "night"
cron = "30 2 * * *"
zone = "Europe/Berlin"
exclude_calendars = ["holidays"]
[[job.trigger]]
name = "often"
fixed_rate = "1s"
[[job]]
name = "everywhere"
command = ["true"]
route = "broadcast"
[[job]]
name = "failing"
command = ["false"]
retry = { policy = "fixed", max_retries = 1, delay = "0s" }
[[job.alarm]]
when = "failure"
to = ["hook"]
[[job.alarm]]
when = "late"
max_age = "1s"
to = ["hook"]
"#;

const EVENT: &str = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//x//x//EN\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTAMP:20260101T000000Z\r\nDTSTART;VALUE=DATE:20301224\r\nSUMMARY:x\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n";

fn write(shell: &Shell<'_>, name: &str, text: &str) {
    std::fs::write(shell.system.path(name), text).expect("file");
}

pub fn jobs(shell: &mut Shell<'_>) {
    files(shell);
    until("a run waits for its place", || {
        let document = shell.both("why JOB", &["why", "nightly"]);
        document["blockers"]
            .as_array()
            .is_some_and(|blockers| !blockers.is_empty())
    });
    runs(shell);
    alarms(shell);
    changes(shell);
    shell.both("job rm", &["job", "rm", "nightly"]);
    // What runs of it goes on, and would keep the slots of the host.
    shell.system.say(&["cancel", "--job", "nightly", "--yes"]);
    shell.both("calendar rm", &["calendar", "rm", "unused", "nothing"]);
    shell.both(
        "concurrency-group rm",
        &["concurrency-group", "rm", "unused", "nothing"],
    );
}

fn files(shell: &mut Shell<'_>) {
    write(shell, "jobs.toml", JOBS);
    write(
        shell,
        "wrong.toml",
        "[[job]]\nname = \"x\"\ncommand = [\"x\"]\nretires = 1\n",
    );
    write(shell, "tab", "30 2 * * * /usr/bin/backup\n@reboot x\n");
    shell.silent("job init", &["job", "init", "mine"]);
    shell.both("job check", &["job", "check", "jobs.toml", "wrong.toml"]);
    shell.both("job apply", &["job", "apply", "-f", "jobs.toml", "--dry-run"]);
    shell.both("job apply", &["job", "apply", "-f", "jobs.toml"]);
    write(shell, "jobs.toml", &JOBS.replace("600", "601"));
    shell.both("job apply", &["job", "apply", "-f", "jobs.toml", "-f", "wrong.toml"]);
    shell.both("job apply", &["job", "apply", "-f", "jobs.toml"]);
    shell.both("import crontab", &["import", "crontab", "tab"]);
    let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/import");
    for (kind, input) in [
        ("systemd", "systemd"),
        ("kubernetes", "kubernetes/list.json"),
        ("xxl-job", "xxl-job/dump.sql"),
    ] {
        let input = inputs.join(input);
        let args = ["import", kind, input.to_str().expect("UTF-8")];
        shell.both(&format!("import {kind}"), &args);
    }
    shell.both("cron next", &["cron", "next", "30 2 * * *", "--zone", "Europe/Berlin"]);
    shell.both("cron explain", &["cron", "explain", "30 2 * * *"]);
    write(shell, "days.ics", EVENT);
    shell.both("calendar import", &["calendar", "import", "days", "days.ics"]);
    shell.both("calendar ls", &["calendar", "ls"]);
    shell.both("calendar show", &["calendar", "show", "holidays"]);
    shell.both("concurrency-group ls", &["concurrency-group", "ls"]);
}

fn runs(shell: &mut Shell<'_>) {
    shell.both("job trigger", &["job", "trigger", "everywhere"]);
    shell.both("job trigger", &["job", "trigger", "failing"]);
    let ended = shell.both("job history", &["job", "history", "failing"]);
    let ended = &ended["occurrences"][0];
    assert_eq!(
        (&ended["state"], &ended["outcome"]),
        (&json!("FAILED"), &json!("exit_code"))
    );
    let (first, last) = (ended["task"].as_str(), ended["last_task"].as_str());
    assert!(first.is_some() && last > first, "{ended}");
    let note = ended["note"].as_str().expect("a note");
    assert!(note.contains("attempt 2 of 2; ") && !note.contains("next:"), "{ended}");
    shell.both("job trigger --detach", &["job", "trigger", "everywhere", "--detach"]);
    shell.both("job enqueue", &["job", "enqueue", "nightly", "everywhere", "nobody"]);
    shell.both("why JOB", &["why", "nightly"]);
    shell.both("ls", &["ls", "-n", "100"]);
    shell.both("job ls", &["job", "ls"]);
    shell.both("job show", &["job", "show", "nightly"]);
    shell.both("job next", &["job", "next"]);
    shell.both("next", &["next", "--runner", "w"]);
    shell.both("job history", &["job", "history", "nightly"]);
    shell.both("job history", &["job", "history", "everywhere"]);
    shell.both("trigger ls", &["trigger", "ls"]);
    let till = ["--until", "+1h", "--reason", "test"];
    shell.both(
        "trigger pause",
        &[&["trigger", "pause", "nightly/night"][..], &till].concat(),
    );
    shell.both("trigger ls", &["trigger", "ls"]);
    shell.both("job show", &["job", "show", "nightly"]);
    shell.both("trigger resume", &["trigger", "resume", "nightly/night", "nobody/x"]);
    shell.both("trigger reset", &["trigger", "reset", "nightly/night", "nobody/x"]);
    shell.both("job pause", &[&["job", "pause", "nightly"][..], &till].concat());
    shell.both("job ls", &["job", "ls"]);
    shell.both("why JOB", &["why", "nightly"]);
    let range = [
        "backfill",
        "nightly",
        "--from",
        "-40h",
        "--to",
        "-10s",
        "--trigger",
        "night",
    ];
    shell.lines("backfill JOB", &[&range[..], &["--dry-run"]].concat());
    let fills = shell.say("backfill JOB", &[&range[..], &["--yes"]].concat());
    shell.both("backfill ls", &["backfill", "ls"]);
    let id = fills["id"].as_str().expect("something was to be made up");
    shell.both("job history", &["job", "history", "nightly"]);
    shell.both("backfill cancel", &["backfill", "cancel", id]);
    shell.both("job resume", &["job", "resume", "nightly", "nobody"]);
}

fn alarms(shell: &mut Shell<'_>) {
    let system = shell.system;
    shell.both("alarm channels", &["alarm", "channels"]);
    shell.both("alarm test", &["alarm", "test", "hook"]);
    until("an alarm was given up, and the job is late", || {
        let kinds = system.say(&["-o", "jsonl", "alarm", "ls", "--state", "failed"]).stdout;
        kinds.contains("\"failure\"") && kinds.contains("\"late\"")
    });
    shell.both("alarm ls", &["alarm", "ls"]);
    let status = shell.both("status", &["status"]);
    assert_ne!(status["late"].as_array().map(Vec::len), Some(0), "{status}");
    shell.both("alarm ack", &["alarm", "ack"]);
    shell.both("alarm ls", &["alarm", "ls"]);
}

fn changes(shell: &mut Shell<'_>) {
    let system = shell.system;
    for (format, from, to) in [("json", "601", "602"), ("jsonl", "602", "603")] {
        let said: Said = system
            .command(&["-o", format, "job", "edit", "nightly", "--reason", "slower"])
            .env("EDITOR", format!("sed -i s/{from}/{to}/"))
            .env_remove("VISUAL")
            .output()
            .expect("starts")
            .into();
        match format {
            "json" => drop(shell.documents.document("job edit", &said)),
            _ => shell.documents.lines("job edit", &said),
        }
    }
    shell.both("job show", &["job", "show", "nightly"]);
    shell.both("job diff", &["job", "diff", "nightly"]);
    shell.both("job history --versions", &["job", "history", "nightly", "--versions"]);
    shell.both("job apply", &["job", "apply", "-f", "jobs.toml", "--restore"]);
    shell.both("job restore", &["job", "restore", "nightly", "--version", "1"]);
}
