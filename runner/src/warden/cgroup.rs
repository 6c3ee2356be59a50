//! Control groups of version 2: one for each task that runs, made below the warden's own. Whatever a process does, its
//! descendants stay in it, and the kernel ends all of them with one write.
//!
//! A group is used again for the next task once it was seen empty: making and removing one costs as much as a
//! short task. But not one that was killed: kernels were seen that end every child that is born in such a group, for the group
//! was killed more often than that of its parent. Works in the hybrid layout too, where version 2 is mounted beside version 1.

use super::cgroup_path::own_path;
use crate::child::fork::{Birthplace, End, Files, Image, reap};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the trial of a new group may take.
const TRIAL_WITHIN: Duration = Duration::from_secs(5);

/// The place below which groups can be made.
#[derive(Debug)]
pub struct Cgroups {
    dir: PathBuf,
    next: AtomicU64,
    /// A child can be started in a group. Otherwise it moves there itself.
    bears: bool,
    /// Of each group, where its controller is on here.
    pids: Option<u32>,
    /// With controllers whose counters are one task's.
    once: bool,
}

/// The group of one task.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    dir: File,
    procs: File,
    events: File,
    kill: File,
    bears: bool,
    once: bool,
    killed: AtomicBool,
}

impl Cgroups {
    /// `None`: there is no version 2 here, this user may not make groups, or the kernel (before 5.14) cannot end one.
    pub fn find(own: &Path, name: &str, pids: Option<u32>) -> Option<Self> {
        let mut found = Self::below(own, name, pids).ok()?;
        if pids.is_some() && give(&found.dir, "pids").is_err() {
            found.pids = None;
        }
        // Tried, not guessed: a read-only mount, a foreign owner or an odd kernel show only here.
        let group = found.make().ok()?;
        found.bears = survives_birth(&group);
        if !found.bears {
            tracing::warn!("children cannot be started in a control group here; they are moved, which takes longer");
        }
        Some(found)
    }

    /// Groups with these controllers, each for one task.
    pub fn with_controllers(own: &Path, name: &str, controllers: &[&str], pids: Option<u32>) -> Option<Self> {
        let mut found = Self::below(own, name, pids).ok()?;
        found.once = true;
        let all = controllers
            .iter()
            .all(|controller| give(&found.dir, controller).is_ok());
        all.then_some(found)
    }

    fn below(own: &Path, name: &str, pids: Option<u32>) -> io::Result<Self> {
        let dir = own.join(name);
        std::fs::create_dir(&dir)?;
        Ok(Self {
            dir,
            next: AtomicU64::new(0),
            bears: true,
            pids,
            once: false,
        })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn make(&self) -> io::Result<Group> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(number.to_string());
        std::fs::create_dir(&path)?;
        let write = |name| OpenOptions::new().write(true).open(path.join(name));
        let opened = (|| {
            if let Some(pids) = self.pids {
                std::fs::write(path.join("pids.max"), pids.to_string())?;
            }
            Ok((
                File::open(&path)?,
                write("cgroup.procs")?,
                File::open(path.join("cgroup.events"))?,
                write("cgroup.kill")?,
            ))
        })();
        match opened {
            Ok((dir, procs, events, kill)) => Ok(Group {
                path,
                dir,
                procs,
                events,
                kill,
                bears: self.bears,
                once: self.once,
                killed: AtomicBool::new(false),
            }),
            Err(error) => {
                let _ = std::fs::remove_dir(&path);
                Err(error)
            }
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.dir);
    }
}

