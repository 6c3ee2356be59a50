//! Recurrence rules of RFC 5545 (`RRULE`), on local time.
//!
//! All of the RFC's parts are read except the two that no calendar program agrees on: `BYSETPOS` below a day is refused.
//! `COUNT` counts from the start, which is `start_at` of the trigger; where the clock changes, the trigger's policy
//! decides, as for cron.

mod parse;

use super::wall::{self, DAY, Wall, WallSchedule};
use crate::error::Invalid;
use chrono::{Datelike as _, NaiveDate};

/// Occurrences that `COUNT` may ask for: they are gone through once, when the rule is read.
pub const COUNT_MAX: u32 = 10_000;
/// Days, periods or instants that one search looks at: 400 years of days, after which the calendar repeats.
const STEPS_MAX: usize = 146_100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Freq {
    Secondly,
    Minutely,
    Hourly,
    Daily,
    Weekly,
    Monthly,
    Yearly,
}

/// `MO`, `1SU`, `-1FR`: 0 is Monday, `nth` 0 is every one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ByDay {
    weekday: i64,
    nth: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rrule {
    freq: Freq,
    interval: i64,
    start: Wall,
    /// The last local time, from `UNTIL` or `COUNT`.
    until: Option<Wall>,
    /// 0 is Monday.
    week_start: i64,
    /// Bits; 0 is no restriction.
    months: u64,
    hours: u64,
    minutes: u64,
    seconds: u64,
    month_days: Vec<i64>,
    year_days: Vec<i64>,
    week_numbers: Vec<i64>,
    days: Vec<ByDay>,
    positions: Vec<i64>,
}

impl Rrule {
    /// Reads a rule, with or without `RRULE:` in front. `start` is the local time of `DTSTART`, and `local` turns an
    /// `UNTIL` in UTC (seconds) into local time. A rule without any occurrence is refused.
    pub fn parse(text: &str, start: Wall, local: impl Fn(i64) -> Wall) -> Result<Self, Invalid> {
        let (mut rule, count) = parse::parse(text, start, local).map_err(|message| Invalid::new("rrule", message))?;
        let mut last = None;
        let mut from = start;
        for _ in 0..count.unwrap_or(1) {
            match rule.next_wall(from) {
                Some(wall) => {
                    last = Some(wall);
                    from = wall + 1;
                }
                None => break,
            }
        }
        let Some(last) = last else {
            return Err(Invalid::new("rrule", "it never fires: no date from its start on fits"));
        };
        if count.is_some() {
            rule.until = Some(last);
        }
        Ok(rule)
    }

    /// Whether a day fits all parts that speak of days.
    fn day_fits(&self, day: i64) -> bool {
        let Some(date) = wall::date(day) else { return false };
        let (year, month, month_day) = (date.year(), date.month(), i64::from(date.day()));
        if self.months != 0 && self.months & (1 << month) == 0 {
            return false;
        }
        let month_length = i64::from(wall::days_in_month(year, month));
        if !self.month_days.is_empty()
            && !self
                .month_days
                .iter()
                .any(|&n| n == month_day || n == month_day - month_length - 1)
        {
            return false;
        }
        let year_length = if wall::days_in_month(year, 2) == 29 { 366 } else { 365 };
        let year_day = i64::from(date.ordinal());
        if !self.year_days.is_empty()
            && !self
                .year_days
                .iter()
                .any(|&n| n == year_day || n == year_day - year_length - 1)
        {
            return false;
        }
        if !self.week_numbers.is_empty() {
            let (number, weeks) = self.week_number(date);
            if !self
                .week_numbers
                .iter()
                .any(|&n| n == number || n == number - weeks - 1)
            {
                return false;
            }
        }
        if self.days.is_empty() {
            return true;
        }
        let weekday = i64::from(date.weekday().num_days_from_monday());
        // Numbered weekdays count within the month, in a yearly rule without months within the year.
        let (position, length) = if self.freq == Freq::Yearly && self.months == 0 {
            (year_day, year_length)
        } else {
            (month_day, month_length)
        };
        self.days.iter().any(|by| {
            by.weekday == weekday
                && match by.nth {
                    0 => true,
                    nth if nth > 0 => (position - 1) / 7 + 1 == nth,
                    nth => (length - position) / 7 + 1 == -nth,
                }
        })
    }

