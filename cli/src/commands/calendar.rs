//! `systole calendar`: times that triggers leave out.

use super::job::{read_text, wire_fire, write_plan};
use crate::args::{CalendarAction, CalendarArgs, CalendarImportArgs, CalendarRmArgs, CalendarShowArgs, Format, Global};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, plain};
use crate::output::{self, Output, json, text};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use systole_proto::v1;
use systole_shared::clock::now_ms;
use systole_shared::job::definition::canonical;
use systole_shared::job::write;
use systole_shared::limits::ICS_BYTES_MAX;
use systole_shared::near::did_you_mean;
use systole_shared::time::format_utc;
use systole_shared::trigger::calendar::{Calendar, CalendarSpec, Exclusions};
use systole_shared::trigger::zone::Zone;

/// Stretches to come that are shown.
const STRETCHES: usize = 5;
/// How far they are looked for, ms.
const HORIZON_MS: i64 = 366 * 86_400_000;

const COLUMNS: [Column; 5] = [
    Column::cut("CALENDAR", 8),
    Column::whole("VERSION"),
    Column::whole("TRIGGERS"),
    Column::whole("CHANGED").droppable(1),
    Column::cut("BY", 6).droppable(2),
];

pub async fn run(global: &Global, args: &CalendarArgs) -> Result<u8, Failure> {
    match &args.action {
        CalendarAction::Ls => ls(global).await,
        CalendarAction::Show(args) => show(global, args).await,
        CalendarAction::Import(args) => import(global, args).await,
        CalendarAction::Rm(args) => rm(global, args).await,
    }
}

#[derive(Serialize)]
struct Line {
    name: String,
    version: String,
    used_by: Vec<String>,
    changed_at: Option<String>,
    changed_by: String,
    definition: Value,
    /// Of one that is shown: the next times that are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    next: Vec<Stretch>,
}

/// A time that is left out.
#[derive(Clone, Serialize)]
struct Stretch {
    from: String,
    /// Exclusive.
    until: String,
    #[serde(skip)]
    words: String,
}

fn line(calendar: &v1::Calendar, next: Vec<Stretch>) -> Line {
    Line {
        name: calendar.name.clone(),
        version: calendar.version.to_string(),
        used_by: calendar.used_by.clone(),
        changed_at: utc(calendar.changed_at_ms),
        changed_by: calendar.changed_by.clone(),
        definition: serde_json::from_str(&calendar.json).unwrap_or_default(),
        next,
    }
}

fn utc(ms: u64) -> Option<String> {
    i64::try_from(ms).ok().filter(|&ms| ms > 0).map(format_utc)
}

async fn ls(global: &Global) -> Result<u8, Failure> {
    let output = Output::new(global);
    let calendars = Client::new(global)?.calendars(Vec::new()).await?;
    let lines = || calendars.iter().map(|calendar| line(calendar, Vec::new()));
    match output.format {
        Format::Json => json::document(&BTreeMap::from([("calendars", lines().collect::<Vec<_>>())])),
        Format::Jsonl => lines().for_each(|line| json::object(&line)),
        Format::Id => calendars
            .iter()
            .for_each(|calendar| output::line(&text::clean(&calendar.name))),
        Format::Table | Format::Wide => {
            let row = |calendar: &v1::Calendar| {
                vec![
                    plain(calendar.name.as_str()),
                    plain(calendar.version.to_string()),
                    plain(calendar.used_by.len().to_string()),
                    plain(text::full_time(calendar.changed_at_ms)),
                    plain(calendar.changed_by.as_str()),
                ]
            };
            let rows: Vec<_> = calendars.iter().map(row).collect();
            table::print(&COLUMNS, &rows, &output);
        }
    }
    Ok(exit_code::OK)
}

/// The next times that a calendar leaves out, in its zone.
fn coming(calendar: &Exclusions, zone: &Zone, now_ms: i64) -> Vec<Stretch> {
    let mut found = Vec::new();
    let mut at = now_ms;
    while found.len() < STRETCHES && at < now_ms + HORIZON_MS {
        let (excluded, mut until) = calendar.stretch(at);
        if excluded {
            until = calendar.end_of_exclusion(at);
            let words = |ms: i64| wire_fire(zone, u64::try_from(ms).unwrap_or(0));
            found.push(Stretch {
                from: format_utc(at),
                until: format_utc(until),
                words: format!("{} until {}", words(at), words(until)),
            });
        }
        at = until.max(at + 1_000);
    }
    found
}

