//! From a definition to a job that can make tasks. All that is wrong is said, each with its field, not only the first.

use super::data;
use super::definition::{BlockingKind, JobSpec, LimitsSpec, OnLost, Route};
use super::retry::RetryPolicy;
use super::route::Routing;
use super::template::{self, Template};
use crate::alarm::rule;
use crate::error::Invalid;
use crate::id::Target;
use crate::limits::*;
use crate::task::limits::{Limits, parse_bytes, parse_cpus};
use crate::task::output::OutputPolicy;
use crate::task::signal::{SIGTERM, parse_signal};
use crate::task::spec::{OnDisconnect, TaskSpec, check_text, check_word};
use crate::task::terminal::Terminal;
use crate::time::parse_duration;
use crate::trigger::calendar::Calendar;
use crate::trigger::custom::Registry;
use crate::trigger::definition::{Environment, TriggerSpec};
use crate::trigger::plan::Trigger;
use crate::trigger::zone::Zone;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often a run that was lost with its runner is started again where `on_lost` is `failover`.
const RECOVERIES_DEFAULT: u32 = 1;

/// What becomes of an occurrence while the job still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    Serial,
    DiscardLater,
    CoverEarly,
    /// At most so many at the same time.
    Concurrent(u32),
}

/// A job, ready to make tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub name: String,
    pub paused: bool,
    /// What its tasks are made of; templates are in the command as they were written.
    pub task: TaskSpec,
    pub templates: Vec<(usize, Template)>,
    pub data: Map<String, Value>,
    /// Each has a name.
    pub triggers: Vec<TriggerSpec>,
    pub blocking: Blocking,
    pub max_waiting: u32,
    pub concurrency_group: Option<String>,
    pub retry: RetryPolicy,
    pub on_lost: OnLost,
    /// How often a run that was lost with its runner is started again; 0: never.
    pub max_recoveries: u32,
    /// How hosts are chosen; `None`: whoever fits and comes first, or the one that it is pinned to.
    pub route: Option<Routing>,
    pub alarms: Vec<rule::Rule>,
    pub owner: String,
    pub runbook: String,
    /// What is not wrong, but perhaps not what was meant: for whoever saves the job.
    pub warnings: Vec<Invalid>,
}

/// What the triggers of a job are read against.
#[derive(Clone, Copy, Debug)]
pub struct TriggerContext<'a> {
    pub created_ms: i64,
    pub default_zone: &'a Zone,
    pub calendars: &'a BTreeMap<String, Arc<Calendar>>,
    pub registry: &'a Registry,
}

/// What is wrong so far.
#[derive(Default)]
struct Faults(Vec<Invalid>);

impl Faults {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Invalid::new(field, message));
    }

    fn take<T>(&mut self, result: Result<T, Invalid>) -> Option<T> {
        result.map_err(|fault| self.0.push(fault)).ok()
    }

    fn duration(&mut self, text: Option<&String>, field: &str, max: u64) -> Option<u64> {
        let ms = parse_duration(text?).map_err(|message| Invalid::new(field, message));
        let ms = ms.and_then(|ms| {
            let longest = crate::time::exact_duration(max);
            let message = format!(
                "{:?} is too long; the longest is {longest}",
                text.map_or("", String::as_str)
            );
            if ms > max {
                Err(Invalid::new(field, message))
            } else {
                Ok(ms)
            }
        });
        self.take(ms)
    }

    /// A timeout: 0 is a mistake and not "none".
    fn timeout(&mut self, text: Option<&String>, field: &str) -> Option<u64> {
        match self.duration(text, field, DURATION_MS_MAX) {
            Some(0) => {
                self.add(field, "0 is over before it begins; leave it out for none");
                None
            }
            ms => ms,
        }
    }

    fn signal(&mut self, text: Option<&String>, field: &str) -> Option<i32> {
        let signal = parse_signal(text?).map_err(|message| Invalid::new(field, message));
        self.take(signal)
    }

    fn size(&mut self, text: Option<&String>, field: &str) -> Option<u64> {
        let text = text?;
        if text != "0" && !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            self.add(
                field,
                format!("{text:?} has no unit; write \"{text}MiB\" or \"{text}GiB\""),
            );
            return None;
        }
        let size = parse_bytes(text).map_err(|message| Invalid::new(field, message));
        self.take(size)
    }

    fn count(&mut self, value: Option<u32>, field: &str, min: u32, max: u32) {
        if let Some(value) = value.filter(|value| !(min..=max).contains(value)) {
            self.add(field, format!("{value} is outside {min} to {max}"));
        }
    }
}

/// The names that triggers go by: their own, or their kind where they have none.
pub fn trigger_names(triggers: &[TriggerSpec]) -> Vec<String> {
    let name = |trigger: &TriggerSpec| match trigger.name.as_str() {
        "" => trigger
            .kind()
            .map_or_else(|_| String::new(), |kind| kind.replace('_', "-")),
        name => name.to_owned(),
    };
    triggers.iter().map(name).collect()
}

