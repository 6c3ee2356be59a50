//! Output that only the runner has, fetched while somebody reads. The runner cannot be reached, it asks by itself: one call
//! of each host waits at some replica until there is something to fetch, and the host then sends it piece by piece.

use super::Refusal;
use super::output::Piece;
use crate::context::Context;
use crate::store::fetch::{Order, Put};
use crate::store::output::Stream;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use systole_shared::error::Code;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How often a replica looks which hosts are asked, while some are. Else the poll sees it.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a reader looks for the next piece, at first and at last.
const READ_EVERY: Duration = Duration::from_millis(10);
const READ_EVERY_MAX: Duration = Duration::from_millis(200);
/// How long a host has to take a request up.
const TAKEN_WITHIN: Duration = Duration::from_secs(20);
/// How long the next piece may take.
const PIECE_WITHIN: Duration = Duration::from_secs(30);

/// The hosts that are asked for something, as this replica saw last.
#[derive(Debug)]
pub struct Asked(watch::Sender<Arc<BTreeSet<String>>>);

impl Default for Asked {
    fn default() -> Self {
        Self(watch::Sender::new(Arc::default()))
    }
}

impl Asked {
    async fn look(&self, ctx: &Context) -> Result<(), Refusal> {
        self.saw(ctx.db.asked_hosts().await?);
        Ok(())
    }

    /// All that are asked now.
    pub fn saw(&self, hosts: Vec<String>) {
        let hosts: BTreeSet<String> = hosts.into_iter().collect();
        self.0.send_if_modified(|known| {
            let differs = **known != hosts;
            if differs {
                *known = Arc::new(hosts);
            }
            differs
        });
    }
}

/// A duty of each replica where hosts wait.
pub async fn run(ctx: Arc<Context>) {
    loop {
        if ctx.asked.0.receiver_count() > 0
            && !ctx.asked.0.borrow().is_empty()
            && let Err(error) = ctx.asked.look(&ctx).await
        {
            tracing::warn!(%error, "requests for output");
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = ctx.draining.cancelled() => return,
        }
    }
}

/// What a host is to send; waits for it up to `park`.
pub async fn next(ctx: &Context, host: &str, park: Duration) -> Result<Option<Order>, Refusal> {
    let mut asked = ctx.asked.0.subscribe();
    let by = Instant::now() + park;
    loop {
        let wanted = asked.borrow_and_update().contains(host);
        if wanted {
            if let Some(order) = ctx.db.take_fetch(host.to_owned()).await? {
                return Ok(Some(order));
            }
            // Another call of the host was faster.
            ctx.asked.look(ctx).await?;
        }
        tokio::select! {
            changed = asked.changed() => if changed.is_err() { return Ok(None) },
            () = tokio::time::sleep_until(by) => return Ok(None),
            // One that came between the two looks changed nothing.
            () = tokio::time::sleep(LOOK_EVERY), if wanted => {}
            () = ctx.draining.cancelled() => return Ok(None),
        }
    }
}

/// A piece from a host.
pub async fn put(
    ctx: &Context,
    id: i64,
    host: String,
    offset: u64,
    data: Vec<u8>,
    error: String,
) -> Result<Put, Refusal> {
    Ok(ctx.db.put_fetched(id, host, offset, Arc::new(data), error).await?)
}

/// Sends these bytes of a stream from the host of the task. False: the reader is gone.
pub async fn fetch(
    ctx: &Arc<Context>,
    task_id: i64,
    stream: Stream,
    range: Range<u64>,
    out: &mpsc::Sender<Result<Piece, Refusal>>,
) -> Result<bool, Refusal> {
    let rows = ctx.db.tasks(vec![task_id]).await?;
    let Some(host) = rows.first().and_then(|row| row.host.clone()) else {
        return Err(Refusal::new(
            Code::TaskNotFound,
            format!("task {task_id} was given to no runner, so none has its output"),
        ));
    };
    let Some(id) = ctx.db.ask_fetch(task_id, host.clone(), stream, range.clone()).await? else {
        return Err(Refusal::new(
            Code::Overloaded,
            "too many full outputs are fetched at once; try again later",
        ));
    };
    ctx.asked.look(ctx).await?;
    let fetched = pass_on(ctx, id, task_id, &host, stream, range, out).await;
    if let Err(error) = ctx.db.end_fetch(id).await {
        tracing::warn!(%error, "a request for output is left over; it is deleted later");
    }
    fetched
}

async fn pass_on(
    ctx: &Context,
    id: i64,
    task_id: i64,
    host: &str,
    stream: Stream,
    range: Range<u64>,
    out: &mpsc::Sender<Result<Piece, Refusal>>,
) -> Result<bool, Refusal> {
    let mut at = range.start;
    let mut since = Instant::now();
    let mut pause = READ_EVERY;
    let lost = |what: &str| {
        let message = format!(
            "{host}, which has the full output of task {task_id}, {what}; read on without --full, or when its runner is there"
        );
        Refusal::new(Code::RunnerNotFound, message)
    };
    while at < range.end {
        let Some(come) = ctx.db.look_fetched(id).await? else {
            return Err(lost("was waited for too long"));
        };
        let last = come.pieces.last().map(|(offset, _)| *offset);
        for (offset, mut data) in come.pieces {
            // A call that the host repeated, as its answer was lost: the reader has these bytes.
            let known = usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX);
            if known > 0 && known >= data.len() {
                continue;
            }
            data.drain(..known);
            let offset = offset.max(at);
            // What the host itself does not have any more.
            let gap = offset - at;
            at = offset + data.len() as u64;
            let piece = Piece {
                stream,
                offset,
                data,
                seen_at_ms: None,
                gap,
                dropped: 0,
            };
            if out.send(Ok(piece)).await.is_err() {
                return Ok(false);
            }
        }
        if let Some(last) = last {
            ctx.db.consume_fetched(id, last).await?;
            (since, pause) = (Instant::now(), READ_EVERY);
            continue;
        }
        if let Some(error) = come.error {
            return Err(Refusal::new(Code::TaskNotFound, error));
        }
        if !come.taken && since.elapsed() >= TAKEN_WITHIN {
            return Err(lost("does not answer"));
        }
        if come.taken && since.elapsed() >= PIECE_WITHIN {
            return Err(lost("does not answer any more"));
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = out.closed() => return Ok(false),
        }
        pause = (pause * 2).min(READ_EVERY_MAX);
    }
    Ok(true)
}
