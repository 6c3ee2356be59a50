//! The task service.

use super::{actor, check_batch, check_reason, invalid, item_error, page_limit, status};
use crate::context::{Context, FleetView};
use crate::flow::cancel::no_such_task;
use crate::flow::output::{self, Piece, Read};
use crate::flow::submit::{self, Item};
use crate::flow::watch::{self, What};
use crate::flow::{Refusal, cancel, explain};
use crate::store::output::Stream;
use crate::store::read::{Filter, TaskRow};
use crate::store::submit::Stored;
use std::collections::HashMap;
use std::sync::Arc;
use systole_proto::convert::{
    detail_to_wire, outcome_to_wire, spec_from_wire, spec_to_wire, state_from_wire, state_to_wire, time_to_wire,
};
use systole_proto::v1;
use systole_proto::v1::task_service_server::TaskService;
use systole_shared::error::{Code, Invalid};
use systole_shared::id::Target;
use systole_shared::limits::{BATCH_ITEMS_MAX, GET_IDS_MAX, PAGE_MAX};
use systole_shared::policy::access::Needs;
use systole_shared::policy::freeze::{longest, over};
use systole_shared::policy::why::blockers::Blocker;
use systole_shared::policy::why::{Wanted, waiting_for};
use systole_shared::task::trace::{self, is_traceparent};
use systole_shared::task::{TaskSpec, TaskState};
use systole_shared::time::format_utc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

/// Messages of a stream that wait for a slow reader.
const STREAM_QUEUE_MAX: usize = 8;

pub struct Tasks {
    pub ctx: Arc<Context>,
}

type Stream_<T> = std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

/// The trace that the call belongs to. A malformed one is ignored, as the recommendation wants it.
fn traceparent(metadata: &MetadataMap) -> Option<String> {
    let value = metadata.get(trace::HEADER)?.to_str().ok()?;
    is_traceparent(value).then(|| value.to_owned())
}

#[tonic::async_trait]
impl TaskService for Tasks {
    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Result<Response<v1::SubmitResponse>, Status> {
        let by = actor(&request)?.name;
        let trace = traceparent(request.metadata());
        let request = request.into_inner();
        check_batch(request.items.len(), BATCH_ITEMS_MAX, "items")?;
        check_reason(&request.reason)?;
        let items = request
            .items
            .into_iter()
            .map(|item| {
                let spec = item.spec.ok_or_else(|| Invalid::new("spec", "is missing"))?;
                Ok(Item {
                    spec: spec_from_wire(spec)?,
                    key: item.key,
                })
            })
            .collect();
        let results = submit::submit(&self.ctx, items, &by, &request.reason, trace.as_deref())
            .await
            .map_err(|refusal| status(&refusal))?;
        let results = results
            .into_iter()
            .map(|result| match result {
                Ok(Stored::New(id)) => v1::SubmitResult {
                    id,
                    ..Default::default()
                },
                Ok(Stored::Existing(id)) => v1::SubmitResult {
                    id,
                    existing: true,
                    error: None,
                },
                Ok(Stored::KeyReused) => v1::SubmitResult::default(),
                Err(refusal) => v1::SubmitResult {
                    error: Some(item_error(&refusal)),
                    ..Default::default()
                },
            })
            .collect();
        Ok(Response::new(v1::SubmitResponse { results }))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        let ids = request.into_inner().ids;
        check_batch(ids.len(), GET_IDS_MAX, "ids")?;
        let rows = self.ctx.db.tasks(ids.clone()).await.map_err(store)?;
        let newest = if rows.len() < ids.len() {
            self.ctx.db.newest_task_id().await.map_err(store)?
        } else {
            0
        };
        let mut tasks: HashMap<i64, v1::Task> = to_wire(&self.ctx, rows)
            .await?
            .into_iter()
            .map(|task| (task.id, task))
            .collect();
        let results = ids
            .iter()
            .map(|id| match tasks.get(id).cloned() {
                Some(task) => v1::GetResult {
                    task: Some(task),
                    error: None,
                },
                None => v1::GetResult {
                    task: None,
                    error: Some(item_error(&no_such_task(*id, newest))),
                },
            })
            .collect();
        tasks.clear();
        Ok(Response::new(v1::GetResponse { results }))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let request = request.into_inner();
        let limit = page_limit(request.limit)?;
        let mut filter = filter(request.filter)?;
        if !request.page_token.is_empty() {
            let id = request
                .page_token
                .parse()
                .map_err(|_| bad_page("page_token: is not one of ours; leave it out to begin with the newest"))?;
            filter.below_id = Some(id);
        }
        let (rows, more) = self.ctx.db.list(Arc::new(filter), limit).await.map_err(store)?;
        let next_page_token = match rows.last() {
            Some(row) if more => row.id.to_string(),
            _ => String::new(),
        };
        Ok(Response::new(v1::ListResponse {
            tasks: to_wire(&self.ctx, rows).await?,
            next_page_token,
        }))
    }

