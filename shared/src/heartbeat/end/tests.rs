use super::*;

fn report(kind: OutcomeKind, stopped_by: Option<StoppedBy>) -> Report {
    let (exit_code, signal) = match kind {
        OutcomeKind::Success => (Some(0), None),
        OutcomeKind::ExitCode => (Some(3), None),
        OutcomeKind::Signal => (None, Some(15)),
        _ => (None, None),
    };
    Report {
        kind,
        exit_code,
        signal,
        message: String::new(),
        stopped_by,
        ran_ms: 1_000,
    }
}

#[test]
fn the_times_of_an_end_are_within_what_can_be() {
    const MAX: i64 = i64::MAX;
    for (started, ended, held, expected) in [
        (Some(900), 100, Some(1_000), (Some(900), 100)),
        (None, 100, Some(1_000), (None, 100)),
        // Before it was given out, in the future, and the wrong way round.
        (Some(MAX), MAX, Some(1_000), (Some(1_000), 1_000)),
        (Some(MAX), 0, Some(1_000), (Some(1_000), 0)),
        (Some(i64::MIN), i64::MIN, Some(1_000), (Some(0), 0)),
        (Some(100), 900, Some(1_000), (Some(900), 900)),
        // The database's clock was set back, or the row says nothing.
        (Some(900), 100, Some(-5), (Some(0), 0)),
        (Some(900), 100, None, (Some(0), 0)),
    ] {
        assert_eq!(ages(started, ended, held), expected, "{started:?} {ended} {held:?}");
    }
}

fn ends(
    state: TaskState,
    terminating: Option<Terminating>,
    kind: OutcomeKind,
    by: Option<StoppedBy>,
) -> (TaskState, OutcomeKind) {
    let (transition, outcome) = end(state, terminating, &report(kind, by), false);
    assert!(transition.leaves(state), "{transition:?} must leave {state}");
    (transition.to(), outcome.kind)
}

#[test]
fn the_end_says_who_ended_the_child() {
    use super::Terminating as T;
    use OutcomeKind as K;
    use TaskState::{Dispatched, Failed, Finished, Running, Terminated};
    let cases = [
        (Running, None, K::Success, None, (Finished, K::Success)),
        (Dispatched, None, K::Success, None, (Finished, K::Success)),
        (Running, None, K::ExitCode, None, (Failed, K::ExitCode)),
        (Running, None, K::Signal, None, (Failed, K::Signal)),
        (Dispatched, None, K::StartFailed, None, (Failed, K::StartFailed)),
        (Running, None, K::Signal, Some(StoppedBy::Timeout), (Failed, K::Timeout)),
        // It trapped TERM and exited 0, but it was stopped all the same.
        (
            Running,
            None,
            K::Success,
            Some(StoppedBy::Timeout),
            (Failed, K::Timeout),
        ),
        (Running, None, K::Signal, Some(StoppedBy::Fence), (Failed, K::Fenced)),
        (
            Running,
            None,
            K::Signal,
            Some(StoppedBy::Drain),
            (Failed, K::RunnerStopped),
        ),
        (
            Running,
            None,
            K::Signal,
            Some(StoppedBy::Silence),
            (Failed, K::SilenceTimeout),
        ),
        (
            Running,
            None,
            K::Success,
            Some(StoppedBy::Silence),
            (Failed, K::SilenceTimeout),
        ),
        (
            Running,
            None,
            K::Signal,
            Some(StoppedBy::RunnerRestart),
            (Failed, K::RunnerRestarted),
        ),
        (
            Running,
            None,
            K::Signal,
            Some(StoppedBy::OutputLimit),
            (Failed, K::OutputLimit),
        ),
        // It had ended by the time it was looked at: the rule is the same.
        (
            Running,
            None,
            K::Success,
            Some(StoppedBy::OutputLimit),
            (Failed, K::OutputLimit),
        ),
        (
            TaskState::Terminating,
            Some(T::User),
            K::Signal,
            Some(StoppedBy::OutputLimit),
            (Terminated, K::Cancelled),
        ),
        // The runner's own look at the start timeout.
        (Dispatched, None, K::StartTimeout, None, (Failed, K::StartTimeout)),
        (
            TaskState::Terminating,
            Some(T::User),
            K::Signal,
            Some(StoppedBy::Silence),
            (Terminated, K::Cancelled),
        ),
        (
            TaskState::Terminating,
            Some(T::Timeout),
            K::Signal,
            Some(StoppedBy::Silence),
            (Failed, K::Timeout),
        ),
        (
            TaskState::Terminating,
            Some(T::User),
            K::StartTimeout,
            None,
            (Terminated, K::Cancelled),
        ),
        // Told to stop before it was reported as started: whether the child ran or not.
        (
            TaskState::Terminating,
            Some(T::StartTimeout),
            K::Signal,
            Some(StoppedBy::Reset),
            (Failed, K::StartTimeout),
        ),
        (
            TaskState::Terminating,
            Some(T::StartTimeout),
            K::StartTimeout,
            None,
            (Failed, K::StartTimeout),
        ),
        // It was started in time by its own clock, and quick: too late to call it a failure.
        (
            TaskState::Terminating,
            Some(T::StartTimeout),
            K::Success,
            None,
            (Finished, K::Success),
        ),
        (
            TaskState::Terminating,
            Some(T::User),
            K::Signal,
            Some(StoppedBy::Reset),
            (Terminated, K::Cancelled),
        ),
        (
            TaskState::Terminating,
            Some(T::User),
            K::Success,
            Some(StoppedBy::Reset),
            (Terminated, K::Cancelled),
        ),
        // It ended by itself before the kill: the cancel was too late.
        (
            TaskState::Terminating,
            Some(T::User),
            K::Success,
            None,
            (Finished, K::Success),
        ),
        (
            TaskState::Terminating,
            Some(T::User),
            K::ExitCode,
            None,
            (Terminated, K::Cancelled),
        ),
        (
            TaskState::Terminating,
            Some(T::User),
            K::Signal,
            Some(StoppedBy::Timeout),
            (Terminated, K::Cancelled),
        ),
        (
            TaskState::Terminating,
            Some(T::Timeout),
            K::Signal,
            Some(StoppedBy::Reset),
            (Failed, K::Timeout),
        ),
        (
            TaskState::Terminating,
            Some(T::Superseded),
            K::Signal,
            Some(StoppedBy::Reset),
            (Terminated, K::Cancelled),
        ),
    ];
    for (state, terminating, kind, by, expected) in cases {
        assert_eq!(
            ends(state, terminating, kind, by),
            expected,
            "{state} {terminating:?} {kind} {by:?}"
        );
    }
}

