//! Two definitions field by field.

use super::compile::trigger_names;
use super::definition::{JobSpec, canonical};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// One field that is not the same. A side that does not have it is `None`; values are JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub field: String,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// A table that is compared key by key; arrays are compared as a whole.
fn flatten(prefix: &str, map: &Map<String, Value>, out: &mut BTreeMap<String, String>) {
    for (key, value) in map {
        let field = if prefix.is_empty() {
            key.clone()
        } else {
            format!("{prefix}.{key}")
        };
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(&field, inner, out),
            _ => {
                out.insert(field, canonical(value));
            }
        }
    }
}

fn fields(spec: &JobSpec) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let Value::Object(mut map) = spec.to_value() else {
        return out;
    };
    // By name, so that another order is no change, and a new trigger does not change those after it.
    if let Some(Value::Array(triggers)) = map.remove("trigger") {
        for (name, trigger) in trigger_names(&spec.trigger).into_iter().zip(triggers) {
            if let Value::Object(mut trigger) = trigger {
                trigger.remove("name");
                flatten(&format!("trigger.{name}"), &trigger, &mut out);
            }
        }
    }
    if let Some(Value::Array(alarms)) = map.remove("alarm") {
        for (index, alarm) in alarms.iter().enumerate() {
            if let Value::Object(alarm) = alarm {
                flatten(&format!("alarm[{index}]"), alarm, &mut out);
            }
        }
    }
    flatten("", &map, &mut out);
    out
}

/// What is not the same, in the order of the names of the fields.
pub fn diff(before: &JobSpec, after: &JobSpec) -> Vec<Change> {
    let (before, mut after) = (fields(before), fields(after));
    let mut changes: Vec<Change> = Vec::new();
    for (field, old) in before {
        match after.remove(&field) {
            Some(new) if new == old => {}
            new => changes.push(Change {
                field,
                before: Some(old),
                after: new,
            }),
        }
    }
    changes.extend(after.into_iter().map(|(field, new)| Change {
        field,
        before: None,
        after: Some(new),
    }));
    changes.sort_by(|a, b| a.field.cmp(&b.field));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> JobSpec {
        serde_json::from_str(json).expect(json)
    }

    #[test]
    fn only_what_changed_is_said_with_both_values() {
        let before = spec(
            r#"{"name":"a","command":["x","1"],"timeout":"1h","env":{"A":"1","B":"2"},"retry":{"policy":"fixed","max_retries":1},
                "trigger":[{"name":"nightly","cron":"30 2 * * *"},{"name":"gone","manual":true}]}"#,
        );
        let after = spec(
            r#"{"name":"a","command":["x","2"],"env":{"A":"1","B":"3"},"retry":{"policy":"fixed","max_retries":2},
                "trigger":[{"fixed_rate":"1m"},{"name":"nightly","cron":"30 3 * * *"}]}"#,
        );
        let changes: Vec<String> = diff(&before, &after)
            .iter()
            .map(|change| {
                let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "-".into());
                format!("{} {} {}", change.field, side(&change.before), side(&change.after))
            })
            .collect();
        assert_eq!(
            changes,
            [
                r#"command ["x","1"] ["x","2"]"#,
                r#"env.B "2" "3""#,
                "retry.max_retries 1 2",
                r#"timeout "1h" -"#,
                r#"trigger.fixed-rate.fixed_rate - "1m""#,
                "trigger.gone.manual true -",
                r#"trigger.nightly.cron "30 2 * * *" "30 3 * * *""#,
            ]
        );
    }

    #[test]
    fn another_order_of_triggers_is_no_change() {
        let a = spec(r#"{"name":"a","trigger":[{"name":"x","manual":true},{"name":"y","cron":"0 1 * * *"}]}"#);
        let b = spec(r#"{"name":"a","trigger":[{"name":"y","cron":"0 1 * * *"},{"name":"x","manual":true}]}"#);
        assert_eq!(diff(&a, &b), []);
        assert_eq!(diff(&a, &a), []);
    }
}
