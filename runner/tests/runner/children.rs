//! How children are started, what they find, and how they end.

use crate::fake::{Fake, eventually, processes_with, spec};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};
use systole_proto::v1::{self, ResetReason, RunnerStatus, StoppedBy};

fn shell(script: &str) -> v1::TaskSpec {
    spec(&["/bin/sh", "-c", script])
}

#[tokio::test]
async fn each_failure_to_start_says_what_is_missing() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let dir = tempfile::tempdir().unwrap();
    // Written by another process: a test that forks meanwhile would hold the file open for a moment, and a
    // file that is open for writing cannot be executed.
    let file = |name: &str, content: &str, mode: &str| {
        let path = dir.path().join(name);
        let write = "printf %s \"$1\" > \"$0\"; chmod \"$2\" \"$0\"";
        let mut shell = std::process::Command::new("sh");
        assert!(
            shell
                .args(["-c", write])
                .arg(&path)
                .args([content, mode])
                .status()
                .unwrap()
                .success()
        );
        path.display().to_string()
    };
    let plain = file("plain.txt", "hello", "644");
    let orphan = file("orphan", "#!/no/such/interpreter -x\n", "755");
    let at = dir.path().display().to_string();
    let long = "x".repeat(120_000);
    let cases: Vec<(v1::TaskSpec, String)> = vec![
        (
            in_dir("/no/such/dir", &["/bin/echo"]),
            "working directory /no/such/dir does not exist on h; use --dir".into(),
        ),
        (
            in_dir("/etc/hostname", &["/bin/echo"]),
            "working directory /etc/hostname on h is not a directory".into(),
        ),
        (
            spec(&["/no/such/bin"]),
            "program not found: there is no file /no/such/bin on h".into(),
        ),
        (
            spec(&["no_such_command"]),
            "program not found: there is no no_such_command on h in PATH=/usr/local/sbin:".into(),
        ),
        (
            in_dir(&at, &["./plain.txt"]),
            "program ./plain.txt on h is not executable".into(),
        ),
        (spec(&[&plain]), format!("program {plain} on h is not executable")),
        (spec(&[&at]), format!("program {at} on h is a directory")),
        (
            spec(&[&orphan]),
            format!("program {orphan} on h needs the interpreter /no/such/interpreter"),
        ),
        (
            spec(&[&["/bin/true"][..], &[long.as_str(); 100]].concat()),
            "program /bin/true was not started: its arguments".into(),
        ),
    ];
    for (task_id, (spec, words)) in (1..).zip(cases) {
        let result = fake.run(task_id, spec).await;
        assert_eq!(
            (result.kind.as_str(), result.exit_code, result.signal),
            ("start_failed", None, None),
            "{words}"
        );
        assert!(
            result.message.starts_with(&words),
            "{:?} must start with {words:?}",
            result.message
        );
        assert_eq!((result.started_at_ms, result.stdout_bytes), (0, 0));
    }
    assert_eq!(fake.run(100, spec(&["true"])).await.kind, "success");
}

fn in_dir(dir: &str, command: &[&str]) -> v1::TaskSpec {
    v1::TaskSpec {
        dir: dir.into(),
        ..spec(command)
    }
}

#[tokio::test]
async fn exit_code_and_signal_are_kept_apart() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let cases = [
        ("exit 0", "success", Some(0), None),
        ("exit 1", "exit_code", Some(1), None),
        ("exit 137", "exit_code", Some(137), None),
        ("exit 255", "exit_code", Some(255), None),
        ("kill -9 $$", "signal", None, Some(9)),
        ("kill -TERM $$", "signal", None, Some(15)),
        ("sh -c 'kill -9 $$'; exit $?", "exit_code", Some(137), None),
        ("no_such_command", "exit_code", Some(127), None),
    ];
    for (task_id, (script, kind, code, signal)) in (1..).zip(cases) {
        let result = fake.run(task_id, shell(script)).await;
        assert_eq!(
            (result.kind.as_str(), result.exit_code, result.signal),
            (kind, code, signal),
            "{script}"
        );
        assert_eq!(
            (result.message.as_str(), result.stopped_by()),
            ("", StoppedBy::Unspecified)
        );
    }
}