    async fn count(&self, request: Request<v1::CountRequest>) -> Result<Response<v1::CountResponse>, Status> {
        let filter = filter(request.into_inner().filter)?;
        let counts = self.ctx.db.count(Arc::new(filter)).await.map_err(store)?;
        Ok(Response::new(v1::CountResponse {
            total: counts.iter().map(|(_, count)| count).sum(),
            counts: counts
                .into_iter()
                .map(|(state, count)| v1::StateCount {
                    state: state_to_wire(state).into(),
                    count,
                })
                .collect(),
        }))
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Result<Response<v1::CancelResponse>, Status> {
        let by = actor(&request)?.name;
        let request = request.into_inner();
        check_reason(&request.reason)?;
        let mut next_page_token = String::new();
        let ids = match request.filter {
            None => {
                check_batch(request.ids.len(), BATCH_ITEMS_MAX, "ids")?;
                request.ids
            }
            Some(_) if !request.ids.is_empty() => {
                return Err(invalid(Invalid::new(
                    "filter",
                    "is given instead of ids, not together with them",
                )));
            }
            Some(wanted) => {
                let mut wanted = filter(Some(wanted))?;
                if !request.page_token.is_empty() {
                    let above = request.page_token.parse();
                    wanted.above_id =
                        Some(above.map_err(|_| bad_page("page_token: is not one of ours; leave it out to begin"))?);
                }
                let ids = cancel::matching(&self.ctx, wanted)
                    .await
                    .map_err(|refusal| status(&refusal))?;
                if ids.len() == PAGE_MAX {
                    next_page_token = ids.last().map(ToString::to_string).unwrap_or_default();
                }
                ids
            }
        };
        let results = cancel::cancel(&self.ctx, ids, &by, &request.reason, request.exact)
            .await
            .map_err(|refusal| status(&refusal))?;
        let results = results
            .into_iter()
            .map(|result| match result {
                Ok(cancelled) => v1::CancelResult {
                    id: cancelled.id,
                    state: state_to_wire(cancelled.state).into(),
                    already: cancelled.already,
                    error: None,
                },
                Err(refusal) => v1::CancelResult {
                    error: Some(item_error(&refusal)),
                    ..Default::default()
                },
            })
            .collect();
        Ok(Response::new(v1::CancelResponse {
            results,
            next_page_token,
        }))
    }

    type WatchStream = Stream_<v1::WatchResponse>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let what = if request.ids.is_empty() {
            What::Matching(Box::new(filter(request.filter)?))
        } else {
            check_batch(request.ids.len(), GET_IDS_MAX, "ids")?;
            What::Ids {
                ids: request.ids,
                chain: request.chain,
            }
        };
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE_MAX);
        let (out, answer) = mpsc::channel(STREAM_QUEUE_MAX);
        tokio::spawn(watch::watch(Arc::clone(&self.ctx), what, sender));
        tokio::spawn(forward_tasks(Arc::clone(&self.ctx), receiver, out));
        Ok(Response::new(Box::pin(ReceiverStream::new(answer))))
    }

    type ReadOutputStream = Stream_<v1::ReadOutputResponse>;

    async fn read_output(
        &self,
        request: Request<v1::ReadOutputRequest>,
    ) -> Result<Response<Self::ReadOutputStream>, Status> {
        let request = request.into_inner();
        let streams = match Stream::from_number(request.stream) {
            Some(stream) => vec![(stream, request.offset)],
            None => vec![
                (Stream::Stdout, request.offset),
                (Stream::Stderr, request.stderr_offset),
            ],
        };
        let read = Read {
            task_id: request.task_id,
            streams,
            follow: request.follow,
            times: request.times,
            full: request.full,
            since_ms: match request.since_ms {
                0 => None,
                ms => Some(i64::try_from(ms).unwrap_or(i64::MAX)),
            },
        };
        let (sender, mut receiver) = mpsc::channel::<Result<Piece, Refusal>>(STREAM_QUEUE_MAX);
        tokio::spawn(output::read(Arc::clone(&self.ctx), read, sender));
        // The first piece decides between an error and a stream.
        let first = receiver.recv().await;
        if let Some(Err(refusal)) = first {
            return Err(status(&refusal));
        }
        let rest = tokio_stream::StreamExt::chain(tokio_stream::iter(first), ReceiverStream::new(receiver));
        let answer = tokio_stream::StreamExt::map(rest, |piece| match piece {
            Ok(piece) => Ok(v1::ReadOutputResponse {
                stream: i32::try_from(piece.stream.number()).unwrap_or(0),
                offset: piece.offset,
                data: piece.data,
                dropped_bytes: piece.dropped,
                seen_at_ms: piece.seen_at_ms.map_or(0, time_to_wire),
                gap: (piece.gap > 0).then(|| v1::OutputGap {
                    offset: piece.offset.saturating_sub(piece.gap),
                    bytes: piece.gap,
                }),
            }),
            Err(refusal) => Err(status(&refusal)),
        });
        Ok(Response::new(Box::pin(answer)))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        let id = request.into_inner().task_id;
        let explained = explain::explain(&self.ctx, id)
            .await
            .map_err(|refusal| status(&refusal))?;
        let blockers = explained.blockers.into_iter().map(blocker_to_wire).collect();
        Ok(Response::new(v1::ExplainResponse {
            task: to_wire(&self.ctx, vec![explained.task]).await?.pop(),
            story: explained.story,
            blockers,
            now_ms: time_to_wire(explained.now_ms),
        }))
    }
}

