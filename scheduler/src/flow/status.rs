//! The cluster on one screen, and what of it needs a person.

use super::alarms;
use crate::context::Context;
use crate::store::StoreError;
use crate::store::jobs::watch::LateRow;
use crate::store::latency::CommitTimes;
use crate::store::status::{BadRow, HostRow, JobsStatus, ReplicaRow, StandbyRow, TroubleRow};
use std::collections::BTreeSet;
use std::time::Duration;
use systole_shared::plural::counted;
use systole_shared::policy::freeze::Freeze;
use systole_shared::policy::host_fault::words;
use systole_shared::policy::lane::{Lane, serves};
use systole_shared::policy::why::RunnerView;
use systole_shared::task::TaskState;
use systole_shared::time::{format_duration, format_utc};

/// A replica that has not written for this long is not there.
const REPLICA_MS: i64 = 15_000;
/// The newest tasks of each state that are looked at.
const ENDS_MAX: i64 = 10_000;
/// The newest rows of the ledger that are looked at.
const LEDGER_MAX: i64 = 100_000;
/// A fire is late beyond this.
const LATE_MS: i64 = 5_000;
/// A database whose commits take this long needs a look.
const SLOW_COMMIT: Duration = Duration::from_secs(1);
/// A standby that is so far behind, too.
const BEHIND_MS: i64 = 60_000;
/// Lines of one kind.
const LINES_MAX: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostState {
    Ready,
    Cordoned,
    Faulty,
    Lost,
    Left,
}

#[derive(Clone, Debug, Default)]
pub struct Hosts {
    pub ready: usize,
    pub cordoned: usize,
    pub faulty: usize,
    pub lost: usize,
    pub left: usize,
    pub slots: i64,
    pub busy: i64,
}

#[derive(Clone, Debug)]
pub struct ClusterStatus {
    pub replicas: Vec<ReplicaRow>,
    /// `postgres` or `sqlite`.
    pub database: &'static str,
    pub database_version: String,
    pub database_bytes: i64,
    /// How long commits take.
    pub commits: CommitTimes,
    /// Copies of the database that follow it.
    pub standbys: Vec<StandbyRow>,
    pub hosts: Hosts,
    pub queued: i64,
    pub oldest_queued_ms: i64,
    pub running: i64,
    pub since_ms: i64,
    pub ended_badly: Vec<BadRow>,
    pub jobs: JobsStatus,
    /// What needs a person, one sentence each.
    pub attention: Vec<String>,
    pub frozen: Vec<Freeze>,
    /// Jobs that should have succeeded by now.
    pub late: Vec<LateRow>,
    /// Alarms of jobs that did not arrive.
    pub alarms_undelivered: i64,
}

/// `since_ms`: by the database's clock; negative: so long ago.
pub async fn read(ctx: &Context, since_ms: i64) -> Result<ClusterStatus, StoreError> {
    // Where hundreds of thousands wait, to count them takes longer than all the rest: beside it.
    let (live, rest) = tokio::try_join!(ctx.metrics.live_tasks(&ctx.db), Box::pin(all_but_live(ctx, since_ms)))?;
    let of = |state: TaskState| live.iter().find(|row| row.status == i64::from(state.number()));
    Ok(ClusterStatus {
        queued: of(TaskState::Queued).map_or(0, |row| row.count),
        oldest_queued_ms: of(TaskState::Queued).and_then(|row| row.oldest_ms).unwrap_or(0).max(0),
        running: of(TaskState::Running).map_or(0, |row| row.count),
        ..rest
    })
}

