//! The one place that reads a wall clock. Pure functions take `now_ms` as an argument.

/// Milliseconds since the Unix epoch by this machine's wall clock. For display and for stores whose
/// database has no clock of its own; never for deciding that somebody is dead.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the function that everybody else calls"
)]
pub fn now_ms() -> i64 {
    let now = std::time::SystemTime::now();
    match now.duration_since(std::time::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(_) => 0,
    }
}
