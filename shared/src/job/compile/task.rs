//! What the tasks of a job are made of.

use super::faults::Faults;
use super::triggers::{brings_data, trigger_names};
use crate::error::Invalid;
use crate::id::Target;
use crate::job::definition::{JobSpec, LimitsSpec, OnLost, Route};
use crate::job::template::{self, Template};
use crate::limits::*;
use crate::task::limits::{Limits, parse_cpus};
use crate::task::output::OutputPolicy;
use crate::task::signal::SIGTERM;
use crate::task::spec::{OnDisconnect, TaskSpec};
use crate::task::terminal::Terminal;
use crate::trigger::definition::TriggerSpec;

impl JobSpec {
    pub(super) fn compile_command(&self, faults: &mut Faults) -> (Vec<String>, Vec<(usize, Template)>) {
        let ways = [
            ("command", !self.command.is_empty()),
            ("shell", self.shell.is_some()),
            ("script", self.script.is_some()),
        ];
        let given: Vec<&str> = ways.iter().filter(|(_, given)| *given).map(|&(name, _)| name).collect();
        match given[..] {
            [] => faults.add(
                "command",
                "is missing; write command = [\"PROGRAM\", \"ARGUMENT\"], or shell = 'TEXT' for a text of /bin/sh",
            ),
            [_] => {}
            _ => faults.add(
                given[1],
                format!(
                    "{} are given; a job runs one of command, shell and script",
                    given.join(" and ")
                ),
            ),
        }
        if let Some(text) = &self.shell {
            if text.trim().is_empty() {
                faults.add("shell", "is empty; write a text for /bin/sh, such as 'echo hello'");
            }
            faults.take(template::check_text(text, "shell"));
            return (vec!["/bin/sh".into(), "-c".into(), text.clone()], Vec::new());
        }
        let templates = template::parse_command(&self.command).unwrap_or_else(|found| {
            faults.0.extend(found);
            Vec::new()
        });
        for (index, template) in &templates {
            let field = format!("command[{index}]");
            match template {
                Template::TaskId | Template::ShardIndex | Template::ShardTotal => {
                    let variable = template.variable();
                    faults.add(
                        field,
                        format!(
                            "{:?} is not supported yet; use the variable {variable}",
                            self.command[*index]
                        ),
                    );
                }
                Template::Data(key) if !self.data.contains_key(key) => {
                    let without = |trigger: &&TriggerSpec| !trigger.data.contains_key(key) && !brings_data(trigger);
                    if let Some(trigger) = self.trigger.iter().find(without) {
                        let name = trigger_names(std::slice::from_ref(trigger)).remove(0);
                        faults.add(
                            field,
                            format!(
                                "needs data.{key}, which neither the job nor its trigger {name:?} has; give the job a default: data = {{ {key} = \"…\" }}"
                            ),
                        );
                    }
                }
                _ => {}
            }
        }
        (self.command.clone(), templates)
    }

    fn compile_limits(spec: &LimitsSpec, faults: &mut Faults) -> Limits {
        Limits {
            open_files: spec.open_files_max,
            core_bytes: faults
                .size(spec.core_size_max.as_ref(), "limits.core_size_max")
                .unwrap_or(0),
            file_bytes: faults.size(spec.file_size_max.as_ref(), "limits.file_size_max"),
            nice: spec.nice,
            memory_bytes: faults.size(spec.memory_max.as_ref(), "limits.memory_max"),
            cpu_millis: spec.cpu_max.and_then(|cpus| {
                let millis = parse_cpus(&cpus.to_string()).map_err(|message| Invalid::new("limits.cpu_max", message));
                faults.take(millis)
            }),
            pids: spec.pids_max,
        }
    }

