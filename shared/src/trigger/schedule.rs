//! When a trigger is due: each kind as a value with one question, "when after this instant?".

use super::dst::{self, Dst, OddDay};
use super::wall::{STEPS_MAX, WallSchedule};
use super::zone::Zone;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::sync::Arc;

/// A set of instants, in milliseconds since the epoch. What a trigger of one's own implements.
pub trait Times: Debug + Send + Sync {
    /// The first instant that is strictly later. It must depend on nothing else than the argument.
    fn next_after(&self, after_ms: i64) -> Option<i64>;

    /// How many instants lie after the first argument up to and including the second, at most `cap`.
    fn count(&self, after_ms: i64, until_ms: i64, cap: u64) -> u64 {
        let mut at = after_ms;
        let mut count = 0;
        while count < cap {
            match self.next_after(at) {
                // An instant that does not go on would never end; the plan refuses such a schedule.
                Some(next) if next <= until_ms && next > at => {
                    count += 1;
                    at = next;
                }
                _ => break,
            }
        }
        count
    }

    /// Instants that one count may go over: more where they are counted without being visited.
    fn count_max(&self) -> u64 {
        STEPS_MAX
    }

    /// The next clock changes that touch it.
    fn odd_days(&self, _after_ms: i64, _limit: usize) -> Vec<OddDay> {
        Vec::new()
    }
}

/// How the chain must have ended after which an `after` trigger fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterOutcome {
    Finished,
    Failed,
    Terminated,
    /// Whatever the outcome.
    Ended,
}

#[derive(Clone, Debug)]
pub enum Schedule {
    /// `at` and `delay`: once.
    Once(i64),
    /// The grid `anchor + k × period`, which lateness and outages do not move.
    FixedRate { anchor_ms: i64, period_ms: i64 },
    /// So long after the verified end of the last run.
    FixedDelay { delay_ms: i64 },
    /// Cron and other schedules on local time.
    Local(Arc<Local>),
    /// A kind of the registry.
    Custom(Arc<dyn Times>),
    /// Only when somebody asks.
    Manual,
    /// When a chain of another job has ended.
    After { job: String, outcome: AfterOutcome },
}

impl Schedule {
    /// Has instants of its own that can be late; `manual`, `after` and `fixed_delay` have not.
    pub fn is_timed(&self) -> bool {
        self.times().is_some()
    }

    fn times(&self) -> Option<&dyn Times> {
        match self {
            Self::Once(_) | Self::FixedRate { .. } => Some(self),
            Self::Local(local) => Some(&**local),
            Self::Custom(times) => Some(&**times),
            Self::FixedDelay { .. } | Self::Manual | Self::After { .. } => None,
        }
    }
}

impl Times for Schedule {
    fn next_after(&self, after_ms: i64) -> Option<i64> {
        match self {
            Self::Once(at) => (*at > after_ms).then_some(*at),
            Self::FixedRate { anchor_ms, period_ms } => {
                let passed = after_ms.checked_sub(*anchor_ms)?.div_euclid(*period_ms) + 1;
                anchor_ms.checked_add(passed.max(0).checked_mul(*period_ms)?)
            }
            // From the end of a run; before the first run from the trigger's start.
            Self::FixedDelay { delay_ms } => after_ms.checked_add(*delay_ms),
            Self::Local(_) | Self::Custom(_) => self.times()?.next_after(after_ms),
            Self::Manual | Self::After { .. } => None,
        }
    }

    fn count(&self, after_ms: i64, until_ms: i64, cap: u64) -> u64 {
        match self {
            Self::FixedRate { period_ms, .. } => match self.next_after(after_ms) {
                Some(first) if first <= until_ms => {
                    u64::try_from((until_ms - first) / period_ms + 1).unwrap_or(0).min(cap)
                }
                _ => 0,
            },
            Self::Local(_) | Self::Custom(_) => self.times().map_or(0, |times| times.count(after_ms, until_ms, cap)),
            Self::Once(at) => u64::from(*at > after_ms && *at <= until_ms).min(cap),
            Self::FixedDelay { .. } | Self::Manual | Self::After { .. } => 0,
        }
    }

