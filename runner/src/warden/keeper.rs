//! A process that does nothing but wait for the death of the warden, and then ends what the warden can end no more. It makes
//! sure that not even `kill -9` of everything leaves a task running: the kernel itself only ends the main process of each.
//!
//! Where each task has a control group it is a child of the warden, and ends the groups. Where there are none it is the
//! warden's parent: the kernel gives it every process that the warden leaves, whatever session and variables it has.

use super::cgroup;
use crate::journal::ProcessRecord;
use crate::procfs::{self, Process};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, pthread_sigmask, signal};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, pipe2, setpgid, setsid};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long what the warden left is killed again and again. Then it is in a call that cannot be interrupted, or another user's.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks at what is left.
const PAUSE: Duration = Duration::from_millis(5);
/// Whoever waits is woken by a signal, so this only bounds a wait.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The same where others are children of the keeper, too, whose children come to it unseen.
const LOOK_AT_OTHERS_EVERY: Duration = Duration::from_secs(1);

/// Of the warden.
pub struct Keeper {
    /// Open as long as this process lives, and in no other: every child closes it at its exec.
    writer: OwnedFd,
    pid: Pid,
}

impl Keeper {
    /// Has it end before the warden does: a service manager that sees the warden's end finds nobody left, and no group.
    pub fn dismiss(self) {
        drop(self.writer);
        // It gives up on each directory after a second.
        let _ = waitpid(self.pid, None);
    }
}

/// To be called while the process has one thread. Without a keeper the warden works all the same.
#[expect(unsafe_code, reason = "a fork without an exec; this process has one thread")]
pub fn start(cgroups: Vec<PathBuf>) -> Option<Keeper> {
    let (reader, writer) = pipe2(nix::fcntl::OFlag::O_CLOEXEC).ok()?;
    // SAFETY: there is no other thread that could hold a lock.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => Some(Keeper { writer, pid: child }),
        Ok(ForkResult::Child) => {
            drop(writer);
            // The lock of the directory among others: it must be free once the warden is gone.
            close_all_but(Some(&reader));
            let _ = setsid();
            let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
            let _ = nix::sys::prctl::set_name(c"systole-keeper");
            // Until the end of the file: nobody writes.
            while matches!(nix::unistd::read(&reader, &mut [0; 16]), Err(nix::errno::Errno::EINTR)) {}
            for dir in &cgroups {
                cgroup::end_all(dir);
            }
            // SAFETY: the end of this process, without the exit handlers of the one that it was forked from.
            unsafe { libc::_exit(0) }
        }
        Err(errno) => {
            tracing::warn!(%errno, "the warden has no keeper");
            None
        }
    }
}

/// Makes this process the keeper, and returns in a child of it, which is the warden. To be called while the process has one
/// thread and adopts orphans; the child has to say anew that it does. `cgroups`: those of tasks with limits, which not all have.
#[expect(
    unsafe_code,
    reason = "a fork without an exec, and the default action of a signal; this process has one thread"
)]
pub fn stand_above(cgroups: &[PathBuf]) {
    // Whoever started this process may have ignored it; then no end would be told.
    // SAFETY: no handler.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
    let others = children_but(None);
    let keeper = getpid();
    let mut before = SigSet::empty();
    // Before there is a warden: what comes from now on waits until it can be passed on.
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&waited_for()), Some(&mut before));
    // SAFETY: there is no other thread that could hold a lock.
    let forked = unsafe { fork() };
    if let Ok(ForkResult::Parent { child }) = forked {
        keep(child, others, cgroups);
    }
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    match forked {
        Err(errno) => tracing::warn!(%errno, "the warden has no keeper"),
        // Nobody would end what it leaves, and a service manager would take it for dead: it drains, and tells of its tasks.
        Ok(_) => {
            // What is sent to the keeper's process group is for the keeper, which passes on what can be passed on.
            let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
            let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGTERM);
            // The keeper may have died before the line above; then no signal comes any more.
            if getppid() != keeper {
                let _ = kill(getpid(), Signal::SIGTERM);
            }
        }
    }
}

/// The life of a keeper above its warden. `others`: children that this process had before, such as those of a shell that
/// became it by `exec`. What they do is none of the warden's business.
fn keep(warden: Pid, others: Vec<ProcessRecord>, cgroups: &[PathBuf]) -> ! {
    // The lock of the directory among others: it must be free once the warden is gone.
    close_all_but(None);
    let _ = nix::sys::prctl::set_name(c"systole-keeper");
    super::shed_code();
    let (status, others) = wait_for(warden, others);
    // Also after an end in order: what a task has left out of sight would be nobody's from now on.
    let all_gone = end_children(&others);
    for dir in cgroups {
        cgroup::end_all(dir);
    }
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        tracing::error!(signal, "the warden was killed");
    }
    if !all_gone {
        tracing::error!("not all of what the warden left could be ended");
    }
    end_as(status)
}

