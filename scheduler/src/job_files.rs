//! Job files on this machine: of the folder that a scheduler is given, and of the command line.

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

/// What the system says, for a sentence.
pub fn io_cause(error: &std::io::Error) -> String {
    use std::io::ErrorKind::*;
    match error.kind() {
        ConnectionRefused => "connection refused".into(),
        ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof => "the connection broke off".into(),
        TimedOut => "no answer in time".into(),
        HostUnreachable => "the host cannot be reached".into(),
        NetworkUnreachable => "the network cannot be reached".into(),
        NotFound => "no such file or directory".into(),
        PermissionDenied => "permission denied".into(),
        _ => {
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            text.to_owned()
        }
    }
}

/// A text of at most so many bytes and one more, so that whoever checks the size sees that it is too large. The error does
/// not name the file.
fn text_of(path: &Path, bytes_max: usize) -> Result<String, String> {
    let cannot = |cause: String| format!("cannot be read: {cause}");
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

/// As [`text_of`]; the error names the file.
pub fn read_text(path: &Path, bytes_max: usize) -> Result<String, String> {
    text_of(path, bytes_max).map_err(|cause| format!("{} {cause}", path.display()))
}

/// All job files in a folder and below, by name; what begins with a dot is left out.
fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), String> {
    let cannot = |cause: &str| format!("{} cannot be read: {cause}", folder.display());
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

/// Reads a folder and all below it. A file that cannot be read is a fault of that file, and stops no other.
pub fn read_folder(folder: &Path, set: &mut Set) -> Result<(), String> {
    let mut paths = Vec::new();
    collect(folder, 0, &mut paths)?;
    for path in paths {
        let name = path.display().to_string();
        let syntax = Syntax::of_name(&name).unwrap_or(Syntax::Toml);
        let file = match text_of(&path, JOB_FILE_BYTES_MAX) {
            Ok(text) => JobFile::read(&text, syntax),
            Err(cause) => JobFile::unreadable(cause),
        };
        set.add(name, file);
    }
    Ok(())
}

/// Reads files and folders that somebody named. What is wrong within a file is in the set; a path that is not there, and a
/// folder without a job file, are errors.
pub fn read(paths: &[PathBuf]) -> Result<Set, String> {
    let mut set = Set::default();
    for path in paths {
        if path.is_dir() {
            let before = set.files.len();
            read_folder(path, &mut set)?;
            if set.files.len() == before {
                return Err(format!("{} has no .toml, .yaml or .yml file", path.display()));
            }
            continue;
        }
        let name = path.display().to_string();
        let syntax = if path == Path::new("-") {
            Some(Syntax::Toml)
        } else {
            Syntax::of_name(&name)
        };
        let Some(syntax) = syntax else {
            return Err(format!(
                "{name} is no job file; its name must end in .toml, .yaml or .yml"
            ));
        };
        let text = read_text(path, JOB_FILE_BYTES_MAX)?;
        set.add(name, JobFile::read(&text, syntax));
    }
    if set.files.len() > FILES_MAX {
        return Err(format!("these are more than {FILES_MAX} job files"));
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
        registry: &Registry::shared(),
        read_ics: &read_ics,
        closed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_stops_no_other_of_its_folder() {
        let folder = std::env::temp_dir().join(format!("systole-job-files-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("below")).expect("folder");
        let job = |name: &str| format!("[[job]]\nname = \"{name}\"\nshell = \"true\"\n");
        std::fs::write(folder.join("a.toml"), b"\xff\xfe").expect("written");
        std::fs::write(folder.join("b.toml"), job("b")).expect("written");
        std::fs::write(folder.join("below/c.yaml"), "job:\n- name: c\n  shell: 'true'\n").expect("written");
        std::fs::write(folder.join(".hidden.toml"), job("hidden")).expect("written");
        std::fs::write(folder.join("notes.txt"), "no job").expect("written");
        let set = read(std::slice::from_ref(&folder)).expect("the folder");
        let named = read(&[folder.join("a.toml")]).map(drop);
        let empty = read(&[folder.join("empty")]).map(drop);
        let checked = check(&set, 0, true);
        std::fs::remove_dir_all(&folder).expect("removed");
        let names: Vec<&str> = checked.jobs.iter().map(|job| job.spec.name.as_str()).collect();
        assert_eq!(names, ["b", "c"]);
        let faults: Vec<String> = checked
            .faults
            .iter()
            .map(|(file, fault)| set.say(*file, fault))
            .collect();
        assert_eq!(
            faults,
            [format!(
                "{}: cannot be read: it is no UTF-8 text (byte 0)",
                folder.join("a.toml").display()
            )]
        );
        // One that somebody named is what the call is about.
        assert!(named.is_err_and(|cause| cause.contains("UTF-8")));
        assert!(empty.is_err());
    }
}
