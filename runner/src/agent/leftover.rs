//! What tasks leave on disk once they are over: removed or kept for a later task, moved aside, or taken up again after a
//! restart. In the background, so that no beat waits for a disk; bounded, so that nothing piles up.

use super::Context;
use super::held::Unacknowledged;
use crate::child::output;
use crate::child::spawn::Place;
use crate::child::supervise::{OUTPUT_FIRST, small_rest};
use crate::journal::Ended;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Directories that are being removed; a slot that is faster than its disk waits for one.
const REMOVALS_MAX: usize = 4;
/// Acknowledged tasks whose output is still being sent. The oldest is given up for the next.
const SENDING_MAX: usize = 4;

pub struct Leftovers {
    place: Arc<Place>,
    removals: JoinSet<()>,
    sending: VecDeque<Sending>,
}

struct Sending {
    task_id: i64,
    upload: JoinHandle<()>,
}

impl Leftovers {
    pub fn new(place: Arc<Place>) -> Self {
        Self {
            place,
            removals: JoinSet::new(),
            sending: VecDeque::new(),
        }
    }

    /// Removes an acknowledged task, once its output is sent.
    pub async fn remove(&mut self, task_id: i64, sending: Option<JoinHandle<()>>) {
        self.collect();
        match sending {
            Some(upload) if !upload.is_finished() => self.sending.push_back(Sending { task_id, upload }),
            Some(_) | None => self.remove_now(task_id),
        }
        if self.sending.len() > SENDING_MAX
            && let Some(oldest) = self.sending.pop_front()
        {
            tracing::warn!(
                task_id = oldest.task_id,
                "output could not be sent in time; it is moved to unclaimed/"
            );
            self.set_aside(oldest.task_id, Some(oldest.upload)).await;
        }
    }

    /// Moves a task that no cluster wants out of the way.
    pub async fn set_aside(&mut self, task_id: i64, sending: Option<JoinHandle<()>>) {
        if let Some(upload) = sending {
            upload.abort();
        }
        let place = Arc::clone(&self.place);
        match tokio::task::spawn_blocking(move || place.journal.set_aside(task_id)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(task_id, %error, "what a task left could not be moved to unclaimed/"),
            Err(error) => tracing::error!(task_id, %error, "what a task left could not be moved to unclaimed/"),
        }
    }

    /// Waits until a new task may make new work for the disk.
    pub async fn make_room(&mut self) {
        self.collect();
        while self.removals.len() >= REMOVALS_MAX {
            self.removals.join_next().await;
        }
    }

    /// Gives everything under way its time, at the end of the slot.
    pub async fn settle(mut self, patience: Duration) {
        let by = Instant::now() + patience;
        for mut sending in std::mem::take(&mut self.sending) {
            if tokio::time::timeout_at(by, &mut sending.upload).await.is_ok() {
                self.remove_now(sending.task_id);
            } else {
                // The files stay: the next start reports the same result again and sends the rest.
                sending.upload.abort();
            }
        }
        let all = async { while self.removals.join_next().await.is_some() {} };
        if tokio::time::timeout_at(by.max(Instant::now() + Duration::from_secs(1)), all)
            .await
            .is_err()
        {
            tracing::warn!("some directories of ended tasks could not be removed in time; the next start removes them");
        }
    }

    /// Looks after what has finished meanwhile, without waiting.
    fn collect(&mut self) {
        while self.removals.try_join_next().is_some() {}
        let (finished, rest): (VecDeque<Sending>, _) = std::mem::take(&mut self.sending)
            .into_iter()
            .partition(|sending| sending.upload.is_finished());
        self.sending = rest;
        for sending in finished {
            self.remove_now(sending.task_id);
        }
    }

    fn remove_now(&mut self, task_id: i64) {
        let place = Arc::clone(&self.place);
        self.removals.spawn_blocking(move || {
            if let Err(error) = place.journal.recycle(task_id) {
                tracing::warn!(task_id, %error, "the directory of an ended task could not be removed");
            }
        });
    }
}

/// Results of earlier processes, ready to be reported. Large output is sent first, within a bound.
pub async fn readopt(context: &Context, recovered: Vec<Ended>) -> VecDeque<Unacknowledged> {
    let by = Instant::now() + OUTPUT_FIRST;
    let mut results = VecDeque::new();
    for ended in recovered {
        let mut upload = context.upload(ended.task_id);
        let dir = context.place.journal.dir(ended.task_id);
        let read = tokio::task::spawn_blocking({
            let upload = upload.clone();
            move || {
                let sizes = output::sizes(&dir);
                (sizes, small_rest(&upload, sizes))
            }
        });
        let (sizes, output) = read.await.unwrap_or_default();
        let mut sending = None;
        if output.is_empty() && upload.rest(sizes) > 0 {
            upload.hurry(by.saturating_duration_since(Instant::now())).await;
            sending = (upload.rest(sizes) > 0).then(|| tokio::spawn(upload.finish()));
        }
        results.push_back(Unacknowledged { ended, output, sending });
    }
    results
}
