//! `systole job apply`: from files into the scheduler, with a plan.

use super::words::{self, fire_in_words};
use super::{check, files};
use crate::args::{Format, Global, JobApplyArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use serde::Serialize;
use std::path::Path;
use systole_proto::v1::{self, Applied};
use systole_shared::clock::now_ms;
use systole_shared::job::JobSpec;
use systole_shared::job::diff::{Change, diff};
use systole_shared::job::file::{Checked, Set};

/// Definitions of one kind in one call.
const DEFINITIONS_MAX: usize = 1_000;
/// Fires that a plan shows of each side.
const FIRES: usize = 2;

#[derive(Serialize)]
struct Answer {
    dry_run: bool,
    results: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    kind: String,
    name: String,
    applied: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<ChangeLine>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    next_before: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    next: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct ChangeLine {
    field: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
}

impl From<Change> for ChangeLine {
    fn from(change: Change) -> Self {
        Self {
            field: change.field,
            before: change.before,
            after: change.after,
        }
    }
}

fn applied_of(result: &v1::ApplyResult) -> Applied {
    Applied::try_from(result.applied).unwrap_or(Applied::Unspecified)
}

fn applied_name(applied: Applied) -> &'static str {
    match applied {
        Applied::Unspecified => "refused",
        Applied::Created => "created",
        Applied::Changed => "changed",
        Applied::Unchanged => "unchanged",
        Applied::Overridden => "overridden",
        Applied::Orphaned => "orphaned",
        Applied::Deleted => "deleted",
        Applied::Outdated => "outdated",
    }
}

/// Both sides of a job as definitions; those of calendars and groups are compared as JSON.
fn changes(result: &v1::ApplyResult) -> Vec<Change> {
    if result.before_json.is_empty() || result.after_json.is_empty() || result.before_json == result.after_json {
        return Vec::new();
    }
    let sides = [&result.before_json, &result.after_json].map(|json| serde_json::from_str::<JobSpec>(json));
    match sides {
        [Ok(before), Ok(after)] if result.kind == "job" => diff(&before, &after),
        _ => vec![Change {
            field: result.kind.clone(),
            before: Some(result.before_json.clone()),
            after: Some(result.after_json.clone()),
        }],
    }
}

/// The soonest fires, each in the zone of its trigger.
fn fires(coming: &[v1::Coming], json: &str) -> Vec<String> {
    let spec = serde_json::from_str::<JobSpec>(json).unwrap_or_default();
    let one = |coming: &v1::Coming| {
        let zone = words::trigger_zone(&spec, &coming.trigger);
        fire_in_words(&zone, i64::try_from(coming.scheduled_at_ms).unwrap_or(0))
    };
    coming.iter().map(one).collect()
}

fn line(result: &v1::ApplyResult) -> Line {
    Line {
        kind: result.kind.clone(),
        name: result.name.clone(),
        applied: applied_name(applied_of(result)),
        error: result.error.as_ref().map(|error| Failure::from_item(error).to_string()),
        version: (result.version != 0).then(|| result.version.to_string()),
        changes: changes(result).into_iter().map(ChangeLine::from).collect(),
        next_before: fires(&result.next_before, &result.before_json),
        next: fires(&result.next, &result.after_json),
        warnings: result.warnings.clone(),
    }
}

fn first_fires(fires: &[String]) -> String {
    match fires {
        [] => "none".into(),
        fires => fires.iter().take(FIRES).cloned().collect::<Vec<_>>().join(", "),
    }
}

/// One result of the plan, in words. Unchanged ones have none.
fn lines(line: &Line, dry_run: bool) -> Vec<String> {
    let name = match line.kind.as_str() {
        "job" => line.name.clone(),
        kind => format!("{} ({kind})", line.name),
    };
    let is_job = line.kind == "job";
    let mut out = Vec::new();
    match line.applied {
        "created" if is_job => out.push(format!("+ {name}  new; next fires {}", first_fires(&line.next))),
        "created" => out.push(format!("+ {name}  new")),
        "changed" => {
            out.push(format!("~ {name}"));
            for change in &line.changes {
                let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "(not set)".into());
                out.push(format!("    {}  {} → {}", change.field, side(&change.before), side(&change.after)));
            }
            if is_job && line.next != line.next_before {
                let (before, after) = (first_fires(&line.next_before), first_fires(&line.next));
                out.push(format!("    next fires  {before} → {after}"));
            }
        }
        "overridden" => out.push(format!(
            "! {name}  was changed by hand; the file did not change since, so that the change stays. Give it up: --restore"
        )),
        "orphaned" => out.push(format!("- {name}  is in no file any more; it keeps firing unless you add --prune")),
        "deleted" if dry_run => out.push(format!("- {name}  is in no file any more, and is deleted")),
        "deleted" => out.push(format!("- {name}  deleted")),
        "outdated" => out.push(format!("! {name}  is older in this file than what was applied since; it stays as it is")),
        _ => {}
    }
    out.extend(line.warnings.iter().map(|warning| format!("    note  {warning}")));
    out.iter().map(|line| text::clean(line)).collect()
}

