//! Several files together: calendars and groups of one are known in the others, and no name is taken twice.

use super::{Fault, JobFile};
use crate::error::Invalid;
use crate::job::compile::{Job, TriggerContext};
use crate::job::definition::{Group, JobSpec, canonical};
use crate::job::ring::rings;
use crate::limits::CONCURRENT_MAX;
use crate::task::spec::check_word;
use crate::trigger::calendar::{Calendar, CalendarSpec};
use crate::trigger::custom::Registry;
use crate::trigger::plan::Trigger;
use crate::trigger::zone::Zone;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The files of one call, by their names.
#[derive(Clone, Debug, Default)]
pub struct Set {
    pub files: Vec<(String, JobFile)>,
}

/// What files are checked against.
#[derive(Clone, Copy)]
pub struct CheckContext<'a> {
    pub now_ms: i64,
    pub default_zone: &'a Zone,
    pub registry: &'a Registry,
    /// Reads an iCalendar file: name of the job file, path in it.
    pub read_ics: &'a dyn Fn(&str, &str) -> Result<String, String>,
    /// Calendars and groups that are not in the files are none: whoever checks knows no others.
    pub closed: bool,
}

#[derive(Clone, Debug)]
pub struct CheckedJob {
    /// Index of its file.
    pub file: usize,
    pub spec: JobSpec,
    pub job: Job,
    /// Those that could be read without what is not in the files.
    pub triggers: Vec<Trigger>,
    pub warnings: Vec<Invalid>,
}

#[derive(Clone, Debug)]
pub struct CheckedCalendar {
    pub file: usize,
    pub spec: CalendarSpec,
    /// The text of its iCalendar file.
    pub ics: Option<String>,
}

/// What is right in the files, and what is wrong.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    pub jobs: Vec<CheckedJob>,
    pub calendars: Vec<CheckedCalendar>,
    /// With the index of the file.
    pub groups: Vec<(usize, Group)>,
    /// With the index of the file, in the order of the files.
    pub faults: Vec<(usize, Fault)>,
}

/// A definition as it is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Canonical JSON in the shape of the file.
    pub json: String,
    /// The file that it stands in.
    pub source: String,
    /// Of a calendar that names an iCalendar file: its text.
    pub ics: Option<String>,
}

/// All that is right in the files, as it is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definitions {
    pub calendars: Vec<Written>,
    pub groups: Vec<Written>,
    pub jobs: Vec<Written>,
}

impl Checked {
    pub fn definitions(&self, set: &Set) -> Definitions {
        let written = |file: usize, json: String, ics: Option<String>| Written {
            json,
            source: set.files[file].0.clone(),
            ics,
        };
        // Values of files are finite, so that JSON can say them all.
        let json = |value: serde_json::Result<serde_json::Value>| canonical(&value.unwrap_or_default());
        Definitions {
            calendars: self
                .calendars
                .iter()
                .map(|one| written(one.file, json(serde_json::to_value(&one.spec)), one.ics.clone()))
                .collect(),
            groups: self
                .groups
                .iter()
                .map(|(file, group)| written(*file, json(serde_json::to_value(group)), None))
                .collect(),
            jobs: self
                .jobs
                .iter()
                .map(|job| written(job.file, job.spec.canonical_json(), None))
                .collect(),
        }
    }
}

impl Set {
    pub fn add(&mut self, name: impl Into<String>, file: JobFile) {
        self.files.push((name.into(), file));
    }

    /// `jobs/a.toml:14:1: …`
    pub fn say(&self, file: usize, fault: &Fault) -> String {
        let name = self.files.get(file).map_or("", |(name, _)| name);
        format!("{name}:{fault}")
    }

