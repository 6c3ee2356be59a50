//! Tokens: those of the first start, and those that people make. Only the SHA-256 of a secret is stored.

use super::audit::audit_with;
use super::db::{Class, Db, Tx, batch};
use super::error::StoreError;
use super::sql::Sql;
use systole_shared::limits::{TOKEN_GONE_KEEP_MS, TOKENS_MAX};
use systole_shared::policy::access::Role;

static PUT_TOKEN: Sql = Sql::new(
    "put_token",
    "INSERT INTO token (name, role, hash, created_at_ms, created_by) VALUES ($1, $1, $2, {now}, $3) \
     ON CONFLICT (name) DO NOTHING",
);
/// A name that was revoked may be used again; one that is valid is left alone.
static RENEW_TOKEN: Sql = Sql::new(
    "renew_token",
    "INSERT INTO token (name, role, hash, created_at_ms, created_by) VALUES ($1, $1, $2, {now}, $3) \
     ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, created_at_ms = excluded.created_at_ms, created_by = excluded.created_by, \
       role = excluded.role, expires_at_ms = NULL, last_used_ms = NULL, revoked_at_ms = NULL, revoked_by = NULL, \
       next_hash = NULL, host = NULL",
);
pub(super) static CREATE_TOKEN: Sql = Sql::new(
    "create_token",
    "INSERT INTO token (name, role, hash, created_at_ms, created_by, expires_at_ms, host) \
     VALUES ($1, $2, $3, {now}, $4, {now} + $5, $6) \
     ON CONFLICT (name) DO UPDATE SET role = excluded.role, hash = excluded.hash, created_at_ms = excluded.created_at_ms, \
       created_by = excluded.created_by, expires_at_ms = excluded.expires_at_ms, last_used_ms = NULL, revoked_at_ms = NULL, \
       revoked_by = NULL, next_hash = NULL, host = excluded.host \
     WHERE token.revoked_at_ms IS NOT NULL OR token.expires_at_ms <= {now}",
);
pub(super) static TOKENS: Sql = Sql::new(
    "tokens",
    "SELECT name, role, hash, created_at_ms, created_by, expires_at_ms, last_used_ms, revoked_at_ms, revoked_by, next_hash, host, {now} AS now_ms \
     FROM token ORDER BY name",
);
/// Those that could make tokens for ever. Locked, so that two calls cannot each leave the other's as the last.
static LASTING_ADMINS: Sql = Sql::new(
    "lasting_admins",
    "SELECT name FROM token WHERE role = 'admin' AND revoked_at_ms IS NULL AND expires_at_ms IS NULL ORDER BY name {for_update}",
);
/// Without its hash no replica accepts it, of whatever version.
static REVOKE_TOKEN: Sql = Sql::new(
    "revoke_token",
    "UPDATE token SET hash = 'revoked ' || name, next_hash = NULL, revoked_at_ms = {now}, revoked_by = $2 WHERE name = $1 AND revoked_at_ms IS NULL",
);
static TOKEN_KNOWN: Sql = Sql::new("token_known", "SELECT name FROM token WHERE name = $1");
static TOKENS_USED: Sql = Sql::new(
    "tokens_used",
    "UPDATE token SET last_used_ms = {now} WHERE name IN (SELECT e.value->>'name' FROM {each:$1}) \
       AND (last_used_ms IS NULL OR last_used_ms < {now} - $2)",
);
/// The two of the first start stay: they would be made again.
static FORGET_TOKENS: Sql = Sql::new(
    "forget_tokens",
    "DELETE FROM token WHERE name NOT IN ('admin', 'runner') \
       AND (revoked_at_ms < {now} - $1 OR expires_at_ms < {now} - $1) AND (revoked_at_ms < $2 - $1 OR expires_at_ms < $2 - $1)",
);

pub static STATEMENTS: &[&Sql] = &[
    &PUT_TOKEN,
    &RENEW_TOKEN,
    &CREATE_TOKEN,
    &TOKENS,
    &LASTING_ADMINS,
    &REVOKE_TOKEN,
    &TOKEN_KNOWN,
    &TOKENS_USED,
    &FORGET_TOKENS,
];

/// A token as it is stored.
#[derive(Clone, Debug, Default, sqlx::FromRow)]
pub struct TokenRow {
    pub name: String,
    pub role: String,
    /// SHA-256 of the secret, hex; no hash at all when it is revoked.
    pub hash: String,
    pub created_at_ms: i64,
    pub created_by: String,
    pub expires_at_ms: Option<i64>,
    pub last_used_ms: Option<i64>,
    pub revoked_at_ms: Option<i64>,
    pub revoked_by: Option<String>,
    /// Of the secret that follows, until it is used.
    pub next_hash: Option<String>,
    /// The one host that it speaks for: of tokens of hosts that joined.
    pub host: Option<String>,
    /// The database's clock when it was read.
    pub now_ms: i64,
}

impl TokenRow {
    pub fn is_valid(&self) -> bool {
        self.revoked_at_ms.is_none() && self.expires_at_ms.is_none_or(|at| at > self.now_ms)
    }
}

/// A token to make.
#[derive(Clone, Debug)]
pub struct NewToken {
    pub name: String,
    pub role: Role,
    pub hash: String,
    pub valid_for_ms: Option<i64>,
    pub by: String,
    pub reason: String,
}

/// What became of it.
#[derive(Clone, Debug)]
pub enum Created {
    New(TokenRow),
    /// The same call was made before.
    Existing(TokenRow),
    /// The name, or the secret, belongs to another valid token of this name.
    Taken(String),
    /// There are as many as there may be.
    Full,
}

