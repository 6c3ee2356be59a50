//! What follows a failed task of a job: how often, after how long, and after which failures.

use super::definition::{RetryKind, RetrySpec};
use crate::error::Invalid;
use crate::limits::{DURATION_MS_MAX, RETRIES_MAX};
use crate::policy::retry::{FollowUp, follow_up};
use crate::task::OutcomeKind;
use crate::task::spec::Retry;
use crate::time::{exact_duration, parse_duration};

/// The longest delay of exponential retries that name none, ms.
pub const CAP_MS_DEFAULT: u64 = 60_000;
/// How much longer each delay of exponential retries is than the one before.
pub const FACTOR_DEFAULT: f64 = 2.0;
const FACTOR_MAX: f64 = 100.0;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RetryPolicy {
    pub kind: RetryKind,
    /// Retries after the first attempt.
    pub max_retries: u32,
    pub delay_ms: u64,
    pub factor: f64,
    pub cap_ms: u64,
    /// Part of the delay by which it is changed at random, up and down.
    pub jitter: f64,
    /// Empty: every failure that is retried at all.
    pub kinds: Vec<OutcomeKind>,
    /// Empty: every exit code but 0.
    pub exit_codes: Vec<i32>,
    /// A retry goes to another host, where one can take it.
    pub avoid_last_runner: bool,
}

/// Whether tasks are ever retried after this outcome.
fn is_retryable(kind: OutcomeKind) -> bool {
    follow_up(kind, 1, 1, 0) == FollowUp::Retry
}

fn duration_ms(text: &str, field: &str) -> Result<u64, Invalid> {
    let ms = parse_duration(text).map_err(|message| Invalid::new(field, message))?;
    if ms > DURATION_MS_MAX {
        return Err(Invalid::new(field, format!("{text:?} is longer than 366d")));
    }
    Ok(ms)
}

fn range(value: f64, field: &str, min: f64, max: f64) -> Result<f64, Invalid> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(Invalid::new(field, format!("{value} is outside {min} to {max}")))
}

