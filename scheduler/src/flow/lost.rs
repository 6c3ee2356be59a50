//! The end of tasks whose runner is lost.

use crate::store::finish::{self, End, Ended};
use crate::store::{StoreError, Tx, beats, lost};
use systole_shared::heartbeat::end::{self, Terminating};

/// For the reaper: the end of the task of a lost runner. `None`: the runner beat meanwhile.
pub async fn end_lost(
    tx: &mut Tx,
    host: &str,
    slot: i64,
    start_no: i64,
    seq: i64,
    silent_ms: i64,
) -> Result<Option<Ended>, StoreError> {
    let Some(task_id) = lost::lock_as_seen(tx, host, slot, start_no, seq).await? else {
        return Ok(None);
    };
    let ended = end_lost_task(tx, task_id, silent_ms).await?;
    beats::free_runner(tx, host, slot, task_id).await?;
    Ok(Some(ended))
}

/// As [`end_lost`], for a task whose host was taken over by another process.
pub async fn end_lost_task(tx: &mut Tx, task_id: i64, silent_ms: i64) -> Result<Ended, StoreError> {
    let mut ends = Vec::new();
    for task in finish::lock_tasks(tx, &[task_id]).await? {
        let state = task.state()?;
        if !state.is_held() {
            continue;
        }
        let reason: Option<Terminating> = task.terminating();
        let end = end::lost(state, reason, u64::try_from(silent_ms).unwrap_or(0));
        ends.push(End {
            lost: true,
            silent_ms,
            ..End::without_report(task, end)
        });
    }
    finish::end_tasks(tx, &ends).await
}
