//! Exclusion calendars: when a trigger does not fire, whatever its schedule says.
//!
//! A calendar is asked for stretches, not for single instants, so that an hour, a holiday or a year that is left out
//! is one step and one row of the ledger.

use super::wall::{self, DAY};
use super::window::{Weekday, parse_time_of_day, weekday_bit, weekday_set};
use super::zone::{HORIZON, Zone};
use crate::error::Invalid;
use crate::limits::CALENDAR_ENTRIES_MAX;
use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Stretches that one search goes over before it says "never"; more than 25 years of a daily window.
const STRETCHES_MAX: usize = 20_000;

/// From one date to another, both included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DateRange {
    pub from: String,
    pub to: String,
}

/// From one time of day until another (exclusive); over midnight when `to` is earlier. `24:00` is the end of the day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DayWindow {
    pub from: String,
    pub to: String,
}

/// A calendar as it stands in files and is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CalendarSpec {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// IANA zone of its dates and times; the scheduler's default zone when not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// `2026-12-24`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dates: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<DateRange>,
    /// Whole days of every week.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weekly: Vec<Weekday>,
    /// Windows of every day.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub daily: Vec<DayWindow>,
    /// Path of an iCalendar file, whose events are left out; read by whoever reads the definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ics: Option<String>,
}

/// Days or instants that are left out, sorted and disjoint: from, and until (exclusive).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Spans(Vec<(i64, i64)>);

impl Spans {
    fn new(mut spans: Vec<(i64, i64)>) -> Self {
        spans.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::new();
        for (from, until) in spans {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(until),
                _ => merged.push((from, until)),
            }
        }
        Self(merged)
    }

    /// Whether it has this value, and until where that stays so.
    fn stretch(&self, at: i64) -> (bool, i64) {
        let next = self.0.partition_point(|&(from, _)| from <= at);
        match next.checked_sub(1).map(|index| self.0[index]) {
            Some((_, until)) if at < until => (true, until),
            _ => (false, self.0.get(next).map_or(i64::MAX, |&(from, _)| from)),
        }
    }
}

/// A calendar, ready to be asked.
#[derive(Clone, Debug)]
pub struct Calendar {
    pub name: String,
    zone: Zone,
    /// Days since 1970-01-01.
    days: Spans,
    /// Bits 0 (Monday) to 6.
    weekly: u8,
    /// Seconds of a day.
    daily: Spans,
    /// Seconds since the epoch: events of an iCalendar file that are not whole days.
    events: Spans,
}

fn parse_date(text: &str, field: &str) -> Result<i64, Invalid> {
    NaiveDate::parse_from_str(text, "%Y-%m-%d")
        .map(wall::day_number)
        .map_err(|_| {
            Invalid::new(
                field,
                format!("{text:?} is not a date; write for example \"2026-12-24\""),
            )
        })
}

impl Calendar {
    /// `ics` is the text of the file that the calendar names, if it names one.
    pub fn new(spec: &CalendarSpec, ics: Option<&str>, default_zone: &Zone) -> Result<Self, Invalid> {
        let zone = match &spec.zone {
            Some(name) => Zone::parse(name)?,
            None => default_zone.clone(),
        };
        let entries = spec.dates.len() + spec.ranges.len() + spec.daily.len();
        if entries > CALENDAR_ENTRIES_MAX {
            let message = format!("the calendar has {entries} entries; at most {CALENDAR_ENTRIES_MAX} are kept");
            return Err(Invalid::new("dates", message));
        }
        let mut days = Vec::new();
        for date in &spec.dates {
            let day = parse_date(date, "dates")?;
            days.push((day, day + 1));
        }
        for range in &spec.ranges {
            let (from, to) = (
                parse_date(&range.from, "ranges.from")?,
                parse_date(&range.to, "ranges.to")?,
            );
            if to < from {
                let message = format!(
                    "{:?} is before from ({:?}); both dates are included",
                    range.to, range.from
                );
                return Err(Invalid::new("ranges.to", message));
            }
            days.push((from, to + 1));
        }
        let mut daily = Vec::new();
        for window in &spec.daily {
            let from = parse_time_of_day(&window.from, "daily.from")?;
            let to = parse_time_of_day(&window.to, "daily.to")?;
            if from == to {
                return Err(Invalid::new(
                    "daily.to",
                    "is the same as from; the window would be empty",
                ));
            }
            if from < to {
                daily.push((from, to));
            } else {
                daily.extend([(from, DAY), (0, to)]);
            }
        }
        let mut events = Vec::new();
        if let Some(text) = ics {
            let imported = super::ics::parse(text, &zone)?;
            days.extend(imported.days);
            events = imported.instants;
        }
        let calendar = Self {
            name: spec.name.clone(),
            zone,
            days: Spans::new(days),
            weekly: weekday_set(&spec.weekly),
            daily: Spans::new(daily),
            events: Spans::new(events),
        };
        if calendar.weekly == 0x7f || calendar.daily.0 == [(0, DAY)] {
            let field = if calendar.weekly == 0x7f { "weekly" } else { "daily" };
            return Err(Invalid::new(field, "leaves out every day; pause the trigger instead"));
        }
        Ok(calendar)
    }

