//! Units of systemd in folders: timers, the services that they start, drop-ins.

use super::super::job::read_text;
use crate::failure::Failure;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use systole_shared::job::import::systemd::{self, Source};
use systole_shared::job::import::{Import, Names, Options};

const UNIT_BYTES_MAX: usize = 1024 * 1024;

/// Where this machine's systemd looks, the first one first.
const OF_SYSTEM: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Names in a folder, sorted; a folder that cannot be read has none.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Instances of a template that are enabled: `timers.target.wants/dump@shop.timer`.
fn instances(folder: &Path, template: &str) -> Vec<String> {
    let prefix = template.trim_end_matches(".timer");
    let wants = names_in(folder).into_iter().filter(|name| name.ends_with(".wants"));
    let enabled = wants.flat_map(|name| names_in(&folder.join(name)));
    let found: BTreeSet<String> = enabled
        .filter(|name| name.starts_with(prefix) && name.ends_with(".timer"))
        .collect();
    found.into_iter().collect()
}

/// Timers, each with its folder.
fn timers(path: &Path) -> Result<Vec<(PathBuf, String)>, Failure> {
    if path.is_dir() {
        let mut found = Vec::new();
        for name in names_in(path).into_iter().filter(|name| name.ends_with(".timer")) {
            let mut of_template = Vec::new();
            if name.ends_with("@.timer") {
                of_template = instances(path, &name);
            }
            if of_template.is_empty() {
                of_template.push(name);
            }
            found.extend(of_template.into_iter().map(|name| (path.to_owned(), name)));
        }
        return Ok(found);
    }
    match path.file_name().and_then(|name| name.to_str()) {
        Some(name) if name.ends_with(".timer") => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            Ok(vec![(folder.unwrap_or(Path::new(".")).to_owned(), name.to_owned())])
        }
        _ => Err(Failure::usage(format!(
            "{} is neither a timer (*.timer) nor a folder of units",
            path.display()
        ))),
    }
}

/// A unit and its drop-ins: the first file of the name counts, and every drop-in, by its name; of an instance also those of its
/// template.
fn find(folders: &[&Path], unit: &str) -> Result<Vec<Source>, String> {
    let read = |path: PathBuf| {
        let text = read_text(&path, UNIT_BYTES_MAX)?;
        Ok::<_, String>(Source {
            file: path.display().to_string(),
            text,
        })
    };
    let names: Vec<String> = [Some(unit.to_owned()), systemd::template_of(unit)]
        .into_iter()
        .flatten()
        .collect();
    let mut places = names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let Some(main) = places.find(|path| path.exists()) else {
        return Ok(Vec::new());
    };
    let mut sources = vec![read(main)?];
    let mut drop_ins: Vec<(String, PathBuf)> = Vec::new();
    let of_unit = names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(format!("{name}.d"))));
    for folder in of_unit {
        for name in names_in(&folder).into_iter().filter(|name| name.ends_with(".conf")) {
            if drop_ins.iter().all(|(taken, _)| *taken != name) {
                let path = folder.join(&name);
                drop_ins.push((name, path));
            }
        }
    }
    drop_ins.sort();
    for (_, path) in drop_ins {
        sources.push(read(path)?);
    }
    Ok(sources)
}

/// Imports all timers of these paths.
pub fn import(paths: &[PathBuf], options: &Options) -> Result<Import, Failure> {
    let mut found = Vec::new();
    for path in paths {
        found.extend(timers(path)?);
    }
    if found.is_empty() {
        return Err(Failure::usage("there are no timers (*.timer) in what was given"));
    }
    let given: Vec<&Path> = paths
        .iter()
        .map(PathBuf::as_path)
        .filter(|path| path.is_dir())
        .collect();
    let mut names = Names::new(&options.prefix);
    let mut out = Import::default();
    for (folder, timer) in &found {
        let of_system = OF_SYSTEM.map(Path::new);
        let mut folders: Vec<&Path> = Vec::new();
        if of_system.contains(&folder.as_path()) {
            folders.extend(of_system);
        }
        folders.push(folder);
        folders.extend(&given);
        let mut known = BTreeSet::new();
        folders.retain(|folder| known.insert(*folder));
        systemd::read(timer, &|unit| find(&folders, unit), options, &mut names, &mut out);
    }
    Ok(out)
}
