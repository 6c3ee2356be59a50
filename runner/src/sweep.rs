//! What an earlier warden left: results to deliver, and children to end. Runs before the first agent is heard
//! and under the lock of the data directory, so no other process looks after these tasks.

use crate::host;
use crate::journal::{Begin, Ended, Entry, Journal, ProcessRecord};
use crate::procfs::{self, Process};
use crate::state_dir::WardenDir;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io;
use std::time::{Duration, Instant};
use systole_shared::task::OutcomeKind;

/// How long killed processes are waited for.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// The variables that every process of a task inherits, whatever session it makes for itself. With the
/// instance: another runner on this host, of another cluster, may have a task of the same number.
pub fn markers(task_id: i64, instance_id: &str) -> Vec<String> {
    vec![
        format!("SYSTOLE_TASK_ID={task_id}"),
        format!("SYSTOLE_INSTANCE={instance_id}"),
    ]
}

/// Ends what an earlier warden left, and returns the results that are still to be acknowledged,
/// by task id.
pub fn recover(journal: &Journal, home: &WardenDir) -> io::Result<Vec<Ended>> {
    let boot_id = host::boot_id()?;
    let mut results = Vec::new();
    for entry in journal.entries()? {
        match entry {
            Entry { ended: Some(ended), .. } => results.push(ended),
            // In a copied directory an unfinished task belongs to the original, where it may be alive:
            // neither its processes nor its result are ours.
            Entry {
                task_id,
                begin: Some(_),
                ..
            } if home.is_new => set_aside(journal, task_id)?,
            Entry {
                begin: Some(begin),
                process,
                ..
            } => {
                let ended = interrupted(journal, &begin, process, &boot_id, &home.instance_id)?;
                journal.end(&ended)?;
                results.push(ended);
            }
            // Nothing was begun: the process died before, or after it had forgotten the task.
            Entry { task_id, .. } => journal.remove(task_id)?,
        }
    }
    Ok(results)
}

fn set_aside(journal: &Journal, task_id: i64) -> io::Result<()> {
    tracing::warn!(
        task_id,
        "an unfinished task of the instance that this directory was copied from is moved to unclaimed/"
    );
    journal.set_aside(task_id)
}

/// The end of a task whose runner process died.
fn interrupted(
    journal: &Journal,
    begin: &Begin,
    process: Option<ProcessRecord>,
    boot_id: &str,
    instance_id: &str,
) -> io::Result<Ended> {
    let rebooted = begin.boot_id != boot_id;
    let ended_all = rebooted || end_processes(process, &markers(begin.task_id, instance_id))?;
    let message = match (rebooted, ended_all) {
        (true, _) => "the host was restarted while the task ran",
        (false, true) => "the runner was restarted while the task ran; its processes were ended",
        (false, false) => "the runner was restarted while the task ran; not all of its processes could be ended",
    };
    tracing::warn!(task_id = begin.task_id, slot = begin.slot, "{message}");
    let mut ended = Ended::without_child(begin, OutcomeKind::RunnerRestarted, message);
    ended.started_at_ms = begin.begun_at_ms;
    ended.detail.tree_empty = Some(ended_all);
    [ended.stdout_bytes, ended.stderr_bytes] = crate::child::output::sizes(&journal.dir(begin.task_id));
    if begin.keep_workdir {
        journal.keep_work_of(&mut ended);
    }
    Ok(ended)
}

