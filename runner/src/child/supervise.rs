//! One child from its start to its recorded end: waits for the exit of the main process (never for
//! the end of its output, which a forgotten background process holds open), ends it when told to or when its
//! time is over, clears its group, and sees to its output. Knows no beats.

use super::fork::{Child, End};
use super::output::{self, INTERVAL, Upload};
use super::spawn::{Place, Started};
use super::stop;
use crate::journal::{Begin, Ended, now_ms};
use crate::sweep;
use std::sync::Arc;
use std::time::Duration;
use systole_proto::v1;
use systole_shared::heartbeat::end::StoppedBy;
use systole_shared::limits::OUTPUT_IN_BEAT_BYTES_MAX;
use systole_shared::task::OutcomeKind;
use systole_shared::task::outcome::signal_name;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long the result waits for a large output to be stored before it.
pub const OUTPUT_FIRST: Duration = Duration::from_secs(10);

/// What the agent wants of the child. Orders are only ever added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    pub stop: Option<StoppedBy>,
    /// Nobody wants the result: keep it and the output here.
    pub aside: bool,
}

pub struct Job {
    pub place: Arc<Place>,
    pub started: Started,
    pub child: Child,
    pub begin: Begin,
    pub timeout: Option<Duration>,
    pub grace: Duration,
    pub orders: watch::Receiver<Orders>,
    pub upload: Upload,
}

/// What there is to report.
#[derive(Debug)]
pub struct Finished {
    pub ended: Ended,
    /// The rest of the output, when it is small.
    pub output: Vec<v1::OutputChunk>,
    /// Sends the rest of the output, when it is large; the files must stay until it is through.
    pub sending: Option<JoinHandle<()>>,
}

pub async fn supervise(mut job: Job) -> Finished {
    let mut output = Output::Unseen(job.upload.clone());
    let (end, stopped_by) = wait(&mut job, &mut output).await;
    let ended_at_ms = now_ms();
    let cleared = clear(&mut job, stopped_by).await;
    let mut ended = describe(&job, end, cleared);
    ended.stopped_by = stopped_by;
    ended.ended_at_ms = ended_at_ms.max(ended.started_at_ms);
    let upload = output.halt(&job.upload).await;
    let aside = job.orders.borrow().aside;
    record(&job.place, ended, upload, aside).await
}

async fn wait(job: &mut Job, output: &mut Output) -> (std::io::Result<End>, Option<StoppedBy>) {
    let child = &mut job.child;
    let orders = &mut job.orders;
    let since = tokio::time::Instant::from_std(job.started.at);
    let timeout = job.timeout.and_then(|timeout| since.checked_add(timeout));
    let first_look = tokio::time::sleep(INTERVAL);
    tokio::pin!(first_look);
    let by = loop {
        tokio::select! {
            biased;
            end = child.wait() => return (end, None),
            by = ordered(orders) => break by,
            () = until(timeout) => break StoppedBy::Timeout,
            // A child that ends within the first interval needs no task of its own for its output.
            () = &mut first_look, if !output.is_live() => output.follow(),
        }
    };
    // It ended by itself in the same instant: then nobody stopped it.
    if let Ok(Some(status)) = child.try_wait() {
        return (Ok(status), None);
    }
    (stop::stop(child, job.started.pid, job.grace).await, Some(by))
}

async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Resolves when the child is to be stopped.
async fn ordered(orders: &mut watch::Receiver<Orders>) -> StoppedBy {
    loop {
        if let Some(by) = orders.borrow_and_update().stop {
            return by;
        }
        if orders.changed().await.is_err() {
            // The agent is gone; nobody can give orders any more.
            std::future::pending::<()>().await;
        }
    }
}

/// Ends what the main process left behind. False: not all of it could be ended.
async fn clear(job: &mut Job, stopped_by: Option<StoppedBy>) -> bool {
    let group = job.started.pid;
    if stopped_by.is_none() {
        // A stop that arrives now is for what is left: no more patience with it.
        return tokio::select! {
            biased;
            cleared = stop::drain(group, stop::DRAIN) => cleared,
            _ = ordered(&mut job.orders) => stop::drain(group, Duration::ZERO).await,
        };
    }
    let cleared = stop::drain(group, stop::DRAIN.min(job.grace)).await;
    // Whoever stops a task means all of it, also what made a session of its own. Looking at every process
    // of the host is too dear for each normal end, but not for a stop.
    let markers = sweep::markers(job.begin.task_id, &job.place.state.identity.instance_id);
    let swept = tokio::task::spawn_blocking(move || sweep::end_processes(None, &markers)).await;
    cleared && matches!(swept, Ok(Ok(true)))
}

