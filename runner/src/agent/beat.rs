//! The words of a beat: what a slot says of itself. Pure; sends nothing.

use super::held::{Held, Live, Unacknowledged};
use crate::config::RunnerConfig;
use systole_proto::{convert, v1};
use systole_shared::heartbeat::Said;
use systole_shared::limits::RESULTS_PER_BEAT_MAX;
use systole_shared::policy::host_fault::HostFault;

/// Longest command line in a beat, bytes.
const COMMAND_LINE_BYTES_MAX: usize = 1_024;

/// What does not change from beat to beat.
pub struct Fixed {
    pub instance_id: String,
    pub start_no: u64,
    pub boot_id: String,
    pub host_facts: String,
    pub labels: Vec<v1::Label>,
}

/// What does.
pub struct Now {
    pub slot: u32,
    pub seq: u64,
    pub unanswered: u32,
    pub leaving: bool,
    pub max_task_id: i64,
    pub park_ms: u64,
    pub fault_no: u64,
    pub fault: Option<HostFault>,
}

pub fn request(config: &RunnerConfig, fixed: &Fixed, now: &Now, held: &Held) -> v1::HeartbeatRequest {
    let (said, task_id) = said(held);
    let results = held.results.iter().take(RESULTS_PER_BEAT_MAX);
    v1::HeartbeatRequest {
        host: config.host.clone(),
        slot: now.slot,
        instance_id: fixed.instance_id.clone(),
        start_no: fixed.start_no,
        seq: now.seq,
        status: convert::said_to_wire(said).into(),
        task_id,
        results: results.map(Unacknowledged::to_wire).collect(),
        queues: config.queues.clone(),
        labels: fixed.labels.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        host_facts: fixed.host_facts.clone(),
        unanswered: now.unanswered,
        leaving: now.leaving,
        max_task_id: now.max_task_id,
        park_ms: now.park_ms,
        boot_id: fixed.boot_id.clone(),
        slots: config.slots,
        sent_at_ms: crate::journal::now_ms(),
        command_line: held
            .live
            .as_ref()
            .map(|live| live.begin.command.clone())
            .unwrap_or_default(),
        fault: now.fault.as_ref().map(|fault| v1::HostFault {
            kind: fault.kind.name().into(),
            detail: fault.detail.clone(),
        }),
        fault_no: now.fault_no,
        starting: held.live.as_ref().is_some_and(Live::is_unconfirmed),
        slot_labels: config
            .slot_labels
            .get(&now.slot)
            .map(convert::labels_to_wire)
            .unwrap_or_default(),
    }
}

fn said(held: &Held) -> (Said, i64) {
    if let Some(live) = &held.live {
        return (Said::Running, live.begin.task_id);
    }
    match held.named_result() {
        None => (Said::Idle, 0),
        Some(result) if result.ended.is_success() => (Said::Finished, result.ended.task_id),
        Some(result) => (Said::Failed, result.ended.task_id),
    }
}

/// A command as one line for people, cut.
pub fn command_line(command: &[String]) -> String {
    let mut line = String::new();
    for element in command {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(element);
        if line.len() > COMMAND_LINE_BYTES_MAX {
            line.truncate(line.floor_char_boundary(COMMAND_LINE_BYTES_MAX));
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_cut_between_characters() {
        assert_eq!(command_line(&["echo".into(), "a b".into()]), "echo a b");
        let long = command_line(&["x".into(), "€".repeat(1_000)]);
        assert!(long.len() <= 1_024 && long.ends_with('€'));
    }
}
