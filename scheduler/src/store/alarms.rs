//! The outbox of alarms: written by the transaction that has the cause, once for each cause and channel (`raise.rs`); claimed with
//! a lease, delivered outside of any transaction, settled by a guarded write. What people see of it is in `list.rs`.

pub mod list;
pub mod raise;

pub use list::{AlarmRow, Filter};
pub use raise::{Again, Raise, raise, silence_held};

use super::db::{Arg, Class, Db, batch};
use super::error::StoreError;
use super::sql::Sql;
use serde::Serialize;
use std::collections::HashSet;
use std::sync::Arc;
use systole_shared::alarm::{Kind, Notice};

/// Rows that one claim looks at.
const CLAIM_MAX: i64 = 256;
/// An alarm that nobody has taken for so long goes to a channel that no scheduler knows.
const STRANDED_MS: i64 = 60_000;
/// After this it is given up.
const STRANDED_MS_MAX: i64 = 24 * 3_600_000;

pub(super) static NEXT_ALARM: Sql = Sql::new(
    "next_alarm",
    "SELECT min(next_at_ms) - {now} AS n FROM alarm WHERE status IN ('pending', 'held')",
);
/// Jobs whose silence is over and whose trouble is not: now somebody is told. `$3`: the latest time that is believed.
static DUE_HELD: Sql = Sql::new(
    "due_held",
    "SELECT DISTINCT job_id AS id FROM alarm WHERE status = 'held' AND status IN ('pending', 'held') \
       AND next_at_ms <= (SELECT {now} + 0) AND (SELECT {now} + 0) <= $3 AND kind IN ('failure', 'late') \
       AND channel IN (SELECT e.value->>'name' FROM {each:$1}) ORDER BY job_id LIMIT $2",
);
/// What is pending has its cause; what is held back has only its time, and no clock past `$3` ends a silence.
static DUE_ALARMS: Sql = Sql::new(
    "due_alarms",
    "SELECT id, channel, kind, job_id, job, notice, delivery_id, tries, raised_at_ms FROM alarm \
     WHERE status IN ('pending', 'held') AND next_at_ms <= (SELECT {now} + 0) AND (status = 'pending' OR (SELECT {now} + 0) <= $3) \
       AND channel IN (SELECT e.value->>'name' FROM {each:$1}) ORDER BY next_at_ms, id LIMIT $2 {skip_locked}",
);
static LEASE_ALARMS: Sql = Sql::new(
    "lease_alarms",
    "UPDATE alarm SET status = 'pending', next_at_ms = {now} + $2, tries = tries + 1 WHERE id {among:$1}",
);
static SETTLE_ALARM: Sql = Sql::new(
    "settle_alarm",
    "UPDATE alarm SET status = $2, last_error = $3, next_at_ms = {now} + $4, \
       settled_at_ms = CASE WHEN $2 = 'pending' THEN NULL ELSE {now} END WHERE id = $1 AND status = 'pending' AND tries = $5",
);
static STRANDED: Sql = Sql::new(
    "stranded_alarms",
    "UPDATE alarm SET last_error = $1, status = CASE WHEN next_at_ms < {now} - $3 THEN 'failed' ELSE status END, \
       settled_at_ms = CASE WHEN next_at_ms < {now} - $3 THEN {now} END \
     WHERE status IN ('pending', 'held') AND next_at_ms < {now} - $2 AND tries = 0 \
       AND (last_error <> $1 OR next_at_ms < {now} - $3) AND {now} <= $4",
);

pub static STATEMENTS: &[&Sql] = &[
    &NEXT_ALARM,
    &DUE_HELD,
    &DUE_ALARMS,
    &LEASE_ALARMS,
    &SETTLE_ALARM,
    &STRANDED,
];

#[derive(sqlx::FromRow)]
struct Number {
    n: i64,
}

#[derive(sqlx::FromRow)]
struct Wait {
    n: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

/// An alarm to deliver, leased to this replica.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Claimed {
    pub id: i64,
    pub channel: String,
    kind: String,
    pub job_id: i64,
    pub job: String,
    notice: String,
    pub delivery_id: String,
    /// Before this one.
    pub tries: i64,
    pub raised_at_ms: i64,
}

