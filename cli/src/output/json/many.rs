//! Many tasks at once.

use super::Problem;
use crate::output::text;
use serde::Serialize;
use std::collections::BTreeMap;
use systole_proto::v1;

/// How many tasks are in which state.
#[derive(Debug, Serialize)]
pub struct Counts {
    pub total: u64,
    pub states: BTreeMap<String, u64>,
}

impl From<&v1::CountResponse> for Counts {
    fn from(counts: &v1::CountResponse) -> Self {
        Self {
            total: counts.total,
            states: counts
                .counts
                .iter()
                .map(|count| (text::state_name(count.state), count.count))
                .collect(),
        }
    }
}

/// A task that was submitted once more.
#[derive(Debug, Serialize)]
pub struct Rerun {
    pub of: String,
    pub id: String,
    /// The task with its unique key waits or runs; nothing new was stored.
    pub existing: bool,
}

/// A line of a batch.
#[derive(Debug, Serialize)]
pub struct BatchLine {
    pub line: u64,
    pub id: Option<String>,
    pub existing: bool,
    pub error: Option<Problem>,
}

/// A batch as a whole.
#[derive(Debug, Serialize)]
pub struct Batch {
    pub batch: String,
    /// Tasks that are stored, those of an earlier call included.
    pub tasks: u64,
    /// Of these, stored by an earlier call.
    pub existing: u64,
    /// Lines that were refused.
    pub refused: u64,
}
