//! (i) Triggers: how late they fire among many, how many fire at most, and what the next time of one costs.

use crate::Result;
use crate::noop::{beat, simulate};
use crate::process::Process;
use crate::report::{Report, median};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use systole_shared::clock::now_ms;
use systole_shared::trigger::custom::Registry;
use systole_shared::trigger::definition::{Environment, TriggerSpec};
use systole_shared::trigger::zone::Zone;
use systole_tests::TestDb;

/// Triggers that are due each second of the steady part.
const PER_SECOND: i64 = 1_000;
/// The steady part begins so long after the seed, so that everything waits when it begins.
const LEAD_MS: i64 = 10_000;
/// Longest wait for a burst.
const BURST_MAX: Duration = Duration::from_secs(120);

/// What section (i) looks at.
pub struct Plan {
    /// Triggers that the database has, in turn.
    pub stored: Vec<i64>,
    /// Length of the steady part, seconds.
    pub seconds: i64,
    /// Triggers that are due at one instant.
    pub burst: i64,
}

pub async fn jobs(binary: &Path, report: &mut Report, plan: &Plan) -> Result<()> {
    next_fire(report)?;
    for &stored in &plan.stored {
        firing(binary, &TestDb::postgres(), report, plan, stored).await?;
    }
    Ok(())
}

async fn firing(binary: &Path, db: &TestDb, report: &mut Report, plan: &Plan, stored: i64) -> Result<()> {
    let steady = plan.seconds * PER_SECOND;
    if stored < steady + plan.burst {
        return Err(format!(
            "{stored} triggers are too few for {steady} and a burst of {}",
            plan.burst
        )
        .into());
    }
    let files = db.folder.path().join("jobs");
    std::fs::create_dir(&files)?;
    std::fs::write(
        files.join("seed.toml"),
        "format = 1\n[[job]]\nname = \"seed\"\ncommand = [\"true\"]\n[[job.trigger]]\nname = \"t\"\nfixed_rate = \"20d\"\n",
    )?;
    let folder = files.display().to_string();
    let process = Process::scheduler_with(binary, db, &["--jobs", &folder]).await?;
    until("the job is applied", || {
        db.sql("SELECT count(*) FROM job_trigger") == "1"
    })
    .await?;
    let base = seed(db, stored, steady)?;

    let mut simulated = tokio::task::JoinSet::new();
    for host in 0..8 {
        let client = process.beats().await?;
        for slot in 0..32 {
            let request = beat(&format!("j{host}"), slot, 32);
            simulated.spawn(simulate(client.clone(), request, Arc::new(AtomicU64::new(0))));
        }
    }
    // Its first and last tenth are left out: what is measured is the middle.
    let (from, to) = (base + steady / 10, base + steady - steady / 10);
    sleep_until(from).await;
    let cpu = process.cpu();
    sleep_until(to).await;
    let cpu = process.cpu() - cpu;
    sleep_until(base + steady + 3_000).await;
    let late = db.sql(&format!(
        "SELECT count(*) || ' ' || percentile_disc(0.5) WITHIN GROUP (ORDER BY at_ms - scheduled_ms) || ' ' || \
           percentile_disc(0.99) WITHIN GROUP (ORDER BY at_ms - scheduled_ms) \
         FROM occurrence WHERE verdict = 'fired' AND scheduled_ms >= {from} AND scheduled_ms < {to}"
    ));
    let late: Vec<f64> = late.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?;
    let [count, p50, p99] = late[..] else {
        return Err("the ledger says nothing".into());
    };
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a minute")]
    let expected = (to - from) as f64;
    if (count - expected).abs() > 1.0 {
        return Err(format!("{count} of {expected} triggers fired").into());
    }
    report.add(
        format!("(i) lateness p99 at {PER_SECOND} fires/s, {stored} triggers"),
        p99,
        "ms",
        format!("p50 {p50}; with the tasks they make run by 256 simulated runners"),
    );
    report.add(
        format!("(i) CPU of the scheduler for each, {stored} triggers"),
        cpu * 1_000.0 / expected,
        "ms",
        "from the trigger to FINISHED",
    );

    // Those behind the steady part, all at one instant.
    let now = now_ms();
    let began = Instant::now();
    db.sql(&format!(
        "UPDATE job_trigger SET created_at_ms = {now}, judged_ms = {now} - 1, next_ms = {now}, due_ms = {now} WHERE id IN \
           (SELECT id FROM job_trigger WHERE created_at_ms > {now} ORDER BY due_ms LIMIT {})",
        plan.burst
    ));
    let set_up = began.elapsed();
    let fired = format!(
        "SELECT count(*) = {} FROM occurrence WHERE verdict = 'fired' AND scheduled_ms = {now}",
        plan.burst
    );
    until("a burst is fired", || db.sql(&fired) == "t").await?;
    let span = db.sql(&format!(
        "SELECT max(at_ms) - min(at_ms) FROM occurrence WHERE scheduled_ms = {now}"
    ));
    #[expect(clippy::cast_precision_loss, reason = "thousands of triggers")]
    let rate = plan.burst as f64 / (span.parse::<f64>()? / 1_000.0).max(0.001);
    report.add(
        format!(
            "(i) fires of {} triggers that are due at once, {stored} triggers",
            plan.burst
        ),
        rate,
        "/s",
        format!("their tasks run meanwhile; made due in {:.1} s", set_up.as_secs_f64()),
    );
    simulated.shutdown().await;
    Ok(())
}

