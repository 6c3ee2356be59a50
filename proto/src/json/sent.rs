//! What a program sent, as a message of the contract.

use super::Spec;
use crate::v1;
use systole_shared::error::Invalid;
use systole_shared::limits::OUTPUT_MAX_BYTES_DEFAULT;
use systole_shared::time::parse_time;

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
