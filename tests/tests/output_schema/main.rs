//! `docs/output.schema.json` says what `-o json` and `-o jsonl` write: each document and each line of a real system is held
//! against it, and none of its fields may be missing there. Which commands there are is asked of the program, so that a new one
//! without a shape is noticed.

mod documents;
mod here;
mod jobs;

use documents::{Documents, Shell, command_of, commands_of_the_parser, keys, schema};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use systole_proto::json::FORMAT;
use systole_tests::replica::Replica;
use systole_tests::system::until;
use systole_tests::{Receiver, System, TestDb};

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
fn every_command_of_the_parser_has_its_place_in_the_schema() {
    let schema = schema();
    let (documents, lines, silent) = (
        keys(&schema, "x-documents"),
        keys(&schema, "x-lines"),
        keys(&schema, "x-silent"),
    );
    assert_eq!(documents, lines, "what has a document has lines, too");
    let known: BTreeSet<String> = documents.union(&silent).map(|key| command_of(key)).collect();
    let typed = commands_of_the_parser();
    let missing: Vec<_> = typed.difference(&known).collect();
    assert!(
        missing.is_empty(),
        "docs/output.schema.json says nothing of {missing:?}: x-documents and x-lines, or x-silent for what writes no document"
    );
    let gone: Vec<_> = known.difference(&typed).collect();
    assert!(gone.is_empty(), "these commands do not exist: {gone:?}");
}

#[test]
fn every_document_of_a_real_system_is_as_the_schema_says_on_sqlite() {
    everything(TestDb::sqlite());
}

#[test]
fn every_document_of_a_real_system_is_as_the_schema_says_on_postgres() {
    everything(TestDb::postgres());
}

