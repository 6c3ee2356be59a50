//! Reading output: from an offset, optionally until the task has ended and everything was sent.

use super::Refusal;
use super::cancel::no_such_task;
use crate::context::Context;
use crate::store::output::{Size, Stream};
use std::sync::Arc;
use std::time::Duration;
use systole_shared::error::Code;
use systole_shared::limits::OUTPUT_CHUNK_BYTES_MAX;
use tokio::sync::mpsc;

/// How often a follower looks when nobody tells it.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a follower waits for the rest of the output after the end of the task: its runner may be away.
const REST_MAX: Duration = Duration::from_secs(30);

/// A piece for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub stream: Stream,
    pub offset: u64,
    pub data: Vec<u8>,
    /// Bytes that the child wrote but that are not stored; at the end only.
    pub dropped: u64,
}

/// What to read.
#[derive(Clone, Debug)]
pub struct Read {
    pub task_id: i64,
    /// Streams with their start offsets.
    pub streams: Vec<(Stream, u64)>,
    pub follow: bool,
}

/// Sends pieces until the end. A reader that is slow slows only itself; one that is gone ends this.
pub async fn read(ctx: Arc<Context>, read: Read, out: mpsc::Sender<Result<Piece, Refusal>>) {
    if let Err(refusal) = run(&ctx, read, &out).await {
        drop(out.send(Err(refusal)).await);
    }
}

async fn run(ctx: &Context, mut read: Read, out: &mpsc::Sender<Result<Piece, Refusal>>) -> Result<(), Refusal> {
    let mut changes = ctx.wake.watch();
    let mut ended_since: Option<tokio::time::Instant> = None;
    loop {
        // State before sizes: output that came before the end is then seen.
        let states = ctx.db.states(vec![read.task_id]).await?;
        let Some(state) = states.first().and_then(|row| row.state()) else {
            return Err(no_such_task(read.task_id, ctx.db.newest_task_id().await?));
        };
        let sizes = ctx.db.output_sizes(read.task_id).await?;
        let mut sent = false;
        for (stream, at) in &mut read.streams {
            let size = size_of(&sizes, *stream);
            while *at < size.stored {
                let data = ctx.db.read_output(read.task_id, *stream, *at).await?;
                if data.is_empty() {
                    break; // Retention took it between the two reads.
                }
                for piece in data.chunks(OUTPUT_CHUNK_BYTES_MAX) {
                    let piece = Piece {
                        stream: *stream,
                        offset: *at,
                        data: piece.to_vec(),
                        dropped: 0,
                    };
                    *at += piece.data.len() as u64;
                    sent = true;
                    if out.send(Ok(piece)).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        let over = state.child_is_over();
        let complete = sizes.iter().all(|size| {
            size.total
                .is_none_or(|total| size.stored >= total.min(systole_shared::limits::OUTPUT_STREAM_BYTES_MAX))
        });
        let since = *ended_since.get_or_insert_with(tokio::time::Instant::now);
        if !over {
            ended_since = None;
        }
        if !read.follow || (over && !sent && (complete || since.elapsed() >= REST_MAX)) {
            return tell_dropped(&read, &sizes, over, out).await;
        }
        if sent {
            continue;
        }
        if ctx.draining.is_cancelled() {
            return Err(Refusal::new(
                Code::Draining,
                "this scheduler is stopping; read on from the same offset, another one answers",
            ));
        }
        tokio::select! {
            () = wait_for(&mut changes, read.task_id) => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = out.closed() => return Ok(()),
        }
    }
}

fn size_of(sizes: &[Size; 2], stream: Stream) -> Size {
    match stream {
        Stream::Stdout => sizes[0],
        Stream::Stderr => sizes[1],
    }
}

async fn tell_dropped(
    read: &Read,
    sizes: &[Size; 2],
    over: bool,
    out: &mpsc::Sender<Result<Piece, Refusal>>,
) -> Result<(), Refusal> {
    for (stream, at) in &read.streams {
        let size = size_of(sizes, *stream);
        let dropped = size.total.unwrap_or(0).saturating_sub(size.stored);
        if over && dropped > 0 {
            let piece = Piece {
                stream: *stream,
                offset: *at,
                data: Vec::new(),
                dropped,
            };
            drop(out.send(Ok(piece)).await);
        }
    }
    Ok(())
}

/// Returns when the task changed here, or when this reader lagged behind.
async fn wait_for(changes: &mut tokio::sync::broadcast::Receiver<Arc<Vec<i64>>>, task_id: i64) {
    loop {
        match changes.recv().await {
            Ok(ids) if !ids.contains(&task_id) => {}
            Ok(_) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => return,
            // The sender lives as long as the context.
            Err(tokio::sync::broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}
