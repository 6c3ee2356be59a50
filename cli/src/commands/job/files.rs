//! Job files on this machine.

use crate::failure::{Failure, io_cause};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use systole_shared::job::file::{CheckContext, Checked, JobFile, Set, Syntax};
use systole_shared::limits::{ICS_BYTES_MAX, JOB_FILE_BYTES_MAX};
use systole_shared::trigger::custom::Registry;
use systole_shared::trigger::zone::Zone;

/// Files of one call.
const FILES_MAX: usize = 10_000;
/// Folders within folders.
const DEPTH_MAX: usize = 16;

/// A text of at most so many bytes and one more, so that whoever checks the size sees that it is too large.
pub fn read_text(path: &Path, bytes_max: usize) -> Result<String, String> {
    let cannot = |cause: String| format!("{} cannot be read: {cause}", path.display());
    let mut bytes = Vec::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    if path == Path::new("-") {
        std::io::stdin().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    }
    .map_err(|error| cannot(io_cause(&error)))?;
    String::from_utf8(bytes).map_err(|error| {
        cannot(format!(
            "it is no UTF-8 text (byte {})",
            error.utf8_error().valid_up_to()
        ))
    })
}

/// All job files in a folder and below, by name; what begins with a dot is left out.
fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let cannot = |cause: &str| Failure::usage(format!("{} cannot be read: {cause}", folder.display()));
    if depth > DEPTH_MAX {
        return Err(cannot(&format!("folders are nested deeper than {DEPTH_MAX}")));
    }
    let entries = std::fs::read_dir(folder).map_err(|error| cannot(&io_cause(&error)))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(|error| cannot(&io_cause(&error)))?.path());
    }
    paths.sort();
    for path in paths {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            collect(&path, depth + 1, found)?;
        } else if Syntax::of_name(&name).is_some() {
            found.push(path);
        }
        if found.len() > FILES_MAX {
            return Err(cannot(&format!("it has more than {FILES_MAX} job files")));
        }
    }
    Ok(())
}

/// Reads files and folders. What is wrong within a file is in the set; a path that is not there is a failure.
pub fn read(paths: &[PathBuf]) -> Result<Set, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let before = files.len();
            collect(path, 0, &mut files)?;
            if files.len() == before {
                return Err(Failure::usage(format!(
                    "{} has no .toml, .yaml or .yml file",
                    path.display()
                )));
            }
        } else {
            files.push(path.clone());
        }
    }
    let mut set = Set::default();
    for path in files {
        let name = path.display().to_string();
        let syntax = if path == Path::new("-") {
            Some(Syntax::Toml)
        } else {
            Syntax::of_name(&name)
        };
        let Some(syntax) = syntax else {
            return Err(Failure::usage(format!(
                "{name} is no job file; its name must end in .toml, .yaml or .yml"
            )));
        };
        let text = read_text(&path, JOB_FILE_BYTES_MAX).map_err(Failure::usage)?;
        set.add(name, JobFile::read(&text, syntax));
    }
    Ok(set)
}

/// An iCalendar file that a job file names, relative to it.
fn read_ics(file: &str, path: &str) -> Result<String, String> {
    let folder = Path::new(file).parent().unwrap_or(Path::new(""));
    read_text(&folder.join(path), ICS_BYTES_MAX)
}

/// `closed`: there are no calendars and groups but those of the files.
pub fn check(set: &Set, now_ms: i64, closed: bool) -> Checked {
    set.check(&CheckContext {
        now_ms,
        default_zone: &Zone::utc(),
        registry: &Registry::built_in(),
        read_ics: &read_ics,
        closed,
    })
}