#[tokio::test]
async fn arguments_and_environment_are_exact() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let awkward = [
        "a b",
        "",
        "it's \"q\" $HOME `x`",
        "line1\nline2\n",
        "日本 ü €",
        "--",
        "\\n%s",
    ];
    let result = fake
        .run(1, spec(&[&["printf", "<%s>\\0"][..], &awkward].concat()))
        .await;
    let expected: String = awkward.iter().map(|argument| format!("<{argument}>\0")).collect();
    assert_eq!(fake.stdout(&result), expected);

    let mut with_env = spec(&["env", "-0"]);
    with_env.name = "my name".into();
    with_env.job = "nightly".into();
    with_env.env = vec![v1::EnvVar {
        name: "V".into(),
        value: "two\nlines 'q'".into(),
    }];
    let result = fake.run(2, with_env).await;
    let stdout = fake.stdout(&result);
    let mut seen: Vec<&str> = stdout.split_terminator('\0').collect();
    seen.retain(|var| {
        !["HOME=", "USER=", "LOGNAME=", "TMPDIR=", "SYSTOLE_INSTANCE="]
            .iter()
            .any(|name| var.starts_with(name))
    });
    seen.sort_unstable();
    let expected = [
        "LANG=C.UTF-8",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "SHELL=/bin/sh",
        "SYSTOLE_ATTEMPT=1",
        "SYSTOLE_FENCING_TOKEN=2",
        "SYSTOLE_HOST=h",
        "SYSTOLE_JOB=nightly",
        "SYSTOLE_NAME=my name",
        "SYSTOLE_RUNNER=h/0",
        "SYSTOLE_SLOT=0",
        "SYSTOLE_TASK_ID=2",
        "V=two\nlines 'q'",
    ];
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_child_starts_fresh() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    // A descriptor that somebody forgot to close on exec.
    let leaked = std::fs::File::open("/etc/passwd").unwrap();
    let leaked = nix::unistd::dup(&leaked).unwrap();
    assert!(leaked.as_raw_fd() > 2);
    // The fourth is the directory that `ls` itself reads.
    let result = fake.run(1, spec(&["ls", "/proc/self/fd"])).await;
    assert_eq!(fake.stdout(&result), "0\n1\n2\n3\n");

    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; umask; readlink /proc/self/fd/0; \
                  test $$ = $(cut -d' ' -f5 /proc/$$/stat) && test $$ = $(cut -d' ' -f6 /proc/$$/stat) && echo own; pwd; ls -A";
    let result = fake.run(2, shell(script)).await;
    let work = fake.data_dir().join("tasks/2/work");
    let expected = format!(
        "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n0022\n/dev/null\nown\n{}\n",
        work.display()
    );
    assert_eq!(fake.stdout(&result), expected);
    eventually("the fresh directory goes", || !work.exists()).await;
}

#[tokio::test]
async fn a_child_has_the_limits_of_its_task() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let report = "ulimit -n; ulimit -Hn; ulimit -c; nice; umask; ulimit -f";
    let result = fake.run(1, shell(report)).await;
    let plain = fake.stdout(&result);
    let plain: Vec<&str> = plain.lines().collect();
    assert_eq!((plain[2], plain[4]), ("0", "0022"), "{plain:?}");

    let mut limited = shell(report);
    limited.limits = Some(v1::Limits {
        open_files: 64,
        core_bytes: 0,
        file_bytes: 1 << 20,
        nice: Some(7),
        ..v1::Limits::default()
    });
    limited.umask = Some(0o027);
    let result = fake.run(2, limited.clone()).await;
    // dash counts files in blocks of 512 bytes.
    assert_eq!(fake.stdout(&result), "64\n64\n0\n7\n0027\n2048\n");

    limited.command = spec(&["head", "-c", "2M", "/dev/zero"]).command;
    let result = fake.run(3, limited).await;
    assert_eq!((result.kind.as_str(), result.signal), ("signal", Some(25)));
    assert_eq!(result.stdout_bytes, 1 << 20);

    // The next task has none of it.
    let result = fake.run(4, shell(report)).await;
    assert_eq!(fake.stdout(&result).lines().collect::<Vec<_>>(), plain);
}

