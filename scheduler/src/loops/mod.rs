//! Duties that repeat. Each makes guarded writes only, so any number of replicas may run all of them.

pub mod admit;
pub mod alarms;
pub mod backfill;
pub mod callbacks;
pub mod chains;
pub mod expire;
pub mod fire;
pub mod job_files;
pub mod lateness;
pub mod life_sign;
pub mod outlook;
pub mod poll;
pub mod reaper;
pub mod retention;
pub mod route;
pub mod sets;
pub mod stamps;
pub mod watchdog;

use crate::context::Context;
use std::sync::Arc;
use std::time::Duration;

/// Waits, unless the replica drains. False: stop.
pub async fn pause(ctx: &Context, wait: Duration) -> bool {
    tokio::select! {
        () = tokio::time::sleep(wait) => true,
        () = ctx.draining.cancelled() => false,
    }
}

/// Runs a duty for ever. A duty that panics is a bug, but must not stop silently: it is reported and begun again.
pub async fn keep_running<F>(name: &'static str, ctx: Arc<Context>, duty: impl Fn(Arc<Context>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    while !ctx.draining.is_cancelled() {
        match tokio::spawn(duty(Arc::clone(&ctx))).await {
            Ok(()) => return,
            Err(error) => {
                tracing::error!(duty = name, %error, "a duty ended by a bug and is begun again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
