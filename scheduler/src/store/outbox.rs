//! The outbox of callbacks: claimed with a lease, delivered outside of any transaction, settled by a
//! guarded write. The outcome of the task never depends on it.

use super::db::{Class, Db, batch};
use super::error::StoreError;
use super::sql::Sql;
use serde::Serialize;
use std::sync::Arc;

/// The oldest due ones, of each receiver as many as it has room for. One that another replica takes at the same time is waited
/// for, and then not due any more.
static CLAIM_CALLBACKS: Sql = Sql::new(
    "claim_callbacks",
    "WITH room AS (SELECT e.value->>'receiver' AS receiver, CAST(e.value->>'room' AS BIGINT) AS room FROM {each:$3}), \
     due AS (SELECT c.task_id, c.receiver, c.next_at_ms FROM callback AS c WHERE c.status = 'pending' \
         AND c.next_at_ms <= (SELECT {now} + 0) AND c.receiver NOT IN (SELECT room.receiver FROM room WHERE room.room = 0) \
       ORDER BY c.next_at_ms LIMIT 256), \
     ranked AS (SELECT due.task_id, due.receiver, due.next_at_ms, \
         row_number() OVER (PARTITION BY due.receiver ORDER BY due.next_at_ms, due.task_id) AS n FROM due) \
     UPDATE callback SET next_at_ms = {now} + $1, tries = tries + 1 WHERE status = 'pending' AND next_at_ms <= {now} AND task_id IN ( \
       SELECT ranked.task_id FROM ranked LEFT JOIN room ON room.receiver = ranked.receiver WHERE ranked.n <= COALESCE(room.room, 1) \
       ORDER BY ranked.next_at_ms LIMIT $2) \
     RETURNING task_id, delivery_id, url, tries, receiver",
);
static SETTLE_CALLBACK: Sql = Sql::new(
    "settle_callback",
    "UPDATE callback SET status = $2, last_error = $3, next_at_ms = {now} + $4 WHERE task_id = $1 AND status = 'pending'",
);
static CALLBACK_DONE: Sql = Sql::new(
    "callback_done",
    "UPDATE task SET status = 6 WHERE id = $1 AND status = 5 RETURNING id",
);
pub(super) static NEXT_CALLBACK: Sql = Sql::new(
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
    pub receiver: String,
}

/// How many deliveries a receiver may get now; one that is not named may get one.
#[derive(Clone, Debug, Serialize)]
pub struct Room {
    pub receiver: String,
    pub room: usize,
}

/// Scheme, host and port of a URL.
pub fn receiver(url: &str) -> String {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    let end = url[after_scheme..]
        .find(['/', '?', '#'])
        .map_or(url.len(), |at| after_scheme + at);
    url[..end].to_ascii_lowercase()
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
    pub async fn claim_callbacks(
        &self,
        lease_ms: i64,
        limit: i64,
        rooms: Vec<Room>,
    ) -> Result<Vec<Delivery>, StoreError> {
        let rooms = Arc::new(rooms);
        self.write("claim_callbacks", Class::Api, move |tx| {
            let rooms = Arc::clone(&rooms);
            Box::pin(async move {
                let args = vec![lease_ms.into(), limit.into(), batch(&rooms)?];
                tx.all(&CLAIM_CALLBACKS, args).await
            })
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

#[cfg(test)]
mod tests {
    use super::receiver;

    #[test]
    fn a_receiver_is_scheme_host_and_port() {
        for (url, expected) in [
            ("https://Hooks.example.com/a/b?c", "https://hooks.example.com"),
            ("http://10.0.0.1:8080", "http://10.0.0.1:8080"),
            ("http://[::1]:9?x=/y", "http://[::1]:9"),
            ("odd", "odd"),
        ] {
            assert_eq!(receiver(url), expected);
        }
    }
}
