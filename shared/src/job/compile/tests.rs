use super::*;
use crate::job::definition::RetryKind;
use crate::task::limits::Limits;
use crate::task::output::{OnLimit, OutputPolicy};
use crate::task::spec::{OnDisconnect, OnRunnerRestart};
use crate::task::terminal::Terminal;

/// 2026-11-29T00:00:00Z.
const NOW: i64 = 1_795_910_400_000;

fn spec(body: &str) -> JobSpec {
    toml::from_str(body).unwrap_or_else(|error| panic!("{body}: {error}"))
}

/// `body` with a name and a command where it has none.
fn faults(body: &str) -> Vec<Invalid> {
    let mut spec = spec(body);
    if spec.name.is_empty() && !body.starts_with("name") {
        spec.name = "a".into();
    }
    if spec.command.is_empty() && spec.shell.is_none() && spec.script.is_none() && !body.contains("command") {
        spec.command = vec!["true".into()];
    }
    spec.compile().expect_err(body)
}

const BACKUP: &str = r#"
name            = "nightly-backup"
description     = "Dump the orders database and copy it off site"
owner           = "dba@example.org"
runbook         = "https://wiki.example.org/backup"
tags            = ["db"]
command         = ["/opt/backup/run", "--day", "{{ scheduled_date }}", "--mode", "{{ data.mode }}"]
dir             = "/var/lib/backup"
run_as          = { user = "backup", group = "backup" }
umask           = "027"
env             = { LANG = "C.UTF-8" }
env_file        = "/etc/systole/env/backup.env"
data            = { mode = "incremental" }
require         = { role = "db", dc = "fra" }
queue           = "night"
route           = "any"
blocking        = "discard_later"
queue_timeout   = "90m"
start_timeout   = "1m"
timeout         = "3h"
silence_timeout = "20m"
warn_signal     = "USR1"
warn_before     = "5m"
kill_signal     = "INT"
kill_grace      = "60s"
output_max      = "32MiB"
output_on_limit = "kill"
output_keep     = "90d"
tty             = true
on_lost         = "fail"
on_disconnect   = "kill"
on_runner_restart = "kill"
callback        = { url = "https://example.org/hook" }
concurrency_group = "warehouse"

[limits]
open_files_max = 1024
core_size_max  = "1GiB"
file_size_max  = "2T"
nice           = 10
memory_max     = "4GiB"
cpu_max        = 1.5
pids_max       = 512

[retry]
policy      = "exponential"
max_retries = 2
delay       = "5m"
cap         = "30m"

[[trigger]]
cron = "30 2 * * *"
zone = "Europe/Berlin"

[[trigger]]
name     = "monthly-full"
rrule    = "FREQ=MONTHLY;BYDAY=1SU;BYHOUR=12;BYMINUTE=0;BYSECOND=0"
priority = 8
data     = { mode = "full" }

[[alarm]]
when = "failure"
to   = ["dba-mail"]
"#;

#[test]
fn a_definition_says_all_of_its_task() {
    let job = spec(BACKUP).compile().expect("job");
    let expected = TaskSpec {
        command: [
            "/opt/backup/run",
            "--day",
            "{{ scheduled_date }}",
            "--mode",
            "{{ data.mode }}",
        ]
        .map(String::from)
        .to_vec(),
        name: "nightly-backup".into(),
        queue: "night".into(),
        require: [("role", "db"), ("dc", "fra")]
            .map(|(k, v)| (k.into(), v.into()))
            .into(),
        tags: vec!["db".into()],
        priority: PRIORITY_DEFAULT,
        timeout_ms: Some(3 * 3_600_000),
        queue_timeout_ms: Some(90 * 60_000),
        start_timeout_ms: Some(60_000),
        silence_timeout_ms: Some(20 * 60_000),
        warn_signal: Some(10),
        warn_before_ms: Some(5 * 60_000),
        kill_signal: 2,
        kill_grace_ms: Some(60_000),
        output: OutputPolicy {
            max_bytes: Some(32 << 20),
            on_limit: OnLimit::Kill,
            keep_ms: Some(90 * 86_400_000),
        },
        tty: Some(Terminal::default()),
        on_disconnect: OnDisconnect::Kill,
        on_runner_restart: OnRunnerRestart::Kill,
        limits: Limits {
            open_files: Some(1024),
            core_bytes: 1 << 30,
            file_bytes: Some(2 << 40),
            nice: Some(10),
            memory_bytes: Some(4 << 30),
            cpu_millis: Some(1_500),
            pids: Some(512),
        },
        umask: 0o027,
        user: Some("backup".into()),
        group: Some("backup".into()),
        env: vec![("LANG".into(), "C.UTF-8".into())],
        env_file: Some("/etc/systole/env/backup.env".into()),
        dir: Some("/var/lib/backup".into()),
        callback_url: Some("https://example.org/hook".into()),
        job: Some("nightly-backup".into()),
        ..TaskSpec::default()
    };
    assert_eq!(job.task, expected);
    assert_eq!(job.blocking, Blocking::DiscardLater);
    assert_eq!(
        (job.max_waiting, job.concurrency_group.as_deref()),
        (100, Some("warehouse"))
    );
    assert_eq!((job.retry.kind, job.retry.max_retries), (RetryKind::Exponential, 2));
    let names: Vec<_> = job.triggers.iter().map(|trigger| trigger.name.as_str()).collect();
    assert_eq!(names, ["cron", "monthly-full"]);
    assert_eq!((job.alarms.len(), job.alarms[0].key().as_str()), (1, "failure:1"));
    assert_eq!(job.warnings, []);
}

