//! Runners and their hosts, and what people do with them.

use super::Problem;
use super::values::{id, map, state, text, time};
use crate::{facts, v1};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, Serialize)]
pub struct Runners {
    pub runners: Vec<Runner>,
}

#[derive(Debug, Serialize)]
pub struct Runner {
    /// `host/slot`.
    pub runner: String,
    pub host: String,
    pub slot: u32,
    pub state: String,
    pub task_id: Option<String>,
    pub task_state: Option<String>,
    pub seen_at: Option<String>,
    pub queues: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub version: String,
    pub cordoned: bool,
    pub cordoned_by: Option<String>,
    pub cordon_reason: Option<String>,
    pub cordoned_at: Option<String>,
    /// When the cordon ends by itself.
    pub cordon_until: Option<String>,
    /// What keeps the host from starting anything.
    pub fault: Option<HostFault>,
    /// Why the host gets no new task before a person has looked.
    pub hold: Option<HostHold>,
    /// The host as a whole: slots that are added later are cordoned, too.
    pub host_cordoned: bool,
    pub start_no: u64,
    /// As the runner told them.
    pub host_facts: Option<String>,
    /// What keeps the processes of a task together there.
    pub guard: Option<String>,
    /// Limits of all processes of a task together that it can enforce; null: a runner that does not say.
    pub limits: Option<Vec<String>>,
    pub clock_skew_ms: i64,
}

#[derive(Debug, Serialize)]
pub struct HostFault {
    pub kind: String,
    pub detail: String,
    pub since: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct HostHold {
    /// The highest that the host has named.
    pub max_task_id: String,
    /// What it means and what to do.
    pub message: String,
    pub since: Option<String>,
}

impl From<&v1::Runner> for Runner {
    fn from(runner: &v1::Runner) -> Self {
        Self {
            runner: format!("{}/{}", runner.host, runner.slot),
            host: runner.host.clone(),
            slot: runner.slot,
            state: runner.state.clone(),
            task_id: id(runner.task_id),
            task_state: (runner.task_id != 0).then(|| state(runner.task_state)),
            seen_at: time(runner.seen_at_ms),
            queues: runner.queues.clone(),
            labels: map(&runner.labels),
            version: runner.version.clone(),
            cordoned: runner.cordoned,
            cordoned_by: text(&runner.cordoned_by),
            cordon_reason: text(&runner.cordon_reason),
            cordoned_at: time(runner.cordoned_at_ms),
            cordon_until: time(runner.cordon_until_ms),
            fault: runner.fault.as_ref().map(|fault| HostFault {
                kind: fault.kind.clone(),
                detail: fault.detail.clone(),
                since: time(runner.fault_at_ms),
            }),
            hold: runner.hold.as_ref().map(|hold| HostHold {
                max_task_id: hold.max_task_id.to_string(),
                message: hold.message.clone(),
                since: time(hold.since_ms),
            }),
            host_cordoned: runner.host_cordoned,
            start_no: runner.start_no,
            host_facts: text(&runner.host_facts),
            guard: facts::guard(&runner.host_facts),
            limits: facts::limits(&runner.host_facts),
            clock_skew_ms: runner.clock_skew_ms,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct CordonResult {
    pub runner: String,
    pub changed: u32,
    /// Null: until it is lifted, or nothing was changed.
    pub until: Option<String>,
    pub error: Option<Problem>,
}

impl From<&v1::CordonResult> for CordonResult {
    fn from(result: &v1::CordonResult) -> Self {
        Self {
            runner: result.runner.clone(),
            changed: result.changed,
            until: time(result.until_ms),
            error: result.error.as_ref().map(Problem::from),
        }
    }
}

/// A drain, as it stood when the command ended.
#[derive(Debug, Serialize)]
pub struct Drain {
    pub results: Vec<CordonResult>,
    pub waits_for: Vec<Held>,
}

/// A task that a runner has.
#[derive(Debug, Serialize)]
pub struct Held {
    /// `host/slot`.
    pub runner: String,
    pub task_id: String,
    pub task_state: String,
}

impl From<&v1::Runner> for Held {
    fn from(runner: &v1::Runner) -> Self {
        Self {
            runner: format!("{}/{}", runner.host, runner.slot),
            task_id: runner.task_id.to_string(),
            task_state: state(runner.task_state),
        }
    }
}

/// A host that was forgotten.
#[derive(Debug, Serialize)]
pub struct Forgotten {
    pub host: String,
    pub slots: u32,
    /// Tasks that it held: they ended as lost.
    pub lost: Vec<String>,
    /// QUEUED tasks that only this host may take.
    pub waiting: Vec<String>,
    pub more_waiting: bool,
}

impl Forgotten {
    pub fn new(host: &str, response: &v1::RemoveHostResponse) -> Self {
        let texts = |ids: &[i64]| ids.iter().map(ToString::to_string).collect();
        Self {
            host: host.to_owned(),
            slots: response.slots,
            lost: texts(&response.lost),
            waiting: texts(&response.waiting),
            more_waiting: response.more_waiting,
        }
    }
}
