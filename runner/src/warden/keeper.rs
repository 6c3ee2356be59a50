//! A process that does nothing but wait for the death of the warden, and then ends what the warden can end no more. It makes
//! sure that not even `kill -9` of everything leaves a task running: the kernel itself only ends the main process of each.
//!
//! Without control groups the tasks are found by a variable that all their processes inherit.

use super::cgroup;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, pipe2, setsid};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

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
    if cgroups.is_empty() {
        return None;
    }
    let (reader, writer) = pipe2(nix::fcntl::OFlag::O_CLOEXEC).ok()?;
    // SAFETY: there is no other thread that could hold a lock.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => Some(Keeper { writer, pid: child }),
        Ok(ForkResult::Child) => {
            drop(writer);
            // The lock of the directory among others: it must be free once the warden is gone.
            close_all_but(&reader);
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

#[expect(unsafe_code, reason = "nix has no close_range")]
fn close_all_but(kept: &std::os::fd::OwnedFd) {
    use std::os::fd::AsRawFd as _;
    let kept = kept.as_raw_fd().cast_unsigned();
    // SAFETY: system calls on numbers. Nothing in this process uses the others any more.
    unsafe {
        if kept > 3 {
            libc::syscall(libc::SYS_close_range, 3_u32, kept - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, kept + 1, u32::MAX, 0);
    }
}