/// All signals but those by which a terminal stops and starts its jobs: they stop the keeper, and no task.
fn waited_for() -> SigSet {
    let mut signals = SigSet::all();
    for signal in [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU] {
        signals.remove(signal);
    }
    signals
}

/// Passes on to the warden what comes for it, buries whoever else ends (the keeper may be the first process of a container), and
/// returns how the warden ended, and who is there beside it: as long as the warden lives, whoever loses its parent below it goes
/// to it, so all other children of this process are strangers, and those that come to it from them.
fn wait_for(warden: Pid, mut others: Vec<ProcessRecord>) -> (libc::c_int, Vec<ProcessRecord>) {
    let signals = waited_for();
    loop {
        while let Some((pid, status)) = next_end() {
            if pid == warden.as_raw() {
                return (status, others);
            }
        }
        let pause = if others.is_empty() {
            LOOK_EVERY
        } else {
            // Only while it lives: what comes afterwards may be the warden's.
            let now = children_but(Some(warden));
            if procfs::process(warden.as_raw()).is_some_and(|warden| warden.is_alive()) {
                others = now;
            }
            LOOK_AT_OTHERS_EVERY
        };
        match super::next_signal(&signals, pause) {
            None | Some(libc::SIGCHLD) => {}
            Some(number) => pass_on(warden, number),
        }
    }
}

#[expect(unsafe_code, reason = "nix has no names for real-time signals")]
fn pass_on(warden: Pid, number: libc::c_int) {
    // SAFETY: a system call on numbers.
    unsafe { libc::kill(warden.as_raw(), number) };
}

/// A child that has ended, and how; it is buried by this.
#[expect(
    unsafe_code,
    reason = "nix has no names for real-time signals, and would lose such an end"
)]
fn next_end() -> Option<(libc::c_int, libc::c_int)> {
    let mut status = 0;
    // SAFETY: the call fills a number that outlives it.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

fn children_but(warden: Option<Pid>) -> Vec<ProcessRecord> {
    let children = procfs::orphans().into_iter().filter_map(procfs::process);
    let others = children.filter(|process| warden.is_none_or(|warden| warden.as_raw() != process.pid));
    others.map(|process| record(&process)).collect()
}

fn record(process: &Process) -> ProcessRecord {
    ProcessRecord {
        pid: process.pid,
        start_time: process.start_time,
    }
}

/// Ends every child but the others, and whoever becomes one by that. False: some are still there.
///
/// A child stays in the list until it is buried, and before it can be, its own children are in the list: an empty list means
/// that nobody is left.
fn end_children(others: &[ProcessRecord]) -> bool {
    let is_other = |pid: &i32| procfs::process(*pid).is_some_and(|process| others.contains(&record(&process)));
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        while next_end().is_some() {}
        let mut left = procfs::orphans();
        left.retain(|pid| !is_other(pid));
        if left.is_empty() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        for pid in left {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Ends this process as the warden ended, so that a service manager that watches this one reads the truth.
#[expect(unsafe_code, reason = "the end of this process by any signal, without exit handlers")]
fn end_as(status: libc::c_int) -> ! {
    if !libc::WIFSIGNALED(status) {
        // SAFETY: the end of this process; what it has open was closed long ago.
        unsafe { libc::_exit(libc::WEXITSTATUS(status)) }
    }
    let number = libc::WTERMSIG(status);
    // The warden has dumped its core, if any: that of the keeper is of no interest.
    let _ = nix::sys::prctl::set_dumpable(false);
    // SAFETY: calls on numbers, and on a set of signals that is filled before it is read.
    unsafe {
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, number);
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const only, std::ptr::null_mut());
        // The first process of a container is not killed by itself.
        libc::_exit(128 + number)
    }
}

#[expect(unsafe_code, reason = "nix has no close_range")]
fn close_all_but(kept: Option<&OwnedFd>) {
    // The three streams stay in any case.
    let kept = kept.map_or(2, |kept| kept.as_raw_fd().cast_unsigned());
    // SAFETY: system calls on numbers. Nothing in this process uses the others any more.
    unsafe {
        if kept > 3 {
            libc::syscall(libc::SYS_close_range, 3_u32, kept - 1, 0);
        }
        if libc::syscall(libc::SYS_close_range, kept + 1, u32::MAX, 0) == 0 {
            return;
        }
        // Before Linux 5.9, or in a sandbox that does not know the call.
        for fd in open_files()
            .into_iter()
            .filter(|fd| *fd > 2 && fd.cast_unsigned() != kept)
        {
            libc::close(fd);
        }
    }
}

fn open_files() -> Vec<libc::c_int> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}
