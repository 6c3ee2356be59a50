//! Names of things: runners and hosts. Task ids are plain `i64`, given by the database.

use crate::error::Invalid;
use crate::limits::{SLOTS_MAX, WORD_CHARS_MAX};
use std::fmt;

/// One runner: a slot of a host, written `HOST/SLOT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct RunnerId {
    pub host: String,
    pub slot: u32,
}

impl RunnerId {
    pub fn new(host: impl Into<String>, slot: u32) -> Self {
        Self {
            host: host.into(),
            slot,
        }
    }
}

impl fmt::Display for RunnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.slot)
    }
}

/// A host, or one slot of it, as people write it: `db-01` or `db-01/3`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Target {
    pub host: String,
    pub slot: Option<u32>,
}

impl Target {
    /// Parses `HOST` or `HOST/SLOT`; `field` is named in the error.
    pub fn parse(text: &str, field: &str) -> Result<Self, Invalid> {
        let (host, slot) = match text.split_once('/') {
            None => (text, None),
            Some((host, slot)) => {
                let slot: u32 = slot.parse().map_err(|_| {
                    Invalid::new(
                        field,
                        format!("slot {slot:?} is not a number; write HOST or HOST/SLOT, such as db-01/0"),
                    )
                })?;
                if slot >= SLOTS_MAX {
                    return Err(Invalid::new(
                        field,
                        format!("slot {slot} is outside 0 to {}", SLOTS_MAX - 1),
                    ));
                }
                (host, Some(slot))
            }
        };
        check_host(host, field)?;
        Ok(Self {
            host: host.to_owned(),
            slot,
        })
    }

    /// True when this names the runner or its whole host.
    pub fn covers(&self, runner: &RunnerId) -> bool {
        self.host == runner.host && self.slot.is_none_or(|slot| slot == runner.slot)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slot {
            Some(slot) => write!(f, "{}/{slot}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

/// Checks a host name: 1 to 63 of letters, digits, `.`, `_`, `-`.
pub fn check_host(host: &str, field: &str) -> Result<(), Invalid> {
    let ok = (1..=WORD_CHARS_MAX).contains(&host.len())
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if ok {
        Ok(())
    } else {
        Err(Invalid::new(
            field,
            format!("host {host:?} must be 1 to {WORD_CHARS_MAX} of letters, digits, '.', '_' and '-'"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_round_trips_and_covers_its_slots() {
        for text in ["db-01", "db-01/3"] {
            assert_eq!(Target::parse(text, "runner").expect("valid").to_string(), text);
        }
        let host = Target::parse("db-01", "runner").expect("valid");
        let slot = Target::parse("db-01/3", "runner").expect("valid");
        assert!(host.covers(&RunnerId::new("db-01", 3)) && slot.covers(&RunnerId::new("db-01", 3)));
        assert!(!slot.covers(&RunnerId::new("db-01", 2)) && !host.covers(&RunnerId::new("db-02", 3)));
    }

    #[test]
    fn a_bad_target_names_the_field() {
        for text in ["", "a b", "db/x", "db/4096", "../x", "a/1/2"] {
            assert_eq!(Target::parse(text, "runner").expect_err(text).field, "runner");
        }
    }
}
