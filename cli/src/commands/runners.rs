//! `systole runners`: who is there, and who gets no new tasks.

use super::admin::note_alarms;
use super::{drain, forget, now_ms};
use crate::args::{CordonArgs, Format, Global, RunnersAction, RunnersArgs, UncordonArgs, Until};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, color, facts, json, text};
use systole_proto::v1;
use systole_shared::limits::PAGE_MAX;
use systole_shared::policy::host_fault::words;

const COLUMNS: [Column; 7] = [
    Column::cut("RUNNER", 12),
    Column::whole("STATE"),
    Column::whole("TASK"),
    Column::cut("LABELS", 8).droppable(1),
    Column::cut("QUEUES", 7).droppable(2),
    Column::whole("VERSION").droppable(3),
    Column::whole("SEEN").droppable(4),
];

/// What is true of few runners, as text; empty for the others.
type Rare = fn(&v1::Runner, u64) -> String;

/// Beside the others when any runner has something to say there.
const RARE: [(Column, Rare); 2] = [(Column::cut("FAULT", 20), fault), (Column::cut("HELD", 20), hold)];

const WIDE_COLUMNS: [Column; 14] = [
    Column::whole("RUNNER"),
    Column::whole("STATE"),
    Column::whole("TASK"),
    Column::whole("LABELS"),
    Column::whole("QUEUES"),
    Column::whole("VERSION"),
    Column::whole("SEEN"),
    Column::whole("CLOCK"),
    Column::whole("CORDON"),
    Column::whole("FAULT"),
    Column::whole("HELD"),
    Column::whole("GUARD"),
    Column::whole("LIMITS"),
    Column::whole("HOST"),
];

pub async fn run(global: &Global, args: &RunnersArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    match &args.action {
        None => list(&client, &output, "").await,
        Some(RunnersAction::Ls { host }) => list(&client, &output, host.as_deref().unwrap_or("")).await,
        Some(RunnersAction::Cordon(args)) => cordon(&client, &output, order(args), true).await,
        Some(RunnersAction::Uncordon(args)) => cordon(&client, &output, which(args), false).await,
        Some(RunnersAction::Rm(args)) => forget::run(&client, &output, args).await,
        Some(RunnersAction::Drain(args)) => drain::run(&client, &output, args).await,
    }
}

async fn list(client: &Client, output: &Output, host: &str) -> Result<u8, Failure> {
    let mut runners: Vec<v1::Runner> = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListRunnersRequest {
            host: host.to_owned(),
            page_token,
            limit: u32::try_from(PAGE_MAX).unwrap_or(0),
        };
        let response = client.runners(request).await?;
        match output.format {
            Format::Jsonl => response
                .runners
                .iter()
                .for_each(|runner| json::object(&json::Runner::from(runner))),
            Format::Id => response.runners.iter().for_each(|runner| output::line(&name(runner))),
            Format::Table | Format::Wide | Format::Json => runners.extend(response.runners),
        }
        page_token = response.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match output.format {
        Format::Jsonl | Format::Id => {}
        Format::Json => json::document(&json::Runners {
            runners: runners.iter().map(json::Runner::from).collect(),
        }),
        Format::Table => {
            let (columns, rows) = narrow(&runners, now_ms());
            table::print(&columns, &rows, output);
        }
        Format::Wide => table::print(&WIDE_COLUMNS, &rows(&runners, now_ms(), true), output),
    }
    if output.format.is_for_people() {
        note_alarms(client, output).await;
    }
    if runners.is_empty() && output.format.is_for_people() {
        output.note("no runner has joined yet; start one: systole runner --url URL");
    }
    Ok(exit_code::OK)
}

/// The slots of one host.
pub(super) async fn of_host(client: &Client, host: &str) -> Result<Vec<v1::Runner>, Failure> {
    let mut runners = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListRunnersRequest {
            host: host.to_owned(),
            page_token,
            limit: u32::try_from(PAGE_MAX).unwrap_or(0),
        };
        let response = client.runners(request).await?;
        runners.extend(response.runners);
        page_token = response.next_page_token;
        if page_token.is_empty() {
            return Ok(runners);
        }
    }
}

pub(super) fn name(runner: &v1::Runner) -> String {
    format!("{}/{}", runner.host, runner.slot)
}

fn rows(runners: &[v1::Runner], now: u64, wide: bool) -> Vec<Vec<Text>> {
    runners.iter().map(|runner| row(runner, now, wide)).collect()
}

