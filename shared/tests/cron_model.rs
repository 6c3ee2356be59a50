//! Cron schedules against slow models that share nothing with them: minute by minute around clock changes, with the
//! rules of zones read one by one, and the crate `cron` for plain expressions in UTC.
//!
//! `SYSTOLE_DST_ALL=1` checks every change of every zone from 2020 to 2040, which takes minutes in a release build.

#[path = "../../tests/src/random.rs"]
mod random;

use random::Random;
use std::collections::HashMap;
use std::str::FromStr as _;
use systole_shared::trigger::cron::{Cron, Dialect};
use systole_shared::trigger::dst::{Dst, Gap, Overlap, count, next_after, odd_days};
use systole_shared::trigger::wall::WallSchedule as _;
use systole_shared::trigger::zone::Zone;

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

/// An expression as the model knows it.
struct Model {
    text: String,
    dialect: Dialect,
    minutes: Vec<i64>,
    hours: Vec<i64>,
    weekdays: Vec<i64>,
    interval: bool,
}

/// `*`, `*/n`, or a list; with the values it means, and whether it begins with a star.
fn field(random: &mut Random, size: i64) -> (String, Vec<i64>, bool) {
    match random.below(6) {
        0 => ("*".into(), (0..size).collect(), true),
        1 => {
            // Quartz refuses a step that is larger than the field.
            let step = random.pick(if size == 60 {
                &[2, 7, 10, 15, 20, 30]
            } else {
                &[2, 3, 4, 5, 6, 12]
            });
            let values = (0..size).step_by(step as usize).collect();
            (format!("*/{step}"), values, true)
        }
        _ => {
            let mut values: Vec<i64> = (0..=random.below(3))
                .map(|_| random.below(size as u64) as i64)
                .collect();
            values.sort_unstable();
            values.dedup();
            let text: Vec<String> = values.iter().map(i64::to_string).collect();
            (text.join(","), values, false)
        }
    }
}

fn model(random: &mut Random) -> Model {
    let (minute, minutes, minute_star) = field(random, 60);
    // Most changes are in the small hours, so most expressions are there too.
    let (hour, hours, hour_star) = if random.below(2) == 0 {
        let hour = random.below(4) as i64;
        (hour.to_string(), vec![hour], false)
    } else {
        field(random, 24)
    };
    let weekdays: Vec<i64> = if random.below(3) == 0 {
        vec![0, 6]
    } else {
        (0..7).collect()
    };
    let dialect = random.pick(&[Dialect::Unix, Dialect::Quartz]);
    let all = weekdays.len() == 7;
    let text = match dialect {
        Dialect::Unix => format!("{minute} {hour} * * {}", if all { "*" } else { "6,7" }),
        Dialect::Quartz => format!("0 {minute} {hour} ? * {}", if all { "*" } else { "SAT,1" }),
    };
    Model {
        text,
        dialect,
        minutes,
        hours,
        weekdays,
        interval: minute_star || hour_star,
    }
}

impl Model {
    fn fits(&self, wall: i64) -> bool {
        // 1970-01-01 was a Thursday.
        let weekday = (wall.div_euclid(86_400) + 4).rem_euclid(7);
        self.minutes.contains(&(wall.div_euclid(60).rem_euclid(60)))
            && self.hours.contains(&(wall.div_euclid(3_600).rem_euclid(24)))
            && self.weekdays.contains(&weekday)
    }

    /// All fires in a window, whose minutes come with what the clock shows.
    fn fires(&self, minutes: &[(i64, i64)], dst: Dst) -> Vec<i64> {
        let mut passes: HashMap<i64, Vec<i64>> = HashMap::new();
        for &(at, wall) in minutes {
            passes.entry(wall).or_default().push(at);
        }
        let mut fires = Vec::new();
        let mut last_wall = minutes[0].1 - 60;
        for &(at, wall) in minutes {
            let missing = (last_wall + 60..wall).step_by(60);
            let passes = &passes[&wall];
            let own = self.fits(wall)
                && (self.interval
                    || match dst.overlap {
                        Overlap::First => passes[0] == at,
                        Overlap::Second => passes[passes.len() - 1] == at,
                        Overlap::Both => true,
                    });
            let moved = !self.interval && dst.gap == Gap::Shift && missing.into_iter().any(|wall| self.fits(wall));
            if own || moved {
                fires.push(at);
            }
            last_wall = wall;
        }
        fires
    }
}

