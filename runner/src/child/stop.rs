//! Ending processes: TERM to the group, a grace, KILL to the group, a bounded wait. What counts is an
//! empty group, not a dead leader: a shell dies at once and leaves behind what ignores TERM.

use super::fork::{Child, End};
use crate::procfs;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::time::Duration;
use tokio::time::Instant;

/// How long processes that outlive their leader may go on.
pub const DRAIN: Duration = Duration::from_secs(2);
/// How long killed processes are waited for before that is told.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// Ends a child that was told to stop. Returns its true end; the group is not necessarily empty yet,
/// see [`drain`].
pub async fn stop(child: &mut Child, group: i32, grace: Duration) -> std::io::Result<End> {
    signal(group, Signal::SIGTERM);
    // A stopped process takes no TERM before it goes on.
    signal(group, Signal::SIGCONT);
    if let Ok(end) = tokio::time::timeout(grace, child.wait()).await {
        return end;
    }
    loop {
        signal(group, Signal::SIGKILL);
        if let Ok(end) = tokio::time::timeout(GONE_WITHIN, child.wait()).await {
            return end;
        }
        // In an uninterruptible call, e.g. to a dead file server: its end is not to be claimed before it is seen.
        tracing::warn!(pid = group, "a killed process does not end; it is waited for");
    }
}

/// Lets the rest of a group go on for a moment after its leader's end, then kills it. Returns at once
/// when there is no rest. False: some of it could not be ended.
///
/// To be called after the leader was waited for. From then on the number is the group's only as long as the
/// group has members; it is asked for again every few milliseconds, and the kernel hands out
/// all other numbers first.
pub async fn drain(group: i32, patience: Duration) -> bool {
    let mut wait = Wait::new(patience);
    loop {
        if is_empty(group, wait.polls) {
            return true;
        }
        if !wait.next().await {
            break;
        }
    }
    kill_rest(group).await
}

async fn kill_rest(group: i32) -> bool {
    let mut wait = Wait::new(GONE_WITHIN);
    loop {
        // Again each time: a process may fork while it is being killed.
        signal(group, Signal::SIGKILL);
        if is_empty(group, wait.polls) {
            return true;
        }
        if !wait.next().await {
            return false;
        }
    }
}

/// Polls with growing pauses up to a deadline: there is no event for "the group is empty".
struct Wait {
    until: Instant,
    polls: u32,
}

impl Wait {
    fn new(patience: Duration) -> Self {
        Self {
            until: Instant::now() + patience,
            polls: 0,
        }
    }

    async fn next(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        let pause = Duration::from_millis((1_u64 << self.polls.min(6)).min(50));
        tokio::time::sleep_until((Instant::now() + pause).min(self.until)).await;
        self.polls += 1;
        true
    }
}

fn signal(group: i32, signal: Signal) {
    match killpg(Pid::from_raw(group), signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(errno) => tracing::warn!(group, %signal, %errno, "a process group could not be signalled"),
    }
}

fn is_empty(group: i32, polls: u32) -> bool {
    reap_orphans(group);
    if killpg(Pid::from_raw(group), None) == Err(Errno::ESRCH) {
        return true;
    }
    // Zombies count as members. Where nobody reaps them (a container without an init) the question
    // must be asked in a more expensive way.
    polls >= 5 && !procfs::processes().is_ok_and(|all| all.iter().any(|p| p.group == group && p.is_alive()))
}

/// As the first process of a container the runner inherits orphans; without this they stay zombies.
/// Only of this group: to wait for any child would take the exit status of other tasks.
fn reap_orphans(group: i32) {
    while let Ok(status) = waitpid(Pid::from_raw(-group), Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
    }
}
