//! Submissions: many calls, one transaction, each acknowledged after its commit.

use super::Refusal;
use crate::context::Context;
use crate::store::StoreError;
use crate::store::submit::{NewTask, Stored};
use crate::task_log;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use systole_shared::clock::now_ms;
use systole_shared::error::{Code, Invalid};
use systole_shared::limits::{ENV_VARS_MAX, KEY_CHARS_MAX};
use systole_shared::policy::fence::check_fence;
use systole_shared::policy::lane::Lane;
use systole_shared::task::TaskSpec;
use systole_shared::task::spec::check_text;
use systole_shared::task::trace::TRACEPARENT;
use tokio::sync::{Mutex, mpsc, oneshot};

/// Calls that wait for a worker.
const QUEUE_MAX: usize = 4_096;
/// Tasks of one transaction, unless one call alone has more.
const BATCH_MAX: usize = 1_000;
/// How often a batch whose commit is uncertain is looked up.
const UNKNOWN_MAX: u32 = 4;

/// One item of a call.
pub struct Item {
    pub spec: TaskSpec,
    pub key: String,
}

type Answer = Result<Vec<Stored>, Refusal>;
type Waiting = (Vec<NewTask>, oneshot::Sender<Answer>);

/// The queue of submissions.
pub struct Submissions {
    sender: mpsc::Sender<Waiting>,
    receiver: Mutex<mpsc::Receiver<Waiting>>,
}

impl Default for Submissions {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        Self {
            sender,
            receiver: Mutex::new(receiver),
        }
    }
}

/// Stores the items of one call. Items that are wrong are refused one by one; the others are stored.
pub async fn submit(
    ctx: &Context,
    items: Vec<Result<Item, Invalid>>,
    by: &str,
    reason: &str,
    trace: Option<&str>,
) -> Result<Vec<Result<Stored, Refusal>>, Refusal> {
    let by: Arc<str> = by.into();
    let reason: Option<Arc<str>> = (!reason.is_empty()).then(|| reason.into());
    let now = now_ms();
    let mut answers: Vec<Option<Refusal>> = Vec::with_capacity(items.len());
    let mut tasks: Vec<NewTask> = Vec::with_capacity(items.len());
    for item in items {
        match prepare(ctx, item, now, (&by, &reason), trace).await {
            Ok(task) => {
                tasks.push(task);
                answers.push(None);
            }
            Err(refusal) if refusal.field.is_empty() => return Err(refusal),
            Err(refusal) => answers.push(Some(refusal)),
        }
    }
    let stored = if tasks.is_empty() {
        Vec::new()
    } else {
        store(ctx, tasks).await?
    };
    let mut stored = stored.into_iter();
    answers
        .into_iter()
        .map(|refusal| match refusal {
            Some(refusal) => Ok(Err(refusal)),
            None => match stored.next() {
                Some(Stored::KeyReused) => Ok(Err(Refusal {
                    code: Code::KeyReused,
                    message: "this key was used before with another body; use a new key, or send the same body".into(),
                    field: "key".into(),
                })),
                Some(stored) => {
                    if let Stored::New(id) | Stored::Existing(id) = stored {
                        task_log::submitted(id, matches!(stored, Stored::Existing(_)), &by);
                    }
                    Ok(Ok(stored))
                }
                None => Err(Refusal::new(Code::Unexpected, "a submission was not answered")),
            },
        })
        .collect()
}

/// An empty field in the refusal means that the whole call failed.
async fn prepare(
    ctx: &Context,
    item: Result<Item, Invalid>,
    now: i64,
    (by, reason): (&Arc<str>, &Option<Arc<str>>),
    trace: Option<&str>,
) -> Result<NewTask, Refusal> {
    let Item { mut spec, key } = item?;
    spec.validate(now)?;
    check_fence(&spec, u64::try_from(ctx.beat_ms()).unwrap_or(u64::MAX))?;
    let key = if key.is_empty() {
        None
    } else {
        check_text(&key, "key", KEY_CHARS_MAX)?;
        if key.starts_with("batch:") {
            return Err(Invalid::new("key", "must not begin with \"batch:\", which is used inside").into());
        }
        Some((key, body_hash(&spec)?))
    };
    // After the hash: the same submission again may belong to another trace.
    if let Some(trace) = trace
        && spec.env.len() < ENV_VARS_MAX
        && !spec.env.iter().any(|(name, _)| name == TRACEPARENT)
    {
        spec.env.push((TRACEPARENT.into(), trace.into()));
    }
    let lane = Lane {
        queue: spec.queue.clone(),
        require: spec.require.clone(),
        priority: spec.priority,
    };
    let lane_id = match ctx.lanes.id_of(&lane) {
        Some(id) => id,
        None => {
            let id = ctx.db.lane_id(&lane).await?;
            ctx.lanes.add(id, lane);
            id
        }
    };
    Ok(NewTask {
        spec: Arc::new(spec),
        lane_id,
        key,
        submitted_by: Arc::clone(by),
        reason: reason.clone(),
    })
}

