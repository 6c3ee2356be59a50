//! The fork and exec of a child, and its true end. Knows no tasks: it gets a program image, three files, and
//! the cgroup that the child is born in.
//!
//! Why not `std::process::Command`: a hook between fork and exec (needed for the death signal) makes it
//! copy the page tables of the whole runner and fault every thread's pages back in afterwards, which more than
//! doubles the cost of a short task. Here the child borrows the runner's memory until
//! its exec, as `posix_spawn` does, while the calling thread stands still. A child of another user gets a copy
//! after all, and the thread waits with a bound: it has that user's rights before its exec.
#![expect(
    unsafe_code,
    reason = "there is no safe way to run system calls between fork and exec"
)]

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, pipe2, read};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use systole_shared::limits::UMASK_DEFAULT;

/// The child's stack until its exec; what it calls needs a few hundred bytes.
const STACK_BYTES: usize = 64 * 1024;
/// How long a child with memory of its own may take to its exec, ms: what the user's other processes do to it must not
/// hold up this thread, and a slow disk may.
const EXEC_MS_MAX: u16 = if cfg!(test) { 500 } else { 10_000 };
/// Groups beside the one that it is born in, to which a child moves.
pub const MOVES_MAX: usize = 4;
/// Signals of Linux, and the bytes of a set of them in the kernel.
const SIGNALS: libc::c_long = 64;
const SIGSET_BYTES: usize = 8;

/// The limit of open files for children, where this process has raised its own: soft, hard.
static FILE_LIMIT: OnceLock<(u64, u64)> = OnceLock::new();

/// What children write to their `oom_score_adj`, where this process has lowered its own.
static CHILD_OOM_SCORE: OnceLock<CString> = OnceLock::new();

/// Children get this one; this process may lower its own.
pub fn remember_oom_score(score: i32) {
    let _ = CString::new(score.to_string()).map(|text| CHILD_OOM_SCORE.set(text));
}

/// Children get this limit of open files; this process may raise its own.
pub fn remember_file_limit(soft: u64, hard: u64) {
    let _ = FILE_LIMIT.set((soft, hard));
}

/// What was remembered.
pub fn file_limit() -> Option<(u64, u64)> {
    FILE_LIMIT.get().copied()
}

/// The nice value of this thread, which its children inherit.
pub fn own_nice() -> i32 {
    // SAFETY: a system call on numbers. The C library's wrapper has -1 for an error and for a value; the kernel
    // gives 20 less the value.
    let told = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) };
    if told > 0 {
        20 - i32::try_from(told).unwrap_or(20)
    } else {
        0
    }
}

/// What to execute, ready for the kernel.
#[derive(Debug)]
pub struct Image {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    dir: CString,
    bounds: Bounds,
}

/// What the child may do and use. Limits are soft and hard; without one the child has that of this process.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub open_files: Option<(u64, u64)>,
    pub core: Option<(u64, u64)>,
    pub file: Option<(u64, u64)>,
    /// Processes of its user, those outside of the task included.
    pub processes: Option<(u64, u64)>,
    pub nice: Option<i32>,
    pub umask: u32,
    /// Its stdin becomes its controlling terminal.
    pub terminal: bool,
    pub identity: Option<Identity>,
    /// The directory is entered with the rights of this process and not with those of `identity`: for one whose
    /// path that user cannot walk.
    pub enters_first: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            open_files: file_limit(),
            core: None,
            file: None,
            processes: None,
            nice: None,
            umask: UMASK_DEFAULT,
            terminal: false,
            identity: None,
            enters_first: true,
        }
    }
}

/// The user and groups of a child, in the kernel's numbers.
#[derive(Clone, Debug)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// All groups, the main one among them.
    pub groups: Vec<u32>,
}

/// What the child was at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// It was not there yet, or what it did cannot fail for reasons of its task.
    Birth,
    Limits,
    Identity,
    Dir,
    Exec,
}

impl Step {
    const ALL: [Step; 5] = [Step::Birth, Step::Limits, Step::Identity, Step::Dir, Step::Exec];
}

/// A child that did not come to its program: the system call's error, and where.
#[derive(Debug)]
pub struct Refused {
    pub step: Step,
    pub error: io::Error,
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self {
            step: Step::Birth,
            error,
        }
    }
}

