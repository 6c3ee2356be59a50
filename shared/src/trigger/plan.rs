//! What a trigger is to do now: a pure decision, which a firing loop carries out in one transaction.
//!
//! Every slot gets exactly one verdict: the cursor says up to where slots are judged, and a plan goes on from there.

use super::calendar::Exclusions;
use super::jitter;
use super::misfire::{Misfire, is_misfired, threshold_ms};
use super::occurrence::{Fire, Range, SkipReason, Verdict};
use super::schedule::{Schedule, Times as _};
use super::zone::HORIZON;
use crate::limits::RANGES_PER_PLAN_MAX;
use serde::{Deserialize, Serialize};

/// Stretches of calendars that one count goes over.
const STRETCHES_MAX: usize = 10_000;

/// A trigger, ready to be asked. What the definition says beside it (data, priority) does not matter here.
#[derive(Clone, Debug)]
pub struct Trigger {
    /// `job/trigger`: what the jitter depends on.
    pub key: String,
    pub schedule: Schedule,
    pub start_ms: Option<i64>,
    /// The last instant at which it may fire.
    pub end_ms: Option<i64>,
    /// Real fires; `None` is no limit.
    pub max_fires: Option<u64>,
    pub exclusions: Exclusions,
    pub jitter_ms: u64,
    pub misfire: Misfire,
    pub misfire_threshold_ms: Option<i64>,
    pub max_catch_up: u64,
}

/// How far a trigger has come; stored with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Every slot up to here has its verdict.
    pub judged_ms: i64,
    /// When to look again; `None` for a trigger that waits for something else than time, or is complete.
    pub next_ms: Option<i64>,
    pub fires: u64,
}

/// Where the trigger stands after a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Waits for `next_ms`, or for whoever asks.
    Waits,
    /// `fixed_delay`: waits for the end of the run that this plan starts.
    WaitsForRun,
    Complete,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Oldest first.
    pub fires: Vec<Fire>,
    /// Oldest first; no slot of `fires` lies in one of them.
    pub ranges: Vec<Range>,
    pub cursor: Cursor,
    pub then: Then,
    /// A bound was met: plan again at once.
    pub more: bool,
}

/// A schedule of one's own that does not go forward: its trigger goes to the state ERROR, alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the schedule went from {from_ms} to {to_ms}: its next instant must be later than the one before")]
pub struct Broken {
    pub from_ms: i64,
    pub to_ms: i64,
}

impl Trigger {
    /// The first slot after an instant, calendars aside, within start and end.
    fn slot_after(&self, after_ms: i64) -> Result<Option<i64>, Broken> {
        let after_ms = self
            .start_ms
            .map_or(after_ms, |start| after_ms.max(start.saturating_sub(1)));
        match self.schedule.next_after(after_ms) {
            Some(to_ms) if to_ms <= after_ms => Err(Broken {
                from_ms: after_ms,
                to_ms,
            }),
            found => Ok(found.filter(|&slot| self.end_ms.is_none_or(|end| slot <= end) && slot < HORIZON * 1_000)),
        }
    }

