//! 1,192 random recurrence rules, whose occurrences are those of python-dateutil.

use systole_shared::trigger::rrule::Rrule;
use systole_shared::trigger::wall::{self, WallSchedule as _};

#[test]
fn recurrence_rules_occur_as_dateutil_says() {
    let mut lines = 0;
    let mut wrong = Vec::new();
    for line in include_str!("rrule/dateutil.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        lines += 1;
        let columns: Vec<&str> = line.split('\t').collect();
        let [text, start, expected] = columns[..] else {
            panic!("not three columns: {line}");
        };
        let start = chrono::NaiveDateTime::parse_from_str(start, "%Y-%m-%dT%H:%M:%S").expect("time");
        let start = wall::of_date_time(start);
        let rule = match Rrule::parse(text, start, |at| at) {
            Ok(rule) => rule,
            Err(error) => {
                wrong.push(format!("{text}: {error}"));
                continue;
            }
        };
        let mut from = start;
        let mut found = Vec::new();
        for _ in expected.split(" ; ") {
            let Some(at) = rule.next_wall(from) else { break };
            from = at + 1;
            found.push(
                chrono::DateTime::from_timestamp(at, 0)
                    .expect("time")
                    .format("%Y-%m-%dT%H:%M:%S")
                    .to_string(),
            );
        }
        if found.join(" ; ") != expected {
            wrong.push(format!("{line}\n  got {}", found.join(" ; ")));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {lines}:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(15)].join("\n")
    );
    assert_eq!(lines, 1_192);
}
