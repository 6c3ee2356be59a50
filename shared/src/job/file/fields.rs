//! The fields of an entry, one by one, so that one that is wrong does not hide the others.

use crate::job::definition::{AlarmSpec, BroadcastSpec, CallbackSpec, Group, JobSpec, LimitsSpec, RetrySpec, RunAs};
use crate::trigger::calendar::CalendarSpec;
use crate::trigger::definition::TriggerSpec;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// What is wrong with a field.
#[derive(Debug)]
pub struct Found {
    /// Within the entry; empty for the entry itself.
    pub field: String,
    pub message: String,
    /// It is the key that is wrong, and not the value.
    pub at_key: bool,
}

impl Found {
    pub fn value(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
            at_key: false,
        }
    }
}

/// How much a word must be like one of a few for that to be meant.
const LIKENESS_MIN: f64 = 0.8;

fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    crate::near::nearest(word, known.iter().copied(), LIKENESS_MIN)
}

/// What to say of a key that is none of these.
pub fn unknown(key: &str, known: &[&str]) -> String {
    match nearest(key, known) {
        Some(near) => format!("is no field here. Did you mean {near:?}?"),
        None if known.is_empty() => "is no field here".into(),
        None => format!("is no field here; the fields are {}", known.join(", ")),
    }
}

const DURATIONS: [&str; 24] = [
    "cap",
    "delay",
    "every",
    "fixed_delay",
    "fixed_rate",
    "history_keep",
    "jitter",
    "kill_grace",
    "longer_than",
    "max_age",
    "misfire_threshold",
    "output_drain",
    "output_keep",
    "queue_timeout",
    "silence",
    "silence_timeout",
    "start_timeout",
    "succeeded_by",
    "succeeded_within",
    "timeout",
    "warn_before",
    "from",
    "until",
    "to",
];
const SIZES: [&str; 4] = ["memory_max", "core_size_max", "file_size_max", "output_max"];