    /// The number of the week of a date, and how many weeks its week-year has. Week 1 has at least four days of the year.
    fn week_number(&self, date: NaiveDate) -> (i64, i64) {
        let day = wall::day_number(date);
        let first_week = |year: i32| {
            let new_year = NaiveDate::from_ymd_opt(year, 1, 1).map_or(0, wall::day_number);
            let begin = self.week_of(new_year);
            if new_year - begin <= 3 { begin } else { begin + 7 }
        };
        let mut year = date.year();
        if day >= first_week(year + 1) {
            year += 1;
        } else if day < first_week(year) {
            year -= 1;
        }
        (
            (day - first_week(year)) / 7 + 1,
            (first_week(year + 1) - first_week(year)) / 7,
        )
    }

    /// The first day of the week that has this day.
    fn week_of(&self, day: i64) -> i64 {
        // 1970-01-01 was a Thursday, 3 counted from Monday.
        day - (day + 3 - self.week_start).rem_euclid(7)
    }

    /// Which period (year, month, week, day) a day belongs to, counted from any fixed one.
    fn period(&self, day: i64) -> i64 {
        let date = wall::date(day);
        let year = date.map_or(0, |date| i64::from(date.year()));
        match self.freq {
            Freq::Yearly => year,
            Freq::Monthly => year * 12 + date.map_or(0, |date| i64::from(date.month0())),
            Freq::Weekly => (self.week_of(day) + 3 - self.week_start).div_euclid(7),
            _ => day,
        }
    }

    /// The first day of a period.
    fn period_start(&self, period: i64) -> Option<i64> {
        let first = |year: i64, month0: i64| {
            let year = i32::try_from(year).ok()?;
            NaiveDate::from_ymd_opt(year, u32::try_from(month0 + 1).ok()?, 1).map(wall::day_number)
        };
        match self.freq {
            Freq::Yearly => first(period, 0),
            Freq::Monthly => first(period.div_euclid(12), period.rem_euclid(12)),
            Freq::Weekly => Some(period * 7 - 3 + self.week_start),
            _ => Some(period),
        }
    }

    /// The first period of the rule's interval that is not before this one.
    fn aligned(&self, period: i64) -> i64 {
        let start = self.period(self.start.div_euclid(DAY));
        let behind = (period - start).max(0);
        start + (behind + self.interval - 1).div_euclid(self.interval) * self.interval
    }

    /// The first fitting second of a day that is not before this one.
    fn second_from(&self, from: i64) -> Option<i64> {
        let (hour, minute, second) = (from / 3_600, from / 60 % 60, from % 60);
        let at = |set: u64, number: i64| {
            let rest = set & u64::MAX.checked_shl(u32::try_from(number).unwrap_or(64)).unwrap_or(0);
            (rest != 0).then(|| i64::from(rest.trailing_zeros()))
        };
        let (first_minute, first_second) = (at(self.minutes, 0)?, at(self.seconds, 0)?);
        if at(self.hours, hour) == Some(hour) {
            if at(self.minutes, minute) == Some(minute)
                && let Some(second) = at(self.seconds, second)
            {
                return Some(hour * 3_600 + minute * 60 + second);
            }
            if let Some(minute) = at(self.minutes, minute + 1) {
                return Some(hour * 3_600 + minute * 60 + first_second);
            }
        }
        Some(at(self.hours, hour + 1)? * 3_600 + first_minute * 60 + first_second)
    }

