//! Faults at moments that are the same in every run, as far as the machine lets them.

use std::time::Duration;

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

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
