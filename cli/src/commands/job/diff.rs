//! `systole job diff`: two versions field by field.

use super::plan::ChangeLine;
use crate::args::{Format, Global, JobDiffArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use serde::Serialize;
use systole_proto::v1;
use systole_shared::job::JobSpec;
use systole_shared::job::diff::diff;

/// Versions that are looked through.
pub const VERSIONS_MAX: u32 = 1_000;

#[derive(Serialize)]
struct Answer {
    job: String,
    /// `file`, or the number of a version.
    from: String,
    to: String,
    changes: Vec<ChangeLine>,
}

/// One side: what it is called, and its definition.
struct Side {
    name: String,
    spec: JobSpec,
}

impl Side {
    fn new(name: impl Into<String>, json: &str) -> Result<Self, Failure> {
        let name = name.into();
        let spec = serde_json::from_str(json).map_err(|error| {
            Failure::refused(format!(
                "{name} cannot be read by this version of systole: {error}. Use that of the scheduler"
            ))
        })?;
        Ok(Self { name, spec })
    }

    fn of(version: &v1::JobVersion) -> Result<Self, Failure> {
        Self::new(version.version.to_string(), &version.json)
    }

    fn in_words(&self) -> String {
        match self.name.as_str() {
            "file" => "its file".into(),
            number => format!("version {number}"),
        }
    }
}

fn find(versions: &[v1::JobVersion], wanted: i64) -> Result<usize, Failure> {
    let newest = versions.first().map_or(0, |version| version.version);
    let found = versions.iter().position(|version| version.version == wanted);
    found.ok_or_else(|| {
        Failure::new(
            exit_code::NOT_FOUND,
            format!("there is no version {wanted}; the newest is {newest}"),
        )
    })
}

pub async fn run(global: &Global, args: &JobDiffArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    // Newest first; also of a job that was deleted.
    let versions = client.job_versions(&args.job, VERSIONS_MAX).await?;
    let to = match args.to {
        Some(version) => find(&versions, version)?,
        None => 0,
    };
    let Some(newer) = versions.get(to) else {
        return Err(Failure::unexpected("the scheduler answered without a version"));
    };
    let file = match (args.from, args.to) {
        (None, None) => file_of(&client, &args.job).await?,
        _ => None,
    };
    let from = match (args.from, file) {
        (Some(version), _) => Some(Side::of(&versions[find(&versions, version)?])?),
        (None, Some(json)) => Some(Side::new("file", &json)?),
        (None, None) => versions.get(to + 1).map(Side::of).transpose()?,
    };
    let to = Side::of(newer)?;
    let Some(from) = from else {
        output.note(&format!("there is nothing before version {}", to.name));
        return Ok(exit_code::OK);
    };
    let answer = Answer {
        changes: diff(&from.spec, &to.spec).into_iter().map(ChangeLine::from).collect(),
        job: args.job.clone(),
        from: from.name.clone(),
        to: to.name.clone(),
    };
    match output.format {
        Format::Json => json::document(&answer),
        Format::Jsonl => json::object(&answer),
        Format::Id => answer
            .changes
            .iter()
            .for_each(|change| output::line(&text::clean(&change.field))),
        Format::Table | Format::Wide => {
            output.note(&format!("{}: {} → {}", args.job, from.in_words(), to.in_words()));
            for change in &answer.changes {
                output::line(&text::clean(&change.in_words()));
            }
        }
    }
    if answer.changes.is_empty() {
        output.note("they are the same");
        return Ok(exit_code::OK);
    }
    Ok(exit_code::PLAN_HAS_CHANGES)
}

/// What the file says, of a job that was changed by hand since.
async fn file_of(client: &Client, name: &str) -> Result<Option<String>, Failure> {
    match client.job(name).await {
        Ok(job) => Ok(Some(job.code_json).filter(|json| !json.is_empty())),
        Err(failure) if failure.exit == exit_code::NOT_FOUND => Ok(None),
        Err(failure) => Err(failure),
    }
}