/// Whether the fire of a trigger can bring data along that nobody knows before.
fn brings_data(trigger: &TriggerSpec) -> bool {
    trigger.manual.is_some() || trigger.after.is_some()
}

impl JobSpec {
    /// What stands in the file but cannot be done: said, and never passed over.
    fn check_supported(&self, faults: &mut Faults) {
        let not_yet = [
            (
                "script",
                self.script.is_some(),
                "use shell, or a file on the runner's host and command",
            ),
            (
                "interpreter",
                self.interpreter.is_some(),
                "it goes with script; write command = [INTERPRETER, …]",
            ),
            (
                "output_drain",
                self.output_drain.is_some(),
                "remove it; 2s are waited for the rest of the output",
            ),
            (
                "history_keep",
                self.history_keep.is_some(),
                "remove it; the scheduler's own setting holds",
            ),
            (
                "fence",
                self.fence.is_some(),
                "remove it; write on_disconnect = \"kill\" or \"continue\"",
            ),
        ];
        for (field, given, remedy) in not_yet {
            if given {
                faults.add(field, format!("is not supported yet; {remedy}"));
            }
        }
        if self.limits.as_ref().is_some_and(|limits| limits.cpu_weight.is_some()) {
            faults.add(
                "limits.cpu_weight",
                "is not supported yet; remove it, or give cpu_max or nice",
            );
        }
    }

