//! Broadcasts: members are made when the set has its place, get their turns, and the set ends with the last of them. All of it is
//! done by whoever looks next: what a set does is a function of its members as they are stored.

use crate::context::Context;
use crate::flow::{after_end, fleet};
use crate::store::admin::{self, Held};
use crate::store::finish::{self, End, Ended};
use crate::store::jobs::sets::{self, HeadRow, OpenSet};
use crate::store::{Class, StoreError, Tx, read};
use std::collections::HashMap;
use systole_shared::heartbeat::end::{Terminating, unreadable};
use systole_shared::policy::broadcast::{Member, Part, SET_MEMBERS_MAX, Step, closed, members, step};
use systole_shared::policy::lane::Labels;
use systole_shared::policy::why::{RunnerView, Wanted};
use systole_shared::task::{Outcome, OutcomeKind, TaskSpec, TaskState, Transition};

/// Makes the members of sets that have their place. True: some were made.
pub async fn spread_due(ctx: &Context) -> Result<bool, StoreError> {
    let Some(look) = Look::of(ctx) else {
        return Ok(false);
    };
    let (ended, made) = ctx
        .db
        .write("spread", Class::Api, move |tx| Box::pin(spread(tx, look)))
        .await?;
    after_end(ctx, &ended);
    ctx.wake.changed(made.clone());
    Ok(!made.is_empty())
}

/// How to see which hosts are there.
#[derive(Clone, Copy, Debug)]
struct Look {
    lost_after_ms: i64,
    /// Up to where the database's clock is believed.
    until_ms: i64,
}

impl Look {
    /// `None`: by the clock as it is nobody can be told to be silent.
    fn of(ctx: &Context) -> Option<Self> {
        Some(Self {
            lost_after_ms: ctx.lost_after_ms(),
            until_ms: ctx.clock.until_ms()?,
        })
    }

    /// All runners. `None` when the clock has jumped, and no sample has shown it yet: whoever has not beaten since would look silent,
    /// and lose his part of a broadcast.
    async fn views(self, tx: &mut Tx) -> Result<Option<Vec<RunnerView>>, StoreError> {
        let rows = read::all_runners(tx).await?;
        if rows.iter().any(|row| row.now_ms > self.until_ms) {
            return Ok(None);
        }
        let views = rows.iter().map(|row| fleet::view(row, self.lost_after_ms));
        Ok(Some(views.collect()))
    }
}

fn wanted<'a>(queue: &'a str, require: &'a Labels) -> Wanted<'a> {
    Wanted {
        queue,
        require,
        target: None,
    }
}

async fn spread(tx: &mut Tx, look: Look) -> Result<(Ended, Vec<i64>), StoreError> {
    let heads = sets::lock_due(tx).await?;
    let mut ended = Ended::default();
    let mut made = Vec::new();
    if heads.is_empty() {
        return Ok((ended, made));
    }
    let Some(runners) = look.views(tx).await? else {
        return Ok((ended, made));
    };
    for head in heads {
        match plan(&head, &runners) {
            Ok((_, found)) if found.iter().all(|member| !member.closed.is_empty()) => {
                sets::put_off(tx, head.id).await?
            }
            Ok((spec, found)) => {
                sets::spread(tx, &head, &spec, &found).await?;
                made.push(head.id);
            }
            Err(outcome) => {
                for task in finish::lock_tasks(tx, &[head.id]).await? {
                    let end = End::without_report(task, (Transition::FailWaiting, outcome.clone()));
                    ended.extend(finish::end_tasks(tx, &[end]).await?);
                }
            }
        }
    }
    Ok((ended, made))
}

fn plan(head: &HeadRow, runners: &[RunnerView]) -> Result<(TaskSpec, Vec<Member>), Outcome> {
    let Some(spec) = head.spec() else {
        return Err(unreadable().1);
    };
    let found = members(&wanted(&spec.queue, &spec.require), runners);
    if found.len() > SET_MEMBERS_MAX {
        let message = format!(
            "{} hosts match, and a broadcast has at most {SET_MEMBERS_MAX} members; choose fewer with require",
            found.len()
        );
        return Err(Outcome::new(OutcomeKind::MembersFailed, message));
    }
    Ok((spec, found))
}

/// Lets all sets go on. `look`: whether the hosts of members that wait for them are still there.
pub async fn drive_all(ctx: &Context, look: bool) -> Result<(), StoreError> {
    for id in ctx.db.open_sets().await? {
        let look = if look { Look::of(ctx) } else { None };
        let (ended, held) = ctx
            .db
            .write("drive_set", Class::Api, move |tx| Box::pin(drive(tx, id, look)))
            .await?;
        after_end(ctx, &ended);
        ctx.wake
            .stop(held.iter().map(|held| (held.host.as_str(), held.slot, held.id)));
        ctx.wake.changed(held.iter().map(|held| held.id).collect());
    }
    Ok(())
}

