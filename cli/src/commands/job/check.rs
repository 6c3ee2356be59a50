//! `systole job check`: whether files are right, and what they would do.

use super::files;
use super::words::{fire_in_words, zone_of};
use crate::args::{Format, Global, JobCheckArgs};
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json};
use serde::Serialize;
use systole_shared::clock::now_ms;
use systole_shared::job::file::{Checked, CheckedJob, Set};
use systole_shared::trigger::definition::TriggerSpec;
use systole_shared::trigger::plan::Trigger;
use systole_shared::trigger::schedule::{Schedule, Times as _};
use systole_shared::trigger::words;

/// Fires that are foretold of each trigger.
const FIRES: usize = 3;
/// Odd days that are named of each trigger.
const ODD_DAYS: usize = 2;

const COLUMNS: [Column; 3] = [
    Column::cut("JOB", 8),
    Column::cut("TRIGGER", 8),
    Column::cut("NEXT FIRES", 20),
];

#[derive(Serialize)]
struct Answer {
    errors: Vec<ErrorLine>,
    jobs: Vec<JobLine>,
}

#[derive(Serialize)]
struct ErrorLine {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    /// What it is about: `job nightly-backup`.
    about: String,
    field: String,
    message: String,
}

#[derive(Serialize)]
struct JobLine {
    name: String,
    file: String,
    fingerprint: String,
    triggers: Vec<TriggerLine>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct TriggerLine {
    name: String,
    kind: &'static str,
    zone: String,
    /// RFC 3339, in the zone of the trigger.
    next: Vec<String>,
    odd_days: Vec<String>,
    /// In words.
    #[serde(skip)]
    shown: String,
    /// It, or its job: it fires when somebody has resumed it.
    #[serde(skip)]
    paused: bool,
}

/// When a trigger fires next.
pub(super) fn fires(trigger: &Trigger, now_ms: i64) -> Vec<i64> {
    // Of a trigger that waits for a run only the first is known.
    let number = if matches!(trigger.schedule, Schedule::FixedDelay { .. }) {
        1
    } else {
        FIRES
    };
    let next = |&at: &i64| trigger.next_after(at).ok().flatten();
    std::iter::successors(next(&now_ms), next).take(number).collect()
}

fn describe(spec: &TriggerSpec, trigger: &Trigger, of_paused_job: bool, now_ms: i64) -> TriggerLine {
    let zone = zone_of(spec);
    let next = fires(trigger, now_ms);
    let shown = match &trigger.schedule {
        Schedule::Manual => "when asked for".to_owned(),
        Schedule::After { job, outcome } => {
            let outcome = serde_json::to_value(outcome).unwrap_or_default();
            format!("after {job} is {}", outcome.as_str().unwrap_or_default())
        }
        _ if next.is_empty() => "never".to_owned(),
        _ => next
            .iter()
            .map(|&at| fire_in_words(&zone, at))
            .collect::<Vec<_>>()
            .join(", "),
    };
    let odd = trigger.schedule.odd_days(now_ms, ODD_DAYS);
    TriggerLine {
        name: spec.name.clone(),
        kind: spec.kind().unwrap_or_default(),
        zone: zone.name().to_owned(),
        next: next
            .iter()
            .map(|at| words::rfc3339(&zone, at.div_euclid(1_000)))
            .collect(),
        odd_days: odd.iter().map(words::odd_day).collect(),
        shown,
        paused: of_paused_job || spec.paused,
    }
}

fn job_line(set: &Set, checked: &CheckedJob, now_ms: i64) -> JobLine {
    let triggers = checked.job.triggers.iter().filter_map(|spec| {
        let key = format!("{}/{}", checked.job.name, spec.name);
        let trigger = checked.triggers.iter().find(|trigger| trigger.key == key)?;
        Some(describe(spec, trigger, checked.job.paused, now_ms))
    });
    JobLine {
        name: checked.job.name.clone(),
        file: set.files[checked.file].0.clone(),
        fingerprint: checked.spec.fingerprint(),
        triggers: triggers.collect(),
        warnings: checked.warnings.iter().map(ToString::to_string).collect(),
    }
}

fn answer(set: &Set, checked: &Checked, now_ms: i64) -> Answer {
    let errors = checked.faults.iter().map(|(file, fault)| ErrorLine {
        file: set.files[*file].0.clone(),
        line: fault.place.map(|place| place.line),
        column: fault.place.map(|place| place.column),
        about: fault.subject.clone(),
        field: fault.field.clone(),
        message: fault.message.clone(),
    });
    Answer {
        errors: errors.collect(),
        jobs: checked.jobs.iter().map(|job| job_line(set, job, now_ms)).collect(),
    }
}

fn rows(job: &JobLine) -> Vec<Vec<Text>> {
    if job.triggers.is_empty() {
        return vec![vec![plain(&job.name), plain(""), plain("no trigger: when asked for")]];
    }
    let row = |(index, trigger): (usize, &TriggerLine)| {
        let name = if index == 0 { job.name.as_str() } else { "" };
        let paused = if trigger.paused { " (paused)" } else { "" };
        vec![
            plain(name),
            plain(format!("{}{paused}", trigger.name)),
            plain(&trigger.shown),
        ]
    };
    job.triggers.iter().enumerate().map(row).collect()
}

/// Says what is wrong on stderr, whatever the format.
pub(super) fn tell_faults(set: &Set, checked: &Checked) {
    for (file, fault) in &checked.faults {
        output::error(&set.say(*file, fault));
    }
}

pub fn run(global: &Global, args: &JobCheckArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let set = files::read(&args.paths)?;
    let now_ms = now_ms();
    let checked = files::check(&set, now_ms, true);
    let answer = answer(&set, &checked, now_ms);
    match output.format {
        Format::Json => json::document(&answer),
        Format::Jsonl => answer.jobs.iter().for_each(json::object),
        Format::Id => answer.jobs.iter().for_each(|job| output::line(&job.name)),
        Format::Table | Format::Wide => {
            if !answer.jobs.is_empty() {
                let rows: Vec<_> = answer.jobs.iter().flat_map(rows).collect();
                table::print(&COLUMNS, &rows, &output);
            }
        }
    }
    for job in &answer.jobs {
        for trigger in &job.triggers {
            for day in &trigger.odd_days {
                output.note(&format!("{}/{}: odd day {day}", job.name, trigger.name));
            }
        }
        for warning in &job.warnings {
            output.note(&format!("warning: {}: {}: {warning}", job.file, job.name));
        }
    }
    tell_faults(&set, &checked);
    let (files, jobs, errors) = (set.files.len(), checked.jobs.len(), checked.faults.len());
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    if errors == 0 {
        output.note(&format!(
            "{} in {}: all right",
            count(jobs, "job"),
            count(files, "file")
        ));
        return Ok(exit_code::OK);
    }
    output.note(&format!(
        "{} in {}; {} all right",
        count(errors, "error"),
        count(files, "file"),
        count(jobs, "job")
    ));
    Ok(exit_code::USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_shared::job::file::{JobFile, Syntax};

    /// 2026-11-29T00:00:00Z.
    const NOW: i64 = 1_795_910_400_000;

    fn check(text: &str) -> Answer {
        let mut set = Set::default();
        set.add("a.toml", JobFile::read(text, Syntax::Toml));
        let checked = files::check(&set, NOW, true);
        answer(&set, &checked, NOW)
    }

    #[test]
    fn what_will_happen_is_said_of_every_trigger() {
        let answer = check(
            "[[job]]\nname = \"backup\"\ncommand = [\"x\"]\n\
             [[job.trigger]]\ncron = \"30 2 * * *\"\nzone = \"Europe/Berlin\"\n\
             [[job.trigger]]\nmanual = true\n\
             [[job.trigger]]\nfixed_delay = \"10m\"\n\
             [[job]]\nname = \"load\"\ncommand = [\"x\"]\ntrigger = [{ after = { job = \"backup\", outcome = \"finished\" } }]\n",
        );
        assert!(answer.errors.is_empty());
        let shown: Vec<_> = answer
            .jobs
            .iter()
            .flat_map(|job| &job.triggers)
            .map(|trigger| trigger.shown.as_str())
            .collect();
        assert_eq!(
            shown,
            [
                "Sun 2026-11-29 02:30 +01:00, Mon 2026-11-30 02:30 +01:00, Tue 2026-12-01 02:30 +01:00",
                "when asked for",
                "Sun 2026-11-29 00:10 +00:00",
                "after backup is finished",
            ]
        );
        assert!(answer.jobs[0].triggers[0].odd_days[0].contains("02:30 does not exist"));
        let table: Vec<_> = answer.jobs.iter().flat_map(rows).collect();
        for line in table::render(&COLUMNS, &table, Some(60), false).lines() {
            assert!(line.chars().count() <= 60, "{line}");
        }
    }

    #[test]
    fn what_is_paused_is_marked() {
        let answer = check(
            "[[job]]\nname = \"a\"\npaused = true\ncommand = [\"x\"]\ntrigger = [{ cron = \"0 2 * * *\" }]\n\
             [[job]]\nname = \"b\"\ncommand = [\"x\"]\n\
             trigger = [{ cron = \"0 2 * * *\", paused = true }, { name = \"c\", cron = \"0 3 * * *\" }]\n",
        );
        let names: Vec<String> = answer.jobs.iter().flat_map(rows).map(|row| row[1].0.clone()).collect();
        assert_eq!(names, ["cron (paused)", "cron (paused)", "c"]);
    }

    #[test]
    fn errors_are_data_too() {
        let answer = check(
            "[[job]]\nname = \"a\"\ncommand = [\"x\"]\ntimout = \"5s\"\n[[job]]\nname = \"b\"\ncommand = [\"x\"]\n",
        );
        let value = serde_json::to_value(&answer).expect("json");
        assert_eq!(
            value["errors"],
            serde_json::json!([{"file": "a.toml", "line": 4, "column": 1, "about": "job a", "field": "timout",
                                "message": "is no field here. Did you mean \"timeout\"?"}])
        );
        assert_eq!(value["jobs"][0]["name"], "b");
    }

    #[test]
    fn the_table_is_as_it_was() {
        let answer = check(
            "[[job]]\nname = \"nightly-backup\"\ncommand = [\"x\"]\n\
             [[job.trigger]]\ncron = \"30 2 * * *\"\nzone = \"Europe/Berlin\"\n\
             [[job.trigger]]\nmanual = true\n\
             [[job]]\nname = \"load\"\ncommand = [\"x\"]\n",
        );
        let rows: Vec<_> = answer.jobs.iter().flat_map(rows).collect();
        crate::golden::table("job_check", &COLUMNS, &rows);
    }
}
