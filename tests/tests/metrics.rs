//! `/metrics` as Prometheus reads it, with a parser that forgives nothing; and what is said of the database.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use systole_tests::postgres::Cluster;
use systole_tests::system::{http_get_with, until};
use systole_tests::{System, TestDb};

/// A family of series, as it was announced.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    /// By labels, in the order of the text.
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

fn is_name(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    text.starts_with(letter) && text.chars().all(|c| letter(c) || c.is_ascii_digit())
}

/// `name="value",…` up to the brace; what follows it.
fn labels(mut text: &str) -> (BTreeMap<String, String>, &str) {
    let mut found = BTreeMap::new();
    loop {
        let (name, rest) = text.split_once("=\"").expect("a label");
        assert!(
            is_name(name) && !name.contains(':') && !name.starts_with("__"),
            "{name}"
        );
        let (mut value, mut escaped, mut end) = (String::new(), false, None);
        for (at, c) in rest.char_indices() {
            match (escaped, c) {
                (true, 'n') => value.push('\n'),
                (true, '\\' | '"') => value.push(c),
                (true, c) => panic!("\\{c} is no escape"),
                (false, '\\') => {}
                (false, '"') => {
                    end = Some(at + 1);
                    break;
                }
                (false, c) => value.push(c),
            }
            escaped = !escaped && c == '\\';
        }
        let after = &rest[end.expect("a closing quote")..];
        assert!(found.insert(name.to_owned(), value).is_none(), "{name} twice");
        if let Some(after) = after.strip_prefix('}') {
            return (found, after);
        }
        text = after.strip_prefix(',').expect("a comma");
    }
}

/// The text format 0.0.4, strictly: each family announced once, with help before type, its samples together, none twice.
fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line must end");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let (mut current, mut helped) = (String::new(), String::new());
    let mut seen = HashSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(is_name(name) && !help.is_empty() && !help.contains('\\'), "{line}");
            helped = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(["gauge", "counter", "histogram"].contains(&kind), "{line}");
            assert_eq!(name, helped, "the help comes right before the type");
            let family = Family {
                kind: kind.to_owned(),
                ..Family::default()
            };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} twice");
            current = name.to_owned();
        } else {
            assert!(!line.starts_with('#') && !line.is_empty(), "{line:?}");
            let (name, rest) = line.split_at(line.find(['{', ' ']).expect("a sample"));
            assert!(is_name(name), "{line}");
            let (labels, rest) = match rest.strip_prefix('{') {
                Some(inside) => labels(inside),
                None => (BTreeMap::new(), rest),
            };
            let value = rest.strip_prefix(' ').expect("one space before the value");
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(value.is_finite(), "{line}");
            assert!(seen.insert((name.to_owned(), labels.clone())), "{line} twice");
            let family = families.get_mut(&current).expect("announced");
            let end = name
                .strip_prefix(current.as_str())
                .unwrap_or_else(|| panic!("{line} is not of {current}"));
            match family.kind.as_str() {
                "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&end), "{line}"),
                _ => assert_eq!(end, "", "{line}"),
            }
            if family.kind != "gauge" {
                assert!(value >= 0.0, "{line}");
            }
            family.samples.push((name.to_owned(), labels, value));
        }
    }
    for (name, family) in &families {
        assert!(!family.samples.is_empty(), "{name} has no sample");
        if family.kind == "histogram" {
            histogram(name, family);
        }
    }
    families
}

/// Bounds with their values, the sum and the count.
type Series = (Vec<(f64, f64)>, Option<f64>, Option<f64>);

/// Buckets rise to +Inf, which is the count.
fn histogram(name: &str, family: &Family) {
    let mut series: HashMap<String, Series> = HashMap::new();
    for (sample, labels, value) in &family.samples {
        let mut rest = labels.clone();
        let bound = rest.remove("le");
        let entry = series.entry(format!("{rest:?}")).or_default();
        match (&sample[name.len()..], bound) {
            ("_bucket", Some(bound)) => entry
                .0
                .push((bound.replace("+Inf", "inf").parse().expect("a bound"), *value)),
            ("_sum", None) => entry.1 = Some(*value),
            ("_count", None) => entry.2 = Some(*value),
            other => panic!("{name}: {other:?}"),
        }
    }
    for (labels, (buckets, sum, count)) in series {
        assert!(
            buckets
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1),
            "{name} {labels}"
        );
        let last = buckets.last().expect("buckets");
        assert!(
            last.0.is_infinite() && Some(last.1) == count && sum.is_some(),
            "{name} {labels}"
        );
    }
}

struct Numbers(BTreeMap<String, Family>);

impl Numbers {
    fn read(system: &System) -> Self {
        let token = std::fs::read_to_string(system.db.token_dir().join("admin.token")).expect("token");
        let (status, text) = http_get_with(system.ports[0], "/metrics", token.trim()).expect("an answer");
        assert_eq!(status, 200, "{text}");
        Self(parse(&text))
    }

