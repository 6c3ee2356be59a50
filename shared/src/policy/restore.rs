//! A database that was set back to an older state, and hosts that have held newer tasks than it knows.

use crate::limits::AHEAD_IDS_MAX;

/// Whether a host can have held this task, seen from the newest id that the database gave. Ids never come back once they are
/// moved, so a number that is not one is never followed: the highest there is would leave no id for any task to come.
pub fn is_credible(max_task_id: i64, newest: i64) -> bool {
    (0..=newest.saturating_add(AHEAD_IDS_MAX)).contains(&max_task_id)
}

/// What is told of a host that has held a newer task than the database knows.
pub fn hold(max_task_id: i64) -> String {
    format!(
        "it has held task {max_task_id}, which the database does not know since it was set back. Look at what waits (systole ls) before it \
         runs a second time, then: systole admin confirm restore"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_told_with_what_lifts_it() {
        let told = hold(1_850);
        assert!(
            told.contains("task 1850") && told.ends_with("systole admin confirm restore"),
            "{told}"
        );
    }

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
