//! `systole cron`: when an expression fires, and what it means. Asks no scheduler.

use crate::args::{CronAction, CronArgs, CronNextArgs, Expression, Format, Global};
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, plain};
use crate::output::{self, Output, json};
use serde::Serialize;
use systole_shared::clock::now_ms;
use systole_shared::time::format_utc;
use systole_shared::trigger::cron::{Cron, Dialect};
use systole_shared::trigger::dst::{Dst, Odd, OddDay, next_after, odd, odd_days};
use systole_shared::trigger::words;
use systole_shared::trigger::zone::{Zone, database_version};

/// Odd days that are named beside the fires.
const ODD_DAYS: usize = 4;
/// Fires that an explanation ends with.
const EXPLAINED_FIRES: usize = 3;

const COLUMNS: [Column; 3] = [
    Column::whole("FIRE"),
    Column::whole("UTC").droppable(1),
    Column::cut("NOTE", 12),
];

pub fn run(global: &Global, args: &CronArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    match &args.action {
        CronAction::Next(args) => next(&output, args),
        CronAction::Explain(args) => explain(&output, &Schedule::new(&args.expression)?),
    }
}

/// An expression with all that decides on its fires.
struct Schedule {
    cron: Cron,
    zone: Zone,
    dst: Dst,
}

impl Schedule {
    fn new(expression: &Expression) -> Result<Self, Failure> {
        Ok(Self {
            cron: Cron::parse(&expression.text, expression.dialect.into())?,
            zone: match &expression.zone {
                Some(name) => Zone::parse(name)?,
                None => machine_zone(),
            },
            dst: Dst {
                gap: expression.dst_gap.into(),
                overlap: expression.dst_overlap.into(),
            },
        })
    }

    fn fires(&self, after: i64, number: usize) -> Vec<i64> {
        std::iter::successors(Some(after), |&at| next_after(&self.cron, &self.zone, self.dst, at))
            .skip(1)
            .take(number)
            .collect()
    }

    fn odd_days(&self, after: i64) -> Vec<OddDay> {
        odd_days(&self.cron, &self.zone, self.dst, after, ODD_DAYS)
    }
}

/// `TZ` where it names a zone, else what the machine is set to, else UTC. The zone is always shown.
pub fn machine_zone() -> Zone {
    let named = crate::paths::variable("TZ").and_then(|name| name.into_string().ok());
    named
        .and_then(|name| Zone::parse(name.trim_start_matches(':')).ok())
        .or_else(|| {
            iana_time_zone::get_timezone()
                .ok()
                .and_then(|name| Zone::parse(&name).ok())
        })
        .unwrap_or_else(Zone::utc)
}

#[derive(Serialize)]
struct Answer<'a> {
    cron: &'a str,
    dialect: &'a str,
    zone: &'a str,
    /// Release of the rules of zones.
    tzdata: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fields: Vec<Field>,
    fires: Vec<Fire>,
    odd_days: Vec<Day>,
}

#[derive(Serialize)]
struct Field {
    field: &'static str,
    meaning: String,
}

#[derive(Serialize)]
struct Fire {
    local: String,
    utc: String,
    abbreviation: String,
    /// `gap`, `first_pass`, `second_pass`, or nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    odd: Option<&'static str>,
    /// The local time that was meant, where a gap moved the fire.
    #[serde(skip_serializing_if = "Option::is_none")]
    meant: Option<String>,
}

#[derive(Serialize)]
struct Day {
    day: String,
    utc: String,
    kind: &'static str,
    note: String,
}

impl Schedule {
    fn fire(&self, at: i64) -> Fire {
        let found = odd(&self.cron, &self.zone, self.dst, at);
        Fire {
            local: words::rfc3339(&self.zone, at),
            utc: format_utc(at * 1_000),
            abbreviation: self.zone.abbreviation(at),
            odd: found.map(|odd| match odd {
                Odd::Shifted { .. } => "gap",
                Odd::FirstPass => "first_pass",
                Odd::SecondPass => "second_pass",
            }),
            meant: match found {
                Some(Odd::Shifted { meant }) => Some(words::clock(meant)),
                _ => None,
            },
        }
    }

    fn answer(&self, fields: Vec<Field>, fires: &[i64], odd_days: &[OddDay]) -> Answer<'_> {
        Answer {
            cron: self.cron.text(),
            dialect: self.cron.dialect().name(),
            zone: self.zone.name(),
            tzdata: database_version(),
            fields,
            fires: fires.iter().map(|&at| self.fire(at)).collect(),
            odd_days: odd_days
                .iter()
                .map(|odd| Day {
                    day: words::day(odd.wall),
                    utc: format_utc(odd.change.at * 1_000),
                    kind: if odd.change.is_gap() { "gap" } else { "overlap" },
                    note: words::odd_day(odd),
                })
                .collect(),
        }
    }

    fn row(&self, at: i64) -> Vec<table::Text> {
        let note = odd(&self.cron, &self.zone, self.dst, at).map(words::odd_fire);
        vec![
            plain(words::full(&self.zone, at)),
            plain(format_utc(at * 1_000).replace(".000", "")),
            plain(note.unwrap_or_default()),
        ]
    }
}