impl RetryPolicy {
    pub fn new(spec: &RetrySpec) -> Result<Self, Invalid> {
        let kind = match spec.policy {
            Some(kind) => kind,
            None if *spec == RetrySpec::default() => RetryKind::None,
            None => {
                return Err(Invalid::new(
                    "retry.policy",
                    "is missing; write \"fixed\" or \"exponential\", or \"none\" for no retries",
                ));
            }
        };
        let given = [
            ("retry.max_retries", spec.max_retries.is_some(), RetryKind::Fixed),
            ("retry.delay", spec.delay.is_some(), RetryKind::Fixed),
            ("retry.jitter", spec.jitter.is_some(), RetryKind::Fixed),
            ("retry.kinds", !spec.kinds.is_empty(), RetryKind::Fixed),
            ("retry.exit_codes", !spec.exit_codes.is_empty(), RetryKind::Fixed),
            ("retry.avoid_last_runner", spec.avoid_last_runner, RetryKind::Fixed),
            ("retry.factor", spec.factor.is_some(), RetryKind::Exponential),
            ("retry.cap", spec.cap.is_some(), RetryKind::Exponential),
        ];
        for (field, given, needs) in given {
            if given && (kind == RetryKind::None || (needs == RetryKind::Exponential && kind != needs)) {
                let policy = if kind == RetryKind::None { "none" } else { "fixed" };
                let remedy = if needs == RetryKind::Exponential {
                    "\"exponential\""
                } else {
                    "\"fixed\" or \"exponential\""
                };
                return Err(Invalid::new(
                    field,
                    format!("says nothing with policy = {policy:?}; remove it, or write policy = {remedy}"),
                ));
            }
        }
        if kind == RetryKind::None {
            return Ok(Self::default());
        }
        let missing =
            |field: &str, example: &str| Invalid::new(field, format!("is missing; write for example {example}"));
        let max_retries = spec
            .max_retries
            .ok_or_else(|| missing("retry.max_retries", "max_retries = 2, for at most 3 attempts"))?;
        if !(1..=RETRIES_MAX).contains(&max_retries) {
            return Err(Invalid::new(
                "retry.max_retries",
                format!("{max_retries} is outside 1 to {RETRIES_MAX}; write policy = \"none\" for no retries"),
            ));
        }
        let delay = spec
            .delay
            .as_deref()
            .ok_or_else(|| missing("retry.delay", "delay = \"30s\""))?;
        let delay_ms = duration_ms(delay, "retry.delay")?;
        let mut policy = Self {
            kind,
            max_retries,
            delay_ms,
            factor: 1.0,
            cap_ms: DURATION_MS_MAX,
            jitter: range(spec.jitter.unwrap_or(0.0), "retry.jitter", 0.0, 1.0)?,
            kinds: Vec::new(),
            exit_codes: spec.exit_codes.clone(),
            avoid_last_runner: spec.avoid_last_runner,
        };
        if kind == RetryKind::Exponential {
            policy.factor = range(spec.factor.unwrap_or(FACTOR_DEFAULT), "retry.factor", 1.0, FACTOR_MAX)?;
            policy.cap_ms = match &spec.cap {
                Some(cap) => duration_ms(cap, "retry.cap")?,
                None => CAP_MS_DEFAULT,
            };
            if delay_ms == 0 {
                return Err(Invalid::new(
                    "retry.delay",
                    "0 does not grow; write a delay such as \"1s\", or policy = \"fixed\"",
                ));
            }
            if delay_ms > policy.cap_ms {
                let cap = exact_duration(policy.cap_ms);
                return Err(Invalid::new(
                    "retry.delay",
                    format!("{delay:?} is above the cap of {cap}; write a longer cap too, such as cap = {delay:?}"),
                ));
            }
        }
        for (index, name) in spec.kinds.iter().enumerate() {
            match OutcomeKind::parse(name).filter(|&kind| is_retryable(kind)) {
                Some(kind) => policy.kinds.push(kind),
                None => {
                    let known: Vec<_> = OutcomeKind::ALL.iter().filter(|&&kind| is_retryable(kind)).collect();
                    let known: Vec<_> = known.iter().map(|kind| kind.name()).collect();
                    return Err(Invalid::new(
                        format!("retry.kinds[{index}]"),
                        format!("{name:?} is no failure that is retried; those are {}", known.join(", ")),
                    ));
                }
            }
        }
        if let Some(index) = spec.exit_codes.iter().position(|code| !(1..=255).contains(code)) {
            return Err(Invalid::new(
                format!("retry.exit_codes[{index}]"),
                format!("{} is outside 1 to 255", spec.exit_codes[index]),
            ));
        }
        if !spec.exit_codes.is_empty() && !policy.kinds.is_empty() && !policy.kinds.contains(&OutcomeKind::ExitCode) {
            return Err(Invalid::new(
                "retry.exit_codes",
                "says nothing while kinds has no \"exit_code\"; add it to kinds, or remove exit_codes",
            ));
        }
        Ok(policy)
    }

    /// Whether this failure is one that is retried.
    pub fn counts(&self, kind: OutcomeKind, exit_code: Option<i32>) -> bool {
        is_retryable(kind)
            && (self.kinds.is_empty() || self.kinds.contains(&kind))
            && (kind != OutcomeKind::ExitCode
                || self.exit_codes.is_empty()
                || exit_code.is_some_and(|code| self.exit_codes.contains(&code)))
    }

    /// From the end of an attempt to the start of the next. `retry` counts from 1; `unit` is a random number from
    /// 0 to 1.
    pub fn delay_ms(&self, retry: u32, unit: f64) -> u64 {
        let cap = self.cap_ms as f64;
        let exponent = i32::try_from(retry.saturating_sub(1)).unwrap_or(i32::MAX);
        let plain = (self.delay_ms as f64 * self.factor.powi(exponent)).min(cap);
        let changed = plain * (1.0 - self.jitter + 2.0 * self.jitter * unit.clamp(0.0, 1.0));
        changed.clamp(0.0, cap).round() as u64
    }

