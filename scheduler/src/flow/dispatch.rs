//! Giving work to runners whose beats are parked here.

use super::after_end;
use crate::context::Context;
use crate::parked::{Answer, Entry};
use crate::store::beats::{self, RunnerWrite};
use crate::store::claims::{self, ClaimPlan, Claimed, Offer, Run};
use crate::store::{Class, StoreError, Tx};
use crate::task_log;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Runners of the first claim after a wake-up; a claim that fed all its runners is followed by a larger one.
const CLAIM_MIN: usize = 8;
const CLAIM_MAX: usize = 256;

/// Waits to be woken, then claims as long as there is work and there are runners.
pub async fn run(ctx: Arc<Context>) {
    loop {
        tokio::select! {
            () = ctx.wake.dispatch.notified() => {}
            () = ctx.draining.cancelled() => return,
        }
        let mut size = CLAIM_MIN;
        while let Some(progress) = round(&ctx, size).await {
            match progress {
                Progress::AllFed => size = (size * 4).min(CLAIM_MAX),
                Progress::Some => {}
                Progress::None => break,
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// No free runner was left without a task, so there may be more.
    AllFed,
    /// Something was given, or a lane turned out to be empty: others may be next.
    Some,
    None,
}

/// One claim. `None`: nothing to do.
async fn round(ctx: &Arc<Context>, size: usize) -> Option<Progress> {
    let (groups, targets) = ctx.lanes.awake();
    if groups.is_empty() && targets.is_empty() {
        return None;
    }
    let entries = ctx.parked.take_idle(&groups, &targets, size);
    if entries.is_empty() {
        return None;
    }
    let plan = Arc::new(ctx.lanes.plan(
        entries.iter().map(|entry| entry.group),
        entries.iter().map(|entry| entry.key.0.as_str()),
    ));
    let wanted: Arc<Vec<Wanted>> = Arc::new(entries.iter().map(Wanted::from).collect());
    let plan_in = Arc::clone(&plan);
    let began = Instant::now();
    let done = ctx
        .db
        .write("dispatch", Class::Beats, move |tx| {
            let (wanted, plan) = (Arc::clone(&wanted), Arc::clone(&plan_in));
            Box::pin(async move { give(tx, &wanted, &plan).await })
        })
        .await;
    match done {
        Ok(given) => {
            ctx.health.committed();
            ctx.lanes.learn(&plan, &given.claimed);
            task_log::dispatched(&given.claimed.runs);
            ctx.metrics.dispatched(&given.claimed.runs, false);
            ctx.wake
                .changed(given.claimed.runs.iter().map(|run| run.task_id).collect());
            after_end(ctx, &given.claimed.ended);
            // One that cannot be read took the place of another: there may be more.
            let ended = given.claimed.ended.ids.len();
            let (fed, unfed) = hand_out(ctx, entries, given);
            ctx.metrics.claimed(began.elapsed(), fed, unfed);
            Some(if ended > 0 {
                Progress::Some
            } else if fed > 0 && unfed == 0 {
                Progress::AllFed
            } else if fed > 0 || unfed == 0 || ctx.lanes.awake().0.len() < groups.len() {
                Progress::Some
            } else {
                Progress::None
            })
        }
        Err(error) => {
            tracing::warn!(%error, "dispatch");
            ctx.parked.put_back(entries, true);
            None // The poll tries again.
        }
    }
}

/// A parked runner as it was when its beat was answered by parking.
#[derive(Debug)]
struct Wanted {
    host: String,
    slot: i64,
    start_no: i64,
    seq: i64,
    boot_id: Arc<str>,
    group: usize,
}

impl From<&Entry> for Wanted {
    fn from(entry: &Entry) -> Self {
        Self {
            host: entry.key.0.clone(),
            slot: entry.key.1,
            start_no: entry.start_no,
            seq: entry.seq,
            boot_id: Arc::clone(&entry.boot_id),
            group: entry.group,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// Free, but nothing was there for it.
    Free,
    /// Cordoned or faulty: set aside until it is offered again, or beats anew.
    Aside,
    /// Its row moved on: the runner has given this beat up.
    Gone,
}

#[derive(Debug)]
struct Given {
    claimed: Claimed,
    stands: HashMap<(String, i64), Stand>,
}

/// The transaction: wins the runner rows as their parked beats left them, and claims for those.
async fn give(tx: &mut Tx, wanted: &[Wanted], plan: &ClaimPlan) -> Result<Given, StoreError> {
    let rows = beats::lock_runners(tx, wanted.iter().map(|w| (w.host.clone(), w.slot))).await?;
    let mut stands = HashMap::new();
    let mut offers = Vec::new();
    for w in wanted {
        let key = (w.host.clone(), w.slot);
        let stand =
            match rows.get(&key) {
                Some(row)
                    if row.start_no == w.start_no && row.seq == w.seq && row.task_id.is_none() && !row.leaving =>
                {
                    if row.closed { Stand::Aside } else { Stand::Free }
                }
                _ => Stand::Gone,
            };
        if stand == Stand::Free {
            offers.push(Offer {
                host: w.host.clone(),
                slot: w.slot,
                start_no: w.start_no,
                group: w.group,
            });
        }
        stands.insert(key, stand);
    }
    let claimed = if offers.is_empty() {
        Claimed::default()
    } else {
        claims::claim(tx, &offers, plan).await?
    };
    let by_key: HashMap<(&str, i64), &Wanted> = wanted.iter().map(|w| ((w.host.as_str(), w.slot), w)).collect();
    let writes: Vec<RunnerWrite> = claimed
        .runs
        .iter()
        .filter_map(|run| by_key.get(&(run.host.as_str(), run.slot)).map(|w| (run, w)))
        .map(|(run, w)| RunnerWrite {
            host: w.host.clone(),
            slot: w.slot,
            start_no: w.start_no,
            seq: w.seq,
            leaving: 0,
            task_id: Some(run.task_id),
            held_boot: Some(w.boot_id.to_string()),
            redeliveries: 0,
        })
        .collect();
    beats::give_runners(tx, &writes).await?;
    Ok(Given { claimed, stands })
}

/// Answers those that got a task; the others go back. Returns how many got one, and how many free ones did not.
fn hand_out(ctx: &Context, entries: Vec<Entry>, given: Given) -> (usize, usize) {
    let mut runs: HashMap<(String, i64), Run> = given
        .claimed
        .runs
        .into_iter()
        .map(|run| ((run.host.clone(), run.slot), run))
        .collect();
    let (mut free, mut aside) = (Vec::new(), Vec::new());
    let mut fed = 0;
    for entry in entries {
        match (runs.remove(&entry.key), given.stands.get(&entry.key)) {
            (Some(run), _) => {
                fed += 1;
                entry.answer(Answer::Run(Box::new(run), 0));
            }
            (None, Some(Stand::Free)) => free.push(entry),
            (None, Some(Stand::Aside)) => aside.push(entry),
            (None, Some(Stand::Gone) | None) => entry.answer(Answer::GoOn(0)),
        }
    }
    let unfed = free.len();
    ctx.parked.put_back(free, true);
    ctx.parked.put_back(aside, false);
    (fed, unfed)
}
