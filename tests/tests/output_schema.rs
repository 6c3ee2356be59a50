//! `docs/output.schema.json` says what `-o json` writes: each document of a real system is held against it, and none of its
//! fields may be missing there.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use systole_proto::json::FORMAT;
use systole_tests::system::{System, until};

fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/output.schema.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("schema")).expect("JSON")
}

/// For programs a new field is no change; here it must be described.
fn strict(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.contains_key("properties") {
                map.insert("additionalProperties".into(), Value::Bool(false));
            }
            map.values_mut().for_each(strict);
        }
        Value::Array(values) => values.iter_mut().for_each(strict),
        _ => {}
    }
}

struct Documents {
    schema: Value,
    seen: BTreeMap<String, String>,
}

impl Documents {
    fn new() -> Self {
        let mut schema = schema();
        strict(&mut schema);
        Self {
            schema,
            seen: BTreeMap::new(),
        }
    }

    /// Holds a document against what is said of its command.
    #[track_caller]
    fn check(&mut self, command: &str, text: &str) -> Value {
        let document: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{command}: {error}\n{text}"));
        let name = self.schema["x-documents"][command]
            .as_str()
            .unwrap_or_else(|| panic!("docs/output.schema.json does not know `systole {command}`"))
            .to_owned();
        let mut wanted = self.schema.clone();
        let map = wanted.as_object_mut().expect("object");
        map.remove("anyOf");
        map.insert("$ref".into(), json!(format!("#/$defs/{name}")));
        let validator = jsonschema::validator_for(&wanted).expect("a schema");
        let wrong: Vec<String> = validator
            .iter_errors(&document)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(wrong.is_empty(), "{command} ({name}):\n{}\n{text}", wrong.join("\n"));
        self.seen.insert(command.to_owned(), name);
        document
    }
}

struct Shell<'a> {
    system: &'a System,
    documents: Documents,
}

impl Shell<'_> {
    /// Runs a command with `-o json`, and checks what it writes as the document of `command`.
    #[track_caller]
    fn say(&mut self, command: &str, args: &[&str]) -> Value {
        let said = self.system.say(&[&["-o", "json"], args].concat());
        assert!(!said.stdout.is_empty(), "{args:?}: {said:?}");
        self.documents.check(command, &said.stdout)
    }
}

#[test]
fn the_schema_has_the_version_of_the_documents() {
    let schema = schema();
    assert_eq!(schema["x-format"], json!(FORMAT));
    let named: BTreeSet<&str> = schema["x-documents"]
        .as_object()
        .expect("object")
        .values()
        .filter_map(Value::as_str)
        .collect();
    let listed: BTreeSet<&str> = schema["anyOf"]
        .as_array()
        .expect("list")
        .iter()
        .filter_map(|one| one["$ref"].as_str()?.strip_prefix("#/$defs/"))
        .collect();
    assert_eq!(named, listed);
    for name in listed {
        assert_eq!(
            schema["$defs"][name]["properties"]["format"]["const"],
            json!(FORMAT),
            "{name}"
        );
    }
}

