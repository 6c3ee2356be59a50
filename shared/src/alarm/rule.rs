//! What a job wants to be told of: `[[job.alarm]]`, checked.

use super::notice::Kind;
use crate::error::Invalid;
use crate::job::definition::{AlarmSpec, AlarmWhen};
use crate::limits::{ALARM_CHANNELS_MAX, DURATION_MS_MAX, IN_A_ROW_MAX};
use crate::task::spec::check_word;
use crate::time::{exact_duration, parse_duration};
use crate::trigger::definition::TriggerSpec;
use crate::trigger::wall::DAY;
use crate::trigger::zone::Zone;

/// By when a job must have succeeded.
#[derive(Clone, Debug)]
pub enum Deadline {
    /// A time of day, seconds since midnight, each day on which the job was to run.
    By { second: i64, zone: Zone },
    /// So long after each scheduled time, ms.
    Within(i64),
    /// So long after the last success, ms.
    MaxAge(i64),
}

impl PartialEq for Deadline {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Deadline {
    fn key(&self) -> String {
        match self {
            Self::By { second, zone } => format!("late:by:{second}:{}", zone.name()),
            Self::Within(ms) => format!("late:within:{ms}"),
            Self::MaxAge(ms) => format!("late:max_age:{ms}"),
        }
    }

    /// `must have succeeded by 06:00 Europe/Berlin`.
    pub fn words(&self) -> String {
        match self {
            Self::By { second, zone } => format!(
                "must have succeeded by {:02}:{:02} {}",
                second / 3_600,
                second / 60 % 60,
                zone.name()
            ),
            Self::Within(ms) => format!("must succeed within {} of its scheduled time", duration(*ms)),
            Self::MaxAge(ms) => format!("must succeed at least every {}", duration(*ms)),
        }
    }
}

fn duration(ms: i64) -> String {
    exact_duration(ms.unsigned_abs())
}

/// What is to be told.
#[derive(Clone, Debug, PartialEq)]
pub enum When {
    /// So many runs in a row have failed, each after its last attempt.
    Failure {
        in_a_row: u32,
    },
    /// The first success after an alarm about failures or lateness.
    Recovery,
    Late(Deadline),
    /// An expected run did not fire, and nobody wanted that.
    Skipped,
    /// A run takes longer, ms.
    Slow {
        longer_than_ms: i64,
    },
}

/// One `[[job.alarm]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub when: When,
    /// Names of channels.
    pub to: Vec<String>,
    /// At most one alarm of this rule in so long, ms; 0: each is told.
    pub silence_ms: i64,
}

impl Rule {
    /// What the rule is known by: it stays the same where only channels or the silence change.
    pub fn key(&self) -> String {
        match &self.when {
            When::Failure { in_a_row } => format!("failure:{in_a_row}"),
            When::Recovery => "recovery".into(),
            When::Late(deadline) => deadline.key(),
            When::Skipped => "skipped".into(),
            When::Slow { longer_than_ms } => format!("slow:{longer_than_ms}"),
        }
    }

    pub fn kind(&self) -> Kind {
        match self.when {
            When::Failure { .. } => Kind::Failure,
            When::Recovery => Kind::Recovery,
            When::Late(_) => Kind::Late,
            When::Skipped => Kind::Skipped,
            When::Slow { .. } => Kind::Slow,
        }
    }
}

/// What was found in the alarms of a job.
#[derive(Debug, Default)]
pub struct Read {
    pub rules: Vec<Rule>,
    pub faults: Vec<Invalid>,
    /// Not wrong, but perhaps not what was meant.
    pub warnings: Vec<Invalid>,
}