    /// The value of the sample with these labels.
    fn get(&self, name: &str, wanted: &[(&str, &str)]) -> f64 {
        let base = ["_count", "_sum"]
            .iter()
            .find_map(|end| name.strip_suffix(end).filter(|base| self.0.contains_key(*base)))
            .unwrap_or(name);
        let family = self.0.get(base).unwrap_or_else(|| panic!("{name} is not served"));
        let found = family.samples.iter().find(|(sample, labels, _)| {
            sample == name
                && labels.len() == wanted.len()
                && wanted
                    .iter()
                    .all(|(key, value)| labels.get(*key).is_some_and(|l| l == value))
        });
        found.unwrap_or_else(|| panic!("{name}{wanted:?}: {family:?}")).2
    }
}

fn numbers_are_served_as_they_are_listed(db: TestDb) {
    let system = System::new(db);
    let _scheduler = system.scheduler(0);
    let _runner = system.runner("w", 2, &[]);
    let _second = system.runner("x", 1, &["--queue", "reports"]);
    until("the runners are there", || {
        system.say(&["-o", "id", "runners"]).stdout.lines().count() == 3
    });
    for (command, state) in [("true", "FINISHED"), ("false", "FAILED"), ("true", "FINISHED")] {
        let id = system.submit(&["--", command]);
        system.until(&id, &[state]);
    }
    let waits = system.submit(&["--require", "gpu=1", "--", "true"]);
    let cancelled = system.submit(&["--delay", "1h", "--", "true"]);
    assert_eq!(system.say(&["cancel", &cancelled]).code, Some(0));
    assert_eq!(system.say(&["runners", "cordon", "x"]).code, Some(0));
    // What is read from the database may be some seconds old.
    let mut numbers = Numbers::read(&system);
    until("the numbers of the cluster are there", || {
        numbers = Numbers::read(&system);
        numbers.get("systole_hosts", &[("state", "cordoned")]) == 1.0
            && numbers.get("systole_tasks", &[("state", "QUEUED")]) == 1.0
            && numbers.get("systole_attention", &[]) == 1.0
            && numbers.get("systole_ended_badly", &[("outcome", "exit_code")]) == 1.0
    });
    let get = |name, labels: &[(&str, &str)]| numbers.get(name, labels);
    for (name, labels, value) in [
        ("systole_ready", vec![], 1.0),
        ("systole_replicas", vec![], 1.0),
        ("systole_hosts", vec![("state", "ready")], 1.0),
        ("systole_slots", vec![], 3.0),
        ("systole_slots_busy", vec![], 0.0),
        ("systole_tasks_submitted_total", vec![], 5.0),
        ("systole_tasks_ended_total", vec![("outcome", "success")], 2.0),
        ("systole_tasks_ended_total", vec![("outcome", "exit_code")], 1.0),
        ("systole_tasks_ended_total", vec![("outcome", "cancelled")], 1.0),
        ("systole_tasks_ended_total", vec![("outcome", "timeout")], 0.0),
        ("systole_queue_wait_seconds_count", vec![], 3.0),
        ("systole_start_seconds_count", vec![], 3.0),
        ("systole_report_commit_seconds_count", vec![], 3.0),
        ("systole_jobs_late", vec![], 0.0),
        ("systole_alarms_undelivered", vec![], 0.0),
        ("systole_standbys", vec![], 0.0),
    ] {
        assert_eq!(get(name, &labels), value, "{name}{labels:?}");
    }
    let dispatched: f64 = ["claim", "answer"]
        .map(|with| get("systole_tasks_dispatched_total", &[("with", with)]))
        .iter()
        .sum();
    assert_eq!(dispatched, 3.0);
    let claims: f64 = ["all", "some", "none"]
        .map(|fed| get("systole_claims_total", &[("fed", fed)]))
        .iter()
        .sum();
    assert_eq!(claims, get("systole_claim_seconds_count", &[]));
    assert!(get("systole_tasks_dispatched_total", &[("with", "claim")]) >= 1.0 && claims >= 1.0);
    assert!(get("systole_beat_seconds_count", &[]) >= 3.0, "those with results");
    assert!(get("systole_commit_seconds_count", &[("class", "beats")]) > 3.0);
    assert!(get("systole_commit_seconds_sum", &[("class", "other")]) > 0.0);
    assert!(get("systole_queue_oldest_seconds", &[]) > 0.0 && get("systole_database_bytes", &[]) > 0.0);
    assert_eq!(system.state(&waits), "QUEUED");

    // The list of the documentation is the list that is served; no label is anything that people choose.
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md")).expect("page");
    let listed: Vec<(String, String)> = page
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `systole_")?.split('|');
            let name = cells.next()?.trim().trim_end_matches('`');
            Some((format!("systole_{name}"), cells.next()?.trim().to_owned()))
        })
        .collect();
    let mut served: Vec<(String, String)> = numbers
        .0
        .iter()
        .map(|(name, family)| (name.clone(), family.kind.clone()))
        .collect();
    served.sort();
    let mut sorted = listed;
    sorted.sort();
    assert_eq!(sorted, served);
    let series: Vec<_> = numbers.0.values().flat_map(|family| &family.samples).collect();
    assert!(series.len() < 2_500, "{} series", series.len());
    let chosen = ["w", "x", "reports", "gpu", waits.as_str()];
    for (name, labels, _) in series {
        assert!(
            labels.values().all(|value| !chosen.contains(&value.as_str())),
            "{name} {labels:?}"
        );
    }
}

