use super::*;
use clap::CommandFactory as _;
use systole_shared::clock::now_ms;
use systole_shared::task::TaskState;

fn parse(line: &[&str]) -> Result<Cli, String> {
    super::parse(std::iter::once("systole").chain(line.iter().copied())).map_err(|error| {
        assert_eq!(error.exit_code(), 2, "{line:?}");
        error.to_string()
    })
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn a_bad_value_names_its_option() {
    for (line, option) in [
        (&["run", "--timeout", "5", "--", "x"][..], "--timeout"),
        (&["run", "--timeout", "0", "--", "x"], "--timeout"),
        (&["run", "--traceparent", "00-1-2-3", "--", "x"], "--traceparent"),
        (&["run", "--keep-workdir", "--dir", "/", "--", "x"], "--keep-workdir"),
        (&["runner", "--slot-label", "gpu=0"], "--slot-label"),
        (&["runner", "--slot-label", "3-1:gpu=0"], "--slot-label"),
        (&["runner", "--slot-label", "+1:gpu=0"], "--slot-label"),
        (&["runner", "--slot-label", "4096:gpu=0"], "--slot-label"),
        (&["run", "--queue-timeout", "0", "--", "x"], "--queue-timeout"),
        (&["run", "--start-timeout", "5", "--", "x"], "--start-timeout"),
        (&["run", "--silence-timeout", "-1s", "--", "x"], "--silence-timeout"),
        (&["run", "--kill-signal", "FOO", "--", "x"], "--kill-signal"),
        (&["run", "--kill-signal", "-9", "--", "x"], "--kill-signal"),
        (&["run", "--kill-grace", "5", "--", "x"], "--kill-grace"),
        (
            &["run", "--warn-signal", "USR1", "--warn-before", "1s", "--", "x"],
            "--timeout",
        ),
        (
            &["run", "--warn-signal", "USR1", "--timeout", "9s", "--", "x"],
            "--warn-before",
        ),
        (
            &["run", "--warn-before", "1s", "--timeout", "9s", "--", "x"],
            "--warn-signal",
        ),
        (&["run", "--on-disconnect", "stop", "--", "x"], "--on-disconnect"),
        (&["run", "--on-runner-restart", "", "--", "x"], "--on-runner-restart"),
        (&["run", "--delay", "-5s", "--", "x"], "--delay"),
        (&["run", "--delay", "400d", "--", "x"], "--delay"),
        (&["run", "--at", "tomorrow", "--", "x"], "--at"),
        (&["run", "--at", "02:30", "--delay", "1s", "--", "x"], "--delay"),
        (&["run", "--priority", "10", "--", "x"], "--priority"),
        (&["run", "--retry", "101", "--", "x"], "--retry"),
        (&["run", "--retry-delay", "1s", "--", "x"], "--retry"),
        (&["run", "--require", "gpu", "--", "x"], "--require"),
        (&["run", "--env", "=x", "--", "x"], "--env"),
        (&["run", "--queue", "A b", "--", "x"], "--queue"),
        (&["run", "--tag", "a b", "--", "x"], "--tag"),
        (&["run", "--runner", "a/b", "--", "x"], "--runner"),
        (&["run", "--key", "", "--", "x"], "--key"),
        (&["run", "--reason", "a\nb", "--", "x"], "--reason"),
        (&["run", "--dir", "/x", "--here", "--", "x"], "--here"),
        (&["run", "--shell", "x", "--", "x"], "--shell"),
        (&["run"], "--shell"),
        (&["run", "--"], "--shell"),
        (&["ls", "--url", "127.0.0.1:7410"], "--url"),
        (&["ls", "--state", "gone"], "--state"),
        (&["ls", "--since", "yesterday"], "--since"),
        (&["ls", "-n", "0"], "-n"),
        (&["ls", "-o", "yaml"], "--output"),
        (&["up", "--slots", "0"], "--slots"),
        (&["up", "--listen", "7410"], "--listen"),
        (&["up", "--beat", "0"], "--beat"),
        (&["up", "--output-budget", "10"], "--output-budget"),
        (&["up", "--label", "gpu"], "--label"),
        (&["scheduler", "--tls-cert", "x"], "--tls-key"),
        (&["scheduler", "--connections", "1"], "--connections"),
        (&["runner", "--name", "a b"], "--name"),
        (&["show", "@last"], "TASK"),
        (&["show", "0"], "TASK"),
        (&["show", "-1"], "TASK"),
        (&["cancel"], "TASK"),
        (&["wait", "--timeout", "9", "1"], "--timeout"),
        (&["runners", "cordon", "a b"], "HOST"),
        (&["runners", "cordon", "a", "--until", "0s"], "--until"),
        (&["runners", "drain", "a", "--until", "soon"], "--until"),
        (&["runners", "uncordon", "a", "--until", "1h"], "--until"),
    ] {
        let error = parse(line).expect_err(&format!("{line:?} must be refused"));
        assert!(error.contains(option), "{line:?}: {error}");
    }
}

#[test]
fn a_bad_value_says_what_to_write() {
    for (line, text) in [
        (&["up", "--listen", "7512"][..], "write for example 127.0.0.1:7512"),
        (
            &["up", "--listen", "localhost:7512"],
            "write for example 127.0.0.1:7512",
        ),
        (&["scheduler", "--listen", "x"], "write for example 127.0.0.1:7410"),
        (&["run", "--priority", "x", "--", "x"], "x is no number; write 0 to 9"),
        (
            &["run", "--priority", "10", "--", "x"],
            "10 is out of range; write 0 to 9",
        ),
        (
            &["run", "--priority", "-1", "--", "x"],
            "-1 is out of range; write 0 to 9",
        ),
        (&["run", "--retry", "x", "--", "x"], "x is no number; write 0 to 100"),
        (
            &["run", "--retry", "-1", "--", "x"],
            "-1 is out of range; write 0 to 100",
        ),
        (&["ls", "--url", "http://"], "names no host"),
    ] {
        let error = parse(line).expect_err(&format!("{line:?} must be refused"));
        assert!(error.contains(text), "{line:?}: {error}");
        assert!(!error.contains("tip:"), "{line:?}: {error}");
    }
}

#[test]
fn a_long_value_is_not_repeated_whole() {
    let (word, text) = ("Q".repeat(5_000), "é\"".repeat(5_000));
    for (option, value) in [
        ("--queue", &word),
        ("--queue", &text),
        ("--reason", &text),
        ("--key", &text),
        ("--tag", &text),
        ("--runner", &text),
        ("--require", &text),
        ("--priority", &word),
    ] {
        let error = parse(&["run", option, value, "--", "x"]).expect_err("refused");
        assert!(error.contains(option) && error.contains('…'), "{error}");
        assert!(error.chars().count() < 500, "{option}: {error}");
    }
}

#[test]
fn forgotten_dashes_are_noticed() {
    let forgot = |line: &[&str]| {
        let error = Cli::try_parse_from(line).expect_err("refused");
        forgot_dashes(&error, line.iter().map(OsString::from))
    };
    assert!(forgot(&["systole", "run", "echo", "hello"]));
    assert!(!forgot(&["systole", "run", "--timeuot", "5s"]));
    assert!(!forgot(&["systole", "ls", "echo"]));
}

#[test]
fn arguments_after_the_dashes_are_left_alone() {
    let line = ["run", "-q", "--", "prog", "--url", "x", "", "a b", "--", "-o", "$HOME"];
    match parse(&line).expect("valid").command {
        Command::Run(args) => assert_eq!(args.command, line[3..]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn global_options_stand_before_or_after_the_command() {
    for line in [
        &["-o", "json", "--url", "http://a:1,http://b:2", "ls"][..],
        &["ls", "-o", "json", "--url", "http://a:1", "--url", "http://b:2"],
    ] {
        let cli = parse(line).expect("valid");
        assert_eq!(cli.global.output, Format::Json);
        assert_eq!(
            cli.global.url.iter().map(Url::as_str).collect::<Vec<_>>(),
            ["http://a:1", "http://b:2"]
        );
    }
}

#[test]
fn a_negative_time_is_a_value() {
    let Command::Ls(args) = parse(&["ls", "--since", "-2h", "--state", "failed,RUNNING"])
        .expect("valid")
        .command
    else {
        panic!("ls");
    };
    assert!(args.filter.since.is_some_and(|since| since < now_ms() - 7_000_000));
    assert_eq!(args.filter.state, [TaskState::Failed, TaskState::Running]);
}

#[test]
fn times_are_told_as_durations_wherever_they_can_be() {
    for line in [&["status", "--since", "-1h"][..], &["status", "--since", "1h"]] {
        let Command::Status(args) = parse(line).expect("valid").command else {
            panic!("status");
        };
        let ago = now_ms() - args.since.expect("a time");
        assert!((3_600_000..3_700_000).contains(&ago), "{line:?}: {ago}");
    }
    for line in [
        &["job", "pause", "x", "--until", "1h"][..],
        &["job", "pause", "x", "--until", "+1h"],
    ] {
        let Command::Job(args) = parse(line).expect("valid").command else {
            panic!("job");
        };
        let JobAction::Pause(args) = args.action else {
            panic!("pause")
        };
        let ahead = args.until.expect("a time") - now_ms();
        assert!((3_500_000..=3_600_000).contains(&ahead), "{line:?}: {ahead}");
    }
}

#[test]
fn versions_to_compare_are_words_or_options() {
    let versions = |line: &[&str]| match parse(&[&["job", "diff", "x"][..], line].concat()).map(|cli| cli.command) {
        Ok(Command::Job(args)) => match args.action {
            JobAction::Diff(args) => Ok(args.versions()),
            other => panic!("{other:?}"),
        },
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    for (line, expected) in [
        (&["1"][..], (Some(1), None)),
        (&["1", "2"], (Some(1), Some(2))),
        (&["--from", "1", "--to", "2"], (Some(1), Some(2))),
        (&["1", "--to", "2"], (Some(1), Some(2))),
        (&["--to", "2"], (None, Some(2))),
        (&[], (None, None)),
    ] {
        assert_eq!(versions(line), Ok(expected), "{line:?}");
    }
    for (line, word) in [
        (&["1", "--from", "2"][..], "--from"),
        (&["1", "2", "--to", "3"], "--to"),
        (&["0"], "write 1 or more"),
        (&["1", "2", "3"], "'3'"),
    ] {
        let error = versions(line).expect_err(&format!("{line:?} must be refused"));
        assert!(error.contains(word), "{line:?}: {error}");
    }
}
