//! Cases from other systems' issue trackers that concern what a command gets and what becomes of its output.

use systole_tests::TestDb;
use systole_tests::system::{System, until};

/// Runs a task to its end; the task, and its two streams as they are stored.
fn run(system: &System, args: &[&str]) -> (serde_json::Value, Vec<u8>, Vec<u8>) {
    let id = system.submit(args);
    let task = system.until(&id, &["FINISHED", "FAILED", "TERMINATED"]);
    let (stdout, stderr) = logs(system, &id);
    (task, stdout, stderr)
}

fn logs(system: &System, id: &str) -> (Vec<u8>, Vec<u8>) {
    let output = system.command(&["logs", id]).output().expect("systole starts");
    assert!(output.status.success(), "{output:?}");
    (output.stdout, output.stderr)
}

/// rundeck/rundeck#1292, travis-ci/travis-ci#3820: what was not followed by a newline was lost.
#[test]
fn d13_a_last_line_without_newline_is_kept_and_two_streams_stay_apart() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 2, &[]);
    for (script, exit, stdout, stderr) in [
        ("printf 'done'", 0, "done", ""),
        ("printf 'oops' >&2; exit 3", 3, "", "oops"),
        ("printf 'note' >&2; sleep 0.3; printf 'KEY=1\\n'", 0, "KEY=1\n", "note"),
        ("true", 0, "", ""),
        ("printf 'a\\n\\n\\nb'", 0, "a\n\n\nb", ""),
    ] {
        let (task, out, err) = run(&system, &["--shell", script]);
        assert_eq!(task["outcome"]["exit_code"], exit, "{task}");
        assert_eq!(
            (out.as_slice(), err.as_slice()),
            (stdout.as_bytes(), stderr.as_bytes()),
            "{script}"
        );
    }
    // Live, too.
    let go = system.path("go");
    let id = system.submit(&[
        "--shell",
        &format!("printf part; until test -e {}; do sleep 0.02; done", go.display()),
    ]);
    until("a part of a line is seen while the command runs", || {
        logs(&system, &id).0 == b"part"
    });
    assert_eq!(system.state(&id), "RUNNING");
    std::fs::write(&go, "").expect("written");
    system.until(&id, &["FINISHED"]);
}

/// aptible/supercronic#13, ncarlier/webhookd#98: a line beyond the buffer stopped the reader, and the command with it.
#[test]
fn d14_one_very_long_line_is_a_line_like_any_other() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 1, &[]);
    for bytes in [65_537_usize, 1_048_576] {
        let script = format!("head -c {bytes} /dev/zero | tr '\\0' x; echo; echo after");
        let (task, stdout, _) = run(&system, &["--shell", &script]);
        assert_eq!(task["state"], "FINISHED", "{task}");
        assert_eq!(stdout.len(), bytes + 1 + 6);
        assert!(stdout[..bytes].iter().all(|&b| b == b'x') && stdout.ends_with(b"x\nafter\n"));
    }
    // Beyond what is stored of a stream: every byte is stored or counted.
    let (task, stdout, _) = run(
        &system,
        &["--shell", "head -c 10485760 /dev/zero | tr '\\0' x; echo after"],
    );
    assert_eq!(task["state"], "FINISHED", "{task}");
    let number = |field: &str| task[field].as_u64().expect("a number");
    assert_eq!(
        number("stdout_bytes") + number("stdout_dropped_bytes"),
        10_485_766,
        "{task}"
    );
    assert!(stdout.starts_with(b"xxx") && stdout.len() > 1 << 20);
}

