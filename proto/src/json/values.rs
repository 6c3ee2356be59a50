//! Single values: what is not set is null.

use crate::v1;
use std::collections::BTreeMap;
use systole_shared::time::format_utc;

pub(super) fn id(id: i64) -> Option<String> {
    (id != 0).then(|| id.to_string())
}

pub fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

pub fn time(ms: u64) -> Option<String> {
    i64::try_from(ms).ok().filter(|&ms| ms != 0).map(format_utc)
}

pub(super) fn span(ms: u64) -> Option<u64> {
    (ms != 0).then_some(ms)
}

pub(super) fn map(labels: &[v1::Label]) -> BTreeMap<String, String> {
    labels
        .iter()
        .map(|label| (label.key.clone(), label.value.clone()))
        .collect()
}

/// The state's name; a state of a later version is shown as its number.
pub fn state(number: i32) -> String {
    match crate::convert::state_from_wire(number) {
        Some(state) => state.name().to_owned(),
        None => format!("STATE {number}"),
    }
}
