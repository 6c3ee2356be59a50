//! What a runner outlives: a full disk, too few descriptors, a stopped agent or warden, schedulers that are away. Real
//! processes; afterwards every result and every output is complete.

use nix::sys::signal::{Signal, kill};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use systole_tests::home::{Home, json};
use systole_tests::system::{Process, Said, System, until};

/// A small file system of its own, unmounted at the end. Only root can have one.
struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    fn tmpfs(dir: &'a Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(dir).expect("a folder");
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size},mode=700"), "systole-test"])
            .arg(dir)
            .status();
        status.is_ok_and(|status| status.success()).then_some(Self(dir))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // Lazily: a warden may still be there, which is ended after this.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn runners(system: &System) -> Vec<serde_json::Value> {
    let said = system.say(&["-o", "json", "runners"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let value: serde_json::Value = serde_json::from_str(&said.stdout).expect("JSON");
    value["runners"].as_array().cloned().expect("a list")
}

fn fault(system: &System) -> Option<String> {
    runners(system)[0]["fault"]["kind"].as_str().map(str::to_owned)
}

#[test]
fn a_full_disk_stops_new_tasks_loses_no_result_and_heals_by_itself() {
    let system = System::sqlite();
    let dir = system.path("w");
    let Some(_mount) = Mount::tmpfs(&dir, "4m") else {
        println!(
            "a file system of its own could not be mounted: a folder that nobody can write takes the place of the full disk"
        );
        return unwritable(&system, "folder_unwritable");
    };
    let _scheduler = system.scheduler(0);
    let mut runner = system.runner("w", 2, &[]);
    let go = system.path("go");
    let running = system.submit(&[
        "--shell",
        &format!(
            "echo before; until test -e {}; do sleep 0.02; done; echo after >&2; exit 3",
            go.display()
        ),
    ]);
    system.until(&running, &["RUNNING"]);
    let filler = dir.join("filler");
    let full = Command::new("dd")
        .arg("if=/dev/zero")
        .arg(format!("of={}", filler.display()))
        .output();
    assert!(!full.expect("dd starts").status.success(), "the disk is full");

    // Told without a task that finds it out.
    until("the fault is told", || fault(&system).as_deref() == Some("disk_full"));
    let waiting = system.submit(&["--", "echo", "hello"]);
    until("the task says why it waits", || {
        system.show(&waiting)["waiting_for"]
            .as_str()
            .is_some_and(|why| why.contains("slots faulty: disk full on w"))
    });
    let table = system.say(&["runners"]).stdout;
    assert!(table.contains("FAULT") && table.contains("disk full since"), "{table}");

    // Not even a new agent needs room.
    runner.kill();
    let _runner = system.runner("w", 2, &[]);
    until("the next agent is there, and knows the fault", || {
        runners(&system)[0]["start_no"] == 2 && fault(&system).as_deref() == Some("disk_full")
    });

    // What runs ends as itself, on the full disk.
    std::fs::write(&go, "").expect("a file elsewhere");
    let task = system.until(&running, &["FINISHED", "FAILED"]);
    assert_eq!(
        (&task["state"], &task["outcome"]["exit_code"]),
        (&"FAILED".into(), &3.into()),
        "{task}"
    );
    assert_eq!(system.say(&["logs", &running]).stdout, "before\n");
    assert_eq!(system.show(&waiting)["state"], "QUEUED");

    std::fs::remove_file(&filler).expect("room is made");
    let task = system.until(&waiting, &["FINISHED", "FAILED"]);
    assert_eq!(
        (&task["state"], &task["attempt"]),
        (&"FINISHED".into(), &1.into()),
        "{task}"
    );
    assert_eq!(fault(&system), None);
}

#[test]
fn a_data_folder_that_cannot_be_written_stops_new_tasks_and_heals_by_itself() {
    unwritable(&System::sqlite(), "folder_unwritable");
}

fn unwritable(system: &System, kind: &str) {
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 2, &[]);
    let first = system.submit(&["--", "true"]);
    system.until(&first, &["FINISHED"]);
    let (tasks, away) = (system.path("w/tasks"), system.path("w/away"));
    std::fs::rename(&tasks, &away).expect("moved");
    std::fs::write(&tasks, "").expect("a file in its place, which stops root, too");
    let id = system.submit(&["--", "true"]);
    until("the fault is told", || fault(system).as_deref() == Some(kind));
    // Never started, so it is replaced, and the replacement waits.
    let task = system.until(&id, &["FAILED"]);
    assert_eq!(task["outcome"]["kind"], "not_started", "{task}");
    let next = task["retried_by"].as_str().expect("a replacement").to_owned();
    until("the replacement says why it waits", || {
        system.show(&next)["waiting_for"]
            .as_str()
            .is_some_and(|why| why.contains("slots faulty"))
    });
    std::fs::remove_file(&tasks).expect("removed");
    std::fs::rename(&away, &tasks).expect("moved back");
    assert_eq!(system.until(&next, &["FINISHED", "FAILED"])["state"], "FINISHED");
    assert_eq!(fault(system), None);
}

