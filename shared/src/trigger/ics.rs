//! Events of an iCalendar file (RFC 5545) as times to leave out.
//!
//! Read are events with their start, end or duration, recurrence rule and exception dates. Cancelled events and
//! everything else in the file are passed over.

use super::rrule::Rrule;
use super::wall::{self, DAY, Wall, WallSchedule as _};
use super::zone::{HORIZON, Zone};
use crate::error::Invalid;
use crate::limits::{CALENDAR_ENTRIES_MAX, ICS_BYTES_MAX};
use chrono::{NaiveDate, NaiveDateTime};

/// From, and until (exclusive).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Day numbers.
    pub days: Vec<(i64, i64)>,
    /// Seconds since the epoch.
    pub instants: Vec<(i64, i64)>,
}

/// A date or a time as a property has it.
#[derive(Clone, Debug)]
struct Moment {
    wall: Wall,
    all_day: bool,
    zone: Zone,
}

#[derive(Debug, Default)]
struct Event {
    line: usize,
    start: Option<Moment>,
    end: Option<Moment>,
    duration: Option<i64>,
    rule: Option<String>,
    exceptions: Vec<Wall>,
    cancelled: bool,
}

fn refuse(line: usize, message: impl std::fmt::Display) -> Invalid {
    Invalid::new("ics", format!("line {line}: {message}"))
}

/// Reads a file; floating times are in `zone`.
pub fn parse(text: &str, zone: &Zone) -> Result<Imported, Invalid> {
    if text.len() > ICS_BYTES_MAX {
        return Err(Invalid::new(
            "ics",
            format!("the file is larger than {ICS_BYTES_MAX} bytes"),
        ));
    }
    let mut imported = Imported::default();
    let mut event: Option<Event> = None;
    // Components inside an event, such as alarms, have properties of the same names.
    let mut inside = 0;
    let mut open: Vec<Component> = Vec::new();
    let mut seen_calendar = false;
    for (number, line) in unfold(text) {
        let Some((head, value)) = split(&line) else {
            return Err(refuse(number, "it is no line of an iCalendar file (NAME:VALUE)"));
        };
        let mut params = head.split(';');
        let name = params.next().unwrap_or_default().to_ascii_uppercase();
        let params: Vec<&str> = params.collect();
        let word = value.trim().to_ascii_uppercase();
        match name.as_str() {
            "BEGIN" => begin(&mut open, number, &word)?,
            "END" => close(&mut open, number, &word)?,
            _ => {}
        }
        match (name.as_str(), word.as_str(), &mut event) {
            ("BEGIN", "VCALENDAR", None) => seen_calendar = true,
            ("BEGIN", "VEVENT", None) => {
                event = Some(Event {
                    line: number,
                    ..Event::default()
                });
            }
            ("END", "VEVENT", Some(_)) if inside == 0 => {
                add(event.take().unwrap_or_default(), &mut imported)?;
                if imported.days.len() + imported.instants.len() > CALENDAR_ENTRIES_MAX {
                    let message = format!("the file has more than {CALENDAR_ENTRIES_MAX} events, repetitions counted");
                    return Err(Invalid::new("ics", message));
                }
            }
            ("BEGIN", _, Some(_)) => inside += 1,
            ("END", _, Some(_)) => inside -= 1,
            (name, _, Some(event)) if inside == 0 => property(event, name, &params, value.trim(), number, zone)?,
            _ => {}
        }
    }
    if let Some((line, name)) = open.pop() {
        return Err(refuse(
            line,
            format!("BEGIN:{name} has no END:{name}, which is missing before the end of the file; {CUT}"),
        ));
    }
    if !seen_calendar {
        let message = format!("it is no whole iCalendar file: BEGIN:VCALENDAR is missing; {CUT}");
        return Err(Invalid::new("ics", message));
    }
    Ok(imported)
}

/// What to do about a file that is not whole. Events that are missing would be noticed on the day they are for.
const CUT: &str = "the file was cut or changed, so export or download it again";

/// The line of a BEGIN, and its name.
type Component = (usize, String);

