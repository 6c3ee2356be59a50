//! Beats whose answer is held back until there is something to say.
//!
//! An entry is either here, or in the hands of a claim that is under way, or gone. Whoever takes it out
//! answers it or puts it back. It vanishes with its call: a client that goes away ends it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use systole_shared::heartbeat::ResetReason;
use tokio::sync::oneshot;

use crate::store::claims::Run;

/// The key of a runner.
pub type Key = (String, i64);

/// What a runner is told.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Beat again after this many ms.
    GoOn(u64),
    Reset(i64, ResetReason),
    Run(Box<Run>, u32),
    /// This replica cannot commit: try another one.
    Unavailable,
}

#[derive(Debug)]
pub struct Entry {
    pub key: Key,
    pub start_no: i64,
    pub seq: i64,
    pub boot_id: Arc<str>,
    pub group: usize,
    /// Free for work; otherwise it runs `task_id`.
    pub idle: bool,
    pub task_id: Option<i64>,
    pub deadline: Instant,
    /// Cordoned when it was last looked at: not offered until everything is offered again.
    aside: bool,
    sender: oneshot::Sender<Answer>,
}

impl Entry {
    pub fn answer(self, answer: Answer) {
        // The caller may be gone; what was committed for it is delivered again at its next beat.
        drop(self.sender.send(answer));
    }
}

/// What parking needs to know of a beat.
#[derive(Clone, Debug)]
pub struct Park {
    pub key: Key,
    pub start_no: i64,
    pub seq: i64,
    pub boot_id: Arc<str>,
    pub group: usize,
    pub idle: bool,
    pub task_id: Option<i64>,
    pub deadline: Instant,
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<Key, Entry>,
    /// Idle runners by group, the longest waiting first. May name entries that are gone.
    idle: HashMap<usize, VecDeque<(Key, i64)>>,
    /// Some were set aside since all were offered.
    any_aside: bool,
}

#[derive(Debug, Default)]
pub struct Parked {
    inner: Mutex<Inner>,
    draining: AtomicBool,
}

/// The call's side of a parked beat; dropping it takes the beat out.
pub struct Ticket {
    parked: Arc<Parked>,
    key: Key,
    seq: i64,
    pub answer: oneshot::Receiver<Answer>,
}

impl Ticket {
    /// Takes the beat out when its time is over. False: a claim has it in hand and will answer.
    pub fn withdraw(&self) -> bool {
        self.parked.remove(&self.key, self.seq)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.parked.remove(&self.key, self.seq);
    }
}

impl Parked {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        match self.inner.lock() {
            Ok(inner) => inner,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Parks a beat. An older one of the same runner is answered GO_ON: the runner has given it up.
    pub fn park(self: &Arc<Self>, park: Park) -> Ticket {
        let (sender, answer) = oneshot::channel();
        let ticket = Ticket {
            parked: Arc::clone(self),
            key: park.key.clone(),
            seq: park.seq,
            answer,
        };
        let entry = Entry {
            key: park.key,
            start_no: park.start_no,
            seq: park.seq,
            boot_id: park.boot_id,
            group: park.group,
            idle: park.idle,
            task_id: park.task_id,
            deadline: park.deadline,
            aside: false,
            sender,
        };
        if self.draining.load(Ordering::SeqCst) {
            entry.answer(Answer::GoOn(0));
            return ticket;
        }
        let replaced = self.lock().insert(entry);
        if let Some(old) = replaced {
            old.answer(Answer::GoOn(0));
        }
        ticket
    }

    fn remove(&self, key: &Key, seq: i64) -> bool {
        let mut inner = self.lock();
        let mine = inner.entries.get(key).is_some_and(|entry| entry.seq == seq);
        if mine {
            inner.entries.remove(key);
        }
        mine
    }

    /// Takes up to `limit` idle beats that might get something, the longest waiting of each group first.
    pub fn take_idle(&self, groups: &HashSet<usize>, targets: &HashSet<String>, limit: usize) -> Vec<Entry> {
        let mut inner = self.lock();
        let mut taken = Vec::new();
        if !targets.is_empty() {
            let keys: Vec<Key> = inner
                .entries
                .values()
                .filter(|entry| entry.idle && !entry.aside && targets.contains(&entry.key.0))
                .map(|entry| entry.key.clone())
                // The rest is for those that anybody's work fits.
                .take(limit.div_ceil(2))
                .collect();
            taken.extend(keys.iter().filter_map(|key| inner.entries.remove(key)));
        }
        for group in groups {
            while taken.len() < limit {
                let Some((key, seq)) = inner.idle.get_mut(group).and_then(VecDeque::pop_front) else {
                    break;
                };
                if inner
                    .entries
                    .get(&key)
                    .is_some_and(|entry| entry.seq == seq && entry.idle)
                {
                    taken.extend(inner.entries.remove(&key));
                }
            }
        }
        taken
    }

    /// Puts beats back that got nothing. Those whose time is over are answered.
    pub fn put_back(&self, entries: Vec<Entry>, offer_again: bool) {
        let now = Instant::now();
        let draining = self.draining.load(Ordering::SeqCst);
        let mut inner = self.lock();
        let mut answered = Vec::new();
        for mut entry in entries {
            entry.aside = !offer_again;
            if draining || entry.deadline <= now || entry.sender.is_closed() || inner.entries.contains_key(&entry.key) {
                answered.push(entry);
                continue;
            }
            if offer_again {
                answered.extend(inner.insert(entry));
            } else {
                inner.any_aside = true;
                inner.entries.insert(entry.key.clone(), entry);
            }
        }
        drop(inner);
        for entry in answered {
            entry.answer(Answer::GoOn(0));
        }
    }