/// Standard input, output and error of the child.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    pub stdin: BorrowedFd<'a>,
    pub stdout: BorrowedFd<'a>,
    pub stderr: BorrowedFd<'a>,
}

/// The cgroup that a child is born in.
#[derive(Clone, Copy)]
pub struct Birthplace<'a> {
    /// Its directory, where the kernel can start a child in it.
    pub dir: Option<BorrowedFd<'a>>,
    /// The file by which the child moves there itself, for kernels and groups that cannot.
    pub procs: Option<BorrowedFd<'a>>,
    /// Such files of further groups, which a child always moves to by itself; at most [`MOVES_MAX`].
    pub others: &'a [BorrowedFd<'a>],
}

/// A child that was started and not yet waited for. It is waited for by its pid alone and exactly once, so the
/// number is its own until then.
#[derive(Debug)]
pub struct Forked {
    pub pid: i32,
    /// Readable once the child has ended; `None` before Linux 5.3.
    pub handle: Option<OwnedFd>,
}

impl Image {
    /// Fails for text with a NUL byte.
    pub fn new<'a>(
        program: &OsStr,
        arguments: impl Iterator<Item = &'a str>,
        environment: impl Iterator<Item = (&'a OsStr, &'a OsStr)>,
        dir: &OsStr,
    ) -> io::Result<Self> {
        let variable = |(name, value): (&OsStr, &OsStr)| {
            let mut both = name.as_bytes().to_vec();
            both.push(b'=');
            both.extend_from_slice(value.as_bytes());
            CString::new(both)
        };
        Ok(Self {
            program: CString::new(program.as_bytes())?,
            arguments: arguments.map(CString::new).collect::<Result<_, _>>()?,
            environment: environment.map(variable).collect::<Result<_, _>>()?,
            dir: CString::new(dir.as_bytes())?,
            bounds: Bounds::default(),
        })
    }

    pub fn bounded(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Starts the child: a session of its own, default signals, no descriptors but the three files, killed
    /// with the calling *thread*. An error is the system call's that failed in the child.
    pub fn fork(&self, files: Files<'_>, birthplace: Option<Birthplace<'_>>) -> Result<Forked, Refused> {
        match self.fork_once(files, birthplace) {
            // As every shell does with a script that names no interpreter.
            Err(refused) if refused.error.raw_os_error() == Some(libc::ENOEXEC) => {
                self.by_shell().fork_once(files, birthplace)
            }
            forked => forked,
        }
    }

    fn by_shell(&self) -> Image {
        let shell = CString::from(c"/bin/sh");
        let rest = self.arguments.iter().skip(1).cloned();
        Image {
            arguments: [shell.clone(), self.program.clone()].into_iter().chain(rest).collect(),
            program: shell,
            environment: self.environment.clone(),
            dir: self.dir.clone(),
            bounds: self.bounds.clone(),
        }
    }

    fn fork_once(&self, files: Files<'_>, birthplace: Option<Birthplace<'_>>) -> Result<Forked, Refused> {
        let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
            texts.iter().map(|text| text.as_ptr()).chain([null()]).collect()
        };
        let (argv, envp) = (pointers(&self.arguments), pointers(&self.environment));
        let mut plan = Plan {
            program: self.program.as_ptr(),
            argv: argv.as_ptr(),
            envp: envp.as_ptr(),
            dir: self.dir.as_ptr(),
            files: [
                files.stdin.as_raw_fd(),
                files.stdout.as_raw_fd(),
                files.stderr.as_raw_fd(),
            ],
            move_to: -1,
            others: [-1; MOVES_MAX],
            oom_score: CHILD_OOM_SCORE.get().map_or(null(), |text| text.as_ptr()),
            limits: [
                (libc::RLIMIT_NOFILE, self.bounds.open_files),
                (libc::RLIMIT_CORE, self.bounds.core),
                (libc::RLIMIT_FSIZE, self.bounds.file),
                (libc::RLIMIT_NPROC, self.bounds.processes),
            ]
            .map(|(resource, limit)| {
                limit.map(|(soft, hard)| {
                    let limit = libc::rlimit {
                        rlim_cur: soft,
                        rlim_max: hard,
                    };
                    (resource, limit)
                })
            }),
            nice: self.bounds.nice,
            umask: self.bounds.umask,
            terminal: self.bounds.terminal,
            identity: self.bounds.identity.as_ref().map(|identity| Ids {
                uid: identity.uid,
                gid: identity.gid,
                groups: identity.groups.as_ptr(),
                groups_len: identity.groups.len(),
            }),
            enters_first: self.bounds.enters_first || self.bounds.identity.is_none(),
            report_to: -1,
            runner: std::process::id(),
            resets: u64::MAX,
            step: AtomicU8::new(Step::Birth as u8),
            errno: AtomicI32::new(0),
        };
        // One that gives up root does not share this process's memory, and nobody stands still for it: from then on
        // other processes of its user may stop it.
        let report = match plan.identity {
            None => None,
            Some(_) => Some(pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?),
        };
        if let Some((_, to)) = &report {
            plan.report_to = to.as_raw_fd();
        }
        for (slot, procs) in plan
            .others
            .iter_mut()
            .zip(birthplace.map_or(&[][..], |place| place.others))
        {
            *slot = procs.as_raw_fd();
        }
        let dir = birthplace.and_then(|place| place.dir);
        // The kernel has reset those with a handler.
        plan.resets = ignored();
        let born = dir.and_then(|dir| clone_into(&plan, dir.as_raw_fd()));
        let (pid, handle) = match born {
            Some(born) => born?,
            None => {
                plan.resets = u64::MAX;
                plan.move_to = birthplace
                    .and_then(|place| place.procs)
                    .map_or(-1, |procs| procs.as_raw_fd());
                clone_beside(&plan)?
            }
        };
        // SAFETY: the kernel has just made this descriptor for us; older kernels leave the -1.
        let handle = (handle >= 0).then(|| unsafe { OwnedFd::from_raw_fd(handle) });
        if let Some((from, to)) = report {
            drop(to);
            if let Some((step, errno)) = await_exec(&from) {
                // It ends by itself, or not at all. Nobody waited for it, so the number is its own.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                plan.step.store(step, Ordering::Release);
                plan.errno.store(errno, Ordering::Release);
            }
        }
        match plan.errno.load(Ordering::Acquire) {
            0 => Ok(Forked { pid, handle }),
            errno => {
                // It ended before this thread went on, or was killed, so this does not wait for long.
                let _ = waitpid(Pid::from_raw(pid), None);
                let step = usize::from(plan.step.load(Ordering::Acquire));
                Err(Refused {
                    step: Step::ALL.get(step).copied().unwrap_or(Step::Birth),
                    error: io::Error::from_raw_os_error(errno),
                })
            }
        }
    }
}

