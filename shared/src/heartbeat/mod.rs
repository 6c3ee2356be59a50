//! The heartbeat protocol as values: who may speak ([`identity`]), what a beat means ([`answer`]),
//! how a task ends ([`end`]), and what a runner does with an answer ([`react`]).
//!
//! The scheduler and the runner call these; the model test runs many of both against each other.

pub mod answer;
pub mod end;
pub mod identity;
pub mod react;

/// What a runner says of itself in a beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Said {
    Idle,
    Running,
    Finished,
    Failed,
}

impl Said {
    pub const ALL: [Said; 4] = [Said::Idle, Said::Running, Said::Finished, Said::Failed];

    pub fn name(self) -> &'static str {
        match self {
            Said::Idle => "IDLE",
            Said::Running => "RUNNING",
            Said::Finished => "FINISHED",
            Said::Failed => "FAILED",
        }
    }
}

/// Why a RESET.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResetReason {
    /// The result is recorded: forget the task.
    Ack,
    /// End the child, then report its true result.
    Stop,
    /// No such task, or somebody else's: end the child; what it left is kept aside.
    Unknown,
}
