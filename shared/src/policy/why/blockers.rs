//! Everything that keeps a task from going on, and who can lift it. Sentences are without times: those are beside them, so that
//! whoever shows them does so in his own zone.

use super::super::access::Needs;
use super::super::freeze::Freeze;
use super::super::host_fault::words;
use super::super::lane::{Labels, missing_labels, serves_queue};
use super::{RunnerView, Wanted, waiting_for};
use crate::job::Blocking;
use crate::task::TaskState;
use crate::time::format_duration;
use std::collections::{BTreeMap, HashSet};

/// Hosts, or tasks, that blockers of one kind name one by one; the rest is counted.
pub const NAMED_MAX: usize = 10;
/// Tasks before a waiting one are counted up to here.
pub const BEFORE_MAX: u64 = 10_000;

macro_rules! kinds {
    ($($variant:ident = $name:literal, $doc:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum BlockerKind { $(#[doc = $doc] $variant,)* }

        impl BlockerKind {
            pub const ALL: &[BlockerKind] = &[$(BlockerKind::$variant,)*];

            /// On the wire and in JSON.
            pub fn name(self) -> &'static str {
                match self { $(BlockerKind::$variant => $name,)* }
            }
        }
    };
}

kinds! {
    Frozen = "frozen", "everything, its queue or a tag of it is frozen";
    NoRunner = "no_runner", "no live runner may take it";
    RunnerLost = "runner_lost", "a host that could take it is lost";
    RunnerLeft = "runner_left", "a host that could take it was shut down";
    Cordoned = "cordoned", "somebody said that a host gets nothing new";
    Faulty = "faulty", "a host can start nothing";
    Restored = "restored", "hosts get nothing since the database was set back";
    Busy = "busy", "all slots that could take it hold tasks";
    Backlog = "backlog", "other tasks come first";
    Place = "place", "the place of its job is taken";
    Unproven = "unproven", "the place of its job is taken by a task that nobody saw end";
    Behind = "behind", "other runs of its job wait before it";
    Group = "group", "its concurrency group is full";
    Delayed = "delayed", "its time has not come";
    RetryDelay = "retry_delay", "the delay of its retry is not over";
    Clock = "clock", "the database's clock is not believed";
    Unreported = "unreported", "its runner has not reported it yet";
    RunnerSilent = "runner_silent", "the runner that holds it says nothing";
    Brake = "brake", "many hosts fell silent at once, so that none is declared lost";
    Ending = "ending", "its runner is to end it";
    Callback = "callback", "its callback is not delivered yet";
}

/// One thing that a task waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    pub kind: BlockerKind,
    pub message: String,
    /// Since when, ms of the database's clock.
    pub since_ms: Option<i64>,
    /// When it ends by itself.
    pub until_ms: Option<i64>,
    /// What is to be done, for a person; empty: nothing, it passes by itself.
    pub advice: String,
    /// The command that lifts it; empty: none of systole does.
    pub command: String,
    /// What the caller of the command must be allowed.
    pub needs: Option<Needs>,
}

impl Blocker {
    fn new(kind: BlockerKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            since_ms: None,
            until_ms: None,
            advice: String::new(),
            command: String::new(),
            needs: None,
        }
    }

    fn since(mut self, ms: Option<i64>) -> Self {
        self.since_ms = ms;
        self
    }

    fn until(mut self, ms: Option<i64>) -> Self {
        self.until_ms = ms;
        self
    }

    fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }

    fn by(mut self, needs: Needs, command: impl Into<String>) -> Self {
        self.command = command.into();
        self.needs = Some(needs);
        self
    }
}

// ---- waiting for a runner ----

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