/// Bytes that are free where this folder lies.
fn free(dir: &Path) -> u64 {
    let found = nix::sys::statvfs::statvfs(dir).expect("a file system");
    found.blocks_available() * found.fragment_size()
}

#[test]
fn full_outputs_that_are_kept_make_room_before_the_disk_is_full() {
    let system = System::sqlite();
    let dir = system.path("w");
    let Some(_mount) = Mount::tmpfs(&dir, "4m") else {
        println!("a file system of its own could not be mounted: nothing was tested");
        return;
    };
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 1, &[]);
    let long = "head -c 200000 /dev/zero | tr '\\0' x";
    let kept = |id: &str| dir.join("outputs").join(id).exists();
    let ids: Vec<String> = (0..3)
        .map(|_| {
            let id = system.submit(&["--output-max", "16K", "--shell", long]);
            assert_eq!(system.until(&id, &["FINISHED", "FAILED"])["state"], "FINISHED");
            until("its full output is kept", || kept(&id));
            id
        })
        .collect();
    // Of 4 MiB 41 KiB must be free, and below 82 KiB room is made.
    let fill = |name: &str, leave: u64| {
        let bytes = usize::try_from(free(&dir) - leave).expect("small");
        std::fs::write(dir.join(name), vec![0_u8; bytes]).expect("it fits");
    };
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(system.say(&["logs", "--full", id]).stdout.len(), 200_000);
        fill(&format!("filler-{n}"), 60 * 1024);
        until("the oldest makes room", || !kept(id) && free(&dir) > 200_000);
        assert!(ids[n + 1..].iter().all(|id| kept(id)), "and no other");
        assert_eq!(fault(&system), None);
        let gone = system.say(&["logs", "--full", id]);
        assert!(
            gone.code != Some(0) && gone.stderr.contains("w does not have the full output"),
            "{gone:?}"
        );
    }
    let log = std::fs::read_to_string(dir.join("warden.log")).expect("its log");
    assert_eq!(
        log.matches("a full output is deleted before its time").count(),
        3,
        "{log}"
    );
    // Nothing is left that may go.
    fill("filler", 8 * 1024);
    until("the fault is told", || fault(&system).as_deref() == Some("disk_full"));
    std::fs::remove_file(dir.join("filler")).expect("room is made");
    until("the host is well again", || fault(&system).is_none());
}

/// RUSTSEC-2024-0376 and others: a process out of descriptors ended its loops, or spun.
#[test]
fn too_few_descriptors_stop_new_tasks_and_none_fails() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let mut warden = system.warden_command("w");
    // SAFETY: a system call on numbers between fork and exec.
    #[expect(unsafe_code, reason = "a limit between fork and exec has no safe form")]
    unsafe {
        warden.pre_exec(|| {
            use nix::sys::resource::{Resource, setrlimit};
            setrlimit(Resource::RLIMIT_NOFILE, 48, 48).map_err(std::io::Error::from)
        });
    }
    let _warden = system.start("w-warden", &mut warden);
    let _runner = system.runner("w", 16, &["--external-warden"]);
    until("the runner is there", || runners(&system).len() == 16);
    // All at once, however long it takes to submit them.
    let go = system.path("go");
    let script = format!("until test -e {}; do sleep 0.05; done; echo done", go.display());
    let ids: Vec<String> = (0..16).map(|_| system.submit(&["--shell", &script])).collect();
    until("the fault is told", || fault(&system).as_deref() == Some("file_limit"));
    std::fs::write(&go, "").expect("written");
    for id in ids {
        let mut id = id;
        loop {
            let task = system.until(&id, &["FINISHED", "FAILED"]);
            if task["state"] == "FINISHED" {
                break;
            }
            assert_eq!(task["outcome"]["kind"], "not_started", "{task}");
            id = task["retried_by"].as_str().expect("it is replaced").to_owned();
        }
        assert_eq!(system.say(&["logs", &id]).stdout, "done\n");
    }
    until("the host is well again", || fault(&system).is_none());
}

/// Most files that a process may have open: soft, hard.
fn file_limit(pid: &str) -> Vec<String> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it lives");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let words = line.expect("the limit").split_whitespace();
    words.take(2).map(str::to_owned).collect()
}

