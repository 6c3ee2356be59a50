//! Places: who of a job, or of a concurrency group, runs. A chain takes all places that it needs or none, under the locks of
//! the group and the job, and keeps them until it is over and its children are proven dead.

use super::super::db::{Db, Tx, batch};
use super::super::error::StoreError;
use super::super::finish::{LiveTask, live_columns};
use super::super::sql::Sql;
use super::kept::{self, GroupRow};
use super::{JobRow, lock, names_json};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap, HashSet};
use systole_shared::policy::blocking::Load;

static TAKEN: Sql = Sql::new(
    "slots_taken",
    "SELECT s.resource, s.n, s.root_id, s.lost_task_id, s.lost_host, s.lost_slot, s.lost_at_ms FROM slot AS s \
     JOIN {each:$1} ON {is:s.resource,e.value->>'name'} ORDER BY s.resource, s.taken_at_ms, s.root_id",
);
static OF_ROOTS: Sql = Sql::new(
    "slots_of_roots",
    "SELECT resource, n, root_id, lost_task_id, lost_host, lost_slot, lost_at_ms FROM slot WHERE root_id {among:$1} ORDER BY resource, n",
);
static TAKE: Sql = Sql::new(
    "take_slots",
    "INSERT INTO slot (resource, n, root_id, taken_at_ms) SELECT e.value->>'resource', CAST(e.value->>'n' AS BIGINT), \
       CAST(e.value->>'root_id' AS BIGINT), {now} FROM {each:$1}",
);
static FREE: Sql = Sql::new("free_slots", "DELETE FROM slot WHERE root_id {among:$1}");
/// Of a task whose host changed hands only its result, or a person, can prove anything: the new process has never had it.
static HOLD: Sql = Sql::new(
    "hold_slots",
    "UPDATE slot SET lost_task_id = $2, lost_host = $3, lost_slot = $4, lost_at_ms = {now}, \
       lost_instance = CASE WHEN EXISTS (SELECT 1 FROM task AS t WHERE t.id = $2 AND t.orphaned_at_ms IS NOT NULL) THEN NULL \
         ELSE (SELECT r.instance_id FROM runner AS r WHERE r.host = $3 AND r.slot = $4) END WHERE root_id = $1",
);
/// A member of a broadcast has no place of its own: this row keeps its set from ending.
static HOLD_MEMBER: Sql = Sql::new(
    "hold_member",
    "INSERT INTO slot (resource, n, root_id, taken_at_ms, lost_task_id, lost_host, lost_slot, lost_at_ms, lost_instance) \
     VALUES ($5, $2, $1, {now}, $2, $3, $4, {now}, \
       CASE WHEN EXISTS (SELECT 1 FROM task AS t WHERE t.id = $2 AND t.orphaned_at_ms IS NOT NULL) THEN NULL \
         ELSE (SELECT r.instance_id FROM runner AS r WHERE r.host = $3 AND r.slot = $4) END) ON CONFLICT DO NOTHING",
);
static RELEASE_HOLD: Sql = Sql::new(
    "release_hold",
    "UPDATE slot SET lost_task_id = NULL, lost_host = NULL, lost_slot = NULL, lost_at_ms = NULL, lost_instance = NULL WHERE root_id {among:$1}",
);
static LOST_SLOTS: Sql = Sql::new(
    "lost_slots",
    "SELECT DISTINCT lost_host AS host, lost_slot AS slot FROM slot WHERE lost_host IS NOT NULL LIMIT 10000",
);
/// The process, or the machine, that had the child says with a beat that counts, and is younger than the loss, that its hands
/// are empty.
static PROVEN_BY: Sql = Sql::new(
    "proven_by",
    "SELECT DISTINCT root_id AS id FROM slot WHERE lost_host = $1 AND lost_slot = $2 AND lost_instance = $3 \
       AND EXISTS (SELECT 1 FROM runner AS r WHERE r.host = $1 AND r.slot = $2 AND r.instance_id = $3 AND r.start_no = $4 \
         AND r.seq >= $5 AND r.seen_ms >= slot.lost_at_ms)",
);
static LOST_ON: Sql = Sql::new(
    "lost_on",
    "SELECT DISTINCT root_id AS id FROM slot WHERE lost_host = $1",
);
static LOST_TASKS: Sql = Sql::new(
    "lost_roots",
    "SELECT DISTINCT root_id AS id FROM slot WHERE lost_task_id {among:$1}",
);
static WAITING: Sql = Sql::new(
    "waiting_counts",
    "SELECT job_id AS id, CAST(count(*) AS BIGINT) AS n FROM task WHERE status = 1 AND waiting_ms IS NOT NULL AND set_id IS NULL AND job_id {among:$1} GROUP BY job_id",
);
/// The oldest that wait, of each job; one that somebody has in hand (a cancel) is left to him.
static LOCK_WAITING: Sql = Sql::new(
    "lock_waiting",
    "SELECT id, job_id FROM task WHERE status = 1 AND waiting_ms IS NOT NULL AND id IN ( \
       SELECT q.id FROM (SELECT id, row_number() OVER (PARTITION BY job_id ORDER BY id) AS k FROM task \
         WHERE status = 1 AND waiting_ms IS NOT NULL AND set_id IS NULL AND job_id {among:$1}) AS q WHERE q.k <= 64) ORDER BY id {skip_locked}",
);
static LOCK_TO_DROP: Sql = Sql::new(
    "lock_to_drop",
    concat!(
        "SELECT ",
        live_columns!(),
        " FROM task WHERE task.status = 1 AND task.waiting_ms IS NOT NULL AND task.set_id IS NULL AND task.job_id = $1 ORDER BY task.id {skip_locked}"
    ),
);
static ADMIT_WAITING: Sql = Sql::new(
    "admit_waiting",
    "UPDATE task SET status = CASE WHEN run_at_ms <= {now} THEN 2 ELSE 1 END, eligible_at_ms = CASE WHEN run_at_ms <= {now} THEN {now} END, \
       waiting_ms = NULL WHERE status + 0 = 1 AND waiting_ms IS NOT NULL AND id {among:$1} \
     RETURNING id, status, lane_id, target_host",
);
static JOBS_WAITING_FOR: Sql = Sql::new(
    "jobs_waiting_for",
    "SELECT j.id FROM job AS j JOIN {each:$1} ON {is:j.concurrency_group,e.value->>'name'} \
     WHERE EXISTS (SELECT 1 FROM task AS t WHERE t.status = 1 AND t.waiting_ms IS NOT NULL AND t.set_id IS NULL AND t.job_id = j.id)",
);
/// Places of chains that have no live task and are not held for lack of proof.
static STRAYS: Sql = Sql::new(
    "stray_slots",
    "SELECT DISTINCT s.root_id AS id FROM slot AS s WHERE s.lost_task_id IS NULL AND s.taken_at_ms < {now} - 2000 \
       AND NOT EXISTS (SELECT 1 FROM task AS t WHERE t.id = s.root_id AND t.status IN (1, 2, 3, 4, 9)) \
       AND NOT EXISTS (SELECT 1 FROM task AS t WHERE t.root_id = s.root_id AND t.retry_of IS NOT NULL AND t.status IN (1, 2, 3, 4, 9)) \
     LIMIT 1000",
);
/// Jobs with tasks that wait.
static WITH_WAITING: Sql = Sql::new(
    "jobs_with_waiting",
    "SELECT DISTINCT job_id AS id FROM task WHERE status = 1 AND waiting_ms IS NOT NULL AND set_id IS NULL AND job_id IS NOT NULL LIMIT 10000",
);

