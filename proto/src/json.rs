//! JSON for programs, shared by the command line and the HTTP interface. The shapes are written out: what scripts read
//! must not change because a message of the contract does. Ids are strings (a 64-bit number loses digits in JavaScript),
//! times RFC 3339 in UTC, durations milliseconds, and what is not set is null.

use crate::{facts, v1};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use systole_shared::error::Invalid;
use systole_shared::limits::{OUTPUT_MAX_BYTES_DEFAULT, UMASK_DEFAULT};
use systole_shared::task::signal::SIGTERM;
use systole_shared::time::{format_utc, parse_time};

/// Version of the shapes; it is in every document.
pub const FORMAT: u32 = 1;

/// One document: the version beside the content.
#[derive(Debug, Serialize)]
pub struct Document<'a, T> {
    pub format: u32,
    #[serde(flatten)]
    pub content: &'a T,
}

#[derive(Debug, Serialize)]
pub struct Tasks {
    pub tasks: Vec<Task>,
}

#[derive(Debug, Serialize)]
pub struct OneTask {
    pub task: Task,
}

#[derive(Debug, Serialize)]
pub struct Submitted {
    pub id: String,
    /// The key was known and nothing new was stored.
    pub existing: bool,
}

#[derive(Debug, Serialize)]
pub struct Results<T> {
    pub results: Vec<T>,
}

#[derive(Debug, Serialize)]
pub struct Runners {
    pub runners: Vec<Runner>,
}

#[derive(Debug, Serialize)]
pub struct Task {
    pub id: String,
    pub root_id: String,
    pub retry_of: Option<String>,
    pub retried_by: Option<String>,
    pub attempt: u32,
    pub recoveries: u32,
    pub state: String,
    pub outcome: Option<Outcome>,
    pub spec: Spec,
    pub host: Option<String>,
    pub slot: Option<u32>,
    pub created_at: Option<String>,
    pub queued_at: Option<String>,
    pub dispatched_at: Option<String>,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub submitted_by: Option<String>,
    pub submit_reason: Option<String>,
    pub cancelled_by: Option<String>,
    pub cancel_reason: Option<String>,
    pub late_result: Option<Outcome>,
    pub end_detail: Option<EndDetail>,
    pub callback: Option<Callback>,
    pub waiting_for: Option<String>,
    pub route: Option<String>,
    /// The host that was chosen, while it waits for it.
    pub routed_to: Option<String>,
    pub set_id: Option<String>,
    pub shard_index: Option<u32>,
    pub shard_total: Option<u32>,
    pub set_size: Option<u32>,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Written by the command beyond what is stored.
    pub stdout_dropped_bytes: u64,
    pub stderr_dropped_bytes: u64,
    /// Null: no stored bytes follow on what is not stored.
    pub stdout_gap: Option<Gap>,
    pub stderr_gap: Option<Gap>,
}

/// Bytes that are not stored although later ones are.
#[derive(Debug, Serialize)]
pub struct Gap {
    pub offset: u64,
    pub bytes: u64,
}

