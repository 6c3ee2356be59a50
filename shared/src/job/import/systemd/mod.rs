//! Timers of systemd with the services that they start. Each timer becomes a job; what its units say and a job cannot is explained
//! setting by setting.

mod calendar;
mod exec;
mod explain;
mod service;
mod unit;

pub use unit::Source;

use super::{Import, Imported, Names, Options, Origin, base};
use crate::job::definition::BlockingKind;
use crate::limits::JITTER_MS_MAX;
use crate::time::exact_duration;
use crate::trigger::cron::Dialect;
use crate::trigger::definition::{TimeText, TriggerSpec};
use crate::trigger::misfire::Misfire;
use calendar::Times;
use exec::Specifiers;
use unit::{Setting, Unit, span_ms};

/// The files of a unit, drop-ins behind it; none where there is no such unit. An instance has those of its template.
pub type Find<'a> = &'a dyn Fn(&str) -> Result<Vec<Source>, String>;

/// `backup@.timer` of `backup@db.timer`.
pub fn template_of(unit: &str) -> Option<String> {
    let ((prefix, _), (_, kind)) = unit.split_once('@').zip(unit.rsplit_once('.'))?;
    Some(format!("{prefix}@.{kind}"))
}

/// A sentence about a setting, with its place.
fn about(setting: &Setting, text: &str) -> String {
    format!("{}: {}={}: {text}", setting.origin, setting.key, setting.value)
}

/// As a reason to refuse; the place is said by whoever refuses.
fn because(setting: &Setting, text: impl std::fmt::Display) -> String {
    format!("{}={}: {text}", setting.key, setting.value)
}

const NO_BOOT: &str =
    "a job does not know when a host starts; use a systemd unit with WantedBy=multi-user.target for that";

/// The spans of a timer that adds them up, the shortest first.
fn spans<'a>(unit: &'a Unit, key: &str) -> Result<Vec<(u64, &'a Setting)>, String> {
    let mut found = Vec::new();
    for setting in unit.all("Timer", key) {
        match span_ms(&setting.value).map_err(|error| because(setting, error))? {
            Some(ms) => found.push((ms, setting)),
            None => return Err(because(setting, "never comes")),
        }
    }
    found.sort_by_key(|(ms, _)| *ms);
    Ok(found)
}

struct Triggers {
    list: Vec<TriggerSpec>,
    notes: Vec<String>,
}

impl Triggers {
    fn calendars(&mut self, unit: &Unit, options: &Options) -> Result<(), String> {
        let misfire = if unit.is_yes("Timer", "Persistent") {
            Misfire::FireOnce
        } else {
            Misfire::Skip
        };
        let all = unit.all("Timer", "OnCalendar");
        for (index, setting) in all.iter().enumerate() {
            let calendar = calendar::read(&setting.value).map_err(|error| because(setting, error))?;
            let mut trigger = TriggerSpec {
                name: if all.len() == 1 {
                    "calendar".into()
                } else {
                    format!("calendar-{}", index + 1)
                },
                zone: Some(
                    calendar
                        .zone
                        .map_or_else(|| options.zone.clone(), |zone| zone.name().to_owned()),
                ),
                misfire: Some(misfire),
                ..TriggerSpec::default()
            };
            match calendar.times {
                Times::Unix(cron) => trigger.cron = Some(cron),
                Times::Quartz(cron) => (trigger.cron, trigger.dialect) = (Some(cron), Some(Dialect::Quartz)),
                Times::Rrule(rule) => trigger.rrule = Some(rule),
                Times::At(time) => trigger.at = Some(TimeText(time)),
            }
            self.list.push(trigger);
        }
        Ok(())
    }

    fn intervals(&mut self, unit: &Unit) -> Result<(), String> {
        let (active, inactive) = (spans(unit, "OnUnitActiveSec")?, spans(unit, "OnUnitInactiveSec")?);
        let (first, rest) = match (active.split_first(), inactive.split_first()) {
            (Some((_, _)), Some(((_, setting), _))) => {
                return Err(because(
                    setting,
                    "together with OnUnitActiveSec= means whichever comes first; keep one",
                ));
            }
            (Some(found), None) | (None, Some(found)) => found,
            (None, None) => return Ok(()),
        };
        let (ms, setting) = *first;
        let period = Some(exact_duration(ms));
        let mut trigger = TriggerSpec::default();
        if active.is_empty() {
            (trigger.name, trigger.fixed_delay) = ("after-end".into(), period);
        } else {
            (trigger.name, trigger.fixed_rate) = ("every".into(), period);
            self.notes.push(about(
                setting,
                "counted from the last start; here on a grid that a late start does not move",
            ));
        }
        for (_, setting) in rest {
            self.notes.push(about(setting, "the shortest of them counts"));
        }
        if !self.list.is_empty() {
            self.notes.push(about(
                setting,
                "counted from runs by OnCalendar= too; here it goes on by itself",
            ));
        }
        self.list.push(trigger);
        Ok(())
    }

    /// What counts from a start, and what no job can be started by.
    fn starts(&mut self, unit: &Unit) -> Result<(), String> {
        let mut refused = None;
        for (key, what) in [
            ("OnBootSec", "the start of the host"),
            ("OnStartupSec", "the start of systemd"),
            ("OnActiveSec", "the start of the timer"),
        ] {
            for (_, setting) in spans(unit, key)? {
                let interval = self
                    .list
                    .iter()
                    .any(|t| t.fixed_rate.is_some() || t.fixed_delay.is_some());
                if interval {
                    self.notes.push(about(
                        setting,
                        &format!("the first run was counted from {what}; here from when the trigger is stored"),
                    ));
                } else if self.list.is_empty() {
                    refused = Some(because(setting, NO_BOOT));
                } else {
                    self.notes.push(about(setting, &format!("left out: {NO_BOOT}")));
                }
            }
        }
        for key in ["OnClockChange", "OnTimezoneChange"] {
            if let Some(setting) = unit.last("Timer", key).filter(|setting| unit::is_yes(&setting.value)) {
                self.notes
                    .push(about(setting, "left out: nothing here is started by that"));
            }
        }
        match refused {
            Some(reason) => Err(reason),
            None if self.list.is_empty() => Err("has no time that could become a trigger".into()),
            None => Ok(()),
        }
    }

