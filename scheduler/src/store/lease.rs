//! Leases of applications: one row for each resource, whose token rises with each acquisition. Rows of leases that nobody holds are
//! forgotten after a while; the highest of their tokens is kept, so that none comes twice.

use super::audit::audit;
use super::db::{Class, Db, Tx};
use super::error::StoreError;
use super::sql::Sql;
use std::sync::Arc;
use systole_shared::limits::{LEASE_KEEP_MS, LEASES_MAX};
use systole_shared::policy::lease::{Held, is_over};

macro_rules! columns {
    () => {
        "resource, token, holder, actor, ttl_ms, acquired_ms, renewals, renewed_ms, expires_ms, revoked_by, revoke_reason, {now} AS now_ms"
    };
}

static LOCK: Sql = Sql::new(
    "lock_lease",
    concat!("SELECT ", columns!(), " FROM lease WHERE resource = $1 {for_update}"),
);
static GET: Sql = Sql::new(
    "get_lease",
    concat!("SELECT ", columns!(), " FROM lease WHERE resource = $1"),
);
static LIST: Sql = Sql::new(
    "list_leases",
    concat!(
        "SELECT ",
        columns!(),
        " FROM lease WHERE resource > $1 AND holder IS NOT NULL ORDER BY resource LIMIT $2"
    ),
);
/// Those that can be over first.
static HELD: Sql = Sql::new(
    "held_leases",
    "SELECT resource, token, renewals, ttl_ms, expires_ms, {now} AS now_ms FROM lease WHERE holder IS NOT NULL ORDER BY expires_ms LIMIT $1",
);
static COUNT: Sql = Sql::new(
    "count_leases",
    "SELECT CAST(count(*) AS BIGINT) AS n FROM (SELECT 1 FROM lease LIMIT $1) AS x",
);
static PUT: Sql = Sql::new(
    "put_lease",
    concat!(
        "INSERT INTO lease (resource, token, holder, actor, ttl_ms, acquired_ms, renewals, renewed_ms, expires_ms) \
         SELECT $1, f.token + 1, $2, $3, $4, {now}, 0, {now}, {now} + $4 FROM lease_floor AS f WHERE f.id = 1 \
         ON CONFLICT (resource) DO NOTHING RETURNING ",
        columns!()
    ),
);
static TAKE: Sql = Sql::new(
    "take_lease",
    concat!(
        "UPDATE lease SET token = token + 1, holder = $3, actor = $4, ttl_ms = $5, acquired_ms = {now}, renewals = 0, renewed_ms = {now}, \
           expires_ms = {now} + $5, revoked_by = NULL, revoke_reason = NULL WHERE resource = $1 AND token = $2 RETURNING ",
        columns!()
    ),
);
/// The row is the truth: as long as nobody took it over, it is its holder's.
static RENEW: Sql = Sql::new(
    "renew_lease",
    concat!(
        "UPDATE lease SET renewals = renewals + 1, renewed_ms = {now}, expires_ms = {now} + ttl_ms \
         WHERE resource = $1 AND token = $2 AND holder = $3 AND revoked_by IS NULL RETURNING ",
        columns!()
    ),
);
static RELEASE: Sql = Sql::new(
    "release_lease",
    "UPDATE lease SET holder = NULL, expires_ms = {now} WHERE resource = $1 AND token = $2 AND holder = $3",
);
static REVOKE: Sql = Sql::new(
    "revoke_lease",
    concat!(
        "UPDATE lease SET revoked_by = $2, revoke_reason = $3 WHERE resource = $1 AND holder IS NOT NULL AND ($4 = 0 OR token = $4) RETURNING ",
        columns!()
    ),
);
static FREE: Sql = Sql::new(
    "free_lease",
    "UPDATE lease SET holder = NULL, expires_ms = {now} WHERE resource = $1 AND token = $2",
);
/// First the floor, in a transaction of its own; the rows below it go with a later pass, when nobody reads the older floor any more.
static DELETE_OLD: Sql = Sql::new(
    "delete_leases",
    "DELETE FROM lease WHERE resource IN (SELECT l.resource FROM lease AS l WHERE l.expires_ms < {now} - $1 AND l.expires_ms < $2 - $1 \
       AND l.token <= (SELECT token FROM lease_floor WHERE id = 1) ORDER BY l.expires_ms LIMIT 1000 {skip_locked})",
);
static RAISE_FLOOR: Sql = Sql::new(
    "raise_lease_floor",
    "UPDATE lease_floor SET token = x.token FROM (SELECT max(l.token) AS token FROM lease AS l WHERE l.expires_ms < {now} - $1) AS x \
     WHERE lease_floor.id = 1 AND x.token > lease_floor.token",
);

