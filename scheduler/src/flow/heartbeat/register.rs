//! The first beat of a process: who holds the host.

use super::Beat;
use crate::context::Context;
use crate::flow::Refusal;
use std::collections::HashMap;
use std::sync::Arc;
use systole_shared::error::Code;
use systole_shared::heartbeat::identity::Identity;
use tokio::sync::Mutex;

/// Hosts that this replica registered, in stripes: all slots of a host beat at once after a restart, and
/// the first of them registers for all.
#[derive(Default)]
pub struct Registered {
    stripes: [Mutex<HashMap<String, (String, i64)>>; 32],
}

/// Hosts that one stripe remembers; more are forgotten, which costs a transaction and nothing else.
const STRIPE_HOSTS_MAX: usize = 4_096;

impl Registered {
    fn stripe(&self, host: &str) -> &Mutex<HashMap<String, (String, i64)>> {
        let sum = host.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        &self.stripes[sum % self.stripes.len()]
    }

    /// Whether a process of this host was registered here.
    pub async fn knows(&self, host: &str) -> bool {
        self.stripe(host).lock().await.contains_key(host)
    }
}

/// `first`: this beat has not asked yet, so the answer to a neighbour's question is enough.
pub(super) async fn register(ctx: &Context, beat: &Beat, first: bool) -> Result<(), Refusal> {
    let registration = Arc::clone(&beat.registration);
    let (host, start_no) = (registration.host.clone(), registration.start_no);
    let process = (registration.instance_id.clone(), start_no);
    // Held across the transaction on purpose: the neighbours wait for it.
    let mut known = ctx.registered.stripe(&host).lock().await;
    if first && known.get(&host) == Some(&process) {
        return Ok(());
    }
    match ctx.db.register(registration).await? {
        Identity::Old => Err(Refusal::new(
            Code::RunnerIdInUse,
            format!("host {host}: start {start_no} was replaced by a later start of the same runner"),
        )),
        Identity::Taken => Err(Refusal::new(
            Code::RunnerIdInUse,
            format!(
                "host {host} is held by another runner process that is alive; stop it, or start this one with another --name"
            ),
        )),
        identity => {
            if identity != Identity::Holder {
                tracing::info!(host, start_no, ?identity, "runner joined");
            }
            if known.len() >= STRIPE_HOSTS_MAX {
                known.clear();
            }
            known.insert(host, process);
            Ok(())
        }
    }
}
