//! `systole job edit`: the definition in an editor, and back. What was typed is never lost: its file is removed only when it is
//! stored, or says nothing new.

use super::plan;
use crate::args::{Global, JobEditArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::{Failure, io_cause};
use crate::output::{self, Output, text};
use crate::paths::variable;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use systole_proto::v1;
use systole_shared::job::file::{JobFile, Syntax};
use systole_shared::job::{JobSpec, write};
use systole_shared::limits::JOB_FILE_BYTES_MAX;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

/// The definition as it is put before the editor.
fn to_edit(job: &v1::Job, spec: &JobSpec) -> String {
    let mut out = format!(
        "# Job {}, version {}. Save and leave the editor to store it; leave without a change to store nothing.\n",
        text::clean(&job.name),
        job.version
    );
    if !job.source.is_empty() {
        out.push_str(&format!(
            "# It comes from {}: write the change there, too. When that file changes, what is changed here is given up.\n",
            text::clean(&job.source)
        ));
    }
    out.push_str("# The fields: docs/jobs.md. A pause is not part of it: systole job pause, resume.\n\n");
    out.push_str(&write::job(spec));
    out
}

/// The one job that stands in what was typed; or all that is wrong, with line and column.
fn typed_job(typed: &str, name: &str) -> Result<JobSpec, Vec<String>> {
    let file = JobFile::read(typed, Syntax::Toml);
    if !file.faults.is_empty() {
        return Err(file.faults.iter().map(ToString::to_string).collect());
    }
    let wrong = |message: String| Err(vec![message]);
    if !file.calendars.is_empty() || !file.groups.is_empty() {
        return wrong(
            "calendars and groups are not part of a job; apply a file with them: systole job apply -f FILE".into(),
        );
    }
    let [entry] = file.jobs.as_slice() else {
        return wrong(format!("has {} jobs; it must be {name} alone", file.jobs.len()));
    };
    if entry.spec.name != name {
        return wrong(format!(
            "name: {:?} would be another job; a job keeps its name. Apply a file with the new one, then: systole job rm {name}",
            entry.spec.name
        ));
    }
    match entry.spec.compile() {
        Ok(_) => Ok(entry.spec.clone()),
        Err(faults) => Err(faults
            .into_iter()
            .map(|fault| file.locate(entry, &format!("job {name}"), fault).to_string())
            .collect()),
    }
}

/// A new file that nobody else may read.
fn create(name: &str, content: &str) -> Result<PathBuf, Failure> {
    let path = std::env::temp_dir().join(format!("systole-edit-{name}-{}.toml", Uuid::new_v4().simple()));
    let made = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut file| file.write_all(content.as_bytes()));
    match made {
        Ok(()) => Ok(path),
        Err(error) => Err(Failure::unexpected(format!(
            "{} cannot be written: {}",
            path.display(),
            io_cause(&error)
        ))),
    }
}

/// Runs the editor as a shell would, so that it may have options.
async fn open_editor(path: &Path) -> Result<(), String> {
    let named = [variable("VISUAL"), variable("EDITOR")];
    let editor = named.into_iter().flatten().find(|editor| !editor.is_empty());
    let editor = editor.map_or_else(|| "vi".to_owned(), |editor| editor.to_string_lossy().into_owned());
    // Ctrl-C is for the editor.
    let _held = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(format!("{editor} \"$@\"")).arg(&editor).arg(path);
    let ended = tokio::task::spawn_blocking(move || command.status()).await;
    match ended.map_err(|error| error.to_string())? {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!(
            "the editor {editor:?} failed ({status}); set EDITOR to one that works"
        )),
        Err(error) => Err(format!("the editor {editor:?} cannot be started: {}", io_cause(&error))),
    }
}

/// True: it is to be edited again. Nobody is asked where nobody can answer.
fn asks_again() -> bool {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return false;
    }
    let _ = write!(std::io::stderr(), "Edit it again? [Y/n] ");
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.is_ok_and(|bytes| bytes > 0) && !answer.trim().to_lowercase().starts_with('n')
}

/// Where what was typed is, and how to go on with it.
fn kept(mut failure: Failure, job: &str, path: &Path) -> Failure {
    failure.message = format!(
        "{}. What you typed is in {1}; go on with: systole job edit {2} --resume {1}",
        failure.message.trim_end_matches('.'),
        path.display(),
        job
    );
    failure
}

