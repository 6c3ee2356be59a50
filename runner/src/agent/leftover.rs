//! What tasks leave behind once their end is acknowledged: forgotten as soon as their output is stored, or set
//! aside. The warden does the work on disk; here is what must be waited for first, within bounds.

use super::Context;
use super::deliver::{OUTPUT_FIRST, small_rest};
use super::held::Unacknowledged;
use crate::journal::Ended;
use crate::warden::protocol::{Named, ToWarden};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Acknowledged tasks whose output is still being sent. The oldest is given up for the next.
const SENDING_MAX: usize = 4;

pub struct Leftovers {
    context: Arc<Context>,
    slot: u32,
    sending: VecDeque<Sending>,
}

struct Sending {
    task_id: i64,
    upload: JoinHandle<()>,
}

impl Leftovers {
    pub fn new(context: Arc<Context>, slot: u32) -> Self {
        Self {
            context,
            slot,
            sending: VecDeque::new(),
        }
    }

    /// Forgets an acknowledged task, once its output is sent.
    pub fn forget(&mut self, task_id: i64, sending: Option<JoinHandle<()>>) {
        self.collect();
        match sending {
            Some(upload) if !upload.is_finished() => self.sending.push_back(Sending { task_id, upload }),
            Some(_) | None => self.forget_now(task_id),
        }
        if self.sending.len() > SENDING_MAX
            && let Some(oldest) = self.sending.pop_front()
        {
            tracing::warn!(
                task_id = oldest.task_id,
                "output could not be sent in time; it is moved to unclaimed/"
            );
            self.set_aside(oldest.task_id, Some(oldest.upload));
        }
    }

    /// Moves a task that no cluster wants out of the way.
    pub fn set_aside(&self, task_id: i64, sending: Option<JoinHandle<()>>) {
        if let Some(upload) = sending {
            upload.abort();
        }
        self.context
            .warden
            .send(self.slot, ToWarden::SetAside(Named { task_id }));
    }

    /// Gives everything under way its time, at the end of the slot. What is not sent by then stays: the next
    /// start reports the same result again and sends the rest.
    pub async fn settle(mut self, patience: Duration) {
        let by = Instant::now() + patience;
        for mut sending in std::mem::take(&mut self.sending) {
            if tokio::time::timeout_at(by, &mut sending.upload).await.is_ok() {
                self.forget_now(sending.task_id);
            } else {
                sending.upload.abort();
            }
        }
    }

    /// Looks after what has finished meanwhile, without waiting.
    fn collect(&mut self) {
        let (finished, rest): (VecDeque<Sending>, _) = std::mem::take(&mut self.sending)
            .into_iter()
            .partition(|sending| sending.upload.is_finished());
        self.sending = rest;
        for sending in finished {
            self.forget_now(sending.task_id);
        }
    }

    /// Should there be no connection, the warden names the task again when there is one, and it is acknowledged again.
    fn forget_now(&self, task_id: i64) {
        self.context.warden.send(self.slot, ToWarden::Forget(Named { task_id }));
    }
}

/// Results of an earlier time, ready to be reported. Large output is sent first, within a bound.
pub async fn readopt(context: &Context, recovered: Vec<Ended>) -> VecDeque<Unacknowledged> {
    let by = Instant::now() + OUTPUT_FIRST;
    let mut results = VecDeque::new();
    for ended in recovered {
        let mut upload = context.upload(ended.task_id, ended.output_max);
        let sizes = [ended.stdout_bytes, ended.stderr_bytes];
        let output = small_rest(&upload, sizes);
        let mut sending = None;
        if output.is_empty() && upload.rest(sizes) > 0 {
            upload.hurry(by.saturating_duration_since(Instant::now())).await;
            sending = (upload.rest(sizes) > 0).then(|| tokio::spawn(upload.finish()));
        }
        results.push_back(Unacknowledged { ended, output, sending });
    }
    results
}
