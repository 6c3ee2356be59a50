//! The outbox of callbacks: claimed with a lease, delivered outside of any transaction, settled by a
//! guarded write. The outcome of the task never depends on it.

use super::db::{Class, Db};
use super::error::StoreError;
use super::sql::Sql;

static CLAIM_CALLBACKS: Sql = Sql::new(
    "claim_callbacks",
    "UPDATE callback SET next_at_ms = {now} + $1, tries = tries + 1 WHERE status = 'pending' AND task_id IN ( \
       SELECT task_id FROM callback WHERE status = 'pending' AND next_at_ms <= {now} ORDER BY next_at_ms LIMIT $2 {skip_locked}) \
     RETURNING task_id, delivery_id, url, tries",
);
static SETTLE_CALLBACK: Sql = Sql::new(
    "settle_callback",
    "UPDATE callback SET status = $2, last_error = $3, next_at_ms = {now} + $4 WHERE task_id = $1 AND status = 'pending'",
);
static CALLBACK_DONE: Sql = Sql::new(
    "callback_done",
    "UPDATE task SET status = 6 WHERE id = $1 AND status = 5 RETURNING id",
);
static NEXT_CALLBACK: Sql = Sql::new(
    "next_callback",
    "SELECT min(next_at_ms) - {now} AS n FROM callback WHERE status = 'pending'",
);

pub static STATEMENTS: &[&Sql] = &[&CLAIM_CALLBACKS, &SETTLE_CALLBACK, &CALLBACK_DONE, &NEXT_CALLBACK];

/// One delivery to try, leased to this replica.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Delivery {
    pub task_id: i64,
    pub delivery_id: String,
    pub url: String,
    /// This one included.
    pub tries: i64,
}

/// How a try ended.
#[derive(Clone, Debug)]
pub enum Settled {
    Delivered,
    /// Given up.
    Failed(String),
    /// Again after this many ms.
    Again(String, i64),
}

#[derive(sqlx::FromRow)]
struct Number {
    n: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

impl Db {
    /// Due deliveries, leased for `lease_ms`. A replica that dies leaves them to the others after that.
    pub async fn claim_callbacks(&self, lease_ms: i64, limit: i64) -> Result<Vec<Delivery>, StoreError> {
        self.write("claim_callbacks", Class::Api, move |tx| {
            Box::pin(async move { tx.all(&CLAIM_CALLBACKS, vec![lease_ms.into(), limit.into()]).await })
        })
        .await
    }

    /// ms until the next delivery is due.
    pub async fn next_callback(&self) -> Result<Option<i64>, StoreError> {
        let row: Number = self
            .read("next_callback", |tx| {
                Box::pin(async move { tx.one(&NEXT_CALLBACK, vec![]).await })
            })
            .await?;
        Ok(row.n)
    }

    /// Records how a try ended; a delivered or given-up callback lets its task go from CALLBACK to FINISHED.
    /// Returns the task when it did.
    pub async fn settle_callback(&self, task_id: i64, settled: Settled) -> Result<Option<i64>, StoreError> {
        self.write("settle_callback", Class::Api, move |tx| {
            let (status, error, wait) = match settled.clone() {
                Settled::Delivered => ("delivered", String::new(), 0),
                Settled::Failed(error) => ("failed", error, 0),
                Settled::Again(error, wait) => ("pending", error, wait),
            };
            Box::pin(async move {
                let changed = tx
                    .exec(
                        &SETTLE_CALLBACK,
                        vec![task_id.into(), status.into(), error.into(), wait.into()],
                    )
                    .await?;
                if changed == 0 || status == "pending" {
                    return Ok(None);
                }
                let done: Option<OnlyId> = tx.opt(&CALLBACK_DONE, vec![task_id.into()]).await?;
                Ok(done.map(|row| row.id))
            })
        })
        .await
    }
}
