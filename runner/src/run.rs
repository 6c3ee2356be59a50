//! The one place where a runner process is put together.

use crate::RunnerError;
use crate::agent::{Agent, Context, Fixed};
use crate::child::spawn::Place;
use crate::child::threads;
use crate::config::RunnerConfig;
use crate::host;
use crate::journal::{Ended, Journal};
use crate::link::Link;
use crate::state_dir::StateDir;
use crate::sweep;
use std::collections::BTreeMap;
use std::sync::Arc;
use systole_proto::convert::labels_to_wire;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Runs until the shutdown is asked for and all slots have left. An error means that it cannot start;
/// whatever happens later is waited for, retried and logged.
pub async fn run(config: RunnerConfig, shutdown: CancellationToken) -> Result<(), RunnerError> {
    config.check()?;
    let link = Arc::new(Link::new(&config)?);
    threads::prepare().map_err(RunnerError::Host)?;
    let boot_id = host::boot_id().map_err(RunnerError::Host)?;
    let (place, recovered) = take_place(&config).await?;
    let identity = place.state.identity.clone();
    tracing::info!(
        host = config.host,
        slots = config.slots,
        instance_id = identity.instance_id,
        start_no = identity.start_no,
        scheduler = link.address(),
        "the runner starts"
    );
    let fixed = Fixed {
        instance_id: identity.instance_id,
        start_no: identity.start_no,
        boot_id,
        host_facts: host::facts(),
        labels: labels_to_wire(&config.labels),
    };
    let context = Arc::new(Context {
        config,
        fixed,
        place: Arc::new(place),
        link,
        shutdown,
    });
    let mut slots = start_slots(&context, recovered);
    while let Some(left) = slots.join_next().await {
        if let Err(error) = left {
            tracing::error!(%error, "a slot failed; this is a bug, and the slot is silent until the runner is restarted");
        }
    }
    tracing::info!("the runner has left");
    Ok(())
}

/// Takes the data directory and settles what lies in it, before any slot beats.
async fn take_place(config: &RunnerConfig) -> Result<(Place, Vec<Ended>), RunnerError> {
    let (root, host_name) = (config.data_dir.clone(), config.host.clone());
    // For each slot the folder of a task whose end is being acknowledged, and one more.
    let spares = usize::try_from(config.slots).unwrap_or(usize::MAX).saturating_mul(2);
    let taken = tokio::task::spawn_blocking(move || {
        let state = StateDir::open(&root, &host::machine_id())?;
        let unusable = |source| RunnerError::DataDir {
            path: root.clone(),
            source,
        };
        let journal = Journal::open(&root, spares).map_err(unusable)?;
        if let Err(error) = journal.clean_unclaimed(systole_shared::clock::now_ms()) {
            tracing::warn!(%error, "unclaimed/ could not be cleaned");
        }
        let recovered = sweep::recover(&journal, &state.identity).map_err(unusable)?;
        let null = std::fs::File::open("/dev/null").map_err(RunnerError::Host)?;
        let place = Place {
            state,
            journal,
            host: host_name,
            account: host::account(),
            null,
        };
        Ok((place, recovered))
    });
    taken
        .await
        .map_err(|error| RunnerError::Host(std::io::Error::other(error)))?
}

/// One loop for each slot that is offered, and one for each other slot that still has results.
fn start_slots(context: &Arc<Context>, recovered: Vec<Ended>) -> JoinSet<()> {
    let offered = context.config.slots;
    let mut slots: BTreeMap<u32, Vec<Ended>> = (0..offered).map(|slot| (slot, Vec::new())).collect();
    for ended in recovered {
        slots.entry(ended.slot).or_default().push(ended);
    }
    let mut running = JoinSet::new();
    for (slot, recovered) in slots {
        running.spawn(Agent::new(Arc::clone(context), slot, slot >= offered).run(recovered));
    }
    running
}
