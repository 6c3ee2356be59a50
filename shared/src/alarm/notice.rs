//! What is known of an alarm when it is raised. It is stored with the alarm as JSON, so that fields are only ever added.

use crate::limits::ALARM_TASKS_MAX;
use serde::{Deserialize, Serialize};

/// What an alarm is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Failure,
    /// A host was lost with its tasks.
    HostLost,
    Recovery,
    Late,
    Skipped,
    Slow,
    /// Somebody tries a channel.
    Test,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::Failure,
        Self::HostLost,
        Self::Recovery,
        Self::Late,
        Self::Skipped,
        Self::Slow,
        Self::Test,
    ];

    /// The word that is stored and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::HostLost => "host_lost",
            Self::Recovery => "recovery",
            Self::Late => "late",
            Self::Skipped => "skipped",
            Self::Slow => "slow",
            Self::Test => "test",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A task that an alarm is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskFact {
    pub id: i64,
    pub job: String,
    /// `db-01/0`; empty: it never had one.
    pub runner: String,
    pub attempt: i64,
    /// Attempts that its policy allows.
    pub attempts: i64,
    /// In words: `exit code 3`.
    pub outcome: String,
}

/// An alarm: one per cause and channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Notice {
    pub job: String,
    pub owner: String,
    pub runbook: String,
    /// Of a lost host.
    pub host: String,
    /// How often the cause has struck: tasks, or skipped fires.
    pub count: u64,
    /// The first of them, at most [`ALARM_TASKS_MAX`].
    pub tasks: Vec<TaskFact>,
    /// Runs that have failed in a row.
    pub failures: i64,
    /// Of a lateness or slow run: what was wanted, in words. Of a skipped run: why.
    pub rule: String,
    /// Since when it is late; of a skipped run its scheduled time; of a slow one its start.
    pub since_ms: i64,
    /// The last success, 0: none is known.
    pub success_ms: i64,
    /// Of a skipped run: the task that is in the way, 0: none.
    pub blocked_by: i64,
}

impl Notice {
    /// The same cause has struck once more.
    pub fn add(&mut self, more: &Notice) {
        let known = |task: &TaskFact| self.tasks.iter().any(|known| known.id == task.id);
        // The same task again, such as a run that is still too long, is no other one.
        if more.tasks.is_empty() || !more.tasks.iter().all(known) {
            self.count = self.count.saturating_add(more.count);
        }
        self.failures = self.failures.max(more.failures);
        for task in &more.tasks {
            if self.tasks.len() < ALARM_TASKS_MAX && !self.tasks.iter().any(|known| known.id == task.id) {
                self.tasks.push(task.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.name()), Some(kind));
            assert_eq!(serde_json::to_value(kind).expect("json"), kind.name());
        }
    }

    #[test]
    fn a_cause_that_strikes_often_is_counted_and_its_list_is_bounded() {
        let one = |id| Notice {
            count: 1,
            tasks: vec![TaskFact {
                id,
                ..TaskFact::default()
            }],
            ..Notice::default()
        };
        let mut all = one(1);
        for id in 2..=200 {
            all.add(&one(id));
        }
        assert_eq!((all.count, all.tasks.len()), (200, ALARM_TASKS_MAX));
        assert_eq!(all.tasks[1].id, 2);
        // What an older version stored has fewer fields.
        let old: Notice = serde_json::from_str(r#"{"job":"a"}"#).expect("readable");
        assert_eq!((old.job.as_str(), old.count), ("a", 0));
    }
}