    /// Whether an instant (seconds) is left out, and until where that stays so. The stretch need not be the longest.
    fn stretch(&self, at: i64) -> (bool, i64) {
        let segment = self.zone.segment(at);
        let offset = i64::from(segment.offset);
        let wall = at + offset;
        let (day, second) = (wall.div_euclid(DAY), wall.rem_euclid(DAY));
        // Local stretches end at the latest where the clock changes.
        let instant = |wall: i64| wall.saturating_sub(offset).min(segment.end);

        let (in_event, event_end) = self.events.stretch(at);
        if in_event {
            return (true, event_end);
        }
        let (on_day, days_end) = self.days.stretch(day);
        if on_day {
            return (true, instant(days_end * DAY));
        }
        if self.weekly & weekday_bit(day) != 0 {
            return (true, instant((day + 1) * DAY));
        }
        let (in_window, window_end) = self.daily.stretch(second);
        if in_window {
            return (true, instant(day * DAY + window_end.min(DAY)));
        }
        // Free until the first of what comes next.
        let mut free = event_end.min(instant(days_end.saturating_mul(DAY)));
        if self.weekly != 0 {
            let next = (1..=7)
                .find(|&ahead| self.weekly & weekday_bit(day + ahead) != 0)
                .unwrap_or(7);
            free = free.min(instant((day + next) * DAY));
        }
        if let Some(&(first, _)) = self.daily.0.first() {
            let next = if window_end < DAY {
                day * DAY + window_end
            } else {
                (day + 1) * DAY + first
            };
            free = free.min(instant(next));
        }
        (false, free.max(at + 1))
    }
}

/// All calendars of a trigger: what one of them leaves out is left out.
#[derive(Clone, Debug, Default)]
pub struct Exclusions(pub Vec<Arc<Calendar>>);

impl Exclusions {
    /// Whether an instant (milliseconds) is left out, and until where that stays so at least.
    pub fn stretch(&self, at_ms: i64) -> (bool, i64) {
        let at = at_ms.div_euclid(1_000);
        let mut free = i64::MAX;
        let mut excluded: Option<i64> = None;
        for calendar in &self.0 {
            match calendar.stretch(at) {
                (true, until) => excluded = excluded.max(Some(until)),
                (false, until) => free = free.min(until),
            }
        }
        match excluded {
            Some(until) => (true, until.saturating_mul(1_000)),
            None => (false, free.saturating_mul(1_000)),
        }
    }

    pub fn excludes(&self, at_ms: i64) -> bool {
        self.stretch(at_ms).0
    }

    /// The name of a calendar that leaves this instant out.
    pub fn excluded_by(&self, at_ms: i64) -> Option<&str> {
        let at = at_ms.div_euclid(1_000);
        self.0
            .iter()
            .find(|calendar| calendar.stretch(at).0)
            .map(|calendar| calendar.name.as_str())
    }

    /// The first instant that is not left out and not before this one; `None` when the search finds none.
    pub fn first_free(&self, at_ms: i64) -> Option<i64> {
        let mut at = at_ms;
        for _ in 0..STRETCHES_MAX {
            match self.stretch(at) {
                (false, _) => return Some(at),
                (true, until) if until >= HORIZON * 1_000 => return None,
                (true, until) => at = until,
            }
        }
        None
    }

