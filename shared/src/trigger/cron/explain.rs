//! A cron expression field by field, in words.

use super::days::{DayOfMonth, DayOfWeek, bits};
use super::field::{MONTHS, WEEKDAYS};
use super::{Cron, Dialect};

impl Cron {
    /// Each field's name and what it means, in the order of the expression.
    pub fn explain(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if self.dialect == Dialect::Quartz {
            lines.push(("second", numbers(self.seconds, 0, 59)));
        }
        lines.push(("minute", numbers(self.minutes, 0, 59)));
        lines.push(("hour", numbers(self.hours, 0, 23)));
        lines.push(("day of month", day_of_month(&self.days.of_month)));
        lines.push(("month", months(self.months)));
        lines.push(("day of week", day_of_week(&self.days.of_week)));
        if let Some(years) = &self.years {
            let years: Vec<String> = years.iter().map(i32::to_string).collect();
            lines.push(("year", years.join(", ")));
        }
        if self.days.either {
            lines.push((
                "days",
                "those that fit day of month or day of week; either is enough".into(),
            ));
        } else if self.days.of_month != DayOfMonth::every() && self.days.of_week != DayOfWeek::every() {
            lines.push((
                "days",
                "those that fit day of month and day of week, for a field that begins with * is no restriction of its own"
                    .into(),
            ));
        }
        lines.push((
            "kind",
            if self.follows_the_clock {
                "interval: runs in both passes of a repeated hour, and not in a missing one".into()
            } else {
                "fixed times: a clock change moves or keeps them by dst_gap and dst_overlap".into()
            },
        ));
        lines
    }
}

/// A set of numbers: `every`, `every 15 from 0`, or a list with its runs as ranges.
fn numbers(set: u64, min: u32, max: u32) -> String {
    let values: Vec<u32> = (min..=max).filter(|&value| set & (1 << value) != 0).collect();
    if values.len() == usize::try_from(max - min + 1).unwrap_or(0) {
        return "every".into();
    }
    if let [first, second, third, .., last] = values[..] {
        let step = second - first;
        if step > 1 && third - second == step && values.windows(2).all(|pair| pair[1] - pair[0] == step) {
            let end = if last + step > max {
                String::new()
            } else {
                format!(" to {last}")
            };
            return format!("every {step} from {first}{end}");
        }
    }
    runs(&values, |value| value.to_string())
}

/// A list in which three or more neighbours become a range.
fn runs(values: &[u32], name: impl Fn(u32) -> String) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = values;
    while let [first, ..] = rest {
        let length = rest
            .iter()
            .zip(*first..)
            .take_while(|(value, next)| **value == *next)
            .count();
        if length >= 3 {
            parts.push(format!("{}–{}", name(*first), name(rest[length - 1])));
        } else {
            parts.extend(rest[..length].iter().map(|&value| name(value)));
        }
        rest = &rest[length..];
    }
    parts.join(", ")
}

fn months(set: u64) -> String {
    let values: Vec<u32> = (1..=12).filter(|&month| set & (1 << month) != 0).collect();
    if values.len() == 12 {
        return "every".into();
    }
    runs(&values, |month| title(MONTHS[month as usize - 1]))
}

fn day_of_month(days: &DayOfMonth) -> String {
    if *days == DayOfMonth::every() {
        return "every".into();
    }
    let mut parts = Vec::new();
    if days.days != 0 {
        parts.push(numbers(u64::from(days.days), 1, 31));
    }
    parts.extend(bits(days.last).map(before_last));
    parts.extend(bits(days.nearest).map(|day| format!("the weekday nearest to {day}")));
    parts.extend(bits(days.last_nearest).map(|back| format!("the weekday nearest to {}", before_last(back))));
    parts.join(", ")
}

fn before_last(back: u32) -> String {
    match back {
        0 => "the last".into(),
        1 => "the last but one".into(),
        _ => format!("{back} days before the last"),
    }
}

fn day_of_week(days: &DayOfWeek) -> String {
    if *days == DayOfWeek::every() {
        return "every".into();
    }
    let name = |day: u32| title(WEEKDAYS[day as usize]);
    let mut parts = Vec::new();
    if days.days != 0 {
        let values: Vec<u32> = bits(u32::from(days.days)).collect();
        parts.push(runs(&values, name));
    }
    parts.extend(bits(u32::from(days.last)).map(|day| format!("the last {}", name(day))));
    for (index, &set) in days.nth.iter().enumerate() {
        let nth = ["first", "second", "third", "fourth", "fifth"][index];
        parts.extend(bits(u32::from(set)).map(|day| format!("the {nth} {}", name(day))));
    }
    parts.join(", ")
}

/// `MON` as `Mon`.
fn title(name: &str) -> String {
    let (first, rest) = name.split_at(1);
    format!("{first}{}", rest.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str, dialect: Dialect, field: &str) -> String {
        let cron = Cron::parse(text, dialect).expect(text);
        cron.explain()
            .into_iter()
            .find(|(name, _)| *name == field)
            .map(|(_, words)| words)
            .unwrap_or_default()
    }

    #[test]
    fn fields_are_read_back_in_words() {
        use Dialect::{Quartz, Unix};
        for (text, dialect, field, expected) in [
            ("*/15 * * * *", Unix, "minute", "every 15 from 0"),
            ("10-30/5 * * * *", Unix, "minute", "every 5 from 10 to 30"),
            ("0 9 * * 1-5", Unix, "day of week", "Mon–Fri"),
            ("0 9 * * 7", Unix, "day of week", "Sun"),
            ("0 9 1 jan,jul *", Unix, "month", "Jan, Jul"),
            (
                "0 9 13 * 5",
                Unix,
                "days",
                "those that fit day of month or day of week; either is enough",
            ),
            ("0 9 * * *", Unix, "days", ""),
            ("0 0 12 ? * 6#3", Quartz, "day of week", "the third Fri"),
            (
                "0 0 12 L-3,15W * ?",
                Quartz,
                "day of month",
                "3 days before the last, the weekday nearest to 15",
            ),
            ("0 0 12 1 1 ? 2026-2030/2", Quartz, "year", "2026, 2028, 2030"),
        ] {
            assert_eq!(words(text, dialect, field), expected, "{text}");
        }
    }
}
