//! Heartbeats: many beats, one transaction, each answered after its commit.
//!
//! A beat waits in a bounded queue; a worker takes what is there (alone it is served at once, under load
//! batches grow by themselves), locks the runner rows and the tasks they are about, lets the pure
//! decisions of `systole_shared::heartbeat` say what each beat means, writes it, gives free runners a
//! task, and commits.

use super::{Refusal, after_end};
use crate::context::Context;
use crate::parked::{Answer, Park};
use crate::store::beats::{self, Registration, RunnerKey, RunnerRow, RunnerWrite};
use crate::store::claims::{self, Again, ClaimPlan, Claimed, Offer, Run};
use crate::store::finish::{self, End, Ended, LiveTask};
use crate::store::output::{self, Chunk, Stream};
use crate::store::{Class, StoreError, Tx, read};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use systole_shared::error::Code;
use systole_shared::heartbeat::answer::{Redelivery, Step, Subject, answer, redelivery};
use systole_shared::heartbeat::end::{self, Report, Terminating};
use systole_shared::heartbeat::identity::{Identity, Order, order};
use systole_shared::heartbeat::{ResetReason, Said};
use systole_shared::task::{OutcomeKind, TaskState};
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
    pub totals: [u64; 2],
    pub output: Vec<Chunk>,
}

/// One beat, checked.
#[derive(Clone, Debug)]
pub struct Beat {
    pub registration: Arc<Registration>,
    pub seq: i64,
    pub said: Said,
    /// The task it names; 0 for IDLE.
    pub task_id: i64,
    pub results: Vec<BeatResult>,
    pub group: usize,
    pub unanswered: u32,
    pub leaving: bool,
    pub park: Duration,
    pub max_task_id: i64,
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

type Waiting = (Arc<Beat>, oneshot::Sender<Result<Done, Refusal>>);

/// The queue of beats.
pub struct Beats {
    sender: mpsc::Sender<Waiting>,
    receiver: Mutex<mpsc::Receiver<Waiting>>,
}

impl Default for Beats {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        Self {
            sender,
            receiver: Mutex::new(receiver),
        }
    }
}

