//! Runs that go on once their old child is proven dead: those whose runner was lost (`on_lost = "failover"`), and retries of those
//! that left processes behind. As new tasks of their chains.

use super::super::db::{Tx, batch};
use super::super::error::StoreError;
use super::super::finish::{self, Follow, Successor};
use super::super::sql::Sql;
use super::{compiled, slots};
use std::collections::BTreeSet;
use systole_shared::heartbeat::end::Terminating;
use systole_shared::job::{Blocking, Job};
use systole_shared::policy::retry::{FollowUp, follow_up, is_lost};
use systole_shared::task::OutcomeKind;

/// Members of a broadcast that is being ended do not go on.
static LOST_WORK: Sql = Sql::new(
    "lost_work",
    "SELECT id, job_id, recoveries, outcome_kind, exit_code, late_result, terminating, set_id, attempt, max_retries, replacements FROM task \
     WHERE id {among:$1} AND status + 0 = 7 AND retried_by IS NULL AND job_id IS NOT NULL \
       AND NOT EXISTS (SELECT 1 FROM task AS h WHERE {is:h.id,task.set_id} AND h.status + 0 = 9)",
);

pub static STATEMENTS: &[&Sql] = &[&LOST_WORK];

#[derive(sqlx::FromRow)]
struct LostRow {
    id: i64,
    job_id: i64,
    recoveries: i64,
    outcome_kind: String,
    exit_code: Option<i64>,
    late_result: Option<String>,
    terminating: Option<String>,
    set_id: Option<i64>,
    attempt: i64,
    max_retries: i64,
    replacements: i64,
}

impl LostRow {
    /// Its result came after the verdict, and it had done its work.
    fn was_done(&self) -> bool {
        self.late_result
            .as_deref()
            .and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok())
            .is_some_and(|value| value["kind"] == OutcomeKind::Success.name())
    }

    /// Not one that was being ended when its runner was lost: its timeout was over, or somebody wanted it gone. A member of a
    /// broadcast belongs to its host.
    fn starts_again(&self, kind: OutcomeKind, job: &Job) -> bool {
        is_lost(kind)
            && self.terminating.is_none()
            && self.set_id.is_none()
            && !self.was_done()
            && self.recoveries < i64::from(job.max_recoveries)
    }

    /// It failed by itself and would have been retried at once, had nothing of it been left.
    fn is_retried(&self, kind: OutcomeKind, job: &Job) -> bool {
        let number = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
        let wanted_gone = matches!(
            self.terminating.as_deref().and_then(Terminating::parse),
            Some(Terminating::User | Terminating::Superseded)
        );
        let follow = follow_up(
            kind,
            number(self.attempt),
            number(self.max_retries),
            number(self.replacements),
        );
        let exit_code = self.exit_code.and_then(|code| i32::try_from(code).ok());
        !wanted_gone && follow == FollowUp::Retry && job.retry.counts(kind, exit_code)
    }

    fn follow(&self, job: &Job) -> Option<Follow> {
        let kind = OutcomeKind::parse(&self.outcome_kind)?;
        if self.starts_again(kind, job) {
            return Some(Follow {
                id: self.id,
                recoveries: 1,
                ..Follow::default()
            });
        }
        self.is_retried(kind, job)
            .then(|| finish::retry(job, self.id, self.attempt, self.set_id))
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
        let of_job = lost.iter().filter(|lost| lost.job_id == row.id);
        let again: Vec<Follow> = of_job.filter_map(|lost| lost.follow(&job)).collect();
        if again.is_empty() {
            continue;
        }
        // A newer run waits to take its place.
        if row.blocking() == Blocking::CoverEarly && !slots::waiting_counts(tx, &[row.id]).await?.is_empty() {
            continue;
        }
        wanted.extend(again);
    }
    finish::follow(tx, &wanted).await
}
