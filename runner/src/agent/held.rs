//! What a slot has: a live child or none, and results that are not acknowledged yet. Bookkeeping
//! only; the decisions are `react`'s and the deeds the agent's.

use super::deliver::{Finished, Follower};
use super::unanswered::Order;
use crate::journal::{Begin, Ended};
use std::collections::VecDeque;
use systole_proto::v1;
use systole_shared::heartbeat::react::Slot;
use systole_shared::limits::RESULTS_PER_BEAT_MAX;
use tokio::task::{JoinError, JoinHandle};

/// A task from its order to the warden until its end is ready to be reported.
pub struct Live {
    pub begin: Begin,
    /// The warden has not said yet what became of the order.
    pub is_starting: bool,
    /// What else is known of the order. `None`: the task was taken over, and began long ago.
    pub order: Option<Order>,
    /// A beat has named it.
    pub is_told: bool,
    pub is_stopping: bool,
    /// Nobody wants the result: it is kept here, with its output.
    pub aside: bool,
    /// The warden ends it when the cluster has not heard of it for a while.
    pub fenced: bool,
    /// Sends its output while it runs.
    pub follower: Option<Follower>,
    /// It has ended, and the rest of its output is being stored before the end is reported.
    pub finishing: Option<JoinHandle<Finished>>,
}

impl Live {
    pub fn new(begin: Begin, order: Option<Order>) -> Self {
        Self {
            begin,
            is_starting: true,
            order,
            is_told: false,
            is_stopping: false,
            aside: false,
            fenced: false,
            follower: None,
            finishing: None,
        }
    }

    /// Nothing was heard of it since its order.
    pub fn is_unanswered(&self) -> bool {
        self.is_starting && self.finishing.is_none()
    }

    /// It is not known whether the warden has begun it.
    pub fn is_unconfirmed(&self) -> bool {
        self.is_unanswered() && self.order.as_ref().is_some_and(|order| !order.is_begun)
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
            Some(live) if live.is_stopping => Slot::Stopping(live.begin.task_id),
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

/// Resolves when the end of the task is ready to be reported; never before its child has ended.
pub async fn finished(live: &mut Option<Live>) -> Result<Finished, JoinError> {
    match live.as_mut().and_then(|live| live.finishing.as_mut()) {
        Some(finishing) => finishing.await,
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
