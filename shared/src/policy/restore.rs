//! A database that was set back to an older state, and hosts that have held newer tasks than it knows.

use crate::limits::AHEAD_IDS_MAX;

/// Whether a host can have held this task, seen from the newest id that the database gave. Ids never come back once they are
/// moved, so a number that is not one is never followed: the highest there is would leave no id for any task to come.
pub fn is_credible(max_task_id: i64, newest: i64) -> bool {
    (0..=newest.saturating_add(AHEAD_IDS_MAX)).contains(&max_task_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_no_database_gave_is_not_believed() {
        for (max_task_id, newest, believed) in [
            (0, 0, true),
            (7, 3, true),
            (AHEAD_IDS_MAX, 0, true),
            (AHEAD_IDS_MAX + 1, 0, false),
            (AHEAD_IDS_MAX + 1, 1, true),
            (-1, 5, false),
            (i64::MIN, 5, false),
            (i64::MAX, 5, false),
            (i64::MAX, i64::MAX, true),
        ] {
            assert_eq!(is_credible(max_task_id, newest), believed, "{max_task_id} {newest}");
        }
    }
}