async fn show(global: &Global, args: &CalendarShowArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let found = client.calendars(vec![args.name.clone()]).await?;
    let Some(calendar) = found.into_iter().next() else {
        let known = client.calendars(Vec::new()).await?;
        let meant = did_you_mean(&args.name, known.iter().map(|calendar| calendar.name.as_str()));
        return Err(Failure::new(
            exit_code::NOT_FOUND,
            format!(
                "there is no calendar {:?}; {meant}`systole calendar ls` lists them",
                args.name
            ),
        ));
    };
    let spec: CalendarSpec = serde_json::from_str(&calendar.json).unwrap_or_default();
    let zone = spec
        .zone
        .as_deref()
        .and_then(|name| Zone::parse(name).ok())
        .unwrap_or_else(Zone::utc);
    let ics = (!calendar.ics.is_empty()).then_some(calendar.ics.as_str());
    let next = match Calendar::new(&spec, ics, &zone) {
        Ok(asked) => coming(&Exclusions(vec![Arc::new(asked)]), &zone, now_ms()),
        Err(error) => {
            output.note(&format!("its times cannot be told here: {error}"));
            Vec::new()
        }
    };
    let line = line(&calendar, next.clone());
    match output.format {
        Format::Json => json::document(&line),
        Format::Jsonl => json::object(&line),
        Format::Id => output::line(&text::clean(&calendar.name)),
        Format::Table | Format::Wide => {
            let used_by = match calendar.used_by.as_slice() {
                [] => "nothing".to_owned(),
                users => users.join(", "),
            };
            output::line(&format!("{:<12} {}", "used by", text::clean(&used_by)));
            output::line(&format!(
                "{:<12} {} by {}, version {}",
                "changed",
                text::full_time(calendar.changed_at_ms),
                text::clean(&calendar.changed_by),
                calendar.version
            ));
            for stretch in &next {
                output::line(&format!("{:<12} {}", "leaves out", stretch.words));
            }
            output::line("");
            for written in write::calendar(&spec).lines() {
                output::line(&text::clean(written));
            }
        }
    }
    Ok(exit_code::OK)
}

async fn import(global: &Global, args: &CalendarImportArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let ics = read_text(&args.file, ICS_BYTES_MAX).map_err(Failure::usage)?;
    if let Some(zone) = &args.zone {
        Zone::parse(zone)?;
    }
    let shown = if args.file == Path::new("-") {
        "stdin".to_owned()
    } else {
        args.file.display().to_string()
    };
    let spec = CalendarSpec {
        name: args.name.clone(),
        zone: args.zone.clone(),
        ics: Some(shown),
        ..CalendarSpec::default()
    };
    // Said here, so that what is wrong is said with the file's name.
    Calendar::new(&spec, Some(&ics), &Zone::utc())
        .map_err(|fault| Failure::usage(format!("{}: {fault}", args.file.display())))?;
    let value = serde_json::to_value(&spec).map_err(|error| Failure::unexpected(error.to_string()))?;
    let request = v1::ApplyRequest {
        calendars: vec![v1::Definition {
            json: canonical(&value),
            expected_version: match args.plan_version {
                None => 0,
                Some(0) => -1,
                Some(version) => i64::from(version),
            },
            ics,
            ..v1::Definition::default()
        }],
        dry_run: args.dry_run,
        reason: args.reason.clone().unwrap_or_default(),
        ..v1::ApplyRequest::default()
    };
    let results = Client::new(global)?.apply_jobs(request).await?;
    Ok(write_plan(&output, &results, args.dry_run))
}

async fn rm(global: &Global, args: &CalendarRmArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let request = v1::DeleteNamedRequest {
        names: args.names.clone(),
        reason: args.reason.clone().unwrap_or_default(),
    };
    let results = Client::new(global)?.delete_calendars(request).await?;
    Ok(write_deleted(&output, &args.names, &results))
}

#[derive(Serialize)]
struct Deleted {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// What was deleted, and why the rest was not.
pub fn write_deleted(output: &Output, names: &[String], results: &[v1::DeleteNamedResult]) -> u8 {
    let lines: Vec<Deleted> = names
        .iter()
        .zip(results)
        .map(|(name, result)| Deleted {
            name: name.clone(),
            error: result.error.as_ref().map(|error| Failure::from_item(error).to_string()),
        })
        .collect();
    let done = || lines.iter().filter(|line| line.error.is_none());
    match output.format {
        Format::Json => json::document(&BTreeMap::from([("results", &lines)])),
        Format::Jsonl => lines.iter().for_each(json::object),
        Format::Id => done().for_each(|line| output::line(&line.name)),
        Format::Table | Format::Wide => done().for_each(|line| output::line(&format!("{}: deleted", line.name))),
    }
    super::tell_errors(results.iter().filter_map(|result| result.error.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_times_that_are_left_out_are_told_in_the_zone_of_the_calendar() {
        let zone = Zone::parse("Europe/Berlin").expect("zone");
        let spec = CalendarSpec {
            name: "c".into(),
            zone: Some("Europe/Berlin".into()),
            dates: vec!["2026-12-24".into()],
            ..CalendarSpec::default()
        };
        let calendar = Calendar::new(&spec, None, &zone).expect("calendar");
        // Mon 2026-11-30 02:30 in Berlin.
        let found = coming(&Exclusions(vec![Arc::new(calendar)]), &zone, 1_796_002_200_000);
        let words: Vec<&str> = found.iter().map(|stretch| stretch.words.as_str()).collect();
        assert_eq!(words, ["Thu 2026-12-24 00:00 +01:00 until Fri 2026-12-25 00:00 +01:00"]);
    }
}
