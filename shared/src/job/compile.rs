//! From a definition to a job that can make tasks. All that is wrong is said, each with its field, not only the first.

mod faults;
mod task;
mod triggers;

pub use triggers::trigger_names;

use super::data;
use super::definition::{BlockingKind, JobSpec, OnLost};
use super::retry::RetryPolicy;
use super::route::Routing;
use super::template::Template;
use crate::alarm::rule;
use crate::error::Invalid;
use crate::limits::*;
use crate::task::spec::{TaskSpec, check_text, check_word};
use crate::trigger::calendar::Calendar;
use crate::trigger::custom::Registry;
use crate::trigger::definition::TriggerSpec;
use crate::trigger::zone::Zone;
use faults::Faults;
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

impl Job {
    /// A retry is not to run where the one before did, as long as another host can take it.
    pub fn avoids_last_host(&self) -> bool {
        let standby = self.route.as_ref().is_some_and(|route| route.policy == "failover");
        self.retry.avoid_last_runner || standby
    }
}

#[cfg(test)]
mod tests;
