//! Watching tasks change. A change made by this replica is told at once, one made by another is seen
//! within a quarter of a second. Changes in quick succession may come as one; the end always comes.

use super::Refusal;
use super::cancel::no_such_task;
use crate::context::Context;
use crate::store::read::{Filter, TaskRow};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use systole_shared::error::Code;
use systole_shared::limits::{PAGE_MAX, WATCH_TASKS_MAX};
use systole_shared::task::TaskState;
use tokio::sync::mpsc;

/// How often a watcher looks when nobody tells it.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What to watch.
pub enum What {
    /// These tasks; with `chain`, what follows them too. Ends when all have ended.
    Ids { ids: Vec<i64>, chain: bool },
    /// All tasks that match, from now on.
    Matching(Box<Filter>),
}

pub async fn watch(ctx: Arc<Context>, what: What, out: mpsc::Sender<Result<TaskRow, Refusal>>) {
    let done = match what {
        What::Ids { ids, chain } => watch_ids(&ctx, ids, chain, &out).await,
        What::Matching(filter) => watch_matching(&ctx, *filter, &out).await,
    };
    if let Err(refusal) = done {
        drop(out.send(Err(refusal)).await);
    }
}

/// Remembers what was told, so that each state is told once.
#[derive(Default)]
struct Told {
    states: HashMap<i64, TaskState>,
}