/// Kills every process of a task and waits until they are gone. False: some are still there.
///
/// The leader may have died with its runner while others of its session live on; they are found by
/// the variables they inherited. A recorded pid alone proves nothing: the number may be somebody else's by now.
pub fn end_processes(leader: Option<ProcessRecord>, markers: &[String]) -> io::Result<bool> {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let leader_lives = leader.is_some_and(|l| procfs::process(l.pid).is_some_and(|p| p.start_time == l.start_time));
    let in_session = |p: &Process| leader_lives && leader.is_some_and(|l| p.session == l.pid || p.group == l.pid);
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        let alive: Vec<Process> = procfs::processes()?
            .into_iter()
            .filter(|p| p.pid != me && p.is_alive())
            .filter(|p| in_session(p) || procfs::has_variables(p.pid, markers))
            .collect();
        if alive.is_empty() {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        for process in &alive {
            // Ended meanwhile: just as well. Not permitted: it is still there at the deadline, which tells.
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::begin;
    use crate::journal::{JOURNAL, STDERR, STDOUT};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    /// Not shared with other test processes that run at the same time.
    fn instance() -> String {
        format!("sweep-{}", std::process::id())
    }

    /// A directory whose id is known to the leftovers.
    fn home(root: &std::path::Path, is_new: bool) -> WardenDir {
        let mut home = WardenDir::open(root, "m").unwrap();
        home.instance_id = instance();
        home.is_new = is_new;
        home
    }

    /// A child with a grandchild that ignores TERM, as an earlier process would have left them.
    fn leftover(task_id: i64) -> (std::process::Child, ProcessRecord) {
        let child = Command::new("/bin/sh")
            .args(["-c", "trap '' TERM; setsid sleep 300 & sleep 300 & wait"])
            .env("SYSTOLE_TASK_ID", task_id.to_string())
            .env("SYSTOLE_INSTANCE", instance())
            .process_group(0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let start_time = procfs::process(pid).unwrap().start_time;
        (child, ProcessRecord { pid, start_time })
    }

    fn marked(task_id: i64) -> usize {
        let wanted = markers(task_id, &instance());
        procfs::processes()
            .unwrap()
            .iter()
            .filter(|p| p.is_alive() && procfs::has_variables(p.pid, &wanted))
            .count()
    }

    #[test]
    fn processes_of_an_interrupted_task_are_ended_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 2).unwrap();
        let mut begun = begin(90_001);
        begun.boot_id = host::boot_id().unwrap();
        let begun = journal.begin(&begun).unwrap();
        let (mut child, record) = leftover(90_001);
        begun.started(record).unwrap();
        std::fs::write(journal.dir(90_001).join("stdout"), "half").unwrap();

        let results = recover(&journal, &home(dir.path(), false)).unwrap();
        assert_eq!(marked(90_001), 0);
        child.wait().unwrap();
        assert_eq!(results.len(), 1);
        assert_eq!(
            (
                results[0].kind.as_str(),
                results[0].dispatched_start_no,
                results[0].slot
            ),
            ("runner_restarted", 3, 2)
        );
        assert_eq!(
            results[0].message,
            "the runner was restarted while the task ran; its processes were ended"
        );
        assert_eq!((results[0].stopped_by, results[0].stdout_bytes), (None, 4));
        // It is the same result at the next start, until it is acknowledged.
        assert_eq!(recover(&journal, &home(dir.path(), false)).unwrap(), results);
    }

    #[test]
    fn a_pid_that_belongs_to_somebody_else_now_is_left_alone() {
        let (mut child, record) = leftover(90_002);
        let stranger = ProcessRecord {
            start_time: record.start_time + 1,
            ..record
        };
        assert!(end_processes(Some(stranger), &markers(90_002, "elsewhere")).unwrap());
        assert!(procfs::process(record.pid).unwrap().is_alive());
        assert!(end_processes(Some(record), &markers(90_002, &instance())).unwrap());
        child.wait().unwrap();
    }

    #[test]
    fn unfinished_tasks_of_a_copied_directory_are_neither_ended_nor_reported() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 2).unwrap();
        let mut begun = begin(90_003);
        begun.boot_id = host::boot_id().unwrap();
        let begun = journal.begin(&begun).unwrap();
        let (mut child, record) = leftover(90_003);
        begun.started(record).unwrap();
        assert!(recover(&journal, &home(dir.path(), true)).unwrap().is_empty());
        assert!(procfs::process(record.pid).unwrap().is_alive());
        assert!(dir.path().join("unclaimed/90003").exists());
        assert!(end_processes(Some(record), &markers(90_003, &instance())).unwrap());
        child.wait().unwrap();
    }

    #[test]
    fn of_a_task_that_was_being_forgotten_or_not_yet_begun_nothing_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 2).unwrap();
        // Forgotten, its directory kept; another one as it is between two tasks: its journal is empty.
        let files = journal.begin(&begin(90_005)).unwrap();
        drop(journal.begin(&begin(90_006)).unwrap());
        for task_id in [90_005, 90_006] {
            for name in [STDOUT, STDERR] {
                std::fs::copy(journal.dir(task_id).join(JOURNAL), journal.dir(task_id).join(name)).unwrap();
            }
        }
        std::fs::File::create(journal.dir(90_006).join(JOURNAL)).unwrap();
        // Another test may be forking a child this moment, which holds all files until its exec.
        std::thread::sleep(Duration::from_millis(20));
        journal.recycle(90_005, files, true).unwrap();
        // Made by a power cut or an older version.
        std::fs::create_dir(journal.dir(90_007)).unwrap();
        drop(journal);

        let journal = Journal::open(dir.path(), 2).unwrap();
        assert!(recover(&journal, &home(dir.path(), false)).unwrap().is_empty());
        for left in ["tasks", "spare", "unclaimed"] {
            assert_eq!(std::fs::read_dir(dir.path().join(left)).unwrap().count(), 0, "{left}");
        }
    }

    #[test]
    fn a_reboot_is_told_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 2).unwrap();
        journal.begin(&begin(90_004)).unwrap();
        let results = recover(&journal, &home(dir.path(), false)).unwrap();
        assert_eq!(results[0].message, "the host was restarted while the task ran");
    }
}
