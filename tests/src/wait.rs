//! Waiting for facts, with a bound. Tests wait for signals, never for time.

use std::time::{Duration, Instant};

/// Longest wait for anything; generous, since machines are slow at times.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// Asks until the answer is there; panics with `what` after [`WAIT_MAX`].
pub async fn until<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let end = Instant::now() + WAIT_MAX;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < end, "waited {WAIT_MAX:?} for: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
