//! New runs of jobs: their verdicts, their tasks and their places, for many at once.

use super::super::db::{Tx, batch};
use super::super::error::StoreError;
use super::super::finish::{self, End, Ended};
use super::super::sql::Sql;
use super::super::submit::{self, NewTask};
use super::health;
use super::ledger::{self, Entry};
use super::slots::{self, Places};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systole_shared::job::Job;
use systole_shared::policy::blocking::{Turn, turn};
use systole_shared::policy::broadcast::Rules;
use systole_shared::task::{Outcome, OutcomeKind, TaskSpec, Transition};
use systole_shared::trigger::occurrence::SkipReason;

static MARK_RUNS: Sql = Sql::new(
    "mark_runs",
    "UPDATE task SET job_id = x.job_id, trigger_id = x.trigger_id, scheduled_ms = x.scheduled_ms, max_retries = x.max_retries, \
       waiting_ms = CASE WHEN x.waits = 1 THEN {now} END, status = CASE WHEN x.waits = 1 THEN 1 ELSE task.status END, \
       run_at_ms = CASE WHEN x.waits = 1 THEN COALESCE(task.run_at_ms, {now}) ELSE task.run_at_ms END, \
       eligible_at_ms = CASE WHEN x.waits = 1 THEN NULL ELSE task.eligible_at_ms END \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, CAST(e.value->>'job_id' AS BIGINT) AS job_id, \
       CAST(e.value->>'trigger_id' AS BIGINT) AS trigger_id, CAST(e.value->>'scheduled_ms' AS BIGINT) AS scheduled_ms, \
       CAST(e.value->>'max_retries' AS BIGINT) AS max_retries, CAST(e.value->>'waits' AS BIGINT) AS waits FROM {each:$1}) AS x \
     WHERE {is:task.id,x.id}",
);

/// For runs whose host the scheduler chooses: nobody takes them before that.
static MARK_ROUTED: Sql = Sql::new(
    "mark_routed",
    "UPDATE task SET route = x.policy, route_key = x.key, target_host = '', routed_ms = 0, set_size = x.set_size, \
       set_parallel = x.parallel, set_stop_after = x.stop_after \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, e.value->>'policy' AS policy, e.value->>'key' AS key, \
       CAST(e.value->>'set_size' AS BIGINT) AS set_size, CAST(e.value->>'parallel' AS BIGINT) AS parallel, \
       CAST(e.value->>'stop_after' AS BIGINT) AS stop_after FROM {each:$1}) AS x \
     WHERE {is:task.id,x.id}",
);

pub static STATEMENTS: &[&Sql] = &[&MARK_RUNS, &MARK_ROUTED];

/// A choice of hosts that is to be made for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routed {
    policy: &'static str,
    key: String,
    broadcast: bool,
    rules: Rules,
}

pub fn routed(job: &Job, task: &TaskSpec) -> Option<Routed> {
    let routing = job.route.as_ref()?;
    Some(Routed {
        policy: routing.policy,
        key: routing.key_of(task),
        broadcast: routing.is_broadcast(),
        rules: routing.rules,
    })
}

#[derive(Serialize)]
struct RoutedJson<'a> {
    id: i64,
    policy: &'a str,
    key: &'a str,
    /// 0: a broadcast whose members are not made yet.
    set_size: Option<i64>,
    parallel: Option<u32>,
    stop_after: Option<u32>,
}

/// Who submitted what nobody asked for; one word for all, so that they are stored by one statement.
pub const BY_TRIGGER: &str = "trigger";

/// A run to be made.
#[derive(Clone, Debug)]
pub struct Wish {
    pub job_id: i64,
    pub spec: Arc<TaskSpec>,
    pub max_retries: u32,
    pub lane_id: i64,
    /// `None`: whoever comes first takes it, or the one that `spec` names.
    pub route: Option<Routed>,
    /// `None`: somebody asked for it.
    pub trigger_id: Option<i64>,
    pub trigger_name: String,
    pub scheduled_ms: i64,
    /// What made it: `schedule`, `misfire`, `manual` or `after`.
    pub source: &'static str,
    pub parent_root: i64,
    pub by: Arc<str>,
    pub why: Option<Arc<str>>,
}

/// What became of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launched {
    Queued(i64),
    Waiting(i64),
    /// It does not run; the chain that was in its way, if there was one.
    Skipped(SkipReason, Option<i64>),
    /// Its slot had a verdict before.
    Recorded,
    /// Its job is gone.
    Gone,
}

impl Launched {
    pub fn task_id(&self) -> Option<i64> {
        match self {
            Self::Queued(id) | Self::Waiting(id) => Some(*id),
            Self::Skipped(..) | Self::Recorded | Self::Gone => None,
        }
    }
}

