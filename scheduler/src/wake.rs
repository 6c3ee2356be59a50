//! Telling this replica and the others that there is something to do. A lost message costs the time
//! until the next poll.

use crate::lanes::Lanes;
use crate::parked::Parked;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, broadcast};

/// Lanes or hosts named in one message; more become "look everywhere".
const NAMED_MAX: usize = 64;
/// Change messages that a slow watcher may lag behind before it looks for itself.
const CHANGES_MAX: usize = 1_024;

/// What replicas tell each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who sent it.
    pub from: String,
    /// Lanes with new work.
    #[serde(default)]
    pub lanes: BTreeSet<i64>,
    /// Hosts with new work of their own.
    #[serde(default)]
    pub targets: BTreeSet<String>,
    /// Look at all lanes and hosts.
    #[serde(default)]
    pub all: bool,
    /// Tasks are to be ended: look which.
    #[serde(default)]
    pub stop: bool,
    /// A lease was given back.
    #[serde(default)]
    pub leases: bool,
}

impl Message {
    fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.targets.is_empty() && !self.all && !self.stop && !self.leases
    }
}

pub struct Wake {
    lanes: Arc<Lanes>,
    parked: Arc<Parked>,
    pending: Mutex<Message>,
    /// Rings for the dispatcher.
    pub dispatch: Notify,
    /// Rings for the beats of idle runners that are gathered: there is work.
    pub quiet: Notify,
    /// Rings for the notifier.
    pub notify: Notify,
    /// Rings for admission: a delayed task was stored.
    pub admit: Notify,
    /// Rings for the firing of triggers: one has another next time.
    pub fire: Notify,
    /// Rings for the choice of hosts.
    pub route: Notify,
    /// Rings for broadcasts: members ended, or are to be ended.
    pub sets: Notify,
    /// Rings for broadcasts whose members are not made yet.
    pub spread: Notify,
    /// Rings for what a wrong clock wrote: the clock is believed again.
    pub believed: Notify,
    /// Rings for the timeouts of tasks that do not run yet.
    pub timeouts: Notify,
    /// Rings for what is to be done about chains of jobs.
    pub chains: Notify,
    /// Rings for backfills: there may be room for the next fires.
    pub backfills: Notify,
    /// Rings for the callback-er.
    pub callbacks: Notify,
    /// Rings for the delivery of alarms.
    pub alarms: Notify,
    /// Rings for the watch over jobs that may be late.
    pub lateness: Notify,
    /// Rings for the poll: look now.
    pub poll: Notify,
    changes: broadcast::Sender<Arc<Vec<i64>>>,
}

impl Wake {
    pub fn new(lanes: Arc<Lanes>, parked: Arc<Parked>) -> Self {
        Self {
            lanes,
            parked,
            pending: Mutex::default(),
            dispatch: Notify::new(),
            quiet: Notify::new(),
            notify: Notify::new(),
            admit: Notify::new(),
            fire: Notify::new(),
            route: Notify::new(),
            sets: Notify::new(),
            spread: Notify::new(),
            believed: Notify::new(),
            timeouts: Notify::new(),
            chains: Notify::new(),
            backfills: Notify::new(),
            callbacks: Notify::new(),
            alarms: Notify::new(),
            lateness: Notify::new(),
            poll: Notify::new(),
            changes: broadcast::channel(CHANGES_MAX).0,
        }
    }

    fn tell(&self, change: impl FnOnce(&mut Message)) {
        let mut pending = match self.pending.lock() {
            Ok(pending) => pending,
            Err(poisoned) => poisoned.into_inner(),
        };
        change(&mut pending);
        if pending.lanes.len() > NAMED_MAX || pending.targets.len() > NAMED_MAX {
            pending.lanes.clear();
            pending.targets.clear();
            pending.all = true;
        }
        drop(pending);
        self.notify.notify_one();
    }

    /// What is to be told to the others now.
    pub fn take_message(&self) -> Option<Message> {
        let mut pending = match self.pending.lock() {
            Ok(pending) => pending,
            Err(poisoned) => poisoned.into_inner(),
        };
        let message = std::mem::take(&mut *pending);
        (!message.is_empty()).then_some(message)
    }

    /// New QUEUED tasks, committed. Those for the host '' have none yet.
    pub fn work(&self, lanes: &[i64], targets: &[String]) {
        if targets.iter().any(String::is_empty) {
            self.route.notify_one();
            self.spread.notify_one();
        }
        let targets: Vec<String> = targets.iter().filter(|host| !host.is_empty()).cloned().collect();
        let targets = targets.as_slice();
        if lanes.is_empty() && targets.is_empty() {
            return;
        }
        self.work_here(lanes, targets);
        self.tell(|message| {
            message.lanes.extend(lanes);
            message.targets.extend(targets.iter().cloned());
        });
    }

    /// As [`Wake::work`], without telling the others.
    pub fn work_here(&self, lanes: &[i64], targets: &[String]) {
        self.lanes.wake(lanes, targets.iter().map(String::as_str));
        self.dispatch.notify_one();
        self.quiet.notify_one();
    }

    /// Tasks are to be ended, committed: `(host, slot, task)`. A broadcast has no host; its members are to be ended.
    pub fn stop<'a>(&self, held: impl IntoIterator<Item = (&'a str, i64, i64)>) {
        let mut any = false;
        for (host, slot, task_id) in held {
            any = true;
            if host.is_empty() {
                self.sets.notify_one();
            }
            self.parked.stop(host, slot, task_id);
        }
        if any {
            self.tell(|message| message.stop = true);
        }
    }

    /// Those that wait for it at other replicas are to try again.
    pub fn lease_given_back(&self) {
        self.tell(|message| message.leases = true);
    }

    /// Runners were uncordoned: everything may fit again.
    pub fn everything(&self) {
        self.tell(|message| message.all = true);
        self.poll.notify_one();
    }

    /// Tasks changed, committed.
    pub fn changed(&self, ids: Vec<i64>) {
        if !ids.is_empty() && self.changes.receiver_count() > 0 {
            drop(self.changes.send(Arc::new(ids)));
        }
    }

    pub fn watch(&self) -> broadcast::Receiver<Arc<Vec<i64>>> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_host_rings_for_those_who_choose_one() {
        use futures_util::FutureExt as _;
        let wake = Wake::new(Arc::default(), Arc::default());
        let rung = || {
            let rings = |duty: &Notify| duty.notified().now_or_never().is_some();
            (rings(&wake.route), rings(&wake.spread), rings(&wake.sets))
        };
        wake.work(&[], &[String::new(), "a".into()]);
        assert_eq!(rung(), (true, true, false));
        wake.work(&[1], &["a".into()]);
        assert_eq!(rung(), (false, false, false));
        wake.stop([("", 0, 7)]);
        assert_eq!(rung(), (false, false, true));
    }

    #[test]
    fn messages_are_collected_and_bounded() {
        let wake = Wake::new(Arc::default(), Arc::default());
        wake.work(&[1, 2], &[]);
        wake.work(&[2], &["a".into()]);
        let message = wake.take_message().expect("something to tell");
        assert_eq!(message.lanes.len(), 2);
        assert_eq!(message.targets.len(), 1);
        assert!(wake.take_message().is_none());
        let many: Vec<i64> = (0..1_000).collect();
        wake.work(&many, &[]);
        let message = wake.take_message().expect("something to tell");
        assert!(message.all && message.lanes.is_empty());
        assert!(serde_json::to_string(&message).expect("serialises").len() < 8_000);
    }
}
