//! Data of a job: a JSON object that its tasks get as variables.

use crate::error::Invalid;
use crate::limits::DATA_BYTES_MAX;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Length of a key.
const KEY_BYTES_MAX: usize = 63;

/// The variable that has the value of a key: `SYSTOLE_DATA_TABLE_NAME` for `table-name`.
pub fn variable(key: &str) -> String {
    let upper = key.chars().map(|c| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    });
    format!("SYSTOLE_DATA_{}", upper.collect::<String>())
}

/// A value as one text: texts as they are, nothing for null, the rest as JSON.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

pub fn check(data: &Map<String, Value>, field: &str) -> Result<(), Invalid> {
    let mut variables: BTreeMap<String, &str> = BTreeMap::new();
    for (key, value) in data {
        let ok = (1..=KEY_BYTES_MAX).contains(&key.len())
            && key
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
        if !ok {
            return Err(Invalid::new(
                field,
                format!("key {key:?} must be 1 to {KEY_BYTES_MAX} of letters, digits, '_', '-' and '.'"),
            ));
        }
        if let Some(other) = variables.insert(variable(key), key) {
            return Err(Invalid::new(
                field,
                format!(
                    "{other:?} and {key:?} would be the same variable, {}; rename one",
                    variable(key)
                ),
            ));
        }
        if text_of(value).contains('\0') {
            return Err(Invalid::new(field, format!("the value of {key} contains a NUL byte")));
        }
    }
    let bytes = Value::Object(data.clone()).to_string().len();
    if bytes > DATA_BYTES_MAX {
        return Err(Invalid::new(
            field,
            format!(
                "has {bytes} bytes as JSON; at most {DATA_BYTES_MAX} are allowed. Put them in a file, and its name here"
            ),
        ));
    }
    Ok(())
}

/// Later ones win, key by key: job, trigger, request.
pub fn merge<'a>(parts: impl IntoIterator<Item = &'a Map<String, Value>>) -> Map<String, Value> {
    let mut merged = Map::new();
    for part in parts {
        merged.extend(part.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    merged
}

/// `SYSTOLE_DATA` with all of it as JSON, and one variable for each key; nothing where there are no data.
pub fn variables(data: &Map<String, Value>) -> Vec<(String, String)> {
    if data.is_empty() {
        return Vec::new();
    }
    let whole = super::definition::canonical(&Value::Object(data.clone()));
    let each = data.iter().map(|(key, value)| (variable(key), text_of(value)));
    std::iter::once(("SYSTOLE_DATA".to_owned(), whole))
        .chain(each)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(json: &str) -> Map<String, Value> {
        serde_json::from_str(json).expect(json)
    }

    #[test]
    fn each_key_is_a_variable_and_all_of_them_are_one() {
        assert_eq!(
            variables(&map(
                r#"{"table-name":"a \"b\"","n":7,"deep":{"y":1,"x":[true]},"none":null}"#
            )),
            [
                (
                    "SYSTOLE_DATA",
                    r#"{"deep":{"x":[true],"y":1},"n":7,"none":null,"table-name":"a \"b\""}"#
                ),
                ("SYSTOLE_DATA_DEEP", r#"{"x":[true],"y":1}"#),
                ("SYSTOLE_DATA_N", "7"),
                ("SYSTOLE_DATA_NONE", ""),
                ("SYSTOLE_DATA_TABLE_NAME", "a \"b\""),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert_eq!(variables(&Map::new()), []);
    }

    #[test]
    fn the_request_wins_over_the_trigger_and_the_trigger_over_the_job() {
        let (job, trigger, request) = (
            map(r#"{"a":1,"b":1,"c":1}"#),
            map(r#"{"b":2,"c":2}"#),
            map(r#"{"c":{"x":3}}"#),
        );
        assert_eq!(merge([&job, &trigger, &request]), map(r#"{"a":1,"b":2,"c":{"x":3}}"#));
    }

    #[test]
    fn keys_that_make_no_variable_or_the_same_one_are_refused() {
        for (json, words) in [
            (r#"{"":1}"#, "letters"),
            (r#"{"a b":1}"#, "letters"),
            (r#"{"ä":1}"#, "letters"),
            (r#"{"a-b":1,"a_b":2}"#, "SYSTOLE_DATA_A_B"),
            ("{\"a\":\"\\u0000\"}", "NUL"),
        ] {
            let fault = check(&map(json), "data").expect_err(json);
            assert_eq!(fault.field, "data");
            assert!(fault.message.contains(words), "{json}: {fault}");
        }
        let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(DATA_BYTES_MAX));
        assert!(check(&map(&large), "data").is_err());
        assert_eq!(check(&map(r#"{"a":1,"B.c-d":2}"#), "data"), Ok(()));
    }
}
