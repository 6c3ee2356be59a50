//! The triggers of a job: named and checked in its definition, and ready to be asked.

use super::faults::Faults;
use super::{Job, TriggerContext};
use crate::error::Invalid;
use crate::job::data;
use crate::job::definition::JobSpec;
use crate::limits::{DESCRIPTION_CHARS_MAX, TRIGGERS_PER_JOB_MAX};
use crate::task::spec::{check_text, check_word};
use crate::trigger::definition::{Environment, TriggerSpec};
use crate::trigger::plan::Trigger;

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
pub(super) fn brings_data(trigger: &TriggerSpec) -> bool {
    trigger.manual.is_some() || trigger.after.is_some()
}

impl JobSpec {
    pub(super) fn compile_triggers(&self, faults: &mut Faults) -> Vec<TriggerSpec> {
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
}

impl Job {
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