pub static STATEMENTS: &[&Sql] = &[
    &TAKEN,
    &OF_ROOTS,
    &TAKE,
    &FREE,
    &HOLD,
    &HOLD_MEMBER,
    &RELEASE_HOLD,
    &LOST_SLOTS,
    &PROVEN_BY,
    &LOST_ON,
    &LOST_TASKS,
    &WAITING,
    &LOCK_WAITING,
    &LOCK_TO_DROP,
    &ADMIT_WAITING,
    &JOBS_WAITING_FOR,
    &STRAYS,
    &WITH_WAITING,
];

pub fn job_resource(job: &str) -> String {
    format!("job:{job}")
}

/// Of members of a broadcast that ended without proof.
pub fn set_resource(set: i64) -> String {
    format!("set:{set}")
}

pub fn group_resource(group: &str) -> String {
    format!("group:{group}")
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct SlotRow {
    pub resource: String,
    pub n: i64,
    pub root_id: i64,
    pub lost_task_id: Option<i64>,
    pub lost_host: Option<String>,
    pub lost_slot: Option<i64>,
    pub lost_at_ms: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

#[derive(sqlx::FromRow)]
struct Count {
    id: i64,
    n: i64,
}

#[derive(sqlx::FromRow)]
struct Waiter {
    id: i64,
    job_id: i64,
}

#[derive(Serialize)]
struct TakeJson<'a> {
    resource: &'a str,
    n: i64,
    root_id: i64,
}

/// A task that got its places, and when it may start.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Admitted {
    pub id: i64,
    pub status: i16,
    pub lane_id: i64,
    pub target_host: Option<String>,
}