fn blocker_to_wire(blocker: Blocker) -> v1::Blocker {
    v1::Blocker {
        kind: blocker.kind.name().into(),
        message: blocker.message,
        since_ms: blocker.since_ms.map_or(0, time_to_wire),
        until_ms: blocker.until_ms.map_or(0, time_to_wire),
        advice: blocker.advice,
        command: blocker.command,
        roles: blocker.needs.map(Needs::roles).unwrap_or_default(),
    }
}

fn store(error: crate::store::StoreError) -> Status {
    status(&Refusal::from(error))
}

fn bad_page(message: &str) -> Status {
    status(&Refusal::new(Code::InvalidPage, message))
}

fn filter(filter: Option<v1::TaskFilter>) -> Result<Filter, Status> {
    let filter = filter.unwrap_or_default();
    let text = |text: String| (!text.is_empty()).then_some(text);
    let states = filter
        .states
        .iter()
        .map(|&number| {
            state_from_wire(number)
                .ok_or_else(|| invalid(Invalid::new("filter.states", format!("{number} is no task state"))))
        })
        .collect::<Result<Vec<TaskState>, Status>>()?;
    let runner = match text(filter.runner) {
        Some(runner) => Some(Target::parse(&runner, "filter.runner").map_err(invalid)?),
        None => None,
    };
    let time = |ms: u64| (ms != 0).then(|| i64::try_from(ms).unwrap_or(i64::MAX));
    Ok(Filter {
        states,
        job: text(filter.job),
        name: text(filter.name),
        runner,
        tag: text(filter.tag),
        batch: text(filter.batch),
        set_id: (filter.set_id != 0).then_some(filter.set_id),
        last_attempts: filter.last_attempts,
        since_ms: time(filter.since_ms),
        until_ms: time(filter.until_ms),
        below_id: None,
        above_id: None,
    })
}

async fn forward_tasks(
    ctx: Arc<Context>,
    mut from: mpsc::Receiver<Result<TaskRow, Refusal>>,
    to: mpsc::Sender<Result<v1::WatchResponse, Status>>,
) {
    while let Some(row) = from.recv().await {
        let answer = match row {
            Ok(row) => to_wire(&ctx, vec![row])
                .await
                .map(|mut tasks| v1::WatchResponse { task: tasks.pop() }),
            Err(refusal) => Err(status(&refusal)),
        };
        if to.send(answer).await.is_err() {
            return;
        }
    }
}

/// Rows as messages, with the reason of those that wait.
pub async fn to_wire(ctx: &Context, rows: Vec<TaskRow>) -> Result<Vec<v1::Task>, Status> {
    let waits = rows.iter().any(|row| matches!(row.state(), Ok(TaskState::Queued)));
    let fleet = if waits {
        ctx.fleet.view(&ctx.db, ctx.lost_after_ms()).await.map_err(store)?
    } else {
        Arc::default()
    };
    rows.iter()
        .map(|row| task_to_wire(row, &fleet).map_err(store))
        .collect()
}