    fn compile_command(&self, faults: &mut Faults) -> (Vec<String>, Vec<(usize, Template)>) {
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

    fn compile_recoveries(&self, faults: &mut Faults) -> u32 {
        if self.on_lost != Some(OnLost::Failover) {
            if self.max_recoveries.is_some() {
                faults.add(
                    "max_recoveries",
                    "needs on_lost = \"failover\"; remove it, or write that",
                );
            }
            return 0;
        }
        faults.count(self.max_recoveries, "max_recoveries", 1, RECOVERIES_MAX);
        self.max_recoveries.unwrap_or(RECOVERIES_DEFAULT)
    }

    fn compile_blocking(&self, faults: &mut Faults) -> Blocking {
        let kind = self.blocking.unwrap_or_default();
        faults.count(self.max_concurrent, "max_concurrent", 1, CONCURRENT_MAX);
        faults.count(self.max_waiting, "max_waiting", 0, WAITING_MAX);
        if self.max_concurrent.is_some() && kind != BlockingKind::Concurrent {
            faults.add("max_concurrent", "needs blocking = \"concurrent\"");
        }
        if self.max_waiting.is_some() && kind == BlockingKind::DiscardLater {
            faults.add(
                "max_waiting",
                "says nothing with blocking = \"discard_later\", where nothing waits; remove it",
            );
        }
        match (kind, self.max_concurrent) {
            (BlockingKind::Serial, _) => Blocking::Serial,
            (BlockingKind::DiscardLater, _) => Blocking::DiscardLater,
            (BlockingKind::CoverEarly, _) => Blocking::CoverEarly,
            (BlockingKind::Concurrent, Some(max)) => Blocking::Concurrent(max),
            (BlockingKind::Concurrent, None) => {
                faults.add(
                    "max_concurrent",
                    "is missing; write how many may run at the same time, such as 4",
                );
                Blocking::Serial
            }
        }
    }

    fn compile_triggers(&self, faults: &mut Faults) -> Vec<TriggerSpec> {
        if self.trigger.len() > TRIGGERS_PER_JOB_MAX {
            let count = self.trigger.len();
            faults.add(
                "trigger",
                format!("has {count} entries; at most {TRIGGERS_PER_JOB_MAX} are allowed"),
            );
            return Vec::new();
        }
        let names = trigger_names(&self.trigger);
        let mut triggers = self.trigger.clone();
        for (index, (trigger, name)) in triggers.iter_mut().zip(&names).enumerate() {
            let field = format!("trigger[{index}]");
            if let Err(fault) = trigger.kind() {
                // The name would only be guessed.
                faults.add(field, fault.message);
                continue;
            }
            if let Err(fault) = check_word(name, "") {
                faults.add(format!("{field}.name"), fault.message);
            }
            if let Some(first) = names[..index].iter().position(|other| other == name) {
                let remedy = if trigger.name.is_empty() {
                    "give each a name of its own"
                } else {
                    "rename one"
                };
                faults.add(
                    format!("{field}.name"),
                    format!("{name:?} is also trigger {}; {remedy}", first + 1),
                );
            }
            if let Err(fault) = data::check(&trigger.data, "data") {
                faults.add(format!("{field}.data"), fault.message);
            }
            if let Some(text) = &trigger.description
                && let Err(fault) = check_text(text, "", DESCRIPTION_CHARS_MAX)
            {
                faults.add(format!("{field}.description"), fault.message);
            }
            trigger.name.clone_from(name);
        }
        triggers
    }

    fn compile_task(&self, command: Vec<String>, faults: &mut Faults) -> TaskSpec {
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

    /// The job that this definition means, or all that is wrong with it. What depends on the rest of the world, such as calendars
    /// and zones, is checked by [`Job::compile_triggers`].
    pub fn compile(&self) -> Result<Job, Vec<Invalid>> {
        let mut faults = Faults::default();
        if self.name.is_empty() {
            faults.add("name", "is missing; write for example name = \"nightly-backup\"");
        } else {
            faults.take(check_word(&self.name, "name"));
        }
        for (field, text) in [
            ("description", &self.description),
            ("owner", &self.owner),
            ("runbook", &self.runbook),
        ] {
            if let Some(text) = text {
                faults.take(check_text(text, field, DESCRIPTION_CHARS_MAX));
            }
        }
        self.check_supported(&mut faults);
        faults.take(data::check(&self.data, "data"));
        let (command, templates) = self.compile_command(&mut faults);
        let blocking = self.compile_blocking(&mut faults);
        if let Some(group) = &self.concurrency_group {
            faults.take(check_word(group, "concurrency_group"));
        }
        let retry = self.retry.clone().unwrap_or_default();
        let retry = faults.take(RetryPolicy::new(&retry)).unwrap_or_default();
        let route = self.compile_route(&mut faults.0);
        let max_recoveries = self.compile_recoveries(&mut faults);
        let triggers = self.compile_triggers(&mut faults);
        if self.alarm.len() > ALARMS_PER_JOB_MAX {
            let count = self.alarm.len();
            faults.add(
                "alarm",
                format!("has {count} entries; at most {ALARMS_PER_JOB_MAX} are allowed"),
            );
        }
        let alarms = rule::read(&self.alarm, &self.trigger);
        faults.0.extend(alarms.faults);
        let mut task = self.compile_task(command, &mut faults);
        task.retry = retry.plain().unwrap_or_default();
        if !faults.0.is_empty() {
            return Err(faults.0);
        }
        Ok(Job {
            name: self.name.clone(),
            paused: self.paused,
            task,
            templates,
            data: self.data.clone(),
            triggers,
            blocking,
            max_waiting: self.max_waiting.unwrap_or(WAITING_DEFAULT),
            concurrency_group: self.concurrency_group.clone(),
            retry,
            on_lost: self.on_lost.unwrap_or_default(),
            max_recoveries,
            route,
            alarms: alarms.rules,
            owner: self.owner.clone().unwrap_or_default(),
            runbook: self.runbook.clone().unwrap_or_default(),
            warnings: alarms.warnings,
        })
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

impl Job {
    /// A retry is not to run where the one before did, as long as another host can take it.
    pub fn avoids_last_host(&self) -> bool {
        let standby = self.route.as_ref().is_some_and(|route| route.policy == "failover");
        self.retry.avoid_last_runner || standby
    }

    /// The triggers, ready to be asked, in the order of the definition; or all that is wrong with them.
    pub fn compile_triggers(&self, context: &TriggerContext<'_>) -> Result<Vec<Trigger>, Vec<Invalid>> {
        let mut faults = Vec::new();
        let mut triggers = Vec::new();
        for (index, spec) in self.triggers.iter().enumerate() {
            let compiled = spec.compile(&Environment {
                job: &self.name,
                created_ms: context.created_ms,
                default_zone: context.default_zone,
                calendars: context.calendars,
                registry: context.registry,
            });
            match compiled {
                Ok(trigger) => triggers.push(trigger),
                Err(fault) => faults.push(trigger_fault(index, fault)),
            }
        }
        if faults.is_empty() { Ok(triggers) } else { Err(faults) }
    }

    /// Refuses new triggers that would never fire. `triggers` are those of [`Job::compile_triggers`].
    pub fn check_fires(&self, triggers: &[Trigger], now_ms: i64) -> Result<(), Vec<Invalid>> {
        let checks = self.triggers.iter().zip(triggers).enumerate();
        let faults: Vec<Invalid> = checks
            .filter_map(|(index, (spec, trigger))| {
                let fault = spec.check_fires(trigger, now_ms).err()?;
                Some(trigger_fault(index, fault))
            })
            .collect();
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}

/// A fault of a trigger with the field's place in the job.
fn trigger_fault(index: usize, fault: Invalid) -> Invalid {
    let field = match fault.field.as_str() {
        "trigger" => format!("trigger[{index}]"),
        field => format!("trigger[{index}].{field}"),
    };
    Invalid::new(field, fault.message)
}

#[cfg(test)]
mod tests;
