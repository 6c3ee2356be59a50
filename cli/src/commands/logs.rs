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
use systole_proto::v1::OutputStream;
use systole_shared::limits::OUTPUT_STREAM_BYTES_MAX;

pub async fn run(global: &Global, args: &LogsArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    if !output.format.is_for_people() {
        return Err(Failure::usage(
            "logs writes the output of the task itself; -o is for other commands, such as `systole show`",
        ));
    }
    let client = Arc::new(Client::new(global)?);
    // A mistyped id is told at once, and so is a scheduler that is not there.
    let task = client.get(args.task).await?;
    let notes = Arc::new(Notes::new(output.quiet));
    let (only, stderr_to) = if args.stderr {
        (Some(OutputStream::Stderr), Place::Stdout)
    } else {
        (None, Place::Stderr)
    };
    let sink = Sink::new(Place::Stdout, stderr_to, !args.raw, Arc::clone(&notes));
    let wanted = Wanted {
        task_id: args.task,
        only,
        follow: args.follow,
    };
    let tail = args.tail.map(|lines| Tail {
        lines,
        stdout_bytes: task.stdout_bytes,
        stderr_bytes: task.stderr_bytes,
    });
    let mut follower = follow::output_from(client, wanted, tail, sink);
    while let Some(event) = follower.events.recv().await {
        match event {
            OutputEvent::End => return Ok(exit_code::OK),
            OutputEvent::Closed(error) => output::give_up(&error),
            OutputEvent::Failed(failure) => return Err(failure),
            other => lack(&other, args.task, &notes),
        }
    }
    Ok(exit_code::OK)
}

/// Says what of the output is not there.
pub fn lack(event: &OutputEvent, task_id: i64, notes: &Notes) {
    let name = |stream: &OutputStream| {
        if *stream == OutputStream::Stderr {
            "stderr"
        } else {
            "stdout"
        }
    };
    match event {
        OutputEvent::Gap(stream, bytes) => {
            notes.line(&format!(
                "task {task_id}  {}: {} are missing here",
                name(stream),
                text::size(*bytes)
            ));
        }
        OutputEvent::Dropped(stream, bytes) => notes.line(&format!(
            "task {task_id}  {}: {} more were written than the {} that are stored",
            name(stream),
            text::size(*bytes),
            text::size(OUTPUT_STREAM_BYTES_MAX)
        )),
        OutputEvent::End | OutputEvent::Closed(_) | OutputEvent::Failed(_) => {}
    }
}
