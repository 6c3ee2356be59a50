//! `{{ … }}` in the command of a job: an element that is one of them as a whole becomes one argument. Never within a longer text,
//! which may be the text of a shell, and so a way to run what somebody wrote into the data.

use super::data::text_of;
use crate::error::Invalid;
use crate::trigger::words;
use crate::trigger::zone::Zone;
use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    ScheduledTime,
    ScheduledDate,
    Data(String),
    ShardIndex,
    ShardTotal,
    TaskId,
}

const NAMES: &str = "scheduled_time, scheduled_date, data.KEY, shard.index, shard.total, task_id";

/// What a template may say. What is not known yet is `None`.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub scheduled_ms: i64,
    /// That of the trigger.
    pub zone: &'a Zone,
    pub data: &'a Map<String, Value>,
    /// Index and total.
    pub shard: Option<(u32, u32)>,
    pub task_id: Option<i64>,
}

/// RFC 3339 with the zone's offset; milliseconds where the time has some.
pub fn scheduled_time(zone: &Zone, at_ms: i64) -> String {
    let text = words::rfc3339(zone, at_ms.div_euclid(1_000));
    match at_ms.rem_euclid(1_000) {
        0 => text,
        ms => format!("{}.{ms:03}{}", &text[..19], &text[19..]),
    }
}

impl Template {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "scheduled_time" => Some(Self::ScheduledTime),
            "scheduled_date" => Some(Self::ScheduledDate),
            "shard.index" => Some(Self::ShardIndex),
            "shard.total" => Some(Self::ShardTotal),
            "task_id" => Some(Self::TaskId),
            _ => name
                .strip_prefix("data.")
                .filter(|key| !key.is_empty())
                .map(|key| Self::Data(key.to_owned())),
        }
    }

    /// The variable of the child that says the same.
    pub fn variable(&self) -> String {
        match self {
            Self::ScheduledTime | Self::ScheduledDate => "SYSTOLE_SCHEDULED_TIME".into(),
            Self::Data(key) => super::data::variable(key),
            Self::ShardIndex => "SYSTOLE_SHARD_INDEX".into(),
            Self::ShardTotal => "SYSTOLE_SHARD_TOTAL".into(),
            Self::TaskId => "SYSTOLE_TASK_ID".into(),
        }
    }

    fn value(&self, facts: &Facts<'_>) -> Option<String> {
        match self {
            Self::ScheduledTime => Some(scheduled_time(facts.zone, facts.scheduled_ms)),
            Self::ScheduledDate => Some(scheduled_time(facts.zone, facts.scheduled_ms)[..10].to_owned()),
            Self::Data(key) => facts.data.get(key).map(text_of),
            Self::ShardIndex => facts.shard.map(|(index, _)| index.to_string()),
            Self::ShardTotal => facts.shard.map(|(_, total)| total.to_string()),
            Self::TaskId => facts.task_id.map(|id| id.to_string()),
        }
    }
}

/// Letters, digits, `_`, `-` and dots between them: what the name of a template can be. Other texts in braces, such as
/// the formats of other programs, are not ours.
fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    bytes.first().is_some_and(|b| b.is_ascii_alphabetic()) && bytes.iter().all(|&b| word(b) || b == b'.')
}

/// The first known template anywhere in a text.
fn find(text: &str) -> Option<Template> {
    text.match_indices("{{").find_map(|(at, _)| {
        let rest = &text[at + 2..];
        let name = rest[..rest.find("}}")?].trim();
        Template::parse(name).filter(|_| is_name(name))
    })
}

/// Refuses templates in the text of a shell or a script.
pub fn check_text(text: &str, field: &str) -> Result<(), Invalid> {
    match find(text) {
        None => Ok(()),
        Some(found) => Err(Invalid::new(
            field,
            format!(
                "{{{{ … }}}} is not replaced here, where it could run what stands in the data; write \"${}\"",
                found.variable()
            ),
        )),
    }
}

/// The template that an element of a command is, if it is one.
pub fn parse_element(text: &str, field: &str) -> Result<Option<Template>, Invalid> {
    let inner = text
        .strip_prefix("{{")
        .and_then(|rest| rest.strip_suffix("}}"))
        .map(str::trim);
    match inner {
        Some(name) if is_name(name) => Template::parse(name)
            .map(Some)
            .ok_or_else(|| Invalid::new(field, format!("{text:?} is no template; they are {NAMES}"))),
        _ => match find(text) {
            None => Ok(None),
            Some(found) => Err(Invalid::new(
                field,
                format!(
                    "{text:?} has a template within a longer text; make it an element of its own, or use the variable {} in the program",
                    found.variable()
                ),
            )),
        },
    }
}

const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "busybox"];

