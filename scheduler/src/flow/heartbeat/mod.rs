//! Heartbeats: many beats, one transaction, each answered after its commit.
//!
//! A beat waits in a bounded queue; a worker takes what is there (alone it is served at once, under load
//! batches grow by themselves, and when more beats are due in a moment they are waited for; those that only say that an idle runner
//! is there have a queue of their own, and more patience), locks the runner rows and the tasks they are about, lets the pure
//! decisions of `systole_shared::heartbeat` say what each beat means, writes it, gives free runners a
//! task, and commits.

mod batch;
mod decide;
mod deliver;
mod faults;
mod intake;
mod register;
mod slots;
mod transaction;

pub use batch::{quiet_worker, worker};
pub use faults::Faults;
pub use register::Registered;
pub use slots::SlotLabels;

use super::Refusal;
use crate::context::Context;
use crate::parked::{Answer, Park};
use crate::store::hosts::Registration;
use crate::store::output::Chunk;
use intake::{Intake, PROMPT, Pace, QUIET};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use systole_shared::error::Code;
use systole_shared::heartbeat::Said;
use systole_shared::heartbeat::end::Report;
use systole_shared::task::EndDetail;
use tokio::sync::{Mutex, mpsc, oneshot};

/// Beats that wait for a worker.
const QUEUE_MAX: usize = 20_000;
/// Beats of one transaction.
const BATCH_MAX: usize = 256;
/// Registrations that one beat tries before it asks to be sent again.
const REGISTRATIONS_MAX: u32 = 3;

/// One result of a beat.
#[derive(Clone, Debug)]
pub struct BeatResult {
    pub task_id: i64,
    pub dispatched_start_no: i64,
    pub report: Report,
    /// How long ago the child started and ended, by the runner's own clock; `None`: it never started.
    pub started_age_ms: Option<i64>,
    pub ended_age_ms: i64,
    /// `None`: the runner knows nothing more.
    pub detail: Option<EndDetail>,
    pub totals: [u64; 2],
    pub output: Vec<Chunk>,
}

/// One beat, checked.
#[derive(Clone, Debug)]
pub struct Beat {
    pub registration: Arc<Registration>,
    pub seq: i64,
    pub said: Said,
    /// Its runner does not know yet whether the task that it names was begun.
    pub starting: bool,
    /// The task it names; 0 for IDLE.
    pub task_id: i64,
    pub results: Vec<BeatResult>,
    pub group: usize,
    pub unanswered: u32,
    pub leaving: bool,
    pub park: Duration,
    pub max_task_id: i64,
    /// Of this slot alone, JSON; `None`: it has none.
    pub slot_labels: Option<String>,
}

impl Beat {
    fn key(&self) -> (String, i64) {
        (self.registration.host.clone(), self.registration.slot)
    }
}

/// What a transaction made of a beat.
#[derive(Clone, Debug)]
enum Done {
    /// The runner row is missing or belongs to another process: decide that first.
    Register,
    Answered {
        answer: Answer,
        acknowledged: Vec<i64>,
        /// The answer may be held back.
        park: bool,
    },
}

/// An answer with the results that were recorded.
#[derive(Clone, Debug)]
pub struct Reply {
    pub answer: Answer,
    pub acknowledged: Vec<i64>,
}

/// Why a beat is not answered.
#[derive(Debug)]
pub struct Refused {
    pub refusal: Refusal,
    /// Results that were recorded all the same.
    pub recorded: Vec<i64>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self {
            refusal,
            recorded: Vec::new(),
        }
    }
}

type Waiting = (Arc<Beat>, oneshot::Sender<Result<Done, Refusal>>);

/// The queues of beats.
pub struct Beats {
    /// Whether a batch of the prompt ones is held open for more. Worth it only beside another worker: one that works alone finds
    /// more in the queue each time anyway, because its transactions follow one another.
    pub gathers: AtomicBool,
    prompt: Queue,
    quiet: Queue,
}

struct Queue {
    sender: mpsc::Sender<Waiting>,
    intake: Mutex<Intake>,
}

impl Queue {
    fn new(pace: Pace) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        Self {
            sender,
            intake: Mutex::new(Intake::new(receiver, pace)),
        }
    }
}

impl Default for Beats {
    fn default() -> Self {
        Self {
            gathers: AtomicBool::new(false),
            prompt: Queue::new(PROMPT),
            quiet: Queue::new(QUIET),
        }
    }
}

/// It only says that an idle runner is there, and there is nothing for it: nobody waits for its answer.
fn is_quiet(ctx: &Context, beat: &Beat) -> bool {
    beat.said == Said::Idle
        && beat.results.is_empty()
        && beat.unanswered == 0
        && !beat.leaving
        && !beat.park.is_zero()
        && !ctx.draining.is_cancelled()
        && !ctx.lanes.has_work(beat.group, &beat.registration.host)
}

