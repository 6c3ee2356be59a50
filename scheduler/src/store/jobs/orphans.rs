//! Runs whose job is gone, and those of one that goes: nothing of a deleted job is left to start.

use super::super::db::Tx;
use super::super::error::StoreError;
use super::super::finish::{self, End, Ended, LiveTask, live_columns};
use super::super::sql::Sql;
use systole_shared::task::{Outcome, OutcomeKind, Transition};

/// Who ends what was passed over.
const BY: &str = "scheduler";

/// What waits for its time: retries, and runs with a jitter.
static LOCK_CREATED: Sql = Sql::new(
    "lock_created",
    concat!(
        "SELECT ",
        live_columns!(),
        " FROM task WHERE task.status = 1 AND task.waiting_ms IS NULL AND task.job_id = $1 ORDER BY task.id LIMIT 10000 {skip_locked}"
    ),
);
/// Runs whose job is gone: those that wait for a place, and those whose time has come, which are not admitted. Whoever deleted it
/// passed over them, since somebody had them in hand.
static LOCK_ORPHANS: Sql = Sql::new(
    "lock_orphans",
    concat!(
        "SELECT ",
        live_columns!(),
        " FROM task WHERE task.status + 0 = 1 AND task.id IN ( \
           SELECT id FROM task WHERE status = 1 AND waiting_ms IS NOT NULL AND set_id IS NULL AND job_id IS NOT NULL \
             AND NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = task.job_id) \
           UNION SELECT id FROM task WHERE status = 1 AND waiting_ms IS NULL AND run_at_ms <= {now} AND job_id IS NOT NULL \
             AND NOT EXISTS (SELECT 1 FROM job AS j WHERE j.id = task.job_id)) \
         ORDER BY task.id LIMIT 1000 {skip_locked}"
    ),
);
pub static STATEMENTS: &[&Sql] = &[&LOCK_CREATED, &LOCK_ORPHANS];

/// Tasks of a job that wait for their time; locked.
pub async fn lock_created(tx: &mut Tx, job_id: i64) -> Result<Vec<LiveTask>, StoreError> {
    tx.all(&LOCK_CREATED, vec![job_id.into()]).await
}

/// Ends what would start for a job that is gone.
pub async fn end(tx: &mut Tx, ended: &mut Ended) -> Result<(), StoreError> {
    let orphans: Vec<LiveTask> = tx.all(&LOCK_ORPHANS, vec![]).await?;
    let ends: Vec<End> = orphans.into_iter().map(end_of).collect();
    ended.extend(finish::end_tasks(tx, &ends).await?);
    Ok(())
}

fn end_of(task: LiveTask) -> End {
    let outcome = Outcome::new(OutcomeKind::Cancelled, "its job was deleted before it started");
    End {
        cancelled_by: Some((BY.into(), None)),
        ..End::without_report(task, (Transition::CancelWaiting, outcome))
    }
}
