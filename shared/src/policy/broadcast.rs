//! Broadcasts: one run of a job on each host that can take it, as one set with one outcome. Which hosts are members, and what a set
//! does next.

use super::host_fault::words;
use super::lane::{missing_labels, serves_queue};
use super::why::{RunnerView, Wanted};
use crate::heartbeat::end::Terminating;
use crate::plural::counted;
use crate::task::{Outcome, OutcomeKind, TaskState, Transition};
use std::collections::BTreeMap;

/// Members of one set, those that are skipped included.
pub const SET_MEMBERS_MAX: usize = 10_000;
/// Hosts that an outcome names.
const NAMED_MAX: usize = 3;

/// A host that a broadcast means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub host: String,
    /// Why it cannot take its part now; empty: it can.
    pub closed: String,
}

/// What keeps a host from starting anything; empty: nothing does. `slots` are its own, all that fit.
pub fn closed(slots: &[&RunnerView]) -> String {
    let live: Vec<&&RunnerView> = slots.iter().filter(|slot| slot.live).collect();
    if live.is_empty() {
        return "it is offline".into();
    }
    if live.iter().any(|slot| slot.cordon.is_none() && slot.fault.is_none()) {
        return String::new();
    }
    match live
        .iter()
        .find_map(|slot| slot.fault.as_ref().filter(|_| slot.cordon.is_none()))
    {
        Some(fault) => format!("it is faulty: {}", words(&fault.kind)),
        None => "it is cordoned".into(),
    }
}

/// The hosts of a queue and labels, by name, with those that cannot take anything now.
pub fn members(wanted: &Wanted<'_>, runners: &[RunnerView]) -> Vec<Member> {
    let mut hosts: BTreeMap<&str, Vec<&RunnerView>> = BTreeMap::new();
    for runner in runners {
        if serves_queue(&runner.queues, wanted.queue) && missing_labels(&runner.labels, wanted.require).is_empty() {
            hosts.entry(runner.id.host.as_str()).or_default().push(runner);
        }
    }
    hosts
        .into_iter()
        .map(|(host, slots)| Member {
            host: host.to_owned(),
            closed: closed(&slots),
        })
        .collect()
}

/// The last task of a member's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub id: i64,
    pub host: String,
    pub state: TaskState,
    /// It was not given its turn yet.
    pub waits: bool,
    /// It ended without proof that its child is dead.
    pub unproven: bool,
}

/// How a set goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Members that may run at the same time.
    pub max_parallel: Option<u32>,
    /// So many failed members, and no further one is begun.
    pub stop_after_failures: Option<u32>,
}

/// What a set does next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// It is their turn.
    pub release: Vec<i64>,
    /// They are dropped, for this reason.
    pub drop: Vec<i64>,
    pub because: String,
    /// They are to be ended, as the set is.
    pub stop: Vec<i64>,
    pub end: Option<(Transition, Outcome)>,
}

fn named(hosts: &[&str]) -> String {
    let mut text = hosts.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    if hosts.len() > NAMED_MAX {
        text.push_str(&format!(" and {} more", hosts.len() - NAMED_MAX));
    }
    text
}

/// `state` of the head is RUNNING or TERMINATING; `parts` are all members, in their order.
pub fn step(state: TaskState, terminating: Option<Terminating>, rules: Rules, parts: &[Part]) -> Step {
    let stopping = state == TaskState::Terminating;
    let over = |part: &&Part| part.state.is_terminal() && !part.unproven;
    let failed = parts.iter().filter(|part| part.state == TaskState::Failed).count();
    let stop_after = rules.stop_after_failures.and_then(|n| usize::try_from(n).ok());
    let stopped = stop_after.is_some_and(|n| failed >= n);
    let waiting: Vec<i64> = parts.iter().filter(|part| part.waits).map(|part| part.id).collect();
    let alive: Vec<&Part> = parts.iter().filter(|part| !part.waits && !over(part)).collect();
    let mut step = Step::default();
    if stopping {
        step.stop = alive
            .iter()
            .filter(|part| !part.state.is_terminal())
            .map(|part| part.id)
            .chain(waiting.iter().copied())
            .collect();
    } else if stopped {
        step.drop = waiting.clone();
        let have = if failed == 1 { "has" } else { "have" };
        step.because = format!(
            "not begun: {} of the broadcast {have} failed (stop_after_failures)",
            counted(failed, "member")
        );
    } else {
        let places = rules
            .max_parallel
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(usize::MAX);
        step.release = waiting
            .iter()
            .copied()
            .take(places.saturating_sub(alive.len()))
            .collect();
    }
    if alive.is_empty() && waiting.is_empty() {
        step.end = Some(end(terminating.filter(|_| stopping), parts));
    }
    step
}

