//! From the text of a cron expression to its sets. Every refusal names the field and says what to write.

use super::days::{DayOfMonth, DayOfWeek, Days};
use super::field::{DAY_OF_MONTH, DAY_OF_WEEK_QUARTZ, DAY_OF_WEEK_UNIX, Field, HOUR, MINUTE, MONTH, SECOND, YEAR};
use super::{Cron, Dialect};
use crate::error::Invalid;
use crate::limits::CRON_BYTES_MAX;

/// What `@daily` and its like stand for.
pub(crate) const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// A wrong expression is repeated up to this length.
const ECHO_CHARS_MAX: usize = 80;

pub fn parse(text: &str, dialect: Dialect) -> Result<Cron, Invalid> {
    let refuse = |message: String| {
        let mut shown: String = text.chars().take(ECHO_CHARS_MAX).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        Invalid::new("cron", format!("{shown:?}: {message}"))
    };
    if text.len() > CRON_BYTES_MAX {
        return Err(refuse(format!("it is longer than {CRON_BYTES_MAX} bytes")));
    }
    let cron = match dialect {
        Dialect::Unix => unix(text),
        Dialect::Quartz => quartz(text),
    }
    .map_err(refuse)?;
    // A date that no calendar has is found here, not by a trigger that silently never fires.
    if cron.fits_no_date() {
        return Err(refuse(
            "it never fires: no chosen month has a day that fits; check day of month, month and year".into(),
        ));
    }
    Ok(cron)
}

fn unix(text: &str) -> Result<Cron, String> {
    let trimmed = text.trim();
    let expanded = if trimmed.starts_with('@') {
        nickname(trimmed)?
    } else {
        trimmed
    };
    let fields: Vec<&str> = expanded.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields[..] else {
        return Err(match fields.len() {
            0 => "it is empty; write minute, hour, day of month, month, day of week, such as \"30 2 * * *\"".into(),
            n @ (6 | 7) => format!(
                "it has {n} fields, the unix dialect has 5 (minute, hour, day of month, month, day of week); with seconds it is dialect = \"quartz\""
            ),
            n => format!(
                "it has {n} field{}, the unix dialect has 5: minute, hour, day of month, month, day of week{}",
                if n == 1 { "" } else { "s" },
                // A shell replaces a bare * by the names of files.
                if n > 7 { "; put the expression in quotes" } else { "" }
            ),
        });
    };
    for (field, text) in [
        ("minute", minute),
        ("hour", hour),
        ("day of month", day),
        ("month", month),
        ("day of week", weekday),
    ] {
        if text.contains('?') {
            return Err(format!("{field} {text:?}: ? belongs to the quartz dialect; write *"));
        }
    }
    let (minutes, _) = set(&MINUTE, minute, Dialect::Unix)?;
    let (hours, _) = set(&HOUR, hour, Dialect::Unix)?;
    let (months, _) = set(&MONTH, month, Dialect::Unix)?;
    Ok(Cron {
        text: text.trim().to_owned(),
        dialect: Dialect::Unix,
        seconds: 1,
        minutes,
        hours,
        months,
        days: Days {
            of_month: day_of_month(day, Dialect::Unix)?,
            of_week: day_of_week(weekday, Dialect::Unix)?,
            // cronie's rule: a field that begins with * does not restrict, even as */2.
            either: !day.starts_with('*') && !weekday.starts_with('*'),
        },
        years: None,
        follows_the_clock: minute.starts_with('*') || hour.starts_with('*'),
    })
}

fn nickname(text: &str) -> Result<&'static str, String> {
    if text.eq_ignore_ascii_case("@reboot") {
        return Err(
            "@reboot is not a time; start the command with the machine (a systemd unit), or trigger the job from there"
                .into(),
        );
    }
    NICKNAMES
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text))
        .map(|&(_, expanded)| expanded)
        .ok_or_else(|| {
            let names: Vec<&str> = NICKNAMES.iter().map(|&(name, _)| name).collect();
            format!("{text:?} is not known; there are {}", names.join(", "))
        })
}

fn quartz(text: &str) -> Result<Cron, String> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let (second, minute, hour, day, month, weekday, year) = match fields[..] {
        [s, m, h, d, mo, w] => (s, m, h, d, mo, w, None),
        [s, m, h, d, mo, w, y] => (s, m, h, d, mo, w, Some(y)),
        [] => {
            return Err(
                "it is empty; write second, minute, hour, day of month, month, day of week, such as \"0 30 2 * * ?\""
                    .into(),
            );
        }
        [name] if name.starts_with('@') => {
            return Err(format!("{name} belongs to dialect = \"unix\""));
        }
        _ => {
            let n = fields.len();
            let also = if n == 5 {
                "; 5 fields without seconds are dialect = \"unix\""
            } else {
                ""
            };
            return Err(format!(
                "it has {n} field{}, the quartz dialect has 6 or 7: second, minute, hour, day of month, month, day of week, and a year if wanted{also}",
                if n == 1 { "" } else { "s" }
            ));
        }
    };
    match (day, weekday) {
        ("?", "?") => {
            return Err("day of month and day of week are both ?; write * in one of them for every day".into());
        }
        ("?", _) | (_, "?") => {}
        (_, "*") => {
            return Err("exactly one of day of month and day of week must be ?; write ? in day of week".into());
        }
        ("*", _) => {
            return Err("exactly one of day of month and day of week must be ?; write ? in day of month".into());
        }
        _ => {
            return Err(
                "Quartz cannot combine day of month and day of week; write ? in one of them, two triggers, or dialect = \"unix\" where either is enough"
                    .into(),
            );
        }
    }
    let (seconds, second_interval) = set(&SECOND, second, Dialect::Quartz)?;
    let (minutes, minute_interval) = set(&MINUTE, minute, Dialect::Quartz)?;
    let (hours, hour_interval) = set(&HOUR, hour, Dialect::Quartz)?;
    let (months, _) = set(&MONTH, month, Dialect::Quartz)?;
    Ok(Cron {
        text: text.trim().to_owned(),
        dialect: Dialect::Quartz,
        seconds,
        minutes,
        hours,
        months,
        days: Days {
            of_month: day_of_month(day, Dialect::Quartz)?,
            of_week: day_of_week(weekday, Dialect::Quartz)?,
            either: false,
        },
        years: year.filter(|&year| year != "*").map(years).transpose()?,
        follows_the_clock: second_interval || minute_interval || hour_interval,
    })
}

