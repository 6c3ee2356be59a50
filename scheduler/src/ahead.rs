//! Hosts that have held a newer task than this database ever gave: it was set back to an older state, by a restore or a
//! failover that lost commits. They get no new task until a person has looked, because what they run may be what the
//! database believes to be waiting.
//!
//! Their rows are stored before the ids are moved past what they named, and read after the ids: whoever sees the new
//! ids knows these hosts too.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use systole_shared::limits::AHEAD_IDS_MAX;

/// Whether a host can have held this task, seen from the newest id that the database gave. Ids never come back once they are
/// moved, so a number that is not one is never followed: the highest there is would leave no id for any task to come.
pub fn is_credible(max_task_id: i64, newest: i64) -> bool {
    (0..=newest.saturating_add(AHEAD_IDS_MAX)).contains(&max_task_id)
}

/// Hosts remembered between two polls; more are named by their next beats.
const NEW_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub struct Ahead {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// As stored, without a person's word so far.
    hosts: Arc<HashSet<String>>,
    /// Seen here and not stored yet, with the highest task that each has named.
    new: HashMap<String, i64>,
}

impl Ahead {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        match self.inner.lock() {
            Ok(inner) => inner,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    pub fn hosts(&self) -> Arc<HashSet<String>> {
        Arc::clone(&self.lock().hosts)
    }

    /// True: this was not known.
    pub fn note(&self, host: &str, max_task_id: i64) -> bool {
        let mut inner = self.lock();
        if inner.hosts.contains(host) || inner.new.len() >= NEW_MAX {
            return false;
        }
        match inner.new.get_mut(host) {
            Some(known) => {
                *known = max_task_id.max(*known);
                false
            }
            None => {
                inner.new.insert(host.to_owned(), max_task_id);
                true
            }
        }
    }

    pub fn take_new(&self) -> Vec<(String, i64)> {
        self.lock().new.drain().collect()
    }

    /// What is stored now.
    pub fn set(&self, hosts: HashSet<String>) {
        let mut inner = self.lock();
        if *inner.hosts != hosts {
            inner.hosts = Arc::new(hosts);
        }
    }
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