/// One beat from its arrival to its answer.
pub async fn beat(ctx: &Arc<Context>, beat: Beat) -> Result<Reply, Refused> {
    let cannot_commit = || {
        Refusal::new(
            Code::StoreUnreachable,
            "this scheduler cannot reach its database; try another one",
        )
    };
    if !ctx.health.can_commit(ctx.beat_ms()) {
        return Err(cannot_commit().into());
    }
    let began = Instant::now();
    let beat = Arc::new(beat);
    let quiet = is_quiet(ctx, &beat);
    let queue = if quiet { &ctx.beats.quiet } else { &ctx.beats.prompt };
    let mut registrations = 0;
    let (answer, acknowledged, park) = loop {
        faults::note(ctx, &beat).await?;
        slots::note(ctx, &beat).await?;
        let (sender, receiver) = oneshot::channel();
        queue
            .sender
            .try_send((Arc::clone(&beat), sender))
            .map_err(|_| Refusal::new(Code::Overloaded, "too many beats are waiting"))?;
        // Work may have come meanwhile.
        if quiet && ctx.lanes.has_work(beat.group, &beat.registration.host) {
            ctx.wake.quiet.notify_one();
        }
        let done = tokio::select! {
            done = receiver => done.map_err(|_| Refusal::new(Code::Draining, "this scheduler is stopping"))??,
            // Its transaction hangs. If it is committed after all, that was a beat of this runner all the same.
            () = ctx.health.lost(ctx.beat_ms()) => return Err(cannot_commit().into()),
        };
        match done {
            Done::Answered {
                answer,
                acknowledged,
                park,
            } => break (answer, acknowledged, park),
            Done::Register if registrations < REGISTRATIONS_MAX => {
                registrations += 1;
                if let Err(refusal) = register::register(ctx, &beat, registrations == 1).await {
                    let recorded = deliver::deliver(ctx, &beat, &refusal).await;
                    return Err(Refused { refusal, recorded });
                }
            }
            Done::Register => {
                return Err(Refusal::new(Code::StoreUnreachable, "the runner's row changes hands; beat again").into());
            }
        }
    };
    if !quiet {
        ctx.metrics.beat(began.elapsed(), !acknowledged.is_empty());
    }
    // Results that were recorded are told at once: the runner waits to forget them.
    let may_park = park && acknowledged.is_empty() && beat.unanswered == 0 && !beat.leaving && !beat.park.is_zero();
    if !may_park || ctx.draining.is_cancelled() {
        return Ok(Reply {
            answer: pace(ctx, &beat, answer, !acknowledged.is_empty()),
            acknowledged,
        });
    }
    Ok(Reply {
        answer: parked(ctx, &beat).await,
        acknowledged,
    })
}

/// When to beat again after an answer that could not be held back.
fn pace(ctx: &Context, beat: &Beat, answer: Answer, acknowledges: bool) -> Answer {
    match answer {
        // Somewhere else, and not all at once.
        Answer::GoOn(0) if ctx.draining.is_cancelled() => Answer::GoOn(rand::random_range(200..1_000)),
        // It hears again, or was told only what is recorded: the next beat may be parked.
        Answer::GoOn(0) if beat.unanswered > 0 || acknowledges => Answer::GoOn(50),
        Answer::GoOn(0) => Answer::GoOn(u64::try_from(ctx.beat_ms()).unwrap_or(u64::MAX)),
        other => other,
    }
}

/// Holds the answer back until there is something to say.
async fn parked(ctx: &Arc<Context>, beat: &Beat) -> Answer {
    let deadline = Instant::now() + beat.park;
    let idle = beat.said != Said::Running;
    let mut ticket = ctx.parked.park(Park {
        key: beat.key(),
        start_no: beat.registration.start_no,
        seq: beat.seq,
        boot_id: beat.registration.boot_id.as_str().into(),
        group: beat.group,
        idle,
        task_id: (!idle).then_some(beat.task_id),
        deadline,
    });
    // Work may have come between the transaction and the parking.
    if idle && ctx.lanes.has_work(beat.group, &beat.registration.host) {
        ctx.wake.dispatch.notify_one();
    }
    let told = tokio::select! {
        told = &mut ticket.answer => told,
        () = tokio::time::sleep_until(deadline.into()) => {
            if ticket.withdraw() {
                return Answer::GoOn(0);
            }
            // A claim has it in hand: its answer is near.
            match tokio::time::timeout(Duration::from_secs(5), &mut ticket.answer).await {
                Ok(told) => told,
                Err(_) => return Answer::GoOn(0),
            }
        }
    };
    told.unwrap_or(Answer::GoOn(0))
}