#[test]
fn every_document_of_a_real_system_is_as_the_schema_says() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let mut documents = Documents::new();
    documents.seen.clear();
    let mut shell = Shell {
        system: &system,
        documents,
    };
    // Before there is a runner.
    let waits = system.submit(&["--require", "gpu=1", "--", "true"]);
    shell.say("why TASK", &["why", &waits]);
    let mut runner = system.runner("w", 2, &["--label", "dc=fra"]);
    until("the runner is there", || {
        !system.say(&["-o", "id", "runners"]).stdout.is_empty()
    });
    let id = system.submit(&[
        "--reason",
        "CHG-1",
        "--retry",
        "1",
        "--env",
        "A=b",
        "--",
        "sh",
        "-c",
        "echo x; exit 3",
    ]);
    system.until(&id, &["FAILED"]);

    shell.say("ls", &["ls"]);
    shell.say("show", &["show", &id]);
    shell.say("why TASK", &["why", &id]);
    shell.say("run", &["run", "--tty", "--timeout", "1m", "--", "true"]);
    shell.say("submit", &["submit", "--", "true"]);
    shell.say("wait", &["wait", "--exact", &id]);
    shell.say("rerun", &["rerun", &id]);
    shell.say("rerun --dry-run", &["rerun", "--failed", "--dry-run"]);
    shell.say("cancel --dry-run", &["cancel", "--state", "queued", "--dry-run"]);
    shell.say("cancel", &["cancel", &waits, "999999"]);
    std::fs::write(system.path("lines"), "true\nfalse\n").expect("lines");
    let batch = shell.say("submit --batch", &["submit", "--batch", "lines"]);
    shell.say(
        "wait --batch",
        &["wait", "--batch", batch["batch"].as_str().expect("batch")],
    );
    shell.say("status", &["status"]);
    shell.say("audit", &["audit"]);
    shell.say("admin alarms", &["admin", "alarms"]);

    shell.say("token ls", &["token", "ls"]);
    shell.say(
        "token create",
        &["token", "create", "ann", "--role", "viewer", "--expires", "1h"],
    );
    shell.say("token revoke", &["token", "revoke", "ann", "nobody"]);
    shell.say("join-command", &["join-command", "--address", "https://10.0.0.5:7410"]);
    let context = ["context", "add", "here", "--url", &system.url];
    assert_eq!(system.say(&context).code, Some(0));
    shell.say("context ls", &["context", "ls"]);

    shell.say("pause", &["pause", "--queue", "default", "--reason", "CHG-1042"]);
    let frozen = system.submit(&["--", "true"]);
    let why = shell.say("why TASK", &["why", &frozen]);
    assert_eq!(why["blockers"][0]["command"], "systole resume --queue default", "{why}");
    shell.say("status", &["status"]);
    shell.say("resume", &["resume", "--queue", "default"]);
    let mut holder = system
        .command(&["lock", "disk", "--", "sleep", "600"])
        .spawn()
        .expect("starts");
    until("somebody holds it", || {
        !shell.say("lock ls", &["lock", "ls"])["results"]
            .as_array()
            .expect("list")
            .is_empty()
    });
    shell.say(
        "lock release",
        &["lock", "release", "disk", "--now", "--reason", "test"],
    );
    holder.kill().expect("killed");
    holder.wait().expect("waited");

    jobs(&mut shell);

    shell.say("runners ls", &["runners", "ls"]);
    shell.say(
        "runners cordon",
        &["runners", "cordon", "w", "--until", "1h", "--reason", "kernel"],
    );
    shell.say("runners ls", &["runners", "ls"]);
    shell.say("runners uncordon", &["runners", "uncordon", "w", "nobody"]);
    let held = system.submit(&["--", "sleep", "600"]);
    system.until(&held, &["RUNNING"]);
    shell.say("runners drain", &["runners", "drain", "w"]);
    shell.say("why TASK", &["why", &held]);
    runner.kill();
    system.kill_warden("w");
    until("the host is lost", || system.state(&held) == "FAILED");
    until("the host is silent for long enough", || {
        let said = system.say(&["-o", "json", "runners", "rm", "w"]);
        said.code == Some(0) && {
            shell.documents.check("runners rm", &said.stdout);
            true
        }
    });

    let told: BTreeSet<&String> = shell.documents.seen.keys().collect();
    let schema = schema();
    let known: BTreeSet<&String> = schema["x-documents"].as_object().expect("object").keys().collect();
    // Nothing is held here that could be confirmed; its shape is looked at with the clock that jumps.
    let missing: Vec<_> = known.difference(&told).map(|name| name.as_str()).collect();
    assert_eq!(missing, ["admin confirm"]);
}

fn jobs(shell: &mut Shell<'_>) {
    let system = shell.system;
    let file = r#"
[[concurrency_group]]
name = "disk"
limit = 1
[[job]]
name = "nightly"
command = ["sleep", "600"]
concurrency_group = "disk"
[[job.trigger]]
name = "night"
cron = "30 2 * * *"
zone = "Europe/Berlin"
[[job.trigger]]
name = "often"
fixed_rate = "1s"
"#;
    std::fs::write(system.path("jobs.toml"), file).expect("file");
    std::fs::write(
        system.path("wrong.toml"),
        "[[job]]\nname = \"x\"\ncommand = [\"x\"]\nretires = 1\n",
    )
    .expect("file");
    std::fs::write(system.path("tab"), "30 2 * * * /usr/bin/backup\n@reboot x\n").expect("file");
    shell.say("job check", &["job", "check", "jobs.toml", "wrong.toml"]);
    shell.say("job apply", &["job", "apply", "-f", "jobs.toml", "--dry-run"]);
    shell.say("job apply", &["job", "apply", "-f", "jobs.toml"]);
    std::fs::write(system.path("jobs.toml"), file.replace("600", "601")).expect("file");
    shell.say("job apply", &["job", "apply", "-f", "jobs.toml"]);
    until("a run waits for its place", || {
        let document = shell.say("why JOB", &["why", "nightly"]);
        document["blockers"]
            .as_array()
            .is_some_and(|blockers| !blockers.is_empty())
    });
    shell.say(
        "job pause",
        &["job", "pause", "nightly", "--until", "+1h", "--reason", "test"],
    );
    shell.say("job ls", &["job", "ls"]);
    shell.say("job show", &["job", "show", "nightly"]);
    shell.say("job next", &["job", "next"]);
    shell.say("job history", &["job", "history", "nightly"]);
    let fills = shell.say(
        "backfill JOB",
        &[
            "backfill",
            "nightly",
            "--from",
            "-40h",
            "--to",
            "-10s",
            "--trigger",
            "night",
            "--yes",
        ],
    );
    shell.say("backfill ls", &["backfill", "ls"]);
    if let Some(id) = fills["id"].as_str() {
        shell.say("backfill cancel", &["backfill", "cancel", id]);
    }
    shell.say("job trigger --detach", &["job", "trigger", "nightly", "--detach"]);
    shell.say("why JOB", &["why", "nightly"]);
    shell.say("job resume", &["job", "resume", "nightly", "nobody"]);
    shell.say("job rm", &["job", "rm", "nightly"]);
    // What runs of it goes on, and would keep the slots of the host.
    system.say(&["cancel", "--job", "nightly", "--yes"]);
    shell.say("import crontab", &["import", "crontab", "tab"]);
    shell.say("cron next", &["cron", "next", "30 2 * * *", "--zone", "Europe/Berlin"]);
    shell.say("cron explain", &["cron", "explain", "30 2 * * *"]);
}
