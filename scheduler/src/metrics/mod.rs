//! What is counted, for Prometheus: the counters and histograms of this replica, and how they are written.

pub mod families;
pub mod histogram;
mod text;

pub use text::render;

use crate::auth::rules::CALLS;
use crate::clock::boottime_ms;
use crate::context::Context;
use crate::flow::status::{self, ClusterStatus};
use crate::store::claims::Run;
use crate::store::finish::Ended;
use crate::store::live::LiveTasks;
use crate::store::{Db, StoreError};
use histogram::{Histogram, LONG_MS, SHORT_MS};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use systole_shared::task::OutcomeKind;
use tokio::sync::Mutex;

/// Numbers from the database are at most this old: scrapes that come together share one reading.
const LIVE_AGE_MS: i64 = 5_000;
/// What `systole status` looks back without --since, ms.
const DAY_MS: i64 = 86_400_000;

#[derive(Debug)]
struct Call {
    took: Histogram,
    refused: AtomicU64,
}

/// How many of the runners of a claim got a task.
#[derive(Debug, Default)]
struct Claims {
    all: AtomicU64,
    some: AtomicU64,
    none: AtomicU64,
}

/// What this replica has counted.
#[derive(Debug)]
pub struct Metrics {
    /// One for each line of the table of access.
    calls: Vec<Call>,
    submitted: AtomicU64,
    dispatched_with_claim: AtomicU64,
    dispatched_with_answer: AtomicU64,
    /// One for each kind, in their order.
    ended: Vec<AtomicU64>,
    claims: Claims,
    claim: Histogram,
    queue_wait: Histogram,
    start: Histogram,
    beat: Histogram,
    report: Histogram,
    live: Mutex<Option<(i64, Vec<LiveTasks>)>>,
    status: Mutex<Option<(i64, Arc<ClusterStatus>)>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let call = |_| Call {
            took: Histogram::new(SHORT_MS),
            refused: AtomicU64::default(),
        };
        Self {
            calls: CALLS.iter().map(call).collect(),
            submitted: AtomicU64::default(),
            dispatched_with_claim: AtomicU64::default(),
            dispatched_with_answer: AtomicU64::default(),
            ended: OutcomeKind::ALL.iter().map(|_| AtomicU64::default()).collect(),
            claims: Claims::default(),
            claim: Histogram::new(SHORT_MS),
            queue_wait: Histogram::new(LONG_MS),
            start: Histogram::new(LONG_MS),
            beat: Histogram::new(SHORT_MS),
            report: Histogram::new(SHORT_MS),
            live: Mutex::default(),
            status: Mutex::default(),
        }
    }
}

fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(u64::try_from(n).unwrap_or(u64::MAX), Ordering::Relaxed);
}

impl Metrics {
    /// Tasks per state, at most a few seconds old.
    pub async fn live_tasks(&self, db: &Db) -> Result<Vec<LiveTasks>, StoreError> {
        // Held across the read on purpose: those that ask together share one.
        let mut cached = self.live.lock().await;
        let now = boottime_ms();
        if let Some((at, rows)) = cached.as_ref()
            && now - at <= LIVE_AGE_MS
        {
            return Ok(rows.clone());
        }
        let rows = db.live_tasks().await?;
        *cached = Some((now, rows.clone()));
        Ok(rows)
    }

    /// The numbers of `systole status`, at most a few seconds old.
    async fn status(&self, ctx: &Context) -> Result<Arc<ClusterStatus>, StoreError> {
        // As above.
        let mut cached = self.status.lock().await;
        let now = boottime_ms();
        if let Some((at, status)) = cached.as_ref()
            && now - at <= LIVE_AGE_MS
        {
            return Ok(Arc::clone(status));
        }
        let status = Arc::new(status::read(ctx, -DAY_MS).await?);
        *cached = Some((now, Arc::clone(&status)));
        Ok(status)
    }

    /// One call was answered, or its stream begun. `index` is its line in the table of access.
    pub fn called(&self, index: usize, took: Duration, refused: bool) {
        if let Some(call) = self.calls.get(index) {
            call.took.add(took);
            call.refused.fetch_add(u64::from(refused), Ordering::Relaxed);
        }
    }

    pub fn submitted(&self, tasks: usize) {
        add(&self.submitted, tasks);
    }

    /// `answered`: with the answer to a beat, and not with a claim.
    pub fn dispatched(&self, runs: &[Run], answered: bool) {
        let counter = if answered {
            &self.dispatched_with_answer
        } else {
            &self.dispatched_with_claim
        };
        add(counter, runs.len());
        runs.iter().for_each(|run| self.queue_wait.add_ms(run.waited_ms));
    }

    /// A claim, and how many of its free runners got a task and did not.
    pub fn claimed(&self, took: Duration, fed: usize, unfed: usize) {
        self.claim.add(took);
        let counter = match (fed, unfed) {
            (0, _) => &self.claims.none,
            (_, 0) => &self.claims.all,
            _ => &self.claims.some,
        };
        add(counter, 1);
    }

    /// Tasks whose start was told, and how long they had been due.
    pub fn started(&self, start_ms: &[i64]) {
        start_ms.iter().for_each(|&ms| self.start.add_ms(ms));
    }

    /// A beat was decided; `recorded`: results of it were.
    pub fn beat(&self, took: Duration, recorded: bool) {
        self.beat.add(took);
        if recorded {
            self.report.add(took);
        }
    }

    pub fn ended(&self, ended: &Ended) {
        for kind in &ended.kinds {
            let at = OutcomeKind::ALL.iter().position(|known| known == kind);
            if let Some(counter) = at.and_then(|at| self.ended.get(at)) {
                add(counter, 1);
            }
        }
        self.started(&ended.start_ms);
    }
}
