//! `OnCalendar=`: the grammar of systemd.time(7) as a trigger. A weekday and a day of the month must both fit, which cron cannot
//! say; such times become a recurrence rule.

use crate::trigger::zone::Zone;
use std::collections::BTreeSet;

/// When a trigger fires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Times {
    Unix(String),
    Quartz(String),
    Rrule(String),
    /// A local time, once.
    At(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    pub times: Times,
    /// Where the expression names one.
    pub zone: Option<Zone>,
}

const NAMES: [(&str, &str); 9] = [
    ("minutely", "*-*-* *:*:00"),
    ("hourly", "*-*-* *:00:00"),
    ("daily", "*-*-* 00:00:00"),
    ("weekly", "Mon *-*-* 00:00:00"),
    ("monthly", "*-*-01 00:00:00"),
    ("quarterly", "*-01,04,07,10-01 00:00:00"),
    ("semiannually", "*-01,07-01 00:00:00"),
    ("yearly", "*-01-01 00:00:00"),
    ("annually", "*-01-01 00:00:00"),
];

/// Monday first.
const DAYS: [&str; 7] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];

fn weekday(text: &str) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    DAYS.iter().position(|day| lower == *day || lower == day[..3])
}

/// One item of a list: `5`, `5..9`, `5/2`, `5..9/2`.
#[derive(Clone, Copy, Debug)]
struct Item {
    start: u32,
    stop: Option<u32>,
    step: Option<u32>,
}

/// What a part of the expression may be.
struct Part {
    name: &'static str,
    min: u32,
    max: u32,
}

const YEAR: Part = Part {
    name: "year",
    min: 1970,
    max: 2199,
};
const MONTH: Part = Part {
    name: "month",
    min: 1,
    max: 12,
};
const DAY: Part = Part {
    name: "day",
    min: 1,
    max: 31,
};
const HOUR: Part = Part {
    name: "hour",
    min: 0,
    max: 23,
};
const MINUTE: Part = Part {
    name: "minute",
    min: 0,
    max: 59,
};
const SECOND: Part = Part {
    name: "second",
    min: 0,
    max: 59,
};

impl Part {
    fn number(&self, text: &str) -> Result<u32, String> {
        if text.contains('.') {
            return Err(format!(
                "{} {text:?}: fractions of a second are not known here",
                self.name
            ));
        }
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number: u32 = text
            .parse()
            .ok()
            .filter(|_| digits)
            .ok_or_else(|| format!("{} {text:?} is no number", self.name))?;
        // As systemd reads years of two digits.
        let number = match (self.name, number) {
            ("year", 0..=69) => number + 2_000,
            ("year", 70..=99) => number + 1_900,
            _ => number,
        };
        if !(self.min..=self.max).contains(&number) {
            return Err(format!(
                "{} {number} is outside {} to {}",
                self.name, self.min, self.max
            ));
        }
        Ok(number)
    }

    /// `None`: every one.
    fn items(&self, text: &str) -> Result<Option<Vec<Item>>, String> {
        if text == "*" {
            return Ok(None);
        }
        let mut items = Vec::new();
        for item in text.split(',') {
            let (range, step) = match item.split_once('/') {
                Some((range, step)) => (range, Some(step)),
                None => (item, None),
            };
            let (start, stop) = match range.split_once("..") {
                Some((start, stop)) => (self.number(start)?, Some(self.number(stop)?)),
                None if range == "*" => (self.min, Some(self.max)),
                None => (self.number(range)?, None),
            };
            let step = step.map(|step| match step.parse() {
                Ok(step) if step > 0 => Ok(step),
                _ if step.contains('.') => Err(format!("{} {text:?}: fractions are not known here", self.name)),
                _ => Err(format!("{} {text:?}: the step {step:?} is no number", self.name)),
            });
            let stop = stop.filter(|_| range != "*" || step.is_none());
            items.push(Item {
                start,
                stop,
                step: step.transpose()?,
            });
        }
        Ok(Some(items))
    }

    fn set(&self, text: &str) -> Result<BTreeSet<u32>, String> {
        let Some(items) = self.items(text)? else {
            return Ok((self.min..=self.max).collect());
        };
        let mut set = BTreeSet::new();
        for item in items {
            let last = item
                .stop
                .unwrap_or(if item.step.is_some() { self.max } else { item.start });
            if last < item.start {
                return Err(format!("{} {text:?} goes backwards", self.name));
            }
            set.extend((item.start..=last).step_by(item.step.unwrap_or(1) as usize));
        }
        Ok(set)
    }

    fn is_full(&self, set: &BTreeSet<u32>) -> bool {
        set.len() == (self.max - self.min + 1) as usize
    }

