//! A runner that has run very many tasks is as it was after the first: nothing leaks. `scripts/torture` runs the same with
//! larger numbers.

use std::path::{Path, PathBuf};
use std::process::Command;
use systole_tests::system::{System, alive, until};
use tempfile::TempDir;

fn rounds(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn entries(dir: &str) -> usize {
    std::fs::read_dir(dir).map_or(0, |entries| entries.flatten().count())
}

/// All control groups below one with this name, wherever the hierarchy is mounted.
fn groups(dir: &Path, name: &str) -> usize {
    let below = |dir: &Path| -> Vec<PathBuf> {
        let all = std::fs::read_dir(dir).into_iter().flatten().flatten();
        all.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect()
    };
    let own = |path: &Path| {
        path.file_name()
            .is_some_and(|file| file.to_string_lossy().starts_with(name))
    };
    below(dir)
        .iter()
        .map(|path| {
            if own(path) {
                1 + below(path).len()
            } else {
                groups(path, name)
            }
        })
        .sum()
}

/// What a process holds.
#[derive(Debug)]
struct Held {
    descriptors: usize,
    threads: usize,
    resident_kib: usize,
    zombies: usize,
}

impl Held {
    fn of(pid: &str) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let number = |field: &str| -> usize {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(field))
                .expect("the field");
            line.split_whitespace()
                .next()
                .expect("a number")
                .parse()
                .expect("a number")
        };
        let children = std::fs::read_dir(format!("/proc/{pid}/task"))
            .expect("threads")
            .flatten()
            .map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default())
            .collect::<String>();
        Self {
            descriptors: entries(&format!("/proc/{pid}/fd")),
            threads: number("Threads:"),
            resident_kib: number("VmRSS:"),
            zombies: children.split_whitespace().filter(|child| !alive(child)).count(),
        }
    }

    /// The room is for what is kept on purpose to be used again, and for the allocator.
    fn has_grown_no_further_than(&self, before: &Held, kib: usize) -> bool {
        self.descriptors <= before.descriptors + 24
            && self.threads <= before.threads + 2
            && self.resident_kib <= before.resident_kib + kib
            && self.zombies <= 2
    }
}

fn run_many(system: &System, count: usize) {
    const WAVE: usize = 50;
    let mut left = count;
    while left > 0 {
        let wave = left.min(WAVE);
        let ids: Vec<String> = (0..wave)
            .map(|n| {
                let script = format!("echo out; (sleep 0 &); mktemp > /dev/null; exit {}", n % 2);
                let tty = if n % 10 == 0 { &["--tty"][..] } else { &[] };
                system.submit(&[tty, &["--shell", &script]].concat())
            })
            .collect();
        for (n, id) in ids.iter().enumerate() {
            let task = system.until(id, &["FINISHED", "FAILED"]);
            assert_eq!(task["outcome"]["exit_code"], n % 2, "{task}");
        }
        left -= wave;
    }
}

#[test]
fn nothing_leaks_after_many_tasks_in_a_row() {
    let tasks = rounds("SYSTOLE_TASKS", 300);
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    let runner = system.runner("w", 4, &[]);
    run_many(&system, 100);
    let (agent, warden) = (runner.pid().to_string(), system.warden("w").to_string());
    let instance = std::fs::read_to_string(system.path("w/instance.json")).expect("an identity");
    let instance: serde_json::Value = serde_json::from_str(&instance).expect("JSON");
    let name = format!("systole-{}", instance["instance_id"].as_str().expect("an id"));
    let count_groups = || groups(Path::new("/sys/fs/cgroup"), &name);
    let before = (Held::of(&agent), Held::of(&warden), count_groups());
    run_many(&system, tasks);
    until("the folders of all tasks are gone", || {
        entries(&system.path("w/tasks").display().to_string()) == 0
    });
    until("nothing waits to be deleted", || {
        entries(&system.path("w/trash").display().to_string()) == 0
    });
    until("no zombie is left", || Held::of(&warden).zombies == 0);
    let after = (Held::of(&agent), Held::of(&warden), count_groups());
    println!("before: {before:?}\nafter {tasks} tasks: {after:?}");
    assert!(
        after.0.has_grown_no_further_than(&before.0, 6 * 1024),
        "the agent: {before:?} {after:?}"
    );
    assert!(
        after.1.has_grown_no_further_than(&before.1, 2 * 1024),
        "the warden: {before:?} {after:?}"
    );
    assert!(
        after.2 <= before.2 + 8,
        "control groups: {} and then {}",
        before.2,
        after.2
    );
}