fn ids(rows: Vec<OnlyId>) -> Vec<i64> {
    rows.into_iter().map(|row| row.id).collect()
}

pub async fn taken(tx: &mut Tx, resources: &[&str]) -> Result<Vec<SlotRow>, StoreError> {
    if resources.is_empty() {
        return Ok(Vec::new());
    }
    tx.all(&TAKEN, vec![names_json(resources)?]).await
}

pub async fn of_roots(tx: &mut Tx, roots: &[i64]) -> Result<Vec<SlotRow>, StoreError> {
    tx.all(&OF_ROOTS, vec![batch(roots)?]).await
}

pub async fn free(tx: &mut Tx, roots: &[i64]) -> Result<(), StoreError> {
    tx.exec(&FREE, vec![batch(roots)?]).await.map(drop)
}

/// Keeps the places of a chain whose last child may live.
pub async fn hold(tx: &mut Tx, root: i64, task: &LiveTask) -> Result<(), StoreError> {
    let args = vec![root.into(), task.id.into(), task.host.clone().into(), task.slot.into()];
    tx.exec(&HOLD, args).await.map(drop)
}

/// Keeps a set from ending while the last child of this member may live.
pub async fn hold_member(tx: &mut Tx, set: i64, task: &LiveTask) -> Result<(), StoreError> {
    let args = vec![
        task.root_id().into(),
        task.id.into(),
        task.host.clone().into(),
        task.slot.into(),
        set_resource(set).into(),
    ];
    tx.exec(&HOLD_MEMBER, args).await.map(drop)
}

/// The chains go on: their places are not held for want of proof any more.
pub async fn release_hold(tx: &mut Tx, roots: &[i64]) -> Result<(), StoreError> {
    tx.exec(&RELEASE_HOLD, vec![batch(roots)?]).await.map(drop)
}

/// Chains whose last child is gone: this runner said IDLE.
pub async fn proven_by(tx: &mut Tx, idle: &Idle) -> Result<Vec<i64>, StoreError> {
    let args = vec![
        idle.host.clone().into(),
        idle.slot.into(),
        idle.instance_id.clone().into(),
        idle.start_no.into(),
        idle.seq.into(),
    ];
    tx.all(&PROVEN_BY, args).await.map(ids)
}

/// An IDLE beat.
#[derive(Clone, Debug)]
pub struct Idle {
    pub host: String,
    pub slot: i64,
    pub instance_id: String,
    pub start_no: i64,
    pub seq: i64,
}

pub async fn lost_on(tx: &mut Tx, host: &str) -> Result<Vec<i64>, StoreError> {
    tx.all(&LOST_ON, vec![host.into()]).await.map(ids)
}

/// Chains whose places are held for these tasks.
pub async fn lost_tasks(tx: &mut Tx, tasks: &[i64]) -> Result<Vec<i64>, StoreError> {
    tx.all(&LOST_TASKS, vec![batch(tasks)?]).await.map(ids)
}

pub async fn strays(tx: &mut Tx) -> Result<Vec<i64>, StoreError> {
    tx.all(&STRAYS, vec![]).await.map(ids)
}

