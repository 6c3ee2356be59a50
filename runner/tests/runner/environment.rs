//! What a child finds around it: variables, folders, a terminal.

use crate::fake::{Fake, eventually, is_empty, spec};
use systole_proto::v1;

fn shell(script: &str) -> v1::TaskSpec {
    spec(&["sh", "-c", script])
}

fn with_terminal(script: &str) -> v1::TaskSpec {
    v1::TaskSpec {
        tty: Some(v1::Terminal { rows: 30, columns: 100 }),
        ..shell(script)
    }
}

#[tokio::test]
async fn temporary_files_go_with_their_task() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let result = fake.run(1, shell("mktemp; pwd; echo $TMPDIR")).await;
    let stdout = fake.stdout(&result);
    let work = fake.data_dir().join("tasks/1/work").display().to_string();
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].starts_with(&format!("{work}/tmp.")), "{stdout}");
    assert_eq!(lines[1..], [work.as_str(), work.as_str()]);
    let tasks = fake.data_dir().join("tasks");
    eventually("the temporary file is gone", || is_empty(&tasks)).await;
    let mut own = shell("echo $TMPDIR $SYSTOLE_SCHEDULED_TIME");
    own.env = vec![v1::EnvVar {
        name: "TMPDIR".into(),
        value: "/var/tmp".into(),
    }];
    own.run_at_ms = 1_767_225_600_000;
    let result = fake.run(2, own).await;
    assert_eq!(fake.stdout(&result), "/var/tmp 2026-01-01T00:00:00.000Z\n");
}

#[tokio::test]
async fn a_working_directory_is_kept_where_the_task_asks_for_it_and_the_end_says_where() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let keep = |script: &str| v1::TaskSpec {
        keep_workdir: true,
        ..shell(script)
    };
    let result = fake.run(1, keep("mkdir a; echo x > a/b; exit 3")).await;
    let kept = fake.data_dir().join("kept/1");
    let note = result.detail.expect("a detail").note;
    assert_eq!(
        note,
        format!("the working directory is kept for 7 days: {}", kept.display())
    );
    assert_eq!(std::fs::read_to_string(kept.join("a/b")).expect("it is there"), "x\n");
    let tasks = fake.data_dir().join("tasks");
    eventually("nothing else is left of it", || is_empty(&tasks)).await;
    // A later task in the folder of the former one has a fresh directory again.
    let result = fake.run(2, shell("ls -A; pwd")).await;
    assert_eq!(fake.stdout(&result), format!("{}\n", tasks.join("2/work").display()));
    assert_eq!(result.detail.expect("a detail").note, "");
}

#[tokio::test]
async fn a_terminal_is_there_for_all_three_and_its_output_is_stdout() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let script = "test -t 0 && test -t 1 && test -t 2 && echo terminal; stty size; echo $TERM; echo err >&2; \
                  echo own > /dev/tty; cat; printf end; exit 5";
    let result = fake.run(1, with_terminal(script)).await;
    assert_eq!(
        fake.stdout(&result),
        "terminal\r\n30 100\r\nxterm-256color\r\nerr\r\nown\r\nend"
    );
    assert_eq!((result.exit_code, result.stderr_bytes), (Some(5), 0));
    // A task without one has none to reach.
    let result = fake
        .run(
            2,
            shell("test -t 1 || echo none; echo x > /dev/tty || echo none either"),
        )
        .await;
    assert!(
        fake.stdout(&result).starts_with("none\nnone either"),
        "{}",
        fake.stdout(&result)
    );
}

#[tokio::test]
async fn a_task_that_closes_its_terminal_is_not_hung_up() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let script = "echo before; exec </dev/null >/dev/null 2>&1; sleep 0.2; echo after > /dev/tty; exit 3";
    let result = fake.run(1, with_terminal(script)).await;
    assert_eq!((result.signal, result.exit_code), (None, Some(3)), "{}", result.message);
    assert_eq!(fake.stdout(&result), "before\r\nafter\r\n");
}

#[tokio::test]
async fn no_byte_of_a_terminal_is_lost_at_its_end() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    for task_id in 1..=5 {
        let result = fake.run(task_id, with_terminal("seq 1 20000")).await;
        let expected: String = (1..=20_000).map(|n| format!("{n}\r\n")).collect();
        assert_eq!(result.stdout_bytes as usize, expected.len());
        assert!(fake.stdout(&result) == expected, "task {task_id}");
    }
}

#[tokio::test]
async fn a_task_with_a_terminal_is_stopped_with_its_whole_tree() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let script = "trap '' HUP TERM; (setsid sleep 300 &); sleep 300 & echo up; wait; sleep 300";
    let mut stubborn = with_terminal(script);
    stubborn.kill_grace_ms = Some(200);
    stubborn.env = vec![v1::EnvVar {
        name: "CASE".into(),
        value: format!("tty-{}", std::process::id()),
    }];
    fake.beat_of(v1::RunnerStatus::Idle).await.run_spec(1, stubborn);
    let beat = fake.beat_of(v1::RunnerStatus::Running).await;
    let stdout = fake.data_dir().join("tasks/1/stdout");
    eventually("it is up", || {
        std::fs::read(&stdout).is_ok_and(|bytes| bytes == b"up\r\n")
    })
    .await;
    beat.reset(1, v1::ResetReason::Stop);
    let beat = fake.end().await;
    let result = beat.result();
    assert_eq!(
        (result.signal, result.detail.clone().expect("a detail").tree_empty),
        (Some(9), Some(true))
    );
    assert_eq!(
        crate::fake::processes_with(&format!("CASE=tty-{}", std::process::id())),
        0
    );
    beat.acknowledge();
}

#[tokio::test]
async fn each_slot_tells_its_own_labels() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner_with(|config| {
        config.slots = 2;
        config.slot_labels = [(1, [("disk".to_owned(), "fast".to_owned())].into())].into();
    });
    let mut seen = std::collections::BTreeMap::new();
    while seen.len() < 2 {
        let beat = fake.beat().await;
        let labels: Vec<String> = beat
            .request
            .slot_labels
            .iter()
            .map(|l| format!("{}={}", l.key, l.value))
            .collect();
        assert_eq!(beat.request.labels.len(), 1, "those of the host are beside them");
        seen.insert(beat.request.slot, labels);
        beat.go_on();
    }
    assert_eq!(seen, [(0, vec![]), (1, vec!["disk=fast".to_owned()])].into());
}
