//! Reading output: from an offset, optionally until the task has ended and everything was sent.

use super::cancel::no_such_task;
use super::{Refusal, fetch};
use crate::context::Context;
use crate::store::output::{Part, Size, Stream};
use std::sync::Arc;
use std::time::Duration;
use systole_shared::error::Code;
use systole_shared::limits::OUTPUT_CHUNK_BYTES_MAX;
use tokio::sync::mpsc;

/// How often a follower looks when nobody tells it.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a follower waits for the rest of the output after the end of the task: its runner may be away.
const REST_MAX: Duration = Duration::from_secs(30);

/// How often a look may turn out to be stale in a row of reads; a flood moves the gap while it is read.
const LOOKS_AGAIN_MAX: u32 = 1_000;

/// A piece for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub stream: Stream,
    pub offset: u64,
    pub data: Vec<u8>,
    /// When the bytes were seen first, where that was asked for and is known.
    pub seen_at_ms: Option<i64>,
    /// Bytes before `offset` that are not stored although later ones are.
    pub gap: u64,
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
    /// Pieces by the time of their bytes.
    pub times: bool,
    pub since_ms: Option<i64>,
    /// What is not stored is fetched from its runner.
    pub full: bool,
}

/// Sends pieces until the end. A reader that is slow slows only itself; one that is gone ends this.
pub async fn read(ctx: Arc<Context>, read: Read, out: mpsc::Sender<Result<Piece, Refusal>>) {
    if let Err(refusal) = run(&ctx, read, &out).await {
        drop(out.send(Err(refusal)).await);
    }
}

async fn run(ctx: &Arc<Context>, mut read: Read, out: &mpsc::Sender<Result<Piece, Refusal>>) -> Result<(), Refusal> {
    let mut changes = ctx.wake.watch();
    let mut looks_again = LOOKS_AGAIN_MAX;
    let mut ended_since: Option<tokio::time::Instant> = None;
    loop {
        // State before sizes: output that came before the end is then seen.
        let states = ctx.db.states(vec![read.task_id]).await?;
        let Some(state) = states.first().and_then(|row| row.state()) else {
            return Err(no_such_task(read.task_id, ctx.db.newest_task_id().await?));
        };
        let sizes = ctx.db.output_sizes(read.task_id).await?;
        let (mut sent, mut stale) = (false, false);
        for (stream, at) in &mut read.streams {
            let stored = size_of(&sizes, *stream).stored;
            if let Some(since_ms) = read.since_ms
                && *at < stored.end
            {
                let begin = ctx.db.seen_since(read.task_id, *stream, since_ms).await?;
                *at = (*at).max(begin.unwrap_or(stored.end));
            }
            while *at < stored.end {
                if let Some(gap) = stored.gap_at(*at).filter(|_| read.full) {
                    *at = gap.end;
                    sent = true;
                    if !fetch::fetch(ctx, read.task_id, *stream, gap, out).await? {
                        return Ok(());
                    }
                    continue;
                }
                if let Some(gap) = stored.gap_at(*at) {
                    let piece = Piece {
                        stream: *stream,
                        offset: gap.end,
                        data: Vec::new(),
                        seen_at_ms: None,
                        gap: gap.end - gap.start,
                        dropped: 0,
                    };
                    *at = gap.end;
                    sent = true;
                    if out.send(Ok(piece)).await.is_err() {
                        return Ok(());
                    }
                    continue;
                }
                let to = stored.readable_to(*at);
                let mut parts = ctx.db.read_output(read.task_id, *stream, *at, to).await?;
                if parts.is_empty() {
                    // The gap grew, or retention took it, between the two reads: the next look says so.
                    stale = true;
                    break;
                }
                if !read.times {
                    parts = vec![joined(parts)];
                }
                for part in parts {
                    for data in part.data.chunks(OUTPUT_CHUNK_BYTES_MAX) {
                        let piece = Piece {
                            stream: *stream,
                            offset: *at,
                            data: data.to_vec(),
                            seen_at_ms: part.seen_at_ms,
                            gap: 0,
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
        }
        let over = state.child_is_over();
        let complete = sizes
            .iter()
            .all(|size| size.total.is_none_or(|total| size.stored.end >= total));
        let since = *ended_since.get_or_insert_with(tokio::time::Instant::now);
        if !over {
            ended_since = None;
        }
        if stale && looks_again > 0 {
            looks_again -= 1;
            continue;
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

fn joined(parts: Vec<Part>) -> Part {
    Part {
        data: parts.into_iter().flat_map(|part| part.data).collect(),
        seen_at_ms: None,
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
        let dropped = size.total.unwrap_or(0).saturating_sub(size.stored.end);
        if over && dropped > 0 {
            let piece = Piece {
                stream: *stream,
                offset: *at,
                data: Vec::new(),
                seen_at_ms: None,
                gap: 0,
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