fn end(stopping: Option<Terminating>, parts: &[Part]) -> (Transition, Outcome) {
    let of = |state: TaskState| -> Vec<&str> {
        let found = parts.iter().filter(|part| part.state == state);
        found.map(|part| part.host.as_str()).collect()
    };
    let (failed, cancelled, skipped) = (of(TaskState::Failed), of(TaskState::Terminated), of(TaskState::Skipped));
    let all = parts.len();
    let ran = of(TaskState::Finished).len();
    let all_members = counted(all, "member");
    let were = |n: usize| if n == 1 { "was" } else { "were" };
    let mut said = Vec::new();
    if !failed.is_empty() {
        said.push(format!("{} of {all_members} failed: {}", failed.len(), named(&failed)));
    }
    if !cancelled.is_empty() {
        let n = cancelled.len();
        said.push(format!("{n} of {all} {} cancelled: {}", were(n), named(&cancelled)));
    }
    if !skipped.is_empty() {
        let n = skipped.len();
        said.push(format!("{n} of {all} {} skipped: {}", were(n), named(&skipped)));
    }
    match stopping {
        // An end that came by itself while it was being cancelled: as with a child, it is what it is.
        Some(reason) if !cancelled.is_empty() || ran < all => {
            let word = match reason {
                Terminating::Superseded => "superseded",
                _ => "cancelled",
            };
            said.insert(0, format!("{word}; {ran} of {all_members} had ended well"));
            (
                Transition::Terminate,
                Outcome::new(OutcomeKind::Cancelled, said.join("; ")),
            )
        }
        _ if failed.is_empty() && cancelled.is_empty() && ran > 0 => {
            said.insert(0, format!("{ran} of {all_members} ended with exit code 0"));
            let mut outcome = Outcome::new(OutcomeKind::Success, said.join("; "));
            outcome.exit_code = Some(0);
            (Transition::Succeed, outcome)
        }
        _ => {
            if ran == 0 && failed.is_empty() && cancelled.is_empty() {
                said.insert(0, "no member ran".into());
            }
            (
                Transition::Fail,
                Outcome::new(OutcomeKind::MembersFailed, said.join("; ")),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RunnerId;
    use crate::policy::lane::Labels;
    use crate::policy::why::{Cordon, Fault};

    fn runner(host: &str, slot: u32) -> RunnerView {
        RunnerView::ready(RunnerId::new(host, slot))
    }

    #[test]
    fn a_host_is_a_member_once_and_says_what_keeps_it() {
        let mut runners = vec![
            runner("b", 0),
            runner("b", 1),
            runner("a", 0),
            runner("c", 0),
            runner("d", 0),
        ];
        runners[0].cordon = Some(Cordon::default());
        runners[3].live = false;
        runners[4].cordon = Some(Cordon::default());
        let mut other = runner("e", 0);
        other.queues = vec!["gpu".into()];
        runners.push(other);
        let mut faulty = runner("f", 0);
        faulty.fault = Some(Fault {
            kind: "disk_full".into(),
            ..Fault::default()
        });
        runners.push(faulty);
        let wanted = Wanted {
            queue: "default",
            require: &Labels::new(),
            target: None,
        };
        let found = members(&wanted, &runners);
        let said: Vec<(&str, &str)> = found.iter().map(|m| (m.host.as_str(), m.closed.as_str())).collect();
        let fault = format!("it is faulty: {}", words("disk_full"));
        assert_eq!(
            said,
            [
                ("a", ""),
                ("b", ""),
                ("c", "it is offline"),
                ("d", "it is cordoned"),
                ("f", fault.as_str())
            ]
        );
    }

    fn part(id: i64, state: TaskState, waits: bool) -> Part {
        Part {
            id,
            host: format!("h{id}"),
            state,
            waits,
            unproven: false,
        }
    }

    fn rules(max_parallel: u32, stop: Option<u32>) -> Rules {
        Rules {
            max_parallel: (max_parallel > 0).then_some(max_parallel),
            stop_after_failures: stop,
        }
    }

    use TaskState::{Created, Failed, Finished, Running, Skipped, Terminated};

    #[test]
    fn as_many_run_as_allowed_and_none_is_begun_after_enough_failures() {
        let parts = [
            part(1, Finished, false),
            part(2, Running, false),
            part(3, Created, true),
            part(4, Created, true),
        ];
        let next = step(Running, None, rules(2, None), &parts);
        assert_eq!((next.release, next.end), (vec![3], None));
        assert_eq!(step(Running, None, rules(0, None), &parts).release, [3, 4]);
        assert_eq!(step(Running, None, rules(1, None), &parts), Step::default());
        let failing = [part(1, Failed, false), part(2, Running, false), part(3, Created, true)];
        assert_eq!(step(Running, None, rules(2, Some(2)), &failing).release, [3]);
        let stopped = step(Running, None, rules(2, Some(1)), &failing);
        assert_eq!((stopped.release, stopped.drop, stopped.end), (vec![], vec![3], None));
        assert!(stopped.because.contains("stop_after_failures"));
    }

    #[test]
    fn a_set_ends_once_with_one_outcome_and_not_before_every_child_is_proven_dead() {
        let mut parts = vec![
            part(1, Finished, false),
            part(2, Skipped, false),
            part(3, Failed, false),
        ];
        let (transition, outcome) = step(Running, None, Rules::default(), &parts).end.expect("ended");
        assert_eq!(
            (transition, outcome.kind),
            (Transition::Fail, OutcomeKind::MembersFailed)
        );
        assert_eq!(outcome.message, "1 of 3 members failed: h3; 1 of 3 was skipped: h2");
        parts[2].unproven = true;
        assert_eq!(step(Running, None, Rules::default(), &parts), Step::default());
        parts.pop();
        let (transition, outcome) = step(Running, None, Rules::default(), &parts).end.expect("ended");
        assert_eq!((transition, outcome.kind), (Transition::Succeed, OutcomeKind::Success));
        let (transition, outcome) = step(Running, None, Rules::default(), &parts[1..]).end.expect("ended");
        assert_eq!(
            (transition, outcome.kind),
            (Transition::Fail, OutcomeKind::MembersFailed)
        );
        assert!(outcome.message.starts_with("no member ran"), "{}", outcome.message);
    }

    #[test]
    fn a_cancelled_set_ends_its_members_first() {
        let mut parts = vec![
            part(1, Finished, false),
            part(2, Running, false),
            part(3, Created, true),
        ];
        let user = Some(Terminating::User);
        let next = step(TaskState::Terminating, user, rules(1, None), &parts);
        assert_eq!((next.stop, next.release, next.end), (vec![2, 3], vec![], None));
        parts[1].state = Terminated;
        parts[2] = part(3, Terminated, false);
        let (transition, outcome) = step(TaskState::Terminating, user, rules(1, None), &parts)
            .end
            .expect("ended");
        assert_eq!(
            (transition, outcome.kind),
            (Transition::Terminate, OutcomeKind::Cancelled)
        );
        assert!(outcome.message.starts_with("cancelled; 1 of 3"), "{}", outcome.message);
        // It came too late: all had ended well.
        let all = [part(1, Finished, false)];
        let (transition, _) = step(TaskState::Terminating, user, Rules::default(), &all)
            .end
            .expect("ended");
        assert_eq!(transition, Transition::Succeed);
    }
}
