//! The text that is served, family by family.

use super::families::{Family, family};
use super::{Call, Metrics};
use crate::auth::rules::CALLS;
use crate::context::Context;
use crate::flow::status::ClusterStatus;
use crate::store::live::LiveTasks;
use crate::store::{Class, StoreError};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use systole_shared::policy::why::RunnerView;
use systole_shared::task::{OutcomeKind, TaskState};

/// Everything, as text.
pub async fn render(ctx: &Context) -> Result<String, StoreError> {
    // All that can fail before anything is written.
    let status = ctx.metrics.status(ctx).await?;
    let view = ctx.fleet.view(&ctx.db, ctx.lost_after_ms()).await?;
    let live = ctx.metrics.live_tasks(&ctx.db).await?;
    let mut out = String::with_capacity(128 * 1024);
    replica(ctx, &mut out);
    work(&ctx.metrics, &mut out);
    latencies(ctx, &mut out);
    calls(&ctx.metrics, &mut out);
    fleet(&status, &view.runners, &mut out);
    gauge(&mut out, "systole_freezes", view.freezes.len());
    tasks(&live, &mut out);
    troubles(&status, &mut out);
    database(&status, &mut out);
    Ok(out)
}

fn head(out: &mut String, name: &str) -> Family {
    let family = family(name);
    let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {}", family.help, family.kind);
    family
}

/// One series without labels.
fn gauge(out: &mut String, name: &str, value: impl std::fmt::Display) {
    head(out, name);
    let _ = writeln!(out, "{name} {value}");
}

