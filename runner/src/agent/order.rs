//! The order to begin a task, from the scheduler's words to the warden's.

use super::held::Live;
use super::unanswered::Order;
use super::{Agent, Next, REST_MIN, WARDEN_ANSWERS_WITHIN, beat};
use crate::journal::Begin;
use crate::task_log;
use crate::warden::protocol::{Record, Start, ToWarden};
use std::sync::atomic::Ordering;
use std::time::Duration;
use systole_proto::{convert, v1};
use systole_shared::limits::{OUTPUT_MAX_BYTES_DEFAULT, RESULTS_PER_BEAT_MAX};
use systole_shared::policy::fence::{fence_after_ms, kill_grace_max_ms};
use systole_shared::task::spec::OnDisconnect;
use systole_shared::task::{OutcomeKind, TaskSpec};
use tokio::time::Instant;

impl Agent {
    pub(super) async fn start(&mut self, run: v1::RunNew, cluster_id: String, beat_sent_ms: u64, park_ms: u64) -> Next {
        // Not the task that the beat named, or react would know: an older one, whose result is on its way.
        if self.held.has_result(run.task_id) || self.held.results.len() >= RESULTS_PER_BEAT_MAX {
            return self.at_once();
        }
        task_log::arrived(run.task_id, run.attempt, || self.runner());
        let spec = convert::spec_from_wire(run.spec.unwrap_or_default());
        let begin = self.begin(run.task_id, run.attempt, cluster_id, spec.as_ref().ok());
        self.context.max_task_id.fetch_max(run.task_id, Ordering::Relaxed);
        let mut live = Live::new(begin.clone(), Some(Order::new(beat_sent_ms, park_ms)));
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
        if !self.context.warden.send_order(self.slot, self.inventory_no, order) {
            // Nothing was begun. When there is a warden again, and it is known what it holds, the task is asked for again.
            return Next::After(REST_MIN * 4);
        }
        self.hurried = 0;
        self.held.live = Some(live);
        self.wait_for_warden(run.task_id).await
    }

    /// Until the task has ended, or is known to run.
    async fn wait_for_warden(&mut self, task_id: i64) -> Next {
        // No longer than from beat to beat: a slot that waits here is silent.
        let by = Instant::now() + WARDEN_ANSWERS_WITHIN.min(Duration::from_millis(self.beat_interval_ms));
        while self
            .held
            .live
            .as_ref()
            .is_some_and(|live| live.begin.task_id == task_id && live.is_unanswered())
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
