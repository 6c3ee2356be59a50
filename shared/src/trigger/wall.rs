//! Wall-clock time: what a local clock shows, as seconds since 1970 of a clock in UTC, which has no changes.

use chrono::{Datelike as _, NaiveDate, NaiveDateTime};

pub const DAY: i64 = 86_400;
/// Days from the first day of chrono's count to 1970-01-01.
const EPOCH_FROM_CE: i64 = 719_163;

/// Times or instants that one count steps through.
pub const STEPS_MAX: u64 = 1_000_000;

/// A local time: seconds.
pub type Wall = i64;

/// The date of a day number (days since 1970-01-01); dates that chrono does not know are none.
pub fn date(day: i64) -> Option<NaiveDate> {
    NaiveDate::from_num_days_from_ce_opt(i32::try_from(day + EPOCH_FROM_CE).ok()?)
}

/// The day number of a date.
pub fn day_number(date: NaiveDate) -> i64 {
    i64::from(date.num_days_from_ce()) - EPOCH_FROM_CE
}

pub fn of_date_time(time: NaiveDateTime) -> Wall {
    time.and_utc().timestamp()
}

pub fn days_in_month(year: i32, month: u32) -> u32 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A set of local times, and how it meets the changes of a clock.
pub trait WallSchedule {
    /// The first time that is not before `from`.
    fn next_wall(&self, from: Wall) -> Option<Wall>;

    /// Interval schedules (`*/15`) follow the clock: they run in both passes of a repeated hour, and not in a missing
    /// one. All others are fixed times, which a clock change moves or keeps by its policy.
    fn follows_the_clock(&self) -> bool;

    /// Times that one count may go over: more where they are counted without being visited.
    fn count_max(&self) -> u64 {
        STEPS_MAX
    }

    /// How many times there are from `from` until `until` (exclusive), but not more than `cap`.
    fn count_wall(&self, from: Wall, until: Wall, cap: u64) -> u64 {
        let mut count = 0;
        let mut from = from;
        while count < cap {
            match self.next_wall(from) {
                Some(wall) if wall < until => {
                    count += 1;
                    from = wall + 1;
                }
                _ => break,
            }
        }
        count
    }
}
