//! JSON for programs, shared by the command line and the HTTP interface. The shapes are written out: what scripts read
//! must not change because a message of the contract does. Ids are strings (a 64-bit number loses digits in JavaScript),
//! times RFC 3339 in UTC, durations milliseconds, and what is not set is null.
//!
//! A file for each thing that is converted: tasks and how they ended, specifications both ways, runners, the
//! installation as a whole, its alarms.

mod alarm;
mod runner;
mod sent;
mod spec;
mod status;
mod task;
mod values;

pub use alarm::{Alarm, Alarms, Confirmed};
pub use runner::{CordonResult, Drain, Forgotten, Held, HostFault, Runner, Runners};
pub use spec::{
    EnvVar, Limits, OutputPolicy, Retry, Spec, Terminal, on_disconnect, on_output_limit, on_runner_restart,
};
pub use status::{
    BadEnds, CommitTimes, Database, Freeze, HostCounts, LateJob, OccurrenceCounts, Replica, SkippedFires, Standby,
    Status,
};
pub use task::{Callback, CancelResult, EndDetail, Gap, OneTask, Outcome, SignalSent, Submitted, Task, Tasks, Usage};
pub use values::{state, text, time};

use crate::v1;
use serde::Serialize;

/// Version of the shapes; it is in every document.
pub const FORMAT: u32 = 1;

/// One document: the version beside the content.
#[derive(Debug, Serialize)]
pub struct Document<'a, T> {
    pub format: u32,
    #[serde(flatten)]
    pub content: &'a T,
}

#[derive(Debug, Serialize)]
pub struct Results<T> {
    pub results: Vec<T>,
}

#[derive(Debug, Serialize)]
pub struct Problem {
    pub code: String,
    pub message: String,
    pub field: Option<String>,
}

impl From<&v1::ItemError> for Problem {
    fn from(error: &v1::ItemError) -> Self {
        Self {
            code: error.code.clone(),
            message: error.message.clone(),
            field: text(&error.field),
        }
    }
}

#[cfg(test)]
mod tests;
