//! The loop of one slot: beat, do what the answer says, rest, and never miss the end of the child
//! meanwhile. What an answer means is decided by `react`; how processes are handled, by the warden.
//!
//! There is one beat under way at any time, and only its answer counts. When something happens that a
//! scheduler should know at once, the beat is abandoned and the next one tells.

mod answer;
mod beat;
mod deliver;
mod hear;
mod held;
mod leftover;
mod order;
pub mod serve;
mod unanswered;

pub use beat::Fixed;

use crate::backoff::Backoff;
use crate::boottime;
use crate::child::output::Upload;
use crate::config::RunnerConfig;
use crate::journal::Ended;
use crate::link::{Link, Missed};
use crate::rounds::Rounds;
use crate::shutdown::Shutdown;
use crate::task_log;
use crate::warden::client::{Client, Event, Inventory};
use crate::warden::protocol::ToWarden;
use deliver::Follower;
use held::{Held, Live, Unacknowledged, finished};
use leftover::Leftovers;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use systole_proto::v1;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Until a scheduler has told its interval, ms.
const BEAT_INTERVAL_MS: u64 = 30_000;
/// How long an answer may take beyond the parking.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The same, for a beat that is not parked.
const ANSWER_AT_ONCE_WITHIN: Duration = Duration::from_secs(5);
/// No answer makes a slot beat faster than this.
const REST_MIN: Duration = Duration::from_millis(50);
/// How long an order to the warden is waited for before the next beat says that it is not known yet what became of it. Within
/// this time a short task has ended: the beat between would be abandoned anyway, and its write is half the cost of such a task.
const WARDEN_ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Beats of a fenced task come this much more often.
const FENCED_BEATS: u64 = 3;
/// While a child is being stopped there is nothing to say; its end interrupts the rest.
const REST_WHILE_STOPPING: Duration = Duration::from_secs(1);
/// Another process holds the id: how often to ask again.
const REST_WHILE_TAKEN: Duration = Duration::from_secs(5);
/// How long a slot that leaves tries to deliver what it has.
const DELIVER_WITHIN: Duration = Duration::from_secs(10);

/// What all slots of a process share.
pub struct Context {
    pub config: RunnerConfig,
    pub fixed: Fixed,
    pub link: Arc<Link>,
    /// `None`: there is only one slot.
    pub rounds: Option<Rounds>,
    pub warden: Arc<Client>,
    pub shutdown: Shutdown,
    /// Highest task id this host ever held.
    pub max_task_id: AtomicI64,
}

impl Context {
    fn upload(&self, task_id: i64, output_max: u64) -> Upload {
        Upload::new(
            Arc::clone(&self.link),
            self.config.host.clone(),
            self.fixed.instance_id.clone(),
            task_id,
            crate::journal::task_dir(&self.config.data_dir, task_id),
            output_max,
        )
    }
}

/// What follows a beat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Now,
    After(Duration),
    Leave,
}

pub struct Agent {
    context: Arc<Context>,
    slot: u32,
    seq: u64,
    unanswered: u32,
    beat_interval_ms: u64,
    held: Held,
    leftovers: Leftovers,
    events: mpsc::Receiver<Event>,
    /// The number of the last inventory.
    inventory_no: u64,
    /// Takes no new task. With the shutdown, or from the start for a slot that only delivers.
    leaving: bool,
    shutting_down: bool,
    /// Set once nothing but deliveries is left to do in a shutdown.
    leave_by: Option<Instant>,
    /// Failed calls.
    backoff: Backoff,
    /// Answers that will be the same until a person does something.
    slow: Backoff,
    /// Answers of another cluster.
    astray: Backoff,
    /// Beats that followed at once without anything having changed here.
    hurried: u32,
    /// The last beat came back with nothing to do: the next one can go with those of the other idle slots.
    quiet: bool,
}

