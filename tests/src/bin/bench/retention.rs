//! (h) How long a task waits for its runner while old tasks are deleted.

use crate::Result;
use crate::noop::{beat, finish};
use crate::process::Process;
use crate::report::{Report, quantile};
use std::time::{Duration, Instant};
use systole_proto::v1;
use systole_tests::TestDb;
use systole_tests::replica::command;

/// Tasks that have become too old at once.
const OLD: i64 = 500_000;
const OLD_BY_MS: i64 = 30 * 24 * 3_600_000;
/// Of one statement: the scheduler writes in between.
const PIECE: i64 = 25_000;
/// A queue of its own: nothing else is given to this runner.
const QUEUE: &str = "quick";

/// `from`: the id before the history.
pub async fn retention(
    process: &Process,
    db: &TestDb,
    report: &mut Report,
    kind: &str,
    from: i64,
    tasks: usize,
    rounds: usize,
) -> Result<()> {
    let old = OLD.min(i64::try_from(tasks)? / 2);
    let mut quiet = waits(process, "quiet", rounds).await?;
    report.add(
        format!("(h) submit → RUN_NEW, p50, {kind}"),
        quantile(&mut quiet, 0.5),
        "ms",
        format!("p99 {:.1}; one idle runner", quantile(&mut quiet, 0.99)),
    );
    // What waits would only be walked over.
    db.sql(&format!("DELETE FROM task WHERE id <= {from}"));
    for at in (from..from + old).step_by(usize::try_from(PIECE)?) {
        let to = (at + PIECE).min(from + old);
        db.sql(&format!(
            "UPDATE task SET created_at_ms = created_at_ms - {OLD_BY_MS}, ended_at_ms = ended_at_ms - {OLD_BY_MS} WHERE id > {at} AND id <= {to} AND ended_at_ms IS NOT NULL"
        ));
    }
    let left = || -> Result<i64> {
        let count = format!("SELECT count(*) FROM task WHERE id > {from} AND id <= {}", from + old);
        Ok(db.sql(&count).trim().parse()?)
    };
    // At its next pass, once a minute.
    let by = Instant::now() + Duration::from_secs(90);
    while left()? == old {
        if Instant::now() > by {
            return Err("retention deletes nothing".into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (before, began) = (left()?, Instant::now());
    let mut busy = waits(process, "busy", rounds).await?;
    let (after, took) = (left()?, began.elapsed().as_secs_f64());
    if after == 0 {
        return Err("retention was over before the tasks were".into());
    }
    report.add(
        format!("(h) the same while old tasks are deleted, {kind}"),
        quantile(&mut busy, 0.5),
        "ms",
        format!(
            "p99 {:.1}; {:.0} deleted a second, of {tasks}",
            quantile(&mut busy, 0.99),
            (before - after) as f64 / took
        ),
    );
    Ok(())
}

/// From the call of the submission to the answer of the runner's beat, ms.
async fn waits(process: &Process, host: &str, rounds: usize) -> Result<Vec<f64>> {
    let mut tasks = process.tasks().await?;
    let mut beats = process.beats().await?;
    let mut request = v1::HeartbeatRequest {
        queues: vec![QUEUE.into()],
        ..beat(host, 0, 1)
    };
    let mut all = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        request.seq += 1;
        let (mut client, parked) = (beats.clone(), request.clone());
        let answer = tokio::spawn(async move { client.heartbeat(parked).await.map(|answer| (answer, Instant::now())) });
        // Until it is parked.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let began = Instant::now();
        let item = v1::SubmitItem {
            spec: Some(v1::TaskSpec {
                queue: QUEUE.into(),
                ..command(&["true"])
            }),
            key: String::new(),
        };
        tasks
            .submit(v1::SubmitRequest {
                items: vec![item],
                reason: String::new(),
            })
            .await?;
        let (answer, at) = answer.await??;
        let run = answer.into_inner().run.ok_or("the runner was given nothing")?;
        all.push((at - began).as_secs_f64() * 1_000.0);
        request.seq += 1;
        let mut ended = request.clone();
        ended.park_ms = 0;
        finish(&mut ended, run.task_id);
        beats.heartbeat(ended).await?;
    }
    Ok(all)
}
