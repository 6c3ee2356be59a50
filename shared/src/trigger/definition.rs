//! A trigger as it stands in job files and is stored, and how it becomes one that can be asked.

use super::calendar::{Calendar, Exclusions};
use super::cron::{Cron, Dialect};
use super::custom::{Context, Registry};
use super::dst::{Dst, Gap, Overlap};
use super::misfire::Misfire;
use super::plan::Trigger;
use super::schedule::{AfterOutcome, Local, Schedule};
use super::window::WindowSpec;
use super::zone::Zone;
use crate::error::Invalid;
use crate::limits::{CATCH_UP_DEFAULT, CATCH_UP_MAX, DURATION_MS_MAX, JITTER_MS_MAX, PERIOD_MS_MIN, PRIORITY_MAX};
use crate::time::parse_duration;
use chrono::{DateTime, NaiveDateTime};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A time as it was written: RFC 3339, or a local time without an offset, in the trigger's zone. In TOML it may stand
/// with or without quotes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct TimeText(pub String);

impl TimeText {
    /// Milliseconds since the epoch.
    fn parse(&self, field: &str, zone: &Zone) -> Result<i64, Invalid> {
        let text = self.0.trim();
        if let Ok(time) = DateTime::parse_from_rfc3339(text) {
            return Ok(time.timestamp_millis());
        }
        [
            "%Y-%m-%dT%H:%M:%S",
            "%Y-%m-%d %H:%M:%S",
            "%Y-%m-%dT%H:%M",
            "%Y-%m-%d %H:%M",
        ]
        .iter()
        .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())
        .map(|time| zone.instant(super::wall::of_date_time(time)) * 1_000)
        .ok_or_else(|| {
            let message = format!(
                "{text:?} is not a time; write 2027-01-31T02:30:00+01:00, or 2027-01-31T02:30:00 in the trigger's zone"
            );
            Invalid::new(field, message)
        })
    }
}

impl<'de> Deserialize<'de> for TimeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = TimeText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time, such as 2027-01-31T02:30:00+01:00")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TimeText, E> {
                Ok(TimeText(text.to_owned()))
            }

            // How the parser of TOML hands on a time without quotes: a map with one entry.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TimeText, A::Error> {
                match map.next_entry::<String, String>()? {
                    Some((key, text)) if key.ends_with("datetime") => Ok(TimeText(text)),
                    _ => Err(de::Error::invalid_type(de::Unexpected::Map, &self)),
                }
            }
        }

        deserializer.deserialize_any(Text)
    }
}

/// `after = { job, outcome }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfterSpec {
    pub job: String,
    pub outcome: AfterOutcome,
}

/// `custom = { kind, … }`: the rest are the settings of the kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomSpec {
    pub kind: String,
    #[serde(flatten)]
    pub settings: Map<String, Value>,
}

/// A trigger as it is written. Exactly one of the kinds stands in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerSpec {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed_rate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed_delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<TimeText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manual: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rrule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_in_window: Option<WindowSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom: Option<CustomSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<AfterSpec>,

    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<Dialect>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_gap: Option<Gap>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_overlap: Option<Overlap>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_at: Option<TimeText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_at: Option<TimeText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_fires: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude_calendars: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misfire: Option<Misfire>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misfire_threshold: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_catch_up: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// What a definition is read against.
#[derive(Clone, Copy, Debug)]
pub struct Environment<'a> {
    pub job: &'a str,
    /// When the trigger was made: `delay` counts from it, and so do grids without a `start_at`.
    pub created_ms: i64,
    /// The zone of triggers that name none.
    pub default_zone: &'a Zone,
    pub calendars: &'a BTreeMap<String, Arc<Calendar>>,
    pub registry: &'a Registry,
}

fn duration_ms(text: &str, field: &str, min: i64, max: u64) -> Result<i64, Invalid> {
    let ms = parse_duration(text).map_err(|message| Invalid::new(field, message))?;
    match i64::try_from(ms) {
        Ok(value) if value >= min && ms <= max => Ok(value),
        _ => {
            let (min, max) = (min.unsigned_abs(), max);
            let range = (crate::time::exact_duration(min), crate::time::exact_duration(max));
            Err(Invalid::new(
                field,
                format!("{text:?} is out of range; write {} to {}", range.0, range.1),
            ))
        }
    }
}

