//! (e) Memory and CPU for parked runners.

use crate::Result;
use crate::noop::{beat, simulate};
use crate::process::Process;
use crate::report::Report;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use systole_tests::TestDb;

/// The default of `--beat`.
const BEAT: Duration = Duration::from_secs(30);

/// Memory and CPU of a scheduler with parked runners.
pub async fn parked(binary: &Path, db: &TestDb, report: &mut Report, counts: &[u32]) -> Result<()> {
    const SLOTS: u32 = 100;
    for &count in counts {
        let process = Process::scheduler(binary, db).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = process.rss();
        let done = Arc::new(AtomicU64::new(0));
        let mut simulated = tokio::task::JoinSet::new();
        for host in 0..count / SLOTS {
            let client = process.beats().await?;
            for slot in 0..SLOTS {
                simulated.spawn(simulate(
                    client.clone(),
                    beat(&format!("p{count}-{host}"), slot, SLOTS),
                    Arc::clone(&done),
                ));
            }
        }
        tokio::time::sleep(Duration::from_secs(8)).await;
        let per_runner = (process.rss() - before) / f64::from(count);
        report.add(
            format!("(e) scheduler memory per parked runner, {count}"),
            per_runner,
            "KiB",
            format!("{} connections, {SLOTS} slots each", count / SLOTS),
        );
        // As long as a beat takes: each runner comes once.
        let cpu = process.cpu();
        tokio::time::sleep(BEAT).await;
        let used = (process.cpu() - cpu) / BEAT.as_secs_f64() * 100.0;
        report.add(
            format!("(e) scheduler CPU, {count} parked"),
            used,
            "% core",
            "over 30 s, in which each beats once",
        );
        simulated.shutdown().await;
    }
    Ok(())
}
