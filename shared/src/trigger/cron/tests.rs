use super::*;
use crate::trigger::dst::{Dst, next_after};
use crate::trigger::words::rfc3339;
use crate::trigger::zone::Zone;

fn fires(text: &str, dialect: Dialect, zone: &str, after: &str, n: usize) -> Vec<String> {
    let cron = Cron::parse(text, dialect).expect(text);
    let zone = Zone::parse(zone).expect(zone);
    let mut at = chrono::DateTime::parse_from_rfc3339(after).expect(after).timestamp();
    let mut found = Vec::new();
    while found.len() < n {
        match next_after(&cron, &zone, Dst::default(), at) {
            Some(next) => {
                at = next;
                found.push(rfc3339(&zone, next));
            }
            None => break,
        }
    }
    found
}

fn unix(text: &str, zone: &str, after: &str, n: usize) -> Vec<String> {
    fires(text, Dialect::Unix, zone, after, n)
}

#[test]
fn d01_the_repeated_hour_does_not_silence_a_frequent_trigger() {
    let zulu = |times: Vec<String>| {
        times
            .iter()
            .map(|time| chrono::DateTime::parse_from_rfc3339(time).expect("time").to_utc())
            .map(|time| time.format("%dT%H:%M").to_string())
            .collect::<Vec<_>>()
    };
    let after = "2025-10-26T00:40:00Z";
    assert_eq!(
        zulu(unix("*/15 * * * *", "Europe/London", after, 8)),
        [
            "26T00:45", "26T01:00", "26T01:15", "26T01:30", "26T01:45", "26T02:00", "26T02:15", "26T02:30"
        ]
    );
    assert_eq!(
        zulu(unix("0 * * * *", "Europe/London", after, 4)),
        ["26T01:00", "26T02:00", "26T03:00", "26T04:00"]
    );
    assert_eq!(
        zulu(unix("30 1 * * *", "Europe/London", "2025-10-25T12:00:00Z", 3)),
        ["26T00:30", "27T01:30", "28T01:30"]
    );
    // That local day has 25 hours: 100 quarters.
    let cron = Cron::parse("*/15 * * * *", Dialect::Unix).expect("cron");
    let zone = Zone::parse("Europe/London").expect("zone");
    let midnight = 1_761_433_200; // 2025-10-26T00:00:00+01:00
    let count = crate::trigger::dst::count(
        &cron,
        &zone,
        Dst::default(),
        midnight - 1,
        midnight + 25 * 3_600 - 1,
        u64::MAX,
    );
    assert_eq!(count, 100);
}

