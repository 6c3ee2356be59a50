//! Everything that a task waits for, or what became of it: reads, and `systole_shared::policy::why` says what they mean.

use super::cancel::no_such_task;
use super::{Refusal, alarms, fleet};
use crate::context::{Context, FleetView};
use crate::store::StoreError;
use crate::store::explain::{HolderRow, MemberRow, PlacesRead, Rank};
use crate::store::read::TaskRow;
use std::collections::BTreeSet;
use systole_shared::policy::freeze::over;
use systole_shared::policy::lane::{Labels, Lane, serves};
use systole_shared::policy::why::Wanted;
use systole_shared::policy::why::blockers::{self, AtRunner, BEFORE_MAX, Blocker, Held, Holder, Queued};
use systole_shared::policy::why::story::{self, Ended, Member};
use systole_shared::task::{TaskSpec, TaskState};

pub struct Explained {
    pub task: TaskRow,
    pub story: Vec<String>,
    pub blockers: Vec<Blocker>,
    pub now_ms: i64,
}

pub async fn explain(ctx: &Context, id: i64) -> Result<Explained, Refusal> {
    let Some(task) = ctx.db.tasks(vec![id]).await?.pop() else {
        return Err(no_such_task(id, ctx.db.newest_task_id().await?));
    };
    let view = ctx.fleet.view(&ctx.db, ctx.lost_after_ms()).await?;
    let now_ms = ctx.db.now_ms().await?;
    let state = task.state()?;
    // What cannot be read waits for whoever ends it.
    let spec = task.spec().unwrap_or_default();
    let blockers = match state {
        TaskState::Created => created(ctx, &task, now_ms).await?,
        TaskState::Queued => queued(ctx, &task, &spec, &view, now_ms).await?,
        TaskState::Dispatched | TaskState::Running | TaskState::Terminating => at_runner(ctx, &task, state).await?,
        TaskState::Callback => callback(&task),
        TaskState::Finished | TaskState::Failed | TaskState::Skipped | TaskState::Terminated => Vec::new(),
    };
    let story = if state.child_is_over() {
        ended(ctx, &task, &spec).await?
    } else {
        Vec::new()
    };
    Ok(Explained {
        task,
        story,
        blockers,
        now_ms,
    })
}

async fn created(ctx: &Context, task: &TaskRow, now_ms: i64) -> Result<Vec<Blocker>, StoreError> {
    if task.waiting_ms.is_some()
        && let Some(job_id) = task.job_id
        && let Some(read) = ctx.db.places_for(job_id, task.id).await?
    {
        return Ok(place(&read));
    }
    let clock = alarms::clock(ctx);
    let clock = clock.as_ref().map(|alarm| (alarm.message.as_str(), alarm.since_ms));
    let run_at_ms = task.run_at_ms.unwrap_or(now_ms);
    Ok(blockers::delayed(task.id, run_at_ms, task.retry_of, now_ms, clock))
}

fn place(read: &PlacesRead) -> Vec<Blocker> {
    let all = |rows: &[HolderRow]| rows.iter().map(holder).collect::<Vec<_>>();
    let holders = all(&read.holders);
    let group = read
        .group
        .as_ref()
        .map(|(name, places, rows)| (name, places, all(rows)));
    blockers::held(&Held {
        job: &read.job.name,
        blocking: read.job.blocking(),
        holders: &holders,
        before: u32::try_from(read.before).unwrap_or(u32::MAX),
        first: read.first,
        group: group.as_ref().map(|(name, places, rows)| {
            (
                name.as_str(),
                u32::try_from(**places).unwrap_or(u32::MAX),
                rows.as_slice(),
            )
        }),
    })
}

fn runner(host: Option<&str>, slot: Option<i64>) -> String {
    match (host, slot) {
        (Some(host), Some(slot)) => format!("{host}/{slot}"),
        _ => String::new(),
    }
}

fn holder(row: &HolderRow) -> Holder {
    let lost = row
        .lost_host
        .as_deref()
        .map(|host| (runner(Some(host), row.lost_slot), row.lost_at_ms));
    Holder {
        task: row.id.unwrap_or(row.root_id),
        job: row.job.clone().unwrap_or_default(),
        state: row.status.and_then(TaskState::from_number).unwrap_or(TaskState::Failed),
        runner: runner(row.host.as_deref(), row.slot),
        lost,
        since_ms: row.started_at_ms.or(Some(row.taken_at_ms)),
        run_at_ms: row.run_at_ms,
    }
}

async fn queued(
    ctx: &Context,
    task: &TaskRow,
    spec: &TaskSpec,
    view: &FleetView,
    now_ms: i64,
) -> Result<Vec<Blocker>, StoreError> {
    let wanted = Wanted {
        queue: &spec.queue,
        require: &spec.require,
        target: spec.target.as_ref(),
    };
    let mut question = Queued {
        wanted,
        runners: &view.runners,
        freezes: over(&view.freezes, &spec.queue, &spec.tags).collect(),
        ahead: &ctx.ahead.hosts(),
        before: 0,
        now_ms,
    };
    let mut found = blockers::queued(&question);
    // Only where all slots are busy does it matter who comes first.
    if found.iter().any(|blocker| blocker.kind == blockers::BlockerKind::Busy) {
        let rank = rank(ctx, task, spec, view);
        let before = ctx.db.tasks_before(rank).await?;
        question.before = u64::try_from(before).unwrap_or(0);
        found = blockers::queued(&question);
    }
    Ok(found)
}

