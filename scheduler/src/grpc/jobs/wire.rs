//! Between rows and messages.

use crate::flow::jobs::apply::{Applied, Coming, Definition};
use crate::flow::jobs::kept::{CalendarView, GroupView};
use crate::flow::jobs::set::{Batch, Item};
use crate::flow::jobs::start::Started;
use crate::flow::jobs::view::JobView;
use crate::grpc::cluster::freezes_to_wire;
use crate::grpc::item_error;
use crate::store::StoreError;
use crate::store::jobs::ledger::OccurrenceRow;
use crate::store::jobs::runs::RunRow;
use crate::store::jobs::slots::SlotRow;
use crate::store::jobs::triggers::TriggerRow;
use crate::store::jobs::{JobRow, VersionRow, compiled};
use systole_proto::convert::{outcome_to_wire, state_to_wire, time_to_wire};
use systole_proto::v1;
use systole_shared::policy::pause::Pause;

fn time(ms: Option<i64>) -> u64 {
    ms.map_or(0, time_to_wire)
}

impl From<Applied> for v1::Applied {
    fn from(applied: Applied) -> Self {
        match applied {
            Applied::Created => Self::Created,
            Applied::Changed => Self::Changed,
            Applied::Unchanged => Self::Unchanged,
            Applied::Overridden => Self::Overridden,
            Applied::Orphaned => Self::Orphaned,
            Applied::Deleted => Self::Deleted,
            Applied::Outdated => Self::Outdated,
        }
    }
}

impl From<Coming> for v1::Coming {
    fn from(coming: Coming) -> Self {
        Self {
            job: coming.job,
            trigger: coming.trigger,
            zone: coming.zone,
            scheduled_at_ms: time_to_wire(coming.scheduled_ms),
        }
    }
}

impl From<v1::Definition> for Definition {
    fn from(item: v1::Definition) -> Self {
        Self {
            json: item.json,
            expected_version: item.expected_version,
            source: item.source,
        }
    }
}

impl From<v1::ApplyRequest> for Batch {
    fn from(request: v1::ApplyRequest) -> Self {
        Self {
            calendars: request
                .calendars
                .into_iter()
                .map(|mut item| {
                    let ics = std::mem::take(&mut item.ics);
                    (item.into(), ics)
                })
                .collect(),
            groups: request.groups.into_iter().map(Into::into).collect(),
            jobs: request.jobs.into_iter().map(Into::into).collect(),
            complete: request.complete,
            prune: request.prune,
        }
    }
}

impl From<Item> for v1::ApplyResult {
    fn from(item: Item) -> Self {
        let kind = item.kind.into();
        match item.result {
            Ok(outcome) => Self {
                kind,
                name: outcome.name,
                applied: v1::Applied::from(outcome.applied).into(),
                error: None,
                version: outcome.version,
                before_version: outcome.before_version,
                before_json: outcome.before,
                after_json: outcome.after,
                warnings: outcome.warnings,
                next_before: outcome.next_before.into_iter().map(Into::into).collect(),
                next: outcome.next.into_iter().map(Into::into).collect(),
                gave_up: outcome.gave_up,
            },
            Err(refusal) => Self {
                kind,
                name: item.name,
                error: Some(item_error(&refusal)),
                ..Self::default()
            },
        }
    }
}

/// The pause of a job, or of a trigger, if it holds now.
fn pause(
    pause: Pause,
    by: Option<&String>,
    reason: Option<&String>,
    at: Option<i64>,
    now_ms: i64,
) -> Option<v1::Pause> {
    pause.holds_at(now_ms).then(|| v1::Pause {
        paused: true,
        until_ms: time(pause.until_ms),
        by: by.cloned().unwrap_or_default(),
        reason: reason.cloned().unwrap_or_default(),
        since_ms: time(at),
    })
}

fn pause_of_job(row: &JobRow, now_ms: i64) -> Option<v1::Pause> {
    pause(
        row.pause(),
        row.paused_by.as_ref(),
        row.pause_reason.as_ref(),
        row.paused_at_ms,
        now_ms,
    )
}

fn trigger_to_wire(row: &TriggerRow, blocked: bool, now_ms: i64) -> v1::TriggerStatus {
    v1::TriggerStatus {
        name: row.name.clone(),
        kind: row.kind.clone(),
        state: row.state(blocked, now_ms).in_full(),
        error: row.error.clone(),
        next_at_ms: time(row.next_ms),
        fires: u64::try_from(row.fires).unwrap_or(0),
        // One that cannot be read is in ERROR, which says more.
        zone: compiled::trigger_spec(row)
            .ok()
            .and_then(|spec| spec.zone.clone())
            .unwrap_or_default(),
        pause: pause(
            row.pause(),
            row.paused_by.as_ref(),
            row.pause_reason.as_ref(),
            row.paused_at_ms,
            now_ms,
        ),
    }
}