#[test]
fn a_scheduler_takes_all_the_files_that_it_may_have_and_its_tasks_get_what_it_was_started_with() {
    let home = Home::new();
    let mut up = home.command(&[
        "-o",
        "json",
        "up",
        "--detach",
        "--slots",
        "1",
        "--listen",
        &home.listen(),
    ]);
    // SAFETY: a system call on numbers between fork and exec.
    #[expect(unsafe_code, reason = "a limit between fork and exec has no safe form")]
    unsafe {
        up.pre_exec(|| {
            use nix::sys::resource::{Resource, setrlimit};
            setrlimit(Resource::RLIMIT_NOFILE, 300, 900).map_err(std::io::Error::from)
        });
    }
    let up: Said = up.output().expect("systole starts").into();
    assert_eq!(file_limit(&json(&up)["pid"].to_string()), ["900", "900"]);
    let task = home.say(&["run", "--shell", "ulimit -Sn; ulimit -Hn"]);
    assert_eq!(task.stdout, "300\n900\n", "{task:?}");
}

#[test]
fn an_agent_that_is_stopped_for_longer_than_its_limit_kills_nothing_and_tells_the_true_end() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let runner = system.runner("w", 1, &[]);
    let id = system.submit(&["--shell", "echo out; echo err >&2; sleep 9; echo late; exit 7"]);
    system.until(&id, &["RUNNING"]);
    runner.signal(Signal::SIGSTOP);
    let task = system.until(&id, &["FAILED"]);
    assert_eq!(task["outcome"]["kind"], "runner_lost", "{task}");
    // It ends while its agent stands still.
    until("the command has ended", || {
        std::fs::read_to_string(system.path(&format!("w/tasks/{id}/journal")))
            .is_ok_and(|lines| lines.contains("\"end\""))
    });
    runner.signal(Signal::SIGCONT);
    until("the true result is kept beside the verdict", || {
        system.show(&id)["late_result"]["exit_code"] == 7
    });
    until("the output is complete", || {
        system.say(&["logs", &id]).stdout == "out\nlate\n"
    });
    let next = system.submit(&["--", "true"]);
    assert_eq!(system.until(&next, &["FINISHED", "FAILED"])["state"], "FINISHED");
}

/// A host whose warden works, and whose schedulers wait longer for a silent runner than a test takes.
fn host(system: &System) -> [Process; 2] {
    let scheduler = system.scheduler_with(0, &["--beat", "2s", "--lost-after", "60s", "--check", "500ms"]);
    let runner = system.runner("w", 1, &[]);
    let first = system.submit(&["--", "true"]);
    system.until(&first, &["FINISHED"]);
    [scheduler, runner]
}

#[test]
fn a_warden_that_does_not_answer_closes_its_host_and_what_it_never_began_is_not_told_as_running() {
    let system = System::sqlite();
    let _processes = host(&system);
    let script = format!("echo $SYSTOLE_TASK_ID >> {}", system.path("log").display());
    let warden = system.warden("w");
    kill(warden, Signal::SIGSTOP).expect("stopped");
    let mut id = system.submit(&["--shell", &script]);
    until("the fault is told", || {
        assert_ne!(system.state(&id), "RUNNING", "nobody has taken it up");
        fault(&system).as_deref() == Some("warden_stalled")
    });
    let table = system.say(&["runners"]).stdout;
    assert!(
        table.contains("FAULT") && table.contains("warden stalled since"),
        "{table}"
    );
    // What it never began is given back while it still does not answer.
    until("a replacement says why it waits", || {
        let task = system.show(&id);
        if task["state"] == "FAILED" {
            assert_eq!(task["outcome"]["kind"], "not_started", "{task}");
            id = task["retried_by"].as_str().expect("it is replaced").to_owned();
            return false;
        }
        assert_ne!(task["state"], "RUNNING", "{task}");
        task["attempt"] == 1
            && task["waiting_for"]
                .as_str()
                .is_some_and(|why| why.contains("1 of 1 slot faulty: warden stalled on w"))
    });
    kill(warden, Signal::SIGCONT).expect("it goes on");
    assert_eq!(system.until(&id, &["FINISHED", "FAILED"])["state"], "FINISHED");
    until("the host is well again", || fault(&system).is_none());
    assert_eq!(
        system.lines("log"),
        [id],
        "the order that it found in its socket is not obeyed"
    );
    assert_eq!(system.warden("w"), warden, "the same warden");
}