/// Which lanes the runners that fit this task serve before it, or by age with it.
fn rank(ctx: &Context, task: &TaskRow, spec: &TaskSpec, view: &FleetView) -> Rank {
    let own = Lane {
        queue: spec.queue.clone(),
        require: spec.require.clone(),
        priority: spec.priority,
    };
    // Runners with the same queues and labels are one kind.
    let kinds: BTreeSet<(&[String], &Labels)> = view
        .runners
        .iter()
        .filter(|r| {
            r.live && spec.target.as_ref().is_none_or(|t| t.covers(&r.id)) && serves(&r.queues, &r.labels, &own)
        })
        .map(|r| (r.queues.as_slice(), &r.labels))
        .collect();
    let (mut higher, mut same) = (Vec::new(), Vec::new());
    for id in ctx.lanes.all_ids() {
        let Some(lane) = ctx.lanes.lane(id) else { continue };
        if lane.priority < own.priority || !kinds.iter().any(|(queues, labels)| serves(queues, labels, &lane)) {
            continue;
        }
        if lane.priority > own.priority {
            &mut higher
        } else {
            &mut same
        }
        .push(id);
    }
    Rank {
        higher,
        same,
        eligible_ms: task.eligible_at_ms.unwrap_or(i64::MAX),
        id: task.id,
        limit: i64::try_from(BEFORE_MAX).unwrap_or(i64::MAX),
    }
}

async fn at_runner(ctx: &Context, task: &TaskRow, state: TaskState) -> Result<Vec<Blocker>, StoreError> {
    let (Some(host), Some(slot)) = (task.host.as_deref(), task.slot) else {
        return Ok(Vec::new());
    };
    let rows = ctx.db.runners((host.to_owned(), slot - 1), host.to_owned(), 1).await?;
    let row = rows.first().filter(|row| row.slot == slot);
    // One that is not known, or holds another task, was taken over: nobody speaks for this one.
    let row = row.filter(|row| row.task_id == Some(task.id));
    let silent = row.is_none_or(|row| fleet::state(row, ctx.lost_after_ms()) == "lost");
    let name = runner(Some(host), Some(slot));
    Ok(blockers::at_runner(&AtRunner {
        state,
        runner: &name,
        seen_ms: row.map(|row| row.seen_ms),
        silent,
        withheld: silent && ctx.withheld.has(host),
        dispatched_ms: task.dispatched_at_ms,
        lost_after_ms: ctx.lost_after_ms(),
    }))
}

fn callback(task: &TaskRow) -> Vec<Blocker> {
    let Some(url) = task.callback_url.as_deref() else {
        return Vec::new();
    };
    let tries = task.callback_tries.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    vec![blockers::callback(
        url,
        tries,
        task.callback_error.as_deref().unwrap_or_default(),
    )]
}

fn member(row: &MemberRow) -> Member {
    let took = row.started_at_ms.zip(row.ended_at_ms);
    Member {
        id: row.id,
        attempt: u32::try_from(row.attempt).unwrap_or(u32::MAX),
        state: TaskState::from_number(row.status).unwrap_or(TaskState::Failed),
        // One that cannot be read says nothing.
        outcome: row.outcome.read(row.id).ok().flatten(),
        runner: runner(row.host.as_deref(), row.slot),
        took_ms: took.map(|(start, end)| u64::try_from(end - start).unwrap_or(0)),
    }
}

async fn ended(ctx: &Context, task: &TaskRow, spec: &TaskSpec) -> Result<Vec<String>, Refusal> {
    let chain: Vec<Member> = ctx.db.chain(task.root_id()).await?.iter().map(member).collect();
    // Deleted by age meanwhile.
    let Some(own) = chain.iter().find(|member| member.id == task.id) else {
        return Err(no_such_task(task.id, ctx.db.newest_task_id().await?));
    };
    let detail = task.end_detail()?;
    let late = task.late_outcome();
    let bytes = task.stdout_bytes.unwrap_or(0) + task.stderr_bytes.unwrap_or(0);
    Ok(story::story(&Ended {
        task: own,
        chain: &chain,
        max_retries: spec.retry.max_retries,
        cancelled_by: task.cancelled_by.as_deref().unwrap_or_default(),
        cancel_reason: task.cancel_reason.as_deref().unwrap_or_default(),
        detail: detail.as_ref(),
        late_result: late.as_ref(),
        callback: task
            .callback_status
            .as_deref()
            .map(|status| (status, task.callback_error.as_deref().unwrap_or_default())),
        output_bytes: u64::try_from(bytes).unwrap_or(0),
    }))
}