fn describe(job: &Job, end: std::io::Result<End>, cleared: bool) -> Ended {
    let (kind, exit_code, signal, mut message) = match end {
        Ok(End::Code(0)) => (OutcomeKind::Success, Some(0), None, String::new()),
        Ok(End::Code(code)) => (OutcomeKind::ExitCode, Some(code), None, String::new()),
        Ok(End::Signal(signal)) => (OutcomeKind::Signal, None, Some(signal), String::new()),
        // Somebody else waited for our child; nothing of ours does.
        Err(error) => (
            OutcomeKind::RunnerRestarted,
            None,
            None,
            format!("how the child ended is not known: {error}"),
        ),
    };
    if !cleared {
        let how = match (exit_code, signal) {
            (Some(code), _) => format!("exit code {code}"),
            (_, Some(signal)) => signal_name(signal),
            _ => message,
        };
        message = format!("{how}; some processes of the task could not be ended");
    }
    let mut ended = Ended::without_child(&job.begin, kind, message);
    ended.exit_code = exit_code;
    ended.signal = signal;
    ended.started_at_ms = job.started.at_ms;
    ended
}

/// Writes the result down, then sees that the output is stored before it is reported, within bounds.
async fn record(place: &Arc<Place>, mut ended: Ended, upload: Upload, aside: bool) -> Finished {
    let kept = Arc::clone(place);
    let written = tokio::task::spawn_blocking(move || {
        let sizes = output::sizes(&kept.journal.dir(ended.task_id));
        [ended.stdout_bytes, ended.stderr_bytes] = sizes;
        if let Err(error) = kept.journal.end(&ended) {
            tracing::error!(task_id = ended.task_id, %error, "a result could not be written down; it is lost if the runner stops before it is reported");
        }
        let output = if aside { Vec::new() } else { small_rest(&upload, sizes) };
        (ended, upload, output)
    })
    .await;
    let (ended, mut upload, output) = match written {
        Ok(written) => written,
        Err(error) => std::panic::resume_unwind(error.try_into_panic().unwrap_or_else(|_| Box::new("runtime is down"))),
    };
    let sizes = [ended.stdout_bytes, ended.stderr_bytes];
    if aside || !output.is_empty() || upload.rest(sizes) == 0 {
        return Finished {
            ended,
            output,
            sending: None,
        };
    }
    upload.hurry(OUTPUT_FIRST).await;
    let sending = (upload.rest(sizes) > 0).then(|| tokio::spawn(upload.finish()));
    Finished { ended, output, sending }
}

/// The rest of the output, if it is small enough to ride on the beat. Blocking.
pub fn small_rest(upload: &Upload, sizes: [u64; 2]) -> Vec<v1::OutputChunk> {
    let rest = upload.rest(sizes);
    if rest == 0 || rest > OUTPUT_IN_BEAT_BYTES_MAX as u64 {
        return Vec::new();
    }
    // What cannot be read here is tried again, and complained about, by the upload.
    upload.small_rest(sizes).unwrap_or_default()
}

/// The output of a running child: not looked at yet, or followed by a task of its own.
enum Output {
    Unseen(Upload),
    Live(CancellationToken, JoinHandle<Upload>),
}

impl Output {
    fn is_live(&self) -> bool {
        matches!(self, Output::Live(..))
    }

    fn follow(&mut self) {
        if let Output::Unseen(upload) = self {
            let stop = CancellationToken::new();
            *self = Output::Live(stop.clone(), tokio::spawn(upload.clone().follow(stop)));
        }
    }

    /// The upload, as far as it came.
    async fn halt(self, fresh: &Upload) -> Upload {
        match self {
            Output::Unseen(upload) => upload,
            Output::Live(stop, task) => {
                stop.cancel();
                // From the start, should its task have panicked: storing twice changes nothing.
                task.await.unwrap_or_else(|_| fresh.clone())
            }
        }
    }
}
