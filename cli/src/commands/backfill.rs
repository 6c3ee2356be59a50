//! `systole backfill`: fires that did not happen are made up.

use super::job::words::wire_fire;
use crate::args::{BackfillAction, BackfillArgs, BackfillRunArgs, Format, Global};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json, text};
use serde::Serialize;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use systole_proto::convert::{state_to_wire, time_to_wire};
use systole_proto::v1;
use systole_shared::plural::counted;
use systole_shared::task::TaskState;
use systole_shared::time::format_utc;
use systole_shared::trigger::zone::Zone;

/// Fires that a plan shows of each end.
const SHOWN: usize = 3;
const LIST_MAX: u32 = 100;

const COLUMNS: [Column; 8] = [
    Column::whole("ID"),
    Column::cut("JOB", 8),
    Column::whole("STATE"),
    Column::whole("FIRES"),
    Column::cut("TASKS", 10),
    Column::whole("FROM").droppable(2),
    Column::whole("TO").droppable(2),
    Column::whole("BY").droppable(1),
];

#[derive(Serialize)]
struct Plan {
    /// `null`: nothing was stored.
    id: Option<String>,
    batch: Option<String>,
    count: u64,
    /// Left out, since it fired.
    fired: u64,
    /// Another backfill has them in hand.
    pending: u64,
    /// Of the count, those of which nothing is recorded.
    unknown: u64,
    at_once: u32,
    /// Later ones have no verdict yet.
    judged_until: Option<String>,
    /// The first 1,000.
    fires: Vec<Fire>,
}

#[derive(Serialize)]
struct Fire {
    trigger: String,
    scheduled_at: String,
}

#[derive(Serialize)]
struct Line {
    id: String,
    job: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    trigger: String,
    batch: String,
    state: String,
    fires: u64,
    made: u64,
    max_concurrent: Option<u32>,
    from: Option<String>,
    to: Option<String>,
    by: String,
    reason: String,
    created_at: Option<String>,
    ended_at: Option<String>,
    /// What became of its tasks, by state.
    tasks: std::collections::BTreeMap<String, u64>,
}

fn utc(ms: u64) -> Option<String> {
    i64::try_from(ms).ok().filter(|&ms| ms > 0).map(format_utc)
}

fn batch(id: i64) -> String {
    format!("backfill-{id}")
}

pub async fn run(global: &Global, args: &BackfillArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    match (&args.action, &args.run) {
        (Some(BackfillAction::Ls { job }), _) => list(&client, &output, job.as_deref().unwrap_or("")).await,
        (Some(BackfillAction::Cancel { id, keep_tasks, reason }), _) => {
            cancel(&client, &output, *id, *keep_tasks, reason.as_deref().unwrap_or("")).await
        }
        (None, Some(args)) => make(&client, &output, args).await,
        (None, None) => Err(Failure::usage(
            "which job? systole backfill JOB --from TIME --to TIME; systole backfill ls lists backfills",
        )),
    }
}

async fn make(client: &Client, output: &Output, args: &BackfillRunArgs) -> Result<u8, Failure> {
    let max = args.max_concurrent.map_or(Ok(0), u32::try_from);
    let request = v1::BackfillRequest {
        job: args.job.clone(),
        trigger: args.trigger.clone().unwrap_or_default(),
        from_ms: time_to_wire(args.from),
        to_ms: time_to_wire(args.to),
        max_concurrent: max.map_err(|_| Failure::usage("--max-concurrent: must be 1 to 100000"))?,
        dry_run: true,
        key: String::new(),
        reason: args.reason.clone().unwrap_or_default(),
    };
    let plan = client.backfill(request.clone()).await?;
    let nothing = plan.count == 0;
    if args.dry_run || nothing {
        show(output, args, &plan);
        if !nothing && output.format.is_for_people() {
            output.note("nothing was changed (--dry-run)");
        }
        return Ok(exit_code::OK);
    }
    if !args.yes && !agreed(client, output, args, &plan)? {
        return Ok(exit_code::NO);
    }
    let request = v1::BackfillRequest {
        dry_run: false,
        key: uuid::Uuid::new_v4().to_string(),
        ..request
    };
    let mut made = client.backfill(request).await?;
    if made.count == 0 && made.id != 0 {
        // Its answer was lost, and the repeated call found it done: it is what was planned.
        made = v1::BackfillResponse { id: made.id, ..plan };
    }
    if made.id == 0 {
        show(output, args, &made);
        return Ok(exit_code::OK);
    }
    match output.format {
        Format::Table | Format::Wide => {
            let batch = batch(made.id);
            output::line(&format!(
                "backfill {}: {} of {}, {} at once",
                made.id,
                fires(made.count),
                args.job,
                made.at_once.max(1)
            ));
            output.note(&format!(
                "follow it: systole ls --batch {batch}; wait for it: systole wait --batch {batch}; stop it: systole backfill cancel {}",
                made.id
            ));
        }
        _ => show(output, args, &made),
    }
    Ok(exit_code::OK)
}

