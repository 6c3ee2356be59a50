//! Claiming: the dispatch right is the lock of the task's row.
//!
//! One scan of a lane locks as many rows as there are runners in a group with the same lanes; they are
//! paired by position, and RUN_NEW is built from the rows that the guarded UPDATE returned, from nothing
//! else. (A lateral join with SKIP LOCKED would pair one task with three runners: a statement does not
//! skip its own locks.)
//!
//! Each scan names the generation of what its plan knows of freezes: with an older one it finds nothing.

use super::db::{Arg, Tx, batch};
use super::error::StoreError;
use super::finish::{self, End, Ended};
use super::sql::Sql;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systole_shared::heartbeat::end;
use systole_shared::task::TaskSpec;

macro_rules! scan_lane {
    ($but:literal) => {
        concat!(
            "SELECT id, eligible_at_ms FROM task WHERE status = 2 AND target_host IS NULL AND lane_id = $1 AND eligible_at_ms >= $2 \
               AND (SELECT generation FROM freeze_state WHERE id = 1) = $4 ",
            $but,
            "ORDER BY eligible_at_ms, id LIMIT $3 {skip_locked}"
        )
    };
}
macro_rules! scan_targets {
    ($but:literal) => {
        concat!(
            "SELECT id, target_host, target_slot, lane_id FROM task WHERE status = 2 AND target_host IS NOT NULL \
               AND target_host IN (SELECT e.value->>'host' FROM {each:$1}) \
               AND (target_slot IS NULL OR target_host || '/' || CAST(target_slot AS TEXT) IN (SELECT e.value->>'runner' FROM {each:$1})) \
               AND lane_id {among:$2} AND (SELECT generation FROM freeze_state WHERE id = 1) = $4 ",
            $but,
            "ORDER BY priority DESC, eligible_at_ms, id LIMIT $3 {skip_locked}"
        )
    };
}

static SCAN_LANE: Sql = Sql::new("scan_lane", scan_lane!(""));
static SCAN_TARGETS: Sql = Sql::new("scan_targets", scan_targets!(""));
/// While tags are frozen (`$5`): whoever pays for looking at the tags of each task pays only then.
static SCAN_LANE_BUT_TAGS: Sql = Sql::new(
    "scan_lane_but_tags",
    scan_lane!(
        "AND NOT EXISTS (SELECT 1 FROM task_tag AS g WHERE {is:g.task_id,task.id} AND g.tag IN (SELECT e.value->>'tag' FROM {each:$5})) "
    ),
);
static SCAN_TARGETS_BUT_TAGS: Sql = Sql::new(
    "scan_targets_but_tags",
    scan_targets!(
        "AND NOT EXISTS (SELECT 1 FROM task_tag AS g WHERE {is:g.task_id,task.id} AND g.tag IN (SELECT e.value->>'tag' FROM {each:$5})) "
    ),
);
static DISPATCH: Sql = Sql::new(
    "dispatch",
    "UPDATE task SET status = 3, host = x.host, slot = x.slot, start_no = x.start_no, dispatched_at_ms = {now} \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, e.value->>'host' AS host, CAST(e.value->>'slot' AS BIGINT) AS slot, \
       CAST(e.value->>'start_no' AS BIGINT) AS start_no FROM {each:$1}) AS x \
     WHERE {is:task.id,x.id} AND task.status + 0 = 2 \
     RETURNING task.id, task.host, task.slot, task.spec, task.attempt, task.root_id, task.eligible_at_ms, \
       task.dispatched_at_ms",
);
/// [`SCAN_LANE`] and [`DISPATCH`] in one, for runners that are served by one lane: rows and runners are paired by their
/// numbers.
static TAKE_LANE: Sql = Sql::new(
    "take_lane",
    "UPDATE task SET status = 3, host = x.host, slot = x.slot, start_no = x.start_no, dispatched_at_ms = {now} \
     FROM (SELECT s.id, e.value->>'host' AS host, CAST(e.value->>'slot' AS BIGINT) AS slot, \
         CAST(e.value->>'start_no' AS BIGINT) AS start_no \
       FROM (SELECT q.id, row_number() OVER (ORDER BY q.eligible_at_ms, q.id) AS n FROM ( \
           SELECT id, eligible_at_ms FROM task WHERE status = 2 AND target_host IS NULL AND lane_id = $1 AND eligible_at_ms >= $2 \
             AND (SELECT generation FROM freeze_state WHERE id = 1) = $5 \
           ORDER BY eligible_at_ms, id LIMIT $3 {skip_locked}) AS q) AS s \
       JOIN {each:$4} ON CAST(e.value->>'n' AS BIGINT) = s.n) AS x \
     WHERE {is:task.id,x.id} AND task.status + 0 = 2 \
     RETURNING task.id, task.host, task.slot, task.spec, task.attempt, task.root_id, task.eligible_at_ms, \
       task.dispatched_at_ms",
);
static RUN_AGAIN: Sql = Sql::new(
    "run_again",
    "UPDATE task SET start_no = x.start_no \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, CAST(e.value->>'start_no' AS BIGINT) AS start_no FROM {each:$1}) AS x \
     WHERE {is:task.id,x.id} AND task.status + 0 = 3 \
     RETURNING task.id, task.host, task.slot, task.spec, task.attempt, task.root_id, task.eligible_at_ms, \
       task.dispatched_at_ms",
);

