//! Job files: TOML or YAML, with any number of jobs, calendars and groups. Everything that is wrong is said, with line and
//! column, and what is right is read all the same.

mod fields;
mod set;
mod toml;
pub(super) mod tree;
pub(super) mod yaml;

pub use fields::unknown as unknown_field;
pub use set::{CheckContext, Checked, CheckedJob, Definitions, Set, Written};
pub use tree::Place;

use super::definition::{Group, JobSpec};
use crate::error::Invalid;
use crate::limits::JOB_FILE_BYTES_MAX;
use crate::trigger::calendar::CalendarSpec;
use serde_json::{Map, Value};
use std::fmt;
use tree::Tree;

/// The form of files that this version reads.
pub const FORMAT: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    Toml,
    Yaml,
}

impl Syntax {
    /// By the ending of a file's name.
    pub fn of_name(name: &str) -> Option<Self> {
        match name.rsplit_once('.').map(|(_, ending)| ending) {
            Some("toml") => Some(Self::Toml),
            Some("yaml" | "yml") => Some(Self::Yaml),
            _ => None,
        }
    }
}

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub place: Option<Place>,
    /// What it is about: `job nightly-backup`; empty for the file itself.
    pub subject: String,
    /// Empty where the file is no file of this kind at all.
    pub field: String,
    pub message: String,
}

impl fmt::Display for Fault {
    /// `14:1: job nightly-backup: timeout: …`; a file's name goes before it, with a colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = self.place {
            write!(f, "{}:{}: ", place.line, place.column)?;
        } else {
            f.write_str(" ")?;
        }
        for part in [&self.subject, &self.field] {
            if !part.is_empty() {
                write!(f, "{part}: ")?;
            }
        }
        f.write_str(&self.message)
    }
}

/// One entry of a file, with the place of each of its fields.
#[derive(Clone, Debug)]
pub struct Entry<T> {
    pub spec: T,
    /// Where it stands in the file: `job[2]`.
    path: String,
}

/// A file, as far as it could be read.
#[derive(Clone, Debug, Default)]
pub struct JobFile {
    pub jobs: Vec<Entry<JobSpec>>,
    pub calendars: Vec<Entry<CalendarSpec>>,
    pub groups: Vec<Entry<Group>>,
    pub faults: Vec<Fault>,
    tree: Tree,
}

/// `job nightly-backup`, or `job 3` for one without a name.
fn subject(kind: &str, value: &Value, index: usize) -> String {
    match value.get("name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => format!("{kind} {name}"),
        _ => format!("{kind} {}", index + 1),
    }
}

/// The entries of a list of tables. A single table is a mistake that has a plain remedy.
fn list<'a>(file: &mut JobFile, root: &'a Map<String, Value>, kind: &str) -> Vec<&'a Value> {
    match root.get(kind) {
        None => Vec::new(),
        Some(Value::Array(items)) => items.iter().collect(),
        Some(_) => {
            let message = format!("must be a list of tables; write [[{kind}]] in TOML, or \"- name: …\" in YAML");
            file.fault(String::new(), kind, kind, message);
            Vec::new()
        }
    }
}

impl JobFile {
    /// A file that could not be read at all.
    pub fn unreadable(cause: impl Into<String>) -> Self {
        let mut file = Self::default();
        file.fault(String::new(), "", "", cause);
        file
    }

    /// Reads a file. It never fails as a whole: [`JobFile::faults`] says what is wrong.
    pub fn read(text: &str, syntax: Syntax) -> Self {
        let mut file = Self::default();
        if text.len() > JOB_FILE_BYTES_MAX {
            file.fault(
                String::new(),
                "",
                "",
                format!(
                    "has {} bytes; at most {JOB_FILE_BYTES_MAX} are read. Cut it into several",
                    text.len()
                ),
            );
            return file;
        }
        let tree = match syntax {
            Syntax::Toml => toml::parse(text),
            Syntax::Yaml => yaml::parse(text),
        };
        match tree {
            Ok(tree) => file.tree = tree,
            Err(faults) => {
                file.faults = faults;
                return file;
            }
        }
        let root = match std::mem::take(&mut file.tree.value) {
            Value::Object(root) => root,
            Value::Null => Map::new(),
            _ => {
                let message = "must be a table with job, calendar or concurrency_group";
                file.fault(String::new(), "", "", message);
                return file;
            }
        };
        file.read_root(&root);
        file.faults.sort_by_key(|fault| fault.place);
        file
    }

