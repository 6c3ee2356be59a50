//! What a QUEUED task waits for: a runner.

use super::{Blocker, BlockerKind, NAMED_MAX, named};
use crate::plural::counted;
use crate::policy::access::Needs;
use crate::policy::freeze::Freeze;
use crate::policy::host_fault::words;
use crate::policy::lane::{Labels, missing_labels, serves_queue};
use crate::policy::why::{RunnerView, Wanted, waiting_for};
use crate::time::format_duration;
use std::collections::{BTreeMap, HashSet};

/// Tasks before a waiting one are counted up to here.
pub const BEFORE_MAX: u64 = 10_000;

/// What stands between a QUEUED task and a runner.
#[derive(Clone, Debug)]
pub struct Queued<'a> {
    pub wanted: Wanted<'a>,
    pub runners: &'a [RunnerView],
    /// Those that cover it.
    pub freezes: Vec<&'a Freeze>,
    /// Hosts that get nothing because the database was set back.
    pub ahead: &'a HashSet<String>,
    /// Tasks that are taken before it, counted up to [`BEFORE_MAX`].
    pub before: u64,
    pub now_ms: i64,
}

/// Empty: a free runner fits, and it is being given to it.
pub fn queued(queued: &Queued<'_>) -> Vec<Blocker> {
    let wanted = &queued.wanted;
    let fits: Vec<&RunnerView> = queued
        .runners
        .iter()
        .filter(|r| {
            wanted.target.is_none_or(|target| target.covers(&r.id))
                && serves_queue(&r.queues, wanted.queue)
                && missing_labels(&r.labels, wanted.require).is_empty()
        })
        .collect();
    let (live, gone): (Vec<&RunnerView>, Vec<&RunnerView>) = fits.into_iter().partition(|r| r.live);
    let (open, closed): (Vec<&RunnerView>, Vec<&RunnerView>) = live
        .iter()
        .copied()
        .partition(|r| r.cordon.is_none() && r.fault.is_none() && !queued.ahead.contains(&r.id.host));
    let mut found: Vec<Blocker> = queued.freezes.iter().map(|freeze| frozen(freeze)).collect();
    if open.iter().any(|r| r.busy.is_none()) {
        return found;
    }
    if live.is_empty() {
        found.push(no_runner(wanted, queued.runners, queued.now_ms));
    }
    if let Some((task, since)) = open.iter().filter_map(|r| r.busy).min_by_key(|(_, since)| *since) {
        found.push(busy(open.len(), task, since, queued.now_ms));
    }
    found.extend(backlog(queued.before));
    found.extend(cordoned(&closed, queued.runners));
    found.extend(faulty(&closed));
    found.extend(restored(&closed, queued.ahead));
    found.extend(away(&gone, wanted.require));
    found
}

fn frozen(freeze: &Freeze) -> Blocker {
    let reason = match freeze.reason.as_str() {
        "" => String::new(),
        reason => format!(", \"{reason}\""),
    };
    let what = freeze.scope.words();
    Blocker::new(
        BlockerKind::Frozen,
        format!("{what} is frozen by {}{reason}", freeze.by),
    )
    .since(Some(freeze.since_ms))
    .until(freeze.until_ms)
    .by(Needs::Operate, freeze.scope.lift())
}

fn no_runner(wanted: &Wanted<'_>, runners: &[RunnerView], now_ms: i64) -> Blocker {
    let mut command = String::from("systole runner --url URL");
    if let Some(target) = wanted.target {
        command.push_str(&format!(" --name {}", target.host));
    }
    if wanted.queue != "default" {
        command.push_str(&format!(" --queue {}", wanted.queue));
    }
    for (key, value) in wanted.require {
        command.push_str(&format!(" --label {key}={value}"));
    }
    Blocker::new(BlockerKind::NoRunner, waiting_for(wanted, runners, now_ms))
        .advice("start one that may take it, or cancel the task and submit it for runners that there are")
        .by(Needs::Run, command)
}

fn busy(slots: usize, task: i64, since_ms: i64, now_ms: i64) -> Blocker {
    let long = format_duration(now_ms.saturating_sub(since_ms).max(0).unsigned_abs());
    let message = match slots {
        1 => format!("the only slot that may take it is busy with task {task}, for {long}"),
        n => format!("all {n} slots that may take it are busy; the longest with task {task}, for {long}"),
    };
    Blocker::new(BlockerKind::Busy, message)
        .since(Some(since_ms))
        .advice("it starts when one of them is free; to free one now")
        .by(Needs::Operate, format!("systole cancel {task}"))
}

fn backlog(before: u64) -> Option<Blocker> {
    let message = match before {
        0 => return None,
        1 => "1 task that waits is taken before it".to_owned(),
        n if n >= BEFORE_MAX => format!("{n} tasks that wait, or more, are taken before it"),
        n => format!("{n} tasks that wait are taken before it"),
    };
    Some(
        Blocker::new(BlockerKind::Backlog, message)
            .advice("more slots, or a higher --priority when it is submitted; to see them")
            .by(Needs::View, "systole ls --state queued"),
    )
}

