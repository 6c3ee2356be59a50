//! Nothing a task leaves behind survives it, and nothing that happens to its agent changes its end. Many times over:
//! `scripts/torture` runs the same with larger numbers.

use std::process::Command;
use std::time::{Duration, Instant};
use systole_tests::system::{System, alive, binary, until};

fn rounds(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Living processes that were started with this variable.
fn processes_with(variable: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    all.filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
        .filter(|pid| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.split(|&b| b == 0).any(|var| var == variable.as_bytes()) && alive(pid)
        })
        .collect()
}

/// A tree that does what daemons do: its own session, two forks, TERM ignored by all.
fn stubborn(log: &std::path::Path) -> String {
    format!(
        "trap '' TERM; (setsid sh -c '(setsid sleep 1000 &); sleep 1000' &) ; sleep 1000 & echo up >> {}; wait",
        log.display()
    )
}

/// rundeck/rundeck#1038, hashicorp/nomad#1110, actions/runner#4601: a cancel left children running.
#[test]
fn d12_trees_of_daemons_are_gone_when_their_task_has_ended() {
    let trees = rounds("SYSTOLE_TREES", 96);
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 8, &["--kill-grace", "300ms"]);
    let script = stubborn(&system.path("log"));
    let case = format!("CASE=trees-{}", std::process::id());
    let mut started = 0;
    while started < trees {
        let wave = (trees - started).min(8);
        let ids: Vec<String> = (0..wave)
            .map(|_| system.submit(&["--env", &case, "--", "sh", "-c", &script]))
            .collect();
        started += wave;
        system.until_lines("log", started);
        until("the trees are there", || processes_with(&case).len() >= wave * 4);
        let mut cancel = vec!["cancel"];
        cancel.extend(ids.iter().map(String::as_str));
        let said = system.say(&cancel);
        assert_eq!(said.code, Some(0), "{said:?}");
        for id in &ids {
            let task = system.until(id, &["TERMINATED", "FAILED", "FINISHED"]);
            assert_eq!(task["state"], "TERMINATED", "{task}");
            assert_eq!(task["end_detail"]["tree_empty"], true, "{task}");
        }
        let left = processes_with(&case);
        assert!(left.is_empty(), "{} processes are left of {started} trees", left.len());
    }
}

/// The same without anybody who stops it: the main process ends, and what it left is ended after it.
#[test]
fn d10_daemons_that_a_task_leaves_behind_are_ended_and_counted() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 4, &[]);
    let case = format!("CASE=daemons-{}", std::process::id());
    // It ends when the daemons are there, and not before.
    let script = "(setsid sh -c '(setsid sleep 1000 &); echo > up; sleep 1000' &) ; until [ -e up ]; do sleep 0.01; done; seq 1 200000";
    let began = Instant::now();
    let id = system.submit(&["--env", &case, "--", "sh", "-c", script]);
    let task = system.until(&id, &["FINISHED", "FAILED"]);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(task["state"], "FINISHED", "{task}");
    assert_eq!(task["end_detail"]["tree_empty"], true, "{task}");
    assert!(
        task["end_detail"]["leftovers"].as_u64().is_some_and(|n| n >= 2),
        "{task}"
    );
    assert!(processes_with(&case).is_empty());
    assert_eq!(
        system.say(&["logs", &id]).stdout.len(),
        1_288_895,
        "the log is complete"
    );
}

/// An agent is killed again and again while tasks run; each ends as if nothing had happened.
#[test]
fn tasks_end_truly_however_often_their_agent_is_killed() {
    let kills = rounds("SYSTOLE_KILLS", 12);
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let mut runner = system.runner("w", 2, &[]);
    for round in 0..kills {
        let code = round % 200 + 1;
        let go = system.path(&format!("go-{round}"));
        let script = format!(
            "echo before {round} >> {}; echo before; until [ -e {} ]; do sleep 0.02; done; echo after; exit {code}",
            system.path("log").display(),
            go.display()
        );
        let id = system.submit(&["--", "sh", "-c", &script]);
        system.until_lines("log", round + 1);
        // In one round after the beat that says RUNNING, in the next before it.
        if round % 2 == 0 {
            system.until(&id, &["RUNNING"]);
        }
        runner.kill();
        if round % 3 == 0 {
            // It ends while no agent is there.
            std::fs::write(&go, "").expect("written");
            std::thread::sleep(Duration::from_millis(50));
        }
        runner = system.runner("w", 2, &[]);
        std::fs::write(&go, "").expect("written");
        let task = system.until(&id, &["FINISHED", "FAILED", "TERMINATED"]);
        assert_eq!(task["outcome"]["exit_code"], code, "round {round}: {task}");
        assert_eq!(system.say(&["logs", &id]).stdout, "before\nafter\n", "round {round}");
    }
    assert_eq!(system.lines("log").len(), kills, "each started once");
}

