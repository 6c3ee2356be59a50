//! One line of a batch: a text for the shell, or a JSON object with options.

use crate::failure::{Failure, io_cause};
use serde_json::{Map, Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use systole_shared::clock::now_ms;
use systole_shared::error::Code;
use systole_shared::id::Target;
use systole_shared::job::file::unknown_field;
use systole_shared::json::check_keys;
use systole_shared::limits::COMMAND_BYTES_MAX;
use systole_shared::task::TaskSpec;
use systole_shared::task::signal::parse_signal;
use systole_shared::time::{parse_duration, parse_time};

/// More cannot be a command.
const LINE_BYTES_MAX: usize = 2 * COMMAND_BYTES_MAX;

/// Fields that are taken as the specification has them.
const PLAIN: [&str; 14] = [
    "command",
    "name",
    "queue",
    "require",
    "tags",
    "priority",
    "dir",
    "env_file",
    "limits",
    "umask",
    "user",
    "group",
    "on_disconnect",
    "on_runner_restart",
];
/// Durations with a unit; the specification has them in ms.
const DURATIONS: [&str; 7] = [
    "delay",
    "timeout",
    "queue_timeout",
    "start_timeout",
    "silence_timeout",
    "warn_before",
    "kill_grace",
];
/// Those that [`set`] reads one by one.
const OTHERS: [&str; 9] = [
    "shell",
    "callback",
    "runner",
    "at",
    "kill_signal",
    "warn_signal",
    "env",
    "retry",
    "retry_delay",
];

pub fn too_long() -> Failure {
    Failure::usage(format!("is longer than {} MiB", LINE_BYTES_MAX >> 20)).with_code(Code::InvalidField)
}

/// Lines of a file or of stdin, counted from 1.
pub struct Lines {
    reader: Box<dyn BufRead + Send>,
    name: String,
    number: u64,
}

pub enum Read {
    Line(u64),
    /// It was read over.
    TooLong(u64),
    End,
}

impl Lines {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let reader: Box<dyn BufRead + Send> = if path == Path::new("-") {
            Box::new(BufReader::with_capacity(1 << 16, std::io::stdin()))
        } else {
            let file = std::fs::File::open(path)
                .map_err(|error| Failure::usage(format!("--batch: {name} cannot be read: {}", io_cause(&error))))?;
            Box::new(BufReader::with_capacity(1 << 16, file))
        };
        Ok(Self {
            reader,
            name,
            number: 0,
        })
    }

    /// The next line, without its end, into `text`.
    pub fn next(&mut self, text: &mut Vec<u8>) -> Result<Read, Failure> {
        text.clear();
        let (mut any, mut long) = (false, false);
        loop {
            let read = self.reader.fill_buf().map_err(|error| {
                Failure::usage(format!("--batch: {} cannot be read: {}", self.name, io_cause(&error)))
            })?;
            if read.is_empty() {
                break;
            }
            any = true;
            let end = read.iter().position(|&b| b == b'\n');
            let part = &read[..end.unwrap_or(read.len())];
            long |= text.len() + part.len() > LINE_BYTES_MAX;
            if !long {
                text.extend_from_slice(part);
            }
            let taken = end.map_or(read.len(), |end| end + 1);
            self.reader.consume(taken);
            if end.is_some() {
                break;
            }
        }
        if !any {
            return Ok(Read::End);
        }
        self.number += 1;
        if text.last() == Some(&b'\r') {
            text.pop();
        }
        Ok(if long {
            Read::TooLong(self.number)
        } else {
            Read::Line(self.number)
        })
    }
}

/// What all lines have unless they say otherwise.
pub struct Base {
    spec: TaskSpec,
    value: Map<String, Value>,
}

impl Base {
    pub fn new(mut spec: TaskSpec, batch: &str) -> Self {
        spec.batch = Some(batch.to_owned());
        let value = match serde_json::to_value(&spec) {
            Ok(Value::Object(map)) => map,
            _ => Map::new(), // A specification is an object; see the test.
        };
        Self { spec, value }
    }