impl Group {
    pub fn birthplace(&self) -> Birthplace<'_> {
        Birthplace {
            dir: self.bears.then(|| self.dir.as_fd()),
            procs: Some(self.procs.as_fd()),
            others: &[],
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends every process in it, those that are being born included.
    pub fn kill(&self) -> io::Result<()> {
        self.killed.store(true, Ordering::Relaxed);
        (&self.kill).write_all(b"1")
    }

    /// Whether another task can be born in it.
    pub fn is_as_new(&self) -> bool {
        !self.once && !self.killed.load(Ordering::Relaxed) && self.is_empty()
    }

    /// An error reads as "not empty": what is not seen is not claimed.
    pub fn is_empty(&self) -> bool {
        let mut text = [0; 128];
        let length = self.events.read_at(&mut text, 0).unwrap_or(0);
        text[..length].split(|&b| b == b'\n').any(|line| line == b"populated 0")
    }

    /// How many processes are in it.
    pub fn count(&self) -> usize {
        std::fs::read_to_string(self.path.join("cgroup.procs")).map_or(0, |text| text.lines().count())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Whether a child that is started in the group lives to its own end.
fn survives_birth(group: &Group) -> bool {
    let Ok(null) = File::open("/dev/null") else {
        return false;
    };
    let streams = Files {
        stdin: null.as_fd(),
        stdout: null.as_fd(),
        stderr: null.as_fd(),
    };
    let arguments = ["sh", "-c", ":"].into_iter();
    let image = Image::new(OsStr::new("/bin/sh"), arguments, std::iter::empty(), OsStr::new("/"));
    let Some(child) = image
        .ok()
        .and_then(|image| image.fork(streams, Some(group.birthplace())).ok())
    else {
        return false;
    };
    let until = Instant::now() + TRIAL_WITHIN;
    while Instant::now() < until {
        match reap(child.pid) {
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Ok(Some((end, _))) => return end == End::Code(0),
            Err(_) => return false,
        }
    }
    // It is there, so it was born; that the host is too slow to end it is another matter.
    true
}

/// Ends and removes what an earlier warden left in groups below ours: `prefix` names them.
pub fn sweep(own: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(own) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            end_all(&entry.path());
        }
    }
}

fn give(dir: &Path, controller: &str) -> io::Result<()> {
    std::fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"))
}

/// Of version 2.
pub fn own_now() -> Option<PathBuf> {
    own_path(
        &std::fs::read_to_string("/proc/self/cgroup").ok()?,
        &std::fs::read_to_string("/proc/self/mountinfo").ok()?,
    )
}

/// For version 1, which has no such file: whoever forks meanwhile is there at the next look.
fn kill_members(dir: &Path) {
    let below = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for group in below.filter(|path| path.is_dir()) {
        let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in text.lines().filter_map(|line| line.parse().ok()).filter(|&pid| pid > 1) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// Ends everything below one directory of groups, and removes it as far as that goes.
pub fn end_all(dir: &Path) {
    if std::fs::write(dir.join("cgroup.kill"), "1").is_err() {
        kill_members(dir);
    }
    // The kernel takes a moment to bury them.
    for round in 0..100 {
        if round % 10 == 9 && !dir.join("cgroup.kill").exists() {
            kill_members(dir);
        }
        let Ok(entries) = std::fs::read_dir(dir) else { return };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
        if std::fs::remove_dir(dir).is_ok() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(group: &Group) -> End {
        let null = File::open("/dev/null").unwrap();
        let streams = Files {
            stdin: null.as_fd(),
            stdout: null.as_fd(),
            stderr: null.as_fd(),
        };
        let arguments = ["sh", "-c", "exit 3"].into_iter();
        let image = Image::new(OsStr::new("/bin/sh"), arguments, std::iter::empty(), OsStr::new("/")).unwrap();
        let child = image.fork(streams, Some(group.birthplace())).unwrap();
        loop {
            if let Some((end, _)) = reap(child.pid).unwrap() {
                return end;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Where there are no such groups for this user there is nothing to be seen.
    #[test]
    fn a_group_is_used_again_but_not_after_it_was_killed() {
        let Some(cgroups) =
            own_now().and_then(|own| Cgroups::find(&own, &format!("systole-test-{}", std::process::id()), None))
        else {
            return;
        };
        let group = cgroups.make().unwrap();
        for _ in 0..3 {
            assert_eq!(shell(&group), End::Code(3));
            assert!(group.is_as_new());
        }
        group.kill().unwrap();
        assert!(group.is_empty() && !group.is_as_new());
        assert_eq!(shell(&cgroups.make().unwrap()), End::Code(3));
    }
}