/// Everything but what waits and runs.
async fn all_but_live(ctx: &Context, since_ms: i64) -> Result<ClusterStatus, StoreError> {
    let view = ctx.fleet.view(&ctx.db, ctx.lost_after_ms()).await?;
    let now_ms = ctx.db.now_ms().await?;
    let since_ms = if since_ms < 0 { now_ms + since_ms } else { since_ms };
    let replicas = ctx.db.replicas(REPLICA_MS).await?;
    let size = ctx.db.size().await?;
    // A server that does not tell (some services of clouds) has a status all the same.
    let standbys = ctx.db.standbys().await.unwrap_or_else(|error| {
        tracing::debug!(%error, "standbys");
        Vec::new()
    });
    let commits = ctx.db.commits.newest();
    let (rows, ended_badly, jobs) = tokio::try_join!(
        ctx.db.host_states(),
        ctx.db.ended_badly(since_ms, ENDS_MAX),
        ctx.db.jobs_status(since_ms, LEDGER_MAX, LATE_MS),
    )?;
    let mut attention: Vec<String> = alarms::open(ctx)
        .await?
        .into_iter()
        .map(|alarm| alarm.message)
        .collect();
    // Replicas with the same folder say the same.
    let faults: BTreeSet<String> = replicas.iter().flat_map(ReplicaRow::job_faults).collect();
    attention.extend(bounded(
        faults.into_iter().map(|fault| format!("job files: {fault}")).collect(),
    ));
    attention.extend(bounded(jobs.in_error.iter().map(in_error).collect()));
    attention.extend(bounded(jobs.held.iter().map(held).collect()));
    attention.extend(slow(&commits));
    attention.extend(bounded(standbys.iter().filter_map(behind).collect()));
    let (hosts, unwell) = count_hosts(&rows, ctx.lost_after_ms());
    attention.extend(bounded(unwell));
    let (lanes, targets) = ctx.db.work().await?;
    let lanes: Vec<Lane> = lanes.into_iter().filter_map(|id| ctx.lanes.lane(id)).collect();
    attention.extend(bounded(unservable(&lanes, &targets, &view.runners)));
    for row in &ended_badly {
        if row.kind == "runner_lost" {
            attention.push(format!(
                "{} ended as lost with a runner, and whether it had finished is not known; the newest: systole show {}",
                counted(row.n, "task"),
                row.newest
            ));
        }
    }
    let late = ctx.db.late_jobs().await?;
    attention.extend(bounded(late.iter().map(late_line).collect()));
    let alarms_undelivered = ctx.db.undelivered_alarms().await?;
    if alarms_undelivered > 0 {
        attention.push(format!(
            "alarms of jobs that did not arrive: {alarms_undelivered}; see systole alarm ls --open"
        ));
    }
    Ok(ClusterStatus {
        replicas,
        database: match ctx.db.dialect() {
            crate::store::sql::Dialect::Postgres => "postgres",
            crate::store::sql::Dialect::Sqlite => "sqlite",
        },
        database_version: size.version,
        database_bytes: size.bytes,
        commits,
        standbys,
        hosts,
        queued: 0,
        oldest_queued_ms: 0,
        running: 0,
        since_ms,
        ended_badly,
        jobs,
        attention,
        frozen: view.freezes.clone(),
        late,
        alarms_undelivered,
    })
}

fn late_line(row: &LateRow) -> String {
    format!(
        "LATE  {} since {}: {}: systole why {}",
        row.job,
        format_utc(row.since_ms),
        row.words,
        row.job
    )
}

/// Everything waits for commits.
fn slow(commits: &CommitTimes) -> Option<String> {
    (commits.median >= SLOW_COMMIT).then(|| {
        format!(
            "the database is slow: half of the newest {} commits took {} and more, and so does each submission, start and result: systole doctor",
            commits.count,
            format_duration(ms(commits.median))
        )
    })
}

