//! What a child does between its birth and its exec, on memory that is still the runner's or a copy of it.

use super::{MOVES_MAX, Step};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

/// Signals of Linux, and the bytes of a set of them in the kernel.
pub const SIGNALS: libc::c_long = 64;
pub const SIGSET_BYTES: usize = 8;

#[cfg(target_env = "gnu")]
pub type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
pub type Resource = libc::c_int;

/// As [`Identity`].
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
    pub groups: *const u32,
    pub groups_len: usize,
}

/// What the child does until its exec, in numbers and pointers.
pub struct Plan {
    pub program: *const libc::c_char,
    pub argv: *const *const libc::c_char,
    pub envp: *const *const libc::c_char,
    pub dir: *const libc::c_char,
    pub files: [libc::c_int; 3],
    /// The file of the group to move to, or -1.
    pub move_to: libc::c_int,
    /// More of them, -1 where there are none.
    pub others: [libc::c_int; MOVES_MAX],
    /// What it writes to its `oom_score_adj`, or null.
    pub oom_score: *const libc::c_char,
    pub limits: [Option<(Resource, libc::rlimit)>; 4],
    pub nice: Option<libc::c_int>,
    pub umask: libc::mode_t,
    pub terminal: bool,
    pub identity: Option<Ids>,
    /// Whether the directory is entered before the identity is taken on.
    pub enters_first: bool,
    /// Where a child with memory of its own reports why it failed, or -1.
    pub report_to: libc::c_int,
    /// The child begins with the very table of descriptors of this process, and makes itself one of those below this number. `None`: it
    /// has a copy of the table from its birth.
    pub unneeded_from: Option<u32>,
    pub runner: u32,
    /// Signals that are not at their default action in the child, one bit each from the lowest: 1 is SIGHUP.
    pub resets: u64,
    /// A [`Step`], written by the child as it goes.
    pub step: AtomicU8,
    /// Set by the child when it fails.
    pub errno: AtomicI32,
}

impl Plan {
    /// Flags of clone.
    pub fn sharing(&self) -> libc::c_int {
        match self.identity {
            None if self.unneeded_from.is_some() => libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES,
            None => libc::CLONE_VM | libc::CLONE_VFORK,
            Some(_) => 0,
        }
    }

    fn at(&self, step: Step) {
        self.step.store(step as u8, Ordering::Release);
    }
}

/// Runs in the child, on memory that is still the runner's or a copy of it: system calls only, no allocation, no panic.
pub extern "C" fn enter(plan: *mut libc::c_void) -> libc::c_int {
    // SAFETY: see the call of clone: a `Plan` that outlives this function, shared and never written but
    // for the atomics.
    let plan = unsafe { &*plan.cast::<Plan>() };
    // SAFETY: every pointer in the plan is valid and terminated as the calls want it. Each call is a plain
    // system call; `errno` belongs to the thread that stands still meanwhile.
    unsafe {
        if prepare(plan) {
            plan.at(Step::Exec);
            libc::execve(plan.program, plan.argv, plan.envp);
        }
        let errno = *libc::__errno_location();
        plan.errno.store(errno, Ordering::Release);
        if plan.report_to >= 0 {
            let [a, b, c, d] = errno.to_ne_bytes();
            let told = [plan.step.load(Ordering::Relaxed), a, b, c, d];
            libc::write(plan.report_to, told.as_ptr().cast(), told.len());
        }
        libc::_exit(127)
    }
}

