//! Conversions between messages of the contract and domain types. A message that does not make sense
//! becomes an [`Invalid`] that names the field.

use crate::v1;
use systole_shared::error::Invalid;
use systole_shared::heartbeat::end::{Report, StoppedBy};
use systole_shared::heartbeat::{ResetReason, Said};
use systole_shared::id::Target;
use systole_shared::limits::{DURATION_MS_MAX, MESSAGE_CHARS_MAX, UMASK_DEFAULT, WORD_CHARS_MAX};
use systole_shared::policy::lane::Labels;
use systole_shared::task::detail::{EndDetail, SignalSent, Usage};
use systole_shared::task::output::{OnLimit, OutputPolicy};
use systole_shared::task::signal::{SIGNAL_MAX, SIGTERM, signal_name};
use systole_shared::task::spec::{OnDisconnect, OnRunnerRestart};
use systole_shared::task::{Limits, Outcome, OutcomeKind, Retry, TaskSpec, TaskState, Terminal};

/// Metadata key that carries the catalogue code of a refused call.
pub const ERROR_CODE_KEY: &str = "systole-error-code";
/// Metadata key that names the field of a refused call.
pub const ERROR_FIELD_KEY: &str = "systole-error-field";
/// Metadata key of a refused beat: ids of the results that were recorded all the same, separated by commas. No other
/// word about the beat: it acknowledges nothing of a process that holds no host.
pub const RECORDED_KEY: &str = "systole-recorded";
/// Metadata key of a refused beat with recorded results: the cluster that recorded them.
pub const CLUSTER_KEY: &str = "systole-cluster";

/// An enum of the contract and one of the domain with the same words. UNSPECIFIED and a word of a later version are
/// `None`.
macro_rules! same_words {
    ($domain:ident, $wire:ident, $to:ident, $from:ident, [$($word:ident),+ $(,)?]) => {
        pub fn $to(value: $domain) -> v1::$wire {
            match value {
                $($domain::$word => v1::$wire::$word),+
            }
        }

        pub fn $from(number: i32) -> Option<$domain> {
            match v1::$wire::try_from(number) {
                $(Ok(v1::$wire::$word) => Some($domain::$word),)+
                Ok(v1::$wire::Unspecified) | Err(_) => None,
            }
        }
    };
}

same_words!(
    Said,
    RunnerStatus,
    said_to_wire,
    said_from_wire,
    [Idle, Running, Finished, Failed]
);
same_words!(
    ResetReason,
    ResetReason,
    reset_reason_to_wire,
    reset_reason_from_wire,
    [Ack, Stop, Unknown]
);
same_words!(
    StoppedBy,
    StoppedBy,
    stopper_to_wire,
    stopper_from_wire,
    [Reset, Timeout, Fence, Drain, Silence, RunnerRestart, OutputLimit]
);
same_words!(
    OnDisconnect,
    OnDisconnect,
    on_disconnect_to_wire,
    on_disconnect_from_wire,
    [Continue, Kill]
);
same_words!(
    OnRunnerRestart,
    OnRunnerRestart,
    on_runner_restart_to_wire,
    on_runner_restart_from_wire,
    [Adopt, Kill]
);
same_words!(
    OnLimit,
    OnOutputLimit,
    on_limit_to_wire,
    on_limit_from_wire,
    [Truncate, Kill]
);

/// A policy; not set means its default. A value of a later version is refused: what it asks for would not be done.
fn policy<T: Default>(number: i32, from: fn(i32) -> Option<T>, field: &str, words: &str) -> Result<T, Invalid> {
    match (number, from(number)) {
        (0, _) => Ok(T::default()),
        (_, Some(value)) => Ok(value),
        (_, None) => Err(Invalid::new(field, format!("{number} is neither {words}"))),
    }
}

pub fn stopped_by_to_wire(by: Option<StoppedBy>) -> v1::StoppedBy {
    by.map_or(v1::StoppedBy::Unspecified, stopper_to_wire)
}

pub fn state_to_wire(state: TaskState) -> v1::TaskState {
    match state {
        TaskState::Created => v1::TaskState::Created,
        TaskState::Queued => v1::TaskState::Queued,
        TaskState::Dispatched => v1::TaskState::Dispatched,
        TaskState::Running => v1::TaskState::Running,
        TaskState::Callback => v1::TaskState::Callback,
        TaskState::Finished => v1::TaskState::Finished,
        TaskState::Failed => v1::TaskState::Failed,
        TaskState::Skipped => v1::TaskState::Skipped,
        TaskState::Terminating => v1::TaskState::Terminating,
        TaskState::Terminated => v1::TaskState::Terminated,
    }
}

