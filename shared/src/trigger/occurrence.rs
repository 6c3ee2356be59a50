//! The words of the ledger: what became of each expected fire.

use serde::{Deserialize, Serialize};

/// Why a slot did not fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// Missed, and the trigger's misfire policy does not make it up.
    Misfire,
    /// The job did not allow another run (`discard_later`).
    Blocked,
    /// The job already had `max_waiting` runs that wait.
    BacklogFull,
    /// Left out by a calendar.
    Calendar,
    /// The trigger, its job, or everything was paused.
    Paused,
    /// Dropped from the queue by a newer run (`cover_early`) or an operator.
    Discarded,
    /// Missed before the trigger's end, found after it.
    Ended,
}

impl SkipReason {
    pub const ALL: [Self; 7] = [
        Self::Misfire,
        Self::Blocked,
        Self::BacklogFull,
        Self::Calendar,
        Self::Paused,
        Self::Discarded,
        Self::Ended,
    ];

    /// The word that is stored and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Misfire => "misfire",
            Self::Blocked => "blocked",
            Self::BacklogFull => "backlog_full",
            Self::Calendar => "calendar",
            Self::Paused => "paused",
            Self::Discarded => "discarded",
            Self::Ended => "ended",
        }
    }
}

/// The one verdict that each expected fire gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Fired,
    /// Another slot, whose scheduled time this is, fired for it.
    Coalesced {
        into_ms: i64,
    },
    Skipped(SkipReason),
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Fired => "fired",
            Self::Coalesced { .. } => "coalesced",
            Self::Skipped(_) => "skipped",
        }
    }
}

/// A slot that fires: one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fire {
    /// The time it was meant for, which the command is told.
    pub scheduled_ms: i64,
    /// When its task may start: later by the trigger's jitter.
    pub run_at_ms: i64,
    /// Slots that it fires for beside its own.
    pub coalesced: u64,
    /// It fires late because it was missed.
    pub misfired: bool,
}

/// Slots in a row that did not fire for one reason: one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first and the last of them.
    pub from_ms: i64,
    pub to_ms: i64,
    pub count: u64,
    pub verdict: Verdict,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_distinct_and_are_those_of_files() {
        let mut names: Vec<&str> = SkipReason::ALL.iter().map(|reason| reason.name()).collect();
        for reason in SkipReason::ALL {
            let word = serde_json::to_value(reason).expect("json");
            assert_eq!(word, reason.name());
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SkipReason::ALL.len());
    }
}
