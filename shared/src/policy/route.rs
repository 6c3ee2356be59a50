//! Which host a run of a job is given to. A policy sees the hosts that can take the run, by name, and names one; whether it is
//! taken there, and what becomes of it otherwise, is decided elsewhere.
//!
//! Where a policy does not wait for its own choice, it is only shown the hosts with a free slot, as long as there are any.
//!
//! A program that embeds the scheduler adds policies of its own with [`register`], before its first start.

use crate::error::Invalid;
use crate::task::spec::check_word;
use sha2::{Digest as _, Sha256};
use std::cmp::Reverse;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::RwLock;

/// How long a choice stands that nobody took up, ms. Then it is made again; and a run that was to avoid a host does not any more.
pub const ROUTE_WAIT_MS: i64 = 30_000;

/// A host that can take the run: live, open, of its queue and labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    /// Free slots, less what was promised to others.
    pub idle: u32,
    /// Tasks that its slots hold, or that wait for it.
    pub busy: u32,
    /// Of them those of the same job.
    pub of_job: u32,
    /// When the job chose it last: rises with each choice of the job; 0: never.
    pub turn: i64,
    /// How often the job chose it.
    pub uses: i64,
}

/// What the choice is made for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// For `hash`.
    pub key: &'a str,
    /// Any number; the same for the same run.
    pub random: u64,
}

/// A way to choose, known by its name.
pub trait RoutePolicy: Debug + Send + Sync {
    /// What `route = "…"` says.
    fn name(&self) -> &'static str;

    /// Position of the host; `hosts` is not empty and in the order of names.
    fn choose(&self, asked: Asked<'_>, hosts: &[Host]) -> usize;

    /// It waits for its host though others are free.
    fn waits(&self) -> bool {
        false
    }

    /// It goes by what it chose before.
    fn remembers(&self) -> bool {
        false
    }
}

macro_rules! policies {
    ($($type:ident $name:literal $(waits $waits:literal)? $(remembers $remembers:literal)?: |$asked:pat_param, $hosts:ident| $choice:expr;)*) => {
        $(
            #[derive(Debug)]
            struct $type;
            impl RoutePolicy for $type {
                fn name(&self) -> &'static str { $name }
                fn choose(&self, $asked: Asked<'_>, $hosts: &[Host]) -> usize { $choice }
                $(fn waits(&self) -> bool { $waits })?
                $(fn remembers(&self) -> bool { $remembers })?
            }
        )*
        /// All policies that choose a host.
        pub static POLICIES: &[&dyn RoutePolicy] = &[$(&$type,)*];
    };
}

policies! {
    Random "random": |asked, hosts| index(asked.random, hosts.len());
    RoundRobin "round_robin" remembers true: |_, hosts| {
        // Behind the one of the last turn, by name.
        let last = hosts.iter().enumerate().filter(|(_, host)| host.turn > 0).max_by_key(|(_, host)| host.turn);
        last.map_or(0, |(at, _)| (at + 1) % hosts.len())
    };
    Hash "hash" waits true: |asked, hosts| best(hosts, |host| Reverse(weight(asked.key, &host.name)));
    LeastLoaded "least_loaded" remembers true: |_, hosts| best(hosts, |host| (Reverse(host.idle), host.busy, host.turn));
    LeastRecentlyUsed "least_recently_used" remembers true: |_, hosts| best(hosts, |host| host.turn);
    LeastFrequentlyUsed "least_frequently_used" remembers true: |_, hosts| best(hosts, |host| (host.uses, host.turn));
    First "first" waits true: |_, _hosts| 0;
    Last "last" waits true: |_, hosts| hosts.len() - 1;
    Failover "failover" waits true: |_, _hosts| 0;
    Busyover "busyover": |_, hosts| best(hosts, |host| host.of_job);
}

/// Those of the program around it, known in the whole process.
static REGISTERED: RwLock<Vec<&'static dyn RoutePolicy>> = RwLock::new(Vec::new());

fn registered() -> Vec<&'static dyn RoutePolicy> {
    REGISTERED.read().map(|list| list.clone()).unwrap_or_default()
}

/// Adds a policy; a name that is taken is refused. All replicas of a cluster must have the same ones. One that panics gives the run
/// to the first host that it was shown.
pub fn register(policy: &'static dyn RoutePolicy) -> Result<(), Invalid> {
    let name = policy.name();
    check_word(name, "route")?;
    let taken = ["any", "pinned", "broadcast"].contains(&name);
    // Poisoned only by a panic of `push`, which leaves the list as it was.
    let mut list = REGISTERED.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    if taken || POLICIES.iter().chain(list.iter()).any(|known| known.name() == name) {
        return Err(Invalid::new("route", format!("there is a route {name:?} already")));
    }
    list.push(policy);
    Ok(())
}

/// All words that a job may say, those of the program around it last.
pub fn words() -> Vec<&'static str> {
    let (built_in, registered) = (POLICIES.iter().copied(), registered().into_iter());
    let name = |policy: &'static dyn RoutePolicy| policy.name();
    std::iter::once("any")
        .chain(built_in.map(name))
        .chain(["pinned", "broadcast"])
        .chain(registered.map(name))
        .collect()
}

