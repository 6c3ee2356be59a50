//! From the options of `run` and `submit` to a task. Everything is checked here already, so that a mistake
//! is reported with the name of its option and without a round trip.

use crate::args::TaskArgs;
use crate::failure::Failure;
use crate::output::terminal_width;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;
use systole_proto::convert::spec_to_wire;
use systole_proto::v1;
use systole_shared::error::Code;
use systole_shared::limits::{DURATION_MS_MAX, UMASK_DEFAULT};
use systole_shared::task::output::OutputPolicy;
use systole_shared::task::signal::SIGTERM;
use systole_shared::task::trace::{TRACEPARENT, is_traceparent};
use systole_shared::task::{Limits, Retry, TaskSpec, Terminal};
use systole_shared::time::format_utc;

/// The submission. It always has a key: a submit that is repeated over a new connection must not run twice.
pub fn submission(args: &TaskArgs, now_ms: i64) -> Result<v1::SubmitRequest, Failure> {
    let spec = task_spec(args)?;
    check_at(spec.run_at_ms, now_ms)?;
    spec.validate(now_ms)?;
    Ok(v1::SubmitRequest {
        items: vec![v1::SubmitItem {
            spec: Some(spec_to_wire(&spec)),
            key: args.key.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
        }],
        reason: args.reason.clone().unwrap_or_default(),
    })
}

/// What all tasks of a batch have unless their line says otherwise.
pub fn of_batch(args: &TaskArgs) -> Result<TaskSpec, Failure> {
    let spec = task_spec(args)?;
    check_at(spec.run_at_ms, systole_shared::clock::now_ms())?;
    // The name that was found for no command is none.
    Ok(TaskSpec {
        name: args.name.clone().unwrap_or_default(),
        ..spec
    })
}

/// The contract has this rule too, but its sentence does not repeat the time.
fn check_at(at_ms: Option<i64>, now_ms: i64) -> Result<(), Failure> {
    match at_ms {
        Some(at) if at.saturating_sub(now_ms) > i64::try_from(DURATION_MS_MAX).unwrap_or(i64::MAX) => {
            let message = format!("--at: {} is more than 366 days ahead", format_utc(at));
            Err(Failure::usage(message).with_code(Code::InvalidField))
        }
        _ => Ok(()),
    }
}

/// The trace that the submission belongs to: the option, or the variable of this process. A malformed variable is somebody
/// else's mistake and no reason not to run the command.
pub fn trace(args: &TaskArgs) -> Option<String> {
    let own = || std::env::var(TRACEPARENT).ok().filter(|text| is_traceparent(text));
    args.traceparent.clone().or_else(own)
}

