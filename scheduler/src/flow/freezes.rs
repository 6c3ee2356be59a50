//! Freezes: set and lifted by a person, ended by the time, and taken note of by each replica.

use super::Refusal;
use crate::context::Context;
use crate::store::StoreError;
use crate::store::freeze::{FreezeOrder, Frost, Frozen};
use systole_shared::error::Code;
use systole_shared::limits::FREEZES_MAX;
use systole_shared::policy::freeze::{Freeze, Scope};
use systole_shared::time::format_utc;

/// Steps of one look, each for 2,000 triggers; the next look goes on.
const THAW_STEPS_MAX: u32 = 50;

/// What was read as frozen just now: takes note, ends what is over as far as the clock is believed, and lets triggers that were put
/// aside be looked at.
pub async fn saw(ctx: &Context, mut frozen: Frozen) -> Result<(), StoreError> {
    let over = |until_ms: i64| {
        frozen
            .freezes
            .iter()
            .any(|freeze| freeze.until_ms.is_some_and(|end| end <= frozen.now_ms.min(until_ms)))
    };
    // Without a write when nothing is due, so that an idle database stays idle.
    if let Some(until_ms) = ctx.clock.until_ms()
        && over(until_ms)
    {
        let ended = ctx.db.end_freezes(until_ms).await?;
        if ended > 0 {
            tracing::info!(ended, "freezes ended, as their time is over");
        }
        frozen = ctx.db.frozen().await?;
    }
    take_note(ctx, &frozen).await;
    if frozen.thawing {
        for _ in 0..THAW_STEPS_MAX {
            if ctx.db.thaw(frozen.generation).await? == 0 {
                break;
            }
        }
        ctx.wake.fire.notify_one();
    }
    Ok(())
}

/// Claims go by it from now on, here; the other replicas are told to look.
async fn take_note(ctx: &Context, frozen: &Frozen) {
    if ctx.lanes.freeze(frozen) {
        ctx.fleet.forget().await;
        // Everything may fit again.
        ctx.wake.everything();
    }
}

/// What was frozen, and whether it was before.
pub async fn freeze(ctx: &Context, order: FreezeOrder) -> Result<(Freeze, bool), Refusal> {
    match ctx.db.freeze(order).await? {
        Frost::Done { freeze, already } => {
            take_note(ctx, &ctx.db.frozen().await?).await;
            Ok((freeze, already))
        }
        Frost::BadTime { now_ms } => Err(Refusal {
            code: Code::InvalidField,
            message: format!(
                "until: must lie ahead, by at most 366 days; the database's clock says {}",
                format_utc(now_ms)
            ),
            field: "until".into(),
        }),
        Frost::TooMany => Err(Refusal {
            code: Code::InvalidField,
            message: format!(
                "scope: there are {FREEZES_MAX} freezes already; lift one that is not needed any more (systole status lists them)"
            ),
            field: "scope".into(),
        }),
    }
}

/// What was lifted, if it was frozen, and what is frozen still.
pub async fn lift(
    ctx: &Context,
    scope: Scope,
    by: String,
    reason: String,
) -> Result<(Option<Freeze>, Vec<Freeze>), Refusal> {
    let (lifted, frozen) = ctx.db.lift_freeze(scope, by, reason).await?;
    take_note(ctx, &frozen).await;
    Ok((lifted, frozen.freezes))
}
