//! The whole installation at a glance.

use super::values::{id, time};
use crate::v1;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Status {
    pub replicas: Vec<Replica>,
    pub database: Database,
    pub hosts: HostCounts,
    pub running: u64,
    pub queued: u64,
    pub oldest_queued_ms: u64,
    pub since: Option<String>,
    pub ended_badly: Vec<BadEnds>,
    /// What became of the fires that were expected since then.
    pub occurrences: OccurrenceCounts,
    pub skipped: Vec<SkippedFires>,
    /// What needs a person.
    pub attention: Vec<String>,
    pub frozen: Vec<Freeze>,
    pub late: Vec<LateJob>,
    pub alarms_undelivered: u64,
}

#[derive(Debug, Serialize)]
pub struct Replica {
    pub name: String,
    pub version: String,
}

#[derive(Debug, Serialize)]
pub struct Database {
    /// `postgres` or `sqlite`.
    pub kind: String,
    pub version: String,
    pub bytes: u64,
    pub commits: CommitTimes,
    pub standbys: Vec<Standby>,
}

/// The newest transactions of the replica that answers.
#[derive(Debug, Serialize)]
pub struct CommitTimes {
    pub count: u32,
    pub median_us: u64,
    pub slowest_us: u64,
}

#[derive(Debug, Serialize)]
pub struct Standby {
    pub name: String,
    pub state: String,
    pub sync: String,
    pub lag_ms: Option<u64>,
    pub lag_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct HostCounts {
    pub ready: u32,
    pub cordoned: u32,
    pub faulty: u32,
    pub lost: u32,
    pub left: u32,
    pub slots: u32,
    pub busy: u32,
}

#[derive(Debug, Serialize)]
pub struct BadEnds {
    pub kind: String,
    pub count: u64,
    pub newest_id: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct OccurrenceCounts {
    pub expected: u64,
    pub fired: u64,
    pub coalesced: u64,
    pub skipped: u64,
    pub late: u64,
    pub asked_for: u64,
}

#[derive(Debug, Serialize)]
pub struct SkippedFires {
    pub job: String,
    pub reason: String,
    pub fires: u64,
    pub from: Option<String>,
    pub to: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct LateJob {
    pub job: String,
    pub since: Option<String>,
    /// What was wanted.
    pub rule: String,
}

impl From<&v1::StatusResponse> for Status {
    fn from(status: &v1::StatusResponse) -> Self {
        let hosts = status.hosts.unwrap_or_default();
        let counts = status.occurrences.unwrap_or_default();
        let commits = status.commits.unwrap_or_default();
        Self {
            replicas: status
                .replicas
                .iter()
                .map(|replica| Replica {
                    name: replica.name.clone(),
                    version: replica.version.clone(),
                })
                .collect(),
            database: Database {
                kind: status.database.clone(),
                version: status.database_version.clone(),
                bytes: status.database_bytes,
                commits: CommitTimes {
                    count: commits.count,
                    median_us: commits.median_us,
                    slowest_us: commits.slowest_us,
                },
                standbys: status
                    .standbys
                    .iter()
                    .map(|standby| Standby {
                        name: standby.name.clone(),
                        state: standby.state.clone(),
                        sync: standby.sync.clone(),
                        lag_ms: standby.lag_ms,
                        lag_bytes: standby.lag_bytes,
                    })
                    .collect(),
            },
            hosts: HostCounts {
                ready: hosts.ready,
                cordoned: hosts.cordoned,
                faulty: hosts.faulty,
                lost: hosts.lost,
                left: hosts.left,
                slots: hosts.slots,
                busy: hosts.busy,
            },
            running: status.running,
            queued: status.queued,
            oldest_queued_ms: status.oldest_queued_ms,
            since: time(status.since_ms),
            ended_badly: status
                .ended_badly
                .iter()
                .map(|ends| BadEnds {
                    kind: ends.kind.clone(),
                    count: ends.count,
                    newest_id: id(ends.newest_id),
                })
                .collect(),
            occurrences: OccurrenceCounts {
                expected: counts.expected,
                fired: counts.fired,
                coalesced: counts.coalesced,
                skipped: counts.skipped,
                late: counts.late,
                asked_for: counts.asked_for,
            },
            skipped: status
                .skipped
                .iter()
                .map(|skipped| SkippedFires {
                    job: skipped.job.clone(),
                    reason: skipped.reason.clone(),
                    fires: skipped.fires,
                    from: time(skipped.from_ms),
                    to: time(skipped.to_ms),
                })
                .collect(),
            attention: status.attention.clone(),
            frozen: status.frozen.iter().map(Freeze::from).collect(),
            late: status
                .late
                .iter()
                .map(|late| LateJob {
                    job: late.job.clone(),
                    since: time(late.since_ms),
                    rule: late.rule.clone(),
                })
                .collect(),
            alarms_undelivered: status.alarms_undelivered,
        }
    }
}

/// What is neither dispatched nor fired.
#[derive(Debug, Serialize)]
pub struct Freeze {
    /// `all`, `queue` or `tag`.
    pub scope: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub by: String,
    pub reason: String,
    pub since: Option<String>,
    /// `null`: until somebody lifts it.
    pub until: Option<String>,
}

impl From<&v1::Freeze> for Freeze {
    fn from(freeze: &v1::Freeze) -> Self {
        Self {
            scope: freeze.scope.clone(),
            name: freeze.name.clone(),
            by: freeze.by.clone(),
            reason: freeze.reason.clone(),
            since: time(freeze.since_ms),
            until: time(freeze.until_ms),
        }
    }
}