    /// The policy as a task carries it, where that says it all.
    pub fn plain(&self) -> Option<Retry> {
        let plain = self.kind != RetryKind::Exponential
            && self.jitter == 0.0
            && self.kinds.is_empty()
            && self.exit_codes.is_empty();
        plain.then_some(Retry {
            max_retries: self.max_retries,
            delay_ms: self.delay_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(json: &str) -> Result<RetryPolicy, Invalid> {
        RetryPolicy::new(&serde_json::from_str(json).expect(json))
    }

    #[test]
    fn delays_grow_up_to_the_cap_and_jitter_stays_within_its_part() {
        let policy = policy(
            r#"{"policy":"exponential","max_retries":9,"delay":"30s","cap":"5m","jitter":0.5,"exit_codes":[75]}"#,
        )
        .expect("policy");
        for (retry, unit, expected) in [
            (1, 0.5, 30_000),
            (2, 0.5, 60_000),
            (3, 0.5, 120_000),
            (4, 0.5, 240_000),
            (5, 0.5, 300_000),
            (100, 0.5, 300_000),
            (1, 0.0, 15_000),
            (1, 1.0, 45_000),
            (9, 1.0, 300_000),
        ] {
            assert_eq!(policy.delay_ms(retry, unit), expected, "{retry} {unit}");
        }
        assert_eq!(policy.plain(), None);
    }

    #[test]
    fn fixed_delays_stay_and_are_not_capped() {
        let policy = policy(r#"{"policy":"fixed","max_retries":2,"delay":"5m"}"#).expect("policy");
        assert_eq!((policy.delay_ms(1, 0.9), policy.delay_ms(7, 0.1)), (300_000, 300_000));
        let plain = policy.plain().expect("plain");
        assert_eq!((plain.max_retries, plain.delay_ms), (2, 300_000));
    }

    #[test]
    fn only_the_named_failures_count() {
        let all = policy(r#"{"policy":"fixed","max_retries":2,"delay":"0"}"#).expect("policy");
        let some = policy(
            r#"{"policy":"fixed","max_retries":2,"delay":"0","kinds":["exit_code","timeout"],"exit_codes":[1,75]}"#,
        )
        .expect("policy");
        for (kind, code, by_all, by_some) in [
            (OutcomeKind::ExitCode, Some(75), true, true),
            (OutcomeKind::ExitCode, Some(2), true, false),
            (OutcomeKind::ExitCode, None, true, false),
            (OutcomeKind::Timeout, None, true, true),
            (OutcomeKind::StartFailed, None, true, false),
            (OutcomeKind::Cancelled, None, false, false),
            (OutcomeKind::RunnerLost, None, false, false),
        ] {
            assert_eq!(
                (all.counts(kind, code), some.counts(kind, code)),
                (by_all, by_some),
                "{kind} {code:?}"
            );
        }
    }

    #[test]
    fn what_is_wrong_names_the_field() {
        for (json, field, words) in [
            (r#"{"max_retries":2}"#, "retry.policy", "fixed"),
            (r#"{"policy":"none","delay":"5s"}"#, "retry.delay", "none"),
            (r#"{"policy":"fixed","delay":"5s"}"#, "retry.max_retries", "missing"),
            (r#"{"policy":"fixed","max_retries":2}"#, "retry.delay", "missing"),
            (
                r#"{"policy":"fixed","max_retries":0,"delay":"5s"}"#,
                "retry.max_retries",
                "1 to 100",
            ),
            (
                r#"{"policy":"fixed","max_retries":101,"delay":"5s"}"#,
                "retry.max_retries",
                "1 to 100",
            ),
            (
                r#"{"policy":"fixed","max_retries":1,"delay":"5"}"#,
                "retry.delay",
                "no unit",
            ),
            (
                r#"{"policy":"fixed","max_retries":1,"delay":"5s","cap":"1m"}"#,
                "retry.cap",
                "exponential",
            ),
            (
                r#"{"policy":"exponential","max_retries":1,"delay":"5m"}"#,
                "retry.delay",
                "cap of 1m",
            ),
            (
                r#"{"policy":"exponential","max_retries":1,"delay":"0"}"#,
                "retry.delay",
                "grow",
            ),
            (
                r#"{"policy":"exponential","max_retries":1,"delay":"1s","factor":0.5}"#,
                "retry.factor",
                "1 to 100",
            ),
            (
                r#"{"policy":"fixed","max_retries":1,"delay":"1s","jitter":1.5}"#,
                "retry.jitter",
                "0 to 1",
            ),
            (
                r#"{"policy":"fixed","max_retries":1,"delay":"1s","kinds":["timeout","runner_lost"]}"#,
                "retry.kinds[1]",
                "start_failed",
            ),
            (
                r#"{"policy":"fixed","max_retries":1,"delay":"1s","exit_codes":[1,0]}"#,
                "retry.exit_codes[1]",
                "1 to 255",
            ),
            (
                r#"{"policy":"fixed","max_retries":1,"delay":"1s","exit_codes":[1],"kinds":["timeout"]}"#,
                "retry.exit_codes",
                "exit_code",
            ),
        ] {
            let error = policy(json).expect_err(json);
            assert_eq!(error.field, field, "{json}: {error}");
            assert!(error.message.contains(words), "{json}: {error}");
        }
    }
}
