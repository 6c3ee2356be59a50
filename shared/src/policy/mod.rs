//! Rules that are functions of values: who is stale, which lane a runner serves, what follows a failure.

pub mod lane;
pub mod retry;
pub mod stale;
pub mod why;
