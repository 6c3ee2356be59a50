//! What stays: `up` in the background, services, backups.

use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Up {
    pub pid: i32,
    pub url: Option<String>,
    pub log: Option<String>,
    /// False: it was running before.
    pub started: bool,
}

#[derive(Debug, Serialize)]
pub struct Backup {
    /// `-` for stdout, which takes no document then.
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
}

#[derive(Debug, Serialize)]
pub struct Services {
    /// `user` or `system`.
    pub scope: &'static str,
    pub units: Vec<Unit>,
    /// Whether units of this user run without a session; none for the system's.
    pub lingers: Option<bool>,
}

#[derive(Debug, Serialize)]
pub struct PlannedUnits {
    pub units: Vec<PlannedUnit>,
}

#[derive(Debug, Serialize)]
pub struct PlannedUnit {
    pub path: String,
    pub text: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct Unit {
    pub name: String,
    pub path: String,
    /// As systemd says: `active`, `inactive`, `failed`, `activating`, …
    pub active: String,
    /// As systemd says: `enabled`, `disabled`, …
    pub enabled: String,
    pub pid: Option<u32>,
}