    fn compile_umask(&self, faults: &mut Faults) -> u32 {
        let Some(text) = &self.umask else { return UMASK_DEFAULT };
        let octal = (1..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        match u32::from_str_radix(text, 8) {
            Ok(mask) if octal && mask <= UMASK_MAX => mask,
            _ => {
                faults.add(
                    "umask",
                    format!("{text:?} is no umask; write an octal number up to \"777\", such as \"027\""),
                );
                UMASK_DEFAULT
            }
        }
    }

    fn compile_target(&self, faults: &mut Faults) -> Option<Target> {
        match (&self.runner, &self.route) {
            (None, Some(Route::Pinned)) => {
                faults.add(
                    "runner",
                    "is missing; route = \"pinned\" needs a host, such as runner = \"db-01\"",
                );
                None
            }
            (Some(_), Some(route)) if *route != Route::Pinned => {
                faults.add(
                    "runner",
                    "needs route = \"pinned\"; or use require to choose among hosts",
                );
                None
            }
            (Some(text), _) => faults.take(Target::parse(text, "runner")),
            (None, _) => None,
        }
    }

    pub(super) fn compile_task(&self, command: Vec<String>, faults: &mut Faults) -> TaskSpec {
        let run_as = self.run_as.clone().unwrap_or_default();
        let limits = self
            .limits
            .as_ref()
            .map_or_else(Limits::default, |spec| Self::compile_limits(spec, faults));
        let task = TaskSpec {
            command,
            name: self.name.clone(),
            queue: self.queue.clone().unwrap_or_default(),
            require: self.require.clone(),
            tags: self.tags.clone(),
            target: self.compile_target(faults),
            priority: self.priority.unwrap_or(PRIORITY_DEFAULT),
            timeout_ms: faults.timeout(self.timeout.as_ref(), "timeout"),
            queue_timeout_ms: faults.timeout(self.queue_timeout.as_ref(), "queue_timeout"),
            start_timeout_ms: faults.timeout(self.start_timeout.as_ref(), "start_timeout"),
            silence_timeout_ms: faults.timeout(self.silence_timeout.as_ref(), "silence_timeout"),
            warn_signal: faults.signal(self.warn_signal.as_ref(), "warn_signal"),
            warn_before_ms: faults.timeout(self.warn_before.as_ref(), "warn_before"),
            kill_signal: faults
                .signal(self.kill_signal.as_ref(), "kill_signal")
                .unwrap_or(SIGTERM),
            kill_grace_ms: faults.duration(self.kill_grace.as_ref(), "kill_grace", KILL_GRACE_MS_MAX),
            output: OutputPolicy {
                max_bytes: faults.size(self.output_max.as_ref(), "output_max"),
                on_limit: self.output_on_limit.unwrap_or_default(),
                keep_ms: faults.timeout(self.output_keep.as_ref(), "output_keep"),
            },
            keep_workdir: self.keep_dir,
            tty: self.tty.then(Terminal::default),
            on_disconnect: self.on_disconnect.unwrap_or(match self.on_lost {
                // The proof that the old child is dead comes with the verdict.
                Some(OnLost::Failover) => OnDisconnect::Kill,
                _ => OnDisconnect::default(),
            }),
            on_runner_restart: self.on_runner_restart.unwrap_or_default(),
            limits,
            umask: self.compile_umask(faults),
            user: run_as.user,
            group: run_as.group,
            env: self.env.clone().into_iter().collect(),
            env_file: self.env_file.clone(),
            dir: self.dir.clone(),
            callback_url: self.callback.as_ref().map(|callback| callback.url.clone()),
            job: Some(self.name.clone()),
            ..TaskSpec::default()
        }
        .with_defaults();
        // A fault above has left a hole that would be found once more here.
        if faults.0.is_empty()
            && let Err(fault) = task.validate(0)
        {
            faults.add(file_field(&fault.field, self), fault.message);
        }
        task
    }
}

/// The field of a job file for one of a task.
fn file_field(field: &str, job: &JobSpec) -> String {
    match field {
        "command[2]" if job.shell.is_some() => "shell".into(),
        "callback_url" => "callback.url".into(),
        "keep_workdir" => "keep_dir".into(),
        "output.max_bytes" => "output_max".into(),
        "output.keep_ms" => "output_keep".into(),
        "user" | "group" => format!("run_as.{field}"),
        "limits.open_files" => "limits.open_files_max".into(),
        "limits.core_bytes" => "limits.core_size_max".into(),
        "limits.memory" => "limits.memory_max".into(),
        "limits.cpus" => "limits.cpu_max".into(),
        "limits.pids" => "limits.pids_max".into(),
        "limits.file_bytes" => "limits.file_size_max".into(),
        _ => match field.strip_prefix("env[").and_then(|rest| rest.strip_suffix(']')) {
            Some(index) => {
                let name = index.parse().ok().and_then(|index: usize| job.env.keys().nth(index));
                name.map_or_else(|| "env".into(), |name| format!("env.{name}"))
            }
            None => field.strip_suffix("_ms").unwrap_or(field).to_owned(),
        },
    }
}
