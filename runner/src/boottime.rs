//! The clock that goes on while the machine sleeps. RUN_NEW is valid by this clock: `Instant` stands
//! still in a suspend, and a task would be started long after the cluster gave it up.

use nix::time::{ClockId, clock_gettime};

/// Milliseconds since the boot of the host, suspends included.
pub fn now_ms() -> u64 {
    match clock_gettime(ClockId::CLOCK_BOOTTIME) {
        Ok(time) => {
            let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
            let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
            seconds * 1_000 + nanos / 1_000_000
        }
        // The clock exists since Linux 2.6.39. Without it every RUN_NEW would look fresh; "the end of
        // time" makes it look stale instead, and nothing is started wrongly.
        Err(_) => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_does_not_go_backwards() {
        let first = super::now_ms();
        assert!(first > 0 && super::now_ms() >= first);
    }
}
