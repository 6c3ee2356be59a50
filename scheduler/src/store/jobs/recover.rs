//! Runs that are started again because their runner was lost (`on_lost = "failover"`): as new tasks of their chains, once the old
//! child is proven dead.

use super::super::db::{Tx, batch};
use super::super::error::StoreError;
use super::super::finish::{self, Follow, Successor};
use super::super::sql::Sql;
use super::{compiled, slots};
use std::collections::BTreeSet;
use systole_shared::job::{Blocking, Job};
use systole_shared::policy::retry::is_lost;
use systole_shared::task::OutcomeKind;

/// Not one that was being ended when its runner was lost: its timeout was over, or somebody wanted it gone.
static LOST_WORK: Sql = Sql::new(
    "lost_work",
    "SELECT id, job_id, recoveries, outcome_kind, late_result FROM task WHERE id {among:$1} AND status + 0 = 7 \
       AND retried_by IS NULL AND terminating IS NULL AND set_id IS NULL AND job_id IS NOT NULL",
);

pub static STATEMENTS: &[&Sql] = &[&LOST_WORK];

#[derive(sqlx::FromRow)]
struct LostRow {
    id: i64,
    job_id: i64,
    recoveries: i64,
    outcome_kind: String,
    late_result: Option<String>,
}

impl LostRow {
    /// Its result came after the verdict, and it had done its work.
    fn was_done(&self) -> bool {
        self.late_result
            .as_deref()
            .and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok())
            .is_some_and(|value| value["kind"] == OutcomeKind::Success.name())
    }

    fn may_go_on(&self, job: &Job) -> bool {
        OutcomeKind::parse(&self.outcome_kind).is_some_and(is_lost)
            && !self.was_done()
            && self.recoveries < i64::from(job.max_recoveries)
    }
}

/// Makes the tasks that follow these, the last ones of chains of which nothing runs any more, where their jobs want it.
pub async fn recover(tx: &mut Tx, tasks: &[i64]) -> Result<Vec<Successor>, StoreError> {
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let lost: Vec<LostRow> = tx.all(&LOST_WORK, vec![batch(tasks)?]).await?;
    let ids: BTreeSet<i64> = lost.iter().map(|row| row.job_id).collect();
    let ids: Vec<i64> = ids.into_iter().collect();
    let jobs = super::by_id(tx, &ids).await?;
    let mut wanted = Vec::new();
    for row in jobs {
        // What cannot be read is not started.
        let Ok(job) = compiled::job(&row) else { continue };
        let of_job = |lost: &&LostRow| lost.job_id == row.id && lost.may_go_on(&job);
        let again: Vec<&LostRow> = lost.iter().filter(of_job).collect();
        if again.is_empty() {
            continue;
        }
        // A newer run waits to take its place.
        if row.blocking() == Blocking::CoverEarly && !slots::waiting_counts(tx, &[row.id]).await?.is_empty() {
            continue;
        }
        wanted.extend(again.into_iter().map(|lost| Follow {
            id: lost.id,
            recoveries: 1,
            ..Follow::default()
        }));
    }
    finish::follow(tx, &wanted).await
}
