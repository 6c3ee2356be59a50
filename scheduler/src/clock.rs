//! A clock that goes on while the machine sleeps: for timers and for the reaper's own observation.

use nix::time::{ClockId, clock_gettime};

/// ms since boot, suspend included.
pub fn boottime_ms() -> i64 {
    match clock_gettime(ClockId::CLOCK_BOOTTIME) {
        Ok(time) => time.tv_sec() * 1_000 + time.tv_nsec() / 1_000_000,
        Err(_) => 0, // Linux always has this clock; without it nothing ever gets old.
    }
}
