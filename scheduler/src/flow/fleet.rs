//! Runners as people see them.

use super::Refusal;
use crate::context::FleetView;
use crate::store::read::RunnerRow;
use systole_shared::error::Code;
use systole_shared::id::RunnerId;
use systole_shared::near::did_you_mean;
use systole_shared::policy::lane::Labels;
use systole_shared::policy::why::{Cordon, Fault, RunnerView};

/// One word for what a runner is.
pub fn state(row: &RunnerRow, lost_after_ms: i64) -> &'static str {
    if row.leaving && row.task_id.is_none() {
        "left"
    } else if row.age_ms >= lost_after_ms {
        "lost"
    } else if row.task_id.is_some() {
        "busy"
    } else if row.cordoned {
        "cordoned"
    } else if row.fault.is_some() {
        "faulty"
    } else {
        "ready"
    }
}

/// The same of a runner whose host may be held until a person has looked.
pub fn state_of(row: &RunnerRow, lost_after_ms: i64, held: bool) -> &'static str {
    match state(row, lost_after_ms) {
        "ready" if held => "held",
        state => state,
    }
}

/// Of the slot, over those of its host.
pub fn labels(row: &RunnerRow) -> Labels {
    let mut labels: Labels = serde_json::from_str(&row.labels).unwrap_or_default();
    if let Some(own) = &row.slot_labels {
        labels.extend(serde_json::from_str::<Labels>(own).unwrap_or_default());
    }
    labels
}

pub fn queues(row: &RunnerRow) -> Vec<String> {
    let queues: Vec<String> = serde_json::from_str(&row.queues).unwrap_or_default();
    if queues.is_empty() {
        vec!["default".into()]
    } else {
        queues
    }
}

/// For explanations of waiting tasks.
pub fn view(row: &RunnerRow, lost_after_ms: i64) -> RunnerView {
    let state = state(row, lost_after_ms);
    RunnerView {
        id: RunnerId::new(row.host.clone(), u32::try_from(row.slot).unwrap_or(0)),
        queues: queues(row),
        labels: labels(row),
        live: !matches!(state, "left" | "lost"),
        left: state == "left",
        seen_ms: row.seen_ms,
        cordon: row.cordoned.then(|| Cordon {
            by: row.cordoned_by.clone().unwrap_or_default(),
            reason: row.cordon_reason.clone().unwrap_or_default(),
            since_ms: row.cordoned_at_ms,
            until_ms: row.cordon_until_ms,
        }),
        fault: row.fault.as_ref().map(|kind| Fault {
            kind: kind.clone(),
            detail: row.fault_detail.clone().unwrap_or_default(),
            since_ms: row.fault_at_ms,
        }),
        busy: row.task_id.map(|task| (task, row.busy_since_ms.unwrap_or(row.now_ms))),
    }
}

/// That there is no host, or none with that slot, as it was typed in `field`; with the one that was meant, perhaps.
pub fn no_such_host(fleet: &FleetView, runner: &str, field: &str) -> Refusal {
    let (host, what) = match runner.split_once('/') {
        Some((host, _)) => (host, "runner"),
        None => (runner, "host"),
    };
    let meant = did_you_mean(host, fleet.runners.iter().map(|known| known.id.host.as_str()));
    Refusal {
        code: Code::RunnerNotFound,
        message: format!("there is no {what} {runner:?}; {meant}`systole runners` lists them"),
        field: field.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_not_there_is_told_the_one_that_was_meant() {
        let slot = |host: &str, slot| RunnerView::ready(RunnerId::new(host, slot));
        let fleet = FleetView {
            runners: vec![slot("db-01", 0), slot("db-01", 1), slot("web", 0)],
            ..FleetView::default()
        };
        for (runner, said) in [
            (
                "db01",
                "there is no host \"db01\"; did you mean \"db-01\"? `systole runners` lists them",
            ),
            (
                "db01/1",
                "there is no runner \"db01/1\"; did you mean \"db-01\"? `systole runners` lists them",
            ),
            (
                "db-01/7",
                "there is no runner \"db-01/7\"; `systole runners` lists them",
            ),
            ("x", "there is no host \"x\"; `systole runners` lists them"),
        ] {
            assert_eq!(no_such_host(&fleet, runner, "runners").message, said);
        }
    }
}
