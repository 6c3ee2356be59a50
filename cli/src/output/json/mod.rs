//! JSON on stdout. The shapes of the contract are in `systole_proto::json`; here are those of this command alone.

mod access;
mod alarms;
mod context;
mod doctor;
mod many;
mod service;
mod why;

pub use access::{Audit, AuditEntry, CreatedToken, JoinCommand, RevokedToken, Token, Tokens};
pub use alarms::{Acknowledged, Channel, ChannelTest, Channels, JobAlarm, JobAlarms};
pub use context::{Context, Contexts};
pub use doctor::{Finding, Findings};
pub use many::{Batch, BatchLine, Counts, Rerun};
pub use service::{Backup, PlannedUnit, PlannedUnits, Services, Unit, Up};
pub use systole_proto::json::*;
pub use why::{Blocker, Explained};

use crate::args::Format;
use serde::Serialize;

/// What this command itself found wrong.
pub fn problem(failure: &crate::failure::Failure) -> Problem {
    Problem {
        code: failure.code.clone().unwrap_or_default(),
        message: failure.message.clone(),
        field: None,
    }
}

/// One document, indented, for stdout.
pub fn document(content: &impl Serialize) {
    let document = Document {
        format: FORMAT,
        content,
    };
    // These shapes have text keys and plain values only: they always serialise.
    super::line(&serde_json::to_string_pretty(&document).unwrap_or_default());
}

/// What is one thing: as a document, or as one line of many commands' lines.
pub fn one(format: Format, content: &impl Serialize) {
    if format == Format::Json {
        document(content);
    } else {
        object(content);
    }
}

/// One object on one line, for stdout.
pub fn object(content: &impl Serialize) {
    super::line(&serde_json::to_string(content).unwrap_or_default());
}