pub static STATEMENTS: &[&Sql] = &[
    &LOCK,
    &GET,
    &LIST,
    &HELD,
    &COUNT,
    &PUT,
    &TAKE,
    &RENEW,
    &RELEASE,
    &REVOKE,
    &FREE,
    &DELETE_OLD,
    &RAISE_FLOOR,
];

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct LeaseRow {
    pub resource: String,
    pub token: i64,
    /// `None`: it is free.
    pub holder: Option<String>,
    pub actor: String,
    pub ttl_ms: i64,
    pub acquired_ms: i64,
    pub renewals: i64,
    pub renewed_ms: i64,
    pub expires_ms: i64,
    pub revoked_by: Option<String>,
    pub revoke_reason: Option<String>,
    pub now_ms: i64,
}

/// What a replica watches to see by its own clock that a lease is not renewed.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct HeldRow {
    pub resource: String,
    pub token: i64,
    pub renewals: i64,
    pub ttl_ms: i64,
    pub expires_ms: i64,
    pub now_ms: i64,
}

#[derive(sqlx::FromRow)]
struct Count {
    n: i64,
}

/// Who wants a lease.
#[derive(Clone, Debug)]
pub struct LeaseAsk {
    pub resource: String,
    /// Of this acquisition and no other one.
    pub holder: String,
    pub actor: String,
    pub ttl_ms: i64,
}

#[derive(Clone, Debug)]
pub enum Acquired {
    Granted(LeaseRow),
    Held(LeaseRow),
    /// There are too many leases.
    TooMany,
}

/// For how long a lease was seen with this token and these renewals, by this replica's own clock.
pub type Unchanged = Arc<dyn Fn(&str, i64, i64) -> Option<i64> + Send + Sync>;

async fn acquire(
    tx: &mut Tx,
    ask: &LeaseAsk,
    believed_ms: Option<i64>,
    unchanged: &Unchanged,
) -> Result<Acquired, StoreError> {
    let Some(row) = tx.opt::<LeaseRow>(&LOCK, vec![ask.resource.as_str().into()]).await? else {
        let limit = i64::try_from(LEASES_MAX).unwrap_or(i64::MAX);
        if tx.one::<Count>(&COUNT, vec![limit.into()]).await?.n >= limit {
            return Ok(Acquired::TooMany);
        }
        let args = vec![
            ask.resource.as_str().into(),
            ask.holder.as_str().into(),
            ask.actor.as_str().into(),
            ask.ttl_ms.into(),
        ];
        return match tx.opt(&PUT, args).await? {
            Some(row) => Ok(Acquired::Granted(row)),
            // Somebody else was first.
            None => Err(StoreError::Collision("two first holders of one lease".into())),
        };
    };
    if row.holder.as_deref() == Some(ask.holder.as_str()) && row.revoked_by.is_none() {
        // The same acquisition again: its answer was lost. As a renewal, so that what the holder counts from now on is true.
        let args = vec![
            ask.resource.as_str().into(),
            row.token.into(),
            ask.holder.as_str().into(),
        ];
        return Ok(Acquired::Granted(tx.one(&RENEW, args).await?));
    }
    let over = row.holder.is_none()
        || is_over(Held {
            ttl_ms: row.ttl_ms,
            expires_ms: row.expires_ms,
            now_ms: row.now_ms,
            believed_ms,
            unchanged_ms: unchanged(&row.resource, row.token, row.renewals),
        });
    if !over {
        return Ok(Acquired::Held(row));
    }
    let args = vec![
        ask.resource.as_str().into(),
        row.token.into(),
        ask.holder.as_str().into(),
        ask.actor.as_str().into(),
        ask.ttl_ms.into(),
    ];
    Ok(Acquired::Granted(tx.one(&TAKE, args).await?))
}

