//! Labels of single slots, for people: what a slot may be given follows from each of its beats alone.

use super::Beat;
use crate::context::Context;
use crate::flow::Refusal;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Slots that are remembered; more are forgotten, which costs a transaction for each and nothing else.
const SLOTS_MAX: usize = 100_000;

/// The processes whose slots this replica has written down.
#[derive(Debug, Default)]
pub struct SlotLabels {
    written: Mutex<HashMap<(String, i64), (String, i64)>>,
}

/// Nothing to do for a slot without labels of its own, and once per process for the others.
pub(super) async fn note(ctx: &Context, beat: &Beat) -> Result<(), Refusal> {
    let Some(labels) = &beat.slot_labels else {
        return Ok(());
    };
    let who = &beat.registration;
    let process = (who.instance_id.clone(), who.start_no);
    let written = || ctx.slot_labels.written.lock().unwrap_or_else(PoisonError::into_inner);
    if written().get(&beat.key()) == Some(&process) {
        return Ok(());
    }
    let changed = ctx
        .db
        .set_slot_labels(who.host.clone(), who.slot, who.start_no, labels.clone())
        .await?;
    // None: it is not registered yet, and comes back here when it is.
    if changed > 0 {
        let mut written = written();
        if written.len() >= SLOTS_MAX {
            written.clear();
        }
        written.insert(beat.key(), process);
    }
    Ok(())
}
