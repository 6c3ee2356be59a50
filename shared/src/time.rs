//! Durations and times as people write and read them.

use crate::trigger::zone::Zone;
use chrono::{DateTime, Local, NaiveDate, NaiveDateTime, NaiveTime, TimeZone, Utc};

/// Parses a duration with units: `90s`, `1h30m`, `250ms`, `2d`. A bare number is refused, except `0`.
/// Returns milliseconds.
pub fn parse_duration(text: &str) -> Result<u64, String> {
    let text = text.trim();
    if text == "0" {
        return Ok(0);
    }
    if text.is_empty() {
        return Err("a duration is empty; write for example 90s, 5m or 1h30m".into());
    }
    if text.starts_with('-') {
        return Err(format!("{text:?} is negative; a duration is zero or more, such as 90s"));
    }
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(format!("{text:?} has no unit; write \"{text}s\" or \"{text}m\""));
    }
    let bad = || format!("{text:?} is not a duration; write for example 250ms, 90s, 5m, 1h30m or 2d");
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let unit_len = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..unit_len] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(bad()),
        };
        rest = &rest[unit_len..];
        total = number
            .checked_mul(unit)
            .and_then(|ms| total.checked_add(ms))
            .ok_or_else(|| format!("{text:?} is too long; the longest duration is 366d"))?;
    }
    Ok(total)
}

