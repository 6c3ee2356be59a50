//! Hosts that have held a newer task than this database ever gave: it was set back to an older state, by a restore or a
//! failover that lost commits. They get no new task until a person has looked, because what they run may be what the
//! database believes to be waiting.
//!
//! Their rows are stored before the ids are moved past what they named, and read after the ids: whoever sees the new
//! ids knows these hosts too.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

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
