//! The states of tasks and of their retries, until all are over.

use super::outage::{Outage, Say, given_up};
use super::{EVENTS_MAX, Follower};
use crate::client::{Client, cause_of};
use crate::failure::{Failure, is_transient};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_shared::task::TaskState;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

/// A waiting task is asked for its reason so often at first; then less and less.
const LOOK_FIRST: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(10);
/// How often the state is looked up although the watch is silent.
const LOOK_RUNNING: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub enum StateEvent {
    /// A member of the chain as it is now.
    Task(Box<v1::Task>),
    /// Nobody answers, because of this; it is tried again.
    Lost(String),
    /// Somebody answers again.
    Back,
    Failed(Failure),
}

/// What to follow.
#[derive(Clone, Copy, Debug)]
pub struct Follow {
    /// Follow retries too.
    pub chain: bool,
    /// When a task is over for this follower.
    pub is_over: fn(&v1::Task) -> bool,
    /// Look up the reason for waiting, which changes without a change of the task.
    pub curious: bool,
}

/// Follows tasks until all are over.
pub fn states(client: Arc<Client>, ids: impl IntoIterator<Item = i64>, follow: Follow) -> Follower<StateEvent> {
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    let watcher = Watcher {
        client,
        events,
        follow,
        live: ids.into_iter().collect(),
    };
    let task = tokio::spawn(watcher.run());
    Follower { events: receiver, task }
}

struct Watcher {
    client: Arc<Client>,
    events: mpsc::Sender<StateEvent>,
    follow: Follow,
    /// What is not over yet: of each chain the newest member that is known.
    live: BTreeSet<i64>,
}

impl Watcher {
    async fn run(mut self) {
        let mut outage = Outage::new();
        while !self.live.is_empty() {
            let broken = match self.watch(&mut outage).await {
                Ok(()) => return,
                Err(status) => status,
            };
            if !is_transient(&broken) {
                self.tell(StateEvent::Failed(given_up(&self.client, &broken))).await;
                return;
            }
            self.client.turn();
            match outage.failed(Instant::now()) {
                Some((pause, say)) => {
                    if say == Say::Lost {
                        self.tell(StateEvent::Lost(cause_of(&broken))).await;
                    }
                    tokio::time::sleep(pause).await;
                }
                None => {
                    self.tell(StateEvent::Failed(given_up(&self.client, &broken))).await;
                    return;
                }
            }
        }
    }

    async fn tell(&self, event: StateEvent) {
        // Nobody listens any more when the command has ended; then nothing is lost.
        let _ = self.events.send(event).await;
    }

    /// Watches until everything is over (`Ok`) or the stream breaks.
    async fn watch(&mut self, outage: &mut Outage) -> Result<(), Status> {
        let request = v1::WatchRequest {
            ids: self.live.iter().copied().collect(),
            filter: None,
            chain: self.follow.chain,
        };
        let mut stream = self.client.watch_once(request).await?;
        let mut look = if self.follow.curious { LOOK_FIRST } else { LOOK_RUNNING };
        while !self.live.is_empty() {
            match tokio::time::timeout(look, stream.message()).await {
                Ok(Ok(Some(response))) => {
                    self.answered(outage).await;
                    if let Some(task) = response.task {
                        // A running task has no reason to wait: the watch alone is enough.
                        if state_from_wire(task.state) == Some(TaskState::Running) {
                            look = LOOK_RUNNING;
                        }
                        self.seen(task).await;
                    }
                }
                Ok(Ok(None)) => return self.look_again().await,
                Ok(Err(status)) => return Err(status),
                Err(_) => {
                    look = if look < LOOK_MAX {
                        (look * 2).min(LOOK_MAX)
                    } else {
                        look
                    };
                    // A scheduler that does not answer shows on the stream too.
                    if let Ok(tasks) = self.look().await {
                        self.answered(outage).await;
                        for task in tasks {
                            self.seen(task).await;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn answered(&self, outage: &mut Outage) {
        if outage.over() {
            self.tell(StateEvent::Back).await;
        }
    }

    async fn seen(&mut self, task: v1::Task) {
        if (self.follow.is_over)(&task) && self.live.remove(&task.id) && self.follow.chain && task.retried_by != 0 {
            self.live.insert(task.retried_by);
        }
        self.tell(StateEvent::Task(Box::new(task))).await;
    }

    async fn look(&self) -> Result<Vec<v1::Task>, Failure> {
        let ids: Vec<i64> = self.live.iter().copied().collect();
        let results = self.client.get_many(&ids).await?;
        Ok(results.into_iter().filter_map(|result| result.task).collect())
    }

    /// The stream ended well: everything was told, unless it was ended too early.
    async fn look_again(&mut self) -> Result<(), Status> {
        while !self.live.is_empty() {
            let before = self.live.clone();
            let tasks = self
                .look()
                .await
                .map_err(|failure| Status::unavailable(failure.message))?;
            for task in tasks {
                self.seen(task).await;
            }
            if self.live == before {
                return Err(Status::unavailable("the stream ended early"));
            }
        }
        Ok(())
    }
}