/// Waits for the exec of a child with memory of its own, or its end. Some: where it failed, a [`Step`], and with which
/// error; `ETIMEDOUT` if it came to neither.
fn await_exec(from: &OwnedFd) -> Option<(u8, i32)> {
    let deadline = Instant::now() + Duration::from_millis(EXEC_MS_MAX.into());
    let mut told = [0_u8; 5];
    loop {
        let left = deadline
            .saturating_duration_since(Instant::now())
            .as_micros()
            .div_ceil(1_000);
        let left = PollTimeout::try_from(left.min(u128::from(EXEC_MS_MAX))).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], left) {
            Err(Errno::EINTR) => {}
            Ok(0) | Err(_) => return Some((Step::Exec as u8, libc::ETIMEDOUT)),
            Ok(_) => {
                // So few bytes are written and read at once. None: the exec closed the other end.
                let whole = read(from, &mut told) == Ok(told.len());
                let [step, errno @ ..] = told;
                return whole.then(|| (step, i32::from_ne_bytes(errno)));
            }
        }
    }
}

/// Signals that this process ignores, as [`Plan::resets`]. Asked once: 64 calls, and nothing here changes it.
fn ignored() -> u64 {
    static IGNORED: OnceLock<u64> = OnceLock::new();
    *IGNORED.get_or_init(|| {
        let is_ignored = |signal: &libc::c_long| {
            // The handler is the first word in every layout of the kernel's structure.
            let mut action = [0_u64; 4];
            // SAFETY: the call fills memory on the stack that is as large as the kernel's structure.
            let asked = unsafe {
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    *signal,
                    null::<u64>(),
                    action.as_mut_ptr(),
                    SIGSET_BYTES,
                )
            };
            asked == 0 && action[0] == libc::SIG_IGN as u64
        };
        (1..=SIGNALS)
            .filter(is_ignored)
            .fold(0, |bits, signal| bits | 1 << (signal - 1))
    })
}

