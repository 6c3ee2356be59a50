//! The plan of a change in words and as data: what is new, what changes, when it fires then.

use super::check;
use super::words::{fire_in_words, wire_fire, zone_named, zone_of};
use crate::args::Format;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use serde::Serialize;
use std::collections::BTreeMap;
use systole_proto::v1::{self, Applied};
use systole_shared::clock::now_ms;
use systole_shared::job::JobSpec;
use systole_shared::job::diff::{Change, diff};
use systole_shared::trigger::custom::Registry;
use systole_shared::trigger::definition::Environment;

/// Fires that a plan shows of each side.
const FIRES: usize = 2;

#[derive(Serialize)]
struct Answer<'a> {
    dry_run: bool,
    results: &'a [Line],
}

#[derive(Serialize)]
pub struct Line {
    kind: String,
    name: String,
    applied: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// For --plan-version; 0: there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    before_version: Option<String>,
    /// A change that was made by hand is given up for what the file says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    gave_up: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<ChangeLine>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    next_before: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    next: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    /// Of a new job, for people: when it fires.
    #[serde(skip)]
    new: String,
}

/// One field that is not the same.
#[derive(Serialize)]
pub struct ChangeLine {
    pub field: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
}

impl ChangeLine {
    /// `timeout  "1h" → "2h"`.
    pub fn in_words(&self) -> String {
        let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "(not set)".into());
        format!("{}  {} → {}", self.field, side(&self.before), side(&self.after))
    }
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