#[tokio::test]
async fn a_limit_above_that_of_the_host_is_a_failure_to_start_by_name() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let mut greedy = spec(&["true"]);
    greedy.limits = Some(v1::Limits {
        open_files: 1 << 30,
        ..v1::Limits::default()
    });
    let result = fake.run(1, greedy).await;
    assert_eq!(result.kind, "start_failed");
    let words = "limits.open_files is 1073741824, and the runner on h can give at most ";
    assert!(result.message.starts_with(words), "{}", result.message);
}

/// Whether this test process, and so its runner, may change the user; says so where not.
fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("not root: only that the runner refuses is tested");
    }
    root
}

fn as_user(user: &str, group: &str, spec: v1::TaskSpec) -> v1::TaskSpec {
    v1::TaskSpec {
        user: user.into(),
        group: group.into(),
        ..spec
    }
}

#[tokio::test]
async fn a_task_of_another_user_has_nothing_of_root() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    if !is_root() {
        let result = fake.run(1, as_user("nobody", "", shell("id"))).await;
        let words = "this runner cannot start tasks as another user: it does not run as root";
        assert_eq!((result.kind.as_str(), result.message.as_str()), ("start_failed", words));
        return;
    }
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let (uid, gid) = (nobody.uid.as_raw(), nobody.gid.as_raw());
    let report = "id -u; id -ru; id -g; echo $USER $LOGNAME $HOME; grep -E '^Cap(Prm|Eff|Amb)' /proc/self/status; \
                  stat -c '%u %a' .; echo x > made; cat made; echo err > /dev/stderr; cat /etc/shadow || echo refused";
    let mut limited = as_user("nobody", "", shell(report));
    limited.limits = Some(v1::Limits {
        nice: Some(3),
        ..v1::Limits::default()
    });
    let result = fake.run(1, limited).await;
    let none = "0000000000000000";
    let expected = format!(
        "{uid}\n{uid}\n{gid}\nnobody nobody {}\nCapPrm:\t{none}\nCapEff:\t{none}\nCapAmb:\t{none}\n{uid} 700\nx\nrefused\n",
        nobody.dir.display()
    );
    assert_eq!(fake.stdout(&result), expected);
    let stderr = String::from_utf8(fake.stream(&result, v1::OutputStream::Stderr)).unwrap();
    assert!(stderr.starts_with("err\n"), "{stderr}");

    let result = fake
        .run(2, as_user("3999999999", "7", shell("id -u; id -G; echo $HOME")))
        .await;
    assert_eq!(fake.stdout(&result), "3999999999\n7\n/\n");
    // Folders are used again, but nothing of another user is.
    let result = fake.run(3, shell("id -u; stat -c '%u %a' . /proc/self/fd/1 -L")).await;
    assert_eq!(fake.stdout(&result), "0\n0 700\n0 600\n");
}

