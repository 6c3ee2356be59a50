//! The numbers of models, and of tests that break things at moments of their choice. Tests of other crates include this file by its path,
//! each with the ranges that it needs: a crate of its own for these lines would be one more to build.

/// splitmix64: a seed gives the same numbers for ever.
pub struct Random(pub u64);

impl Random {
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