    fn count_max(&self) -> u64 {
        match self {
            Self::Local(local) => local.count_max(),
            Self::Custom(times) => times.count_max(),
            _ => u64::MAX - 1,
        }
    }

    fn odd_days(&self, after_ms: i64, limit: usize) -> Vec<OddDay> {
        match self {
            Self::Local(local) => local.odd_days(after_ms, limit),
            Self::Custom(times) => times.odd_days(after_ms, limit),
            _ => Vec::new(),
        }
    }
}

/// Local times in a zone, with the policy for its clock changes.
#[derive(Debug)]
pub struct Local {
    pub zone: Zone,
    pub dst: Dst,
    pub walls: Box<dyn WallTimes>,
}

/// A [`WallSchedule`] that can be stored behind a pointer.
pub trait WallTimes: WallSchedule + Debug + Send + Sync {}

impl<T: WallSchedule + Debug + Send + Sync> WallTimes for T {}

impl Local {
    pub fn new(walls: impl WallTimes + 'static, zone: Zone, dst: Dst) -> Arc<Self> {
        Arc::new(Self {
            zone,
            dst,
            walls: Box::new(walls),
        })
    }
}

impl Times for Local {
    fn next_after(&self, after_ms: i64) -> Option<i64> {
        dst::next_after(
            &*self.walls as &dyn WallSchedule,
            &self.zone,
            self.dst,
            after_ms.div_euclid(1_000),
        )
        .map(|at| at * 1_000)
    }

    fn count(&self, after_ms: i64, until_ms: i64, cap: u64) -> u64 {
        let (after, until) = (after_ms.div_euclid(1_000), until_ms.div_euclid(1_000));
        dst::count(
            &*self.walls as &dyn WallSchedule,
            &self.zone,
            self.dst,
            after,
            until,
            cap,
        )
    }

    fn count_max(&self) -> u64 {
        self.walls.count_max()
    }

    fn odd_days(&self, after_ms: i64, limit: usize) -> Vec<OddDay> {
        dst::odd_days(
            &*self.walls as &dyn WallSchedule,
            &self.zone,
            self.dst,
            after_ms.div_euclid(1_000),
            limit,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::cron::{Cron, Dialect};

    #[test]
    fn a_fixed_rate_keeps_its_grid() {
        let rate = Schedule::FixedRate {
            anchor_ms: 1_000,
            period_ms: 30_000,
        };
        for (after, next) in [
            (-5_000_000, 1_000),
            (999, 1_000),
            (1_000, 31_000),
            (31_500, 61_000),
            (61_000, 91_000),
        ] {
            assert_eq!(rate.next_after(after), Some(next), "{after}");
        }
        assert_eq!(rate.count(1_000, 91_000, u64::MAX), 3);
        assert_eq!(rate.count(1_000, 90_999, u64::MAX), 2);
        assert_eq!(rate.count(0, i64::MAX / 2, 7), 7);
        assert_eq!(rate.next_after(i64::MAX - 1), None);
    }

    #[test]
    fn one_off_and_asked_for_kinds() {
        let once = Schedule::Once(5_000);
        assert_eq!((once.next_after(4_999), once.next_after(5_000)), (Some(5_000), None));
        assert_eq!(
            Schedule::FixedDelay { delay_ms: 600_000 }.next_after(1_000),
            Some(601_000)
        );
        assert_eq!(Schedule::Manual.next_after(0), None);
    }

    #[test]
    fn local_schedules_are_asked_in_milliseconds() {
        let cron = Cron::parse("0 * * * *", Dialect::Unix).expect("cron");
        let local = Local::new(cron, Zone::utc(), Dst::default());
        assert_eq!(local.next_after(3_599_999), Some(3_600_000));
        assert_eq!(local.next_after(3_600_000), Some(7_200_000));
        assert_eq!(local.next_after(3_600_500), Some(7_200_000));
        assert_eq!(local.count(-1, 24 * 3_600_000, u64::MAX), 25);
    }
}
