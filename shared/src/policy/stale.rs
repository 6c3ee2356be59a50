//! Who is silent for too long: the reaper's verdict.
//!
//! A verdict needs two clocks: the runner's row is old by the database's clock, *and* this reaper
//! itself saw it unchanged for that long, by its own monotonic clock and with its own reads of a
//! healthy database. So a restart or an outage of schedulers or database never counts as silence,
//! and a clock that jumps kills nobody. A brake withholds verdicts when many hosts fall silent at once.

use std::collections::HashMap;

/// Timing of the reaper, ms.
#[derive(Clone, Copy, Debug)]
pub struct StaleRule {
    /// Silence after which a runner is lost.
    pub lost_after_ms: i64,
    /// A longer gap between two of the reaper's reads makes it begin its observation again.
    pub read_gap_max_ms: i64,
}

/// One runner row as the reaper reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub host: String,
    pub slot: u32,
    pub start_no: i64,
    pub seq: i64,
    /// Age of the last beat by the database's clock.
    pub age_ms: i64,
    /// It holds a task, or holds one back as an orphan.
    pub holds_task: bool,
    /// It said that it is leaving, or has left.
    pub leaving: bool,
}

#[derive(Clone, Debug)]
struct Observation {
    start_no: i64,
    seq: i64,
    /// When this reaper first saw this `seq`, on its monotonic clock.
    since_ms: i64,
}

/// What one pass of the reaper found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Runners `(host, slot, start_no, seq)` whose tasks are lost.
    pub lost: Vec<(String, u32, i64, i64)>,
    /// Hosts whose verdict the brake withholds.
    pub withheld: Vec<String>,
}

/// The memory of one reaper. A new reaper starts with an empty one.
#[derive(Debug, Default)]
pub struct Observer {
    seen: HashMap<(String, u32), Observation>,
    last_read_ms: Option<i64>,
    /// Hosts that were withheld, and since when.
    withheld_since: HashMap<String, i64>,
}

/// The brake engages when at least this many hosts fall silent together, and 10 % of those fresh before.
pub const BRAKE_HOSTS_MIN: usize = 3;
/// The brake lets a verdict through after this many times the lost limit.
pub const BRAKE_ENDS_AFTER: i64 = 10;

impl Observer {
    /// One pass. `now_ms` is the reaper's own monotonic clock; `rows` were read from a healthy database.
    pub fn pass(&mut self, now_ms: i64, rows: &[Seen], rule: StaleRule) -> Verdicts {
        if self
            .last_read_ms
            .is_some_and(|last| now_ms - last > rule.read_gap_max_ms)
        {
            // The reaper itself was away (outage, suspend): what it saw before proves nothing.
            self.seen.clear();
        }
        self.last_read_ms = Some(now_ms);
        self.observe(now_ms, rows);

        let observed = |row: &Seen| {
            let seen = self.seen.get(&(row.host.clone(), row.slot));
            seen.map_or(0, |o| now_ms - o.since_ms)
        };
        let silent = |row: &Seen| row.age_ms >= rule.lost_after_ms && observed(row) >= rule.lost_after_ms;
        let mut host_silent: HashMap<&str, bool> = HashMap::new();
        let mut recently_fresh: HashMap<&str, bool> = HashMap::new();
        for row in rows.iter().filter(|row| !row.leaving) {
            let all_silent = host_silent.entry(&row.host).or_insert(true);
            *all_silent &= silent(row);
            // Fresh now, or fell silent within the brake's horizon: part of the fleet that counts.
            *recently_fresh.entry(&row.host).or_insert(false) |= row.age_ms < rule.lost_after_ms * BRAKE_ENDS_AFTER;
        }
        let counted = host_silent.keys().filter(|host| recently_fresh[**host]).count();
        let gone: Vec<&str> = host_silent
            .iter()
            .filter(|(host, all_silent)| **all_silent && recently_fresh[**host])
            .map(|(host, _)| *host)
            .collect();
        let braking = gone.len() > BRAKE_HOSTS_MIN.max(counted.div_ceil(10));

        let mut verdicts = Verdicts::default();
        self.withheld_since
            .retain(|host, _| host_silent.get(host.as_str()) == Some(&true));
        for row in rows.iter().filter(|row| row.holds_task && silent(row)) {
            let host_gone = host_silent.get(row.host.as_str()) == Some(&true);
            if braking && host_gone {
                let since = *self.withheld_since.entry(row.host.clone()).or_insert(now_ms);
                if now_ms - since < rule.lost_after_ms * BRAKE_ENDS_AFTER {
                    if !verdicts.withheld.contains(&row.host) {
                        verdicts.withheld.push(row.host.clone());
                    }
                    continue;
                }
            }
            verdicts.lost.push((row.host.clone(), row.slot, row.start_no, row.seq));
        }
        verdicts
    }