pub static STATEMENTS: &[&Sql] = &[
    &SCAN_LANE,
    &SCAN_TARGETS,
    &SCAN_LANE_BUT_TAGS,
    &SCAN_TARGETS_BUT_TAGS,
    &DISPATCH,
    &TAKE_LANE,
    &RUN_AGAIN,
];

/// Offers that are served by one statement. It compares each row with each offer, so many are cheaper with two.
const TAKEN_MAX: usize = 32;

/// A runner that is free, locked by the caller's transaction.
#[derive(Clone, Debug)]
pub struct Offer {
    pub host: String,
    pub slot: i64,
    pub start_no: i64,
    /// Runners with the same queues and labels.
    pub group: usize,
}

/// One lane to scan, as the memory of this replica knows it.
#[derive(Clone, Debug)]
pub struct LanePlan {
    pub lane_id: i64,
    pub priority: u32,
    /// Start of the scan: nothing QUEUED lies before it (a hint; the slow poll checks).
    pub from_ms: i64,
    /// To tell whether the lane was woken again meanwhile.
    pub wake_no: u64,
}

/// What a claim needs to know of the lanes.
#[derive(Clone, Debug, Default)]
pub struct ClaimPlan {
    /// Per group, by priority.
    pub lanes: HashMap<usize, Vec<LanePlan>>,
    /// All lanes that a group serves, for targeted tasks.
    pub serves: HashMap<usize, HashSet<i64>>,
    /// Hosts that tasks are aimed at, with the number of their last wake-up.
    pub targets: HashMap<String, u64>,
    /// By age instead of priority, so that low priorities do not starve.
    pub by_age: bool,
    /// Of what is known to be frozen. Lanes that are frozen as a whole are not in the plan.
    pub generation: i64,
    /// Tasks with these tags are passed over.
    pub frozen_tags: Arc<[String]>,
}

impl ClaimPlan {
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.lanes.values().all(Vec::is_empty)
    }
}

/// A task given to a runner.
#[derive(Clone, Debug)]
pub struct Run {
    pub task_id: i64,
    pub host: String,
    pub slot: i64,
    pub spec: TaskSpec,
    pub attempt: i64,
    pub root_id: i64,
    /// For how long it was QUEUED.
    pub waited_ms: i64,
}

/// What a scan saw of a lane.
#[derive(Clone, Debug)]
pub struct LaneSeen {
    pub lane_id: i64,
    pub wake_no: u64,
    /// Key of the first row, if there was one.
    pub first_ms: Option<i64>,
    /// Fewer rows than asked for.
    pub exhausted: bool,
}

