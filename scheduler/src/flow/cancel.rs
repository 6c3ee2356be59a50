//! Cancel: waiting tasks end at once, running ones when their runner confirms. A cancel is about the
//! chain: it acts on its live member, and no retry follows.

use super::{Refusal, after_end};
use crate::context::Context;
use crate::store::admin::{self, Held};
use crate::store::audit::audit_tasks;
use crate::store::finish::{self, End, Ended, LiveTask};
use crate::store::read::Filter;
use crate::store::{Class, StoreError, Tx};
use crate::task_log;
use std::collections::HashMap;
use std::sync::Arc;
use systole_shared::error::{Code, Invalid};
use systole_shared::heartbeat::end::Terminating;
use systole_shared::limits::PAGE_MAX;
use systole_shared::task::{Outcome, OutcomeKind, TaskState, Transition};

/// How often a chain is followed that moves on while it is cancelled.
const ROUNDS_MAX: u32 = 5;

/// What became of one id.
#[derive(Clone, Debug)]
pub struct Cancelled {
    /// The task acted on.
    pub id: i64,
    pub state: TaskState,
    pub already: bool,
}

struct Round {
    ended: Ended,
    held: Vec<Held>,
    seen: HashMap<i64, (TaskState, bool)>,
}

/// Cancels tasks; one answer per id, in order.
pub async fn cancel(
    ctx: &Context,
    ids: Vec<i64>,
    by: &str,
    reason: &str,
    exact: bool,
) -> Result<Vec<Result<Cancelled, Refusal>>, Refusal> {
    let mut target: HashMap<i64, i64> = ids.iter().map(|&id| (id, id)).collect();
    let mut seen: HashMap<i64, (TaskState, bool)> = HashMap::new();
    for _ in 0..ROUNDS_MAX {
        if !exact {
            target = ctx.db.chain_ends(ids.clone()).await?.into_iter().collect();
        }
        let mut wanted: Vec<i64> = target.values().copied().filter(|id| !seen.contains_key(id)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() {
            break;
        }
        for id in &wanted {
            task_log::cancel_asked(*id, by, reason);
        }
        let round = one_round(ctx, wanted, by, reason).await?;
        let failed = !exact && round.seen.values().any(|(state, _)| *state == TaskState::Failed);
        seen.extend(round.seen);
        if !failed {
            break;
        }
        // It failed just now and may have a successor: that one is meant.
    }
    let newest = ctx.db.newest_task_id().await?;
    Ok(ids
        .iter()
        .map(|id| answer(*id, target.get(id), &seen, newest))
        .collect())
}

/// What a cancel by filter acts on next: a page of live tasks, oldest first.
pub async fn matching(ctx: &Context, mut filter: Filter) -> Result<Vec<i64>, Refusal> {
    let unconditional = Filter {
        above_id: None,
        ..filter.clone()
    };
    if unconditional == Filter::default() {
        return Err(Invalid::new(
            "filter",
            "has no condition; that would be every task. Give at least one, such as a state or a job",
        )
        .into());
    }
    let live = |state: &TaskState| {
        matches!(
            state,
            TaskState::Created
                | TaskState::Queued
                | TaskState::Dispatched
                | TaskState::Running
                | TaskState::Terminating
        )
    };
    filter.states = if filter.states.is_empty() {
        TaskState::ALL.into_iter().filter(live).collect()
    } else {
        filter.states.into_iter().filter(live).collect()
    };
    if filter.states.is_empty() {
        return Ok(Vec::new());
    }
    Ok(ctx.db.to_cancel(Arc::new(filter), PAGE_MAX).await?)
}

fn answer(
    asked: i64,
    target: Option<&i64>,
    seen: &HashMap<i64, (TaskState, bool)>,
    newest: i64,
) -> Result<Cancelled, Refusal> {
    let found = target.and_then(|id| seen.get(id).map(|(state, already)| (*id, *state, *already)));
    let Some((id, state, already)) = found else {
        return Err(no_such_task(asked, newest));
    };
    match state {
        TaskState::Terminating | TaskState::Terminated => Ok(Cancelled { id, state, already }),
        state => Err(Refusal {
            code: Code::TaskNotFound,
            message: format!("task {id} has ended ({state}); nothing was changed"),
            field: "ids".into(),
        }),
    }
}

/// The answer for an id that does not exist.
pub fn no_such_task(id: i64, newest: i64) -> Refusal {
    let hint = match newest {
        0 => "no task was submitted yet".into(),
        newest if id > newest => format!("the newest is {newest}"),
        _ => "it was deleted, or never existed".into(),
    };
    Refusal {
        code: Code::TaskNotFound,
        message: format!("no task {id} ({hint}). See `systole ls`"),
        field: "ids".into(),
    }
}

async fn one_round(ctx: &Context, ids: Vec<i64>, by: &str, reason: &str) -> Result<Round, StoreError> {
    let ids = Arc::new(ids);
    let by: Arc<str> = by.into();
    let reason = (!reason.is_empty()).then(|| reason.to_owned());
    let round = ctx
        .db
        .write("cancel", Class::Api, move |tx| {
            let (ids, by, reason) = (Arc::clone(&ids), Arc::clone(&by), reason.clone());
            Box::pin(async move { transact(tx, &ids, &by, reason).await })
        })
        .await?;
    after_end(ctx, &round.ended);
    ctx.wake
        .stop(round.held.iter().map(|held| (held.host.as_str(), held.slot, held.id)));
    ctx.wake.changed(round.held.iter().map(|held| held.id).collect());
    Ok(round)
}

async fn transact(tx: &mut Tx, ids: &[i64], by: &str, reason: Option<String>) -> Result<Round, StoreError> {
    let mut ends = Vec::new();
    let mut held = Vec::new();
    let mut seen = HashMap::new();
    for task in finish::lock_tasks(tx, ids).await? {
        let state = task.state()?;
        match state {
            TaskState::Created | TaskState::Queued => {
                seen.insert(task.id, (TaskState::Terminated, false));
                ends.push(end_waiting(task, by, reason.clone()));
            }
            TaskState::Dispatched | TaskState::Running => {
                seen.insert(task.id, (TaskState::Terminating, false));
                held.push(task.id);
            }
            TaskState::Terminating => {
                let already = task.terminating() == Some(Terminating::User);
                seen.insert(task.id, (state, already));
                if !already {
                    held.push(task.id);
                }
            }
            TaskState::Terminated => {
                seen.insert(task.id, (state, true));
            }
            TaskState::Callback | TaskState::Finished | TaskState::Failed | TaskState::Skipped => {
                seen.insert(task.id, (state, false));
            }
        }
    }
    let ended = finish::end_tasks(tx, &ends).await?;
    let changed: Vec<i64> = ends.iter().map(|end| end.task.id).chain(held.iter().copied()).collect();
    audit_tasks(tx, by, "cancel", &changed, reason.as_deref().unwrap_or_default()).await?;
    let held = admin::cancel_held(tx, &held, by, reason).await?;
    Ok(Round { ended, held, seen })
}

fn end_waiting(task: LiveTask, by: &str, reason: Option<String>) -> End {
    let outcome = Outcome::new(OutcomeKind::Cancelled, format!("cancelled by {by} before it started"));
    End {
        cancelled_by: Some((by.to_owned(), reason)),
        ..End::without_report(task, (Transition::CancelWaiting, outcome))
    }
}
