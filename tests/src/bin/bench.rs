//! `scripts/bench`: measures limits, and systole beside them, in one run on one machine. Prints a table
//! and writes JSON. Ratios to the limits are what counts; absolute figures belong to the machine.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use systole_proto::v1;
use systole_proto::v1::runner_service_client::RunnerServiceClient;
use systole_proto::v1::task_service_client::TaskServiceClient;
use systole_scheduler::lanes::Lanes;
use systole_scheduler::store::claims::{self, LanePlan, Offer};
use systole_scheduler::store::{Class, Db};
use systole_tests::TestDb;
use systole_tests::postgres::{Cluster, free_port};
use systole_tests::replica::{Beats, Tasks, Token, command};
use tonic::transport::{Channel, Endpoint};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// One line of the table.
struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    note: String,
}

#[derive(Default)]
struct Report {
    rows: Vec<Row>,
}

impl Report {
    fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str, note: impl Into<String>) {
        let row = Row {
            name: name.into(),
            value,
            unit,
            note: note.into(),
        };
        println!(
            "{:<58} {:>12} {:<8} {}",
            row.name,
            pretty(row.value),
            row.unit,
            row.note
        );
        self.rows.push(row);
    }

    fn value(&self, name: &str) -> f64 {
        self.rows
            .iter()
            .find(|row| row.name == name)
            .map_or(f64::NAN, |row| row.value)
    }

    fn write(&self, path: &Path) -> Result<()> {
        let rows: Vec<serde_json::Value> = self
            .rows
            .iter()
            .map(|row| serde_json::json!({"name": row.name, "value": row.value, "unit": row.unit, "note": row.note}))
            .collect();
        let cores = std::thread::available_parallelism()?.get();
        let text = serde_json::to_string_pretty(&serde_json::json!({"format": 1, "cores": cores, "rows": rows}))?;
        std::fs::write(path, text + "\n")?;
        println!("\nJSON: {}", path.display());
        Ok(())
    }
}

fn pretty(value: f64) -> String {
    if value >= 1_000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = ((values.len() as f64 - 1.0) * q).round();
    values.get(at as usize).copied().unwrap_or(f64::NAN)
}

/// A scheduler process of the release binary.
struct Process {
    child: Child,
    url: String,
    tokens: PathBuf,
}

impl Process {
    async fn scheduler(binary: &Path, db: &TestDb) -> Result<Self> {
        let port = free_port();
        let tokens = db.token_dir();
        let child = Command::new(binary)
            .args([
                "scheduler",
                "--database",
                &db.url,
                "--listen",
                &format!("127.0.0.1:{port}"),
                "--connections",
                "12",
            ])
            .arg("--token-dir")
            .arg(&tokens)
            .env("SYSTOLE_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let process = Self {
            child,
            url: format!("http://127.0.0.1:{port}"),
            tokens,
        };
        for _ in 0..200 {
            if process.tasks().await.is_ok() {
                return Ok(process);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err("the scheduler does not come up".into())
    }

    fn runner(&self, binary: &Path, slots: u32, folder: &Path) -> Result<Child> {
        Ok(Command::new(binary)
            .args([
                "runner",
                "--url",
                &self.url,
                "--slots",
                &slots.to_string(),
                "--name",
                "bench",
            ])
            .arg("--data-dir")
            .arg(folder)
            .arg("--token-file")
            .arg(self.tokens.join("runner.token"))
            .env("SYSTOLE_LOG", "warn")
            .stdin(Stdio::null())
            .spawn()?)
    }

    fn token(&self, name: &str) -> Result<Token> {
        let text = std::fs::read_to_string(self.tokens.join(format!("{name}.token")))?;
        Ok(Token(Some(format!("Bearer {}", text.trim()).parse()?)))
    }

    async fn channel(&self) -> Result<Channel> {
        Ok(Endpoint::from_shared(self.url.clone())?
            .tcp_nodelay(true)
            .connect()
            .await?)
    }

    async fn tasks(&self) -> Result<Tasks> {
        let mut tasks = TaskServiceClient::with_interceptor(self.channel().await?, self.token("admin")?);
        tasks.count(v1::CountRequest::default()).await?;
        Ok(tasks)
    }

    async fn beats(&self) -> Result<Beats> {
        Ok(RunnerServiceClient::with_interceptor(
            self.channel().await?,
            self.token("runner")?,
        ))
    }

    /// Resident memory, KiB.
    fn rss(&self) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
        line.split_whitespace()
            .nth(1)
            .and_then(|kib| kib.parse().ok())
            .unwrap_or(f64::NAN)
    }

    /// CPU time used so far, s.
    fn cpu(&self) -> f64 {
        cpu(self.child.id())
    }
}

/// CPU time that a process used so far without its children, s.
fn cpu(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = text.rsplit(')').next().unwrap_or_default();
    let fields: Vec<f64> = after
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // user and system time are fields 14 and 15; the name and the state are not numbers.
    (fields.get(10).unwrap_or(&0.0) + fields.get(11).unwrap_or(&0.0)) / 100.0
}

/// CPU time that no process used so far, all cores together, s.
fn idle() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let fields: Vec<f64> = first
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // user, nice, system, idle, iowait
    (fields.get(3).unwrap_or(&0.0) + fields.get(4).unwrap_or(&0.0)) / 100.0
}

