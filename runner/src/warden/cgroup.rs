//! Control groups: one for each task that runs, made below the warden's own. Whatever a process does, its descendants stay in
//! it. Of version 2, where the kernel ends all of them with one write; where there is none, the freezer of version 1 (see
//! [`super::freeze`]).
//!
//! A group is used again for the next task once it was seen empty: making and removing one costs as much as a
//! short task. But not one that was killed: kernels were seen that end every child that is born in such a group, for the group
//! was killed more often than that of its parent. Works in the hybrid layout too, where version 2 is mounted beside version 1.

use super::cgroup_path::{own_path, own_path_v1};
use super::freeze::{self, Freezing};
use crate::child::fork::{self, Birthplace, Files, Image, reap};
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
    /// How the processes of a group are ended where one write does not do it.
    freezing: Option<Freezing>,
}

/// The group of one task.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    dir: File,
    /// By which a process moves there.
    procs: File,
    end: End,
    bears: bool,
    once: bool,
    killed: AtomicBool,
}

/// How a group is ended and seen empty.
#[derive(Debug)]
enum End {
    /// One write to `cgroup.kill`; `cgroup.events` tells.
    Kill {
        kill: File,
        events: File,
    },
    Freeze(Freezing),
}

impl Cgroups {
    /// `None`: there is no version 2 here, or this user may not make groups.
    pub fn find(own: &Path, name: &str, pids: Option<u32>) -> Option<Self> {
        let mut found = Self::below(own, name, pids).ok()?;
        if pids.is_some() && give(&found.dir, "pids").is_err() {
            found.pids = None;
        }
        // Tried, not guessed: a read-only mount, a foreign owner or an odd kernel show only here.
        let group = found.make().ok()?;
        found.bears = survives_birth(&group);
        drop(group);
        if !found.bears {
            let group = found.make().ok()?;
            let moves = survives_birth(&group);
            // Before its parent may be removed.
            drop(group);
            if !moves {
                tracing::warn!(dir = %found.dir.display(), "no child can be started in a control group here, or moved to one");
                return None;
            }
            tracing::warn!("children cannot be started in a control group here; they are moved, which takes longer");
        }
        Some(found)
    }

    /// Below the own group of version 1 that is frozen as one. `None`: as above.
    pub fn find_v1(own: &Path, name: &str) -> Option<Self> {
        let mut found = Self::below(own, name, None).ok()?;
        (found.bears, found.freezing) = (false, Some(Freezing::V1));
        let group = found.make().ok()?;
        let works = survives_birth(&group) && group.kill().is_ok() && group.is_empty();
        // Before its parent may be removed.
        drop(group);
        works.then_some(found)
    }