/// `kill -9` of agent and warden at once, with a tree that no parent-death signal reaches: the keeper ends it.
#[test]
fn nothing_runs_on_when_agent_and_warden_are_killed() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let mut runner = system.runner("w", 2, &[]);
    let case = format!("CASE=keeper-{}", std::process::id());
    let id = system.submit(&["--env", &case, "--", "sh", "-c", &stubborn(&system.path("log"))]);
    system.until_lines("log", 1);
    system.until(&id, &["RUNNING"]);
    until("the tree is there", || processes_with(&case).len() >= 4);
    let guard = system.say(&["-o", "json", "runners"]).stdout;
    runner.kill();
    system.kill_warden("w");
    if guard.contains("cgroup") {
        until("the keeper has ended all of it", || processes_with(&case).is_empty());
    }
    let _runner = system.runner("w", 2, &[]);
    let task = system.until(&id, &["FAILED"]);
    assert_eq!(task["outcome"]["kind"], "runner_restarted", "{task}");
    assert!(processes_with(&case).is_empty());
}

/// Whether this process may make a view of its own of what is mounted, without control groups of version 2 and with the freezer.
fn hides_version_2() -> bool {
    Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            &format!("{HIDE} && test -w /sys/fs/cgroup/freezer/tasks"),
        ])
        .status()
        .is_ok_and(|status| status.success())
}

const HIDE: &str = "{ ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified; }";

/// A host with version 1 alone. What this tree does, a process that leaves its session and clears its variables, is not
/// known as its task's by anything but a group.
#[test]
fn version_1_ends_trees_by_its_freezer_also_when_the_warden_is_killed() {
    if !hides_version_2() {
        println!("no host with control groups of version 1 alone can be made here");
        return;
    }
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let start = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c"]).arg(format!(
            "{HIDE} && exec {} runner --url {} --name w --slots 2 --kill-grace 300ms --data-dir {} --token-file {}",
            binary().display(),
            system.url,
            system.path("w").display(),
            system.db.token_dir().join("runner.token").display(),
        ));
        system.start("w", &mut command)
    };
    let mut runner = start();
    let script = format!(
        "trap '' TERM; env -i setsid sh -c 'trap \"\" TERM; (setsid sleep 1000 &); echo $$ >> {}; while :; do sleep 0.05; done' & wait",
        system.path("pids").display()
    );
    let submit = |count: usize| {
        let id = system.submit(&["--memory", "200M", "--", "sh", "-c", &script]);
        let pids = system.until_lines("pids", count);
        system.until(&id, &["RUNNING"]);
        (id, pids[count - 1].clone())
    };
    for round in 1..=4 {
        let (id, pid) = submit(round);
        assert!(system.say(&["-o", "json", "runners"]).stdout.contains("cgroup1"));
        assert_eq!(system.say(&["cancel", &id]).code, Some(0));
        let task = system.until(&id, &["TERMINATED", "FAILED", "FINISHED"]);
        assert_eq!(
            (&task["state"], &task["end_detail"]["tree_empty"]),
            (&"TERMINATED".into(), &true.into()),
            "{task}"
        );
        assert!(!alive(&pid), "{pid} of round {round} lives");
    }
    let (id, pid) = submit(5);
    runner.kill();
    system.kill_warden("w");
    until("the keeper has ended the tree", || !alive(&pid));
    let _runner = start();
    let task = system.until(&id, &["FAILED"]);
    assert_eq!(task["outcome"]["kind"], "runner_restarted", "{task}");
}