fn definition(json: String, source: &str) -> v1::Definition {
    v1::Definition {
        json,
        source: source.to_owned(),
        ..v1::Definition::default()
    }
}

/// All that is right in the files.
fn request(set: &Set, checked: &Checked, args: &JobApplyArgs) -> Result<v1::ApplyRequest, Failure> {
    let source = |file: usize| set.files[file].0.as_str();
    let json = |value: serde_json::Result<serde_json::Value>| {
        let value = value.map_err(|error| Failure::unexpected(error.to_string()))?;
        Ok::<_, Failure>(systole_shared::job::definition::canonical(&value))
    };
    let mut request = v1::ApplyRequest {
        dry_run: args.dry_run,
        prune: args.prune,
        // Of single files nobody can say what is missing; nor of files that could not be read.
        complete: args.files.iter().any(|path| path.is_dir()) && checked.faults.is_empty(),
        restore: args.restore,
        reason: args.reason.clone().unwrap_or_default(),
        ..v1::ApplyRequest::default()
    };
    for job in &checked.jobs {
        request
            .jobs
            .push(definition(job.spec.canonical_json(), source(job.file)));
    }
    for calendar in &checked.calendars {
        let mut definition = definition(json(serde_json::to_value(&calendar.spec))?, source(calendar.file));
        definition.ics = calendar.ics.clone().unwrap_or_default();
        request.calendars.push(definition);
    }
    for (file, group) in &checked.groups {
        request
            .groups
            .push(definition(json(serde_json::to_value(group))?, source(*file)));
    }
    for (kind, count) in [
        ("jobs", request.jobs.len()),
        ("calendars", request.calendars.len()),
        ("groups", request.groups.len()),
    ] {
        if count > DEFINITIONS_MAX {
            return Err(Failure::usage(format!(
                "{count} {kind} are more than the {DEFINITIONS_MAX} of one call; apply the folders one by one, without --prune"
            )));
        }
    }
    Ok(request)
}

