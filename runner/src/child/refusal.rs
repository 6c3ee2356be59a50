//! Why a task is not started here.

use systole_shared::task::OutcomeKind;

/// Each with a sentence for a person.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The command cannot be started on this host.
    Failed(String),
    /// The policy of this host does not allow it.
    Rejected(String),
}

impl Refusal {
    pub fn into_outcome(self) -> (OutcomeKind, String) {
        match self {
            Refusal::Failed(message) => (OutcomeKind::StartFailed, message),
            Refusal::Rejected(message) => (OutcomeKind::Rejected, message),
        }
    }
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Refusal::Failed(message)
    }
}