fn everything(db: TestDb) {
    let mut system = System::new(db);
    let hook = Receiver::start();
    // What it does not take is told by `alarm ls` with its error.
    hook.answer(400);
    std::fs::write(
        system.path("alarms.toml"),
        format!(
            "[[channel]]\nname = \"hook\"\nkind = \"webhook\"\nurl = \"{}\"\n",
            hook.url
        ),
    )
    .expect("channels");
    let channels = system.path("alarms.toml").display().to_string();
    let scheduler = system.scheduler_with(
        0,
        &[
            "--beat",
            "2s",
            "--lost-after",
            "6s",
            "--check",
            "500ms",
            "--alarms",
            &channels,
        ],
    );
    let mut shell = Shell {
        system: &system,
        documents: Documents::new(),
    };
    // Before there is a runner.
    let waits = system.submit(&["--require", "gpu=1", "--", "true"]);
    shell.both("why TASK", &["why", &waits]);
    let mut runner = system.runner("w", 3, &["--label", "dc=fra"]);
    let mut second = system.runner("x", 1, &["--label", "dc=ams"]);
    until("the runners are there", || {
        system.say(&["-o", "id", "runners"]).stdout.lines().count() == 4
    });
    tasks(&mut shell, &waits);
    access(&mut shell);
    freezes_and_leases(&mut shell);
    jobs::jobs(&mut shell);
    here::here(&mut shell);

    shell.both("runners ls", &["runners", "ls"]);
    let cordon = ["runners", "cordon", "w", "--until", "1h", "--reason", "kernel"];
    shell.both("runners cordon", &cordon);
    shell.both("runners ls", &["runners", "ls"]);
    shell.both("runners uncordon", &["runners", "uncordon", "w", "nobody"]);
    let held = system.submit(&["--runner", "w", "--", "sleep", "600"]);
    system.until(&held, &["RUNNING"]);
    shell.both("runners drain", &["runners", "drain", "w"]);
    shell.both("why TASK", &["why", &held]);
    for (host, process) in [("w", &mut runner), ("x", &mut second)] {
        process.kill();
        system.kill_warden(host);
    }
    until("the host is lost", || system.state(&held) == "FAILED");
    shell.both("status", &["status"]);
    for (host, format) in [("w", "json"), ("x", "jsonl")] {
        until("the host is silent for long enough", || {
            let said = system.say(&["-o", format, "runners", "rm", host]);
            match (said.code, format) {
                (Some(0), "json") => drop(shell.documents.document("runners rm", &said)),
                (Some(0), _) => shell.documents.lines("runners rm", &said),
                _ => return false,
            }
            true
        });
    }

    let mut documents = shell.documents;
    drop(scheduler);
    held_until_somebody_looked(&mut system, &mut documents);
    let schema = schema();
    let (mut known, mut silent) = (keys(&schema, "x-documents"), keys(&schema, "x-silent"));
    if system.db.postgres.is_some() {
        // It is not SQLite, so that there is no document and no database to write.
        known.remove("backup");
        silent.remove("backup -");
    }
    // What serves writes its own words.
    silent.retain(|key| schema["x-silent"][key] != json!("a service"));
    let missing = |known: &BTreeSet<String>, seen: &BTreeSet<String>| -> Vec<String> {
        known.difference(seen).cloned().collect()
    };
    let wrong: Vec<String> = documents
        .wrong
        .iter()
        .map(|(what, why)| format!("{what}: {why}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert_eq!(missing(&known, &documents.documents), Vec::<String>::new(), "documents");
    assert_eq!(missing(&known, &documents.lines), Vec::<String>::new(), "lines");
    assert_eq!(missing(&silent, &documents.silent), Vec::<String>::new(), "silent");
}

fn tasks(shell: &mut Shell<'_>, waits: &str) {
    let system = shell.system;
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
    shell.both("ls", &["ls"]);
    shell.both("show", &["show", &id]);
    shell.both("why TASK", &["why", &id]);
    shell.both("run", &["run", "--tty", "--timeout", "1m", "--", "true"]);
    shell.both("submit", &["submit", "--", "true"]);
    shell.both("wait", &["wait", "--exact", &id]);
    shell.both("rerun", &["rerun", &id]);
    shell.both("rerun --dry-run", &["rerun", "--failed", "--dry-run"]);
    shell.both("cancel --dry-run", &["cancel", "--state", "queued", "--dry-run"]);
    shell.both("cancel", &["cancel", waits, "999999"]);
    std::fs::write(system.path("lines"), "true\n{\"command\": []}\nfalse\n").expect("lines");
    let batch = shell.both("submit --batch", &["submit", "--batch", "lines"]);
    let batch = batch["batch"].as_str().expect("batch");
    shell.both("wait --batch", &["wait", "--batch", batch]);
    shell.silent("logs", &["logs", &id]);
    shell.silent("top", &["top"]);
    shell.both("status", &["status"]);
    shell.both("audit", &["audit"]);
    shell.both("doctor", &["doctor"]);
}

fn access(shell: &mut Shell<'_>) {
    let system = shell.system;
    shell.both("token ls", &["token", "ls"]);
    let create = |name| ["token", "create", name, "--role", "viewer", "--expires", "1h"];
    shell.say("token create", &create("ann"));
    shell.lines("token create", &create("bob"));
    shell.both("token revoke", &["token", "revoke", "ann", "nobody"]);
    shell.both("join-command", &["join-command", "--address", "https://10.0.0.5:7410"]);
    shell.silent("context add", &["context", "add", "here", "--url", &system.url]);
    shell.silent("context use", &["context", "use", "here"]);
    shell.both("context ls", &["context", "ls"]);
    shell.silent("context rm", &["context", "rm", "here"]);
}

fn freezes_and_leases(shell: &mut Shell<'_>) {
    let system = shell.system;
    shell.both("pause", &["pause", "--queue", "default", "--reason", "CHG-1042"]);
    let frozen = system.submit(&["--", "true"]);
    let why = shell.both("why TASK", &["why", &frozen]);
    assert_eq!(why["blockers"][0]["command"], "systole resume --queue default", "{why}");
    shell.both("status", &["status"]);
    shell.both("resume", &["resume", "--queue", "default"]);
    shell.silent("lock RESOURCE", &["lock", "disk", "--", "true"]);
    for format in ["json", "jsonl"] {
        let mut holder = system
            .command(&["lock", "disk", "--", "sleep", "600"])
            .spawn()
            .expect("starts");
        until("somebody holds it", || {
            system.say(&["-o", "id", "lock", "ls"]).stdout.trim() == "disk"
        });
        shell.both("lock ls", &["lock", "ls"]);
        let release = ["lock", "release", "disk", "--now", "--reason", "test"];
        match format {
            "json" => drop(shell.say("lock release", &release)),
            _ => shell.lines("lock release", &release),
        }
        holder.kill().expect("killed");
        holder.wait().expect("waited");
    }
}

/// A scheduler in this process, whose clock can be told to jump.
fn held_until_somebody_looked(system: &mut System, documents: &mut Documents) {
    const TEN_YEARS_MS: i64 = 315_360_000_000;
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let replica = runtime.block_on(Replica::start(&system.db));
    system.url = replica.url();
    let system = &*system;
    replica.running.context.clock.skew(TEN_YEARS_MS);
    until("the clock is not believed", || {
        !system.say(&["-o", "id", "admin", "alarms"]).stdout.is_empty()
    });
    for (command, args) in [
        ("admin alarms", ["admin", "alarms", "-q"]),
        ("admin confirm", ["admin", "confirm", "clock"]),
    ] {
        let said = |format| system.say(&[&["-o", format], &args[..]].concat());
        documents.document(command, &said("json"));
        documents.lines(command, &said("jsonl"));
    }
    runtime.block_on(replica.stop());
}
