//! Fires of jobs in words.

use systole_proto::v1;
use systole_shared::job::JobSpec;
use systole_shared::job::compile::trigger_names;
use systole_shared::trigger::definition::TriggerSpec;
use systole_shared::trigger::words;
use systole_shared::trigger::zone::Zone;

/// The zone that a trigger is in.
pub fn zone_of(spec: &TriggerSpec) -> Zone {
    let named = spec.zone.as_deref().and_then(|name| Zone::parse(name).ok());
    named.unwrap_or_else(Zone::utc)
}

/// The zone of the trigger with this name; UTC where it is not there.
pub fn trigger_zone(spec: &JobSpec, name: &str) -> Zone {
    let names = trigger_names(&spec.trigger);
    let found = names.iter().zip(&spec.trigger).find(|(known, _)| *known == name);
    found.map_or_else(Zone::utc, |(_, trigger)| zone_of(trigger))
}

/// The definition of a job, each of its triggers with the zone that its times are meant in; for showing times, not for writing.
pub fn spec_in_zones(job: &v1::Job) -> JobSpec {
    let mut spec: JobSpec = serde_json::from_str(&job.json).unwrap_or_default();
    let names = trigger_names(&spec.trigger);
    for (trigger, name) in spec.trigger.iter_mut().zip(names) {
        let status = job.triggers.iter().find(|status| status.name == name);
        if let Some(status) = status.filter(|status| !status.zone.is_empty()) {
            trigger.zone = Some(status.zone.clone());
        }
    }
    spec
}

/// The zone with this name; UTC for none.
pub fn zone_named(name: &str) -> Zone {
    Zone::parse(name).unwrap_or_else(|_| Zone::utc())
}

/// The zone to show the times of a job in: that of its first trigger.
pub fn job_zone(spec: &JobSpec) -> Zone {
    spec.trigger.first().map_or_else(Zone::utc, zone_of)
}

/// `Mon 2026-11-30 02:30 +01:00`.
pub fn fire_in_words(zone: &Zone, at_ms: i64) -> String {
    let at = at_ms.div_euclid(1_000);
    let wall = zone.wall(at);
    format!(
        "{} {} {}",
        words::day(wall),
        words::clock(wall),
        words::offset(zone.offset(at))
    )
}

/// As [`fire_in_words`], of a time on the wire; nothing for none.
pub fn wire_fire(zone: &Zone, at_ms: u64) -> String {
    match i64::try_from(at_ms) {
        Ok(at_ms) if at_ms > 0 => fire_in_words(zone, at_ms),
        _ => String::new(),
    }
}

/// `paused by ann, "restore test", until …`; empty where it is not.
pub fn pause(pause: Option<&v1::Pause>, zone: &Zone) -> String {
    let Some(pause) = pause.filter(|pause| pause.paused) else {
        return String::new();
    };
    let mut text = String::from("paused");
    if !pause.by.is_empty() {
        text.push_str(&format!(" by {}", pause.by));
    }
    if pause.since_ms != 0 {
        text.push_str(&format!(" {}", wire_fire(zone, pause.since_ms)));
    }
    if !pause.reason.is_empty() {
        text.push_str(&format!(", \"{}\"", pause.reason));
    }
    if pause.until_ms != 0 {
        text.push_str(&format!(", until {}", wire_fire(zone, pause.until_ms)));
    }
    text
}
