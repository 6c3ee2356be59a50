//! One task whose processes live, from its start until nothing of it is left: its clocks, who stopped it, and the
//! steps of stopping. Driven by a worker: it is told when the main process has ended and when a moment has come that
//! it asked for. Never waits.
//!
//! The end of a task is the end of its main process. What that left behind has a moment to go (it may still be
//! writing), and is ended then; the end of a pipe is waited for by nobody.

use super::flood::Watch;
use super::limiter;
use super::tree::Tree;
use crate::child::fork::{self, End, Usage};
use crate::child::terminal::Pump;
use crate::journal::{Begin, Ended, TaskFiles, now_ms};
use crate::{boottime, child};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use systole_shared::heartbeat::end::StoppedBy;
use systole_shared::limits::END_SIGNALS_MAX;
use systole_shared::task::detail::{self, SignalSent};
use systole_shared::task::signal::signal_name;
use systole_shared::task::{OutcomeKind, TaskSpec};

/// How long the rest of a tree may go on after its main process has ended by itself.
pub const DRAIN: Duration = Duration::from_secs(2);
/// How long ended processes are waited for, before it is said that they were not seen gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// A task that ends sooner is told with its end only.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(10);
/// Where the end of a process cannot be awaited, before Linux 5.3.
const POLL_EVERY: Duration = Duration::from_millis(10);
/// A fence is by the clock that goes on in a suspend; timers are not, so it is looked at this often.
const FENCE_EVERY: Duration = Duration::from_secs(1);

/// What limits the run of one task.
#[derive(Clone, Debug)]
pub struct Clocks {
    timeout: Option<Duration>,
    warn: Option<(Duration, i32)>,
    silence: Option<Duration>,
    kill_signal: i32,
    grace: Duration,
}

impl Clocks {
    pub fn of(spec: &TaskSpec, default_grace: Duration) -> Self {
        let timeout = spec.timeout_ms.map(Duration::from_millis);
        let warn_before = spec.warn_before_ms.map(Duration::from_millis);
        Self {
            timeout,
            warn: timeout
                .zip(warn_before)
                .zip(spec.warn_signal)
                .map(|((timeout, before), signal)| (timeout.saturating_sub(before), signal)),
            silence: spec.silence_timeout_ms.map(Duration::from_millis),
            kill_signal: spec.kill_signal,
            grace: spec.kill_grace_ms.map_or(default_grace, Duration::from_millis),
        }
    }
}

/// The cluster must have heard of the task within `span_ms`, or it is ended.
#[derive(Clone, Copy, Debug)]
pub struct Fence {
    pub span_ms: u64,
    /// By `CLOCK_BOOTTIME`.
    pub heard_ms: u64,
}

impl Fence {
    fn has_fallen(&self) -> bool {
        boottime::now_ms().saturating_sub(self.heard_ms) >= self.span_ms
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// The first signal is sent.
    Stopping {
        kill_at: Instant,
    },
    /// KILL is sent, and the main process has not ended yet. It may be in an uninterruptible call, e.g. to a dead
    /// file server: its end is not claimed before it is seen.
    Killing {
        again_at: Instant,
    },
    /// The main process has ended; the rest may go on until then.
    Draining {
        until: Instant,
    },
    /// The rest is ended.
    Clearing {
        until: Instant,
    },
}

#[derive(Debug)]
pub struct Live {
    pub begin: Begin,
    pub files: TaskFiles,
    pub pid: i32,
    /// Readable once the main process has ended.
    pub handle: Option<OwnedFd>,
    pub clocks: Clocks,
    pub fence: Option<Fence>,
    pub tree: Tree,
    pub pump: Option<Pump>,
    /// When the agent is to be told that it started; `None` once it was.
    pub announce_at: Option<Instant>,
    /// Its end is not to outlive an agent.
    pub ends_with_agent: bool,
    at: Instant,
    at_ms: u64,
    phase: Phase,
    stopped_by: Option<StoppedBy>,
    end: Option<(std::io::Result<(End, Usage)>, u64)>,
    signals: Vec<SignalSent>,
    leftovers: u32,
    warned: bool,
    watch: Watch,
    /// Of both streams, and since when.
    output: (u64, Instant),
    polls: u32,
    poll_at: Instant,
}

/// A task of which nothing lives any more.
#[derive(Debug)]
pub struct Over {
    pub ended: Ended,
    pub files: TaskFiles,
    pub tree: Tree,
}

impl Live {
    pub fn new(
        begin: Begin,
        files: TaskFiles,
        started: child::spawn::Started,
        clocks: Clocks,
        fence: Option<Fence>,
        watch: Watch,
    ) -> Self {
        let at = started.at;
        Self {
            begin,
            files,
            pid: started.pid,
            handle: started.handle,
            clocks,
            fence,
            tree: started.tree,
            pump: started.pump,
            announce_at: Some(at + ANNOUNCE_AFTER),
            ends_with_agent: false,
            at,
            at_ms: started.at_ms,
            phase: Phase::Running,
            stopped_by: None,
            end: None,
            signals: Vec::new(),
            leftovers: 0,
            warned: false,
            watch,
            output: (0, at),
            polls: 0,
            poll_at: at,
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopped_by.is_some()
    }

    /// When [`Live::tick`] wants to be called next.
    pub fn due(&self) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Running => self.due_running(),
            Phase::Stopping { kill_at } => Some(kill_at),
            Phase::Killing { again_at } => Some(again_at),
            Phase::Draining { until } | Phase::Clearing { until } => Some(self.poll_at.min(until)),
        };
        let blind = (self.handle.is_none() && self.end.is_none()).then(|| self.poll_at + POLL_EVERY);
        [phase, self.announce_at, blind].into_iter().flatten().min()
    }