/// Reads all alarms of a job. `triggers`: those of the job.
pub fn read(specs: &[AlarmSpec], triggers: &[TriggerSpec]) -> Read {
    let mut found = Read::default();
    for (index, spec) in specs.iter().enumerate() {
        let at = |field: &str| match field {
            "" => format!("alarm[{index}]"),
            field => format!("alarm[{index}].{field}"),
        };
        let rule = match read_one(spec, triggers) {
            Ok(rule) => rule,
            Err(fault) => {
                found.faults.push(Invalid::new(at(&fault.field), fault.message));
                continue;
            }
        };
        if let Some(first) = found.rules.iter().position(|other| other.key() == rule.key()) {
            found.faults.push(Invalid::new(
                at("when"),
                format!(
                    "is the same as alarm {}; put all channels into one list `to`",
                    first + 1
                ),
            ));
            continue;
        }
        if matches!(rule.when, When::Late(Deadline::By { .. })) && !triggers.iter().any(has_times) {
            found.warnings.push(Invalid::new(
                at("succeeded_by"),
                "counts every day, since no trigger of the job says on which days it runs",
            ));
        }
        found.rules.push(rule);
    }
    found
}

/// Whether the fires of a trigger are known beforehand.
pub fn has_times(trigger: &TriggerSpec) -> bool {
    trigger.manual.is_none() && trigger.after.is_none() && trigger.fixed_delay.is_none()
}

fn read_one(spec: &AlarmSpec, triggers: &[TriggerSpec]) -> Result<Rule, Invalid> {
    let Some(when) = spec.when else {
        return Err(Invalid::new(
            "when",
            "is missing; write \"failure\", \"recovery\", \"late\", \"skipped\" or \"slow\"",
        ));
    };
    only_with(spec, when)?;
    if spec.to.is_empty() {
        return Err(Invalid::new(
            "to",
            "is missing; write the names of channels, such as to = [\"on-call\"]",
        ));
    }
    if spec.to.len() > ALARM_CHANNELS_MAX {
        let count = spec.to.len();
        return Err(Invalid::new(
            "to",
            format!("has {count} channels; at most {ALARM_CHANNELS_MAX} are allowed"),
        ));
    }
    for (index, name) in spec.to.iter().enumerate() {
        check_word(name, &format!("to[{index}]"))?;
        if spec.to[..index].contains(name) {
            return Err(Invalid::new(format!("to[{index}]"), format!("{name:?} occurs twice")));
        }
    }
    let when = match when {
        AlarmWhen::Failure => {
            let in_a_row = spec.in_a_row.unwrap_or(1);
            if !(1..=IN_A_ROW_MAX).contains(&in_a_row) {
                return Err(Invalid::new(
                    "in_a_row",
                    format!("{in_a_row} is outside 1 to {IN_A_ROW_MAX}"),
                ));
            }
            When::Failure { in_a_row }
        }
        AlarmWhen::Recovery => When::Recovery,
        AlarmWhen::Skipped => When::Skipped,
        AlarmWhen::Slow => When::Slow {
            longer_than_ms: needed(spec.longer_than.as_deref(), "longer_than", "longer_than = \"1h\"")?,
        },
        AlarmWhen::Late => When::Late(deadline(spec, triggers)?),
    };
    let silence_ms = match spec.silence.as_deref() {
        None => 0,
        Some(text) => positive(text, "silence")?,
    };
    if silence_ms > 0 && when == When::Recovery {
        return Err(Invalid::new(
            "silence",
            "says nothing with when = \"recovery\", which follows an alarm; remove it",
        ));
    }
    Ok(Rule {
        when,
        to: spec.to.clone(),
        silence_ms,
    })
}

/// A field that says nothing is a mistake about what it does.
fn only_with(spec: &AlarmSpec, when: AlarmWhen) -> Result<(), Invalid> {
    let fields = [
        ("in_a_row", spec.in_a_row.is_some(), AlarmWhen::Failure, "failure"),
        ("succeeded_by", spec.succeeded_by.is_some(), AlarmWhen::Late, "late"),
        (
            "succeeded_within",
            spec.succeeded_within.is_some(),
            AlarmWhen::Late,
            "late",
        ),
        ("max_age", spec.max_age.is_some(), AlarmWhen::Late, "late"),
        ("longer_than", spec.longer_than.is_some(), AlarmWhen::Slow, "slow"),
    ];
    for (field, given, needs, word) in fields {
        if given && when != needs {
            return Err(Invalid::new(
                field,
                format!("goes with when = \"{word}\" only; remove it, or change `when`"),
            ));
        }
    }
    if spec.zone.is_some() && spec.succeeded_by.is_none() {
        return Err(Invalid::new("zone", "goes with succeeded_by only; remove it"));
    }
    Ok(())
}