    /// `path` is where it stands, `field` how it is called within its entry.
    fn fault(&mut self, subject: String, path: &str, field: &str, message: impl Into<String>) {
        self.faults.push(Fault {
            place: self.tree.value_place(path),
            subject,
            field: field.to_owned(),
            message: message.into(),
        });
    }

    fn read_root(&mut self, root: &Map<String, Value>) {
        const KEYS: [&str; 5] = ["format", "defaults", "job", "calendar", "concurrency_group"];
        for key in root.keys().filter(|key| !KEYS.contains(&key.as_str())) {
            self.faults.push(Fault {
                place: self.tree.key_place(key),
                subject: String::new(),
                field: key.clone(),
                message: fields::unknown(key, &KEYS),
            });
        }
        match root.get("format").map(Value::as_u64) {
            None | Some(Some(FORMAT)) => {}
            Some(_) => {
                let message = format!("is not known; this version reads format = {FORMAT}");
                self.fault(String::new(), "format", "format", message);
            }
        }
        let defaults = match root.get("defaults") {
            None => Map::new(),
            Some(value) => self.read_defaults(value),
        };
        for (index, value) in list(self, root, "calendar").into_iter().enumerate() {
            if let Some(entry) = self.read_entry::<CalendarSpec>("calendar", index, value, &Map::new()) {
                self.calendars.push(entry);
            }
        }
        for (index, value) in list(self, root, "concurrency_group").into_iter().enumerate() {
            if let Some(entry) = self.read_entry::<Group>("concurrency_group", index, value, &Map::new()) {
                self.groups.push(entry);
            }
        }
        for (index, value) in list(self, root, "job").into_iter().enumerate() {
            if let Some(entry) = self.read_entry::<JobSpec>("job", index, value, &defaults) {
                self.jobs.push(entry);
            }
        }
    }

    /// What every job of the file has unless it says otherwise.
    fn read_defaults(&mut self, value: &Value) -> Map<String, Value> {
        let mut found = Vec::new();
        let mut good = fields::job(value, &mut found);
        for own in ["name", "command", "shell", "script", "trigger"] {
            if good.remove(own).is_some() {
                found.push(fields::Found::value(own, "belongs to one job; write it there"));
            }
        }
        self.add_found("defaults", "defaults", found);
        good
    }

    fn add_found(&mut self, path: &str, subject: &str, found: Vec<fields::Found>) {
        for found in found {
            let full = match found.field.as_str() {
                "" => path.to_owned(),
                field => format!("{path}.{field}"),
            };
            let place = if found.at_key {
                self.tree.key_place(&full)
            } else {
                self.tree.value_place(&full)
            };
            self.faults.push(Fault {
                place,
                subject: subject.to_owned(),
                field: found.field,
                message: found.message,
            });
        }
    }

    /// An entry whose fields all have the form that they must have; what they say is checked later.
    fn read_entry<T: fields::Fields>(
        &mut self,
        kind: &str,
        index: usize,
        value: &Value,
        defaults: &Map<String, Value>,
    ) -> Option<Entry<T>> {
        let path = format!("{kind}[{index}]");
        let mut found = Vec::new();
        let mut good = T::check(value, &mut found);
        for (key, default) in defaults {
            good.entry(key.clone()).or_insert_with(|| default.clone());
        }
        let spec = if found.is_empty() {
            let spec = serde_json::from_value(Value::Object(good));
            spec.map_err(|error| found.push(fields::Found::value("", error.to_string())))
                .ok()
        } else {
            None
        };
        self.add_found(&path, &subject(kind, value, index), found);
        spec.map(|spec| Entry { spec, path })
    }

    /// A fault of an entry, with its place in this file.
    pub fn locate<T>(&self, entry: &Entry<T>, subject: &str, fault: Invalid) -> Fault {
        Fault {
            place: self.tree.nearest_place(&entry.path, &fault.field),
            subject: subject.to_owned(),
            field: fault.field,
            message: fault.message,
        }
    }
}

#[cfg(test)]
mod tests;
