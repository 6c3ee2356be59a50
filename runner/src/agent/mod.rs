//! The loop of one slot: beat, do what the answer says, rest, and never miss the end of the child
//! meanwhile. What an answer means is decided by `react`; how processes are handled, by the warden.
//!
//! There is one beat under way at any time, and only its answer counts. When something happens that a
//! scheduler should know at once, the beat is abandoned and the next one tells.

mod beat;
mod deliver;
mod held;
mod leftover;
pub mod serve;

pub use beat::Fixed;

use crate::backoff::{Backoff, jitter};
use crate::boottime;
use crate::child::output::Upload;
use crate::config::RunnerConfig;
use crate::journal::{Begin, Ended};
use crate::link::{Link, Missed, Trouble};
use crate::shutdown::Shutdown;
use crate::task_log;
use crate::warden::client::{Client, Event, Inventory};
use crate::warden::protocol::{self, Alive, Record, Start, ToWarden, Why};
use deliver::{Finished, Follower, finish, is_silent};
use held::{Held, Live, Unacknowledged, finished};
use leftover::Leftovers;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use systole_proto::{convert, v1};
use systole_shared::heartbeat::end::StoppedBy;
use systole_shared::heartbeat::react::{Action, Command, acceptable, react};
use systole_shared::limits::{OUTPUT_MAX_BYTES_DEFAULT, PARK_MS_MAX, RESULTS_PER_BEAT_MAX};
use systole_shared::policy::fence::{fence_after_ms, kill_grace_max_ms};
use systole_shared::task::spec::OnDisconnect;
use systole_shared::task::{OutcomeKind, TaskSpec};
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
/// How long an order to the warden is waited for before the next beat says RUNNING all the same. Within this time a
/// short task has ended: the beat between would be abandoned anyway, and its write is half the cost of such a task.
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
    /// `surplus`: the slot is not offered any more and only finishes what it has.
    pub fn new(context: Arc<Context>, slot: u32, surplus: bool) -> Self {
        Self {
            leftovers: Leftovers::new(Arc::clone(&context), slot),
            events: context.warden.subscribe(slot),
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
        let new: Vec<Ended> = inventory
            .ended
            .into_iter()
            .filter(|ended| !self.held.has_result(ended.task_id))
            .collect();
        self.held.live = match (inventory.live, self.held.live.take()) {
            (Some(found), Some(mut known)) if known.begin.task_id == found.begin.task_id => {
                known.is_starting = false;
                known.is_stopping |= found.stopping;
                Some(known)
            }
            (Some(found), _) => {
                tracing::info!(
                    task_id = found.begin.task_id,
                    runner = self.runner(),
                    "a running task is taken over"
                );
                let mut live = Live::new(found.begin);
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
            // Never begun, or ended: then the end is in the inventory.
            (None, _) => None,
        };
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
        } else if self.held.live.as_ref().is_some_and(|live| live.fenced) {
            // The time that a fence counts begins when the beat was sent, so in perfect health it is as old as this.
            self.beat_interval_ms / FENCED_BEATS
        } else {
            self.beat_interval_ms
        }
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

    /// Takes note of what the warden says. A scheduler should know of all of it at once.
    async fn hear(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Started(task_id)) => self.started(task_id),
            Some(Event::Ended(ended)) => self.child_ended(*ended),
            Some(Event::NotBegun(task_id, why)) => self.not_begun(task_id, why),
            // The next beat tells.
            Some(Event::Health) => {}
            Some(Event::Inventory(inventory)) => self.take_inventory(inventory).await,
            // The client lives as long as the slots.
            None => std::future::pending().await,
        }
    }

    /// As the scheduler and its log call it.
    fn runner(&self) -> String {
        format!("{}/{}", self.context.config.host, self.slot)
    }

    fn started(&mut self, task_id: i64) {
        task_log::started(task_id, || self.runner());
        if let Some(live) = self.held.live.as_mut().filter(|live| live.begin.task_id == task_id) {
            live.is_starting = false;
            if live.follower.is_none() {
                live.follower = Some(Follower::start(self.context.upload(task_id, live.begin.output_max)));
            }
        }
    }

    fn not_begun(&mut self, task_id: i64, why: Why) {
        let Some(live) = self.held.live.take_if(|live| live.begin.task_id == task_id) else {
            return;
        };
        let task_id = live.begin.task_id;
        let runner = self.runner();
        match why {
            Why::TooLate => tracing::warn!(
                task_id,
                runner,
                "a task arrived too late to be started; it is asked for again"
            ),
            Why::Held => tracing::error!(
                task_id,
                runner,
                "a task that this host has already was given again; it is not started twice"
            ),
        }
    }

    /// The warden has written the end down.
    fn child_ended(&mut self, ended: Ended) {
        let task_id = ended.task_id;
        if self.held.has_result(task_id) {
            return;
        }
        task_log::ended(&ended, || self.runner());
        let Some(live) = self.held.live.as_mut().filter(|live| live.begin.task_id == task_id) else {
            // Not expected by this slot: reported all the same.
            tracing::warn!(
                task_id,
                runner = self.runner(),
                "the end of a task that was not expected here"
            );
            let upload = self.context.upload(task_id, ended.output_max);
            let output = deliver::small_rest(&upload, [ended.stdout_bytes, ended.stderr_bytes]);
            let sending = (output.is_empty() && !is_silent(&ended)).then(|| tokio::spawn(upload.finish()));
            self.held.results.push_back(Unacknowledged { ended, output, sending });
            return;
        };
        if live.aside {
            self.held.live = None;
            self.leftovers.set_aside(task_id, None);
            self.changed();
            return;
        }
        let follower = live.follower.take();
        if is_silent(&ended) {
            self.finished(Ok(Finished {
                ended,
                output: Vec::new(),
                sending: None,
            }));
            return;
        }
        let upload = self.context.upload(task_id, ended.output_max);
        if follower.is_none() {
            let sizes = [ended.stdout_bytes, ended.stderr_bytes];
            let output = deliver::small_rest(&upload, sizes);
            if !output.is_empty() {
                self.finished(Ok(Finished {
                    ended,
                    output,
                    sending: None,
                }));
                return;
            }
        }
        live.finishing = Some(tokio::spawn(finish(ended, upload, follower)));
    }

    /// The end of the task is ready to be reported.
    fn finished(&mut self, finished: Result<Finished, tokio::task::JoinError>) {
        let Some(live) = self.held.live.take() else { return };
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) => {
                // The warden has the end still, and names it again when it is asked.
                tracing::error!(task_id = live.begin.task_id, %error, "sending an output failed; this is a bug");
                return;
            }
        };
        if live.aside {
            self.leftovers.set_aside(finished.ended.task_id, finished.sending);
        } else {
            self.held.results.push_back(Unacknowledged {
                ended: finished.ended,
                output: finished.output,
                sending: finished.sending,
            });
        }
        self.changed();
    }

    fn changed(&mut self) {
        self.hurried = 0;
        if self.shutting_down {
            self.leave_by = Some(Instant::now() + DELIVER_WITHIN);
        }
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
            Missed::Taken {
                text,
                recorded,
                cluster_id,
            } => {
                let text =
                    format!("another process holds this runner id, this one waits until it leaves or is lost: {text}");
                link.complain(Trouble::Taken, &text);
                // No answer: it is not told to the warden, and puts off the end of no child.
                for result in self.held.take_acknowledged(&recorded, &cluster_id) {
                    self.forget(result);
                }
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
            self.forget(result);
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
        if let Some(live) = self.held.live.as_ref().filter(|live| live.fenced) {
            let task_id = live.begin.task_id;
            self.tell_warden(ToWarden::Alive(Alive { task_id, sent_ms }));
        }
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
                    self.forget(result);
                }
                Next::Now
            }
            Action::SetAside(task_id) => {
                tracing::warn!(
                    task_id,
                    runner = self.runner(),
                    "no cluster knows the task; its result and output are moved to unclaimed/"
                );
                if let Some(result) = self.held.take_result(task_id) {
                    self.leftovers.set_aside(task_id, result.sending);
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
        let runner = self.runner();
        if let Some(live) = &mut self.held.live {
            live.aside |= aside;
            if !live.is_stopping {
                live.is_stopping = true;
                let task_id = live.begin.task_id;
                tracing::info!(task_id, runner, aside, "a child is stopped, as the scheduler says");
                let by = StoppedBy::Reset;
                self.tell_warden(ToWarden::Stop(protocol::Stop { task_id, by }));
            }
        }
        Next::After(REST_WHILE_STOPPING)
    }

    fn tell_warden(&self, message: ToWarden) -> bool {
        self.context.warden.send(self.slot, message)
    }

    fn forget(&mut self, result: Unacknowledged) {
        task_log::acknowledged(result.ended.task_id, || self.runner());
        self.hurried = 0;
        self.leftovers.forget(result.ended.task_id, result.sending);
    }

    async fn start(&mut self, run: v1::RunNew, cluster_id: String, beat_sent_ms: u64, park_ms: u64) -> Next {
        // Not the task that the beat named, or react would know: an older one, whose result is on its way.
        if self.held.has_result(run.task_id) || self.held.results.len() >= RESULTS_PER_BEAT_MAX {
            return self.at_once();
        }
        task_log::arrived(run.task_id, run.attempt, || self.runner());
        let spec = convert::spec_from_wire(run.spec.unwrap_or_default());
        let begin = self.begin(run.task_id, run.attempt, cluster_id, spec.as_ref().ok());
        self.context.max_task_id.fetch_max(run.task_id, Ordering::Relaxed);
        let mut live = Live::new(begin.clone());
        let order = match spec {
            _ if self.leaving => record(begin, OutcomeKind::NotStarted, "the runner was shutting down"),
            Err(invalid) => {
                let message = format!("program cannot be started: the task makes no sense to this runner: {invalid}");
                record(begin, OutcomeKind::StartFailed, &message)
            }
            Ok(spec) => {
                let (fence_ms, kill_grace_ms) = (self.fence_ms(&spec), self.kill_grace_ms(&spec));
                live.fenced = fence_ms.is_some();
                ToWarden::Start(Box::new(Start {
                    begin,
                    spec,
                    beat_sent_ms,
                    park_ms,
                    host: self.context.config.host.clone(),
                    kill_grace_ms,
                    fence_ms,
                }))
            }
        };
        if !self.tell_warden(order) {
            // Nothing was begun. When there is a warden again, the task is asked for again.
            return Next::After(REST_MIN * 4);
        }
        self.hurried = 0;
        self.held.live = Some(live);
        self.wait_for_warden(run.task_id).await
    }

    /// Until the task has ended, or is known to run.
    async fn wait_for_warden(&mut self, task_id: i64) -> Next {
        let by = Instant::now() + WARDEN_ANSWERS_WITHIN;
        while self
            .held
            .live
            .as_ref()
            .is_some_and(|live| live.begin.task_id == task_id && live.is_starting && live.finishing.is_none())
        {
            match tokio::time::timeout_at(by, self.events.recv()).await {
                Ok(event) => self.hear(event).await,
                Err(_) => {
                    tracing::error!(task_id, "the warden does not answer");
                    break;
                }
            }
        }
        if self.held.live.is_none() && !self.held.has_result(task_id) {
            return self.at_once();
        }
        Next::Now
    }

    /// This runner's own, for a task that names none; a fence must have room for it.
    fn kill_grace_ms(&self, spec: &TaskSpec) -> u64 {
        let own = u64::try_from(self.context.config.kill_grace.as_millis()).unwrap_or(u64::MAX);
        match spec.on_disconnect {
            OnDisconnect::Kill => own.min(kill_grace_max_ms(self.beat_interval_ms).unwrap_or(0)),
            OnDisconnect::Continue => own,
        }
    }

    /// The span of the fence, for a task that must not outlive the contact with the cluster.
    fn fence_ms(&self, spec: &TaskSpec) -> Option<u64> {
        if spec.on_disconnect != OnDisconnect::Kill {
            return None;
        }
        fence_after_ms(
            self.beat_interval_ms,
            spec.kill_grace_ms.unwrap_or_else(|| self.kill_grace_ms(spec)),
        )
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
            keep_workdir: spec.is_some_and(|spec| spec.keep_workdir),
            output_max: spec.map_or(OUTPUT_MAX_BYTES_DEFAULT, |spec| spec.output.max_bytes()),
        }
    }
}

/// The end of a task that is never to be started.
fn record(begin: Begin, kind: OutcomeKind, message: &str) -> ToWarden {
    ToWarden::Record(Record {
        begin,
        kind: kind.name().into(),
        message: message.into(),
    })
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
