//! `scripts/bench`: measures limits, and systole beside them, in one run on one machine. Prints a table
//! and writes JSON. Ratios to the limits are what counts; absolute figures belong to the machine.

mod claims;
mod flood;
mod jobs;
mod limits;
mod noop;
mod parked;
mod people;
mod process;
mod real;
mod report;
mod retention;
mod submit;

use claims::claims_section;
use flood::flood;
use jobs::jobs;
use limits::{postgres_limit, spawn_limit, xargs};
use noop::no_op;
use parked::parked;
use people::{People, people};
use real::{Real, real};
use report::{Report, median};
use std::path::PathBuf;
use std::time::Duration;
use systole_tests::TestDb;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut quick = false;
    let mut only = None;
    let mut database = None;
    let mut count = None;
    let mut slots = vec![16, 64];
    let mut history = None;
    let mut out = PathBuf::from("target/bench.json");
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => quick = true,
            "--only" => only = args.next(),
            "--out" => out = args.next().ok_or("--out needs a path")?.into(),
            "--database" => database = args.next(),
            "--slots" => {
                let given = args.next().ok_or("--slots needs a number, or several as 16,64")?;
                slots = given
                    .split(',')
                    .map(str::parse)
                    .collect::<std::result::Result<_, _>>()?;
            }
            "--history" => history = Some(args.next().ok_or("--history needs a number")?.parse()?),
            "--tasks" => count = Some(args.next().ok_or("--tasks needs a number")?.parse()?),
            other => {
                let known = "--quick, --only LETTERS, --database sqlite|postgres, --tasks N, --slots N[,N…], --history N, --out FILE";
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
                if limit.is_nan() {
                    String::new()
                } else {
                    format!("{:.2} of the PostgreSQL limit", rate / limit)
                },
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
        for (nth, &slots) in slots.iter().enumerate() {
            let plan = Real {
                tasks: real_count,
                slots,
                latency: wants("d") && nth == 0,
            };
            if databases != Some("postgres") {
                real(&binary, &TestDb::sqlite(), &mut report, "SQLite", &plan).await?;
            }
            if databases != Some("sqlite") {
                real(&binary, &TestDb::postgres(), &mut report, "PostgreSQL", &plan).await?;
            }
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
    if wants("g") {
        flood(&binary, &TestDb::sqlite(), &mut report, if quick { 1 } else { 10 }).await?;
    }
    if wants("h") {
        let plan = People {
            tasks: history.unwrap_or(if quick { 50_000 } else { 1_000_000 }),
            hosts: 1_000,
            lines: if quick { 10_000 } else { 100_000 },
            rounds: if quick { 10 } else { 50 },
            watch: Duration::from_secs(if quick { 5 } else { 30 }),
        };
        if databases != Some("postgres") {
            people(&binary, &TestDb::sqlite(), &mut report, "SQLite", &plan).await?;
        }
        if databases != Some("sqlite") {
            people(&binary, &TestDb::postgres(), &mut report, "PostgreSQL", &plan).await?;
        }
    }
    if wants("i") {
        let plan = jobs::Plan {
            stored: if quick { vec![8_000] } else { vec![100_000, 1_000_000] },
            seconds: if quick { 5 } else { 60 },
            burst: if quick { 3_000 } else { 40_000 },
        };
        jobs(&binary, &mut report, &plan).await?;
    }
    report.write(&out)
}
