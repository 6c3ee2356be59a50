//! Everything that is served, by name. `docs/operations.md` has the same list, and a test compares them.

/// A family of series.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub name: &'static str,
    /// `gauge`, `counter` or `histogram`.
    pub kind: &'static str,
    /// Names of the labels. Their values are words of ours: states, outcomes, calls, the version. Never an id, and never a
    /// name that people choose, such as that of a job, a queue or a host: those are without a bound.
    pub labels: &'static str,
    pub unit: &'static str,
    /// Counted by the replica that answers, since its start; else read from the database, and the same at every replica.
    pub own: bool,
    pub help: &'static str,
}

const fn own(
    name: &'static str,
    kind: &'static str,
    labels: &'static str,
    unit: &'static str,
    help: &'static str,
) -> Family {
    Family {
        name,
        kind,
        labels,
        unit,
        own: true,
        help,
    }
}

const fn cluster(name: &'static str, labels: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: "gauge",
        labels,
        unit,
        own: false,
        help,
    }
}

pub const FAMILIES: &[Family] = &[
    own(
        "systole_build_info",
        "gauge",
        "version",
        "1",
        "Always 1; the version is its label.",
    ),
    own(
        "systole_ready",
        "gauge",
        "",
        "0 or 1",
        "1 while this replica can commit and is not stopping.",
    ),
    own(
        "systole_parked_beats",
        "gauge",
        "",
        "beats",
        "Beats whose answers this replica holds back until there is something to say.",
    ),
    own(
        "systole_newest_task_id",
        "gauge",
        "",
        "id",
        "The highest task id this replica knows: its rise is the number of new tasks of all kinds.",
    ),
    own(
        "systole_tasks_submitted_total",
        "counter",
        "",
        "tasks",
        "Tasks stored for submissions; fires of jobs and retries are not among them.",
    ),
    own(
        "systole_tasks_dispatched_total",
        "counter",
        "with",
        "tasks",
        "Tasks given to runners: with a claim for runners whose beats were held back, or with the answer to a beat.",
    ),
    own(
        "systole_tasks_ended_total",
        "counter",
        "outcome",
        "tasks",
        "Tasks that ended, by outcome; each attempt is a task.",
    ),
    own(
        "systole_claims_total",
        "counter",
        "fed",
        "claims",
        "Claims for runners whose beats were held back, by how many of them got a task: all, some or none.",
    ),
    own(
        "systole_claim_seconds",
        "histogram",
        "",
        "s",
        "One such claim, its commit included.",
    ),
    own(
        "systole_queue_wait_seconds",
        "histogram",
        "",
        "s",
        "From QUEUED to DISPATCHED.",
    ),
    own(
        "systole_start_seconds",
        "histogram",
        "",
        "s",
        "From when a task was due (its submission, or a later time that it was to wait for) to the start of its child, as far as this is known.",
    ),
    own(
        "systole_beat_seconds",
        "histogram",
        "",
        "s",
        "From a heartbeat to the commit that decides its answer; how long the answer is held back then is not in it. Heartbeats that only say that an idle runner is there are not counted: they are gathered, for up to 250 ms.",
    ),
    own(
        "systole_report_commit_seconds",
        "histogram",
        "",
        "s",
        "From a heartbeat with results to the commit that records them.",
    ),
    own(
        "systole_commit_seconds",
        "histogram",
        "class",
        "s",
        "Transactions that write, from the wait for a connection to the database's answer: of heartbeats and claims, and of everything else.",
    ),
    own(
        "systole_call_seconds",
        "histogram",
        "call",
        "s",
        "From a call to its answer, or to the beginning of its stream. Heartbeats are held back until there is something to say.",
    ),
    own(
        "systole_calls_refused_total",
        "counter",
        "call",
        "calls",
        "Calls that were answered with an error.",
    ),
    cluster(
        "systole_replicas",
        "",
        "replicas",
        "Schedulers that wrote within the last 15 s.",
    ),
    cluster(
        "systole_hosts",
        "state",
        "hosts",
        "Hosts with runners, each in one state: the worst of what is true of it.",
    ),
    cluster("systole_slots", "", "slots", "Slots of all hosts together."),
    cluster("systole_slots_busy", "", "slots", "Slots that hold a task."),
    cluster(
        "systole_runners",
        "state",
        "slots",
        "Runners (slots of hosts), each in one state.",
    ),
    cluster(
        "systole_freezes",
        "",
        "freezes",
        "Freezes in force: of everything, of queues and of tags.",
    ),
    cluster(
        "systole_tasks",
        "state",
        "tasks",
        "Tasks that are not over, by state; QUEUED is the depth of the queue.",
    ),
    cluster(
        "systole_queue_oldest_seconds",
        "",
        "s",
        "How long the oldest QUEUED task has waited; 0 where none waits.",
    ),
    cluster(
        "systole_ended_badly",
        "outcome",
        "tasks",
        "Tasks that failed, were lost or were skipped in the last 24 hours and were not tried again, among the 10,000 newest of each.",
    ),
    cluster(
        "systole_fires",
        "verdict",
        "fires",
        "Fires of jobs that were expected in the last 24 hours; those that fired more than 5 s late are also counted as late.",
    ),
    cluster(
        "systole_jobs_late",
        "",
        "jobs",
        "Jobs that should have succeeded by now.",
    ),
    cluster(
        "systole_alarms_undelivered",
        "",
        "alarms",
        "Alarms of jobs that did not arrive and that nobody has acknowledged.",
    ),
    cluster(
        "systole_attention",
        "",
        "sentences",
        "What `systole status` says needs a person; 0 is its exit status 0.",
    ),
    cluster(
        "systole_database_info",
        "kind,version",
        "1",
        "Always 1; the database's kind and version are its labels.",
    ),
    cluster("systole_database_bytes", "", "bytes", "Size of the database."),
    cluster(
        "systole_standbys",
        "",
        "standbys",
        "Standbys that stream from the PostgreSQL server.",
    ),
    cluster(
        "systole_standby_lag_seconds",
        "",
        "s",
        "How far behind the slowest standby is: what was committed since would be lost with the primary. 0 where there is none, or where it may not be seen.",
    ),
    cluster(
        "systole_standby_lag_bytes",
        "",
        "bytes",
        "The same in bytes of the write-ahead log.",
    ),
];

