//! `systole logs`: the output of a task.

use crate::args::{Global, LogsArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::follow::{self, OutputEvent, Tail, Wanted};
use crate::output::notes::Notes;
use crate::output::sink::{Place, Sink};
use crate::output::{self, Output};
use std::sync::Arc;
use systole_proto::v1::OutputStream;

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
        since_ms: args.since.map(systole_proto::convert::time_to_wire),
        times: args.timestamps,
        full: args.full,
    };
    let tail = args.tail.map(|lines| Tail::of(&task, lines));
    let mut follower = follow::output_from(client, wanted, tail, sink);
    match follower.events.recv().await {
        Some(OutputEvent::Closed(error)) => output::give_up(&error),
        Some(OutputEvent::Failed(failure)) => return Err(failure),
        Some(OutputEvent::End) | None => {}
    }
    Ok(exit_code::OK)
}
