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
    /// `file`, or the number of a version; 0: there is none before.
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

/// What the newest version is compared with where nobody says otherwise. One that its file made: with what the file said before,
/// whatever was done by hand between them; any other: with the one before it.
fn before(versions: &[v1::JobVersion]) -> Option<usize> {
    let is_code = |version: &v1::JobVersion| version.origin == "code";
    let previous = (versions.len() > 1).then_some(1);
    match versions.first() {
        Some(newest) if is_code(newest) => (1..versions.len()).find(|&at| is_code(&versions[at])).or(previous),
        _ => previous,
    }
}

pub async fn run(global: &Global, args: &JobDiffArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let asked = args.versions();
    // Newest first; also of a job that was deleted.
    let versions = client.job_versions(&args.job, VERSIONS_MAX).await?;
    let to = match asked.1 {
        Some(version) => find(&versions, version)?,
        None => 0,
    };
    let Some(newer) = versions.get(to) else {
        return Err(Failure::unexpected("the scheduler answered without a version"));
    };
    let file = match asked {
        (None, None) => file_of(&client, &args.job).await?,
        _ => None,
    };
    let older = match asked {
        (Some(version), _) => Some(find(&versions, version)?),
        (None, Some(_)) => Some(to + 1),
        (None, None) => before(&versions),
    };
    let older = older.and_then(|at| versions.get(at));
    let from = match file {
        Some(json) => Some(Side::new("file", &json)?),
        None => older.map(Side::of).transpose()?,
    };
    let to = Side::of(newer)?;
    let changes = from.iter().flat_map(|from| diff(&from.spec, &to.spec));
    let answer = Answer {
        changes: changes.map(ChangeLine::from).collect(),
        job: args.job.clone(),
        from: from.as_ref().map_or_else(|| "0".to_owned(), |from| from.name.clone()),
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
            if let Some(from) = &from {
                output.note(&format!("{}: {} → {}", args.job, from.in_words(), to.in_words()));
            }
            for change in &answer.changes {
                output::line(&text::clean(&change.in_words()));
            }
        }
    }
    if !answer.changes.is_empty() {
        return Ok(exit_code::PLAN_HAS_CHANGES);
    }
    let of_file = asked == (None, None) && newer.origin == "code";
    match older {
        None if from.is_none() => output.note(&format!("there is nothing before version {}", to.name)),
        Some(older) if of_file && older.origin == "code" => output.note("it is as its file says"),
        _ => output.note("they are the same"),
    }
    Ok(exit_code::OK)
}

/// What the file says, of a job that was changed by hand since.
async fn file_of(client: &Client, name: &str) -> Result<Option<String>, Failure> {
    match client.job(name).await {
        Ok(job) => Ok(Some(job.code_json).filter(|json| !json.is_empty())),
        Err(failure) if failure.exit == exit_code::NOT_FOUND => Ok(None),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_its_file_made_is_compared_with_what_the_file_said_before() {
        let before = |origins: &[&str]| {
            let version = |origin: &&str| v1::JobVersion {
                origin: (*origin).to_owned(),
                ..v1::JobVersion::default()
            };
            before(&origins.iter().map(version).collect::<Vec<_>>())
        };
        // Newest first: restored, changed in its file, by hand, and not from a file.
        assert_eq!(before(&["code", "overridden", "overridden", "code"]), Some(3));
        assert_eq!(before(&["code", "code", "code"]), Some(1));
        assert_eq!(before(&["overridden", "code", "code"]), Some(1));
        assert_eq!(before(&["code", "runtime"]), Some(1));
        assert_eq!(before(&["code"]), None);
        assert_eq!(before(&[]), None);
    }
}