fn positive(text: &str, field: &str) -> Result<i64, Invalid> {
    let ms = parse_duration(text).map_err(|message| Invalid::new(field, message))?;
    if ms == 0 || ms > DURATION_MS_MAX {
        return Err(Invalid::new(field, format!("{text:?} is outside 1ms to 366d")));
    }
    Ok(i64::try_from(ms).unwrap_or(i64::MAX))
}

fn needed(text: Option<&str>, field: &str, example: &str) -> Result<i64, Invalid> {
    match text {
        Some(text) => positive(text, field),
        None => Err(Invalid::new(field, format!("is missing; write for example {example}"))),
    }
}

fn deadline(spec: &AlarmSpec, triggers: &[TriggerSpec]) -> Result<Deadline, Invalid> {
    let given = [&spec.succeeded_by, &spec.succeeded_within, &spec.max_age]
        .iter()
        .filter(|field| field.is_some())
        .count();
    if given != 1 {
        return Err(Invalid::new(
            "",
            "needs exactly one of succeeded_by = \"06:00\", succeeded_within = \"2h\" and max_age = \"1d\"; write an alarm for each",
        ));
    }
    if let Some(text) = &spec.succeeded_by {
        let zone = match &spec.zone {
            Some(name) => Zone::parse(name)?,
            None => Zone::utc(),
        };
        return Ok(Deadline::By {
            second: time_of_day(text)?,
            zone,
        });
    }
    if let Some(text) = &spec.max_age {
        return positive(text, "max_age").map(Deadline::MaxAge);
    }
    if !triggers.iter().any(has_times) {
        return Err(Invalid::new(
            "succeeded_within",
            "counts from scheduled times, and no trigger of the job has such; use max_age",
        ));
    }
    needed(
        spec.succeeded_within.as_deref(),
        "succeeded_within",
        "succeeded_within = \"2h\"",
    )
    .map(Deadline::Within)
}

