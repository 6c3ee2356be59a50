//! How long commits take: what each submission, each start and each result waits for.

use super::db::Class;
use crate::metrics::histogram::{Histogram, SHORT_MS};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The newest commits that are told of. Even a cluster where nothing happens commits some in a minute.
const NEWEST: usize = 100;

/// What this replica has seen of its own commits, from the wait for a connection to the answer.
#[derive(Debug)]
pub struct Commits {
    beats: Histogram,
    api: Histogram,
    newest: Mutex<VecDeque<Duration>>,
}

/// The newest commits together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitTimes {
    pub count: usize,
    pub median: Duration,
    pub slowest: Duration,
}

impl Default for Commits {
    fn default() -> Self {
        Self {
            beats: Histogram::new(SHORT_MS),
            api: Histogram::new(SHORT_MS),
            newest: Mutex::new(VecDeque::with_capacity(NEWEST)),
        }
    }
}

impl Commits {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Duration>> {
        match self.newest.lock() {
            Ok(newest) => newest,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    pub fn add(&self, class: Class, took: Duration) {
        self.of(class).add(took);
        let mut newest = self.lock();
        if newest.len() == NEWEST {
            newest.pop_front();
        }
        newest.push_back(took);
    }

    pub fn of(&self, class: Class) -> &Histogram {
        match class {
            Class::Beats => &self.beats,
            Class::Api => &self.api,
        }
    }

    pub fn newest(&self) -> CommitTimes {
        let mut times: Vec<Duration> = self.lock().iter().copied().collect();
        times.sort_unstable();
        CommitTimes {
            count: times.len(),
            median: times.get(times.len() / 2).copied().unwrap_or_default(),
            slowest: times.last().copied().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_commits_are_told_of_and_older_ones_forgotten() {
        let commits = Commits::default();
        assert_eq!(commits.newest(), CommitTimes::default());
        commits.add(Class::Api, Duration::from_secs(9));
        for ms in 1..=100 {
            commits.add(Class::Beats, Duration::from_millis(ms));
        }
        let times = commits.newest();
        assert_eq!(times.count, NEWEST);
        assert_eq!((times.median.as_millis(), times.slowest.as_millis()), (51, 100));
    }
}
