//! (g) A task that floods its output: what it costs the host, and whether a beat of it comes late.

use crate::Result;
use crate::process::{Process, peak_mib, warden_of};
use crate::report::Report;
use crate::submit::{submit_many, until_finished};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::time::{Duration, Instant};
use systole_proto::v1;
use systole_tests::TestDb;
use systole_tests::replica::command;

/// The beat interval of the run, s.
const BEAT_S: u64 = 2;

pub async fn flood(binary: &Path, db: &TestDb, report: &mut Report, gib: u64) -> Result<()> {
    let beat = format!("{BEAT_S}s");
    let process = Process::scheduler_with(binary, db, &["--beat", &beat]).await?;
    let mut tasks = process.tasks().await?;
    let mut admin = process.admin().await?;
    let folder = db.folder.path().join("runner");
    let mut runner = process.runner(binary, 2, &folder)?;
    let warm = submit_many(&mut tasks, &command(&["/bin/true"]), 4).await?;
    until_finished(&mut tasks, &warm).await?;
    let warden = warden_of(&folder).ok_or("no warden")?;

    let began = Instant::now();
    let script = format!("head -c {gib}G /dev/zero");
    let ids = submit_many(&mut tasks, &command(&["/bin/sh", "-c", &script]), 1).await?;
    let done = tokio::spawn(async move { until_finished(&mut tasks, &ids).await });
    let mut silent_ms = 0;
    while !done.is_finished() {
        let listed = admin.list(v1::ListRunnersRequest::default()).await?.into_inner();
        // The database's clock is this machine's.
        let now_ms = u64::try_from(systole_shared::clock::now_ms())?;
        let longest = listed
            .runners
            .iter()
            .map(|runner| now_ms.saturating_sub(runner.seen_at_ms))
            .max();
        silent_ms = silent_ms.max(longest.unwrap_or(0));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    done.await??;
    let (agent, warden) = (peak_mib(runner.id()), peak_mib(warden));
    report.add(
        format!("(g) peak memory of agent and warden, {gib} GiB of output"),
        agent + warden,
        "MiB",
        format!(
            "agent {agent:.1}, warden {warden:.1}; {:.1} s from submission to FINISHED",
            began.elapsed().as_secs_f64()
        ),
    );
    report.add(
        "(g) longest silence of a slot meanwhile",
        silent_ms as f64 / 1_000.0,
        "s",
        format!("beat interval {BEAT_S} s"),
    );
    kill(Pid::from_raw(i32::try_from(runner.id())?), Signal::SIGTERM)?;
    runner.wait()?;
    Ok(())
}