/// `None` for UNSPECIFIED and for a state of a later version.
pub fn state_from_wire(number: i32) -> Option<TaskState> {
    i16::try_from(number).ok().and_then(TaskState::from_number)
}

pub fn labels_from_wire(labels: &[v1::Label], field: &str) -> Result<Labels, Invalid> {
    let mut map = Labels::new();
    for (index, label) in labels.iter().enumerate() {
        if map.insert(label.key.clone(), label.value.clone()).is_some() {
            return Err(Invalid::new(
                format!("{field}[{index}]"),
                format!("label {} is given twice", label.key),
            ));
        }
    }
    Ok(map)
}

pub fn labels_to_wire(labels: &Labels) -> Vec<v1::Label> {
    labels
        .iter()
        .map(|(key, value)| v1::Label {
            key: key.clone(),
            value: value.clone(),
        })
        .collect()
}

fn some_text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn some_ms(ms: u64) -> Option<u64> {
    (ms != 0).then_some(ms)
}

fn some_signal(signal: i32) -> Option<i32> {
    (signal != 0).then_some(signal)
}

fn limits_from_wire(limits: v1::Limits) -> Limits {
    Limits {
        open_files: (limits.open_files != 0).then_some(limits.open_files),
        core_bytes: limits.core_bytes,
        file_bytes: (limits.file_bytes != 0).then_some(limits.file_bytes),
        nice: limits.nice,
        memory_bytes: (limits.memory_bytes != 0).then_some(limits.memory_bytes),
        cpu_millis: (limits.cpu_millis != 0).then_some(limits.cpu_millis),
        pids: (limits.pids != 0).then_some(limits.pids),
    }
}

/// Not set where nothing is limited.
fn limits_to_wire(limits: &Limits) -> Option<v1::Limits> {
    (*limits != Limits::default()).then(|| v1::Limits {
        open_files: limits.open_files.unwrap_or(0),
        core_bytes: limits.core_bytes,
        file_bytes: limits.file_bytes.unwrap_or(0),
        nice: limits.nice,
        memory_bytes: limits.memory_bytes.unwrap_or(0),
        cpu_millis: limits.cpu_millis.unwrap_or(0),
        pids: limits.pids.unwrap_or(0),
    })
}

fn output_from_wire(output: v1::OutputPolicy) -> Result<OutputPolicy, Invalid> {
    Ok(OutputPolicy {
        max_bytes: (output.max_bytes != 0).then_some(output.max_bytes),
        on_limit: policy(
            output.on_limit,
            on_limit_from_wire,
            "output.on_limit",
            "truncate nor kill",
        )?,
        keep_ms: some_ms(output.keep_ms),
    })
}

/// Not set where all is as it is without.
fn output_to_wire(output: &OutputPolicy) -> Option<v1::OutputPolicy> {
    (*output != OutputPolicy::default()).then(|| v1::OutputPolicy {
        max_bytes: output.max_bytes.unwrap_or(0),
        on_limit: on_limit_to_wire(output.on_limit).into(),
        keep_ms: output.keep_ms.unwrap_or(0),
    })
}

/// Structure only; [`TaskSpec::validate`] checks the values.
pub fn spec_from_wire(spec: v1::TaskSpec) -> Result<TaskSpec, Invalid> {
    let target = match (some_text(spec.target_host), spec.target_slot) {
        (Some(host), slot) => Some(Target { host, slot }),
        (None, Some(_)) => return Err(Invalid::new("target_slot", "is given without target_host")),
        (None, None) => None,
    };
    let retry = spec.retry.unwrap_or_default();
    let require = labels_from_wire(&spec.require, "require")?;
    let run_at_ms = match spec.run_at_ms {
        0 => None,
        ms => Some(i64::try_from(ms).map_err(|_| Invalid::new("run_at_ms", "is out of range"))?),
    };
    if spec.timeout_ms > DURATION_MS_MAX {
        return Err(Invalid::new("timeout_ms", "is longer than 366 days"));
    }
    Ok(TaskSpec {
        command: spec.command,
        name: spec.name,
        queue: spec.queue,
        require,
        tags: spec.tags,
        target,
        priority: spec.priority.unwrap_or(systole_shared::limits::PRIORITY_DEFAULT),
        run_at_ms,
        delay_ms: some_ms(spec.delay_ms),
        timeout_ms: some_ms(spec.timeout_ms),
        queue_timeout_ms: some_ms(spec.queue_timeout_ms),
        start_timeout_ms: some_ms(spec.start_timeout_ms),
        silence_timeout_ms: some_ms(spec.silence_timeout_ms),
        warn_signal: some_signal(spec.warn_signal),
        warn_before_ms: some_ms(spec.warn_before_ms),
        kill_signal: some_signal(spec.kill_signal).unwrap_or(SIGTERM),
        kill_grace_ms: spec.kill_grace_ms,
        on_disconnect: policy(
            spec.on_disconnect,
            on_disconnect_from_wire,
            "on_disconnect",
            "continue nor kill",
        )?,
        on_runner_restart: policy(
            spec.on_runner_restart,
            on_runner_restart_from_wire,
            "on_runner_restart",
            "adopt nor kill",
        )?,
        limits: spec.limits.map(limits_from_wire).unwrap_or_default(),
        output: output_from_wire(spec.output.unwrap_or_default())?,
        umask: spec.umask.unwrap_or(UMASK_DEFAULT),
        user: some_text(spec.user),
        group: some_text(spec.group),
        env: spec.env.into_iter().map(|var| (var.name, var.value)).collect(),
        env_file: some_text(spec.env_file),
        dir: some_text(spec.dir),
        keep_workdir: spec.keep_workdir,
        tty: spec.tty.map(|tty| {
            let usual = Terminal::default();
            Terminal {
                rows: if tty.rows == 0 { usual.rows } else { tty.rows },
                columns: if tty.columns == 0 { usual.columns } else { tty.columns },
            }
        }),
        callback_url: some_text(spec.callback_url),
        retry: Retry {
            max_retries: retry.max_retries,
            delay_ms: retry.delay_ms,
        },
        job: some_text(spec.job),
        batch: some_text(spec.batch),
        batch_line: some_ms(spec.batch_line),
        unique_key: some_text(spec.unique_key),
    }
    .with_defaults())
}

