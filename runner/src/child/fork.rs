//! The fork and exec of a child, and its true end. Knows no tasks: it gets a program image, three files, and
//! the cgroup that the child is born in.
//!
//! Why not `std::process::Command`: a hook between fork and exec (needed for the death signal) makes it
//! copy the page tables of the whole runner and fault every thread's pages back in afterwards, which more than
//! doubles the cost of a short task. Here the child borrows the runner's memory until
//! its exec, as `posix_spawn` does, while the calling thread stands still.
#![expect(
    unsafe_code,
    reason = "there is no safe way to run system calls between fork and exec"
)]

use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// The child's stack until its exec; what it calls needs a few hundred bytes.
const STACK_BYTES: usize = 64 * 1024;
/// Signals of Linux, and the bytes of a set of them in the kernel.
const SIGNALS: libc::c_long = 64;
const SIGSET_BYTES: usize = 8;

/// The limit of open files for children, where this process has raised its own: soft, hard.
static FILE_LIMIT: OnceLock<(u64, u64)> = OnceLock::new();

/// Children get this limit of open files; this process may raise its own.
pub fn remember_file_limit(soft: u64, hard: u64) {
    let _ = FILE_LIMIT.set((soft, hard));
}

/// What to execute, ready for the kernel.
#[derive(Debug)]
pub struct Image {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    dir: CString,
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
    /// Its `cgroup.procs`, for kernels that cannot: the child moves itself.
    pub procs: BorrowedFd<'a>,
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
        })
    }

    /// Starts the child: a session of its own, default signals, no descriptors but the three files, killed
    /// with the calling *thread*. An error is the system call's that failed in the child.
    pub fn fork(&self, files: Files<'_>, birthplace: Option<Birthplace<'_>>) -> io::Result<Forked> {
        match self.fork_once(files, birthplace) {
            // As every shell does with a script that names no interpreter.
            Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => self.by_shell().fork_once(files, birthplace),
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
        }
    }

    fn fork_once(&self, files: Files<'_>, birthplace: Option<Birthplace<'_>>) -> io::Result<Forked> {
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
            file_limit: FILE_LIMIT.get().map(|&(soft, hard)| libc::rlimit {
                rlim_cur: soft,
                rlim_max: hard,
            }),
            runner: std::process::id(),
            errno: AtomicI32::new(0),
        };
        let dir = birthplace.and_then(|place| place.dir);
        let born = dir.and_then(|dir| clone_into(&plan, dir.as_raw_fd()));
        let (pid, handle) = match born {
            Some(born) => born?,
            None => {
                plan.move_to = birthplace.map_or(-1, |place| place.procs.as_raw_fd());
                clone_beside(&plan)?
            }
        };
        // SAFETY: the kernel has just made this descriptor for us; older kernels leave the -1.
        let handle = (handle >= 0).then(|| unsafe { OwnedFd::from_raw_fd(handle) });
        match plan.errno.load(Ordering::Acquire) {
            0 => Ok(Forked { pid, handle }),
            errno => {
                // It ended before this thread went on, so this does not wait.
                let _ = waitpid(Pid::from_raw(pid), None);
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }
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
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: `enter` gets a `Plan` that, with all it points to, outlives it: because of CLONE_VFORK this
    // thread stands still until the child has executed or ended. The stack is the child's alone, is aligned, and
    // grows down from its end. The child has a table of handlers of its own.
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
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut handle: libc::c_int = -1;
    let shared = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD).cast_unsigned();
    let args = CloneArgs {
        flags: u64::from(shared) | CLONE_INTO_CGROUP,
        pidfd: (&raw mut handle).addr() as u64,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: u64::try_from(cgroup).ok()?,
        ..CloneArgs::default()
    };
    // SAFETY: as in `clone_beside`, but the child borrows this thread's stack as well, below everything that is on it:
    // in the child the block goes straight into `enter`, which never returns, and this thread stands still until the
    // child has left that memory. The parent finds its registers as the kernel kept them.
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

/// What the child does until its exec, in numbers and pointers.
struct Plan {
    program: *const libc::c_char,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
    dir: *const libc::c_char,
    files: [libc::c_int; 3],
    /// `cgroup.procs` to move to, or -1.
    move_to: libc::c_int,
    file_limit: Option<libc::rlimit>,
    runner: u32,
    /// Set by the child when it fails.
    errno: AtomicI32,
}

/// Runs in the child, on memory that is still the runner's: system calls only, no allocation, no panic.
extern "C" fn enter(plan: *mut libc::c_void) -> libc::c_int {
    // SAFETY: see the call of clone: a `Plan` that outlives this function, shared and never written but
    // for the atomic.
    let plan = unsafe { &*plan.cast::<Plan>() };
    // SAFETY: every pointer in the plan is valid and terminated as the calls want it. Each call is a plain
    // system call; `errno` belongs to the thread that stands still meanwhile.
    unsafe {
        if prepare(plan) {
            libc::execve(plan.program, plan.argv, plan.envp);
        }
        plan.errno.store(*libc::__errno_location(), Ordering::Release);
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
        if let Some(limit) = &plan.file_limit {
            libc::setrlimit(libc::RLIMIT_NOFILE, limit);
        }
        libc::umask(0o022);
        // Rust ignores SIGPIPE, and whoever started the runner may have had others ignored: an ignored
        // signal stays ignored over exec. Past the C library, which keeps two for itself; all zeros is the
        // default action in every layout of the kernel's structure. KILL and STOP refuse; fine.
        let default = [0_u64; 4];
        for signal in 1..=SIGNALS {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                null::<u64>(),
                SIGSET_BYTES,
            );
        }
        if libc::chdir(plan.dir) < 0 {
            return false;
        }
        let [stdin, stdout, stderr] = plan.files;
        if libc::dup2(stdin, 0) < 0 || libc::dup2(stdout, 1) < 0 || libc::dup2(stderr, 2) < 0 {
            return false;
        }
        // Everything of Rust's is close-on-exec already; this is for descriptors that a library or whoever
        // started the runner left open. Kernels before 5.11 do not know it.
        libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
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
    let usage = Usage {
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
    use std::os::fd::AsFd as _;

    fn fork(arguments: &[&str], output: &std::fs::File) -> io::Result<Forked> {
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

    #[test]
    fn the_error_of_a_failed_exec_is_the_kernels() {
        let output = tempfile::tempfile().unwrap();
        let errno = |arguments| fork(arguments, &output).unwrap_err().raw_os_error();
        assert_eq!(errno(&["/no/such"]), Some(libc::ENOENT));
        assert_eq!(errno(&["/etc"]), Some(libc::EACCES));
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
