//! A file as JSON values, and where each of them stands.

use serde_json::Value;
use std::collections::BTreeMap;

/// Both count from 1; the column counts characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub value: Value,
    /// By path: `job[0].retry.delay`.
    keys: BTreeMap<String, Place>,
    values: BTreeMap<String, Place>,
}

/// The path of a key within a table.
pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

impl Tree {
    pub fn add_key(&mut self, path: &str, place: Place) {
        self.keys.insert(path.to_owned(), place);
    }

    pub fn add_value(&mut self, path: &str, place: Place) {
        self.values.insert(path.to_owned(), place);
    }

    pub fn key_place(&self, path: &str) -> Option<Place> {
        self.keys.get(path).or_else(|| self.values.get(path)).copied()
    }

    pub fn value_place(&self, path: &str) -> Option<Place> {
        self.values.get(path).or_else(|| self.keys.get(path)).copied()
    }

    /// The place of a field, or of what it would stand in when it is missing.
    pub fn nearest_place(&self, path: &str, field: &str) -> Option<Place> {
        let mut field = field;
        loop {
            let full = join(path, field);
            if let Some(place) = self.value_place(full.trim_end_matches('.')) {
                return Some(place);
            }
            field = match field.rfind(['.', '[']) {
                Some(cut) => &field[..cut],
                None if field.is_empty() => return self.value_place(path),
                None => "",
            };
        }
    }
}

/// Where the lines of a text begin.
pub struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub fn new(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
        Self {
            text,
            starts: starts.collect(),
        }
    }

    pub fn place(&self, offset: usize) -> Place {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.starts.partition_point(|&start| start <= offset);
        let start = self.starts[line.saturating_sub(1)];
        Place {
            line,
            column: self.text[start..offset].chars().count() + 1,
        }
    }
}