/// The warden that serves this data folder.
fn warden_of(folder: &Path) -> Option<u32> {
    let folder = folder.display().to_string();
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let text = std::fs::read(entry.path().join("cmdline")).ok()?;
        let arguments: Vec<_> = text.split(|&byte| byte == 0).collect();
        (arguments.contains(&b"warden".as_slice()) && arguments.contains(&folder.as_bytes())).then_some(pid)
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes of this command spawned and waited for, per second, by two threads.
fn spawn_limit(argv: &[&str], count: usize) -> f64 {
    let argv: Vec<String> = argv.iter().map(|&arg| arg.to_owned()).collect();
    let began = Instant::now();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let argv = argv.clone();
            std::thread::spawn(move || {
                for _ in 0..count / 2 {
                    let done = Command::new(&argv[0]).args(&argv[1..]).stdin(Stdio::null()).status();
                    assert!(done.is_ok_and(|status| status.success()));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("thread");
    }
    count as f64 / began.elapsed().as_secs_f64()
}

fn xargs(count: usize) -> Result<f64> {
    let began = Instant::now();
    let done = Command::new("sh")
        .args(["-c", &format!("seq {count} | xargs -P2 -n1 /bin/true")])
        .status()?;
    assert!(done.success());
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// What PostgreSQL itself does: claim and complete in batches of 100, four clients.
async fn postgres_limit() -> Result<f64> {
    let cluster = Cluster::shared();
    let name = cluster.create_database();
    cluster.sql(
        &name,
        "CREATE TABLE q (id BIGINT PRIMARY KEY, status SMALLINT NOT NULL, at BIGINT NOT NULL, body TEXT NOT NULL);
         CREATE INDEX q_open ON q (at, id) WHERE status = 1;
         INSERT INTO q SELECT n, 1, n, 'x' FROM generate_series(1, 100000) AS n;",
    );
    cluster.sql(&name, "VACUUM ANALYZE q");
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(4)
        .connect(&cluster.url(&name))
        .await?;
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (pool, done) = (pool.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                loop {
                    let claimed = sqlx::query(
                        "WITH p AS MATERIALIZED (SELECT id FROM q WHERE status = 1 ORDER BY at, id LIMIT 100 FOR UPDATE SKIP LOCKED) \
                         UPDATE q SET status = 2 FROM p WHERE q.id = p.id RETURNING q.id",
                    )
                    .fetch_all(&pool)
                    .await
                    .expect("claim");
                    if claimed.is_empty() {
                        return;
                    }
                    let ids: Vec<i64> = claimed.iter().map(|row| sqlx::Row::get(row, 0)).collect();
                    sqlx::query("UPDATE q SET status = 3 WHERE id = ANY($1)").bind(&ids).execute(&pool).await.expect("complete");
                    done.fetch_add(ids.len() as u64, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for client in clients {
        client.await?;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}

fn beat(host: &str, slot: u32, slots: u32) -> v1::HeartbeatRequest {
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

/// One simulated runner: as soon as it is given a task it says that it is done.
async fn simulate(mut client: Beats, mut request: v1::HeartbeatRequest, done: Arc<AtomicU64>) {
    loop {
        request.seq += 1;
        let Ok(response) = client.heartbeat(request.clone()).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let response = response.into_inner();
        done.fetch_add(response.acknowledged.len() as u64, Ordering::Relaxed);
        match response.run {
            Some(run) => {
                let now = u64::try_from(systole_shared::clock::now_ms()).unwrap_or(0);
                request.status = v1::RunnerStatus::Finished.into();
                request.task_id = run.task_id;
                request.max_task_id = request.max_task_id.max(run.task_id);
                request.sent_at_ms = now;
                request.results = vec![v1::TaskResult {
                    task_id: run.task_id,
                    dispatched_start_no: 1,
                    kind: "success".into(),
                    exit_code: Some(0),
                    started_at_ms: now,
                    ended_at_ms: now,
                    ..Default::default()
                }];
            }
            None => {
                request.status = v1::RunnerStatus::Idle.into();
                request.task_id = 0;
                request.results.clear();
            }
        }
    }
}

async fn submit_many(tasks: &mut Tasks, spec: &v1::TaskSpec, count: usize) -> Result<Vec<i64>> {
    let mut ids = Vec::with_capacity(count);
    let mut left = count;
    while left > 0 {
        let size = left.min(1_000);
        left -= size;
        let items = vec![
            v1::SubmitItem {
                spec: Some(spec.clone()),
                key: String::new(),
            };
            size
        ];
        let request = v1::SubmitRequest {
            items,
            reason: String::new(),
        };
        ids.extend(
            tasks
                .submit(request)
                .await?
                .into_inner()
                .results
                .iter()
                .map(|result| result.id),
        );
    }
    Ok(ids)
}

/// No-op tasks per second, from the first submission to the last recorded result.
async fn no_op(binary: &Path, db: &TestDb, replicas: usize, runners: u32, count: usize, rounds: usize) -> Result<f64> {
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

/// Waits for tasks that were submitted in this order. To count all tasks each time would be a load of its
/// own, so the last few are looked at, by id.
async fn until_finished(tasks: &mut Tasks, ids: &[i64]) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(120);
    let (rest, mut last) = ids.split_at(ids.len().saturating_sub(32));
    while !last.is_empty() {
        if Instant::now() > end {
            return Err(format!(
                "the tasks do not end; {} of the last {} are open",
                last.len(),
                ids.len()
            )
            .into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        while let Some((id, before)) = last.split_last() {
            if !are_finished(tasks, &[*id]).await? {
                break;
            }
            last = before;
        }
    }
    for chunk in rest.chunks(1_000) {
        while !are_finished(tasks, chunk).await? {
            if Instant::now() > end {
                return Err("some of the tasks do not end".into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    Ok(())
}

async fn are_finished(tasks: &mut Tasks, ids: &[i64]) -> Result<bool> {
    let got = tasks.get(v1::GetRequest { ids: ids.to_vec() }).await?.into_inner();
    Ok(got.results.iter().all(|result| {
        result
            .task
            .as_ref()
            .is_some_and(|task| task.state() == v1::TaskState::Finished)
    }))
}

/// What section (c) runs.
struct Real {
    tasks: usize,
    slots: u32,
    latency: bool,
}

/// Real tasks per second with real runners, and submit → child started on the idle cluster.
async fn real(binary: &Path, db: &TestDb, report: &mut Report, kind: &str, plan: &Real) -> Result<()> {
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
            format!("(c) CPU of systole for each, {kind}"),
            scheduler + agent + warden,
            "ms",
            format!("scheduler {scheduler:.2}, agent {agent:.2}, warden {warden:.2}; idle meanwhile {idle:.2}"),
        );
    }
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

async fn report_latency(tasks: &mut Tasks, db: &TestDb, report: &mut Report, kind: &str) -> Result<()> {
    let (mut latencies, mut direct) = latency(tasks, db.folder.path(), 300).await?;
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
    Ok(())
}

/// From the submission to the first byte that a shell writes into a pipe, ms; and, in between, the same for a shell
/// that is started directly.
async fn latency(tasks: &mut Tasks, folder: &Path, count: usize) -> Result<(Vec<f64>, Vec<f64>)> {
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
    let (mut through, mut direct) = (Vec::with_capacity(count), Vec::new());
    for round in 0..count {
        tokio::time::sleep(Duration::from_millis(15)).await;
        let began = Instant::now();
        submit_many(tasks, &spec, 1).await?;
        through.push(first_byte(&mut receiver, began).await?);
        if round % 3 == 0 {
            tokio::time::sleep(Duration::from_millis(15)).await;
            let began = Instant::now();
            let mut shell = Command::new("/bin/sh").args(["-c", &script]).spawn()?;
            direct.push(first_byte(&mut receiver, began).await?);
            shell.wait()?;
        }
    }
    Ok((through, direct))
}

async fn first_byte(receiver: &mut tokio::sync::mpsc::UnboundedReceiver<Instant>, began: Instant) -> Result<f64> {
    let started = tokio::time::timeout(Duration::from_secs(10), receiver.recv())
        .await?
        .ok_or("no child")?;
    Ok(started.duration_since(began).as_secs_f64() * 1_000.0)
}

/// Memory and CPU of a scheduler with parked runners.
async fn parked(binary: &Path, db: &TestDb, report: &mut Report, counts: &[u32]) -> Result<()> {
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
        let cpu = process.cpu();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let used = (process.cpu() - cpu) / 10.0 * 100.0;
        report.add(
            format!("(e) scheduler CPU, {count} parked"),
            used,
            "% core",
            "over 10 s; a beat each 30 s",
        );
        simulated.shutdown().await;
    }
    Ok(())
}

/// What a claim of 8 costs: median ms after the hints have settled.
async fn claim_cost(db: &Db, lane: i64, lanes: &Lanes, settle: Duration, naive: bool) -> Result<f64> {
    let group = lanes.group(&[], &systole_shared::policy::lane::Labels::new());
    let mut costs = Vec::new();
    let began = Instant::now();
    let mut slot = 0;
    while began.elapsed() < settle + Duration::from_secs(2) {
        lanes.wake(&[lane], []);
        let mut plan = lanes.plan([group], []);
        if naive {
            for LanePlan { from_ms, .. } in plan.lanes.values_mut().flatten() {
                *from_ms = 0;
            }
        }
        slot += 8;
        let offers: Vec<Offer> = (slot..slot + 8)
            .map(|slot| Offer {
                host: "c".into(),
                slot,
                start_no: 1,
                group,
            })
            .collect();
        let plan = Arc::new(plan);
        let plan_in = Arc::clone(&plan);
        let timed = Instant::now();
        let claimed = db
            .write("bench", Class::Beats, move |tx| {
                let (offers, plan) = (offers.clone(), Arc::clone(&plan_in));
                Box::pin(async move { claims::claim(tx, &offers, &plan).await })
            })
            .await?;
        let cost = timed.elapsed().as_secs_f64() * 1_000.0;
        lanes.learn(&plan, &claimed);
        if began.elapsed() >= settle {
            costs.push(cost);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(median(costs))
}

/// Claim cost against the backlog, and against dead rows that nobody vacuumed.
async fn claims_section(report: &mut Report) -> Result<()> {
    let cluster = Cluster::shared();
    let mut base = f64::NAN;
    for (label, queued, finished, snapshot) in [
        ("10,000 queued", 10_000, 0, false),
        ("1,000,000 queued", 1_000_000, 0, false),
        ("1,000,000 finished, not vacuumed", 10_000, 1_000_000, false),
        ("1,000,000 finished, old snapshot open", 10_000, 1_000_000, true),
    ] {
        let name = cluster.create_database();
        let db = Db::open(&cluster.url(&name), 8).await?;
        db.migrate().await?;
        let lane = systole_shared::policy::lane::Lane {
            queue: "default".into(),
            require: HashMap::<String, String>::new().into_iter().collect(),
            priority: 5,
        };
        let lane_id = db.lane_id(&lane).await?;
        cluster.sql(&name, "ALTER TABLE task SET (autovacuum_enabled = off)");
        let insert = |count: usize, at: &str| {
            cluster.sql(
                &name,
                &format!(
                    "INSERT INTO task (status, lane_id, priority, name, spec, submitted_by, created_at_ms, eligible_at_ms) \
                     SELECT 2, {lane_id}, 5, 't', '{{\"command\":[\"true\"],\"name\":\"t\",\"queue\":\"default\"}}', 'bench', 1, {at} \
                     FROM generate_series(1, {count}) AS n"
                ),
            )
        };
        let mut holder = None;
        if finished > 0 {
            insert(finished, "n");
            if snapshot {
                let pool = sqlx::postgres::PgPoolOptions::new()
                    .max_connections(1)
                    .connect(&cluster.url(&name))
                    .await?;
                let mut conn = pool.acquire().await?;
                sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM task")
                    .execute(&mut *conn)
                    .await?;
                holder = Some((pool, conn));
            }
            cluster.sql(
                &name,
                "UPDATE task SET status = 6, outcome_kind = 'success', ended_at_ms = 1 WHERE status = 2",
            );
        }
        insert(queued, "10000000 + n");
        cluster.sql(&name, "ANALYZE task");
        let lanes = Lanes::default();
        lanes.add(lane_id, lane.clone());
        let cost = claim_cost(&db, lane_id, &lanes, Duration::from_secs(7), false).await?;
        let note = if base.is_nan() {
            base = cost;
            String::new()
        } else {
            let mut note = format!("{:.2} times the first", cost / base);
            if finished > 0 {
                let naive = claim_cost(&db, lane_id, &lanes, Duration::ZERO, true).await?;
                note.push_str(&format!("; without hints {:.1} times", naive / base));
            }
            note
        };
        report.add(format!("claim of 8, {label}"), cost, "ms", note);
        drop(holder);
        db.close().await;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut quick = false;
    let mut only = None;
    let mut database = None;
    let mut count = None;
    let mut slots = 16;
    let mut out = PathBuf::from("target/bench.json");
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => quick = true,
            "--only" => only = args.next(),
            "--out" => out = args.next().ok_or("--out needs a path")?.into(),
            "--database" => database = args.next(),
            "--slots" => slots = args.next().ok_or("--slots needs a number")?.parse()?,
            "--tasks" => count = Some(args.next().ok_or("--tasks needs a number")?.parse()?),
            other => {
                let known = "--quick, --only LETTERS, --database sqlite|postgres, --tasks N, --slots N, --out FILE";
                return Err(format!("unknown option {other}; {known}").into());
            }
        }
    }
    let binary = std::env::current_exe()?.parent().ok_or("no folder")?.join("systole");
    if !binary.exists() {
        return Err(format!("{} is missing; run scripts/bench, which builds it", binary.display()).into());
    }
    let wants = |letter: &str| only.as_deref().is_none_or(|only| only.contains(letter));
    let (rounds, noop, real_count) = if quick { (1, 6_000, 600) } else { (3, 20_000, 2_000) };
    let (real_count, databases) = (count.unwrap_or(real_count), database.as_deref());
    let mut report = Report::default();
    if wants("a") {
        report.add(
            "(a) spawn and wait /bin/true, 2 threads",
            median((0..rounds).map(|_| spawn_limit(&["/bin/true"], 2_000)).collect()),
            "/s",
            "limit",
        );
        report.add(
            "(a) spawn and wait sh -c true, 2 threads",
            median(
                (0..rounds)
                    .map(|_| spawn_limit(&["/bin/sh", "-c", "true"], 2_000))
                    .collect(),
            ),
            "/s",
            "limit",
        );
        let mut rates = Vec::new();
        for _ in 0..rounds {
            rates.push(postgres_limit().await?);
        }
        report.add(
            "(a) PostgreSQL claim + complete, batches of 100",
            median(rates),
            "/s",
            "limit",
        );
    }
    if wants("b") {
        for (name, replicas, postgres) in [
            ("SQLite, 1 replica", 1, false),
            ("PostgreSQL, 1 replica", 1, true),
            ("PostgreSQL, 2 replicas", 2, true),
        ] {
            let db = if postgres { TestDb::postgres() } else { TestDb::sqlite() };
            let rate = no_op(&binary, &db, replicas, 256, noop, rounds).await?;
            let limit = report.value("(a) PostgreSQL claim + complete, batches of 100");
            report.add(
                format!("(b) no-op, 256 runners, {name}"),
                rate,
                "tasks/s",
                format!("{:.2} of the PostgreSQL limit", rate / limit),
            );
        }
    }
    if wants("c") {
        report.add(
            "(c) xargs -P2 /bin/true",
            median((0..rounds).filter_map(|_| xargs(2_000).ok()).collect()),
            "/s",
            "peer, no record",
        );
        let plan = Real {
            tasks: real_count,
            slots,
            latency: wants("d"),
        };
        if databases != Some("postgres") {
            real(&binary, &TestDb::sqlite(), &mut report, "SQLite", &plan).await?;
        }
        if databases != Some("sqlite") {
            real(&binary, &TestDb::postgres(), &mut report, "PostgreSQL", &plan).await?;
        }
    }
    if wants("e") {
        parked(
            &binary,
            &TestDb::postgres(),
            &mut report,
            if quick { &[1_000] } else { &[1_000, 10_000] },
        )
        .await?;
    }
    if wants("f") {
        claims_section(&mut report).await?;
    }
    report.write(&out)
}