#[test]
fn d02_dates_that_cannot_exist_are_refused_and_rare_ones_are_found() {
    for text in ["0 0 31 4 *", "0 0 30 2 *", "0 0 31 2,4,6 *"] {
        let error = Cron::parse(text, Dialect::Unix).expect_err(text);
        assert!(error.message.contains("never fires"), "{error}");
    }
    for (text, after, expected) in [
        ("0 0 31 4,5 *", "2026-01-01T00:00:00Z", "2026-05-31T00:00:00+00:00"),
        // 2100 is no leap year.
        ("0 0 29 2 *", "2097-01-01T00:00:00Z", "2104-02-29T00:00:00+00:00"),
        ("0 0 30 2 1", "2026-01-01T00:00:00Z", "2026-02-02T00:00:00+00:00"),
        ("0 0 29 2 0", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00+00:00"),
    ] {
        assert_eq!(unix(text, "UTC", after, 1), [expected], "{text}");
    }
}

#[test]
fn d03_both_day_fields_restricted_means_either() {
    for (text, year, month, expected) in [
        ("0 9 1-31 * 1", 2026, 5, 31),
        ("0 9 1 * 0-7", 2026, 5, 31),
        // A field that begins with * does not restrict: Mondays, and Mondays that are odd days.
        ("0 9 * * 1", 2026, 5, 4),
        ("0 9 */2 * 1", 2026, 5, 2),
    ] {
        let cron = Cron::parse(text, Dialect::Unix).expect(text);
        assert_eq!(cron.days.in_month(year, month).count_ones(), expected, "{text}");
    }
    let cron = Cron::parse("0 0 13 * 5", Dialect::Unix).expect("cron");
    let days: u32 = (1..=12).map(|month| cron.days.in_month(2026, month).count_ones()).sum();
    assert_eq!(days, 61);
}

#[test]
fn d27_what_is_accepted_fires_as_people_expect() {
    for text in [
        "0 9 * * 7",
        "0 9 * * 6-7",
        "0\t9   *  * 1-5",
        "08 09 * * *",
        "0 9 * JAN,jul mon",
        "@daily",
        "@Midnight",
        "@annually",
        "*/90 * * * *",
        "0 0 * * 5L",
        "0 0 * * MON#2",
        "0 0 LW * *",
        "0 0 L-3 * *",
        "0 0 15W * *",
    ] {
        assert!(Cron::parse(text, Dialect::Unix).is_ok(), "{text}");
    }
    assert_eq!(
        unix("0 9 * * 6-7", "UTC", "2026-05-02T12:00:00Z", 1),
        ["2026-05-03T09:00:00+00:00"]
    );
    assert_eq!(
        unix("0 0 * * 5L", "UTC", "2026-11-01T00:00:00Z", 2),
        ["2026-11-27T00:00:00+00:00", "2026-12-25T00:00:00+00:00"]
    );
}

#[test]
fn what_is_refused_names_the_field_and_the_remedy() {
    let unix: &[(&str, &[&str])] = &[
        ("", &["empty", "30 2 * * *"]),
        ("   ", &["empty"]),
        ("0 0 * *", &["4 fields", "5"]),
        ("60 * * * *", &["minute 60 is outside 0–59"]),
        ("0 24 * * *", &["hour 24 is outside 0–23"]),
        ("*/0 * * * *", &["minute", "1 or more"]),
        ("5-1 * * * *", &["minute", "backwards", "5-59,0-1"]),
        ("0 22-2 * * *", &["hour", "22-23,0-2"]),
        ("0 0 * * FRI-MON", &["day of week", "5-6,0-1"]),
        ("0 0 * * FRI-SUN", &["day of week", "5-7"]),
        ("TQQT * * * *", &["minute", "TQQT", "not a number"]),
        ("0 9 * * 1-8", &["day of week 8 is outside 0–7 (0 and 7 are Sunday)"]),
        ("0 0 1 MON *", &["month", "day of the week", "move it"]),
        ("0 0 JAN * *", &["day of month", "is a month"]),
        ("1,,2 * * * *", &["minute", "empty item"]),
        ("0/10 * * * *", &["minute", "0-59/10"]),
        ("0 0 * * 1#6", &["day of week", "1–5"]),
        ("0 0 * * L", &["day of week", "5L"]),
        ("0 0 ? * 1", &["?", "write *"]),
        ("0 0 L-31 * *", &["day of month", "L-3"]),
        ("0 0 5#2 * *", &["day of month", "#"]),
        ("0 0 32W * *", &["day of month 32 is outside 1–31"]),
        ("*/10 * * * * *", &["6 fields", "quartz"]),
        ("0 0 1 1 * 2099", &["6 fields"]),
        ("@reboot", &["not a time"]),
        ("@often", &["@hourly"]),
        ("* * * * ${DAY}", &["day of week"]),
        ("-1 * * * *", &["minute", "missing"]),
        ("1- * * * *", &["minute", "missing"]),
        ("*/x * * * *", &["minute", "step"]),
        ("99999999999999999999 * * * *", &["minute", "outside"]),
    ];
    let quartz: &[(&str, &[&str])] = &[
        ("0 0 12 13 * FRI", &["cannot combine", "?"]),
        ("0 0 12 ? * ?", &["both"]),
        ("0 0 12 * * *", &["exactly one", "day of week"]),
        ("0 0 12 * * FRI", &["exactly one", "day of month"]),
        ("0 0 9 * *", &["5 fields", "unix"]),
        ("0 0 12 ? * 0", &["day of week 0 is outside 1–7 (1 is Sunday"]),
        ("0 0 12 ? JAN/5 2", &["month", "name"]),
        ("0 0 12 ? * MON-FRI/2", &["day of week", "name"]),
        ("0/90 0 12 * * ?", &["second", "larger"]),
        ("? 0 12 * * ?", &["second", "write *"]),
        ("0 0 12 1 1 ? 2030-2026", &["year", "backwards"]),
        ("0 0 12 1 1 ? 1969", &["year 1969"]),
        ("0 0 12 30 2 ?", &["never fires"]),
        ("@daily", &["unix"]),
    ];
    for (dialect, cases) in [(Dialect::Unix, unix), (Dialect::Quartz, quartz)] {
        for (text, expected) in cases {
            let error = Cron::parse(text, dialect).expect_err(text);
            assert_eq!(error.field, "cron");
            for words in *expected {
                assert!(error.message.contains(words), "{text}: {error}");
            }
        }
    }
    let long = Cron::parse(&"1,".repeat(5_000), Dialect::Unix).expect_err("long");
    assert!(long.message.len() < 500, "{long}");
}

#[test]
fn quartz_ranges_go_around_and_steps_start_at_their_value() {
    let quartz = |text: &str, n| fires(text, Dialect::Quartz, "UTC", "2026-11-29T10:07:13Z", n);
    assert_eq!(
        quartz("0 0 22-2 * * ?", 3),
        [
            "2026-11-29T22:00:00+00:00",
            "2026-11-29T23:00:00+00:00",
            "2026-11-30T00:00:00+00:00"
        ]
    );
    assert_eq!(
        quartz("0 0 12 ? NOV-FEB MON#1", 2),
        ["2026-12-07T12:00:00+00:00", "2027-01-04T12:00:00+00:00"]
    );
    assert_eq!(
        quartz("0 0 12 15,L * ?", 2),
        ["2026-11-30T12:00:00+00:00", "2026-12-15T12:00:00+00:00"]
    );
    assert_eq!(
        quartz("0 0 12 ? * L", 1),
        ["2026-12-05T12:00:00+00:00"],
        "L alone is Saturday"
    );
    assert_eq!(
        quartz("0 0 12 1 1 ? 2099", 2),
        ["2099-01-01T12:00:00+00:00"],
        "and then never"
    );
}

/// What crates and other schedulers get wrong; named after the table in which they were compared.
#[test]
fn clock_changes_as_cronie_has_them() {
    for (text, zone, after, expected) in [
        (
            "30 2 * * *",
            "America/New_York",
            "2027-03-13T12:00:00Z",
            "2027-03-14T03:00:00-04:00 2027-03-15T02:30:00-04:00",
        ),
        (
            "*/30 2 * * *",
            "America/New_York",
            "2027-03-13T12:00:00Z",
            "2027-03-15T02:00:00-04:00 2027-03-15T02:30:00-04:00",
        ),
        (
            "0,30 2 * * *",
            "America/New_York",
            "2027-03-13T12:00:00Z",
            "2027-03-14T03:00:00-04:00 2027-03-15T02:00:00-04:00",
        ),
        (
            "0 1,2 * * *",
            "America/New_York",
            "2026-11-01T00:00:00-04:00",
            "2026-11-01T01:00:00-04:00 2026-11-01T02:00:00-05:00",
        ),
        (
            "*/30 1 * * *",
            "America/New_York",
            "2026-11-01T01:30:00-04:00",
            "2026-11-01T01:00:00-05:00 2026-11-01T01:30:00-05:00",
        ),
        (
            "15 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-03T12:00:00Z",
            "2026-10-04T02:30:00+11:00 2026-10-05T02:15:00+11:00",
        ),
        (
            "0 0 * * *",
            "America/Sao_Paulo",
            "2018-11-03T12:00:00Z",
            "2018-11-04T01:00:00-02:00 2018-11-05T00:00:00-02:00",
        ),
        (
            "0 0 * * *",
            "Pacific/Apia",
            "2011-12-30T00:00:00Z",
            "2011-12-31T00:00:00+14:00 2012-01-01T00:00:00+14:00",
        ),
        (
            "30 0 * * *",
            "Asia/Beirut",
            "2027-03-27T12:00:00Z",
            "2027-03-28T01:00:00+03:00 2027-03-29T00:30:00+03:00",
        ),
        (
            "30 2 14 3 *",
            "America/New_York",
            "2027-01-01T00:00:00Z",
            "2027-03-14T03:00:00-04:00 2028-03-14T02:30:00-04:00",
        ),
    ] {
        assert_eq!(unix(text, zone, after, 2).join(" "), expected, "{text} {zone}");
    }
}