    pub fn check(&self, context: &CheckContext<'_>) -> Checked {
        let mut checked = Checked::default();
        for (index, (_, file)) in self.files.iter().enumerate() {
            checked
                .faults
                .extend(file.faults.iter().map(|fault| (index, fault.clone())));
        }
        let calendars = self.check_calendars(context, &mut checked);
        self.check_groups(&mut checked);
        self.check_jobs(context, &calendars, &mut checked);
        checked.faults.sort_by_key(|(file, fault)| (*file, fault.place));
        checked
    }

    fn check_calendars(&self, context: &CheckContext<'_>, checked: &mut Checked) -> BTreeMap<String, Arc<Calendar>> {
        let mut known: BTreeMap<String, Arc<Calendar>> = BTreeMap::new();
        for (index, (name, file)) in self.files.iter().enumerate() {
            for entry in &file.calendars {
                let spec = &entry.spec;
                let read = || -> Result<(Option<String>, Calendar), Invalid> {
                    check_word(&spec.name, "name")?;
                    if known.contains_key(&spec.name) {
                        return Err(Invalid::new("name", "is taken by an earlier calendar; rename one"));
                    }
                    let text = spec
                        .ics
                        .as_deref()
                        .map(|path| (context.read_ics)(name, path))
                        .transpose();
                    let text = text.map_err(|message| Invalid::new("ics", message))?;
                    let calendar = Calendar::new(spec, text.as_deref(), context.default_zone)?;
                    Ok((text, calendar))
                };
                match read() {
                    Ok((ics, calendar)) => {
                        known.insert(spec.name.clone(), Arc::new(calendar));
                        checked.calendars.push(CheckedCalendar {
                            file: index,
                            spec: spec.clone(),
                            ics,
                        });
                    }
                    Err(fault) => {
                        let fault = file.locate(entry, &format!("calendar {}", spec.name), fault);
                        checked.faults.push((index, fault));
                    }
                }
            }
        }
        known
    }

    fn check_groups(&self, checked: &mut Checked) {
        let mut known = BTreeSet::new();
        for (index, (_, file)) in self.files.iter().enumerate() {
            for entry in &file.groups {
                let group = &entry.spec;
                let fault = match check_word(&group.name, "name") {
                    Err(fault) => Some(fault),
                    Ok(()) if !known.insert(&group.name) => Some(Invalid::new(
                        "name",
                        "is taken by an earlier group; a group is said once",
                    )),
                    Ok(()) if !(1..=CONCURRENT_MAX).contains(&group.limit) => Some(Invalid::new(
                        "limit",
                        format!("{} is outside 1 to {CONCURRENT_MAX}", group.limit),
                    )),
                    Ok(()) => None,
                };
                match fault {
                    None => checked.groups.push((index, group.clone())),
                    Some(fault) => {
                        let subject = format!("concurrency_group {}", group.name);
                        checked.faults.push((index, file.locate(entry, &subject, fault)));
                    }
                }
            }
        }
    }

    /// Triggers that close a ring of jobs which start each other: faults of their jobs, by file and place in it. That of a job
    /// after itself is refused by its trigger alone.
    fn closing(&self) -> BTreeMap<(usize, usize), Vec<Invalid>> {
        let (mut edges, mut places) = (Vec::new(), Vec::new());
        for (index, (_, file)) in self.files.iter().enumerate() {
            for (job, entry) in file.jobs.iter().enumerate() {
                let name = entry.spec.name.as_str();
                for (number, trigger) in entry.spec.trigger.iter().enumerate() {
                    if let Some(after) = trigger.after.as_ref().filter(|after| after.job != name) {
                        edges.push((after.job.as_str(), name));
                        places.push((index, job, number));
                    }
                }
            }
        }
        let mut faults: BTreeMap<(usize, usize), Vec<Invalid>> = BTreeMap::new();
        for ring in rings(&edges) {
            let (index, job, number) = places[ring.edge];
            let message = format!(
                "makes a ring of jobs that start each other again and again: {}; take one of these triggers out",
                ring.words
            );
            let fault = Invalid::new(format!("trigger[{number}].after.job"), message);
            faults.entry((index, job)).or_default().push(fault);
        }
        faults
    }