/// The policy of a name; `None`: it chooses no host (`any`, `pinned`, `broadcast`), or there is none of that name.
pub fn policy(name: &str) -> Option<&'static dyn RoutePolicy> {
    let built_in = POLICIES.iter().find(|policy| policy.name() == name).copied();
    built_in.or_else(|| registered().into_iter().find(|policy| policy.name() == name))
}

/// The first host with the smallest value.
fn best<K: Ord>(hosts: &[Host], key: impl Fn(&Host) -> K) -> usize {
    (0..hosts.len()).min_by_key(|&at| key(&hosts[at])).unwrap_or(0)
}

fn index(number: u64, count: usize) -> usize {
    let count = u64::try_from(count).unwrap_or(u64::MAX).max(1);
    usize::try_from(number % count).unwrap_or(0)
}

/// Rendezvous: a key goes to the host of the highest weight, and moves only when that one goes or a higher one comes.
fn weight(key: &str, host: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(u64::try_from(key.len()).unwrap_or(0).to_be_bytes());
    hash.update(key.as_bytes());
    hash.update(host.as_bytes());
    let digest = hash.finalize();
    digest.iter().take(8).fold(0, |sum, &byte| (sum << 8) | u64::from(byte))
}

/// A number for [`Asked::random`] of any numbers.
pub fn random_of(task_id: i64, turn: i64) -> u64 {
    weight(&task_id.to_string(), &turn.to_string())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Position of the host.
    Host(usize),
    /// Whoever comes first.
    Any,
    /// No host can take it now.
    Nobody,
}

