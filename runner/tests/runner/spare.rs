//! Folders of former tasks, used again: seen from outside, every task finds a new one.

use crate::fake::{Fake, eventually, is_empty, spec};
use systole_proto::v1::{self, OutputStream, RunnerStatus};

fn shell(script: &str) -> v1::TaskSpec {
    spec(&["/bin/sh", "-c", script])
}

/// The folder of the task is gone from where it was.
async fn forgotten(fake: &Fake, task_id: i64) {
    let folder = fake.data_dir().join(format!("tasks/{task_id}"));
    eventually("the task is forgotten", || !folder.exists()).await;
}

fn spares(fake: &Fake) -> usize {
    std::fs::read_dir(fake.data_dir().join("spare")).map_or(0, Iterator::count)
}

/// Runs a task of which the folder is kept. More than once if need be: a child that another test forks at
/// the wrong moment holds the files open until its exec.
async fn run_and_keep(fake: &mut Fake, task_ids: std::ops::Range<i64>, script: &str) -> v1::TaskResult {
    for task_id in task_ids {
        let result = fake.run(task_id, shell(script)).await;
        forgotten(fake, task_id).await;
        if spares(fake) == 1 {
            return result;
        }
    }
    panic!("no folder was kept");
}

#[tokio::test]
async fn a_folder_is_used_again_and_its_output_starts_empty() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let inodes = "stat -L -c %i /proc/self/fd/1 /proc/self/fd/2; pwd; ls -A; ls .. | tr '\\n' ' '";
    let script = format!("{inodes}; echo err >&2; mkdir -p deep; touch deep/file");
    let first = run_and_keep(&mut fake, 1..10, &script).await;
    let text = fake.stdout(&first);
    let kept: Vec<&str> = text.lines().take(2).collect();

    let second = fake.run(20, shell(inodes)).await;
    let work = fake.data_dir().join("tasks/20/work");
    let expected = format!("{}\n{}\njournal stderr stdout work ", kept.join("\n"), work.display());
    assert_eq!(fake.stdout(&second), expected);
    assert!(fake.stream(&second, OutputStream::Stderr).is_empty());
    assert_eq!((second.stdout_bytes, second.stderr_bytes), (expected.len() as u64, 0));
}

#[tokio::test]
async fn a_task_with_a_directory_of_its_own_has_the_fresh_one_for_temporary_files() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    run_and_keep(&mut fake, 1..10, "true").await;
    let folder = fake.data_dir().join("tasks/20");
    let mut elsewhere = spec(&["sh", "-c", "pwd; ls \"$TMPDIR/..\"; echo $TMPDIR"]);
    elsewhere.dir = "/".into();
    let result = fake.run(20, elsewhere).await;
    let expected = format!("/\njournal\nstderr\nstdout\nwork\n{}/work\n", folder.display());
    assert_eq!(fake.stdout(&result), expected);
}

#[tokio::test]
async fn a_leftover_process_is_ended_before_its_folder_serves_another_task() {
    let mut fake = Fake::start().await;
    let _runner = fake.runner();
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    // In a session of its own, with both streams or with one.
    for (first, redirect) in [(1, ""), (11, "2>/dev/null"), (21, ">/dev/null")] {
        let wait = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
        let intruder = format!("trap \"\" TERM; {wait}; echo intruder; echo intruder >&2");
        let script = format!("echo first; setsid sh -c '{intruder}' {redirect} & sleep 0.1");
        let result = fake.run(first, shell(&script)).await;
        assert_eq!(
            (result.kind.as_str(), fake.stdout(&result).as_str()),
            ("success", "first\n")
        );
        let detail = result.detail.as_ref().unwrap();
        assert_eq!(detail.tree_empty, Some(true), "{redirect}");
        assert!(detail.leftovers >= 1, "{redirect}");
        assert_eq!(
            detail.signals.iter().map(|s| s.signal).collect::<Vec<_>>(),
            [9],
            "{redirect}"
        );
        forgotten(&fake, first).await;

        let result = fake
            .run(
                first + 1,
                shell(&format!("touch {}; sleep 0.2; echo next", go.display())),
            )
            .await;
        assert_eq!(fake.stdout(&result), "next\n", "{redirect}");
        assert!(fake.stream(&result, OutputStream::Stderr).is_empty(), "{redirect}");
        assert_eq!((result.stdout_bytes, result.stderr_bytes), (5, 0), "{redirect}");
        std::fs::remove_file(&go).unwrap();
    }
}

#[tokio::test]
async fn after_a_crash_a_spare_folder_and_an_empty_journal_mean_nothing() {
    let mut fake = Fake::start().await;
    let runner = fake.runner();
    run_and_keep(&mut fake, 1..10, "echo text").await;
    runner.crash().await;
    fake.end_warden();
    // As it is when the runner dies just after it took a folder for a task, or emptied one.
    let begun = fake.data_dir().join("tasks/20");
    std::fs::rename(fake.data_dir().join("spare/1"), &begun).unwrap_or_else(|_| std::fs::create_dir(&begun).unwrap());
    std::fs::write(begun.join("journal"), "").unwrap();
    let spare = fake.data_dir().join("spare/7");
    std::fs::create_dir(&spare).unwrap();
    std::fs::write(spare.join("journal"), "").unwrap();

    let _runner = fake.runner();
    // Those before it are of the process that died.
    let beat = loop {
        let beat = fake.beat().await;
        if beat.request.start_no == 2 {
            break beat;
        }
    };
    assert_eq!((beat.status(), beat.request.results.len()), (RunnerStatus::Idle, 0));
    for left in ["tasks", "spare", "unclaimed"] {
        assert!(is_empty(&fake.data_dir().join(left)), "{left}");
    }
    // The same task is begun as any other.
    beat.run_spec(20, shell("echo again"));
    let end = fake.end().await;
    assert_eq!(fake.stdout(end.result()), "again\n");
}