    /// Where the left-out time that has this instant ends.
    pub fn end_of_exclusion(&self, at_ms: i64) -> i64 {
        self.first_free(at_ms).unwrap_or(HORIZON * 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calendar(spec: &str) -> Exclusions {
        let spec: CalendarSpec = serde_json::from_str(spec).expect(spec);
        let calendar = Calendar::new(&spec, None, &Zone::utc()).expect("calendar");
        Exclusions(vec![Arc::new(calendar)])
    }

    fn ms(text: &str) -> i64 {
        chrono::DateTime::parse_from_rfc3339(text)
            .expect(text)
            .timestamp_millis()
    }

    #[test]
    fn dates_ranges_weekdays_and_windows_are_left_out() {
        let bank = calendar(
            r#"{"name":"us","zone":"America/New_York","dates":["2026-12-24"],
                "ranges":[{"from":"2026-12-28","to":"2027-01-01"}],"weekly":["sat"],
                "daily":[{"from":"17:00","to":"20:00"}]}"#,
        );
        for (at, excluded) in [
            ("2026-12-23T23:59:59-05:00", false),
            ("2026-12-24T00:00:00-05:00", true),
            ("2026-12-24T23:59:59-05:00", true),
            ("2026-12-25T00:00:00-05:00", false),
            ("2026-12-26T12:00:00-05:00", true), // a Saturday
            ("2026-12-27T12:00:00-05:00", false),
            ("2027-01-01T23:59:59-05:00", true),
            ("2026-12-23T16:59:59-05:00", false),
            ("2026-12-23T17:00:00-05:00", true),
            ("2026-12-23T20:00:00-05:00", false),
        ] {
            assert_eq!(bank.excludes(ms(at)), excluded, "{at}");
        }
        assert_eq!(
            bank.first_free(ms("2026-12-28T09:00:00-05:00")),
            Some(ms("2027-01-03T00:00:00-05:00"))
        );
        assert_eq!(bank.excluded_by(ms("2026-12-24T12:00:00-05:00")), Some("us"));
    }

    #[test]
    fn a_window_over_midnight_is_left_out_on_both_days() {
        let night = calendar(r#"{"name":"night","daily":[{"from":"22:00","to":"06:00"}]}"#);
        assert_eq!(
            night.first_free(ms("2026-12-01T23:00:00Z")),
            Some(ms("2026-12-02T06:00:00Z"))
        );
        assert_eq!(
            night.stretch(ms("2026-12-02T06:00:00Z")),
            (false, ms("2026-12-02T22:00:00Z"))
        );
    }

    /// The stretches are the same as asking at each minute, also where the clock changes.
    #[test]
    fn stretches_agree_with_single_instants() {
        for zone in ["Europe/Berlin", "Australia/Lord_Howe", "Asia/Beirut"] {
            let calendar = calendar(&format!(
                r#"{{"name":"x","zone":"{zone}","dates":["2027-03-29"],"weekly":["sun"],
                     "daily":[{{"from":"01:30","to":"02:45"}},{{"from":"23:00","to":"00:15"}}]}}"#
            ));
            for start in ["2027-03-26T00:00:00Z", "2027-10-29T00:00:00Z", "2027-04-02T00:00:00Z"] {
                let (start, end) = (ms(start), ms(start) + 5 * 86_400_000);
                let mut at = start;
                while at < end {
                    let (excluded, until) = calendar.stretch(at);
                    assert!(until > at);
                    for minute in (at..until.min(end)).step_by(60_000) {
                        assert_eq!(calendar.excludes(minute), excluded, "{zone} {minute}");
                    }
                    at = until;
                }
            }
        }
    }

    #[test]
    fn bad_calendars_name_the_field() {
        for (spec, field) in [
            (r#"{"dates":["24.12.2026"]}"#, "dates"),
            (r#"{"ranges":[{"from":"2026-12-28","to":"2026-12-01"}]}"#, "ranges.to"),
            (r#"{"daily":[{"from":"5pm","to":"20:00"}]}"#, "daily.from"),
            (r#"{"daily":[{"from":"17:00","to":"17:00"}]}"#, "daily.to"),
            (r#"{"weekly":["mon","tue","wed","thu","fri","sat","sun"]}"#, "weekly"),
            (
                r#"{"daily":[{"from":"12:00","to":"24:00"},{"from":"00:00","to":"12:00"}]}"#,
                "daily",
            ),
            (r#"{"zone":"Mars/Olympus"}"#, "zone"),
        ] {
            let spec: CalendarSpec = serde_json::from_str(spec).expect(spec);
            assert_eq!(Calendar::new(&spec, None, &Zone::utc()).expect_err(field).field, field);
        }
        assert!(
            serde_json::from_str::<CalendarSpec>(r#"{"date":[]}"#).is_err(),
            "unknown fields are refused"
        );
    }
}
