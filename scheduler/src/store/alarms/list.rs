//! What people see of alarms and say of them, and when old ones go.

use super::super::db::{Arg, Class, Db, batch};
use super::super::error::StoreError;
use super::super::sql::Sql;
use super::{Number, OnlyId};

static UNDELIVERED: Sql = Sql::new(
    "undelivered_alarms",
    "SELECT CAST(count(*) AS BIGINT) AS n FROM (SELECT id FROM alarm WHERE status = 'failed' AND acknowledged_at_ms IS NULL UNION ALL \
       SELECT id FROM alarm WHERE status IN ('pending', 'held') AND last_error <> '') AS x",
);
static ACKNOWLEDGE: Sql = Sql::new(
    "acknowledge_alarms",
    "UPDATE alarm SET acknowledged_by = $2, acknowledged_at_ms = {now} WHERE id {among:$1} AND status = 'failed' \
       AND acknowledged_at_ms IS NULL RETURNING id",
);
static ACKNOWLEDGE_ALL: Sql = Sql::new(
    "acknowledge_all_alarms",
    "UPDATE alarm SET acknowledged_by = $1, acknowledged_at_ms = {now} WHERE status = 'failed' AND acknowledged_at_ms IS NULL RETURNING id",
);
static DELETE_OLD: Sql = Sql::new(
    "delete_alarms",
    "DELETE FROM alarm WHERE id IN (SELECT id FROM alarm WHERE raised_at_ms < {now} - $1 AND raised_at_ms < $2 - $1 \
       AND status NOT IN ('pending', 'held') ORDER BY raised_at_ms LIMIT 5000)",
);

pub static STATEMENTS: &[&Sql] = &[&UNDELIVERED, &ACKNOWLEDGE, &ACKNOWLEDGE_ALL, &DELETE_OLD];

/// An alarm as it is listed.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct AlarmRow {
    pub id: i64,
    pub channel: String,
    pub kind: String,
    pub job: String,
    pub notice: String,
    pub status: String,
    pub delivery_id: String,
    pub tries: i64,
    pub raised_at_ms: i64,
    pub next_at_ms: i64,
    pub settled_at_ms: Option<i64>,
    pub last_error: String,
    pub acknowledged_by: Option<String>,
}

/// Conditions of a list; what is empty is no condition.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub status: String,
    pub channel: String,
    pub job: String,
    /// Only what needs a person: given up and not acknowledged, or tried in vain.
    pub open: bool,
    pub below_id: Option<i64>,
}

impl Db {
    /// Alarms that did not arrive, and that nobody has acknowledged.
    pub async fn undelivered_alarms(&self) -> Result<i64, StoreError> {
        let row: Number = self
            .read("undelivered", |tx| {
                Box::pin(async move { tx.one(&UNDELIVERED, vec![]).await })
            })
            .await?;
        Ok(row.n)
    }

    /// A person knows. No ids: of all that were given up. Returns the ids of those that were not acknowledged before.
    pub async fn acknowledge_alarms(&self, ids: Vec<i64>, by: String) -> Result<Vec<i64>, StoreError> {
        let rows: Vec<OnlyId> = self
            .write("acknowledge_alarms", Class::Api, move |tx| {
                let (ids, by) = (ids.clone(), by.clone());
                Box::pin(async move {
                    if ids.is_empty() {
                        tx.all(&ACKNOWLEDGE_ALL, vec![by.into()]).await
                    } else {
                        tx.all(&ACKNOWLEDGE, vec![batch(&ids)?, by.into()]).await
                    }
                })
            })
            .await?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }

    /// Newest first.
    pub async fn alarms(&self, filter: Filter, limit: i64) -> Result<Vec<AlarmRow>, StoreError> {
        let (text, args) = conditions(&filter, limit);
        self.read("alarms", move |tx| {
            let (text, args) = (text.clone(), args.clone());
            Box::pin(async move { tx.all_text(text, args).await })
        })
        .await
    }

    /// One bounded step. True: there may be more.
    pub async fn clean_alarms(&self, keep_ms: i64, until_ms: i64) -> Result<bool, StoreError> {
        self.write("clean_alarms", Class::Api, move |tx| {
            Box::pin(async move { Ok(tx.exec(&DELETE_OLD, vec![keep_ms.into(), until_ms.into()]).await? > 0) })
        })
        .await
    }
}

fn conditions(filter: &Filter, limit: i64) -> (String, Vec<Arg>) {
    let mut text = String::from(
        "SELECT id, channel, kind, job, notice, status, delivery_id, tries, raised_at_ms, next_at_ms, settled_at_ms, last_error, \
         acknowledged_by FROM alarm WHERE TRUE",
    );
    let mut args: Vec<Arg> = Vec::new();
    for (column, value) in [
        ("status", &filter.status),
        ("channel", &filter.channel),
        ("job", &filter.job),
    ] {
        if !value.is_empty() {
            args.push(value.clone().into());
            text.push_str(&format!(" AND {column} = ${}", args.len()));
        }
    }
    if filter.open {
        text.push_str(
            " AND ((status = 'failed' AND acknowledged_at_ms IS NULL) OR (status IN ('pending', 'held') AND last_error <> ''))",
        );
    }
    if let Some(below) = filter.below_id {
        args.push(below.into());
        text.push_str(&format!(" AND id < ${}", args.len()));
    }
    args.push(limit.into());
    text.push_str(&format!(" ORDER BY id DESC LIMIT ${}", args.len()));
    (text, args)
}
