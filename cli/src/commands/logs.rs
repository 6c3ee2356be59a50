//! `systole logs`: the output of a task.

use crate::args::{Global, LogsArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::follow::{self, OutputEvent, Tail, Wanted};
use crate::output::notes::Notes;
use crate::output::sink::{Place, Sink};
use crate::output::{self, Output, text};
use std::sync::Arc;
use systole_proto::v1;
use systole_proto::v1::OutputStream;

/// Tasks of one call of a list.
const PAGE: u32 = 200;

pub async fn run(global: &Global, args: &LogsArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    if !output.format.is_for_people() {
        return Err(Failure::usage(
            "logs writes the output of the task itself; -o is for other commands, such as `systole show`",
        ));
    }
    let client = Arc::new(Client::new(global)?);
    let notes = Arc::new(Notes::new(output.quiet));
    if let Some(batch) = &args.batch {
        return of_batch(&client, args, batch, &notes).await;
    }
    // A mistyped id is told at once, and so is a scheduler that is not there.
    let mut task = client.get(args.task.unwrap_or_default()).await?;
    let mut tail = args.tail;
    loop {
        print(&client, args, &task, tail.take(), &notes).await?;
        if !args.follow || args.exact {
            return Ok(exit_code::OK);
        }
        // Its end and its retry were one write: what follows is known now.
        let ended = client.get(task.id).await?;
        if ended.retried_by == 0 {
            return Ok(exit_code::OK);
        }
        task = client.get(ended.retried_by).await?;
        notes.line(&format!(
            "task {}  attempt {} of {} follows",
            task.id,
            task.attempt,
            text::attempts_max(&task)
        ));
    }
}

/// The output of one task, to its end.
async fn print(
    client: &Arc<Client>,
    args: &LogsArgs,
    task: &v1::Task,
    tail: Option<u64>,
    notes: &Arc<Notes>,
) -> Result<(), Failure> {
    let (only, stderr_to) = if args.stderr {
        (Some(OutputStream::Stderr), Place::Stdout)
    } else {
        (None, Place::Stderr)
    };
    let sink = Sink::new(Place::Stdout, stderr_to, !args.raw, Arc::clone(notes));
    let wanted = Wanted {
        task_id: task.id,
        only,
        follow: args.follow,
        since_ms: args.since.map(systole_proto::convert::time_to_wire),
        times: args.timestamps,
        full: args.full,
    };
    let tail = tail.map(|lines| Tail::of(task, lines));
    let mut follower = follow::output_from(Arc::clone(client), wanted, tail, sink);
    match follower.events.recv().await {
        Some(OutputEvent::Closed(error)) => output::give_up(&error),
        Some(OutputEvent::Failed(failure)) => return Err(failure),
        Some(OutputEvent::End) | None => {}
    }
    Ok(())
}

/// Of each task of a batch what is stored, in the order of the submission; of a chain the last attempt.
async fn of_batch(client: &Arc<Client>, args: &LogsArgs, batch: &str, notes: &Arc<Notes>) -> Result<u8, Failure> {
    let mut tasks: Vec<(u64, i64)> = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListRequest {
            filter: Some(v1::TaskFilter {
                batch: batch.to_owned(),
                last_attempts: true,
                ..v1::TaskFilter::default()
            }),
            limit: PAGE,
            page_token,
        };
        let response = client.list(request).await?;
        let line = |task: &v1::Task| task.spec.as_ref().map_or(0, |spec| spec.batch_line);
        tasks.extend(response.tasks.iter().map(|task| (line(task), task.id)));
        page_token = response.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    tasks.sort_unstable();
    for (_, id) in tasks {
        let task = v1::Task {
            id,
            ..v1::Task::default()
        };
        print(client, args, &task, None, notes).await?;
    }
    Ok(exit_code::OK)
}