/// Blocks every signal of this thread around `body`: no handler of this process may run in the child.
fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: signal sets on the stack, filled before they are read.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = body();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        result
    }
}

fn clone_beside(plan: &Plan) -> io::Result<(i32, libc::c_int)> {
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    let mut handle: libc::c_int = -1;
    let flags = plan.sharing() | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: `enter` gets a `Plan` that, with all it points to, outlives it: because of CLONE_VFORK this
    // thread stands still until the child has executed or ended; without it the child has a copy of all memory. The
    // stack is the child's alone, is aligned, and grows down from its end. The child has a table of handlers of its own.
    without_signals(|| unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        let pid = libc::clone(
            enter,
            top,
            flags,
            (plan as *const Plan).cast_mut().cast(),
            &raw mut handle,
        );
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((pid, handle))
    })
}

/// As [`clone_beside`], but the child is born in the cgroup: to move it there afterwards takes a lock of the whole
/// kernel, and milliseconds. `None`: this kernel or processor cannot.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn clone_into(plan: &Plan, cgroup: libc::c_int) -> Option<io::Result<(i32, libc::c_int)>> {
    /// The first 88 bytes of the kernel's structure, which every kernel with the flag below knows.
    #[repr(C, align(8))]
    #[derive(Default)]
    struct CloneArgs {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }
    const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut handle: libc::c_int = -1;
    let shared = (plan.sharing() | libc::CLONE_PIDFD).cast_unsigned();
    let args = CloneArgs {
        flags: u64::from(shared) | CLONE_CLEAR_SIGHAND | CLONE_INTO_CGROUP,
        pidfd: (&raw mut handle).addr() as u64,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: u64::try_from(cgroup).ok()?,
        ..CloneArgs::default()
    };
    // SAFETY: as in `clone_beside`, but the child borrows this thread's stack as well, below everything that is on it:
    // in the child the block goes straight into `enter`, which never returns, and this thread stands still until the
    // child has left that memory, or the child has a copy of it. The parent finds its registers as the kernel kept them.
    let result = without_signals(|| unsafe {
        let result: isize;
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {plan}",
            "call {enter}",
            "ud2",
            "2:",
            plan = in(reg) (plan as *const Plan).cast_mut(),
            enter = in(reg) enter as extern "C" fn(*mut libc::c_void) -> libc::c_int,
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") &raw const args,
            in("rsi") size_of::<CloneArgs>(),
            out("rcx") _,
            out("r11") _,
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x0, {plan}",
            "blr {enter}",
            "brk #1",
            "2:",
            plan = in(reg) (plan as *const Plan).cast_mut(),
            enter = in(reg) enter as extern "C" fn(*mut libc::c_void) -> libc::c_int,
            in("x8") libc::SYS_clone3,
            inlateout("x0") (&raw const args).addr() as isize => result,
            in("x1") size_of::<CloneArgs>(),
        );
        result
    });
    match i32::try_from(result).unwrap_or(-libc::EINVAL) {
        pid if pid > 0 => Some(Ok((pid, handle))),
        // Too old, or a sandbox that does not know the call.
        error if [libc::ENOSYS, libc::EINVAL, libc::E2BIG, libc::EPERM].contains(&-error) => None,
        error => Some(Err(io::Error::from_raw_os_error(-error))),
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn clone_into(_plan: &Plan, _cgroup: libc::c_int) -> Option<io::Result<(i32, libc::c_int)>> {
    None
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// As [`Identity`].
struct Ids {
    uid: u32,
    gid: u32,
    groups: *const u32,
    groups_len: usize,
}

/// What the child does until its exec, in numbers and pointers.
struct Plan {
    program: *const libc::c_char,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
    dir: *const libc::c_char,
    files: [libc::c_int; 3],
    /// The file of the group to move to, or -1.
    move_to: libc::c_int,
    /// More of them, -1 where there are none.
    others: [libc::c_int; MOVES_MAX],
    /// What it writes to its `oom_score_adj`, or null.
    oom_score: *const libc::c_char,
    limits: [Option<(Resource, libc::rlimit)>; 4],
    nice: Option<libc::c_int>,
    umask: libc::mode_t,
    terminal: bool,
    identity: Option<Ids>,
    /// Whether the directory is entered before the identity is taken on.
    enters_first: bool,
    /// Where a child with memory of its own reports why it failed, or -1.
    report_to: libc::c_int,
    runner: u32,
    /// Signals that are not at their default action in the child, one bit each from the lowest: 1 is SIGHUP.
    resets: u64,
    /// A [`Step`], written by the child as it goes.
    step: AtomicU8,
    /// Set by the child when it fails.
    errno: AtomicI32,
}

impl Plan {
    /// Flags of clone.
    fn sharing(&self) -> libc::c_int {
        match self.identity {
            None => libc::CLONE_VM | libc::CLONE_VFORK,
            Some(_) => 0,
        }
    }

    fn at(&self, step: Step) {
        self.step.store(step as u8, Ordering::Release);
    }
}

/// Runs in the child, on memory that is still the runner's or a copy of it: system calls only, no allocation, no panic.
extern "C" fn enter(plan: *mut libc::c_void) -> libc::c_int {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn fork(arguments: &[&str], output: &std::fs::File) -> Result<Forked, Refused> {
        let null = std::fs::File::open("/dev/null").unwrap();
        let files = Files {
            stdin: null.as_fd(),
            stdout: output.as_fd(),
            stderr: output.as_fd(),
        };
        let environment = [(OsStr::new("A"), OsStr::new("b c"))];
        let program = OsStr::new(arguments[0]);
        Image::new(
            program,
            arguments.iter().copied(),
            environment.into_iter(),
            OsStr::new("/"),
        )?
        .fork(files, None)
    }

    fn wait(child: &Forked) -> End {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            if let Some((end, _)) = reap(child.pid).unwrap() {
                return end;
            }
            assert!(std::time::Instant::now() < deadline, "the child does not end");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    // On the test's own thread: the child asks to be killed with it, and the test waits for the child.
    #[test]
    fn a_child_runs_and_its_end_is_seen() {
        let mut output = tempfile::tempfile().unwrap();
        let child = fork(&["/bin/sh", "-c", "echo $A; pwd; exit 3"], &output).unwrap();
        assert_eq!(wait(&child), End::Code(3));
        let mut text = String::new();
        io::Seek::rewind(&mut output).unwrap();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(text, "b c\n/\n");
    }

    /// Higher, which everybody may set; this process keeps its own.
    #[test]
    fn a_child_has_an_oom_score_of_its_own() {
        let own = || std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        let before = own();
        remember_oom_score(321);
        let mut output = tempfile::tempfile().unwrap();
        let child = fork(&["/bin/cat", "/proc/self/oom_score_adj"], &output).unwrap();
        assert_eq!(wait(&child), End::Code(0));
        let mut text = String::new();
        io::Seek::rewind(&mut output).unwrap();
        output.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), own()), ("321\n", before));
    }

    #[test]
    fn the_end_by_any_signal_is_told_as_itself() {
        let output = tempfile::tempfile().unwrap();
        for signal in [1, 9, 15, 40, 64] {
            let script = format!("kill -{signal} $$");
            let child = fork(&["/bin/sh", "-c", &script], &output).unwrap();
            assert_eq!(wait(&child), End::Signal(signal));
        }
    }

    #[test]
    fn a_child_dies_with_the_thread_that_forked_it() {
        let forked = std::thread::spawn(|| fork(&["/bin/sleep", "300"], &tempfile::tempfile().unwrap()).unwrap());
        assert_eq!(wait(&forked.join().unwrap()), End::Signal(9));
    }

    /// The kernel forgets the signal of the parent's death when the user changes.
    #[test]
    fn a_child_of_another_user_dies_with_the_thread_too() {
        if own_user() != 0 {
            println!("only root can start a child of another user");
            return;
        }
        let other = || {
            let child = fork_as(3_999_999_999, &["/bin/sleep", "300"]).unwrap();
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.pid)).unwrap();
            let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
            assert_eq!(line("Uid:"), "3999999999\t3999999999\t3999999999\t3999999999");
            assert_eq!(line("Gid:"), "3999999998\t3999999998\t3999999998\t3999999998");
            assert_eq!(line("Groups:"), "3999999997 3999999998");
            assert_eq!(own_user(), 0, "and nothing of it is left in this process");
            child
        };
        let child = std::thread::spawn(other).join().unwrap();
        assert_eq!(wait(&child), End::Signal(9));
    }

    fn fork_as(uid: u32, arguments: &[&str]) -> Result<Forked, Refused> {
        let identity = Identity {
            uid,
            gid: 3_999_999_998,
            groups: vec![3_999_999_998, 3_999_999_997],
        };
        let bounds = Bounds {
            identity: Some(identity),
            ..Bounds::default()
        };
        let null = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .unwrap();
        let files = Files {
            stdin: null.as_fd(),
            stdout: null.as_fd(),
            stderr: null.as_fd(),
        };
        let program = OsStr::new(arguments[0]);
        Image::new(program, arguments.iter().copied(), [].into_iter(), OsStr::new("/"))?
            .bounded(bounds)
            .fork(files, None)
    }

    /// As when another process of its user stops it: then nobody closes the other end.
    #[test]
    fn a_child_that_does_not_come_to_its_exec_is_not_waited_for_forever() {
        let (from, to) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let since = Instant::now();
        assert_eq!(await_exec(&from), Some((Step::Exec as u8, libc::ETIMEDOUT)));
        assert!(since.elapsed() >= Duration::from_millis(EXEC_MS_MAX.into()));
        let [a, b, c, d] = libc::EPERM.to_ne_bytes();
        nix::unistd::write(&to, &[Step::Identity as u8, a, b, c, d]).unwrap();
        assert_eq!(await_exec(&from), Some((Step::Identity as u8, libc::EPERM)));
        drop(to);
        // Children that other tests fork meanwhile hold the other end until their exec.
        assert_eq!(await_exec(&from), None);
    }

    #[test]
    fn a_child_of_another_user_whose_start_fails_says_where() {
        if own_user() != 0 {
            println!("only root can start a child of another user");
            return;
        }
        let refused = fork_as(3_999_999_995, &["/no/such"]).unwrap_err();
        assert_eq!(
            (refused.step, refused.error.raw_os_error()),
            (Step::Exec, Some(libc::ENOENT))
        );
        let refused = fork_as(u32::MAX, &["/bin/true"]).unwrap_err();
        assert_eq!(
            (refused.step, refused.error.raw_os_error()),
            (Step::Identity, Some(libc::EPERM))
        );
    }

    fn own_user() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    #[test]
    fn the_error_of_a_failed_exec_is_the_kernels() {
        let output = tempfile::tempfile().unwrap();
        let refused = |arguments| {
            let refused = fork(arguments, &output).unwrap_err();
            (refused.step, refused.error.raw_os_error())
        };
        assert_eq!(refused(&["/no/such"]), (Step::Exec, Some(libc::ENOENT)));
        assert_eq!(refused(&["/etc"]), (Step::Exec, Some(libc::EACCES)));
    }

    #[test]
    fn a_script_without_an_interpreter_is_run_by_the_shell() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        // Written by another process: a test that forks meanwhile would hold it open for a moment, and a
        // file that is open for writing cannot be executed.
        let write = "echo 'exit $1' > \"$0\"; chmod +x \"$0\"";
        assert!(
            std::process::Command::new("sh")
                .args(["-c", write])
                .arg(&script)
                .status()
                .unwrap()
                .success()
        );
        let output = tempfile::tempfile().unwrap();
        let child = fork(&[script.to_str().unwrap(), "7"], &output).unwrap();
        assert_eq!(wait(&child), End::Code(7));
    }
}
