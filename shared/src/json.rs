//! JSON as it comes from outside. An object has each key once: of two that are alike readers take the first or the last, so that
//! what somebody has checked need not be what is done.

use crate::error::Invalid;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// Refuses a text with a key that is given twice, by its name. What is no JSON is left to whoever reads it.
pub fn check_keys(text: &[u8], field: &str) -> Result<(), Invalid> {
    match doubled_key(text) {
        None => Ok(()),
        Some(key) => Err(Invalid::new(
            field,
            format!("the key {key:?} is given twice; leave one of them out"),
        )),
    }
}

/// The first such key with those that it lies below: `spec.require.gpu`.
fn doubled_key(text: &[u8]) -> Option<String> {
    let mut walk = Walk::default();
    // The depth is bounded by the parser. Its errors are those of the reader, too.
    let _ = (&mut walk).deserialize(&mut serde_json::Deserializer::from_slice(text));
    walk.doubled
}

/// Passes over a document, and ends at the first key that is there twice.
#[derive(Default)]
struct Walk {
    path: Vec<String>,
    doubled: Option<String>,
}

impl<'de> DeserializeSeed<'de> for &mut Walk {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Walk {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            self.path.push(key.clone());
            if !seen.insert(key) {
                self.doubled = Some(self.path.join("."));
                return Err(A::Error::custom("a key is given twice"));
            }
            map.next_value_seed(&mut *self)?;
            self.path.pop();
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(&mut *self)?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_given_twice_is_found_wherever_it_lies() {
        for (text, found) in [
            (r#"{"a": 1, "b": -1, "c": 1.5, "d": [true, null, "x", {}]}"#, None),
            (r#"{"a": {"b": 1}, "b": [{"b": 1}, {"b": 2}]}"#, None),
            (r#"{"a": 1, "a": 1}"#, Some("a")),
            (r#"{"a": 1, "\u0061": 1}"#, Some("a")),
            (
                r#"{"spec": {"x": 1, "require": {"gpu": "1", "gpu": "2"}}}"#,
                Some("spec.require.gpu"),
            ),
            (
                r#"{"x": {"y": 1}, "env": [{"name": "A"}, {"name": "B", "name": "C"}]}"#,
                Some("env.name"),
            ),
            (r#"{"": 1, "": 2}"#, Some("")),
            // The first counts, and whatever is wrong after it.
            (r#"{"a": 1, "a": 2, "b": 1, "b": 2"#, Some("a")),
            ("{\"a\": 1, \"a\"", Some("a")),
            // Left to the reader.
            (r#"{"a": 1"#, None),
            ("7", None),
            ("", None),
        ] {
            assert_eq!(doubled_key(text.as_bytes()).as_deref(), found, "{text}");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(doubled_key(deep.as_bytes()), None);
        let refused = check_keys(br#"{"a": 1, "a": 2}"#, "body").expect_err("doubled");
        assert_eq!(
            refused.to_string(),
            "body: the key \"a\" is given twice; leave one of them out"
        );
    }
}
