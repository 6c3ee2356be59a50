//! Backfills on the wire.

use crate::flow::jobs::backfill::Made;
use crate::store::jobs::backfill::BackfillRow;
use systole_proto::convert::time_to_wire;
use systole_proto::v1;

/// Fires that are named.
const NAMED_MAX: usize = 1_000;

pub fn made_to_wire(job: &str, made: Made) -> v1::BackfillResponse {
    v1::BackfillResponse {
        id: made.id,
        count: u64::try_from(made.fires.len()).unwrap_or(u64::MAX),
        fires: made
            .fires
            .into_iter()
            .take(NAMED_MAX)
            .map(|(trigger, scheduled_ms)| v1::Coming {
                job: job.to_owned(),
                trigger,
                scheduled_at_ms: time_to_wire(scheduled_ms),
                ..v1::Coming::default()
            })
            .collect(),
        fired: made.fired,
        pending: made.pending,
        unknown: made.unknown,
        judged_ms: made.judged_ms.map_or(0, time_to_wire),
        at_once: made.at_once,
    }
}

pub fn row_to_wire(row: BackfillRow) -> v1::Backfill {
    v1::Backfill {
        id: row.id,
        job: row.job,
        trigger: row.trigger_name,
        from_ms: time_to_wire(row.from_ms),
        to_ms: time_to_wire(row.to_ms),
        count: u64::try_from(row.fires).unwrap_or(0),
        made: u64::try_from(row.made).unwrap_or(0),
        max_concurrent: row.max_concurrent.and_then(|max| u32::try_from(max).ok()).unwrap_or(0),
        state: row.state,
        by: row.created_by,
        reason: row.reason,
        created_at_ms: time_to_wire(row.created_ms),
        ended_at_ms: row.ended_ms.map_or(0, time_to_wire),
        ended_by: row.ended_by.unwrap_or_default(),
    }
}
