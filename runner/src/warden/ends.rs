//! How the end of a child wakes its worker: once.

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use std::os::fd::AsFd;

/// As a level it would come again and again after it was seen: closing the handle ends nothing as long as another child,
/// between its birth and its exec, still has a copy of it. On a busy host that is nearly always so.
const ONCE: EpollFlags = EpollFlags::EPOLLIN.union(EpollFlags::EPOLLET);

/// From now on the end of the process behind `handle` comes as an event with the number of its task.
pub fn watch(epoll: &Epoll, handle: impl AsFd, task_id: i64) -> nix::Result<()> {
    epoll.add(handle, EpollEvent::new(ONCE, task_id.cast_unsigned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::epoll::{EpollCreateFlags, EpollTimeout};
    use std::os::fd::{FromRawFd as _, OwnedFd};
    use std::process::Command;

    #[expect(unsafe_code, reason = "nix has no call for it")]
    fn handle_of(pid: u32) -> OwnedFd {
        // SAFETY: a call on numbers; the descriptor is new and ours.
        unsafe {
            let handle = libc::syscall(libc::SYS_pidfd_open, pid, 0);
            assert!(handle >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(i32::try_from(handle).unwrap())
        }
    }

    #[test]
    fn an_end_that_was_seen_does_not_come_again_while_another_child_has_a_copy_of_the_handle() {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let mut child = Command::new("/bin/sleep").arg("0.05").spawn().unwrap();
        let handle = handle_of(child.id());
        let copy = handle.try_clone().unwrap();
        watch(&epoll, &handle, 7).unwrap();
        let mut events = [EpollEvent::empty(); 4];
        let mut wait = |ms: u16| {
            let count = epoll.wait(&mut events, EpollTimeout::from(ms)).unwrap();
            events[..count].iter().map(EpollEvent::data).collect::<Vec<_>>()
        };
        assert_eq!(wait(10_000), [7]);
        child.wait().unwrap();
        drop(handle);
        // To reap it may count as one more news, in newer kernels.
        wait(0);
        assert_eq!(wait(0), [0_u64; 0]);
        drop(copy);
    }
}
