//! What is counted, for Prometheus. Labels are bounded: calls are those of the table of access, the rest are words of ours.
//! Counters and histograms are this replica's own; what is read from the database is the same at every replica.

use crate::auth::rules::CALLS;
use crate::clock::boottime_ms;
use crate::context::Context;
use crate::store::live::LiveTasks;
use crate::store::{Db, StoreError};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use systole_shared::task::TaskState;

/// Upper bounds of the buckets, ms.
const BUCKETS_MS: [u64; 12] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000];
/// Numbers from the database are at most this old: scrapes that come together share one reading.
const LIVE_AGE_MS: i64 = 5_000;

/// How long something took.
#[derive(Debug, Default)]
struct Histogram {
    /// Not cumulative; the last is for everything above the highest bound.
    buckets: [AtomicU64; BUCKETS_MS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn add(&self, took: Duration) {
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let at = BUCKETS_MS.partition_point(|&bound| bound < ms);
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Cumulative, as Prometheus wants it.
    fn write(&self, out: &mut String, name: &str, labels: &str) {
        let mut count = 0;
        for (bucket, bound) in self.buckets.iter().zip(BUCKETS_MS) {
            count += bucket.load(Ordering::Relaxed);
            let seconds = bound as f64 / 1_000.0;
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{seconds}\"}} {count}");
        }
        count += self.buckets[BUCKETS_MS.len()].load(Ordering::Relaxed);
        let sum = self.sum_us.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(out, "{name}_sum{{{labels}}} {sum}");
        let _ = writeln!(out, "{name}_count{{{labels}}} {count}");
    }
}

#[derive(Debug, Default)]
struct Call {
    took: Histogram,
    refused: AtomicU64,
}

/// What this replica has counted.
#[derive(Debug)]
pub struct Metrics {
    /// One for each line of the table of access.
    calls: Vec<Call>,
    live: tokio::sync::Mutex<Option<(i64, Vec<LiveTasks>)>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            calls: CALLS.iter().map(|_| Call::default()).collect(),
            live: tokio::sync::Mutex::default(),
        }
    }
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

    /// One call was answered, or its stream begun. `index` is its line in the table of access.
    pub fn called(&self, index: usize, took: Duration, refused: bool) {
        if let Some(call) = self.calls.get(index) {
            call.took.add(took);
            call.refused.fetch_add(u64::from(refused), Ordering::Relaxed);
        }
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Everything, as text.
pub async fn render(ctx: &Context) -> Result<String, StoreError> {
    let mut out = String::with_capacity(16 * 1024);
    head(
        &mut out,
        "systole_build_info",
        "gauge",
        "Always 1; the version is its label.",
    );
    let _ = writeln!(out, "systole_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    head(
        &mut out,
        "systole_ready",
        "gauge",
        "1 while this replica can commit and is not stopping.",
    );
    let _ = writeln!(out, "systole_ready {}", u8::from(ctx.is_ready()));
    head(
        &mut out,
        "systole_parked_beats",
        "gauge",
        "Beats whose answers this replica holds back.",
    );
    let _ = writeln!(out, "systole_parked_beats {}", ctx.parked_beats());
    fleet(ctx, &mut out).await?;
    live(ctx, &mut out).await?;
    head(
        &mut out,
        "systole_newest_task_id",
        "counter",
        "The highest task id this replica knows: its rise is the number of submissions and retries.",
    );
    let newest = ctx.newest_task_id.load(Ordering::Relaxed);
    let _ = writeln!(out, "systole_newest_task_id {newest}");
    calls(&ctx.metrics, &mut out);
    Ok(out)
}

async fn fleet(ctx: &Context, out: &mut String) -> Result<(), StoreError> {
    let view = ctx.fleet.view(&ctx.db, ctx.lost_after_ms()).await?;
    let of = |wanted: fn(&systole_shared::policy::why::RunnerView) -> bool| {
        view.runners.iter().filter(|runner| wanted(runner)).count()
    };
    head(
        out,
        "systole_runners",
        "gauge",
        "Runners (slots of hosts), each in one state.",
    );
    for (state, count) in [
        ("busy", of(|r| r.live && r.busy.is_some())),
        ("cordoned", of(|r| r.live && r.busy.is_none() && r.cordon.is_some())),
        ("ready", of(|r| r.live && r.busy.is_none() && r.cordon.is_none())),
        ("lost_or_left", of(|r| !r.live)),
    ] {
        let _ = writeln!(out, "systole_runners{{state=\"{state}\"}} {count}");
    }
    head(
        out,
        "systole_freezes",
        "gauge",
        "Freezes in force: of everything, of queues and of tags.",
    );
    let _ = writeln!(out, "systole_freezes {}", view.freezes.len());
    Ok(())
}

async fn live(ctx: &Context, out: &mut String) -> Result<(), StoreError> {
    let rows = ctx.metrics.live_tasks(&ctx.db).await?;
    let of = |state: TaskState| rows.iter().find(|row| row.status == i64::from(state.number()));
    let states = || TaskState::ALL.into_iter().filter(|state| !state.child_is_over());
    head(out, "systole_tasks", "gauge", "Tasks that are not over, by state.");
    for state in states() {
        let count = of(state).map_or(0, |row| row.count);
        let _ = writeln!(out, "systole_tasks{{state=\"{state}\"}} {count}");
    }
    head(
        out,
        "systole_queue_oldest_seconds",
        "gauge",
        "How long the oldest QUEUED task has waited; 0 where none waits.",
    );
    let oldest = of(TaskState::Queued).and_then(|row| row.oldest_ms).unwrap_or(0).max(0);
    let _ = writeln!(out, "systole_queue_oldest_seconds {}", oldest as f64 / 1_000.0);
    Ok(())
}

fn calls(metrics: &Metrics, out: &mut String) {
    let label = |call: &str| format!("call=\"{}\"", call.trim_start_matches('/'));
    let name = "systole_call_seconds";
    head(
        out,
        name,
        "histogram",
        "From a call to its answer, or to the beginning of its stream. Beats are held back until there is something to say.",
    );
    for ((call, _), counted) in CALLS.iter().zip(&metrics.calls) {
        counted.took.write(out, name, &label(call));
    }
    head(
        out,
        "systole_calls_refused_total",
        "counter",
        "Calls that were answered with an error.",
    );
    for ((call, _), counted) in CALLS.iter().zip(&metrics.calls) {
        let refused = counted.refused.load(Ordering::Relaxed);
        let _ = writeln!(out, "systole_calls_refused_total{{{}}} {refused}", label(call));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_cumulative_and_bounded() {
        let histogram = Histogram::default();
        for ms in [0, 1, 2, 3, 60_000] {
            histogram.add(Duration::from_millis(ms));
        }
        let mut out = String::new();
        histogram.write(&mut out, "t", "call=\"x\"");
        for line in [
            "t_bucket{call=\"x\",le=\"0.001\"} 2",
            "t_bucket{call=\"x\",le=\"0.002\"} 3",
            "t_bucket{call=\"x\",le=\"0.005\"} 4",
            "t_bucket{call=\"x\",le=\"10\"} 4",
            "t_bucket{call=\"x\",le=\"+Inf\"} 5",
            "t_sum{call=\"x\"} 60.006",
            "t_count{call=\"x\"} 5",
        ] {
            assert!(out.lines().any(|l| l == line), "{line}\n{out}");
        }
    }
}