/// One beat from its arrival to its answer.
pub async fn beat(ctx: &Arc<Context>, beat: Beat) -> Result<Reply, Refusal> {
    let cannot_commit = || {
        Refusal::new(
            Code::StoreUnreachable,
            "this scheduler cannot reach its database; try another one",
        )
    };
    if !ctx.health.can_commit(ctx.beat_ms()) {
        return Err(cannot_commit());
    }
    let beat = Arc::new(beat);
    let mut registrations = 0;
    let (answer, acknowledged, park) = loop {
        let (sender, receiver) = oneshot::channel();
        ctx.beats
            .sender
            .try_send((Arc::clone(&beat), sender))
            .map_err(|_| Refusal::new(Code::Overloaded, "too many beats are waiting"))?;
        let done = tokio::select! {
            done = receiver => done.map_err(|_| Refusal::new(Code::Draining, "this scheduler is stopping"))??,
            // Its transaction hangs. If it is committed after all, that was a beat of this runner all the same.
            () = ctx.health.lost(ctx.beat_ms()) => return Err(cannot_commit()),
        };
        match done {
            Done::Answered {
                answer,
                acknowledged,
                park,
            } => break (answer, acknowledged, park),
            Done::Register if registrations < REGISTRATIONS_MAX => {
                registrations += 1;
                register(ctx, &beat, registrations == 1).await?;
            }
            Done::Register => {
                return Err(Refusal::new(
                    Code::StoreUnreachable,
                    "the runner's row changes hands; beat again",
                ));
            }
        }
    };
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

/// Hosts that this replica registered, in stripes: all slots of a host beat at once after a restart, and
/// the first of them registers for all.
#[derive(Default)]
pub struct Registered {
    stripes: [Mutex<HashMap<String, (String, i64)>>; 32],
}

/// Hosts that one stripe remembers; more are forgotten, which costs a transaction and nothing else.
const STRIPE_HOSTS_MAX: usize = 4_096;

impl Registered {
    fn stripe(&self, host: &str) -> &Mutex<HashMap<String, (String, i64)>> {
        let sum = host.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        &self.stripes[sum % self.stripes.len()]
    }
}

/// `first`: this beat has not asked yet, so the answer to a neighbour's question is enough.
async fn register(ctx: &Context, beat: &Beat, first: bool) -> Result<(), Refusal> {
    let registration = Arc::clone(&beat.registration);
    let (host, start_no) = (registration.host.clone(), registration.start_no);
    let process = (registration.instance_id.clone(), start_no);
    // Held across the transaction on purpose: the neighbours wait for it.
    let mut known = ctx.registered.stripe(&host).lock().await;
    if first && known.get(&host) == Some(&process) {
        return Ok(());
    }
    match ctx.db.register(registration).await? {
        Identity::Old => Err(Refusal::new(
            Code::RunnerIdInUse,
            format!("host {host}: start {start_no} was replaced by a later start of the same runner"),
        )),
        Identity::Taken => Err(Refusal::new(
            Code::RunnerIdInUse,
            format!(
                "host {host} is held by another runner process that is alive; stop it, or start this one with another --name"
            ),
        )),
        identity => {
            if identity != Identity::Holder {
                tracing::info!(host, start_no, ?identity, "runner joined");
            }
            if known.len() >= STRIPE_HOSTS_MAX {
                known.clear();
            }
            known.insert(host, process);
            Ok(())
        }
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

/// A worker: takes beats and runs their transactions, until the replica is closed.
pub async fn worker(ctx: Arc<Context>) {
    loop {
        let mut batch: Vec<Waiting> = Vec::with_capacity(BATCH_MAX);
        let mut receiver = ctx.beats.receiver.lock().await;
        let taken = tokio::select! {
            taken = receiver.recv_many(&mut batch, BATCH_MAX) => taken,
            () = ctx.closed.cancelled() => return,
        };
        drop(receiver);
        if taken == 0 {
            return;
        }
        run_batch(&ctx, batch).await;
    }
}

/// At most one beat per runner acts, the highest seq; the others were given up by their runner.
async fn run_batch(ctx: &Arc<Context>, batch: Vec<Waiting>) {
    let mut newest: HashMap<(String, i64, String), Waiting> = HashMap::with_capacity(batch.len());
    for waiting in batch {
        // Per process: a late beat of one that is gone must not push away one of its successor.
        let (host, slot) = waiting.0.key();
        let key = (host, slot, waiting.0.registration.instance_id.clone());
        let stale = match newest.remove(&key) {
            None => {
                newest.insert(key, waiting);
                continue;
            }
            Some(other) => {
                let rank = |w: &Waiting| (w.0.registration.start_no, w.0.seq);
                let (keep, stale) = if rank(&other) >= rank(&waiting) {
                    (other, waiting)
                } else {
                    (waiting, other)
                };
                newest.insert(key, keep);
                stale
            }
        };
        drop(stale.1.send(Ok(stale_answer())));
    }
    settle(ctx, newest.into_values().collect()).await;
}

fn stale_answer() -> Done {
    Done::Answered {
        answer: Answer::GoOn(0),
        acknowledged: Vec::new(),
        park: false,
    }
}

/// Runs one transaction; a value that the database refuses, or a corrupt row, spoils only its own beat: the batch is halved
/// until the culprit is alone.
async fn settle(ctx: &Arc<Context>, waiting: Vec<Waiting>) {
    let mut stack = vec![waiting];
    while let Some(mut waiting) = stack.pop() {
        let beats: Arc<Vec<Arc<Beat>>> = Arc::new(waiting.iter().map(|(beat, _)| Arc::clone(beat)).collect());
        match transact(ctx, beats).await {
            Ok(done) => {
                for ((_, sender), done) in waiting.into_iter().zip(done) {
                    drop(sender.send(Ok(done)));
                }
            }
            Err(StoreError::Data(_) | StoreError::Corrupt { .. }) if waiting.len() > 1 => {
                let rest = waiting.split_off(waiting.len() / 2);
                stack.push(rest);
                stack.push(waiting);
            }
            Err(error) => {
                let refusal = match &error {
                    StoreError::Data(text) => Refusal::new(
                        Code::InvalidField,
                        format!("the beat has a value that cannot be stored: {text}"),
                    ),
                    _ => Refusal::from(error),
                };
                for (_, sender) in waiting {
                    drop(sender.send(Err(refusal.clone())));
                }
            }
        }
    }
}

/// What one transaction did, for the time after its commit.
#[derive(Default)]
struct Outcome {
    done: Vec<Done>,
    ended: Ended,
    started: Vec<i64>,
    claimed: Claimed,
}

async fn transact(ctx: &Arc<Context>, beats: Arc<Vec<Arc<Beat>>>) -> Result<Vec<Done>, StoreError> {
    let plan = Arc::new(if ctx.draining.is_cancelled() {
        ClaimPlan::default()
    } else {
        ctx.lanes.plan(
            beats.iter().map(|beat| beat.group),
            beats.iter().map(|beat| beat.registration.host.as_str()),
        )
    });
    let newest = ctx.newest_task_id.load(Ordering::Relaxed);
    let (beats_in, plan_in) = (Arc::clone(&beats), Arc::clone(&plan));
    let outcome = ctx
        .db
        .write("beats", Class::Beats, move |tx| {
            let (beats, plan) = (Arc::clone(&beats_in), Arc::clone(&plan_in));
            Box::pin(async move { act(tx, &beats, &plan, newest).await })
        })
        .await?;
    ctx.health.committed();
    ctx.lanes.learn(&plan, &outcome.claimed);
    after_end(ctx, &outcome.ended);
    let mut changed = outcome.started;
    changed.extend(outcome.claimed.runs.iter().map(|run| run.task_id));
    ctx.wake.changed(changed);
    Ok(outcome.done)
}

/// What is known of one beat while its transaction runs.
struct Turn<'a> {
    beat: &'a Beat,
    write: RunnerWrite,
    answer: Option<Answer>,
    acknowledged: Vec<i64>,
    park: bool,
    /// Free for a new task.
    offer: bool,
}

/// The transaction.
async fn act(tx: &mut Tx, beats: &[Arc<Beat>], plan: &ClaimPlan, newest: i64) -> Result<Outcome, StoreError> {
    let mut newest = newest;
    if beats.iter().any(|beat| beat.max_task_id > newest) {
        // Another replica stored it a moment ago, or the database was set back.
        newest = read::newest_task_id(tx).await?;
    }
    let keys: Vec<RunnerKey> = beats
        .iter()
        .map(|beat| RunnerKey {
            host: beat.registration.host.clone(),
            slot: beat.registration.slot,
        })
        .collect();
    let rows: HashMap<(String, i64), RunnerRow> = beats::lock_runners(tx, &keys)
        .await?
        .into_iter()
        .map(|row| ((row.host.clone(), row.slot), row))
        .collect();
    let tasks = lock_named_tasks(tx, beats, &rows).await?;

    let mut outcome = Outcome::default();
    let mut work = Work::default();
    let mut turns: Vec<Result<Turn<'_>, Done>> = Vec::with_capacity(beats.len());
    for beat in beats {
        turns.push(match rows.get(&beat.key()) {
            None => Err(Done::Register),
            Some(row) => decide(beat, row, &tasks, newest, &mut work)?,
        });
    }

    outcome.started = beats::start_tasks(tx, &work.start).await?;
    beats::time_out_tasks(tx, &work.time_out).await?;
    outcome.ended = finish::end_tasks(tx, &work.ends).await?;
    for (id, kind, late) in work.late {
        beats::keep_late_result(tx, id, kind, late).await?;
    }
    store_output(tx, beats, &work.recorded).await?;

    offer_tasks(tx, &mut turns, plan, &mut outcome).await?;
    repeat_run_new(tx, &mut turns, &rows, &work.again).await?;

    let writes: Vec<RunnerWrite> = turns.iter().flatten().map(|turn| turn.write.clone()).collect();
    beats::win_runners(tx, &writes).await?;

    outcome.done = turns
        .into_iter()
        .map(|turn| match turn {
            Err(done) => done,
            Ok(turn) => Done::Answered {
                answer: turn.answer.unwrap_or(Answer::GoOn(0)),
                acknowledged: turn.acknowledged,
                park: turn.park,
            },
        })
        .collect();
    Ok(outcome)
}

/// Writes that decisions ask for.
#[derive(Default)]
struct Work {
    start: Vec<i64>,
    time_out: Vec<i64>,
    ends: Vec<End>,
    late: Vec<(i64, OutcomeKind, String)>,
    /// Results whose output is to be stored.
    recorded: HashSet<i64>,
    /// RUN_NEW again: task and how often it was given again.
    again: HashMap<i64, u32>,
}

async fn lock_named_tasks(
    tx: &mut Tx,
    beats: &[Arc<Beat>],
    rows: &HashMap<(String, i64), RunnerRow>,
) -> Result<HashMap<i64, LiveTask>, StoreError> {
    let mut ids: Vec<i64> = rows.values().filter_map(|row| row.task_id).collect();
    for beat in beats {
        ids.extend(beat.results.iter().map(|result| result.task_id));
        ids.extend((beat.task_id != 0).then_some(beat.task_id));
    }
    ids.sort_unstable();
    ids.dedup();
    let tasks = finish::lock_tasks(tx, &ids).await?;
    Ok(tasks.into_iter().map(|task| (task.id, task)).collect())
}

/// What one beat means. `Err` is an answer without any write.
fn decide<'a>(
    beat: &'a Beat,
    row: &RunnerRow,
    tasks: &HashMap<i64, LiveTask>,
    newest: i64,
    work: &mut Work,
) -> Result<Result<Turn<'a>, Done>, StoreError> {
    let who = &beat.registration;
    if row.instance_id != who.instance_id || row.start_no != who.start_no {
        return Ok(Err(Done::Register));
    }
    match order(row.seq, beat.seq) {
        Order::Stale => return Ok(Err(stale_answer())),
        Order::Again => return Ok(again(beat, row, tasks, work)),
        Order::Next => {}
    }
    let mut turn = Turn {
        beat,
        write: RunnerWrite {
            host: row.host.clone(),
            slot: row.slot,
            start_no: row.start_no,
            seq: beat.seq,
            leaving: i64::from(beat.leaving),
            task_id: row.task_id,
            held_boot: row.held_boot.clone(),
            redeliveries: row.redeliveries,
        },
        answer: None,
        acknowledged: Vec::new(),
        park: false,
        offer: false,
    };
    for result in &beat.results {
        record(result, &mut turn, tasks, work)?;
    }
    let step = match beat.said {
        Said::Idle => {
            let held = turn.write.task_id.and_then(|id| tasks.get(&id));
            match held {
                Some(task) => answer(Said::Idle, Subject::Mine(task.state()?)),
                None => answer(Said::Idle, Subject::Nothing),
            }
        }
        Said::Running => answer(Said::Running, named(beat, row, turn.write.task_id, tasks)?),
        // The result was settled above; what is left is what to say of the named task.
        Said::Finished | Said::Failed => {
            if turn.acknowledged.contains(&beat.task_id) {
                turn.answer = Some(Answer::Reset(beat.task_id, ResetReason::Ack));
                turn.offer = turn.write.task_id.is_none();
            } else if turn.answer.is_none() {
                turn.answer = Some(Answer::Reset(beat.task_id, ResetReason::Unknown));
            }
            finish_turn(&mut turn, row, newest);
            return Ok(Ok(turn));
        }
    };
    take_step(step, &mut turn, row, tasks, work)?;
    finish_turn(&mut turn, row, newest);
    Ok(Ok(turn))
}

