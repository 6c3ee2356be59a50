//! Timeouts of tasks that no child runs for yet: too long QUEUED, too long DISPATCHED. The timeouts of running
//! children are the runner's; the back-up of the run timeout is in `beats`.
//!
//! Each statement walks a partial index of tasks that have such a timeout, from the one that expires first, so that
//! a long queue without timeouts costs nothing. The time is asked for as `(SELECT {now} + 0)`: as a bound of the index
//! PostgreSQL takes a clock only when it is one value for the whole statement, and SQLite a number only when it has no
//! column's type.

use super::admin::Held;
use super::db::{Db, Tx};
use super::error::StoreError;
use super::sql::Sql;

/// Tasks of one step.
pub const STEP_MAX: i64 = 1_000;

pub(super) static NEXT_TIMEOUTS: Sql = Sql::new(
    "next_timeouts",
    "SELECT (SELECT eligible_at_ms + queue_timeout_ms FROM task WHERE status = 2 AND queue_timeout_ms IS NOT NULL \
       ORDER BY eligible_at_ms + queue_timeout_ms LIMIT 1) - {now} AS queue_ms, \
     (SELECT dispatched_at_ms + start_timeout_ms FROM task WHERE status = 3 AND start_timeout_ms IS NOT NULL \
       ORDER BY dispatched_at_ms + start_timeout_ms LIMIT 1) - {now} AS start_ms",
);
static LOCK_QUEUE_TIMEOUTS: Sql = Sql::new(
    "lock_queue_timeouts",
    "SELECT id, queue_timeout_ms FROM task WHERE status = 2 AND queue_timeout_ms IS NOT NULL \
       AND eligible_at_ms + queue_timeout_ms <= (SELECT {now} + 0) AND (SELECT {now} + 0) <= $2 ORDER BY eligible_at_ms + queue_timeout_ms LIMIT $1 {skip_locked}",
);
static TIME_OUT_STARTS: Sql = Sql::new(
    "time_out_starts",
    "UPDATE task SET status = 9, terminating = 'start_timeout' WHERE status + 0 = 3 AND id IN ( \
       SELECT id FROM task WHERE status = 3 AND start_timeout_ms IS NOT NULL \
         AND dispatched_at_ms + start_timeout_ms <= (SELECT {now} + 0) AND (SELECT {now} + 0) <= $2 ORDER BY dispatched_at_ms + start_timeout_ms LIMIT $1 {skip_locked}) \
     RETURNING id, host, slot, start_no",
);

pub static STATEMENTS: &[&Sql] = &[&NEXT_TIMEOUTS, &LOCK_QUEUE_TIMEOUTS, &TIME_OUT_STARTS];

/// ms until the next task expires, negative when it has; `None`: none can.
#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub struct NextTimeouts {
    pub queue_ms: Option<i64>,
    pub start_ms: Option<i64>,
}

/// A task that was QUEUED for too long.
#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub struct Expired {
    pub id: i64,
    pub queue_timeout_ms: i64,
}

/// Locks tasks whose queue timeout is over, a bounded number. One that a claim has in hand is left to it.
pub async fn lock_queue_timeouts(tx: &mut Tx, until_ms: i64) -> Result<Vec<Expired>, StoreError> {
    tx.all(&LOCK_QUEUE_TIMEOUTS, vec![STEP_MAX.into(), until_ms.into()])
        .await
}

/// DISPATCHED → TERMINATING(start_timeout), a bounded number. One whose runner is just reporting is left to it.
pub async fn time_out_starts(tx: &mut Tx, until_ms: i64) -> Result<Vec<Held>, StoreError> {
    tx.all(&TIME_OUT_STARTS, vec![STEP_MAX.into(), until_ms.into()]).await
}

impl Db {
    /// Without a write, so that an idle database stays idle.
    pub async fn next_timeouts(&self) -> Result<NextTimeouts, StoreError> {
        self.read("next_timeouts", |tx| {
            Box::pin(async move { tx.one(&NEXT_TIMEOUTS, vec![]).await })
        })
        .await
    }
}