/// The usual columns, and those of [`RARE`] that are needed.
fn narrow(runners: &[v1::Runner], now: u64) -> (Vec<Column>, Vec<Vec<Text>>) {
    let mut columns = COLUMNS.to_vec();
    let mut rows = rows(runners, now, false);
    for (column, text) in RARE {
        let texts: Vec<String> = runners.iter().map(|runner| text(runner, now)).collect();
        if texts.iter().any(|text| !text.is_empty()) {
            columns.push(column);
            for (row, text) in rows.iter_mut().zip(texts) {
                row.push(plain(text));
            }
        }
    }
    (columns, rows)
}

fn row(runner: &v1::Runner, now: u64, wide: bool) -> Vec<Text> {
    let mut row = vec![
        plain(name(runner)),
        (runner.state.clone(), color::of_runner(&runner.state)),
        plain(if runner.task_id == 0 {
            String::new()
        } else {
            runner.task_id.to_string()
        }),
        plain(text::labels(&runner.labels)),
        plain(if runner.queues.is_empty() {
            "default".to_owned()
        } else {
            runner.queues.join(" ")
        }),
        plain(runner.version.as_str()),
        plain(text::ago(runner.seen_at_ms, now)),
    ];
    if wide {
        let cordon = if runner.cordoned {
            let reason = if runner.cordon_reason.is_empty() {
                String::new()
            } else {
                format!(", \"{}\"", runner.cordon_reason)
            };
            let until = match runner.cordon_until_ms {
                0 => String::new(),
                ms => format!(" until {}", text::full_time(ms)),
            };
            format!(
                "{}by {} {}{until}{reason}",
                if runner.host_cordoned { "host, " } else { "" },
                runner.cordoned_by,
                text::full_time(runner.cordoned_at_ms)
            )
        } else {
            String::new()
        };
        row.extend([
            plain(format!("{:+} ms", runner.clock_skew_ms)),
            plain(cordon),
            plain(fault(runner, now)),
            plain(hold(runner, now)),
            plain(facts::guard(&runner.host_facts).unwrap_or_default()),
            plain(match facts::limits(&runner.host_facts) {
                Some(limits) if limits.is_empty() => "none".to_owned(),
                limits => limits.unwrap_or_default().join(" "),
            }),
            plain(facts::others(&runner.host_facts)),
        ]);
    }
    row
}

/// What its host cannot do and since when; empty for a healthy one.
fn fault(runner: &v1::Runner, now: u64) -> String {
    match &runner.fault {
        None => String::new(),
        Some(fault) => format!(
            "{} since {}: {}",
            words(&fault.kind),
            text::short_time(runner.fault_at_ms, now),
            fault.detail
        ),
    }
}

/// Why its host gets no new task before a person has looked, and what to do.
fn hold(runner: &v1::Runner, now: u64) -> String {
    match &runner.hold {
        None => String::new(),
        Some(hold) => format!("since {}: {}", text::short_time(hold.since_ms, now), hold.message),
    }
}

fn which(args: &UncordonArgs) -> v1::CordonRequest {
    v1::CordonRequest {
        runners: args.runners.iter().map(ToString::to_string).collect(),
        reason: args.reason.clone().unwrap_or_default(),
        ..v1::CordonRequest::default()
    }
}

pub(super) fn order(args: &CordonArgs) -> v1::CordonRequest {
    let (until_ms, for_ms) = match args.until {
        None => (0, 0),
        Some(Until::Time(ms)) => (ms, 0),
        Some(Until::Within(ms)) => (0, ms),
    };
    v1::CordonRequest {
        until_ms,
        for_ms,
        ..which(&args.which)
    }
}

async fn cordon(client: &Client, output: &Output, request: v1::CordonRequest, cordon: bool) -> Result<u8, Failure> {
    let results = client.cordon(request, cordon).await?;
    tell_cordon(output, &results, cordon);
    Ok(super::tell_errors(
        results.iter().filter_map(|result| result.error.as_ref()),
    ))
}

/// What was changed; what was refused is told elsewhere.
pub(super) fn tell_cordon(output: &Output, results: &[v1::CordonResult], cordon: bool) {
    let done = results.iter().filter(|result| result.error.is_none());
    match output.format {
        Format::Json => json::document(&json::Results {
            results: results.iter().map(json::CordonResult::from).collect(),
        }),
        Format::Jsonl => results
            .iter()
            .for_each(|result| json::object(&json::CordonResult::from(result))),
        Format::Id => done.for_each(|result| output::line(&result.runner)),
        Format::Table | Format::Wide => done.for_each(|result| output::line(&line(result, cordon))),
    }
}

