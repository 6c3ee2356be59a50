//! Slots that are made up: which there are, and what stays of a row of the ledger when some of its fires get rows of their own.

use super::plan::{Broken, Trigger};

/// A row of the ledger: fires in a row with one verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first and the last of them.
    pub from_ms: i64,
    pub until_ms: i64,
    pub fires: u64,
}

impl Stretch {
    pub fn holds(&self, slot: i64) -> bool {
        (self.from_ms..=self.until_ms).contains(&slot)
    }
}

impl Trigger {
    /// The slots from an instant up to another one, both included; at most `max` of them, the oldest.
    pub fn slots_between(&self, from_ms: i64, until_ms: i64, max: usize) -> Result<Vec<i64>, Broken> {
        let mut slots = Vec::new();
        let mut after = from_ms.saturating_sub(1);
        while slots.len() < max {
            match self.next_after(after)? {
                Some(slot) if slot <= until_ms => slots.push(slot),
                _ => break,
            }
            after = slots.last().copied().unwrap_or(until_ms);
        }
        Ok(slots)
    }

    /// What stays of a stretch when `taken` fires, from `first` to `last`, get rows of their own: what lies before, and after.
    pub fn rest_of(&self, whole: Stretch, first: i64, last: i64, taken: u64) -> Result<Vec<Stretch>, Broken> {
        let left = whole.fires.saturating_sub(taken);
        let mut rest = Vec::new();
        if left == 0 {
            return Ok(rest);
        }
        let after = self.next_after(last)?.filter(|&slot| slot <= whole.until_ms);
        let before = (whole.from_ms < first).then_some(whole.from_ms);
        // Counted only where both sides have some; the total stays what it was.
        let fires_before = match (before, after) {
            (None, _) => 0,
            (Some(_), None) => left,
            (Some(from), Some(_)) => self
                .count_free(from - 1, first - 1, left)
                .clamp(1, left.saturating_sub(1).max(1)),
        };
        if let Some(from_ms) = before {
            rest.push(Stretch {
                from_ms,
                until_ms: self.last_free(from_ms - 1, first - 1).unwrap_or(from_ms),
                fires: fires_before,
            });
        }
        if let Some(from_ms) = after
            && left > fires_before
        {
            rest.push(Stretch {
                from_ms,
                until_ms: whole.until_ms,
                fires: left - fires_before,
            });
        }
        Ok(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::definition::{Environment, TriggerSpec};
    use crate::trigger::zone::Zone;
    use std::collections::BTreeMap;

    const HOUR: i64 = 3_600_000;

    fn hourly() -> Trigger {
        let spec: TriggerSpec = serde_json::from_str(r#"{"cron": "0 * * * *"}"#).expect("spec");
        let registry = crate::trigger::custom::Registry::built_in();
        spec.compile(&Environment {
            job: "a",
            created_ms: 0,
            default_zone: &Zone::utc(),
            calendars: &BTreeMap::new(),
            registry: &registry,
        })
        .expect("a trigger")
    }

    #[test]
    fn slots_include_both_ends_and_are_bounded() {
        let trigger = hourly();
        let slots = |from, until, max| trigger.slots_between(from, until, max).expect("slots");
        assert_eq!(slots(HOUR, 3 * HOUR, 10), [HOUR, 2 * HOUR, 3 * HOUR]);
        assert_eq!(slots(HOUR + 1, 3 * HOUR - 1, 10), [2 * HOUR]);
        assert_eq!(slots(HOUR, 99 * HOUR, 2), [HOUR, 2 * HOUR]);
        assert!(slots(3 * HOUR, HOUR, 10).is_empty());
    }

    #[test]
    fn what_stays_of_a_range_has_all_its_other_fires() {
        let trigger = hourly();
        let stretch = |from: i64, until: i64| Stretch {
            from_ms: from * HOUR,
            until_ms: until * HOUR,
            fires: u64::try_from(until - from + 1).expect("a stretch"),
        };
        let whole = stretch(10, 29);
        for (first, last, rest) in [
            (10, 29, vec![]),
            (10, 14, vec![stretch(15, 29)]),
            (20, 29, vec![stretch(10, 19)]),
            (15, 17, vec![stretch(10, 14), stretch(18, 29)]),
            (11, 28, vec![stretch(10, 10), stretch(29, 29)]),
        ] {
            let taken = u64::try_from(last - first + 1).expect("some");
            let found = trigger
                .rest_of(whole, first * HOUR, last * HOUR, taken)
                .expect("a rest");
            assert_eq!(found, rest, "{first} to {last}");
            assert_eq!(found.iter().map(|one| one.fires).sum::<u64>() + taken, 20);
        }
    }
}