/// A series for each value of the one label.
fn by<V: std::fmt::Display>(out: &mut String, name: &str, values: impl IntoIterator<Item = (&'static str, V)>) {
    let label = head(out, name).labels;
    for (word, value) in values {
        let _ = writeln!(out, "{name}{{{label}=\"{word}\"}} {value}");
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// A text from elsewhere, as the value of a label.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn seconds(ms: i64) -> f64 {
    ms.max(0) as f64 / 1_000.0
}

fn replica(ctx: &Context, out: &mut String) {
    by(out, "systole_build_info", [(env!("CARGO_PKG_VERSION"), 1)]);
    gauge(out, "systole_ready", u8::from(ctx.is_ready()));
    gauge(out, "systole_parked_beats", ctx.parked_beats());
    let newest = ctx.newest_task_id.load(Ordering::Relaxed);
    gauge(out, "systole_newest_task_id", newest);
}

fn work(metrics: &Metrics, out: &mut String) {
    gauge(out, "systole_tasks_submitted_total", count(&metrics.submitted));
    by(
        out,
        "systole_tasks_dispatched_total",
        [
            ("claim", count(&metrics.dispatched_with_claim)),
            ("answer", count(&metrics.dispatched_with_answer)),
        ],
    );
    let ended = OutcomeKind::ALL.iter().zip(&metrics.ended);
    by(
        out,
        "systole_tasks_ended_total",
        ended.map(|(kind, counter)| (kind.name(), count(counter))),
    );
    let claims = &metrics.claims;
    by(
        out,
        "systole_claims_total",
        [
            ("all", count(&claims.all)),
            ("some", count(&claims.some)),
            ("none", count(&claims.none)),
        ],
    );
}

fn latencies(ctx: &Context, out: &mut String) {
    let metrics = &ctx.metrics;
    for (name, histogram) in [
        ("systole_claim_seconds", &metrics.claim),
        ("systole_queue_wait_seconds", &metrics.queue_wait),
        ("systole_start_seconds", &metrics.start),
        ("systole_beat_seconds", &metrics.beat),
        ("systole_report_commit_seconds", &metrics.report),
    ] {
        head(out, name);
        histogram.write(out, name, "");
    }
    let name = "systole_commit_seconds";
    head(out, name);
    for (class, word) in [(Class::Beats, "beats"), (Class::Api, "other")] {
        ctx.db.commits.of(class).write(out, name, &format!("class=\"{word}\""));
    }
}

fn calls(metrics: &Metrics, out: &mut String) {
    let each = || {
        CALLS
            .iter()
            .map(|(call, _)| call.trim_start_matches('/'))
            .zip(&metrics.calls)
    };
    let name = "systole_call_seconds";
    head(out, name);
    for (call, Call { took, .. }) in each() {
        took.write(out, name, &format!("call=\"{call}\""));
    }
    by(
        out,
        "systole_calls_refused_total",
        each().map(|(call, counted)| (call, count(&counted.refused))),
    );
}

fn fleet(status: &ClusterStatus, runners: &[RunnerView], out: &mut String) {
    gauge(out, "systole_replicas", status.replicas.len());
    let hosts = &status.hosts;
    by(
        out,
        "systole_hosts",
        [
            ("ready", hosts.ready),
            ("cordoned", hosts.cordoned),
            ("faulty", hosts.faulty),
            ("lost", hosts.lost),
            ("left", hosts.left),
        ],
    );
    gauge(out, "systole_slots", hosts.slots);
    gauge(out, "systole_slots_busy", hosts.busy);
    let of = |wanted: fn(&RunnerView) -> bool| runners.iter().filter(|runner| wanted(runner)).count();
    by(
        out,
        "systole_runners",
        [
            ("busy", of(|r| r.live && r.busy.is_some())),
            ("cordoned", of(|r| r.live && r.busy.is_none() && r.cordon.is_some())),
            ("ready", of(|r| r.live && r.busy.is_none() && r.cordon.is_none())),
            ("lost_or_left", of(|r| !r.live)),
        ],
    );
}

fn tasks(rows: &[LiveTasks], out: &mut String) {
    let of = |state: TaskState| rows.iter().find(|row| row.status == i64::from(state.number()));
    let states = TaskState::ALL.into_iter().filter(|state| !state.child_is_over());
    by(
        out,
        "systole_tasks",
        states.map(|state| (state.name(), of(state).map_or(0, |row| row.count))),
    );
    let oldest = of(TaskState::Queued).and_then(|row| row.oldest_ms).unwrap_or(0);
    gauge(out, "systole_queue_oldest_seconds", seconds(oldest));
}

fn troubles(status: &ClusterStatus, out: &mut String) {
    let of = |kind: &OutcomeKind| {
        let row = status.ended_badly.iter().find(|row| row.kind == kind.name());
        (kind.name(), row.map_or(0, |row| row.n))
    };
    let bad = OutcomeKind::ALL.iter().filter(|kind| **kind != OutcomeKind::Success);
    by(out, "systole_ended_badly", bad.map(of));
    let fires = status.jobs.counts;
    by(
        out,
        "systole_fires",
        [
            ("fired", fires.fired),
            ("coalesced", fires.coalesced),
            ("skipped", fires.skipped),
            ("late", fires.late),
        ],
    );
    gauge(out, "systole_jobs_late", status.late.len());
    gauge(out, "systole_alarms_undelivered", status.alarms_undelivered);
    gauge(out, "systole_attention", status.attention.len());
}

fn database(status: &ClusterStatus, out: &mut String) {
    let name = "systole_database_info";
    head(out, name);
    let version = quoted(&status.database_version);
    let _ = writeln!(out, "{name}{{kind=\"{}\",version=\"{version}\"}} 1", status.database);
    gauge(out, "systole_database_bytes", status.database_bytes);
    let standbys = &status.standbys;
    gauge(out, "systole_standbys", standbys.len());
    let worst =
        |of: fn(&crate::store::status::StandbyRow) -> Option<i64>| standbys.iter().filter_map(of).max().unwrap_or(0);
    gauge(out, "systole_standby_lag_seconds", seconds(worst(|row| row.lag_ms)));
    gauge(out, "systole_standby_lag_bytes", worst(|row| row.lag_bytes).max(0));
}
