//! What `systole top` asks of a scheduler: polls, the output of the selected task, and what a key orders.

use super::model::{Msg, Question, SLOTS_MAX, TASKS_MAX};
use crate::client::{Client, cause_of};
use crate::commands::{batch, cancel, now_ms, rerun, why};
use crate::failure::{Failure, is_transient};
use crate::output::text;
use std::sync::Arc;
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::OutputStream;
use systole_shared::limits::PAGE_MAX;
use tokio::sync::mpsc;
use tonic::Status;

/// Stored bytes of a stream that are read when its task is selected; what follows is read as it comes.
const TAIL_BYTES: u64 = 64 * 1024;
/// A selection that moves on is not read.
const SETTLE: Duration = Duration::from_millis(150);
/// From one try to the next when a stream of output breaks.
const AGAIN: Duration = Duration::from_secs(2);

/// The tasks; with `all` the hosts and the counts too.
pub async fn poll(client: Arc<Client>, question: Question, all: bool, to: mpsc::Sender<Msg>) {
    if let Err(failure) = try_poll(&client, question, all, &to).await {
        let _ = to.send(Msg::Trouble(failure.to_string())).await;
    }
}

async fn try_poll(client: &Client, question: Question, all: bool, to: &mpsc::Sender<Msg>) -> Result<(), Failure> {
    if all {
        let (runners, more) = runners(client).await?;
        let _ = to.send(Msg::Hosts { runners, more }).await;
        let status = client.status(v1::StatusRequest::default()).await?;
        let _ = to.send(Msg::Status(Box::new(status))).await;
    }
    let request = v1::ListRequest {
        filter: Some(question.filter()),
        limit: TASKS_MAX,
        page_token: String::new(),
    };
    let response = client.list(request).await?;
    let answer = Msg::Tasks {
        question,
        tasks: response.tasks,
        more: !response.next_page_token.is_empty(),
        now_ms: now_ms(),
    };
    // Nobody takes it any more when the view has ended.
    let _ = to.send(answer).await;
    Ok(())
}

async fn runners(client: &Client) -> Result<(Vec<v1::Runner>, bool), Failure> {
    let mut all = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListRunnersRequest {
            host: String::new(),
            page_token,
            limit: u32::try_from(PAGE_MAX).unwrap_or(0),
        };
        let response = client.runners(request).await?;
        all.extend(response.runners);
        page_token = response.next_page_token;
        if page_token.is_empty() || all.len() >= SLOTS_MAX {
            return Ok((all, !page_token.is_empty()));
        }
    }
}

/// Reads the output of a task, its last part first, until the task has ended or this is aborted.
pub async fn output(client: Arc<Client>, task: i64, to: mpsc::Sender<Msg>) {
    tokio::time::sleep(SETTLE).await;
    let mut next: Option<[u64; 2]> = None;
    let mut told = false;
    loop {
        let broken = match try_output(&client, task, &mut next, &to).await {
            Ok(()) => return,
            Err(status) => status,
        };
        let text = cause_of(&broken);
        if !is_transient(&broken) {
            let _ = to.send(Msg::OutputNote { task, text }).await;
            return;
        }
        if !std::mem::replace(&mut told, true) {
            let text = format!("no output for the moment: {text}");
            let _ = to.send(Msg::OutputNote { task, text }).await;
        }
        client.turn();
        tokio::time::sleep(AGAIN).await;
    }
}

/// `next`: the next byte of stdout and stderr, where they are known.
async fn try_output(
    client: &Client,
    task: i64,
    next: &mut Option<[u64; 2]>,
    to: &mpsc::Sender<Msg>,
) -> Result<(), Status> {
    let offsets = match next {
        Some(offsets) => offsets,
        None => {
            let known = client
                .get(task)
                .await
                .map_err(|failure| Status::not_found(failure.to_string()))?;
            let end = |bytes: u64, gap: Option<v1::OutputGap>| bytes + gap.map_or(0, |gap| gap.bytes);
            let ends = [
                end(known.stdout_bytes, known.stdout_gap),
                end(known.stderr_bytes, known.stderr_gap),
            ];
            next.insert(ends.map(|end| end.saturating_sub(TAIL_BYTES)))
        }
    };
    let request = v1::ReadOutputRequest {
        task_id: task,
        offset: offsets[0],
        stderr_offset: offsets[1],
        follow: true,
        ..v1::ReadOutputRequest::default()
    };
    let mut answers = client.read_output_once(request).await?;
    while let Some(mut piece) = answers.message().await? {
        let stderr = piece.stream() == OutputStream::Stderr;
        let at = &mut offsets[usize::from(stderr)];
        let end = piece.offset.saturating_add(piece.data.len() as u64);
        let known = usize::try_from(at.saturating_sub(piece.offset)).unwrap_or(usize::MAX);
        let data = piece.data.split_off(known.min(piece.data.len()));
        *at = end.max(*at);
        if let Some(gap) = piece.gap {
            let text = format!(
                "{} are not stored here: systole logs --full {task}",
                text::size(gap.bytes)
            );
            let _ = to.send(Msg::OutputNote { task, text }).await;
        }
        if !data.is_empty() && to.send(Msg::Output { task, stderr, data }).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

pub async fn explain(client: Arc<Client>, task: i64, to: mpsc::Sender<Msg>) {
    let lines = match client.explain(task).await {
        Ok(explained) => explained
            .task
            .as_ref()
            .map(|task| why::lines(task, &explained, now_ms(), false))
            .unwrap_or_default(),
        Err(failure) => vec![text::clean(&failure.to_string())],
    };
    let _ = to.send(Msg::Explained { task, lines }).await;
}

pub async fn cancel(client: Arc<Client>, task: i64, to: mpsc::Sender<Msg>) {
    let request = v1::CancelRequest {
        ids: vec![task],
        ..v1::CancelRequest::default()
    };
    let said = match client.cancel(request).await {
        Err(failure) => failure.to_string(),
        Ok(results) => match results.first() {
            Some(result) => match &result.error {
                Some(error) => Failure::from_item(error).to_string(),
                None => cancel::line(task, result, false),
            },
            None => String::new(),
        },
    };
    let _ = to.send(Msg::Done(said)).await;
}

pub async fn rerun(client: Arc<Client>, task: i64, to: mpsc::Sender<Msg>) {
    let said = match try_rerun(&client, task).await {
        Ok(id) => format!("task {task} again as {id}"),
        Err(failure) => failure.to_string(),
    };
    let _ = to.send(Msg::Done(said)).await;
}

async fn try_rerun(client: &Client, task: i64) -> Result<i64, Failure> {
    let spec = client.get(task).await?.spec.unwrap_or_default();
    let item = v1::SubmitItem {
        spec: Some(rerun::again(spec, &batch::new_id())),
        key: format!("rerun:{}:{task}", uuid::Uuid::new_v4().simple()),
    };
    let request = v1::SubmitRequest {
        items: vec![item],
        reason: format!("rerun of {task}"),
    };
    Ok(client.submit(request, None).await?.id)
}
