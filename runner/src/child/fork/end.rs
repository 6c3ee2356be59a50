//! How a child ended, and what it took.

use std::io;

/// How a process ended; a code and a signal are never mixed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Code(i32),
    Signal(i32),
}

/// What a child and those of its children that it waited for took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub user_us: u64,
    pub system_us: u64,
    pub peak_bytes: u64,
    /// From and to disks; what a cache served is not in it.
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// Waits for a child that has ended. `None`: it has not.
///
/// `nix` has no name for real-time signals and would lose such an end.
pub fn reap(pid: i32) -> io::Result<Option<(End, Usage)>> {
    let mut status = 0;
    // SAFETY: plain numbers, filled by the call before they are read.
    let (waited, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage), usage)
    };
    if waited < 0 {
        return Err(io::Error::last_os_error());
    }
    if waited == 0 {
        return Ok(None);
    }
    let end = if libc::WIFEXITED(status) {
        End::Code(libc::WEXITSTATUS(status))
    } else {
        End::Signal(libc::WTERMSIG(status))
    };
    let micros = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    // The kernel counts bytes and tells them in blocks of this size.
    let blocks = |count: libc::c_long| u64::try_from(count).unwrap_or(0) * 512;
    let usage = Usage {
        read_bytes: blocks(usage.ru_inblock),
        written_bytes: blocks(usage.ru_oublock),
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        peak_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1_024,
    };
    Ok(Some((end, usage)))
}