/// One of them; a name that is not in the list is a bug that the first test finds.
pub fn family(name: &str) -> Family {
    match FAMILIES.iter().find(|family| family.name == name) {
        Some(family) => *family,
        None => own("systole_unknown", "untyped", "", "", "Not in the list of families."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of the table in the documentation.
    fn row(family: &Family) -> String {
        let labels: Vec<String> = family
            .labels
            .split(',')
            .filter(|label| !label.is_empty())
            .map(|label| format!("`{label}`"))
            .collect();
        let whose = if family.own { "this replica" } else { "the cluster" };
        format!(
            "| `{}` | {} | {} | {} | {whose} | {} |",
            family.name,
            family.kind,
            labels.join(", "),
            family.unit,
            family.help
        )
    }

    #[test]
    fn the_page_of_operations_lists_what_is_served() {
        let page = include_str!("../../../docs/operations.md");
        let listed: Vec<&str> = page.lines().filter(|line| line.starts_with("| `systole_")).collect();
        let served: Vec<String> = FAMILIES.iter().map(row).collect();
        assert_eq!(
            listed,
            served,
            "docs/operations.md must have these lines:\n{}",
            served.join("\n")
        );
    }

    #[test]
    fn names_are_as_prometheus_wants_them() {
        for family in FAMILIES {
            let total = family.name.ends_with("_total");
            assert_eq!(total, family.kind == "counter", "{}", family.name);
            let base = match family.unit {
                "s" => family.name.contains("_seconds"),
                "bytes" => family.name.ends_with("_bytes"),
                _ => !family.name.contains("_seconds") && !family.name.contains("_bytes"),
            };
            assert!(base, "{} is in {}", family.name, family.unit);
            assert!(!family.help.contains(['\\', '\n']) && family.help.ends_with('.'));
            assert_eq!(FAMILIES.iter().filter(|other| other.name == family.name).count(), 1);
        }
    }
}
