//! How a task ended, as its columns have it.

use super::error::StoreError;
use systole_shared::task::{Outcome, OutcomeKind};

/// Part of a row of a task.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct OutcomeColumns {
    outcome_kind: Option<String>,
    exit_code: Option<i64>,
    signal: Option<i64>,
    outcome_message: Option<String>,
}

impl OutcomeColumns {
    /// `None`: it has not ended. `id` is the task's, for the error.
    pub fn read(&self, id: i64) -> Result<Option<Outcome>, StoreError> {
        let Some(kind) = &self.outcome_kind else {
            return Ok(None);
        };
        let narrow = |n: Option<i64>| n.and_then(|n| i32::try_from(n).ok());
        Ok(Some(Outcome {
            kind: OutcomeKind::parse(kind).ok_or(StoreError::Corrupt {
                table: "task",
                column: "outcome_kind",
                id,
            })?,
            exit_code: narrow(self.exit_code),
            signal: narrow(self.signal),
            message: self.outcome_message.clone().unwrap_or_default(),
        }))
    }
}
