//! Who did what. An entry is written by the transaction that did it. Submissions are no entries: the task itself says
//! by whom and why, and a second row would only make each submission dearer.

use super::db::{Arg, Class, Db, Tx, batch};
use super::error::StoreError;
use super::sql::Sql;
use serde::Serialize;

static AUDIT: Sql = Sql::new(
    "audit",
    "INSERT INTO audit (at_ms, actor, action, subject, reason, detail) VALUES ({now}, $1, $2, $3, $4, $5)",
);
static AUDIT_TASKS: Sql = Sql::new(
    "audit_tasks",
    "INSERT INTO audit (at_ms, actor, action, subject, reason) SELECT {now}, $2, $3, CAST(e.value AS TEXT), $4 FROM {each:$1}",
);
static DELETE_AUDIT: Sql = Sql::new(
    "delete_audit",
    "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at_ms < {now} - $1 AND at_ms < $3 - $1 ORDER BY id LIMIT $2)",
);

pub static STATEMENTS: &[&Sql] = &[&AUDIT, &AUDIT_TASKS, &DELETE_AUDIT];

/// Entries that one step of the clean-up deletes.
const DELETE_STEP: i64 = 5_000;

/// Who did what to which part of the fleet.
pub async fn audit(tx: &mut Tx, actor: &str, action: &str, subject: &str, reason: &str) -> Result<(), StoreError> {
    audit_with(tx, actor, action, (subject, ""), reason).await
}

/// The same, with a subject and what else there is to say of it.
pub async fn audit_with(
    tx: &mut Tx,
    actor: &str,
    action: &str,
    (subject, detail): (&str, &str),
    reason: &str,
) -> Result<(), StoreError> {
    let args = vec![
        actor.into(),
        action.into(),
        subject.into(),
        reason.into(),
        detail.into(),
    ];
    tx.exec(&AUDIT, args).await.map(drop)
}

/// The same thing done to many tasks, by one statement.
pub async fn audit_tasks(tx: &mut Tx, actor: &str, action: &str, ids: &[i64], reason: &str) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    let args = vec![batch(ids)?, actor.into(), action.into(), reason.into()];
    tx.exec(&AUDIT_TASKS, args).await.map(drop)
}

/// An entry as it is read.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct AuditRow {
    pub id: i64,
    pub at_ms: i64,
    pub actor: String,
    pub action: String,
    pub subject: String,
    pub reason: String,
    pub detail: String,
}

/// Which entries. All given conditions must hold.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    pub actor: Option<String>,
    /// `None`: all but submissions.
    pub action: Option<String>,
    pub subject: Option<String>,
    pub since_ms: Option<i64>,
    pub until_ms: Option<i64>,
    pub below_id: Option<i64>,
}

/// Submissions in the shape of entries; a retry is nobody's doing.
const SUBMISSIONS: &str = "SELECT id, created_at_ms AS at_ms, submitted_by AS actor, 'submit' AS action, CAST(id AS TEXT) AS subject, \
     COALESCE(submit_reason, '') AS reason, name AS detail FROM task WHERE retry_of IS NULL";
const ENTRIES: &str = "SELECT id, at_ms, actor, action, subject, reason, detail FROM audit WHERE TRUE";

impl AuditFilter {
    /// The text and its parameters, numbered from `$1`. Both shapes are read by their ids, newest first.
    fn query(&self, limit: usize) -> (String, Vec<Arg>) {
        let submissions = self.action.as_deref() == Some("submit");
        let (mut text, at, actor) = if submissions {
            (SUBMISSIONS.to_owned(), "created_at_ms", "submitted_by")
        } else {
            (ENTRIES.to_owned(), "at_ms", "actor")
        };
        let mut args: Vec<Arg> = Vec::new();
        let mut add = |condition: String, arg: Arg| {
            args.push(arg);
            text.push_str(&format!(" AND {condition} ${}", args.len()));
        };
        if let Some(name) = &self.actor {
            add(format!("{actor} ="), name.as_str().into());
        }
        if let (Some(action), false) = (&self.action, submissions) {
            add("action =".into(), action.as_str().into());
        }
        match (&self.subject, submissions) {
            (Some(subject), false) => add("subject =".into(), subject.as_str().into()),
            // A subject that is no number is no task's.
            (Some(subject), true) => add("id =".into(), subject.parse::<i64>().unwrap_or(0).into()),
            (None, _) => {}
        }
        if let Some(since) = self.since_ms {
            add(format!("{at} >="), since.into());
        }
        if let Some(until) = self.until_ms {
            add(format!("{at} <"), until.into());
        }
        if let Some(below) = self.below_id {
            add("id <".into(), below.into());
        }
        text.push_str(&format!(" ORDER BY id DESC LIMIT {limit}"));
        (text, args)
    }
}

impl Db {
    /// A page, newest first. The second value says whether there is more.
    pub async fn audit(&self, filter: AuditFilter, limit: usize) -> Result<(Vec<AuditRow>, bool), StoreError> {
        let (text, args) = filter.query(limit + 1);
        let mut rows: Vec<AuditRow> = self
            .read("list_audit", move |tx| {
                let (text, args) = (text.clone(), args.clone());
                Box::pin(async move { tx.all_text(text, args).await })
            })
            .await?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        Ok((rows, more))
    }

    /// Deletes a bounded number of entries older than this. True when there are more.
    pub async fn clean_audit(&self, keep_ms: i64, until_ms: i64) -> Result<bool, StoreError> {
        let deleted = self
            .write("clean_audit", Class::Api, move |tx| {
                Box::pin(async move {
                    tx.exec(&DELETE_AUDIT, vec![keep_ms.into(), DELETE_STEP.into(), until_ms.into()])
                        .await
                })
            })
            .await?;
        Ok(i64::try_from(deleted).is_ok_and(|deleted| deleted >= DELETE_STEP))
    }
}
