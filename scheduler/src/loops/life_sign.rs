//! The sign of life: a call to an address outside, as long as this scheduler gets on with its work. Its silence raises an alarm
//! there, when nobody is left here who could raise one.

use crate::clock::boottime_ms;
use crate::context::Context;
use crate::flow::notify::cause;
use crate::store::StoreError;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// A trigger that is due for longer does not fire any more.
const OVERDUE_MS_MAX: i64 = 60_000;
/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Rounds that may be missing before a duty stands still, by the poll; and at least so long, ms.
const POLLS_MAX: i64 = 20;
const STILL_MS_MIN: i64 = 30_000;

/// When duties last came to the end of a round, by the clock since boot; 0: never yet.
#[derive(Debug, Default)]
pub struct Progress {
    fired: AtomicI64,
    dispatched: AtomicI64,
}

impl Progress {
    /// Triggers were looked at, and what was due was fired.
    pub fn fired(&self) {
        self.fired.store(boottime_ms(), Ordering::Relaxed);
    }

    /// Work was looked for, and handed to whom it may concern.
    pub fn dispatched(&self) {
        self.dispatched.store(boottime_ms(), Ordering::Relaxed);
    }

    fn still(&self, now: i64, max_ms: i64) -> Option<&'static str> {
        let old = |at: &AtomicI64| now - at.load(Ordering::Relaxed) > max_ms;
        if old(&self.fired) {
            return Some("triggers are not looked at");
        }
        old(&self.dispatched).then_some("work is not looked for")
    }
}

pub async fn run(ctx: Arc<Context>) {
    let Some(sign) = ctx.config.life_sign.clone() else {
        return;
    };
    let client = crate::http_client::build(|| {
        reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::limited(3))
            .timeout(ANSWER_MAX)
            .user_agent(concat!("systole/", env!("CARGO_PKG_VERSION")))
    });
    let client = match client {
        Ok(client) => client,
        Err(error) => return tracing::error!(%error, "--heartbeat-url cannot be called by this scheduler"),
    };
    let mut quiet = false;
    loop {
        if !super::pause(&ctx, sign.every).await {
            return;
        }
        let why = standstill(&ctx).await.unwrap_or_else(|error| Some(error.to_string()));
        if let Some(why) = why {
            if !quiet {
                tracing::error!(why, "no sign of life is sent: this scheduler makes no progress");
            }
            quiet = true;
            continue;
        }
        if std::mem::take(&mut quiet) {
            tracing::info!("this scheduler makes progress again");
        }
        match client.get(&sign.url).send().await {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => tracing::warn!(status = %response.status(), "--heartbeat-url"),
            Err(error) => tracing::warn!(error = cause(error), "--heartbeat-url"),
        }
    }
}

/// Why this scheduler makes no progress, if it makes none.
pub async fn standstill(ctx: &Context) -> Result<Option<String>, StoreError> {
    if !ctx.is_ready() {
        return Ok(Some(
            "the database cannot be written, or this scheduler is stopping".into(),
        ));
    }
    let poll_ms = i64::try_from(ctx.config.timing.poll.as_millis()).unwrap_or(i64::MAX);
    let max_ms = poll_ms.saturating_mul(POLLS_MAX).max(STILL_MS_MIN);
    if let Some(why) = ctx.progress.still(boottime_ms(), max_ms) {
        return Ok(Some(why.into()));
    }
    if ctx.clock.until_ms().is_none() {
        return Ok(Some(
            "the database's clock is not believed; see `systole admin alarms`".into(),
        ));
    }
    Ok(ctx
        .db
        .next_trigger()
        .await?
        .filter(|&ms| ms < -OVERDUE_MS_MAX)
        .map(|ms| format!("a trigger is due for {} s and does not fire", -ms / 1_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duty_that_stands_still_is_named() {
        let progress = Progress::default();
        progress.fired.store(1_000, Ordering::Relaxed);
        progress.dispatched.store(1_000, Ordering::Relaxed);
        assert_eq!(progress.still(1_500, 1_000), None);
        assert_eq!(progress.still(2_001, 1_000), Some("triggers are not looked at"));
        progress.fired.store(2_000, Ordering::Relaxed);
        assert_eq!(progress.still(2_001, 1_000), Some("work is not looked for"));
    }
}
