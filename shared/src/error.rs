//! The catalogue of error codes. A code never changes its meaning; texts may improve.

use std::fmt;

/// What kind of answer a code is, and so which gRPC status, HTTP status and exit code it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NotFound,
    Validation,
    Conflict,
    Unavailable,
    Denied,
    Exhausted,
    Unexpected,
}

macro_rules! catalogue {
    ($($variant:ident = $name:literal, $kind:ident, $doc:literal;)*) => {
        /// A code of the catalogue. Its full name is `SCHEDULING_` and the short one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $(#[doc = $doc] $variant,)* }

        impl Code {
            /// All codes, for documentation and tests.
            pub const ALL: &[Code] = &[$(Code::$variant,)*];

            /// The short name, as people see it.
            pub fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }

            /// What kind of answer it is.
            pub fn kind(self) -> Kind {
                match self { $(Code::$variant => Kind::$kind,)* }
            }

            /// What it means, one line.
            pub fn meaning(self) -> &'static str {
                match self { $(Code::$variant => $doc,)* }
            }

            /// The code with this short name.
            pub fn parse(name: &str) -> Option<Code> {
                match name { $($name => Some(Code::$variant),)* _ => None }
            }
        }
    };
}

catalogue! {
    JobNotFound = "NOTFOUND_001", NotFound, "the job does not exist";
    TriggerNotFound = "NOTFOUND_003", NotFound, "the trigger does not exist";
    TaskNotFound = "NOTFOUND_004", NotFound, "the task does not exist or has ended";
    NoCodeDefinition = "NOTFOUND_005", NotFound, "the job comes from no file, or had no such version, and cannot be restored";
    RunnerNotFound = "NOTFOUND_006", NotFound, "the runner does not exist";
    TokenNotFound = "NOTFOUND_008", NotFound, "the token does not exist";
    LeaseNotFound = "NOTFOUND_009", NotFound, "nobody holds the lease";
    ChannelNotFound = "NOTFOUND_010", NotFound, "the scheduler has no alarm channel of this name";
    NamedNotFound = "NOTFOUND_011", NotFound, "the calendar or concurrency group does not exist";
    InvalidJob = "VALIDATION_001", Validation, "the definition of a job, calendar or concurrency group is wrong";
    InvalidPage = "VALIDATION_002", Validation, "a page size or page token is out of range";
    InvalidField = "VALIDATION_003", Validation, "a field of the request is wrong";
    BatchSize = "VALIDATION_004", Validation, "a batch is empty or too large";
    JobBusy = "CONFLICT_001", Conflict, "the job runs, and its policy does not allow another run now";
    LeaseHeld = "CONFLICT_002", Conflict, "somebody else holds the lease, or it is lost";
    RunnerIdInUse = "CONFLICT_004", Conflict, "another process holds this runner id";
    KeyReused = "CONFLICT_005", Conflict, "the idempotency key was used with another body";
    TokenExists = "CONFLICT_007", Conflict, "a token with this name exists already";
    LastAdmin = "CONFLICT_008", Conflict, "it is the last admin token, without which nobody could make tokens";
    VersionChanged = "CONFLICT_009", Conflict, "it was changed since the version that the call expects";
    HostInUse = "CONFLICT_010", Conflict, "the host still beats, or holds tasks that nobody has said to be lost";
    InUse = "CONFLICT_011", Conflict, "the calendar or concurrency group is used";
    LeaseRevoked = "CONFLICT_012", Conflict, "somebody took the lease away";
    Draining = "UNAVAILABLE_001", Unavailable, "this scheduler is starting or stopping";
    StoreUnreachable = "UNAVAILABLE_003", Unavailable, "the database cannot be reached or is busy";
    StoreFull = "UNAVAILABLE_006", Unavailable, "the database cannot take more: disk full or read-only";
    Overloaded = "UNAVAILABLE_007", Exhausted, "too many requests are waiting; try again";
    TokenMissing = "AUTH_001", Denied, "the call carries no token, or one that is unknown, expired or revoked";
    TokenRole = "AUTH_002", Denied, "the token's role does not allow this call";
    Unexpected = "UNEXPECTED_001", Unexpected, "an error that should not happen; see the scheduler's log";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A wrong value of one field: which field, and a sentence with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Invalid {
    pub field: String,
    pub message: String,
}

impl Invalid {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_unique_name_that_parses_back() {
        let mut seen = std::collections::HashSet::new();
        for &code in Code::ALL {
            assert!(seen.insert(code.name()), "{code} occurs twice");
            assert_eq!(Code::parse(code.name()), Some(code));
        }
    }
}