/// The same beat again: nothing is written, and RUN_NEW of the task held is repeated.
fn again<'a>(
    beat: &'a Beat,
    row: &RunnerRow,
    tasks: &HashMap<i64, LiveTask>,
    work: &mut Work,
) -> Result<Turn<'a>, Done> {
    let held = row.task_id.and_then(|id| tasks.get(&id));
    if let (Said::Idle, Some(task)) = (beat.said, held)
        && matches!(task.state(), Ok(TaskState::Dispatched))
    {
        work.again.insert(task.id, u32::try_from(row.redeliveries).unwrap_or(0));
        return Err(Done::Answered {
            // Replaced by the RUN_NEW in `repeat_run_new`.
            answer: Answer::Reset(task.id, ResetReason::Ack),
            acknowledged: Vec::new(),
            park: false,
        });
    }
    Err(stale_answer())
}

/// The relation of the task that a RUNNING beat names to this runner.
fn named(
    beat: &Beat,
    row: &RunnerRow,
    holds: Option<i64>,
    tasks: &HashMap<i64, LiveTask>,
) -> Result<Subject, StoreError> {
    let Some(task) = tasks.get(&beat.task_id) else {
        return Ok(Subject::Unknown);
    };
    let state = task.state()?;
    let here = task.host.as_deref() == Some(row.host.as_str()) && task.slot == Some(row.slot);
    // A live task is this runner's only if its row says so; an ended one by where it was dispatched.
    let mine = if state.is_held() { holds == Some(task.id) } else { here };
    Ok(if mine { Subject::Mine(state) } else { Subject::Foreign })
}