#[derive(Serialize)]
struct MarkJson {
    id: i64,
    job_id: i64,
    trigger_id: Option<i64>,
    scheduled_ms: i64,
    max_retries: u32,
    waits: i64,
}

fn entry(wish: &Wish, launched: &Launched) -> Entry {
    let (verdict, reason, task_id, blocked_by) = match launched {
        Launched::Queued(id) | Launched::Waiting(id) => ("fired", wish.source, Some(*id), None),
        Launched::Skipped(reason, by) => ("skipped", reason.name(), None, *by),
        Launched::Recorded | Launched::Gone => ("skipped", "", None, None),
    };
    Entry {
        job_id: wish.job_id,
        trigger_id: wish.trigger_id,
        trigger_name: wish.trigger_name.clone(),
        scheduled_ms: wish.scheduled_ms,
        until_ms: wish.scheduled_ms,
        fires: 1,
        parent_root: wish.parent_root,
        verdict,
        reason,
        into_ms: None,
        task_id,
        blocked_by,
        misfired: i64::from(wish.source == "misfire"),
    }
}

/// Makes runs, in their order, by the policies of their jobs, which `places` has locked. `record` false: a run that is
/// refused leaves no trace (somebody asked, and is told). What is to be told after the commit is added to `ended`.
pub async fn launch(
    tx: &mut Tx,
    places: &mut Places,
    wishes: &[Wish],
    record_refused: bool,
    ended: &mut Ended,
) -> Result<Vec<Launched>, StoreError> {
    if wishes.is_empty() {
        return Ok(Vec::new());
    }
    let ids = submit::next_ids(tx, wishes.len()).await?;
    let mut launched: Vec<Launched> = Vec::with_capacity(wishes.len());
    // Of jobs with `cover_early`: what waited before this call is dropped.
    let mut covering: HashMap<i64, i64> = HashMap::new();
    for (wish, &id) in wishes.iter().zip(&ids) {
        let Some(job) = places.jobs.get(&wish.job_id).cloned() else {
            launched.push(Launched::Gone);
            continue;
        };
        let what = match turn(job.blocking(), job.max_waiting(), places.load(&job)) {
            Turn::Start => {
                places.take(&job, id);
                Launched::Queued(id)
            }
            Turn::Wait => {
                *places.waiting.entry(job.id).or_default() += 1;
                Launched::Waiting(id)
            }
            Turn::Cover => {
                if covering.insert(job.id, id).is_some() {
                    cover_own(wishes, &mut launched, job.id, id);
                }
                places.waiting.insert(job.id, 1);
                Launched::Waiting(id)
            }
            Turn::Skip(reason) => Launched::Skipped(reason, places.roots(&job).first().copied()),
        };
        launched.push(what);
    }
    record(tx, places, wishes, &mut launched, record_refused, ended).await?;
    places.keep_only(&launched.iter().filter_map(Launched::task_id).collect(), &ids);
    put_tasks(tx, wishes, &launched).await?;
    places.write(tx).await?;
    for (job_id, root) in covering {
        cover(tx, places, job_id, root, ended).await?;
    }
    for (wish, what) in wishes.iter().zip(&launched) {
        if let Launched::Queued(id) = what {
            ended.admitted.push(slots::Admitted {
                id: *id,
                status: if wish.spec.run_at_ms.is_some() { 1 } else { 2 },
                lane_id: wish.lane_id,
                target_host: match (&wish.route, &wish.spec.target) {
                    (Some(_), _) => Some(String::new()),
                    (None, target) => target.as_ref().map(|target| target.host.clone()),
                },
            });
        }
    }
    Ok(launched)
}

/// A run of the same call that only waits is covered before it is stored.
fn cover_own(wishes: &[Wish], launched: &mut [Launched], job_id: i64, by: i64) {
    for (wish, what) in wishes.iter().zip(launched) {
        if wish.job_id == job_id && matches!(what, Launched::Waiting(_)) {
            *what = Launched::Skipped(SkipReason::Discarded, Some(by));
        }
    }
}