    /// Offers every idle beat again, also those that were set aside (cordoned then). Where none was, all are offered already.
    pub fn offer_all(&self) {
        let mut inner = self.lock();
        if !std::mem::take(&mut inner.any_aside) {
            return;
        }
        let mut idle: HashMap<usize, VecDeque<(Key, i64)>> = HashMap::new();
        for entry in inner.entries.values_mut().filter(|entry| entry.idle) {
            entry.aside = false;
            idle.entry(entry.group)
                .or_default()
                .push_back((entry.key.clone(), entry.seq));
        }
        inner.idle = idle;
    }

    /// Tells the runner of a task to end it, if its beat is parked here.
    pub fn stop(&self, host: &str, slot: i64, task_id: i64) {
        let entry = {
            let mut inner = self.lock();
            let key = (host.to_owned(), slot);
            match inner.entries.get(&key) {
                Some(entry) if entry.task_id == Some(task_id) => inner.entries.remove(&key),
                _ => None,
            }
        };
        if let Some(entry) = entry {
            entry.answer(Answer::Reset(task_id, ResetReason::Stop));
        }
    }

    /// Answers everything, e.g. because this replica lost its database.
    pub fn answer_all(&self, answer: &Answer) {
        let entries: Vec<Entry> = {
            let mut inner = self.lock();
            inner.idle.clear();
            inner.entries.drain().map(|(_, entry)| entry).collect()
        };
        for entry in entries {
            entry.answer(answer.clone());
        }
    }

    /// From now on nothing is parked.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.answer_all(&Answer::GoOn(0));
    }

    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Inner {
    fn insert(&mut self, entry: Entry) -> Option<Entry> {
        if entry.idle {
            let queue = self.idle.entry(entry.group).or_default();
            queue.push_back((entry.key.clone(), entry.seq));
            // Entries that timed out leave their place in the queue behind: sweep when it is mostly holes.
            if queue.len() > 64 && queue.len() > 4 * self.entries.len() {
                let entries = &self.entries;
                let newest = (entry.key.clone(), entry.seq);
                queue.retain(|(key, seq)| {
                    (key, seq) == (&newest.0, &newest.1) || entries.get(key).is_some_and(|e| e.seq == *seq)
                });
            }
        }
        self.entries.insert(entry.key.clone(), entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn park(parked: &Arc<Parked>, slot: i64, seq: i64) -> Ticket {
        parked.park(Park {
            key: ("a".into(), slot),
            start_no: 1,
            seq,
            boot_id: "b".into(),
            group: 0,
            idle: true,
            task_id: None,
            deadline: Instant::now() + Duration::from_secs(30),
        })
    }

    fn all() -> HashSet<usize> {
        HashSet::from([0])
    }

    #[test]
    fn a_call_that_goes_away_takes_its_beat_out() {
        let parked = Arc::new(Parked::default());
        let ticket = park(&parked, 0, 1);
        assert_eq!(parked.len(), 1);
        drop(ticket);
        assert!(parked.is_empty());
        assert!(parked.take_idle(&all(), &HashSet::new(), 9).is_empty());
    }

    #[test]
    fn a_later_beat_supersedes_the_parked_one() {
        let parked = Arc::new(Parked::default());
        let mut first = park(&parked, 0, 1);
        let _second = park(&parked, 0, 2);
        assert!(matches!(first.answer.try_recv(), Ok(Answer::GoOn(0))));
        drop(first);
        let taken = parked.take_idle(&all(), &HashSet::new(), 9);
        assert_eq!(taken.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn the_longest_waiting_runner_is_taken_first() {
        let parked = Arc::new(Parked::default());
        let _tickets: Vec<Ticket> = (0..3).map(|slot| park(&parked, slot, 1)).collect();
        let taken = parked.take_idle(&all(), &HashSet::new(), 2);
        assert_eq!(taken.iter().map(|entry| entry.key.1).collect::<Vec<_>>(), [0, 1]);
        parked.put_back(taken, true);
        let taken = parked.take_idle(&all(), &HashSet::new(), 1);
        assert_eq!(taken[0].key.1, 2);
    }

    #[test]
    fn what_was_set_aside_is_offered_again_with_all_others() {
        let parked = Arc::new(Parked::default());
        let _tickets: Vec<Ticket> = (0..2).map(|slot| park(&parked, slot, 1)).collect();
        let first = parked.take_idle(&all(), &HashSet::new(), 1);
        parked.put_back(first, false);
        let others = parked.take_idle(&all(), &HashSet::new(), 9);
        assert_eq!(others.iter().map(|entry| entry.key.1).collect::<Vec<_>>(), [1]);
        parked.put_back(others, true);
        for _ in 0..2 {
            parked.offer_all();
            let mut slots: Vec<i64> = parked
                .take_idle(&all(), &HashSet::new(), 9)
                .into_iter()
                .map(|entry| {
                    let slot = entry.key.1;
                    parked.put_back(vec![entry], true);
                    slot
                })
                .collect();
            slots.sort_unstable();
            assert_eq!(slots, [0, 1], "each once");
        }
    }

    #[test]
    fn a_drain_answers_everything_and_parks_nothing_more() {
        let parked = Arc::new(Parked::default());
        let mut before = park(&parked, 0, 1);
        parked.drain();
        let mut after = park(&parked, 1, 1);
        assert!(matches!(before.answer.try_recv(), Ok(Answer::GoOn(0))));
        assert!(matches!(after.answer.try_recv(), Ok(Answer::GoOn(0))));
    }
}
