//! What a task waits for, and what became of it.

use super::{Task, text, time};
use serde::Serialize;
use systole_proto::v1;

#[derive(Debug, Serialize)]
pub struct Explained {
    pub task: Task,
    /// What became of it; empty while it has not ended.
    pub sentences: Vec<String>,
    pub blockers: Vec<Blocker>,
}

#[derive(Debug, Serialize)]
pub struct Blocker {
    pub kind: String,
    pub message: String,
    pub since: Option<String>,
    pub until: Option<String>,
    pub advice: Option<String>,
    pub command: Option<String>,
    /// Whose tokens may give the command.
    pub roles: Option<String>,
}

impl From<&v1::Blocker> for Blocker {
    fn from(blocker: &v1::Blocker) -> Self {
        Self {
            kind: blocker.kind.clone(),
            message: blocker.message.clone(),
            since: time(blocker.since_ms),
            until: time(blocker.until_ms),
            advice: text(&blocker.advice),
            command: text(&blocker.command),
            roles: text(&blocker.roles),
        }
    }
}