async fn drive(tx: &mut Tx, id: i64, look: Option<Look>) -> Result<(Ended, Vec<Held>), StoreError> {
    let mut ended = Ended::default();
    let Some(set) = sets::lock_open(tx, id).await? else {
        return Ok((ended, Vec::new()));
    };
    let mut parts = sets::parts(tx, id).await?;
    if let Some(look) = look
        && parts.iter().any(|(part, _)| part.state == TaskState::Queued)
        && let Some(runners) = look.views(tx).await?
    {
        let gone = gone(&parts, &runners);
        if !gone.is_empty() {
            give_up(tx, &gone, &mut ended).await?;
            parts = sets::parts(tx, id).await?;
        }
    }
    let parts: Vec<Part> = parts.into_iter().map(|(part, _)| part).collect();
    let next = step(set.task.state()?, set.task.terminating(), set.rules(), &parts);
    let held = carry_out(tx, set, next, &mut ended).await?;
    Ok((ended, held))
}

/// Members that wait for hosts which cannot take them any more: why, and whether they had been begun before.
fn gone(parts: &[(Part, bool)], runners: &[RunnerView]) -> HashMap<i64, (String, bool)> {
    let mut hosts: HashMap<&str, Vec<&RunnerView>> = HashMap::new();
    for runner in runners {
        hosts.entry(runner.id.host.as_str()).or_default().push(runner);
    }
    let mut found = HashMap::new();
    for (part, begun) in parts.iter().filter(|(part, _)| part.state == TaskState::Queued) {
        let slots = hosts.get(part.host.as_str()).map(Vec::as_slice).unwrap_or_default();
        let why = closed(slots);
        if !why.is_empty() {
            found.insert(part.id, (why, *begun));
        }
    }
    found
}

async fn give_up(tx: &mut Tx, gone: &HashMap<i64, (String, bool)>, ended: &mut Ended) -> Result<(), StoreError> {
    let mut ids: Vec<i64> = gone.keys().copied().collect();
    ids.sort_unstable();
    let mut ends = Vec::new();
    for task in finish::lock_tasks(tx, &ids).await? {
        let Some((why, begun)) = gone.get(&task.id) else {
            continue;
        };
        if task.state()? != TaskState::Queued {
            continue;
        }
        let end = if *begun {
            let message = format!("its host cannot take the retry ({why}), and nobody takes its place");
            (
                Transition::FailWaiting,
                Outcome::new(OutcomeKind::QueueTimeout, message),
            )
        } else {
            (Transition::Skip, Outcome::new(OutcomeKind::Skipped, why.clone()))
        };
        ends.push(End::without_report(task, end));
    }
    ended.extend(finish::end_tasks(tx, &ends).await?);
    Ok(())
}

async fn carry_out(tx: &mut Tx, set: OpenSet, next: Step, ended: &mut Ended) -> Result<Vec<Held>, StoreError> {
    ended.admitted.extend(sets::release(tx, &next.release).await?);
    let mut ends = Vec::new();
    for task in finish::lock_tasks(tx, &next.drop).await? {
        if task.state()? == TaskState::Created {
            let outcome = Outcome::new(OutcomeKind::Skipped, next.because.clone());
            ends.push(End::without_report(task, (Transition::Skip, outcome)));
        }
    }
    let mut running = Vec::new();
    for task in finish::lock_tasks(tx, &next.stop).await? {
        match task.state()? {
            TaskState::Created | TaskState::Queued => {
                let outcome = Outcome::new(
                    OutcomeKind::Cancelled,
                    format!("its broadcast {} was ended", set.task.id),
                );
                ends.push(End::without_report(task, (Transition::CancelWaiting, outcome)));
            }
            state if state.is_held() => running.push(task.id),
            _ => {}
        }
    }
    ended.extend(finish::end_tasks(tx, &ends).await?);
    let held = match set.task.terminating() {
        Some(Terminating::Superseded) => admin::supersede_held(tx, &running).await?,
        _ => {
            let by = set.cancelled_by.clone().unwrap_or_default();
            admin::cancel_held(tx, &running, &by, set.cancel_reason.clone()).await?
        }
    };
    if let Some(end) = next.end {
        let end = End::without_report(set.task, end);
        ended.extend(finish::end_tasks(tx, &[end]).await?);
    }
    Ok(held)
}