const DAY: i64 = 86_400;

/// Checks a few expressions around one change of a zone.
fn check(zone: &Zone, rules: &jiff::tz::TimeZone, change: i64, expressions: usize, random: &mut Random) -> usize {
    let (from, until) = (change / 60 * 60 - 3 * DAY, change / 60 * 60 + 3 * DAY);
    let minutes: Vec<(i64, i64)> = (from..until)
        .step_by(60)
        .map(|at| {
            let instant = jiff::Timestamp::from_second(at).expect("instant");
            (at, at + i64::from(rules.to_offset(instant).seconds()))
        })
        .collect();
    let mut checked = 0;
    for _ in 0..expressions {
        let model = model(random);
        let cron = Cron::parse(&model.text, model.dialect).expect(&model.text);
        assert_eq!(cron.follows_the_clock(), model.interval, "{}", model.text);
        let dst = Dst {
            gap: random.pick(&[Gap::Shift, Gap::Skip]),
            overlap: random.pick(&[Overlap::First, Overlap::Second, Overlap::Both]),
        };
        let what = || format!("{} {} {dst:?} around {change}", model.text, zone.name());
        // The model knows only its window: both ends of it are left out.
        let (first, last) = (from + DAY, until - DAY);
        let expected: Vec<i64> = model
            .fires(&minutes, dst)
            .into_iter()
            .filter(|&at| at > first && at <= last)
            .collect();
        let mut at = first;
        let mut found = Vec::new();
        while let Some(next) = next_after(&cron, zone, dst, at).filter(|&next| next <= last) {
            assert!(next > at, "{}", what());
            found.push(next);
            at = next;
        }
        assert_eq!(found, expected, "{}", what());
        checked += found.len();
        // From anywhere it is the same answer: the next fire depends on nothing but the instant.
        for at in (first..last).step_by(13 * 60 + 7) {
            let expected = expected.iter().copied().find(|&fire| fire > at);
            let found = next_after(&cron, zone, dst, at).filter(|&next| next <= last);
            assert_eq!(found, expected, "{} after {at}", what());
        }
        for _ in 0..8 {
            let a = first + random.below(4 * DAY as u64) as i64;
            let b = a + random.below((last - a) as u64 + 1) as i64;
            let expected = expected.iter().filter(|&&fire| fire > a && fire <= b).count() as u64;
            assert_eq!(
                count(&cron, zone, dst, a, b, u64::MAX),
                expected,
                "{} ({a}, {b}]",
                what()
            );
            assert_eq!(
                count(&cron, zone, dst, a, b, 3),
                expected.min(3),
                "{} ({a}, {b}]",
                what()
            );
        }
        // The warning names this change exactly when times of the expression are missing or repeated.
        let touched = minutes.windows(2).any(|pair| {
            let ((before, at), wall) = ((pair[0].1 + 60, pair[1].0), pair[1].1);
            at == change
                && (before.min(wall)..before.max(wall))
                    .step_by(60)
                    .any(|wall| model.fits(wall))
        });
        let warned = odd_days(&cron, zone, dst, change - 1, 1)
            .first()
            .is_some_and(|day| day.change.at == change);
        assert_eq!(warned, touched, "{}", what());
    }
    checked
}

/// Changes of the offset of a zone, from the rules themselves.
fn changes(rules: &jiff::tz::TimeZone, from: i64, until: i64) -> Vec<i64> {
    let start = jiff::Timestamp::from_second(from).expect("instant");
    let mut offset = rules.to_offset(start);
    let mut found = Vec::new();
    for change in rules.following(start) {
        let at = change.timestamp().as_second();
        if at >= until {
            break;
        }
        if change.offset() != offset {
            found.push(at);
        }
        offset = change.offset();
    }
    found
}