#[derive(Debug, Default)]
pub struct Claimed {
    pub runs: Vec<Run>,
    pub seen: Vec<LaneSeen>,
    /// Hosts without further targeted tasks.
    pub targets_done: Vec<String>,
    /// Tasks that cannot be read: ended in place of being given.
    pub ended: Ended,
}

#[derive(sqlx::FromRow)]
struct Scanned {
    id: i64,
    eligible_at_ms: i64,
}

#[derive(sqlx::FromRow)]
struct Targeted {
    id: i64,
    target_host: String,
    target_slot: Option<i64>,
    lane_id: i64,
}

#[derive(sqlx::FromRow)]
struct Dispatched {
    id: i64,
    host: String,
    slot: i64,
    spec: String,
    attempt: i64,
    root_id: Option<i64>,
    eligible_at_ms: Option<i64>,
    dispatched_at_ms: Option<i64>,
}

impl Dispatched {
    /// `Err`: the task whose specification cannot be read.
    fn parse(self) -> Result<Run, i64> {
        let spec = serde_json::from_str(&self.spec).map_err(|_| self.id)?;
        Ok(Run {
            task_id: self.id,
            host: self.host,
            slot: self.slot,
            spec,
            attempt: self.attempt,
            root_id: self.root_id.unwrap_or(self.id),
            waited_ms: match (self.eligible_at_ms, self.dispatched_at_ms) {
                (Some(eligible), Some(dispatched)) => dispatched - eligible,
                _ => 0,
            },
        })
    }
}

#[derive(Serialize)]
struct PairJson<'a> {
    id: i64,
    host: &'a str,
    slot: i64,
    start_no: i64,
}

#[derive(Serialize)]
struct OfferJson<'a> {
    n: usize,
    host: &'a str,
    slot: i64,
    start_no: i64,
}

#[derive(Serialize)]
struct FreeJson<'a> {
    host: &'a str,
    runner: String,
}

/// Gives tasks to free runners. The caller has locked their rows and writes `task_id` into them.
pub async fn claim(tx: &mut Tx, offers: &[Offer], plan: &ClaimPlan) -> Result<Claimed, StoreError> {
    let mut claimed = Claimed::default();
    let mut pairs: Vec<PairJson<'_>> = Vec::new();
    let mut free: Vec<&Offer> = offers.iter().collect();
    if !plan.targets.is_empty() {
        claim_targeted(tx, plan, &mut free, &mut pairs, &mut claimed).await?;
    }
    let mut groups: HashMap<usize, Vec<&Offer>> = HashMap::new();
    for offer in free {
        groups.entry(offer.group).or_default().push(offer);
    }
    if pairs.is_empty()
        && groups.len() == 1
        && let Some((group, offers)) = groups.iter().next()
        && let Some([lane]) = plan.lanes.get(group).map(Vec::as_slice)
        && offers.len() <= TAKEN_MAX
        && plan.frozen_tags.is_empty()
    {
        take_lane(tx, plan, lane, offers, &mut claimed).await?;
        return Ok(claimed);
    }
    // Two groups may serve one lane: a row that this statement sequence has picked is not picked again.
    let mut taken: HashSet<i64> = HashSet::new();
    for (group, offers) in groups {
        let Some(lanes) = plan.lanes.get(&group).filter(|lanes| !lanes.is_empty()) else {
            continue;
        };
        let picked = scan(tx, plan, lanes, offers.len(), &mut taken, &mut claimed.seen).await?;
        pairs.extend(picked.into_iter().zip(&offers).map(|(id, offer)| PairJson {
            id,
            host: &offer.host,
            slot: offer.slot,
            start_no: offer.start_no,
        }));
    }
    if !pairs.is_empty() {
        let rows: Vec<Dispatched> = tx.all(&DISPATCH, vec![batch(&pairs)?]).await?;
        (claimed.runs, claimed.ended) = runs(tx, rows).await?;
    }
    Ok(claimed)
}

