//! Reads the folder of job files, once: until what is right in it is stored.

use crate::context::Context;
use crate::flow::jobs::at_start;
use std::sync::Arc;

pub async fn run(ctx: Arc<Context>) {
    let Some(folder) = ctx.config.jobs.clone() else {
        return;
    };
    while let Err(refusal) = at_start::apply(&ctx, folder.clone()).await {
        tracing::warn!(%refusal, "job files are not stored yet");
        if !super::pause(&ctx, ctx.config.timing.poll).await {
            return;
        }
    }
}
