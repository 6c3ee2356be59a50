//! `systole submit --batch`: many tasks, one a line, in bounded memory.
//!
//! A thread reads lines and makes tasks of them; a few calls are under way at once. Each line has a key of its own, made of the batch
//! and its number, so that whatever is sent again, by this process or by the next one, is stored once.

mod line;

use crate::args::{Format, Global, SubmitArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::notes::Notes;
use crate::output::{self, Output, json};
use crate::spec;
use futures_util::{StreamExt as _, stream};
use line::{Base, Lines, Read};
use std::path::Path;
use std::time::Duration;
use systole_proto::convert::spec_to_wire;
use systole_proto::v1;
use systole_shared::error::Code;
use systole_shared::task::spec::check_word;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Lines and bytes of one call.
const CALL_LINES_MAX: usize = 1_000;
const CALL_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Calls under way at once, and chunks that wait for them.
const CALLS_MAX: usize = 4;
/// How long schedulers may be away before the rest is given up.
const OUTAGE_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);
/// How often the count is told.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// A name for a batch that nobody named.
pub fn new_id() -> String {
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("b-{}", &random[..10])
}

/// Some lines: tasks, and what is wrong with the others.
#[derive(Default)]
struct Chunk {
    items: Vec<(u64, v1::SubmitItem)>,
    wrong: Vec<(u64, Failure)>,
    bytes: usize,
}

struct Told {
    batch: String,
    stored: u64,
    existing: u64,
    refused: u64,
    exit: u8,
}

pub async fn run(global: &Global, args: &SubmitArgs, path: &Path) -> Result<u8, Failure> {
    let output = Output::new(global);
    let batch = match &args.task.key {
        Some(key) => {
            check_word(key, "key").map_err(|invalid| {
                Failure::usage(format!(
                    "--key: with --batch it names the batch, and {}",
                    invalid.message
                ))
            })?;
            key.clone()
        }
        None => new_id(),
    };
    let base = Base::new(spec::of_batch(&args.task)?, &batch);
    let lines = Lines::open(path)?;
    let client = Client::new(global)?;
    let reason = args.task.reason.clone().unwrap_or_default();
    let notes = Notes::new(output.quiet);
    let (chunks, receiver) = mpsc::channel(CALLS_MAX);
    let reader = tokio::task::spawn_blocking(move || read(lines, &base, &chunks));
    let chunks = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|chunk| (chunk, receiver))
    });
    let calls = chunks.map(|chunk| store(&client, &reason, chunk)).buffered(CALLS_MAX);
    let mut calls = std::pin::pin!(calls);
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| Failure::unexpected(format!("Ctrl-C cannot be caught: {error}")))?;
    let mut told = Told {
        batch,
        stored: 0,
        existing: 0,
        refused: 0,
        exit: exit_code::OK,
    };
    let mut said = Instant::now();
    loop {
        tokio::select! {
            next = calls.next() => match next {
                Some(Ok((chunk, results))) => told.write(chunk, results, &output),
                Some(Err(failure)) => {
                    notes.clear();
                    return Err(told.broken(failure));
                }
                None => break,
            },
            _ = interrupts.recv() => {
                notes.clear();
                output::error(&told.interrupted());
                return Ok(exit_code::INTERRUPTED);
            }
        }
        if notes.is_terminal() && said.elapsed() >= TELL_EVERY {
            said = Instant::now();
            notes.status(&told.progress());
        }
    }
    notes.clear();
    reader
        .await
        .map_err(|error| Failure::unexpected(format!("the reader ended: {error}")))??;
    told.finish(&output);
    Ok(told.exit)
}

/// Reads to the end, or until nobody wants more.
fn read(mut lines: Lines, base: &Base, chunks: &mpsc::Sender<Chunk>) -> Result<(), Failure> {
    let mut chunk = Chunk::default();
    let mut text = Vec::new();
    loop {
        let number = match lines.next(&mut text)? {
            Read::End => break,
            Read::Line(number) => number,
            Read::TooLong(number) => {
                chunk.wrong.push((number, line::too_long()));
                continue;
            }
        };
        match base.task(number, &text) {
            Ok(None) => continue,
            Ok(Some(spec)) => {
                chunk.bytes += text.len();
                let key = format!("{}:{number}", spec.batch.as_deref().unwrap_or_default());
                let item = v1::SubmitItem {
                    spec: Some(spec_to_wire(&spec)),
                    key,
                };
                chunk.items.push((number, item));
            }
            Err(failure) => chunk.wrong.push((number, failure)),
        }
        let full = chunk.items.len() >= CALL_LINES_MAX || chunk.bytes >= CALL_BYTES_MAX;
        if (full || chunk.wrong.len() >= CALL_LINES_MAX) && chunks.blocking_send(std::mem::take(&mut chunk)).is_err() {
            return Ok(());
        }
    }
    drop(chunks.blocking_send(chunk));
    Ok(())
}

