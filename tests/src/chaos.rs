//! Faults at moments that are the same in every run, as far as the machine lets them.

pub use crate::random::Random;

use std::time::Duration;

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("a small number");
        usize::try_from(self.number() % bound).expect("a small number")
    }

    /// Lets at most this pass: where in it the fault lies does not matter.
    pub fn pause(&mut self, ms_max: usize) {
        let ms = u64::try_from(self.below(ms_max)).expect("a small number");
        std::thread::sleep(Duration::from_millis(ms));
    }
}

/// How many; `scripts/torture` sets more by the variable.
pub fn rounds(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}
