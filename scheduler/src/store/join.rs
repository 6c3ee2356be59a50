//! Hosts that join: one-time tokens, what they are exchanged for, and secrets that follow each other.

use super::audit::audit_with;
use super::db::{Class, Db};
use super::error::StoreError;
use super::sql::Sql;
use super::tokens::{CREATE_TOKEN, TOKENS, TokenRow};
use systole_shared::limits::{JOIN_GONE_KEEP_MS, JOIN_TOKENS_MAX, JOIN_VALID_MS, TOKENS_MAX};
use systole_shared::policy::access::{Role, joined_name};
use systole_shared::time::format_utc;

static PUT_JOIN: Sql = Sql::new(
    "put_join",
    "INSERT INTO join_token (hash, created_at_ms, created_by, expires_at_ms) \
     SELECT $1, {now}, $2, {now} + $3 WHERE (SELECT COUNT(*) FROM join_token) < $4 ON CONFLICT (hash) DO NOTHING",
);
static SEE_JOIN: Sql = Sql::new(
    "see_join",
    "SELECT created_by, expires_at_ms, used_at_ms, used_for, {now} AS now_ms FROM join_token WHERE hash = $1",
);
/// Locked, so that of two hosts with one token the second one waits and is told.
static LOCK_JOIN: Sql = Sql::new(
    "lock_join",
    "SELECT created_by, expires_at_ms, used_at_ms, used_for, {now} AS now_ms FROM join_token WHERE hash = $1 {for_update}",
);
static USE_JOIN: Sql = Sql::new(
    "use_join",
    "UPDATE join_token SET used_at_ms = {now}, used_for = $2 WHERE hash = $1 AND used_at_ms IS NULL AND expires_at_ms > {now}",
);
/// The later of the two times that are known must agree: a clock that jumped must not delete.
static FORGET_JOINS: Sql = Sql::new(
    "forget_joins",
    "DELETE FROM join_token WHERE expires_at_ms < {now} - $1 AND expires_at_ms < $2 - $1",
);
static OFFER_SECRET: Sql = Sql::new(
    "offer_secret",
    "UPDATE token SET next_hash = $2 WHERE name = $1 AND revoked_at_ms IS NULL AND hash <> $2",
);
static TAKE_SECRET: Sql = Sql::new(
    "take_secret",
    "UPDATE token SET hash = next_hash, next_hash = NULL WHERE name = $1 AND next_hash = $2 AND revoked_at_ms IS NULL",
);

pub static STATEMENTS: &[&Sql] = &[
    &PUT_JOIN,
    &SEE_JOIN,
    &LOCK_JOIN,
    &USE_JOIN,
    &FORGET_JOINS,
    &OFFER_SECRET,
    &TAKE_SECRET,
];

#[derive(Clone, Debug, sqlx::FromRow)]
struct JoinRow {
    created_by: String,
    expires_at_ms: i64,
    used_at_ms: Option<i64>,
    used_for: Option<String>,
    now_ms: i64,
}

/// What became of a host that wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// The name of its token.
    As(String),
    Unknown,
    Expired(i64),
    /// When, and the token that was made of it.
    Used(i64, String),
    /// There are as many tokens as there may be.
    Full,
}

impl Db {
    /// When it expires; `None` when there are too many.
    pub async fn put_join(&self, hash: String, by: String, reason: String) -> Result<Option<i64>, StoreError> {
        self.write("put_join", Class::Api, move |tx| {
            let (hash, by, reason) = (hash.clone(), by.clone(), reason.clone());
            Box::pin(async move {
                let args = vec![
                    hash.as_str().into(),
                    by.as_str().into(),
                    JOIN_VALID_MS.into(),
                    JOIN_TOKENS_MAX.into(),
                ];
                let is_new = tx.exec(&PUT_JOIN, args).await? == 1;
                let row: Option<JoinRow> = tx.opt(&SEE_JOIN, vec![hash.as_str().into()]).await?;
                if let (true, Some(row)) = (is_new, &row) {
                    let detail = format!("until {}", format_utc(row.expires_at_ms));
                    audit_with(tx, &by, "join token", ("", &detail), &reason).await?;
                }
                Ok(row.map(|row| row.expires_at_ms))
            })
        })
        .await
    }

