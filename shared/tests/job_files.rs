//! The schema of job files for editors says what the types say, and the examples of the documentation are right.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use systole_shared::job::JobSpec;
use systole_shared::job::definition::{AlarmSpec, BroadcastSpec, CallbackSpec, Group, LimitsSpec, RetrySpec, RunAs};
use systole_shared::job::file::{CheckContext, JobFile, Set, Syntax};
use systole_shared::policy::route::{Asked, Host, RoutePolicy, register};
use systole_shared::trigger::calendar::{CalendarSpec, DateRange, DayWindow};
use systole_shared::trigger::custom::Registry;
use systole_shared::trigger::definition::{AfterSpec, TriggerSpec};
use systole_shared::trigger::window::WindowSpec;
use systole_shared::trigger::zone::Zone;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

fn schema() -> Value {
    let text = std::fs::read_to_string(docs().join("job.schema.json")).expect("schema");
    serde_json::from_str(&text).expect("JSON")
}

/// The fields that a type knows, as it says itself when it meets another.
fn fields<T: DeserializeOwned>() -> BTreeSet<String> {
    let error = serde_json::from_value::<T>(json!({"?": 1}))
        .err()
        .expect("an unknown field is refused")
        .to_string();
    let names = error.split('`').skip(1).step_by(2).map(str::to_owned);
    names.filter(|name| name != "?").collect()
}

fn properties(schema: &Value, pointer: &str) -> BTreeSet<String> {
    let found = schema.pointer(pointer).unwrap_or_else(|| panic!("{pointer}"));
    assert_eq!(found["additionalProperties"], Value::Bool(false), "{pointer}");
    found["properties"]
        .as_object()
        .expect(pointer)
        .keys()
        .cloned()
        .collect()
}

#[test]
fn the_schema_has_the_fields_of_the_types_and_no_others() {
    let schema = schema();
    for (pointer, expected) in [
        ("/$defs/job", fields::<JobSpec>()),
        ("/$defs/trigger", fields::<TriggerSpec>()),
        ("/$defs/calendar", fields::<CalendarSpec>()),
        ("/$defs/concurrency_group", fields::<Group>()),
        ("/$defs/job/properties/retry", fields::<RetrySpec>()),
        ("/$defs/job/properties/limits", fields::<LimitsSpec>()),
        ("/$defs/job/properties/run_as", fields::<RunAs>()),
        ("/$defs/job/properties/broadcast", fields::<BroadcastSpec>()),
        ("/$defs/job/properties/callback", fields::<CallbackSpec>()),
        ("/$defs/job/properties/alarm/items", fields::<AlarmSpec>()),
        ("/$defs/trigger/properties/interval_in_window", fields::<WindowSpec>()),
        ("/$defs/trigger/properties/after", fields::<AfterSpec>()),
        ("/$defs/calendar/properties/ranges/items", fields::<DateRange>()),
        ("/$defs/calendar/properties/daily/items", fields::<DayWindow>()),
    ] {
        assert_eq!(properties(&schema, pointer), expected, "{pointer}");
    }
    let mut of_all = fields::<JobSpec>();
    for own in ["name", "command", "shell", "script", "trigger"] {
        of_all.remove(own);
    }
    assert_eq!(properties(&schema, "/$defs/defaults"), of_all);
}

#[derive(Debug)]
struct Nearest;

impl RoutePolicy for Nearest {
    fn name(&self) -> &'static str {
        "nearest"
    }

    fn choose(&self, _: Asked<'_>, _: &[Host]) -> usize {
        0
    }
}

#[test]
fn the_schema_of_a_program_has_its_routes_too() {
    let job = json!({"job": [{"name": "a", "command": ["x"], "route": "nearest"}]});
    let made = || systole_shared::job::schema::schema();
    assert_eq!(
        made(),
        schema(),
        "the file has the routes of the product, in the same order"
    );
    let takes = |schema: &Value| jsonschema::validator_for(schema).expect("a schema").is_valid(&job);
    assert!(!takes(&made()));
    register(&Nearest).expect("a free name");
    assert!(takes(&made()));
}