/// `HH:MM`, 24 hours, as seconds since midnight.
fn time_of_day(text: &str) -> Result<i64, Invalid> {
    let wrong = || {
        Invalid::new(
            "succeeded_by",
            format!("{text:?} is no time of day; write hours and minutes, such as \"06:00\""),
        )
    };
    let (hour, minute) = text.split_once(':').ok_or_else(wrong)?;
    let digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(hour) || !digits(minute) {
        return Err(wrong());
    }
    let number = |part: &str| part.parse::<i64>().map_err(|_| wrong());
    let (hour, minute) = (number(hour)?, number(minute)?);
    let second = hour * 3_600 + minute * 60;
    if minute < 60 && second < DAY {
        Ok(second)
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn specs(value: serde_json::Value) -> Vec<AlarmSpec> {
        serde_json::from_value(value).expect("alarms")
    }

    fn nightly() -> Vec<TriggerSpec> {
        serde_json::from_value(json!([{"name": "n", "cron": "30 2 * * *"}])).expect("trigger")
    }

    #[test]
    fn each_alarm_is_a_rule_with_a_key_of_its_own() {
        let read = read(
            &specs(json!([
                {"when": "failure", "to": ["a"]},
                {"when": "failure", "in_a_row": 3, "to": ["a", "b"], "silence": "15m"},
                {"when": "late", "succeeded_by": "06:00", "zone": "Europe/Berlin", "to": ["a"], "silence": "4h"},
                {"when": "late", "succeeded_within": "2h", "to": ["a"]},
                {"when": "late", "max_age": "2m", "to": ["a"]},
                {"when": "slow", "longer_than": "1h30m", "to": ["a"]},
                {"when": "skipped", "to": ["a"]},
                {"when": "recovery", "to": ["a"]},
            ])),
            &nightly(),
        );
        assert_eq!((read.faults, read.warnings), (vec![], vec![]));
        let keys: Vec<String> = read.rules.iter().map(Rule::key).collect();
        assert_eq!(
            keys,
            [
                "failure:1",
                "failure:3",
                "late:by:21600:Europe/Berlin",
                "late:within:7200000",
                "late:max_age:120000",
                "slow:5400000",
                "skipped",
                "recovery"
            ]
        );
        assert_eq!(read.rules[1].silence_ms, 900_000);
        let When::Late(by) = &read.rules[2].when else {
            panic!("late")
        };
        assert_eq!(by.words(), "must have succeeded by 06:00 Europe/Berlin");
    }

    #[test]
    fn what_is_wrong_names_its_field_and_the_remedy() {
        for (alarm, field, part) in [
            (json!({"to": ["a"]}), "alarm[0].when", "\"late\""),
            (json!({"when": "failure"}), "alarm[0].to", "on-call"),
            (json!({"when": "failure", "to": ["a b"]}), "alarm[0].to[0]", "a b"),
            (json!({"when": "failure", "to": ["a", "a"]}), "alarm[0].to[1]", "twice"),
            (
                json!({"when": "failure", "in_a_row": 0, "to": ["a"]}),
                "alarm[0].in_a_row",
                "1 to",
            ),
            (
                json!({"when": "skipped", "in_a_row": 2, "to": ["a"]}),
                "alarm[0].in_a_row",
                "failure",
            ),
            (
                json!({"when": "failure", "max_age": "1h", "to": ["a"]}),
                "alarm[0].max_age",
                "late",
            ),
            (json!({"when": "late", "to": ["a"]}), "alarm[0]", "exactly one"),
            (
                json!({"when": "late", "max_age": "1h", "succeeded_by": "06:00", "to": ["a"]}),
                "alarm[0]",
                "exactly one",
            ),
            (
                json!({"when": "late", "succeeded_by": "6", "to": ["a"]}),
                "alarm[0].succeeded_by",
                "06:00",
            ),
            (
                json!({"when": "late", "succeeded_by": "24:00", "to": ["a"]}),
                "alarm[0].succeeded_by",
                "06:00",
            ),
            (
                json!({"when": "late", "succeeded_by": "06:00", "zone": "berlin", "to": ["a"]}),
                "alarm[0].zone",
                "Europe/Berlin",
            ),
            (
                json!({"when": "late", "max_age": "1h", "zone": "UTC", "to": ["a"]}),
                "alarm[0].zone",
                "succeeded_by",
            ),
            (
                json!({"when": "late", "max_age": "0", "to": ["a"]}),
                "alarm[0].max_age",
                "366d",
            ),
            (json!({"when": "slow", "to": ["a"]}), "alarm[0].longer_than", "1h"),
            (
                json!({"when": "slow", "longer_than": "soon", "to": ["a"]}),
                "alarm[0].longer_than",
                "soon",
            ),
            (
                json!({"when": "recovery", "silence": "1h", "to": ["a"]}),
                "alarm[0].silence",
                "remove",
            ),
        ] {
            let read = read(&specs(json!([alarm])), &nightly());
            assert_eq!(read.faults.len(), 1, "{alarm}");
            assert_eq!(read.faults[0].field, field, "{alarm}");
            assert!(read.faults[0].message.contains(part), "{}", read.faults[0]);
        }
    }

    #[test]
    fn the_same_condition_twice_is_one_list_of_channels() {
        let read = read(
            &specs(json!([{"when": "failure", "to": ["a"]}, {"when": "failure", "in_a_row": 1, "to": ["b"]}])),
            &[],
        );
        assert_eq!(read.faults[0].field, "alarm[1].when");
        assert!(read.faults[0].message.contains("alarm 1"));
    }

    #[test]
    fn a_job_without_times_can_be_late_by_the_day_but_not_by_its_slots() {
        let by_hand: Vec<TriggerSpec> =
            serde_json::from_value(json!([{"name": "m", "manual": true}])).expect("trigger");
        let by = read(
            &specs(json!([{"when": "late", "succeeded_by": "06:00", "to": ["a"]}])),
            &by_hand,
        );
        assert_eq!((by.rules.len(), by.warnings.len()), (1, 1));
        let within = read(
            &specs(json!([{"when": "late", "succeeded_within": "1h", "to": ["a"]}])),
            &by_hand,
        );
        assert!(within.faults[0].message.contains("max_age"));
    }
}