    /// The task of a line; `None` for one that says nothing.
    pub fn task(&self, number: u64, line: &[u8]) -> Result<Option<TaskSpec>, Failure> {
        let bad = |message: String| Failure::usage(message).with_code(Code::InvalidField);
        let text = std::str::from_utf8(line).map_err(|_| bad("is not valid UTF-8".into()))?;
        let trimmed = text.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return Ok(None);
        }
        let mut spec = if is_object(trimmed) {
            self.object(trimmed).map_err(bad)?
        } else {
            TaskSpec {
                command: shell(text),
                ..self.spec.clone()
            }
        };
        spec.batch_line = Some(number);
        let spec = spec.with_defaults();
        spec.validate(now_ms())?;
        Ok(Some(spec))
    }

    fn object(&self, text: &str) -> Result<TaskSpec, String> {
        check_keys(text.as_bytes(), "line").map_err(|doubled| doubled.message)?;
        let fields: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("is no JSON object on one line: {error}"))?;
        let mut spec = self.value.clone();
        let mut programs = 0;
        for (name, value) in &fields {
            programs += u32::from(name == "command" || name == "shell");
            set(&mut spec, name, value.clone())?;
        }
        if programs != 1 {
            return Err("has to have either command (an array) or shell (a text)".into());
        }
        serde_json::from_value(Value::Object(spec)).map_err(|error| match self.misfit(&fields) {
            Some(field) => format!("{field}: does not fit: {error}"),
            None => format!("does not fit: {error}"),
        })
    }

    /// The first field that is wrong by itself.
    fn misfit<'a>(&self, fields: &'a Map<String, Value>) -> Option<&'a str> {
        let alone = |(name, value): (&'a String, &Value)| {
            let mut spec = self.value.clone();
            set(&mut spec, name, value.clone()).ok()?;
            let wrong = serde_json::from_value::<TaskSpec>(Value::Object(spec)).is_err();
            wrong.then_some(name.as_str())
        };
        fields.iter().find_map(alone)
    }
}

/// `{"` begins no shell text: there `{` is a word of its own. `{ "a b" c; }` is a group of commands, but `{ "a":` is none that
/// somebody would write.
fn is_object(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('{') else {
        return false;
    };
    let key = rest
        .trim_start()
        .strip_prefix('"')
        .and_then(|rest| rest.split_once('"'));
    rest.starts_with('"') || key.is_some_and(|(_, rest)| rest.trim_start().starts_with(':'))
}

fn shell(text: &str) -> Vec<String> {
    ["/bin/sh", "-c", text].map(str::to_owned).to_vec()
}

