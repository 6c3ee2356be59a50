//! How a task ended: a kind, the exit code or the signal, and a sentence for a person.

use std::fmt;

macro_rules! kinds {
    ($($variant:ident = $name:literal, $doc:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum OutcomeKind { $(#[doc = $doc] $variant,)* }

        impl OutcomeKind {
            pub const ALL: &[OutcomeKind] = &[$(OutcomeKind::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $(OutcomeKind::$variant => $name,)* }
            }

            pub fn meaning(self) -> &'static str {
                match self { $(OutcomeKind::$variant => $doc,)* }
            }

            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(OutcomeKind::$variant),)* _ => None }
            }
        }
    };
}

kinds! {
    Success = "success", "the child ended with exit code 0";
    ExitCode = "exit_code", "the child ended with another exit code";
    Signal = "signal", "the child was ended by a signal that systole did not send";
    OutOfMemory = "out_of_memory", "the kernel ended processes of the task for want of memory";
    StartFailed = "start_failed", "the child could not be started";
    Timeout = "timeout", "the run timeout was over and the child was ended";
    QueueTimeout = "queue_timeout", "no runner took it within its queue timeout; nothing ran";
    StartTimeout = "start_timeout", "its runner did not start it within its start timeout";
    SilenceTimeout = "silence_timeout", "the child wrote no output for its silence timeout and was ended";
    OutputLimit = "output_limit", "the child wrote more output than its limit, and was to be ended then";
    RunnerLost = "runner_lost", "the runner was silent for too long; what became of the child is not known";
    RunnerRestarted = "runner_restarted", "the runner came back without the child, or ended it when it came back";
    RunnerStopped = "runner_stopped", "the runner was shut down and ended the child";
    Fenced = "fenced", "the runner was cut off from the schedulers and ended the child";
    Rejected = "rejected", "the policy of the runner's host does not allow it; nothing ran";
    NotStarted = "not_started", "the runner never took the task up; nothing ran";
    Unreadable = "unreadable", "what is stored of it cannot be read; nothing ran";
    MembersFailed = "members_failed", "members of the broadcast failed, or were cancelled";
    Cancelled = "cancelled", "ended by a cancel";
    Skipped = "skipped", "dropped before it started";
}

impl fmt::Display for OutcomeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub kind: OutcomeKind,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub message: String,
}

impl Outcome {
    pub fn new(kind: OutcomeKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            exit_code: None,
            signal: None,
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip() {
        for &kind in OutcomeKind::ALL {
            assert_eq!(OutcomeKind::parse(kind.name()), Some(kind));
        }
    }
}
