//! `systole job history --versions` and `systole job restore`.

use super::diff::VERSIONS_MAX;
use super::plan;
use crate::args::{Format, Global, JobHistoryArgs, JobRestoreArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json, text};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use systole_proto::v1;
use systole_shared::job::JobSpec;
use systole_shared::job::diff::diff;

/// Rows of a table when nobody says otherwise.
const TABLE_ROWS: u32 = 20;
/// Fields that a row names.
const FIELDS_MAX: usize = 4;

const COLUMNS: [Column; 6] = [
    Column::whole("VERSION"),
    Column::whole("CHANGED"),
    Column::cut("BY", 6),
    Column::whole("ORIGIN").droppable(2),
    Column::cut("FIELDS", 8).droppable(3),
    Column::cut("REASON", 8).droppable(1),
];

#[derive(Serialize)]
struct Line {
    version: String,
    changed_at: Option<String>,
    changed_by: String,
    origin: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    source: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    fingerprint: String,
    definition: Value,
}

fn line(version: &v1::JobVersion) -> Line {
    Line {
        version: version.version.to_string(),
        changed_at: super::list::utc(version.changed_at_ms),
        changed_by: version.changed_by.clone(),
        origin: version.origin.clone(),
        source: version.source.clone(),
        reason: version.reason.clone(),
        fingerprint: version.fingerprint.clone(),
        definition: serde_json::from_str(&version.json).unwrap_or_default(),
    }
}

/// The fields that are not as in the version before; empty where that is not known.
fn changed_fields(version: &v1::JobVersion, before: Option<&v1::JobVersion>) -> String {
    let spec = |version: &v1::JobVersion| serde_json::from_str::<JobSpec>(&version.json).ok();
    let Some((before, after)) = before.and_then(spec).zip(spec(version)) else {
        return String::new();
    };
    let changes = diff(&before, &after);
    let mut fields: Vec<String> = changes
        .iter()
        .take(FIELDS_MAX)
        .map(|change| change.field.clone())
        .collect();
    if changes.len() > FIELDS_MAX {
        fields.push(format!("and {} more", changes.len() - FIELDS_MAX));
    }
    fields.join(", ")
}

fn row(version: &v1::JobVersion, before: Option<&v1::JobVersion>) -> Vec<Text> {
    vec![
        plain(version.version.to_string()),
        plain(text::full_time(version.changed_at_ms)),
        plain(version.changed_by.as_str()),
        plain(version.origin.as_str()),
        plain(changed_fields(version, before)),
        plain(version.reason.as_str()),
    ]
}

pub async fn list(global: &Global, args: &JobHistoryArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let limit = match args.limit {
        Some(limit) => u32::try_from(limit.min(u64::from(VERSIONS_MAX))).unwrap_or(VERSIONS_MAX),
        None if output.format.is_for_people() => TABLE_ROWS,
        None => VERSIONS_MAX,
    };
    // One more, to say what the oldest that is shown changed.
    let versions = Client::new(global)?
        .job_versions(&args.job, limit.saturating_add(1).min(VERSIONS_MAX))
        .await?;
    let shown = versions.len().min(usize::try_from(limit).unwrap_or(usize::MAX));
    let lines = || versions[..shown].iter().map(line);
    match output.format {
        Format::Json => json::document(&BTreeMap::from([("versions", lines().collect::<Vec<_>>())])),
        Format::Jsonl => lines().for_each(|line| json::object(&line)),
        Format::Id => lines().for_each(|line| output::line(&line.version)),
        Format::Table | Format::Wide => {
            let rows: Vec<_> = (0..shown).map(|at| row(&versions[at], versions.get(at + 1))).collect();
            table::print(&COLUMNS, &rows, &output);
            if shown < versions.len() && args.limit.is_none() {
                output.note(&format!("the newest {TABLE_ROWS} are shown; -n shows more"));
            }
        }
    }
    Ok(exit_code::OK)
}

pub async fn restore(global: &Global, args: &JobRestoreArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let request = v1::RestoreRequest {
        names: args.jobs.clone(),
        version: args.version.unwrap_or(0),
        expected_version: args.plan_version.unwrap_or(0),
        reason: args.reason.clone().unwrap_or_default(),
        dry_run: args.dry_run,
    };
    let results = Client::new(global)?.restore_jobs(request).await?;
    Ok(plan::write(&output, &results, args.dry_run))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_the_fields_that_it_changed() {
        let version = |number, timeout: &str| v1::JobVersion {
            version: number,
            json: format!(r#"{{"name":"a","shell":"x","timeout":"{timeout}"}}"#),
            ..v1::JobVersion::default()
        };
        assert_eq!(changed_fields(&version(2, "2h"), Some(&version(1, "1h"))), "timeout");
        assert_eq!(changed_fields(&version(1, "1h"), None), "");
        let table = table::render(&COLUMNS, &[row(&version(2, "2h"), None)], Some(60), false);
        assert!(table.lines().all(|line| line.chars().count() <= 60), "{table}");
    }
}
