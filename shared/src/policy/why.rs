//! Why a task waits: in one line for a person here, with everything that holds it and who can lift that in [`blockers`]; and in
//! [`story`] what became of one that has ended.

pub mod blockers;
pub mod story;

use super::host_fault::words;
use super::lane::{Labels, missing_labels, serves_queue};
use crate::id::{RunnerId, Target};
use crate::plural::counted;
use crate::time::format_duration;

/// One runner as the scheduler last saw it. Times are ms of the database's clock.
#[derive(Clone, Debug)]
pub struct RunnerView {
    pub id: RunnerId,
    pub queues: Vec<String>,
    pub labels: Labels,
    pub live: bool,
    /// It said goodbye. One that is neither this nor live is lost.
    pub left: bool,
    pub seen_ms: i64,
    pub cordon: Option<Cordon>,
    /// What keeps its host from starting anything.
    pub fault: Option<Fault>,
    /// The task it holds and since when.
    pub busy: Option<(i64, i64)>,
}

/// Somebody said that it gets nothing new.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cordon {
    pub by: String,
    pub reason: String,
    pub since_ms: Option<i64>,
    /// When it ends by itself.
    pub until_ms: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    pub kind: String,
    pub detail: String,
    pub since_ms: Option<i64>,
}

impl RunnerView {
    /// A live runner with nothing to do and nothing against it.
    pub fn ready(id: RunnerId) -> Self {
        Self {
            id,
            queues: Vec::new(),
            labels: Labels::new(),
            live: true,
            left: false,
            seen_ms: 0,
            cordon: None,
            fault: None,
            busy: None,
        }
    }
}

/// What the task asks for.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    pub queue: &'a str,
    pub require: &'a Labels,
    pub target: Option<&'a Target>,
}

/// The live runners that a task fits. `Err`: there is none, in words.
fn fitting<'a>(wanted: &Wanted<'_>, runners: &'a [RunnerView]) -> Result<Vec<&'a RunnerView>, String> {
    let live: Vec<&RunnerView> = runners.iter().filter(|r| r.live).collect();
    if let Some(target) = wanted.target {
        if !runners.iter().any(|r| target.covers(&r.id)) {
            return Err(format!("no runner {target} is known"));
        }
        if !live.iter().any(|r| target.covers(&r.id)) {
            return Err(format!("runner {target} is not live"));
        }
    } else if live.is_empty() {
        return Err(if runners.is_empty() {
            "no runner has joined yet".into()
        } else {
            "no runner is live".into()
        });
    }
    let at_target: Vec<&RunnerView> = live
        .into_iter()
        .filter(|r| wanted.target.is_none_or(|t| t.covers(&r.id)))
        .collect();
    let in_queue: Vec<&RunnerView> = at_target
        .into_iter()
        .filter(|r| serves_queue(&r.queues, wanted.queue))
        .collect();
    if in_queue.is_empty() {
        return Err(match wanted.target {
            Some(target) => format!("runner {target} does not serve queue {}", wanted.queue),
            None => format!("no live runner serves queue {}", wanted.queue),
        });
    }
    let fits: Vec<&RunnerView> = in_queue
        .iter()
        .copied()
        .filter(|r| missing_labels(&r.labels, wanted.require).is_empty())
        .collect();
    if fits.is_empty() {
        let lacks = scarcest(&in_queue, wanted.require);
        // Somebody elsewhere may have it: say whom it was looked for among.
        let elsewhere = runners
            .iter()
            .any(|r| r.live && missing_labels(&r.labels, wanted.require).is_empty());
        return Err(match wanted.target {
            Some(target) => format!("runner {target} has no {lacks}"),
            None if elsewhere => format!("no live runner of queue {} has {lacks}", wanted.queue),
            None => format!("no live runner has {lacks}"),
        });
    }
    Ok(fits)
}

/// Why no runner can take such a task, however long it waits; empty: one can, when it is free.
pub fn unserved(wanted: &Wanted<'_>, runners: &[RunnerView]) -> String {
    fitting(wanted, runners).err().unwrap_or_default()
}

/// Names the nearest blocker of a QUEUED task. Empty when a runner is idle and fits (it is being dispatched).
pub fn waiting_for(wanted: &Wanted<'_>, runners: &[RunnerView], now_ms: i64) -> String {
    let fits = match fitting(wanted, runners) {
        Ok(fits) => fits,
        Err(words) => return words,
    };
    let cordoned = fits.iter().filter(|r| r.cordon.is_some()).count();
    let faulty: Vec<&RunnerView> = fits
        .iter()
        .filter(|r| r.cordon.is_none() && r.fault.is_some())
        .copied()
        .collect();
    let open: Vec<&&RunnerView> = fits
        .iter()
        .filter(|r| r.cordon.is_none() && r.fault.is_none())
        .collect();
    let faults = (!faulty.is_empty()).then(|| {
        format!(
            "{} of {} faulty: {}",
            faulty.len(),
            counted(fits.len(), "slot"),
            faults_by_host(&faulty)
        )
    });
    if open.is_empty() {
        return match (faults, cordoned, fits.len()) {
            (Some(faults), 0, _) => faults,
            (Some(faults), cordoned, _) => format!("{faults}; {cordoned} cordoned"),
            (None, _, 1) => format!("runner {} is cordoned", fits[0].id),
            (None, _, n) => format!("all {n} fitting slots are cordoned"),
        };
    }
    let busy: Vec<(i64, i64)> = open.iter().filter_map(|r| r.busy).collect();
    if busy.len() < open.len() {
        return String::new();
    }
    match busy.iter().min_by_key(|(_, since)| *since) {
        Some((task, since)) => {
            let longest = now_ms.saturating_sub(*since).max(0).unsigned_abs();
            let busy = format!(
                "{} of {} busy (longest: {task}, {})",
                busy.len(),
                counted(open.len(), "slot"),
                format_duration(longest)
            );
            [Some(busy), faults]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("; ")
        }
        None => String::new(),
    }
}