#[test]
fn a_success_with_a_callback_waits_for_it() {
    let (transition, _) = end(TaskState::Running, None, &report(OutcomeKind::Success, None), true);
    assert_eq!(transition.to(), TaskState::Callback);
}

#[test]
fn the_stronger_reason_wins() {
    assert!(Terminating::User > Terminating::Superseded && Terminating::Superseded > Terminating::Timeout);
    assert!(Terminating::Superseded > Terminating::StartTimeout);
    for reason in Terminating::ALL {
        assert_eq!(Terminating::parse(reason.name()), Some(reason));
    }
}

#[test]
fn a_start_timeout_is_one_only_when_the_runner_confirms_it() {
    let confirmed = stopped(Some(Terminating::StartTimeout), false);
    assert_eq!(
        (confirmed.0.to(), confirmed.1.kind),
        (TaskState::Failed, OutcomeKind::StartTimeout)
    );
    let lost = lost(TaskState::Terminating, Some(Terminating::StartTimeout), 90_000);
    assert_eq!((lost.0.to(), lost.1.kind), (TaskState::Failed, OutcomeKind::RunnerLost));
}

#[test]
fn a_task_that_waits_too_long_fails_and_nothing_else_does() {
    let (transition, outcome) = waited_too_long(90_000);
    assert_eq!(
        (transition.to(), outcome.kind),
        (TaskState::Failed, OutcomeKind::QueueTimeout)
    );
    assert!(outcome.message.contains("1m30s"), "{}", outcome.message);
    for state in TaskState::ALL {
        assert_eq!(transition.leaves(state), state == TaskState::Queued, "{state}");
    }
}

#[test]
fn a_lost_runner_ends_a_cancelled_task_as_terminated_and_a_live_one_as_failed() {
    assert_eq!(lost(TaskState::Running, None, 90_000).0.to(), TaskState::Failed);
    assert_eq!(
        lost(TaskState::Dispatched, None, 90_000).1.kind,
        OutcomeKind::RunnerLost
    );
    assert_eq!(
        lost(TaskState::Terminating, Some(Terminating::User), 90_000).0.to(),
        TaskState::Terminated
    );
    // Not `timeout`: nothing proves that the child is dead, so nothing may follow it.
    let timed_out = lost(TaskState::Terminating, Some(Terminating::Timeout), 90_000).1;
    assert_eq!(timed_out.kind, OutcomeKind::RunnerLost);
    assert!(timed_out.message.starts_with("timed out; its runner was lost"));
    let retries = crate::policy::retry::follow_up(timed_out.kind, 1, 9, 0);
    assert_eq!(retries, crate::policy::retry::FollowUp::Nothing);
}

#[test]
fn a_task_that_was_never_started_is_told_as_such_whatever_ended_it() {
    use super::Terminating as T;
    let words = |terminating| {
        let state = match terminating {
            None => TaskState::Dispatched,
            Some(_) => TaskState::Terminating,
        };
        let (transition, outcome) = end(state, terminating, &report(OutcomeKind::NotStarted, None), false);
        (transition.to(), outcome.kind, outcome.message)
    };
    let (state, kind, _) = words(None);
    assert_eq!((state, kind), (TaskState::Failed, OutcomeKind::NotStarted));
    let (state, kind, message) = words(Some(T::User));
    assert_eq!((state, kind), (TaskState::Terminated, OutcomeKind::Cancelled));
    assert_eq!(message, "cancelled; it was never started");
    let (state, kind, message) = words(Some(T::StartTimeout));
    assert_eq!((state, kind), (TaskState::Failed, OutcomeKind::StartTimeout));
    assert!(message.ends_with("; it was never started"), "{message}");
}
