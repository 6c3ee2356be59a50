//! What `systole doctor` makes of what it found: one sentence for each thing that was looked at, and what to do about it.
//! `problem` is what a person is needed for; `note` is worth knowing, and nothing breaks.

use crate::plural::counted;
use crate::time::format_duration;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    Note,
    Problem,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Problem => "problem",
        }
    }

    /// What a later scheduler calls something else is shown and needs nobody.
    pub fn parse(name: &str) -> Self {
        match name {
            "ok" => Self::Ok,
            "problem" => Self::Problem,
            _ => Self::Note,
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What, one word.
    pub check: String,
    /// Where: a replica, a host, a file.
    pub subject: String,
    pub level: Level,
    pub message: String,
    /// What to do; empty where there is nothing to do.
    pub remedy: String,
}

impl Finding {
    pub fn ok(check: &str, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            subject: subject.into(),
            level: Level::Ok,
            message: message.into(),
            remedy: String::new(),
        }
    }

    pub fn note(
        check: &str,
        subject: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Note,
            remedy: remedy.into(),
            ..Self::ok(check, subject, message)
        }
    }

    pub fn problem(
        check: &str,
        subject: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Problem,
            ..Self::note(check, subject, message, remedy)
        }
    }
}

/// Clocks that differ by less are the same.
const CLOCK_NOTE_MS: u64 = 500;
/// Times given on one machine mean something else on the other.
const CLOCK_PROBLEM_MS: u64 = 5_000;
/// Hosts and versions that one sentence names.
const NAMED_MAX: usize = 5;

/// `off_ms`: this clock minus the other.
pub fn clock(subject: &str, off_ms: i64, other: &str) -> Finding {
    let off = off_ms.unsigned_abs();
    let by = format_duration(off);
    let way = if off_ms > 0 { "ahead of" } else { "behind" };
    let message = format!("its clock is {by} {way} {other}");
    let remedy = "let the time be set by the network: `timedatectl set-ntp true`, or chrony";
    if off < CLOCK_NOTE_MS {
        Finding::ok("clock", subject, format!("its clock agrees with {other} ({off} ms)"))
    } else if off < CLOCK_PROBLEM_MS {
        Finding::note("clock", subject, message, remedy)
    } else {
        Finding::problem("clock", subject, message, remedy)
    }
}

/// The first two numbers of a version: what is compatible with the neighbouring one.
fn minor(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split(['.', '-', '+']).map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

/// Versions next to each other work together; others were never tried.
fn apart(a: &str, b: &str) -> bool {
    match (minor(a), minor(b)) {
        (Some((major_a, a)), Some((major_b, b))) => major_a != major_b || a.abs_diff(b) > 1,
        _ => false,
    }
}

/// `parts`: who (a replica, a host, this command) has which version.
pub fn versions(parts: &[(String, String)]) -> Finding {
    let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, version) in parts {
        by_version.entry(version).or_default().push(name);
    }
    let words: Vec<String> = by_version
        .iter()
        .map(|(version, names)| format!("{version}: {}", named(names)))
        .collect();
    let words = words.join("; ");
    if by_version.len() < 2 {
        return Finding::ok("versions", "cluster", format!("all have {words}"));
    }
    let versions: Vec<&str> = by_version.keys().copied().collect();
    let too_far = versions.iter().any(|a| versions.iter().any(|b| apart(a, b)));
    let message = format!("there are several versions: {words}");
    if too_far {
        Finding::problem(
            "versions",
            "cluster",
            message,
            "only neighbouring versions work together: bring the oldest up to date, schedulers first",
        )
    } else {
        Finding::note(
            "versions",
            "cluster",
            message,
            "fine during an upgrade; schedulers first, then runners, then clients",
        )
    }
}

