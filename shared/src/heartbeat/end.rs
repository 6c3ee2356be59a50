//! How a task ends when its runner reports a result, loses its child, or is lost itself.

use crate::task::signal::signal_name;
use crate::task::{Outcome, OutcomeKind, TaskState, Transition};
use crate::time::{exact_duration, format_duration};

/// Why a task is being terminated. A stronger reason replaces a weaker one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Terminating {
    /// It was not reported as started within its start timeout; may be retried.
    StartTimeout = 1,
    /// Its run timeout is over; may be retried.
    Timeout = 2,
    /// A newer occurrence of its job took its place.
    Superseded = 3,
    /// A person or program cancelled it.
    User = 4,
}

impl Terminating {
    pub const ALL: [Terminating; 4] = [Self::StartTimeout, Self::Timeout, Self::Superseded, Self::User];

    pub fn name(self) -> &'static str {
        match self {
            Terminating::StartTimeout => "start_timeout",
            Terminating::Timeout => "timeout",
            Terminating::Superseded => "superseded",
            Terminating::User => "user",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// Who began to stop a child that did not end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum StoppedBy {
    Reset,
    Timeout,
    Fence,
    Drain,
    /// It wrote no output for its silence timeout.
    Silence,
    /// The runner came back, and the task does not want to be adopted.
    RunnerRestart,
    /// It wrote more output than its limit.
    OutputLimit,
}

/// What a runner reports of an ended child. `kind` is what the runner itself saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub kind: OutcomeKind,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub message: String,
    pub stopped_by: Option<StoppedBy>,
    /// How long the child ran, ms; 0 if it never started.
    pub ran_ms: u64,
}

/// How long ago a task started and ended, ms, as its runner says, within what can be: no earlier than it was given out
/// (`held_ms` ago, by the database's clock), not in the future, and no start after the end. A runner's clock may be set while
/// it runs, and retention would delete at once what seems to have ended long ago.
pub fn ages(started_age_ms: Option<i64>, ended_age_ms: i64, held_ms: Option<i64>) -> (Option<i64>, i64) {
    let most = held_ms.unwrap_or(0).max(0);
    let ended = ended_age_ms.clamp(0, most);
    (started_age_ms.map(|age| age.clamp(ended, most)), ended)
}

impl Report {
    fn outcome(&self, kind: OutcomeKind, message: String) -> Outcome {
        Outcome {
            kind,
            exit_code: self.exit_code,
            signal: self.signal,
            message,
        }
    }

    /// What became of the child, in words.
    fn ended(&self) -> String {
        match self.kind {
            OutcomeKind::NotStarted => "it was never started".into(),
            _ => format!("ended with {}", self.child()),
        }
    }

    /// How the child itself ended, in words.
    fn child(&self) -> String {
        match (self.exit_code, self.signal) {
            (_, Some(signal)) => signal_name(signal),
            (Some(code), None) => format!("exit code {code}"),
            (None, None) => "no child".into(),
        }
    }

    /// The true result as such, for `late_result`.
    pub fn as_outcome(&self) -> Outcome {
        let message = if self.message.is_empty() {
            self.child()
        } else {
            self.message.clone()
        };
        self.outcome(self.kind, message)
    }
}

const NOT_STARTED_IN_TIME: &str = "the runner did not report it as started within its start timeout";

/// The write that a report leads to, for a task in DISPATCHED, RUNNING or TERMINATING.
pub fn end(
    state: TaskState,
    terminating: Option<Terminating>,
    report: &Report,
    has_callback: bool,
) -> (Transition, Outcome) {
    let stopping = (state == TaskState::Terminating).then_some(terminating.unwrap_or(Terminating::User));
    let failed = if stopping.is_some() {
        Transition::FailTerminating
    } else {
        Transition::Fail
    };
    match (report.stopped_by, stopping) {
        // A child that ended well by itself is a success, even if a cancel was under way: it came too late.
        (None, _) if report.kind == OutcomeKind::Success => {
            let transition = if has_callback {
                Transition::SucceedThenCall
            } else {
                Transition::Succeed
            };
            (transition, report.outcome(OutcomeKind::Success, "exit code 0".into()))
        }
        (_, Some(Terminating::User)) => (
            Transition::Terminate,
            report.outcome(OutcomeKind::Cancelled, format!("cancelled; {}", report.ended())),
        ),
        (_, Some(Terminating::Superseded)) => (
            Transition::Terminate,
            report.outcome(OutcomeKind::Cancelled, format!("superseded; {}", report.ended())),
        ),
        (_, Some(Terminating::StartTimeout)) => (
            failed,
            report.outcome(
                OutcomeKind::StartTimeout,
                format!("{NOT_STARTED_IN_TIME}; {}", report.ended()),
            ),
        ),
        (Some(StoppedBy::Timeout), None) | (_, Some(Terminating::Timeout)) => (
            failed,
            report.outcome(
                OutcomeKind::Timeout,
                format!("timed out after {}; {}", format_duration(report.ran_ms), report.ended()),
            ),
        ),
        (Some(StoppedBy::Fence), None) => (
            failed,
            report.outcome(
                OutcomeKind::Fenced,
                format!("cut off from the schedulers; ended with {}", report.child()),
            ),
        ),
        (Some(StoppedBy::Drain), None) => (
            failed,
            report.outcome(
                OutcomeKind::RunnerStopped,
                format!("the runner was shut down; ended with {}", report.child()),
            ),
        ),
        (Some(StoppedBy::Silence), None) => (
            failed,
            report.outcome(
                OutcomeKind::SilenceTimeout,
                format!("wrote no output for its silence timeout; ended with {}", report.child()),
            ),
        ),
        (Some(StoppedBy::OutputLimit), None) => (
            failed,
            report.outcome(
                OutcomeKind::OutputLimit,
                format!("wrote more than its output limit; ended with {}", report.child()),
            ),
        ),
        (Some(StoppedBy::RunnerRestart), None) => (
            failed,
            report.outcome(
                OutcomeKind::RunnerRestarted,
                format!("the runner was started again; ended with {}", report.child()),
            ),
        ),
        (Some(StoppedBy::Reset) | None, None) => {
            let message = match report.kind {
                OutcomeKind::ExitCode | OutcomeKind::Signal if report.message.is_empty() => report.child(),
                _ if report.message.is_empty() => report.kind.meaning().to_owned(),
                _ => report.message.clone(),
            };
            (failed, report.outcome(report.kind, message))
        }
    }
}

