//! Freezes: what is neither dispatched nor fired.
//!
//! A claim is planned with what this replica knows of freezes, and names the generation of that knowledge in the statement that
//! locks tasks: with an older one it gets nothing. So the memory of a replica saves work, and the row decides. Who freezes locks
//! `runner` and `job_trigger` against the transactions that claim and fire: each of those was committed before, or sees the freeze.

use super::audit::audit_with;
use super::cordon::Until;
use super::db::{Class, Db, Tx};
use super::error::StoreError;
use super::sql::{Dialect, Sql};
use systole_shared::limits::{DURATION_MS_MAX, FREEZES_MAX};
use systole_shared::policy::freeze::{Freeze, Scope};
use systole_shared::time::format_utc;

static IN_FORCE: Sql = Sql::new(
    "freezes_in_force",
    "SELECT s.generation, s.thawing, {now} AS now_ms, f.scope, f.name, f.frozen_by, f.reason, f.since_ms, f.until_ms, f.ended_ms \
     FROM freeze_state AS s LEFT JOIN frozen AS f ON f.ended_ms IS NULL WHERE s.id = 1 ORDER BY f.id",
);
/// In force, or ended after `$1`. The newest first, should there be more than anybody sets.
static SINCE: Sql = Sql::new(
    "freezes_since",
    "SELECT scope, name, frozen_by, reason, since_ms, until_ms, ended_ms FROM frozen WHERE ended_ms IS NULL OR ended_ms > $1 \
     ORDER BY id DESC LIMIT 1000",
);
/// Waits for whoever claims or fires, and keeps others from it until the commit. SQLite has one writer anyway.
static LOCK_ALL: Sql = Sql::new(
    "lock_claims_and_fires",
    "LOCK TABLE runner, job_trigger IN EXCLUSIVE MODE",
);
static LOCK_FIRES: Sql = Sql::new("lock_fires", "LOCK TABLE job_trigger IN EXCLUSIVE MODE");
static CHANGE: Sql = Sql::new(
    "change_freeze",
    "UPDATE frozen SET until_ms = $3, frozen_by = $4, reason = $5 WHERE scope = $1 AND name = $2 AND ended_ms IS NULL \
     RETURNING scope, name, frozen_by, reason, since_ms, until_ms, ended_ms",
);
static PUT: Sql = Sql::new(
    "put_freeze",
    "INSERT INTO frozen (scope, name, until_ms, frozen_by, reason, since_ms) VALUES ($1, $2, $3, $4, $5, {now}) \
     RETURNING scope, name, frozen_by, reason, since_ms, until_ms, ended_ms",
);
static LIFT: Sql = Sql::new(
    "lift_freeze",
    "UPDATE frozen SET ended_ms = {now} WHERE scope = $1 AND name = $2 AND ended_ms IS NULL \
     RETURNING scope, name, frozen_by, reason, since_ms, until_ms, ended_ms",
);
/// `$1`: the latest time that is believed. Their end is the one that was said, whenever this is done.
static END: Sql = Sql::new(
    "end_freezes",
    "UPDATE frozen SET ended_ms = until_ms WHERE ended_ms IS NULL AND until_ms <= {now} AND {now} <= $1 \
     RETURNING scope, name, frozen_by, reason, since_ms, until_ms, ended_ms",
);
/// `$1` 1: triggers that were put aside are to be looked at.
static NEXT_GENERATION: Sql = Sql::new(
    "next_freeze_generation",
    "UPDATE freeze_state SET generation = generation + 1, thawing = CASE WHEN $1 = 1 THEN TRUE ELSE thawing END WHERE id = 1",
);
static THAW: Sql = Sql::new(
    "thaw_triggers",
    "UPDATE job_trigger SET due_ms = next_ms, frozen = FALSE \
     WHERE id IN (SELECT t.id FROM job_trigger AS t WHERE t.frozen ORDER BY t.id LIMIT 2000 {for_update})",
);
/// Unless something was lifted since.
static THAWED: Sql = Sql::new(
    "thawed",
    "UPDATE freeze_state SET thawing = FALSE WHERE id = 1 AND generation = $1",
);
static DELETE_OLD: Sql = Sql::new(
    "delete_freezes",
    "DELETE FROM frozen WHERE ended_ms < {now} - $1 AND ended_ms < $2 - $1",
);

