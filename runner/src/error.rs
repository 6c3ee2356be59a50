//! Why a runner cannot start. Each text says what to do. Nothing that happens later is an error of
//! this kind: a running runner waits, retries and logs.

use std::path::PathBuf;
use systole_shared::error::Invalid;

#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    #[error("no scheduler address is given; give at least one, such as http://scheduler:7410")]
    NoUrl,
    #[error("{url:?} is no scheduler address: {reason}; write it like http://HOST:PORT or https://HOST:PORT")]
    BadUrl { url: String, reason: String },
    #[error(
        "the runner token is empty or contains characters that a token cannot have; use the token as the scheduler's configuration has it"
    )]
    BadToken,
    #[error("the certificate authority cannot be used: {0}; give a PEM file with at least one certificate")]
    BadCa(String),
    #[error("the credential {0} cannot be used: {1}")]
    Credential(PathBuf, String),
    /// Host name, slots, queues or labels.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    #[error(
        "the data directory {0} is in use by another runner process; stop that one, or give this one a directory of its own"
    )]
    DataDirInUse(PathBuf),
    #[error("the data directory {path} cannot be used: {source}; make it writable for this user, or give another one")]
    DataDir { path: PathBuf, source: std::io::Error },
    /// Bad, or open to others.
    #[error("{0}")]
    Policy(String),
    #[error("no warden answers in the data directory {0}: {1}; see warden.log there")]
    NoWarden(PathBuf, std::io::Error),
    #[error("the runner cannot be started on this host: {0}")]
    Host(std::io::Error),
}
