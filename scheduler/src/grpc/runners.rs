//! The runner service: beats and output.

use super::{check_batch, check_speaks_for, invalid, item_error, status};
use crate::context::Context;
use crate::flow::heartbeat::{self, Beat, BeatResult, Reply};
use crate::flow::{Refusal, cancel, fetch};
use crate::parked::Answer;
use crate::store::fetch::Put;
use crate::store::hosts::Registration;
use crate::store::output::{Chunk, Stream, Upload};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use systole_proto::convert::{
    CLUSTER_KEY, RECORDED_KEY, clean, detail_from_wire, labels_from_wire, report_from_wire, reset_reason_to_wire,
    said_from_wire, spec_to_wire,
};
use systole_proto::v1;
use systole_proto::v1::runner_service_server::RunnerService;
use systole_shared::error::{Code, Invalid};
use systole_shared::heartbeat::Said;
use systole_shared::id::check_host;
use systole_shared::limits::*;
use systole_shared::policy::restore::is_credible;
use systole_shared::task::spec::{check_labels, check_word};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

pub struct Runners {
    pub ctx: Arc<Context>,
}

#[tonic::async_trait]
impl RunnerService for Runners {
    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        check_speaks_for(&request, &request.get_ref().host)?;
        let request = request.into_inner();
        let seq = request.seq;
        let beat = parse(&self.ctx, request).map_err(invalid)?;
        let reply = heartbeat::beat(&self.ctx, beat)
            .await
            .map_err(|refused| self.refuse(&refused))?;
        respond(&self.ctx, seq, reply).map(Response::new)
    }

    type HeartbeatIdleStream = ReceiverStream<Result<v1::HeartbeatIdleResponse, Status>>;

    async fn heartbeat_idle(
        &self,
        request: Request<v1::HeartbeatIdleRequest>,
    ) -> Result<Response<Self::HeartbeatIdleStream>, Status> {
        check_batch(request.get_ref().beats.len(), IDLE_BEATS_MAX, "beats")?;
        let host = request.get_ref().beats[0].host.clone();
        check_speaks_for(&request, &host)?;
        let beats = request.into_inner().beats;
        let waiting: FuturesUnordered<_> = beats
            .into_iter()
            .enumerate()
            .map(|(index, beat)| {
                let (slot, seq) = (beat.slot, beat.seq);
                let beat = parse_idle(&self.ctx, beat, &host).map_err(|Invalid { field, message }| {
                    invalid(Invalid {
                        field: format!("beats[{index}].{field}"),
                        message,
                    })
                })?;
                let ctx = Arc::clone(&self.ctx);
                // By its address: it is moved several times from here to its place.
                Ok(Box::pin(async move {
                    let reply = heartbeat::beat(&ctx, beat).await;
                    let answer = reply.ok().and_then(|reply| respond(&ctx, seq, reply).ok());
                    v1::IdleAnswer { slot, seq, answer }
                }))
            })
            .collect::<Result<_, Status>>()?;
        // There is room for all answers: a client that does not read holds up no beat, and no lock that one of them waits for.
        let (sender, receiver) = mpsc::channel(waiting.len());
        tokio::spawn(async move {
            let mut answers = waiting.ready_chunks(IDLE_BEATS_MAX);
            loop {
                let ready = tokio::select! {
                    ready = answers.next() => ready,
                    // With the call go its beats.
                    () = sender.closed() => return,
                };
                let Some(ready) = ready else { return };
                for message in messages(ready) {
                    if sender.try_send(Ok(message)).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn upload_output(
        &self,
        request: Request<v1::UploadOutputRequest>,
    ) -> Result<Response<v1::UploadOutputResponse>, Status> {
        check_speaks_for(&request, &request.get_ref().host)?;
        let request = request.into_inner();
        check_batch(request.chunks.len(), OUTPUT_CHUNKS_PER_UPLOAD_MAX, "chunks")?;
        let chunks: Vec<Chunk> = request
            .chunks
            .into_iter()
            .enumerate()
            .map(|(index, chunk)| parse_chunk(chunk, &format!("chunks[{index}]")))
            .collect::<Result<_, _>>()
            .map_err(invalid)?;
        let ids: Vec<i64> = chunks.iter().map(|chunk| chunk.task_id).collect();
        let answers = self
            .ctx
            .db
            .upload(request.host, Arc::new(chunks))
            .await
            .map_err(|error| status(&Refusal::from(error)))?;
        self.ctx.wake.changed(ids.clone());
        let results = answers
            .into_iter()
            .zip(ids)
            .map(|(answer, id)| match answer {
                Upload::Stored(stored) => v1::UploadOutputResult {
                    stored_to: stored.end,
                    gap_start: if stored.has_gap() { stored.gap_start } else { 0 },
                    gap_end: if stored.has_gap() { stored.gap_end } else { 0 },
                    ..Default::default()
                },
                Upload::NoTask => v1::UploadOutputResult {
                    full: true,
                    error: Some(item_error(&cancel::no_such_task(id, 0))),
                    ..Default::default()
                },
            })
            .collect();
        Ok(Response::new(v1::UploadOutputResponse { results }))
    }

    async fn next_fetch(
        &self,
        request: Request<v1::NextFetchRequest>,
    ) -> Result<Response<v1::NextFetchResponse>, Status> {
        check_speaks_for(&request, &request.get_ref().host)?;
        let request = request.into_inner();
        check_host(&request.host, "host").map_err(invalid)?;
        let park = Duration::from_millis(request.park_ms.min(PARK_MS_MAX));
        let order = fetch::next(&self.ctx, &request.host, park)
            .await
            .map_err(|refusal| status(&refusal))?;
        let bytes = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(Response::new(order.map_or_else(
            v1::NextFetchResponse::default,
            |order| v1::NextFetchResponse {
                fetch_id: order.id,
                task_id: order.task_id,
                stream: order.stream.into(),
                offset: bytes(order.start_byte),
                end: bytes(order.end_byte),
            },
        )))
    }

    async fn put_fetched(
        &self,
        request: Request<v1::PutFetchedRequest>,
    ) -> Result<Response<v1::PutFetchedResponse>, Status> {
        check_speaks_for(&request, &request.get_ref().host)?;
        let request = request.into_inner();
        check_fetched(&request).map_err(invalid)?;
        let error = clean(&request.error, MESSAGE_CHARS_MAX);
        let put = fetch::put(
            &self.ctx,
            request.fetch_id,
            request.host,
            request.offset,
            request.data,
            error,
        )
        .await
        .map_err(|refusal| status(&refusal))?;
        Ok(Response::new(v1::PutFetchedResponse {
            wait: put == Put::Wait,
            gone: put == Put::Gone,
        }))
    }
}

/// What a runner is told.
fn respond(ctx: &Context, seq: u64, reply: Reply) -> Result<v1::HeartbeatResponse, Status> {
    let mut response = v1::HeartbeatResponse {
        acknowledged: reply.acknowledged,
        cluster_id: ctx.cluster_id.clone(),
        seq,
        beat_interval_ms: u64::try_from(ctx.beat_ms()).unwrap_or(0),
        lost_after_ms: u64::try_from(ctx.lost_after_ms()).unwrap_or(0),
        ..Default::default()
    };
    match reply.answer {
        Answer::GoOn(next) => {
            response.command = v1::Command::GoOn.into();
            response.next_beat_ms = next;
        }
        Answer::Reset(task_id, reason) => {
            response.command = v1::Command::Reset.into();
            response.reset = Some(v1::Reset {
                task_id,
                reason: reset_reason_to_wire(reason).into(),
            });
        }
        Answer::Run(run, redelivery) => {
            response.command = v1::Command::RunNew.into();
            response.run = Some(v1::RunNew {
                task_id: run.task_id,
                spec: Some(spec_to_wire(&run.spec)),
                attempt: u32::try_from(run.attempt).unwrap_or(u32::MAX),
                root_id: run.root_id,
                redelivery,
            });
        }
        Answer::Unavailable => {
            return Err(status(&Refusal::new(
                Code::StoreUnreachable,
                "this scheduler cannot reach its database; try another one",
            )));
        }
    }
    Ok(response)
}

/// Answers that are ready at the same moment. A task goes by itself: many of them could be too large for one message.
fn messages(ready: Vec<v1::IdleAnswer>) -> Vec<v1::HeartbeatIdleResponse> {
    let has_task = |answer: &v1::IdleAnswer| answer.answer.as_ref().is_some_and(|answer| answer.run.is_some());
    let (tasks, others): (Vec<_>, Vec<_>) = ready.into_iter().partition(has_task);
    let mut messages: Vec<_> = tasks
        .into_iter()
        .map(|task| v1::HeartbeatIdleResponse { answers: vec![task] })
        .collect();
    if !others.is_empty() {
        messages.push(v1::HeartbeatIdleResponse { answers: others });
    }
    messages
}

/// A beat that comes together with others.
fn parse_idle(ctx: &Context, request: v1::HeartbeatRequest, host: &str) -> Result<Beat, Invalid> {
    if request.host != host {
        return Err(Invalid::new("host", "differs from that of the first beat"));
    }
    if request.status() != v1::RunnerStatus::Idle
        || !request.results.is_empty()
        || request.unanswered > 0
        || request.leaving
        || request.park_ms == 0
    {
        return Err(Invalid::new(
            "status",
            "is not that of an idle slot with nothing to report and time to wait; send this beat by itself",
        ));
    }
    parse(ctx, request)
}

impl Runners {
    fn refuse(&self, refused: &heartbeat::Refused) -> Status {
        let mut status = status(&refused.refusal);
        if !refused.recorded.is_empty() {
            let ids: Vec<String> = refused.recorded.iter().map(ToString::to_string).collect();
            for (key, text) in [
                (RECORDED_KEY, ids.join(",")),
                (CLUSTER_KEY, self.ctx.cluster_id.clone()),
            ] {
                if let Ok(value) = MetadataValue::try_from(text) {
                    status.metadata_mut().insert(key, value);
                }
            }
        }
        status
    }
}
/// A piece of a full output, checked.
fn check_fetched(request: &v1::PutFetchedRequest) -> Result<(), Invalid> {
    check_host(&request.host, "host")?;
    signed(request.offset, "offset")?;
    if request.data.len() > OUTPUT_CHUNK_BYTES_MAX {
        return Err(Invalid::new(
            "data",
            format!("has more than {OUTPUT_CHUNK_BYTES_MAX} bytes"),
        ));
    }
    Ok(())
}

/// More is a clock that was set.
const AGE_MS_MAX: i64 = 7 * 24 * 3_600_000;

fn signed(value: u64, field: &str) -> Result<i64, Invalid> {
    i64::try_from(value).map_err(|_| Invalid::new(field, "is out of range"))
}

fn parse_chunk(chunk: v1::OutputChunk, field: &str) -> Result<Chunk, Invalid> {
    if chunk.data.len() > OUTPUT_CHUNK_BYTES_MAX {
        return Err(Invalid::new(
            field,
            format!("has more than {OUTPUT_CHUNK_BYTES_MAX} bytes"),
        ));
    }
    Ok(Chunk {
        task_id: chunk.task_id,
        stream: Stream::from_number(chunk.stream).ok_or_else(|| Invalid::new(field, "names no stream"))?,
        start: signed(chunk.offset, field)?.unsigned_abs(),
        age_ms: signed(chunk.age_ms, field)?.min(AGE_MS_MAX),
        data: chunk.data,
    })
}

/// A beat, checked: a value that would spoil a batch never joins one.
fn parse(ctx: &Context, request: v1::HeartbeatRequest) -> Result<Beat, Invalid> {
    check_host(&request.host, "host")?;
    if request.slot >= SLOTS_MAX || request.slots > SLOTS_MAX {
        return Err(Invalid::new("slot", format!("must be below {SLOTS_MAX}")));
    }
    check_max_task_id(request.max_task_id, ctx.newest_task_id.load(Ordering::Relaxed))?;
    check_identity(&request.instance_id, "instance_id")?;
    check_identity(&request.boot_id, "boot_id")?;
    let said = said_from_wire(request.status)
        .ok_or_else(|| Invalid::new("status", "is not one of IDLE, RUNNING, FINISHED, FAILED"))?;
    match (said, request.task_id) {
        (Said::Idle, 0) => {}
        (Said::Idle, _) => return Err(Invalid::new("task_id", "must be 0 for IDLE")),
        (_, id) if id <= 0 => return Err(Invalid::new("task_id", "is missing")),
        _ => {}
    }
    if request.results.len() > RESULTS_PER_BEAT_MAX {
        return Err(Invalid::new(
            "results",
            format!("has more than {RESULTS_PER_BEAT_MAX} entries"),
        ));
    }
    let labels = labels_from_wire(&request.labels, "labels")?;
    check_labels(&labels, LABELS_MAX, "labels")?;
    if request.queues.len() > QUEUES_MAX {
        return Err(Invalid::new("queues", format!("has more than {QUEUES_MAX} entries")));
    }
    for queue in &request.queues {
        check_word(queue, "queues")?;
    }
    let sent_at = signed(request.sent_at_ms, "sent_at_ms")?;
    let results = request
        .results
        .iter()
        .map(|result| parse_result(result, sent_at))
        .collect::<Result<Vec<_>, _>>()?;
    if matches!(said, Said::Finished | Said::Failed) && !results.iter().any(|result| result.task_id == request.task_id)
    {
        return Err(Invalid::new("results", "the result of the named task is missing"));
    }
    let fault_no = signed(request.fault_no, "fault_no")?;
    let fault = request.fault.as_ref().map(parse_fault).transpose()?;
    if fault.is_some() && fault_no == 0 {
        return Err(Invalid::new("fault_no", "is missing; it counts the changes of `fault`"));
    }
    let slot_labels = labels_from_wire(&request.slot_labels, "slot_labels")?;
    check_labels(&slot_labels, LABELS_MAX, "slot_labels")?;
    let group = if slot_labels.is_empty() {
        ctx.lanes.group(&request.queues, &labels)
    } else {
        let mut all = labels.clone();
        all.extend(slot_labels.clone());
        ctx.lanes.group(&request.queues, &all)
    };
    let json =
        |value: Result<String, serde_json::Error>| value.map_err(|error| Invalid::new("labels", error.to_string()));
    Ok(Beat {
        registration: Arc::new(Registration {
            slot: i64::from(request.slot),
            start_no: signed(request.start_no, "start_no")?,
            slots: i64::from(request.slots),
            queues: json(serde_json::to_string(&request.queues))?,
            labels: json(serde_json::to_string(&labels))?,
            version: clean(&request.version, WORD_CHARS_MAX),
            facts: clean(&request.host_facts, MESSAGE_CHARS_MAX),
            boot_id: request.boot_id,
            instance_id: request.instance_id,
            host: request.host,
            sent_at_ms: sent_at,
            beat_ms: ctx.beat_ms(),
            fault,
            fault_no,
        }),
        seq: signed(request.seq, "seq")?,
        said,
        starting: request.starting,
        task_id: request.task_id,
        results,
        group,
        unanswered: request.unanswered,
        leaving: request.leaving,
        park: Duration::from_millis(request.park_ms.min(PARK_MS_MAX)).min(ctx.config.timing.beat),
        max_task_id: request.max_task_id,
        slot_labels: match slot_labels.is_empty() {
            true => None,
            false => Some(json(serde_json::to_string(&slot_labels))?),
        },
    })
}

fn check_max_task_id(max_task_id: i64, newest: i64) -> Result<(), Invalid> {
    if is_credible(max_task_id, newest) {
        return Ok(());
    }
    Err(Invalid::new(
        "max_task_id",
        format!(
            "is {max_task_id}, while the newest task here is {newest}: the file max_task_id in the data folder of this runner is \
             damaged; stop the runner, remove that file and start the runner again"
        ),
    ))
}

fn parse_fault(fault: &v1::HostFault) -> Result<(String, String), Invalid> {
    check_word(&fault.kind, "fault.kind")?;
    Ok((fault.kind.clone(), clean(&fault.detail, MESSAGE_CHARS_MAX)))
}

fn check_identity(text: &str, field: &str) -> Result<(), Invalid> {
    let ok = (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if ok {
        Ok(())
    } else {
        Err(Invalid::new(field, "must be 1 to 64 letters, digits and '-'"))
    }
}

fn parse_result(result: &v1::TaskResult, sent_at: i64) -> Result<BeatResult, Invalid> {
    let report = report_from_wire(result);
    let ended_at = signed(result.ended_at_ms, "results.ended_at_ms")?;
    let started_at = signed(result.started_at_ms, "results.started_at_ms")?;
    // Ages by the runner's own clock: its skew does not matter.
    let age = |at: i64| if at == 0 { 0 } else { sent_at.saturating_sub(at).max(0) };
    let mut output: Vec<Chunk> = result
        .output
        .iter()
        .map(|chunk| parse_chunk(chunk.clone(), "results.output"))
        .collect::<Result<_, _>>()?;
    // A beat may come late, or again: its output is as old as the end.
    for chunk in &mut output {
        chunk.age_ms = age(ended_at);
    }
    if output.iter().any(|chunk| chunk.task_id != result.task_id) {
        return Err(Invalid::new("results.output", "belongs to another task"));
    }
    Ok(BeatResult {
        task_id: result.task_id,
        dispatched_start_no: signed(result.dispatched_start_no, "results.dispatched_start_no")?,
        report,
        started_age_ms: (started_at != 0).then(|| age(started_at)),
        ended_age_ms: age(ended_at),
        detail: result.detail.clone().map(detail_from_wire),
        totals: [result.stdout_bytes, result.stderr_bytes],
        output,
    })
}