    /// Days and longer periods, without `BYSETPOS`.
    fn next_by_day(&self, from: Wall) -> Option<Wall> {
        let mut day = from.div_euclid(DAY);
        for _ in 0..STEPS_MAX {
            let period = self.period(day);
            let aligned = self.aligned(period);
            if aligned != period {
                day = self.period_start(aligned)?;
                continue;
            }
            if self.day_fits(day)
                && let Some(second) = self.second_from((from - day * DAY).max(0))
            {
                return Some(day * DAY + second);
            }
            day += 1;
        }
        None
    }

    /// The same with `BYSETPOS`: some positions of each period's times.
    fn next_by_position(&self, from: Wall) -> Option<Wall> {
        let mut period = self.aligned(self.period(from.div_euclid(DAY)));
        let mut steps = 0;
        while steps < STEPS_MAX {
            let (first, end) = (self.period_start(period)?, self.period_start(period + 1)?);
            steps += usize::try_from(end - first).unwrap_or(1);
            let days: Vec<i64> = (first..end).filter(|&day| self.day_fits(day)).collect();
            let seconds: Vec<i64> =
                std::iter::successors(self.second_from(0), |&second| self.second_from(second + 1)).collect();
            let size = i64::try_from(days.len() * seconds.len()).unwrap_or(0);
            let per_day = i64::try_from(seconds.len()).unwrap_or(0);
            let chosen = self.positions.iter().filter_map(|&position| {
                let index = if position > 0 { position - 1 } else { size + position };
                let inside = (0..size).contains(&index);
                inside.then(|| {
                    let (day, second) = (index / per_day, index % per_day);
                    days[day as usize] * DAY + seconds[second as usize]
                })
            });
            if let Some(wall) = chosen.filter(|&wall| wall >= from).min() {
                return Some(wall);
            }
            period += self.interval;
        }
        None
    }

    /// Hours, minutes and seconds: every so many of them from the start, as far as they fit.
    fn next_by_unit(&self, from: Wall, unit: i64) -> Option<Wall> {
        let origin = self.start.div_euclid(unit) * unit;
        let step = self.interval * unit;
        // The first point of the grid that is not before a time.
        let grid = |at: Wall| origin + (at - origin + step - 1).div_euclid(step).max(0) * step;
        let mut at = grid(from.div_euclid(unit) * unit);
        for _ in 0..STEPS_MAX {
            let day = at.div_euclid(DAY);
            if !self.day_fits(day) {
                at = grid((day + 1) * DAY);
                continue;
            }
            // The first fitting second of this day from here on; it may lie in a later unit.
            let second = at.max(from).rem_euclid(DAY);
            let Some(second) = (at.max(from).div_euclid(DAY) == day)
                .then(|| self.second_from(second))
                .flatten()
            else {
                at = grid((day + 1) * DAY);
                continue;
            };
            let wall = day * DAY + second;
            if wall < at + unit {
                return Some(wall);
            }
            at = grid(wall.div_euclid(unit) * unit);
        }
        None
    }
}

impl WallSchedule for Rrule {
    fn next_wall(&self, from: Wall) -> Option<Wall> {
        let from = from.max(self.start);
        let found = match self.freq {
            Freq::Secondly => self.next_by_unit(from, 1),
            Freq::Minutely => self.next_by_unit(from, 60),
            Freq::Hourly => self.next_by_unit(from, 3_600),
            _ if self.positions.is_empty() => self.next_by_day(from),
            _ => self.next_by_position(from),
        };
        found.filter(|&wall| self.until.is_none_or(|until| wall <= until))
    }

