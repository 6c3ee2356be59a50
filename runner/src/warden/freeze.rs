//! Groups of processes that are ended by stopping all of them first: none forks while it is listed, and none can tell that it is
//! its turn. For kernels and hosts without `cgroup.kill`: the freezer of version 1, and version 2 before Linux 5.14.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a worker waits for all processes to stand still. One in a call that cannot be interrupted, e.g. to a dead
/// file server, does not: then the others are ended all the same, and this is tried again until the group is empty.
const STILL_WITHIN: Duration = Duration::from_millis(20);
const LOOK_EVERY: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freezing {
    V1,
    V2,
}

impl Freezing {
    /// What this group can do.
    pub fn of(group: &Path) -> Option<Self> {
        [Self::V1, Self::V2]
            .into_iter()
            .find(|freezing| freezing.check(group).is_ok())
    }

    /// An error: it cannot.
    pub fn check(self, group: &Path) -> io::Result<()> {
        std::fs::metadata(group.join(self.file())).map(drop)
    }

    fn file(self) -> &'static str {
        match self {
            Self::V1 => "freezer.state",
            Self::V2 => "cgroup.freeze",
        }
    }

    /// The file by which a child that has one thread moves into the group. To move by `tasks` needs no lock of all processes,
    /// which takes 11 ms (measured) where `cgroup.procs` is used.
    pub fn entry(self) -> &'static str {
        match self {
            Self::V1 => "tasks",
            Self::V2 => "cgroup.procs",
        }
    }

    /// Ends all that is in the group. It is never left frozen: a stopped process of version 1 does not even die.
    pub fn kill(self, group: &Path) -> io::Result<()> {
        let (stop, go) = match self {
            Self::V1 => ("FROZEN", "THAWED"),
            Self::V2 => ("1", "0"),
        };
        let stopped = std::fs::write(group.join(self.file()), stop);
        let until = Instant::now() + STILL_WITHIN;
        while stopped.is_ok() && !self.is_still(group) && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
        }
        let killed = members(group).map(|members| kill_each(&members));
        std::fs::write(group.join(self.file()), go)?;
        killed
    }

    fn is_still(self, group: &Path) -> bool {
        let (file, word) = match self {
            Self::V1 => ("freezer.state", "FROZEN"),
            Self::V2 => ("cgroup.events", "frozen 1"),
        };
        std::fs::read_to_string(group.join(file)).is_ok_and(|text| text.lines().any(|line| line == word))
    }
}

/// The processes in a group; dead ones are none. Opened anew each time: an open file of version 1 may tell an old list.
pub fn members(group: &Path) -> io::Result<Vec<i32>> {
    let text = std::fs::read_to_string(group.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

pub fn kill_each(members: &[i32]) {
    // 0 is a process of another namespace, 1 the first of this one.
    for &pid in members.iter().filter(|&&pid| pid > 1) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}