/// One call, repeated while schedulers are away: its keys make that safe.
async fn store(client: &Client, reason: &str, chunk: Chunk) -> Result<(Chunk, Vec<v1::SubmitResult>), Failure> {
    if chunk.items.is_empty() {
        return Ok((chunk, Vec::new()));
    }
    let request = v1::SubmitRequest {
        items: chunk.items.iter().map(|(_, item)| item.clone()).collect(),
        reason: reason.to_owned(),
    };
    let begin = Instant::now();
    loop {
        match client.submit_many(request.clone()).await {
            Ok(results) => return Ok((chunk, results)),
            Err(failure) if failure.exit != exit_code::UNREACHABLE || begin.elapsed() >= OUTAGE_MAX => {
                return Err(failure);
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

impl Told {
    fn write(&mut self, chunk: Chunk, results: Vec<v1::SubmitResult>, output: &Output) {
        let mut wrong = chunk.wrong;
        let mut ids = String::new();
        for ((number, _), result) in chunk.items.iter().zip(&results) {
            if let Some(error) = &result.error {
                wrong.push((*number, refused(error)));
                continue;
            }
            self.stored += 1;
            self.existing += u64::from(result.existing);
            match output.format {
                Format::Jsonl => json::object(&json::BatchLine {
                    line: *number,
                    id: Some(result.id.to_string()),
                    existing: result.existing,
                    error: None,
                }),
                Format::Id => ids.push_str(&format!("{}\n", result.id)),
                Format::Table | Format::Wide | Format::Json => {}
            }
        }
        if !ids.is_empty() {
            output::data(ids.as_bytes());
        }
        wrong.sort_by_key(|(number, _)| *number);
        for (number, failure) in wrong {
            self.refused += 1;
            if self.exit == exit_code::OK {
                self.exit = failure.exit;
            }
            if output.format == Format::Jsonl {
                json::object(&json::BatchLine {
                    line: number,
                    id: None,
                    existing: false,
                    error: Some(json::problem(&failure)),
                });
            }
            output::error(&format!("line {number}: {failure}"));
        }
    }

    fn progress(&self) -> String {
        let refused = match self.refused {
            0 => String::new(),
            1 => ", 1 line refused".to_owned(),
            n => format!(", {n} lines refused"),
        };
        format!(
            "batch {}: {} stored{refused}",
            self.batch,
            super::many::tasks(self.stored)
        )
    }

    fn again(&self) -> String {
        let are = if self.stored == 1 { "is" } else { "are" };
        format!(
            "{} of batch {} {are} stored for certain. The same command with --key {} adds the rest and nothing twice",
            super::many::tasks(self.stored),
            self.batch,
            self.batch
        )
    }

    fn broken(&self, mut failure: Failure) -> Failure {
        failure.message = format!("{}. {}", failure.message.trim_end_matches('.'), self.again());
        failure
    }

    fn interrupted(&self) -> String {
        format!("interrupted; {}", self.again())
    }

    fn finish(&self, output: &Output) {
        match output.format {
            Format::Json => json::document(&json::Batch {
                batch: self.batch.clone(),
                tasks: self.stored,
                existing: self.existing,
                refused: self.refused,
            }),
            Format::Table | Format::Wide => {
                let existing = match self.existing {
                    0 => String::new(),
                    n => format!(", {n} of them before"),
                };
                output::line(&format!("{}{existing}", self.progress()));
            }
            Format::Jsonl | Format::Id => output.note(&self.progress()),
        }
    }
}

fn refused(error: &v1::ItemError) -> Failure {
    let mut failure = Failure::from_item(error);
    if Code::parse(&error.code) == Some(Code::KeyReused) {
        failure.message = "this line of the batch was submitted before with another task; put new lines at the end, or leave --key out".into();
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_named_so_that_it_can_be_typed() {
        let id = new_id();
        assert_eq!(id.len(), 12);
        assert_eq!(check_word(&id, ""), Ok(()));
        assert_ne!(id, new_id());
    }

    #[test]
    fn what_was_interrupted_says_how_to_go_on() {
        let told = Told {
            batch: "b-1".into(),
            stored: 1,
            existing: 0,
            refused: 2,
            exit: 0,
        };
        assert_eq!(told.progress(), "batch b-1: 1 task stored, 2 lines refused");
        let failure = told.broken(Failure::new(5, "no scheduler."));
        assert!(
            failure.message.starts_with("no scheduler. 1 task of batch b-1"),
            "{failure}"
        );
        assert!(told.interrupted().contains("--key b-1"));
    }

    #[test]
    fn the_lines_are_as_they_were() {
        let told = |stored, existing, refused| Told {
            batch: "b-3f2a91c07d".into(),
            stored,
            existing,
            refused,
            exit: 0,
        };
        let text = format!(
            "{}\n{}\n{}\nerror: line 7: {}\nerror: {}\n",
            told(100_000, 0, 0).progress(),
            told(1, 0, 2).progress(),
            told(412, 3, 0).interrupted(),
            refused(&v1::ItemError {
                code: Code::KeyReused.name().into(),
                message: "the idempotency key was used with another body".into(),
                field: "items[6].key".into(),
            }),
            told(412, 0, 0).broken(Failure::new(
                5,
                "no scheduler at http://127.0.0.1:7410: connection refused."
            )),
        );
        crate::golden::check("batch", &text);
    }
}
