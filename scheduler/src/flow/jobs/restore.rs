//! Giving up a change: back to what the file says, or to an older version.

use super::apply::{self, Definition, Manner, Outcome};
use super::{Refusal, unknown};
use crate::context::Context;
use crate::store::jobs as store;
use systole_shared::error::Code;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Ask {
    /// 0: what the file says.
    pub version: i64,
    /// 0: any.
    pub expected_version: i64,
    pub dry_run: bool,
    pub by: String,
    pub reason: String,
}

/// What there is of a job: itself, and the version that is asked for.
struct Found {
    job: Option<store::JobRow>,
    version: Option<store::VersionRow>,
    newest: Option<i64>,
}

async fn find(ctx: &Context, name: &str, version: i64) -> Result<Found, Refusal> {
    let name = name.to_owned();
    Ok(ctx
        .db
        .read("restore_job", move |tx| {
            let name = name.clone();
            Box::pin(async move {
                Ok(Found {
                    job: store::by_name(tx, &[&name]).await?.pop(),
                    version: store::version(tx, &name, version).await?,
                    newest: store::versions(tx, &name, 1).await?.first().map(|row| row.version),
                })
            })
        })
        .await?)
}

/// Pauses stay, and so does the progress of triggers that do not change. A job that was deleted comes back by its version.
pub async fn restore(ctx: &Context, name: &str, ask: &Ask) -> Result<Outcome, Refusal> {
    let found = find(ctx, name, ask.version).await?;
    let json = match (&found.job, found.version, found.newest) {
        (_, Some(version), _) => version.definition,
        (_, None, Some(newest)) if ask.version != 0 => {
            return Err(Refusal {
                code: Code::NoCodeDefinition,
                message: format!(
                    "job {name:?} has no version {}, the newest is {newest}; systole job history {name} --versions lists them",
                    ask.version
                ),
                field: "version".into(),
            });
        }
        (Some(job), None, _) => match (job.origin.as_str(), &job.code_definition) {
            ("code", _) => job.definition.clone(),
            (_, Some(code)) => code.clone(),
            _ => {
                return Err(Refusal::new(
                    Code::NoCodeDefinition,
                    format!(
                        "job {name:?} comes from no file; an older version comes back with systole job restore {name} --version N, and systole job history {name} --versions lists them"
                    ),
                ));
            }
        },
        (None, None, Some(newest)) => {
            return Err(Refusal::new(
                Code::JobNotFound,
                format!(
                    "job {name:?} was deleted; systole job restore {name} --version {newest} brings it back as it was last"
                ),
            ));
        }
        (None, None, None) => return Err(unknown(ctx, name).await?),
    };
    // What was read must not be written over a change that somebody makes in this moment.
    let seen = found.job.as_ref().map_or(-1, |job| job.version);
    if let Some(refusal) = apply::unexpected(name, seen.max(0), ask.expected_version) {
        return Err(refusal);
    }
    let definition = Definition {
        json,
        expected_version: seen,
        source: String::new(),
    };
    let manner = Manner {
        dry_run: ask.dry_run,
        by: ask.by.clone(),
        reason: match ask.reason.as_str() {
            "" if ask.version == 0 => "restored to its file".into(),
            "" => format!("restored version {}", ask.version),
            reason => reason.to_owned(),
        },
        ..Manner::default()
    };
    apply::apply_job(ctx, &definition, &manner).await
}