    fn observe(&mut self, now_ms: i64, rows: &[Seen]) {
        let mut next = HashMap::with_capacity(rows.len());
        for row in rows {
            let key = (row.host.clone(), row.slot);
            let observation = match self.seen.remove(&key) {
                Some(old) if old.start_no == row.start_no && old.seq == row.seq => old,
                _ => Observation {
                    start_no: row.start_no,
                    seq: row.seq,
                    since_ms: now_ms,
                },
            };
            next.insert(key, observation);
        }
        self.seen = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: StaleRule = StaleRule {
        lost_after_ms: 90_000,
        read_gap_max_ms: 30_000,
    };

    fn row(host: &str, seq: i64, age_ms: i64) -> Seen {
        Seen {
            host: host.into(),
            slot: 0,
            start_no: 1,
            seq,
            age_ms,
            holds_task: true,
            leaving: false,
        }
    }

    /// Runs passes every 10 s until `end_ms`; `age` gives the rows of each pass.
    fn passes(observer: &mut Observer, from_ms: i64, end_ms: i64, rows: impl Fn(i64) -> Vec<Seen>) -> Verdicts {
        let mut last = Verdicts::default();
        let mut now = from_ms;
        while now <= end_ms {
            last = observer.pass(now, &rows(now), RULE);
            now += 10_000;
        }
        last
    }

    #[test]
    fn a_silent_runner_is_lost_after_both_clocks_agree() {
        let mut observer = Observer::default();
        let before = passes(&mut observer, 0, 80_000, |now| vec![row("a", 7, now)]);
        assert!(before.lost.is_empty());
        let after = passes(&mut observer, 90_000, 90_000, |now| vec![row("a", 7, now)]);
        assert_eq!(after.lost, [("a".to_owned(), 0, 1, 7)]);
    }

    #[test]
    fn a_new_reaper_gives_no_verdict_from_an_old_row() {
        let verdicts = Observer::default().pass(1_000_000, &[row("a", 7, 3_600_000)], RULE);
        assert!(verdicts.lost.is_empty());
    }

    #[test]
    fn a_database_clock_that_jumps_kills_nobody() {
        let mut observer = Observer::default();
        // The runner beats (seq rises), but the database says that every row is ten years old.
        let verdicts = passes(&mut observer, 0, 300_000, |now| {
            vec![row("a", now / 10_000, 315_360_000_000)]
        });
        assert!(verdicts.lost.is_empty());
    }

    #[test]
    fn a_gap_in_the_reapers_own_reads_starts_the_observation_again() {
        let mut observer = Observer::default();
        passes(&mut observer, 0, 80_000, |_| vec![row("a", 7, 80_000)]);
        let verdicts = observer.pass(200_000, &[row("a", 7, 200_000)], RULE);
        assert!(verdicts.lost.is_empty());
    }

    #[test]
    fn the_brake_holds_back_a_mass_loss_and_releases_it_in_the_end() {
        let fleet = |now: i64| {
            let mut rows: Vec<Seen> = (0..40).map(|i| row(&format!("h{i:02}"), 7, now)).collect();
            rows.extend((40..100).map(|i| row(&format!("h{i:02}"), now, 0)));
            rows
        };
        let mut observer = Observer::default();
        let held = passes(&mut observer, 0, 90_000, fleet);
        assert!(held.lost.is_empty());
        assert_eq!(held.withheld.len(), 40);
        let released = passes(&mut observer, 100_000, 90_000 + 10 * 90_000, fleet);
        assert_eq!(released.lost.len(), 40, "the brake has an end");
    }

    #[test]
    fn a_host_that_returns_is_released_by_its_beat() {
        let mut observer = Observer::default();
        passes(&mut observer, 0, 90_000, |now| {
            (0..10).map(|i| row(&format!("h{i}"), 7, now)).collect()
        });
        let verdicts = passes(&mut observer, 100_000, 100_000, |_| {
            (0..10).map(|i| row(&format!("h{i}"), 8, 0)).collect()
        });
        assert_eq!(verdicts, Verdicts::default());
    }

    #[test]
    fn a_single_loss_in_a_large_fleet_is_not_held_back_by_hosts_gone_long_ago() {
        let fleet = |now: i64| {
            let mut rows: Vec<Seen> = (0..50)
                .map(|i| row(&format!("old{i}"), 1, 10_000_000 + now))
                .map(|mut r| {
                    r.holds_task = false;
                    r
                })
                .collect();
            rows.push(row("dead", 7, now));
            rows.extend((0..10).map(|i| row(&format!("live{i}"), now, 0)));
            rows
        };
        let verdicts = passes(&mut Observer::default(), 0, 90_000, fleet);
        assert_eq!(verdicts.lost, [("dead".to_owned(), 0, 1, 7)]);
    }
}
