//! Nothing a task leaves behind survives it, and nothing that happens to its agent changes its end. Many times over:
//! `scripts/torture` runs the same with larger numbers.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Command;
use std::time::{Duration, Instant};
use systole_tests::system::{Process, System, alive, binary, until};

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
    runner.kill();
    system.kill_warden("w");
    until("the keeper has ended all of it", || processes_with(&case).is_empty());
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

/// Starts a process that sees the host as it is after `hide`, mounted as it likes.
fn in_view(system: &System, log: &str, hide: &str, line: &str) -> Process {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c"])
        .arg(format!("{hide} && {{ {line}; }}"));
    system.start(log, &mut command)
}

fn runner_line(system: &System) -> String {
    format!(
        "exec {} runner --url {} --name w --slots 2 --kill-grace 300ms --data-dir {} --token-file {}",
        binary().display(),
        system.url,
        system.path("w").display(),
        system.db.token_dir().join("runner.token").display(),
    )
}

/// The warden of such a runner, for one with `--external-warden`.
fn warden_line(system: &System) -> String {
    format!(
        "exec {} warden --data-dir {}",
        binary().display(),
        system.path("w").display()
    )
}

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
    let start = || in_view(&system, "w", HIDE, &runner_line(&system));
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

/// No control group of any version is left.
const HIDE_ALL: &str = "awk '/ - cgroup2? / { print $5 }' /proc/self/mountinfo | sort -r | \
     while read -r dir; do umount -l \"$dir\" || exit 1; done";

/// Whether such a view of the host can be made here.
fn hides_all() -> bool {
    let hidden = format!("{HIDE_ALL} && ! grep -Eq ' - cgroup2? ' /proc/self/mountinfo");
    let made = Command::new("unshare")
        .args(["--mount", "sh", "-c", &hidden])
        .status()
        .is_ok_and(|status| status.success());
    if !made {
        println!("no host without control groups can be made here");
    }
    made
}

fn parent_of(pid: &str) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields = stat.rsplit(") ").next().expect("fields");
    fields.split(' ').nth(1).expect("the parent").to_owned()
}

/// Of a runner's warden on a host without control groups: its parent.
fn keeper_of(system: &System) -> String {
    let keeper = parent_of(&system.warden("w").to_string());
    // The warden may be the faster one of the two.
    until("the parent is a keeper", || {
        std::fs::read_to_string(format!("/proc/{keeper}/comm")).expect("it lives") == "systole-keeper\n"
    });
    keeper
}

/// Starts a task that leaves two processes, each in a session of its own, forked twice and without any variable: nothing tells
/// whose they are. With the numbers of all three.
fn submit_daemons(system: &System) -> (String, Vec<String>) {
    let script = format!(
        "(env -i setsid sh -c '(setsid sh -c \"echo \\$\\$ >> {0}; exec sleep 1000\" &); echo $$ >> {0}; exec sleep 1000' &); \
         echo $$ >> {0}; exec sleep 1000",
        system.path("pids").display()
    );
    let id = system.submit(&["--", "sh", "-c", &script]);
    let pids = system.until_lines("pids", 3);
    system.until(&id, &["RUNNING"]);
    let runners = system.say(&["-o", "json", "runners"]).stdout;
    assert!(runners.contains("\"session\""), "{runners}");
    (id, pids)
}

fn count_alive(pids: &[String]) -> usize {
    pids.iter().filter(|pid| alive(pid)).count()
}

#[test]
fn without_control_groups_the_keeper_ends_what_no_session_and_no_variable_tells_of() {
    if !hides_all() {
        return;
    }
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let mut runner = in_view(&system, "w", HIDE_ALL, &runner_line(&system));
    let (id, pids) = submit_daemons(&system);
    let keeper = keeper_of(&system);
    let since = Instant::now();
    // First, so that nobody starts the next warden.
    runner.kill();
    system.kill_warden("w");
    until("the keeper has ended all of it", || count_alive(&pids) == 0);
    until("the keeper has gone", || !alive(&keeper));
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    let _runner = in_view(&system, "w", HIDE_ALL, &runner_line(&system));
    let task = system.until(&id, &["FAILED"]);
    assert_eq!(task["outcome"]["kind"], "runner_restarted", "{task}");
}

