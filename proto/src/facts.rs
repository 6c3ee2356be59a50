//! What a runner tells of its host: a JSON object of texts. Older runners tell one line of text, which is shown as
//! it is.

use serde_json::{Map, Value};

/// A fact that has a place of its own.
const GUARD: &str = "guard";
/// So has this one.
const LIMITS: &str = "limits";

fn object(facts: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(facts).ok()
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What keeps the processes of a task together on this host, such as `cgroup2`.
pub fn guard(facts: &str) -> Option<String> {
    object(facts)?.get(GUARD).map(shown)
}

/// Limits of all processes of a task together that this host can enforce, such as `memory`.
pub fn limits(facts: &str) -> Option<Vec<String>> {
    let limits = object(facts)?.get(LIMITS).map(shown)?;
    Some(limits.split_ascii_whitespace().map(str::to_owned).collect())
}

/// The other facts, in one line.
pub fn others(facts: &str) -> String {
    match object(facts) {
        None => facts.to_owned(),
        Some(facts) => facts
            .iter()
            .filter(|(name, _)| *name != GUARD && *name != LIMITS)
            .map(|(_, value)| shown(value))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_an_object_or_a_line() {
        for (text, expected_guard, expected_others) in [
            ("", None, ""),
            ("Linux 6.1 x86_64", None, "Linux 6.1 x86_64"),
            (r#"{"os":"Linux 6.1 x86_64"}"#, None, "Linux 6.1 x86_64"),
            (
                r#"{"cores":8,"guard":"cgroup2","os":"Linux 6.1 x86_64"}"#,
                Some("cgroup2"),
                "8, Linux 6.1 x86_64",
            ),
            // Cut on its way.
            (r#"{"guard":"cgro"#, None, r#"{"guard":"cgro"#),
            ("[1]", None, "[1]"),
        ] {
            assert_eq!(guard(text).as_deref(), expected_guard, "{text}");
            assert_eq!(others(text), expected_others, "{text}");
        }
        let facts = r#"{"limits":"cpus memory","system":"Linux"}"#;
        assert_eq!(limits(facts), Some(vec!["cpus".to_owned(), "memory".to_owned()]));
        assert_eq!((limits(r#"{"limits":""}"#), limits("Linux")), (Some(Vec::new()), None));
        assert_eq!(others(facts), "Linux");
    }
}
