//! Cron expressions in two declared dialects, and their local times.
//!
//! The dialect is stored with a trigger and never guessed from the number of fields. See
//! `docs/decisions/0021-cron-dialects.md` for what each field means and what is refused.

pub mod days;
pub mod explain;
pub mod field;
mod parse;

pub(crate) use parse::NICKNAMES;

use super::wall::{self, DAY, Wall, WallSchedule};
use crate::error::Invalid;
use chrono::Datelike as _;
use days::Days;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Whose rules an expression follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// Five fields, as crontab(5) of the cronie family reads them.
    #[default]
    Unix,
    /// Six or seven fields, as the Quartz scheduler and xxl-job read them.
    Quartz,
}

impl Dialect {
    pub fn name(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Quartz => "quartz",
        }
    }
}

impl FromStr for Dialect {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            "unix" => Ok(Self::Unix),
            "quartz" => Ok(Self::Quartz),
            other => Err(Invalid::new(
                "dialect",
                format!("{other:?} is not known; write \"unix\" (5 fields) or \"quartz\" (6 or 7, with seconds)"),
            )),
        }
    }
}

/// Months that a search looks at: the calendar repeats after 400 years, so what is not found in them does not exist.
const MONTHS_MAX: usize = 400 * 12 + 1;

/// A cron expression: sets of numbers, as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    text: String,
    dialect: Dialect,
    seconds: u64,
    minutes: u64,
    hours: u64,
    months: u64,
    days: Days,
    /// Ascending; `None` is every year.
    years: Option<Vec<i32>>,
    follows_the_clock: bool,
}

impl Cron {
    /// Reads an expression; one whose days no month has is refused.
    pub fn parse(text: &str, dialect: Dialect) -> Result<Self, Invalid> {
        parse::parse(text, dialect)
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// No day of 400 years fits, years left aside: the expression can never fire.
    fn fits_no_date(&self) -> bool {
        let any_year = match &self.years {
            Some(years) => years.first().copied().unwrap_or(1970),
            None => 1970,
        };
        let first = chrono::NaiveDate::from_ymd_opt(any_year, 1, 1).map_or(0, wall::day_number);
        self.next_day(first).is_none()
    }

    /// The first fitting day that is not before this one (days since 1970-01-01).
    fn next_day(&self, from: i64) -> Option<i64> {
        let date = wall::date(from)?;
        let (mut year, mut month, mut day) = (date.year(), date.month(), date.day());
        for _ in 0..MONTHS_MAX {
            if let Some(years) = &self.years {
                let next = *years.get(years.partition_point(|&known| known < year))?;
                if next > year {
                    (year, month, day) = (next, 1, 1);
                }
            }
            if self.months & (1 << month) != 0 {
                let fitting = self.days.in_month(year, month) & (u32::MAX << day);
                if fitting != 0 {
                    let date = chrono::NaiveDate::from_ymd_opt(year, month, fitting.trailing_zeros())?;
                    return Some(wall::day_number(date));
                }
            }
            (year, month, day) = if month == 12 {
                (year + 1, 1, 1)
            } else {
                (year, month + 1, 1)
            };
        }
        None
    }

    fn first_second(&self) -> i64 {
        i64::from(self.hours.trailing_zeros()) * 3_600
            + i64::from(self.minutes.trailing_zeros()) * 60
            + i64::from(self.seconds.trailing_zeros())
    }

    /// The first fitting second of a day that is not before this one.
    fn next_second(&self, from: i64) -> Option<i64> {
        let (hour, minute, second) = (from / 3_600, from / 60 % 60, from % 60);
        let mut minute_from = minute;
        if has(self.hours, hour) {
            if has(self.minutes, minute) {
                if let Some(second) = at_or_after(self.seconds, second) {
                    return Some(hour * 3_600 + minute * 60 + second);
                }
                minute_from += 1;
            }
            if let Some(minute) = at_or_after(self.minutes, minute_from) {
                return Some(hour * 3_600 + minute * 60 + i64::from(self.seconds.trailing_zeros()));
            }
        }
        let hour = at_or_after(self.hours, hour + 1)?;
        Some(hour * 3_600 + i64::from(self.minutes.trailing_zeros()) * 60 + i64::from(self.seconds.trailing_zeros()))
    }

    /// Fitting seconds of a day before this one.
    fn seconds_before(&self, until: i64) -> u64 {
        let (hour, minute, second) = (until / 3_600, until / 60 % 60, until % 60);
        let below = |set: u64, number: i64| u64::from((set & ((1u64 << number) - 1)).count_ones());
        let (minutes, seconds) = (
            u64::from(self.minutes.count_ones()),
            u64::from(self.seconds.count_ones()),
        );
        let mut count = below(self.hours, hour) * minutes * seconds;
        if has(self.hours, hour) {
            count += below(self.minutes, minute) * seconds;
            if has(self.minutes, minute) {
                count += below(self.seconds, second);
            }
        }
        count
    }

    /// Fitting days from one day until another (exclusive).
    fn count_days(&self, from: i64, until: i64) -> u64 {
        let mut count = 0;
        let mut from = from;
        // One step for each month that has a fitting day; both ends are before the horizon.
        while let Some(day) = self.next_day(from).filter(|&day| day < until) {
            let Some(date) = wall::date(day) else { break };
            let (year, month) = (date.year(), date.month());
            let first = day - i64::from(date.day0());
            let length = i64::from(wall::days_in_month(year, month));
            let mut fitting = self.days.in_month(year, month) & (u32::MAX << date.day());
            if first + length > until {
                fitting &= (1u32 << (until - first + 1)) - 1;
            }
            count += u64::from(fitting.count_ones());
            from = first + length;
        }
        count
    }
}

fn has(set: u64, number: i64) -> bool {
    set & (1 << number) != 0
}

fn at_or_after(set: u64, number: i64) -> Option<i64> {
    let rest = set & (u64::MAX << number);
    (rest != 0).then(|| i64::from(rest.trailing_zeros()))
}

impl WallSchedule for Cron {
    fn next_wall(&self, from: Wall) -> Option<Wall> {
        let (day, second) = (from.div_euclid(DAY), from.rem_euclid(DAY));
        let found = self.next_day(day)?;
        if found > day {
            return Some(found * DAY + self.first_second());
        }
        match self.next_second(second) {
            Some(second) => Some(day * DAY + second),
            None => Some(self.next_day(day + 1)? * DAY + self.first_second()),
        }
    }

    fn follows_the_clock(&self) -> bool {
        self.follows_the_clock
    }

    fn count_max(&self) -> u64 {
        u64::MAX - 1
    }

    fn count_wall(&self, from: Wall, until: Wall, cap: u64) -> u64 {
        if from >= until {
            return 0;
        }
        let per_day = self.seconds_before(DAY - 1) + u64::from(self.next_second(DAY - 1).is_some());
        let (first, last) = (from.div_euclid(DAY), until.div_euclid(DAY));
        // Whole days, then the parts of the first and the last that do not belong.
        let mut count = self.count_days(first, last) * per_day;
        if self.next_day(first) == Some(first) {
            count -= if first < last {
                self.seconds_before(from.rem_euclid(DAY))
            } else {
                0
            };
        }
        if self.next_day(last) == Some(last) {
            count += self.seconds_before(until.rem_euclid(DAY));
            if first == last {
                count -= self.seconds_before(from.rem_euclid(DAY));
            }
        }
        count.min(cap)
    }
}

#[cfg(test)]
mod tests;