fn body_hash(spec: &TaskSpec) -> Result<String, StoreError> {
    let body = serde_json::to_vec(spec).map_err(|error| StoreError::Data(error.to_string()))?;
    Ok(crate::auth::hex(&Sha256::digest(&body)))
}

async fn store(ctx: &Context, tasks: Vec<NewTask>) -> Answer {
    let (sender, receiver) = oneshot::channel();
    ctx.submissions.sender.try_send((tasks, sender)).map_err(|_| {
        Refusal::new(
            Code::Overloaded,
            "too many submissions are waiting; try again in a moment",
        )
    })?;
    receiver.await.map_err(|_| {
        Refusal::new(
            Code::Draining,
            "this scheduler is stopping; nothing was acknowledged, send it again",
        )
    })?
}

/// A worker: takes calls and stores their tasks together, until the replica is closed.
pub async fn worker(ctx: Arc<Context>) {
    loop {
        let mut receiver = ctx.submissions.receiver.lock().await;
        let first = tokio::select! {
            first = receiver.recv() => first,
            () = ctx.closed.cancelled() => return,
        };
        let Some(first) = first else { return };
        let mut size = first.0.len();
        let mut calls = vec![first];
        while size < BATCH_MAX {
            let Ok(next) = receiver.try_recv() else { break };
            size += next.0.len();
            calls.push(next);
        }
        drop(receiver);
        run_batch(&ctx, calls).await;
    }
}

async fn run_batch(ctx: &Context, calls: Vec<Waiting>) {
    let sizes: Vec<usize> = calls.iter().map(|(tasks, _)| tasks.len()).collect();
    let mut all: Vec<NewTask> = Vec::new();
    let mut answers = Vec::with_capacity(sizes.len());
    for (tasks, sender) in calls {
        all.extend(tasks);
        answers.push(sender);
    }
    let all = Arc::new(all);
    match put(ctx, Arc::clone(&all)).await {
        Ok(stored) => {
            announce(ctx, &all, &stored);
            let mut stored = stored.into_iter();
            for (size, sender) in sizes.into_iter().zip(answers) {
                drop(sender.send(Ok(stored.by_ref().take(size).collect())));
            }
        }
        // One odd value spoils only its own call: each is tried alone.
        Err(StoreError::Data(_)) if answers.len() > 1 => {
            let mut tasks = all.iter().cloned();
            for (size, sender) in sizes.into_iter().zip(answers) {
                let own: Arc<Vec<NewTask>> = Arc::new(tasks.by_ref().take(size).collect());
                let answer = put(ctx, Arc::clone(&own)).await;
                if let Ok(stored) = &answer {
                    announce(ctx, &own, stored);
                }
                drop(sender.send(answer.map_err(Refusal::from)));
            }
        }
        Err(error) => {
            let refusal = Refusal::from(error);
            for sender in answers {
                drop(sender.send(Err(refusal.clone())));
            }
        }
    }
}

/// Stores a batch. When the connection broke during the commit, the batch's own key tells what became of it.
async fn put(ctx: &Context, tasks: Arc<Vec<NewTask>>) -> Result<Vec<Stored>, StoreError> {
    let batch_key = format!("batch:{}", uuid::Uuid::now_v7().simple());
    let mut tries = 0;
    loop {
        match ctx.db.put_tasks(batch_key.clone(), Arc::clone(&tasks)).await {
            Err(StoreError::CommitUnknown(text)) if tries < UNKNOWN_MAX => {
                tries += 1;
                tracing::warn!(text, tries, "a submission's commit is uncertain; looking it up");
                tokio::time::sleep(std::time::Duration::from_millis(250) * tries).await;
            }
            // Asked again and not reachable: the uncertainty stays, and says so.
            Err(error) if tries > 0 => return Err(StoreError::CommitUnknown(error.to_string())),
            done => return done,
        }
    }
}

/// Wakes whoever waits for the new tasks.
fn announce(ctx: &Context, tasks: &[NewTask], stored: &[Stored]) {
    ctx.health.committed();
    let (mut lanes, mut targets, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    let mut delayed = false;
    for (task, stored) in tasks.iter().zip(stored) {
        let Stored::New(id) = *stored else { continue };
        ids.push(id);
        if task.spec.run_at_ms.is_some() || task.spec.delay_ms.is_some() {
            delayed = true;
            continue;
        }
        match &task.spec.target {
            Some(target) => targets.push(target.host.clone()),
            None => lanes.push(task.lane_id),
        }
    }
    ctx.metrics.submitted(ids.len());
    if let Some(newest) = ids.iter().max() {
        ctx.newest_task_id.fetch_max(*newest, Ordering::Relaxed);
    }
    lanes.sort_unstable();
    lanes.dedup();
    targets.sort_unstable();
    targets.dedup();
    ctx.wake.work(&lanes, &targets);
    if delayed {
        ctx.wake.admit.notify_one();
    }
    ctx.wake.changed(ids);
}
