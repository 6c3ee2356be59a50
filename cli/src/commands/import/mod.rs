//! `systole import`: what ran elsewhere, as job files.

mod units;

use super::cron::machine_zone;
use super::job::read_text;
use crate::args::{
    Format, Global, ImportAction, ImportArgs, ImportCrontabArgs, ImportInto, ImportKubernetesArgs, ImportSystemdArgs,
    ImportXxlJobArgs,
};
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json};
use serde::Serialize;
use std::path::{Path, PathBuf};
use systole_shared::job::JobSpec;
use systole_shared::job::import::{Import, Imported, Names, Options, crontab, kubernetes, xxl_job};
use systole_shared::job::write;
use systole_shared::trigger::zone::Zone;

/// A crontab, or a file of manifests.
const TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A dump, which may have more tables than those that are wanted.
const DUMP_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Lines in front of the jobs: what is the same for all of them.
struct Kind {
    header: &'static str,
    /// A zone of its own, where the machine's says nothing.
    zone: Option<&'static str>,
}

const CRONTAB: Kind = Kind {
    header: "\
# From crontabs. Where systole differs from cron:
# * the jobs are paused, so that nothing runs twice: take a line out of its crontab, then set paused = false;
# * a command starts in a fresh directory, not in the home of its user: say dir where it matters;
# * a run that is due while the one before goes on waits for it; cron would run both (blocking, max_concurrent);
# * the output is kept (systole logs), not mailed.
",
    zone: None,
};

const SYSTEMD: Kind = Kind {
    header: "\
# From timers of systemd. Where systole differs:
# * the jobs are paused, so that nothing runs twice: systemctl disable --now NAME.timer, then set paused = false;
# * a command starts in a fresh directory, not in /: say dir where it matters;
# * a task is ended by SIGTERM, and by SIGKILL after the runner's 10 seconds, not 90 (kill_grace);
# * a time that a clock change leaves out is moved to the end of the gap (dst_gap);
# * the output is kept (systole logs), not written to the journal.
",
    zone: None,
};

const KUBERNETES: Kind = Kind {
    header: "\
# From CronJobs of Kubernetes. Where systole differs:
# * the jobs are paused, so that nothing runs twice: kubectl patch cronjob NAME -p '{\"spec\":{\"suspend\":true}}', then set paused = false;
# * a command runs on a host, with the programs, files and users of that host, and not in its image;
# * a retry is a task of its own, also where restartPolicy is OnFailure;
# * concurrencyPolicy Allow, which has no bound, is 10 at the same time (max_concurrent).
",
    zone: Some("UTC"),
};

const XXL_JOB: Kind = Kind {
    header: "\
# From xxl-job. Where systole differs:
# * the jobs are paused, so that nothing runs twice: stop a job there, then set paused = false;
# * a command starts in a fresh directory, where its script is written to, and with a clean environment;
# * blocking holds for the whole cluster, not for each executor;
# * a fire is missed when it is later than 60 seconds, not 5 (misfire_threshold);
# * a retry is a task of its own, 10 seconds after the failure.
",
    zone: None,
};

#[derive(Serialize)]
struct Answer<'a> {
    jobs: Vec<JobLine<'a>>,
    refused: Vec<RefusedLine<'a>>,
}

#[derive(Serialize)]
struct JobLine<'a> {
    file: &'a str,
    line: usize,
    job: &'a JobSpec,
    notes: &'a [String],
}

#[derive(Serialize)]
struct RefusedLine<'a> {
    file: &'a str,
    line: usize,
    text: &'a str,
    reason: &'a str,
}

pub fn run(global: &Global, args: &ImportArgs) -> Result<u8, Failure> {
    match &args.action {
        ImportAction::Crontab(args) => import_crontabs(global, args),
        ImportAction::Systemd(args) => import_systemd(global, args),
        ImportAction::Kubernetes(args) => import_kubernetes(global, args),
        ImportAction::XxlJob(args) => import_xxl_job(global, args),
    }
}

fn options(kind: &Kind, into: &ImportInto) -> Result<Options, Failure> {
    let zone = match (&into.zone, kind.zone) {
        (Some(name), _) => Zone::parse(name)?,
        (None, Some(name)) => Zone::parse(name)?,
        (None, None) => machine_zone(),
    };
    Ok(Options {
        zone: zone.name().to_owned(),
        host: into.runner.clone(),
        prefix: into.prefix.clone(),
    })
}

/// Files whose lines have a column for the user.
fn is_system(path: &Path) -> bool {
    path == Path::new("/etc/crontab") || path.parent() == Some(Path::new("/etc/cron.d"))
}

/// The name of a file for people, and what is in it.
fn read_file(path: &Path, bytes_max: usize) -> Result<(String, String), Failure> {
    let text = read_text(path, bytes_max).map_err(Failure::usage)?;
    if text.len() > bytes_max {
        let message = format!(
            "{} has more than {bytes_max} bytes; give the part that matters",
            path.display()
        );
        return Err(Failure::usage(message));
    }
    let name = if path == Path::new("-") {
        "stdin".into()
    } else {
        path.display().to_string()
    };
    Ok((name, text))
}

