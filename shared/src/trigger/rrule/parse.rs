//! The text of a recurrence rule.

use super::{ByDay, COUNT_MAX, Freq, Rrule};
use crate::limits::RRULE_BYTES_MAX;
use crate::trigger::wall::{self, DAY, Wall};
use chrono::{Datelike as _, NaiveDate, NaiveDateTime};

const WEEKDAYS: [&str; 7] = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"];
/// Values of one list.
const LIST_MAX: usize = 400;
const INTERVAL_MAX: i64 = 10_000;

pub fn parse(text: &str, start: Wall, local: impl Fn(i64) -> Wall) -> Result<(Rrule, Option<u32>), String> {
    if text.len() > RRULE_BYTES_MAX {
        return Err(format!("it is longer than {RRULE_BYTES_MAX} bytes"));
    }
    let upper = text.trim().to_ascii_uppercase();
    let body = upper.strip_prefix("RRULE:").unwrap_or(&upper);
    if body.is_empty() {
        return Err("it is empty; write for example FREQ=WEEKLY;BYDAY=MO,WE".into());
    }
    let mut parts: Vec<(&str, &str)> = Vec::new();
    for part in body.split(';').filter(|part| !part.is_empty()) {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("{part:?} is not NAME=VALUE, such as FREQ=DAILY"))?;
        if parts.iter().any(|&(known, _)| known == key) {
            return Err(format!("{key} stands there twice"));
        }
        parts.push((key, value));
    }
    let freq = match parts.iter().find(|(key, _)| *key == "FREQ").map(|&(_, value)| value) {
        Some("SECONDLY") => Freq::Secondly,
        Some("MINUTELY") => Freq::Minutely,
        Some("HOURLY") => Freq::Hourly,
        Some("DAILY") => Freq::Daily,
        Some("WEEKLY") => Freq::Weekly,
        Some("MONTHLY") => Freq::Monthly,
        Some("YEARLY") => Freq::Yearly,
        Some(other) => {
            return Err(format!(
                "FREQ={other} is not known; write YEARLY, MONTHLY, WEEKLY, DAILY, HOURLY, MINUTELY or SECONDLY"
            ));
        }
        None => return Err("FREQ is missing; write for example FREQ=DAILY".into()),
    };
    let mut rule = Rrule {
        freq,
        interval: 1,
        start,
        until: None,
        week_start: 0,
        months: 0,
        hours: 0,
        minutes: 0,
        seconds: 0,
        month_days: Vec::new(),
        year_days: Vec::new(),
        week_numbers: Vec::new(),
        days: Vec::new(),
        positions: Vec::new(),
    };
    let mut count = None;
    for (key, value) in parts {
        match key {
            "FREQ" => {}
            "INTERVAL" => rule.interval = number(key, value, 1, INTERVAL_MAX)?,
            "COUNT" => count = u32::try_from(number(key, value, 1, i64::from(COUNT_MAX))?).ok(),
            "UNTIL" => rule.until = Some(until(value, &local)?),
            "WKST" => rule.week_start = weekday(key, value)?,
            "BYMONTH" => rule.months = bits(&list(key, value, 1, 12)?),
            "BYHOUR" => rule.hours = bits(&list(key, value, 0, 23)?),
            "BYMINUTE" => rule.minutes = bits(&list(key, value, 0, 59)?),
            "BYSECOND" => rule.seconds = bits(&list(key, value, 0, 59)?),
            "BYMONTHDAY" => rule.month_days = signed(key, value, 31)?,
            "BYYEARDAY" => rule.year_days = signed(key, value, 366)?,
            "BYWEEKNO" => rule.week_numbers = signed(key, value, 53)?,
            "BYSETPOS" => rule.positions = signed(key, value, 366)?,
            "BYDAY" => {
                rule.days = items(key, value)?
                    .map(|item| by_day(key, item))
                    .collect::<Result<_, _>>()?
            }
            other => return Err(format!("{other} is not a part of a recurrence rule")),
        }
    }
    if count.is_some() && rule.until.is_some() {
        return Err("COUNT and UNTIL exclude each other; keep one".into());
    }
    check(&rule)?;
    fill_from_start(&mut rule);
    Ok((rule, count))
}

/// What the RFC forbids.
fn check(rule: &Rrule) -> Result<(), String> {
    let numbered = rule.days.iter().any(|day| day.nth != 0);
    if numbered && !matches!(rule.freq, Freq::Monthly | Freq::Yearly) {
        return Err("BYDAY with a number, such as 1MO, needs FREQ=MONTHLY or YEARLY".into());
    }
    if numbered && !rule.week_numbers.is_empty() {
        return Err("BYDAY with a number and BYWEEKNO exclude each other".into());
    }
    if !rule.month_days.is_empty() && rule.freq == Freq::Weekly {
        return Err("BYMONTHDAY does not go with FREQ=WEEKLY".into());
    }
    if !rule.year_days.is_empty() && matches!(rule.freq, Freq::Daily | Freq::Weekly | Freq::Monthly) {
        return Err("BYYEARDAY does not go with FREQ=DAILY, WEEKLY or MONTHLY".into());
    }
    if !rule.week_numbers.is_empty() && rule.freq != Freq::Yearly {
        return Err("BYWEEKNO needs FREQ=YEARLY".into());
    }
    if !rule.positions.is_empty() {
        if rule.freq < Freq::Daily {
            return Err("BYSETPOS needs FREQ=DAILY or a longer period".into());
        }
        let chooses = rule.months | rule.hours | rule.minutes | rule.seconds != 0
            || !(rule.month_days.is_empty()
                && rule.year_days.is_empty()
                && rule.week_numbers.is_empty()
                && rule.days.is_empty());
        if !chooses {
            return Err("BYSETPOS needs another BY… part to choose from".into());
        }
    }
    Ok(())
}