/// The templates of a command: position and what stands there.
pub fn parse_command(command: &[String]) -> Result<Vec<(usize, Template)>, Vec<Invalid>> {
    let mut found = Vec::new();
    let mut faults = Vec::new();
    let program = command.first().map_or("", String::as_str);
    let is_shell = SHELLS.contains(&program.rsplit('/').next().unwrap_or(program));
    let text_of_shell = is_shell
        .then(|| command.iter().position(|element| element == "-c").map(|at| at + 1))
        .flatten();
    for (index, element) in command.iter().enumerate() {
        let field = format!("command[{index}]");
        match parse_element(element, &field) {
            Ok(None) => {}
            Ok(Some(template)) if index == 0 => faults.push(Invalid::new(
                field,
                format!(
                    "the program itself must be given, not {{{{ … }}}}; {} is for its arguments",
                    template.variable()
                ),
            )),
            Ok(Some(template)) if text_of_shell == Some(index) => faults.push(Invalid::new(
                field,
                format!(
                    "would be run as the text of a shell; write \"${}\" in it",
                    template.variable()
                ),
            )),
            Ok(Some(template)) => found.push((index, template)),
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}

/// Puts values for templates.
pub fn expand(command: &mut [String], templates: &[(usize, Template)], facts: &Facts<'_>) -> Result<(), Invalid> {
    for (index, template) in templates {
        let field = format!("command[{index}]");
        let Some(value) = template.value(facts) else {
            let message = match template {
                Template::Data(key) => {
                    format!(
                        "needs data.{key}, which neither job nor trigger nor request has; give it, or a default in the job's data"
                    )
                }
                _ => format!("{} is not known here", template.variable()),
            };
            return Err(Invalid::new(field, message));
        };
        if value.contains('\0') {
            return Err(Invalid::new(
                field,
                "the value contains a NUL byte, which no program can be given",
            ));
        }
        if let Some(element) = command.get_mut(*index) {
            *element = value;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2027-03-28T01:00:00Z, the clock change of Berlin.
    const GAP: i64 = 1_806_195_600_000;

    fn command(elements: &[&str]) -> Vec<String> {
        elements.iter().map(|&element| element.to_owned()).collect()
    }

    #[test]
    fn whole_elements_are_replaced_each_by_one_argument() {
        let data = serde_json::json!({"mode": "a b; $(rm -rf /)", "n": 7, "list": [1, "x"], "no": null});
        let data = data.as_object().expect("object");
        let berlin = Zone::parse("Europe/Berlin").expect("zone");
        let facts = Facts {
            scheduled_ms: GAP,
            zone: &berlin,
            data,
            shard: Some((2, 5)),
            task_id: Some(1842),
        };
        let mut command = command(&[
            "run",
            "{{ scheduled_time }}",
            "{{scheduled_date}}",
            "{{ data.mode }}",
            "{{ data.n }}",
            "{{ data.list }}",
            "{{ data.no }}",
            "{{ shard.index }}",
            "{{ shard.total }}",
            "{{ task_id }}",
            "{{.State.Status}}",
            "{{json .Mounts}}",
            "plain",
        ]);
        let templates = parse_command(&command).expect("templates");
        expand(&mut command, &templates, &facts).expect("expands");
        assert_eq!(
            command,
            [
                "run",
                "2027-03-28T03:00:00+02:00",
                "2027-03-28",
                "a b; $(rm -rf /)",
                "7",
                "[1,\"x\"]",
                "",
                "2",
                "5",
                "1842",
                "{{.State.Status}}",
                "{{json .Mounts}}",
                "plain"
            ]
        );
    }

    #[test]
    fn times_with_milliseconds_keep_them() {
        assert_eq!(scheduled_time(&Zone::utc(), GAP + 7), "2027-03-28T01:00:00.007+00:00");
        assert_eq!(scheduled_time(&Zone::utc(), GAP), "2027-03-28T01:00:00+00:00");
    }

    #[test]
    fn templates_in_longer_texts_and_in_shells_are_refused_with_the_variable() {
        for (elements, field, words) in [
            (
                &["run", "--day={{ scheduled_date }}"][..],
                "command[1]",
                "SYSTOLE_SCHEDULED_TIME",
            ),
            (&["run", "{{ data.a }}{{ data.b }}"], "command[1]", "SYSTOLE_DATA_A"),
            (
                &["/bin/sh", "-c", "{{ data.text }}"],
                "command[2]",
                "$SYSTOLE_DATA_TEXT",
            ),
            (&["bash", "-e", "-c", "{{ data.text }}"], "command[3]", "shell"),
            (&["{{ data.program }}"], "command[0]", "program itself"),
            (&["run", "{{ scheduled_day }}"], "command[1]", "scheduled_date"),
            (&["run", "{{ data. }}"], "command[1]", "data.KEY"),
        ] {
            let faults = parse_command(&command(elements)).expect_err(elements[elements.len() - 1]);
            assert_eq!(faults[0].field, field, "{elements:?}");
            assert!(faults[0].message.contains(words), "{elements:?}: {}", faults[0]);
        }
        // The arguments after the text of a shell are its parameters.
        assert!(parse_command(&command(&["sh", "-c", "echo \"$1\"", "sh", "{{ data.x }}"])).is_ok());
        let fault = check_text("load --table {{ data.table-name }}", "shell").expect_err("refused");
        assert!(fault.message.contains("\"$SYSTOLE_DATA_TABLE_NAME\""), "{fault}");
        assert!(check_text("docker inspect -f '{{.Id}} {{end}}'", "shell").is_ok());
    }

    #[test]
    fn a_value_that_is_missing_is_refused_and_not_left_empty() {
        let facts = Facts {
            scheduled_ms: 0,
            zone: &Zone::utc(),
            data: &Map::new(),
            shard: None,
            task_id: None,
        };
        for (element, words) in [("{{ data.x }}", "data.x"), ("{{ shard.index }}", "SYSTOLE_SHARD_INDEX")] {
            let mut command = command(&["run", element]);
            let templates = parse_command(&command).expect("templates");
            let fault = expand(&mut command, &templates, &facts).expect_err(element);
            assert!(fault.message.contains(words), "{fault}");
        }
    }
}