pub fn spec_to_wire(spec: &TaskSpec) -> v1::TaskSpec {
    v1::TaskSpec {
        command: spec.command.clone(),
        name: spec.name.clone(),
        queue: spec.queue.clone(),
        require: labels_to_wire(&spec.require),
        tags: spec.tags.clone(),
        target_host: spec.target.as_ref().map(|t| t.host.clone()).unwrap_or_default(),
        target_slot: spec.target.as_ref().and_then(|t| t.slot),
        priority: Some(spec.priority),
        run_at_ms: spec.run_at_ms.map_or(0, time_to_wire),
        delay_ms: spec.delay_ms.unwrap_or(0),
        timeout_ms: spec.timeout_ms.unwrap_or(0),
        env: spec
            .env
            .iter()
            .map(|(name, value)| v1::EnvVar {
                name: name.clone(),
                value: value.clone(),
            })
            .collect(),
        dir: spec.dir.clone().unwrap_or_default(),
        callback_url: spec.callback_url.clone().unwrap_or_default(),
        retry: Some(v1::Retry {
            max_retries: spec.retry.max_retries,
            delay_ms: spec.retry.delay_ms,
        }),
        job: spec.job.clone().unwrap_or_default(),
        batch: spec.batch.clone().unwrap_or_default(),
        batch_line: spec.batch_line.unwrap_or(0),
        unique_key: spec.unique_key.clone().unwrap_or_default(),
        on_disconnect: on_disconnect_to_wire(spec.on_disconnect).into(),
        on_runner_restart: on_runner_restart_to_wire(spec.on_runner_restart).into(),
        kill_signal: spec.kill_signal,
        kill_grace_ms: spec.kill_grace_ms,
        warn_signal: spec.warn_signal.unwrap_or(0),
        warn_before_ms: spec.warn_before_ms.unwrap_or(0),
        queue_timeout_ms: spec.queue_timeout_ms.unwrap_or(0),
        start_timeout_ms: spec.start_timeout_ms.unwrap_or(0),
        silence_timeout_ms: spec.silence_timeout_ms.unwrap_or(0),
        limits: limits_to_wire(&spec.limits),
        output: output_to_wire(&spec.output),
        umask: (spec.umask != UMASK_DEFAULT).then_some(spec.umask),
        user: spec.user.clone().unwrap_or_default(),
        group: spec.group.clone().unwrap_or_default(),
        env_file: spec.env_file.clone().unwrap_or_default(),
        keep_workdir: spec.keep_workdir,
        tty: spec.tty.map(|tty| v1::Terminal {
            rows: tty.rows,
            columns: tty.columns,
        }),
    }
}

/// Times before the epoch do not occur; they become 0, "not set".
pub fn time_to_wire(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}

pub fn outcome_to_wire(outcome: &Outcome) -> v1::Outcome {
    v1::Outcome {
        kind: outcome.kind.name().into(),
        exit_code: outcome.exit_code,
        signal: outcome.signal,
        message: outcome.message.clone(),
    }
}