    fn check_jobs(
        &self,
        context: &CheckContext<'_>,
        calendars: &BTreeMap<String, Arc<Calendar>>,
        checked: &mut Checked,
    ) {
        let groups: BTreeSet<String> = checked.groups.iter().map(|(_, group)| group.name.clone()).collect();
        let entries = || self.files.iter().flat_map(|(_, file)| &file.jobs);
        let names: BTreeSet<&str> = entries().map(|entry| entry.spec.name.as_str()).collect();
        let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
        let mut closing = self.closing();
        for (index, (_, file)) in self.files.iter().enumerate() {
            for (job, entry) in file.jobs.iter().enumerate() {
                let spec = &entry.spec;
                let mut faults = closing.remove(&(index, job)).unwrap_or_default();
                if let Some(other) = taken.insert(&spec.name, index)
                    && !spec.name.is_empty()
                {
                    let other = &self.files[other].0;
                    faults.push(Invalid::new(
                        "name",
                        format!("is taken by a job in {other}; rename one"),
                    ));
                }
                if let Some(group) = &spec.concurrency_group
                    && context.closed
                    && !groups.contains(group)
                {
                    let message = format!("there is no group {group:?}; write [[concurrency_group]] with its limit");
                    faults.push(Invalid::new("concurrency_group", message));
                }
                match check_job(spec, context, calendars) {
                    Ok((job, triggers, mut warnings)) if faults.is_empty() => {
                        warnings.extend(spec.trigger.iter().enumerate().filter_map(|(index, trigger)| {
                            let after = trigger
                                .after
                                .as_ref()
                                .filter(|after| !names.contains(after.job.as_str()))?;
                            let message = format!("no file here has a job {:?}; it never fires without one", after.job);
                            context
                                .closed
                                .then(|| Invalid::new(format!("trigger[{index}].after"), message))
                        }));
                        checked.jobs.push(CheckedJob {
                            file: index,
                            spec: spec.clone(),
                            job,
                            triggers,
                            warnings,
                        });
                    }
                    Ok(_) => {}
                    Err(found) => faults.extend(found),
                }
                let subject = super::subject("job", &serde_json::json!({ "name": spec.name }), 0);
                for fault in faults {
                    checked.faults.push((index, file.locate(entry, &subject, fault)));
                }
            }
        }
    }
}

fn check_job(
    spec: &JobSpec,
    context: &CheckContext<'_>,
    calendars: &BTreeMap<String, Arc<Calendar>>,
) -> Result<(Job, Vec<Trigger>, Vec<Invalid>), Vec<Invalid>> {
    let job = if !context.closed && spec.route.as_ref().is_some_and(|route| !route.is_known()) {
        // The scheduler may know more of them.
        let mut routed = spec.clone();
        routed.route = None;
        routed.compile()?
    } else {
        spec.compile()?
    };
    let mut asked = job.clone();
    if !context.closed {
        // The scheduler knows more calendars, and may know more kinds: without them the fires cannot be foretold here.
        let known = |trigger: &crate::trigger::definition::TriggerSpec| {
            let kind = trigger.custom.as_ref().map(|custom| &custom.kind);
            let has = |name: &String| calendars.contains_key(name);
            kind.is_none_or(|kind| context.registry.knows(kind)) && trigger.exclude_calendars.iter().all(has)
        };
        asked.triggers.retain(known);
    }
    let triggers = asked.compile_triggers(&TriggerContext {
        created_ms: context.now_ms,
        default_zone: context.default_zone,
        calendars,
        registry: context.registry,
    })?;
    let mut warnings = job.warnings.clone();
    // No error: what was right when it was written stays in its file after its time.
    warnings.extend(asked.check_fires(&triggers, context.now_ms).err().into_iter().flatten());
    Ok((job, triggers, warnings))
}