impl Told {
    /// Tells the tasks whose state is new. False: the watcher is gone.
    async fn tell(
        &mut self,
        ctx: &Context,
        ids: Vec<i64>,
        out: &mpsc::Sender<Result<TaskRow, Refusal>>,
    ) -> Result<bool, Refusal> {
        for ids in ids.chunks(PAGE_MAX) {
            let mut rows = ctx.db.tasks(ids.to_vec()).await?;
            rows.sort_by_key(|row| row.id);
            for row in rows {
                let state = row.state()?;
                if self.states.insert(row.id, state) != Some(state) && out.send(Ok(row)).await.is_err() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Of these, the ones whose state differs from what was told.
    async fn news(&self, ctx: &Context, ids: Vec<i64>) -> Result<(Vec<i64>, Vec<i64>), Refusal> {
        let rows = ctx.db.states(ids).await?;
        let news = rows
            .iter()
            .filter(|row| row.state().is_some() && row.state() != self.states.get(&row.id).copied())
            .map(|row| row.id)
            .collect();
        let successors = rows.iter().filter_map(|row| row.retried_by).collect();
        Ok((news, successors))
    }
}

async fn watch_ids(
    ctx: &Context,
    ids: Vec<i64>,
    chain: bool,
    out: &mpsc::Sender<Result<TaskRow, Refusal>>,
) -> Result<(), Refusal> {
    let mut changes = ctx.wake.watch();
    let known = ctx.db.states(ids.clone()).await?;
    let known: HashSet<i64> = known.iter().map(|row| row.id).collect();
    if let Some(missing) = ids.iter().find(|id| !known.contains(id)) {
        return Err(no_such_task(*missing, ctx.db.newest_task_id().await?));
    }
    let mut live: HashSet<i64> = ids.into_iter().collect();
    let mut told = Told::default();
    loop {
        let (news, successors) = told.news(ctx, live.iter().copied().collect()).await?;
        if !told.tell(ctx, news, out).await? {
            return Ok(());
        }
        live.retain(|id| !told.states.get(id).is_some_and(|state| state.is_terminal()));
        if chain {
            let fresh: Vec<i64> = successors
                .into_iter()
                .filter(|id| !told.states.contains_key(id))
                .collect();
            if !fresh.is_empty() {
                live.extend(fresh);
                continue;
            }
        }
        if live.is_empty() {
            return Ok(());
        }
        if !pause(ctx, &mut changes, out, &live).await? {
            return Ok(());
        }
    }
}

async fn watch_matching(
    ctx: &Context,
    filter: Filter,
    out: &mpsc::Sender<Result<TaskRow, Refusal>>,
) -> Result<(), Refusal> {
    let mut changes = ctx.wake.watch();
    let mut told = Told::default();
    // States are looked at here, not in the query: a task must be seen when it leaves them too.
    let wanted = filter.states.clone();
    let mut newest = ctx.db.newest_task_id().await?;
    let mut recent: HashSet<i64> = HashSet::new();
    let live_now = Filter {
        states: TaskState::ALL
            .into_iter()
            .filter(|state| !state.is_terminal())
            .collect(),
        ..filter.clone()
    };
    let (rows, _) = ctx.db.list(Arc::new(live_now), WATCH_TASKS_MAX).await?;
    let mut live: HashSet<i64> = rows.iter().map(|row| row.id).collect();
    for row in rows {
        recent.insert(row.id);
        told.states.insert(row.id, row.state()?);
    }
    loop {
        let rows = new_since(ctx, &filter, newest, &mut recent).await?;
        newest = newest.max(recent.iter().copied().max().unwrap_or(0));
        let room = WATCH_TASKS_MAX.saturating_sub(live.len());
        live.extend(rows.into_iter().take(room));
        let (mut news, _) = told.news(ctx, live.iter().copied().collect()).await?;
        news.sort_unstable();
        if wanted.is_empty() {
            if !told.tell(ctx, news, out).await? {
                return Ok(());
            }
        } else {
            for id in news {
                for row in ctx.db.tasks(vec![id]).await? {
                    let state = row.state()?;
                    let changed = told.states.insert(id, state) != Some(state);
                    if changed && wanted.contains(&state) && out.send(Ok(row)).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
        let over: Vec<i64> = live
            .iter()
            .copied()
            .filter(|id| told.states.get(id).is_some_and(|s| s.is_terminal()))
            .collect();
        for id in over {
            live.remove(&id);
            told.states.remove(&id);
        }
        if !pause(ctx, &mut changes, out, &live).await? {
            return Ok(());
        }
    }
}

/// Ids become visible out of order; this many below the newest are looked at again.
const ID_OVERLAP: i64 = 1_000;

/// Ids of tasks that came since the last look. `recent` are those that were seen before.
async fn new_since(
    ctx: &Context,
    filter: &Filter,
    newest: i64,
    recent: &mut HashSet<i64>,
) -> Result<Vec<i64>, Refusal> {
    let mut fresh = Vec::new();
    let mut below_id = None;
    loop {
        let page = Filter {
            states: Vec::new(),
            above_id: Some(newest - ID_OVERLAP),
            below_id,
            ..filter.clone()
        };
        let (rows, more) = ctx.db.list(Arc::new(page), PAGE_MAX).await?;
        below_id = rows.last().map(|row| row.id);
        fresh.extend(rows.iter().map(|row| row.id).filter(|id| recent.insert(*id)));
        if !more || fresh.len() >= WATCH_TASKS_MAX {
            break;
        }
    }
    let highest = recent.iter().copied().max().unwrap_or(0).max(newest);
    recent.retain(|id| *id > highest - 2 * ID_OVERLAP);
    Ok(fresh)
}

/// Waits for a change or for the next look. False: the watcher is gone.
async fn pause(
    ctx: &Context,
    changes: &mut tokio::sync::broadcast::Receiver<Arc<Vec<i64>>>,
    out: &mpsc::Sender<Result<TaskRow, Refusal>>,
    live: &HashSet<i64>,
) -> Result<bool, Refusal> {
    if ctx.draining.is_cancelled() {
        return Err(Refusal::new(
            Code::Draining,
            "this scheduler is stopping; watch again, another one answers",
        ));
    }
    let mine = async {
        loop {
            match changes.recv().await {
                Ok(ids) if !ids.iter().any(|id| live.contains(id)) => {}
                Ok(_) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => return,
                Err(tokio::sync::broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    };
    tokio::select! {
        () = mine => Ok(true),
        () = tokio::time::sleep(LOOK_EVERY) => Ok(true),
        () = out.closed() => Ok(false),
    }
}
