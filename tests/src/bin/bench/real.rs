//! (c) Real tasks with real runners, and (d) the time from submission to start.

use crate::Result;
use crate::limits::spawn_limit;
use crate::process::{Process, cpu, idle, resident_mib, warden_of};
use crate::report::{Report, median, quantile};
use crate::submit::{submit_many, until_finished};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use systole_proto::v1;
use systole_tests::TestDb;
use systole_tests::replica::{Tasks, command};

/// What section (c) runs.
pub struct Real {
    pub tasks: usize,
    pub slots: u32,
    pub latency: bool,
}

/// Real tasks per second with real runners, and submit → child started on the idle cluster.
pub async fn real(binary: &Path, db: &TestDb, report: &mut Report, kind: &str, plan: &Real) -> Result<()> {
    let (count, slots) = (plan.tasks, plan.slots);
    let process = Process::scheduler(binary, db).await?;
    let mut tasks = process.tasks().await?;
    let folder = db.folder.path().join("runner");
    let mut runner = process.runner(binary, slots, &folder)?;
    let one = submit_many(&mut tasks, &command(&["/bin/true"]), 50).await?;
    until_finished(&mut tasks, &one).await?;
    let warden = warden_of(&folder).ok_or("no warden")?;
    for (label, argv) in [
        ("/bin/true", vec!["/bin/true"]),
        ("sh -c true", vec!["/bin/sh", "-c", "true"]),
    ] {
        let mut rates = Vec::new();
        let mut limits = Vec::new();
        let mut spent = [0.0; 4];
        for _ in 0..3 {
            limits.push(spawn_limit(&argv, 1_500));
            let used = || [process.cpu(), cpu(runner.id()), cpu(warden), idle()];
            let (began, before) = (Instant::now(), used());
            let ids = submit_many(&mut tasks, &command(&argv), count).await?;
            until_finished(&mut tasks, &ids).await?;
            rates.push(count as f64 / began.elapsed().as_secs_f64());
            for (sum, (after, before)) in spent.iter_mut().zip(used().iter().zip(before)) {
                *sum += (after - before) * 1_000.0 / (3 * count) as f64;
            }
        }
        let ratios = rates.iter().zip(&limits).map(|(rate, limit)| rate / limit).collect();
        report.add(
            format!("(c) real {label}, {slots} slots, {kind}"),
            median(rates),
            "tasks/s",
            format!("{:.2} of the spawn limit beside it", median(ratios)),
        );
        let [scheduler, agent, warden, idle] = spent;
        report.add(
            format!("(c) CPU of systole for each, {slots} slots, {kind}"),
            scheduler + agent + warden,
            "ms",
            format!("scheduler {scheduler:.2}, agent {agent:.2}, warden {warden:.2}; idle meanwhile {idle:.2}"),
        );
    }
    report.add(
        format!("(c) memory of agent and warden afterwards, {slots} slots, {kind}"),
        resident_mib(runner.id()) + resident_mib(warden),
        "MiB",
        format!(
            "agent {:.1}, warden {:.1}",
            resident_mib(runner.id()),
            resident_mib(warden)
        ),
    );
    if plan.latency {
        report_latency(&mut tasks, db, report, kind).await?;
    }
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(runner.id())?),
        nix::sys::signal::Signal::SIGTERM,
    )?;
    runner.wait()?;
    Ok(())
}

pub async fn report_latency(tasks: &mut Tasks, db: &TestDb, report: &mut Report, kind: &str) -> Result<()> {
    let (mut latencies, mut direct, ids) = latency(tasks, db.folder.path(), 300).await?;
    let own = quantile(&mut direct, 0.5);
    report.add(
        format!("(d) the shell itself, started directly, p50, {kind}"),
        own,
        "ms",
        "from spawn to its first byte",
    );
    for (name, q) in [("p50", 0.5), ("p99", 0.99)] {
        let whole = quantile(&mut latencies, q);
        report.add(
            format!("(d) submit → child started, {name}, {kind}"),
            whole - own,
            "ms",
            format!("idle cluster; to the shell's first byte {whole:.2}"),
        );
    }
    // Whole milliseconds of one machine's clock: the dispatch before its commit, the process after its start.
    let got = tasks.get(v1::GetRequest { ids }).await?.into_inner();
    let mut starts: Vec<f64> = got
        .results
        .iter()
        .filter_map(|result| result.task.as_ref())
        .map(|task| task.started_at_ms.saturating_sub(task.dispatched_at_ms) as f64)
        .collect();
    report.add(
        format!("(d) dispatch → process started, p99, {kind}"),
        quantile(&mut starts, 0.99),
        "ms",
        format!(
            "p50 {:.0}; the commit and the way to the host in it",
            quantile(&mut starts, 0.5)
        ),
    );
    Ok(())
}

/// From the submission to the first byte that a shell writes into a pipe, ms; and, in between, the same for a shell
/// that is started directly.
pub async fn latency(tasks: &mut Tasks, folder: &Path, count: usize) -> Result<(Vec<f64>, Vec<f64>, Vec<i64>)> {
    let fifo = folder.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600))?;
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let path = fifo.clone();
    std::thread::spawn(move || {
        use std::io::Read as _;
        let Ok(mut pipe) = std::fs::OpenOptions::new().read(true).write(true).open(&path) else {
            return;
        };
        let mut byte = [0; 1];
        while pipe.read_exact(&mut byte).is_ok() && sender.send(Instant::now()).is_ok() {}
    });
    let script = format!("printf x > {}", fifo.display());
    let spec = command(&["/bin/sh", "-c", &script]);
    let (mut through, mut direct, mut ids) = (Vec::with_capacity(count), Vec::new(), Vec::new());
    for round in 0..count {
        tokio::time::sleep(Duration::from_millis(15)).await;
        let began = Instant::now();
        ids.extend(submit_many(tasks, &spec, 1).await?);
        through.push(first_byte(&mut receiver, began).await?);
        if round % 3 == 0 {
            tokio::time::sleep(Duration::from_millis(15)).await;
            let began = Instant::now();
            let mut shell = Command::new("/bin/sh").args(["-c", &script]).spawn()?;
            direct.push(first_byte(&mut receiver, began).await?);
            shell.wait()?;
        }
    }
    Ok((through, direct, ids))
}

pub async fn first_byte(receiver: &mut tokio::sync::mpsc::UnboundedReceiver<Instant>, began: Instant) -> Result<f64> {
    let started = tokio::time::timeout(Duration::from_secs(10), receiver.recv())
        .await?
        .ok_or("no child")?;
    Ok(started.duration_since(began).as_secs_f64() * 1_000.0)
}