impl Claimed {
    pub fn kind(&self) -> Result<Kind, StoreError> {
        Kind::parse(&self.kind).ok_or_else(|| self.corrupt("kind"))
    }

    pub fn notice(&self) -> Result<Notice, StoreError> {
        serde_json::from_str(&self.notice).map_err(|_| self.corrupt("notice"))
    }

    fn corrupt(&self, column: &'static str) -> StoreError {
        StoreError::Corrupt {
            table: "alarm",
            column,
            id: self.id,
        }
    }
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

#[derive(Serialize)]
struct NameJson<'a> {
    name: &'a str,
}

impl Db {
    /// ms until the next alarm is due, negative when it is; `None`: none waits.
    pub async fn next_alarm(&self) -> Result<Option<i64>, StoreError> {
        let row: Wait = self
            .read("next_alarm", |tx| {
                Box::pin(async move { tx.one(&NEXT_ALARM, vec![]).await })
            })
            .await?;
        Ok(row.n)
    }

    /// Due alarms of these channels, one of each, leased for `lease_ms`. A replica that dies leaves them to the others after that.
    /// A silence ends only as far as the clock is believed.
    pub async fn claim_alarms(
        &self,
        channels: Vec<String>,
        lease_ms: i64,
        believed_ms: Option<i64>,
    ) -> Result<Vec<Claimed>, StoreError> {
        let channels = Arc::new(channels);
        let until_ms = believed_ms.unwrap_or(i64::MIN);
        self.write("claim_alarms", Class::Api, move |tx| {
            let channels = Arc::clone(&channels);
            Box::pin(async move {
                let names: Vec<NameJson<'_>> = channels.iter().map(|name| NameJson { name }).collect();
                // Before the alarms are locked: health comes first in the order.
                let args = || Ok::<_, StoreError>(vec![batch(&names)?, CLAIM_MAX.into(), until_ms.into()]);
                let held: Vec<OnlyId> = tx.all(&DUE_HELD, args()?).await?;
                let held: Vec<i64> = held.into_iter().map(|row| row.id).collect();
                super::jobs::health::set_trouble(tx, &held).await?;
                let rows: Vec<Claimed> = tx.all(&DUE_ALARMS, args()?).await?;
                let mut taken: HashSet<String> = HashSet::new();
                let first: Vec<Claimed> = rows
                    .into_iter()
                    .filter(|row| taken.insert(row.channel.clone()))
                    .collect();
                if first.is_empty() {
                    return Ok(first);
                }
                let ids: Vec<i64> = first.iter().map(|row| row.id).collect();
                tx.exec(&LEASE_ALARMS, vec![batch(&ids)?, lease_ms.into()]).await?;
                Ok(first)
            })
        })
        .await
    }

    /// Records how a try ended, unless the lease ran out and somebody else has tried since.
    pub async fn settle_alarm(&self, id: i64, tries: i64, settled: Settled) -> Result<bool, StoreError> {
        self.write("settle_alarm", Class::Api, move |tx| {
            let (status, error, wait) = match settled.clone() {
                Settled::Delivered => ("delivered", String::new(), 0),
                Settled::Failed(error) => ("failed", error, 0),
                Settled::Again(error, wait) => ("pending", error, wait),
            };
            Box::pin(async move {
                let args = vec![id.into(), status.into(), error.into(), wait.into(), tries.into()];
                Ok(tx.exec(&SETTLE_ALARM, args).await? > 0)
            })
        })
        .await
    }

    /// Says so of alarms that nobody takes, and gives them up after a day; none when the clock is past `until_ms`.
    pub async fn note_stranded(&self, until_ms: i64) -> Result<u64, StoreError> {
        self.write("stranded_alarms", Class::Api, move |tx| {
            let why = "no running scheduler has a channel of this name in its file (--alarms)";
            let args: Vec<Arg> = vec![why.into(), STRANDED_MS.into(), STRANDED_MS_MAX.into(), until_ms.into()];
            Box::pin(async move { tx.exec(&STRANDED, args).await })
        })
        .await
    }
}