fn fires(count: u64) -> String {
    counted(count, "fire")
}

/// The plan in sentences.
fn sentences(args: &BackfillRunArgs, plan: &v1::BackfillResponse) -> Vec<String> {
    let zone = Zone::utc();
    let mut lines = vec![format!(
        "{} of {} would be made up, {} at once",
        fires(plan.count),
        args.job,
        plan.at_once.max(1)
    )];
    let line = |fire: &v1::Coming| format!("  {}  {}", wire_fire(&zone, fire.scheduled_at_ms), fire.trigger);
    if plan.fires.len() <= 2 * SHOWN {
        lines.extend(plan.fires.iter().map(line));
    } else {
        lines.extend(plan.fires[..SHOWN].iter().map(line));
        let shown = if plan.fires.len() as u64 == plan.count {
            SHOWN
        } else {
            0
        };
        lines.push(format!("  … {} more", plan.count - (SHOWN + shown) as u64));
        lines.extend(plan.fires[plan.fires.len() - shown..].iter().map(line));
    }
    if plan.unknown > 0 {
        lines.push(format!(
            "of {} of them nothing is recorded: before the trigger was made (or made anew), or forgotten by age",
            plan.unknown
        ));
    }
    let are = |count: u64| if count == 1 { "is" } else { "are" };
    if plan.fired > 0 {
        lines.push(format!(
            "{} fired and {} left out (systole rerun runs tasks again)",
            plan.fired,
            are(plan.fired)
        ));
    }
    if plan.pending > 0 {
        lines.push(format!(
            "{} {} in the hands of another backfill (systole backfill ls)",
            plan.pending,
            are(plan.pending)
        ));
    }
    if plan.judged_ms != 0 {
        lines.push(format!(
            "those after {} have no verdict yet and are left out: they are to come, or paused",
            wire_fire(&zone, plan.judged_ms)
        ));
    }
    lines
}

fn show(output: &Output, args: &BackfillRunArgs, plan: &v1::BackfillResponse) {
    let data = || Plan {
        id: (plan.id != 0).then(|| plan.id.to_string()),
        batch: (plan.id != 0).then(|| batch(plan.id)),
        count: plan.count,
        fired: plan.fired,
        pending: plan.pending,
        unknown: plan.unknown,
        at_once: plan.at_once,
        judged_until: utc(plan.judged_ms),
        fires: plan
            .fires
            .iter()
            .map(|fire| Fire {
                trigger: fire.trigger.clone(),
                scheduled_at: utc(fire.scheduled_at_ms).unwrap_or_default(),
            })
            .collect(),
    };
    match output.format {
        Format::Json => json::document(&data()),
        Format::Jsonl => json::object(&data()),
        Format::Id => {
            if plan.id != 0 {
                output::line(&plan.id.to_string());
            }
        }
        Format::Table | Format::Wide => sentences(args, plan)
            .iter()
            .for_each(|line| output::line(&text::clean(line))),
    }
}