    /// Exchanges a join token, once, for a token of the host's own. The same call again has the same answer.
    pub async fn join(&self, join_hash: String, host: String, hash: String) -> Result<Joined, StoreError> {
        // Anybody may call this: what is not known takes no place among the writers.
        let wanted = join_hash.clone();
        let seen: Option<JoinRow> = self
            .read("see_join", move |tx| {
                let wanted = wanted.clone();
                Box::pin(async move { tx.opt(&SEE_JOIN, vec![wanted.into()]).await })
            })
            .await?;
        if seen.is_none() {
            return Ok(Joined::Unknown);
        }
        self.write("join", Class::Api, move |tx| {
            let (join_hash, host, hash) = (join_hash.clone(), host.clone(), hash.clone());
            Box::pin(async move {
                let Some(row) = tx.opt::<JoinRow>(&LOCK_JOIN, vec![join_hash.as_str().into()]).await? else {
                    return Ok(Joined::Unknown);
                };
                let known: Vec<TokenRow> = tx.all(&TOKENS, vec![]).await?;
                if let (Some(at), Some(name)) = (row.used_at_ms, row.used_for) {
                    let repeated = known.iter().any(|token| token.name == name && token.hash == hash);
                    return Ok(if repeated {
                        Joined::As(name)
                    } else {
                        Joined::Used(at, name)
                    });
                }
                if row.expires_at_ms <= row.now_ms {
                    return Ok(Joined::Expired(row.expires_at_ms));
                }
                // A host that was set up anew gets another name: its former token may be in use by somebody else.
                let free = |name: &String| !known.iter().any(|token| token.name == *name && token.is_valid());
                let name = (1..=TOKENS_MAX).map(|number| joined_name(&host, number)).find(free);
                let (Some(name), true) = (name, known.len() < TOKENS_MAX) else {
                    return Ok(Joined::Full);
                };
                let args = vec![
                    name.as_str().into(),
                    Role::Runner.name().into(),
                    hash.as_str().into(),
                    row.created_by.as_str().into(),
                    Option::<i64>::None.into(),
                    host.as_str().into(),
                ];
                if tx.exec(&CREATE_TOKEN, args).await? != 1
                    || tx
                        .exec(&USE_JOIN, vec![join_hash.as_str().into(), name.as_str().into()])
                        .await?
                        != 1
                {
                    return Err(StoreError::Busy(
                        "another host joined at the same moment; try again".into(),
                    ));
                }
                audit_with(tx, &row.created_by, "join", (&name, &format!("host {host}")), "").await?;
                Ok(Joined::As(name))
            })
        })
        .await
    }

    /// Another secret beside the present one; false: it is the present one, or the token is gone.
    pub async fn offer_secret(&self, name: String, hash: String) -> Result<bool, StoreError> {
        self.write("offer_secret", Class::Api, move |tx| {
            let args = vec![name.as_str().into(), hash.as_str().into()];
            Box::pin(async move { Ok(tx.exec(&OFFER_SECRET, args).await? == 1) })
        })
        .await
    }

    /// The secret that was offered takes the place of the one before.
    pub async fn take_secret(&self, name: String, hash: String) -> Result<bool, StoreError> {
        self.write("take_secret", Class::Api, move |tx| {
            let (name, hash) = (name.clone(), hash.clone());
            Box::pin(async move {
                let args = vec![name.as_str().into(), hash.as_str().into()];
                let done = tx.exec(&TAKE_SECRET, args).await? == 1;
                if done {
                    audit_with(tx, &name, "token rotate", (&name, ""), "").await?;
                }
                Ok(done)
            })
        })
        .await
    }

    /// Forgets join tokens that expired long ago.
    pub async fn forget_joins(&self, until_ms: i64) -> Result<u64, StoreError> {
        self.write("forget_joins", Class::Api, move |tx| {
            Box::pin(async move {
                tx.exec(&FORGET_JOINS, vec![JOIN_GONE_KEEP_MS.into(), until_ms.into()])
                    .await
            })
        })
        .await
    }
}
