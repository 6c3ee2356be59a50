//! One worker of the warden: a thread that forks, watches and ends the tasks of its slots, and talks to the agent over a
//! socket of its own. It shares nothing with its sibling but the place on disk.
//!
//! The thread never ends while it has children: a child asks the kernel to be killed with its parent, and the kernel
//! takes the parent *thread* for that.

mod keep;
mod talk;

use self::keep::Kept;
use super::Shared;
use super::cgroup::{Cgroups, Group};
use super::connection::Connection;
use super::ends;
use super::flood::Watch;
use super::protocol::{self, Drain, FromWarden, Start, Why};
use super::task::{Clocks, Fence, Live, Over};
use super::timers::Timers;
use crate::child::fork::reserve_low_numbers;
use crate::child::spawn::{Launched, launch};
use crate::journal::Ended;
use crate::task_log;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use systole_shared::heartbeat::end::StoppedBy;
use systole_shared::task::OutcomeKind;
use systole_shared::task::output::OnLimit;
use systole_shared::task::spec::OnRunnerRestart;

const LISTENER: u64 = u64::MAX;
const CONNECTION: u64 = u64::MAX - 1;
const WAKE: u64 = u64::MAX - 2;
const NEWCOMER: u64 = u64::MAX - 3;
/// Events taken at once.
const EVENTS: usize = 64;
/// After an agent could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Groups kept for later tasks.
const GROUPS_MAX: usize = 64;
/// How long a warden without an agent and without tasks stays, if it is not told to stay for good.
const IDLE_STAY: Duration = Duration::from_secs(10);
/// How long a draining warden waits for its agent to deliver and go.
const DELIVER_WITHIN: Duration = Duration::from_secs(20);

pub struct Worker {
    shared: Arc<Shared>,
    epoll: Epoll,
    listener: UnixListener,
    wake: Arc<EventFd>,
    connection: Option<Connection>,
    /// Has not said yet who it is.
    newcomer: Option<Connection>,
    /// Without an agent since then.
    detached_at: Instant,
    /// The start of the agent that was greeted last.
    agent_start: u64,
    live: HashMap<i64, Live>,
    kept: HashMap<i64, Kept>,
    groups: Vec<Group>,
    keeps_groups: bool,
    timers: Timers,
    draining_since: Option<Instant>,
    /// Draining, and nothing lives any more.
    drained_at: Option<Instant>,
    /// The last change of the host's health that the agent was told of.
    health_told: u64,
    /// An agent is there, or a task lives; as the sibling was told.
    is_busy: bool,
    quiet_since: Instant,
}

impl Worker {
    pub fn new(shared: Arc<Shared>, listener: UnixListener, wake: Arc<EventFd>, ends: Vec<Ended>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        listener.set_nonblocking(true)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        epoll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        let kept = ends.into_iter().map(|ended| {
            let kept = Kept {
                ended,
                files: None,
                nobody_inside: false,
                is_written: true,
            };
            (kept.ended.task_id, kept)
        });
        Ok(Self {
            shared,
            epoll,
            listener,
            wake,
            connection: None,
            newcomer: None,
            detached_at: Instant::now(),
            agent_start: 0,
            live: HashMap::new(),
            kept: kept.collect(),
            groups: Vec::new(),
            keeps_groups: true,
            timers: Timers::default(),
            draining_since: None,
            drained_at: None,
            health_told: 0,
            is_busy: false,
            quiet_since: Instant::now(),
        })
    }

