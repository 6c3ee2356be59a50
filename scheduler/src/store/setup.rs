//! What a replica reads and writes once at its start: cluster facts and first tokens.

use super::db::{Class, Db};
use super::error::StoreError;
use super::sql::{Dialect, Sql};

static PUT_SETTING: Sql = Sql::new(
    "put_setting",
    "INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
);
static GET_SETTING: Sql = Sql::new("get_setting", "SELECT value FROM setting WHERE name = $1");
static PUT_TOKEN: Sql = Sql::new(
    "put_token",
    "INSERT INTO token (name, role, hash, created_at_ms, created_by) VALUES ($1, $1, $2, {now}, $3) \
     ON CONFLICT (name) DO NOTHING",
);
static RENEW_TOKEN: Sql = Sql::new(
    "renew_token",
    "INSERT INTO token (name, role, hash, created_at_ms, created_by) VALUES ($1, $1, $2, {now}, $3) \
     ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, created_at_ms = excluded.created_at_ms, created_by = excluded.created_by",
);
static TOKENS: Sql = Sql::new("tokens", "SELECT name, role, hash, created_by FROM token ORDER BY name");
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
    "INSERT INTO setting (name, value) VALUES ('last_tick', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
);

/// A token as it is stored.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct TokenRow {
    pub name: String,
    pub role: String,
    /// SHA-256 of the token, hex.
    pub hash: String,
    pub created_by: String,
}

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

    pub async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.read("tokens", |tx| Box::pin(async move { tx.all(&TOKENS, vec![]).await }))
            .await
    }

    /// True when this replica's token was stored; false when another one was first.
    pub async fn put_token(
        &self,
        name: &'static str,
        hash: String,
        by: String,
        renew: bool,
    ) -> Result<bool, StoreError> {
        let sql = if renew { &RENEW_TOKEN } else { &PUT_TOKEN };
        self.write("put_token", Class::Api, move |tx| {
            let (hash, by) = (hash.clone(), by.clone());
            Box::pin(async move { Ok(tx.exec(sql, vec![name.into(), hash.into(), by.into()]).await? == 1) })
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

    /// Proves that this replica can commit.
    pub async fn tick(&self, replica: String) -> Result<(), StoreError> {
        self.write("tick", Class::Beats, move |tx| {
            let replica = replica.clone();
            Box::pin(async move { tx.exec(&TICK, vec![replica.into()]).await.map(drop) })
        })
        .await
    }
}

/// For the test that prepares every statement.
pub static STATEMENTS: &[&Sql] = &[
    &PUT_SETTING,
    &GET_SETTING,
    &PUT_TOKEN,
    &RENEW_TOKEN,
    &TOKENS,
    &NOW,
    &TICK,
];