pub static STATEMENTS: &[&Sql] = &[
    &IN_FORCE,
    &SINCE,
    &CHANGE,
    &PUT,
    &LIFT,
    &END,
    &NEXT_GENERATION,
    &THAW,
    &THAWED,
    &DELETE_OLD,
];

/// Who stands in the audit for freezes that ended because of the time.
const BY_TIME: &str = "scheduler";

/// What is frozen, with the number of this knowledge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frozen {
    pub generation: i64,
    pub freezes: Vec<Freeze>,
    /// Triggers that were put aside wait to be looked at.
    pub thawing: bool,
    pub now_ms: i64,
}

#[derive(sqlx::FromRow)]
struct StateRow {
    generation: i64,
    thawing: bool,
    now_ms: i64,
    scope: Option<String>,
    name: Option<String>,
    frozen_by: Option<String>,
    reason: Option<String>,
    since_ms: Option<i64>,
    until_ms: Option<i64>,
    ended_ms: Option<i64>,
}

impl StateRow {
    fn freeze(self) -> Option<Freeze> {
        let row = FreezeRow {
            scope: self.scope?,
            name: self.name?,
            frozen_by: self.frozen_by?,
            reason: self.reason?,
            since_ms: self.since_ms?,
            until_ms: self.until_ms,
            ended_ms: self.ended_ms,
        };
        Some(row.into())
    }
}

#[derive(sqlx::FromRow)]
struct FreezeRow {
    scope: String,
    name: String,
    frozen_by: String,
    reason: String,
    since_ms: i64,
    until_ms: Option<i64>,
    ended_ms: Option<i64>,
}

impl From<FreezeRow> for Freeze {
    fn from(row: FreezeRow) -> Self {
        // The table holds these three kinds and no other.
        let scope = match row.scope.as_str() {
            "queue" => Scope::Queue(row.name),
            "tag" => Scope::Tag(row.name),
            _ => Scope::All,
        };
        Self {
            scope,
            by: row.frozen_by,
            reason: row.reason,
            since_ms: row.since_ms,
            until_ms: row.until_ms,
            ended_ms: row.ended_ms,
        }
    }
}

/// What a person wants frozen.
#[derive(Clone, Debug)]
pub struct FreezeOrder {
    pub scope: Scope,
    pub until: Until,
    pub by: String,
    pub reason: String,
}

#[derive(Clone, Debug)]
pub enum Frost {
    /// `already`: it was frozen before, and has a new end and reason.
    Done { freeze: Freeze, already: bool },
    /// The time is over, or too far away; the database's time.
    BadTime { now_ms: i64 },
    /// There are so many freezes already.
    TooMany,
}