#[test]
fn numbers_are_served_as_they_are_listed_on_sqlite() {
    numbers_are_served_as_they_are_listed(TestDb::sqlite());
}

#[test]
fn numbers_are_served_as_they_are_listed_on_postgres() {
    numbers_are_served_as_they_are_listed(TestDb::postgres());
}

#[test]
fn status_says_how_long_commits_take_and_how_far_a_standby_is_behind() {
    // Of its own: each database of a cluster has the same standbys.
    let cluster = Cluster::new();
    let system = System::new(of(&cluster, "systole"));
    let _scheduler = system.scheduler(0);
    let status =
        || -> serde_json::Value { serde_json::from_str(&system.say(&["-o", "json", "status"]).stdout).expect("JSON") };
    system.submit(&["--delay", "1h", "--", "true"]);
    let alone = &status()["database"];
    assert!(
        alone["commits"]["count"].as_u64().is_some_and(|count| count > 0),
        "{alone}"
    );
    assert!(alone["commits"]["median_us"].as_u64() <= alone["commits"]["slowest_us"].as_u64());
    assert_eq!(alone["standbys"], serde_json::json!([]));

    let standby = cluster.standby("copy");
    until("it follows", || {
        let standbys = &status()["database"]["standbys"];
        standbys[0]["name"] == "copy" && standbys[0]["lag_bytes"] == 0
    });
    // The scheduler commits all the time, and each commit is behind for a moment.
    let mut shown = String::new();
    until("it is said to be up to date", || {
        shown = system.say(&["status"]).stdout;
        shown.contains("; standby copy (async) is up to date")
    });
    assert!(shown.contains("; commits take "), "{shown}");
    // It is connected, and writes nothing any more.
    standby.freeze();
    system.submit(&["--delay", "1h", "--", "true"]);
    until("it is behind", || {
        let standbys = &status()["database"]["standbys"];
        standbys[0]["lag_bytes"].as_u64() > Some(0) && standbys[0]["lag_ms"].as_u64() > Some(1_000)
    });
    let numbers = {
        let mut numbers = Numbers::read(&system);
        until("the numbers say so, too", || {
            numbers = Numbers::read(&system);
            numbers.get("systole_standby_lag_bytes", &[]) > 0.0
        });
        numbers
    };
    assert_eq!(numbers.get("systole_standbys", &[]), 1.0);
    assert!(numbers.get("systole_standby_lag_seconds", &[]) > 0.0);
    assert!(system.say(&["status"]).stdout.contains(" behind ("));
    standby.thaw();
    until("it has caught up", || {
        status()["database"]["standbys"][0]["lag_bytes"] == 0
    });

    // Who may not look at it is told so.
    cluster.sql("postgres", "CREATE ROLE plain LOGIN");
    cluster.sql("postgres", "CREATE DATABASE plain OWNER plain");
    let plain = System::new(of(&cluster, "plain"));
    let _scheduler = plain.scheduler(0);
    let shown = plain.say(&["status"]).stdout;
    assert!(shown.contains("may not be looked at (grant pg_monitor)"), "{shown}");
}

/// A database of a cluster that is not shared, which has the name of its owner.
fn of(cluster: &Cluster, owner: &str) -> TestDb {
    if owner == "systole" {
        cluster.sql("postgres", "CREATE DATABASE systole");
    }
    TestDb {
        url: cluster.url(owner).replace("systole@", &format!("{owner}@")),
        postgres: None,
        folder: tempfile::TempDir::new().expect("temporary folder"),
    }
}

/// What `status` and each scrape read must not grow with the history.
#[test]
fn status_reads_no_table_of_tasks() {
    let system = System::new(TestDb::sqlite());
    let _scheduler = system.scheduler(0);
    for name in ["live_tasks", "ended_badly"] {
        let statement = systole_scheduler::store::statements()
            .into_iter()
            .find(|statement| statement.name == name)
            .expect("a statement");
        let text = statement.render(systole_scheduler::store::sql::Dialect::Sqlite);
        let text = text.replace("$1", "0").replace("$2", "10000");
        let plan = system.db.sql(&format!("EXPLAIN QUERY PLAN {text}"));
        let reads: Vec<&str> = plan
            .lines()
            .filter(|line| line.contains(" task ") || line.ends_with(" task"))
            .collect();
        assert!(reads.len() >= 2, "{name}:\n{plan}");
        for read in reads {
            assert!(
                read.contains("INDEX") || read.contains("INTEGER PRIMARY KEY"),
                "{name} reads all tasks: {read}\n{plan}"
            );
        }
    }
}
