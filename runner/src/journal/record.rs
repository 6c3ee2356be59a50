//! The lines of a journal.

use super::now_ms;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use systole_proto::{convert, v1};
use systole_shared::heartbeat::end::StoppedBy;
use systole_shared::limits::OUTPUT_MAX_BYTES_DEFAULT;
use systole_shared::task::OutcomeKind;
use systole_shared::task::detail::EndDetail;

/// Written before the fork.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    pub task_id: i64,
    pub slot: u32,
    pub start_no: u64,
    /// The cluster that dispatched it: only this one may say what becomes of it.
    pub cluster_id: String,
    pub boot_id: String,
    pub name: String,
    /// For people who read the file; cut.
    pub command: String,
    pub attempt: u32,
    pub begun_at_ms: u64,
    /// Its fresh directory is kept when it is over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_workdir: bool,
    /// Bytes of each stream that schedulers store.
    #[serde(default = "default_output_max")]
    pub output_max: u64,
}

fn default_output_max() -> u64 {
    OUTPUT_MAX_BYTES_DEFAULT
}

/// Written after the fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    pub pid: i32,
    pub start_time: u64,
}

/// Written before the end is reported; the task is gone from disk once it was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub task_id: i64,
    pub slot: u32,
    pub cluster_id: String,
    pub dispatched_start_no: u64,
    pub kind: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub message: String,
    pub started_at_ms: u64,
    pub ended_at_ms: u64,
    pub stopped_by: Option<StoppedBy>,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    #[serde(default = "default_output_max")]
    pub output_max: u64,
    #[serde(default)]
    pub detail: EndDetail,
}

impl Ended {
    /// The end of a task without a child.
    pub fn without_child(begin: &Begin, kind: OutcomeKind, message: impl Into<String>) -> Self {
        Self {
            task_id: begin.task_id,
            slot: begin.slot,
            cluster_id: begin.cluster_id.clone(),
            dispatched_start_no: begin.start_no,
            kind: kind.name().into(),
            exit_code: None,
            signal: None,
            message: message.into(),
            started_at_ms: 0,
            ended_at_ms: now_ms(),
            stopped_by: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            output_max: begin.output_max,
            detail: EndDetail::default(),
        }
    }

    pub(super) fn ran_ms(&self) -> u64 {
        match self.started_at_ms {
            0 => 0,
            started => self.ended_at_ms.saturating_sub(started),
        }
    }

    pub fn is_success(&self) -> bool {
        self.kind == OutcomeKind::Success.name()
    }

    pub fn to_wire(&self, output: Vec<v1::OutputChunk>) -> v1::TaskResult {
        v1::TaskResult {
            task_id: self.task_id,
            dispatched_start_no: self.dispatched_start_no,
            kind: self.kind.clone(),
            exit_code: self.exit_code,
            signal: self.signal,
            message: self.message.clone(),
            started_at_ms: self.started_at_ms,
            ended_at_ms: self.ended_at_ms,
            stopped_by: convert::stopped_by_to_wire(self.stopped_by).into(),
            stdout_bytes: self.stdout_bytes,
            stderr_bytes: self.stderr_bytes,
            detail: Some(convert::detail_to_wire(self.detail.clone())),
            output,
        }
    }
}

/// A line of the journal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line<'a> {
    Begin(Cow<'a, Begin>),
    Process(ProcessRecord),
    End(Cow<'a, Ended>),
}
