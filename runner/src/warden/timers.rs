//! When each task wants to be looked at next: one time for each.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

#[derive(Debug, Default)]
pub struct Timers {
    by_time: BTreeSet<(Instant, i64)>,
    of: HashMap<i64, Instant>,
}

impl Timers {
    /// In place of what was set before; `None`: not at all.
    pub fn set(&mut self, task_id: i64, at: Option<Instant>) {
        self.unset(task_id);
        if let Some(at) = at {
            self.by_time.insert((at, task_id));
            self.of.insert(task_id, at);
        }
    }

    pub fn unset(&mut self, task_id: i64) {
        if let Some(at) = self.of.remove(&task_id) {
            self.by_time.remove(&(at, task_id));
        }
    }

    pub fn first(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Tasks whose time has come, the longest due first. They stay set.
    pub fn due(&self, now: Instant) -> Vec<i64> {
        self.by_time
            .iter()
            .take_while(|(at, _)| *at <= now)
            .map(|(_, id)| *id)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_task_has_one_time_and_the_last_that_was_set() {
        let now = Instant::now();
        let at = |seconds| Some(now + Duration::from_secs(seconds));
        let mut timers = Timers::default();
        timers.set(1, at(1));
        timers.set(2, at(2));
        timers.set(1, at(3));
        assert_eq!((timers.first(), timers.due(at(3).unwrap())), (at(2), vec![2, 1]));
        assert!(timers.due(now).is_empty());
        timers.set(2, None);
        timers.unset(7);
        assert_eq!((timers.first(), timers.due(at(9).unwrap())), (at(3), vec![1]));
    }
}