/// Hosts that are named with their fault; more are counted.
const FAULTY_HOSTS_NAMED_MAX: usize = 3;

fn faults_by_host(faulty: &[&RunnerView]) -> String {
    let mut hosts: Vec<String> = faulty
        .iter()
        .filter_map(|r| Some(format!("{} on {}", words(&r.fault.as_ref()?.kind), r.id.host)))
        .collect();
    hosts.sort();
    hosts.dedup();
    let more = hosts.len().saturating_sub(FAULTY_HOSTS_NAMED_MAX);
    hosts.truncate(FAULTY_HOSTS_NAMED_MAX);
    if more > 0 {
        hosts.push(counted(more, "more host"));
    }
    hosts.join(", ")
}

/// The labels that the best-fitting runner lacks: the shortest list says most.
fn scarcest(runners: &[&RunnerView], require: &Labels) -> String {
    runners
        .iter()
        .map(|r| missing_labels(&r.labels, require))
        .min_by_key(Vec::len)
        .unwrap_or_default()
        .join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(host: &str, labels: &[(&str, &str)]) -> RunnerView {
        RunnerView {
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..RunnerView::ready(RunnerId::new(host, 0))
        }
    }

    fn why(require: &[(&str, &str)], target: Option<&str>, runners: &[RunnerView]) -> String {
        let require = require
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let target = target.map(|t| Target::parse(t, "runner").expect("valid"));
        waiting_for(
            &Wanted {
                queue: "default",
                require: &require,
                target: target.as_ref(),
            },
            runners,
            720_000,
        )
    }

    #[test]
    fn the_nearest_blocker_is_named() {
        assert_eq!(why(&[], None, &[]), "no runner has joined yet");
        let mut dead = runner("a", &[]);
        dead.live = false;
        assert_eq!(why(&[], None, &[dead.clone()]), "no runner is live");
        assert_eq!(why(&[], Some("a"), &[dead]), "runner a is not live");
        assert_eq!(why(&[], Some("b"), &[runner("a", &[])]), "no runner b is known");
        assert_eq!(
            why(&[("gpu", "1")], None, &[runner("a", &[])]),
            "no live runner has gpu=1"
        );
        let mut elsewhere = runner("a", &[]);
        elsewhere.queues = vec!["batch".into()];
        assert_eq!(why(&[], None, &[elsewhere]), "no live runner serves queue default");
        let mut other_queue = runner("b", &[("gpu", "1")]);
        other_queue.queues = vec!["batch".into()];
        let both = [runner("a", &[]), other_queue];
        assert_eq!(
            why(&[("gpu", "1")], None, &both),
            "no live runner of queue default has gpu=1"
        );
        assert_eq!(why(&[("gpu", "1")], Some("a"), &both), "runner a has no gpu=1");
        assert_eq!(why(&[], Some("b"), &both), "runner b does not serve queue default");
        let mut cordoned = runner("a", &[]);
        cordoned.cordon = Some(Cordon::default());
        assert_eq!(why(&[], None, &[cordoned]), "runner a/0 is cordoned");
        let mut busy = runner("a", &[]);
        busy.busy = Some((1830, 0));
        assert_eq!(
            why(&[], None, &[busy.clone()]),
            "1 of 1 slot busy (longest: 1830, 12m00s)"
        );
        assert_eq!(why(&[], None, &[busy, runner("b", &[])]), "");
    }

    #[test]
    fn slots_of_faulty_hosts_are_counted_with_the_fault() {
        let faulty = |host: &str, slot, fault: &str| RunnerView {
            id: RunnerId::new(host, slot),
            fault: Some(Fault {
                kind: fault.into(),
                ..Fault::default()
            }),
            ..runner(host, &[])
        };
        let full = [faulty("a", 0, "disk_full"), faulty("a", 1, "disk_full")];
        assert_eq!(why(&[], None, &full), "2 of 2 slots faulty: disk full on a");
        let mut busy = runner("b", &[]);
        busy.busy = Some((1830, 0));
        let mixed = [full.to_vec(), vec![busy]].concat();
        assert_eq!(
            why(&[], None, &mixed),
            "1 of 1 slot busy (longest: 1830, 12m00s); 2 of 3 slots faulty: disk full on a"
        );
        let mut cordoned = runner("b", &[]);
        cordoned.cordon = Some(Cordon::default());
        let closed = [vec![cordoned, faulty("c", 0, "file_limit")], full.to_vec()].concat();
        assert_eq!(
            why(&[], None, &closed),
            "3 of 4 slots faulty: disk full on a, file limit on c; 1 cordoned"
        );
        // Somebody else is free: it is being dispatched.
        let open = [full.to_vec(), vec![runner("b", &[])]].concat();
        assert_eq!(why(&[], None, &open), "");
        let many: Vec<RunnerView> = ["a", "b", "c", "d", "e"]
            .map(|host| faulty(host, 0, "disk_full"))
            .into();
        assert_eq!(
            why(&[], None, &many),
            "5 of 5 slots faulty: disk full on a, disk full on b, disk full on c, 2 more hosts"
        );
    }
}
