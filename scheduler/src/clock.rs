//! The clocks of a replica: one that goes on while the machine sleeps, for timers and for the reaper's own observation;
//! and the watch over the database's.

use nix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard};
use systole_shared::clock::now_ms;
use systole_shared::policy::clock::{ClockChange, ClockGuard, ClockHold, ClockSample};

/// An answer that took longer says too little about when the clock was read.
const ANSWER_MS_MAX: i64 = 20_000;

/// ms since boot, suspend included.
pub fn boottime_ms() -> i64 {
    match clock_gettime(ClockId::CLOCK_BOOTTIME) {
        Ok(time) => time.tv_sec() * 1_000 + time.tv_nsec() / 1_000_000,
        Err(_) => 0, // Linux always has this clock; without it nothing ever gets old.
    }
}

/// Whether the database's clock may be acted on: asked by everything that is done because its time has come.
#[derive(Debug, Default)]
pub struct ClockWatch {
    guard: Mutex<ClockGuard>,
    /// The database is on another machine, and so its clock another one.
    wall_is_another: bool,
    skew_ms: AtomicI64,
}

impl ClockWatch {
    pub fn new(wall_is_another: bool) -> Self {
        Self {
            wall_is_another,
            ..Self::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, ClockGuard> {
        match self.guard.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// The database answered a question that was asked at `asked_boot_ms`. `confirmed_ms`: when a person last said
    /// that its clock is right.
    pub fn observe(&self, asked_boot_ms: i64, db_ms: i64, confirmed_ms: Option<i64>) -> ClockChange {
        let boot_ms = boottime_ms();
        if boot_ms - asked_boot_ms > ANSWER_MS_MAX {
            return ClockChange::None;
        }
        let sample = ClockSample {
            db_ms: db_ms + self.skew_ms.load(Ordering::Relaxed),
            boot_ms: i64::midpoint(asked_boot_ms, boot_ms),
            wall_ms: now_ms()
                + if self.wall_is_another {
                    0
                } else {
                    self.skew_ms.load(Ordering::Relaxed)
                },
            wall_is_another: self.wall_is_another,
        };
        self.lock().observe(sample, confirmed_ms)
    }

    /// The latest time, by the database's clock, that may be acted on now. `None`: hold everything that is done
    /// because its time has come.
    pub fn until_ms(&self) -> Option<i64> {
        self.lock().until_ms(boottime_ms())
    }

    pub fn hold(&self) -> Option<ClockHold> {
        self.lock().hold()
    }

    /// For tests: as if the database's clock were ahead by this from now on.
    pub fn skew(&self, ms: i64) {
        self.skew_ms.store(ms, Ordering::Relaxed);
    }
}
