//! The schema, and what was held against it.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use systole_tests::home::Home;
use systole_tests::system::{Said, System, binary};

pub fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/output.schema.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("schema")).expect("JSON")
}

/// One of the maps by command.
pub fn keys(schema: &Value, map: &str) -> BTreeSet<String> {
    schema[map].as_object().expect(map).keys().cloned().collect()
}

/// Which command a key is about: `job trigger --detach` is `job trigger`.
pub fn command_of(key: &str) -> String {
    let is_word = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
    key.split(' ').take_while(is_word).collect::<Vec<_>>().join(" ")
}

/// All commands that can be typed, as the parser has them: those that have a usage besides that of their subcommands. One that has
/// no arguments beside them is short for its `ls`.
pub fn commands_of_the_parser() -> BTreeSet<String> {
    let output = std::process::Command::new(binary())
        .arg("reference")
        .output()
        .expect("systole starts");
    let page = String::from_utf8(output.stdout).expect("UTF-8");
    let (mut found, mut short) = (BTreeSet::new(), BTreeSet::new());
    let parts = page
        .split("\n## systole ")
        .flat_map(|part| part.split("\n### systole "));
    for section in parts.skip(1) {
        let (name, rest) = section.split_once('\n').expect("a heading");
        let own = format!("    systole {name} ");
        let usages: BTreeSet<&str> = rest
            .lines()
            .skip_while(|line| !line.starts_with(own.as_str()) && *line != own.trim_end())
            .take_while(|line| line.starts_with("    "))
            .filter_map(|line| line.strip_prefix("    systole "))
            .map(|line| line.strip_prefix(name).unwrap_or(line).trim())
            .collect();
        assert!(!usages.is_empty(), "{name} has no usage");
        if usages == BTreeSet::from(["[OPTIONS]", "<COMMAND>"]) {
            short.insert(format!("{name} ls"));
        } else if usages != BTreeSet::from(["<COMMAND>"]) {
            found.insert(name.to_owned());
        }
    }
    assert!(short.is_subset(&found), "{short:?}");
    for name in ["lock", "lock ls", "token ls", "job edit", "up", "import crontab"] {
        assert!(found.contains(name), "{name}: {found:?}");
    }
    assert!(!found.contains("token") && !found.contains("job"), "{found:?}");
    found
}

/// For programs a new field is no change; here it must be described.
fn strict(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.contains_key("properties") {
                map.insert("additionalProperties".into(), Value::Bool(false));
            }
            map.values_mut().for_each(strict);
        }
        Value::Array(values) => values.iter_mut().for_each(strict),
        _ => {}
    }
}

/// What was seen, and what was wrong with it: all of it is told at the end.
pub struct Documents {
    schema: Value,
    pub documents: BTreeSet<String>,
    pub lines: BTreeSet<String>,
    pub silent: BTreeSet<String>,
    pub wrong: BTreeMap<String, String>,
}

impl Documents {
    pub fn new() -> Self {
        let mut schema = schema();
        strict(&mut schema["$defs"]);
        Self {
            schema,
            documents: BTreeSet::new(),
            lines: BTreeSet::new(),
            silent: BTreeSet::new(),
            wrong: BTreeMap::new(),
        }
    }

    fn hold(&mut self, what: &str, shape: Value, text: &str) -> Value {
        let document: Value = match serde_json::from_str(text) {
            Ok(document) => document,
            Err(error) => {
                self.wrong.insert(what.into(), format!("{error}: {text}"));
                return Value::Null;
            }
        };
        let wanted = json!({"$schema": self.schema["$schema"], "$defs": self.schema["$defs"], "allOf": [shape]});
        let validator = jsonschema::validator_for(&wanted).expect("a schema");
        let wrong: Vec<String> = validator
            .iter_errors(&document)
            .map(|error| format!("  {}: {error}", error.instance_path()))
            .collect();
        if !wrong.is_empty() {
            self.wrong
                .insert(what.into(), format!("\n{}\n{text}", wrong.join("\n")));
        }
        document
    }

    /// Holds a document of `-o json` against what is said of its command.
    pub fn document(&mut self, command: &str, said: &Said) -> Value {
        let Some(name) = self.schema["x-documents"][command].as_str() else {
            self.wrong.insert(command.into(), "is not in x-documents".into());
            return Value::Null;
        };
        let shape = json!({"$ref": format!("#/$defs/{name}")});
        if said.stdout.is_empty() {
            self.wrong.insert(command.into(), format!("wrote nothing: {said:?}"));
            return Value::Null;
        }
        self.documents.insert(command.into());
        self.hold(command, shape, &said.stdout)
    }

    /// The same for each line of `-o jsonl`; there must be one.
    pub fn lines(&mut self, command: &str, said: &Said) {
        let what = format!("{command}, as lines");
        let shape = match self.schema["x-lines"][command].as_str() {
            Some(place) if place.starts_with('#') => json!({"$ref": place}),
            Some(name) => {
                let mut shape = self.schema["$defs"][name].clone();
                let required = shape["required"].as_array_mut().expect("required");
                required.retain(|field| field != "format");
                shape["properties"]
                    .as_object_mut()
                    .expect("properties")
                    .remove("format");
                shape
            }
            None => {
                self.wrong.insert(what, "is not in x-lines".into());
                return;
            }
        };
        if said.stdout.is_empty() {
            self.wrong.insert(what, format!("wrote nothing: {said:?}"));
            return;
        }
        for line in said.stdout.lines() {
            self.hold(&what, shape.clone(), line);
        }
        self.lines.insert(command.into());
    }

    /// A command that is to write no document.
    pub fn silent(&mut self, command: &str, said: &Said) {
        let is_data = said
            .stdout
            .lines()
            .any(|line| serde_json::from_str::<Value>(line).is_ok_and(|value| value.is_object()));
        if is_data || serde_json::from_str::<Value>(&said.stdout).is_ok_and(|value| value.is_object()) {
            self.wrong
                .insert(command.into(), format!("writes a document: {said:?}"));
        }
        self.silent.insert(command.into());
    }
}

/// Types commands, and holds what they write against the schema.
pub struct Shell<'a> {
    pub system: &'a System,
    pub documents: Documents,
}

impl Shell<'_> {
    /// With `-o json`, as the document of `command`.
    pub fn say(&mut self, command: &str, args: &[&str]) -> Value {
        let said = self.system.say(&[&["-o", "json"], args].concat());
        self.documents.document(command, &said)
    }

    /// With `-o jsonl`.
    pub fn lines(&mut self, command: &str, args: &[&str]) {
        let said = self.system.say(&[&["-o", "jsonl"], args].concat());
        self.documents.lines(command, &said);
    }

    /// Once each way; the document.
    pub fn both(&mut self, command: &str, args: &[&str]) -> Value {
        let document = self.say(command, args);
        self.lines(command, args);
        document
    }

    pub fn silent(&mut self, command: &str, args: &[&str]) {
        let said = self.system.say(&[&["-o", "json"], args].concat());
        self.documents.silent(command, &said);
    }

    /// The same for a user of this machine.
    pub fn at_home(&mut self, home: &Home, command: &str, args: &[&str], path: Option<&str>) {
        for format in ["json", "jsonl"] {
            let mut line = home.command(&[&["-o", format], args].concat());
            if let Some(path) = path {
                line.env("PATH", path);
            }
            let said: Said = line.output().expect("systole starts").into();
            match format {
                "json" => drop(self.documents.document(command, &said)),
                _ => self.documents.lines(command, &said),
            }
        }
    }
}