/// What is given of the dispatched rows. One that cannot be read is ended, by name: it would be the head of its lane for
/// ever, and of each batch that it is in.
async fn runs(tx: &mut Tx, rows: Vec<Dispatched>) -> Result<(Vec<Run>, Ended), StoreError> {
    let mut unreadable = Vec::new();
    let mut runs = Vec::with_capacity(rows.len());
    for row in rows {
        match row.parse() {
            Ok(run) => runs.push(run),
            Err(id) => unreadable.push(id),
        }
    }
    if unreadable.is_empty() {
        return Ok((runs, Ended::default()));
    }
    tracing::error!(task_ids = ?unreadable, "what is stored of these tasks cannot be read: they are ended as FAILED");
    let ends: Vec<End> = finish::lock_tasks(tx, &unreadable)
        .await?
        .into_iter()
        .map(|task| End::without_report(task, end::unreadable()))
        .collect();
    Ok((runs, finish::end_tasks(tx, &ends).await?))
}

async fn take_lane(
    tx: &mut Tx,
    plan: &ClaimPlan,
    lane: &LanePlan,
    offers: &[&Offer],
    claimed: &mut Claimed,
) -> Result<(), StoreError> {
    let json: Vec<OfferJson<'_>> = (1..)
        .zip(offers)
        .map(|(n, offer)| OfferJson {
            n,
            host: &offer.host,
            slot: offer.slot,
            start_no: offer.start_no,
        })
        .collect();
    let limit = i64::try_from(offers.len()).unwrap_or(i64::MAX);
    let args = vec![
        lane.lane_id.into(),
        lane.from_ms.into(),
        limit.into(),
        batch(&json)?,
        plan.generation.into(),
    ];
    let rows: Vec<Dispatched> = tx.all(&TAKE_LANE, args).await?;
    claimed.seen.push(LaneSeen {
        lane_id: lane.lane_id,
        wake_no: lane.wake_no,
        first_ms: rows.iter().filter_map(|row| row.eligible_at_ms).min(),
        exhausted: rows.len() < offers.len(),
    });
    (claimed.runs, claimed.ended) = runs(tx, rows).await?;
    Ok(())
}

#[derive(Serialize)]
struct TagJson<'a> {
    tag: &'a str,
}