fn examples() -> Vec<(String, String, Syntax)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(docs().join("examples")).expect("examples").flatten() {
        let path = entry.path();
        let name = path.display().to_string();
        if let Some(syntax) = Syntax::of_name(&name) {
            found.push((name, std::fs::read_to_string(&path).expect("example"), syntax));
        }
    }
    // Whole files in the texts.
    for page in ["jobs.md", "coming-from.md", "../README.md"] {
        let text = std::fs::read_to_string(docs().join(page)).expect(page);
        for (index, block) in text.split("```toml\n").skip(1).enumerate() {
            let block = block.split("```").next().unwrap_or_default();
            found.push((format!("{page}-{index}.toml"), block.to_owned(), Syntax::Toml));
        }
    }
    found
}

#[test]
fn the_examples_of_the_documentation_are_right() {
    let mut jobs = 0;
    for (name, text, syntax) in examples() {
        let mut set = Set::default();
        set.add(name.as_str(), JobFile::read(&text, syntax));
        let checked = set.check(&CheckContext {
            now_ms: 1_795_910_400_000,
            default_zone: &Zone::utc(),
            registry: &Registry::built_in(),
            read_ics: &|file, path| {
                let path = Path::new(file).parent().expect("folder").join(path);
                std::fs::read_to_string(path).map_err(|error| error.to_string())
            },
            closed: true,
        });
        let said: Vec<String> = checked
            .faults
            .iter()
            .map(|(file, fault)| set.say(*file, fault))
            .collect();
        assert_eq!(said, [""; 0], "{text}");
        assert!(
            checked.jobs.iter().all(|job| job.warnings.is_empty()),
            "{name}: {:?}",
            checked.jobs
        );
        jobs += checked.jobs.len();
    }
    assert!(jobs >= 6, "only {jobs} jobs");
}

/// As the parsers of this crate see a file, which is what an editor sees.
fn values(name: &str, text: &str, syntax: Syntax) -> Value {
    match syntax {
        Syntax::Toml => {
            let value: toml::Table = toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            plain(toml::Value::Table(value))
        }
        Syntax::Yaml => {
            let set = JobFile::read(text, syntax);
            json!({ "job": set.jobs.iter().map(|job| job.spec.to_value()).collect::<Vec<_>>() })
        }
    }
}

/// Times as texts.
fn plain(value: toml::Value) -> Value {
    match value {
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(items) => items.into_iter().map(plain).collect(),
        toml::Value::Table(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| (key, plain(value)))
                .collect::<Map<_, _>>(),
        ),
        other => serde_json::to_value(other).expect("value"),
    }
}

#[test]
fn the_schema_accepts_the_examples_and_refuses_mistakes() {
    let validator = jsonschema::validator_for(&schema()).expect("a schema");
    for (name, text, syntax) in examples() {
        let value = values(&name, &text, syntax);
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert_eq!(errors, [""; 0], "{name}");
    }
    let job = |field: &str, value: Value| {
        let mut job = json!({"name": "a", "command": ["x"]});
        job[field] = value;
        json!({ "job": [job] })
    };
    assert!(validator.is_valid(&job("timeout", json!("1h30m"))));
    for wrong in [
        job("timeout", json!(12)),
        job("timeout", json!("12")),
        job("retires", json!(1)),
        job("blocking", json!("queue")),
        job("shell", json!("x")),
        job("trigger", json!([{"name": "t"}])),
        job("trigger", json!([{"cron": "* * * * *", "fixed_rate": "1m"}])),
        job("limits", json!({"memory_max": "4"})),
        json!({"job": [{"command": ["x"]}]}),
        json!({"jobs": []}),
        json!({"format": 2}),
    ] {
        assert!(!validator.is_valid(&wrong), "{wrong}");
    }
}