/// Puts one field into a specification, in the form that the specification has.
fn set(spec: &mut Map<String, Value>, name: &str, value: Value) -> Result<(), String> {
    let word = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        other => Err(format!("{name}: {other} is no text")),
    };
    let mut put = |name: &str, value: Value| {
        spec.insert(name.to_owned(), value);
        Ok(())
    };
    match name {
        name if PLAIN.contains(&name) => put(name, value),
        name if DURATIONS.contains(&name) => {
            // A bare number is refused with what to write.
            let text = if value.is_number() {
                value.to_string()
            } else {
                word(&value)?
            };
            let ms = parse_duration(&text).map_err(|error| format!("{name}: {error}"))?;
            put(&format!("{name}_ms"), json!(ms))
        }
        "shell" => put("command", json!(shell(&word(&value)?))),
        "callback" => put("callback_url", value),
        "runner" => {
            let target = Target::parse(&word(&value)?, "runner").map_err(|invalid| invalid.to_string())?;
            put("target", json!(target))
        }
        "at" => {
            let at = parse_time(&word(&value)?, now_ms()).map_err(|error| format!("at: {error}"))?;
            put("run_at_ms", json!(at))
        }
        "kill_signal" | "warn_signal" => {
            let signal = parse_signal(&word(&value)?).map_err(|error| format!("{name}: {error}"))?;
            put(name, json!(signal))
        }
        "env" => {
            let Value::Object(vars) = value else {
                return Err("env: is no object of texts".into());
            };
            put(
                "env",
                Value::Array(vars.into_iter().map(|(name, value)| json!([name, value])).collect()),
            )
        }
        "retry" | "retry_delay" => {
            let mut retry = spec.get("retry").cloned().unwrap_or_else(|| json!({}));
            if name == "retry" {
                retry["max_retries"] = value;
            } else {
                let delay = parse_duration(&word(&value)?).map_err(|error| format!("retry_delay: {error}"))?;
                retry["delay_ms"] = json!(delay);
            }
            spec.insert("retry".into(), retry);
            Ok(())
        }
        _ => {
            let known: Vec<&str> = PLAIN.into_iter().chain(DURATIONS).chain(OTHERS).collect();
            Err(format!("{name:?} {}", unknown_field(name, &known)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Base {
        let spec = TaskSpec {
            queue: "q".into(),
            timeout_ms: Some(1_000),
            ..TaskSpec::default()
        };
        Base::new(spec, "b")
    }

    fn task(line: &str) -> TaskSpec {
        base().task(7, line.as_bytes()).expect("valid").expect("a task")
    }

    fn wrong(line: &str) -> String {
        base().task(7, line.as_bytes()).expect_err("wrong").to_string()
    }

    #[test]
    fn a_line_is_a_text_for_the_shell() {
        let spec = task("gzip -k 'a b' | wc  ");
        assert_eq!(spec.command, ["/bin/sh", "-c", "gzip -k 'a b' | wc  "]);
        assert_eq!((spec.queue.as_str(), spec.timeout_ms), ("q", Some(1_000)));
        assert_eq!((spec.batch.as_deref(), spec.batch_line), (Some("b"), Some(7)));
        for group in ["{ echo a; }", "{ \"a b\" c; }"] {
            assert_eq!(task(group).command[2], group);
        }
        for nothing in ["", "   ", "# a comment", "  # too"] {
            assert_eq!(base().task(1, nothing.as_bytes()).expect("valid"), None);
        }
        assert!(wrong("a\0b").contains("NUL"), "{}", wrong("a\0b"));
        assert!(base().task(1, b"\xff").is_err());
    }

    #[test]
    fn an_object_overrides_what_is_said_for_all() {
        let spec = task(
            r#"{"command":["a","b c"],"timeout":"5m","require":{"gpu":"1"},"env":{"A":"x"},"retry":2,"retry_delay":"1s","runner":"db-01/3","tags":["t"],"kill_signal":"INT"}"#,
        );
        assert_eq!(spec.command, ["a", "b c"]);
        assert_eq!((spec.timeout_ms, spec.queue.as_str()), (Some(300_000), "q"));
        assert_eq!(spec.require.get("gpu").map(String::as_str), Some("1"));
        assert_eq!(spec.env, [("A".to_owned(), "x".to_owned())]);
        assert_eq!((spec.retry.max_retries, spec.retry.delay_ms), (2, 1_000));
        assert_eq!(spec.target.map(|target| target.to_string()), Some("db-01/3".into()));
        assert_eq!((spec.kill_signal, spec.tags.len()), (2, 1));
        assert_eq!(task(r#"{"shell":"echo a"}"#).command[2], "echo a");
        assert_eq!(task(r#"{ "command" : ["a"] }"#).command, ["a"]);
        assert_eq!(
            task(r#"{"shell":"a","on_disconnect":"kill","kill_grace":"0s"}"#).kill_grace_ms,
            Some(0)
        );
    }

    #[test]
    fn a_wrong_object_names_its_field() {
        for (line, part) in [
            (
                r#"{"command":["a"],"timout":"5s"}"#,
                "\"timout\" is no field here. Did you mean \"timeout\"?",
            ),
            (r#"{"command":["a"],"no such":1}"#, "the fields are command, name, "),
            (r#"{"command":["a"],"timeout":"5"}"#, "timeout: "),
            (
                r#"{"command":["a"],"timeout":5}"#,
                "timeout: \"5\" has no unit; write \"5s\" or \"5m\"",
            ),
            (r#"{"command":"a"}"#, "command: does not fit: "),
            (r#"{"command":["a"],"tags":"t"}"#, "tags: does not fit: "),
            (r#"{"command":["a"],"retry":"2"}"#, "retry: does not fit: "),
            (r#"{"name":"a"}"#, "either command"),
            (r#"{"command":["a"],"shell":"b"}"#, "either command"),
            (r#"{"command":["a"],"priority":77}"#, "priority"),
            (r#"{"command":["a"]"#, "no JSON object"),
            (r#"{"command":["a"],"runner":"a/b"}"#, "runner"),
            (r#"{"command":["a"],"env":["A=b"]}"#, "env: "),
            (
                r#"{"command":["a"],"name":"b","name":"c"}"#,
                "the key \"name\" is given twice",
            ),
            (
                r#"{"command":["a"],"require":{"a":"1","a":"2"}}"#,
                "\"require.a\" is given twice",
            ),
        ] {
            assert!(wrong(line).contains(part), "{line}: {}", wrong(line));
        }
    }

    #[test]
    fn all_fields_that_are_named_are_read() {
        for name in PLAIN.into_iter().chain(DURATIONS).chain(OTHERS) {
            let said = set(&mut Map::new(), name, Value::Null).err().unwrap_or_default();
            assert!(!said.contains("is no field here"), "{said}");
        }
    }

    #[test]
    fn lines_are_counted_and_bounded() {
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        let all = format!("a\r\n\n{long}\nlast");
        let mut lines = Lines {
            reader: Box::new(std::io::Cursor::new(all.into_bytes())),
            name: "test".into(),
            number: 0,
        };
        let mut text = Vec::new();
        let mut seen = Vec::new();
        loop {
            match lines.next(&mut text).expect("read") {
                Read::Line(number) => seen.push((number, String::from_utf8(text.clone()).expect("text"))),
                Read::TooLong(number) => seen.push((number, "too long".into())),
                Read::End => break,
            }
        }
        let expected = [(1, "a"), (2, ""), (3, "too long"), (4, "last")];
        assert_eq!(seen, expected.map(|(n, text)| (n, text.to_owned())));
    }
}
