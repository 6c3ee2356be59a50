//! Control groups of version 2: one for each task that runs, made below the warden's own. Whatever a process does, its
//! descendants stay in it, and the kernel ends all of them with one write.
//!
//! A group is used again for the next task once it was seen empty: making and removing one costs as much as a
//! short task. But not one that was killed: kernels were seen that end every child that is born in such a group, for the group
//! was killed more often than that of its parent. Works in the hybrid layout too, where version 2 is mounted beside version 1.

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
    killed: AtomicBool,
}

impl Cgroups {
    /// `None`: there is no version 2 here, this user may not make groups, or the kernel (before 5.14) cannot end one.
    pub fn find(name: &str) -> Option<Self> {
        let own = own_now()?;
        let dir = own.join(name);
        std::fs::create_dir(&dir).ok()?;
        let mut found = Self {
            dir,
            next: AtomicU64::new(0),
            bears: true,
        };
        // Tried, not guessed: a read-only mount, a foreign owner or an odd kernel show only here.
        let group = found.make().ok()?;
        found.bears = survives_birth(&group);
        if !found.bears {
            tracing::warn!("children cannot be started in a control group here; they are moved, which takes longer");
        }
        Some(found)
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
            procs: self.procs.as_fd(),
        }
    }

    /// Ends every process in it, those that are being born included.
    pub fn kill(&self) -> io::Result<()> {
        self.killed.store(true, Ordering::Relaxed);
        (&self.kill).write_all(b"1")
    }

    /// Whether another task can be born in it.
    pub fn is_as_new(&self) -> bool {
        !self.killed.load(Ordering::Relaxed) && self.is_empty()
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
pub fn sweep(prefix: &str) {
    let Some(own) = own_now() else { return };
    let Ok(entries) = std::fs::read_dir(own) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            end_all(&entry.path());
        }
    }
}

fn own_now() -> Option<PathBuf> {
    own_path(
        &std::fs::read_to_string("/proc/self/cgroup").ok()?,
        &std::fs::read_to_string("/proc/self/mountinfo").ok()?,
    )
}

/// Ends everything below one directory of groups, and removes it as far as that goes.
pub fn end_all(dir: &Path) {
    let _ = std::fs::write(dir.join("cgroup.kill"), "1");
    // The kernel takes a moment to bury them.
    for _ in 0..100 {
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

/// The directory of the group that this process is in.
fn own_path(cgroup: &str, mountinfo: &str) -> Option<PathBuf> {
    let inside = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    mountinfo.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        if !back.starts_with("cgroup2 ") {
            return None;
        }
        let mut fields = front.split(' ').skip(3);
        let (root, mounted) = (fields.next()?, fields.next()?);
        let below = match root {
            "/" => inside,
            root => inside.strip_prefix(root)?,
        };
        Some(Path::new(&unescape(mounted)).join(below.trim_start_matches('/')))
    })
}

/// The kernel writes blanks in this file as octal numbers.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
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
        let Some(cgroups) = Cgroups::find(&format!("systole-test-{}", std::process::id())) else {
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

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_own_group_is_found_in_each_layout() {
        let cgroup = "8:pids:/x\n0::/system.slice/a.service\n";
        assert_eq!(
            own_path(cgroup, MOUNTS).unwrap(),
            Path::new("/sys/fs/cgroup/unified/system.slice/a.service")
        );
        let container = "41 31 0:38 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        assert_eq!(
            own_path("0::/docker/abc/x\n", container).unwrap(),
            Path::new("/sys/fs/cgroup/x")
        );
        assert_eq!(own_path("0::/\n", "1 2 3:4 / /a rw - ext4 /dev/x rw\n"), None);
        assert_eq!(own_path("8:pids:/x\n", MOUNTS), None);
    }
}