fn task_to_wire(row: &TaskRow, fleet: &FleetView) -> Result<v1::Task, crate::store::StoreError> {
    let state = row.state()?;
    // What cannot be read is not shown; the task itself is.
    let spec = row.spec().unwrap_or_default();
    let time = |ms: Option<i64>| ms.map_or(0, time_to_wire);
    let bytes = |n: Option<i64>| n.map_or(0, |n| u64::try_from(n).unwrap_or(0));
    let count = |n: Option<i64>| n.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
    Ok(v1::Task {
        id: row.id,
        root_id: row.root_id(),
        retry_of: row.retry_of.unwrap_or(0),
        retried_by: row.retried_by.unwrap_or(0),
        attempt: u32::try_from(row.attempt).unwrap_or(u32::MAX),
        state: state_to_wire(state).into(),
        host: row.host.clone().unwrap_or_default(),
        slot: row.slot.and_then(|slot| u32::try_from(slot).ok()).unwrap_or(0),
        created_at_ms: time_to_wire(row.created_at_ms),
        queued_at_ms: time(row.eligible_at_ms),
        dispatched_at_ms: time(row.dispatched_at_ms),
        started_at_ms: time(row.started_at_ms),
        ended_at_ms: time(row.ended_at_ms),
        outcome: row.outcome()?.as_ref().map(outcome_to_wire),
        submitted_by: row.submitted_by.clone(),
        submit_reason: row.submit_reason.clone().unwrap_or_default(),
        cancelled_by: row.cancelled_by.clone().unwrap_or_default(),
        cancel_reason: row.cancel_reason.clone().unwrap_or_default(),
        late_result: row.late_outcome().as_ref().map(outcome_to_wire),
        callback: callback(row),
        waiting_for: why(row, state, &spec, fleet),
        stdout_bytes: bytes(row.stdout_bytes),
        stderr_bytes: bytes(row.stderr_bytes),
        stdout_dropped_bytes: bytes(row.stdout_total).saturating_sub(bytes(row.stdout_bytes)),
        stderr_dropped_bytes: bytes(row.stderr_total).saturating_sub(bytes(row.stderr_bytes)),
        end_detail: row.end_detail()?.map(detail_to_wire),
        stdout_gap: gap(row.stdout_gap_start, row.stdout_gap_bytes),
        stderr_gap: gap(row.stderr_gap_start, row.stderr_gap_bytes),
        recoveries: count(Some(row.recoveries)),
        route: row.route.clone().unwrap_or_default(),
        routed_to: row.routed_to(state).unwrap_or_default().to_owned(),
        set_id: row.set_id.unwrap_or(0),
        shard_index: count(row.shard_index),
        shard_total: count(row.shard_total),
        set_size: count(row.set_size),
        spec: Some(spec_to_wire(&spec)),
    })
}

fn gap(start: Option<i64>, bytes: Option<i64>) -> Option<v1::OutputGap> {
    let number = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    (number(bytes) > 0).then(|| v1::OutputGap {
        offset: number(start),
        bytes: number(bytes),
    })
}

fn callback(row: &TaskRow) -> Option<v1::Callback> {
    let url = row.callback_url.clone()?;
    Some(v1::Callback {
        url,
        status: row.callback_status.clone().unwrap_or_else(|| "waiting".into()),
        tries: row.callback_tries.and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        last_error: row.callback_error.clone().unwrap_or_default(),
        delivery_id: row.delivery_id.clone().unwrap_or_default(),
    })
}

/// Of a QUEUED task: who could take it, and why he does not.
fn waits_for_runner(row: &TaskRow, spec: &TaskSpec, fleet: &FleetView) -> String {
    let chosen = row.routed_to(TaskState::Queued).map(|host| Target {
        host: host.to_owned(),
        slot: None,
    });
    let wanted = Wanted {
        queue: &spec.queue,
        require: &spec.require,
        target: chosen.as_ref().or(spec.target.as_ref()),
    };
    let waits = waiting_for(&wanted, &fleet.runners, fleet.now_ms);
    match (row.route.as_deref(), chosen) {
        (Some(route), Some(chosen)) if !waits.is_empty() => {
            let avoids = row.avoid_host.as_deref().filter(|host| *host != chosen.host);
            let avoids = avoids.map_or(String::new(), |host| format!(", not {host} again"));
            format!("for {chosen} ({route}{avoids}): {waits}")
        }
        _ => waits,
    }
}

fn why(row: &TaskRow, state: TaskState, spec: &TaskSpec, fleet: &FleetView) -> String {
    match state {
        TaskState::Created if row.waiting_ms.is_some() => match row.set_id {
            Some(set) => format!("its turn in broadcast {set} (max_parallel)"),
            None => format!(
                "held: waits for a place of job {} (systole why {})",
                spec.job.as_deref().unwrap_or_default(),
                row.id
            ),
        },
        TaskState::Created => match (row.run_at_ms, row.retry_of) {
            (Some(at), None) => format!("starts at {}", format_utc(at)),
            (Some(at), Some(of)) => format!("attempt {} after {of}, starts at {}", row.attempt, format_utc(at)),
            (None, _) => String::new(),
        },
        TaskState::Queued => match longest(over(&fleet.freezes, &spec.queue, &spec.tags)) {
            Some(freeze) => freeze.words(),
            None => waits_for_runner(row, spec, fleet),
        },
        TaskState::Dispatched => match (&row.host, row.slot) {
            (Some(host), Some(slot)) => format!("given to {host}/{slot}, which has not reported it yet"),
            _ => String::new(),
        },
        _ => String::new(),
    }
}