/// Of a list, those that are named, and how many are not.
fn named<T>(mut all: Vec<T>) -> (Vec<T>, usize) {
    let more = all.len().saturating_sub(NAMED_MAX);
    all.truncate(NAMED_MAX);
    (all, more)
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
        found.push(
            Blocker::new(BlockerKind::Cordoned, format!("{more} more hosts are cordoned"))
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
            Blocker::new(BlockerKind::Faulty, format!("{more} more hosts can start nothing"))
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

// ---- waiting for a place ----

/// A chain that has a place of a job, by its newest member.
#[derive(Clone, Debug)]
pub struct Holder {
    pub task: i64,
    pub job: String,
    pub state: TaskState,
    /// `HOST/SLOT`; empty where it is at none.
    pub runner: String,
    /// It ended, and nobody saw its processes end: where, and since when.
    pub lost: Option<(String, Option<i64>)>,
    /// Since when it runs, or has its place.
    pub since_ms: Option<i64>,
    /// When it may start, if it waits for its time.
    pub run_at_ms: Option<i64>,
}

/// What stands between a task of a job and its places.
#[derive(Clone, Debug)]
pub struct Held<'a> {
    pub job: &'a str,
    pub blocking: Blocking,
    pub holders: &'a [Holder],
    /// Tasks of the job that wait and are older, and the first of them.
    pub before: u32,
    pub first: Option<i64>,
    /// Name, limit and holders of the concurrency group.
    pub group: Option<(&'a str, u32, &'a [Holder])>,
}

/// Empty: its place is free, and it is being given to it.
pub fn held(held: &Held<'_>) -> Vec<Blocker> {
    let mut found = Vec::new();
    let places = held.blocking.places();
    if held.holders.len() >= usize::try_from(places).unwrap_or(usize::MAX) {
        let rule = match held.blocking {
            Blocking::Concurrent(_) => format!("job {} runs at most {places} times at once", held.job),
            Blocking::Serial => format!("job {} is serial", held.job),
            Blocking::DiscardLater => format!("job {} runs once at a time", held.job),
            Blocking::CoverEarly => format!(
                "job {} covers earlier runs, and waits until the old one is seen ended",
                held.job
            ),
        };
        found.extend(holders(&rule, held.holders, BlockerKind::Place));
    }
    if held.before > 0 {
        let first = held.first.map_or_else(String::new, |id| format!(", {id} first"));
        let message = match held.before {
            1 => format!("1 run of job {} waits before it{first}", held.job),
            n => format!("{n} runs of job {} wait before it{first}", held.job),
        };
        let mut blocker = Blocker::new(BlockerKind::Behind, message);
        if let Some(first) = held.first {
            blocker = blocker
                .advice("they have their turn first; to take one of them out")
                .by(Needs::Operate, format!("systole cancel {first}"));
        }
        found.push(blocker);
    }
    if let Some((name, limit, taken)) = held.group
        && taken.len() >= usize::try_from(limit).unwrap_or(usize::MAX)
    {
        let rule = format!("concurrency group {name} has all of its {limit} places taken");
        found.extend(holders(&rule, taken, BlockerKind::Group));
    }
    found
}

fn holders(rule: &str, all: &[Holder], kind: BlockerKind) -> Vec<Blocker> {
    let (all, more) = named(all.iter().collect());
    let mut found: Vec<Blocker> = all.into_iter().map(|holder| one_holder(rule, holder, kind)).collect();
    if more > 0 {
        found.push(Blocker::new(kind, format!("{rule}: {more} more have a place")));
    }
    found
}

fn one_holder(rule: &str, holder: &Holder, kind: BlockerKind) -> Blocker {
    let task = holder.task;
    let of = if kind == BlockerKind::Group {
        format!(" of job {}", holder.job)
    } else {
        String::new()
    };
    if let Some((runner, since)) = &holder.lost {
        let host = runner.split('/').next().unwrap_or_default();
        return Blocker::new(
            BlockerKind::Unproven,
            format!("{rule}: {task}{of} on {runner} is lost, and nobody saw its processes end"),
        )
        .since(*since)
        .advice(format!(
            "start the runner of {host} again: it proves that they are gone; only when the machine is off for sure"
        ))
        .by(Needs::Operate, format!("systole runners rm {host} --dead"));
    }
    let at = if holder.runner.is_empty() {
        String::new()
    } else {
        format!(" on {}", holder.runner)
    };
    let advice = match holder.state {
        TaskState::Created => "it waits for its retry; to give that up",
        TaskState::Terminating => "its runner is ending it",
        _ => "its turn comes when that one ends; to end it now",
    };
    let blocker = Blocker::new(kind, format!("{rule}: {task}{of} is {}{at}", holder.state))
        .since(holder.since_ms)
        .until(holder.run_at_ms.filter(|_| holder.state == TaskState::Created))
        .advice(advice);
    if holder.state == TaskState::Terminating {
        blocker
    } else {
        blocker.by(Needs::Operate, format!("systole cancel {task}"))
    }
}

// ---- waiting for a time ----

/// A CREATED task that has its places, or needs none. `clock`: why the database's clock is not believed.
pub fn delayed(
    task: i64,
    run_at_ms: i64,
    retry_of: Option<i64>,
    now_ms: i64,
    clock: Option<(&str, i64)>,
) -> Vec<Blocker> {
    let mut found = Vec::new();
    if run_at_ms > now_ms {
        let (kind, message) = match retry_of {
            Some(of) => (
                BlockerKind::RetryDelay,
                format!("{of} failed, and the delay of its retry is not over"),
            ),
            None => (BlockerKind::Delayed, "its time has not come".to_owned()),
        };
        let long = format_duration(run_at_ms.saturating_sub(now_ms).unsigned_abs());
        found.push(
            Blocker::new(kind, format!("{message}: {long} from now"))
                .until(Some(run_at_ms))
                .advice("it goes on by itself; nobody can shorten that, only cancel it and submit it again")
                .by(Needs::Operate, format!("systole cancel {task}")),
        );
    }
    if let Some((message, since_ms)) = clock {
        found.push(
            Blocker::new(BlockerKind::Clock, message)
                .since(Some(since_ms))
                .advice("put the clock of the database right; or, if it is right now")
                .by(Needs::Administer, "systole admin confirm clock"),
        );
    }
    found
}

// ---- at a runner ----

/// A task that a runner holds, and what is known of the runner.
#[derive(Clone, Debug)]
pub struct AtRunner<'a> {
    pub state: TaskState,
    pub runner: &'a str,
    /// When the runner was last heard; `None`: it is not known any more.
    pub seen_ms: Option<i64>,
    /// It is silent for so long that it is to be declared lost.
    pub silent: bool,
    /// Verdicts on its host are withheld.
    pub withheld: bool,
    pub dispatched_ms: Option<i64>,
    pub lost_after_ms: i64,
}

