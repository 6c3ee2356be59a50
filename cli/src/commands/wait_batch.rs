//! `systole wait --batch`: until all tasks of a batch have ended, however many they are. Counting is enough: a retry is in
//! the batch from the moment its predecessor ended.

use super::many::tasks;
use crate::args::{Format, Global, WaitArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::notes::Notes;
use crate::output::{self, Output, json, text};
use std::time::Duration;
use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_shared::task::TaskState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// How often it is counted, at first and when it goes on for long.
const LOOK_FIRST: Duration = Duration::from_millis(100);
const LOOK_MAX: Duration = Duration::from_secs(2);
/// A count that takes long is repeated only after this many times its length.
const REST_FACTOR: u32 = 10;
/// How long nobody may answer.
const OUTAGE_MAX: Duration = Duration::from_secs(60);

pub async fn run(global: &Global, args: &WaitArgs, batch: &str) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global).map_err(Failure::of_start)?;
    let notes = Notes::new(output.quiet);
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| Failure::unexpected(format!("Ctrl-C cannot be caught: {error}")))?;
    let end = args.timeout.map(|timeout| Instant::now() + timeout);
    let (mut pause, mut answered) = (LOOK_FIRST, Instant::now());
    loop {
        let began = Instant::now();
        match count(&client, batch).await {
            Ok(counts) if counts.total == 0 => {
                notes.clear();
                return Err(Failure::new(
                    exit_code::NOT_FOUND,
                    format!("no task of batch {batch:?} is known; `systole show TASK` names the batch of a task"),
                ));
            }
            Ok(counts) => {
                answered = Instant::now();
                if live(&counts) == 0 {
                    notes.clear();
                    return Ok(finish(&counts, batch, &output));
                }
                if notes.is_terminal() {
                    notes.status(&progress(&counts, batch));
                }
                if end.is_some_and(|end| Instant::now() >= end) {
                    notes.clear();
                    output.note(&progress(&counts, batch));
                    return Ok(exit_code::NO);
                }
            }
            Err(failure) if failure.exit != exit_code::UNREACHABLE || answered.elapsed() >= OUTAGE_MAX => {
                notes.clear();
                return Err(failure.of_start());
            }
            Err(_) => {}
        }
        pause = (pause * 2).min(LOOK_MAX);
        let rest = pause.max((began.elapsed() * REST_FACTOR).min(Duration::from_secs(30)));
        let until = end.map_or(Instant::now() + rest, |end| end.min(Instant::now() + rest));
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            _ = interrupts.recv() => {
                notes.clear();
                output.note(&format!("batch {batch} goes on"));
                return Ok(exit_code::INTERRUPTED);
            }
        }
    }
}

/// Of each chain the last attempt.
async fn count(client: &Client, batch: &str) -> Result<v1::CountResponse, Failure> {
    let filter = v1::TaskFilter {
        batch: batch.to_owned(),
        last_attempts: true,
        ..v1::TaskFilter::default()
    };
    client.count(filter).await
}

fn sum(counts: &v1::CountResponse, wanted: impl Fn(TaskState) -> bool) -> u64 {
    counts
        .counts
        .iter()
        .filter(|count| state_from_wire(count.state).is_some_and(&wanted))
        .map(|count| count.count)
        .sum()
}

/// Those whose end is still to come; a state of a later version is one of them.
fn live(counts: &v1::CountResponse) -> u64 {
    counts.total - sum(counts, TaskState::is_terminal)
}

fn progress(counts: &v1::CountResponse, batch: &str) -> String {
    let failed = sum(counts, |state| state.is_terminal() && state != TaskState::Finished);
    let running = sum(counts, |state| state == TaskState::Running);
    format!(
        "batch {batch}: {} of {} ended, {running} running, {failed} without success",
        counts.total - live(counts),
        counts.total
    )
}

fn finish(counts: &v1::CountResponse, batch: &str, output: &Output) -> u8 {
    match output.format {
        Format::Json => json::document(&json::Counts::from(counts)),
        Format::Jsonl => json::object(&json::Counts::from(counts)),
        Format::Id => output::line(batch),
        Format::Table | Format::Wide => {
            let states: Vec<String> = counts
                .counts
                .iter()
                .map(|count| format!("{} {}", count.count, text::state_name(count.state)))
                .collect();
            output::line(&format!(
                "batch {batch}: {} ended: {}",
                tasks(counts.total),
                states.join(", ")
            ));
        }
    }
    if sum(counts, |state| state == TaskState::Finished) == counts.total {
        exit_code::OK
    } else {
        exit_code::NO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_ended_when_nothing_of_it_lives() {
        let count = |state, count| v1::StateCount { state, count };
        let counts = v1::CountResponse {
            counts: vec![count(4, 1), count(6, 5), count(7, 2)],
            total: 8,
        };
        assert_eq!(live(&counts), 1);
        assert_eq!(
            progress(&counts, "b"),
            "batch b: 7 of 8 ended, 1 running, 2 without success"
        );
        let later = v1::CountResponse {
            counts: vec![count(77, 1)],
            total: 1,
        };
        assert_eq!(live(&later), 1, "a state of a later version may still live");
    }
}