/// The first few, and how many more.
pub fn named(names: &[&str]) -> String {
    let shown = names.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Rules of time zones: those of the program decide; the machine's show whether they are of yesterday.
pub fn zones(subject: &str, bundled: &str, machine: Option<&str>) -> Finding {
    match machine {
        // Releases are named by year and letter, so that later ones are greater.
        Some(machine) if machine > bundled => Finding::note(
            "tzdata",
            subject,
            format!("triggers use the zone rules {bundled} of the program; this machine has {machine}"),
            "if a zone of yours changed since, update systole; all replicas together",
        ),
        Some(machine) => Finding::ok(
            "tzdata",
            subject,
            format!("triggers use the zone rules {bundled} of the program (this machine: {machine})"),
        ),
        None => Finding::ok(
            "tzdata",
            subject,
            format!("triggers use the zone rules {bundled} of the program; this machine has none of its own"),
        ),
    }
}

const MIB: u64 = 1024 * 1024;

/// `needed`: what is there already, and may have to be copied.
pub fn disk(subject: &str, folder: &str, free: u64, needed: u64) -> Finding {
    let message = format!("{} MiB are free in {folder}", free / MIB);
    if free < 100 * MIB {
        Finding::problem(
            "disk",
            subject,
            message,
            "make room: when it is full, nothing can be stored",
        )
    } else if free < 1024 * MIB || free < needed {
        Finding::note(
            "disk",
            subject,
            format!("{message}, which is little"),
            "make room; `--output-budget` and `--keep` of the scheduler say how much is kept",
        )
    } else {
        Finding::ok("disk", subject, message)
    }
}

/// Open files of a process: one for each connection and for each stream of a task.
pub fn descriptors(subject: &str, open: u64, soft: u64, enough: u64, raise: &str) -> Finding {
    let message = format!("{open} of {soft} open files");
    if open.saturating_mul(10) >= soft.saturating_mul(9) {
        Finding::problem("files", subject, message, raise)
    } else if soft < enough {
        Finding::note("files", subject, format!("{message}; {enough} are better"), raise)
    } else {
        Finding::ok("files", subject, message)
    }
}

/// What an SQLite database says of itself.
#[derive(Clone, Debug, Default)]
pub struct Sqlite {
    pub journal_mode: String,
    pub synchronous: i64,
    pub bytes: u64,
    pub free_bytes: u64,
    pub log_bytes: u64,
}

/// A log that is longer is not being written back.
const SQLITE_LOG_MAX: u64 = 512 * MIB;

pub fn sqlite(facts: &Sqlite) -> Vec<Finding> {
    let subject = "database";
    let mut findings = Vec::new();
    if facts.journal_mode != "wal" || facts.synchronous < 2 {
        findings.push(Finding::problem(
            "database",
            subject,
            format!(
                "journal_mode is {} and synchronous is {}, not wal and 2 (full): a power cut may lose acknowledged tasks",
                facts.journal_mode, facts.synchronous
            ),
            "something else has changed the file; restart the scheduler, which sets both",
        ));
    } else {
        findings.push(Finding::ok(
            "database",
            subject,
            "SQLite with a write-ahead log and full synchronisation",
        ));
    }
    if facts.log_bytes > SQLITE_LOG_MAX {
        findings.push(Finding::note(
            "database",
            subject,
            format!("its write-ahead log has {} MiB", facts.log_bytes / MIB),
            "something reads the file for very long and keeps it from being written back: another program with the file open?",
        ));
    }
    if facts.free_bytes > 256 * MIB && facts.free_bytes > facts.bytes / 2 {
        findings.push(Finding::note(
            "database",
            subject,
            format!(
                "{} of its {} MiB are free pages",
                facts.free_bytes / MIB,
                facts.bytes / MIB
            ),
            "they are used again; to give them back to the disk: stop the scheduler, sqlite3 FILE VACUUM",
        ));
    }
    findings
}

/// What a PostgreSQL server says of itself.
#[derive(Clone, Debug, Default)]
pub struct Postgres {
    pub version: String,
    pub max_connections: i64,
    pub reserved: i64,
    pub connections: i64,
    pub autovacuum: String,
    pub fsync: String,
    pub synchronous_commit: String,
    pub full_page_writes: String,
    pub live_rows: i64,
    pub dead_rows: i64,
    /// The transaction that began first and is still open.
    pub oldest_ms: i64,
}

/// No transaction of ours lives as long.
const TRANSACTION_NOTE_MS: i64 = 5 * 60_000;

pub fn postgres(facts: &Postgres) -> Vec<Finding> {
    let subject = "database";
    let mut findings = Vec::new();
    let mut problem = |message: String, remedy: &str| {
        findings.push(Finding::problem("database", subject, message, remedy));
    };
    for (name, value) in [
        ("fsync", &facts.fsync),
        ("synchronous_commit", &facts.synchronous_commit),
        ("full_page_writes", &facts.full_page_writes),
    ] {
        if value == "off" {
            problem(
                format!("{name} is off: a power cut may lose acknowledged tasks, or damage the database"),
                "switch it on in postgresql.conf and reload",
            );
        }
    }
    if facts.autovacuum == "off" {
        problem(
            "autovacuum is off: the queue gets slower with each task".into(),
            "switch it on in postgresql.conf and reload",
        );
    }
    let room = facts.max_connections - facts.reserved;
    if facts.connections * 10 >= room * 9 {
        problem(
            format!("{} of {room} connections are in use", facts.connections),
            "raise max_connections, or lower --connections of the schedulers",
        );
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            "database",
            subject,
            format!(
                "PostgreSQL {}, {} of {room} connections in use, vacuumed by itself",
                facts.version, facts.connections
            ),
        ));
    }
    if facts.dead_rows > 100_000 && facts.dead_rows > facts.live_rows {
        findings.push(Finding::note(
            "database",
            subject,
            format!(
                "table task has {} dead rows and {} live ones",
                facts.dead_rows, facts.live_rows
            ),
            "vacuum cannot keep up: VACUUM (ANALYZE) task; then a lower autovacuum_vacuum_cost_delay",
        ));
    }
    if facts.oldest_ms > TRANSACTION_NOTE_MS {
        findings.push(Finding::note(
            "database",
            subject,
            format!(
                "a transaction is open for {}, and nothing that changed since can be vacuumed",
                format_duration(facts.oldest_ms.unsigned_abs())
            ),
            "SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start LIMIT 3; a pg_dump ends by itself",
        ));
    }
    findings
}

