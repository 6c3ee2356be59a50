//! The processes of one task, all of them: told to stop, ended, and seen gone.
//!
//! With a control group that is exact. Without one, the process group is ended, and what left it (a daemon in a session of
//! its own) comes to the warden as an orphan, because the warden adopts the orphans of its descendants; orphans are told apart
//! by their session or by the variables that they inherited.

use super::cgroup::Group;
use super::limiter::{Counted, Enclosure};
use crate::procfs;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// How often the orphans are listed again when one of them has died meanwhile.
const LOOKS_MAX: usize = 4;

#[derive(Debug)]
pub struct Tree {
    leader: i32,
    group: Option<Group>,
    /// Where the task has limits of all its processes together.
    enclosure: Option<Box<Enclosure>>,
    markers: Vec<String>,
}

impl Tree {
    pub fn new(leader: i32, group: Option<Group>, enclosure: Option<Enclosure>, markers: Vec<String>) -> Self {
        Self {
            leader,
            group,
            enclosure: enclosure.map(Box::new),
            markers,
        }
    }

    /// What its groups counted, if they did.
    pub fn counted(&self) -> Option<Counted> {
        let group = self.group.as_ref().map(Group::path);
        self.enclosure.as_ref().map(|enclosure| enclosure.count(group))
    }

    /// To the process group of the main process.
    pub fn signal(&self, number: i32) {
        signal_group(self.leader, number);
        // A stopped process takes no signal before it goes on.
        signal_group(self.leader, libc::SIGCONT);
    }

    /// Ends all of it. To be called again until [`Tree::is_empty`]: without a control group a process may fork meanwhile.
    pub fn kill(&self) {
        if let Some(group) = &self.group {
            // By the group alone: once the main process was waited for, its number may be somebody else's.
            match group.kill() {
                Ok(()) => return,
                Err(error) => tracing::warn!(pid = self.leader, %error, "a control group could not be ended"),
            }
        }
        signal_group(self.leader, libc::SIGKILL);
        for orphan in self.orphans() {
            // Its own session may have more members; they are orphans in their turn.
            let _ = kill(Pid::from_raw(orphan), Signal::SIGKILL);
        }
    }

    /// To be called after the main process was waited for: until then it is a member itself.
    ///
    /// From then on the leader's number is the group's only as long as the group has members; it is asked
    /// again every few milliseconds, and the kernel hands out all other numbers first.
    pub fn is_empty(&self) -> bool {
        if let Some(group) = &self.group {
            return group.is_empty();
        }
        reap_group(self.leader);
        group_is_gone(self.leader) && self.orphans().is_empty()
    }

    /// For people: how many processes are left.
    pub fn count(&self) -> u32 {
        let count = match &self.group {
            Some(group) => group.count(),
            None => {
                let members = procfs::processes().map_or(0, |all| {
                    all.iter().filter(|p| p.is_alive() && p.group == self.leader).count()
                });
                let orphans = self.orphans();
                let outside = orphans
                    .iter()
                    .filter(|pid| procfs::process(**pid).is_some_and(|p| p.group != self.leader));
                members + outside.count()
            }
        };
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Whether nobody can be in it any more, not even out of sight. Only a group proves it.
    pub fn is_proven_empty(&self) -> bool {
        self.group.as_ref().is_some_and(Group::is_empty)
    }

    /// The group for the next task, if it is fit for one.
    pub fn into_group(self) -> Option<Group> {
        self.group.filter(Group::is_as_new)
    }

    /// Orphans of this task that live.
    fn orphans(&self) -> Vec<i32> {
        for _ in 0..LOOKS_MAX {
            let (mut living, mut has_dead) = (Vec::new(), false);
            for pid in procfs::orphans() {
                match procfs::process(pid) {
                    Some(process) if process.is_alive() => {
                        if self.has(&process) {
                            living.push(pid);
                        }
                    }
                    Some(process) => {
                        has_dead = true;
                        if process.session == self.leader || process.group == self.leader {
                            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
                        }
                    }
                    None => has_dead = true,
                }
            }
            // One that died since the list was made has left its own children to us, and they are not in it.
            if !living.is_empty() || !has_dead {
                return living;
            }
        }
        Vec::new()
    }

    fn has(&self, process: &procfs::Process) -> bool {
        process.session == self.leader
            || process.group == self.leader
            || procfs::has_variables(process.pid, &self.markers)
    }
}

fn signal_group(group: i32, number: i32) {
    // Past `nix`, which has no names for real-time signals.
    let error = procfs::kill_group(group, number);
    if let Err(errno) = error
        && errno != Errno::ESRCH
    {
        tracing::warn!(group, number, %errno, "a process group could not be signalled");
    }
}

fn group_is_gone(group: i32) -> bool {
    killpg(Pid::from_raw(group), None) == Err(Errno::ESRCH)
        // Zombies count as members. Where nobody buries them the question is asked in a dearer way.
        || !procfs::processes().is_ok_and(|all| all.iter().any(|p| p.group == group && p.is_alive()))
}

/// Orphans of this group that came to this process. Only of this group: to wait for any child would take
/// the exit status of other tasks.
fn reap_group(group: i32) {
    use nix::sys::wait::WaitStatus;
    while let Ok(status) = waitpid(Pid::from_raw(-group), Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
    }
}
