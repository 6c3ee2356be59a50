//! From local times to instants: what a schedule does where its zone's clock changes.
//!
//! The rule is that of cron(8) of the cronie family, with a policy for each trigger. See
//! `docs/decisions/0022-clock-changes.md`.

use super::wall::{Wall, WallSchedule};
use super::zone::{Change, HORIZON, Segment, Zone};
use serde::{Deserialize, Serialize};

/// A fixed local time that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// Fires at the instant the clock jumps; all times of one gap together once.
    #[default]
    Shift,
    /// Does not fire that day.
    Skip,
}

/// A fixed local time that exists twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    #[default]
    First,
    Second,
    Both,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dst {
    pub gap: Gap,
    pub overlap: Overlap,
}

/// No two offsets of a zone are further apart than this (from -12 h to +14 h), seconds.
const REACH: i64 = 26 * 3_600;

/// The part of a segment in which local times count, as instants: without the pass that the policy leaves out.
fn effective(segment: &Segment, dst: Dst, interval: bool) -> (i64, i64) {
    let (mut start, mut end) = (segment.start, segment.end);
    if !interval {
        if dst.overlap == Overlap::First && segment.before > segment.offset {
            start += i64::from(segment.before - segment.offset);
        }
        if dst.overlap == Overlap::Second && segment.after < segment.offset {
            end -= i64::from(segment.offset - segment.after);
        }
    }
    (start, end)
}

/// The first local time of a schedule in the gap at the start of this segment, if it is to fire there.
fn shifted(schedule: &dyn WallSchedule, segment: &Segment, dst: Dst) -> Option<Wall> {
    if schedule.follows_the_clock() || dst.gap == Gap::Skip || segment.before >= segment.offset {
        return None;
    }
    schedule
        .next_wall(segment.start + i64::from(segment.before))
        .filter(|&wall| wall < segment.start + i64::from(segment.offset))
}

/// The first fire after an instant (seconds since the epoch): always strictly later, and none from [`HORIZON`] on.
///
/// Each step goes on by at least one clock change of the zone, so the search is bounded by their number, and a step
/// over years without a fitting date is one step.
pub fn next_after(schedule: &dyn WallSchedule, zone: &Zone, dst: Dst, after: i64) -> Option<i64> {
    let interval = schedule.follows_the_clock();
    let mut at = after + 1;
    while at < HORIZON {
        let segment = zone.segment(at);
        if at == segment.start && shifted(schedule, &segment, dst).is_some() {
            return Some(at);
        }
        let (start, end) = effective(&segment, dst, interval);
        let offset = i64::from(segment.offset);
        let candidate = schedule.next_wall(at.max(start) + offset).map(|wall| wall - offset);
        match candidate {
            Some(instant) if instant < end.min(HORIZON) => return Some(instant),
            // No local time lies between here and the candidate. Within REACH a clock that is set back may still show
            // an earlier one again; later it cannot, and everything before the candidate's own neighbourhood is empty.
            Some(instant) if segment.end - after > REACH => at = segment.end.max(instant - REACH),
            None if segment.end - after > REACH => return None,
            _ => at = segment.end,
        }
    }
    None
}

/// How many fires lie after `after` up to and including `until`, but not more than `cap`.
pub fn count(schedule: &dyn WallSchedule, zone: &Zone, dst: Dst, after: i64, until: i64, cap: u64) -> u64 {
    let interval = schedule.follows_the_clock();
    let until = (until + 1).min(HORIZON);
    let mut at = after + 1;
    let mut count = 0;
    while at < until && count < cap {
        let segment = zone.segment(at);
        let offset = i64::from(segment.offset);
        let (start, end) = effective(&segment, dst, interval);
        let from = at.max(start);
        // The instant of the jump may be a time of its own: one fire, which the range below counts.
        if at == segment.start
            && shifted(schedule, &segment, dst).is_some()
            && schedule.next_wall(at + offset) != Some(at + offset)
        {
            count += 1;
        }
        let to = end.min(until);
        if from < to && count < cap {
            count += schedule.count_wall(from + offset, to + offset, cap - count);
        }
        at = segment.end;
    }
    count.min(cap)
}

/// What is odd about one fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// The local time meant does not exist that day.
    Shifted {
        meant: Wall,
    },
    FirstPass,
    SecondPass,
}

/// Whether a fire at this instant is touched by a clock change.
pub fn odd(schedule: &dyn WallSchedule, zone: &Zone, dst: Dst, fire: i64) -> Option<Odd> {
    let segment = zone.segment(fire);
    if fire == segment.start
        && let Some(meant) = shifted(schedule, &segment, dst)
    {
        return Some(Odd::Shifted { meant });
    }
    if fire - segment.start < i64::from(segment.before - segment.offset) {
        return Some(Odd::SecondPass);
    }
    if segment.end - fire <= i64::from(segment.offset - segment.after) {
        return Some(Odd::FirstPass);
    }
    None
}

/// A clock change that the times of a schedule meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OddDay {
    pub change: Change,
    /// The first local time of the schedule that does not exist, or exists twice.
    pub wall: Wall,
    pub effect: Effect,
}

/// What happens to the times of a schedule that a change touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Missing times fire once, at the instant of the change.
    Shifted,
    /// Missing times do not fire.
    NotFired,
    /// Repeated times fire in the first pass, in the second, or in both.
    FirstOnly,
    SecondOnly,
    Twice,
}

/// The next clock changes after an instant that touch a schedule, at most `limit` of them; looks until [`HORIZON`].
pub fn odd_days(schedule: &dyn WallSchedule, zone: &Zone, dst: Dst, after: i64, limit: usize) -> Vec<OddDay> {
    let interval = schedule.follows_the_clock();
    zone.changes_after(after)
        .iter()
        .filter_map(|&change| {
            let (from, until) = change.odd_walls();
            let wall = schedule.next_wall(from).filter(|&wall| wall < until)?;
            let effect = match (change.is_gap(), interval) {
                (true, true) => Effect::NotFired,
                (true, false) if dst.gap == Gap::Skip => Effect::NotFired,
                (true, false) => Effect::Shifted,
                (false, true) => Effect::Twice,
                (false, false) => match dst.overlap {
                    Overlap::First => Effect::FirstOnly,
                    Overlap::Second => Effect::SecondOnly,
                    Overlap::Both => Effect::Twice,
                },
            };
            Some(OddDay { change, wall, effect })
        })
        .take(limit)
        .collect()
}