/// Within the bounds of what is stored.
pub fn detail_from_wire(detail: v1::EndDetail) -> EndDetail {
    EndDetail {
        tree_empty: detail.tree_empty,
        signals: detail
            .signals
            .into_iter()
            .map(|sent| SignalSent {
                signal: sent.signal,
                at_ms: sent.at_ms,
            })
            .collect(),
        leftovers: detail.leftovers,
        usage: detail.usage.map(|usage| Usage {
            user_cpu_us: usage.user_cpu_us,
            system_cpu_us: usage.system_cpu_us,
            peak_memory_bytes: usage.peak_memory_bytes,
            read_bytes: usage.read_bytes,
            written_bytes: usage.written_bytes,
        }),
        memory_limit_bytes: detail.memory_limit_bytes,
        oom_kills: detail.oom_kills,
        note: detail.note,
        output_until_ms: detail.output_until_ms,
    }
    .bounded()
}

pub fn detail_to_wire(detail: EndDetail) -> v1::EndDetail {
    v1::EndDetail {
        tree_empty: detail.tree_empty,
        signals: detail
            .signals
            .into_iter()
            .map(|sent| v1::SignalSent {
                signal: sent.signal,
                at_ms: sent.at_ms,
            })
            .collect(),
        leftovers: detail.leftovers,
        usage: detail.usage.map(|usage| v1::Usage {
            user_cpu_us: usage.user_cpu_us,
            system_cpu_us: usage.system_cpu_us,
            peak_memory_bytes: usage.peak_memory_bytes,
            read_bytes: usage.read_bytes,
            written_bytes: usage.written_bytes,
        }),
        note: detail.note,
        output_until_ms: detail.output_until_ms,
        memory_limit_bytes: detail.memory_limit_bytes,
        oom_kills: detail.oom_kills,
    }
}

/// The kinds that runners report, as the contract lists them. All others are verdicts of the schedulers.
const REPORTED: [OutcomeKind; 11] = [
    OutcomeKind::Success,
    OutcomeKind::ExitCode,
    OutcomeKind::Signal,
    OutcomeKind::OutOfMemory,
    OutcomeKind::StartFailed,
    OutcomeKind::Timeout,
    OutcomeKind::StartTimeout,
    OutcomeKind::RunnerRestarted,
    OutcomeKind::RunnerStopped,
    OutcomeKind::NotStarted,
    OutcomeKind::Rejected,
];

/// What a runner reports of an ended child. The text is cleaned of NUL, so that one odd message
/// cannot spoil a batch, and cut to its bound.
///
/// A report that contradicts itself says that the task has ended, and nothing of how. It is the end of the task all the same: a refused
/// beat would be sent again and again, and the host with all its tasks be taken for lost.
pub fn report_from_wire(result: &v1::TaskResult) -> Report {
    let ran_ms = match result.started_at_ms {
        0 => 0,
        started => result.ended_at_ms.saturating_sub(started),
    };
    let report = |kind, message: &str| Report {
        kind,
        exit_code: result.exit_code,
        signal: result.signal,
        message: clean(message, MESSAGE_CHARS_MAX),
        stopped_by: stopper_from_wire(result.stopped_by),
        ran_ms,
    };
    match reported_kind(result) {
        Ok(kind) => report(kind, &result.message),
        Err(why) => Report {
            exit_code: None,
            signal: None,
            stopped_by: None,
            ..report(
                OutcomeKind::RunnerRestarted,
                &format!("its runner's report makes no sense: {why}; how the child ended is not known"),
            )
        },
    }
}

/// The kind of a report, if the rest of the report fits it.
fn reported_kind(result: &v1::TaskResult) -> Result<OutcomeKind, String> {
    let Some(kind) = OutcomeKind::parse(&result.kind).filter(|kind| REPORTED.contains(kind)) else {
        let word = clean(&result.kind, WORD_CHARS_MAX);
        return Err(format!("{word:?} is no kind of end that a runner reports"));
    };
    match (kind, result.exit_code, result.signal) {
        (_, Some(code), Some(signal)) => Err(format!("{kind} with both exit code {code} and signal {signal}")),
        (_, _, Some(signal)) if !(1..=SIGNAL_MAX).contains(&signal) => Err(format!("{signal} is no signal")),
        (OutcomeKind::Success, Some(code), _) if code != 0 => Err(format!("success with exit code {code}")),
        (OutcomeKind::Success, _, Some(signal)) => Err(format!("success with {}", signal_name(signal))),
        (OutcomeKind::ExitCode, None, _) => Err("exit_code without an exit code".into()),
        (OutcomeKind::ExitCode, Some(0), _) => Err("exit_code with exit code 0".into()),
        _ => Ok(kind),
    }
}

/// Free text without NUL, at most `chars_max` characters.
pub fn clean(text: &str, chars_max: usize) -> String {
    text.chars().filter(|&c| c != '\0').take(chars_max).collect()
}

#[cfg(test)]
mod tests;
