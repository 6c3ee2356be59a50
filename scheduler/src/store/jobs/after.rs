//! Which jobs start after which: the triggers `after` of what is stored, as edges between names. Paused ones count, since a pause
//! ends; a job that was deleted has none.

use super::super::db::Tx;
use super::super::error::StoreError;
use super::super::sql::Sql;
use super::names_json;

/// One row that every cluster has, and that nobody changes: whoever adds edges locks it before anything else.
static LOCK: Sql = Sql::new(
    "lock_after",
    "SELECT name FROM setting WHERE name = 'cluster_id' {for_update}",
);
static NAMED: Sql = Sql::new(
    "named_after",
    "SELECT CAST(count(*) AS BIGINT) AS n FROM (SELECT 1 AS x FROM job_trigger AS t WHERE {is:t.after_job,$1} LIMIT 1) AS y",
);
/// From these jobs to all that is before them. Ends in a ring, too: an edge is taken once.
static CHAIN: Sql = Sql::new(
    "chain_before",
    "WITH RECURSIVE chain (earlier, later) AS ( \
       SELECT t.after_job, j.name FROM {each:$1} JOIN job AS j ON {is:j.name,e.value->>'name'} \
         JOIN job_trigger AS t ON {is:t.job_id,j.id} WHERE t.after_job IS NOT NULL \
       UNION SELECT t.after_job, j.name FROM chain AS c JOIN job AS j ON {is:j.name,c.earlier} \
         JOIN job_trigger AS t ON {is:t.job_id,j.id} WHERE t.after_job IS NOT NULL) \
     SELECT earlier, later FROM chain LIMIT $2",
);

pub static STATEMENTS: &[&Sql] = &[&LOCK, &NAMED, &CHAIN];

/// `later` has a trigger after `earlier`.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Edge {
    pub earlier: String,
    pub later: String,
}

#[derive(sqlx::FromRow)]
struct Count {
    n: i64,
}

/// Until the end of the transaction nobody else adds an edge, and what was added before is seen by the reads that follow.
pub async fn lock(tx: &mut Tx) -> Result<(), StoreError> {
    tx.exec(&LOCK, vec![]).await.map(drop)
}

/// Whether some job starts after this one.
pub async fn is_named(tx: &mut Tx, job: &str) -> Result<bool, StoreError> {
    let row: Count = tx.one(&NAMED, vec![job.into()]).await?;
    Ok(row.n > 0)
}

/// Edges to these jobs, and to those that are before them.
pub async fn chain(tx: &mut Tx, jobs: &[&str], limit: usize) -> Result<Vec<Edge>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    tx.all(&CHAIN, vec![names_json(jobs)?, limit.into()]).await
}
