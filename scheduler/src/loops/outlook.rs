//! The outlook: one question about everything that is done because its time has come. It rings for the duties that have something
//! to do before the next look, so that a quiet cluster is asked once, and not by each of them.

use crate::context::Context;
use crate::flow::jobs::route::live_ms;
use crate::store::StoreError;
use crate::store::look::Outlook;
use crate::wake::Wake;
use std::sync::Arc;
use std::time::Duration;

/// The longest sleep of a duty that the outlook rings for: it looks by itself then, whatever became of the outlook.
const REST_MAX: Duration = Duration::from_secs(10);

/// How long such a duty sleeps when it knows of nothing.
pub fn rest(ctx: &Context) -> Duration {
    REST_MAX.max(ctx.config.timing.poll)
}

pub async fn run(ctx: Arc<Context>) {
    loop {
        if let Err(error) = tick(&ctx).await {
            tracing::warn!(%error, "outlook");
        }
        if !super::pause(&ctx, ctx.config.timing.poll).await {
            return;
        }
    }
}

async fn tick(ctx: &Context) -> Result<(), StoreError> {
    let outlook = ctx.db.outlook(live_ms(ctx)).await?;
    // What falls due before the next look must be waited for by who does it.
    let soon_ms = i64::try_from(ctx.config.timing.poll.as_millis()).unwrap_or(i64::MAX);
    ring(&ctx.wake, &outlook, soon_ms);
    if outlook.cordons_over {
        lift_cordons(ctx).await?;
    }
    Ok(())
}

fn ring(wake: &Wake, outlook: &Outlook, soon_ms: i64) {
    let soon = |ms: Option<i64>| ms.is_some_and(|ms| ms <= soon_ms);
    for (rings, duty) in [
        (soon(outlook.admit_ms), &wake.admit),
        (soon(outlook.fire_ms), &wake.fire),
        (soon(outlook.callback_ms), &wake.callbacks),
        (soon(outlook.alarm_ms), &wake.alarms),
        (soon(outlook.queue_ms) || soon(outlook.start_ms), &wake.timeouts),
        (soon(outlook.due_in_ms) || outlook.unwatched.is_some(), &wake.lateness),
        (outlook.routes_due, &wake.route),
        (outlook.sets_due, &wake.spread),
        (outlook.backfills, &wake.backfills),
    ] {
        if rings {
            duty.notify_one();
        }
    }
}

/// Opens runners whose cordon is over, as far as the clock is believed. More than one step's worth waits for the next look.
async fn lift_cordons(ctx: &Context) -> Result<(), StoreError> {
    let Some(until_ms) = ctx.clock.until_ms() else {
        return Ok(());
    };
    let lifted = ctx.db.lift_cordons(until_ms).await?;
    if lifted > 0 {
        tracing::info!(lifted, "cordons ended, as their time is over");
        ctx.wake.everything();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    const NOTHING: Outlook = Outlook {
        admit_ms: None,
        fire_ms: None,
        callback_ms: None,
        alarm_ms: None,
        queue_ms: None,
        start_ms: None,
        due_in_ms: None,
        unwatched: None,
        cordons_over: false,
        routes_due: false,
        sets_due: false,
        backfills: false,
    };

    /// Which duties ring, in the order of their names.
    fn rung(outlook: &Outlook) -> Vec<&'static str> {
        let wake = Wake::new(Arc::default(), Arc::default());
        ring(&wake, outlook, 1_000);
        [
            ("admit", &wake.admit),
            ("alarms", &wake.alarms),
            ("backfills", &wake.backfills),
            ("callbacks", &wake.callbacks),
            ("fire", &wake.fire),
            ("lateness", &wake.lateness),
            ("route", &wake.route),
            ("spread", &wake.spread),
            ("timeouts", &wake.timeouts),
        ]
        .into_iter()
        .filter(|(_, duty)| duty.notified().now_or_never().is_some())
        .map(|(name, _)| name)
        .collect()
    }

    #[test]
    fn each_duty_is_rung_for_what_falls_due_before_the_next_look() {
        assert_eq!(rung(&NOTHING), Vec::<&str>::new());
        for due in [-5, 0, 1_000] {
            let of = |change: fn(&mut Outlook, Option<i64>)| {
                let mut outlook = NOTHING;
                change(&mut outlook, Some(due));
                rung(&outlook)
            };
            assert_eq!(of(|o, ms| o.admit_ms = ms), ["admit"]);
            assert_eq!(of(|o, ms| o.fire_ms = ms), ["fire"]);
            assert_eq!(of(|o, ms| o.callback_ms = ms), ["callbacks"]);
            assert_eq!(of(|o, ms| o.alarm_ms = ms), ["alarms"]);
            assert_eq!(of(|o, ms| o.queue_ms = ms), ["timeouts"]);
            assert_eq!(of(|o, ms| o.start_ms = ms), ["timeouts"]);
            assert_eq!(of(|o, ms| o.due_in_ms = ms), ["lateness"]);
        }
        let of = |change: fn(&mut Outlook)| {
            let mut outlook = NOTHING;
            change(&mut outlook);
            rung(&outlook)
        };
        assert_eq!(of(|o| o.unwatched = Some(7)), ["lateness"]);
        assert_eq!(of(|o| o.routes_due = true), ["route"]);
        assert_eq!(of(|o| o.sets_due = true), ["spread"]);
        assert_eq!(of(|o| o.backfills = true), ["backfills"]);
        assert_eq!(of(|o| o.fire_ms = Some(1_001)), Vec::<&str>::new());
    }
}
