//! `systole job apply`: from files into the scheduler, with a plan.

use super::{check, files, plan};
use crate::args::{Global, JobApplyArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::Output;
use std::path::Path;
use systole_proto::v1;
use systole_shared::clock::now_ms;
use systole_shared::job::file::{Checked, Set, Written};

/// Definitions of one kind in one call.
const DEFINITIONS_MAX: usize = 1_000;

fn definition(written: Written) -> v1::Definition {
    v1::Definition {
        json: written.json,
        source: written.source,
        ics: written.ics.unwrap_or_default(),
        ..v1::Definition::default()
    }
}

/// Puts the versions that were given to the jobs that they are of.
fn expect_versions(
    jobs: &mut [v1::Definition],
    checked: &Checked,
    expected: &[(Option<String>, i64)],
) -> Result<(), Failure> {
    for (name, version) in expected {
        let index = match name {
            Some(name) => checked.jobs.iter().position(|job| job.spec.name == *name),
            None if jobs.len() == 1 && expected.len() == 1 => Some(0),
            None => {
                return Err(Failure::usage(format!(
                    "--plan-version {version}: of which of the {} jobs? Write --plan-version JOB={version}",
                    jobs.len()
                )));
            }
        };
        match index.and_then(|index| jobs.get_mut(index)) {
            Some(job) => job.expected_version = *version,
            None => {
                return Err(Failure::usage(format!(
                    "--plan-version {}={version}: no file here has this job",
                    name.as_deref().unwrap_or_default()
                )));
            }
        }
    }
    Ok(())
}

/// All that is right in the files.
fn request(set: &Set, checked: &Checked, args: &JobApplyArgs) -> Result<v1::ApplyRequest, Failure> {
    let found = checked.definitions(set);
    let mut request = v1::ApplyRequest {
        jobs: found.jobs.into_iter().map(definition).collect(),
        calendars: found.calendars.into_iter().map(definition).collect(),
        groups: found.groups.into_iter().map(definition).collect(),
        dry_run: args.dry_run,
        prune: args.prune,
        // Of single files nobody can say what is missing; nor of files that could not be read.
        complete: args.files.iter().any(|path| path.is_dir()) && checked.faults.is_empty(),
        restore: args.restore,
        reason: args.reason.clone().unwrap_or_default(),
        ..v1::ApplyRequest::default()
    };
    expect_versions(&mut request.jobs, checked, &args.plan_version)?;
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
    let exit = plan::write(&output, &results, args.dry_run);
    Ok(if wrong { exit_code::USAGE } else { exit })
}
