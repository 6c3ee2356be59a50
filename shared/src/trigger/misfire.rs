//! When a fire is too late to be ordinary, and what then.

use serde::{Deserialize, Serialize};

/// A fire that is later than this is misfired, unless the trigger says otherwise or its period is short, ms.
pub const THRESHOLD_MS: i64 = 60_000;

/// What becomes of fires that were missed because no scheduler was up. Pausing is not misfiring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// One task for all of them, with the scheduled time of the last.
    #[default]
    FireOnce,
    /// None of them fires.
    Skip,
    /// A task for each, oldest first; of more than `max_catch_up` the newest.
    CatchUp,
}

/// How late a slot may be and still fire as if nothing had been: what the trigger says, or 60 s, but not more than
/// half the way to the next slot.
pub fn threshold_ms(configured_ms: Option<i64>, period_ms: Option<i64>) -> i64 {
    match (configured_ms, period_ms) {
        (Some(configured), _) => configured,
        (None, Some(period)) => THRESHOLD_MS.min(period / 2),
        (None, None) => THRESHOLD_MS,
    }
}

/// Strictly later than the threshold.
pub fn is_misfired(slot_ms: i64, now_ms: i64, threshold_ms: i64) -> bool {
    now_ms.saturating_sub(slot_ms) > threshold_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_a_minute_or_half_the_period() {
        for (configured, period, expected) in [
            (None, None, 60_000),
            (None, Some(86_400_000), 60_000),
            (None, Some(30_000), 15_000),
            (None, Some(1_000), 500),
            (Some(10_000), Some(1_000), 10_000),
            (Some(0), Some(86_400_000), 0),
        ] {
            assert_eq!(threshold_ms(configured, period), expected, "{configured:?} {period:?}");
        }
        assert!(!is_misfired(1_000, 61_000, 60_000));
        assert!(is_misfired(1_000, 61_001, 60_000));
    }
}
