//! The one place where an agent is put together.

use crate::RunnerError;
use crate::agent::{Agent, Context, Fixed, serve};
use crate::config::RunnerConfig;
use crate::link::Link;
use crate::rounds::Rounds;
use crate::shutdown::Shutdown;
use crate::state_dir::AgentDir;
use crate::warden::Plan;
use crate::warden::client::{Client, Inventory, Origin};
use crate::{host, policy, protect, rotate};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use systole_proto::convert::labels_to_wire;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Runs until the shutdown is asked for and all slots have left. An error means that it cannot start;
/// whatever happens later is waited for, retried and logged.
pub async fn run(config: RunnerConfig, shutdown: Shutdown) -> Result<(), RunnerError> {
    config.check()?;
    if config.warden != Origin::Elsewhere {
        // The warden would refuse it too, but where nobody looks.
        policy::load::load(config.policy.as_deref()).map_err(RunnerError::Policy)?;
    }
    protect::from_want_of_memory();
    let link = Arc::new(Link::new(&config)?);
    let boot_id = host::boot_id().map_err(RunnerError::Host)?;
    let root = config.data_dir.clone();
    let home = tokio::task::spawn_blocking(move || AgentDir::open(&root))
        .await
        .map_err(|error| RunnerError::Host(std::io::Error::other(error)))??;
    let plan = Plan {
        data_dir: config.data_dir.clone(),
        stays: false,
        drain_wait: config.drain_wait,
        adopt_window: config.adopt_window,
        policy: config.policy.clone(),
        output_file_max: config.output_file_max,
        keep_output: config.keep_output,
    };
    let (warden, pumps, greeting) = Client::connect(plan, config.warden.clone(), home.start_no).await?;
    tracing::info!(
        host = config.host,
        slots = config.slots,
        instance_id = greeting.instance_id,
        start_no = home.start_no,
        guard = greeting.guard,
        scheduler = link.address(),
        "the runner starts"
    );
    let fixed = Fixed {
        instance_id: greeting.instance_id,
        start_no: home.start_no,
        boot_id,
        host_facts: host::facts(&greeting.guard, greeting.limits.as_deref(), greeting.policy.as_deref()),
        labels: labels_to_wire(&config.labels),
    };
    let rounds = (config.slots > 1).then(|| Rounds::new(Arc::clone(&link)));
    let context = Arc::new(Context {
        config,
        fixed,
        link,
        rounds,
        warden: Arc::clone(&warden),
        shutdown: shutdown.clone(),
        max_task_id: AtomicI64::new(greeting.max_task_id),
    });
    let _rotating = context.config.joined.clone().map(|(credential, every)| {
        let (link, data_dir) = (Arc::clone(&context.link), context.config.data_dir.clone());
        AbortOnDropHandle::new(tokio::spawn(rotate::run(link, data_dir, credential, every)))
    });
    let serving = AbortOnDropHandle::new(tokio::spawn(serve::run(Arc::clone(&context))));
    let mut slots = start_slots(&context, greeting.slots.into_iter().collect());
    let mut drain_told = false;
    loop {
        tokio::select! {
            biased;
            () = shutdown.asked(), if shutdown.drains() && !drain_told || !shutdown.is_asked() => {
                if shutdown.drains() {
                    warden.drain();
                    drain_told = true;
                }
            }
            () = warden.draining.cancelled(), if !shutdown.drains() => shutdown.drain(),
            left = slots.join_next() => match left {
                None => break,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::error!(%error, "a slot failed; this is a bug, and the slot is silent until the runner is restarted");
                }
            },
        }
    }
    drop(serving);
    warden.close(pumps).await;
    tracing::info!("the runner has left");
    Ok(())
}

/// One loop for each slot that is offered, and one for each other slot that still has something.
fn start_slots(context: &Arc<Context>, mut found: BTreeMap<u32, Inventory>) -> JoinSet<()> {
    let offered = context.config.slots;
    for slot in 0..offered {
        found.entry(slot).or_default();
    }
    let mut running = JoinSet::new();
    for (slot, inventory) in found {
        running.spawn(Agent::new(Arc::clone(context), slot, slot >= offered).run(inventory));
    }
    running
}