    /// The first slot after an instant that no calendar leaves out. A search over calendars that leave out
    /// everything is bounded and finds nothing.
    pub fn next_after(&self, after_ms: i64) -> Result<Option<i64>, Broken> {
        let mut after = after_ms;
        for _ in 0..STRETCHES_MAX {
            let Some(slot) = self.slot_after(after)? else {
                return Ok(None);
            };
            match self.exclusions.first_free(slot) {
                Some(free) if free == slot => return Ok(Some(slot)),
                // The delay of a fixed_delay has no slots of its own: it is due when the exclusion ends.
                Some(free) if matches!(self.schedule, Schedule::FixedDelay { .. }) => {
                    return Ok(self.end_ms.is_none_or(|end| free <= end).then_some(free));
                }
                Some(free) => after = free - 1,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// The cursor of a new trigger: nothing before its creation was missed.
    pub fn first_cursor(&self, created_ms: i64) -> Result<Cursor, Broken> {
        // One-off times may lie before the creation by a little; they are due at once, or missed.
        let judged_ms = match self.schedule {
            Schedule::Once(at) => created_ms.min(at - 1),
            _ => created_ms,
        };
        Ok(Cursor {
            judged_ms,
            next_ms: self.next_after(judged_ms)?,
            fires: 0,
        })
    }

    fn threshold(&self, slot: i64) -> i64 {
        let next = || self.slot_after(slot).ok().flatten();
        let period = match self.misfire_threshold_ms {
            Some(_) => None,
            None => next().map(|next| next - slot),
        };
        threshold_ms(self.misfire_threshold_ms, period)
    }

    /// Slots after `after` up to and including `until` that no calendar leaves out, at most `cap`.
    pub(super) fn count_free(&self, after: i64, until: i64, cap: u64) -> u64 {
        let mut after = self.start_ms.map_or(after, |start| after.max(start.saturating_sub(1)));
        let mut count = 0;
        for _ in 0..STRETCHES_MAX {
            if after >= until || count >= cap {
                break;
            }
            let (excluded, end) = self.exclusions.stretch(after + 1);
            let stretch_until = (end - 1).min(until);
            if !excluded {
                count += self.schedule.count(after, stretch_until, cap - count);
            }
            after = stretch_until;
        }
        count
    }

    /// The last slot up to and including `until`, if one lies after `after`. Halves the time between them.
    pub(super) fn last_free(&self, after: i64, until: i64) -> Option<i64> {
        let (mut low, mut high) = (after, until);
        if self.count_free(low, high, 1) == 0 {
            return None;
        }
        // There is a slot after `low` and none after `high`.
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.count_free(middle, until, 1) == 1 {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(high)
    }

    /// From where on at most `keep` slots are left until `until`.
    fn newest_from(&self, after: i64, until: i64, keep: u64) -> i64 {
        let few = |from: i64| self.count_free(from, until, keep + 1) <= keep;
        if few(after) {
            return after;
        }
        let (mut low, mut high) = (after, until);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if few(middle) { high = middle } else { low = middle }
        }
        high
    }
}

/// What to do at `now_ms`. At most `fires_max` tasks are made by one plan; `paused` gives every slot up to now the
/// verdict "paused" (asked when a pause ends).
pub fn plan(trigger: &Trigger, cursor: Cursor, now_ms: i64, paused: bool, fires_max: usize) -> Result<Plan, Broken> {
    let mut planner = Planner {
        trigger,
        now: now_ms,
        fires_max,
        at: cursor.judged_ms,
        catch_up_from: None,
        plan: Plan {
            fires: Vec::new(),
            ranges: Vec::new(),
            cursor,
            then: Then::Waits,
            more: false,
        },
    };
    match trigger.schedule {
        Schedule::Manual | Schedule::After { .. } => {}
        Schedule::FixedDelay { delay_ms } => planner.delay(delay_ms, paused)?,
        _ => planner.slots(paused)?,
    }
    Ok(planner.plan)
}

/// The cursor of a `fixed_delay` trigger whose run has ended.
pub fn run_ended(trigger: &Trigger, cursor: Cursor, ended_ms: i64) -> Result<Cursor, Broken> {
    if !matches!(trigger.schedule, Schedule::FixedDelay { .. }) {
        return Ok(cursor);
    }
    // A report of an older run that comes late must not set the trigger back.
    let judged_ms = cursor.judged_ms.max(ended_ms);
    Ok(Cursor {
        judged_ms,
        next_ms: trigger.next_after(judged_ms)?,
        ..cursor
    })
}

struct Planner<'a> {
    trigger: &'a Trigger,
    now: i64,
    fires_max: usize,
    /// Judged up to here.
    at: i64,
    /// Missed slots after this are caught up; known once the first missed slot was met.
    catch_up_from: Option<i64>,
    plan: Plan,
}

impl Planner<'_> {
    fn count_is_used_up(&self) -> bool {
        self.trigger.max_fires.is_some_and(|max| self.plan.cursor.fires >= max)
    }

    fn fire(&mut self, slot: i64, coalesced: u64, misfired: bool) {
        let jitter = jitter::delay_ms(&self.trigger.key, slot, self.trigger.jitter_ms);
        self.plan.fires.push(Fire {
            scheduled_ms: slot,
            run_at_ms: slot.saturating_add_unsigned(jitter),
            coalesced,
            misfired,
        });
        self.plan.cursor.fires += 1;
        self.at = slot;
    }

    /// Gives the slots from `first` up to `until` one verdict and goes there.
    fn range(&mut self, first: i64, until: i64, verdict: Verdict) {
        let schedule = &self.trigger.schedule;
        let count_max = schedule.count_max();
        let count = schedule.count(first, until, count_max) + 1;
        let mut last = until;
        if count > count_max {
            // Too many to step through at once: as far as they were counted, the rest with the next plan.
            last = self.nth_after(first, until, count_max);
            self.plan.more = true;
        } else if count > 1 {
            last = self.last_slot(first, until);
        } else {
            last = last.min(first);
        }
        let range = Range {
            from_ms: first,
            to_ms: last,
            count,
            verdict,
        };
        match self.plan.ranges.last_mut() {
            // Nothing lies between them: slots are judged in order.
            Some(before)
                if before.verdict == verdict
                    && self.plan.fires.last().is_none_or(|f| f.scheduled_ms < before.from_ms) =>
            {
                before.to_ms = range.to_ms;
                before.count += range.count;
            }
            _ => self.plan.ranges.push(range),
        }
        self.at = if self.plan.more { last } else { until };
    }

    /// The last slot up to `until`, calendars aside; there is one after `first`.
    fn last_slot(&self, first: i64, until: i64) -> i64 {
        let (mut low, mut high) = (first, until);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.trigger.schedule.count(middle, until, 1) == 1 {
                low = middle
            } else {
                high = middle
            }
        }
        high
    }