pub async fn with_waiting(tx: &mut Tx) -> Result<Vec<i64>, StoreError> {
    tx.all(&WITH_WAITING, vec![]).await.map(ids)
}

pub async fn waiting_counts(tx: &mut Tx, jobs: &[i64]) -> Result<HashMap<i64, u32>, StoreError> {
    let rows: Vec<Count> = tx.all(&WAITING, vec![batch(jobs)?]).await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.id, u32::try_from(row.n).unwrap_or(u32::MAX)))
        .collect())
}

/// Waiting tasks of a job, to be dropped; locked.
pub async fn lock_to_drop(tx: &mut Tx, job_id: i64) -> Result<Vec<LiveTask>, StoreError> {
    tx.all(&LOCK_TO_DROP, vec![job_id.into()]).await
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, sqlx::FromRow)]
pub struct LostSlot {
    pub host: String,
    pub slot: i64,
}

impl Db {
    /// Slots of hosts whose next word may prove that a child is dead.
    pub async fn lost_slots(&self) -> Result<HashSet<LostSlot>, StoreError> {
        let rows: Vec<LostSlot> = self
            .read("lost_slots", |tx| {
                Box::pin(async move { tx.all(&LOST_SLOTS, vec![]).await })
            })
            .await?;
        Ok(rows.into_iter().collect())
    }
}

/// Jobs and groups, locked, with all their places: nobody else changes them until the end of the transaction.
#[derive(Debug, Default)]
pub struct Places {
    pub jobs: HashMap<i64, JobRow>,
    groups: HashMap<String, GroupRow>,
    /// Per resource: the number of each place, and who has it.
    taken: HashMap<String, HashMap<i64, i64>>,
    pub waiting: HashMap<i64, u32>,
    taking: Vec<(String, i64, i64)>,
}

impl Places {
    /// Locks groups and then jobs, each in one order. `groups` beside those of the jobs: of what is about to be freed; then
    /// the jobs that wait for a place of them are locked, too.
    pub async fn lock(tx: &mut Tx, job_ids: &[i64], groups: &BTreeSet<String>) -> Result<Self, StoreError> {
        let mut names = groups.clone();
        names.extend(
            super::by_id(tx, job_ids)
                .await?
                .into_iter()
                .filter_map(|job| job.concurrency_group),
        );
        let names: Vec<String> = names.into_iter().collect();
        let group_rows = kept::lock_groups(tx, &names).await?;
        let mut ids: BTreeSet<i64> = job_ids.iter().copied().collect();
        if !groups.is_empty() {
            let names: Vec<&str> = groups.iter().map(String::as_str).collect();
            let rows: Vec<OnlyId> = tx.all(&JOBS_WAITING_FOR, vec![names_json(&names)?]).await?;
            ids.extend(rows.into_iter().map(|row| row.id));
        }
        let ids: Vec<i64> = ids.into_iter().collect();
        let jobs = lock(tx, &ids).await?;
        let mut places = Self {
            groups: group_rows.into_iter().map(|row| (row.name.clone(), row)).collect(),
            waiting: waiting_counts(tx, &ids).await?,
            jobs: jobs.into_iter().map(|job| (job.id, job)).collect(),
            ..Self::default()
        };
        places.read(tx).await?;
        Ok(places)
    }

    async fn read(&mut self, tx: &mut Tx) -> Result<(), StoreError> {
        let resources: BTreeSet<String> = self.jobs.values().flat_map(JobRow::resources).collect();
        let names: Vec<&str> = resources.iter().map(String::as_str).collect();
        self.taken.clear();
        for row in taken(tx, &names).await? {
            self.taken.entry(row.resource).or_default().insert(row.n, row.root_id);
        }
        Ok(())
    }

    /// Forgets the places of chains that are being freed.
    pub fn forget(&mut self, roots: &HashSet<i64>) {
        for taken in self.taken.values_mut() {
            taken.retain(|_, root| !roots.contains(root));
        }
    }

    /// What was taken and not written yet, of runs that are not made after all.
    pub fn give_back(&mut self, roots: &HashSet<i64>) {
        if !roots.is_empty() {
            self.forget(roots);
            self.taking.retain(|(_, _, root)| !roots.contains(root));
        }
    }