/// Settles one result. It is accepted from whoever names the task with the start it was dispatched to.
fn record(
    result: &BeatResult,
    turn: &mut Turn<'_>,
    tasks: &HashMap<i64, LiveTask>,
    work: &mut Work,
) -> Result<(), StoreError> {
    let who = &turn.beat.registration;
    let subject = match tasks.get(&result.task_id) {
        None => Subject::Unknown,
        Some(task) => {
            let mine =
                task.host.as_deref() == Some(who.host.as_str()) && task.start_no == Some(result.dispatched_start_no);
            if mine {
                Subject::Mine(task.state()?)
            } else {
                Subject::Foreign
            }
        }
    };
    let said = if result.report.kind == OutcomeKind::Success {
        Said::Finished
    } else {
        Said::Failed
    };
    match (answer(said, subject), tasks.get(&result.task_id)) {
        (Step::Ended, Some(task)) => {
            // Two results of one task in one batch (an old and a new process): the first counts.
            if work.recorded.insert(task.id) {
                let (transition, outcome) = end::end(
                    task.state()?,
                    task.terminating(),
                    &result.report,
                    task.callback_url.is_some(),
                );
                work.ends.push(End {
                    task: task.clone(),
                    transition,
                    outcome,
                    started_age_ms: result.started_age_ms,
                    ended_age_ms: result.ended_age_ms,
                    cancelled_by: None,
                });
            }
            turn.acknowledged.push(task.id);
        }
        (Step::KeepLateResult, Some(task)) => {
            work.late.push((task.id, result.report.kind, late_json(&result.report)));
            work.recorded.insert(task.id);
            turn.acknowledged.push(task.id);
        }
        (Step::Reset(ResetReason::Ack), _) => turn.acknowledged.push(result.task_id),
        (Step::Reset(reason), _) => {
            // Nothing of the store changes: what the row holds, it holds on.
            turn.answer = Some(Answer::Reset(result.task_id, reason));
            return Ok(());
        }
        (other, _) => return Err(StoreError::Data(format!("a result cannot lead to {other:?}"))),
    }
    if turn.write.task_id == Some(result.task_id) {
        free(turn);
    }
    Ok(())
}