/// What a host that lives says of itself.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pub name: String,
    /// What keeps the processes of a task together: `cgroup2`, `cgroup1`, …; `session` is the weakest.
    pub guard: Option<String>,
    /// Its clock minus the database's when it registered.
    pub skew_ms: i64,
}

pub fn hosts(hosts: &[Host]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let weak: Vec<&str> = hosts
        .iter()
        .filter(|host| host.guard.as_deref() == Some("session"))
        .map(|host| host.name.as_str())
        .collect();
    if weak.is_empty() && !hosts.is_empty() {
        findings.push(Finding::ok(
            "guard",
            "hosts",
            "each task has a control group of its own",
        ));
    } else if !weak.is_empty() {
        findings.push(Finding::note(
            "guard",
            named(&weak),
            "no control groups: processes that leave their session are found by their variables, and memory and CPU limits of a whole task are not to be had",
            "run the runner as a service with Delegate=yes (systole service install), or as root",
        ));
    }
    let off: Vec<&Host> = hosts
        .iter()
        .filter(|host| host.skew_ms.unsigned_abs() >= CLOCK_PROBLEM_MS)
        .collect();
    for host in off.iter().take(NAMED_MAX) {
        findings.push(clock(&host.name, host.skew_ms, "the database's, as of its start"));
    }
    if off.len() > NAMED_MAX {
        findings.push(Finding::problem(
            "clock",
            "hosts",
            format!(
                "the clock is off at {}, too",
                counted(off.len() - NAMED_MAX, "more host")
            ),
            "systole runners -o wide",
        ));
    }
    findings
}

