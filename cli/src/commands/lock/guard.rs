//! The process beside a held lease. It has one duty: the command's process group is dead when the lease may be somebody else's, also
//! when `systole lock` itself was killed, or stands still.
//!
//! It is told on stdin, line by line: `group N`, `until TERM KILL` (ms by `CLOCK_BOOTTIME`, each replaces the one before), `end`.
//! When stdin closes without `end`, `systole lock` is dead, and so is the group at once.

use crate::failure::Failure;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;
use std::os::fd::AsFd as _;
use std::time::Duration;
use systole_runner::boottime;

/// Longest sleep: a clock that was set, or a suspend, is noticed by then.
const LOOK_MS: u64 = 200;
/// Processes in the kernel's hands may take a while to go.
const GONE_MAX: Duration = Duration::from_secs(10);
/// Longer lines are nobody's.
const LINE_BYTES_MAX: usize = 256;

/// What it was told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Orders {
    group: Option<i32>,
    until: Option<(u64, u64)>,
    ended: bool,
    rest: Vec<u8>,
}

impl Orders {
    fn hear(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(at) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=at).collect();
            self.obey(&String::from_utf8_lossy(&line));
        }
        self.rest.truncate(LINE_BYTES_MAX);
    }

    fn obey(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["group", group] => self.group = group.parse().ok().filter(|&group| group > 1),
            ["until", term, kill] => {
                if let (Ok(term), Ok(kill)) = (term.parse(), kill.parse()) {
                    self.until = Some((term, kill));
                }
            }
            ["end"] => self.ended = true,
            _ => {}
        }
    }
}

/// What to do at this time.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    Wait(u64),
    Term,
    Kill,
}

fn act(until: Option<(u64, u64)>, termed: bool, now_ms: u64) -> Act {
    match until {
        Some((_, kill)) if now_ms >= kill => Act::Kill,
        Some((term, _)) if now_ms >= term && !termed => Act::Term,
        Some((term, kill)) => {
            let next = if termed { kill } else { term };
            Act::Wait(next.saturating_sub(now_ms).clamp(1, LOOK_MS))
        }
        None => Act::Wait(LOOK_MS),
    }
}

pub fn run() -> Result<u8, Failure> {
    // Whoever ends `systole lock` by its terminal or its service ends it, not this.
    let mut quiet = SigSet::all();
    quiet.remove(Signal::SIGKILL);
    let _ = quiet.thread_block();
    let stdin = std::io::stdin();
    let mut orders = Orders::default();
    let mut termed = None;
    loop {
        let wait = match act(orders.until, termed == orders.until, boottime::now_ms()) {
            Act::Kill => {
                end_group(orders.group);
                return Ok(crate::exit_code::OK);
            }
            Act::Term => {
                signal(orders.group, Signal::SIGTERM);
                termed = orders.until;
                continue;
            }
            Act::Wait(ms) => ms,
        };
        let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO)).unwrap_or(0);
        if ready == 0 {
            continue;
        }
        let mut bytes = [0_u8; 512];
        match nix::unistd::read(&stdin, &mut bytes) {
            Ok(0) | Err(_) => {
                if !orders.ended {
                    end_group(orders.group);
                }
                return Ok(crate::exit_code::OK);
            }
            Ok(count) => orders.hear(&bytes[..count]),
        }
    }
}

fn signal(group: Option<i32>, signal: Signal) {
    if let Some(group) = group {
        let _ = killpg(Pid::from_raw(group), signal);
        // A stopped process takes no signal before it goes on.
        let _ = killpg(Pid::from_raw(group), Signal::SIGCONT);
    }
}

/// Until nothing is left of it.
fn end_group(group: Option<i32>) {
    let Some(group) = group else { return };
    let began = std::time::Instant::now();
    while killpg(Pid::from_raw(group), Signal::SIGKILL).is_ok() && began.elapsed() < GONE_MAX {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_hears_lines_however_they_are_cut() {
        let mut orders = Orders::default();
        orders.hear(b"gro");
        orders.hear(b"up 42\nuntil 5 9\nnonsense\nunt");
        assert_eq!(
            (orders.group, orders.until, orders.ended),
            (Some(42), Some((5, 9)), false)
        );
        orders.hear(b"il 7 11\nend\n");
        assert_eq!((orders.until, orders.ended), (Some((7, 11)), true));
        // Its own group, and everybody, are nobody's command.
        for line in ["group 0", "group 1", "group -5", "group x"] {
            orders.obey(line);
            assert_eq!(orders.group, None, "{line}");
        }
        orders.hear(&[b'x'; 10_000]);
        assert!(orders.rest.len() <= LINE_BYTES_MAX);
    }

    #[test]
    fn it_ends_the_group_in_time() {
        assert_eq!(act(None, false, 5), Act::Wait(LOOK_MS));
        let until = Some((1_000, 2_000));
        assert_eq!(act(until, false, 10), Act::Wait(LOOK_MS));
        assert_eq!(act(until, false, 950), Act::Wait(50));
        assert_eq!(act(until, false, 1_000), Act::Term);
        assert_eq!(act(until, true, 1_990), Act::Wait(10));
        assert_eq!(act(until, true, 2_000), Act::Kill);
        // A suspend that went over both.
        assert_eq!(act(until, false, 9_000), Act::Kill);
    }
}