fn free(turn: &mut Turn<'_>) {
    turn.write.task_id = None;
    turn.write.held_boot = None;
    turn.write.redeliveries = 0;
}

fn late_json(report: &Report) -> String {
    let outcome = report.as_outcome();
    serde_json::json!({
        "kind": outcome.kind.name(),
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "message": outcome.message,
    })
    .to_string()
}

fn take_step(
    step: Step,
    turn: &mut Turn<'_>,
    row: &RunnerRow,
    tasks: &HashMap<i64, LiveTask>,
    work: &mut Work,
) -> Result<(), StoreError> {
    let held = turn.write.task_id.and_then(|id| tasks.get(&id));
    match (step, held) {
        (Step::Offer, _) => {
            free(turn);
            turn.offer = true;
        }
        (Step::GoOn, Some(task)) if overdue(task, turn.beat) => {
            work.time_out.push(task.id);
            turn.answer = Some(Answer::Reset(task.id, ResetReason::Stop));
        }
        (Step::GoOn, _) => turn.park = true,
        (Step::Reset(reason), _) => turn.answer = Some(Answer::Reset(turn.beat.task_id, reason)),
        (Step::Started, Some(task)) => {
            work.start.push(task.id);
            turn.write.redeliveries = 0;
            turn.park = true;
        }
        (Step::Redeliver, Some(task)) => {
            let same_boot = row.held_boot.as_deref() == Some(turn.beat.registration.boot_id.as_str());
            let redeliveries = u32::try_from(row.redeliveries).unwrap_or(u32::MAX);
            match redelivery(redeliveries, same_boot) {
                // A runner that does not hear answers gets nothing, and the task is not counted down on it.
                Redelivery::Again if turn.beat.unanswered > 0 => {}
                Redelivery::Again => {
                    turn.write.redeliveries += 1;
                    work.again.insert(task.id, redeliveries + 1);
                    turn.answer = Some(Answer::GoOn(0));
                }
                Redelivery::NeverStarted => settle_held(task, end::never_started(), turn, work),
                Redelivery::Unknowable => settle_held(task, end::rebooted(), turn, work),
            }
        }
        (Step::ChildGone, Some(task)) => settle_held(task, end::child_gone(), turn, work),
        (Step::Stopped, Some(task)) => settle_held(task, end::stopped(task.terminating(), false), turn, work),
        (Step::Started | Step::Redeliver | Step::ChildGone | Step::Stopped | Step::Ended | Step::KeepLateResult, _) => {
            return Err(StoreError::Data(format!("{step:?} without a task")));
        }
    }
    Ok(())
}

