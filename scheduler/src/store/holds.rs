//! What a person must confirm before it goes on: hosts that are ahead of a database that was set back, and a clock that
//! jumped.

use super::audit::audit;
use super::db::{Class, Db, Tx, batch};
use super::error::StoreError;
use super::read;
use super::sql::{Dialect, Sql};
use serde::Serialize;
use std::collections::HashSet;
use std::sync::Arc;
use systole_shared::plural::counted;
use systole_shared::policy::restore::is_credible;

static PUT_AHEAD: Sql = Sql::new(
    "put_ahead",
    "INSERT INTO ahead (host, max_task_id, seen_ms) \
     SELECT e.value->>'host', CAST(e.value->>'max_task_id' AS BIGINT), {now} FROM {each:$1} WHERE TRUE \
     ON CONFLICT (host) DO UPDATE SET max_task_id = excluded.max_task_id, seen_ms = excluded.seen_ms \
     WHERE ahead.max_task_id < excluded.max_task_id",
);
static AHEAD: Sql = Sql::new(
    "ahead",
    "SELECT host, max_task_id, seen_ms FROM ahead ORDER BY host LIMIT 10000",
);
static FORGET_AHEAD: Sql = Sql::new("forget_ahead", "DELETE FROM ahead");
static RAISE_IDS_POSTGRES: Sql = Sql::new(
    "raise_ids_postgres",
    "SELECT setval('task_id_seq', $1) AS id FROM task_id_seq WHERE last_value < $1",
);
static ADD_SEQUENCE_SQLITE: Sql = Sql::new(
    "add_sequence_sqlite",
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'task', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'task')",
);
static RAISE_IDS_SQLITE: Sql = Sql::new(
    "raise_ids_sqlite",
    "UPDATE sqlite_sequence SET seq = $1 WHERE name = 'task' AND seq < $1",
);
static CONFIRM_CLOCK: Sql = Sql::new(
    "confirm_clock",
    "INSERT INTO setting (name, value) VALUES ('clock_confirmed_ms', CAST({now} AS TEXT)) \
     ON CONFLICT (name) DO UPDATE SET value = excluded.value",
);
static CLOCK_CONFIRMED: Sql = Sql::new(
    "clock_confirmed",
    "SELECT CAST(value AS BIGINT) AS ms FROM setting WHERE name = 'clock_confirmed_ms'",
);

pub static STATEMENTS: &[&Sql] = &[&PUT_AHEAD, &AHEAD, &FORGET_AHEAD, &CONFIRM_CLOCK, &CLOCK_CONFIRMED];

/// Ids that are passed over besides those that hosts have named: given to clients, and lost before a host had them.
const IDS_PASSED_OVER: i64 = 10_000;

/// A host that has held a newer task than the database ever gave.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct AheadRow {
    pub host: String,
    pub max_task_id: i64,
    pub seen_ms: i64,
}

#[derive(Serialize)]
struct AheadJson {
    host: String,
    max_task_id: i64,
}

/// The hosts that are ahead, inside a transaction.
pub async fn hosts_ahead(tx: &mut Tx) -> Result<HashSet<String>, StoreError> {
    let rows: Vec<AheadRow> = tx.all(&AHEAD, vec![]).await?;
    Ok(rows.into_iter().map(|row| row.host).collect())
}

/// Only up to where a host may be believed: ids that are used up never come back.
async fn raise(tx: &mut Tx, highest: i64) -> Result<(), StoreError> {
    let newest = read::newest_task_id(tx).await?.id;
    if newest >= highest || !is_credible(highest, newest) {
        return Ok(());
    }
    let to = highest.saturating_add(IDS_PASSED_OVER);
    let sql = match tx.dialect() {
        Dialect::Postgres => &RAISE_IDS_POSTGRES,
        Dialect::Sqlite => {
            tx.exec(&ADD_SEQUENCE_SQLITE, vec![]).await?;
            &RAISE_IDS_SQLITE
        }
    };
    tx.exec(sql, vec![to.into()]).await.map(drop)
}

#[derive(sqlx::FromRow)]
struct Ms {
    ms: i64,
}

pub(super) async fn read_ahead(tx: &mut Tx) -> Result<Vec<AheadRow>, StoreError> {
    tx.all(&AHEAD, vec![]).await
}

impl Db {
    /// Remembers hosts that are ahead.
    pub async fn put_ahead(&self, hosts: Vec<(String, i64)>) -> Result<(), StoreError> {
        let rows: Arc<Vec<AheadJson>> = Arc::new(
            hosts
                .into_iter()
                .map(|(host, max_task_id)| AheadJson { host, max_task_id })
                .collect(),
        );
        self.write("put_ahead", Class::Api, move |tx| {
            let rows = Arc::clone(&rows);
            Box::pin(async move { tx.exec(&PUT_AHEAD, vec![batch(&rows)?]).await.map(drop) })
        })
        .await
    }

    /// Moves the ids past what hosts have named, so that none is given twice. Only when their rows were stored some time
    /// ago: a sequence shows its new value at once, also to a statement that began before the rows were there.
    pub async fn raise_ids(&self, highest: i64) -> Result<(), StoreError> {
        self.write("raise_ids", Class::Api, move |tx| Box::pin(raise(tx, highest)))
            .await
    }

    pub async fn ahead(&self) -> Result<Vec<AheadRow>, StoreError> {
        self.read("ahead", |tx| Box::pin(read_ahead(tx))).await
    }

    /// A person says that the database is as it is to be: hosts that are ahead get tasks again. Returns how many.
    pub async fn confirm_restore(&self, by: String, reason: String) -> Result<u64, StoreError> {
        self.write("confirm_restore", Class::Api, move |tx| {
            let (by, reason) = (by.clone(), reason.clone());
            Box::pin(async move {
                // Who is as quick as the first poll after the hosts' rows would find them ahead once more.
                let rows: Vec<AheadRow> = tx.all(&AHEAD, vec![]).await?;
                let newest = read::newest_task_id(tx).await?.id;
                let named = rows.iter().map(|row| row.max_task_id);
                if let Some(highest) = named.filter(|&id| is_credible(id, newest)).max() {
                    raise(tx, highest).await?;
                }
                let hosts = tx.exec(&FORGET_AHEAD, vec![]).await?;
                if hosts > 0 {
                    audit(tx, &by, "confirm restore", &counted(hosts, "host"), &reason).await?;
                }
                Ok(hosts)
            })
        })
        .await
    }

    /// A person says that the database's clock is right now.
    pub async fn confirm_clock(&self, by: String, reason: String) -> Result<(), StoreError> {
        self.write("confirm_clock", Class::Api, move |tx| {
            let (by, reason) = (by.clone(), reason.clone());
            Box::pin(async move {
                tx.exec(&CONFIRM_CLOCK, vec![]).await?;
                audit(tx, &by, "confirm clock", "database", &reason).await
            })
        })
        .await
    }

    /// The database's time when a person last said that it is right.
    pub async fn clock_confirmed_ms(&self) -> Result<Option<i64>, StoreError> {
        let row: Option<Ms> = self
            .read("clock_confirmed", |tx| {
                Box::pin(async move { tx.opt(&CLOCK_CONFIRMED, vec![]).await })
            })
            .await?;
        Ok(row.map(|row| row.ms))
    }
}
