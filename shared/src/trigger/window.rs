//! `interval_in_window`: every so often between two times of day, on given weekdays.

use super::wall::{DAY, Wall, WallSchedule};
use crate::error::Invalid;
use crate::time::parse_duration;
use serde::{Deserialize, Serialize};

/// A day of the week, as in job files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weekday {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// Bits 0 (Monday) to 6 of a list of weekdays.
pub fn weekday_set(days: &[Weekday]) -> u8 {
    days.iter().fold(0, |set, &day| set | 1 << day as u8)
}

/// The bit of a day number (days since 1970-01-01, a Thursday).
pub fn weekday_bit(day: i64) -> u8 {
    1 << (day + 3).rem_euclid(7)
}

/// `HH:MM` or `HH:MM:SS` as seconds of a day; `24:00` is its end.
pub fn parse_time_of_day(text: &str, field: &str) -> Result<i64, Invalid> {
    let bad = || {
        Invalid::new(
            field,
            format!("{text:?} is not a time of day; write for example \"08:00\""),
        )
    };
    let parts: Vec<&str> = text.split(':').collect();
    let number = |part: &str| {
        (part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit()))
            .then(|| part.parse::<i64>().ok())
            .flatten()
            .ok_or_else(bad)
    };
    let (hour, minute, second) = match parts[..] {
        [hour, minute] => (number(hour)?, number(minute)?, 0),
        [hour, minute, second] => (number(hour)?, number(minute)?, number(second)?),
        _ => return Err(bad()),
    };
    let seconds = hour * 3_600 + minute * 60 + second;
    if minute > 59 || second > 59 || seconds > DAY {
        return Err(bad());
    }
    Ok(seconds)
}

/// The form in files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowSpec {
    /// A duration of whole seconds, `1s` to `24h`.
    pub every: String,
    /// Time of day of the first fire.
    pub from: String,
    /// Time of day after which nothing fires; a time on the grid fires. Earlier than `from`: on the next day.
    pub until: String,
    /// Days on which the window begins; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weekdays: Vec<Weekday>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    every: i64,
    from: i64,
    /// Offset of the last fire from `from`: a multiple of `every`.
    length: i64,
    weekdays: u8,
}

impl Window {
    pub fn new(spec: &WindowSpec) -> Result<Self, Invalid> {
        let field = |name: &str| format!("interval_in_window.{name}");
        let every = parse_duration(&spec.every).map_err(|message| Invalid::new(field("every"), message))?;
        let every = i64::try_from(every).unwrap_or(i64::MAX);
        if every % 1_000 != 0 || every == 0 || every > DAY * 1_000 {
            let message = format!("{:?} is out of range; write whole seconds, 1s to 24h", spec.every);
            return Err(Invalid::new(field("every"), message));
        }
        let from = parse_time_of_day(&spec.from, &field("from"))?;
        let until = parse_time_of_day(&spec.until, &field("until"))?;
        if from == DAY {
            return Err(Invalid::new(
                field("from"),
                "24:00 is the end of a day; write \"00:00\"",
            ));
        }
        if from == until {
            let message = "is the same as from; write a later time, or \"24:00\" for the end of the day";
            return Err(Invalid::new(field("until"), message));
        }
        let span = match until {
            // The end of a day belongs to the next one.
            DAY => DAY - 1 - from,
            until if until > from => until - from,
            until => until + DAY - from,
        };
        let every = every / 1_000;
        Ok(Self {
            every,
            from,
            length: span / every * every,
            weekdays: if spec.weekdays.is_empty() {
                0x7f
            } else {
                weekday_set(&spec.weekdays)
            },
        })
    }

    /// The first fire of the window that begins on this day which is not before `from`.
    fn on(&self, day: i64, from: Wall) -> Option<Wall> {
        if self.weekdays & weekday_bit(day) == 0 {
            return None;
        }
        let first = day * DAY + self.from;
        let steps = (from - first + self.every - 1).div_euclid(self.every).max(0);
        (steps * self.every <= self.length).then_some(first + steps * self.every)
    }
}

impl WallSchedule for Window {
    fn next_wall(&self, from: Wall) -> Option<Wall> {
        let day = from.div_euclid(DAY);
        // Yesterday's window may reach into today; a week later every weekday has come.
        (day - 1..=day + 7).filter_map(|day| self.on(day, from)).min()
    }

    fn follows_the_clock(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(every: &str, from: &str, until: &str, weekdays: &[Weekday]) -> Result<Window, Invalid> {
        Window::new(&WindowSpec {
            every: every.into(),
            from: from.into(),
            until: until.into(),
            weekdays: weekdays.to_vec(),
        })
    }

    fn list(window: &Window, from: Wall, n: usize) -> Vec<String> {
        let mut at = from - 1;
        (0..n)
            .map(|_| {
                at = window.next_wall(at + 1).expect("a fire");
                chrono::DateTime::from_timestamp(at, 0)
                    .expect("time")
                    .format("%a %H:%M")
                    .to_string()
            })
            .collect()
    }

    /// Friday, 2026-11-27T00:00.
    const FRIDAY: Wall = 1_795_737_600;

    #[test]
    fn fires_every_so_often_between_two_times_on_its_weekdays() {
        let office = window("4h", "08:00", "18:00", &[Weekday::Mon, Weekday::Fri]).expect("window");
        assert_eq!(
            list(&office, FRIDAY, 5),
            ["Fri 08:00", "Fri 12:00", "Fri 16:00", "Mon 08:00", "Mon 12:00"]
        );
        // The end is a time of its own when the grid meets it.
        let hourly = window("5h", "08:00", "18:00", &[]).expect("window");
        assert_eq!(
            list(&hourly, FRIDAY, 4),
            ["Fri 08:00", "Fri 13:00", "Fri 18:00", "Sat 08:00"]
        );
        let all_day = window("12h", "00:00", "24:00", &[]).expect("window");
        assert_eq!(list(&all_day, FRIDAY, 3), ["Fri 00:00", "Fri 12:00", "Sat 00:00"]);
    }

    #[test]
    fn a_window_over_midnight_belongs_to_the_day_it_begins() {
        let night = window("2h", "22:00", "02:00", &[Weekday::Fri]).expect("window");
        assert_eq!(
            list(&night, FRIDAY, 4),
            ["Fri 22:00", "Sat 00:00", "Sat 02:00", "Fri 22:00"]
        );
    }

    #[test]
    fn bad_windows_name_the_field() {
        for (every, from, until, field) in [
            ("15", "08:00", "18:00", "interval_in_window.every"),
            ("0", "08:00", "18:00", "interval_in_window.every"),
            ("25h", "08:00", "18:00", "interval_in_window.every"),
            ("500ms", "08:00", "18:00", "interval_in_window.every"),
            ("15m", "8:00", "18:00", "interval_in_window.from"),
            ("15m", "24:00", "18:00", "interval_in_window.from"),
            ("15m", "08:00", "25:00", "interval_in_window.until"),
            ("15m", "08:00", "08:00", "interval_in_window.until"),
        ] {
            assert_eq!(window(every, from, until, &[]).expect_err(field).field, field);
        }
    }
}