/// In force, or ended after this. Call it with the triggers locked that it decides about.
pub async fn since(tx: &mut Tx, ended_ms: i64) -> Result<Vec<Freeze>, StoreError> {
    let rows: Vec<FreezeRow> = tx.all(&SINCE, vec![ended_ms.into()]).await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

pub(super) async fn in_force(tx: &mut Tx) -> Result<Frozen, StoreError> {
    let rows: Vec<StateRow> = tx.all(&IN_FORCE, vec![]).await?;
    let Some(first) = rows.first() else {
        return Err(StoreError::Other("freeze_state has no row".into()));
    };
    Ok(Frozen {
        generation: first.generation,
        thawing: first.thawing,
        now_ms: first.now_ms,
        freezes: rows.into_iter().filter_map(StateRow::freeze).collect(),
    })
}

async fn lock(tx: &mut Tx, sql: &'static Sql) -> Result<(), StoreError> {
    match tx.dialect() {
        Dialect::Postgres => tx.exec(sql, vec![]).await.map(drop),
        Dialect::Sqlite => Ok(()),
    }
}

async fn freeze(tx: &mut Tx, order: &FreezeOrder) -> Result<Frost, StoreError> {
    lock(tx, &LOCK_ALL).await?;
    let known = in_force(tx).await?;
    let until_ms = order.until.at_ms(known.now_ms);
    let latest = known
        .now_ms
        .saturating_add(i64::try_from(DURATION_MS_MAX).unwrap_or(i64::MAX));
    if until_ms.is_some_and(|ms| ms <= known.now_ms || ms > latest) {
        return Ok(Frost::BadTime { now_ms: known.now_ms });
    }
    let args = vec![
        order.scope.kind().into(),
        order.scope.name().into(),
        until_ms.into(),
        order.by.as_str().into(),
        order.reason.as_str().into(),
    ];
    let already = known.freezes.iter().any(|freeze| freeze.scope == order.scope);
    if !already && known.freezes.len() >= FREEZES_MAX {
        return Ok(Frost::TooMany);
    }
    let row: FreezeRow = tx.one(if already { &CHANGE } else { &PUT }, args).await?;
    // One that ends sooner than before must not keep triggers until its old end.
    tx.exec(&NEXT_GENERATION, vec![i64::from(already).into()]).await?;
    let detail = until_ms.map_or_else(String::new, |ms| format!("until {}", format_utc(ms)));
    let subject = order.scope.words();
    audit_with(tx, &order.by, "pause", (&subject, &detail), &order.reason).await?;
    Ok(Frost::Done {
        freeze: row.into(),
        already,
    })
}

async fn lift(tx: &mut Tx, scope: &Scope, by: &str, reason: &str) -> Result<(Option<Freeze>, Frozen), StoreError> {
    lock(tx, &LOCK_FIRES).await?;
    let row: Option<FreezeRow> = tx.opt(&LIFT, vec![scope.kind().into(), scope.name().into()]).await?;
    if row.is_some() {
        tx.exec(&NEXT_GENERATION, vec![1.into()]).await?;
        audit_with(tx, by, "resume", (&scope.words(), ""), reason).await?;
    }
    Ok((row.map(Into::into), in_force(tx).await?))
}

impl Db {
    /// What is frozen now, without a write.
    pub async fn frozen(&self) -> Result<Frozen, StoreError> {
        self.read("frozen", |tx| Box::pin(in_force(tx))).await
    }

    pub async fn freeze(&self, order: FreezeOrder) -> Result<Frost, StoreError> {
        self.write("freeze", Class::Api, move |tx| {
            let order = order.clone();
            Box::pin(async move { freeze(tx, &order).await })
        })
        .await
    }

    /// What was lifted, and what is in force after that.
    pub async fn lift_freeze(
        &self,
        scope: Scope,
        by: String,
        reason: String,
    ) -> Result<(Option<Freeze>, Frozen), StoreError> {
        self.write("lift_freeze", Class::Api, move |tx| {
            let (scope, by, reason) = (scope.clone(), by.clone(), reason.clone());
            Box::pin(async move { lift(tx, &scope, &by, &reason).await })
        })
        .await
    }

    /// Ends what is over, and not after `until_ms`. Triggers that it held are due then by themselves.
    pub async fn end_freezes(&self, until_ms: i64) -> Result<usize, StoreError> {
        self.write("end_freezes", Class::Api, move |tx| {
            Box::pin(async move {
                let rows: Vec<FreezeRow> = tx.all(&END, vec![until_ms.into()]).await?;
                let ended: Vec<Freeze> = rows.into_iter().map(Into::into).collect();
                if ended.is_empty() {
                    return Ok(0);
                }
                tx.exec(&NEXT_GENERATION, vec![0.into()]).await?;
                for freeze in &ended {
                    audit_with(tx, BY_TIME, "resume", (&freeze.scope.words(), ""), "its time is over").await?;
                }
                Ok(ended.len())
            })
        })
        .await
    }

    /// One bounded step: triggers that were put aside are due again. With none left, nothing is to be thawed as of this generation.
    pub async fn thaw(&self, generation: i64) -> Result<u64, StoreError> {
        self.write("thaw", Class::Api, move |tx| {
            Box::pin(async move {
                let thawed = tx.exec(&THAW, vec![]).await?;
                if thawed == 0 {
                    tx.exec(&THAWED, vec![generation.into()]).await?;
                }
                Ok(thawed)
            })
        })
        .await
    }

    /// Forgets freezes that ended longer ago than this.
    pub async fn clean_freezes(&self, keep_ms: i64, until_ms: i64) -> Result<(), StoreError> {
        self.write("clean_freezes", Class::Api, move |tx| {
            Box::pin(async move {
                tx.exec(&DELETE_OLD, vec![keep_ms.into(), until_ms.into()])
                    .await
                    .map(drop)
            })
        })
        .await
    }
}