const Y2000: i64 = 946_684_800;
const Y2020: i64 = 1_577_836_800;
const Y2040: i64 = 2_208_988_800;

#[test]
fn fires_around_clock_changes_are_those_of_a_minute_by_minute_model() {
    // Half an hour; a whole day left out; negative summer time; midnight; two hours; changes for Ramadan; 45 minutes.
    let zones = [
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Europe/Dublin",
        "Atlantic/Azores",
        "Asia/Beirut",
        "Africa/Cairo",
        "America/New_York",
        "Europe/Berlin",
        "America/Sao_Paulo",
        "America/Santiago",
        "Antarctica/Troll",
        "Africa/Casablanca",
        "Pacific/Chatham",
        "America/Vancouver",
        "Asia/Pyongyang",
        "America/Caracas",
    ];
    let database = jiff::tz::TimeZoneDatabase::bundled();
    let all = std::env::var_os("SYSTOLE_DST_ALL").is_some();
    let names: Vec<String> = if all {
        database.available().map(|name| name.as_str().to_owned()).collect()
    } else {
        zones.map(str::to_owned).to_vec()
    };
    let mut random = Random(20_261_129);
    let mut checked = 0;
    for name in names {
        let zone = Zone::parse(&name).expect("zone");
        let rules = database.get(&name).expect("rules");
        let mut changes = changes(&rules, if all { Y2020 } else { Y2000 }, Y2040);
        while !all && changes.len() > 8 {
            let index = random.below(changes.len() as u64) as usize;
            changes.swap_remove(index);
        }
        for change in changes {
            checked += check(&zone, &rules, change, if all { 4 } else { 5 }, &mut random);
        }
    }
    assert!(checked > 10_000, "only {checked} fires were compared");
    if all {
        println!("{checked} fires compared");
    }
}

#[test]
fn the_skipped_day_of_samoa_ends_no_schedule() {
    let zone = Zone::parse("Pacific/Apia").expect("zone");
    let rules = jiff::tz::TimeZoneDatabase::bundled()
        .get("Pacific/Apia")
        .expect("rules");
    // 30 December 2011 did not exist there.
    let change = changes(&rules, 1_325_000_000, 1_325_500_000)[0];
    let mut random = Random(7);
    assert!(check(&zone, &rules, change, 40, &mut random) > 500);
}

#[test]
fn plain_expressions_fire_as_the_crate_cron_says() {
    let mut random = Random(17);
    let list = |random: &mut Random, from: u64, size: u64| {
        let mut values: Vec<u64> = (0..=random.below(3)).map(|_| from + random.below(size)).collect();
        values.sort_unstable();
        values.dedup();
        values.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    };
    for _ in 0..2_000 {
        let time = format!(
            "{} {} {}",
            list(&mut random, 0, 60),
            list(&mut random, 0, 60),
            list(&mut random, 0, 24)
        );
        let month = list(&mut random, 1, 12);
        let days = match random.below(2) {
            0 => (list(&mut random, 1, 28), "?".to_owned()),
            _ => ("?".to_owned(), list(&mut random, 1, 7)),
        };
        let text = format!("{time} {} {month} {}", days.0, days.1);
        let ours = Cron::parse(&text, Dialect::Quartz).expect(&text);
        let theirs = cron::Schedule::from_str(&text).expect(&text);
        let start = 1_700_000_000 + random.below(1_000_000_000) as i64;
        let mut at = start;
        let expected = theirs
            .after(&chrono::DateTime::from_timestamp(start, 0).expect("time"))
            .take(5);
        for expected in expected {
            at = next_after(&ours, &Zone::utc(), Dst::default(), at).expect("a fire");
            assert_eq!(at, expected.timestamp(), "{text} after {start}");
        }
    }
}
