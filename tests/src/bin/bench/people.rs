//! (h) What a person waits for: the command line against a cluster of a thousand hosts and a long history.

use crate::Result;
use crate::process::{Process, cpu};
use crate::report::{Report, median, quantile};
use crate::retention::retention;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use systole_tests::TestDb;
use systole_tests::terminal::Terminal;

/// What section (h) looks at.
pub struct People {
    /// Tasks that the database has.
    pub tasks: usize,
    /// Hosts with a slot each.
    pub hosts: usize,
    /// Lines of a batch.
    pub lines: usize,
    pub rounds: usize,
    /// How long `top` is watched.
    pub watch: Duration,
}

/// Tasks of one statement of the seed.
const PIECE: usize = 50_000;
/// What the scheduler answers from memory is at most this old; after it, `status` reads everything anew.
const ANEW: Duration = Duration::from_millis(5_100);
/// Tasks of the history that wait, at most.
const WAITING_MAX: usize = 100_000;
/// A job that made every seventh task of the history.
const JOB: &str = r#"
[[job]]
name = "nightly"
command = ["/bin/true"]

[[job.trigger]]
name = "main"
cron = "0 3 * * *"
zone = "UTC"
"#;
/// What people look at in a long history.
const PAGES: &[&[&str]] = &[
    &["ls", "--state", "failed"],
    &["ls", "--job", "nightly"],
    &["ls", "--job", "nightly", "--state", "failed"],
    &["job", "history", "nightly"],
    &["job", "history", "nightly", "--verdict", "skipped"],
    &["job", "ls"],
    &["why", "nightly"],
];

pub async fn people(binary: &Path, db: &TestDb, report: &mut Report, kind: &str, plan: &People) -> Result<()> {
    let process = Process::scheduler(binary, db).await?;
    batch(binary, &process, db, report, kind, plan)?;
    let model = seed(binary, &process, db, plan)?;
    let size = format!("{} hosts, {} tasks", plan.hosts, plan.tasks);
    let own = timed(plan.rounds, || {
        Command::new(binary)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok()
    });
    let start = median(own);
    let mut ls = timed(plan.rounds, || said(&mut process.command(binary, &["ls"])));
    report.add(
        format!("(h) systole ls, start to answer, p50, {kind}"),
        quantile(&mut ls, 0.5),
        "ms",
        format!(
            "{size}; p95 {:.1}; systole --version {start:.1}",
            quantile(&mut ls, 0.95)
        ),
    );
    for page in PAGES {
        let mut took = timed(plan.rounds, || said(&mut process.command(binary, page)));
        report.add(
            format!("(h) systole {}, p50, {kind}", page.join(" ")),
            quantile(&mut took, 0.5),
            "ms",
            format!(
                "p95 {:.1}; a seventh of the tasks are of the job",
                quantile(&mut took, 0.95)
            ),
        );
    }
    let mut anew = Vec::new();
    for _ in 0..3 {
        tokio::time::sleep(ANEW).await;
        anew.extend(timed(1, || said(&mut process.command(binary, &["status"]))));
    }
    let mut again = timed(plan.rounds, || said(&mut process.command(binary, &["status"])));
    report.add(
        format!("(h) systole status, read anew, slowest of 3, {kind}"),
        quantile(&mut anew, 1.0),
        "ms",
        format!("{size}; again within 5 s {:.1}", quantile(&mut again, 0.5)),
    );
    top(binary, &process, report, kind, plan).await?;
    retention(&process, db, report, kind, model, plan.tasks, plan.rounds * 2).await
}

/// Wall time of each, ms.
fn timed(rounds: usize, mut what: impl FnMut() -> bool) -> Vec<f64> {
    let one = |_| {
        let began = Instant::now();
        assert!(what(), "the command failed");
        began.elapsed().as_secs_f64() * 1_000.0
    };
    (0..rounds).map(one).collect()
}

/// Whether it answered: `status` ends with 1 where something needs a person, and here something does.
fn said(command: &mut Command) -> bool {
    match command.output() {
        Ok(output) if matches!(output.status.code(), Some(0 | 1)) && !output.stdout.is_empty() => true,
        Ok(output) => {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            eprintln!("{error}");
            false
        }
    }
}

/// Lines that are acknowledged, each a task of its own; nothing takes them.
fn batch(binary: &Path, process: &Process, db: &TestDb, report: &mut Report, kind: &str, plan: &People) -> Result<()> {
    let file = db.folder.path().join("lines");
    std::fs::write(&file, "/bin/true\n".repeat(plan.lines))?;
    let path = file.display().to_string();
    let mut rates = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        let mut command = process.command(binary, &["-q", "-o", "json", "submit", "--batch", &path]);
        let output = command.output()?;
        let took = began.elapsed().as_secs_f64();
        let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        if told["tasks"].as_u64() != Some(plan.lines as u64) {
            return Err(format!("the batch was not stored: {told}").into());
        }
        rates.push(plan.lines as f64 / took);
    }
    report.add(
        format!("(h) submit --batch, acknowledged, {kind}"),
        median(rates),
        "tasks/s",
        format!("{} lines, the start of the command included", plan.lines),
    );
    Ok(())
}