#[test]
fn the_next_warden_waits_for_no_keeper_of_the_last_one() {
    if !hides_all() {
        return;
    }
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let _runner = in_view(&system, "w", HIDE_ALL, &runner_line(&system));
    let (id, pids) = submit_daemons(&system);
    let keeper = keeper_of(&system);
    let to_keeper = |signal: Signal| kill(Pid::from_raw(keeper.parse().expect("a number")), signal).expect("signal");
    to_keeper(Signal::SIGSTOP);
    // Its agent starts another one, which finds the lock free, and does not know whose the daemons are.
    system.kill_warden("w");
    let task = system.until(&id, &["FAILED"]);
    assert_eq!(task["outcome"]["kind"], "runner_restarted", "{task}");
    assert_eq!(system.say(&["run", "--", "true"]).code, Some(0), "it works on");
    assert_eq!(count_alive(&pids), 2);
    to_keeper(Signal::SIGCONT);
    until("the keeper has ended them", || count_alive(&pids) == 0);
    until("the keeper has gone", || !alive(&keeper));
    assert_eq!(
        system.say(&["run", "--", "true"]).code,
        Some(0),
        "the next one is none of its business"
    );
}

#[test]
fn without_control_groups_a_signal_to_the_keeper_or_its_death_drains_the_warden() {
    if !hides_all() {
        return;
    }
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let system = System::sqlite();
        let _scheduler = system.scheduler(0);
        let mut keeper = in_view(&system, "w-warden", HIDE_ALL, &warden_line(&system));
        let _runner = system.runner("w", 2, &["--external-warden"]);
        let id = system.submit(&["--", "sleep", "1000"]);
        system.until(&id, &["RUNNING"]);
        let warden = system.warden("w").to_string();
        assert_eq!(keeper_of(&system), keeper.pid().to_string());
        keeper.signal(signal);
        let task = system.until(&id, &["FAILED"]);
        assert_eq!(task["outcome"]["kind"], "runner_stopped", "{signal}: {task}");
        until("the warden has gone", || !alive(&warden));
        // As the warden ended, or by the signal.
        let code = (signal == Signal::SIGTERM).then_some(0);
        assert_eq!(keeper.wait(Duration::from_secs(10)), code, "{signal}");
    }
}

#[test]
fn a_keeper_ends_as_its_warden_did_and_leaves_alone_what_was_there_before() {
    if !hides_all() {
        return;
    }
    let system = System::sqlite();
    let (other, go) = (system.path("other"), system.path("go"));
    // One is there from the beginning; the other one loses its parent while there is a warden.
    let line = format!(
        "sleep 1000 & echo $! >> {other}; (until test -e {go}; do sleep 0.05; done; setsid sleep 1000 & echo $! >> {other}) & {}",
        warden_line(&system),
        other = other.display(),
        go = go.display(),
    );
    let mut keeper = in_view(&system, "w-warden", HIDE_ALL, &line);
    until("the warden is there", || system.path("w/warden.1.sock").exists());
    assert_eq!(keeper_of(&system), keeper.pid().to_string());
    std::fs::write(&go, "").expect("written");
    let others = system.until_lines("other", 2);
    let (pid, warden) = (keeper.pid().to_string(), system.warden("w").to_string());
    // Its own list has them, and neither the shell that was between them and it nor anything to do.
    until("the keeper has taken note of them", || {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).expect("it lives");
        let children = read(&format!("task/{pid}/children"));
        let has = |child: &str| children.split_whitespace().any(|other| other == child);
        let is_asleep = || {
            read("stat")
                .rsplit(") ")
                .next()
                .is_some_and(|rest| rest.starts_with('S'))
        };
        children.split_whitespace().count() == 3 && has(&warden) && others.iter().all(|other| has(other)) && is_asleep()
    });
    system.kill_warden("w");
    // By the same signal, so without an exit code.
    assert_eq!(keeper.wait(Duration::from_secs(10)), None);
    for other in others {
        assert!(alive(&other));
        kill(Pid::from_raw(other.parse().expect("a number")), Signal::SIGKILL).expect("it lives");
    }
}
