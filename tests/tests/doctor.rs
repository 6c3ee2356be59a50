//! `systole doctor`, and logs by which a task is followed: what an operator looks at when something is wrong.

use std::os::unix::fs::PermissionsExt as _;
use systole_tests::system::{Said, System, until};

fn findings(said: &Said) -> Vec<serde_json::Value> {
    let value: serde_json::Value = serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("JSON: {said:?}"));
    let found = value["findings"].as_array().cloned().expect("a list");
    let problems = found.iter().filter(|finding| finding["level"] == "problem").count();
    assert_eq!(value["problems"], problems);
    assert_eq!(said.code, Some(i32::from(problems > 0)), "{said:?}");
    for finding in &found {
        let well = finding["level"] == "ok";
        assert_eq!(
            well,
            finding["remedy"] == "",
            "each has a remedy, unless it is well: {finding}"
        );
    }
    found
}

fn of<'a>(findings: &'a [serde_json::Value], check: &str) -> Vec<&'a serde_json::Value> {
    findings.iter().filter(|finding| finding["check"] == check).collect()
}

fn a_cluster_is_looked_at(system: &System) {
    let doctor = || system.say(&["-o", "json", "doctor"]);
    let _scheduler = system.scheduler(0);
    let alone = findings(&doctor());
    assert_eq!(of(&alone, "hosts")[0]["level"], "problem", "no runner: {alone:?}");
    let _runner = system.runner("w", 1, &[]);
    until("the runner is there", || of(&findings(&doctor()), "hosts").is_empty());
    let found = findings(&doctor());
    for check in [
        "scheduler",
        "clock",
        "tzdata",
        "files",
        "database",
        "versions",
        "token",
        "guard",
        "processes",
        "policy",
    ] {
        assert!(!of(&found, check).is_empty(), "{check}: {found:?}");
    }
    for check in ["clock", "versions", "token", "scheduler"] {
        for finding in of(&found, check) {
            assert_eq!(finding["level"], "ok", "{finding}");
        }
    }
    let table = system.say(&["doctor"]).stdout;
    assert!(table.lines().any(|line| line.starts_with("ok       clock")), "{table}");

    let token = system.db.token_dir().join("admin.token");
    let mode = |mode| std::fs::set_permissions(&token, std::fs::Permissions::from_mode(mode)).expect("set");
    mode(0o644);
    let open = findings(&doctor());
    mode(0o600);
    let finding = of(&open, "token")[0];
    assert!(
        finding["level"] == "problem" && finding["message"].to_string().contains("chmod 600"),
        "{finding}"
    );
}

#[test]
fn a_doctor_looks_at_a_cluster_on_sqlite() {
    let system = System::sqlite();
    a_cluster_is_looked_at(&system);
}

#[test]
fn a_doctor_looks_at_a_cluster_on_postgresql() {
    let system = System::postgres();
    a_cluster_is_looked_at(&system);
}

#[test]
fn without_a_scheduler_the_doctor_still_looks_at_this_machine() {
    let system = System::sqlite();
    std::fs::create_dir(system.db.token_dir()).expect("made");
    let token = system.db.token_dir().join("admin.token");
    std::fs::write(&token, "systole_admin_x\n").expect("written");
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).expect("set");
    let found = findings(&system.say(&["-o", "json", "doctor"]));
    let scheduler = of(&found, "scheduler");
    assert_eq!(scheduler.len(), 1, "{found:?}");
    assert_eq!(scheduler[0]["level"], "problem");
    assert!(
        scheduler[0]["remedy"].to_string().contains("systole up"),
        "{scheduler:?}"
    );
    assert!(!of(&found, "files").is_empty() && !of(&found, "processes").is_empty());
}

/// Lines of a JSON log about a task.
fn steps(log: &str, id: &str) -> Vec<serde_json::Value> {
    log.lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|line| line["target"] == "task" && line["task_id"].as_i64() == id.parse().ok())
        .collect()
}

fn messages(steps: &[serde_json::Value]) -> Vec<&str> {
    steps.iter().filter_map(|step| step["message"].as_str()).collect()
}

#[test]
fn a_task_that_has_ended_is_followed_by_its_id_through_all_logs() {
    let system = System::sqlite();
    let options = ["--log-format", "json", "--log-tasks"];
    let scheduler = system.scheduler_with(0, &options);
    let runner = system.runner("w", 1, &options);
    let id = system.submit(&["--", "sh", "-c", "exit 3"]);
    system.until(&id, &["FAILED"]);
    let other = system.submit(&["--retry", "1", "--", "sh", "-c", "exit 4"]);
    system.until(&other, &["FAILED"]);

    until("the result is stored", || {
        messages(&steps(&runner.log(), &id)).contains(&"its result is stored")
    });
    let told = steps(&scheduler.log(), &id);
    assert_eq!(messages(&told), ["submitted", "dispatched", "ended"], "{told:?}");
    assert_eq!(
        (&told[0]["by"], told[0]["span"]["call"].is_string()),
        (&"admin".into(), true),
        "{told:?}"
    );
    assert_eq!(
        told[0]["span"]["request_id"].as_str().map(str::len),
        Some(16),
        "{told:?}"
    );
    assert_eq!((&told[1]["runner"], &told[2]["runner"]), (&"w/0".into(), &"w/0".into()));
    assert_eq!(
        (&told[2]["state"], &told[2]["outcome"]),
        (&"FAILED".into(), &"exit_code".into()),
        "{told:?}"
    );

    let agent = steps(&runner.log(), &id);
    assert_eq!(
        agent.first().map(|step| &step["runner"]),
        Some(&"w/0".into()),
        "{agent:?}"
    );
    assert!(
        agent
            .iter()
            .any(|step| step["message"] == "ended" && step["exit_code"] == 3),
        "{agent:?}"
    );
    let warden = std::fs::read_to_string(system.path("w").join("warden.log")).expect("its log");
    let warden = steps(&warden, &id);
    assert_eq!(messages(&warden), ["started", "its end is written down"], "{warden:?}");
    assert!(warden[0]["pid"].as_i64().is_some_and(|pid| pid > 0), "{warden:?}");

    until("the retry is told, too", || {
        steps(&scheduler.log(), &(other.parse::<i64>().expect("id") + 1).to_string())
            .first()
            .is_some_and(|step| step["message"] == "follows" && step["retry_of"].as_i64() == other.parse().ok())
    });
}

#[test]
fn logs_are_for_people_unless_machines_are_meant_and_tasks_are_told_when_asked_for() {
    let system = System::sqlite();
    let scheduler = system.scheduler_with(0, &["--log", "text"]);
    let _runner = system.runner("w", 1, &[]);
    let id = system.submit(&["--", "true"]);
    system.until(&id, &["FINISHED"]);
    let log = scheduler.log();
    assert!(log.contains("scheduler ready"), "{log}");
    assert!(!log.contains(&format!("task_id={id}")) && !log.contains('{'), "{log}");
}

#[test]
fn an_answer_names_its_request_and_keeps_the_name_that_it_was_given() {
    use std::io::{Read as _, Write as _};
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let port = system.ports[0];
    let ask = |header: &str| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connects");
        write!(
            stream,
            "GET /healthz HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n\r\n"
        )
        .expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        let line = text.lines().find_map(|line| line.strip_prefix("x-request-id: "));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    assert_eq!(ask("x-request-id: deploy-17.a\r\n"), "deploy-17.a");
    let (first, second) = (ask(""), ask("x-request-id: a b\r\n"));
    assert!(
        first.len() == 16 && second.len() == 16 && first != second,
        "{first} {second}"
    );
}
