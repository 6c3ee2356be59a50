//! What a runner knows of the end of a task beyond its outcome: which signals it sent, what was left of the
//! process tree, and what the tree used. Nothing decides by it; it is kept as it was reported, within bounds.

use crate::limits::{END_NOTE_BYTES_MAX, END_SIGNALS_MAX};
use serde::{Deserialize, Serialize};

/// A signal that the runner sent to the task's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalSent {
    pub signal: i32,
    /// By the runner's clock.
    pub at_ms: i64,
}

/// What the processes of a task used, all together. What the host cannot tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_cpu_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_cpu_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndDetail {
    /// No process of the task was left when this was written; `None`: the host cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_empty: Option<bool>,
    /// In the order they were sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<SignalSent>,
    /// Processes that were still there after the main process had ended, and had to be killed.
    #[serde(default)]
    pub leftovers: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Of all processes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Processes that the kernel ended for want of memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub oom_kills: u32,
    /// For a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Until when the runner keeps the full output of which only a part is stored, by its clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_until_ms: Option<i64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl EndDetail {
    /// Cut to what is stored. Cut and not refused: the result it comes with must not be lost over it.
    pub fn bounded(mut self) -> Self {
        self.signals.truncate(END_SIGNALS_MAX);
        self.note.retain(|c| c != '\0');
        let cut = self.note.floor_char_boundary(END_NOTE_BYTES_MAX);
        self.note.truncate(cut);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_is_cut_at_its_bounds_and_never_within_a_character() {
        let signal = SignalSent { signal: 15, at_ms: 1 };
        let detail = EndDetail {
            signals: vec![signal; END_SIGNALS_MAX + 5],
            // The bound falls inside the last é.
            note: format!("\0x{}", "é".repeat(END_NOTE_BYTES_MAX)),
            ..EndDetail::default()
        }
        .bounded();
        assert_eq!(detail.signals.len(), END_SIGNALS_MAX);
        assert_eq!(detail.note.len(), END_NOTE_BYTES_MAX - 1);
        assert!(detail.note.starts_with("xé") && detail.note.ends_with('é'));
        let small = EndDetail {
            note: "x".into(),
            signals: vec![signal],
            ..EndDetail::default()
        };
        assert_eq!(small.clone().bounded(), small);
    }

    #[test]
    fn json_round_trips_and_leaves_out_what_is_absent() {
        let detail = EndDetail {
            tree_empty: Some(true),
            signals: vec![SignalSent {
                signal: 15,
                at_ms: 1_800_000_000_000,
            }],
            leftovers: 2,
            usage: Some(Usage {
                user_cpu_us: Some(u64::MAX),
                ..Usage::default()
            }),
            memory_limit_bytes: Some(1),
            oom_kills: 2,
            note: "a \"b\"".into(),
            output_until_ms: Some(7),
        };
        let text = serde_json::to_string(&detail).expect("serialises");
        assert_eq!(serde_json::from_str::<EndDetail>(&text).expect("parses"), detail);
        let bare = serde_json::to_string(&EndDetail::default()).expect("serialises");
        assert_eq!(bare, r#"{"leftovers":0}"#);
        assert_eq!(
            serde_json::from_str::<EndDetail>("{}").expect("parses"),
            EndDetail::default()
        );
    }
}
