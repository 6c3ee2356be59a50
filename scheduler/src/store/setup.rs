//! What a replica reads and writes once at its start: cluster facts.

use super::db::{Class, Db};
use super::error::StoreError;
use super::sql::{Dialect, Sql};

static PUT_SETTING: Sql = Sql::new(
    "put_setting",
    "INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
);
static REPLACE_SETTING: Sql = Sql::new(
    "replace_setting",
    "INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
);
static GET_SETTING: Sql = Sql::new("get_setting", "SELECT value FROM setting WHERE name = $1");
static POSTGRES_FACTS: Sql = Sql::new(
    "postgres_facts",
    "SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit, \
     current_setting('transaction_read_only') AS read_only, current_setting('server_version') AS version, \
     pg_is_in_recovery() AS standby",
);
static SQLITE_FACTS: Sql = Sql::new("sqlite_facts", "SELECT sqlite_version() AS version");
static NOW: Sql = Sql::new("now", "SELECT {now} AS now_ms");
static TICK: Sql = Sql::new(
    "tick",
    "INSERT INTO replica (name, version, seen_ms) VALUES ($1, $2, {now}) \
     ON CONFLICT (name) DO UPDATE SET version = excluded.version, seen_ms = excluded.seen_ms RETURNING {now} AS now_ms",
);

static LEAVE: Sql = Sql::new("leave", "DELETE FROM replica WHERE name = $1");

#[derive(sqlx::FromRow)]
struct Value {
    value: String,
}

#[derive(sqlx::FromRow)]
struct PostgresFacts {
    fsync: String,
    synchronous_commit: String,
    read_only: String,
    version: String,
    standby: bool,
}

#[derive(sqlx::FromRow)]
struct Version {
    version: String,
}

#[derive(sqlx::FromRow)]
struct Now {
    now_ms: i64,
}

impl Db {
    /// The value of a cluster fact; the first replica that proposes one decides it.
    pub async fn setting(&self, name: &'static str, proposal: String) -> Result<String, StoreError> {
        self.write("setting", Class::Api, move |tx| {
            let proposal = proposal.clone();
            Box::pin(async move {
                tx.exec(&PUT_SETTING, vec![name.into(), proposal.into()]).await?;
                Ok(tx.one::<Value>(&GET_SETTING, vec![name.into()]).await?.value)
            })
        })
        .await
    }

    /// The value of a cluster fact, if one was decided.
    pub async fn known_setting(&self, name: &'static str) -> Result<Option<String>, StoreError> {
        let known: Option<Value> = self
            .read("known_setting", move |tx| {
                Box::pin(async move { tx.opt(&GET_SETTING, vec![name.into()]).await })
            })
            .await?;
        Ok(known.map(|known| known.value))
    }

    /// Decides a cluster fact anew.
    pub async fn replace_setting(&self, name: &'static str, value: String) -> Result<(), StoreError> {
        self.write("replace_setting", Class::Api, move |tx| {
            let value = value.clone();
            Box::pin(async move {
                tx.exec(&REPLACE_SETTING, vec![name.into(), value.into()])
                    .await
                    .map(drop)
            })
        })
        .await
    }

    /// Refuses a database that may lose acknowledged commits. Returns its version, for people.
    pub async fn check_safety(&self, allow_unsafe: bool) -> Result<String, StoreError> {
        if self.dialect() == Dialect::Sqlite {
            let facts: Version = self
                .read("facts", |tx| {
                    Box::pin(async move { tx.one(&SQLITE_FACTS, vec![]).await })
                })
                .await?;
            return Ok(format!("SQLite {}", facts.version));
        }
        let facts: PostgresFacts = self
            .read("facts", |tx| {
                Box::pin(async move { tx.one(&POSTGRES_FACTS, vec![]).await })
            })
            .await?;
        if facts.standby || facts.read_only == "on" {
            return Err(StoreError::Schema(
                "this PostgreSQL is a standby or read-only. Give the URL of the primary".into(),
            ));
        }
        let lax: Vec<&str> = [
            ("fsync", &facts.fsync),
            ("synchronous_commit", &facts.synchronous_commit),
        ]
        .into_iter()
        .filter(|(_, value)| *value == "off")
        .map(|(name, _)| name)
        .collect();
        if !lax.is_empty() {
            let what = lax.join(" and ");
            if !allow_unsafe {
                return Err(StoreError::Schema(format!(
                    "this PostgreSQL runs with {what} = off, so it may lose tasks it has acknowledged. Switch it on, or start with --allow-unsafe-database"
                )));
            }
            tracing::warn!("PostgreSQL runs with {what} = off: a power cut may lose acknowledged tasks");
        }
        Ok(format!("PostgreSQL {}", facts.version.split(' ').next().unwrap_or("")))
    }

    /// The database's clock, ms since the epoch.
    pub async fn now_ms(&self) -> Result<i64, StoreError> {
        Ok(self
            .read("now", |tx| Box::pin(async move { tx.one::<Now>(&NOW, vec![]).await }))
            .await?
            .now_ms)
    }

    /// Proves that this replica can commit. Returns the database's clock.
    pub async fn tick(&self, replica: String) -> Result<i64, StoreError> {
        self.write("tick", Class::Beats, move |tx| {
            let replica = replica.clone();
            let args = vec![replica.into(), env!("CARGO_PKG_VERSION").into()];
            Box::pin(async move { Ok(tx.one::<Now>(&TICK, args).await?.now_ms) })
        })
        .await
    }

    /// A replica that ends is no longer there.
    pub async fn leave(&self, replica: String) -> Result<(), StoreError> {
        self.write("leave", Class::Beats, move |tx| {
            let args = vec![replica.clone().into()];
            Box::pin(async move { tx.exec(&LEAVE, args).await.map(drop) })
        })
        .await
    }
}

/// For the test that prepares every statement.
pub static STATEMENTS: &[&Sql] = &[&PUT_SETTING, &REPLACE_SETTING, &GET_SETTING, &NOW, &TICK, &LEAVE];