fn next(output: &Output, args: &CronNextArgs) -> Result<u8, Failure> {
    let schedule = Schedule::new(&args.expression)?;
    let after = args.after.unwrap_or_else(now_ms).div_euclid(1_000);
    let number = usize::try_from(args.number).unwrap_or(usize::MAX);
    let fires = schedule.fires(after, number);
    let odd_days = schedule.odd_days(after);
    match output.format {
        Format::Json => json::document(&schedule.answer(Vec::new(), &fires, &odd_days)),
        Format::Jsonl => fires.iter().for_each(|&at| json::object(&schedule.fire(at))),
        Format::Id => fires
            .iter()
            .for_each(|&at| output::line(&words::rfc3339(&schedule.zone, at))),
        Format::Table | Format::Wide => {
            let rows: Vec<_> = fires.iter().map(|&at| schedule.row(at)).collect();
            table::print(&COLUMNS, &rows, output);
            output.note(&about(&schedule));
            for odd in &odd_days {
                output.note(&format!("odd day {}", words::odd_day(odd)));
            }
        }
    }
    if fires.len() < number {
        output.note(&match fires.len() {
            0 => "no fire after that time".to_owned(),
            _ => "no further fire".to_owned(),
        });
    }
    Ok(if fires.is_empty() { exit_code::NO } else { exit_code::OK })
}

/// Whose rules and which zone the fires are by.
fn about(schedule: &Schedule) -> String {
    let dialect = match schedule.cron.dialect() {
        Dialect::Unix => "unix",
        Dialect::Quartz => "quartz",
    };
    format!("{dialect}, {} (tzdata {})", schedule.zone.name(), database_version())
}

fn explain(output: &Output, schedule: &Schedule) -> Result<u8, Failure> {
    let after = now_ms().div_euclid(1_000);
    let fires = schedule.fires(after, EXPLAINED_FIRES);
    let odd_days = schedule.odd_days(after);
    let fields: Vec<Field> = schedule
        .cron
        .explain()
        .into_iter()
        .map(|(field, meaning)| Field { field, meaning })
        .collect();
    match output.format {
        Format::Json => json::document(&schedule.answer(fields, &fires, &odd_days)),
        Format::Jsonl => fields.iter().for_each(json::object),
        Format::Id => fires
            .iter()
            .for_each(|&at| output::line(&words::rfc3339(&schedule.zone, at))),
        Format::Table | Format::Wide => {
            let columns = [Column::whole("FIELD"), Column::cut("MEANING", 20)];
            let mut rows: Vec<Vec<table::Text>> = fields
                .into_iter()
                .map(|field| vec![plain(field.field), plain(field.meaning)])
                .collect();
            for (index, &at) in fires.iter().enumerate() {
                rows.push(vec![
                    plain(if index == 0 { "next" } else { "" }),
                    plain(words::full(&schedule.zone, at)),
                ]);
            }
            table::print(&columns, &rows, output);
            output.note(&about(schedule));
            for odd in &odd_days {
                output.note(&format!("odd day {}", words::odd_day(odd)));
            }
        }
    }
    Ok(exit_code::OK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schedule(text: &str, zone: &str) -> Schedule {
        Schedule {
            cron: Cron::parse(text, Dialect::Unix).expect(text),
            zone: Zone::parse(zone).expect(zone),
            dst: Dst::default(),
        }
    }

    #[test]
    fn fires_around_a_gap_are_shown_with_offset_and_mark() {
        let schedule = schedule("30 2 * * *", "Europe/Berlin");
        // 2027-03-27T00:00:00Z
        let fires = schedule.fires(1_806_105_600, 3);
        let answer = serde_json::to_value(schedule.answer(Vec::new(), &fires, &schedule.odd_days(1_806_105_600)));
        let answer = answer.expect("json");
        assert_eq!(
            answer["fires"][1],
            json!({"local": "2027-03-28T03:00:00+02:00", "utc": "2027-03-28T01:00:00.000Z", "abbreviation": "CEST",
                   "odd": "gap", "meant": "02:30"})
        );
        assert_eq!(answer["fires"][0]["local"], "2027-03-27T02:30:00+01:00");
        assert_eq!(answer["fires"][0].get("odd"), None);
        assert_eq!(answer["odd_days"][0]["kind"], "gap");
        let table = table::render(&COLUMNS, &[schedule.row(fires[1])], Some(100), false);
        assert!(
            table.contains("Sun 2027-03-28 03:00:00 +02:00 CEST") && table.contains("02:30 does not exist"),
            "{table}"
        );
    }

    #[test]
    fn the_table_is_as_it_was() {
        let schedule = schedule("30 2 * * *", "Europe/Berlin");
        let fires = schedule.fires(1_806_105_600, 3).into_iter();
        let rows: Vec<_> = fires.map(|at| schedule.row(at)).collect();
        crate::golden::table("cron_next", &COLUMNS, &rows);
    }

    #[test]
    fn a_table_of_fires_fits_60_columns() {
        let schedule = schedule("30 2 * * *", "Europe/Berlin");
        let rows: Vec<_> = schedule
            .fires(1_806_105_600, 3)
            .into_iter()
            .map(|at| schedule.row(at))
            .collect();
        for line in table::render(&COLUMNS, &rows, Some(60), false).lines() {
            assert!(line.chars().count() <= 60, "{line}");
        }
    }
}
