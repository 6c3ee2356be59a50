//! Where the runs of a job go, beyond its queue and labels.

use super::definition::{BroadcastSpec, JobSpec, OnLost, Route};
use super::template::{Template, parse_element};
use crate::error::Invalid;
use crate::limits::ROUTE_KEY_CHARS_MAX;
use crate::policy::broadcast::{Rules, SET_MEMBERS_MAX};
use crate::policy::route;
use crate::task::TaskSpec;
use crate::task::spec::check_text;
use serde_json::{Map, Value};

/// What `hash` goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteKey {
    Text(String),
    /// The value of this key of the run's data.
    Data(String),
}

/// A choice of hosts that the scheduler makes for each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Name of the policy, or `broadcast`.
    pub policy: &'static str,
    pub key: RouteKey,
    /// Of a broadcast.
    pub rules: Rules,
}

pub const BROADCAST: &str = "broadcast";

impl Route {
    /// The name of the choice; `None`: the scheduler chooses no host.
    fn policy(&self) -> Result<Option<&'static str>, Invalid> {
        match self {
            Self::Any | Self::Pinned => Ok(None),
            Self::Broadcast => Ok(Some(BROADCAST)),
            Self::Policy(word) => match route::policy(word) {
                Some(policy) => Ok(Some(policy.name())),
                None => {
                    let known = route::words().join(", ");
                    let message = format!("there is no route {word:?} here; known are {known}");
                    Err(Invalid::new("route", message))
                }
            },
        }
    }

    /// Whether somebody here knows it.
    pub fn is_known(&self) -> bool {
        self.policy().is_ok()
    }

    fn is_policy(&self, name: &str) -> bool {
        matches!(self, Self::Policy(word) if word == name)
    }
}

impl Routing {
    pub fn is_broadcast(&self) -> bool {
        self.policy == BROADCAST
    }

    /// What the policy hashes for this run.
    pub fn key_of(&self, task: &TaskSpec) -> String {
        match &self.key {
            RouteKey::Text(text) => text.clone(),
            RouteKey::Data(key) => data_of(task)
                .and_then(|data| data.get(key).map(super::data::text_of))
                .unwrap_or_default(),
        }
    }
}

/// The data that a run was given.
pub fn data_of(task: &TaskSpec) -> Option<Map<String, Value>> {
    let (_, text) = task.env.iter().find(|(name, _)| name == "SYSTOLE_DATA")?;
    serde_json::from_str(text).ok()
}

fn count(value: Option<u32>, field: &str, max: usize) -> Result<(), Invalid> {
    match value {
        Some(value) if value == 0 || usize::try_from(value).map_or(true, |value| value > max) => {
            Err(Invalid::new(field, format!("{value} is outside 1 to {max}")))
        }
        _ => Ok(()),
    }
}

fn only_word(value: Option<&String>, field: &str, word: &str) -> Result<(), Invalid> {
    match value {
        Some(value) if value != word => Err(Invalid::new(
            field,
            format!("{value:?} is not known; write {word:?}, or remove it"),
        )),
        _ => Ok(()),
    }
}

fn rules(spec: &BroadcastSpec, faults: &mut Vec<Invalid>) -> Rules {
    let checks = [
        only_word(spec.per.as_ref(), "broadcast.per", "host"),
        only_word(spec.offline.as_ref(), "broadcast.offline", "record"),
        count(spec.max_parallel, "broadcast.max_parallel", SET_MEMBERS_MAX),
        count(
            spec.stop_after_failures,
            "broadcast.stop_after_failures",
            SET_MEMBERS_MAX,
        ),
    ];
    faults.extend(checks.into_iter().filter_map(Result::err));
    Rules {
        max_parallel: spec.max_parallel,
        stop_after_failures: spec.stop_after_failures,
    }
}

fn key(job: &JobSpec) -> Result<RouteKey, Invalid> {
    let Some(text) = &job.route_key else {
        return Ok(RouteKey::Text(job.name.clone()));
    };
    if !job.route.as_ref().is_some_and(|route| route.is_policy("hash")) {
        return Err(Invalid::new("route_key", "needs route = \"hash\"; remove it"));
    }
    if text.is_empty() {
        return Err(Invalid::new(
            "route_key",
            "is empty; write a text, or \"{{ data.KEY }}\" for a value of the run's data",
        ));
    }
    check_text(text, "route_key", ROUTE_KEY_CHARS_MAX)?;
    match parse_element(text, "route_key")? {
        None => Ok(RouteKey::Text(text.clone())),
        Some(Template::Data(key)) if job.data.contains_key(&key) => Ok(RouteKey::Data(key)),
        Some(Template::Data(key)) => Err(Invalid::new(
            "route_key",
            format!("needs data.{key}, which the job does not have; give it a default: data = {{ {key} = \"…\" }}"),
        )),
        Some(_) => Err(Invalid::new(
            "route_key",
            format!("{text:?} cannot be hashed; write a text, or \"{{{{ data.KEY }}}}\""),
        )),
    }
}