fn by_host<'a>(runners: impl IntoIterator<Item = &'a RunnerView>) -> Vec<(&'a str, Vec<&'a RunnerView>)> {
    let mut hosts: BTreeMap<&str, Vec<&RunnerView>> = BTreeMap::new();
    for runner in runners {
        hosts.entry(&runner.id.host).or_default().push(runner);
    }
    hosts.into_iter().collect()
}

/// A host as a whole where all of its slots are cordoned, else its slots.
fn cordoned(closed: &[&RunnerView], all: &[RunnerView]) -> Vec<Blocker> {
    let hosts = by_host(closed.iter().copied().filter(|r| r.cordon.is_some()));
    let (hosts, more) = named(hosts);
    let mut found: Vec<Blocker> = hosts
        .into_iter()
        .map(|(host, slots)| {
            let open = all.iter().any(|r| r.id.host == host && r.cordon.is_none());
            let what = if open {
                let names: Vec<String> = slots.iter().take(NAMED_MAX).map(|r| r.id.to_string()).collect();
                names.join(" ")
            } else {
                host.to_owned()
            };
            let cordon = slots.iter().find_map(|r| r.cordon.clone()).unwrap_or_default();
            let by = match cordon.by.as_str() {
                "" => String::new(),
                by => format!(" by {by}"),
            };
            let reason = match cordon.reason.as_str() {
                "" => String::new(),
                reason => format!(", \"{reason}\""),
            };
            Blocker::new(BlockerKind::Cordoned, format!("{what} cordoned{by}{reason}"))
                .since(cordon.since_ms)
                .until(cordon.until_ms)
                .by(Needs::Operate, format!("systole runners uncordon {what}"))
        })
        .collect();
    if more > 0 {
        let are = if more == 1 { "is" } else { "are" };
        found.push(
            Blocker::new(
                BlockerKind::Cordoned,
                format!("{} {are} cordoned", counted(more, "more host")),
            )
            .by(Needs::View, "systole runners ls -o wide"),
        );
    }
    found
}

fn faulty(closed: &[&RunnerView]) -> Vec<Blocker> {
    let hosts = by_host(
        closed
            .iter()
            .copied()
            .filter(|r| r.cordon.is_none() && r.fault.is_some()),
    );
    let (hosts, more) = named(hosts);
    let mut found: Vec<Blocker> = hosts
        .into_iter()
        .map(|(host, slots)| {
            let fault = slots.iter().find_map(|r| r.fault.clone()).unwrap_or_default();
            let detail = match fault.detail.as_str() {
                "" => String::new(),
                detail => format!(" ({detail})"),
            };
            Blocker::new(
                BlockerKind::Faulty,
                format!("{host} can start nothing: {}{detail}", words(&fault.kind)),
            )
            .since(fault.since_ms)
            .advice(format!(
                "put {host} right: it looks every few seconds and takes tasks again by itself"
            ))
        })
        .collect();
    if more > 0 {
        found.push(
            Blocker::new(
                BlockerKind::Faulty,
                format!("{} can start nothing", counted(more, "more host")),
            )
            .by(Needs::View, "systole runners ls"),
        );
    }
    found
}

fn restored(closed: &[&RunnerView], ahead: &HashSet<String>) -> Option<Blocker> {
    let hosts = by_host(closed.iter().copied().filter(|r| ahead.contains(&r.id.host)));
    if hosts.is_empty() {
        return None;
    }
    let (hosts, more) = named(hosts);
    let mut names: Vec<String> = hosts.into_iter().map(|(host, _)| host.to_owned()).collect();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    Some(
        Blocker::new(
            BlockerKind::Restored,
            format!(
                "the database was set back, and these hosts have held newer tasks than it knows: {}",
                names.join(", ")
            ),
        )
        .advice("look at what waits before it runs a second time (systole admin alarms), then")
        .by(Needs::Administer, "systole admin confirm restore"),
    )
}

/// Hosts that could take it and are not there, the last heard of first.
fn away(gone: &[&RunnerView], require: &Labels) -> Vec<Blocker> {
    let mut hosts = by_host(gone.iter().copied());
    let seen = |slots: &[&RunnerView]| slots.iter().map(|r| r.seen_ms).max();
    hosts.sort_by_key(|(_, slots)| std::cmp::Reverse(seen(slots)));
    let what = if require.is_empty() {
        "could take it".to_owned()
    } else {
        let labels: Vec<String> = require.iter().map(|(key, value)| format!("{key}={value}")).collect();
        format!("has {}", labels.join(" and "))
    };
    let (hosts, more) = named(hosts);
    let mut found: Vec<Blocker> = hosts
        .into_iter()
        .map(|(host, slots)| {
            let since = seen(&slots);
            if slots.iter().all(|r| r.left) {
                return Blocker::new(BlockerKind::RunnerLeft, format!("{host} {what} and was shut down"))
                    .since(since)
                    .advice(format!("start the runner of {host} again"));
            }
            Blocker::new(BlockerKind::RunnerLost, format!("{host} {what} and is lost"))
                .since(since)
                .advice(format!(
                    "start the runner of {host} again; when the machine is gone for good"
                ))
                .by(Needs::Operate, format!("systole runners rm {host}"))
        })
        .collect();
    if more > 0 {
        found.push(
            Blocker::new(BlockerKind::RunnerLost, format!("{more} more such hosts are not there"))
                .by(Needs::View, "systole runners ls"),
        );
    }
    found
}
