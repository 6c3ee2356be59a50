//! Whether this host can start tasks: what failed, and the probes that find out when it works again. When that is, says
//! [`Monitor`]; here are the system calls.
//!
//! A probe does what a start does: it makes a directory and a file, writes, opens some descriptors and clones a
//! process. A host without a fault is only asked for its free space.

use crate::boottime;
use crate::child::fork::{Files, Image, Refused, Step};
use crate::warden::protocol::Told;
use crate::warden::room::Room;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;
use systole_shared::policy::host_fault::{FaultKind, HostFault, Monitor, free_bytes_min};

/// Descriptors that a start takes at most.
const DESCRIPTORS: usize = 10;
/// What a probe writes: a block of the file system, so that its room is really asked for.
const BYTES: usize = 4_096;
/// Not a number, so nobody takes it for a task.
const PROBE: &str = "probe";

#[derive(Debug)]
pub struct Health {
    root: PathBuf,
    monitor: Mutex<Monitor>,
    /// Of the monitor, to be read without its lock.
    no: AtomicU64,
    prober: OnceLock<Thread>,
}

/// What the fork or the journal met, in the words of the fault that it is.
pub fn fault_of(error: &io::Error, doing: &str) -> HostFault {
    let kind = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => FaultKind::DiskFull,
        Some(libc::EMFILE | libc::ENFILE) => FaultKind::FileLimit,
        Some(libc::EAGAIN) => FaultKind::ProcessLimit,
        Some(libc::ENOMEM) => FaultKind::NoMemory,
        _ => FaultKind::FolderUnwritable,
    };
    let detail = format!("{doing}: {error}");
    HostFault { kind, detail }
}

/// `None`: what failed is the task's own affair.
pub fn fault_of_fork(refused: &Refused) -> Option<HostFault> {
    let code = refused.error.raw_os_error()?;
    let of_host = [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE].contains(&code);
    (refused.step == Step::Birth && of_host).then(|| fault_of(&refused.error, "no process can be started"))
}

impl Health {
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            monitor: Mutex::default(),
            no: AtomicU64::new(0),
            prober: OnceLock::new(),
        }
    }

    /// Rises with each change.
    pub fn no(&self) -> u64 {
        self.no.load(Ordering::SeqCst)
    }

    pub fn told(&self) -> Told {
        self.change(|monitor| Told {
            no: monitor.no(),
            fault: monitor.fault().cloned(),
        })
    }

    /// Something failed that every task needs. From now on it is probed until it works.
    pub fn failed(&self, fault: HostFault) {
        let before = self.no();
        self.change(|monitor| monitor.failed(fault.clone(), boottime::now_ms()));
        if self.no() != before {
            tracing::error!(
                kind = fault.kind.name(),
                detail = fault.detail,
                "this host starts no tasks for now"
            );
            self.hurry();
        }
    }

    /// Called by the thread that probes, which `hurry` wakes.
    pub fn probes_here(&self) {
        let _ = self.prober.set(std::thread::current());
    }

    pub fn hurry(&self) {
        if let Some(thread) = self.prober.get() {
            thread.unpark();
        }
    }

    /// One look. Returns when to look again.
    pub fn look(&self) -> Duration {
        let faulty = self.told().fault.is_some();
        let found = free_space(&self.root, faulty).and_then(|()| if faulty { probe(&self.root) } else { Ok(()) });
        let before = self.no();
        let (no, pause_ms) = self.change(|monitor| {
            monitor.probed(found.clone(), boottime::now_ms());
            (monitor.no(), monitor.pause_ms())
        });
        match found {
            _ if no == before => {}
            Ok(()) => tracing::info!("this host can start tasks again"),
            Err(fault) => {
                tracing::error!(
                    kind = fault.kind.name(),
                    detail = fault.detail,
                    "this host starts no tasks for now"
                );
            }
        }
        Duration::from_millis(pause_ms)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Monitor) -> T) -> T {
        let mut monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut monitor);
        self.no.store(monitor.no(), Ordering::SeqCst);
        result
    }
}

