//! Definitions as TOML, for people to go on with.

use super::definition::JobSpec;
use crate::trigger::calendar::CalendarSpec;
use serde_json::{Map, Value};

/// A text as TOML writes it: as it is where it can be, else escaped.
pub fn text(text: &str) -> String {
    let control = |c: char| c.is_control();
    if text.contains('\n')
        && !text.contains("'''")
        && !text.ends_with('\'')
        && !text.chars().any(|c| control(c) && c != '\n')
    {
        // A newline after the opening quotes is not part of the text.
        return format!("'''\n{text}'''");
    }
    if text.contains(['"', '\\']) && !text.contains('\'') && !text.chars().any(control) {
        return format!("'{text}'");
    }
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn key(key: &str) -> String {
    let bare = !key.is_empty()
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if bare { key.to_owned() } else { text(key) }
}

fn value(value: &Value) -> String {
    match value {
        Value::String(content) => text(content),
        Value::Array(items) => format!("[{}]", items.iter().map(self::value).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let entries: Vec<String> = map
                .iter()
                .map(|(name, inner)| format!("{} = {}", key(name), self::value(inner)))
                .collect();
            format!("{{ {} }}", entries.join(", "))
        }
        // TOML has no null; a definition has none.
        other => other.to_string(),
    }
}

/// What people look for first stands first.
const FIRST: [&str; 8] = [
    "name",
    "description",
    "owner",
    "paused",
    "command",
    "shell",
    "dir",
    "run_as",
];

fn fields(out: &mut String, map: &Map<String, Value>) {
    let first = FIRST.iter().filter_map(|name| map.get_key_value(*name));
    let rest = map.iter().filter(|(name, _)| !FIRST.contains(&name.as_str()));
    for (name, inner) in first.chain(rest) {
        out.push_str(&format!("{} = {}\n", key(name), value(inner)));
    }
}

/// A `[[job]]` with its triggers and alarms.
pub fn job(spec: &JobSpec) -> String {
    let Value::Object(mut map) = spec.to_value() else {
        return String::new();
    };
    let mut out = String::from("[[job]]\n");
    let lists = ["trigger", "alarm"].map(|kind| (kind, map.remove(kind)));
    fields(&mut out, &map);
    for (kind, list) in lists {
        for item in list.iter().flat_map(|list| list.as_array().into_iter().flatten()) {
            if let Value::Object(item) = item {
                out.push_str(&format!("\n[[job.{kind}]]\n"));
                fields(&mut out, item);
            }
        }
    }
    out
}

/// A `[[calendar]]`.
pub fn calendar(spec: &CalendarSpec) -> String {
    let mut out = String::from("[[calendar]]\n");
    if let Ok(Value::Object(map)) = serde_json::to_value(spec) {
        fields(&mut out, &map);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::file::{JobFile, Syntax};

    #[test]
    fn what_is_written_reads_back_the_same() {
        let spec: JobSpec = serde_json::from_str(
            r#"{"name":"a","shell":"it's \"x\" \\ $Y\n\tz\u0001","command":["a b","'","\"","multi\nline","'''\n"],"env":{"A.b":"\u007f","C":"ü"},
                "data":{"n":1,"f":1.5,"t":true,"deep":{"x":[1,"y"]}},"retry":{"policy":"fixed","max_retries":2},
                "trigger":[{"name":"t","cron":"0 1 * * *","at":"2027-01-01T00:00:00Z"},{"name":"u","manual":true}],"alarm":[{"when":"failure","to":["x"]}]}"#,
        )
        .expect("spec");
        let written = job(&spec);
        let file = JobFile::read(&written, Syntax::Toml);
        assert_eq!(file.faults, [], "{written}");
        assert_eq!(file.jobs[0].spec, spec, "{written}");
    }

    #[test]
    fn a_calendar_reads_back_the_same() {
        let spec: CalendarSpec = serde_json::from_str(
            r#"{"name":"c","zone":"Europe/Berlin","dates":["2026-12-24"],"ranges":[{"from":"2027-01-01","to":"2027-01-06"}],"weekly":["sat"]}"#,
        )
        .expect("spec");
        let file = JobFile::read(&calendar(&spec), Syntax::Toml);
        assert_eq!(file.faults, []);
        assert_eq!(file.calendars[0].spec, spec);
    }
}