fn begin(open: &mut Vec<Component>, line: usize, name: &str) -> Result<(), Invalid> {
    match open.last() {
        None if name != "VCALENDAR" => {
            let message = format!("BEGIN:{name} stands outside of BEGIN:VCALENDAR and END:VCALENDAR; {CUT}");
            return Err(refuse(line, message));
        }
        Some((begun, outer)) if name == "VCALENDAR" => {
            let message = format!("BEGIN:VCALENDAR stands within BEGIN:{outer} of line {begun}; {CUT}");
            return Err(refuse(line, message));
        }
        _ => {}
    }
    open.push((line, name.to_owned()));
    Ok(())
}

fn close(open: &mut Vec<Component>, line: usize, name: &str) -> Result<(), Invalid> {
    let message = match open.pop() {
        Some((_, begun)) if begun == name => return Ok(()),
        Some((begun, other)) => format!("END:{name} stands where END:{other} is missing, for line {begun}; {CUT}"),
        None => format!("END:{name} has no BEGIN:{name}; {CUT}"),
    };
    Err(refuse(line, message))
}

fn property(
    event: &mut Event,
    name: &str,
    params: &[&str],
    value: &str,
    line: usize,
    zone: &Zone,
) -> Result<(), Invalid> {
    match name {
        "DTSTART" => event.start = Some(moment(params, value, line, zone)?),
        "DTEND" => event.end = Some(moment(params, value, line, zone)?),
        "DURATION" => event.duration = Some(duration(value).ok_or_else(|| refuse(line, "the duration is not known"))?),
        "RRULE" => event.rule = Some(value.to_owned()),
        "EXDATE" => {
            for value in value.split(',') {
                let moment = moment(params, value, line, zone)?;
                // Compared with starts of the event, in its own zone.
                let start_zone = event.start.as_ref().map_or(zone, |start| &start.zone);
                event.exceptions.push(start_zone.wall(moment.zone.instant(moment.wall)));
            }
        }
        "STATUS" => event.cancelled = value.eq_ignore_ascii_case("CANCELLED"),
        _ => {}
    }
    Ok(())
}

/// One event, with its repetitions.
fn add(event: Event, imported: &mut Imported) -> Result<(), Invalid> {
    if event.cancelled {
        return Ok(());
    }
    let line = event.line;
    let start = event.start.ok_or_else(|| refuse(line, "the event has no DTSTART"))?;
    let length = match (&event.end, event.duration) {
        (Some(end), _) if start.all_day => end.wall - start.wall,
        (Some(end), _) => end.zone.instant(end.wall) - start.zone.instant(start.wall),
        (None, Some(duration)) => duration,
        // The RFC: a date is that day, a time has no length.
        (None, None) => {
            if start.all_day {
                DAY
            } else {
                0
            }
        }
    };
    if length < 0 {
        return Err(refuse(line, "the event ends before it starts"));
    }
    let mut push = |wall: Wall| {
        if event.exceptions.contains(&wall) || length == 0 {
            return;
        }
        if start.all_day {
            imported
                .days
                .push((wall.div_euclid(DAY), (wall + length + DAY - 1).div_euclid(DAY)));
        } else {
            let at = start.zone.instant(wall);
            imported.instants.push((at, at + length));
        }
    };
    let Some(rule) = event.rule else {
        push(start.wall);
        return Ok(());
    };
    let rule = Rrule::parse(&rule, start.wall, |at| start.zone.wall(at))
        .map_err(|error| refuse(line, format!("the recurrence rule is wrong: {}", error.message)))?;
    let mut from = start.wall;
    for count in 0.. {
        let Some(wall) = rule.next_wall(from).filter(|&wall| wall < HORIZON) else {
            break;
        };
        if count > CALENDAR_ENTRIES_MAX {
            return Err(refuse(
                line,
                format!("the event repeats more than {CALENDAR_ENTRIES_MAX} times; give it an UNTIL"),
            ));
        }
        push(wall);
        from = wall + 1;
    }
    Ok(())
}