#[test]
fn a_shell_text_is_one_argument_of_sh_and_a_plain_job_needs_little() {
    let job = spec("name = \"a\"\nshell = 'echo \"$SYSTOLE_DATA_X\" && date'")
        .compile()
        .expect("job");
    assert_eq!(job.task.command, ["/bin/sh", "-c", "echo \"$SYSTOLE_DATA_X\" && date"]);
    assert_eq!((job.blocking, job.paused), (Blocking::Serial, false));
    assert_eq!((job.templates, job.warnings, job.triggers), (vec![], vec![], vec![]));
}

#[test]
fn fixed_retries_are_those_of_the_task() {
    let body = "name = \"a\"\ncommand = [\"x\"]\nretry = { policy = \"fixed\", max_retries = 2, delay = \"5m\" }";
    let job = spec(body).compile().expect("job");
    assert_eq!((job.task.retry.max_retries, job.task.retry.delay_ms), (2, 300_000));
}

#[test]
fn concurrent_jobs_say_how_many() {
    let job = spec("name = \"a\"\ncommand = [\"x\"]\nblocking = \"concurrent\"\nmax_concurrent = 3").compile();
    assert_eq!(job.expect("job").blocking, Blocking::Concurrent(3));
}

#[test]
fn a_pinned_job_names_its_host() {
    let job = spec("name = \"a\"\ncommand = [\"x\"]\nroute = \"pinned\"\nrunner = \"db-01/3\"").compile();
    let target = job.expect("job").task.target.expect("target");
    assert_eq!((target.host.as_str(), target.slot), ("db-01", Some(3)));
}

#[test]
fn what_is_wrong_names_the_field_and_the_remedy() {
    for (body, field, words) in [
        ("name = \"\"\ncommand = [\"x\"]", "name", "missing"),
        ("name = \"Nightly Backup\"", "name", "lower-case"),
        ("command = []", "command", "shell"),
        ("command = [\"x\"]\nshell = \"y\"", "shell", "command and shell"),
        ("shell = \" \"", "shell", "empty"),
        ("shell = \"load {{ data.x }}\"", "shell", "\"$SYSTOLE_DATA_X\""),
        (
            "command = [\"x\", \"--a={{ scheduled_date }}\"]",
            "command[1]",
            "of its own",
        ),
        ("command = [\"x\", \"{{ task_id }}\"]", "command[1]", "SYSTOLE_TASK_ID"),
        ("command = [\"x\", \"a\\u0000\"]", "command[1]", "NUL"),
        ("timeout = \"12\"", "timeout", "\"12s\" or \"12m\""),
        ("timeout = \"0s\"", "timeout", "leave it out"),
        ("queue_timeout = \"400d\"", "queue_timeout", "366d"),
        ("kill_grace = \"2d\"", "kill_grace", "1d"),
        ("kill_signal = \"TREM\"", "kill_signal", "TERM"),
        ("kill_signal = \"STOP\"", "kill_signal", "ends no program"),
        ("warn_signal = \"USR1\"\ntimeout = \"1h\"", "warn_before", "missing"),
        ("warn_signal = \"USR1\"\nwarn_before = \"5m\"", "warn_signal", "timeout"),
        ("umask = \"888\"", "umask", "octal"),
        ("priority = 10", "priority", "0 to 9"),
        ("output_max = \"1KiB\"", "output_max", "16K"),
        ("output_keep = \"0\"", "output_keep", "leave it out"),
        ("keep_dir = true\ndir = \"/srv\"", "keep_dir", "dir"),
        ("queue = \"A B\"", "queue", "lower-case"),
        ("env = { A = \"1\", SYSTOLE_X = \"2\" }", "env.SYSTOLE_X", "kept"),
        ("env_file = \"backup.env\"", "env_file", "absolute"),
        ("dir = \"backup\"", "dir", "absolute"),
        ("run_as = { group = \"x\" }", "run_as.group", "user"),
        ("callback = { url = \"ftp://x\" }", "callback.url", "http"),
        ("runner = \"db-01\"\nroute = \"any\"", "runner", "pinned"),
        ("route = \"pinned\"", "runner", "missing"),
        ("blocking = \"concurrent\"", "max_concurrent", "missing"),
        ("max_concurrent = 2", "max_concurrent", "concurrent"),
        (
            "blocking = \"concurrent\"\nmax_concurrent = 0",
            "max_concurrent",
            "1 to",
        ),
        (
            "blocking = \"discard_later\"\nmax_waiting = 5",
            "max_waiting",
            "nothing waits",
        ),
        ("max_waiting = 10001", "max_waiting", "10000"),
        ("limits = { open_files_max = 3 }", "limits.open_files_max", "16"),
        ("limits = { file_size_max = \"512\" }", "limits.file_size_max", "512MiB"),
        (
            "retry = { policy = \"fixed\", delay = \"5s\" }",
            "retry.max_retries",
            "missing",
        ),
        ("data = { \"a b\" = 1 }", "data", "letters"),
        ("tags = [\"A\"]", "tags[0]", "lower-case"),
        ("description = \"a\\nb\"", "description", "control"),
        ("trigger = [{ name = \"t\" }]", "trigger[0]", "no kind"),
        (
            "trigger = [{ cron = \"0 1 * * *\" }, { cron = \"0 2 * * *\" }]",
            "trigger[1].name",
            "of its own",
        ),
        (
            "trigger = [{ name = \"T 1\", cron = \"0 1 * * *\" }]",
            "trigger[0].name",
            "lower-case",
        ),
        (
            "command = [\"x\", \"{{ data.mode }}\"]\ntrigger = [{ cron = \"0 1 * * *\", data = { mode = \"a\" } }, { fixed_rate = \"1m\" }]",
            "command[1]",
            "trigger \"fixed-rate\"",
        ),
    ] {
        let faults = faults(body);
        assert_eq!(faults.len(), 1, "{body}: {faults:?}");
        assert_eq!(faults[0].field, field, "{body}: {}", faults[0]);
        assert!(faults[0].message.contains(words), "{body}: {}", faults[0]);
    }
}