/// The words in backquotes: how the messages of serde name fields and variants.
fn quoted(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

/// A message of serde in words for people. A test holds that the forms are still those.
fn words(key: &str, value: &Value, message: &str) -> Found {
    let quoted = quoted(message);
    if message.starts_with("unknown field") {
        let (field, known) = quoted
            .split_first()
            .map_or(("", &[][..]), |(first, rest)| (*first, rest));
        // Of the field itself, or of one within it.
        let field = if field == key {
            key.to_owned()
        } else {
            format!("{key}.{field}")
        };
        return Found {
            field,
            message: unknown(quoted.first().copied().unwrap_or_default(), known),
            at_key: true,
        };
    }
    if message.starts_with("unknown variant")
        && let Some((word, known)) = quoted.split_first()
    {
        let message = match nearest(word, known) {
            Some(near) => format!("{word:?} is none of {}. Did you mean {near:?}?", known.join(", ")),
            None => format!("{word:?} is none of {}", known.join(", ")),
        };
        return Found::value(key, message);
    }
    if message.contains("expected a string") || message.contains("expected a time") {
        if let Value::Number(number) = value {
            let message = if DURATIONS.contains(&key) {
                format!("{number} has no unit; write \"{number}s\" or \"{number}m\"")
            } else if SIZES.contains(&key) {
                format!("{number} has no unit; write \"{number}MiB\" or \"{number}GiB\"")
            } else {
                format!("{number} must be a text; write it in quotes: \"{number}\"")
            };
            return Found::value(key, message);
        }
        if let Value::Bool(value) = value {
            return Found::value(key, format!("{value} must be a text; write it in quotes: \"{value}\""));
        }
    }
    let message = message.split(" at line ").next().unwrap_or(message);
    let plain = message
        .replace("a sequence", "a list")
        .replace("a map", "a table")
        .replace("type: sequence", "type: list")
        .replace("type: map", "type: table")
        .replace('`', "");
    Found::value(key, plain)
}

/// Tries one value of one field of `T`.
fn try_field<T: DeserializeOwned>(key: &str, value: &Value) -> Result<(), Found> {
    let one = Map::from_iter([(key.to_owned(), value.clone())]);
    match serde_json::from_value::<T>(Value::Object(one)) {
        Ok(_) => Ok(()),
        Err(error) => Err(words(key, value, &error.to_string())),
    }
}

/// Looks into a field that has fields or entries of its own; `None`: it has not.
type Inner<'a> = &'a dyn Fn(&str, &Value, &mut Vec<Found>) -> Option<Value>;

/// The good fields of a table that becomes a `T`, each of whose fields may be left out.
fn table<T: DeserializeOwned>(value: &Value, found: &mut Vec<Found>, inner: Inner<'_>) -> Map<String, Value> {
    let Value::Object(map) = value else {
        found.push(Found::value("", "must be a table with fields"));
        return Map::new();
    };
    let mut good = Map::new();
    for (key, value) in map {
        let before = found.len();
        let checked = match inner(key, value, found) {
            Some(checked) => checked,
            None => {
                found.extend(try_field::<T>(key, value).err());
                value.clone()
            }
        };
        if found.len() == before {
            good.insert(key.clone(), checked);
        }
    }
    good
}

/// Puts what was found within `field` under its name.
fn within<R>(field: &str, found: &mut Vec<Found>, read: impl FnOnce(&mut Vec<Found>) -> R) -> R {
    let mut own = Vec::new();
    let result = read(&mut own);
    found.extend(own.into_iter().map(|one| Found {
        field: match one.field.as_str() {
            "" => field.to_owned(),
            inner if inner.starts_with('[') => format!("{field}{inner}"),
            inner => format!("{field}.{inner}"),
        },
        ..one
    }));
    result
}

fn plain<T: DeserializeOwned>(key: &str, value: &Value, found: &mut Vec<Found>) -> Option<Value> {
    let read = |found: &mut Vec<Found>| table::<T>(value, found, &|_, _, _| None);
    Some(Value::Object(within(key, found, read)))
}

fn must_be_text(key: &str, value: &Value) -> Option<Found> {
    match value {
        Value::String(_) => None,
        Value::Number(_) | Value::Bool(_) => {
            let message = format!("{value} must be a text; write it in quotes: \"{value}\"");
            Some(Found::value(key, message))
        }
        _ => Some(Found::value(key, "must be a text")),
    }
}

/// A list of texts or a table of texts, entry by entry.
fn texts(key: &str, value: &Value, found: &mut Vec<Found>) -> Option<Value> {
    within(key, found, |found| match value {
        Value::Array(items) => {
            let items = items.iter().enumerate();
            found.extend(items.filter_map(|(index, item)| must_be_text(&format!("[{index}]"), item)));
        }
        Value::Object(map) => found.extend(map.iter().filter_map(|(key, value)| must_be_text(key, value))),
        _ => {}
    });
    None
}

/// A list of tables; nothing at all is an empty one.
fn tables<T: Fields>(key: &str, value: &Value, found: &mut Vec<Found>) -> Option<Value> {
    let items = match value {
        Value::Array(items) => items,
        Value::Null => return Some(Value::Array(Vec::new())),
        _ => {
            let message = format!("must be a list of tables; write [[job.{key}]] in TOML, or \"- …\" in YAML");
            found.push(Found::value(key, message));
            return Some(Value::Null);
        }
    };
    let items = items.iter().enumerate().map(|(index, item)| {
        let field = format!("{key}[{index}]");
        Value::Object(within(&field, found, |found| T::check(item, found)))
    });
    Some(items.collect())
}

/// Something that stands in job files.
pub trait Fields: DeserializeOwned {
    /// The fields that have the form they must have.
    fn check(value: &Value, found: &mut Vec<Found>) -> Map<String, Value>;
}

impl Fields for TriggerSpec {
    fn check(value: &Value, found: &mut Vec<Found>) -> Map<String, Value> {
        table::<Self>(value, found, &|key, value, found| match key {
            "exclude_calendars" => texts(key, value, found),
            _ => None,
        })
    }
}

impl Fields for AlarmSpec {
    fn check(value: &Value, found: &mut Vec<Found>) -> Map<String, Value> {
        table::<Self>(value, found, &|_, _, _| None)
    }
}

impl Fields for CalendarSpec {
    fn check(value: &Value, found: &mut Vec<Found>) -> Map<String, Value> {
        table::<Self>(value, found, &|_, _, _| None)
    }
}

impl Fields for Group {
    fn check(value: &Value, found: &mut Vec<Found>) -> Map<String, Value> {
        table::<Self>(value, found, &|_, _, _| None)
    }
}

impl Fields for JobSpec {
    fn check(value: &Value, found: &mut Vec<Found>) -> Map<String, Value> {
        table::<Self>(value, found, &|key, value, found| match key {
            "retry" => plain::<RetrySpec>(key, value, found),
            "limits" => plain::<LimitsSpec>(key, value, found),
            "run_as" => plain::<RunAs>(key, value, found),
            "broadcast" => plain::<BroadcastSpec>(key, value, found),
            "callback" => plain::<CallbackSpec>(key, value, found),
            "trigger" => tables::<TriggerSpec>(key, value, found),
            "alarm" => tables::<AlarmSpec>(key, value, found),
            "command" | "tags" | "env" | "require" if value.is_array() || value.is_object() => {
                let before = found.len();
                texts(key, value, found);
                // Whether it must be a list or a table is said by its own type.
                (found.len() > before).then_some(Value::Null)
            }
            _ => None,
        })
    }
}

pub fn job(value: &Value, found: &mut Vec<Found>) -> Map<String, Value> {
    JobSpec::check(value, found)
}
