//! `systole job init`: a file to start from.

use crate::args::{Global, JobInitArgs};
use crate::commands::cron::machine_zone;
use crate::exit_code;
use crate::failure::{Failure, io_cause};
use crate::output::{self, Output};
use crate::paths;
use std::io::Write as _;
use std::path::{Path, PathBuf};

fn text(name: &str, zone: &str) -> String {
    format!(
        r#"# A job file. Its fields: docs/jobs.md. Is it right? systole job check FILE
format = 1

[[job]]
name    = "{name}"
command = ["echo", "hello from", "{{{{ scheduled_time }}}}"]
# shell = 'cd /srv/app && ./run.sh'    # in place of command: a text for /bin/sh
timeout = "1h"

# What if it still runs at its next time? serial: it waits; also discard_later, cover_early, concurrent.
# blocking = "serial"

# What if it fails?
# [job.retry]
# policy      = "fixed"
# max_retries = 2
# delay       = "5m"

[[job.trigger]]
cron = "30 2 * * *"                    # every day at 02:30 …
zone = "{zone}"{padding}# … on the clocks there
"#,
        padding = " ".repeat(31_usize.saturating_sub(zone.len() + 2).max(1)),
    )
}

pub fn run(global: &Global, args: &JobInitArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let content = text(&args.name, machine_zone().name());
    let path = args
        .file
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("{}.toml", args.name)));
    if path == Path::new("-") {
        output::data(content.as_bytes());
        return Ok(exit_code::OK);
    }
    let shown = path.display();
    let made = folder_of(&path)
        .and_then(|()| std::fs::File::create_new(&path))
        .and_then(|mut file| file.write_all(content.as_bytes()));
    made.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::refused(format!(
            "{shown} exists already; give another name with -f, or -f - for stdout"
        )),
        _ => Failure::unexpected(format!("{shown} cannot be written: {}", io_cause(&error))),
    })?;
    output::line(&shown.to_string());
    let me = paths::how_to_call_me();
    output.note(&format!("Next   edit it, then {me} job check {shown}"));
    Ok(exit_code::OK)
}

/// The folder of the first job file is seldom there.
fn folder_of(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(folder) if folder != Path::new("") => std::fs::create_dir_all(folder),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_shared::job::file::{JobFile, Syntax};

    #[test]
    fn the_file_is_right_as_it_is_and_with_what_it_suggests() {
        let plain = text("hello", "Europe/Berlin");
        for text in [
            plain.clone(),
            plain
                .replace("# [job.retry]", "[job.retry]")
                .replace("# policy ", "policy ")
                .replace("# max_", "max_")
                .replace("# delay ", "delay "),
            plain
                .replace("command =", "# command =")
                .replace("# shell", "shell")
                .replace("# blocking", "blocking"),
        ] {
            let file = JobFile::read(&text, Syntax::Toml);
            assert_eq!(file.faults, [], "{text}");
            let job = file.jobs[0]
                .spec
                .compile()
                .unwrap_or_else(|faults| panic!("{text}: {faults:?}"));
            assert_eq!((job.name.as_str(), job.triggers.len()), ("hello", 1));
        }
        assert!(plain.lines().all(|line| line.chars().count() <= 110), "{plain}");
    }
}