/// The items of a list; an empty one is refused.
fn items<'a>(field: &Field, text: &'a str) -> Result<std::str::Split<'a, char>, String> {
    if text.split(',').any(str::is_empty) {
        return Err(format!("{} {text:?} has an empty item; remove the comma", field.name));
    }
    Ok(text.split(','))
}

/// A field that is a plain set of numbers below 64, and whether it is an interval.
fn set(field: &Field, text: &str, dialect: Dialect) -> Result<(u64, bool), String> {
    let mut found = 0;
    let mut interval = false;
    for item in items(field, text)? {
        if item == "?" {
            return Err(format!(
                "{} {text:?}: ? stands in day of month or day of week only; write *",
                field.name
            ));
        }
        let range = field.range(item, dialect)?;
        interval |= range.interval;
        for value in range.values(field) {
            found |= 1 << value;
        }
    }
    Ok((found, interval))
}

fn years(text: &str) -> Result<Vec<i32>, String> {
    let mut found = Vec::new();
    for item in items(&YEAR, text)? {
        let range = YEAR.range(item, Dialect::Quartz)?;
        found.extend(range.values(&YEAR).filter_map(|year| i32::try_from(year).ok()));
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn day_of_month(text: &str, dialect: Dialect) -> Result<DayOfMonth, String> {
    if text == "?" || text == "*" {
        return Ok(DayOfMonth::every());
    }
    let field = &DAY_OF_MONTH;
    let mut found = DayOfMonth::default();
    for item in items(field, text)? {
        let upper = item.to_ascii_uppercase();
        if let Some(rest) = upper.strip_prefix('L') {
            let (back, weekday) = match rest.strip_suffix('W') {
                Some(back) => (back, true),
                None => (rest, false),
            };
            let back = match back.strip_prefix('-') {
                Some(number) => number.parse::<u32>().ok().filter(|&number| number <= 30),
                None if back.is_empty() => Some(0),
                None => None,
            }
            .ok_or_else(|| format!("day of month {item:?} is not known; write L, L-3 (0–30) or LW"))?;
            if weekday {
                found.last_nearest |= 1 << back;
            } else {
                found.last |= 1 << back;
            }
        } else if let Some(day) = upper.strip_suffix('W') {
            let day = field
                .number(day)
                .map_err(|error| format!("{error}; W follows one day, such as 15W"))?;
            found.nearest |= 1 << day.value;
        } else if upper.contains('#') {
            return Err(format!(
                "day of month {item:?}: # belongs to the field day of week, such as 5#2"
            ));
        } else {
            for value in field.range(item, dialect)?.values(field) {
                found.days |= 1 << value;
            }
        }
    }
    Ok(found)
}

fn day_of_week(text: &str, dialect: Dialect) -> Result<DayOfWeek, String> {
    if text == "?" || text == "*" {
        return Ok(DayOfWeek::every());
    }
    let field = match dialect {
        Dialect::Unix => &DAY_OF_WEEK_UNIX,
        Dialect::Quartz => &DAY_OF_WEEK_QUARTZ,
    };
    // Sunday is 0 from here on: in crontab 0 and 7, in Quartz 1.
    let bit = |value: u32| 1u8 << ((value + 7 - field.names_from) % 7);
    let mut found = DayOfWeek::default();
    for item in items(field, text)? {
        let upper = item.to_ascii_uppercase();
        if let Some((day, nth)) = upper.split_once('#') {
            let day = field.number(day)?;
            let index = match nth.parse::<usize>() {
                Ok(nth @ 1..=5) => nth - 1,
                _ => {
                    return Err(format!(
                        "day of week {item:?}: a month has a weekday at most five times; write # with 1–5"
                    ));
                }
            };
            found.nth[index] |= bit(day.value);
        } else if upper == "L" {
            if dialect == Dialect::Unix {
                return Err(
                    "day of week \"L\" says no day; write for example 5L for the last Friday of the month, or 6 for Saturdays"
                        .into(),
                );
            }
            // In Quartz, L alone is the last day of the week.
            found.days |= bit(7);
        } else if let Some(day) = upper.strip_suffix('L') {
            found.last |= bit(field.number(day)?.value);
        } else if upper.ends_with('W') && upper.len() <= 3 && field.number(&upper).is_err() {
            return Err(format!(
                "day of week {item:?}: W belongs to the field day of month, such as 15W"
            ));
        } else {
            let range = field.range(item, dialect)?;
            for value in range.values(&Field { ..*field }) {
                found.days |= bit(value);
            }
        }
    }
    Ok(found)
}