/// Writes the verdicts. A slot that had one before is not fired again.
async fn record(
    tx: &mut Tx,
    places: &Places,
    wishes: &[Wish],
    launched: &mut [Launched],
    refused: bool,
    ended: &mut Ended,
) -> Result<(), StoreError> {
    let wanted: Vec<usize> = (0..wishes.len())
        .filter(|&index| match launched[index] {
            Launched::Gone | Launched::Recorded => false,
            Launched::Skipped(..) => refused,
            Launched::Queued(_) | Launched::Waiting(_) => true,
        })
        .collect();
    let entries: Vec<Entry> = wanted
        .iter()
        .map(|&index| entry(&wishes[index], &launched[index]))
        .collect();
    let written = ledger::put(tx, &entries).await?;
    for (&index, written) in wanted.iter().zip(&written) {
        if !written {
            launched[index] = Launched::Recorded;
        }
    }
    let new = entries.iter().zip(&written).filter(|(_, written)| **written);
    health::after_verdicts(tx, new.map(|(entry, _)| entry), |id| places.jobs.get(&id), ended).await
}

pub(super) async fn put_tasks(tx: &mut Tx, wishes: &[Wish], launched: &[Launched]) -> Result<(), StoreError> {
    let mut tasks = Vec::new();
    let mut ids = Vec::new();
    let mut marks = Vec::new();
    let mut routed = Vec::new();
    for (wish, what) in wishes.iter().zip(launched) {
        let Some(id) = what.task_id() else { continue };
        ids.push(id);
        tasks.push(NewTask {
            spec: Arc::clone(&wish.spec),
            lane_id: wish.lane_id,
            key: None,
            submitted_by: Arc::clone(&wish.by),
            reason: wish.why.clone(),
        });
        routed.extend(wish.route.as_ref().map(|route| RoutedJson {
            id,
            policy: route.policy,
            key: &route.key,
            set_size: route.broadcast.then_some(0),
            parallel: route.rules.max_parallel,
            stop_after: route.rules.stop_after_failures,
        }));
        marks.push(MarkJson {
            id,
            job_id: wish.job_id,
            trigger_id: wish.trigger_id,
            scheduled_ms: wish.scheduled_ms,
            max_retries: wish.max_retries,
            waits: i64::from(matches!(what, Launched::Waiting(_))),
        });
    }
    if tasks.is_empty() {
        return Ok(());
    }
    submit::insert_new(tx, &tasks, &ids).await?;
    tx.exec(&MARK_RUNS, vec![batch(&marks)?]).await?;
    if !routed.is_empty() {
        tx.exec(&MARK_ROUTED, vec![batch(&routed)?]).await?;
    }
    Ok(())
}

/// A newer run takes the place of what waits; what runs is ended, which `ended.supersede` asks for.
async fn cover(tx: &mut Tx, places: &Places, job_id: i64, by: i64, ended: &mut Ended) -> Result<(), StoreError> {
    let waiting = slots::lock_to_drop(tx, job_id).await?;
    let dropped: Vec<i64> = waiting.iter().map(|task| task.id).filter(|&id| id != by).collect();
    let verdicts: Vec<Entry> = waiting
        .iter()
        .filter(|task| task.id != by)
        .map(|task| dropped_entry(job_id, task.scheduled_ms.unwrap_or(0), by))
        .collect();
    let ends: Vec<End> = waiting
        .into_iter()
        .filter(|task| task.id != by)
        .map(|task| {
            drop_task(
                task,
                &format!("a newer run of the job ({by}) took its place before it started"),
            )
        })
        .collect();
    ended.extend(finish::end_without_settling(tx, &ends).await?);
    ledger::discard(tx, job_id, &dropped, by).await?;
    health::after_verdicts(tx, verdicts.iter(), |id| places.jobs.get(&id), ended).await?;
    if let Some(job) = places.jobs.get(&job_id) {
        ended
            .supersede
            .extend(places.roots(job).into_iter().filter(|&root| root != by));
    }
    Ok(())
}

/// The verdict of a run that waited and is dropped, as alarms see it.
fn dropped_entry(job_id: i64, scheduled_ms: i64, by: i64) -> Entry {
    Entry {
        job_id,
        trigger_id: None,
        trigger_name: String::new(),
        scheduled_ms,
        until_ms: scheduled_ms,
        fires: 1,
        parent_root: 0,
        verdict: "skipped",
        reason: SkipReason::Discarded.name(),
        into_ms: None,
        task_id: None,
        blocked_by: Some(by),
        misfired: 0,
    }
}

/// The end of a task that waits and is dropped.
pub fn drop_task(task: finish::LiveTask, message: &str) -> End {
    End::without_report(task, (Transition::Skip, Outcome::new(OutcomeKind::Skipped, message)))
}

impl Places {
    /// Gives back what was taken for runs that are not made after all.
    fn keep_only(&mut self, made: &HashSet<i64>, ids: &[i64]) {
        let unmade: HashSet<i64> = ids.iter().copied().filter(|id| !made.contains(id)).collect();
        self.give_back(&unmade);
    }
}