/// Copies of the one job that was applied, each with a trigger of its own: `steady` that are due a millisecond apart, the rest in
/// weeks. Returns when the first is due.
fn seed(db: &TestDb, stored: i64, steady: i64) -> Result<i64> {
    let columns = |table: &str, changed: &[(&str, &str)]| {
        let all = db.sql(&format!(
            "SELECT string_agg(column_name, ' ') FROM information_schema.columns WHERE table_name = '{table}' AND column_name <> 'id'"
        ));
        let names: Vec<String> = all.split(' ').map(str::to_owned).collect();
        let values = names.iter().map(|name| {
            changed
                .iter()
                .find(|(of, _)| of == name)
                .map_or_else(|| format!("m.{name}"), |(_, value)| (*value).to_owned())
        });
        (names.join(", "), values.collect::<Vec<_>>().join(", "))
    };
    let (names, values) = columns(
        "job",
        &[
            ("name", "'seed-' || n"),
            (
                "definition",
                "replace(m.definition, '\"seed\"', '\"seed-' || n || '\"')",
            ),
        ],
    );
    db.sql(&format!(
        "INSERT INTO job ({names}) SELECT {values} FROM job AS m, generate_series(1, {stored}) AS n WHERE m.name = 'seed'"
    ));
    let week = 7 * 86_400_000_i64;
    // The time of day only once all is stored: a million rows take a while.
    let at = format!("CASE WHEN j.n <= {steady} THEN j.n ELSE {week} + j.n END");
    let before = format!("({at}) - 1");
    let (names, values) = columns(
        "job_trigger",
        &[
            ("job_id", "j.id"),
            ("created_at_ms", &at),
            ("judged_ms", &before),
            ("next_ms", &at),
            ("due_ms", "NULL"),
        ],
    );
    db.sql(&format!(
        "INSERT INTO job_trigger ({names}) SELECT {values} FROM job_trigger AS m, \
           (SELECT id, row_number() OVER (ORDER BY id) AS n FROM job WHERE name LIKE 'seed-%') AS j"
    ));
    let begins = |base: i64| {
        format!(
            "UPDATE job_trigger SET created_at_ms = created_at_ms + {base}, judged_ms = judged_ms + {base}, \
               next_ms = next_ms + {base}, due_ms = next_ms + {base} WHERE due_ms IS NULL AND "
        )
    };
    // Those of later weeks first: they are many.
    db.sql(&format!("{} next_ms > {week}", begins(now_ms())));
    for table in ["job", "job_trigger"] {
        db.sql(&format!("VACUUM ANALYZE {table}"));
    }
    let base = now_ms() + LEAD_MS;
    db.sql(&format!("{} next_ms <= {steady}", begins(base)));
    Ok(base)
}

async fn sleep_until(at_ms: i64) {
    let left = u64::try_from(at_ms - now_ms()).unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(left)).await;
}

async fn until(what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > BURST_MAX {
            return Err(format!("waited in vain until {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// What the next time of a trigger costs, from instants all over a year.
fn next_fire(report: &mut Report) -> Result<()> {
    const ASKED: i64 = 20_000;
    let (registry, zone) = (Registry::built_in(), Zone::utc());
    for (name, text) in [
        (
            "every 5 minutes",
            r#"{"name":"t","cron":"*/5 * * * *","zone":"Europe/Berlin"}"#,
        ),
        ("daily", r#"{"name":"t","cron":"30 2 * * *","zone":"America/New_York"}"#),
        (
            "last Friday of the month, quartz",
            r#"{"name":"t","cron":"0 0 18 ? * 6L","dialect":"quartz","zone":"Asia/Tokyo"}"#,
        ),
        ("fixed rate", r#"{"name":"t","fixed_rate":"90s"}"#),
    ] {
        let spec: TriggerSpec = serde_json::from_str(text)?;
        let trigger = spec.compile(&Environment {
            job: "bench",
            created_ms: 0,
            default_zone: &zone,
            calendars: &BTreeMap::new(),
            registry: &registry,
        })?;
        let mut costs = Vec::new();
        for _ in 0..9 {
            let began = Instant::now();
            for n in 0..ASKED {
                let after = 1_800_000_000_000 + n * 31_557_600_000 / ASKED;
                black_box(
                    trigger
                        .next_after(black_box(after))
                        .map_err(|error| error.to_string())?,
                );
            }
            #[expect(clippy::cast_precision_loss, reason = "thousands")]
            costs.push(began.elapsed().as_secs_f64() * 1e9 / ASKED as f64);
        }
        report.add(format!("(i) next fire, {name}"), median(costs), "ns", "");
    }
    Ok(())
}