fn line(result: &v1::CordonResult, cordon: bool) -> String {
    let word = if cordon { "cordoned" } else { "uncordoned" };
    let until = match result.until_ms {
        0 => String::new(),
        ms => format!(" until {}", text::full_time(ms)),
    };
    let runner = text::clean(&result.runner);
    match result.changed {
        0 => format!(
            "{runner}: nothing to change, {}",
            if cordon {
                "cordoned for as long already"
            } else {
                "open already"
            }
        ),
        1 => format!("{runner}: {word} (1 slot){until}"),
        n => format!("{runner}: {word} ({n} slots){until}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{self, NOW, THEN};

    #[test]
    fn rows_have_as_many_cells_as_columns() {
        let runner = v1::Runner {
            host: "db-01".into(),
            state: "ready".into(),
            cordoned: true,
            ..v1::Runner::default()
        };
        assert_eq!(row(&runner, 0, false).len(), COLUMNS.len());
        assert_eq!(row(&runner, 0, true).len(), WIDE_COLUMNS.len());
        let text = table::render(&COLUMNS, &[row(&runner, 0, false)], Some(40), false);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.contains("db-01/0") && text.contains("ready"), "{text}");
    }

    #[test]
    fn a_fault_is_shown_with_its_reason_and_since_when() {
        let now = now_ms();
        let runner = v1::Runner {
            fault: Some(v1::HostFault {
                kind: "disk_full".into(),
                detail: "8K are free".into(),
            }),
            fault_at_ms: now,
            ..v1::Runner::default()
        };
        let shown = fault(&runner, now);
        let since = text::short_time(now, now);
        assert_eq!(shown, format!("disk full since {since}: 8K are free"));
        assert_eq!(fault(&v1::Runner::default(), now), "");
    }

    #[test]
    fn a_hold_has_a_column_of_its_own_where_there_is_one() {
        let free = v1::Runner::default();
        let held = v1::Runner {
            state: "held".into(),
            hold: Some(v1::HostHold {
                max_task_id: 1_850,
                message: "look, then: systole admin confirm restore".into(),
                since_ms: NOW,
            }),
            ..v1::Runner::default()
        };
        assert_eq!(narrow(std::slice::from_ref(&free), NOW).0.len(), COLUMNS.len());
        let (columns, rows) = narrow(&[free, held], NOW);
        let text = table::render(&columns, &rows, None, false);
        let since = text::short_time(NOW, NOW);
        assert!(text.contains("HELD") && !text.contains("FAULT"), "{text}");
        assert!(
            text.contains(&format!("since {since}: look, then: systole admin confirm restore")),
            "{text}"
        );
        let text = table::render(&columns, &rows, Some(40), false);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    }

    #[test]
    fn a_cordon_counts_slots() {
        let result = |changed| v1::CordonResult {
            runner: "db-01".into(),
            changed,
            ..v1::CordonResult::default()
        };
        assert_eq!(line(&result(4), true), "db-01: cordoned (4 slots)");
        assert_eq!(line(&result(1), false), "db-01: uncordoned (1 slot)");
        assert_eq!(
            line(&result(0), true),
            "db-01: nothing to change, cordoned for as long already"
        );
    }

    #[test]
    fn the_lists_are_as_they_were() {
        let label = |key: &str, value: &str| v1::Label {
            key: key.into(),
            value: value.into(),
        };
        let mut runners: Vec<v1::Runner> = ["ready", "busy", "cordoned", "faulty", "lost", "left"]
            .into_iter()
            .zip(0..)
            .map(|(state, slot)| v1::Runner {
                host: "etl-2.example.org".into(),
                slot,
                state: state.into(),
                labels: vec![label("dc", "fra"), label("gpu", "1")],
                version: "0.1.0".into(),
                seen_at_ms: THEN,
                ..v1::Runner::default()
            })
            .collect();
        runners[1].task_id = 1_850;
        runners[1].queues = vec!["batch".into(), "default".into()];
        (runners[2].cordoned, runners[2].cordoned_by, runners[2].cordon_reason) = (true, "ann".into(), "kernel".into());
        (runners[2].cordoned_at_ms, runners[2].cordon_until_ms) = (THEN, NOW);
        runners[3].fault = Some(v1::HostFault {
            kind: "disk_full".into(),
            detail: "8K are free".into(),
        });
        runners[3].fault_at_ms = THEN;
        runners[0].host_facts = r#"{"system":"Debian 12","guard":"cgroup2","limits":"memory pids"}"#.into();
        golden::table("runners", &COLUMNS, &rows(&runners, NOW, false));
        let (columns, faulty) = narrow(&runners, NOW);
        golden::table("runners_fault", &columns, &faulty);
        let wide = rows(&runners, NOW, true);
        golden::check("runners_wide", &table::render(&WIDE_COLUMNS, &wide, None, false));
    }
}
