//! What `systole why` reads beside the task itself: its chain, what comes before it, and who has the places that it waits for.
//! Each statement is bounded.

use super::db::{Db, Tx, batch};
use super::error::StoreError;
use super::jobs::{self, JobRow, kept, slots};
use super::outcome::OutcomeColumns;
use super::sql::Sql;
use std::sync::Arc;

/// Members of a chain: retries and replacements are far fewer.
const CHAIN_MAX: i64 = 1_000;
/// Holders of places that are read.
const HOLDERS_MAX: i64 = 1_000;

static CHAIN: Sql = Sql::new(
    "chain",
    "SELECT id, attempt, status, host, slot, started_at_ms, ended_at_ms, outcome_kind, exit_code, signal, outcome_message FROM ( \
       SELECT * FROM task WHERE id = $1 UNION ALL SELECT * FROM task WHERE root_id = $1 AND retry_of IS NOT NULL) AS c \
     ORDER BY id LIMIT $2",
);
/// QUEUED tasks of lanes with a higher priority, and of those with the same one the older ones.
static BEFORE: Sql = Sql::new(
    "before",
    "SELECT count(*) AS n FROM ( \
       SELECT id FROM task WHERE status = 2 AND target_host IS NULL AND lane_id {among:$1} \
       UNION ALL SELECT id FROM task WHERE status = 2 AND target_host IS NULL AND lane_id {among:$2} \
         AND (eligible_at_ms < $3 OR (eligible_at_ms = $3 AND id < $4)) LIMIT $5) AS q",
);
/// Chains that have places, by their newest members.
static HOLDERS: Sql = Sql::new(
    "holders",
    "SELECT s.resource, s.root_id, s.taken_at_ms, s.lost_host, s.lost_slot, s.lost_at_ms, t.id, t.job, t.status, t.host, t.slot, \
       t.started_at_ms, t.run_at_ms FROM slot AS s JOIN {each:$1} ON {is:s.resource,e.value->>'name'} \
     LEFT JOIN task AS t ON {is:t.id,COALESCE((SELECT max(c.id) FROM task AS c WHERE c.root_id = s.root_id AND c.retry_of IS NOT NULL), s.root_id)} \
     ORDER BY s.taken_at_ms, s.root_id LIMIT $2",
);
static WAIT_BEFORE: Sql = Sql::new(
    "wait_before",
    "SELECT count(*) AS n, min(id) AS first FROM task WHERE status = 1 AND waiting_ms IS NOT NULL AND job_id = $1 AND id < $2",
);

pub static STATEMENTS: &[&Sql] = &[&CHAIN, &BEFORE, &HOLDERS, &WAIT_BEFORE];

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct MemberRow {
    pub id: i64,
    pub attempt: i64,
    pub status: i16,
    pub host: Option<String>,
    pub slot: Option<i64>,
    pub started_at_ms: Option<i64>,
    pub ended_at_ms: Option<i64>,
    #[sqlx(flatten)]
    pub outcome: OutcomeColumns,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct HolderRow {
    pub resource: String,
    pub root_id: i64,
    pub taken_at_ms: i64,
    pub lost_host: Option<String>,
    pub lost_slot: Option<i64>,
    pub lost_at_ms: Option<i64>,
    /// `None`: the task was deleted by age.
    pub id: Option<i64>,
    pub job: Option<String>,
    pub status: Option<i16>,
    pub host: Option<String>,
    pub slot: Option<i64>,
    pub started_at_ms: Option<i64>,
    pub run_at_ms: Option<i64>,
}

/// Who has the places that a task of a job waits for.
#[derive(Clone, Debug)]
pub struct PlacesRead {
    pub job: JobRow,
    pub holders: Vec<HolderRow>,
    pub before: i64,
    pub first: Option<i64>,
    /// Name, limit and holders of its concurrency group.
    pub group: Option<(String, i64, Vec<HolderRow>)>,
}

/// Lanes that are served before a task's, and those of its own rank; and when the task became QUEUED.
#[derive(Clone, Debug)]
pub struct Rank {
    pub higher: Vec<i64>,
    pub same: Vec<i64>,
    pub eligible_ms: i64,
    pub id: i64,
    pub limit: i64,
}

#[derive(sqlx::FromRow)]
struct Count {
    n: i64,
}

#[derive(sqlx::FromRow)]
struct Before {
    n: i64,
    first: Option<i64>,
}

async fn places(tx: &mut Tx, job_id: i64, task: i64) -> Result<Option<PlacesRead>, StoreError> {
    let Some(job) = jobs::by_id(tx, &[job_id]).await?.pop() else {
        return Ok(None);
    };
    let resources = job.resources();
    let names: Vec<&str> = resources.iter().map(String::as_str).collect();
    let all: Vec<HolderRow> = tx
        .all(&HOLDERS, vec![jobs::names_json(&names)?, HOLDERS_MAX.into()])
        .await?;
    let own = slots::job_resource(&job.name);
    let (holders, of_group): (Vec<_>, Vec<_>) = all.into_iter().partition(|row| row.resource == own);
    let group = match &job.concurrency_group {
        Some(name) => kept::groups(tx)
            .await?
            .into_iter()
            .find(|row| row.name == *name)
            .map(|row| (row.name, row.places, of_group)),
        None => None,
    };
    let before: Before = tx.one(&WAIT_BEFORE, vec![job_id.into(), task.into()]).await?;
    Ok(Some(PlacesRead {
        job,
        holders,
        before: before.n,
        first: before.first,
        group,
    }))
}

impl Db {
    /// The members of a chain, the first one first.
    pub async fn chain(&self, root: i64) -> Result<Vec<MemberRow>, StoreError> {
        self.read("chain", move |tx| {
            Box::pin(async move { tx.all(&CHAIN, vec![root.into(), CHAIN_MAX.into()]).await })
        })
        .await
    }

    /// How many tasks are taken before one, counted up to a limit.
    pub async fn tasks_before(&self, rank: Rank) -> Result<i64, StoreError> {
        let rank = Arc::new(rank);
        let row: Count = self
            .read("before", move |tx| {
                let rank = Arc::clone(&rank);
                Box::pin(async move {
                    let args = vec![
                        batch(&rank.higher)?,
                        batch(&rank.same)?,
                        rank.eligible_ms.into(),
                        rank.id.into(),
                        rank.limit.into(),
                    ];
                    tx.one(&BEFORE, args).await
                })
            })
            .await?;
        Ok(row.n)
    }

    /// `None`: its job was deleted.
    pub async fn places_for(&self, job_id: i64, task: i64) -> Result<Option<PlacesRead>, StoreError> {
        self.read("places_for", move |tx| Box::pin(places(tx, job_id, task)))
            .await
    }
}