/// Chooses. `policy` `None`: whoever comes first, but for the host to avoid. `avoid`: where it ran last, as long as another host can
/// take it; `waited`: a choice was made [`ROUTE_WAIT_MS`] ago and not taken up, so that this does not hold any more.
pub fn choose(
    policy: Option<&dyn RoutePolicy>,
    asked: Asked<'_>,
    hosts: &[Host],
    avoid: Option<&str>,
    waited: bool,
) -> Choice {
    if hosts.is_empty() {
        return Choice::Nobody;
    }
    let avoid = avoid.filter(|_| !waited);
    let all: Vec<usize> = (0..hosts.len()).collect();
    let others: Vec<usize> = all
        .iter()
        .copied()
        .filter(|&at| avoid.is_none_or(|avoid| hosts[at].name != avoid))
        .collect();
    let policy: &dyn RoutePolicy = match policy {
        Some(policy) => policy,
        None if avoid.is_none() || others.is_empty() => return Choice::Any,
        None => &LeastLoaded,
    };
    let mut left = if others.is_empty() { all } else { others };
    if !policy.waits() && left.iter().any(|&at| hosts[at].idle > 0) {
        left.retain(|&at| hosts[at].idle > 0);
    }
    let shown: Vec<Host> = left.iter().map(|&at| hosts[at].clone()).collect();
    let chosen = catch_unwind(AssertUnwindSafe(|| policy.choose(asked, &shown))).unwrap_or(0);
    let at = chosen.min(shown.len() - 1);
    Choice::Host(left[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, idle: u32, busy: u32, of_job: u32, turn: i64, uses: i64) -> Host {
        Host {
            name: name.into(),
            idle,
            busy,
            of_job,
            turn,
            uses,
        }
    }

    fn asked(key: &str) -> Asked<'_> {
        Asked { key, random: 7 }
    }

    fn name(policy_name: &str, hosts: &[Host], avoid: Option<&str>, waited: bool) -> String {
        let policy = policy(policy_name);
        assert_eq!(policy.is_none(), policy_name == "any");
        match choose(policy, asked("k"), hosts, avoid, waited) {
            Choice::Host(at) => hosts[at].name.clone(),
            Choice::Any => "(any)".into(),
            Choice::Nobody => "(nobody)".into(),
        }
    }

    #[test]
    fn each_policy_chooses_by_its_own_measure() {
        let hosts = [
            host("a", 1, 3, 1, 5, 9),
            host("b", 3, 1, 0, 7, 2),
            host("c", 2, 0, 2, 2, 4),
        ];
        for (policy, expected) in [
            ("round_robin", "c"),
            ("least_loaded", "b"),
            ("least_recently_used", "c"),
            ("least_frequently_used", "b"),
            ("first", "a"),
            ("last", "c"),
            ("failover", "a"),
            ("busyover", "b"),
            ("random", "b"),
            ("any", "(any)"),
        ] {
            assert_eq!(name(policy, &hosts, None, false), expected, "{policy}");
            assert_eq!(name(policy, &[], None, false), "(nobody)", "{policy}");
        }
    }

    #[test]
    fn a_free_host_goes_before_a_busy_one_but_for_policies_that_wait() {
        let hosts = [host("a", 0, 4, 0, 0, 0), host("b", 1, 0, 9, 9, 9)];
        for policy in POLICIES {
            let expected = match policy.name() {
                "first" | "failover" => "a",
                "hash" => continue,
                _ => "b",
            };
            assert_eq!(name(policy.name(), &hosts, None, false), expected, "{}", policy.name());
        }
        // Nobody is free: the measure of the policy holds.
        let busy = [host("a", 0, 4, 0, 1, 0), host("b", 0, 1, 9, 9, 9)];
        assert_eq!(name("least_recently_used", &busy, None, false), "a");
        assert_eq!(name("least_loaded", &busy, None, false), "b");
    }

    #[test]
    fn the_last_host_is_avoided_while_another_can_take_it_and_for_a_bounded_time() {
        let hosts = [host("a", 4, 0, 0, 1, 1), host("b", 0, 4, 0, 2, 1)];
        for policy in ["any", "first", "least_loaded", "failover"] {
            // Though it is busy.
            assert_eq!(name(policy, &hosts, Some("a"), false), "b", "{policy}");
        }
        assert_eq!(name("any", &hosts, Some("a"), true), "(any)");
        assert_eq!(name("first", &hosts, Some("a"), true), "a");
        // Nobody else matches: at once.
        assert_eq!(name("any", &hosts[..1], Some("a"), false), "(any)");
        assert_eq!(name("least_loaded", &hosts[..1], Some("a"), false), "a");
        // A host that is gone is avoided by itself.
        assert_eq!(name("first", &hosts, Some("gone"), false), "a");
    }

    #[test]
    fn round_robin_goes_on_by_name_and_begins_anew() {
        let mut hosts = [
            host("a", 1, 0, 0, 0, 0),
            host("b", 1, 0, 0, 0, 0),
            host("c", 1, 0, 0, 0, 0),
        ];
        let mut seen = Vec::new();
        for turn in 1..=7 {
            let chosen = name("round_robin", &hosts, None, false);
            for host in hosts.iter_mut().filter(|host| host.name == chosen) {
                host.turn = turn;
            }
            seen.push(chosen);
        }
        assert_eq!(seen, ["a", "b", "c", "a", "b", "c", "a"]);
    }

    #[test]
    fn a_key_moves_only_when_its_host_goes_or_a_higher_one_comes() {
        let hosts: Vec<Host> = (0..10).map(|n| host(&format!("h{n}"), 1, 0, 0, 0, 0)).collect();
        let of = |key: &str, hosts: &[Host]| match choose(policy("hash"), asked(key), hosts, None, false) {
            Choice::Host(at) => hosts[at].name.clone(),
            other => panic!("{other:?}"),
        };
        let keys: Vec<String> = (0..1_000).map(|n| format!("key-{n}")).collect();
        let mut counts = std::collections::BTreeMap::new();
        for key in &keys {
            let before = of(key, &hosts);
            *counts.entry(before.clone()).or_insert(0) += 1;
            for gone in 0..hosts.len() {
                let mut left = hosts.clone();
                left.remove(gone);
                let after = of(key, &left);
                assert_eq!(after == before, hosts[gone].name != before, "{key}");
            }
        }
        assert!(counts.len() == 10 && counts.values().all(|&n| n > 50), "{counts:?}");
    }
}