fn unproven(slot: &SlotRow) -> Option<v1::Unproven> {
    Some(v1::Unproven {
        task_id: slot.lost_task_id?,
        host: slot.lost_host.clone().unwrap_or_default(),
        slot: slot.lost_slot.and_then(|slot| u32::try_from(slot).ok()).unwrap_or(0),
        since_ms: time(slot.lost_at_ms),
    })
}

impl From<JobView> for v1::Job {
    fn from(view: JobView) -> Self {
        let row = view.row;
        Self {
            version: row.version,
            pause: pause_of_job(&row, view.now_ms),
            triggers: view
                .triggers
                .iter()
                .map(|trigger| trigger_to_wire(trigger, view.blocked.contains(&trigger.id), view.now_ms))
                .collect(),
            running: view.slots.iter().map(|slot| slot.root_id).collect(),
            unproven: view.slots.iter().chain(&view.members).filter_map(unproven).collect(),
            unserved: view.unserved,
            waiting: view.waiting,
            frozen: freezes_to_wire(&view.freezes),
            created_at_ms: time_to_wire(row.created_at_ms),
            changed_at_ms: time_to_wire(row.changed_at_ms),
            name: row.name,
            json: row.definition,
            origin: row.origin,
            fingerprint: row.fingerprint,
            source: row.source,
            changed_by: row.changed_by,
            code_json: row.code_definition.unwrap_or_default(),
            last_run: view.last.and_then(|last| last.try_into().ok()),
        }
    }
}

impl From<VersionRow> for v1::JobVersion {
    fn from(row: VersionRow) -> Self {
        Self {
            version: row.version,
            json: row.definition,
            fingerprint: row.fingerprint,
            origin: row.origin,
            source: row.source,
            changed_at_ms: time_to_wire(row.changed_at_ms),
            changed_by: row.changed_by,
            reason: row.reason,
        }
    }
}

impl From<Started> for v1::TriggerJobResponse {
    fn from(started: Started) -> Self {
        Self {
            task_id: started.task_id,
            existing: started.existing,
            waiting: started.waiting,
        }
    }
}

impl From<OccurrenceRow> for v1::Occurrence {
    fn from(row: OccurrenceRow) -> Self {
        Self {
            trigger: row.trigger_name,
            scheduled_at_ms: time_to_wire(row.scheduled_ms),
            until_ms: time_to_wire(row.until_ms),
            fires: u64::try_from(row.fires).unwrap_or(0),
            verdict: row.verdict,
            reason: row.reason,
            into_ms: time(row.into_ms),
            task_id: row.task_id.unwrap_or(0),
            blocked_by: row.blocked_by.unwrap_or(0),
            at_ms: time_to_wire(row.at_ms),
            parent_root: row.parent_root,
            backfill_id: row.backfill_id.unwrap_or(0),
            was: row.was,
        }
    }
}

impl TryFrom<RunRow> for v1::Run {
    type Error = StoreError;

    fn try_from(row: RunRow) -> Result<Self, StoreError> {
        Ok(Self {
            root_id: row.root_id,
            task_id: row.id,
            attempts: u32::try_from(row.attempt).unwrap_or(0),
            scheduled_at_ms: time_to_wire(row.scheduled_ms),
            state: state_to_wire(row.state()?).into(),
            outcome: row.outcome()?.as_ref().map(outcome_to_wire),
            slot: row.slot.and_then(|slot| u32::try_from(slot).ok()).unwrap_or(0),
            started_at_ms: time(row.started_at_ms),
            ended_at_ms: time(row.ended_at_ms),
            trigger: row.trigger_name.unwrap_or_default(),
            host: row.host.unwrap_or_default(),
        })
    }
}

impl TryFrom<RunRow> for v1::LastRun {
    type Error = StoreError;

    fn try_from(row: RunRow) -> Result<Self, StoreError> {
        let run = v1::Run::try_from(row)?;
        Ok(Self {
            root_id: run.root_id,
            task_id: run.task_id,
            state: run.state,
            outcome: run.outcome,
            scheduled_at_ms: run.scheduled_at_ms,
            ended_at_ms: run.ended_at_ms,
        })
    }
}

impl From<CalendarView> for v1::Calendar {
    fn from(view: CalendarView) -> Self {
        let row = view.row;
        Self {
            name: row.name,
            version: row.version,
            json: row.definition,
            changed_at_ms: time_to_wire(row.changed_at_ms),
            changed_by: row.changed_by,
            ics: row.ics.unwrap_or_default(),
            used_by: view.used_by,
        }
    }
}

impl From<GroupView> for v1::ConcurrencyGroup {
    fn from(view: GroupView) -> Self {
        let row = view.row;
        Self {
            name: row.name,
            version: row.version,
            limit: u32::try_from(row.places).unwrap_or(u32::MAX),
            running: view.running,
            changed_at_ms: time_to_wire(row.changed_at_ms),
            changed_by: row.changed_by,
            used_by: view.used_by,
        }
    }
}