fn behind(row: &StandbyRow) -> Option<String> {
    let lag_ms = row.lag_ms.filter(|&ms| ms >= BEHIND_MS)?;
    Some(format!(
        "standby {} is {} behind the database: what was committed since would be lost with the primary",
        row.name,
        format_duration(u64::try_from(lag_ms).unwrap_or(0))
    ))
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn in_error(row: &TroubleRow) -> String {
    let name = format!("{}/{}", row.job, row.what);
    format!(
        "trigger {name} is in ERROR and does not fire: {}. When its cause is gone: systole trigger reset {name}",
        row.detail
    )
}

fn held(row: &TroubleRow) -> String {
    format!(
        "job {} has a place that is held: nobody saw the processes of task {} on {} end. It is free when the host is back with empty hands",
        row.job, row.what, row.detail
    )
}

fn bounded(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(LINES_MAX);
    if more > 0 {
        lines.truncate(LINES_MAX);
        lines.push(format!("… and {more} more of this kind"));
    }
    lines
}

/// One word for a host: the worst of what is true of it. It is cordoned when no slot of it is open.
fn host_state(row: &HostRow, lost_after_ms: i64) -> HostState {
    if row.gone == row.slots {
        HostState::Left
    } else if row.age_ms >= lost_after_ms {
        HostState::Lost
    } else if row.fault.is_some() {
        HostState::Faulty
    } else if row.cordoned == row.slots {
        HostState::Cordoned
    } else {
        HostState::Ready
    }
}

/// How many hosts are what, and a line for each that needs a person. One that was cordoned and is lost is expected to be.
fn count_hosts(rows: &[HostRow], lost_after_ms: i64) -> (Hosts, Vec<String>) {
    let mut hosts = Hosts::default();
    let mut unwell = Vec::new();
    for row in rows {
        hosts.slots += row.slots;
        hosts.busy += row.busy;
        match host_state(row, lost_after_ms) {
            HostState::Ready => hosts.ready += 1,
            HostState::Cordoned => hosts.cordoned += 1,
            HostState::Left => hosts.left += 1,
            HostState::Faulty => {
                hosts.faulty += 1;
                let what = row.fault.as_deref().map(words).unwrap_or_default();
                unwell.push(format!(
                    "host {} is faulty ({what}): systole runners ls {}",
                    row.host, row.host
                ));
            }
            HostState::Lost => {
                hosts.lost += 1;
                if row.cordoned < row.slots {
                    unwell.push(format!(
                        "host {} is lost; when it is gone for good: systole runners rm {}",
                        row.host, row.host
                    ));
                }
            }
        }
    }
    (hosts, unwell)
}

/// QUEUED tasks that no live runner fits, whatever it is doing now; lanes of several priorities are one line.
fn unservable(lanes: &[Lane], targets: &[String], runners: &[RunnerView]) -> Vec<String> {
    let mut lines: Vec<String> = lanes
        .iter()
        .filter(|lane| {
            !runners
                .iter()
                .any(|runner| runner.live && serves(&runner.queues, &runner.labels, lane))
        })
        .map(|lane| {
            let require: Vec<String> = lane
                .require
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            let labels = if require.is_empty() {
                String::new()
            } else {
                format!(" with {}", require.join(" "))
            };
            format!(
                "tasks of queue {}{labels} wait, and no live runner serves them",
                lane.queue
            )
        })
        .collect();
    lines.extend(
        targets
            .iter()
            .filter(|host| !runners.iter().any(|runner| runner.live && runner.id.host == **host))
            .map(|host| format!("tasks for host {host} wait, and it is not live")),
    );
    lines.sort_unstable();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use systole_shared::id::RunnerId;

    fn host(age_ms: i64, gone: i64, cordoned: i64, fault: Option<&str>) -> HostRow {
        HostRow {
            host: "a".into(),
            age_ms,
            slots: 2,
            gone,
            busy: 0,
            cordoned,
            fault: fault.map(Into::into),
        }
    }

    #[test]
    fn a_host_is_the_worst_of_what_is_true_of_it() {
        let state = |row: HostRow| host_state(&row, 100);
        assert_eq!(state(host(0, 0, 0, None)), HostState::Ready);
        assert_eq!(state(host(0, 0, 1, None)), HostState::Ready);
        assert_eq!(state(host(0, 1, 2, None)), HostState::Cordoned);
        assert_eq!(state(host(0, 0, 2, Some("disk_full"))), HostState::Faulty);
        assert_eq!(state(host(100, 0, 0, Some("disk_full"))), HostState::Lost);
        assert_eq!(state(host(100, 2, 0, None)), HostState::Left);
    }

    #[test]
    fn a_lost_host_needs_a_person_unless_it_was_cordoned() {
        let needs = |row: HostRow| count_hosts(&[row], 100).1.len();
        assert_eq!(needs(host(100, 0, 0, None)), 1);
        assert_eq!(needs(host(100, 0, 2, None)), 0);
        assert_eq!(needs(host(0, 0, 0, Some("disk_full"))), 1);
        assert_eq!(needs(host(100, 2, 0, None)), 0);
    }

    #[test]
    fn a_slow_database_and_a_standby_far_behind_need_a_person() {
        let commits = |median| CommitTimes {
            count: 100,
            median: Duration::from_millis(median),
            slowest: Duration::from_secs(9),
        };
        assert_eq!(slow(&commits(999)), None);
        assert!(slow(&commits(1_500)).is_some_and(|line| line.contains("newest 100 commits took 1.5 s")));
        let standby = |lag_ms| StandbyRow {
            name: "b".into(),
            state: "streaming".into(),
            sync: "async".into(),
            lag_bytes: Some(1),
            lag_ms,
        };
        assert_eq!(behind(&standby(None)), None);
        assert_eq!(behind(&standby(Some(59_999))), None);
        let line = behind(&standby(Some(90_400))).expect("a line");
        assert!(line.starts_with("standby b is 1m30s behind"), "{line}");
    }

    #[test]
    fn what_no_live_runner_fits_is_named_once() {
        let runner = |live| RunnerView {
            queues: vec!["default".into()],
            live,
            busy: Some((1, 0)),
            ..RunnerView::ready(RunnerId::new("a", 0))
        };
        let lane = |queue: &str, priority| Lane {
            queue: queue.into(),
            require: BTreeMap::new(),
            priority,
        };
        let lanes = [lane("default", 5), lane("gpu", 1), lane("gpu", 2)];
        let lines = unservable(&lanes, &["a".into(), "b".into()], &[runner(true)]);
        assert_eq!(
            lines,
            [
                "tasks for host b wait, and it is not live",
                "tasks of queue gpu wait, and no live runner serves them"
            ]
        );
        assert_eq!(unservable(&lanes, &["a".into()], &[runner(false)]).len(), 3);
    }
}