/// Empty: it runs, and nothing is in its way.
pub fn at_runner(at: &AtRunner<'_>) -> Vec<Blocker> {
    let mut found = Vec::new();
    let host = at.runner.split('/').next().unwrap_or_default();
    match at.state {
        TaskState::Dispatched => found.push(
            Blocker::new(
                BlockerKind::Unreported,
                format!("it was given to {}, which has not reported it yet", at.runner),
            )
            .since(at.dispatched_ms)
            .advice("a runner reports it with its next beat; to see whether it is there")
            .by(Needs::View, format!("systole runners ls {host}")),
        ),
        TaskState::Terminating => found.push(
            Blocker::new(
                BlockerKind::Ending,
                format!("{} is to end it and has not confirmed that", at.runner),
            )
            .advice("its signals and grace: systole show; a runner that is there reports the end by itself"),
        ),
        _ => {}
    }
    if at.silent {
        found.push(
            Blocker::new(BlockerKind::RunnerSilent, format!("{} says nothing", at.runner))
                .since(at.seen_ms)
                .advice(format!(
                    "it is declared lost after {} of silence; start the runner of {host} again and it goes on, or, when the machine is \
                     off for sure",
                    format_duration(at.lost_after_ms.unsigned_abs())
                ))
                .by(Needs::Operate, format!("systole runners rm {host} --dead")),
        );
    }
    if at.withheld {
        found.push(
            Blocker::new(
                BlockerKind::Brake,
                "many hosts fell silent at once, so that their tasks are not declared lost yet",
            )
            .advice(format!(
                "look at the network between runners and schedulers; verdicts come {} after the silence began",
                format_duration(
                    at.lost_after_ms
                        .saturating_mul(super::super::stale::BRAKE_ENDS_AFTER)
                        .unsigned_abs()
                )
            )),
        );
    }
    found
}

/// A task whose command has ended well, and whose callback is under way.
pub fn callback(url: &str, tries: u32, last_error: &str) -> Blocker {
    let error = match last_error {
        "" => String::new(),
        error => format!(", the last one: {error}"),
    };
    Blocker::new(
        BlockerKind::Callback,
        format!("its callback to {url} is not delivered; {tries} tries so far{error}"),
    )
    .advice("it is tried again by itself; look at the receiver. The command itself has ended well")
}

#[cfg(test)]
mod tests;
