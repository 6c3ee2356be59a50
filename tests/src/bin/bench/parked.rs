//! (e) Memory and CPU for parked runners: each slot with a call of its own, and all idle slots of a host with one.

use crate::Result;
use crate::noop::{beat, simulate};
use crate::process::Process;
use crate::report::Report;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use systole_proto::v1;
use systole_shared::limits::PARK_MS_MAX;
use systole_tests::TestDb;
use systole_tests::replica::Beats;

/// The default of `--beat`.
const BEAT: Duration = Duration::from_secs(30);

/// Slots of a host.
const SLOTS: u32 = 16;

/// Memory and CPU of a scheduler with parked runners.
pub async fn parked(binary: &Path, db: &TestDb, report: &mut Report, counts: &[u32]) -> Result<()> {
    for (&count, together) in counts.iter().flat_map(|count| [(count, false), (count, true)]) {
        let way = if together {
            "one call for each host"
        } else {
            "one call for each slot"
        };
        let process = Process::scheduler(binary, db).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = process.rss();
        let done = Arc::new(AtomicU64::new(0));
        let mut simulated = tokio::task::JoinSet::new();
        for host in 0..count / SLOTS {
            let client = process.beats().await?;
            let beats = (0..SLOTS).map(|slot| beat(&format!("p{count}-{host}"), slot, SLOTS));
            if together {
                simulated.spawn(idle(client, beats.collect()));
                // As hosts that were not started at one instant.
                tokio::time::sleep(BEAT / (count / SLOTS) / 4).await;
                continue;
            }
            for beat in beats {
                simulated.spawn(simulate(client.clone(), beat, Arc::clone(&done)));
            }
        }
        tokio::time::sleep(Duration::from_secs(8)).await;
        let per_runner = (process.rss() - before) / f64::from(count);
        report.add(
            format!("(e) scheduler memory per parked runner, {count}, {way}"),
            per_runner,
            "KiB",
            format!("{} connections, {SLOTS} slots each", count / SLOTS),
        );
        // As long as a beat takes: each runner comes once.
        let cpu = process.cpu();
        tokio::time::sleep(BEAT).await;
        let used = (process.cpu() - cpu) / BEAT.as_secs_f64() * 100.0;
        report.add(
            format!("(e) scheduler CPU, {count} parked, {way}"),
            used,
            "% core",
            "over 30 s, in which each beats once",
        );
        simulated.shutdown().await;
    }
    Ok(())
}

/// A host whose slots are all idle, with the two calls that wait then.
async fn idle(mut client: Beats, mut beats: Vec<v1::HeartbeatRequest>) {
    let fetch = v1::NextFetchRequest {
        host: beats[0].host.clone(),
        instance_id: beats[0].instance_id.clone(),
        park_ms: PARK_MS_MAX,
    };
    let mut fetches = client.clone();
    let fetching = async move {
        loop {
            if fetches.next_fetch(fetch.clone()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    let beating = async move {
        loop {
            for beat in &mut beats {
                beat.seq += 1;
            }
            let request = v1::HeartbeatIdleRequest { beats: beats.clone() };
            let Ok(answers) = client.heartbeat_idle(request).await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let mut answers = answers.into_inner();
            while let Ok(Some(_)) = answers.message().await {}
        }
    };
    tokio::join!(fetching, beating);
}