    /// There are more up to `until`.
    fn nth_after(&self, first: i64, until: i64, n: u64) -> i64 {
        let (mut low, mut high) = (first, until);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.trigger.schedule.count(first, middle, n) >= n {
                high = middle
            } else {
                low = middle
            }
        }
        high
    }

    /// Triggers whose slots are instants.
    fn slots(&mut self, paused: bool) -> Result<(), Broken> {
        let until = self.trigger.end_ms.map_or(self.now, |end| end.min(self.now));
        loop {
            if self.count_is_used_up() {
                return self.complete();
            }
            let Some(slot) = self.trigger.slot_after(self.at)? else {
                return self.complete();
            };
            if slot > self.now {
                break;
            }
            if self.plan.more
                || self.plan.fires.len() >= self.fires_max
                || self.plan.ranges.len() >= RANGES_PER_PLAN_MAX
            {
                self.plan.more = true;
                break;
            }
            if paused {
                self.range(slot, until, Verdict::Skipped(SkipReason::Paused));
                continue;
            }
            let (excluded, end) = self.trigger.exclusions.stretch(slot);
            let stretch = (end - 1).min(until);
            if excluded {
                self.range(slot, stretch, Verdict::Skipped(SkipReason::Calendar));
            } else if is_misfired(slot, self.now, self.trigger.threshold(slot)) {
                self.missed(slot, until, stretch);
            } else {
                self.fire(slot, self.coalesced_into(slot), false);
            }
        }
        let mut next_ms = None;
        if !self.plan.more {
            next_ms = self.trigger.next_after(self.at)?;
            if next_ms.is_none() {
                self.never_free()?;
            }
        }
        if self.plan.more {
            next_ms = Some(self.now);
        }
        if next_ms.is_none() {
            return self.complete();
        }
        self.plan.cursor.judged_ms = self.at;
        self.plan.cursor.next_ms = next_ms;
        Ok(())
    }

    /// Calendars leave out all that is left up to the trigger's end. It is complete now, so these slots have their verdict now: nobody
    /// would look again when their time comes.
    fn never_free(&mut self) -> Result<(), Broken> {
        if let Some(end) = self.trigger.end_ms
            && let Some(slot) = self.trigger.slot_after(self.at)?
        {
            self.range(slot, end, Verdict::Skipped(SkipReason::Calendar));
        }
        Ok(())
    }

    /// A slot that is too late, in a stretch without calendars until `stretch`.
    fn missed(&mut self, slot: i64, until: i64, stretch: i64) {
        // Nothing is made up once the trigger's end has passed.
        if self.trigger.end_ms.is_some_and(|end| self.now > end) {
            self.range(slot, stretch, Verdict::Skipped(SkipReason::Ended));
            return;
        }
        match self.trigger.misfire {
            Misfire::Skip => {
                let until = self.missed_until(slot, stretch);
                self.range(slot, until, Verdict::Skipped(SkipReason::Misfire));
            }
            Misfire::FireOnce => {
                let last = self.trigger.last_free(self.at, until).unwrap_or(slot);
                if last == slot {
                    self.fire(slot, self.coalesced_into(slot), true);
                } else {
                    self.range(slot, stretch.min(last - 1), Verdict::Coalesced { into_ms: last });
                }
            }
            Misfire::CatchUp => {
                let keep = self.trigger.max_catch_up;
                let from = match self.catch_up_from {
                    Some(from) => from,
                    None => self.trigger.newest_from(self.at, until, keep),
                };
                self.catch_up_from = Some(from);
                if slot > from {
                    self.fire(slot, 0, true);
                } else {
                    self.range(slot, stretch.min(from), Verdict::Skipped(SkipReason::Misfire));
                }
            }
        }
    }

    /// Up to where slots are too late for sure; the last minute is judged slot by slot.
    fn missed_until(&self, slot: i64, stretch: i64) -> i64 {
        let sure = self
            .trigger
            .misfire_threshold_ms
            .unwrap_or(super::misfire::THRESHOLD_MS);
        stretch.min(self.now - sure - 1).max(slot)
    }

    /// The slots of this plan that fire with this one.
    fn coalesced_into(&self, slot: i64) -> u64 {
        let into = Verdict::Coalesced { into_ms: slot };
        let ranges = self.plan.ranges.iter().filter(|range| range.verdict == into);
        ranges.map(|range| range.count).sum()
    }

    fn complete(&mut self) -> Result<(), Broken> {
        self.plan.cursor.judged_ms = self.at;
        self.plan.cursor.next_ms = None;
        self.plan.then = Then::Complete;
        Ok(())
    }

    /// `fixed_delay`: one slot at a time, `next_ms` of the cursor.
    fn delay(&mut self, delay_ms: i64, paused: bool) -> Result<(), Broken> {
        let Some(slot) = self.plan.cursor.next_ms else {
            return Ok(());
        };
        if self.count_is_used_up() || self.trigger.end_ms.is_some_and(|end| self.now > end) {
            return self.complete();
        }
        if slot > self.now {
            return Ok(());
        }
        let threshold = threshold_ms(self.trigger.misfire_threshold_ms, Some(delay_ms));
        let skipped = if paused {
            Some(SkipReason::Paused)
        } else if self.trigger.exclusions.excludes(self.now) {
            // It was due in free time, but now is not.
            Some(SkipReason::Calendar)
        } else if self.trigger.misfire == Misfire::Skip && is_misfired(slot, self.now, threshold) {
            Some(SkipReason::Misfire)
        } else {
            None
        };
        match skipped {
            Some(reason) => {
                self.plan.ranges.push(Range {
                    from_ms: slot,
                    to_ms: slot,
                    count: 1,
                    verdict: Verdict::Skipped(reason),
                });
                self.plan.cursor.judged_ms = self.now;
                self.plan.cursor.next_ms = self.trigger.next_after(self.now)?;
                if self.plan.cursor.next_ms.is_none() {
                    self.at = self.now;
                    return self.complete();
                }
            }
            None => {
                self.fire(slot, 0, is_misfired(slot, self.now, threshold));
                self.plan.cursor.judged_ms = slot;
                self.plan.cursor.next_ms = None;
                // The last fire needs no look at the end of its run.
                self.plan.then = if self.count_is_used_up() {
                    Then::Complete
                } else {
                    Then::WaitsForRun
                };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