impl TriggerSpec {
    /// The one kind that it has.
    pub fn kind(&self) -> Result<&'static str, Invalid> {
        let kinds = [
            ("cron", self.cron.is_some()),
            ("fixed_rate", self.fixed_rate.is_some()),
            ("fixed_delay", self.fixed_delay.is_some()),
            ("at", self.at.is_some()),
            ("delay", self.delay.is_some()),
            ("manual", self.manual.is_some()),
            ("rrule", self.rrule.is_some()),
            ("interval_in_window", self.interval_in_window.is_some()),
            ("custom", self.custom.is_some()),
            ("after", self.after.is_some()),
        ];
        let given: Vec<&'static str> = kinds
            .iter()
            .filter(|(_, given)| *given)
            .map(|&(name, _)| name)
            .collect();
        match given[..] {
            [kind] => Ok(kind),
            [] => {
                let names: Vec<&str> = kinds.iter().map(|&(name, _)| name).collect();
                Err(Invalid::new(
                    "trigger",
                    format!("it has no kind; write one of {}", names.join(", ")),
                ))
            }
            _ => Err(Invalid::new(
                "trigger",
                format!(
                    "it has {}; a trigger has one kind, write a trigger for each",
                    given.join(" and ")
                ),
            )),
        }
    }

    /// Whether its times are meant in a zone.
    pub fn takes_zone(&self) -> bool {
        self.manual.is_none() && self.after.is_none()
    }

    /// Fields that say nothing for the kind are a mistake, not a decoration.
    fn check_fields(&self, kind: &str) -> Result<(), Invalid> {
        let local = matches!(kind, "cron" | "rrule" | "interval_in_window" | "custom");
        let timed = !matches!(kind, "manual" | "after");
        let checks = [
            ("dialect", self.dialect.is_some(), kind == "cron"),
            ("zone", self.zone.is_some(), timed),
            ("dst_gap", self.dst_gap.is_some(), local),
            ("dst_overlap", self.dst_overlap.is_some(), local),
            ("exclude_calendars", !self.exclude_calendars.is_empty(), timed),
            ("jitter", self.jitter.is_some(), timed),
            ("misfire", self.misfire.is_some(), timed),
            ("misfire_threshold", self.misfire_threshold.is_some(), timed),
            (
                "max_catch_up",
                self.max_catch_up.is_some(),
                self.misfire == Some(Misfire::CatchUp),
            ),
        ];
        match checks.iter().find(|(_, given, allowed)| *given && !*allowed) {
            Some(("max_catch_up", ..)) => Err(Invalid::new("max_catch_up", "needs misfire = \"catch_up\"")),
            Some((field, ..)) => Err(Invalid::new(
                *field,
                format!("says nothing for a {kind} trigger; remove it"),
            )),
            None => Ok(()),
        }
    }

    fn zone(&self, environment: &Environment<'_>) -> Result<Zone, Invalid> {
        match &self.zone {
            Some(name) => Zone::parse(name),
            None => Ok(environment.default_zone.clone()),
        }
    }

    fn schedule(&self, kind: &str, environment: &Environment<'_>, start_ms: Option<i64>) -> Result<Schedule, Invalid> {
        let context = Context {
            zone: self.zone(environment)?,
            dst: Dst {
                gap: self.dst_gap.unwrap_or_default(),
                overlap: self.dst_overlap.unwrap_or_default(),
            },
            start_ms: start_ms.unwrap_or(environment.created_ms),
        };
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let custom = |kind: &str, settings: &Value| {
            environment
                .registry
                .build(kind, settings, &context)
                .map(Schedule::Custom)
        };
        match kind {
            "cron" => {
                let cron = Cron::parse(&text(&self.cron), self.dialect.unwrap_or_default())?;
                Ok(Schedule::Local(Local::new(cron, context.zone.clone(), context.dst)))
            }
            "fixed_rate" => Ok(Schedule::FixedRate {
                anchor_ms: context.start_ms,
                period_ms: duration_ms(&text(&self.fixed_rate), "fixed_rate", PERIOD_MS_MIN, DURATION_MS_MAX)?,
            }),
            "fixed_delay" => Ok(Schedule::FixedDelay {
                delay_ms: duration_ms(&text(&self.fixed_delay), "fixed_delay", PERIOD_MS_MIN, DURATION_MS_MAX)?,
            }),
            "delay" => {
                let delay = duration_ms(&text(&self.delay), "delay", 0, DURATION_MS_MAX)?;
                Ok(Schedule::Once(environment.created_ms.saturating_add(delay)))
            }
            "manual" if self.manual == Some(false) => Err(Invalid::new(
                "manual",
                "false is no kind; remove it, or write manual = true",
            )),
            "manual" => Ok(Schedule::Manual),
            "rrule" => custom("rrule", &json!({ "rule": text(&self.rrule) })),
            _ => match (&self.at, &self.interval_in_window, &self.custom, &self.after) {
                (Some(at), ..) => Ok(Schedule::Once(at.parse("at", &context.zone)?)),
                (_, Some(window), ..) => {
                    let settings = serde_json::to_value(window)
                        .map_err(|error| Invalid::new("interval_in_window", error.to_string()))?;
                    custom("interval_in_window", &settings)
                }
                (_, _, Some(spec), _) => custom(&spec.kind, &Value::Object(spec.settings.clone())),
                (_, _, _, Some(after)) if after.job == environment.job => Err(Invalid::new(
                    "after.job",
                    "is the job itself, which would run for ever; write a fixed_delay for that",
                )),
                (_, _, _, Some(after)) => Ok(Schedule::After {
                    job: after.job.clone(),
                    outcome: after.outcome,
                }),
                _ => Err(Invalid::new("trigger", "it has no kind")),
            },
        }
    }

    /// The trigger that this definition means. Every refusal names the field.
    pub fn compile(&self, environment: &Environment<'_>) -> Result<Trigger, Invalid> {
        let kind = self.kind()?;
        self.check_fields(kind)?;
        let zone = self.zone(environment)?;
        let time =
            |text: &Option<TimeText>, field: &str| text.as_ref().map(|text| text.parse(field, &zone)).transpose();
        let (start_ms, end_ms) = (time(&self.start_at, "start_at")?, time(&self.end_at, "end_at")?);
        if let (Some(start), Some(end)) = (start_ms, end_ms)
            && end < start
        {
            return Err(Invalid::new("end_at", "is before start_at; nothing would ever fire"));
        }
        if self.max_fires == Some(0) {
            return Err(Invalid::new(
                "max_fires",
                "0 never fires; write 1 or more, or paused = true",
            ));
        }
        if self.priority.is_some_and(|priority| priority > PRIORITY_MAX) {
            return Err(Invalid::new(
                "priority",
                format!("is out of range; write 0 to {PRIORITY_MAX}"),
            ));
        }
        let max_catch_up = self.max_catch_up.unwrap_or(CATCH_UP_DEFAULT);
        if !(1..=CATCH_UP_MAX).contains(&max_catch_up) {
            return Err(Invalid::new(
                "max_catch_up",
                format!("is out of range; write 1 to {CATCH_UP_MAX}"),
            ));
        }
        let calendars = self.exclude_calendars.iter().map(|name| {
            environment.calendars.get(name).cloned().ok_or_else(|| {
                let known: Vec<&str> = environment.calendars.keys().map(String::as_str).collect();
                let known = if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                };
                Invalid::new(
                    "exclude_calendars",
                    format!("there is no calendar {name:?}; known: {known}"),
                )
            })
        });
        let exclusions = Exclusions(calendars.collect::<Result<_, _>>()?);
        let jitter = self
            .jitter
            .as_deref()
            .map_or(Ok(0), |text| duration_ms(text, "jitter", 0, JITTER_MS_MAX))?;
        let threshold = self.misfire_threshold.as_deref();
        Ok(Trigger {
            key: format!("{}/{}", environment.job, self.name),
            schedule: self.schedule(kind, environment, start_ms)?,
            start_ms,
            end_ms,
            max_fires: self.max_fires,
            exclusions,
            jitter_ms: jitter.unsigned_abs(),
            misfire: self.misfire.unwrap_or_default(),
            misfire_threshold_ms: threshold
                .map(|text| duration_ms(text, "misfire_threshold", 0, DURATION_MS_MAX))
                .transpose()?,
            max_catch_up,
        })
    }

    /// Refuses a new definition that would never fire, as far as time decides on it.
    pub fn check_fires(&self, trigger: &Trigger, now_ms: i64) -> Result<(), Invalid> {
        let kind = self.kind()?;
        if matches!(trigger.schedule, Schedule::Manual | Schedule::After { .. }) {
            return Ok(());
        }
        match trigger.next_after(now_ms) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Invalid::new(
                kind,
                "it has no fire after now; check the time or year, start_at, end_at and exclude_calendars",
            )),
            Err(broken) => Err(Invalid::new(kind, broken.to_string())),
        }
    }
}

#[cfg(test)]
mod tests;