impl From<&v1::OutputGap> for Gap {
    fn from(gap: &v1::OutputGap) -> Self {
        Self {
            offset: gap.offset,
            bytes: gap.bytes,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputPolicy {
    pub max_bytes: u64,
    pub on_limit: String,
    /// Null: as long as the task.
    pub keep_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    pub command: Vec<String>,
    pub name: String,
    pub queue: String,
    pub require: BTreeMap<String, String>,
    pub tags: Vec<String>,
    pub target_host: Option<String>,
    pub target_slot: Option<u32>,
    pub priority: Option<u32>,
    pub run_at: Option<String>,
    pub delay_ms: Option<u64>,
    pub timeout_ms: Option<u64>,
    pub queue_timeout_ms: Option<u64>,
    pub start_timeout_ms: Option<u64>,
    pub silence_timeout_ms: Option<u64>,
    pub warn_signal: Option<i32>,
    pub warn_before_ms: Option<u64>,
    pub kill_signal: i32,
    /// Null: the runner's own.
    pub kill_grace_ms: Option<u64>,
    pub on_disconnect: String,
    pub on_runner_restart: String,
    pub limits: Limits,
    pub output: OutputPolicy,
    /// Octal digits.
    pub umask: String,
    /// Null: the runner's own.
    pub user: Option<String>,
    pub group: Option<String>,
    /// In their order, which is the order of the child's environment.
    pub env: Vec<EnvVar>,
    pub env_file: Option<String>,
    pub dir: Option<String>,
    pub keep_workdir: bool,
    /// Null: no terminal.
    pub tty: Option<Terminal>,
    pub callback_url: Option<String>,
    pub retry: Retry,
    pub job: Option<String>,
    pub batch: Option<String>,
    /// Counts from 1.
    pub batch_line: Option<u64>,
    pub unique_key: Option<String>,
}

/// Null: as the runner has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    pub open_files: Option<u32>,
    pub core_bytes: u64,
    pub file_bytes: Option<u64>,
    pub nice: Option<u32>,
    pub memory_bytes: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u32>,
    pub pids: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EnvVar {
    pub name: String,
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    pub max_retries: u32,
    pub delay_ms: u64,
}

#[derive(Debug, Serialize)]
pub struct Outcome {
    pub kind: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub message: String,
}

/// What the runner knows of the end; what it does not know is null.
#[derive(Debug, Serialize)]
pub struct EndDetail {
    /// No process of the task was left.
    pub tree_empty: Option<bool>,
    pub signals: Vec<SignalSent>,
    /// Processes that the command left behind and that were killed.
    pub leftovers: u32,
    pub usage: Usage,
    /// Of all processes together; null: no limit.
    pub memory_limit_bytes: Option<u64>,
    /// Processes that the kernel ended for want of memory.
    pub oom_kills: u32,
    pub note: Option<String>,
    /// Until when the runner keeps the full output; null: it does not, or all is stored.
    pub output_until: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct SignalSent {
    pub signal: i32,
    pub at: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Usage {
    pub user_cpu_us: Option<u64>,
    pub system_cpu_us: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
    pub read_bytes: Option<u64>,
    pub written_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct Callback {
    pub url: String,
    pub status: String,
    pub tries: u32,
    pub last_error: Option<String>,
    pub delivery_id: String,
}

#[derive(Debug, Serialize)]
pub struct Problem {
    pub code: String,
    pub message: String,
    pub field: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct CancelResult {
    /// The id that was asked for.
    pub asked: String,
    /// The task that was acted on: the live one of the chain.
    pub id: Option<String>,
    pub state: Option<String>,
    pub already: bool,
    pub error: Option<Problem>,
}

#[derive(Debug, Serialize)]
pub struct CordonResult {
    pub runner: String,
    pub changed: u32,
    /// Null: until it is lifted, or nothing was changed.
    pub until: Option<String>,
    pub error: Option<Problem>,
}

/// A host that was forgotten.
#[derive(Debug, Serialize)]
pub struct Forgotten {
    pub host: String,
    pub slots: u32,
    /// Tasks that it held: they ended as lost.
    pub lost: Vec<String>,
    /// QUEUED tasks that only this host may take.
    pub waiting: Vec<String>,
    pub more_waiting: bool,
}

impl Forgotten {
    pub fn new(host: &str, response: &v1::RemoveHostResponse) -> Self {
        let texts = |ids: &[i64]| ids.iter().map(ToString::to_string).collect();
        Self {
            host: host.to_owned(),
            slots: response.slots,
            lost: texts(&response.lost),
            waiting: texts(&response.waiting),
            more_waiting: response.more_waiting,
        }
    }
}

/// A drain, as it stood when the command ended.
#[derive(Debug, Serialize)]
pub struct Drain {
    pub results: Vec<CordonResult>,
    pub waits_for: Vec<Held>,
}

/// A task that a runner has.
#[derive(Debug, Serialize)]
pub struct Held {
    /// `host/slot`.
    pub runner: String,
    pub task_id: String,
    pub task_state: String,
}

impl From<&v1::Runner> for Held {
    fn from(runner: &v1::Runner) -> Self {
        Self {
            runner: format!("{}/{}", runner.host, runner.slot),
            task_id: runner.task_id.to_string(),
            task_state: state(runner.task_state),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Terminal {
    pub rows: u32,
    pub columns: u32,
}

#[derive(Debug, Serialize)]
pub struct HostFault {
    pub kind: String,
    pub detail: String,
    pub since: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Alarms {
    pub alarms: Vec<Alarm>,
}

#[derive(Debug, Serialize)]
pub struct Alarm {
    /// `clock` or `restore`.
    pub alarm: String,
    pub message: String,
    pub since: Option<String>,
}

impl From<&v1::Alarm> for Alarm {
    fn from(alarm: &v1::Alarm) -> Self {
        Self {
            alarm: alarm.kind.clone(),
            message: alarm.message.clone(),
            since: time(alarm.since_ms),
        }
    }
}

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

#[derive(Debug, Serialize)]
pub struct LateJob {
    pub job: String,
    pub since: Option<String>,
    /// What was wanted.
    pub rule: String,
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

#[derive(Debug, Serialize)]
pub struct Confirmed {
    pub alarm: String,
    /// What follows from it.
    pub message: String,
}

#[derive(Debug, Serialize)]
pub struct Runner {
    /// `host/slot`.
    pub runner: String,
    pub host: String,
    pub slot: u32,
    pub state: String,
    pub task_id: Option<String>,
    pub task_state: Option<String>,
    pub seen_at: Option<String>,
    pub queues: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub version: String,
    pub cordoned: bool,
    pub cordoned_by: Option<String>,
    pub cordon_reason: Option<String>,
    pub cordoned_at: Option<String>,
    /// When the cordon ends by itself.
    pub cordon_until: Option<String>,
    /// What keeps the host from starting anything.
    pub fault: Option<HostFault>,
    /// The host as a whole: slots that are added later are cordoned, too.
    pub host_cordoned: bool,
    pub start_no: u64,
    /// As the runner told them.
    pub host_facts: Option<String>,
    /// What keeps the processes of a task together there.
    pub guard: Option<String>,
    /// Limits of all processes of a task together that it can enforce; null: a runner that does not say.
    pub limits: Option<Vec<String>>,
    pub clock_skew_ms: i64,
}

fn id(id: i64) -> Option<String> {
    (id != 0).then(|| id.to_string())
}

pub fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

pub fn time(ms: u64) -> Option<String> {
    i64::try_from(ms).ok().filter(|&ms| ms != 0).map(format_utc)
}

fn span(ms: u64) -> Option<u64> {
    (ms != 0).then_some(ms)
}

fn map(labels: &[v1::Label]) -> BTreeMap<String, String> {
    labels
        .iter()
        .map(|label| (label.key.clone(), label.value.clone()))
        .collect()
}

/// The state's name; a state of a later version is shown as its number.
pub fn state(number: i32) -> String {
    match crate::convert::state_from_wire(number) {
        Some(state) => state.name().to_owned(),
        None => format!("STATE {number}"),
    }
}

impl From<&v1::Task> for Task {
    fn from(task: &v1::Task) -> Self {
        let default = v1::TaskSpec::default();
        Self {
            id: task.id.to_string(),
            root_id: task.root_id.to_string(),
            retry_of: id(task.retry_of),
            retried_by: id(task.retried_by),
            attempt: task.attempt,
            recoveries: task.recoveries,
            state: state(task.state),
            outcome: task.outcome.as_ref().map(Outcome::from),
            spec: Spec::from(task.spec.as_ref().unwrap_or(&default)),
            host: text(&task.host),
            slot: (!task.host.is_empty()).then_some(task.slot),
            created_at: time(task.created_at_ms),
            queued_at: time(task.queued_at_ms),
            dispatched_at: time(task.dispatched_at_ms),
            started_at: time(task.started_at_ms),
            ended_at: time(task.ended_at_ms),
            submitted_by: text(&task.submitted_by),
            submit_reason: text(&task.submit_reason),
            cancelled_by: text(&task.cancelled_by),
            cancel_reason: text(&task.cancel_reason),
            late_result: task.late_result.as_ref().map(Outcome::from),
            end_detail: task.end_detail.as_ref().map(EndDetail::from),
            callback: task.callback.as_ref().map(Callback::from),
            waiting_for: text(&task.waiting_for),
            route: text(&task.route),
            routed_to: text(&task.routed_to),
            set_id: id(task.set_id),
            shard_index: (task.shard_total != 0).then_some(task.shard_index),
            shard_total: (task.shard_total != 0).then_some(task.shard_total),
            set_size: (task.set_size != 0).then_some(task.set_size),
            stdout_bytes: task.stdout_bytes,
            stderr_bytes: task.stderr_bytes,
            stdout_dropped_bytes: task.stdout_dropped_bytes,
            stderr_dropped_bytes: task.stderr_dropped_bytes,
            stdout_gap: task.stdout_gap.as_ref().map(Gap::from),
            stderr_gap: task.stderr_gap.as_ref().map(Gap::from),
        }
    }
}

impl From<&v1::TaskSpec> for Spec {
    fn from(spec: &v1::TaskSpec) -> Self {
        let retry = spec.retry.unwrap_or_default();
        let limits = spec.limits.unwrap_or_default();
        let output = spec.output.unwrap_or_default();
        Self {
            command: spec.command.clone(),
            name: spec.name.clone(),
            queue: spec.queue.clone(),
            require: map(&spec.require),
            tags: spec.tags.clone(),
            target_host: text(&spec.target_host),
            target_slot: spec.target_slot,
            priority: spec.priority,
            run_at: time(spec.run_at_ms),
            delay_ms: span(spec.delay_ms),
            timeout_ms: span(spec.timeout_ms),
            queue_timeout_ms: span(spec.queue_timeout_ms),
            start_timeout_ms: span(spec.start_timeout_ms),
            silence_timeout_ms: span(spec.silence_timeout_ms),
            warn_signal: (spec.warn_signal != 0).then_some(spec.warn_signal),
            warn_before_ms: span(spec.warn_before_ms),
            kill_signal: if spec.kill_signal == 0 {
                SIGTERM
            } else {
                spec.kill_signal
            },
            kill_grace_ms: spec.kill_grace_ms,
            on_disconnect: on_disconnect(spec),
            on_runner_restart: on_runner_restart(spec),
            limits: Limits {
                open_files: (limits.open_files != 0).then_some(limits.open_files),
                core_bytes: limits.core_bytes,
                file_bytes: (limits.file_bytes != 0).then_some(limits.file_bytes),
                nice: limits.nice,
                memory_bytes: span(limits.memory_bytes),
                cpu_millis: (limits.cpu_millis != 0).then_some(limits.cpu_millis),
                pids: (limits.pids != 0).then_some(limits.pids),
            },
            output: OutputPolicy {
                max_bytes: span(output.max_bytes).unwrap_or(OUTPUT_MAX_BYTES_DEFAULT),
                on_limit: on_output_limit(output.on_limit),
                keep_ms: span(output.keep_ms),
            },
            umask: format!("{:03o}", spec.umask.unwrap_or(UMASK_DEFAULT)),
            user: text(&spec.user),
            group: text(&spec.group),
            env: spec
                .env
                .iter()
                .map(|var| EnvVar {
                    name: var.name.clone(),
                    value: var.value.clone(),
                })
                .collect(),
            env_file: text(&spec.env_file),
            dir: text(&spec.dir),
            keep_workdir: spec.keep_workdir,
            tty: spec.tty.map(|tty| Terminal {
                rows: tty.rows,
                columns: tty.columns,
            }),
            callback_url: text(&spec.callback_url),
            retry: Retry {
                max_retries: retry.max_retries,
                delay_ms: retry.delay_ms,
            },
            job: text(&spec.job),
            batch: text(&spec.batch),
            batch_line: (spec.batch_line != 0).then_some(spec.batch_line),
            unique_key: text(&spec.unique_key),
        }
    }
}

/// A policy of a later version is shown as its number.
pub fn on_disconnect(spec: &v1::TaskSpec) -> String {
    match v1::OnDisconnect::try_from(spec.on_disconnect) {
        Ok(v1::OnDisconnect::Unspecified | v1::OnDisconnect::Continue) => "continue".into(),
        Ok(v1::OnDisconnect::Kill) => "kill".into(),
        Err(_) => spec.on_disconnect.to_string(),
    }
}

/// As [`on_disconnect`].
pub fn on_runner_restart(spec: &v1::TaskSpec) -> String {
    match v1::OnRunnerRestart::try_from(spec.on_runner_restart) {
        Ok(v1::OnRunnerRestart::Unspecified | v1::OnRunnerRestart::Adopt) => "adopt".into(),
        Ok(v1::OnRunnerRestart::Kill) => "kill".into(),
        Err(_) => spec.on_runner_restart.to_string(),
    }
}

/// As [`on_disconnect`].
pub fn on_output_limit(number: i32) -> String {
    match v1::OnOutputLimit::try_from(number) {
        Ok(v1::OnOutputLimit::Unspecified | v1::OnOutputLimit::Truncate) => "truncate".into(),
        Ok(v1::OnOutputLimit::Kill) => "kill".into(),
        Err(_) => number.to_string(),
    }
}

/// From what a program sent to the message of the contract. What is not given has its default there.
impl TryFrom<&Spec> for v1::TaskSpec {
    type Error = Invalid;

    fn try_from(spec: &Spec) -> Result<Self, Invalid> {
        let words = |text: &Option<String>| text.clone().unwrap_or_default();
        Ok(v1::TaskSpec {
            command: spec.command.clone(),
            name: spec.name.clone(),
            queue: spec.queue.clone(),
            require: spec
                .require
                .iter()
                .map(|(key, value)| v1::Label {
                    key: key.clone(),
                    value: value.clone(),
                })
                .collect(),
            tags: spec.tags.clone(),
            target_host: words(&spec.target_host),
            target_slot: spec.target_slot,
            priority: spec.priority,
            run_at_ms: match &spec.run_at {
                None => 0,
                Some(text) => parse_utc(text)?,
            },
            delay_ms: spec.delay_ms.unwrap_or(0),
            timeout_ms: spec.timeout_ms.unwrap_or(0),
            queue_timeout_ms: spec.queue_timeout_ms.unwrap_or(0),
            start_timeout_ms: spec.start_timeout_ms.unwrap_or(0),
            silence_timeout_ms: spec.silence_timeout_ms.unwrap_or(0),
            warn_signal: spec.warn_signal.unwrap_or(0),
            warn_before_ms: spec.warn_before_ms.unwrap_or(0),
            kill_signal: spec.kill_signal,
            kill_grace_ms: spec.kill_grace_ms,
            on_disconnect: match spec.on_disconnect.as_str() {
                "" => v1::OnDisconnect::Unspecified,
                "continue" => v1::OnDisconnect::Continue,
                "kill" => v1::OnDisconnect::Kill,
                other => {
                    return Err(Invalid::new(
                        "on_disconnect",
                        format!("{other:?} is neither continue nor kill"),
                    ));
                }
            }
            .into(),
            on_runner_restart: match spec.on_runner_restart.as_str() {
                "" => v1::OnRunnerRestart::Unspecified,
                "adopt" => v1::OnRunnerRestart::Adopt,
                "kill" => v1::OnRunnerRestart::Kill,
                other => {
                    return Err(Invalid::new(
                        "on_runner_restart",
                        format!("{other:?} is neither adopt nor kill"),
                    ));
                }
            }
            .into(),
            limits: Some(v1::Limits {
                open_files: spec.limits.open_files.unwrap_or(0),
                core_bytes: spec.limits.core_bytes,
                file_bytes: spec.limits.file_bytes.unwrap_or(0),
                nice: spec.limits.nice,
                memory_bytes: spec.limits.memory_bytes.unwrap_or(0),
                cpu_millis: spec.limits.cpu_millis.unwrap_or(0),
                pids: spec.limits.pids.unwrap_or(0),
            }),
            output: Some(v1::OutputPolicy {
                // The default is shown; sent again it is still the default.
                max_bytes: if spec.output.max_bytes == OUTPUT_MAX_BYTES_DEFAULT {
                    0
                } else {
                    spec.output.max_bytes
                },
                on_limit: match spec.output.on_limit.as_str() {
                    "" => v1::OnOutputLimit::Unspecified,
                    "truncate" => v1::OnOutputLimit::Truncate,
                    "kill" => v1::OnOutputLimit::Kill,
                    other => {
                        return Err(Invalid::new(
                            "output.on_limit",
                            format!("{other:?} is neither truncate nor kill"),
                        ));
                    }
                }
                .into(),
                keep_ms: spec.output.keep_ms.unwrap_or(0),
            }),
            umask: match spec.umask.as_str() {
                "" => None,
                text => Some(u32::from_str_radix(text, 8).map_err(|_| {
                    Invalid::new(
                        "umask",
                        format!("{text:?} is no umask; write octal digits, such as \"027\""),
                    )
                })?),
            },
            user: words(&spec.user),
            group: words(&spec.group),
            env: spec
                .env
                .iter()
                .map(|var| v1::EnvVar {
                    name: var.name.clone(),
                    value: var.value.clone(),
                })
                .collect(),
            env_file: words(&spec.env_file),
            dir: words(&spec.dir),
            keep_workdir: spec.keep_workdir,
            tty: spec.tty.as_ref().map(|tty| v1::Terminal {
                rows: tty.rows,
                columns: tty.columns,
            }),
            callback_url: words(&spec.callback_url),
            retry: Some(v1::Retry {
                max_retries: spec.retry.max_retries,
                delay_ms: spec.retry.delay_ms,
            }),
            job: words(&spec.job),
            batch: words(&spec.batch),
            batch_line: spec.batch_line.unwrap_or(0),
            unique_key: words(&spec.unique_key),
        })
    }
}

/// An absolute time; one that is relative to now would be another one when it is sent again.
fn parse_utc(text: &str) -> Result<u64, Invalid> {
    let bad = || {
        Invalid::new(
            "run_at",
            format!("{text:?} is no time; write it like 2027-01-31T02:30:00+01:00"),
        )
    };
    if !text.contains(['T', 't']) {
        return Err(bad());
    }
    let ms = parse_time(text, 0).map_err(|_| bad())?;
    // On the wire 0 is "not given", and what is before it has no number there.
    match u64::try_from(ms) {
        Ok(ms) if ms > 0 => Ok(ms),
        _ => Err(Invalid::new(
            "run_at",
            format!("{text} is in the past; leave it out to run at once"),
        )),
    }
}

impl From<&v1::Outcome> for Outcome {
    fn from(outcome: &v1::Outcome) -> Self {
        Self {
            kind: outcome.kind.clone(),
            exit_code: outcome.exit_code,
            signal: outcome.signal,
            message: outcome.message.clone(),
        }
    }
}

impl From<&v1::EndDetail> for EndDetail {
    fn from(detail: &v1::EndDetail) -> Self {
        let usage = detail.usage.unwrap_or_default();
        Self {
            tree_empty: detail.tree_empty,
            signals: detail
                .signals
                .iter()
                .map(|sent| SignalSent {
                    signal: sent.signal,
                    at: time(u64::try_from(sent.at_ms).unwrap_or(0)),
                })
                .collect(),
            leftovers: detail.leftovers,
            usage: Usage {
                user_cpu_us: usage.user_cpu_us,
                system_cpu_us: usage.system_cpu_us,
                peak_memory_bytes: usage.peak_memory_bytes,
                read_bytes: usage.read_bytes,
                written_bytes: usage.written_bytes,
            },
            output_until: detail
                .output_until_ms
                .and_then(|ms| u64::try_from(ms).ok())
                .and_then(time),
            memory_limit_bytes: detail.memory_limit_bytes,
            oom_kills: detail.oom_kills,
            note: text(&detail.note),
        }
    }
}

impl From<&v1::Callback> for Callback {
    fn from(callback: &v1::Callback) -> Self {
        Self {
            url: callback.url.clone(),
            status: callback.status.clone(),
            tries: callback.tries,
            last_error: text(&callback.last_error),
            delivery_id: callback.delivery_id.clone(),
        }
    }
}

impl From<&v1::ItemError> for Problem {
    fn from(error: &v1::ItemError) -> Self {
        Self {
            code: error.code.clone(),
            message: error.message.clone(),
            field: text(&error.field),
        }
    }
}

impl CancelResult {
    pub fn new(asked: i64, result: &v1::CancelResult) -> Self {
        let refused = result.error.is_some();
        Self {
            asked: asked.to_string(),
            id: if refused { None } else { id(result.id) },
            state: (!refused).then(|| state(result.state)),
            already: result.already,
            error: result.error.as_ref().map(Problem::from),
        }
    }
}

impl From<&v1::CordonResult> for CordonResult {
    fn from(result: &v1::CordonResult) -> Self {
        Self {
            runner: result.runner.clone(),
            changed: result.changed,
            until: time(result.until_ms),
            error: result.error.as_ref().map(Problem::from),
        }
    }
}

impl From<&v1::Runner> for Runner {
    fn from(runner: &v1::Runner) -> Self {
        Self {
            runner: format!("{}/{}", runner.host, runner.slot),
            host: runner.host.clone(),
            slot: runner.slot,
            state: runner.state.clone(),
            task_id: id(runner.task_id),
            task_state: (runner.task_id != 0).then(|| state(runner.task_state)),
            seen_at: time(runner.seen_at_ms),
            queues: runner.queues.clone(),
            labels: map(&runner.labels),
            version: runner.version.clone(),
            cordoned: runner.cordoned,
            cordoned_by: text(&runner.cordoned_by),
            cordon_reason: text(&runner.cordon_reason),
            cordoned_at: time(runner.cordoned_at_ms),
            cordon_until: time(runner.cordon_until_ms),
            fault: runner.fault.as_ref().map(|fault| HostFault {
                kind: fault.kind.clone(),
                detail: fault.detail.clone(),
                since: time(runner.fault_at_ms),
            }),
            host_cordoned: runner.host_cordoned,
            start_no: runner.start_no,
            host_facts: text(&runner.host_facts),
            guard: facts::guard(&runner.host_facts),
            limits: facts::limits(&runner.host_facts),
            clock_skew_ms: runner.clock_skew_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::state_to_wire;
    use serde_json::{Value, json};
    use systole_shared::task::TaskState;

    fn value(content: &impl Serialize) -> Value {
        serde_json::to_value(Document {
            format: FORMAT,
            content,
        })
        .expect("serialises")
    }

    fn task() -> v1::Task {
        v1::Task {
            id: 9_007_199_254_740_993,
            root_id: 9_007_199_254_740_993,
            attempt: 1,
            state: state_to_wire(TaskState::Running) as i32,
            created_at_ms: 1_800_000_000_000,
            host: "db-01".into(),
            stdout_dropped_bytes: 3,
            stderr_dropped_bytes: 4,
            spec: Some(v1::TaskSpec {
                command: vec!["echo".into()],
                timeout_ms: 5_000,
                limits: Some(v1::Limits {
                    nice: Some(0),
                    ..v1::Limits::default()
                }),
                user: "ann".into(),
                require: vec![v1::Label {
                    key: "gpu".into(),
                    value: "1".into(),
                }],
                ..v1::TaskSpec::default()
            }),
            ..v1::Task::default()
        }
    }

    #[test]
    fn ids_are_strings_and_times_are_utc() {
        let value = value(&OneTask {
            task: Task::from(&task()),
        });
        assert_eq!(value["format"], json!(1));
        let task = &value["task"];
        assert_eq!(task["id"], json!("9007199254740993"));
        assert_eq!(task["root_id"], json!("9007199254740993"));
        assert_eq!(task["state"], json!("RUNNING"));
        assert_eq!(task["created_at"], json!("2027-01-15T08:00:00.000Z"));
        assert_eq!(task["slot"], json!(0));
        assert_eq!(task["stdout_dropped_bytes"], json!(3));
        assert_eq!(task["stderr_dropped_bytes"], json!(4));
        assert_eq!(task["spec"]["timeout_ms"], json!(5_000));
        assert_eq!(task["spec"]["require"], json!({"gpu": "1"}));
        assert_eq!(task["spec"]["kill_signal"], json!(15));
        assert_eq!(task["spec"]["on_disconnect"], json!("continue"));
        assert_eq!(task["spec"]["on_runner_restart"], json!("adopt"));
        let limits = json!({"open_files": null, "core_bytes": 0, "file_bytes": null, "nice": 0,
            "memory_bytes": null, "cpu_millis": null, "pids": null});
        assert_eq!(task["spec"]["limits"], limits);
        assert_eq!(
            (&task["spec"]["umask"], &task["spec"]["user"]),
            (&json!("022"), &json!("ann"))
        );
    }

    #[test]
    fn what_is_not_set_is_null() {
        let value = value(&Tasks {
            tasks: vec![Task::from(&v1::Task::default())],
        });
        let task = &value["tasks"][0];
        for field in [
            "retry_of",
            "retried_by",
            "outcome",
            "host",
            "slot",
            "started_at",
            "ended_at",
            "cancelled_by",
            "callback",
            "waiting_for",
        ] {
            assert_eq!(task.get(field), Some(&Value::Null), "{field}");
        }
        assert_eq!(task["spec"].get("run_at"), Some(&Value::Null));
    }

    #[test]
    fn the_fields_of_a_task_are_settled() {
        let value = serde_json::to_value(Task::from(&task())).expect("serialises");
        let mut names: Vec<_> = value.as_object().expect("object").keys().cloned().collect();
        names.sort();
        assert_eq!(
            names,
            [
                "attempt",
                "callback",
                "cancel_reason",
                "cancelled_by",
                "created_at",
                "dispatched_at",
                "end_detail",
                "ended_at",
                "host",
                "id",
                "late_result",
                "outcome",
                "queued_at",
                "recoveries",
                "retried_by",
                "retry_of",
                "root_id",
                "route",
                "routed_to",
                "set_id",
                "set_size",
                "shard_index",
                "shard_total",
                "slot",
                "spec",
                "started_at",
                "state",
                "stderr_bytes",
                "stderr_dropped_bytes",
                "stderr_gap",
                "stdout_bytes",
                "stdout_dropped_bytes",
                "stdout_gap",
                "submit_reason",
                "submitted_by",
                "waiting_for"
            ]
        );
    }

    #[test]
    fn the_end_has_what_the_runner_knows() {
        let mut task = task();
        task.end_detail = Some(v1::EndDetail {
            tree_empty: Some(true),
            signals: vec![v1::SignalSent {
                signal: 15,
                at_ms: 1_800_000_000_000,
            }],
            leftovers: 2,
            usage: Some(v1::Usage {
                user_cpu_us: Some(5),
                ..v1::Usage::default()
            }),
            memory_limit_bytes: Some(7),
            oom_kills: 1,
            note: String::new(),
            output_until_ms: Some(1_800_000_000_000),
        });
        let value = serde_json::to_value(Task::from(&task)).expect("serialises");
        let detail = &value["end_detail"];
        assert_eq!(detail["tree_empty"], json!(true));
        assert_eq!(
            (&detail["memory_limit_bytes"], &detail["oom_kills"]),
            (&json!(7), &json!(1))
        );
        assert_eq!(
            detail["signals"],
            json!([{"signal": 15, "at": "2027-01-15T08:00:00.000Z"}])
        );
        assert_eq!(detail["leftovers"], json!(2));
        assert_eq!(detail["usage"]["user_cpu_us"], json!(5));
        assert_eq!(detail["usage"].get("read_bytes"), Some(&Value::Null));
        assert_eq!(detail.get("note"), Some(&Value::Null));
        assert_eq!(detail["output_until"], json!("2027-01-15T08:00:00.000Z"));
    }

    #[test]
    fn a_refused_cancel_has_its_error() {
        let result = v1::CancelResult {
            id: 5,
            error: Some(v1::ItemError {
                code: "NOTFOUND_004".into(),
                message: "task 5 has ended".into(),
                field: String::new(),
            }),
            ..v1::CancelResult::default()
        };
        let value = serde_json::to_value(CancelResult::new(5, &result)).expect("serialises");
        assert_eq!(value["error"]["code"], json!("NOTFOUND_004"));
        assert_eq!(
            (value["asked"].clone(), value["state"].clone()),
            (json!("5"), Value::Null)
        );
    }

    #[test]
    fn what_is_shown_can_be_sent_again() {
        let mut sent = task().spec.expect("a specification");
        sent.env = vec![v1::EnvVar {
            name: "A".into(),
            value: "x".into(),
        }];
        sent.run_at_ms = 1_800_000_000_123;
        sent.on_disconnect = v1::OnDisconnect::Kill.into();
        sent.umask = Some(0o27);
        (sent.batch, sent.batch_line, sent.unique_key) = ("b".into(), 7, "u".into());
        let shown = serde_json::to_string(&Spec::from(&sent)).expect("serialises");
        let read: Spec = serde_json::from_str(&shown).expect("reads");
        let again = v1::TaskSpec::try_from(&read).expect("converts");
        assert_eq!(Spec::from(&again), Spec::from(&sent));
        assert_eq!(
            crate::convert::spec_from_wire(again),
            crate::convert::spec_from_wire(sent)
        );
    }

    #[test]
    fn a_field_that_is_not_known_is_refused_by_name() {
        let error = serde_json::from_str::<Spec>(r#"{"command":["a"],"retires":1}"#).expect_err("refused");
        assert!(error.to_string().contains("`retires`"), "{error}");
        let wrong = |spec: &str| {
            let spec: Spec = serde_json::from_str(spec).expect("reads");
            v1::TaskSpec::try_from(&spec).expect_err("refused").field
        };
        assert_eq!(wrong(r#"{"run_at":"-2h"}"#), "run_at");
        assert_eq!(wrong(r#"{"umask":"9"}"#), "umask");
        assert_eq!(wrong(r#"{"on_disconnect":"die"}"#), "on_disconnect");
    }
}
