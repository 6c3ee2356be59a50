//! What can go wrong with a database, as the rest of the scheduler needs to know it.

use std::path::Path;
use systole_shared::error::Code;

#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No connection, or it broke before the commit: nothing was stored.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    /// Locked by somebody else for too long, or out of connections: try again.
    #[error("the database is busy: {0}")]
    Busy(String),
    /// Two transactions met; the whole transaction is repeated.
    #[error("transactions collided: {0}")]
    Collision(String),
    /// Disk full, or read-only.
    #[error("the database cannot be written: {0}")]
    Full(String),
    /// A value that the database refuses, or a constraint: one item of a batch is wrong.
    #[error("the database refuses a value: {0}")]
    Data(String),
    /// The connection broke during COMMIT: it may or may not have happened.
    #[error("the connection broke during the commit, so its outcome is not known: {0}")]
    CommitUnknown(String),
    /// A row that does not make sense.
    #[error("row {id} of table {table} is corrupt: column {column}")]
    Corrupt {
        table: &'static str,
        column: &'static str,
        id: i64,
    },
    /// An SQLite file whose pages make no sense, or that is none.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// The schema is newer than this binary, or was changed by hand.
    #[error("{0}")]
    Schema(String),
    #[error("unexpected database error: {0}")]
    Other(String),
}

impl StoreError {
    pub fn code(&self) -> Code {
        match self {
            Self::Unreachable(_) | Self::Busy(_) | Self::Collision(_) | Self::CommitUnknown(_) => {
                Code::StoreUnreachable
            }
            Self::Full(_) => Code::StoreFull,
            Self::Data(_) | Self::Corrupt { .. } | Self::Damaged(_) | Self::Schema(_) | Self::Other(_) => {
                Code::Unexpected
            }
        }
    }

    /// The same, and where it is known to be a damaged file: which one, and what to do. Trying again does not help.
    pub fn in_file(self, path: &Path) -> Self {
        let text = match self {
            Self::Damaged(text) => text,
            other => return other,
        };
        let path = path.display();
        Self::Schema(format!(
            "{path} is damaged, or is no SQLite database: {text}. Put the newest copy of `systole backup` in its place; without one save \
             what can be read: sqlite3 {path} .recover | sqlite3 {path}.recovered (docs/operations.md, \"A damaged database\")"
        ))
    }

    /// The whole transaction may be run again: nothing of it was stored.
    pub fn is_collision(&self) -> bool {
        matches!(self, Self::Collision(_))
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let text = error.to_string();
        match &error {
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default();
                if database.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
                    postgres(&code, text)
                } else {
                    sqlite(&code, text)
                }
            }
            sqlx::Error::PoolTimedOut => Self::Busy("no free connection in time".into()),
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Self::Unreachable(text),
            _ => Self::Other(text),
        }
    }
}

fn postgres(code: &str, text: String) -> StoreError {
    match code {
        "40001" | "40P01" => StoreError::Collision(text),
        "55P03" | "57014" => StoreError::Busy(text),
        "25006" | "53100" => StoreError::Full(text),
        _ => match code.get(..2) {
            Some("22" | "23") => StoreError::Data(text),
            Some("53") => StoreError::Busy(text),
            Some("08" | "57" | "58") => StoreError::Unreachable(text),
            _ => StoreError::Other(text),
        },
    }
}

fn sqlite(code: &str, text: String) -> StoreError {
    // The low byte of an extended code is the primary one.
    match code.parse::<i32>().map(|code| code & 0xff) {
        Ok(5 | 6) => StoreError::Busy(text),
        Ok(8 | 13) => StoreError::Full(text),
        Ok(10 | 14) => StoreError::Unreachable(text),
        Ok(11 | 26) => StoreError::Damaged(text),
        Ok(18..=20) => StoreError::Data(text),
        _ => StoreError::Other(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_told_apart() {
        assert!(matches!(postgres("40P01", String::new()), StoreError::Collision(_)));
        assert!(matches!(postgres("22P05", String::new()), StoreError::Data(_)));
        assert!(matches!(postgres("57P01", String::new()), StoreError::Unreachable(_)));
        assert!(matches!(postgres("53300", String::new()), StoreError::Busy(_)));
        assert!(matches!(postgres("53100", String::new()), StoreError::Full(_)));
        assert!(matches!(sqlite("517", String::new()), StoreError::Busy(_)));
        assert!(matches!(sqlite("2067", String::new()), StoreError::Data(_)));
        assert!(matches!(sqlite("13", String::new()), StoreError::Full(_)));
        assert!(matches!(sqlite("776", String::new()), StoreError::Full(_)));
        assert!(matches!(sqlite("26", String::new()), StoreError::Damaged(_)));
        assert!(matches!(sqlite("779", String::new()), StoreError::Damaged(_)));
    }

    #[test]
    fn of_a_damaged_file_its_name_and_the_remedy_are_told() {
        let told = |error: StoreError| error.in_file(Path::new("/data/systole.db")).to_string();
        let damaged = told(StoreError::Damaged("file is not a database".into()));
        for part in [
            "/data/systole.db is damaged",
            "file is not a database",
            "systole backup",
            ".recover",
        ] {
            assert!(damaged.contains(part), "{damaged}");
        }
        let busy = StoreError::Busy("locked".into());
        assert_eq!(told(busy.clone()), busy.to_string());
    }
}
