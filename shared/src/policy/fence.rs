//! The fence: a task that must not outlive its runner's contact with the cluster is ended by the runner itself,
//! before the cluster declares that runner lost. Then a successor never overlaps it.
//!
//! Knows the arithmetic only. The clock that counts, and since when, is the runner's business: from the sending of
//! its last beat that was answered.

use crate::error::Invalid;
use crate::limits::KILL_GRACE_MS_DEFAULT;
use crate::task::TaskSpec;
use crate::task::spec::OnDisconnect;
use crate::time::exact_duration;

/// Beats without life after which a runner is lost, at the least.
const LOST_AFTER_BEATS: u64 = 3;
/// One part of so many, by which two clocks may differ in speed and the verdict still comes last: 2 %.
const CLOCK_RATE_PARTS: u64 = 50;
/// From the decision to the first signal, and from the last signal to the empty tree.
const REACTION_MS: u64 = 1_000;

/// When the runner must be through with the child: `0.98 · T_lost − 1 s`, with `T_lost` of three beats.
fn all_over_ms(beat_ms: u64) -> u64 {
    let lost_ms = beat_ms.saturating_mul(LOST_AFTER_BEATS);
    (lost_ms - lost_ms.div_ceil(CLOCK_RATE_PARTS)).saturating_sub(REACTION_MS)
}

/// How long after the sending of the last answered beat the runner begins to end a fenced child: two beats, or
/// as much earlier as the grace needs. `None`: less than one beat would be left, which fires in perfect health.
pub fn fence_after_ms(beat_ms: u64, kill_grace_ms: u64) -> Option<u64> {
    let begin_ms = all_over_ms(beat_ms).checked_sub(kill_grace_ms)?;
    let fence_ms = begin_ms.min(beat_ms.saturating_mul(2));
    (fence_ms >= beat_ms).then_some(fence_ms)
}

/// The longest grace that [`fence_after_ms`] allows; `None`: beats are too short for any fence.
pub fn kill_grace_max_ms(beat_ms: u64) -> Option<u64> {
    all_over_ms(beat_ms).checked_sub(beat_ms)
}

/// Refuses a task whose fence could not work in a cluster with this beat.
pub fn check_fence(spec: &TaskSpec, beat_ms: u64) -> Result<(), Invalid> {
    let grace_ms = spec.kill_grace_ms.unwrap_or(KILL_GRACE_MS_DEFAULT);
    if spec.on_disconnect == OnDisconnect::Continue || fence_after_ms(beat_ms, grace_ms).is_some() {
        return Ok(());
    }
    let beat = exact_duration(beat_ms);
    Err(match kill_grace_max_ms(beat_ms) {
        None => Invalid::new(
            "on_disconnect",
            format!("kill needs beats of at least 516ms, and this cluster has {beat}; leave it at continue"),
        ),
        Some(max_ms) => {
            let (max, grace) = (exact_duration(max_ms), exact_duration(grace_ms));
            let given = if spec.kill_grace_ms.is_some() {
                ""
            } else {
                " (the default)"
            };
            Invalid::new(
                "kill_grace_ms",
                format!(
                    "kill_grace is {grace}{given}; with on_disconnect = kill and beats of {beat} it may be at most {max}, or the command could outlive the verdict on its runner"
                ),
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fence_comes_before_the_verdict_and_not_in_health() {
        for (beat, grace, fence) in [
            // Two beats, as long as the grace leaves room: 88.2 s − K − 1 s.
            (30_000, 0, Some(60_000)),
            (30_000, 10_000, Some(60_000)),
            (30_000, 27_200, Some(60_000)),
            (30_000, 27_201, Some(59_999)),
            (30_000, 30_000, Some(57_200)),
            // One beat is the least.
            (30_000, 57_200, Some(30_000)),
            (30_000, 57_201, None),
            (30_000, 60_000, None),
            (30_000, u64::MAX, None),
            (60_000, 60_000, Some(115_400)),
            // Short beats of tests.
            (2_000, 1_000, Some(3_880)),
            (2_000, 10_000, None),
            (1_000, 940, Some(1_000)),
            (1_000, 941, None),
            (500, 0, None),
        ] {
            assert_eq!(fence_after_ms(beat, grace), fence, "beat {beat} grace {grace}");
        }
    }

    #[test]
    fn the_longest_grace_is_exact() {
        for beat in [516, 600, 1_000, 2_000, 30_000, 60_000] {
            let max = kill_grace_max_ms(beat).expect("long enough");
            assert!(fence_after_ms(beat, max).is_some(), "{beat}");
            assert!(fence_after_ms(beat, max + 1).is_none(), "{beat}");
        }
        assert_eq!(kill_grace_max_ms(515), None);
    }

    #[test]
    fn a_fence_that_cannot_work_is_refused_with_the_longest_grace() {
        let mut spec = TaskSpec {
            kill_grace_ms: Some(60_000),
            ..TaskSpec::default()
        };
        assert_eq!(check_fence(&spec, 30_000), Ok(()));
        spec.on_disconnect = OnDisconnect::Kill;
        let refused = check_fence(&spec, 30_000).expect_err("too long");
        assert_eq!(refused.field, "kill_grace_ms");
        assert!(refused.message.contains("at most 57s200ms"), "{refused}");
        spec.kill_grace_ms = None;
        assert_eq!(check_fence(&spec, 30_000), Ok(()));
        let refused = check_fence(&spec, 2_000).expect_err("the default is too long");
        assert!(refused.message.contains("10s (the default)"), "{refused}");
        assert_eq!(check_fence(&spec, 100).expect_err("no room").field, "on_disconnect");
    }
}