pub async fn run(global: &Global, args: &JobEditArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let job = client.job(&args.job).await?;
    let spec: JobSpec = serde_json::from_str(&job.json).map_err(|error| {
        Failure::refused(format!(
            "the definition of {} cannot be read by this version of systole: {error}. Use that of the scheduler",
            job.name
        ))
    })?;
    let before = to_edit(&job, &spec);
    let path = match &args.resume {
        Some(path) => path.clone(),
        None => create(&job.name, &before)?,
    };
    loop {
        if let Err(cause) = open_editor(&path).await {
            return Err(kept(Failure::refused(cause), &job.name, &path));
        }
        let typed = super::files::read_text(&path, JOB_FILE_BYTES_MAX).map_err(Failure::usage)?;
        if typed == before {
            return Ok(nothing_new(&output, &path));
        }
        let wrong = match typed_job(&typed, &job.name) {
            Err(faults) => {
                for fault in faults {
                    output::error(&format!("{}:{fault}", path.display()));
                }
                Failure::usage("nothing was stored")
            }
            Ok(spec) => match store(&client, &job, &spec, args).await {
                Ok(result) if result.error.is_none() => {
                    if args.resume.is_none() {
                        let _ = std::fs::remove_file(&path);
                    }
                    return Ok(plan::write(&output, &[result], false));
                }
                Ok(result) => {
                    let failure = result.error.as_ref().map(Failure::from_item);
                    let failure = failure.unwrap_or_else(|| Failure::unexpected("nothing was stored"));
                    // What somebody else did meanwhile, and what is not allowed, another try does not change.
                    if failure.exit != exit_code::USAGE {
                        return Err(kept(failure, &job.name, &path));
                    }
                    output::error(&failure.to_string());
                    Failure::usage("nothing was stored")
                }
                Err(failure) => return Err(kept(failure, &job.name, &path)),
            },
        };
        if !asks_again() {
            return Err(kept(wrong, &job.name, &path));
        }
    }
}

fn nothing_new(output: &Output, path: &Path) -> u8 {
    let _ = std::fs::remove_file(path);
    output.note("nothing was changed");
    exit_code::OK
}

async fn store(client: &Client, job: &v1::Job, spec: &JobSpec, args: &JobEditArgs) -> Result<v1::ApplyResult, Failure> {
    let request = v1::ApplyRequest {
        jobs: vec![v1::Definition {
            json: spec.canonical_json(),
            expected_version: job.version,
            ..v1::Definition::default()
        }],
        reason: args.reason.clone().unwrap_or_default(),
        ..v1::ApplyRequest::default()
    };
    let results = client.apply_jobs(request).await?;
    results
        .into_iter()
        .next()
        .ok_or_else(|| Failure::unexpected("the scheduler answered without a result"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_before_the_editor_reads_back_the_same() {
        let json = r#"{"name":"a","command":["x","y z"],"timeout":"1h","trigger":[{"name":"t","cron":"30 2 * * *"}]}"#;
        let spec: JobSpec = serde_json::from_str(json).expect("spec");
        let job = v1::Job {
            name: "a".into(),
            version: 3,
            source: "jobs/a.toml".into(),
            ..v1::Job::default()
        };
        let shown = to_edit(&job, &spec);
        assert!(shown.contains("comes from jobs/a.toml"), "{shown}");
        assert_eq!(typed_job(&shown, "a"), Ok(spec));
    }

    #[test]
    fn what_is_no_such_job_is_said_with_its_place() {
        let said = |text: &str| typed_job(text, "a").expect_err(text).join("\n");
        let job = "[[job]]\nname = \"a\"\nshell = \"x\"\n";
        assert!(said(&format!("{job}timeout = 12\n")).contains("4:11"));
        assert!(said(&format!("{job}timeout = \"never\"\n")).contains("4:11"));
        assert!(said("").contains("has 0 jobs"));
        assert!(said(&format!("{job}{job}")).contains("has 2 jobs"));
        assert!(said(&job.replace("\"a\"", "\"b\"")).contains("a job keeps its name"));
        assert!(said(&format!("{job}[[concurrency_group]]\nname = \"g\"\nlimit = 1\n")).contains("apply"));
    }
}
