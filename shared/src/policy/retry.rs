//! What follows a failed task: a retry of the same chain, a replacement, or nothing.

use crate::limits::REPLACEMENTS_MAX;
use crate::task::OutcomeKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowUp {
    Nothing,
    /// A new task, `attempt + 1`, after the delay of the retry policy.
    Retry,
    /// A new task, same attempt, at once: nothing of the command ran.
    Replace,
}

/// `attempt` counts from 1; `replacements` were used up in this chain so far.
///
/// The command's own failures are retried, and so is a start that took too long. A lost runner is not: nothing
/// proves that the old child is dead, and two copies must not overlap. Nor is a task that waited too long: the
/// next one would wait behind the same queue. Nor is one that its host's policy rejects: it says no to the same task again. A task that never started is replaced elsewhere, which counts as
/// neither.
pub fn follow_up(kind: OutcomeKind, attempt: u32, max_retries: u32, replacements: u32) -> FollowUp {
    match kind {
        OutcomeKind::ExitCode
        | OutcomeKind::Signal
        | OutcomeKind::OutOfMemory
        | OutcomeKind::StartFailed
        | OutcomeKind::Timeout
        | OutcomeKind::StartTimeout
        | OutcomeKind::SilenceTimeout
        | OutcomeKind::OutputLimit => {
            if attempt <= max_retries {
                FollowUp::Retry
            } else {
                FollowUp::Nothing
            }
        }
        OutcomeKind::NotStarted => {
            if replacements < REPLACEMENTS_MAX {
                FollowUp::Replace
            } else {
                FollowUp::Nothing
            }
        }
        OutcomeKind::Success
        | OutcomeKind::QueueTimeout
        | OutcomeKind::Rejected
        | OutcomeKind::RunnerLost
        | OutcomeKind::RunnerRestarted
        | OutcomeKind::RunnerStopped
        | OutcomeKind::Fenced
        | OutcomeKind::Unreadable
        | OutcomeKind::MembersFailed
        | OutcomeKind::Cancelled
        | OutcomeKind::Skipped => FollowUp::Nothing,
    }
}

/// Whether the work was lost with its runner, and not by a fault of its own: `on_lost` says what follows, once the old child is proven
/// dead.
pub fn is_lost(kind: OutcomeKind) -> bool {
    matches!(
        kind,
        OutcomeKind::RunnerLost | OutcomeKind::RunnerRestarted | OutcomeKind::RunnerStopped | OutcomeKind::Fenced
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_retries_n_means_at_most_n_plus_one_attempts() {
        assert_eq!(follow_up(OutcomeKind::ExitCode, 1, 0, 0), FollowUp::Nothing);
        assert_eq!(follow_up(OutcomeKind::ExitCode, 1, 2, 0), FollowUp::Retry);
        assert_eq!(follow_up(OutcomeKind::ExitCode, 2, 2, 0), FollowUp::Retry);
        assert_eq!(follow_up(OutcomeKind::ExitCode, 3, 2, 0), FollowUp::Nothing);
    }

    #[test]
    fn a_cancel_or_a_lost_runner_is_never_retried() {
        for kind in [
            OutcomeKind::Cancelled,
            OutcomeKind::RunnerLost,
            OutcomeKind::RunnerRestarted,
            OutcomeKind::Unreadable,
            OutcomeKind::Success,
        ] {
            assert_eq!(follow_up(kind, 1, 100, 0), FollowUp::Nothing, "{kind}");
        }
    }

    #[test]
    fn a_timeout_is_retried_unless_it_was_the_queue_s() {
        for kind in [
            OutcomeKind::Timeout,
            OutcomeKind::StartTimeout,
            OutcomeKind::SilenceTimeout,
            OutcomeKind::OutputLimit,
        ] {
            assert_eq!(follow_up(kind, 1, 1, 0), FollowUp::Retry, "{kind}");
            assert_eq!(follow_up(kind, 2, 1, 0), FollowUp::Nothing, "{kind}");
        }
        assert_eq!(follow_up(OutcomeKind::QueueTimeout, 1, 100, 0), FollowUp::Nothing);
    }

    #[test]
    fn what_is_lost_with_its_runner_is_never_a_retry() {
        let lost: Vec<&str> = OutcomeKind::ALL
            .iter()
            .filter(|&&kind| is_lost(kind))
            .map(|kind| kind.name())
            .collect();
        assert_eq!(lost, ["runner_lost", "runner_restarted", "runner_stopped", "fenced"]);
        for &kind in OutcomeKind::ALL {
            assert!(
                !is_lost(kind) || follow_up(kind, 1, 100, 0) == FollowUp::Nothing,
                "{kind}"
            );
        }
    }

    #[test]
    fn what_a_host_rejects_is_not_offered_to_it_again() {
        assert_eq!(follow_up(OutcomeKind::Rejected, 1, 100, 0), FollowUp::Nothing);
    }

    #[test]
    fn what_never_started_is_replaced_three_times_at_most() {
        assert_eq!(follow_up(OutcomeKind::NotStarted, 1, 0, 2), FollowUp::Replace);
        assert_eq!(follow_up(OutcomeKind::NotStarted, 1, 9, 3), FollowUp::Nothing);
    }
}
