//! A replica that cannot commit must not be believed: its parked beats are sent to the others at once,
//! though its own transactions still hang.

use crate::context::Context;
use crate::parked::Answer;
use std::sync::Arc;
use std::time::Duration;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub async fn run(ctx: Arc<Context>) {
    let mut healthy = true;
    while super::pause(&ctx, LOOK_EVERY).await {
        let can_commit = ctx.health.can_commit(ctx.beat_ms());
        if !can_commit {
            ctx.parked.answer_all(&Answer::Unavailable);
        }
        if can_commit != healthy {
            healthy = can_commit;
            if healthy {
                tracing::info!("this replica can commit again");
            } else {
                tracing::error!("this replica cannot commit: runners and balancers are told to use another one");
            }
        }
    }
}