/// False: a call failed, and `errno` says how.
///
/// # Safety
/// Only in the child, with a plan whose pointers are valid.
unsafe fn prepare(plan: &Plan) -> bool {
    // SAFETY: system calls on numbers, on the plan's texts, and on stack memory that outlives them.
    unsafe {
        if libc::setsid() < 0 {
            return false;
        }
        // First: nothing of the task may happen outside.
        if plan.move_to >= 0 && libc::write(plan.move_to, c"0".as_ptr().cast(), 1) != 1 {
            return false;
        }
        if !plan.oom_score.is_null() {
            // The one of this process is for this process. Where it cannot be set the child keeps it, which is no reason to
            // start nothing.
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file >= 0 {
                libc::write(file, plan.oom_score.cast(), libc::strlen(plan.oom_score));
                libc::close(file);
            }
        }
        plan.at(Step::Limits);
        for procs in plan.others {
            if procs >= 0 && libc::write(procs, c"0".as_ptr().cast(), 1) != 1 {
                return false;
            }
        }
        // Before anything is done to a descriptor: until here they are the runner's.
        if let Some(from) = plan.unneeded_from
            && libc::syscall(libc::SYS_close_range, from, u32::MAX, libc::CLOSE_RANGE_UNSHARE) < 0
        {
            plan.at(Step::Birth);
            return false;
        }
        for (resource, limit) in plan.limits.iter().flatten() {
            if libc::setrlimit(*resource, limit) < 0 {
                return false;
            }
        }
        if let Some(nice) = plan.nice
            && libc::setpriority(libc::PRIO_PROCESS, 0, nice) < 0
        {
            return false;
        }
        plan.at(Step::Birth);
        libc::umask(plan.umask);
        // Rust ignores SIGPIPE, and whoever started the runner may have had others ignored: an ignored
        // signal stays ignored over exec. Past the C library, which keeps two for itself; all zeros is the
        // default action in every layout of the kernel's structure. KILL and STOP refuse; fine.
        let default = [0_u64; 4];
        for signal in (1..=SIGNALS).filter(|signal| plan.resets & (1 << (signal - 1)) != 0) {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                null::<u64>(),
                SIGSET_BYTES,
            );
        }
        if plan.enters_first && !enter_dir(plan) {
            return false;
        }
        let [stdin, stdout, stderr] = plan.files;
        if libc::dup2(stdin, 0) < 0 || libc::dup2(stdout, 1) < 0 || libc::dup2(stderr, 2) < 0 {
            return false;
        }
        // After the new session, which has none yet.
        if plan.terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return false;
        }
        // Everything of Rust's is close-on-exec already; this is for descriptors that a library or whoever
        // started the runner left open. Kernels before 5.11 do not know it.
        libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        // A child that its user may stop must not hold the report of another one open.
        if let Ok(own @ 3..) = u32::try_from(plan.report_to) {
            libc::syscall(libc::SYS_close_range, 3_u32, own - 1, 0_u32);
            libc::syscall(libc::SYS_close_range, own + 1, u32::MAX, 0_u32);
        }
        if let Some(ids) = &plan.identity {
            plan.at(Step::Identity);
            if !become_user(ids) {
                return false;
            }
            plan.at(Step::Birth);
        }
        // With the rights of the user: what only this process may enter is not for its task.
        if !plan.enters_first && !enter_dir(plan) {
            return false;
        }
        // After the change of user, by which the kernel forgets it.
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) < 0 {
            return false;
        }
        // The runner may have died before the line above; then no signal comes any more.
        if libc::getppid().cast_unsigned() != plan.runner {
            *libc::__errno_location() = libc::ESRCH;
            return false;
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, null_mut()) == 0
    }
}

/// As [`prepare`].
///
/// # Safety
/// As [`prepare`].
unsafe fn enter_dir(plan: &Plan) -> bool {
    plan.at(Step::Dir);
    // SAFETY: a system call on a text of the plan.
    if unsafe { libc::chdir(plan.dir) } < 0 {
        return false;
    }
    plan.at(Step::Birth);
    true
}

/// Gives up root for good, and looks whether it is so. The numbers of the kernel and not the C library's functions: those
/// change all threads that they know of, and in this child they know those of the runner.
///
/// From here until its exec the child is a process of the user with a copy of the runner's memory. The kernel makes that copy
/// undumpable together with the change, so other processes of the user cannot read it.
///
/// # Safety
/// Only in the child, with ids whose pointer is valid.
unsafe fn become_user(ids: &Ids) -> bool {
    // SAFETY: system calls on numbers, on the plan's list of groups, and on stack memory that outlives them.
    unsafe {
        if libc::syscall(libc::SYS_setgroups, ids.groups_len, ids.groups) < 0
            || libc::syscall(libc::SYS_setresgid, ids.gid, ids.gid, ids.gid) < 0
            || libc::syscall(libc::SYS_setresuid, ids.uid, ids.uid, ids.uid) < 0
        {
            return false;
        }
        let (mut uids, mut gids) = ([u32::MAX; 3], [u32::MAX; 3]);
        let [real, effective, saved] = &mut uids;
        let asked = libc::getresuid(real, effective, saved);
        let [real, effective, saved] = &mut gids;
        let asked = asked | libc::getresgid(real, effective, saved);
        if asked != 0 || uids != [ids.uid; 3] || gids != [ids.gid; 3] {
            *libc::__errno_location() = libc::EPERM;
            return false;
        }
    }
    true
}