/// What the rule leaves open is as in its start.
fn fill_from_start(rule: &mut Rrule) {
    let second = rule.start.rem_euclid(DAY);
    let all = |count: u32| (1u64 << count) - 1;
    let open = |freq: Freq, unit: Freq, value: i64, count: u32| {
        // A period shorter than the unit goes through all of it.
        if freq > unit { 1 << value } else { all(count) }
    };
    if rule.hours == 0 {
        rule.hours = open(rule.freq, Freq::Hourly, second / 3_600, 24);
    }
    if rule.minutes == 0 {
        rule.minutes = open(rule.freq, Freq::Minutely, second / 60 % 60, 60);
    }
    if rule.seconds == 0 {
        rule.seconds = open(rule.freq, Freq::Secondly, second % 60, 60);
    }
    let open_days =
        rule.month_days.is_empty() && rule.year_days.is_empty() && rule.week_numbers.is_empty() && rule.days.is_empty();
    let day = rule.start.div_euclid(DAY);
    if let (true, Some(date)) = (open_days, wall::date(day)) {
        match rule.freq {
            Freq::Yearly => {
                if rule.months == 0 {
                    rule.months = 1 << date.month();
                }
                rule.month_days.push(i64::from(date.day()));
            }
            Freq::Monthly => rule.month_days.push(i64::from(date.day())),
            Freq::Weekly => rule.days.push(ByDay {
                weekday: i64::from(date.weekday().num_days_from_monday()),
                nth: 0,
            }),
            _ => {}
        }
    }
}

fn items<'a>(key: &str, value: &'a str) -> Result<std::str::Split<'a, char>, String> {
    if value.split(',').count() > LIST_MAX {
        return Err(format!("{key} has more than {LIST_MAX} values"));
    }
    Ok(value.split(','))
}

fn number(key: &str, text: &str, min: i64, max: i64) -> Result<i64, String> {
    text.parse::<i64>()
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| format!("{key}={text}: write {min} to {max}"))
}

fn list(key: &str, value: &str, min: i64, max: i64) -> Result<Vec<i64>, String> {
    items(key, value)?.map(|item| number(key, item, min, max)).collect()
}

/// Numbers from the front (1) or from the back (-1).
fn signed(key: &str, value: &str, max: i64) -> Result<Vec<i64>, String> {
    items(key, value)?
        .map(|item| match number(key, item, -max, max) {
            Ok(0) | Err(_) => Err(format!("{key}={item}: write 1 to {max}, or -1 to -{max} from the end")),
            Ok(number) => Ok(number),
        })
        .collect()
}

fn bits(values: &[i64]) -> u64 {
    values.iter().fold(0, |set, &value| set | 1 << value)
}

fn weekday(key: &str, text: &str) -> Result<i64, String> {
    WEEKDAYS
        .iter()
        .position(|&name| name == text)
        .and_then(|index| i64::try_from(index).ok())
        .ok_or_else(|| format!("{key}={text}: write {}", WEEKDAYS.join(", ")))
}

fn by_day(key: &str, item: &str) -> Result<ByDay, String> {
    let split = item.len().saturating_sub(2);
    let (nth, day) = item.split_at_checked(split).unwrap_or(("", item));
    let weekday = weekday(key, day)?;
    let nth = match nth {
        "" => 0,
        text => match text.parse::<i64>() {
            Ok(nth) if nth != 0 && nth.abs() <= 53 => nth,
            _ => return Err(format!("{key}={item}: write for example MO, 2MO or -1MO")),
        },
    };
    Ok(ByDay { weekday, nth })
}

/// A date (with its whole day), a local time, or a time in UTC.
fn until(text: &str, local: &impl Fn(i64) -> Wall) -> Result<Wall, String> {
    if let Ok(date) = NaiveDate::parse_from_str(text, "%Y%m%d") {
        return Ok(wall::day_number(date) * DAY + DAY - 1);
    }
    let (text_of_time, utc) = match text.strip_suffix('Z') {
        Some(time) => (time, true),
        None => (text, false),
    };
    let time = NaiveDateTime::parse_from_str(text_of_time, "%Y%m%dT%H%M%S")
        .map_err(|_| format!("UNTIL={text}: write 20271231, 20271231T235959 or 20271231T225959Z"))?;
    let wall = wall::of_date_time(time);
    Ok(if utc { local(wall) } else { wall })
}