impl JobSpec {
    /// How the hosts of its runs are chosen; `None`: whoever fits and comes first, or the one that it is pinned to.
    pub(super) fn compile_route(&self, faults: &mut Vec<Invalid>) -> Option<Routing> {
        let route = self.route.clone().unwrap_or_default();
        let rules = match &self.broadcast {
            None => Rules::default(),
            Some(spec) if route == Route::Broadcast => rules(spec, faults),
            Some(_) => {
                faults.push(Invalid::new(
                    "broadcast",
                    "needs route = \"broadcast\"; remove it, or write that",
                ));
                Rules::default()
            }
        };
        let avoids = self.retry.as_ref().is_some_and(|retry| retry.avoid_last_runner);
        if avoids && matches!(route, Route::Pinned | Route::Broadcast) {
            let message = "says nothing where each run has its host by definition; remove it";
            faults.push(Invalid::new("retry.avoid_last_runner", message));
        }
        if route == Route::Broadcast {
            if self.on_lost == Some(OnLost::Failover) {
                let message = "a member of a broadcast belongs to its host, so that nobody takes its place; remove it";
                faults.push(Invalid::new("on_lost", message));
            }
            if self.callback.is_some() {
                let message =
                    "is not supported yet with route = \"broadcast\"; remove it, and use a trigger after this job";
                faults.push(Invalid::new("callback", message));
            }
        }
        let key = key(self).map_err(|fault| faults.push(fault)).ok()?;
        let policy = route.policy().map_err(|fault| faults.push(fault)).ok()??;
        Some(Routing { policy, key, rules })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(json: &str) -> Result<Option<Routing>, Vec<Invalid>> {
        let spec: JobSpec = serde_json::from_str(json).expect(json);
        spec.compile().map(|job| job.route)
    }

    #[test]
    fn every_word_but_those_without_a_choice_has_its_policy() {
        for name in route::POLICIES.iter().map(|policy| policy.name()) {
            let routing = compile(&format!(r#"{{"name":"a","shell":"x","route":"{name}"}}"#)).expect(name);
            assert_eq!(routing.expect(name).policy, name);
        }
        let broadcast = compile(r#"{"name":"a","shell":"x","route":"broadcast"}"#).expect("broadcast");
        assert!(broadcast.is_some_and(|routing| routing.is_broadcast()));
        assert_eq!(compile(r#"{"name":"a","shell":"x","route":"any"}"#), Ok(None));
        assert_eq!(
            compile(r#"{"name":"a","shell":"x","route":"pinned","runner":"h"}"#),
            Ok(None)
        );
    }

    #[test]
    fn the_key_of_a_hash_is_the_name_a_text_or_a_value_of_the_run() {
        let mut task = TaskSpec::default();
        task.env.push(("SYSTOLE_DATA".into(), r#"{"shop":7}"#.into()));
        for (more, expected) in [
            ("", "a"),
            (r#","route_key":"left""#, "left"),
            (r#","route_key":"{{ data.shop }}","data":{"shop":1}"#, "7"),
        ] {
            let json = format!(r#"{{"name":"a","shell":"x","route":"hash"{more}}}"#);
            let routing = compile(&json).expect("compiles").expect("a choice");
            assert_eq!(routing.key_of(&task), expected, "{json}");
        }
    }

    #[test]
    fn what_is_wrong_names_the_field() {
        for (more, field, words) in [
            (r#""route_key":"x""#, "route_key", "hash"),
            (r#""route":"hash","route_key":"""#, "route_key", "empty"),
            (r#""route":"hash","route_key":"{{ data.x }}""#, "route_key", "data.x"),
            (
                r#""route":"hash","route_key":"{{ task_id }}""#,
                "route_key",
                "cannot be hashed",
            ),
            (r#""route":"fist""#, "route", "known are any, random, round_robin"),
            (r#""broadcast":{"max_parallel":2}"#, "broadcast", "needs route"),
            (
                r#""route":"broadcast","broadcast":{"max_parallel":0}"#,
                "broadcast.max_parallel",
                "1 to 10000",
            ),
            (
                r#""route":"broadcast","broadcast":{"per":"slot"}"#,
                "broadcast.per",
                "host",
            ),
            (
                r#""route":"broadcast","broadcast":{"offline":"wait"}"#,
                "broadcast.offline",
                "record",
            ),
            (
                r#""route":"broadcast","on_lost":"failover""#,
                "on_lost",
                "belongs to its host",
            ),
            (
                r#""route":"broadcast","callback":{"url":"https://example.com/x"}"#,
                "callback",
                "not supported yet",
            ),
            (
                r#""route":"broadcast","retry":{"policy":"fixed","max_retries":1,"delay":"1s","avoid_last_runner":true}"#,
                "retry.avoid_last_runner",
                "has its host",
            ),
            (
                r#""retry":{"policy":"none","avoid_last_runner":true}"#,
                "retry.avoid_last_runner",
                "none",
            ),
            (r#""max_recoveries":2"#, "max_recoveries", "failover"),
            (
                r#""on_lost":"failover","max_recoveries":0"#,
                "max_recoveries",
                "1 to 100",
            ),
        ] {
            let json = format!(r#"{{"name":"a","shell":"x",{more}}}"#);
            let faults = compile(&json).expect_err(&json);
            assert_eq!(faults.len(), 1, "{json}: {faults:?}");
            assert_eq!(faults[0].field, field, "{json}");
            assert!(faults[0].message.contains(words), "{json}: {}", faults[0]);
        }
    }
}