/// Backups that somebody asked systole for.
pub fn backup(age_ms: Option<i64>) -> Finding {
    const WEEK_MS: i64 = 7 * 24 * 3_600_000;
    match age_ms {
        Some(age) if age <= WEEK_MS => Finding::ok(
            "backup",
            "database",
            format!(
                "the last `systole backup` was begun {} ago",
                format_duration(age.unsigned_abs())
            ),
        ),
        Some(age) => Finding::note(
            "backup",
            "database",
            format!(
                "the last `systole backup` was begun {} ago",
                format_duration(age.unsigned_abs())
            ),
            "systole backup FILE; nightly, as a job or from cron",
        ),
        None => Finding::note(
            "backup",
            "database",
            "no `systole backup` of it is known",
            "systole backup FILE; nightly, as a job or from cron",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(findings: &[Finding]) -> Vec<Level> {
        findings.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn whatever_needs_a_person_says_what_to_do() {
        let postgres = Postgres {
            max_connections: 100,
            reserved: 3,
            connections: 97,
            autovacuum: "off".into(),
            fsync: "off".into(),
            synchronous_commit: "off".into(),
            full_page_writes: "off".into(),
            dead_rows: 200_000,
            oldest_ms: 600_000,
            ..Postgres::default()
        };
        let host = Host {
            name: "a".into(),
            guard: Some("session".into()),
            skew_ms: -9_000,
        };
        let version = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let mut all = self::postgres(&postgres);
        all.extend(sqlite(&Sqlite {
            journal_mode: "delete".into(),
            log_bytes: 1 << 40,
            bytes: 1 << 40,
            free_bytes: 1 << 40,
            ..Sqlite::default()
        }));
        all.extend(hosts(&vec![host; 9]));
        all.push(clock("here", 60_000, "there"));
        all.push(clock("here", 900, "there"));
        all.push(versions(&[version("a", "0.1.0"), version("b", "0.3.0")]));
        all.push(versions(&[version("a", "0.1.0"), version("b", "0.2.0")]));
        all.push(zones("a", "2025b", Some("2026a")));
        all.push(disk("a", "/", 1, 0));
        all.push(disk("a", "/", 2 << 30, 3 << 30));
        all.push(descriptors("a", 95, 100, 1, "raise it"));
        all.push(descriptors("a", 1, 100, 1_000, "raise it"));
        all.push(backup(None));
        assert!(all.len() > 20);
        for finding in &all {
            assert!(finding.level > Level::Ok && !finding.remedy.is_empty(), "{finding:?}");
            assert!(
                !finding.message.ends_with('.') && !finding.subject.is_empty(),
                "{finding:?}"
            );
            assert_eq!(Level::parse(finding.level.name()), finding.level);
        }
    }

    #[test]
    fn what_is_well_says_so_once() {
        let postgres = Postgres {
            version: "16".into(),
            max_connections: 100,
            connections: 20,
            ..Postgres::default()
        };
        let sqlite = Sqlite {
            journal_mode: "wal".into(),
            synchronous: 2,
            ..Sqlite::default()
        };
        let host = Host {
            name: "a".into(),
            guard: Some("cgroup2".into()),
            skew_ms: 400,
        };
        assert_eq!(levels(&self::postgres(&postgres)), [Level::Ok]);
        assert_eq!(levels(&self::sqlite(&sqlite)), [Level::Ok]);
        assert_eq!(levels(&hosts(&[host.clone(), host])), [Level::Ok]);
        assert_eq!(levels(&hosts(&[])), []);
        for finding in [
            clock("a", -499, "b"),
            versions(&[("a".into(), "1.0.0".into()), ("b".into(), "1.0.0".into())]),
            zones("a", "2025b", Some("2025a")),
            zones("a", "2025b", None),
            disk("a", "/", 8 << 30, 1 << 30),
            descriptors("a", 10, 4_096, 4_096, "x"),
            backup(Some(0)),
        ] {
            assert_eq!(finding.level, Level::Ok, "{finding:?}");
        }
    }

    #[test]
    fn neighbouring_versions_are_an_upgrade_and_others_a_problem() {
        for (a, b, far) in [
            ("0.1.0", "0.2.5", false),
            ("0.1.0", "0.3.0", true),
            ("1.0.0", "0.9.0", true),
            ("0.1.0-dev", "0.2.0+git", false),
            ("something", "0.2.0", false),
        ] {
            assert_eq!((apart(a, b), apart(b, a)), (far, far), "{a} {b}");
        }
        let many: Vec<(String, String)> = (0..9).map(|n| (format!("h{n}"), "0.1.0".to_owned())).collect();
        assert!(
            versions(&many).message.contains("h4 and 4 more"),
            "{:?}",
            versions(&many)
        );
    }
}