/// Shows the plan on stderr and asks.
fn agreed(
    client: &Client,
    output: &Output,
    args: &BackfillRunArgs,
    plan: &v1::BackfillResponse,
) -> Result<bool, Failure> {
    for line in sentences(args, plan) {
        output.note(&text::clean(&line));
    }
    let question = format!("{} of {} at {}", fires(plan.count), args.job, client.place());
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(Failure::usage(format!(
            "{question}: add --yes, since nobody can be asked here; --dry-run only says what would be made up"
        )));
    }
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "{question}. Make them up? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

async fn counts(client: &Client, id: i64) -> Result<v1::CountResponse, Failure> {
    client
        .count(v1::TaskFilter {
            batch: batch(id),
            last_attempts: true,
            ..v1::TaskFilter::default()
        })
        .await
}

fn line(backfill: &v1::Backfill, counts: &v1::CountResponse) -> Line {
    Line {
        id: backfill.id.to_string(),
        job: backfill.job.clone(),
        trigger: backfill.trigger.clone(),
        batch: batch(backfill.id),
        state: backfill.state.clone(),
        fires: backfill.count,
        made: backfill.made,
        max_concurrent: (backfill.max_concurrent != 0).then_some(backfill.max_concurrent),
        from: utc(backfill.from_ms),
        to: utc(backfill.to_ms),
        by: backfill.by.clone(),
        reason: backfill.reason.clone(),
        created_at: utc(backfill.created_at_ms),
        ended_at: utc(backfill.ended_at_ms),
        tasks: counts
            .counts
            .iter()
            .map(|count| (text::state_name(count.state), count.count))
            .collect(),
    }
}

fn row(backfill: &v1::Backfill, counts: &v1::CountResponse) -> Vec<Text> {
    let zone = Zone::utc();
    let mut tasks: Vec<String> = counts
        .counts
        .iter()
        .map(|count| format!("{} {}", count.count, text::state_name(count.state)))
        .collect();
    let left = backfill.count.saturating_sub(backfill.made);
    if left > 0 && backfill.state == "running" {
        tasks.push(format!("{left} to come"));
    }
    vec![
        plain(backfill.id.to_string()),
        plain(backfill.job.as_str()),
        plain(backfill.state.as_str()),
        plain(format!("{} of {}", backfill.made, backfill.count)),
        plain(tasks.join(", ")),
        plain(wire_fire(&zone, backfill.from_ms)),
        plain(wire_fire(&zone, backfill.to_ms)),
        plain(backfill.by.as_str()),
    ]
}

async fn list(client: &Client, output: &Output, job: &str) -> Result<u8, Failure> {
    let request = v1::ListBackfillsRequest {
        job: job.to_owned(),
        limit: LIST_MAX,
    };
    let backfills = client.backfills(request).await?.backfills;
    let mut rows = Vec::with_capacity(backfills.len());
    let mut lines = Vec::with_capacity(backfills.len());
    for backfill in &backfills {
        if output.format == Format::Id {
            output::line(&backfill.id.to_string());
            continue;
        }
        let counts = counts(client, backfill.id).await?;
        match output.format {
            Format::Jsonl => json::object(&line(backfill, &counts)),
            Format::Json => lines.push(line(backfill, &counts)),
            _ => rows.push(row(backfill, &counts)),
        }
    }
    match output.format {
        Format::Json => json::document(&json::Results { results: lines }),
        Format::Table | Format::Wide => {
            let none = if job.is_empty() {
                "no backfills yet".to_owned()
            } else {
                format!("no backfills of {job}")
            };
            table::print_or(&COLUMNS, &rows, output, &none);
        }
        Format::Jsonl | Format::Id => {}
    }
    Ok(exit_code::OK)
}