/// Writes milliseconds the way people say them: `0.01 s`, `12.4 s`, `11m06s`, `3h`, `2d04h`.
pub fn format_duration(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0..=59 if ms < 1_000 => format!("{:.2} s", ms as f64 / 1_000.0),
        0..=59 => format!("{:.1} s", ms as f64 / 1_000.0),
        60..=3_599 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..=86_399 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// Writes a duration so that [`parse_duration`] reads the same value: `1h30m`, `250ms`, `0`.
pub fn exact_duration(ms: u64) -> String {
    if ms == 0 {
        return "0".into();
    }
    let mut rest = ms;
    let mut text = String::new();
    for (unit, size) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
        ("ms", 1),
    ] {
        if rest >= size {
            text.push_str(&format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    text
}

/// Parses a time: RFC 3339; in this machine's zone a day, a day and a time of day, or a time of today; or `-2h` and `+30m` relative to
/// `now_ms`. Returns milliseconds since the epoch.
pub fn parse_time(text: &str, now_ms: i64) -> Result<i64, String> {
    let text = text.trim();
    if let Some(ms) = moment(text, now_ms)? {
        return Ok(ms);
    }
    let bad = || no_time(text);
    let local = local_time(text, today(now_ms).ok_or_else(bad)?).ok_or_else(bad)?;
    in_ms(text, local)
}

/// As [`parse_time`], with days and times of day in this zone. One that its clock leaves out is the end of the gap, where a trigger
/// fires then.
pub fn parse_time_in(text: &str, now_ms: i64, zone: &Zone) -> Result<i64, String> {
    let text = text.trim();
    if let Some(ms) = moment(text, now_ms)? {
        return Ok(ms);
    }
    let bad = || no_time(text);
    let now = Utc.timestamp_opt(zone.wall(now_ms.div_euclid(1_000)), 0).single();
    let local = local_time(text, now.ok_or_else(bad)?.date_naive()).ok_or_else(bad)?;
    zone.instant(local.and_utc().timestamp())
        .checked_mul(1_000)
        .ok_or_else(bad)
}

/// Whether it depends on the zone that it is read in: a day, or a time of day.
pub fn depends_on_zone(text: &str) -> bool {
    matches!(moment(text.trim(), 0), Ok(None))
}

fn no_time(text: &str) -> String {
    format!("{text:?} is not a time; write 2027-01-31T02:30:00+01:00, 2027-01-31 02:30, 2027-01-31, 02:30, -2h or +30m")
}

/// What means one moment in each zone: a full time with its offset, or a time relative to `now_ms`.
fn moment(text: &str, now_ms: i64) -> Result<Option<i64>, String> {
    let bad = || no_time(text);
    if let Some(back) = text.strip_prefix('-') {
        let ms = parse_duration(back)?;
        return now_ms.checked_sub_unsigned(ms).ok_or_else(bad).map(Some);
    }
    if let Some(ahead) = text.strip_prefix('+') {
        let ms = parse_duration(ahead)?;
        return now_ms.checked_add_unsigned(ms).ok_or_else(bad).map(Some);
    }
    Ok(DateTime::parse_from_rfc3339(text)
        .ok()
        .map(|time| time.timestamp_millis()))
}

/// As [`parse_time`], for what lies ahead: a time of day that is over today is that of tomorrow.
pub fn parse_time_ahead(text: &str, now_ms: i64) -> Result<i64, String> {
    let ms = parse_time(text, now_ms)?;
    match (clock(text.trim()), today(now_ms).and_then(|day| day.succ_opt())) {
        (Some(time), Some(tomorrow)) if ms <= now_ms => in_ms(text, tomorrow.and_time(time)),
        _ => Ok(ms),
    }
}

fn today(now_ms: i64) -> Option<NaiveDate> {
    Some(Local.timestamp_millis_opt(now_ms).single()?.date_naive())
}

fn in_ms(text: &str, local: NaiveDateTime) -> Result<i64, String> {
    // A local time that does not exist (clock change) has no answer; say so instead of guessing.
    Local
        .from_local_datetime(&local)
        .earliest()
        .map(|time| time.timestamp_millis())
        .ok_or_else(|| format!("{text} does not exist: the clocks change then; write a full time with offset"))
}

fn clock(text: &str) -> Option<NaiveTime> {
    let parsed = NaiveTime::parse_from_str(text, "%H:%M");
    parsed.or_else(|_| NaiveTime::parse_from_str(text, "%H:%M:%S")).ok()
}

/// A day, a time of day, or both with a `T` or a space between them.
fn local_time(text: &str, today: NaiveDate) -> Option<NaiveDateTime> {
    let day = |text: &str| NaiveDate::parse_from_str(text, "%Y-%m-%d").ok();
    if let Some((date, time)) = text.split_once(['T', ' ']) {
        return Some(day(date)?.and_time(clock(time)?));
    }
    match clock(text) {
        Some(time) => Some(today.and_time(time)),
        None => Some(day(text)?.and_time(NaiveTime::MIN)),
    }
}

/// RFC 3339 in UTC with milliseconds; empty for "not set".
pub fn format_utc(ms: i64) -> String {
    if ms == 0 {
        return String::new();
    }
    match Utc.timestamp_millis_opt(ms).single() {
        Some(time) => time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        None => ms.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_units_and_round_trip() {
        for (text, ms) in [
            ("0", 0),
            ("250ms", 250),
            ("90s", 90_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
        ] {
            assert_eq!(parse_duration(text), Ok(ms), "{text}");
            assert_eq!(parse_duration(&exact_duration(ms)), Ok(ms), "{text}");
        }
    }

    #[test]
    fn bad_durations_say_what_to_write() {
        for text in [
            "",
            "12",
            "0.5",
            "-5s",
            "5x",
            "s",
            "5s3",
            "99999999999999999999s",
            "999999999999999d",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_duration("12").expect_err("no unit").contains("\"12s\""));
    }

    #[test]
    fn times_are_absolute_or_relative() {
        let now = 1_800_000_000_000;
        assert_eq!(parse_time("-2h", now), Ok(now - 7_200_000));
        assert_eq!(parse_time("+30m", now), Ok(now + 1_800_000));
        assert_eq!(parse_time("2027-01-15T08:00:00Z", now), Ok(1_800_000_000_000));
        assert!(parse_time("tomorrow", now).is_err());
        assert!(parse_time("02:30", now).is_ok());
    }

    #[test]
    fn a_time_of_day_that_is_over_lies_ahead_tomorrow() {
        let day = 86_400_000;
        // Noon of this machine, on a day without a clock change anywhere.
        let noon = parse_time("2027-01-15 12:00", 0).expect("a time");
        let ahead = |text: &str| parse_time_ahead(text, noon);
        assert_eq!(ahead("06:00"), Ok(noon + day - 6 * 3_600_000));
        assert_eq!(ahead("12:00"), Ok(noon + day), "now is over");
        assert_eq!(ahead("12:00:01"), Ok(noon + 1_000));
        assert_eq!(ahead("18:00"), Ok(noon + 6 * 3_600_000));
        // Whoever says the day means it.
        assert_eq!(ahead("2027-01-15 06:00"), Ok(noon - 6 * 3_600_000));
        assert_eq!(ahead("-2h"), Ok(noon - 2 * 3_600_000));
    }

    #[test]
    fn a_time_is_read_in_a_zone_that_is_named() {
        let berlin = Zone::parse("Europe/Berlin").expect("zone");
        // 2027-01-15 23:30 in Berlin is 22:30 in UTC; half an hour later it is another day there.
        let now = 1_800_052_200_000;
        for (text, now, expected) in [
            ("2027-01-15 02:30", now, "2027-01-15T01:30:00.000Z"),
            ("2027-07-15 02:30", now, "2027-07-15T00:30:00.000Z"),
            ("02:30", now, "2027-01-15T01:30:00.000Z"),
            ("02:30", now + 1_800_000, "2027-01-16T01:30:00.000Z"),
            ("2027-01-15", now, "2027-01-14T23:00:00.000Z"),
            // It does not exist: 01:00Z is where the clock jumps. It exists twice: the first pass.
            ("2027-03-28 02:30", now, "2027-03-28T01:00:00.000Z"),
            ("2027-10-31 02:30", now, "2027-10-31T00:30:00.000Z"),
            // These say themselves when they are.
            ("2027-01-15T02:30:00+09:00", now, "2027-01-14T17:30:00.000Z"),
            ("-30m", now, "2027-01-15T22:00:00.000Z"),
        ] {
            let read = parse_time_in(text, now, &berlin).map(format_utc);
            assert_eq!(read.as_deref(), Ok(expected), "{text}");
        }
        assert!(parse_time_in("noon", now, &berlin).is_err());
        for (text, depends) in [
            ("02:30", true),
            ("2027-01-15", true),
            ("-2h", false),
            ("+2h", false),
            ("2027-01-15T02:30:00Z", false),
        ] {
            assert_eq!(depends_on_zone(text), depends, "{text}");
        }
    }

    #[test]
    fn local_times_have_a_day_or_are_of_today() {
        let date = |text: &str| NaiveDate::parse_from_str(text, "%Y-%m-%d").expect("a day");
        let today = date("2026-11-30");
        for (text, expected) in [
            ("02:30", Some("2026-11-30 02:30:00")),
            ("02:30:05", Some("2026-11-30 02:30:05")),
            ("2027-03-28", Some("2027-03-28 00:00:00")),
            ("2027-03-28 02:30", Some("2027-03-28 02:30:00")),
            ("2027-03-28T02:30:05", Some("2027-03-28 02:30:05")),
            ("2027-03-28T", None),
            ("2027-02-30", None),
            ("28.3.2027", None),
            ("2027-03-28 25:00", None),
            (" 02:30", None),
        ] {
            let found = local_time(text, today).map(|time| time.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn people_read_short_durations() {
        for (ms, text) in [
            (10, "0.01 s"),
            (12_400, "12.4 s"),
            (666_000, "11m06s"),
            (10_800_000, "3h00m"),
            (187_200_000, "2d04h"),
        ] {
            assert_eq!(format_duration(ms), text);
        }
    }
}