#[test]
fn what_cannot_be_done_yet_is_refused_and_never_passed_over() {
    for (body, field) in [
        ("script = \"x\"", "script"),
        ("output_drain = \"5s\"", "output_drain"),
        ("history_keep = \"30d\"", "history_keep"),
        ("fence = true", "fence"),
        ("limits = { cpu_weight = 50 }", "limits.cpu_weight"),
    ] {
        let faults = faults(body);
        assert_eq!(faults.len(), 1, "{body}: {faults:?}");
        assert_eq!(faults[0].field, field, "{body}");
        assert!(faults[0].message.contains("not supported yet"), "{}", faults[0]);
    }
}

#[test]
fn failover_means_that_the_old_child_is_ended_before_the_verdict() {
    for (body, on_disconnect, recoveries) in [
        ("", OnDisconnect::Continue, 0),
        ("on_lost = \"failover\"", OnDisconnect::Kill, 1),
        (
            "on_lost = \"failover\"\nmax_recoveries = 3\non_disconnect = \"continue\"",
            OnDisconnect::Continue,
            3,
        ),
    ] {
        let job = spec(&format!("name = \"a\"\ncommand = [\"x\"]\n{body}"))
            .compile()
            .expect(body);
        assert_eq!(
            (job.task.on_disconnect, job.max_recoveries),
            (on_disconnect, recoveries),
            "{body}"
        );
    }
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let faults = faults(
        "name = \"A\"\ntimeout = \"5\"\nkill_signal = \"X\"\nmax_concurrent = 2\nretry = { max_retries = 1 }\ntrigger = [{}]",
    );
    let fields: Vec<_> = faults.iter().map(|fault| fault.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "name",
            "max_concurrent",
            "retry.policy",
            "trigger[0]",
            "timeout",
            "kill_signal"
        ]
    );
}

#[test]
fn triggers_are_compiled_with_calendars_and_zones() {
    let context = TriggerContext {
        created_ms: NOW,
        default_zone: &Zone::utc(),
        calendars: &BTreeMap::new(),
        registry: &Registry::built_in(),
    };
    let job = spec(BACKUP).compile().expect("job");
    let triggers = job.compile_triggers(&context).expect("triggers");
    let keys: Vec<_> = triggers.iter().map(|trigger| trigger.key.as_str()).collect();
    assert_eq!(keys, ["nightly-backup/cron", "nightly-backup/monthly-full"]);
    assert_eq!(job.check_fires(&triggers, NOW), Ok(()));

    let wrong = spec(
        "name = \"a\"\ncommand = [\"x\"]\ntrigger = [{ name = \"u\", cron = \"0 9 * * 1-8\" }, { name = \"v\", cron = \"0 1 * * *\", exclude_calendars = [\"h\"] }]",
    );
    let faults = wrong
        .compile()
        .expect("job")
        .compile_triggers(&context)
        .expect_err("refused");
    let fields: Vec<_> = faults.iter().map(|fault| fault.field.as_str()).collect();
    assert_eq!(fields, ["trigger[0].cron", "trigger[1].exclude_calendars"]);
    assert!(faults[0].message.contains("day of week 8"), "{}", faults[0]);

    let past = spec("name = \"a\"\ncommand = [\"x\"]\ntrigger = [{ at = \"2020-01-01T00:00:00Z\" }]")
        .compile()
        .expect("job");
    let triggers = past.compile_triggers(&context).expect("triggers");
    assert_eq!(
        past.check_fires(&triggers, NOW).expect_err("refused")[0].field,
        "trigger[0].at"
    );
}