    fn due_running(&self) -> Option<Instant> {
        let clocks = &self.clocks;
        let warn = clocks.warn.filter(|_| !self.warned).map(|(after, _)| after);
        [
            clocks.timeout.and_then(|timeout| self.at.checked_add(timeout)),
            warn.and_then(|after| self.at.checked_add(after)),
            clocks.silence.and_then(|silence| self.output.1.checked_add(silence)),
            self.fence.map(|_| self.poll_at + FENCE_EVERY),
            Some(self.watch.due()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The first who stops it is the one who did. A stop that comes when only a rest is left ends its patience.
    pub fn stop(&mut self, by: StoppedBy, now: Instant) {
        match self.phase {
            Phase::Running => {
                // It ended by itself in the same instant: then nobody stopped it.
                if self.see_end(now) {
                    return;
                }
                self.stopped_by = Some(by);
                self.send(self.clocks.kill_signal);
                self.phase = Phase::Stopping {
                    kill_at: now + self.clocks.grace,
                };
            }
            Phase::Draining { .. } => self.phase = Phase::Draining { until: now },
            Phase::Stopping { .. } | Phase::Killing { .. } | Phase::Clearing { .. } => {}
        }
    }

    /// Looks whether the main process has ended.
    pub fn see_end(&mut self, now: Instant) -> bool {
        if self.end.is_some() {
            return true;
        }
        let end = match fork::reap(self.pid) {
            Ok(None) => return false,
            Ok(Some(end)) => Ok(end),
            Err(error) => Err(error),
        };
        self.end = Some((end, now_ms().max(self.at_ms)));
        self.handle = None;
        if let Some(pump) = &mut self.pump {
            pump.let_go();
        }
        (self.polls, self.poll_at) = (0, now);
        self.phase = match self.phase {
            // Whoever stops a task means all of it: its rest has the same time.
            Phase::Stopping { kill_at } => Phase::Draining { until: kill_at },
            Phase::Killing { .. } => Phase::Clearing {
                until: now + GONE_WITHIN,
            },
            _ => Phase::Draining { until: now + DRAIN },
        };
        true
    }

    /// Does what is due. True: nothing of the task is left, or nothing that could be ended.
    pub fn tick(&mut self, now: Instant) -> bool {
        if self.end.is_none() && self.handle.is_none() {
            self.poll_at = now;
            self.see_end(now);
        }
        match self.phase {
            Phase::Running => {
                self.tick_running(now);
                false
            }
            Phase::Stopping { kill_at } if now >= kill_at => {
                self.send_kill(now);
                false
            }
            Phase::Killing { again_at } if now >= again_at => {
                if self.signals.len() < 8 {
                    tracing::warn!(
                        pid = self.pid,
                        task_id = self.begin.task_id,
                        "a killed process does not end; it is waited for"
                    );
                }
                self.send_kill(now);
                false
            }
            Phase::Stopping { .. } | Phase::Killing { .. } => false,
            Phase::Draining { until } => {
                if self.is_gone(now) {
                    return true;
                }
                if now >= until {
                    self.leftovers = self.tree.count();
                    self.note(libc::SIGKILL);
                    self.tree.kill();
                    self.phase = Phase::Clearing {
                        until: now + GONE_WITHIN,
                    };
                    (self.polls, self.poll_at) = (0, now);
                }
                false
            }
            Phase::Clearing { until } => {
                if self.is_gone(now) {
                    return true;
                }
                // Again each time: a process may fork while it is being killed.
                self.tree.kill();
                now >= until
            }
        }
    }

    fn tick_running(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.at);
        if self.fence.is_some() {
            self.poll_at = now;
        }
        if self.fence.is_some_and(|fence| fence.has_fallen()) {
            return self.stop(StoppedBy::Fence, now);
        }
        if self.clocks.timeout.is_some_and(|timeout| since >= timeout) {
            return self.stop(StoppedBy::Timeout, now);
        }
        if let Some((after, signal)) = self.clocks.warn
            && !self.warned
            && since >= after
        {
            self.warned = true;
            self.send(signal);
        }
        if self.watch.look(&self.files, now) {
            return self.stop(StoppedBy::OutputLimit, now);
        }
        if let Some(silence) = self.clocks.silence
            && now.saturating_duration_since(self.output.1) >= silence
        {
            let size = self.files.sizes().iter().sum();
            if size == self.output.0 {
                return self.stop(StoppedBy::Silence, now);
            }
            // Written since the last look. The file knows when; its clock may have been set meanwhile, so within reason.
            let age = self.files.age().min(now.saturating_duration_since(self.output.1));
            self.output = (size, now.checked_sub(age).unwrap_or(now));
        }
    }

    fn is_gone(&mut self, now: Instant) -> bool {
        if self.tree.is_empty() && self.pump.as_ref().is_none_or(Pump::is_done) {
            return true;
        }
        let pause = Duration::from_millis((1_u64 << self.polls.min(6)).min(50));
        (self.polls, self.poll_at) = (self.polls + 1, now + pause);
        false
    }

    fn send(&mut self, signal: i32) {
        self.note(signal);
        self.tree.signal(signal);
    }

    fn send_kill(&mut self, now: Instant) {
        self.note(libc::SIGKILL);
        self.tree.kill();
        self.phase = Phase::Killing {
            again_at: now + GONE_WITHIN,
        };
    }

    fn note(&mut self, signal: i32) {
        if self.signals.len() < END_SIGNALS_MAX {
            self.signals.push(SignalSent {
                signal,
                at_ms: systole_shared::clock::now_ms(),
            });
        }
    }

    /// To be called once [`Live::tick`] said so.
    pub fn over(self) -> Over {
        let tree_empty = self.tree.is_empty();
        let note = self.pump.and_then(Pump::note);
        let (end, ended_at_ms) = self
            .end
            .unwrap_or_else(|| (Err(std::io::Error::other("it was not seen")), now_ms()));
        let (kind, exit_code, signal, mut message) = match &end {
            Ok((End::Code(0), _)) => (OutcomeKind::Success, Some(0), None, String::new()),
            Ok((End::Code(code), _)) => (OutcomeKind::ExitCode, Some(*code), None, String::new()),
            Ok((End::Signal(signal), _)) => (OutcomeKind::Signal, None, Some(*signal), String::new()),
            // Somebody else waited for our child; nothing of ours does.
            Err(error) => (
                OutcomeKind::RunnerRestarted,
                None,
                None,
                format!("how the child ended is not known: {error}"),
            ),
        };
        let how = match (exit_code, signal) {
            (Some(code), _) => format!("exit code {code}"),
            (_, Some(signal)) => signal_name(signal),
            _ => message.clone(),
        };
        let counted = self.tree.counted().unwrap_or_default();
        let mut kind = kind;
        if matches!(kind, OutcomeKind::ExitCode | OutcomeKind::Signal)
            && self.stopped_by.is_none()
            && let Some(verdict) = counted.verdict(&how)
        {
            (kind, message) = (OutcomeKind::OutOfMemory, verdict);
        }
        if !tree_empty {
            message = format!("{how}; some processes of the task could not be ended");
        }
        let mut ended = Ended::without_child(&self.begin, kind, message);
        ended.exit_code = exit_code;
        ended.signal = signal;
        ended.started_at_ms = self.at_ms;
        ended.ended_at_ms = ended_at_ms;
        let sizes = self.files.sizes();
        // Also one that ended before it was looked at again: what becomes of a task is not a matter of luck.
        let exceeds = self.watch.exceeds(sizes).then_some(StoppedBy::OutputLimit);
        ended.stopped_by = self.stopped_by.or(exceeds);
        [ended.stdout_bytes, ended.stderr_bytes] = sizes;
        ended.detail.tree_empty = Some(tree_empty);
        ended.detail.signals = self.signals;
        ended.detail.leftovers = self.leftovers;
        ended.detail.memory_limit_bytes = counted.memory_bytes;
        ended.detail.oom_kills = u32::try_from(counted.oom_kills).unwrap_or(u32::MAX);
        let maybe_memory = kind == OutcomeKind::Signal
            && signal == Some(libc::SIGKILL)
            && ended.detail.signals.is_empty()
            && limiter::host_was_out_of_memory(self.at);
        let memory = maybe_memory.then(|| {
            "the host was out of memory meanwhile, and its kernel ended processes, perhaps this one".to_owned()
        });
        ended.detail.note = note.into_iter().chain(memory).collect::<Vec<_>>().join("; ");
        ended.detail.usage = end.ok().map(|(_, usage)| detail::Usage {
            user_cpu_us: Some(usage.user_us),
            system_cpu_us: Some(usage.system_us),
            peak_memory_bytes: Some(counted.peak_bytes.unwrap_or(usage.peak_bytes)),
            read_bytes: Some(usage.read_bytes),
            written_bytes: Some(usage.written_bytes),
        });
        Over {
            ended,
            files: self.files,
            tree: self.tree,
        }
    }
}
