//! What a slot does with an answer of the scheduler, or with none.

use super::{Agent, Next, REST_MIN, REST_WHILE_STOPPING, REST_WHILE_TAKEN};
use crate::backoff::jitter;
use crate::boottime;
use crate::link::{Missed, Trouble};
use crate::warden::protocol::{self, Alive, ToWarden};
use std::time::Duration;
use systole_proto::{convert, v1};
use systole_shared::heartbeat::end::StoppedBy;
use systole_shared::heartbeat::react::{Action, Command, acceptable, react};
use systole_shared::limits::PARK_MS_MAX;

/// An answer that took as long was held back, and did not come at once.
const HELD_BACK_MS: u64 = 1_000;

impl Agent {
    /// No answer that could be acted on.
    pub(super) fn missed(&mut self, missed: Missed) -> Next {
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

    pub(super) async fn answered(
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
            Action::Keep => {
                self.quiet = self.held.is_empty();
                self.keep(answer.next_beat_ms, boottime::now_ms().saturating_sub(sent_ms))
            }
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

    /// `took_ms`: how long the answer took.
    fn keep(&mut self, next_beat_ms: u64, took_ms: u64) -> Next {
        self.hurried = 0;
        let mut pause = Duration::from_millis(next_beat_ms.min(PARK_MS_MAX));
        // An idle slot that rests cannot be given anything. One whose beat was held back beats rarely enough.
        if took_ms < HELD_BACK_MS {
            pause = pause.max(REST_MIN);
        }
        // Seconds are spread, so that slots which were answered together do not come back together.
        Next::After(if pause > Duration::from_secs(1) {
            jitter(pause)
        } else {
            pause
        })
    }

    /// The next beat at once, unless that was tried before and changed nothing.
    pub(super) fn at_once(&mut self) -> Next {
        self.hurried = self.hurried.saturating_add(1);
        match self.hurried {
            0..=2 => Next::Now,
            more => Next::After(REST_MIN.saturating_mul(1 << (more - 3).min(6))),
        }
    }

    pub(super) fn stop(&mut self, aside: bool) -> Next {
        let runner = self.runner();
        if let Some(live) = &mut self.held.live {
            live.aside |= aside;
            if !live.is_stopping {
                let task_id = live.begin.task_id;
                let by = StoppedBy::Reset;
                let stop = ToWarden::Stop(protocol::Stop { task_id, by });
                // If nobody is there to take it, the next RESET tells it again.
                live.is_stopping = self.context.warden.send(self.slot, stop);
                if live.is_stopping {
                    tracing::info!(task_id, runner, aside, "a child is stopped, as the scheduler says");
                }
            }
        }
        Next::After(REST_WHILE_STOPPING)
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