/// Processes of the runner, by the numbers of the host: its own, and all below it.
fn below(root: u32) -> Vec<(u32, char)> {
    let all: Vec<(u32, u32, char)> = std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let (head, tail) = stat.rsplit_once(") ")?;
            let mut fields = tail.split(' ');
            let state = fields.next()?.chars().next()?;
            Some((
                head.split(' ').next()?.parse().ok()?,
                fields.next()?.parse().ok()?,
                state,
            ))
        })
        .collect();
    let mut found = vec![(root, 'S')];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at].0;
        found.extend(
            all.iter()
                .filter(|(_, of, _)| *of == parent)
                .map(|(pid, _, state)| (*pid, *state)),
        );
        at += 1;
    }
    found
}

/// aptible/supercronic#88: as the first process of a container it left zombies. And numbers of processes come back
/// quickly there: whoever signals by number alone hits strangers.
#[test]
fn d10_as_the_first_process_of_a_container_it_leaves_no_zombie_and_numbers_that_return_harm_nobody() {
    let system = System::sqlite();
    let _scheduler = system.scheduler(0);
    // Not below the folder of the system: the number in its lock is that of the container.
    let folder = TempDir::new().expect("a folder");
    let start = format!(
        "{} exec {} runner --url {} --name c --slots 8 --data-dir {} --token-file {}",
        // Since Linux 6.14 the bound is the container's own; before, it would be that of the whole host.
        if has_own_pid_max() {
            "echo 440 > /proc/sys/kernel/pid_max;"
        } else {
            println!("this kernel has one bound of process numbers for all: they do not return in this test");
            ""
        },
        systole_tests::system::binary().display(),
        system.url,
        folder.path().join("data").display(),
        system.db.token_dir().join("runner.token").display(),
    );
    let mut container = Command::new("unshare");
    container.args(["--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", &start]);
    if !Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        println!("a namespace of processes cannot be made here: the runner is not the first process in this test");
        container = Command::new("sh");
        container.args(["-c", &start.replace("echo 440 > /proc/sys/kernel/pid_max;", "")]);
    }
    let container = system.start("container", &mut container);
    // A stranger for the whole time, in the container's view a process like any other.
    let bystander = system.submit(&[
        "--shell",
        &format!(
            "until test -e {}; do sleep 0.05; done; echo unharmed",
            system.path("go").display()
        ),
    ]);
    system.until(&bystander, &["RUNNING"]);
    let ids: Vec<String> = (0..140)
        .map(|n| system.submit(&["--shell", &format!("(sleep 0.1 &) ; (true); exit {}", n % 3)]))
        .collect();
    for (n, id) in ids.iter().enumerate() {
        let task = system.until(id, &["FINISHED", "FAILED"]);
        assert_eq!(
            (&task["outcome"]["exit_code"], &task["outcome"]["signal"]),
            (&(n % 3).into(), &serde_json::Value::Null),
            "{task}"
        );
    }
    std::fs::write(system.path("go"), "").expect("written");
    let task = system.until(&bystander, &["FINISHED", "FAILED"]);
    assert_eq!(task["state"], "FINISHED", "{task}");
    assert_eq!(system.say(&["logs", &bystander]).stdout, "unharmed\n");
    let root = container.child.id();
    until("no zombie is left", || {
        below(root).iter().all(|(_, state)| *state != 'Z')
    });
    assert!(
        below(root).len() >= 3,
        "the runner and its warden are there: {:?}",
        below(root)
    );
}

fn has_own_pid_max() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 14)
}
