//! The fork and exec of a child, and waiting for its end. Knows no tasks: it gets a program
//! image and three files.
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
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The child's stack until its exec; what it calls needs a few hundred bytes.
const STACK_BYTES: usize = 64 * 1024;
/// Signals of Linux, and the bytes of a set of them in the kernel.
const SIGNALS: libc::c_long = 64;
const SIGSET_BYTES: usize = 8;
/// How often to look after a child on a kernel before 5.3, where its end cannot be awaited.
const POLL_EVERY: Duration = Duration::from_millis(10);

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

/// A child that was started and not yet waited for.
#[derive(Debug)]
pub struct Forked {
    pub pid: i32,
    handle: Option<OwnedFd>,
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
    pub fn fork(&self, files: Files<'_>) -> io::Result<Forked> {
        match self.fork_once(files) {
            // As every shell does with a script that names no interpreter.
            Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => self.by_shell().fork_once(files),
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

    fn fork_once(&self, files: Files<'_>) -> io::Result<Forked> {
        let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
            texts.iter().map(|text| text.as_ptr()).chain([null()]).collect()
        };
        let (argv, envp) = (pointers(&self.arguments), pointers(&self.environment));
        let plan = Plan {
            program: self.program.as_ptr(),
            argv: argv.as_ptr(),
            envp: envp.as_ptr(),
            dir: self.dir.as_ptr(),
            files: [
                files.stdin.as_raw_fd(),
                files.stdout.as_raw_fd(),
                files.stderr.as_raw_fd(),
            ],
            runner: std::process::id(),
            errno: AtomicI32::new(0),
        };
        let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
        let mut handle: libc::c_int = -1;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
        // SAFETY: `enter` gets a `Plan` that, with all it points to, outlives it: because of CLONE_VFORK this
        // thread stands still until the child has executed or ended. The stack is the child's alone, is aligned, and
        // grows down from its end. No signal handler of this process can run in the child,
        // because every signal is blocked around the call and the child has a table of handlers of its own.
        let pid = unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            let top = stack.as_mut_ptr().add(stack.len()).cast();
            let pid = libc::clone(enter, top, flags, (&raw const plan).cast_mut().cast(), &raw mut handle);
            let failed = io::Error::last_os_error();
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
            if pid < 0 {
                return Err(failed);
            }
            pid
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

/// What the child does until its exec, in numbers and pointers.
struct Plan {
    program: *const libc::c_char,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
    dir: *const libc::c_char,
    files: [libc::c_int; 3],
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

/// A child to wait for. It is waited for by its pid alone and exactly once, so the number is its own
/// until then. Dropped without that, it stays a zombie; nobody else may reap it.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    handle: Option<AsyncFd<OwnedFd>>,
    end: Option<End>,
}

impl Child {
    /// Needs the runtime.
    pub fn new(forked: Forked) -> Self {
        // SAFETY: an `OwnedFd` is the same open descriptor until it is dropped, and nothing here takes it out.
        let register = |handle| unsafe { AsyncFd::register_with_interest(handle, Interest::READABLE) }.ok();
        Self {
            pid: forked.pid,
            handle: forked.handle.and_then(register),
            end: None,
        }
    }

    /// Cancel-safe.
    pub async fn wait(&mut self) -> io::Result<End> {
        loop {
            if let Some(end) = self.try_wait()? {
                return Ok(end);
            }
            let Some(handle) = &self.handle else {
                tokio::time::sleep(POLL_EVERY).await;
                continue;
            };
            let mut ready = handle.readable().await?;
            let ended = reap(self.pid)?;
            match ended {
                Some(_) => self.end = ended,
                None => ready.clear_ready(),
            }
        }
    }

    pub fn try_wait(&mut self) -> io::Result<Option<End>> {
        if self.end.is_none() {
            self.end = reap(self.pid)?;
        }
        Ok(self.end)
    }
}

/// `nix` has no name for real-time signals and would lose such an end.
fn reap(pid: i32) -> io::Result<Option<End>> {
    let mut status = 0;
    // SAFETY: a system call that writes to an integer of ours.
    match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        _ if libc::WIFEXITED(status) => Ok(Some(End::Code(libc::WEXITSTATUS(status)))),
        _ => Ok(Some(End::Signal(libc::WTERMSIG(status)))),
    }
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
        .fork(files)
    }

    // On the test's own thread: the child asks to be killed with it, and the test waits for the child.
    #[tokio::test]
    async fn a_child_runs_and_its_end_is_awaited() {
        let mut output = tempfile::tempfile().unwrap();
        let mut child = Child::new(fork(&["/bin/sh", "-c", "echo $A; pwd; exit 3"], &output).unwrap());
        assert_eq!(child.wait().await.unwrap(), End::Code(3));
        assert_eq!(child.wait().await.unwrap(), End::Code(3));
        let mut text = String::new();
        io::Seek::rewind(&mut output).unwrap();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(text, "b c\n/\n");
    }

    #[tokio::test]
    async fn the_end_by_any_signal_is_told_as_itself() {
        let output = tempfile::tempfile().unwrap();
        for signal in [1, 9, 15, 40, 64] {
            let script = format!("kill -{signal} $$");
            let mut child = Child::new(fork(&["/bin/sh", "-c", &script], &output).unwrap());
            assert_eq!(child.wait().await.unwrap(), End::Signal(signal));
        }
    }

    #[tokio::test]
    async fn a_child_dies_with_the_thread_that_forked_it() {
        let forked = std::thread::spawn(|| fork(&["/bin/sleep", "300"], &tempfile::tempfile().unwrap()).unwrap());
        let mut child = Child::new(forked.join().unwrap());
        let end = tokio::time::timeout(Duration::from_secs(10), child.wait())
            .await
            .unwrap();
        assert_eq!(end.unwrap(), End::Signal(9));
    }

    #[test]
    fn the_error_of_a_failed_exec_is_the_kernels() {
        let output = tempfile::tempfile().unwrap();
        let errno = |arguments| fork(arguments, &output).unwrap_err().raw_os_error();
        assert_eq!(errno(&["/no/such"]), Some(libc::ENOENT));
        assert_eq!(errno(&["/etc"]), Some(libc::EACCES));
    }

    #[tokio::test]
    async fn a_script_without_an_interpreter_is_run_by_the_shell() {
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
        let mut child = Child::new(fork(&[script.to_str().unwrap(), "7"], &output).unwrap());
        assert_eq!(child.wait().await.unwrap(), End::Code(7));
    }
}