/// Rows of a scan that passes over what is frozen by its tags.
async fn unfrozen<R: super::db::Row>(
    tx: &mut Tx,
    plan: &ClaimPlan,
    [all, but_tags]: [&'static Sql; 2],
    mut args: Vec<Arg>,
) -> Result<Vec<R>, StoreError> {
    args.push(plan.generation.into());
    if plan.frozen_tags.is_empty() {
        return tx.all(all, args).await;
    }
    let tags: Vec<TagJson<'_>> = plan.frozen_tags.iter().map(|tag| TagJson { tag }).collect();
    args.push(batch(&tags)?);
    tx.all(but_tags, args).await
}

async fn scan(
    tx: &mut Tx,
    plan: &ClaimPlan,
    lanes: &[LanePlan],
    want: usize,
    taken: &mut HashSet<i64>,
    seen: &mut Vec<LaneSeen>,
) -> Result<Vec<i64>, StoreError> {
    let by_age = plan.by_age;
    let mut found: Vec<(u32, i64, i64, i64)> = Vec::new();
    let first_seen = seen.len();
    let limit = want + taken.len();
    for lane in lanes {
        // Strict priority: a lower one cannot win when the higher ones fill all runners.
        let higher = found
            .iter()
            .filter(|(priority, _, _, _)| *priority > lane.priority)
            .count();
        if !by_age && higher >= want {
            break;
        }
        let args = vec![
            lane.lane_id.into(),
            lane.from_ms.into(),
            i64::try_from(limit).unwrap_or(i64::MAX).into(),
        ];
        let rows: Vec<Scanned> = unfrozen(tx, plan, [&SCAN_LANE, &SCAN_LANE_BUT_TAGS], args).await?;
        seen.push(LaneSeen {
            lane_id: lane.lane_id,
            wake_no: lane.wake_no,
            first_ms: rows.first().map(|row| row.eligible_at_ms),
            exhausted: rows.len() < limit,
        });
        found.extend(
            rows.into_iter()
                .filter(|row| !taken.contains(&row.id))
                .map(|row| (lane.priority, row.eligible_at_ms, row.id, lane.lane_id)),
        );
    }
    if by_age {
        found.sort_by_key(|&(_, eligible, id, _)| (eligible, id));
    } else {
        found.sort_by_key(|&(priority, eligible, id, _)| (std::cmp::Reverse(priority), eligible, id));
    }
    // A lane that found rows which others outranked has work left, however short its scan was.
    let outranked: HashSet<i64> = found.iter().skip(want).map(|(_, _, _, lane)| *lane).collect();
    for lane in &mut seen[first_seen..] {
        lane.exhausted &= !outranked.contains(&lane.lane_id);
    }
    found.truncate(want);
    taken.extend(found.iter().map(|(_, _, id, _)| *id));
    Ok(found.into_iter().map(|(_, _, id, _)| id).collect())
}

async fn claim_targeted<'a>(
    tx: &mut Tx,
    plan: &ClaimPlan,
    free: &mut Vec<&'a Offer>,
    pairs: &mut Vec<PairJson<'a>>,
    claimed: &mut Claimed,
) -> Result<(), StoreError> {
    let aimed: Vec<&&Offer> = free
        .iter()
        .filter(|offer| plan.targets.contains_key(offer.host.as_str()))
        .collect();
    if aimed.is_empty() {
        return Ok(());
    }
    let hosts: HashSet<&str> = aimed.iter().map(|offer| offer.host.as_str()).collect();
    let json: Vec<FreeJson<'_>> = aimed
        .iter()
        .map(|offer| FreeJson {
            host: &offer.host,
            runner: format!("{}/{}", offer.host, offer.slot),
        })
        .collect();
    let lanes: HashSet<i64> = aimed
        .iter()
        .filter_map(|offer| plan.serves.get(&offer.group))
        .flatten()
        .copied()
        .collect();
    let lanes: Vec<i64> = lanes.into_iter().collect();
    // Twice as many as there are free runners: some may fit the host and not the slot that is left.
    let limit = i64::try_from(aimed.len() * 2).unwrap_or(i64::MAX);
    let args = vec![batch(&json)?, batch(&lanes)?, limit.into()];
    let rows: Vec<Targeted> = unfrozen(tx, plan, [&SCAN_TARGETS, &SCAN_TARGETS_BUT_TAGS], args).await?;
    let mut left: HashSet<String> = HashSet::new();
    let complete = i64::try_from(rows.len()).unwrap_or(i64::MAX) < limit;
    for row in rows {
        let fits = free.iter().position(|offer| {
            offer.host == row.target_host
                && row.target_slot.is_none_or(|slot| slot == offer.slot)
                && plan
                    .serves
                    .get(&offer.group)
                    .is_some_and(|lanes| lanes.contains(&row.lane_id))
        });
        match fits {
            Some(at) => {
                let offer = free.remove(at);
                pairs.push(PairJson {
                    id: row.id,
                    host: &offer.host,
                    slot: offer.slot,
                    start_no: offer.start_no,
                });
            }
            None => {
                left.insert(row.target_host);
            }
        }
    }
    if complete {
        claimed.targets_done = hosts
            .into_iter()
            .filter(|host| !left.contains(*host))
            .map(str::to_owned)
            .collect();
    }
    Ok(())
}

/// A task to give again, and the start of the runner process that gets it now.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Again {
    pub id: i64,
    pub start_no: i64,
}

/// The same RUN_NEW again, for tasks that are still DISPATCHED. The task belongs to the process that is
/// given it now: its result will name that start.
pub async fn run_again(tx: &mut Tx, again: &[Again]) -> Result<(Vec<Run>, Ended), StoreError> {
    if again.is_empty() {
        return Ok(Default::default());
    }
    let rows: Vec<Dispatched> = tx.all(&RUN_AGAIN, vec![batch(again)?]).await?;
    runs(tx, rows).await
}