/// The back-up of the runner's own timeout: one beat later.
fn overdue(task: &LiveTask, beat: &Beat) -> bool {
    match (task.timeout_ms, task.ran_ms) {
        (Some(timeout), Some(ran)) => ran > timeout.saturating_add(beat.registration.beat_ms),
        _ => false,
    }
}

fn settle_held(
    task: &LiveTask,
    (transition, outcome): (systole_shared::task::Transition, systole_shared::task::Outcome),
    turn: &mut Turn<'_>,
    work: &mut Work,
) {
    work.ends.push(End {
        task: task.clone(),
        transition,
        outcome,
        started_age_ms: None,
        ended_age_ms: 0,
        cancelled_by: None,
    });
    free(turn);
    turn.offer = true;
}

/// Who may get a task, and whose answer may be held back.
fn finish_turn(turn: &mut Turn<'_>, row: &RunnerRow, newest: i64) {
    let beat = turn.beat;
    if turn.offer {
        // The host has seen a task that this database does not know: it went back in time. Nothing is
        // dispatched there until a person has looked.
        let ahead = beat.max_task_id > newest;
        turn.park = turn.answer.is_none() && !ahead;
        turn.offer = !ahead && !row.cordoned && !beat.leaving && beat.unanswered == 0;
        if ahead {
            tracing::error!(
                host = row.host,
                max_task_id = beat.max_task_id,
                newest,
                "a runner has seen a newer task than the database knows: the database was set back, or this is another cluster. Nothing is dispatched to it"
            );
        }
    }
}

async fn store_output(tx: &mut Tx, beats: &[Arc<Beat>], recorded: &HashSet<i64>) -> Result<(), StoreError> {
    for result in beats.iter().flat_map(|beat| &beat.results) {
        if !recorded.contains(&result.task_id) {
            continue;
        }
        for (stream, total) in [(Stream::Stdout, result.totals[0]), (Stream::Stderr, result.totals[1])] {
            let chunks: Vec<&Chunk> = result.output.iter().filter(|chunk| chunk.stream == stream).collect();
            if total == 0 && chunks.is_empty() {
                continue;
            }
            for chunk in &chunks {
                output::append(tx, result.task_id, stream, chunk.start, &chunk.data, Some(total)).await?;
            }
            if chunks.is_empty() {
                output::append(tx, result.task_id, stream, u64::MAX, &[], Some(total)).await?;
            }
        }
    }
    Ok(())
}

