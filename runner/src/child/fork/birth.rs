//! The birth of a child: clone, in the memory of this process where that is safe, and in its group where the kernel can.

use super::inside::{Plan, SIGNALS, SIGSET_BYTES, enter};
use std::io;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// The child's stack until its exec; what it calls needs a few hundred bytes.
const STACK_BYTES: usize = 64 * 1024;

/// Signals that this process ignores, as [`Plan::resets`]. Asked once: 64 calls, and nothing here changes it.
pub fn ignored() -> u64 {
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

pub fn clone_beside(plan: &Plan) -> io::Result<(i32, libc::c_int)> {
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
pub fn clone_into(plan: &Plan, cgroup: libc::c_int) -> Option<io::Result<(i32, libc::c_int)>> {
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
pub fn clone_into(_plan: &Plan, _cgroup: libc::c_int) -> Option<io::Result<(i32, libc::c_int)>> {
    None
}
