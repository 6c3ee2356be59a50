//! What a slot has: a live child or none, and results that are not acknowledged yet. Bookkeeping
//! only; the decisions are `react`'s and the deeds the agent's.

use crate::child::supervise::{Finished, Orders};
use crate::journal::{Begin, Ended};
use std::collections::VecDeque;
use systole_proto::v1;
use systole_shared::heartbeat::end::StoppedBy;
use systole_shared::heartbeat::react::Slot;
use systole_shared::limits::RESULTS_PER_BEAT_MAX;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

/// A child from its start until its end is recorded.
pub struct Live {
    pub begin: Begin,
    pub command_line: String,
    pub orders: watch::Sender<Orders>,
    pub watcher: JoinHandle<Finished>,
}

impl Live {
    pub fn is_stopping(&self) -> bool {
        self.orders.borrow().stop.is_some()
    }

    /// The first who stops it is the one who did; false when it was being stopped already.
    pub fn stop(&self, by: StoppedBy) -> bool {
        self.orders.send_if_modified(|orders| {
            let first = orders.stop.is_none();
            orders.stop.get_or_insert(by);
            first
        })
    }

    pub fn set_aside(&self) {
        self.orders.send_modify(|orders| orders.aside = true);
    }
}

#[derive(Debug)]
pub struct Unacknowledged {
    pub ended: Ended,
    pub output: Vec<v1::OutputChunk>,
    pub sending: Option<JoinHandle<()>>,
}

impl Unacknowledged {
    pub fn to_wire(&self) -> v1::TaskResult {
        self.ended.to_wire(self.output.clone())
    }
}

#[derive(Default)]
pub struct Held {
    pub live: Option<Live>,
    /// Oldest first.
    pub results: VecDeque<Unacknowledged>,
}

impl Held {
    pub fn is_empty(&self) -> bool {
        self.live.is_none() && self.results.is_empty()
    }

    /// The result that a beat without a child names: the newest of those that it carries.
    pub fn named_result(&self) -> Option<&Unacknowledged> {
        self.results.iter().take(RESULTS_PER_BEAT_MAX).next_back()
    }

    pub fn slot(&self) -> Slot {
        match &self.live {
            Some(live) if live.is_stopping() => Slot::Stopping(live.begin.task_id),
            Some(live) => Slot::Alive(live.begin.task_id),
            None => self
                .named_result()
                .map_or(Slot::Empty, |result| Slot::Ended(result.ended.task_id)),
        }
    }

    /// The cluster that dispatched what the beat names.
    pub fn cluster(&self) -> Option<&str> {
        match &self.live {
            Some(live) => Some(&live.begin.cluster_id),
            None => self.named_result().map(|result| result.ended.cluster_id.as_str()),
        }
    }

    pub fn has_result(&self, task_id: i64) -> bool {
        self.results.iter().any(|result| result.ended.task_id == task_id)
    }

    pub fn take_result(&mut self, task_id: i64) -> Option<Unacknowledged> {
        let index = self.results.iter().position(|result| result.ended.task_id == task_id)?;
        self.results.remove(index)
    }

    /// Takes the results that an answer of this cluster acknowledges.
    pub fn take_acknowledged(&mut self, ids: &[i64], cluster: &str) -> Vec<Unacknowledged> {
        let (acknowledged, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.results)
            .into_iter()
            .partition(|result| ids.contains(&result.ended.task_id) && result.ended.cluster_id == cluster);
        self.results = rest;
        acknowledged.into()
    }
}

/// Resolves when the child's end is recorded; never without a child.
pub async fn ended(live: &mut Option<Live>) -> Result<Finished, JoinError> {
    match live {
        Some(live) => (&mut live.watcher).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::begin;
    use systole_shared::task::OutcomeKind;

    fn held(ids: std::ops::RangeInclusive<i64>) -> Held {
        let results = ids.map(|id| Unacknowledged {
            ended: Ended::without_child(&begin(id), OutcomeKind::StartFailed, ""),
            output: Vec::new(),
            sending: None,
        });
        Held {
            live: None,
            results: results.collect(),
        }
    }

    #[test]
    fn a_beat_names_a_result_that_it_carries() {
        assert_eq!(held(1..=3).slot(), Slot::Ended(3));
        assert_eq!(held(1..=20).slot(), Slot::Ended(16));
        assert_eq!(Held::default().slot(), Slot::Empty);
    }

    #[test]
    fn another_cluster_cannot_acknowledge() {
        let mut held = held(1..=3);
        assert!(held.take_acknowledged(&[1, 2], "other").is_empty());
        let taken: Vec<i64> = held
            .take_acknowledged(&[1, 2], "c")
            .iter()
            .map(|r| r.ended.task_id)
            .collect();
        assert_eq!((taken, held.results.len()), (vec![1, 2], 1));
    }
}