/// Lines with their number; a line that begins with a blank goes on with the one before.
fn unfold(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        match (line.strip_prefix([' ', '\t']), lines.last_mut()) {
            (Some(rest), Some((_, last))) => last.push_str(rest),
            _ if line.is_empty() => {}
            _ => lines.push((index + 1, line.to_owned())),
        }
    }
    lines
}

/// Name with parameters, and value: at the first colon that is not in quotes.
fn split(line: &str) -> Option<(&str, &str)> {
    let mut quoted = false;
    for (index, c) in line.char_indices() {
        match c {
            '"' => quoted = !quoted,
            ':' if !quoted => return Some((&line[..index], &line[index + 1..])),
            _ => {}
        }
    }
    None
}

fn moment(params: &[&str], value: &str, line: usize, zone: &Zone) -> Result<Moment, Invalid> {
    if let Ok(date) = NaiveDate::parse_from_str(value, "%Y%m%d") {
        return Ok(Moment {
            wall: wall::day_number(date) * DAY,
            all_day: true,
            zone: Zone::utc(),
        });
    }
    let (text, utc) = match value.strip_suffix('Z') {
        Some(text) => (text, true),
        None => (value, false),
    };
    let time = NaiveDateTime::parse_from_str(text, "%Y%m%dT%H%M%S").map_err(|_| {
        refuse(
            line,
            format!("{value:?} is no date or time, such as 20261224 or 20261224T170000Z"),
        )
    })?;
    let named = params.iter().find_map(|param| {
        let (name, value) = param.split_once('=')?;
        name.eq_ignore_ascii_case("TZID").then(|| value.trim_matches('"'))
    });
    let zone = match named {
        _ if utc => Zone::utc(),
        Some(name) => Zone::parse(name).map_err(|error| refuse(line, error.message))?,
        None => zone.clone(),
    };
    Ok(Moment {
        wall: wall::of_date_time(time),
        all_day: false,
        zone,
    })
}