pub fn applied_of(result: &v1::ApplyResult) -> Applied {
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
fn fires(coming: &[v1::Coming]) -> Vec<String> {
    let one = |coming: &v1::Coming| wire_fire(&zone_named(&coming.zone), coming.scheduled_at_ms);
    coming.iter().map(one).collect()
}

/// What a job that is paused would do if it were not: the scheduler foretells nothing of it.
fn would_fire(spec: &JobSpec, now_ms: i64) -> Vec<String> {
    let calendars = BTreeMap::new();
    let mut found = Vec::new();
    for trigger in &spec.trigger {
        let zone = zone_of(trigger);
        let environment = Environment {
            job: &spec.name,
            created_ms: now_ms,
            default_zone: &zone,
            calendars: &calendars,
            registry: &Registry::shared(),
        };
        // One that names a calendar cannot be read here.
        let Ok(compiled) = trigger.compile(&environment) else {
            continue;
        };
        let fires = check::fires(&compiled, now_ms).into_iter();
        found.extend(fires.map(|at| (at, fire_in_words(&zone, at))));
    }
    found.sort();
    found.into_iter().map(|(_, words)| words).collect()
}

/// When a new job fires.
fn of_new(result: &v1::ApplyResult, now_ms: i64) -> String {
    let spec: JobSpec = serde_json::from_str(&result.after_json).unwrap_or_default();
    let paused = spec.paused || (!spec.trigger.is_empty() && spec.trigger.iter().all(|trigger| trigger.paused));
    let new = if paused { "new, paused" } else { "new" };
    if spec.trigger.iter().all(|trigger| trigger.manual.is_some()) {
        return format!("{new}; fires only when asked");
    }
    if !paused {
        return format!("{new}; next fires {}", first_fires(&fires(&result.next)));
    }
    match would_fire(&spec, now_ms).as_slice() {
        [] => new.to_owned(),
        fires => format!("{new}; would next fire {}", first_fires(fires)),
    }
}

pub fn line(result: &v1::ApplyResult) -> Line {
    Line {
        kind: result.kind.clone(),
        name: result.name.clone(),
        applied: applied_name(applied_of(result)),
        error: result.error.as_ref().map(|error| Failure::from_item(error).to_string()),
        version: (result.version != 0).then(|| result.version.to_string()),
        before_version: result.error.is_none().then(|| result.before_version.to_string()),
        gave_up: result.gave_up,
        changes: changes(result).into_iter().map(ChangeLine::from).collect(),
        next_before: fires(&result.next_before),
        next: fires(&result.next),
        warnings: result.warnings.clone(),
        new: match result.kind.as_str() {
            "job" => of_new(result, now_ms()),
            _ => "new".into(),
        },
    }
}

fn first_fires(fires: &[String]) -> String {
    match fires {
        [] => "none".into(),
        fires => fires.iter().take(FIRES).cloned().collect::<Vec<_>>().join(", "),
    }
}

/// One result of the plan, in words. Unchanged ones have none, unless there is something to be said of them.
pub fn lines(line: &Line, dry_run: bool) -> Vec<String> {
    let name = match line.kind.as_str() {
        "job" => line.name.clone(),
        kind => format!("{} ({kind})", line.name),
    };
    let is_job = line.kind == "job";
    let mut out = Vec::new();
    match line.applied {
        "created" => out.push(format!("+ {name}  {}", line.new)),
        "changed" => {
            let gave_up = if line.gave_up {
                "  what was changed by hand is given up for the file"
            } else {
                ""
            };
            out.push(format!("~ {name}{gave_up}"));
            for change in &line.changes {
                out.push(format!("    {}", change.in_words()));
            }
            if is_job && line.next != line.next_before {
                let (before, after) = (first_fires(&line.next_before), first_fires(&line.next));
                out.push(format!("    next fires  {before} → {after}"));
            }
        }
        "overridden" => out.push(format!(
            "! {name}  was changed by hand; the file did not change since, so that the change stays: systole job diff {name}. Give it up: --restore"
        )),
        "orphaned" => out.push(format!("- {name}  is in no file any more; it keeps firing unless you add --prune")),
        "deleted" if dry_run => out.push(format!("- {name}  is in no file any more, and is deleted")),
        "deleted" => out.push(format!("- {name}  deleted")),
        "outdated" => out.push(format!("! {name}  is older in this file than what was applied since; it stays as it is")),
        "unchanged" if !line.warnings.is_empty() => out.push(format!("= {name}")),
        _ => {}
    }
    out.extend(line.warnings.iter().map(|warning| format!("    note  {warning}")));
    out.iter().map(|line| text::clean(line)).collect()
}

pub fn is_change(result: &v1::ApplyResult) -> bool {
    result.error.is_none()
        && matches!(
            applied_of(result),
            Applied::Created | Applied::Changed | Applied::Deleted
        )
}

/// Writes the results of a change in the form that was asked for, and tells what was refused. The exit status says whether all of
/// it was done, or, of a dry run, whether it would change something.
pub fn write(output: &Output, results: &[v1::ApplyResult], dry_run: bool) -> u8 {
    let lines_of: Vec<Line> = results.iter().map(line).collect();
    let refused = crate::commands::tell_errors(results.iter().filter_map(|result| result.error.as_ref()));
    match output.format {
        Format::Json => json::document(&Answer {
            dry_run,
            results: &lines_of,
        }),
        Format::Jsonl => lines_of.iter().for_each(json::object),
        Format::Id => {
            let changed = results.iter().filter(|result| is_change(result));
            changed.for_each(|result| output::line(&text::clean(&result.name)));
        }
        Format::Table | Format::Wide => {
            for one in &lines_of {
                lines(one, dry_run).iter().for_each(|line| output::line(line));
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
    if dry_run {
        output.note("Nothing was changed (--dry-run).");
    }
    match refused {
        exit_code::OK if dry_run && results.iter().any(is_change) => exit_code::PLAN_HAS_CHANGES,
        exit => exit,
    }
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
            zone: "Europe/Berlin".into(),
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
        let noted = v1::ApplyResult {
            applied: Applied::Unchanged as i32,
            ..result.clone()
        };
        assert_eq!(lines(&line(&noted), true), ["= a", "    note  odd day x"]);
    }

    #[test]
    fn a_new_job_that_is_paused_says_what_it_would_do() {
        // 2026-11-29T00:00:00Z.
        const NOW: i64 = 1_795_910_400_000;
        let new = |json: &str| {
            let result = v1::ApplyResult {
                kind: "job".into(),
                name: "a".into(),
                after_json: json.into(),
                ..v1::ApplyResult::default()
            };
            of_new(&result, NOW)
        };
        let nightly = r#"{"name":"nightly","cron":"30 2 * * *","zone":"Europe/Berlin""#;
        let would = "new, paused; would next fire Sun 2026-11-29 02:30 +01:00, Mon 2026-11-30 02:30 +01:00";
        for (json, said) in [
            (
                format!(r#"{{"name":"a","shell":"x","paused":true,"trigger":[{nightly}}}]}}"#),
                would,
            ),
            (
                format!(r#"{{"name":"a","shell":"x","trigger":[{nightly},"paused":true}}]}}"#),
                would,
            ),
            (
                format!(
                    r#"{{"name":"a","shell":"x","trigger":[{nightly},"paused":true,"exclude_calendars":["c"]}}]}}"#
                ),
                "new, paused",
            ),
            (
                r#"{"name":"a","shell":"x","trigger":[{"name":"m","manual":true}]}"#.into(),
                "new; fires only when asked",
            ),
            (
                r#"{"name":"a","shell":"x","paused":true}"#.into(),
                "new, paused; fires only when asked",
            ),
        ] {
            assert_eq!(new(&json), said, "{json}");
        }
    }

    #[test]
    fn the_plan_is_as_it_was() {
        let result = |name: &str, applied: Applied, before: &str, after: &str| v1::ApplyResult {
            kind: "job".into(),
            name: name.into(),
            applied: applied.into(),
            before_json: before.into(),
            after_json: after.into(),
            ..v1::ApplyResult::default()
        };
        let old = r#"{"name":"a","command":["x"],"timeout":"1h"}"#;
        let new = r#"{"name":"a","command":["x"],"timeout":"2h"}"#;
        let mut warned = result("checkout-health", Applied::Created, "", old);
        warned.warnings = vec!["trigger nightly never fires".into()];
        let mut text = String::new();
        for result in [
            warned,
            result("nightly-backup", Applied::Changed, old, new),
            result("etl.load", Applied::Overridden, old, old),
            result("old-report", Applied::Orphaned, old, ""),
            result("gone", Applied::Deleted, old, ""),
            result("late", Applied::Outdated, old, new),
        ] {
            for dry_run in [true, false] {
                text.push_str(&format!("{}\n", lines(&line(&result), dry_run).join("\n")));
            }
        }
        crate::golden::check("job_plan", &text);
    }
}