    fn jitter(&mut self, unit: &Unit) -> Result<(), String> {
        let Some(setting) = unit.last("Timer", "RandomizedDelaySec") else {
            return Ok(());
        };
        let span = span_ms(&setting.value).map_err(|error| because(setting, error))?;
        let ms = span.unwrap_or(u64::MAX);
        if ms > JITTER_MS_MAX {
            self.notes
                .push(about(setting, &format!("cut to {}", exact_duration(JITTER_MS_MAX))));
        }
        let jitter = exact_duration(ms.min(JITTER_MS_MAX));
        for trigger in self.list.iter_mut().filter(|_| ms > 0) {
            trigger.jitter = Some(jitter.clone());
        }
        Ok(())
    }
}

fn triggers(unit: &Unit, options: &Options) -> Result<Triggers, String> {
    let mut found = Triggers {
        list: Vec::new(),
        notes: Vec::new(),
    };
    found.calendars(unit, options)?;
    found.intervals(unit)?;
    found.starts(unit)?;
    found.jitter(unit)?;
    Ok(found)
}

/// The unit that a timer starts.
fn service_of(timer: &str, unit: &Unit, specifiers: &Specifiers) -> Result<String, String> {
    let Some(setting) = unit.last("Timer", "Unit") else {
        return Ok(format!("{}.service", timer.trim_end_matches(".timer")));
    };
    let name = specifiers
        .expand(&setting.value)
        .map_err(|error| because(setting, error))?;
    if !name.ends_with(".service") {
        return Err(because(setting, "starts no service; a job runs a command"));
    }
    Ok(name)
}

fn job(timer: &str, find: Find<'_>, unit: &Unit, options: &Options, of_user: bool) -> Result<Draft, String> {
    if timer.ends_with("@.timer") {
        return Err(format!(
            "is a template; name an instance, such as {}",
            timer.replace("@.", "@NAME.")
        ));
    }
    let specifiers = |unit: &str| Specifiers {
        unit: unit.to_owned(),
        host: options.host.clone(),
        of_user,
    };
    let triggers = triggers(unit, options)?;
    let service = service_of(timer, unit, &specifiers(timer))?;
    let found = find(&service)?;
    if found.is_empty() {
        return Err(format!("starts {service}, which is not there; give its folder, too"));
    }
    let read = Unit::read(&found);
    let mut draft = Draft {
        notes: triggers.notes,
        triggers: triggers.list,
        ..Draft::default()
    };
    draft.notes.extend(explain::all(unit));
    let timer_specifiers = specifiers(timer);
    draft.parts = service::read(&read, &specifiers(&service)).map_err(|reason| format!("{service}: {reason}"))?;
    draft.notes.append(&mut draft.parts.notes);
    draft.notes.extend(explain::all(&read));
    for (origin, fault) in unit.faults.iter().chain(&read.faults) {
        draft.notes.push(format!("{origin}: {fault}"));
    }
    if draft.parts.description.is_none() {
        let description = unit.last("Unit", "Description");
        draft.parts.description = description.and_then(|setting| timer_specifiers.expand(&setting.value).ok());
    }
    Ok(draft)
}

/// A timer and its service, before it has a name.
#[derive(Default)]
struct Draft {
    triggers: Vec<TriggerSpec>,
    parts: service::Parts,
    notes: Vec<String>,
}

/// Reads one timer, such as `backup@db.timer`, into `out`.
pub fn read(timer: &str, find: Find<'_>, options: &Options, names: &mut Names, out: &mut Import) {
    let (found, missing) = match find(timer) {
        Ok(found) if found.is_empty() => (found, Some("is not there".to_owned())),
        Ok(found) => (found, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let unit = Unit::read(&found);
    let file = found.first().map_or(timer, |source| source.file.as_str());
    let line = unit.settings.iter().find(|setting| setting.section == "Timer");
    let origin = Origin::new(file, line.map_or(1, |setting| setting.origin.line));
    if let Some(reason) = missing {
        return out.refuse(origin, timer, reason);
    }
    let of_user = file.contains("/systemd/user/");
    match job(timer, find, &unit, options, of_user) {
        Err(reason) => out.refuse(origin, timer, reason),
        Ok(draft) => {
            let name = names.take(timer.trim_end_matches(".timer"));
            let mut spec = base(name, options);
            let parts = draft.parts;
            spec.description = parts.description;
            spec.runbook = parts.runbook;
            spec.command = parts.command;
            spec.shell = parts.shell;
            spec.dir = parts.dir;
            spec.env = parts.env;
            spec.env_file = parts.env_file;
            spec.run_as = parts.run_as;
            spec.umask = parts.umask;
            spec.timeout = parts.timeout;
            spec.kill_signal = parts.kill_signal;
            spec.kill_grace = parts.kill_grace;
            spec.limits = parts.limits;
            spec.retry = parts.retry;
            // A timer whose service still runs starts nothing, and nothing waits.
            spec.blocking = Some(BlockingKind::DiscardLater);
            spec.trigger = draft.triggers;
            out.add(
                names,
                Imported {
                    origin,
                    text: timer.to_owned(),
                    spec,
                    notes: draft.notes,
                },
            );
        }
    }
}

#[cfg(test)]
mod tests;