    fn follows_the_clock(&self) -> bool {
        self.freq < Freq::Daily
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1997-09-02T09:00, the start in the examples of the RFC.
    const START: Wall = 873_190_800;

    fn list(text: &str, n: usize) -> Vec<String> {
        let rule = Rrule::parse(text, START, |at| at).expect(text);
        let mut from = START;
        let mut found = Vec::new();
        while found.len() < n {
            let Some(wall) = rule.next_wall(from) else { break };
            from = wall + 1;
            found.push(
                chrono::DateTime::from_timestamp(wall, 0)
                    .expect("time")
                    .format("%Y-%m-%dT%H:%M")
                    .to_string(),
            );
        }
        found
    }

    #[test]
    fn examples_of_the_rfc() {
        for (text, expected) in [
            ("FREQ=DAILY;COUNT=2", "1997-09-02T09:00 1997-09-03T09:00"),
            (
                "RRULE:FREQ=DAILY;UNTIL=19970904T000000Z",
                "1997-09-02T09:00 1997-09-03T09:00",
            ),
            (
                "FREQ=MONTHLY;BYDAY=1FR",
                "1997-09-05T09:00 1997-10-03T09:00 1997-11-07T09:00",
            ),
            (
                "FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13",
                "1998-02-13T09:00 1998-03-13T09:00 1998-11-13T09:00",
            ),
            (
                "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2",
                "1997-09-29T09:00 1997-10-30T09:00 1997-11-27T09:00",
            ),
            (
                "FREQ=YEARLY;BYDAY=20MO",
                "1998-05-18T09:00 1999-05-17T09:00 2000-05-15T09:00",
            ),
            (
                "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO",
                "1998-05-11T09:00 1999-05-17T09:00 2000-05-15T09:00",
            ),
            (
                "FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=TU,TH",
                "1997-09-02T09:00 1997-09-04T09:00 1997-09-16T09:00",
            ),
            (
                "FREQ=HOURLY;INTERVAL=3",
                "1997-09-02T09:00 1997-09-02T12:00 1997-09-02T15:00",
            ),
            (
                "FREQ=DAILY;BYHOUR=9,10;BYMINUTE=0,40",
                "1997-09-02T09:00 1997-09-02T09:40 1997-09-02T10:00",
            ),
            (
                "FREQ=MINUTELY;INTERVAL=90;BYHOUR=3",
                "1997-09-03T03:00 1997-09-04T03:00 1997-09-05T03:00",
            ),
        ] {
            let expected: Vec<&str> = expected.split(' ').collect();
            assert_eq!(list(text, 3), expected, "{text}");
        }
    }

    #[test]
    fn bad_rules_say_what_is_wrong() {
        for (text, words) in [
            ("", "empty"),
            ("BYDAY=MO", "FREQ"),
            ("FREQ=FORTNIGHTLY", "FREQ"),
            ("FREQ=DAILY;FREQ=DAILY", "twice"),
            ("FREQ=DAILY;COUNT=3;UNTIL=20270101", "COUNT and UNTIL"),
            ("FREQ=DAILY;COUNT=0", "COUNT"),
            ("FREQ=DAILY;COUNT=10001", "10000"),
            ("FREQ=DAILY;INTERVAL=0", "INTERVAL"),
            ("FREQ=DAILY;BYHOUR=24", "BYHOUR"),
            ("FREQ=DAILY;BYDAY=1MO", "BYDAY"),
            ("FREQ=WEEKLY;BYMONTHDAY=1", "BYMONTHDAY"),
            ("FREQ=MONTHLY;BYWEEKNO=20", "BYWEEKNO"),
            ("FREQ=DAILY;BYYEARDAY=20", "BYYEARDAY"),
            ("FREQ=DAILY;BYSETPOS=1", "BYSETPOS"),
            ("FREQ=HOURLY;BYMINUTE=1;BYSETPOS=1", "BYSETPOS"),
            ("FREQ=MONTHLY;BYDAY=XX", "BYDAY"),
            ("FREQ=DAILY;EVERY=2", "EVERY"),
            ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "never fires"),
            ("FREQ=DAILY;UNTIL=tomorrow", "UNTIL"),
            ("FREQ=DAILY;UNTIL=19960101", "never fires"),
        ] {
            let error = Rrule::parse(text, START, |at| at).expect_err(text);
            assert!(
                error.field == "rrule" && error.message.contains(words),
                "{text}: {error}"
            );
        }
    }
}