/// What became of a token that is to be revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    Now,
    Before,
    Unknown,
    /// Nobody could make tokens any more.
    LastAdmin,
}

#[derive(Clone, serde::Serialize, sqlx::FromRow)]
struct OnlyName {
    name: String,
}

pub(super) async fn read_tokens(tx: &mut Tx) -> Result<Vec<TokenRow>, StoreError> {
    tx.all(&TOKENS, vec![]).await
}

impl Db {
    pub async fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.read("tokens", |tx| Box::pin(read_tokens(tx))).await
    }

    /// A token of the first start. True when this replica's was stored; false when another one was first.
    pub async fn put_token(
        &self,
        name: &'static str,
        hash: String,
        by: String,
        renew: bool,
    ) -> Result<bool, StoreError> {
        let (sql, action) = if renew {
            (&RENEW_TOKEN, "token renew")
        } else {
            (&PUT_TOKEN, "token create")
        };
        self.write("put_token", Class::Api, move |tx| {
            let (hash, by) = (hash.clone(), by.clone());
            Box::pin(async move {
                let done = tx.exec(sql, vec![name.into(), hash.into(), by.as_str().into()]).await? == 1;
                if done {
                    let reason = if renew {
                        "started with --renew-tokens"
                    } else {
                        "first start"
                    };
                    audit_with(tx, &by, action, (name, &detail(name, None)), reason).await?;
                }
                Ok(done)
            })
        })
        .await
    }

    pub async fn create_token(&self, new: NewToken) -> Result<Created, StoreError> {
        self.write("create_token", Class::Api, move |tx| {
            let new = new.clone();
            Box::pin(async move {
                let known: Vec<TokenRow> = tx.all(&TOKENS, vec![]).await?;
                let same_secret = known.iter().find(|row| row.hash == new.hash);
                match (known.iter().find(|row| row.name == new.name), same_secret) {
                    (Some(row), _) if row.hash == new.hash && row.role == new.role.name() && row.is_valid() => {
                        return Ok(Created::Existing(row.clone()));
                    }
                    (Some(row), _) if row.is_valid() => return Ok(Created::Taken(row.name.clone())),
                    (_, Some(row)) => return Ok(Created::Taken(row.name.clone())),
                    (None, None) if known.len() >= TOKENS_MAX => return Ok(Created::Full),
                    _ => {}
                }
                let args = vec![
                    new.name.as_str().into(),
                    new.role.name().into(),
                    new.hash.as_str().into(),
                    new.by.as_str().into(),
                    new.valid_for_ms.into(),
                    Option::<String>::None.into(),
                ];
                if tx.exec(&CREATE_TOKEN, args).await? == 0 {
                    return Ok(Created::Taken(new.name.clone())); // Made by another call since it was looked up.
                }
                let known: Vec<TokenRow> = tx.all(&TOKENS, vec![]).await?;
                let row = known
                    .into_iter()
                    .find(|row| row.name == new.name)
                    .ok_or_else(|| StoreError::Other("the token vanished".into()))?;
                let detail = detail(new.role.name(), row.expires_at_ms);
                audit_with(tx, &new.by, "token create", (&new.name, &detail), &new.reason).await?;
                Ok(Created::New(row))
            })
        })
        .await
    }

    pub async fn revoke_token(&self, name: String, by: String, reason: String) -> Result<Revoked, StoreError> {
        self.write("revoke_token", Class::Api, move |tx| {
            let (name, by, reason) = (name.clone(), by.clone(), reason.clone());
            Box::pin(async move {
                let admins: Vec<OnlyName> = tx.all(&LASTING_ADMINS, vec![]).await?;
                if matches!(admins.as_slice(), [last] if last.name == name) {
                    return Ok(Revoked::LastAdmin);
                }
                let args = vec![name.as_str().into(), by.as_str().into()];
                if tx.exec(&REVOKE_TOKEN, args).await? == 1 {
                    audit_with(tx, &by, "token revoke", (&name, ""), &reason).await?;
                    return Ok(Revoked::Now);
                }
                let known: Option<OnlyName> = tx.opt(&TOKEN_KNOWN, vec![name.as_str().into()]).await?;
                Ok(if known.is_some() {
                    Revoked::Before
                } else {
                    Revoked::Unknown
                })
            })
        })
        .await
    }

    /// Notes that these were used; a use within `fresh_ms` of the one before is not written.
    pub async fn tokens_used(&self, names: Vec<String>, fresh_ms: i64) -> Result<(), StoreError> {
        let names: Vec<OnlyName> = names.into_iter().map(|name| OnlyName { name }).collect();
        self.write("tokens_used", Class::Api, move |tx| {
            let names = names.clone();
            Box::pin(async move {
                tx.exec(&TOKENS_USED, vec![batch(&names)?, fresh_ms.into()])
                    .await
                    .map(drop)
            })
        })
        .await
    }

    /// Forgets tokens that were revoked, or expired, long ago.
    pub async fn forget_tokens(&self, until_ms: i64) -> Result<u64, StoreError> {
        self.write("forget_tokens", Class::Api, move |tx| {
            Box::pin(async move {
                tx.exec(&FORGET_TOKENS, vec![TOKEN_GONE_KEEP_MS.into(), until_ms.into()])
                    .await
            })
        })
        .await
    }
}

pub(super) fn detail(role: &str, expires_at_ms: Option<i64>) -> String {
    match expires_at_ms {
        Some(at) => format!("{role}, until {}", systole_shared::time::format_utc(at)),
        None => role.to_owned(),
    }
}