fn read_files(paths: &[PathBuf], bytes_max: usize) -> Result<Vec<(String, String)>, Failure> {
    paths.iter().map(|path| read_file(path, bytes_max)).collect()
}

fn import_crontabs(global: &Global, args: &ImportCrontabArgs) -> Result<u8, Failure> {
    let options = options(&CRONTAB, &args.into)?;
    let mut names = Names::new(&options.prefix);
    let mut imports = Vec::new();
    for path in &args.files {
        let (name, text) = read_file(path, TEXT_BYTES_MAX)?;
        let system = args.system || is_system(path);
        imports.push(crontab::read(&name, &text, system, &options, &mut names));
    }
    Ok(tell(global, &CRONTAB, &imports))
}

fn import_systemd(global: &Global, args: &ImportSystemdArgs) -> Result<u8, Failure> {
    let options = options(&SYSTEMD, &args.into)?;
    Ok(tell(global, &SYSTEMD, &[units::import(&args.paths, &options)?]))
}

fn import_kubernetes(global: &Global, args: &ImportKubernetesArgs) -> Result<u8, Failure> {
    let options = options(&KUBERNETES, &args.into)?;
    let mut names = Names::new(&options.prefix);
    let files = read_files(&args.files, TEXT_BYTES_MAX)?;
    let imports: Vec<Import> = files
        .iter()
        .map(|(name, text)| kubernetes::read(name, text, &options, &mut names))
        .collect();
    Ok(tell(global, &KUBERNETES, &imports))
}

fn import_xxl_job(global: &Global, args: &ImportXxlJobArgs) -> Result<u8, Failure> {
    let options = options(&XXL_JOB, &args.into)?;
    let files = read_files(&args.files, DUMP_BYTES_MAX)?;
    let mut names = Names::new(&options.prefix);
    let imports = xxl_job::read(&files, args.alarm.as_deref(), &options, &mut names);
    Ok(tell(global, &XXL_JOB, &imports))
}

fn job_file(kind: &Kind, imports: &[Import]) -> String {
    let mut out = format!("{}format = 1\n", kind.header);
    for import in imports {
        for (origin, note) in &import.notes {
            out.push_str(&format!("\n# {origin}: {}\n", comment(note)));
        }
        for job in &import.jobs {
            out.push_str(&format!("\n# {}: {}\n", job.origin, comment(&job.text)));
            for note in &job.notes {
                out.push_str(&format!("# {}\n", comment(note)));
            }
            out.push_str(&write::job(&job.spec));
        }
        for entry in &import.refused {
            out.push_str(&format!(
                "\n# NOT IMPORTED {}: {}\n#   {}\n",
                entry.origin,
                comment(&entry.text),
                comment(&entry.reason)
            ));
        }
    }
    out
}

/// As it may stand in a comment of TOML.
fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Writes the job file, or what programs are to know, and says everything that is not a job on stderr.
fn tell(global: &Global, kind: &Kind, imports: &[Import]) -> u8 {
    let output = Output::new(global);
    let jobs = || imports.iter().flat_map(|import| &import.jobs);
    let refused = || imports.iter().flat_map(|import| &import.refused);
    match output.format {
        Format::Json => json::document(&Answer {
            jobs: jobs().map(job_line).collect(),
            refused: refused()
                .map(|entry| RefusedLine {
                    file: &entry.origin.file,
                    line: entry.origin.line,
                    text: &entry.text,
                    reason: &entry.reason,
                })
                .collect(),
        }),
        Format::Jsonl => jobs().for_each(|job| json::object(&job_line(job))),
        Format::Id => jobs().for_each(|job| output::line(&job.spec.name)),
        Format::Table | Format::Wide => output::data(job_file(kind, imports).as_bytes()),
    }
    for (origin, note) in imports.iter().flat_map(|import| &import.notes) {
        output.note(&format!("{origin}: {}", comment(note)));
    }
    for job in jobs() {
        for note in &job.notes {
            output.note(&format!("{}: {}: {}", job.origin, job.spec.name, comment(note)));
        }
    }
    for entry in refused() {
        output.note(&format!("{}: not imported: {}", entry.origin, comment(&entry.reason)));
    }
    let (imported, left) = (jobs().count(), refused().count());
    output.note(&format!(
        "{imported} imported, paused; {left} not. Is it right? systole job check FILE"
    ));
    if left == 0 { exit_code::OK } else { exit_code::NO }
}

fn job_line(job: &Imported) -> JobLine<'_> {
    JobLine {
        file: &job.origin.file,
        line: job.origin.line,
        job: &job.spec,
        notes: &job.notes,
    }
}

#[cfg(test)]
mod tests;