/// apache/devlake#5243, b00ted/serilog-sinks-postgresql#24: one byte that is no text made the insert fail.
#[test]
fn d15_output_that_is_no_text_is_stored_byte_by_byte() {
    for db in [TestDb::sqlite(), TestDb::postgres()] {
        let system = System::new(db);
        let _scheduler = system.scheduler(0);
        let _runner = system.runner("w", 1, &[]);
        let random = system.path("random");
        let script = format!("head -c 65536 /dev/urandom | tee {}; echo END", random.display());
        let cases: [(&str, Option<&[u8]>); 4] = [
            ("printf 'a\\377\\376b\\n'", Some(b"a\xff\xfeb\n")),
            ("printf 'x\\000y\\n'", Some(b"x\0y\n")),
            (&script, None),
            ("printf '\\033[31mred\\033[0m\\n'", Some(b"\x1b[31mred\x1b[0m\n")),
        ];
        for (script, expected) in cases {
            let (task, stdout, _) = run(&system, &["--shell", script]);
            assert_eq!(task["state"], "FINISHED", "{task}");
            let expected = match expected {
                Some(expected) => expected.to_vec(),
                None => [std::fs::read(&random).expect("read"), b"END\n".to_vec()].concat(),
            };
            assert!(stdout == expected, "{script}");
            let (task, stdout, _) = run(&system, &["--", "echo", "fine"]);
            assert_eq!(
                (&task["state"], stdout.as_slice()),
                (&"FINISHED".into(), &b"fine\n"[..])
            );
        }
    }
}

/// mcuadros/ofelia#249, cronie-crond/cronie#195, systemd-cron/systemd-cron#146: operators became arguments, `%` was lost.
#[test]
fn d17_the_lines_of_an_old_crontab_do_what_they_did() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 2, &[]);
    let shell = |script: &str, env: &[&str]| {
        let mut args = vec!["--shell", script];
        env.iter().for_each(|var| args.extend(["--env", var]));
        let (task, stdout, _) = run(&system, &args);
        (
            task["outcome"]["exit_code"].as_i64(),
            String::from_utf8(stdout).expect("text"),
        )
    };
    let alpha = shell("echo \"$TARGET\" && echo \"two  spaces\"", &["TARGET=alpha"]);
    assert_eq!(alpha, (Some(0), "alpha\ntwo  spaces\n".into()));
    let (exit, date) = shell("date +%Y-%m-%d", &[]);
    assert_eq!(
        (exit, date.len(), date.matches('-').count()),
        (Some(0), 11, 2),
        "{date}"
    );
    let quoted = shell("printf '%s\\n' \"it's\" 'a \"b\" c'", &[]);
    assert_eq!(quoted, (Some(0), "it's\na \"b\" c\n".into()));
    let beta = shell("echo \"$TARGET\" | tr a-z A-Z   # tail note", &["TARGET=beta"]);
    assert_eq!(beta, (Some(0), "BETA\n".into()));
    assert_eq!(
        shell("test -n \"$HOME\" || echo nohome; exit 4", &[]),
        (Some(4), String::new())
    );
    // Without a shell nothing is expanded.
    let (_, stdout, _) = run(&system, &["--", "echo", "$HOME", "&&", "*", "%"]);
    assert_eq!(stdout, b"$HOME && * %\n");
}

/// mattn/etcdenv#1, TencentBlueKing/bk-ci#1056: values went through a shell, and newlines were lost or became commands.
#[test]
fn d18_awkward_values_arrive_byte_by_byte_and_nothing_of_them_is_run() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 1, &[]);
    let values = [
        ("V1", "line1\nline2\n"),
        ("V2", "it's \"q\" $HOME $(touch PWNED) `touch PWNED`\n; touch PWNED\n"),
        ("V3", "a=b=c"),
        ("V4", ""),
        ("V5", "héllo 世界 🚀"),
        ("V6", "  both ends  "),
    ];
    let script =
        "for n in V1 V2 V3 V4 V5 V6; do eval \"printf '%s|' \\\"\\$$n\\\"\"; done; echo \"V4=${V4+set}\"; ls PWNED";
    let vars: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut args = vec!["--shell", script];
    vars.iter().for_each(|var| args.extend(["--env", var.as_str()]));
    let (task, stdout, stderr) = run(&system, &args);
    let expected: String = values.iter().map(|(_, value)| format!("{value}|")).collect();
    assert_eq!(String::from_utf8(stdout).expect("text"), format!("{expected}V4=set\n"));
    assert_ne!(task["outcome"]["exit_code"], 0, "there is no such file");
    assert!(String::from_utf8_lossy(&stderr).contains("PWNED"));
    // Read back as it was given.
    let shown: Vec<(&str, &str)> = task["spec"]["env"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|var| {
            (
                var["name"].as_str().expect("a name"),
                var["value"].as_str().expect("a value"),
            )
        })
        .collect();
    assert_eq!(shown, values);
}
