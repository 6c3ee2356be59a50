//! The loop of one slot: beat, do what the answer says, rest, and never miss the end of the child
//! meanwhile. What an answer means is decided by `react`; how processes are handled, by `child`.
//!
//! There is one beat under way at any time, and only its answer counts. When something happens that a
//! scheduler should know at once, the beat is abandoned and the next one tells.

mod beat;
mod held;
mod leftover;

pub use beat::Fixed;

use crate::backoff::{Backoff, jitter};
use crate::boottime;
use crate::child::fork::Child;
use crate::child::output::Upload;
use crate::child::spawn::{Launch, Launched, Place, Started, launch};
use crate::child::supervise::{Finished, Job, Orders, supervise};
use crate::child::threads;
use crate::config::RunnerConfig;
use crate::journal::{Begin, Ended};
use crate::link::{Link, Missed, Trouble};
use held::{Held, Live, Unacknowledged, ended};
use leftover::Leftovers;
use std::sync::Arc;
use std::time::Duration;
use systole_proto::{convert, v1};
use systole_shared::heartbeat::end::StoppedBy;
use systole_shared::heartbeat::react::{Action, Command, acceptable, react};
use systole_shared::limits::{PARK_MS_MAX, RESULTS_PER_BEAT_MAX};
use systole_shared::task::{OutcomeKind, TaskSpec};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Until a scheduler has told its interval, ms.
const BEAT_INTERVAL_MS: u64 = 30_000;
/// How long an answer may take beyond the parking.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The same, for a beat that is not parked.
const ANSWER_AT_ONCE_WITHIN: Duration = Duration::from_secs(5);
/// No answer makes a slot beat faster than this.
const REST_MIN: Duration = Duration::from_millis(50);
/// A child that ends this soon is reported with its end only: the beat between would be abandoned
/// anyway, and its write is half the cost of a short task.
const SHORT_TASK: Duration = Duration::from_millis(20);
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
    pub place: Arc<Place>,
    pub link: Arc<Link>,
    pub shutdown: CancellationToken,
}

