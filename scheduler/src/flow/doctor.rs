//! What only a scheduler can look at for `systole doctor`: its own process, the database, and what hosts have said.

use super::alarms;
use super::backup::free_bytes;
use crate::context::Context;
use crate::store::StoreError;
use crate::store::read::RunnerRow;
use crate::store::sql::Dialect;
use std::path::Path;
use systole_shared::clock::now_ms;
use systole_shared::policy::doctor::{self, Finding, Host, Postgres, Sqlite};
use systole_shared::trigger::zone;

/// A replica that has not written for this long is not there.
const REPLICA_MS: i64 = 15_000;
/// Slots that are looked at.
const SLOTS_MAX: i64 = 100_000;
/// One for each connection: a host has one, a waiting client another.
const FILES_ENOUGH: u64 = 4_096;

/// What was found, by this replica; and the time that the database has.
pub async fn examine(ctx: &Context) -> Result<(Vec<Finding>, i64), StoreError> {
    let asked_ms = now_ms();
    let db_ms = ctx.db.now_ms().await?;
    // As if the answer had been made half-way.
    let here_ms = asked_ms + (now_ms() - asked_ms) / 2;
    let replica = ctx.replica.as_str();
    let mut findings: Vec<Finding> = alarms::open(ctx)
        .await?
        .into_iter()
        .map(|alarm| Finding::problem("alarm", alarm.kind.name(), alarm.message, "systole admin alarms"))
        .collect();
    findings.push(doctor::clock(replica, here_ms - db_ms, "the database's"));
    findings.push(doctor::zones(
        replica,
        zone::database_version(),
        zones_of_machine().as_deref(),
    ));
    findings.extend(files(replica));
    findings.extend(database(ctx).await?);
    let rows = ctx.db.runners((String::new(), -1), String::new(), SLOTS_MAX).await?;
    let live = live_hosts(&rows, ctx.lost_after_ms());
    let mut versions: Vec<(String, String)> = ctx
        .db
        .replicas(REPLICA_MS)
        .await?
        .into_iter()
        .map(|replica| (format!("scheduler {}", replica.name), replica.version))
        .collect();
    versions.extend(
        live.iter()
            .map(|row| (format!("runner {}", row.host), row.version.clone())),
    );
    findings.push(doctor::versions(&versions));
    let hosts: Vec<Host> = live
        .iter()
        .map(|row| Host {
            name: row.host.clone(),
            guard: systole_proto::facts::guard(&row.facts),
            skew_ms: row.clock_skew_ms,
        })
        .collect();
    if hosts.is_empty() {
        findings.push(Finding::problem(
            "hosts",
            "cluster",
            "no runner lives: nothing can run",
            "start one: `systole runner` on a machine that has joined, `systole join-command` for another",
        ));
    }
    findings.extend(doctor::hosts(&hosts));
    Ok((findings, db_ms))
}

/// The release of the zone rules that this machine has, which nothing here uses.
pub fn zones_of_machine() -> Option<String> {
    let text = std::fs::read("/usr/share/zoneinfo/tzdata.zi").ok()?;
    let line = text.split(|byte| *byte == b'\n').next()?;
    let version = std::str::from_utf8(line).ok()?.strip_prefix("# version ")?.trim();
    (version.len() < 20).then(|| version.to_owned())
}

/// The first slot of each host that lives; the rows come in order.
fn live_hosts(rows: &[RunnerRow], lost_after_ms: i64) -> Vec<&RunnerRow> {
    let mut live: Vec<&RunnerRow> = rows
        .iter()
        .filter(|row| row.age_ms < lost_after_ms && !(row.leaving && row.task_id.is_none()))
        .collect();
    live.dedup_by(|a, b| a.host == b.host);
    live
}

fn files(replica: &str) -> Option<Finding> {
    let (soft, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).ok()?;
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    Some(doctor::descriptors(
        replica,
        u64::try_from(open).unwrap_or(0),
        soft,
        FILES_ENOUGH,
        "LimitNOFILE=65536 in its unit, or `ulimit -n 65536` before it is started",
    ))
}

async fn database(ctx: &Context) -> Result<Vec<Finding>, StoreError> {
    let Some(path) = ctx.db.sqlite_path().filter(|_| ctx.db.dialect() == Dialect::Sqlite) else {
        let row = ctx.db.postgres_facts().await?;
        return Ok(doctor::postgres(&Postgres {
            version: row.version,
            max_connections: row.max_connections,
            reserved: row.reserved,
            connections: row.connections,
            autovacuum: row.autovacuum,
            fsync: row.fsync,
            synchronous_commit: row.synchronous_commit,
            full_page_writes: row.full_page_writes,
            live_rows: row.live_rows,
            dead_rows: row.dead_rows,
            oldest_ms: row.oldest_ms,
        }));
    };
    let row = ctx.db.sqlite_facts().await?;
    let bytes = u64::try_from(row.bytes).unwrap_or(0);
    let mut findings = doctor::sqlite(&Sqlite {
        journal_mode: row.journal_mode,
        synchronous: row.synchronous,
        bytes,
        free_bytes: u64::try_from(row.free_bytes).unwrap_or(0),
        log_bytes: size_of_log(path),
    });
    if let Some((folder, free)) = free_bytes(path) {
        findings.push(doctor::disk("database", &folder.display().to_string(), free, bytes));
    }
    findings.push(doctor::backup(ctx.db.last_backup_ms().await?));
    Ok(findings)
}

fn size_of_log(path: &Path) -> u64 {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    std::fs::metadata(name).map_or(0, |meta| meta.len())
}
