//! Which days of a month a cron expression means, as bit sets: bit `d` is day `d`.

use crate::trigger::wall::days_in_month;
use chrono::{Datelike as _, NaiveDate};

/// The field "day of month".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DayOfMonth {
    /// Bits 1 to 31.
    pub days: u32,
    /// Bit `n`: `n` days before the last (`L`, `L-3`).
    pub last: u32,
    /// Bit `n`: the weekday nearest to day `n` (`15W`).
    pub nearest: u32,
    /// Bit `n`: the weekday nearest to `n` days before the last (`LW`, `L-3W`).
    pub last_nearest: u32,
}

/// The field "day of week"; Sunday is 0 in both dialects here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DayOfWeek {
    /// Bits 0 to 6.
    pub days: u8,
    /// The last such day of the month (`5L`).
    pub last: u8,
    /// `nth[k]`: the `k + 1`-th such day of the month (`5#2`).
    pub nth: [u8; 5],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Days {
    pub of_month: DayOfMonth,
    pub of_week: DayOfWeek,
    /// A day that fits one of the two fields is enough (crontab, both restricted); otherwise it must fit both.
    pub either: bool,
}

impl Days {
    /// The days of this month that fit.
    pub fn in_month(&self, year: i32, month: u32) -> u32 {
        let Some(first) = NaiveDate::from_ymd_opt(year, month, 1) else {
            return 0;
        };
        let month = Month {
            first_weekday: first.weekday().num_days_from_sunday(),
            length: days_in_month(year, month),
        };
        let of_month = self.of_month.in_month(month);
        let of_week = self.of_week.in_month(month);
        if self.either {
            of_month | of_week
        } else {
            of_month & of_week
        }
    }
}

#[derive(Clone, Copy)]
struct Month {
    first_weekday: u32,
    length: u32,
}

impl Month {
    fn all(self) -> u32 {
        // Bits 1 to length.
        ((1u64 << (self.length + 1)) - 2) as u32
    }

    fn weekday(self, day: u32) -> u32 {
        (self.first_weekday + day - 1) % 7
    }

    /// The days that fall on one of these weekdays.
    fn on(self, weekdays: u8) -> u32 {
        let week = u64::from(weekdays);
        // Turned so that bit 0 is the weekday of the first, then laid on each week.
        let turned = ((week >> self.first_weekday) | (week << (7 - self.first_weekday))) & 0x7f;
        let all = (turned << 1) | (turned << 8) | (turned << 15) | (turned << 22) | (turned << 29);
        (all as u32) & self.all()
    }

    /// The weekday (Monday to Friday) nearest to a day, in the same month.
    fn nearest_weekday(self, day: u32) -> u32 {
        match self.weekday(day) {
            6 if day == 1 => 3,
            6 => day - 1,
            0 if day == self.length => day - 2,
            0 => day + 1,
            _ => day,
        }
    }
}

impl DayOfMonth {
    pub fn every() -> Self {
        Self {
            days: u32::MAX - 1,
            ..Self::default()
        }
    }

    fn in_month(&self, month: Month) -> u32 {
        let mut found = self.days & month.all();
        for back in bits(self.last) {
            if let Some(day) = month.length.checked_sub(back).filter(|&day| day > 0) {
                found |= 1 << day;
            }
        }
        // A day that the month does not have is not moved into another month.
        for day in bits(self.nearest & month.all()) {
            found |= 1 << month.nearest_weekday(day);
        }
        for back in bits(self.last_nearest) {
            if let Some(day) = month.length.checked_sub(back).filter(|&day| day > 0) {
                found |= 1 << month.nearest_weekday(day);
            }
        }
        found
    }
}

impl DayOfWeek {
    pub fn every() -> Self {
        Self {
            days: 0x7f,
            ..Self::default()
        }
    }

    fn in_month(&self, month: Month) -> u32 {
        let mut found = month.on(self.days);
        if self.last != 0 {
            // Each weekday is once among the last seven days.
            found |= month.on(self.last) & !(u32::MAX >> (31 - (month.length - 7)));
        }
        for (index, &weekdays) in self.nth.iter().enumerate() {
            if weekdays != 0 {
                // Days 7k + 1 to 7k + 7 have each weekday for the k+1-th time.
                found |= month.on(weekdays) & (((0x7fu64 << 1) << (7 * index)) as u32);
            }
        }
        found
    }
}

/// The numbers of the bits that are set, ascending.
pub fn bits(mut set: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        (set != 0).then(|| {
            let bit = set.trailing_zeros();
            set &= set - 1;
            bit
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(days: &Days, year: i32, month: u32) -> Vec<u32> {
        bits(days.in_month(year, month)).collect()
    }

    fn of_month(of_month: DayOfMonth) -> Days {
        Days {
            of_month,
            of_week: DayOfWeek::every(),
            either: false,
        }
    }

    fn of_week(of_week: DayOfWeek) -> Days {
        Days {
            of_month: DayOfMonth::every(),
            of_week,
            either: false,
        }
    }

    #[test]
    fn every_day_is_every_day_of_the_month() {
        let every = of_month(DayOfMonth::every());
        assert_eq!(list(&every, 2028, 2), (1..=29).collect::<Vec<_>>());
        assert_eq!(list(&every, 2100, 2), (1..=28).collect::<Vec<_>>());
        assert_eq!(list(&every, 2026, 12), (1..=31).collect::<Vec<_>>());
    }

    #[test]
    fn the_nearest_weekday_stays_in_its_month() {
        let nearest = |day: u32| {
            of_month(DayOfMonth {
                nearest: 1 << day,
                ..DayOfMonth::default()
            })
        };
        // 1 August 2026 is a Saturday, 31 January 2027 a Sunday, 15 November 2026 a Sunday.
        assert_eq!(list(&nearest(1), 2026, 8), [3]);
        assert_eq!(list(&nearest(31), 2027, 1), [29]);
        assert_eq!(list(&nearest(15), 2026, 11), [16]);
        // April has no 31st: nothing, neither the 30th nor a day in May.
        assert_eq!(list(&nearest(31), 2026, 4), [0u32; 0]);
    }

    #[test]
    fn last_and_nth_weekdays() {
        let friday = 1 << 5;
        let last = of_week(DayOfWeek {
            last: friday,
            ..DayOfWeek::default()
        });
        assert_eq!(list(&last, 2026, 11), [27]);
        assert_eq!(list(&last, 2027, 12), [31]);
        let mut nth = [0; 5];
        nth[4] = friday;
        let fifth = of_week(DayOfWeek {
            nth,
            ..DayOfWeek::default()
        });
        assert_eq!(list(&fifth, 2026, 11), [0u32; 0]);
        assert_eq!(list(&fifth, 2027, 12), [31]);
    }
}