fn task_spec(args: &TaskArgs) -> Result<TaskSpec, Failure> {
    let command = match &args.shell {
        Some(text) => vec!["/bin/sh".to_owned(), "-c".to_owned(), text.clone()],
        None => utf8(&args.command)?,
    };
    let dir = match (&args.dir, args.here) {
        (Some(dir), _) => Some(dir.clone()),
        (None, true) => Some(here()?),
        (None, false) => None,
    };
    let (clocks, limits, output) = (&args.clocks, &args.limits, &args.output);
    let spec = TaskSpec {
        command,
        name: args.name.clone().unwrap_or_default(),
        queue: args.queue.clone().unwrap_or_default(),
        require: unique(&args.require, "--require")?,
        tags: args.tags.clone(),
        target: args.runner.clone(),
        run_at_ms: args.at,
        delay_ms: args.delay.map(millis).filter(|&ms| ms > 0),
        timeout_ms: clocks.timeout.map(millis),
        queue_timeout_ms: clocks.queue_timeout.map(millis),
        start_timeout_ms: clocks.start_timeout.map(millis),
        silence_timeout_ms: clocks.silence_timeout.map(millis),
        warn_signal: clocks.warn_signal,
        warn_before_ms: clocks.warn_before.map(millis),
        kill_signal: clocks.kill_signal.unwrap_or(SIGTERM),
        kill_grace_ms: clocks.kill_grace.map(millis),
        on_disconnect: clocks.on_disconnect.unwrap_or_default(),
        on_runner_restart: clocks.on_runner_restart.unwrap_or_default(),
        limits: Limits {
            open_files: limits.limit_open_files,
            core_bytes: limits.limit_core.unwrap_or(0),
            file_bytes: limits.limit_file,
            nice: limits.nice,
            memory_bytes: limits.memory,
            cpu_millis: limits.cpus,
            pids: limits.pids,
        },
        output: OutputPolicy {
            max_bytes: output.output_max,
            on_limit: output.output_on_limit.unwrap_or_default(),
            keep_ms: output.output_keep.map(millis),
        },
        umask: limits.umask.unwrap_or(UMASK_DEFAULT),
        user: limits.user.clone(),
        group: limits.group.clone(),
        env: args.env.clone(),
        env_file: args.env_file.clone(),
        dir,
        keep_workdir: args.keep_workdir,
        tty: args.tty.then(|| Terminal {
            columns: terminal_width(false).map_or(Terminal::default().columns, u32::from),
            ..Terminal::default()
        }),
        callback_url: args.callback.clone(),
        retry: Retry {
            max_retries: args.retry.unwrap_or(0),
            delay_ms: args.retry_delay.map_or(0, millis),
        },
        priority: args.priority.unwrap_or(systole_shared::limits::PRIORITY_DEFAULT),
        job: None,
        batch: None,
        batch_line: None,
        unique_key: None,
    };
    Ok(spec.with_defaults())
}

/// Arguments travel as text. What is no text is refused, not repaired.
fn utf8(command: &[OsString]) -> Result<Vec<String>, Failure> {
    command
        .iter()
        .enumerate()
        .map(|(index, argument)| {
            argument.to_str().map(str::to_owned).ok_or_else(|| {
                let which = if index == 0 { "the program".to_owned() } else { format!("argument {index}") };
                Failure::usage(format!(
                    "{which} ({:?}) is not valid UTF-8 and cannot be passed on unchanged; put such a name in a file that the program reads",
                    argument.to_string_lossy()
                ))
                .with_code(Code::InvalidField)
            })
        })
        .collect()
}

fn here() -> Result<String, Failure> {
    let dir = std::env::current_dir().map_err(|error| {
        Failure::usage(format!(
            "--here: the current directory is not known: {}",
            crate::failure::io_cause(&error)
        ))
    })?;
    dir.into_os_string().into_string().map_err(|dir| {
        Failure::usage(format!(
            "--here: {:?} is not valid UTF-8; use --dir with another path",
            dir.to_string_lossy()
        ))
    })
}

