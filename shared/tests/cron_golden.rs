//! 6,000 random expressions with the answers of others: Quartz 2.3.2 for the dialect `quartz`, and for `unix` an evaluator
//! that agrees with cronexpr and with a model of cronie. Each line is expression, zone, start, and the fires or a refusal.

use systole_shared::trigger::cron::{Cron, Dialect};
use systole_shared::trigger::dst::{Dst, next_after};
use systole_shared::trigger::zone::Zone;

fn check(file: &str, dialect: Dialect) -> (usize, usize) {
    let (mut lines, mut refused, mut wrong) = (0, 0, Vec::new());
    for line in file.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        lines += 1;
        let columns: Vec<&str> = line.split('\t').collect();
        let [text, zone, after, expected] = columns[..] else {
            panic!("not four columns: {line}");
        };
        let zone = Zone::parse(zone).expect("zone");
        let after = chrono::DateTime::parse_from_rfc3339(after).expect("time").timestamp();
        // What is no list of times is a refusal.
        let is_list = expected == "END" || expected.contains(':');
        let answer = match Cron::parse(text, dialect) {
            // An expression without any date is refused as what it is.
            Err(error) if error.message.contains("it never fires") => "END".to_owned(),
            Err(_) => "refused".to_owned(),
            Ok(cron) => {
                let wanted = expected.split(" ; ").count();
                let mut at = after;
                let mut fires = Vec::new();
                while fires.len() < wanted {
                    match next_after(&cron, &zone, Dst::default(), at) {
                        Some(next) => {
                            assert!(next > at, "{text}: {next} after {at}");
                            at = next;
                            fires.push(show(&zone, next));
                        }
                        None => {
                            fires.push("END".into());
                            break;
                        }
                    }
                }
                fires.join(" ; ")
            }
        };
        refused += usize::from(answer == "refused");
        let expected = if is_list { expected } else { "refused" };
        if answer != expected {
            wrong.push(format!("{text}\n  expected {expected}\n  got      {answer}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {lines}:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    (lines, refused)
}

/// `Sun 2026-11-29 18:12:54+00`, the form of the files.
fn show(zone: &Zone, at: i64) -> String {
    let wall = chrono::DateTime::from_timestamp(zone.wall(at), 0).expect("time");
    format!("{}{:+03}", wall.format("%a %Y-%m-%d %H:%M:%S"), zone.offset(at) / 3_600)
}

#[test]
fn three_thousand_crontab_expressions_fire_as_recorded() {
    let (lines, refused) = check(include_str!("cron/unix.tsv"), Dialect::Unix);
    assert_eq!((lines, refused), (3_000, 0));
}

#[test]
fn three_thousand_quartz_expressions_fire_as_quartz_or_are_refused() {
    let (lines, refused) = check(include_str!("cron/quartz.tsv"), Dialect::Quartz);
    assert_eq!(lines, 3_000);
    assert_eq!(refused, 191, "a step after a name is refused, as the file says");
}