async fn offer_tasks(
    tx: &mut Tx,
    turns: &mut [Result<Turn<'_>, Done>],
    plan: &ClaimPlan,
    outcome: &mut Outcome,
) -> Result<(), StoreError> {
    if plan.is_empty() {
        return Ok(());
    }
    let offers: Vec<Offer> = turns
        .iter()
        .flatten()
        .filter(|turn| turn.offer)
        .map(|turn| Offer {
            host: turn.write.host.clone(),
            slot: turn.write.slot,
            start_no: turn.write.start_no,
            group: turn.beat.group,
        })
        .collect();
    if offers.is_empty() {
        return Ok(());
    }
    outcome.claimed = claims::claim(tx, &offers, plan).await?;
    let mut runs: HashMap<(&str, i64), &Run> = outcome
        .claimed
        .runs
        .iter()
        .map(|run| ((run.host.as_str(), run.slot), run))
        .collect();
    for turn in turns.iter_mut().flatten() {
        let Some(run) = runs.remove(&(turn.write.host.as_str(), turn.write.slot)) else {
            continue;
        };
        turn.write.task_id = Some(run.task_id);
        turn.write.held_boot = Some(turn.beat.registration.boot_id.clone());
        turn.write.redeliveries = 0;
        turn.answer = Some(Answer::Run(Box::new(run.clone()), 0));
        turn.park = false;
    }
    Ok(())
}

async fn repeat_run_new(
    tx: &mut Tx,
    turns: &mut [Result<Turn<'_>, Done>],
    rows: &HashMap<(String, i64), RunnerRow>,
    again: &HashMap<i64, u32>,
) -> Result<(), StoreError> {
    if again.is_empty() {
        return Ok(());
    }
    let again_to: Vec<Again> = rows
        .values()
        .filter_map(|row| {
            let id = row.task_id.filter(|id| again.contains_key(id))?;
            Some(Again {
                id,
                start_no: row.start_no,
            })
        })
        .collect();
    let runs: HashMap<i64, Run> = claims::run_again(tx, &again_to)
        .await?
        .into_iter()
        .map(|run| (run.task_id, run))
        .collect();
    let run_new = |id: i64| {
        let run = runs.get(&id)?;
        Some(Answer::Run(Box::new(run.clone()), again.get(&id).copied().unwrap_or(0)))
    };
    for turn in turns {
        match turn {
            Ok(turn) => {
                if let Some(id) = turn.write.task_id.filter(|id| again.contains_key(id)) {
                    turn.answer = run_new(id).or(turn.answer.take());
                }
            }
            Err(Done::Answered { answer, .. }) => {
                if let Answer::Reset(id, ResetReason::Ack) = answer {
                    *answer = run_new(*id).unwrap_or(Answer::GoOn(0));
                }
            }
            Err(Done::Register) => {}
        }
    }
    Ok(())
}

/// For the reaper: the end of the task of a lost runner. `None`: the runner beat meanwhile.
pub async fn end_lost(
    tx: &mut Tx,
    host: &str,
    slot: i64,
    start_no: i64,
    seq: i64,
    silent_ms: i64,
) -> Result<Option<Ended>, StoreError> {
    let Some(task_id) = beats::lock_as_seen(tx, host, slot, start_no, seq).await? else {
        return Ok(None);
    };
    let ended = end_lost_task(tx, task_id, silent_ms).await?;
    beats::free_runner(tx, host, slot, task_id).await?;
    Ok(Some(ended))
}

/// As [`end_lost`], for a task whose host was taken over by another process.
pub async fn end_lost_task(tx: &mut Tx, task_id: i64, silent_ms: i64) -> Result<Ended, StoreError> {
    let mut ends = Vec::new();
    for task in finish::lock_tasks(tx, &[task_id]).await? {
        let state = task.state()?;
        if !state.is_held() {
            continue;
        }
        let reason: Option<Terminating> = task.terminating();
        let (transition, outcome) = end::lost(state, reason, u64::try_from(silent_ms).unwrap_or(0));
        ends.push(End {
            task,
            transition,
            outcome,
            started_age_ms: None,
            ended_age_ms: 0,
            cancelled_by: None,
        });
    }
    finish::end_tasks(tx, &ends).await
}