async fn cancel(client: &Client, output: &Output, id: i64, keep_tasks: bool, reason: &str) -> Result<u8, Failure> {
    let request = v1::CancelBackfillRequest {
        id,
        reason: reason.to_owned(),
    };
    let response = client.cancel_backfill(request).await?;
    let backfill = response.backfill.unwrap_or_default();
    let mut cancelled = 0_u64;
    if !keep_tasks {
        cancelled = cancel_tasks(client, id, reason).await?;
    }
    let counts = counts(client, id).await?;
    match output.format {
        Format::Json => json::document(&line(&backfill, &counts)),
        Format::Jsonl => json::object(&line(&backfill, &counts)),
        Format::Id => output::line(&id.to_string()),
        Format::Table | Format::Wide => {
            let over = if response.already {
                format!("was {} before", backfill.state)
            } else {
                "is cancelled".into()
            };
            output::line(&format!(
                "backfill {id} {over}: {} of {} were made, {} cancelled",
                backfill.made,
                fires(backfill.count),
                super::many::tasks(cancelled)
            ));
        }
    }
    Ok(exit_code::OK)
}

/// Those that wait or run.
async fn cancel_tasks(client: &Client, id: i64, reason: &str) -> Result<u64, Failure> {
    let live = |state: &TaskState| !state.is_terminal() && *state != TaskState::Callback;
    let filter = v1::TaskFilter {
        batch: batch(id),
        states: TaskState::ALL
            .into_iter()
            .filter(live)
            .map(|state| state_to_wire(state).into())
            .collect(),
        ..v1::TaskFilter::default()
    };
    let (mut cancelled, mut page_token) = (0_u64, String::new());
    loop {
        let request = v1::CancelRequest {
            filter: Some(filter.clone()),
            reason: reason.to_owned(),
            page_token,
            ..v1::CancelRequest::default()
        };
        let response = client.cancel_matching(request).await?;
        cancelled += response.results.iter().filter(|result| result.error.is_none()).count() as u64;
        page_token = response.next_page_token;
        if page_token.is_empty() {
            return Ok(cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> BackfillRunArgs {
        BackfillRunArgs {
            job: "etl".into(),
            from: 0,
            to: 0,
            trigger: None,
            max_concurrent: None,
            dry_run: true,
            yes: false,
            reason: None,
        }
    }

    #[test]
    fn a_long_plan_shows_both_ends_and_counts_the_rest() {
        let fire = |n: u64| v1::Coming {
            job: "etl".into(),
            trigger: "t".into(),
            scheduled_at_ms: 1_800_000_000_000 + n * 3_600_000,
            ..v1::Coming::default()
        };
        let plan = |count: u64| v1::BackfillResponse {
            fires: (0..count.min(1_000)).map(fire).collect(),
            count,
            at_once: 2,
            ..v1::BackfillResponse::default()
        };
        assert_eq!(sentences(&args(), &plan(6)).len(), 7);
        let ten = sentences(&args(), &plan(10));
        assert_eq!((ten.len(), ten[4].as_str()), (8, "  … 4 more"));
        // The last ones were not sent.
        let many = sentences(&args(), &plan(5_000));
        assert_eq!((many.len(), many[4].as_str()), (5, "  … 4997 more"));
        let mut rest = plan(1);
        (rest.fired, rest.pending, rest.judged_ms) = (3, 2, 1_800_000_000_000);
        let said = sentences(&args(), &rest);
        assert_eq!(said.len(), 5);
        assert!(said[2].starts_with("3 fired and are left out"), "{said:?}");
        assert!(said[3].starts_with("2 are in the hands"), "{said:?}");
        (rest.fired, rest.pending) = (1, 1);
        let said = sentences(&args(), &rest);
        assert!(said[2].starts_with("1 fired and is left out"), "{said:?}");
        assert!(said[3].starts_with("1 is in the hands"), "{said:?}");
        rest.unknown = 1;
        assert!(sentences(&args(), &rest)[2].starts_with("of 1 of them nothing is recorded"));
    }

    #[test]
    fn a_row_has_as_many_cells_as_columns() {
        let backfill = v1::Backfill {
            id: 3,
            count: 10,
            made: 4,
            state: "running".into(),
            ..v1::Backfill::default()
        };
        let counts = v1::CountResponse {
            counts: vec![v1::StateCount { state: 4, count: 4 }],
            total: 4,
        };
        let row = row(&backfill, &counts);
        assert_eq!(row.len(), COLUMNS.len());
        assert_eq!(row[4].0, "4 RUNNING, 6 to come");
    }
}