    /// As a field of cron.
    fn cron(&self, set: &BTreeSet<u32>) -> String {
        if self.is_full(set) {
            return "*".into();
        }
        let numbers: Vec<u32> = set.iter().copied().collect();
        // `*/15`: an interval for systemd and for cron, also where the clock changes.
        if let [first, second, ..] = numbers[..]
            && matches!(self.max, 59 | 23)
            && first == self.min
        {
            let step = second - first;
            let whole: Vec<u32> = (self.min..=self.max).step_by(step as usize).collect();
            if step > 1 && whole == numbers {
                return format!("*/{step}");
            }
        }
        runs(&numbers)
    }
}

/// `1-5,9`.
fn runs(numbers: &[u32]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut rest = numbers;
    while let Some(&first) = rest.first() {
        let length = rest
            .iter()
            .zip(first..)
            .take_while(|&(&number, expected)| number == expected)
            .count();
        if length > 2 {
            out.push(format!("{first}-{}", rest[length - 1]));
            rest = &rest[length..];
        } else {
            out.push(first.to_string());
            rest = &rest[1..];
        }
    }
    out.join(",")
}

/// Days of the month.
enum Days {
    Any,
    Counted(BTreeSet<u32>),
    /// From the end: 1 is the last.
    FromEnd(BTreeSet<u32>),
}

fn days(text: &str, from_end: bool) -> Result<Days, String> {
    let set = DAY.set(text);
    if !from_end {
        let set = set?;
        return Ok(if DAY.is_full(&set) {
            Days::Any
        } else {
            Days::Counted(set)
        });
    }
    let mut found = BTreeSet::new();
    for item in DAY.items(text)?.ok_or("~ needs a number of days")? {
        let stop = item.stop.unwrap_or(if item.step.is_some() { 1 } else { item.start });
        let (near, far) = (item.start.min(stop), item.start.max(stop));
        // It counts towards the end of the month.
        found.extend((near..=far).rev().step_by(item.step.unwrap_or(1) as usize));
    }
    Ok(Days::FromEnd(found))
}

fn weekdays(text: &str) -> Result<BTreeSet<usize>, String> {
    let mut found = BTreeSet::new();
    let day = |name: &str| weekday(name).ok_or_else(|| format!("{name:?} is no day of the week"));
    for item in text.split(',').filter(|item| !item.is_empty()) {
        match item.split_once("..").or_else(|| item.split_once('-')) {
            Some((first, last)) => {
                let (first, last) = (day(first)?, day(last)?);
                if last < first {
                    return Err(format!("day of the week {item:?} goes backwards"));
                }
                found.extend(first..=last);
            }
            None => {
                found.insert(day(item)?);
            }
        }
    }
    Ok(found)
}

/// `mon-fri`, in both dialects; Sunday is a day of its own, since it is the first in one of them.
fn cron_weekdays(days: &BTreeSet<usize>) -> String {
    let name = |day: usize| DAYS[day][..3].to_owned();
    let workdays: Vec<u32> = days
        .iter()
        .filter(|&&day| day < 6)
        .filter_map(|&day| u32::try_from(day).ok())
        .collect();
    let mut out = Vec::new();
    for run in runs(&workdays).split(',').filter(|run| !run.is_empty()) {
        let ends: Vec<String> = run.split('-').filter_map(|day| day.parse().ok()).map(name).collect();
        out.push(ends.join("-"));
    }
    if days.contains(&6) {
        out.push(name(6));
    }
    out.join(",")
}

struct Parts<'a> {
    weekdays: Option<&'a str>,
    year: &'a str,
    month: &'a str,
    day: &'a str,
    from_end: bool,
    time: [&'a str; 3],
}

fn split<'a>(tokens: &[&'a str]) -> Result<Parts<'a>, String> {
    let mut parts = Parts {
        weekdays: None,
        year: "*",
        month: "*",
        day: "*",
        from_end: false,
        time: ["00", "00", "00"],
    };
    for (index, token) in tokens.iter().enumerate() {
        if token.contains(':') {
            parts.time = match token.split(':').collect::<Vec<_>>()[..] {
                [hour, minute] => [hour, minute, "00"],
                [hour, minute, second] => [hour, minute, second],
                _ => return Err(format!("{token:?} is no time of day")),
            };
        } else if index == 0 && token.starts_with(|c: char| c.is_ascii_alphabetic()) {
            parts.weekdays = Some(token);
        } else if token.contains(['-', '~']) {
            let (rest, from_end, day) = match token.split_once('~') {
                Some((rest, day)) => (rest, true, day),
                None => token
                    .rsplit_once('-')
                    .map_or(("", false, *token), |(rest, day)| (rest, false, day)),
            };
            (parts.from_end, parts.day) = (from_end, day);
            (parts.year, parts.month) = rest.split_once('-').unwrap_or(("*", rest));
        } else {
            return Err(format!("{token:?} is neither days of the week, nor a date, nor a time"));
        }
    }
    Ok(parts)
}