/// A long history and many hosts, by SQL: most tasks have ended, some in twenty badly, and a tenth waits. They are like one
/// that was really submitted.
/// Returns its id.
fn seed(binary: &Path, process: &Process, db: &TestDb, plan: &People) -> Result<i64> {
    let output = process
        .command(binary, &["-o", "id", "submit", "--require", "gpu=1", "--", "/bin/true"])
        .output()?;
    let model: i64 = String::from_utf8(output.stdout)?.trim().parse()?;
    let file = db.folder.path().join("nightly.toml");
    std::fs::write(&file, JOB)?;
    let applied = process
        .command(binary, &["-q", "job", "apply", "-f", &file.display().to_string()])
        .output()?;
    if !applied.status.success() {
        return Err(format!("the job was not stored: {}", String::from_utf8_lossy(&applied.stderr)).into());
    }
    let (tasks, hosts) = (plan.tasks, plan.hosts);
    let series = |from: usize, to: usize| match db.postgres {
        Some(_) => format!("(SELECT CAST(n AS BIGINT) AS i FROM generate_series({from}, {to}) AS n) AS s"),
        None => format!(
            "(WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {to}) SELECT i FROM n) AS s"
        ),
    };
    // 2: QUEUED, 6: FINISHED, 7: FAILED.
    let state = format!(
        "CASE WHEN s.i > {} THEN 2 WHEN s.i % 20 = 0 THEN 7 ELSE 6 END",
        tasks - (tasks / 10).min(WAITING_MAX)
    );
    let of_job = "x.state > 2 AND x.i % 7 = 0";
    // In pieces: the scheduler writes in between.
    for from in (1..=tasks).step_by(PIECE) {
        let series = series(from, (from + PIECE - 1).min(tasks));
        db.sql(&format!(
        "INSERT INTO task (status, lane_id, priority, name, spec, submitted_by, created_at_ms, eligible_at_ms, host, slot, start_no, \
           dispatched_at_ms, started_at_ms, ended_at_ms, outcome_kind, exit_code, outcome_message, job, job_id, trigger_id, scheduled_ms) \
         SELECT x.state, x.lane_id, x.priority, x.name, x.spec, x.submitted_by, x.at_ms, x.at_ms, \
           CASE WHEN x.state > 2 THEN 'host-' || x.host END, CASE WHEN x.state > 2 THEN 0 END, CASE WHEN x.state > 2 THEN 1 END, \
           CASE WHEN x.state > 2 THEN x.at_ms + 5 END, CASE WHEN x.state > 2 THEN x.at_ms + 9 END, \
           CASE WHEN x.state > 2 THEN x.at_ms + 900 END, CASE x.state WHEN 6 THEN 'success' WHEN 7 THEN 'exit_code' END, \
           CASE x.state WHEN 6 THEN 0 WHEN 7 THEN 1 END, CASE WHEN x.state = 7 THEN 'exit code 1' END, \
           CASE WHEN {of_job} THEN 'nightly' END, CASE WHEN {of_job} THEN x.job_id END, CASE WHEN {of_job} THEN x.trigger_id END, \
           CASE WHEN {of_job} THEN x.at_ms END \
         FROM (SELECT {state} AS state, s.i, t.job_id, t.id AS trigger_id, m.lane_id, m.priority, m.name, m.spec, m.submitted_by, s.i % {hosts} AS host, \
             m.created_at_ms - {tasks} + s.i AS at_ms FROM {series} CROSS JOIN task AS m CROSS JOIN job_trigger AS t \
             WHERE m.id = {model}) AS x"
        ));
    }
    let end = model + i64::try_from(tasks)?;
    for from in (model + 1..=end).step_by(PIECE * 7) {
        let to = from + i64::try_from(PIECE * 7)?;
        db.sql(&format!(
            "INSERT INTO occurrence (job_id, trigger_id, trigger_name, scheduled_ms, until_ms, verdict, reason, task_id, at_ms) \
             SELECT job_id, trigger_id, 'main', scheduled_ms, scheduled_ms, 'fired', 'schedule', id, scheduled_ms FROM task \
             WHERE job_id IS NOT NULL AND id >= {from} AND id < {to}"
        ));
    }
    let series = series(1, hosts);
    // As if they were heard of in a week: nobody beats for them.
    db.sql(&format!(
        "INSERT INTO host (host, instance_id, start_no, slots, queues, labels, version, facts, boot_id, registered_at_ms) \
         SELECT 'host-' || s.i, 'bench', 1, 1, '[\"default\"]', '{{\"dc\": \"fra\"}}', '0.1.0', '{{}}', 'bench', m.created_at_ms \
         FROM {series} CROSS JOIN task AS m WHERE m.id = {model}"
    ));
    db.sql(&format!(
        "INSERT INTO runner (host, slot, instance_id, start_no, seq, seen_ms) \
         SELECT 'host-' || s.i, 0, 'bench', 1, 1, m.created_at_ms + 604800000 FROM {series} CROSS JOIN task AS m WHERE m.id = {model}"
    ));
    if db.postgres.is_some() {
        // What autovacuum does in time.
        db.sql("VACUUM ANALYZE task");
        db.sql("VACUUM ANALYZE occurrence");
    }
    Ok(model)
}

async fn top(binary: &Path, process: &Process, report: &mut Report, kind: &str, plan: &People) -> Result<()> {
    let screen = Terminal::start(&process.command(binary, &["top"]), 40, 160);
    screen.sees("host-1");
    let (before, began) = (cpu(screen.pid()), Instant::now());
    tokio::time::sleep(plan.watch).await;
    let used = (cpu(screen.pid()) - before) / began.elapsed().as_secs_f64();
    report.add(
        format!("(h) systole top, CPU, {kind}"),
        used * 100.0,
        "% of a core",
        format!(
            "{} hosts, 40 rows of 160 columns, for {} s",
            plan.hosts,
            plan.watch.as_secs()
        ),
    );
    Ok(())
}
