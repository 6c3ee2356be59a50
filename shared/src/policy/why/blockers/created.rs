//! What a CREATED task waits for: a place of its job or of a group, or its time.

use super::{Blocker, BlockerKind, named};
use crate::job::Blocking;
use crate::policy::access::Needs;
use crate::task::TaskState;
use crate::time::format_duration;

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