fn list(set: &BTreeSet<u32>) -> String {
    set.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn times(parts: &Parts<'_>) -> Result<Times, String> {
    let years = YEAR.items(parts.year)?;
    let months = MONTH.set(parts.month)?;
    let days = days(parts.day, parts.from_end)?;
    let [hour, minute, second] = parts.time;
    let (hours, minutes, seconds) = (HOUR.set(hour)?, MINUTE.set(minute)?, SECOND.set(second)?);
    let weekdays = parts.weekdays.map(weekdays).transpose()?.filter(|days| days.len() < 7);

    if let (Some([year]), Days::Counted(days), None) = (years.as_deref(), &days, &weekdays)
        && year.stop.is_none()
        && year.step.is_none()
        && [&months, days, &hours, &minutes, &seconds]
            .iter()
            .all(|set| set.len() == 1)
    {
        let one = |set: &BTreeSet<u32>| set.first().copied().unwrap_or_default();
        return Ok(Times::At(format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
            year.start,
            one(&months),
            one(days),
            one(&hours),
            one(&minutes),
            one(&seconds)
        )));
    }
    let day = match &days {
        Days::Any => "*".into(),
        Days::Counted(days) => runs(&days.iter().copied().collect::<Vec<_>>()),
        Days::FromEnd(days) => {
            let one = |&back: &u32| {
                if back == 1 {
                    "L".into()
                } else {
                    format!("L-{}", back - 1)
                }
            };
            days.iter().rev().map(one).collect::<Vec<String>>().join(",")
        }
    };
    let (month, hour, minute, second) = (
        MONTH.cron(&months),
        HOUR.cron(&hours),
        MINUTE.cron(&minutes),
        SECOND.cron(&seconds),
    );
    let weekday = weekdays.as_ref().map(cron_weekdays);
    match (weekdays, weekday, &days) {
        (Some(weekdays), Some(_), Days::Counted(_) | Days::FromEnd(_)) => {
            if years.is_some() {
                return Err("a year, a day and a day of the week together are not known here; write start_at and end_at to a rrule".into());
            }
            let by_day: Vec<String> = weekdays
                .iter()
                .map(|&day| DAYS[day][..2].to_ascii_uppercase())
                .collect();
            let by_month_day = match &days {
                Days::FromEnd(days) => days
                    .iter()
                    .rev()
                    .map(|day| format!("-{day}"))
                    .collect::<Vec<_>>()
                    .join(","),
                Days::Counted(days) => list(days),
                Days::Any => String::new(),
            };
            let by_month = if MONTH.is_full(&months) {
                String::new()
            } else {
                format!("BYMONTH={};", list(&months))
            };
            Ok(Times::Rrule(format!(
                "FREQ=DAILY;{by_month}BYMONTHDAY={by_month_day};BYDAY={};BYHOUR={};BYMINUTE={};BYSECOND={}",
                by_day.join(","),
                list(&hours),
                list(&minutes),
                list(&seconds)
            )))
        }
        (_, weekday, _) if years.is_none() && second == "0" => {
            let weekday = weekday.unwrap_or_else(|| "*".into());
            Ok(Times::Unix(format!("{minute} {hour} {day} {month} {weekday}")))
        }
        (_, weekday, _) => {
            // One of the two is always `?`.
            let (day, weekday) = match weekday {
                Some(weekday) => ("?".into(), weekday),
                None => (day, "?".into()),
            };
            let years = years.map(|items| {
                let one = |item: &Item| {
                    let stop = item.stop.map_or_else(String::new, |stop| format!("-{stop}"));
                    let step = item.step.map_or_else(String::new, |step| format!("/{step}"));
                    format!("{}{stop}{step}", item.start)
                };
                format!(" {}", items.iter().map(one).collect::<Vec<_>>().join(","))
            });
            Ok(Times::Quartz(format!(
                "{second} {minute} {hour} {day} {month} {weekday}{}",
                years.unwrap_or_default()
            )))
        }
    }
}