pub async fn run(global: &Global, args: &JobApplyArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    if args.prune && !args.files.iter().any(|path| path.is_dir()) {
        return Err(Failure::usage(
            "--prune needs the folder: what is not in one file may stand in another. Give -f FOLDER",
        ));
    }
    if args
        .files
        .iter()
        .filter(|path| path.as_path() == Path::new("-"))
        .count()
        > 1
    {
        return Err(Failure::usage("- is given twice; stdin can be read once"));
    }
    let set = files::read(&args.files)?;
    let checked = files::check(&set, now_ms(), false);
    check::tell_faults(&set, &checked);
    let wrong = !checked.faults.is_empty();
    if wrong && args.prune {
        return Err(Failure::usage(
            "nothing was applied: with --prune every file must be right",
        ));
    }
    let request = request(&set, &checked, args)?;
    if request.jobs.is_empty() && request.calendars.is_empty() && request.groups.is_empty() && wrong {
        return Ok(exit_code::USAGE);
    }
    let results = Client::new(global)?.apply_jobs(request).await?;
    let lines_of: Vec<Line> = results.iter().map(line).collect();
    let refused = super::super::tell_errors(results.iter().filter_map(|result| result.error.as_ref()));
    match output.format {
        Format::Json => json::document(&Answer {
            dry_run: args.dry_run,
            results: lines_of,
        }),
        Format::Jsonl => lines_of.iter().for_each(json::object),
        Format::Id => {
            let changed = results.iter().filter(|result| is_change(result));
            changed.for_each(|result| output::line(&text::clean(&result.name)));
        }
        Format::Table | Format::Wide => {
            for one in &lines_of {
                lines(one, args.dry_run).iter().for_each(|line| output::line(line));
            }
            let unchanged = results
                .iter()
                .filter(|result| applied_of(result) == Applied::Unchanged && result.error.is_none());
            match unchanged.count() {
                0 => {}
                count => output::line(&format!("= {count} unchanged")),
            }
        }
    }
    if args.dry_run {
        output.note("Nothing was changed (--dry-run).");
    }
    let changes = results.iter().any(is_change);
    Ok(match (wrong, refused) {
        (true, _) => exit_code::USAGE,
        (false, exit) if exit != exit_code::OK => exit,
        _ if args.dry_run && changes => exit_code::PLAN_HAS_CHANGES,
        _ => exit_code::OK,
    })
}

fn is_change(result: &v1::ApplyResult) -> bool {
    result.error.is_none()
        && matches!(
            applied_of(result),
            Applied::Created | Applied::Changed | Applied::Deleted
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_each_field_and_the_fires_before_and_after() {
        let json = |cron: &str| {
            format!(
                r#"{{"name":"a","shell":"x","trigger":[{{"name":"nightly","cron":"{cron}","zone":"Europe/Berlin"}}]}}"#
            )
        };
        let coming = |at| v1::Coming {
            job: "a".into(),
            trigger: "nightly".into(),
            scheduled_at_ms: at,
        };
        let result = v1::ApplyResult {
            kind: "job".into(),
            name: "a".into(),
            applied: Applied::Changed as i32,
            version: 3,
            before_json: json("30 2 * * *"),
            after_json: json("30 3 * * *"),
            next_before: vec![coming(1_796_002_200_000)],
            next: vec![coming(1_796_005_800_000)],
            warnings: vec!["odd day x".into()],
            ..v1::ApplyResult::default()
        };
        assert_eq!(
            lines(&line(&result), true),
            [
                "~ a",
                "    trigger.nightly.cron  \"30 2 * * *\" → \"30 3 * * *\"",
                "    next fires  Mon 2026-11-30 02:30 +01:00 → Mon 2026-11-30 03:30 +01:00",
                "    note  odd day x",
            ]
        );
        let with = |applied: Applied| v1::ApplyResult {
            applied: applied as i32,
            warnings: Vec::new(),
            ..result.clone()
        };
        for (applied, begin, change) in [
            (Applied::Created, "+ a  new; next fires Mon 2026-11-30 03:30", true),
            (Applied::Overridden, "! a  was changed by hand", false),
            (Applied::Orphaned, "- a  is in no file any more; it keeps firing", false),
            (Applied::Deleted, "- a  is in no file any more, and is deleted", true),
        ] {
            let result = with(applied);
            assert!(lines(&line(&result), true)[0].starts_with(begin), "{applied:?}");
            assert_eq!(is_change(&result), change, "{applied:?}");
        }
        assert!(lines(&line(&with(Applied::Unchanged)), true).is_empty());
    }
}
