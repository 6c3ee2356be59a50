//! Faults of hosts: what a beat says of its host, written before the beat acts, for all slots at once. So a task that
//! comes back because of the fault is not given to the next slot of the same host.

use super::Beat;
use crate::context::Context;
use crate::flow::Refusal;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Hosts that are remembered; more are forgotten, which costs a transaction for each and nothing else.
const HOSTS_MAX: usize = 10_000;

/// The last word of each host that ever had a fault, as this replica wrote it.
#[derive(Debug, Default)]
pub struct Faults {
    known: Mutex<HashMap<String, Word>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Word {
    instance_id: String,
    start_no: i64,
    no: i64,
}

impl Word {
    fn of(beat: &Beat) -> Self {
        Self {
            instance_id: beat.registration.instance_id.clone(),
            start_no: beat.registration.start_no,
            no: beat.registration.fault_no,
        }
    }

    /// It is of the same process, and at least as new.
    fn covers(&self, beat: &Beat) -> bool {
        let who = &beat.registration;
        self.instance_id == who.instance_id && self.start_no == who.start_no && self.no >= beat.registration.fault_no
    }
}

/// Nothing to do for a host that never had a fault, and once per change for the others.
pub(super) async fn note(ctx: &Context, beat: &Beat) -> Result<(), Refusal> {
    let who = &beat.registration;
    if beat.registration.fault_no == 0 {
        return Ok(());
    }
    // Held across the transaction on purpose: all slots of the host say the same at once, and one writes it.
    let mut known = ctx.faults.known.lock().await;
    if known.get(&who.host).is_some_and(|word| word.covers(beat)) {
        return Ok(());
    }
    // None: the process is not registered yet, and comes back here when it is; or another one holds the host.
    if ctx.db.set_fault(Arc::clone(who)).await? > 0 {
        match &who.fault {
            Some((kind, detail)) => tracing::warn!(host = who.host, kind, detail, "a host is faulty; it gets no tasks"),
            None => tracing::info!(host = who.host, "a host is well again"),
        }
        if known.len() >= HOSTS_MAX {
            known.clear();
        }
        known.insert(who.host.clone(), Word::of(beat));
    }
    Ok(())
}
