//! `systole status`: the cluster on one screen. The exit status says whether a person is needed.

use super::freeze;
use crate::args::{Format, Global, StatusArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use systole_proto::v1;
use systole_shared::plural::counted;
use systole_shared::time::format_duration;

pub async fn run(global: &Global, args: &StatusArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let request = v1::StatusRequest {
        since_ms: args.since.map_or(0, |ms| u64::try_from(ms).unwrap_or(0)),
    };
    let status = client.status(request).await?;
    match output.format {
        Format::Json | Format::Jsonl => json::one(output.format, &json::Status::from(&status)),
        Format::Id => status
            .attention
            .iter()
            .for_each(|line| output::line(&text::clean(line))),
        Format::Table | Format::Wide => screen(&status).iter().for_each(|line| output::line(line)),
    }
    Ok(if status.attention.is_empty() {
        exit_code::OK
    } else {
        exit_code::NO
    })
}

fn screen(status: &v1::StatusResponse) -> Vec<String> {
    let hosts = status.hosts.unwrap_or_default();
    let replicas: Vec<String> = status
        .replicas
        .iter()
        .map(|replica| format!("{} ({})", text::clean(&replica.name), text::clean(&replica.version)))
        .collect();
    let mut lines = vec![
        format!("replicas  {}  {}", replicas.len(), replicas.join(", ")),
        database(status),
        format!(
            "hosts     {} ready, {} cordoned, {} faulty, {} lost, {} left; {} of {} busy",
            hosts.ready,
            hosts.cordoned,
            hosts.faulty,
            hosts.lost,
            hosts.left,
            hosts.busy,
            counted(hosts.slots, "slot")
        ),
        match status.queued {
            0 => format!("tasks     {} running, none waits", status.running),
            queued => format!(
                "tasks     {} running, {queued} queued, the oldest for {}",
                status.running,
                format_duration(status.oldest_queued_ms)
            ),
        },
    ];
    match status.frozen.as_slice() {
        [] => lines.push("frozen    nothing".into()),
        freezes => lines.extend(
            freezes
                .iter()
                .map(|freeze| format!("frozen    {}; lift: {}", freeze::line(freeze), freeze::lift(freeze))),
        ),
    }
    lines.push(format!("since     {}", text::full_time(status.since_ms)));
    lines.extend(fires(status));
    match status.ended_badly.as_slice() {
        [] => lines.push("failed    nothing".into()),
        ends => lines.extend(ends.iter().map(failed)),
    }
    match (status.attention.as_slice(), status.ended_badly.as_slice()) {
        ([], []) => lines.push("nothing needs a person".into()),
        // They were told to whom it concerns, as far as their jobs have alarms: alone they are no status 1.
        ([], _) => lines.push("nothing needs a person but what failed".into()),
        (attention, _) => {
            lines.push("needs a person:".into());
            lines.extend(attention.iter().map(|line| format!("  * {}", text::clean(line))));
        }
    }
    lines
}

/// What ended badly in one way, and the commands that show it.
fn failed(ends: &v1::BadEnds) -> String {
    let state = match ends.kind.as_str() {
        "skipped" => "skipped",
        _ => "failed",
    };
    let newest = format!("systole why {}", ends.newest_id);
    let shown = match ends.count {
        1 => newest,
        _ => format!("all: systole ls --state {state}; the newest: {newest}"),
    };
    let kind = text::clean(&ends.kind).replace('_', " ");
    format!("failed    {}  {kind}  ({shown})", ends.count)
}

/// What it is, how long commits take, and how far its copies are behind.
fn database(status: &v1::StatusResponse) -> String {
    let mut line = format!(
        "database  {} {}, {}",
        status.database,
        text::clean(&status.database_version),
        text::size(status.database_bytes)
    );
    let commits = status.commits.unwrap_or_default();
    if commits.count > 0 {
        line.push_str(&format!(
            "; commits take {}, the slowest of {} took {}",
            ms(commits.median_us),
            commits.count,
            ms(commits.slowest_us)
        ));
    }
    for standby in &status.standbys {
        let lag = match (standby.lag_ms, standby.lag_bytes) {
            (_, Some(0)) => "is up to date".to_owned(),
            (Some(lag_ms), Some(bytes)) => {
                format!("is {} behind ({})", format_duration(lag_ms), text::size(bytes))
            }
            (None, Some(bytes)) => format!("is {} behind", text::size(bytes)),
            _ => "may not be looked at (grant pg_monitor)".to_owned(),
        };
        let sync = match standby.sync.as_str() {
            "" => String::new(),
            sync => format!(" ({})", text::clean(sync)),
        };
        line.push_str(&format!("; standby {}{sync} {lag}", text::clean(&standby.name)));
    }
    line
}

fn ms(us: u64) -> String {
    if us < 10_000 {
        format!("{:.1} ms", us as f64 / 1_000.0)
    } else {
        format!("{} ms", us / 1_000)
    }
}

/// What became of the fires of jobs; nothing where none was expected.
fn fires(status: &v1::StatusResponse) -> Vec<String> {
    let counts = status.occurrences.unwrap_or_default();
    let mut lines = Vec::new();
    if counts.expected > 0 {
        let late = match counts.late {
            0 => String::new(),
            late => format!(" ({late} of them late)"),
        };
        lines.push(format!(
            "fires     {} expected: {} fired{late}, {} coalesced, {} skipped",
            counts.expected, counts.fired, counts.coalesced, counts.skipped
        ));
    }
    for skipped in &status.skipped {
        let until = if skipped.to_ms > skipped.from_ms {
            format!(" to {}", text::full_time(skipped.to_ms))
        } else {
            String::new()
        };
        let job = text::clean(&skipped.job);
        lines.push(format!(
            "  {:>6}  skipped, {}: {job}, {}{until}",
            skipped.fires,
            text::clean(&skipped.reason).replace('_', " "),
            text::full_time(skipped.from_ms),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{self, THEN};

    #[test]
    fn one_screen_says_what_needs_a_person() {
        let mut status = v1::StatusResponse {
            database: "sqlite".into(),
            database_version: "3.50".into(),
            database_bytes: 4096,
            queued: 3,
            oldest_queued_ms: 61_000,
            hosts: Some(v1::HostCounts {
                ready: 1,
                lost: 1,
                ..v1::HostCounts::default()
            }),
            ended_badly: vec![v1::BadEnds {
                kind: "exit_code".into(),
                count: 2,
                newest_id: 9,
            }],
            ..v1::StatusResponse::default()
        };
        status.occurrences = Some(v1::OccurrenceCounts {
            expected: 9,
            fired: 6,
            late: 1,
            coalesced: 1,
            skipped: 2,
            ..v1::OccurrenceCounts::default()
        });
        status.skipped.push(v1::SkippedFires {
            job: "report".into(),
            reason: "backlog_full".into(),
            fires: 2,
            ..v1::SkippedFires::default()
        });
        let calm = screen(&status).join("\n");
        for part in [
            "9 expected: 6 fired (1 of them late), 1 coalesced, 2 skipped",
            "2  skipped, backlog full: report",
            "3 queued",
            "1 ready",
            "1 lost",
            "2  exit code  (all: systole ls --state failed; the newest: systole why 9)",
            "nothing needs a person but what failed",
            "frozen    nothing",
        ] {
            assert!(calm.contains(part), "{part}: {calm}");
        }
        status.frozen.push(v1::Freeze {
            scope: "all".into(),
            by: "ann".into(),
            ..v1::Freeze::default()
        });
        let frozen = screen(&status).join("\n");
        assert!(
            frozen.contains("frozen    everything, by ann") && frozen.contains("systole resume --all"),
            "{frozen}"
        );
        let one = v1::BadEnds {
            kind: "skipped".into(),
            count: 1,
            newest_id: 7,
        };
        assert_eq!(failed(&one), "failed    1  skipped  (systole why 7)");
        status.attention.push("host a\x1b is lost".into());
        let loud = screen(&status);
        assert_eq!(loud[loud.len() - 2..], ["needs a person:", "  * host a^[ is lost"]);
    }

    #[test]
    fn the_screen_is_as_it_was() {
        let status = v1::StatusResponse {
            replicas: vec![v1::Replica {
                name: "sched-1:4711:a1b2".into(),
                version: "0.1.0".into(),
            }],
            database: "postgres".into(),
            database_version: "16.4".into(),
            database_bytes: 18 << 20,
            hosts: Some(v1::HostCounts {
                ready: 197,
                cordoned: 2,
                faulty: 1,
                lost: 1,
                left: 3,
                slots: 800,
                busy: 41,
            }),
            queued: 41,
            oldest_queued_ms: 3_000,
            running: 41,
            since_ms: THEN,
            ended_badly: vec![v1::BadEnds {
                kind: "exit_code".into(),
                count: 7,
                newest_id: 1_840,
            }],
            commits: Some(v1::CommitTimes {
                count: 100,
                median_us: 3_240,
                slowest_us: 41_900,
            }),
            standbys: vec![
                v1::Standby {
                    name: "db-2".into(),
                    sync: "async".into(),
                    lag_ms: Some(1_250),
                    lag_bytes: Some(70_000),
                    ..v1::Standby::default()
                },
                v1::Standby {
                    name: "db-3".into(),
                    sync: "sync".into(),
                    lag_ms: Some(0),
                    lag_bytes: Some(0),
                    ..v1::Standby::default()
                },
            ],
            attention: vec!["host gpu-03 is lost; when it is gone for good: systole runners rm gpu-03".into()],
            ..v1::StatusResponse::default()
        };
        let calm = v1::StatusResponse {
            database: "sqlite".into(),
            since_ms: THEN,
            ..v1::StatusResponse::default()
        };
        let text = format!("{}\n---\n{}\n", screen(&status).join("\n"), screen(&calm).join("\n"));
        golden::check("status", &text);
    }
}
