//! Clock changes and fires in words, for people.

use super::dst::{Effect, Odd, OddDay};
use super::wall::Wall;
use super::zone::Zone;

/// An offset as in RFC 3339: `+02:00`; seconds are shown where a zone once had them.
pub fn offset(seconds: i32) -> String {
    let sign = if seconds < 0 { '-' } else { '+' };
    let (hours, minutes, rest) = (seconds.abs() / 3_600, seconds.abs() / 60 % 60, seconds.abs() % 60);
    if rest == 0 {
        format!("{sign}{hours:02}:{minutes:02}")
    } else {
        format!("{sign}{hours:02}:{minutes:02}:{rest:02}")
    }
}

fn format_wall(wall: Wall, pattern: &str) -> String {
    chrono::DateTime::from_timestamp(wall, 0).map_or_else(String::new, |time| time.format(pattern).to_string())
}

/// `Sun 2027-03-28`.
pub fn day(wall: Wall) -> String {
    format_wall(wall, "%a %Y-%m-%d")
}

/// `02:30`, or `02:30:15` where the seconds say something.
pub fn clock(wall: Wall) -> String {
    format_wall(wall, if wall.rem_euclid(60) == 0 { "%H:%M" } else { "%H:%M:%S" })
}

/// RFC 3339 with the zone's offset: `2027-03-28T03:00:00+02:00`.
pub fn rfc3339(zone: &Zone, at: i64) -> String {
    format!(
        "{}{}",
        format_wall(zone.wall(at), "%Y-%m-%dT%H:%M:%S"),
        offset(zone.offset(at))
    )
}

/// `Sun 2027-03-28 03:00:00 +02:00 CEST`.
pub fn full(zone: &Zone, at: i64) -> String {
    let wall = zone.wall(at);
    let abbreviation = zone.abbreviation(at);
    let offset = offset(zone.offset(at));
    // Zones without letters of their own have the offset in its place.
    let abbreviation = if abbreviation.starts_with(['+', '-']) {
        String::new()
    } else {
        format!(" {abbreviation}")
    };
    format!("{} {offset}{abbreviation}", format_wall(wall, "%a %Y-%m-%d %H:%M:%S"))
}

/// What is odd about a fire.
pub fn odd_fire(odd: Odd) -> String {
    match odd {
        Odd::Shifted { meant } => format!("{} does not exist; fires when the clock jumps", clock(meant)),
        Odd::FirstPass => "first of two passes".into(),
        Odd::SecondPass => "second of two passes".into(),
    }
}

/// `Sun 2027-03-28: the clock goes from 02:00 to 03:00; 02:30 does not exist and fires at 03:00 +02:00`.
pub fn odd_day(odd: &OddDay) -> String {
    let change = odd.change;
    let (before, after) = (
        change.at + i64::from(change.before),
        change.at + i64::from(change.after),
    );
    let wall = clock(odd.wall);
    let new = offset(change.after);
    let what = match odd.effect {
        Effect::Shifted => format!("{wall} does not exist and fires at {} {new}", clock(after)),
        Effect::NotFired => format!("{wall} does not exist and does not fire"),
        Effect::FirstOnly => format!("{wall} exists twice and fires once, at {}", offset(change.before)),
        Effect::SecondOnly => format!("{wall} exists twice and fires once, at {new}"),
        Effect::Twice => format!("{wall} exists twice and fires twice"),
    };
    // A change of date line leaves a day out or repeats it.
    let (from, to) = if before.div_euclid(86_400) == after.div_euclid(86_400) {
        (clock(before), clock(after))
    } else {
        (format_wall(before, "%m-%d %H:%M"), format_wall(after, "%m-%d %H:%M"))
    };
    format!("{}: the clock goes from {from} to {to}; {what}", day(odd.wall))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::cron::{Cron, Dialect};
    use crate::trigger::dst::{Dst, Gap, Overlap, odd_days};

    fn days(text: &str, zone: &str, dst: Dst) -> Vec<String> {
        let cron = Cron::parse(text, Dialect::Unix).expect(text);
        let zone = Zone::parse(zone).expect(zone);
        // From 2026-11-29.
        odd_days(&cron, &zone, dst, 1_795_900_000, 2)
            .iter()
            .map(odd_day)
            .collect()
    }

    #[test]
    fn the_next_odd_days_say_what_will_happen() {
        assert_eq!(
            days("30 2 * * *", "Europe/Berlin", Dst::default()),
            [
                "Sun 2027-03-28: the clock goes from 02:00 to 03:00; 02:30 does not exist and fires at 03:00 +02:00",
                "Sun 2027-10-31: the clock goes from 03:00 to 02:00; 02:30 exists twice and fires once, at +02:00",
            ]
        );
        let dst = Dst {
            gap: Gap::Skip,
            overlap: Overlap::Both,
        };
        assert_eq!(
            days("15 2 * * *", "Australia/Lord_Howe", dst),
            [
                "Sun 2027-10-03: the clock goes from 02:00 to 02:30; 02:15 does not exist and does not fire",
                "Sun 2028-10-01: the clock goes from 02:00 to 02:30; 02:15 does not exist and does not fire"
            ]
        );
        assert_eq!(days("0 12 * * *", "Europe/Berlin", Dst::default()), [""; 0]);
        assert_eq!(days("30 2 * * *", "UTC", Dst::default()), [""; 0]);
    }

    #[test]
    fn a_fire_is_shown_with_offset_and_zone() {
        let berlin = Zone::parse("Europe/Berlin").expect("zone");
        assert_eq!(full(&berlin, 1_806_195_600), "Sun 2027-03-28 03:00:00 +02:00 CEST");
        assert_eq!(rfc3339(&berlin, 1_806_195_600), "2027-03-28T03:00:00+02:00");
        let chatham = Zone::parse("Pacific/Chatham").expect("zone");
        assert_eq!(full(&chatham, 1_806_195_600), "Sun 2027-03-28 14:45:00 +13:45");
    }
}