/// Reads an expression. A refusal says which part is meant.
pub fn read(text: &str) -> Result<Calendar, String> {
    let mut tokens: Vec<&str> = text.split_whitespace().collect();
    if let [only] = tokens[..]
        && only.starts_with('@')
    {
        return Err(format!("{only}: seconds since 1970 are not read; write the date"));
    }
    let mut zone = None;
    if let [_, .., last] = tokens[..]
        && last.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        zone = Some(Zone::parse(last).map_err(|fault| fault.message)?);
        tokens.pop();
    }
    let named = match tokens[..] {
        [only] => NAMES.iter().find(|(name, _)| only.eq_ignore_ascii_case(name)),
        _ => None,
    };
    if let Some((_, expanded)) = named {
        tokens = expanded.split_whitespace().collect();
    }
    if tokens.is_empty() {
        return Err("is empty".into());
    }
    Ok(Calendar {
        times: times(&split(&tokens)?)?,
        zone,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::cron::{Cron, Dialect};

    fn times(text: &str) -> Times {
        read(text).unwrap_or_else(|error| panic!("{text}: {error}")).times
    }

    #[test]
    fn expressions_become_cron_where_cron_can_say_them() {
        for (text, cron) in [
            ("minutely", "* * * * *"),
            ("hourly", "0 * * * *"),
            ("daily", "0 0 * * *"),
            ("weekly", "0 0 * * mon"),
            ("monthly", "0 0 1 * *"),
            ("quarterly", "0 0 1 1,4,7,10 *"),
            ("Semiannually", "0 0 1 1,7 *"),
            ("annually", "0 0 1 1 *"),
            ("*-*-* 02:30:00", "30 2 * * *"),
            ("02:30", "30 2 * * *"),
            ("*:0/15", "*/15 * * * *"),
            (
                "*:2/3",
                "2,5,8,11,14,17,20,23,26,29,32,35,38,41,44,47,50,53,56,59 * * * *",
            ),
            ("0/6:00", "0 */6 * * *"),
            ("Mon..Fri 9..17:05", "5 9-17 * * mon-fri"),
            ("Mon-Fri 08:00", "0 8 * * mon-fri"),
            ("Sat,Thu,Mon..Wed,Sat..Sun", "0 0 * * mon-thu,sat,sun"),
            ("Tuesday,sun 4:00", "0 4 * * tue,sun"),
            ("Mon..Sun 4:00", "0 4 * * *"),
            ("*-*-1,15 03:00", "0 3 1,15 * *"),
            ("*-1..3-10..20/5 0:0", "0 0 10,15,20 1-3 *"),
            ("12-24 18:00", "0 18 24 12 *"),
            ("*-*~01 23:00", "0 23 L * *"),
            ("*-02~03", "0 0 L-2 2 *"),
            ("*-*~3/1", "0 0 L-2,L-1,L * *"),
        ] {
            assert_eq!(times(text), Times::Unix(cron.into()), "{text}");
            Cron::parse(cron, Dialect::Unix).expect(cron);
        }
        for (text, cron) in [
            ("*:*:0/10", "*/10 * * * * ?"),
            ("*-*-* 04:05:30", "30 5 4 * * ?"),
            ("Sun 04:05:30", "30 5 4 ? * sun"),
            ("2027..2029-*-01 00:00", "0 0 0 1 * ? 2027-2029"),
            ("27/2-1-1", "0 0 0 1 1 ? 2027/2"),
            ("Mon 2030-*-* 1:00", "0 0 1 ? * mon 2030"),
            ("2030-*~1", "0 0 0 L * ? 2030"),
        ] {
            assert_eq!(times(text), Times::Quartz(cron.into()), "{text}");
            Cron::parse(cron, Dialect::Quartz).expect(cron);
        }
    }

    #[test]
    fn what_cron_cannot_say_is_a_rule_or_a_time() {
        assert_eq!(
            times("Mon *-05~07/1 03:00"),
            Times::Rrule(
                "FREQ=DAILY;BYMONTH=5;BYMONTHDAY=-7,-6,-5,-4,-3,-2,-1;BYDAY=MO;BYHOUR=3;BYMINUTE=0;BYSECOND=0".into()
            )
        );
        assert_eq!(
            times("Sat,Sun *-*-1..7 0/12:30"),
            Times::Rrule("FREQ=DAILY;BYMONTHDAY=1,2,3,4,5,6,7;BYDAY=SA,SU;BYHOUR=0,12;BYMINUTE=30;BYSECOND=0".into())
        );
        assert_eq!(times("2027-01-31 02:30"), Times::At("2027-01-31T02:30:00".into()));
    }

    #[test]
    fn zones_are_taken_from_the_end() {
        for (text, zone) in [
            ("daily", None),
            ("daily UTC", Some("UTC")),
            ("Mon 02:00 Europe/Berlin", Some("Europe/Berlin")),
        ] {
            let calendar = read(text).expect(text);
            assert_eq!(calendar.zone.as_ref().map(Zone::name), zone, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_said_is_refused_with_the_part() {
        for (text, words) in [
            ("*:*:0/0.5", "fractions"),
            ("25:00", "hour 25"),
            ("*-13-01", "month 13"),
            ("Fri..Mon 1:00", "goes backwards"),
            ("Mon 2027-*-1..7", "day of the week together"),
            ("1:2:3:4", "time of day"),
            ("sometimes", "day of the week"),
            ("daily Mars/Olympus", "Mars/Olympus"),
            ("@1395716396", "write the date"),
            ("12", "neither"),
            ("", "empty"),
            ("*-*-5..1", "backwards"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
