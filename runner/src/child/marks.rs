//! When the bytes of a stream were seen first: an index beside them. A look at the file says that all up to its size was
//! written by now.

use std::collections::VecDeque;
use std::time::Instant;

/// Looks that are remembered, until what they saw is stored. When no scheduler answers for long, every second one goes.
const MARKS_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub struct Marks(VecDeque<(u64, Instant)>);

impl Marks {
    /// A look found the stream to be this long.
    pub fn look(&mut self, size: u64, now: Instant) {
        if self.0.back().is_some_and(|(end, _)| *end >= size) || size == 0 {
            return;
        }
        self.0.push_back((size, now));
        if self.0.len() > MARKS_MAX {
            // The later of two times stands for both: the bytes had been written by then.
            let mut index = 0;
            self.0.retain(|_| {
                index += 1;
                index % 2 == 0 || index > MARKS_MAX
            });
        }
    }

    /// All before this byte is stored.
    pub fn forget(&mut self, stored_to: u64) {
        while self.0.front().is_some_and(|(end, _)| *end <= stored_to) {
            self.0.pop_front();
        }
    }

    /// When this byte was seen, and where the next look begins.
    pub fn of(&self, offset: u64) -> Option<(Instant, u64)> {
        self.0
            .iter()
            .find(|(end, _)| *end > offset)
            .map(|(end, at)| (*at, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_byte_has_the_time_of_the_look_that_saw_it_first() {
        let (mut marks, start) = (Marks::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        for (size, ms) in [(0, 0), (10, 200), (10, 400), (25, 600)] {
            marks.look(size, at(ms));
        }
        assert_eq!(marks.of(0), Some((at(200), 10)));
        assert_eq!(marks.of(9), Some((at(200), 10)));
        assert_eq!(marks.of(10), Some((at(600), 25)));
        assert_eq!(marks.of(25), None);
        marks.forget(10);
        assert_eq!(marks.of(3), Some((at(600), 25)));
    }

    #[test]
    fn an_index_of_a_long_outage_is_bounded_and_its_times_are_not_too_early() {
        let (mut marks, start) = (Marks::default(), Instant::now());
        for n in 1..=10_000_u64 {
            marks.look(n, start + Duration::from_millis(n));
            assert!(marks.0.len() <= MARKS_MAX);
        }
        for offset in [0, 1, 77, 5_000, 9_999] {
            let (at, end) = marks.of(offset).unwrap();
            assert!(at > start + Duration::from_millis(offset) && end > offset);
        }
    }
}
