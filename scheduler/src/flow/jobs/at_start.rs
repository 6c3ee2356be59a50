//! The folder of job files that a scheduler reads at its start. What is right in it is stored; what is wrong stops neither
//! the rest nor the scheduler, and is shown by `systole status` as long as this replica lives.

use super::apply::{Applied, Definition, Manner};
use super::{Refusal, set};
use crate::context::Context;
use crate::job_files;
use std::path::{Path, PathBuf};
use systole_shared::clock::now_ms;
use systole_shared::job::file::{Definitions, Set, Written};

/// Who applied what stood in the files.
const BY: &str = "scheduler --jobs";
/// Faults that a replica tells of.
const FAULTS_MAX: usize = 20;
const FAULT_CHARS_MAX: usize = 500;

/// What a folder holds, and what is wrong with it.
struct Read {
    definitions: Definitions,
    faults: Vec<String>,
    files: usize,
}

fn read(folder: &Path) -> Read {
    let mut set = Set::default();
    let unreadable = job_files::read_folder(folder, &mut set).err();
    let checked = job_files::check(&set, now_ms(), false);
    let said = checked.faults.iter().map(|(file, fault)| set.say(*file, fault));
    Read {
        definitions: checked.definitions(&set),
        faults: unreadable.into_iter().chain(said).collect(),
        files: set.files.len(),
    }
}

fn definition(written: Written) -> Definition {
    Definition {
        json: written.json,
        expected_version: 0,
        source: written.source,
    }
}

/// Stores what is right in the folder. An error: the database could not be reached, and it is to be done again.
pub async fn apply(ctx: &Context, folder: PathBuf) -> Result<(), Refusal> {
    let shown = folder.display().to_string();
    let read = tokio::task::spawn_blocking(move || read(&folder))
        .await
        .unwrap_or_else(|error| Read {
            definitions: Definitions::default(),
            faults: vec![format!("{shown}: reading it ended by a bug: {error}")],
            files: 0,
        });
    let mut faults = read.faults;
    let batch = set::Batch {
        calendars: read
            .definitions
            .calendars
            .into_iter()
            .map(|mut written| {
                let ics = written.ics.take().unwrap_or_default();
                (definition(written), ics)
            })
            .collect(),
        groups: read.definitions.groups.into_iter().map(definition).collect(),
        jobs: read.definitions.jobs.into_iter().map(definition).collect(),
        complete: faults.is_empty() && read.files > 0,
        prune: false,
    };
    let manner = Manner {
        at_start: true,
        by: BY.into(),
        reason: format!("start of {}", ctx.replica),
        ..Manner::default()
    };
    let items = set::apply(ctx, &batch, &manner).await?;
    let mut stored = 0;
    for item in &items {
        let (kind, name) = (item.kind, &item.name);
        match &item.result {
            Err(refusal) => faults.push(format!("{kind} {name}: {refusal} [{}]", refusal.code)),
            Ok(outcome) => {
                stored += usize::from(matches!(outcome.applied, Applied::Created | Applied::Changed));
                if outcome.gave_up {
                    tracing::warn!(
                        job = name,
                        "its file has changed: a change that was made by hand is given up; systole job history {name} --versions"
                    );
                }
                if outcome.applied == Applied::Outdated {
                    tracing::warn!(
                        job = name,
                        "its file is older than what was applied since; it stays as it is"
                    );
                }
                if outcome.applied == Applied::Orphaned {
                    tracing::warn!(
                        job = name,
                        "is in no file any more and goes on firing; systole job rm {name} deletes it"
                    );
                }
            }
        }
    }
    for fault in &faults {
        tracing::error!(fault, "a job file is wrong; the rest is stored");
    }
    tracing::info!(files = read.files, stored, faults = faults.len(), "job files read");
    let more = faults.len().saturating_sub(FAULTS_MAX);
    faults.truncate(FAULTS_MAX);
    for fault in &mut faults {
        *fault = fault.chars().take(FAULT_CHARS_MAX).collect();
    }
    if more > 0 {
        faults.push(format!(
            "{shown}: and {more} more; systole job check {shown} lists them"
        ));
    }
    Ok(ctx.db.put_job_faults(ctx.replica.clone(), faults).await?)
}