/// Room for tasks to end in: bytes, and a file for each.
fn free_space(root: &Path, has_fault: bool) -> Result<(), HostFault> {
    let room = Room::measure(root).map_err(|error| fault_of(&error, "the data directory cannot be looked at"))?;
    let least = free_bytes_min(room.total, has_fault);
    if room.free < least {
        let detail = format!(
            "{} of {} are free where the data directory {} lies, and {} are kept for running tasks to end in",
            rough(room.free),
            rough(room.total),
            root.display(),
            rough(least)
        );
        return Err(HostFault {
            kind: FaultKind::DiskFull,
            detail,
        });
    }
    if room.lacks_files() {
        let detail = format!(
            "no more files can be made where the data directory {} lies",
            root.display()
        );
        return Err(HostFault {
            kind: FaultKind::DiskFull,
            detail,
        });
    }
    Ok(())
}

/// For people.
fn rough(bytes: u64) -> String {
    match bytes {
        0..=9_999_999 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn probe(root: &Path) -> Result<(), HostFault> {
    let written = format!("the data directory {} cannot be written", root.display());
    write_probe(&root.join("tasks").join(PROBE)).map_err(|error| fault_of(&error, &written))?;
    let opened: io::Result<Vec<File>> = (0..DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    let opened = opened.map_err(|error| fault_of(&error, "no files can be opened"))?;
    let null = opened[0].as_fd();
    let files = Files {
        stdin: null,
        stdout: null,
        stderr: null,
    };
    // A program without a name is found by no kernel: it comes as far as the exec, or not.
    let nobody = Image::new(OsStr::new(""), std::iter::empty(), std::iter::empty(), OsStr::new("/"))
        .map_err(|error| fault_of(&error, "no process can be started"))?;
    match nobody.fork(files, None) {
        Err(refused) => fault_of_fork(&refused).map_or(Ok(()), Err),
        // It cannot happen; if it did, it would be a child that was started.
        Ok(forked) => {
            let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(forked.pid), None);
            Ok(())
        }
    }
}

fn write_probe(dir: &Path) -> io::Result<()> {
    let made = std::fs::create_dir(dir).or_else(|error| match error.kind() {
        // Of a probe that was cut short.
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    });
    made?;
    let written = File::create(dir.join(PROBE)).and_then(|mut file| file.write_all(&[0; BYTES]));
    std::fs::remove_dir_all(dir)?;
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_healthy_host_passes_its_probe_and_nothing_is_left_of_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tasks")).unwrap();
        assert_eq!(probe(dir.path()), Ok(()));
        assert!(std::fs::read_dir(dir.path().join("tasks")).unwrap().next().is_none());
    }

    #[test]
    fn a_folder_that_is_gone_is_a_fault_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let fault = probe(dir.path()).unwrap_err();
        assert_eq!(fault.kind, FaultKind::FolderUnwritable);
        assert!(fault.detail.contains(&dir.path().display().to_string()), "{fault:?}");
        std::fs::create_dir(dir.path().join("tasks")).unwrap();
        let health = Health::new(dir.path().to_owned());
        health.failed(fault.clone());
        assert_eq!((health.told().no, health.told().fault), (1, Some(fault)));
        for _ in 0..systole_shared::policy::host_fault::PASSES_MIN {
            health.look();
        }
        assert_eq!((health.told().no, health.told().fault), (2, None));
    }

    #[test]
    fn each_error_of_the_host_is_told_from_those_of_a_task() {
        let refused = |step, code| {
            let error = io::Error::from_raw_os_error(code);
            fault_of_fork(&Refused { step, error }).map(|fault| fault.kind)
        };
        assert_eq!(refused(Step::Birth, libc::EAGAIN), Some(FaultKind::ProcessLimit));
        assert_eq!(refused(Step::Birth, libc::ENOMEM), Some(FaultKind::NoMemory));
        assert_eq!(refused(Step::Birth, libc::EMFILE), Some(FaultKind::FileLimit));
        // The user of the task has too many processes; its program is missing.
        assert_eq!(refused(Step::Exec, libc::EAGAIN), None);
        assert_eq!(refused(Step::Exec, libc::ENOENT), None);
        let disk = |code| fault_of(&io::Error::from_raw_os_error(code), "x").kind;
        assert_eq!(disk(libc::ENOSPC), FaultKind::DiskFull);
        assert_eq!(disk(libc::EDQUOT), FaultKind::DiskFull);
        assert_eq!(disk(libc::EROFS), FaultKind::FolderUnwritable);
        assert_eq!(disk(libc::EIO), FaultKind::FolderUnwritable);
    }
}
