//! The ledger: what became of each expected fire.

use super::super::db::{Arg, Class, Db, Tx, batch};
use super::super::error::StoreError;
use super::super::sql::Sql;
use serde::Serialize;
use std::collections::HashSet;

/// A slot that has its verdict keeps it: whoever comes second finds that out, and nothing else of the batch is spoilt.
static PUT: Sql = Sql::new(
    "put_occurrences",
    "INSERT INTO occurrence (job_id, trigger_id, trigger_name, scheduled_ms, until_ms, fires, parent_root, verdict, reason, into_ms, \
       task_id, blocked_by, misfired, at_ms) \
     SELECT CAST(e.value->>'job_id' AS BIGINT), CAST(e.value->>'trigger_id' AS BIGINT), e.value->>'trigger_name', \
       CAST(e.value->>'scheduled_ms' AS BIGINT), CAST(e.value->>'until_ms' AS BIGINT), CAST(e.value->>'fires' AS BIGINT), \
       CAST(e.value->>'parent_root' AS BIGINT), e.value->>'verdict', e.value->>'reason', CAST(e.value->>'into_ms' AS BIGINT), \
       CAST(e.value->>'task_id' AS BIGINT), CAST(e.value->>'blocked_by' AS BIGINT), CAST(e.value->>'misfired' AS BIGINT) = 1, {now} \
     FROM {each:$1} WHERE TRUE ON CONFLICT DO NOTHING RETURNING trigger_id, scheduled_ms, parent_root, task_id",
);
static NEWEST: Sql = Sql::new(
    "newest_occurrence",
    "SELECT max(until_ms) AS n FROM occurrence WHERE trigger_id = $1 AND parent_root = 0",
);
/// Of a task that was dropped before it started.
static DISCARD: Sql = Sql::new(
    "discard_occurrences",
    "UPDATE occurrence SET verdict = 'skipped', reason = 'discarded', blocked_by = $3 WHERE job_id = $1 AND verdict = 'fired' \
       AND task_id {among:$2}",
);
static DELETE_OLD: Sql = Sql::new(
    "delete_occurrences",
    "DELETE FROM occurrence WHERE id IN (SELECT id FROM occurrence WHERE at_ms < {now} - $1 AND at_ms < $2 - $1 ORDER BY at_ms LIMIT 5000)",
);

pub static STATEMENTS: &[&Sql] = &[&PUT, &NEWEST, &DISCARD, &DELETE_OLD];

/// A verdict to write.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    pub job_id: i64,
    /// `None`: somebody asked for it.
    pub trigger_id: Option<i64>,
    pub trigger_name: String,
    pub scheduled_ms: i64,
    pub until_ms: i64,
    pub fires: i64,
    pub parent_root: i64,
    pub verdict: &'static str,
    pub reason: &'static str,
    pub into_ms: Option<i64>,
    pub task_id: Option<i64>,
    pub blocked_by: Option<i64>,
    /// 0 or 1.
    pub misfired: i64,
}