impl Context {
    fn upload(&self, task_id: i64) -> Upload {
        Upload::new(
            Arc::clone(&self.link),
            self.config.host.clone(),
            self.fixed.instance_id.clone(),
            task_id,
            self.place.journal.dir(task_id),
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
}

impl Agent {
    /// `recovered`: results of earlier processes. `surplus`: the slot is not offered any more and only delivers.
    pub fn new(context: Arc<Context>, slot: u32, surplus: bool) -> Self {
        let leftovers = Leftovers::new(Arc::clone(&context.place));
        Self {
            context,
            slot,
            seq: 0,
            unanswered: 0,
            beat_interval_ms: BEAT_INTERVAL_MS,
            held: Held::default(),
            leftovers,
            leaving: surplus,
            shutting_down: false,
            leave_by: None,
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(30)),
            astray: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
            slow: Backoff::new(Duration::from_secs(10), Duration::from_secs(30)),
            hurried: 0,
        }
    }

    /// Returns when the slot has left.
    pub async fn run(mut self, recovered: Vec<Ended>) {
        self.held.results = leftover::readopt(&self.context, recovered).await;
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

    /// The shutdown has waited long enough for somebody to deliver to.
    fn is_over(&self) -> bool {
        self.held.live.is_none() && self.leave_by.is_some_and(|by| Instant::now() >= by)
    }

    /// One beat and what follows from its answer.
    async fn turn(&mut self) -> Next {
        let context = Arc::clone(&self.context);
        let park_ms = self.park_ms();
        let deadline = match park_ms {
            0 => ANSWER_AT_ONCE_WITHIN,
            park_ms => Duration::from_millis(park_ms) + ANSWER_WITHIN,
        };
        let request = self.beat(park_ms);
        let told_leaving = request.leaving;
        let sent_ms = boottime::now_ms();
        let outcome = tokio::select! {
            biased;
            finished = ended(&mut self.held.live) => {
                self.child_ended(finished).await;
                return Next::Now;
            }
            () = context.shutdown.cancelled(), if !self.shutting_down => {
                self.shut_down();
                return Next::Now;
            }
            outcome = context.link.heartbeat(request, deadline) => outcome,
        };
        match outcome {
            Err(missed) => self.missed(missed),
            Ok(answer) => self.answered(answer, sent_ms, park_ms, told_leaving).await,
        }
    }

    fn park_ms(&self) -> u64 {
        // A beat that was not answered may mean that answers do not get through: then no time is lost on
        // parking until one does.
        if self.unanswered > 0 || self.leaving {
            0
        } else {
            self.beat_interval_ms
        }
    }

    fn beat(&mut self, park_ms: u64) -> v1::HeartbeatRequest {
        self.seq += 1;
        let now = beat::Now {
            slot: self.slot,
            seq: self.seq,
            unanswered: self.unanswered,
            leaving: self.leaving,
            max_task_id: self.context.place.state.max_task_id(),
            park_ms,
        };
        beat::request(&self.context.config, &self.context.fixed, &now, &self.held)
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
            finished = ended(&mut self.held.live) => self.child_ended(finished).await,
            () = shutdown.cancelled(), if !self.shutting_down => self.shut_down(),
            () = tokio::time::sleep(pause) => {}
        }
    }

    fn shut_down(&mut self) {
        self.shutting_down = true;
        self.leaving = true;
        match &self.held.live {
            Some(live) => {
                live.stop(StoppedBy::Drain);
            }
            None => self.leave_by = Some(Instant::now() + DELIVER_WITHIN),
        }
    }

    async fn child_ended(&mut self, finished: Result<Finished, tokio::task::JoinError>) {
        let Some(live) = self.held.live.take() else {
            return;
        };
        self.hurried = 0;
        if self.shutting_down {
            self.leave_by = Some(Instant::now() + DELIVER_WITHIN);
        }
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) => {
                tracing::error!(task_id = live.begin.task_id, %error, "the watcher of a child failed; this is a bug");
                let message = "the runner lost track of the child; how it ended is not known";
                self.without_child(&live.begin, OutcomeKind::RunnerRestarted, message)
                    .await;
                return;
            }
        };
        if live.orders.borrow().aside {
            self.leftovers.set_aside(finished.ended.task_id, finished.sending).await;
            return;
        }
        self.held.results.push_back(Unacknowledged {
            ended: finished.ended,
            output: finished.output,
            sending: finished.sending,
        });
    }

    /// No answer that could be acted on.
    fn missed(&mut self, missed: Missed) -> Next {
        let link = &self.context.link;
        let pause = match missed {
            Missed::Unanswered(text) => {
                self.unanswered = self.unanswered.saturating_add(1);
                link.complain(
                    Trouble::Unanswered,
                    &format!("no scheduler answers, the next try is {}: {text}", link.address()),
                );
                // Never rarer than an ordinary beat: the cluster must hear of this runner before it gives it up.
                self.backoff.next().min(Duration::from_millis(self.beat_interval_ms))
            }
            Missed::Taken(text) => {
                let text =
                    format!("another process holds this runner id, this one waits until it leaves or is lost: {text}");
                link.complain(Trouble::Taken, &text);
                jitter(REST_WHILE_TAKEN)
            }
            Missed::Denied(text) => {
                let text = format!(
                    "the scheduler does not accept the runner token, give a token with the role runner: {text}"
                );
                link.complain(Trouble::Denied, &text);
                self.slow.next()
            }
            Missed::Refused(text) => {
                let text =
                    format!("the scheduler does not understand this runner, check that their versions fit: {text}");
                link.complain(Trouble::Refused, &text);
                self.slow.next()
            }
        };
        // Whoever is waited for in a shutdown should not be kept waiting by a long pause.
        Next::After(if self.shutting_down {
            pause.min(Duration::from_secs(1))
        } else {
            pause
        })
    }

    async fn answered(
        &mut self,
        answer: v1::HeartbeatResponse,
        sent_ms: u64,
        park_ms: u64,
        told_leaving: bool,
    ) -> Next {
        self.unanswered = 0;
        self.backoff.reset();
        if answer.beat_interval_ms > 0 {
            self.beat_interval_ms = answer.beat_interval_ms.min(PARK_MS_MAX);
        }
        // First, whatever the command is: an answer may acknowledge one task and bring the next.
        for result in self.held.take_acknowledged(&answer.acknowledged, &answer.cluster_id) {
            self.forget(result).await;
        }
        if answer.seq != self.seq {
            return self.at_once();
        }
        if !acceptable(answer.seq, self.seq, &answer.cluster_id, self.held.cluster()) {
            let text = format!(
                "{} is a scheduler of another cluster than the one that gave this host its task; it is not obeyed",
                self.context.link.address()
            );
            self.context.link.complain(Trouble::OtherCluster, &text);
            self.context.link.leave_current();
            return Next::After(self.astray.next());
        }
        self.slow.reset();
        self.astray.reset();
        let Some(command) = command(&answer) else {
            self.context.link.complain(
                Trouble::Refused,
                "the scheduler sent a command that this version does not know",
            );
            return Next::After(self.slow.next());
        };
        match react(self.held.slot(), command) {
            Action::Keep if told_leaving && self.held.is_empty() => Next::Leave,
            Action::Keep => self.keep(answer.next_beat_ms),
            Action::BeatNow => self.at_once(),
            Action::Stop(_) => self.stop(false),
            Action::StopAside(_) => self.stop(true),
            Action::Forget(task_id) => {
                if let Some(result) = self.held.take_result(task_id) {
                    self.forget(result).await;
                }
                Next::Now
            }
            Action::SetAside(task_id) => {
                tracing::warn!(
                    task_id,
                    "no cluster knows the task; its result and output are moved to unclaimed/"
                );
                if let Some(result) = self.held.take_result(task_id) {
                    self.leftovers.set_aside(task_id, result.sending).await;
                }
                Next::Now
            }
            Action::Start(_) => match answer.run {
                Some(run) => self.start(run, answer.cluster_id, sent_ms, park_ms).await,
                None => self.at_once(),
            },
        }
    }

    fn keep(&mut self, next_beat_ms: u64) -> Next {
        self.hurried = 0;
        let pause = Duration::from_millis(next_beat_ms.min(PARK_MS_MAX)).max(REST_MIN);
        // Seconds are spread, so that slots which were answered together do not come back together.
        Next::After(if pause > Duration::from_secs(1) {
            jitter(pause)
        } else {
            pause
        })
    }

    /// The next beat at once, unless that was tried before and changed nothing.
    fn at_once(&mut self) -> Next {
        self.hurried = self.hurried.saturating_add(1);
        match self.hurried {
            0..=2 => Next::Now,
            more => Next::After(REST_MIN.saturating_mul(1 << (more - 3).min(6))),
        }
    }

    fn stop(&mut self, aside: bool) -> Next {
        if let Some(live) = &self.held.live {
            if aside {
                live.set_aside();
            }
            if live.stop(StoppedBy::Reset) {
                tracing::info!(
                    task_id = live.begin.task_id,
                    aside,
                    "a child is stopped, as the scheduler says"
                );
            }
        }
        Next::After(REST_WHILE_STOPPING)
    }

    async fn forget(&mut self, result: Unacknowledged) {
        self.hurried = 0;
        self.leftovers.remove(result.ended.task_id, result.sending).await;
    }

    async fn start(&mut self, run: v1::RunNew, cluster_id: String, beat_sent_ms: u64, park_ms: u64) -> Next {
        // Not the task that the beat named, or react would know: an older one, whose result is on its way.
        if self.held.has_result(run.task_id) || self.held.results.len() >= RESULTS_PER_BEAT_MAX {
            return self.at_once();
        }
        let spec = convert::spec_from_wire(run.spec.unwrap_or_default());
        let begin = self.begin(run.task_id, run.attempt, cluster_id, spec.as_ref().ok());
        if self.leaving {
            self.without_child(&begin, OutcomeKind::NotStarted, "the runner was shutting down")
                .await;
            return Next::Now;
        }
        let spec = match spec {
            Ok(spec) => spec,
            Err(invalid) => {
                let message = format!("program cannot be started: the task makes no sense to this runner: {invalid}");
                self.without_child(&begin, OutcomeKind::StartFailed, message).await;
                return Next::Now;
            }
        };
        self.leftovers.make_room().await;
        let (command_line, timeout) = (
            beat::command_line(&spec.command),
            spec.timeout_ms.map(Duration::from_millis),
        );
        let job = Launch {
            begin: begin.clone(),
            spec,
            beat_sent_ms,
            park_ms,
        };
        let place = Arc::clone(&self.context.place);
        let launched = threads::run(move || launch(&place, &job)).await;
        self.launched(begin, command_line, timeout, launched).await
    }

    fn begin(&self, task_id: i64, attempt: u32, cluster_id: String, spec: Option<&TaskSpec>) -> Begin {
        Begin {
            task_id,
            slot: self.slot,
            start_no: self.context.fixed.start_no,
            cluster_id,
            boot_id: self.context.fixed.boot_id.clone(),
            name: spec.map(|spec| spec.name.clone()).unwrap_or_default(),
            command: spec.map(|spec| beat::command_line(&spec.command)).unwrap_or_default(),
            attempt,
            begun_at_ms: crate::journal::now_ms(),
        }
    }

    async fn launched(
        &mut self,
        begin: Begin,
        command_line: String,
        timeout: Option<Duration>,
        launched: Option<Launched>,
    ) -> Next {
        let task_id = begin.task_id;
        match launched {
            Some(Launched::Started(started, forked)) => {
                self.watch(begin, command_line, timeout, started, Child::new(forked));
                if let Ok(finished) = tokio::time::timeout(SHORT_TASK, ended(&mut self.held.live)).await {
                    self.child_ended(finished).await;
                }
                return Next::Now;
            }
            Some(Launched::TooLate) => {
                tracing::warn!(task_id, "a task arrived too late to be started; it is asked for again");
                return self.at_once();
            }
            Some(Launched::Held) => {
                tracing::error!(
                    task_id,
                    "a task that this host has already was given again; it is not started twice"
                );
                return self.at_once();
            }
            Some(Launched::Failed(message)) => self.without_child(&begin, OutcomeKind::StartFailed, message).await,
            Some(Launched::NotStarted(message)) => {
                tracing::error!(task_id, "{message}");
                self.without_child(&begin, OutcomeKind::NotStarted, message).await;
            }
            None => {
                let message = "the runner could not start anything: its spawn threads do not work";
                tracing::error!(task_id, message);
                self.without_child(&begin, OutcomeKind::NotStarted, message).await;
            }
        }
        Next::Now
    }

    fn watch(&mut self, begin: Begin, command_line: String, timeout: Option<Duration>, started: Started, child: Child) {
        let (orders, receiver) = tokio::sync::watch::channel(Orders::default());
        self.hurried = 0;
        let job = Job {
            place: Arc::clone(&self.context.place),
            started,
            child,
            begin: begin.clone(),
            timeout,
            grace: self.context.config.kill_grace,
            orders: receiver,
            upload: self.context.upload(begin.task_id),
        };
        self.held.live = Some(Live {
            begin,
            command_line,
            orders,
            watcher: tokio::spawn(supervise(job)),
        });
    }

    /// Records the end of a task that has no child (any more), for the next beat.
    async fn without_child(&mut self, begin: &Begin, kind: OutcomeKind, message: impl Into<String>) {
        let ended = Ended::without_child(begin, kind, message);
        let (place, written) = (Arc::clone(&self.context.place), ended.clone());
        let recorded = tokio::task::spawn_blocking(move || place.journal.end(&written)).await;
        if !matches!(recorded, Ok(Ok(()))) {
            tracing::warn!(
                task_id = begin.task_id,
                ?recorded,
                "a result could not be written down; it is reported all the same"
            );
        }
        self.hurried = 0;
        self.held.results.push_back(Unacknowledged {
            ended,
            output: Vec::new(),
            sending: None,
        });
    }
}

/// `None`: a command of a later version, or one without its task.
fn command(answer: &v1::HeartbeatResponse) -> Option<Command> {
    match v1::Command::try_from(answer.command).ok()? {
        v1::Command::Unspecified => None,
        v1::Command::GoOn => Some(Command::GoOn),
        v1::Command::Reset => {
            let reset = answer.reset?;
            Some(Command::Reset(
                reset.task_id,
                convert::reset_reason_from_wire(reset.reason)?,
            ))
        }
        v1::Command::RunNew => Some(Command::RunNew(answer.run.as_ref()?.task_id)),
    }
}