/// `P1D`, `PT1H30M`, `P2W`: seconds.
fn duration(text: &str) -> Option<i64> {
    let mut rest = text.strip_prefix('+').unwrap_or(text).strip_prefix('P')?;
    let mut seconds: i64 = 0;
    let mut time = false;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('T') {
            time = true;
            rest = after;
            continue;
        }
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: i64 = rest[..digits].parse().ok()?;
        let unit = match (rest.as_bytes()[digits], time) {
            (b'W', false) => 7 * DAY,
            (b'D', false) => DAY,
            (b'H', true) => 3_600,
            (b'M', true) => 60,
            (b'S', true) => 1,
            _ => return None,
        };
        seconds = seconds.checked_add(number.checked_mul(unit)?)?;
        rest = &rest[digits + 1..];
    }
    Some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::calendar::{Calendar, CalendarSpec, Exclusions};
    use std::sync::Arc;

    const FILE: &str = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\n\
        BEGIN:VEVENT\r\nSUMMARY:Christmas\r\nDTSTART;VALUE=DATE:20261225\r\nRRULE:FREQ=YEARLY;COUNT=3\r\nEND:VEVENT\r\n\
        BEGIN:VEVENT\r\nSUMMARY:Bridge\r\n  days\r\nDTSTART;VALUE=DATE:20261228\r\nDTEND;VALUE=DATE:20261231\r\n\
        BEGIN:VALARM\r\nTRIGGER:-PT15M\r\nDURATION:PT5M\r\nEND:VALARM\r\nEND:VEVENT\r\n\
        BEGIN:VEVENT\r\nDTSTART;TZID=\"America/New_York\":20261201T090000\r\nDURATION:PT1H30M\r\n\
        RRULE:FREQ=DAILY;UNTIL=20261203T235959Z\r\nEXDATE;TZID=America/New_York:20261202T090000\r\nEND:VEVENT\r\n\
        BEGIN:VEVENT\r\nDTSTART:20261210T000000Z\r\nDTEND:20261211T000000Z\r\nSTATUS:CANCELLED\r\nEND:VEVENT\r\n\
        END:VCALENDAR\r\n";

    #[test]
    fn events_of_a_file_are_left_out() {
        let spec = CalendarSpec {
            name: "holidays".into(),
            ..CalendarSpec::default()
        };
        let berlin = Zone::parse("Europe/Berlin").expect("zone");
        let calendar = Calendar::new(&spec, Some(FILE), &berlin).expect("calendar");
        let calendar = Exclusions(vec![Arc::new(calendar)]);
        for (at, excluded) in [
            ("2026-12-25T12:00:00+01:00", true),
            ("2028-12-25T00:00:00+01:00", true),
            ("2029-12-25T12:00:00+01:00", false),
            ("2026-12-30T23:59:00+01:00", true),
            ("2026-12-31T00:00:00+01:00", false),
            ("2026-12-01T09:00:00-05:00", true),
            ("2026-12-01T10:30:00-05:00", false),
            ("2026-12-02T09:30:00-05:00", false),
            ("2026-12-03T09:30:00-05:00", true),
            ("2026-12-04T09:30:00-05:00", false),
            ("2026-12-10T12:00:00Z", false),
        ] {
            let ms = chrono::DateTime::parse_from_rfc3339(at).expect(at).timestamp_millis();
            assert_eq!(calendar.excludes(ms), excluded, "{at}");
        }
    }

    #[test]
    fn a_file_that_was_cut_anywhere_is_refused() {
        let whole = FILE.trim_end();
        assert!(parse(whole, &Zone::utc()).is_ok());
        for end in 0..whole.len() {
            let error = parse(&whole[..end], &Zone::utc()).expect_err(&whole[..end]);
            assert_eq!(error.field, "ics");
        }
        let event = "BEGIN:VEVENT\nDTSTART:20261225\nEND:VEVENT";
        for (text, words) in [
            (
                format!("BEGIN:VCALENDAR\n{event}\n"),
                "line 1: BEGIN:VCALENDAR has no END:VCALENDAR",
            ),
            (
                format!("BEGIN:VCALENDAR\nBEGIN:VEVENT\nBEGIN:VCALENDAR\n{event}\nEND:VCALENDAR"),
                "line 3: BEGIN:VCALENDAR stands within BEGIN:VEVENT of line 2",
            ),
            (
                "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20261225\nEND:VCALENDAR".into(),
                "line 4: END:VCALENDAR stands where END:VEVENT is missing, for line 2",
            ),
            (
                format!("{event}\nBEGIN:VCALENDAR\nEND:VCALENDAR"),
                "line 1: BEGIN:VEVENT stands outside",
            ),
            ("BEGIN:VCALENDAR\nEND:VCALENDAR\nEND:VCALENDAR".into(), "line 3: END:"),
        ] {
            let error = parse(&text, &Zone::utc()).expect_err(&text);
            assert!(
                error.message.contains(words) && error.message.contains("download it again"),
                "{text}: {error}"
            );
        }
        // Several in one file are none within another.
        let two = format!("BEGIN:VCALENDAR\n{event}\nEND:VCALENDAR\nbegin:vcalendar\n{event}\nend:vcalendar\n");
        assert_eq!(parse(&two, &Zone::utc()).expect("whole").days.len(), 2);
    }

    #[test]
    fn a_broken_file_is_refused_with_its_line() {
        for (text, words) in [
            ("", "no whole"),
            ("<html>", "line 1"),
            (
                "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:soon\nEND:VEVENT\nEND:VCALENDAR",
                "line 3",
            ),
            ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VEVENT\nEND:VCALENDAR", "DTSTART"),
            ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20261225", "missing"),
            (
                "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20261225T100000Z\nDTEND:20261225T110000Z\nRRULE:FREQ=SECONDLY\nEND:VEVENT\nEND:VCALENDAR",
                "UNTIL",
            ),
            (
                "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;TZID=Mars:20261225T100000\nEND:VEVENT\nEND:VCALENDAR",
                "Mars",
            ),
        ] {
            let error = parse(text, &Zone::utc()).expect_err(text);
            assert!(error.field == "ics" && error.message.contains(words), "{text}: {error}");
        }
    }
}