    fn running(&self, resource: &str) -> usize {
        self.taken.get(resource).map_or(0, HashMap::len)
    }

    fn group_full(&self, job: &JobRow) -> bool {
        // A group without a row has no limit: it was deleted by hand.
        job.concurrency_group.as_ref().is_some_and(|name| {
            let limit = self.groups.get(name).map_or(i64::MAX, |group| group.places);
            i64::try_from(self.running(&group_resource(name))).unwrap_or(i64::MAX) >= limit
        })
    }

    pub fn load(&self, job: &JobRow) -> Load {
        Load {
            running: u32::try_from(self.running(&job_resource(&job.name))).unwrap_or(u32::MAX),
            waiting: self.waiting.get(&job.id).copied().unwrap_or(0),
            group_full: self.group_full(job),
        }
    }

    /// The chains that have a place of the job.
    pub fn roots(&self, job: &JobRow) -> Vec<i64> {
        let mut roots: Vec<i64> = self
            .taken
            .get(&job_resource(&job.name))
            .map(|taken| taken.values().copied().collect())
            .unwrap_or_default();
        roots.sort_unstable();
        roots
    }

    /// Who has places of one resource more, which is changed under the lock of the caller.
    pub async fn also(&mut self, tx: &mut Tx, resource: &str) -> Result<(), StoreError> {
        for row in taken(tx, &[resource]).await? {
            self.taken.entry(row.resource).or_default().insert(row.n, row.root_id);
        }
        Ok(())
    }

    /// Chains that have a place of it.
    pub fn running_of(&self, resource: &str) -> u32 {
        u32::try_from(self.running(resource)).unwrap_or(u32::MAX)
    }

    /// Takes all places that a chain of the job needs.
    pub fn take(&mut self, job: &JobRow, root: i64) {
        self.take_as(job.resources(), root);
    }

    /// Takes a place of each of these.
    pub fn take_as(&mut self, resources: Vec<String>, root: i64) {
        for resource in resources {
            let taken = self.taken.entry(resource.clone()).or_default();
            let n = (0..).find(|n| !taken.contains_key(n)).unwrap_or(i64::MAX);
            taken.insert(n, root);
            self.taking.push((resource, n, root));
        }
    }

    /// Writes what was taken. The primary key refuses a place that somebody has.
    pub async fn write(&mut self, tx: &mut Tx) -> Result<(), StoreError> {
        if self.taking.is_empty() {
            return Ok(());
        }
        let rows: Vec<TakeJson<'_>> = self
            .taking
            .iter()
            .map(|(resource, n, root)| TakeJson {
                resource,
                n: *n,
                root_id: *root,
            })
            .collect();
        tx.exec(&TAKE, vec![batch(&rows)?]).await?;
        self.taking.clear();
        Ok(())
    }

    /// Gives free places to those that wait, oldest first. Within a job nobody is overtaken.
    pub async fn admit(&mut self, tx: &mut Tx) -> Result<Vec<Admitted>, StoreError> {
        let able: Vec<i64> = self
            .jobs
            .values()
            .filter(|job| {
                let load = self.load(job);
                load.waiting > 0 && load.running < job.blocking().places() && !load.group_full
            })
            .map(|job| job.id)
            .collect();
        if able.is_empty() {
            return Ok(Vec::new());
        }
        let waiters: Vec<Waiter> = tx.all(&LOCK_WAITING, vec![batch(&able)?]).await?;
        let mut admitted = Vec::new();
        for waiter in waiters {
            let Some(job) = self.jobs.get(&waiter.job_id).cloned() else {
                continue;
            };
            let load = self.load(&job);
            if load.running >= job.blocking().places() || load.group_full {
                continue;
            }
            self.take(&job, waiter.id);
            if let Some(waiting) = self.waiting.get_mut(&job.id) {
                *waiting = waiting.saturating_sub(1);
            }
            admitted.push(waiter.id);
        }
        if admitted.is_empty() {
            return Ok(Vec::new());
        }
        self.write(tx).await?;
        tx.all(&ADMIT_WAITING, vec![batch(&admitted)?]).await
    }
}
