//! (b) No-op tasks with simulated runners.

use crate::Result;
use crate::process::Process;
use crate::report::median;
use crate::submit::submit_many;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use systole_proto::v1;
use systole_tests::TestDb;
use systole_tests::replica::{Beats, command};

pub fn beat(host: &str, slot: u32, slots: u32) -> v1::HeartbeatRequest {
    v1::HeartbeatRequest {
        host: host.into(),
        slot,
        slots,
        instance_id: format!("bench-{host}"),
        start_no: 1,
        status: v1::RunnerStatus::Idle.into(),
        boot_id: "boot".into(),
        version: "bench".into(),
        park_ms: 30_000,
        ..Default::default()
    }
}

/// The beat says that this task is done.
pub fn finish(request: &mut v1::HeartbeatRequest, task_id: i64) {
    let now = u64::try_from(systole_shared::clock::now_ms()).unwrap_or(0);
    request.status = v1::RunnerStatus::Finished.into();
    request.task_id = task_id;
    request.max_task_id = request.max_task_id.max(task_id);
    request.sent_at_ms = now;
    request.results = vec![v1::TaskResult {
        task_id,
        dispatched_start_no: 1,
        kind: "success".into(),
        exit_code: Some(0),
        started_at_ms: now,
        ended_at_ms: now,
        ..Default::default()
    }];
}

/// One simulated runner: as soon as it is given a task it says that it is done.
pub async fn simulate(mut client: Beats, mut request: v1::HeartbeatRequest, done: Arc<AtomicU64>) {
    loop {
        request.seq += 1;
        let Ok(response) = client.heartbeat(request.clone()).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let response = response.into_inner();
        done.fetch_add(response.acknowledged.len() as u64, Ordering::Relaxed);
        match response.run {
            Some(run) => finish(&mut request, run.task_id),
            None => {
                request.status = v1::RunnerStatus::Idle.into();
                request.task_id = 0;
                request.results.clear();
            }
        }
    }
}

/// No-op tasks per second, from the first submission to the last recorded result.
pub async fn no_op(
    binary: &Path,
    db: &TestDb,
    replicas: usize,
    runners: u32,
    count: usize,
    rounds: usize,
) -> Result<f64> {
    let mut processes = Vec::new();
    for _ in 0..replicas {
        processes.push(Process::scheduler(binary, db).await?);
    }
    let done = Arc::new(AtomicU64::new(0));
    let mut simulated = tokio::task::JoinSet::new();
    const SLOTS: u32 = 32;
    for host in 0..runners / SLOTS {
        let process = &processes[host as usize % replicas];
        let client = process.beats().await?;
        for slot in 0..SLOTS {
            simulated.spawn(simulate(
                client.clone(),
                beat(&format!("h{host}"), slot, SLOTS),
                Arc::clone(&done),
            ));
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut rates = Vec::new();
    for round in 0..=rounds {
        let before = done.load(Ordering::Relaxed);
        let began = Instant::now();
        let submitters: Vec<_> = (0..2)
            .map(|at| {
                let process = &processes[at % replicas];
                async move {
                    let mut tasks = process.tasks().await?;
                    submit_many(&mut tasks, &command(&["true"]), count / 2).await
                }
            })
            .collect();
        let mut submitters = submitters.into_iter();
        let (one, two) = (submitters.next().expect("two"), submitters.next().expect("two"));
        let (one, two) = tokio::join!(one, two);
        let _ = (one?, two?);
        while done.load(Ordering::Relaxed) - before < count as u64 {
            tokio::time::sleep(Duration::from_millis(2)).await;
            if began.elapsed() > Duration::from_secs(120) {
                return Err("no-op tasks do not end".into());
            }
        }
        // The first round warms up.
        if round > 0 {
            rates.push(count as f64 / began.elapsed().as_secs_f64());
        }
    }
    simulated.shutdown().await;
    Ok(median(rates))
}