    /// Returns when the warden has nothing to do any more.
    pub fn run(mut self) {
        reserve_low_numbers();
        let mut events = [EpollEvent::empty(); EVENTS];
        while !self.is_over() {
            let count = match self.epoll.wait(&mut events, self.patience()) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(errno) => {
                    // Nothing that this thread does can make the call fail; without it nothing can be done.
                    tracing::error!(%errno, "the warden cannot wait for events");
                    std::process::abort();
                }
            };
            let now = Instant::now();
            for event in &events[..count] {
                match event.data() {
                    LISTENER => self.accept(),
                    CONNECTION => self.serve(event.events(), now),
                    NEWCOMER => self.meet(now),
                    WAKE => drop(self.wake.read()),
                    id => self.child_event(i64::try_from(id).unwrap_or(0), now),
                }
            }
            self.tell_health();
            self.drain_if_told(now);
            self.end_without_agent(now);
            self.fire(Instant::now());
            self.flush();
        }
    }

    fn patience(&self) -> EpollTimeout {
        let now = Instant::now();
        let timer = self.timers.first();
        let alone = self.connection.is_none().then(|| now + Duration::from_secs(1));
        let leaving = self.draining_since.map(|_| now + Duration::from_millis(200));
        match [timer, alone, leaving].into_iter().flatten().min() {
            None => EpollTimeout::NONE,
            Some(at) => {
                // Rounded up: a timer that fires early is only asked again.
                let pause = at.saturating_duration_since(now).as_micros().div_ceil(1_000);
                EpollTimeout::try_from(i32::try_from(pause).unwrap_or(i32::MAX)).unwrap_or(EpollTimeout::ZERO)
            }
        }
    }

    /// Whether this worker and its sibling have neither tasks nor an agent, for long enough.
    fn is_over(&mut self) -> bool {
        if self.shared.abandoned.load(Ordering::SeqCst) {
            return true;
        }
        let now = Instant::now();
        let busy = !self.live.is_empty() || self.connection.is_some();
        if busy != self.is_busy {
            self.is_busy = busy;
            self.quiet_since = now;
            self.shared.count_busy(busy);
        }
        if let Some(since) = self.drained_at {
            // The agent goes when it has delivered what it can; the rest waits on disk.
            return self.connection.is_none() || now.saturating_duration_since(since) >= DELIVER_WITHIN;
        }
        let quiet = !busy && now.saturating_duration_since(self.quiet_since) >= IDLE_STAY;
        quiet && !self.shared.plan.stays && self.shared.nobody_is_busy()
    }

    /// `withdrawn`: the order to end it is there already.
    fn start(&mut self, start: &Start, withdrawn: bool) {
        let (task_id, slot) = (start.begin.task_id, start.begin.slot);
        if self.live.contains_key(&task_id) || self.kept.contains_key(&task_id) {
            return self.not_begun(task_id, slot, Why::Held);
        }
        if withdrawn {
            return self.not_begun(task_id, slot, Why::TooLate);
        }
        if self.draining_since.is_some() {
            return self.record(
                &start.begin,
                OutcomeKind::NotStarted.name(),
                "the runner was shutting down",
            );
        }
        let fence = start.fence_ms.map(|span_ms| Fence {
            span_ms,
            heard_ms: start.beat_sent_ms,
        });
        let group = self.group();
        match launch(&self.shared.place, start, group) {
            Launched::Started(started, files) => {
                let pid = started.pid;
                let grace = Duration::from_millis(start.kill_grace_ms);
                let output = &start.spec.output;
                let watch = Watch::new(
                    (output.on_limit == OnLimit::Kill).then(|| output.max_bytes()),
                    self.shared.plan.output_file_max,
                    output.max_bytes(),
                    started.at,
                );
                let mut live = Live::new(
                    start.begin.clone(),
                    files,
                    started,
                    Clocks::of(&start.spec, grace),
                    fence,
                    watch,
                );
                live.ends_with_agent = start.spec.on_runner_restart == OnRunnerRestart::Kill;
                let watched = live
                    .handle
                    .as_ref()
                    .map(|handle| ends::watch(&self.epoll, handle, task_id));
                if !matches!(watched, Some(Ok(()))) {
                    // Out of descriptors, say: then it is looked after by the clock.
                    live.handle = None;
                }
                self.live.insert(task_id, live);
                task_log::forked(task_id, pid, || format!("{}/{slot}", start.host));
                self.reschedule(task_id);
            }
            Launched::TooLate => self.not_begun(task_id, slot, Why::TooLate),
            Launched::Held => self.not_begun(task_id, slot, Why::Held),
            Launched::Refused(refusal, files) => {
                let (kind, message) = refusal.into_outcome();
                let ended = Ended::without_child(&start.begin, kind, message);
                self.keep(ended, Some(files), true);
            }
            Launched::NotStarted(fault, files) => {
                let message = format!("the runner on {} can start nothing: {}", start.host, fault.detail);
                tracing::error!(task_id, "{message}");
                self.shared.health.failed(fault);
                self.shared.wake();
                self.tell_health();
                let ended = Ended::without_child(&start.begin, OutcomeKind::NotStarted, message);
                self.keep(ended, files, true);
            }
        }
    }

    fn group(&mut self) -> Option<Group> {
        let cgroups: &Cgroups = self.shared.cgroups.as_ref()?;
        if let Some(group) = self.groups.pop() {
            return Some(group);
        }
        match cgroups.make() {
            Ok(group) => Some(group),
            Err(error) => {
                tracing::warn!(%error, "no control group could be made; a task runs without");
                None
            }
        }
    }

    fn child_event(&mut self, task_id: i64, now: Instant) {
        self.change(task_id, |live| {
            live.see_end(now);
        });
    }

    /// Changes a task, and sees to what follows.
    fn change(&mut self, task_id: i64, change: impl FnOnce(&mut Live)) {
        if let Some(live) = self.live.get_mut(&task_id) {
            change(live);
            self.tick(task_id, Instant::now());
        }
    }

    fn tick(&mut self, task_id: i64, now: Instant) {
        let Some(live) = self.live.get_mut(&task_id) else {
            return;
        };
        if live.tick(now) {
            self.timers.unset(task_id);
            if let Some(live) = self.live.remove(&task_id) {
                let keep_workdir = live.begin.keep_workdir;
                let Over { mut ended, files, tree } = live.over();
                let keep = self.shared.plan.keep_output;
                let is_long = ended.stdout_bytes.max(ended.stderr_bytes) > ended.output_max;
                ended.detail.output_until_ms = (is_long && !keep.time.is_zero() && keep.bytes > 0).then(|| {
                    let until = Duration::from_millis(ended.ended_at_ms).saturating_add(keep.time);
                    i64::try_from(until.as_millis()).unwrap_or(i64::MAX)
                });
                if keep_workdir {
                    self.shared.place.journal.keep_work_of(&mut ended);
                }
                let nobody_inside = tree.is_proven_empty();
                if self.keeps_groups && self.groups.len() < GROUPS_MAX {
                    self.groups.extend(tree.into_group());
                }
                self.keep(ended, Some(files), nobody_inside);
            }
            return;
        }
        if live.announce_at.is_some_and(|at| now >= at) {
            live.announce_at = None;
            let started = protocol::Started {
                task_id,
                slot: live.begin.slot,
            };
            self.say(&FromWarden::Started(started));
        }
        self.reschedule(task_id);
    }

    fn fire(&mut self, now: Instant) {
        // At most once for each that is due: one that wants to be called again at once waits for its turn.
        for id in self.timers.due(now) {
            self.tick(id, now);
        }
    }

    fn reschedule(&mut self, task_id: i64) {
        self.timers.set(task_id, self.live.get(&task_id).and_then(Live::due));
    }

    fn stop_all(&mut self, by: StoppedBy, now: Instant) {
        let ids: Vec<i64> = self.live.keys().copied().collect();
        for id in ids {
            self.change(id, |live| live.stop(by, now));
        }
    }

    fn drain_if_told(&mut self, now: Instant) {
        if !self.shared.draining.load(Ordering::SeqCst) {
            return;
        }
        if self.draining_since.is_none() {
            self.draining_since = Some(now);
            self.say(&FromWarden::Draining(Drain {}));
        }
        let waited = self
            .draining_since
            .is_some_and(|since| now.saturating_duration_since(since) >= self.shared.plan.drain_wait);
        if waited && self.live.values().any(|live| !live.is_stopping()) {
            self.stop_all(StoppedBy::Drain, now);
        }
        if self.live.is_empty() && self.drained_at.is_none() {
            self.drained_at = Some(now);
        }
    }

    /// An agent that is gone for good must not leave tasks behind that nobody can stop.
    fn end_without_agent(&mut self, now: Instant) {
        let alone = self.connection.is_none() && !self.live.is_empty();
        if alone
            && now.saturating_duration_since(self.detached_at) >= self.shared.plan.adopt_window
            && self.live.values().any(|live| !live.is_stopping())
        {
            tracing::warn!("no agent came back in time; the tasks are ended");
            self.stop_all(StoppedBy::Fence, now);
        }
    }
}
