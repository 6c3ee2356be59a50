//! What is wrong with a definition, collected while it is read.

use crate::error::Invalid;
use crate::limits::DURATION_MS_MAX;
use crate::task::limits::parse_bytes;
use crate::task::signal::parse_signal;
use crate::time::parse_duration;

/// What is wrong so far.
#[derive(Default)]
pub(super) struct Faults(pub(super) Vec<Invalid>);

impl Faults {
    pub(super) fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Invalid::new(field, message));
    }

    pub(super) fn take<T>(&mut self, result: Result<T, Invalid>) -> Option<T> {
        result.map_err(|fault| self.0.push(fault)).ok()
    }

    pub(super) fn duration(&mut self, text: Option<&String>, field: &str, max: u64) -> Option<u64> {
        let ms = parse_duration(text?).map_err(|message| Invalid::new(field, message));
        let ms = ms.and_then(|ms| {
            let longest = crate::time::exact_duration(max);
            let message = format!(
                "{:?} is too long; the longest is {longest}",
                text.map_or("", String::as_str)
            );
            if ms > max {
                Err(Invalid::new(field, message))
            } else {
                Ok(ms)
            }
        });
        self.take(ms)
    }

    /// A timeout: 0 is a mistake and not "none".
    pub(super) fn timeout(&mut self, text: Option<&String>, field: &str) -> Option<u64> {
        match self.duration(text, field, DURATION_MS_MAX) {
            Some(0) => {
                self.add(field, "0 is over before it begins; leave it out for none");
                None
            }
            ms => ms,
        }
    }

    pub(super) fn signal(&mut self, text: Option<&String>, field: &str) -> Option<i32> {
        let signal = parse_signal(text?).map_err(|message| Invalid::new(field, message));
        self.take(signal)
    }

    pub(super) fn size(&mut self, text: Option<&String>, field: &str) -> Option<u64> {
        let text = text?;
        if text != "0" && !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            self.add(
                field,
                format!("{text:?} has no unit; write \"{text}MiB\" or \"{text}GiB\""),
            );
            return None;
        }
        let size = parse_bytes(text).map_err(|message| Invalid::new(field, message));
        self.take(size)
    }

    pub(super) fn count(&mut self, value: Option<u32>, field: &str, min: u32, max: u32) {
        if let Some(value) = value.filter(|value| !(min..=max).contains(value)) {
            self.add(field, format!("{value} is outside {min} to {max}"));
        }
    }
}
