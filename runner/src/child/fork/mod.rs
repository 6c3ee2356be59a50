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

mod birth;
mod end;
mod inside;
mod low;

pub use end::{End, Usage, reap};
pub use low::reserve_low_numbers;

use crate::file_limit;
use birth::{clone_beside, clone_into, ignored};
use inside::{Ids, Plan};
use low::Low;
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
use std::ptr::null;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use systole_shared::limits::UMASK_DEFAULT;

/// How long a child with memory of its own may take to its exec, ms: what the user's other processes do to it must not
/// hold up this thread, and a slow disk may.
const EXEC_MS_MAX: u16 = if cfg!(test) { 500 } else { 10_000 };
/// Groups beside the one that it is born in, to which a child moves.
pub const MOVES_MAX: usize = 4;

/// What children write to their `oom_score_adj`, where this process has lowered its own.
static CHILD_OOM_SCORE: OnceLock<CString> = OnceLock::new();

/// Children get this one; this process may lower its own.
pub fn remember_oom_score(score: i32) {
    let _ = CString::new(score.to_string()).map(|text| CHILD_OOM_SCORE.set(text));
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
            open_files: file_limit::before(),
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
            unneeded_from: None,
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
        let low = plan.identity.is_none().then(|| Low::of_this_thread(files)).flatten();
        if let Some(low) = &low {
            plan.files = low.numbers();
            plan.unneeded_from = Some(low.end());
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
        drop(low);
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

#[cfg(test)]
mod tests;
