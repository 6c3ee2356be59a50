//! Pauses after failures: doubling, bounded, jittered, never zero. Knows nothing of what failed.

use rand::Rng as _;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub fn new(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            failures: 0,
        }
    }

    /// The pause after one more failure.
    pub fn next(&mut self) -> Duration {
        let doubled = self.first.saturating_mul(1_u32 << self.failures.min(20));
        self.failures = self.failures.saturating_add(1);
        jitter(doubled.min(self.max))
    }

    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Between 75 % and 100 % of `pause`, so that many runners do not move in step.
pub fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.75..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_bound_and_are_never_zero() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        let pauses: Vec<Duration> = (0..40).map(|_| backoff.next()).collect();
        assert!(
            pauses
                .iter()
                .all(|&p| p >= Duration::from_millis(75) && p <= Duration::from_secs(30))
        );
        assert!(pauses[0] <= Duration::from_millis(100));
        assert!(pauses[39] >= Duration::from_millis(22_500));
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(100));
    }
}