/// Pairs as a map; a key that is given twice is a mistake.
pub fn unique(pairs: &[(String, String)], option: &str) -> Result<BTreeMap<String, String>, Failure> {
    let mut map = BTreeMap::new();
    for (key, value) in pairs {
        if map.insert(key.clone(), value.clone()).is_some() {
            return Err(Failure::usage(format!("{option}: {key} is given twice")).with_code(Code::InvalidField));
        }
    }
    Ok(map)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser as _;
    use std::os::unix::ffi::OsStringExt as _;
    use systole_shared::task::spec::{OnDisconnect, OnRunnerRestart};

    const NOW: i64 = 1_800_000_000_000;

    fn args(line: &[&str]) -> TaskArgs {
        match Cli::try_parse_from(["systole", "submit"].iter().chain(line))
            .expect("parses")
            .command
        {
            Command::Submit(args) => args.task,
            other => panic!("{other:?}"),
        }
    }

    fn refused(line: &[&str]) -> String {
        let failure = submission(&args(line), NOW).expect_err("refused");
        assert_eq!(failure.exit, 2);
        failure.to_string()
    }

    #[test]
    fn options_become_the_task() {
        let line = [
            "--name",
            "n",
            "--queue",
            "q",
            "--require",
            "gpu=1",
            "--tag",
            "t",
            "--runner",
            "db-01/3",
            "--priority",
            "9",
            "--delay",
            "5m",
            "--timeout",
            "1h",
            "--env",
            "A=b=c",
            "--dir",
            "/tmp",
            "--callback",
            "http://h/x",
            "--key",
            "k",
            "--retry",
            "2",
            "--retry-delay",
            "10s",
            "--reason",
            "r",
            "--",
            "prog",
            "",
            "a b",
            "--x",
        ];
        let request = submission(&args(&line), NOW).expect("valid");
        assert_eq!((request.reason.as_str(), request.items[0].key.as_str()), ("r", "k"));
        let spec = request.items[0].spec.clone().expect("spec");
        assert_eq!(spec.command, ["prog", "", "a b", "--x"]);
        assert_eq!((spec.target_host.as_str(), spec.target_slot), ("db-01", Some(3)));
        assert_eq!(
            (spec.delay_ms, spec.timeout_ms, spec.priority),
            (300_000, 3_600_000, Some(9))
        );
        assert_eq!((spec.env[0].name.as_str(), spec.env[0].value.as_str()), ("A", "b=c"));
        assert_eq!(spec.retry.map(|r| (r.max_retries, r.delay_ms)), Some((2, 10_000)));
    }

    #[test]
    fn clocks_become_part_of_the_task() {
        let line = [
            "--timeout",
            "1h",
            "--queue-timeout",
            "90m",
            "--start-timeout",
            "5s",
            "--silence-timeout",
            "20m",
            "--warn-signal",
            "usr1",
            "--warn-before",
            "5m",
            "--kill-signal",
            "SIGINT",
            "--kill-grace",
            "0",
            "--on-disconnect",
            "kill",
            "--on-runner-restart",
            "kill",
            "--",
            "x",
        ];
        let spec = task_spec(&args(&line)).expect("valid");
        assert_eq!(spec.validate(NOW), Ok(()));
        assert_eq!(
            (spec.queue_timeout_ms, spec.start_timeout_ms, spec.silence_timeout_ms),
            (Some(5_400_000), Some(5_000), Some(1_200_000))
        );
        assert_eq!((spec.warn_signal, spec.warn_before_ms), (Some(10), Some(300_000)));
        assert_eq!((spec.kill_signal, spec.kill_grace_ms), (2, Some(0)));
        assert_eq!(
            (spec.on_disconnect, spec.on_runner_restart),
            (OnDisconnect::Kill, OnRunnerRestart::Kill)
        );
        let plain = task_spec(&args(&["--", "x"])).expect("valid");
        assert_eq!((plain.kill_signal, plain.kill_grace_ms), (SIGTERM, None));
        assert_eq!(
            (plain.on_disconnect, plain.on_runner_restart),
            (OnDisconnect::Continue, OnRunnerRestart::Adopt)
        );
    }

    #[test]
    fn limits_become_part_of_the_task() {
        let line = [
            "--limit-open-files",
            "64",
            "--limit-core",
            "512K",
            "--limit-file",
            "2G",
            "--nice",
            "0",
            "--memory",
            "64M",
            "--cpus",
            "1.5",
            "--pids",
            "20",
            "--umask",
            "027",
            "--user",
            "www-data",
            "--group",
            "50",
            "--",
            "x",
        ];
        let spec = task_spec(&args(&line)).expect("valid");
        assert_eq!(spec.validate(NOW), Ok(()));
        let limits = Limits {
            open_files: Some(64),
            core_bytes: 512 << 10,
            file_bytes: Some(2 << 30),
            nice: Some(0),
            memory_bytes: Some(64 << 20),
            cpu_millis: Some(1_500),
            pids: Some(20),
        };
        assert_eq!((spec.limits, spec.umask), (limits, 0o027));
        assert_eq!(
            (spec.user.as_deref(), spec.group.as_deref()),
            (Some("www-data"), Some("50"))
        );
        let plain = task_spec(&args(&["--", "x"])).expect("valid");
        assert_eq!((plain.limits, plain.umask), (Limits::default(), UMASK_DEFAULT));
        assert_eq!((plain.user, plain.group), (None, None));
        for line in [
            ["--limit-open-files", "15"],
            ["--limit-core", "1X"],
            ["--limit-file", "-1"],
            ["--nice", "-5"],
            ["--nice", "20"],
            ["--memory", "1X"],
            ["--cpus", "-1"],
            ["--pids", "0"],
            ["--umask", "089"],
            ["--umask", "1000"],
            ["--umask", "+22"],
            ["--user", "a b"],
            ["--user", "4294967295"],
            ["--group", "staff"],
        ] {
            let line = ["systole", "submit"].iter().chain(&line).chain(&["--", "x"]);
            assert!(Cli::try_parse_from(line.clone()).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_shell_text_is_one_argument() {
        let spec = task_spec(&args(&["--shell", "a | b; c"])).expect("valid");
        assert_eq!(spec.command, ["/bin/sh", "-c", "a | b; c"]);
    }

    #[test]
    fn every_submission_has_a_key_of_its_own() {
        let key = || {
            submission(&args(&["--", "true"]), NOW).expect("valid").items[0]
                .key
                .clone()
        };
        assert_ne!(key(), key());
        assert!(!key().is_empty());
    }

    #[test]
    fn mistakes_name_the_option() {
        for (line, begin) in [
            (&["--at", "2020-01-01T00:00:00Z", "--", "x"][..], "--at: "),
            (
                &["--at", "2099-01-01T00:00:00Z", "--", "x"],
                "--at: 2099-01-01T00:00:00.000Z is more than 366 days ahead",
            ),
            (&["--dir", "relative", "--", "x"], "--dir: "),
            (&["--env-file", "relative", "--", "x"], "--env-file: "),
            (&["--callback", "ftp://x", "--", "x"], "--callback: "),
            (&["--env", "SYSTOLE_X=1", "--", "x"], "--env: "),
            (&["--env", "A=1", "--env", "A=2", "--", "x"], "--env: "),
            (&["--require", "a=1", "--require", "a=2", "--", "x"], "--require: "),
            (&["--name", "a\nb", "--", "x"], "--name: "),
            (&["--kill-signal", "STOP", "--", "x"], "--kill-signal: SIGSTOP "),
            (&["--kill-grace", "25h", "--", "x"], "--kill-grace: "),
            (
                &[
                    "--timeout",
                    "1m",
                    "--warn-signal",
                    "KILL",
                    "--warn-before",
                    "1s",
                    "--",
                    "x",
                ],
                "--warn-signal: ",
            ),
            (
                &[
                    "--timeout",
                    "1m",
                    "--warn-signal",
                    "USR1",
                    "--warn-before",
                    "1m",
                    "--",
                    "x",
                ],
                "--warn-before: 1m is not shorter",
            ),
            (&["--limit-file", "0", "--", "x"], "--limit-file: 0 is outside 1 to "),
            (&["--limit-core", "2048T", "--", "x"], "--limit-core: "),
            (&["--memory", "1K", "--", "x"], "--memory: 1024 is outside "),
            (&["--cpus", "0.001", "--", "x"], "--cpus: 0.001 is outside 0.01 to "),
            (&["--", ""], "the program: "),
        ] {
            let message = refused(line);
            assert!(message.starts_with(begin), "{message}");
            assert!(message.ends_with("[VALIDATION_003]"), "{message}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let mut args = args(&["--", "x"]);
        args.command.push(OsString::from_vec(vec![b'a', 0xff]));
        let failure = submission(&args, NOW).expect_err("refused");
        assert!(failure.message.starts_with("argument 1 "), "{failure}");
        assert_eq!(failure.exit, 2);
    }
}