impl Agent {
    /// `surplus`: the slot is not offered any more and only finishes what it has.
    pub fn new(context: Arc<Context>, slot: u32, surplus: bool) -> Self {
        Self {
            leftovers: Leftovers::new(Arc::clone(&context), slot),
            events: context.warden.subscribe(slot),
            inventory_no: 0,
            context,
            slot,
            seq: 0,
            unanswered: 0,
            beat_interval_ms: BEAT_INTERVAL_MS,
            held: Held::default(),
            leaving: surplus,
            shutting_down: false,
            leave_by: None,
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(30)),
            astray: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
            slow: Backoff::new(Duration::from_secs(10), Duration::from_secs(30)),
            hurried: 0,
            quiet: false,
        }
    }

    /// `inventory`: what the warden holds for this slot. Returns when the slot has left.
    pub async fn run(mut self, inventory: Inventory) {
        self.take_inventory(inventory).await;
        loop {
            if self.is_over() {
                let (slot, results) = (self.slot, self.held.results.len());
                if results > 0 {
                    tracing::warn!(
                        slot,
                        results,
                        "no scheduler took the results; they are kept for the next start"
                    );
                }
                break;
            }
            match Box::pin(self.turn()).await {
                Next::Now => {}
                Next::After(pause) => self.rest(pause).await,
                Next::Leave => break,
            }
        }
        self.leftovers.settle(DELIVER_WITHIN).await;
    }

    /// What the warden holds is what there is.
    async fn take_inventory(&mut self, inventory: Inventory) {
        self.inventory_no = inventory.no;
        let new: Vec<Ended> = inventory
            .ended
            .into_iter()
            .filter(|ended| !self.held.has_result(ended.task_id))
            .collect();
        let mut unread = None;
        self.held.live = match (inventory.live, self.held.live.take()) {
            (Some(found), Some(mut known)) if known.begin.task_id == found.begin.task_id => {
                known.is_starting = false;
                // An order to stop it may have been lost with the connection: the next RESET tells it again.
                known.is_stopping = found.stopping;
                Some(known)
            }
            (Some(found), _) => {
                tracing::info!(
                    task_id = found.begin.task_id,
                    runner = self.runner(),
                    "a running task is taken over"
                );
                let mut live = Live::new(found.begin, None);
                live.is_starting = false;
                live.is_stopping = found.stopping;
                live.fenced = found.fenced;
                live.follower = Some(Follower::start(
                    self.context.upload(live.begin.task_id, live.begin.output_max),
                ));
                Some(live)
            }
            // Its end is known, and its output on the way.
            (None, Some(known)) if known.finishing.is_some() => Some(known),
            // Its order went with the connection, unread. Some scheduler may take it for running by now.
            (None, Some(known))
                if known.is_told
                    && known.is_unanswered()
                    && !new.iter().any(|ended| ended.task_id == known.begin.task_id) =>
            {
                unread = Some(known);
                None
            }
            // Never begun, or ended: then the end is in the inventory.
            (None, _) => None,
        };
        if let Some(live) = unread {
            self.never_begun(live);
        }
        let finishing = self.held.live.as_ref().map(|live| live.begin.task_id);
        let new: Vec<Ended> = new
            .into_iter()
            .filter(|ended| Some(ended.task_id) != finishing)
            .collect();
        self.held.results.extend(leftover::readopt(&self.context, new).await);
        self.hurried = 0;
    }

    /// Nothing more can be done here: what was handed over goes on without this process, and for the rest the shutdown
    /// has waited long enough for somebody to deliver to.
    fn is_over(&self) -> bool {
        let is_late = self.leave_by.is_some_and(|by| Instant::now() >= by);
        if self.held.live.is_none() || self.context.shutdown.drains() {
            return is_late && self.held.live.is_none();
        }
        is_late || (self.shutting_down && self.held.results.is_empty())
    }

    /// One beat and what follows from its answer.
    async fn turn(&mut self) -> Next {
        if self.look_at_order().await {
            return Next::Now;
        }
        let context = Arc::clone(&self.context);
        let park_ms = self.park_ms();
        let deadline = match park_ms {
            0 => ANSWER_AT_ONCE_WITHIN,
            park_ms => Duration::from_millis(park_ms) + ANSWER_WITHIN,
        };
        let rounds = match std::mem::take(&mut self.quiet) {
            true => context.rounds.as_ref().filter(|_| park_ms > 0 && self.held.is_empty()),
            false => None,
        };
        let request = self.beat(park_ms);
        let told_leaving = request.leaving;
        let sent_ms = boottime::now_ms();
        let outcome = tokio::select! {
            biased;
            event = self.events.recv() => {
                self.hear(event).await;
                return Next::Now;
            }
            finished = finished(&mut self.held.live) => {
                self.finished(finished);
                return Next::Now;
            }
            () = context.shutdown.asked(), if !self.shutting_down => {
                self.shut_down();
                return Next::Now;
            }
            outcome = send(&context.link, rounds, request, deadline) => outcome,
        };
        match outcome {
            Err(missed) => self.missed(missed),
            // By itself, then.
            Ok(None) => Next::Now,
            Ok(Some(answer)) => self.answered(answer, sent_ms, park_ms, told_leaving).await,
        }
    }

    fn park_ms(&self) -> u64 {
        // A beat that was not answered may mean that answers do not get through: then no time is lost on
        // parking until one does.
        let park_ms = if self.unanswered > 0 || self.leaving {
            0
        } else if self.held.live.as_ref().is_some_and(|live| live.fenced) {
            // The time that a fence counts begins when the beat was sent, so in perfect health it is as old as this.
            self.beat_interval_ms / FENCED_BEATS
        } else if let Some(rounds) = self.context.rounds.as_ref().filter(|_| self.held.is_empty()) {
            let park = rounds.park(Duration::from_millis(self.beat_interval_ms));
            u64::try_from(park.as_millis()).unwrap_or(self.beat_interval_ms)
        } else {
            self.beat_interval_ms
        };
        // Of an order without an answer more is known when its time is over.
        let unconfirmed = self.held.live.as_ref().filter(|live| live.is_unconfirmed());
        let left_ms = unconfirmed.and_then(|live| live.order.as_ref()?.left_ms(boottime::now_ms()));
        left_ms.map_or(park_ms, |left_ms| park_ms.min(left_ms))
    }

    fn beat(&mut self, park_ms: u64) -> v1::HeartbeatRequest {
        self.seq += 1;
        let (fault_no, fault) = self.context.warden.health();
        let now = beat::Now {
            slot: self.slot,
            seq: self.seq,
            unanswered: self.unanswered,
            leaving: self.leaving,
            max_task_id: self.context.max_task_id.load(Ordering::Relaxed),
            park_ms,
            fault_no,
            fault,
        };
        let request = beat::request(&self.context.config, &self.context.fixed, &now, &self.held);
        if let Some(live) = &mut self.held.live {
            live.is_told = true;
        }
        request
    }

    /// Waits, but not beyond anything that a scheduler should know at once.
    async fn rest(&mut self, pause: Duration) {
        let pause = match self.leave_by {
            Some(by) => pause.min(by.saturating_duration_since(Instant::now())),
            None => pause,
        };
        let shutdown = self.context.shutdown.clone();
        tokio::select! {
            biased;
            event = self.events.recv() => self.hear(event).await,
            finished = finished(&mut self.held.live) => self.finished(finished),
            () = shutdown.asked(), if !self.shutting_down => self.shut_down(),
            () = tokio::time::sleep(pause) => {}
        }
    }

    fn shut_down(&mut self) {
        self.shutting_down = true;
        self.leaving = true;
        // Handed over, the children live on and the next start reports them. Otherwise the warden ends them now.
        if self.held.live.is_none() || !self.context.shutdown.drains() {
            self.leave_by = Some(Instant::now() + DELIVER_WITHIN);
        }
    }

    /// As the scheduler and its log call it.
    fn runner(&self) -> String {
        format!("{}/{}", self.context.config.host, self.slot)
    }

    fn changed(&mut self) {
        self.hurried = 0;
        if self.shutting_down {
            self.leave_by = Some(Instant::now() + DELIVER_WITHIN);
        }
    }

    fn tell_warden(&self, message: ToWarden) -> bool {
        self.context.warden.send(self.slot, message)
    }

    fn forget(&mut self, result: Unacknowledged) {
        task_log::acknowledged(result.ended.task_id, || self.runner());
        self.hurried = 0;
        self.leftovers.forget(result.ended.task_id, result.sending);
    }
}

/// One beat, with those of the other idle slots or by itself. `None`: only by itself is it told what is wrong with it.
async fn send(
    link: &Link,
    rounds: Option<&Rounds>,
    beat: v1::HeartbeatRequest,
    deadline: Duration,
) -> Result<Option<v1::HeartbeatResponse>, Missed> {
    match rounds {
        Some(rounds) => rounds.heartbeat(beat, deadline).await,
        None => link.heartbeat(beat, deadline).await.map(Some),
    }
}

#[cfg(test)]
mod tests;