/// The end of a task whose stored specification is no specification: whoever is to run it cannot.
pub fn unreadable() -> (Transition, Outcome) {
    (
        Transition::Fail,
        Outcome::new(
            OutcomeKind::Unreadable,
            "what is stored of this task cannot be read, so it was not started; the database was damaged or changed by hand",
        ),
    )
}

/// The end of a task whose runner says IDLE though the child should be alive ([`super::answer::Step::ChildGone`]).
pub fn child_gone() -> (Transition, Outcome) {
    (
        Transition::Fail,
        Outcome::new(
            OutcomeKind::RunnerRestarted,
            "the runner came back without the child; how it ended is not known",
        ),
    )
}

/// The end of a task in TERMINATING without a child ([`super::answer::Step::Stopped`]), or whose runner is lost.
pub fn stopped(terminating: Option<Terminating>, runner_lost: bool) -> (Transition, Outcome) {
    let tail = if runner_lost {
        "; its runner was lost, so the end of the child is not confirmed"
    } else {
        ""
    };
    match terminating {
        // Not as `start_timeout`, which may be retried: a child that was started after all may live on.
        Some(Terminating::StartTimeout) if runner_lost => (
            Transition::FailTerminating,
            Outcome::new(
                OutcomeKind::RunnerLost,
                format!("{NOT_STARTED_IN_TIME}, and was lost; whether it started is not known"),
            ),
        ),
        Some(Terminating::StartTimeout) => (
            Transition::FailTerminating,
            Outcome::new(OutcomeKind::StartTimeout, NOT_STARTED_IN_TIME),
        ),
        // Nor as `timeout`: no successor starts without proof that the child is dead.
        Some(Terminating::Timeout) if runner_lost => (
            Transition::FailTerminating,
            Outcome::new(OutcomeKind::RunnerLost, format!("timed out{tail}")),
        ),
        Some(Terminating::Timeout) => (
            Transition::FailTerminating,
            Outcome::new(OutcomeKind::Timeout, "timed out"),
        ),
        Some(Terminating::Superseded) => (
            Transition::Terminate,
            Outcome::new(OutcomeKind::Cancelled, format!("superseded{tail}")),
        ),
        Some(Terminating::User) | None => (
            Transition::Terminate,
            Outcome::new(OutcomeKind::Cancelled, format!("cancelled{tail}")),
        ),
    }
}

/// The reaper's verdict on a task whose runner is lost.
pub fn lost(state: TaskState, terminating: Option<Terminating>, silent_ms: u64) -> (Transition, Outcome) {
    if state == TaskState::Terminating {
        return stopped(terminating, true);
    }
    let message = if state == TaskState::Dispatched {
        format!(
            "the runner was silent for {} after it was given the task; whether it started is not known",
            format_duration(silent_ms)
        )
    } else {
        format!(
            "the runner was silent for {}; what became of the child is not known",
            format_duration(silent_ms)
        )
    };
    (Transition::Fail, Outcome::new(OutcomeKind::RunnerLost, message))
}

/// The end of a task that no runner took in time.
pub fn waited_too_long(queue_timeout_ms: u64) -> (Transition, Outcome) {
    (
        Transition::FailWaiting,
        Outcome::new(
            OutcomeKind::QueueTimeout,
            format!(
                "no runner took it within its queue timeout of {}; nothing ran",
                exact_duration(queue_timeout_ms)
            ),
        ),
    )
}

/// The end of a task that its runner never took up.
pub fn never_started() -> (Transition, Outcome) {
    (
        Transition::Fail,
        Outcome::new(
            OutcomeKind::NotStarted,
            "the runner was given the task four times and never took it up; nothing ran",
        ),
    )
}

/// The end of a dispatched task after a reboot of its host.
pub fn rebooted() -> (Transition, Outcome) {
    (
        Transition::Fail,
        Outcome::new(
            OutcomeKind::RunnerRestarted,
            "the host was rebooted after it was given the task; whether it started is not known",
        ),
    )
}

#[cfg(test)]
mod tests;
