//! `systole import`: what ran elsewhere, as job files.

use super::cron::machine_zone;
use super::job::read_text;
use crate::args::{Format, Global, ImportAction, ImportArgs, ImportCrontabArgs};
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use systole_shared::job::JobSpec;
use systole_shared::job::crontab::{self, Crontab, Options};
use systole_shared::job::write;
use systole_shared::trigger::zone::Zone;

/// A crontab.
const CRONTAB_BYTES_MAX: usize = 4 * 1024 * 1024;

const HEADER: &str = "\
# From crontabs. Where systole differs from cron:
# * the jobs are paused, so that nothing runs twice: take a line out of its crontab, then set paused = false;
# * a command starts in a fresh directory, not in the home of its user: say dir where it matters;
# * a run that is due while the one before goes on waits for it; cron would run both (blocking, max_concurrent);
# * the output is kept (systole logs), not mailed.
format = 1
";

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
    }
}

/// Files whose lines have a column for the user.
fn is_system(path: &Path) -> bool {
    path == Path::new("/etc/crontab") || path.parent() == Some(Path::new("/etc/cron.d"))
}

fn job_file(crontabs: &[(String, Crontab)]) -> String {
    let mut out = HEADER.to_owned();
    for (file, crontab) in crontabs {
        for (line, note) in &crontab.notes {
            out.push_str(&format!("\n# {file}:{line}: {note}\n"));
        }
        for job in &crontab.jobs {
            out.push_str(&format!("\n# {file}:{}: {}\n", job.line, comment(&job.text)));
            for note in &job.notes {
                out.push_str(&format!("# {}\n", comment(note)));
            }
            out.push_str(&write::job(&job.spec));
        }
        for line in &crontab.refused {
            let (text, reason) = (comment(&line.text), comment(&line.reason));
            out.push_str(&format!(
                "\n# NOT IMPORTED {file}:{}: {text}\n#   {reason}\n",
                line.line
            ));
        }
    }
    out
}

/// As it may stand in a comment of TOML.
fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn import_crontabs(global: &Global, args: &ImportCrontabArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let zone = match &args.zone {
        Some(name) => Zone::parse(name)?,
        None => machine_zone(),
    };
    let mut names = BTreeSet::new();
    let mut crontabs = Vec::new();
    for path in &args.files {
        let text = read_text(path, CRONTAB_BYTES_MAX).map_err(Failure::usage)?;
        if text.len() > CRONTAB_BYTES_MAX {
            return Err(Failure::usage(format!("{} is larger than any crontab", path.display())));
        }
        let options = Options {
            system: args.system || is_system(path),
            zone: zone.name().to_owned(),
            host: args.runner.clone(),
            prefix: args.prefix.clone(),
        };
        let name = if path == Path::new("-") {
            "stdin".into()
        } else {
            path.display().to_string()
        };
        crontabs.push((name, crontab::read(&text, &options, &mut names)));
    }
    let jobs = || {
        crontabs
            .iter()
            .flat_map(|(file, crontab)| crontab.jobs.iter().map(move |job| (file, job)))
    };
    let refused = || {
        crontabs
            .iter()
            .flat_map(|(file, crontab)| crontab.refused.iter().map(move |line| (file, line)))
    };
    match output.format {
        Format::Json => json::document(&Answer {
            jobs: jobs().map(|(file, job)| job_line(file, job)).collect(),
            refused: refused()
                .map(|(file, line)| RefusedLine {
                    file,
                    line: line.line,
                    text: &line.text,
                    reason: &line.reason,
                })
                .collect(),
        }),
        Format::Jsonl => jobs().for_each(|(file, job)| json::object(&job_line(file, job))),
        Format::Id => jobs().for_each(|(_, job)| output::line(&job.spec.name)),
        Format::Table | Format::Wide => output::data(job_file(&crontabs).as_bytes()),
    }
    for (file, crontab) in &crontabs {
        for (line, note) in &crontab.notes {
            output.note(&format!("{file}:{line}: {}", comment(note)));
        }
    }
    for (file, job) in jobs() {
        for note in &job.notes {
            output.note(&format!("{file}:{}: {}: {}", job.line, job.spec.name, comment(note)));
        }
    }
    for (file, line) in refused() {
        output.note(&format!(
            "{file}:{}: not imported: {}",
            line.line,
            comment(&line.reason)
        ));
    }
    let (imported, left) = (jobs().count(), refused().count());
    output.note(&format!(
        "{imported} imported, paused; {left} not. Is it right? systole job check FILE"
    ));
    Ok(if left == 0 { exit_code::OK } else { exit_code::NO })
}

fn job_line<'a>(file: &'a str, job: &'a crontab::Imported) -> JobLine<'a> {
    JobLine {
        file,
        line: job.line,
        job: &job.spec,
        notes: &job.notes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_shared::job::file::{JobFile, Syntax};

    #[test]
    fn the_file_that_is_written_reads_back_with_all_its_jobs() {
        let text = "MAILTO=ann\n0 1 * * * flock -n /run/a 'it''s' \"$X\" \\% %in\\n\n@reboot x\n*/5 * * * * printf 'a\\tb' && echo \"c\"\n";
        let options = Options {
            zone: "Europe/Berlin".into(),
            ..Options::default()
        };
        let crontab = crontab::read(text, &options, &mut BTreeSet::new());
        let specs: Vec<_> = crontab.jobs.iter().map(|job| job.spec.clone()).collect();
        assert_eq!(specs.len(), 2);
        let written = job_file(&[("ann".into(), crontab)]);
        let file = JobFile::read(&written, Syntax::Toml);
        assert_eq!(file.faults, [], "{written}");
        let read: Vec<_> = file.jobs.into_iter().map(|entry| entry.spec).collect();
        assert_eq!(read, specs, "{written}");
        assert!(written.contains("# NOT IMPORTED ann:3: @reboot x"), "{written}");
    }
}