#[derive(sqlx::FromRow)]
struct Written {
    trigger_id: Option<i64>,
    scheduled_ms: i64,
    parent_root: i64,
    task_id: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct Newest {
    n: Option<i64>,
}

/// Writes verdicts. Returns for each whether it was written: false where the slot had one before.
pub async fn put(tx: &mut Tx, entries: &[Entry]) -> Result<Vec<bool>, StoreError> {
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    let written: Vec<Written> = tx.all(&PUT, vec![batch(entries)?]).await?;
    let written: HashSet<(Option<i64>, i64, i64, Option<i64>)> = written
        .into_iter()
        .map(|row| (row.trigger_id, row.scheduled_ms, row.parent_root, row.task_id))
        .collect();
    Ok(entries
        .iter()
        .map(|entry| {
            let key = (entry.trigger_id, entry.scheduled_ms, entry.parent_root, entry.task_id);
            written.contains(&key)
        })
        .collect())
}

/// The end of the newest slot with a verdict.
pub async fn newest(tx: &mut Tx, trigger_id: i64) -> Result<Option<i64>, StoreError> {
    Ok(tx.one::<Newest>(&NEWEST, vec![trigger_id.into()]).await?.n)
}

pub async fn discard(tx: &mut Tx, job_id: i64, tasks: &[i64], by_root: i64) -> Result<(), StoreError> {
    if tasks.is_empty() {
        return Ok(());
    }
    tx.exec(&DISCARD, vec![job_id.into(), batch(tasks)?, by_root.into()])
        .await
        .map(drop)
}

async fn delete_old(tx: &mut Tx, keep_ms: i64, until_ms: i64) -> Result<bool, StoreError> {
    Ok(tx.exec(&DELETE_OLD, vec![keep_ms.into(), until_ms.into()]).await? > 0)
}

impl Db {
    /// One bounded step. True: there may be more.
    pub async fn clean_occurrences(&self, keep_ms: i64, until_ms: i64) -> Result<bool, StoreError> {
        self.write("clean_occurrences", Class::Api, move |tx| {
            Box::pin(async move {
                super::backfill::delete_old(tx, keep_ms, until_ms).await?;
                delete_old(tx, keep_ms, until_ms).await
            })
        })
        .await
    }
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct OccurrenceRow {
    pub id: i64,
    pub trigger_name: String,
    pub scheduled_ms: i64,
    pub until_ms: i64,
    pub fires: i64,
    pub parent_root: i64,
    pub verdict: String,
    pub reason: String,
    pub into_ms: Option<i64>,
    pub task_id: Option<i64>,
    pub blocked_by: Option<i64>,
    pub misfired: bool,
    pub at_ms: i64,
    /// What made it up, or will.
    pub backfill_id: Option<i64>,
    /// Of one that was made up: its verdict before.
    pub was: String,
}

#[derive(Clone, Debug, Default)]
pub struct OccurrenceFilter {
    pub job_id: i64,
    pub trigger: String,
    pub since_ms: Option<i64>,
    pub until_ms: Option<i64>,
    pub verdict: String,
    /// Scheduled time and id of the last row of the page before.
    pub before: Option<(i64, i64)>,
}

impl OccurrenceFilter {
    /// What follows `WHERE`, without where the time that is asked for begins, and its parameters.
    fn conditions(&self) -> (String, Vec<Arg>) {
        let mut text = String::from("job_id = $1");
        let mut args: Vec<Arg> = vec![self.job_id.into()];
        let mut add = |text: &mut String, condition: &str, arg: Arg| {
            args.push(arg);
            text.push_str(&format!(" AND {condition} ${}", args.len()));
        };
        if !self.trigger.is_empty() {
            add(&mut text, "trigger_name =", self.trigger.clone().into());
        }
        if let Some(until) = self.until_ms {
            add(&mut text, "scheduled_ms <", until.into());
        }
        if !self.verdict.is_empty() {
            add(&mut text, "verdict =", self.verdict.clone().into());
            if self.verdict != "fired" {
                text.push_str(UNFIRED);
            }
        }
        if let Some((at, id)) = self.before {
            args.push(at.into());
            args.push(id.into());
            text.push_str(&format!(
                " AND (scheduled_ms, id) < (${}, ${})",
                args.len() - 1,
                args.len()
            ));
        }
        (text, args)
    }

    /// Newest first, by scheduled time. Each part is read by an index of its own, however long the history is.
    fn query(&self, limit: i64) -> (String, Vec<Arg>) {
        let (conditions, mut args) = self.conditions();
        args.push(limit.into());
        let limit = args.len();
        let order = format!("ORDER BY scheduled_ms DESC, id DESC LIMIT ${limit}");
        let Some(since) = self.since_ms else {
            return (
                format!("SELECT {COLUMNS} FROM occurrence WHERE {conditions} {order}"),
                args,
            );
        };
        args.push(since.into());
        let since = args.len();
        // A stretch that reaches into the time asked for belongs to it. There are few; the sums keep the planner from their times.
        let elsewhere = conditions
            .replace(UNFIRED, "")
            .replace("scheduled_ms", "(scheduled_ms + 0)");
        let text = format!(
            "SELECT * FROM (SELECT {COLUMNS} FROM occurrence WHERE {conditions} AND scheduled_ms >= ${since} {order}) AS inside \
             UNION ALL SELECT * FROM (SELECT {COLUMNS} FROM occurrence WHERE {elsewhere} AND (scheduled_ms + 0) < ${since} \
               AND until_ms >= ${since} AND until_ms > scheduled_ms ORDER BY (scheduled_ms + 0) DESC, id DESC LIMIT ${limit}) AS into_it \
             {order}"
        );
        (text, args)
    }
}

/// The words of a partial index.
const UNFIRED: &str = " AND verdict <> 'fired'";
const COLUMNS: &str = "id, trigger_name, scheduled_ms, until_ms, fires, parent_root, verdict, reason, into_ms, task_id, blocked_by, misfired, \
   at_ms, backfill_id, was";

pub async fn list(tx: &mut Tx, filter: &OccurrenceFilter, limit: i64) -> Result<Vec<OccurrenceRow>, StoreError> {
    let (text, args) = filter.query(limit);
    tx.all_text(text, args).await
}