pub(super) async fn read_held(tx: &mut Tx, limit: i64) -> Result<Vec<HeldRow>, StoreError> {
    tx.all(&HELD, vec![limit.into()]).await
}

impl Db {
    pub async fn acquire_lease(
        &self,
        ask: LeaseAsk,
        believed_ms: Option<i64>,
        unchanged: Unchanged,
    ) -> Result<Acquired, StoreError> {
        self.write("acquire_lease", Class::Api, move |tx| {
            let (ask, unchanged) = (ask.clone(), Arc::clone(&unchanged));
            Box::pin(async move { acquire(tx, &ask, believed_ms, &unchanged).await })
        })
        .await
    }

    /// `Err`: what is there instead, if anything is.
    pub async fn renew_lease(
        &self,
        resource: String,
        token: i64,
        holder: String,
    ) -> Result<Result<LeaseRow, Option<LeaseRow>>, StoreError> {
        self.write("renew_lease", Class::Api, move |tx| {
            let (resource, holder) = (resource.clone(), holder.clone());
            Box::pin(async move {
                let args = vec![resource.as_str().into(), token.into(), holder.into()];
                match tx.opt(&RENEW, args).await? {
                    Some(row) => Ok(Ok(row)),
                    None => Ok(Err(tx.opt(&GET, vec![resource.into()]).await?)),
                }
            })
        })
        .await
    }

    /// False: it was not held any more.
    pub async fn release_lease(&self, resource: String, token: i64, holder: String) -> Result<bool, StoreError> {
        self.write("release_lease", Class::Api, move |tx| {
            let args = vec![resource.clone().into(), token.into(), holder.clone().into()];
            Box::pin(async move { Ok(tx.exec(&RELEASE, args).await? > 0) })
        })
        .await
    }

    /// Takes a lease away: it is not renewed any more, and free when it is over; with `now` at once. `token` 0: whichever it is.
    pub async fn revoke_lease(
        &self,
        resource: String,
        token: i64,
        now: bool,
        (by, reason): (String, String),
    ) -> Result<Option<LeaseRow>, StoreError> {
        self.write("revoke_lease", Class::Api, move |tx| {
            let (resource, by, reason) = (resource.clone(), by.clone(), reason.clone());
            Box::pin(async move {
                let args = vec![
                    resource.as_str().into(),
                    by.as_str().into(),
                    reason.as_str().into(),
                    token.into(),
                ];
                let Some(row) = tx.opt::<LeaseRow>(&REVOKE, args).await? else {
                    return Ok(None);
                };
                if now {
                    tx.exec(&FREE, vec![resource.as_str().into(), row.token.into()]).await?;
                }
                let action = if now { "lease free" } else { "lease revoke" };
                audit(tx, &by, action, &resource, &reason).await?;
                Ok(Some(row))
            })
        })
        .await
    }

    pub async fn lease(&self, resource: String) -> Result<Option<LeaseRow>, StoreError> {
        self.read("get_lease", move |tx| {
            let resource = resource.clone();
            Box::pin(async move { tx.opt(&GET, vec![resource.into()]).await })
        })
        .await
    }

    /// Held ones after this, by name.
    pub async fn leases(&self, after: String, limit: i64) -> Result<Vec<LeaseRow>, StoreError> {
        self.read("list_leases", move |tx| {
            let after = after.clone();
            Box::pin(async move { tx.all(&LIST, vec![after.into(), limit.into()]).await })
        })
        .await
    }

    /// For the watch of this replica: those that can be over first.
    pub async fn held_leases(&self, limit: i64) -> Result<Vec<HeldRow>, StoreError> {
        self.read("held_leases", move |tx| Box::pin(read_held(tx, limit))).await
    }

    /// Forgets leases that nobody has held for a day.
    pub async fn clean_leases(&self, until_ms: i64) -> Result<(), StoreError> {
        self.write("clean_leases", Class::Api, move |tx| {
            Box::pin(async move {
                tx.exec(&DELETE_OLD, vec![LEASE_KEEP_MS.into(), until_ms.into()])
                    .await
                    .map(drop)
            })
        })
        .await?;
        self.write("raise_lease_floor", Class::Api, move |tx| {
            Box::pin(async move { tx.exec(&RAISE_FLOOR, vec![LEASE_KEEP_MS.into()]).await.map(drop) })
        })
        .await
    }
}
