//! Latencies, counted in buckets of fixed bounds.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bounds of what is over in an instant, ms.
pub const SHORT_MS: &[u64] = &[1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000];
/// Bounds of what may wait for hours, ms.
pub const LONG_MS: &[u64] = &[
    1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000, 7_200_000,
    86_400_000,
];

/// How long something took.
#[derive(Debug)]
pub struct Histogram {
    bounds_ms: &'static [u64],
    /// Not cumulative; the last is for everything above the highest bound.
    buckets: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

impl Histogram {
    pub fn new(bounds_ms: &'static [u64]) -> Self {
        Self {
            bounds_ms,
            buckets: (0..=bounds_ms.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_us: AtomicU64::new(0),
        }
    }

    pub fn add(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.add_us(us);
    }

    /// By the database's clock, which may have been set back meanwhile.
    pub fn add_ms(&self, ms: i64) {
        self.add_us(u64::try_from(ms).unwrap_or(0).saturating_mul(1_000));
    }

    fn add_us(&self, us: u64) {
        let at = self.bounds_ms.partition_point(|&bound| bound * 1_000 < us);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Cumulative, as Prometheus wants it. `labels`: `name="value"`, or empty.
    pub fn write(&self, out: &mut String, name: &str, labels: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        let braced = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{labels}}}")
        };
        let mut count = 0;
        for (at, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            let bound = match self.bounds_ms.get(at) {
                Some(&bound) => (bound as f64 / 1_000.0).to_string(),
                None => "+Inf".to_owned(),
            };
            let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}");
        }
        let sum = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_sum{braced} {sum}\n{name}_count{braced} {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_cumulative_and_bounded() {
        let histogram = Histogram::new(SHORT_MS);
        for ms in [0, 1, 2, 3, 60_000] {
            histogram.add(Duration::from_millis(ms));
        }
        // A clock that was set back.
        histogram.add_ms(-5);
        let mut out = String::new();
        histogram.write(&mut out, "t", "call=\"x\"");
        for line in [
            "t_bucket{call=\"x\",le=\"0.001\"} 3",
            "t_bucket{call=\"x\",le=\"0.002\"} 4",
            "t_bucket{call=\"x\",le=\"0.005\"} 5",
            "t_bucket{call=\"x\",le=\"10\"} 5",
            "t_bucket{call=\"x\",le=\"+Inf\"} 6",
            "t_sum{call=\"x\"} 60.006",
            "t_count{call=\"x\"} 6",
        ] {
            assert!(out.lines().any(|l| l == line), "{line}\n{out}");
        }
        let mut plain = String::new();
        histogram.write(&mut plain, "t", "");
        assert!(
            plain.contains("t_bucket{le=\"+Inf\"} 6\n") && plain.contains("t_count 6\n"),
            "{plain}"
        );
    }
}