    /// For people.
    pub fn guard(&self) -> &'static str {
        match self.freezing {
            Some(Freezing::V1) => "cgroup1",
            Some(Freezing::V2) | None => "cgroup2",
        }
    }

    /// Groups with these controllers, each for one task.
    pub fn with_controllers(own: &Path, name: &str, controllers: &[&str], pids: Option<u32>) -> Option<Self> {
        let mut found = Self::below(own, name, pids).ok()?;
        found.once = true;
        let all = controllers
            .iter()
            .all(|controller| give(&found.dir, controller).is_ok());
        (all && found.make().is_ok()).then_some(found)
    }

    fn below(own: &Path, name: &str, pids: Option<u32>) -> io::Result<Self> {
        let dir = own.join(name);
        std::fs::create_dir(&dir)?;
        Ok(Self {
            // Before Linux 5.14.
            freezing: (!dir.join("cgroup.kill").exists()).then_some(Freezing::V2),
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
            let (procs, end) = match self.freezing {
                None => {
                    let events = File::open(path.join("cgroup.events"))?;
                    let kill = write("cgroup.kill")?;
                    ("cgroup.procs", End::Kill { kill, events })
                }
                Some(freezing) => {
                    freezing.check(&path)?;
                    (freezing.entry(), End::Freeze(freezing))
                }
            };
            Ok((File::open(&path)?, write(procs)?, end))
        })();
        match opened {
            Ok((dir, procs, end)) => Ok(Group {
                path,
                dir,
                procs,
                end,
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
        match &self.end {
            End::Kill { kill, .. } => (&mut &*kill).write_all(b"1"),
            End::Freeze(freezing) => freezing.kill(&self.path),
        }
    }

    /// Whether another task can be born in it.
    pub fn is_as_new(&self) -> bool {
        !self.once && !self.killed.load(Ordering::Relaxed) && self.is_empty()
    }

    /// An error reads as "not empty": what is not seen is not claimed.
    pub fn is_empty(&self) -> bool {
        match &self.end {
            End::Kill { events, .. } => {
                let mut text = [0; 128];
                let length = events.read_at(&mut text, 0).unwrap_or(0);
                text[..length].split(|&b| b == b'\n').any(|line| line == b"populated 0")
            }
            End::Freeze(_) => freeze::members(&self.path).is_ok_and(|members| members.is_empty()),
        }
    }

    /// How many processes are in it.
    pub fn count(&self) -> usize {
        freeze::members(&self.path).map_or(0, |members| members.len())
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
            Ok(Some((end, _))) => return end == fork::End::Code(0),
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

/// Of version 1.
pub fn own_freezer() -> Option<PathBuf> {
    own_path_v1(
        &std::fs::read_to_string("/proc/self/cgroup").ok()?,
        &std::fs::read_to_string("/proc/self/mountinfo").ok()?,
        "freezer",
    )
}

/// Where one write does not do it.
fn kill_members(dir: &Path) {
    let below = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for group in below.filter(|path| path.is_dir()) {
        let _ = match Freezing::of(&group) {
            Some(freezing) => freezing.kill(&group),
            // Whoever forks meanwhile is there at the next look.
            None => freeze::members(&group).map(|members| freeze::kill_each(&members)),
        };
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

    fn start(group: &Group, script: &str) -> i32 {
        let null = File::open("/dev/null").unwrap();
        let streams = Files {
            stdin: null.as_fd(),
            stdout: null.as_fd(),
            stderr: null.as_fd(),
        };
        let arguments = ["sh", "-c", script].into_iter();
        let path = [(OsStr::new("PATH"), OsStr::new("/usr/bin:/bin"))];
        let image = Image::new(OsStr::new("/bin/sh"), arguments, path.into_iter(), OsStr::new("/")).unwrap();
        image.fork(streams, Some(group.birthplace())).unwrap().pid
    }

    fn ended(pid: i32) -> fork::End {
        loop {
            if let Some((end, _)) = reap(pid).unwrap() {
                return end;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn shell(group: &Group) -> fork::End {
        ended(start(group, "exit 3"))
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
            assert_eq!(shell(&group), fork::End::Code(3));
            assert!(group.is_as_new());
        }
        group.kill().unwrap();
        assert!(group.is_empty() && !group.is_as_new());
        assert_eq!(shell(&cgroups.make().unwrap()), fork::End::Code(3));
    }

    /// Forks as fast as it can, in sessions of its own, with TERM ignored.
    const FORKS: &str = "trap '' TERM; while :; do setsid sleep 1000 & done";

    /// Of each kind that there is on this host.
    #[test]
    fn a_group_without_a_kill_of_its_own_is_frozen_and_ended_while_it_forks() {
        let name = format!("systole-freeze-{}", std::process::id());
        let v1 = own_freezer().and_then(|own| Cgroups::find_v1(&own, &name));
        let mut v2 = own_now().and_then(|own| Cgroups::find(&own, &name, None));
        if let Some(found) = &mut v2 {
            found.freezing = Some(Freezing::V2);
        }
        for cgroups in [v1, v2].into_iter().flatten() {
            let group = cgroups.make().unwrap();
            let pid = start(&group, FORKS);
            while group.count() < 40 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let until = Instant::now() + Duration::from_secs(10);
            group.kill().unwrap();
            while !group.is_empty() {
                assert!(Instant::now() < until, "{} are left in {:?}", group.count(), group);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!group.is_as_new());
            assert_eq!(ended(pid), fork::End::Signal(libc::SIGKILL));
            assert_eq!(ended(start(&cgroups.make().unwrap(), "exit 3")), fork::End::Code(3));
            // What an earlier warden left, and it may have died while a group was frozen.
            let left = cgroups.make().unwrap();
            let pid = start(&left, "sleep 1000");
            let (file, word) = match cgroups.freezing {
                Some(Freezing::V1) => ("freezer.state", "FROZEN"),
                _ => ("cgroup.freeze", "1"),
            };
            std::fs::write(left.path().join(file), word).unwrap();
            kill_members(cgroups.dir());
            assert_eq!(ended(pid), fork::End::Signal(libc::SIGKILL));
        }
    }
}