#[test]
fn a_host_whose_warden_is_gone_gets_no_tasks_until_there_is_another() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let mut warden = system.start("w-warden", &mut system.warden_command("w"));
    let _runner = system.runner("w", 2, &["--external-warden"]);
    let first = system.submit(&["--", "true"]);
    system.until(&first, &["FINISHED"]);
    // Not what was started: where there are no control groups that is its keeper, whose death drains the warden.
    system.kill_warden("w");
    warden.wait(Duration::from_secs(10));
    until("the fault is told", || {
        fault(&system).as_deref() == Some("warden_stalled")
    });
    let id = system.submit(&["--", "echo", "hello"]);
    // Longer than it takes to give up an order that a host does not take up: several beats, and each finds no warden.
    let since = Instant::now();
    until("it waits, and says why", || {
        let task = system.show(&id);
        assert_eq!(
            (&task["state"], &task["attempt"]),
            (&"QUEUED".into(), &1.into()),
            "{task}"
        );
        since.elapsed() > Duration::from_secs(5) && task["waiting_for"] == "2 of 2 slots faulty: warden stalled on w"
    });
    let _warden = system.start("w-warden", &mut system.warden_command("w"));
    assert_eq!(system.until(&id, &["FINISHED", "FAILED"])["state"], "FINISHED");
    assert_eq!(system.say(&["logs", &id]).stdout, "hello\n");
    until("the host is well again", || fault(&system).is_none());
}

#[test]
fn a_task_that_is_cancelled_before_a_stopped_warden_took_it_up_never_starts() {
    let system = System::sqlite();
    let _processes = host(&system);
    let script = format!("echo $SYSTOLE_TASK_ID >> {}", system.path("log").display());
    let warden = system.warden("w");
    kill(warden, Signal::SIGSTOP).expect("stopped");
    let id = system.submit(&["--shell", &script]);
    system.until(&id, &["DISPATCHED"]);
    assert_eq!(system.say(&["cancel", &id]).code, Some(0));
    let task = system.until(&id, &["TERMINATED", "FAILED", "FINISHED"]);
    assert_eq!(
        (&task["state"], &task["outcome"]["message"]),
        (&"TERMINATED".into(), &"cancelled; it was never started".into()),
        "{task}"
    );
    kill(warden, Signal::SIGCONT).expect("it goes on");
    // Behind it in the same socket.
    let next = system.submit(&["--shell", &script]);
    assert_eq!(system.until(&next, &["FINISHED", "FAILED"])["state"], "FINISHED");
    assert_eq!(system.lines("log"), [next]);
}

#[test]
fn an_agent_beside_a_stopped_warden_ends_with_an_error_and_a_later_one_takes_the_tasks_over() {
    let system = System::sqlite();
    let _scheduler = system.scheduler_with(0, &["--beat", "2s", "--lost-after", "300s", "--check", "500ms"]);
    let mut runner = system.runner("w", 1, &[]);
    let go = system.path("go");
    let script = format!("until test -e {}; do sleep 0.02; done; echo done", go.display());
    let id = system.submit(&["--shell", &script]);
    system.until(&id, &["RUNNING"]);
    let warden = system.warden("w");
    kill(warden, Signal::SIGSTOP).expect("stopped");
    runner.kill();
    let mut next = system.runner("w", 1, &[]);
    let code = next.wait(Duration::from_secs(90));
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
    let log = next.log();
    assert!(
        log.contains("no warden answers in the data directory") && log.contains("has not answered within 30 s"),
        "{log}"
    );
    kill(warden, Signal::SIGCONT).expect("it goes on");
    let _runner = system.runner("w", 1, &[]);
    std::fs::write(&go, "").expect("written");
    assert_eq!(system.until(&id, &["FINISHED", "FAILED"])["state"], "FINISHED");
    assert_eq!(system.say(&["logs", &id]).stdout, "done\n");
    assert_eq!(system.warden("w"), warden, "the same warden");
}

#[test]
fn schedulers_that_are_away_for_longer_than_the_limit_lose_no_result_and_no_output() {
    let system = System::sqlite();
    let mut scheduler = system.scheduler(0);
    let _runner = system.runner("w", 3, &[]);
    let ids: Vec<String> = (0..3)
        .map(|n| {
            system.submit(&[
                "--shell",
                &format!("echo begin; sleep {}; seq 1 20000; exit {n}", n * 8),
            ])
        })
        .collect();
    // The first ends before, the second during, the third perhaps after the absence.
    assert_eq!(system.until(&ids[0], &["FINISHED"])["state"], "FINISHED");
    for id in &ids[1..] {
        system.until(id, &["RUNNING"]);
    }
    let away = Instant::now();
    scheduler.kill();
    until("the second has ended meanwhile", || {
        std::fs::read_to_string(system.path(&format!("w/tasks/{}/journal", ids[1])))
            .is_ok_and(|lines| lines.contains("\"end\""))
    });
    until("longer than a silent runner is waited for", || {
        away.elapsed() > Duration::from_secs(9)
    });
    let _scheduler = system.scheduler(0);
    let expected: String = std::iter::once("begin\n".to_owned())
        .chain((1..=20_000).map(|n| format!("{n}\n")))
        .collect();
    for (n, id) in ids.iter().enumerate() {
        let task = system.until(id, &["FINISHED", "FAILED"]);
        assert_eq!(task["outcome"]["exit_code"], n, "{task}");
        assert_eq!(system.say(&["logs", id]).stdout, expected);
    }
}