#[tokio::test]
async fn each_user_that_cannot_be_taken_on_is_named() {
    if !is_root() {
        return;
    }
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let closed = tempfile::tempdir().unwrap();
    std::fs::set_permissions(closed.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let closed = closed.path().display().to_string();
    let cases = [
        (
            as_user("root", "", spec(&["id"])),
            "user root on h has the number 0".to_owned(),
        ),
        (
            as_user("0", "nogroup", spec(&["id"])),
            "user root on h has the number 0".into(),
        ),
        (
            as_user("no-such", "", spec(&["id"])),
            "there is no user no-such on h; ".into(),
        ),
        (
            as_user("nobody", "no-such", spec(&["id"])),
            "there is no group no-such on h; ".into(),
        ),
        (
            as_user("3999999999", "", spec(&["id"])),
            "user 3999999999 is not in the user database of h".into(),
        ),
        // Root may enter it, the user may not.
        (
            as_user("nobody", "", in_dir(&closed, &["id"])),
            format!("working directory {closed} on h may not be entered by user nobody"),
        ),
    ];
    for (task_id, (spec, words)) in (1..).zip(cases) {
        let result = fake.run(task_id, spec).await;
        // That a host does not want is another matter than what it cannot do.
        let kind = if words.contains("number 0") {
            "rejected"
        } else {
            "start_failed"
        };
        assert_eq!(result.kind, kind, "{words}");
        assert!(
            result.message.starts_with(&words),
            "{:?} must start with {words:?}",
            result.message
        );
    }
    let result = fake.run(100, as_user("nobody", "", in_dir("/tmp", &["pwd"]))).await;
    assert_eq!(fake.stdout(&result), "/tmp\n");
}

#[tokio::test]
async fn a_task_of_another_user_is_ended_as_any_other() {
    if !is_root() {
        return;
    }
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let mut long = as_user("nobody", "", spec(&["sleep", "300"]));
    long.env = vec![v1::EnvVar {
        name: "CASE".into(),
        value: "R1".into(),
    }];
    fake.beat().await.run_spec(1, long);
    fake.beat_of(RunnerStatus::Running).await.go_on();
    eventually("it runs", || processes_with("CASE=R1") == 1).await;
    // By root, although it is another user's.
    fake.beat().await.reset(1, ResetReason::Stop);
    let end = fake.end().await;
    assert_eq!(end.result().signal, Some(15));
    assert_eq!(processes_with("CASE=R1"), 0);
}

#[tokio::test]
async fn a_grandchild_that_ignores_term_is_ended_with_its_group() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let mut stubborn = shell("(trap '' TERM; while :; do sleep 0.2 & wait; done) & setsid sleep 300 & wait");
    stubborn.env = vec![v1::EnvVar {
        name: "CASE".into(),
        value: "D12".into(),
    }];
    fake.beat().await.run_spec(1, stubborn);
    fake.beat_of(RunnerStatus::Running).await.go_on();
    eventually("the group is there", || processes_with("CASE=D12") >= 3).await;
    fake.beat().await.reset(1, ResetReason::Stop);
    let end = fake.end().await;
    assert_eq!((end.result().signal, end.result().message.as_str()), (Some(15), ""));
    assert_eq!(
        processes_with("CASE=D12"),
        0,
        "nothing is left when the end is reported"
    );
}

#[tokio::test]
async fn a_child_that_ignores_term_is_killed_after_the_grace() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    fake.beat()
        .await
        .run_spec(1, shell("trap '' TERM; echo ready; while :; do sleep 0.1; done"));
    fake.beat_of(RunnerStatus::Running).await.go_on();
    let stdout = fake.data_dir().join("tasks/1/stdout");
    eventually("the trap is set", || {
        std::fs::read(&stdout).is_ok_and(|text| !text.is_empty())
    })
    .await;
    let since = Instant::now();
    fake.beat().await.reset(1, ResetReason::Stop);
    let end = fake.end().await;
    assert_eq!(
        (end.result().signal, end.result().stopped_by()),
        (Some(9), StoppedBy::Reset)
    );
    assert!(since.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn the_run_timeout_ends_the_child_and_says_so() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let mut slow = shell("trap 'exit 0' TERM; sleep 300 & wait");
    slow.timeout_ms = 300;
    let result = fake.run(1, slow).await;
    // Its true end, and who brought it about.
    assert_eq!(
        (result.kind.as_str(), result.exit_code, result.stopped_by()),
        ("success", Some(0), StoppedBy::Timeout)
    );
    assert!(result.ended_at_ms - result.started_at_ms >= 290);
}

#[tokio::test]
async fn a_background_process_does_not_keep_the_task_open() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let since = Instant::now();
    let mut forgetful = shell("echo started; sleep 300 & exit 0");
    forgetful.env = vec![v1::EnvVar {
        name: "CASE".into(),
        value: "D10".into(),
    }];
    let result = fake.run(1, forgetful).await;
    assert_eq!(
        (result.kind.as_str(), fake.stdout(&result).as_str()),
        ("success", "started\n")
    );
    assert!(since.elapsed() < Duration::from_secs(10));
    assert_eq!(processes_with("CASE=D10"), 0);
}

#[tokio::test]
async fn many_short_tasks_on_many_slots_all_end_once() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner_with(|c| c.slots = 8);
    let mut ended = std::collections::BTreeSet::new();
    let mut next = 1;
    while ended.len() < 200 {
        let beat = fake.beat().await;
        match beat.status() {
            RunnerStatus::Idle => {
                beat.run(next, &["/bin/true"]);
                next += 1;
            }
            RunnerStatus::Finished => {
                assert!(ended.insert(beat.request.task_id));
                beat.acknowledge();
            }
            _ => beat.go_on(),
        }
    }
}
