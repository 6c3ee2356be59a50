//! Runner rows: who holds a host, and the one write that makes a beat act.

use super::db::{Class, Db, Tx, batch};
use super::error::StoreError;
use super::finish::detail_json;
use super::finish::{self, LiveTask};
use super::sql::Sql;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;
use systole_shared::heartbeat::identity::{Holder, Identity, identify};
use systole_shared::task::{EndDetail, OutcomeKind};

static LOCK_RUNNERS: Sql = Sql::new(
    "lock_runners",
    "SELECT r.host, r.slot, r.instance_id, r.start_no, r.seq, r.task_id, r.held_boot, r.redeliveries, r.cordoned, r.leaving \
     FROM runner AS r JOIN {each:$1} ON {is:r.host,e.value->>'host'} AND {is:r.slot,CAST(e.value->>'slot' AS BIGINT)} \
     ORDER BY r.host, r.slot {for_update_of:r}",
);
/// Runner rows, and the tasks that they hold or that the beats name, with one round trip. The runners first: which
/// task a runner holds is known under its lock.
static LOCK_BEATS: Sql = Sql::new(
    "lock_beats",
    "WITH r AS (SELECT r.host, r.slot, r.instance_id, r.start_no, r.seq, r.task_id, r.held_boot, r.redeliveries, r.cordoned, r.leaving \
       FROM runner AS r JOIN {each:$1} ON {is:r.host,e.value->>'host'} AND {is:r.slot,CAST(e.value->>'slot' AS BIGINT)} \
       ORDER BY r.host, r.slot {for_update_of:r}), \
     t AS (SELECT task.id, task.status, task.host, task.slot, task.start_no, task.terminating, task.callback_url, task.attempt, \
         task.max_retries, task.retry_delay_ms, task.replacements, task.timeout_ms, {now} - task.started_at_ms AS ran_ms \
       FROM task WHERE task.id {among_query:SELECT r.task_id FROM r WHERE r.task_id IS NOT NULL UNION ALL SELECT CAST(e.value AS BIGINT) FROM {each:$2}} \
       ORDER BY task.id {for_update}) \
     SELECT r.host, r.slot, r.instance_id, r.start_no, r.seq, r.task_id, r.held_boot, r.redeliveries, r.cordoned, r.leaving, \
       CAST(NULL AS BIGINT) AS id, CAST(NULL AS SMALLINT) AS status, CAST(NULL AS TEXT) AS terminating, \
       CAST(NULL AS TEXT) AS callback_url, CAST(NULL AS BIGINT) AS attempt, CAST(NULL AS BIGINT) AS max_retries, \
       CAST(NULL AS BIGINT) AS retry_delay_ms, CAST(NULL AS BIGINT) AS replacements, CAST(NULL AS BIGINT) AS timeout_ms, \
       CAST(NULL AS BIGINT) AS ran_ms FROM r \
     UNION ALL SELECT t.host, t.slot, NULL, t.start_no, NULL, NULL, NULL, NULL, NULL, NULL, \
       t.id, t.status, t.terminating, t.callback_url, t.attempt, t.max_retries, t.retry_delay_ms, t.replacements, t.timeout_ms, \
       t.ran_ms FROM t",
);
/// The write that wins the row: a beat acts only with the start_no of the row and a higher seq.
static WIN_RUNNERS: Sql = Sql::new(
    "win_runners",
    "UPDATE runner SET seq = x.seq, seen_ms = {now}, leaving = x.leaving, task_id = x.task_id, held_boot = x.held_boot, \
       redeliveries = x.redeliveries \
     FROM (SELECT e.value->>'host' AS host, CAST(e.value->>'slot' AS BIGINT) AS slot, \
       CAST(e.value->>'start_no' AS BIGINT) AS start_no, CAST(e.value->>'seq' AS BIGINT) AS seq, \
       CAST(e.value->>'leaving' AS BIGINT) = 1 AS leaving, CAST(e.value->>'task_id' AS BIGINT) AS task_id, \
       e.value->>'held_boot' AS held_boot, CAST(e.value->>'redeliveries' AS BIGINT) AS redeliveries FROM {each:$1}) AS x \
     WHERE {is:runner.host,x.host} AND {is:runner.slot,x.slot} AND runner.start_no = x.start_no AND runner.seq < x.seq",
);
/// A claim for a parked beat: wins the row as that beat left it.
static GIVE_RUNNERS: Sql = Sql::new(
    "give_runners",
    "UPDATE runner SET task_id = x.task_id, held_boot = x.held_boot, redeliveries = 0 \
     FROM (SELECT e.value->>'host' AS host, CAST(e.value->>'slot' AS BIGINT) AS slot, \
       CAST(e.value->>'start_no' AS BIGINT) AS start_no, CAST(e.value->>'seq' AS BIGINT) AS seq, \
       CAST(e.value->>'task_id' AS BIGINT) AS task_id, e.value->>'held_boot' AS held_boot FROM {each:$1}) AS x \
     WHERE {is:runner.host,x.host} AND {is:runner.slot,x.slot} AND runner.start_no = x.start_no AND runner.seq = x.seq \
       AND runner.task_id IS NULL AND NOT runner.cordoned AND NOT runner.leaving",
);
static FREE_RUNNER: Sql = Sql::new(
    "free_runner",
    "UPDATE runner SET task_id = NULL, held_boot = NULL, redeliveries = 0 WHERE host = $1 AND slot = $2 AND task_id = $3",
);
static START_TASKS: Sql = Sql::new(
    "start_tasks",
    "UPDATE task SET status = 4, started_at_ms = {now} WHERE status + 0 = 3 \
       AND id {among:$1} RETURNING id",
);
static TIME_OUT_TASKS: Sql = Sql::new(
    "time_out_tasks",
    "UPDATE task SET status = 9, terminating = 'timeout' WHERE status + 0 = 4 \
       AND id {among:$1}",
);
/// Only beside a verdict, which knows no exit code and no signal: a report that comes twice is not late.
static LATE_RESULT: Sql = Sql::new(
    "late_result",
    "UPDATE task SET late_result = $2, end_detail = COALESCE(end_detail, $4) WHERE id = $1 AND status IN (7, 10) AND late_result IS NULL \
       AND exit_code IS NULL AND signal IS NULL AND outcome_kind <> $3 \
       AND outcome_kind IN ('runner_lost', 'runner_restarted', 'cancelled', 'timeout', 'start_timeout', 'not_started')",
);
static LOCK_HOST: Sql = Sql::new(
    "lock_host",
    "SELECT instance_id, start_no FROM host WHERE host = $1 {for_update}",
);
static HOST_SILENCE: Sql = Sql::new(
    "host_silence",
    "SELECT COALESCE({now} - max(seen_ms), 0) AS silent_ms, count(*) AS slots, \
       CAST(COALESCE(sum(CASE WHEN leaving AND task_id IS NULL THEN 0 ELSE 1 END), 0) AS BIGINT) AS staying \
     FROM runner WHERE host = $1",
);
/// The rows change hands as they are: no beat may act on them meanwhile.
static LOCK_RUNNERS_OF: Sql = Sql::new(
    "lock_runners_of",
    "SELECT slot AS id FROM runner WHERE host = $1 ORDER BY slot {for_update}",
);
/// Two replicas may see a new host at once: the second finds it and decides again.
static PUT_NEW_HOST: Sql = Sql::new(
    "put_new_host",
    "INSERT INTO host (host, instance_id, start_no, slots, queues, labels, version, facts, boot_id, clock_skew_ms, registered_at_ms) \
     VALUES ($1, $2, $3, 0, '[]', '{}', '', '', '', 0, 0) ON CONFLICT DO NOTHING",
);
/// Live tasks that no runner row holds do not occur. If one did, it would never end: it goes to the reaper.
static ORPHAN_STRAYS: Sql = Sql::new(
    "orphan_strays",
    "UPDATE task SET orphaned_at_ms = {now} WHERE status IN (3, 4, 9) AND orphaned_at_ms IS NULL AND NOT EXISTS ( \
       SELECT 1 FROM runner AS r WHERE r.host = task.host AND r.slot = task.slot AND r.task_id = task.id) RETURNING id",
);
static PUT_HOST: Sql = Sql::new(
    "put_host",
    "INSERT INTO host (host, instance_id, start_no, slots, queues, labels, version, facts, boot_id, clock_skew_ms, registered_at_ms) \
     SELECT e.value->>'host', e.value->>'instance_id', CAST(e.value->>'start_no' AS BIGINT), CAST(e.value->>'slots' AS BIGINT), \
       e.value->>'queues', e.value->>'labels', e.value->>'version', e.value->>'facts', e.value->>'boot_id', \
       CASE WHEN CAST(e.value->>'sent_at_ms' AS BIGINT) = 0 THEN 0 ELSE CAST(e.value->>'sent_at_ms' AS BIGINT) - {now} END, {now} \
     FROM {each:$1} WHERE TRUE \
     ON CONFLICT (host) DO UPDATE SET instance_id = excluded.instance_id, start_no = excluded.start_no, slots = excluded.slots, \
       queues = excluded.queues, labels = excluded.labels, version = excluded.version, facts = excluded.facts, \
       boot_id = excluded.boot_id, clock_skew_ms = excluded.clock_skew_ms, registered_at_ms = excluded.registered_at_ms",
);
static ORPHAN_TASKS: Sql = Sql::new(
    "orphan_tasks",
    "UPDATE task SET orphaned_at_ms = {now} FROM (SELECT task_id FROM runner WHERE host = $1 AND task_id IS NOT NULL) AS x \
     WHERE {is:task.id,x.task_id} AND task.status + 0 IN (3, 4, 9)",
);
static TAKE_RUNNERS: Sql = Sql::new(
    "take_runners",
    "UPDATE runner SET instance_id = $2, start_no = $3, seq = 0, leaving = FALSE WHERE host = $1",
);
static FREE_RUNNERS: Sql = Sql::new(
    "free_runners",
    "UPDATE runner SET task_id = NULL, held_boot = NULL, redeliveries = 0 WHERE host = $1",
);
/// Slots that the new process does not offer go, unless they hold a task or were cordoned by hand.
static DROP_SURPLUS: Sql = Sql::new(
    "drop_surplus",
    "DELETE FROM runner WHERE host = $1 AND slot >= $2 AND slot <> $3 AND task_id IS NULL AND NOT cordoned",
);
static PUT_RUNNERS: Sql = Sql::new(
    "put_runners",
    "INSERT INTO runner (host, slot, instance_id, start_no, seq, seen_ms) \
     SELECT $1, CAST(e.value AS BIGINT), $2, $3, 0, {now} FROM {each:$4} WHERE TRUE ON CONFLICT DO NOTHING",
);
static RUNNERS_SEEN: Sql = Sql::new(
    "runners_seen",
    "SELECT r.host, r.slot, r.start_no, r.seq, {now} - r.seen_ms AS age_ms, r.task_id, r.leaving FROM runner AS r",
);
static LOCK_RUNNER_AS_SEEN: Sql = Sql::new(
    "lock_runner_as_seen",
    "SELECT task_id AS id FROM runner WHERE host = $1 AND slot = $2 AND start_no = $3 AND seq = $4 AND task_id IS NOT NULL {for_update}",
);
static ORPHANS: Sql = Sql::new(
    "orphans",
    "SELECT id, {now} - orphaned_at_ms AS age_ms FROM task WHERE orphaned_at_ms IS NOT NULL AND status IN (3, 4, 9) LIMIT 10000",
);
static TERMINATING_TASKS: Sql = Sql::new(
    "terminating_tasks",
    "SELECT id, host, slot, start_no FROM task WHERE status = 9 LIMIT 10000",
);
static FORGET_HOSTS: Sql = Sql::new(
    "forget_hosts",
    "DELETE FROM host WHERE NOT EXISTS (SELECT 1 FROM runner WHERE runner.host = host.host)",
);
static FORGET_RUNNERS: Sql = Sql::new(
    "forget_runners",
    "DELETE FROM runner WHERE seen_ms < {now} - $1 AND task_id IS NULL AND NOT cordoned",
);

pub static STATEMENTS: &[&Sql] = &[
    &LOCK_RUNNERS,
    &LOCK_BEATS,
    &WIN_RUNNERS,
    &GIVE_RUNNERS,
    &FREE_RUNNER,
    &START_TASKS,
    &TIME_OUT_TASKS,
    &LATE_RESULT,
    &LOCK_HOST,
    &HOST_SILENCE,
    &PUT_HOST,
    &ORPHAN_TASKS,
    &TAKE_RUNNERS,
    &FREE_RUNNERS,
    &DROP_SURPLUS,
    &PUT_RUNNERS,
    &LOCK_RUNNERS_OF,
    &PUT_NEW_HOST,
    &ORPHAN_STRAYS,
    &RUNNERS_SEEN,
    &LOCK_RUNNER_AS_SEEN,
    &ORPHANS,
    &TERMINATING_TASKS,
    &FORGET_HOSTS,
    &FORGET_RUNNERS,
];

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct RunnerRow {
    pub host: String,
    pub slot: i64,
    pub instance_id: String,
    pub start_no: i64,
    pub seq: i64,
    pub task_id: Option<i64>,
    pub held_boot: Option<String>,
    pub redeliveries: i64,
    pub cordoned: bool,
    pub leaving: bool,
}

#[derive(Clone, Debug, Serialize)]
struct RunnerKey {
    host: String,
    slot: i64,
}

/// What a beat leaves in its runner row.
#[derive(Clone, Debug, Serialize)]
pub struct RunnerWrite {
    pub host: String,
    pub slot: i64,
    pub start_no: i64,
    pub seq: i64,
    /// 0 or 1: JSON booleans are read differently by the two databases.
    pub leaving: i64,
    pub task_id: Option<i64>,
    pub held_boot: Option<String>,
    pub redeliveries: i64,
}

/// Reads and locks runner rows, ordered by host and slot.
pub async fn lock_runners(
    tx: &mut Tx,
    keys: impl Iterator<Item = (String, i64)>,
) -> Result<HashMap<(String, i64), RunnerRow>, StoreError> {
    let keys: Vec<RunnerKey> = keys.map(|(host, slot)| RunnerKey { host, slot }).collect();
    let rows: Vec<RunnerRow> = tx.all(&LOCK_RUNNERS, vec![batch(&keys)?]).await?;
    Ok(rows
        .into_iter()
        .map(|row| ((row.host.clone(), row.slot), row))
        .collect())
}

/// A row of either kind.
#[derive(sqlx::FromRow)]
struct LockedRow {
    host: Option<String>,
    slot: Option<i64>,
    start_no: Option<i64>,
    instance_id: Option<String>,
    seq: Option<i64>,
    task_id: Option<i64>,
    held_boot: Option<String>,
    redeliveries: Option<i64>,
    cordoned: Option<bool>,
    leaving: Option<bool>,
    id: Option<i64>,
    status: Option<i16>,
    terminating: Option<String>,
    callback_url: Option<String>,
    attempt: Option<i64>,
    max_retries: Option<i64>,
    retry_delay_ms: Option<i64>,
    replacements: Option<i64>,
    timeout_ms: Option<i64>,
    ran_ms: Option<i64>,
}

impl LockedRow {
    fn task(&mut self) -> Option<LiveTask> {
        Some(LiveTask {
            id: self.id?,
            status: self.status?,
            host: self.host.take(),
            slot: self.slot,
            start_no: self.start_no,
            terminating: self.terminating.take(),
            callback_url: self.callback_url.take(),
            attempt: self.attempt?,
            max_retries: self.max_retries?,
            retry_delay_ms: self.retry_delay_ms?,
            replacements: self.replacements?,
            timeout_ms: self.timeout_ms,
            ran_ms: self.ran_ms,
        })
    }

    fn runner(self) -> Option<RunnerRow> {
        Some(RunnerRow {
            host: self.host?,
            slot: self.slot?,
            instance_id: self.instance_id?,
            start_no: self.start_no?,
            seq: self.seq?,
            task_id: self.task_id,
            held_boot: self.held_boot,
            redeliveries: self.redeliveries?,
            cordoned: self.cordoned?,
            leaving: self.leaving?,
        })
    }
}

/// Runner rows by their key.
pub type Runners = HashMap<(String, i64), RunnerRow>;
/// Tasks by their id.
pub type Tasks = HashMap<i64, LiveTask>;

/// Reads and locks runner rows, and with them the tasks that they hold and those that are named.
pub async fn lock_beats(
    tx: &mut Tx,
    keys: impl Iterator<Item = (String, i64)>,
    named: &[i64],
) -> Result<(Runners, Tasks), StoreError> {
    let keys: Vec<RunnerKey> = keys.map(|(host, slot)| RunnerKey { host, slot }).collect();
    let rows: Vec<LockedRow> = tx.all(&LOCK_BEATS, vec![batch(&keys)?, batch(named)?]).await?;
    let (mut runners, mut tasks) = (Runners::with_capacity(keys.len()), Tasks::with_capacity(rows.len()));
    for mut row in rows {
        if let Some(task) = row.task() {
            tasks.insert(task.id, task);
        } else if let Some(runner) = row.runner() {
            runners.insert((runner.host.clone(), runner.slot), runner);
        }
    }
    // A task that was stored and dispatched while this statement waited for a runner's lock is not in its picture
    // of the tasks. The next statement has a new one.
    let missing: Vec<i64> = runners
        .values()
        .filter_map(|row| row.task_id)
        .chain(named.iter().copied())
        .filter(|id| !tasks.contains_key(id))
        .collect();
    for task in finish::lock_tasks(tx, &missing).await? {
        tasks.insert(task.id, task);
    }
    Ok((runners, tasks))
}

/// The number of rows must be that of the writes: the caller holds their locks.
pub async fn win_runners(tx: &mut Tx, writes: &[RunnerWrite]) -> Result<(), StoreError> {
    if writes.is_empty() {
        return Ok(());
    }
    let won = tx.exec(&WIN_RUNNERS, vec![batch(writes)?]).await?;
    expect_rows("win_runners", won, writes.len())
}

/// As [`win_runners`], for claims of parked beats.
pub async fn give_runners(tx: &mut Tx, writes: &[RunnerWrite]) -> Result<(), StoreError> {
    if writes.is_empty() {
        return Ok(());
    }
    let given = tx.exec(&GIVE_RUNNERS, vec![batch(writes)?]).await?;
    expect_rows("give_runners", given, writes.len())
}

fn expect_rows(name: &str, changed: u64, expected: usize) -> Result<(), StoreError> {
    if u64::try_from(expected) == Ok(changed) {
        Ok(())
    } else {
        Err(StoreError::Collision(format!("{name}: {changed} of {expected} rows")))
    }
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

/// DISPATCHED → RUNNING. Returns those that were.
pub async fn start_tasks(tx: &mut Tx, ids: &[i64]) -> Result<Vec<i64>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<OnlyId> = tx.all(&START_TASKS, vec![batch(ids)?]).await?;
    Ok(rows.into_iter().map(|row| row.id).collect())
}

/// RUNNING → TERMINATING(timeout), for tasks whose runner did not end them in time.
pub async fn time_out_tasks(tx: &mut Tx, ids: &[i64]) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    tx.exec(&TIME_OUT_TASKS, vec![batch(ids)?]).await.map(drop)
}

/// A true result that arrived after the verdict.
#[derive(Clone, Debug)]
pub struct LateResult {
    pub task_id: i64,
    pub kind: OutcomeKind,
    /// JSON text.
    pub result: String,
    pub detail: Option<EndDetail>,
}

/// Keeps a true result that arrived after the verdict. State and outcome stay.
pub async fn keep_late_result(tx: &mut Tx, late: LateResult) -> Result<(), StoreError> {
    let detail = late.detail.as_ref().map(detail_json).transpose()?;
    let args = vec![
        late.task_id.into(),
        late.result.into(),
        late.kind.name().into(),
        detail.into(),
    ];
    tx.exec(&LATE_RESULT, args).await.map(drop)
}

/// Takes the task out of a runner row whose task was ended by somebody else.
pub async fn free_runner(tx: &mut Tx, host: &str, slot: i64, task_id: i64) -> Result<(), StoreError> {
    tx.exec(&FREE_RUNNER, vec![host.into(), slot.into(), task_id.into()])
        .await
        .map(drop)
}

/// The first beat of a process, or of a slot.
#[derive(Clone, Debug, Serialize)]
pub struct Registration {
    pub host: String,
    pub slot: i64,
    pub instance_id: String,
    pub start_no: i64,
    pub slots: i64,
    /// JSON texts.
    pub queues: String,
    pub labels: String,
    pub version: String,
    pub facts: String,
    pub boot_id: String,
    pub sent_at_ms: i64,
    #[serde(skip)]
    pub beat_ms: i64,
}

#[derive(sqlx::FromRow)]
struct HostRow {
    instance_id: String,
    start_no: i64,
}

#[derive(sqlx::FromRow)]
struct Silence {
    silent_ms: i64,
    slots: i64,
    /// Slots that did not say goodbye, or still hold a task.
    staying: i64,
}

/// A runner as the reaper reads it.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct SeenRow {
    pub host: String,
    pub slot: i64,
    pub start_no: i64,
    pub seq: i64,
    pub age_ms: i64,
    pub task_id: Option<i64>,
    pub leaving: bool,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct OrphanRow {
    pub id: i64,
    pub age_ms: i64,
}

#[derive(Clone, Debug, sqlx::FromRow)]
pub struct TerminatingRow {
    pub id: i64,
    pub host: String,
    pub slot: i64,
    pub start_no: i64,
}

impl Db {
    /// Decides who holds the host, and writes it. All slots change hands at once.
    pub async fn register(&self, registration: Arc<Registration>) -> Result<Identity, StoreError> {
        self.write("register", Class::Beats, move |tx| {
            let registration = Arc::clone(&registration);
            Box::pin(async move { register(tx, &registration).await })
        })
        .await
    }

    pub async fn runners_seen(&self) -> Result<Vec<SeenRow>, StoreError> {
        self.read("reaper", |tx| {
            Box::pin(async move { tx.all(&RUNNERS_SEEN, vec![]).await })
        })
        .await
    }

    /// Hands live tasks that no runner row holds to the reaper. Each is a bug, and named as such.
    pub async fn orphan_strays(&self) -> Result<Vec<i64>, StoreError> {
        let rows: Vec<OnlyId> = self
            .write("orphan_strays", Class::Api, |tx| {
                Box::pin(async move { tx.all(&ORPHAN_STRAYS, vec![]).await })
            })
            .await?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }

    pub async fn orphans(&self) -> Result<Vec<OrphanRow>, StoreError> {
        self.read("reaper", |tx| Box::pin(async move { tx.all(&ORPHANS, vec![]).await }))
            .await
    }

    /// Tasks whose runners must be told to end them.
    pub async fn terminating_tasks(&self) -> Result<Vec<TerminatingRow>, StoreError> {
        self.read("terminating", |tx| {
            Box::pin(async move { tx.all(&TERMINATING_TASKS, vec![]).await })
        })
        .await
    }

    /// Deletes the rows of hosts that were not seen for long and hold nothing.
    pub async fn forget_hosts(&self, unseen_ms: i64) -> Result<u64, StoreError> {
        self.write("forget_hosts", Class::Api, move |tx| {
            Box::pin(async move {
                let gone = tx.exec(&FORGET_RUNNERS, vec![unseen_ms.into()]).await?;
                if gone > 0 {
                    tx.exec(&FORGET_HOSTS, vec![]).await?;
                }
                Ok(gone)
            })
        })
        .await
    }
}

/// The task of a runner row that is still as the reaper saw it; locks the row.
pub async fn lock_as_seen(
    tx: &mut Tx,
    host: &str,
    slot: i64,
    start_no: i64,
    seq: i64,
) -> Result<Option<i64>, StoreError> {
    let row: Option<OnlyId> = tx
        .opt(
            &LOCK_RUNNER_AS_SEEN,
            vec![host.into(), slot.into(), start_no.into(), seq.into()],
        )
        .await?;
    Ok(row.map(|row| row.id))
}

async fn register(tx: &mut Tx, new: &Registration) -> Result<Identity, StoreError> {
    let row: Option<HostRow> = tx.opt(&LOCK_HOST, vec![new.host.as_str().into()]).await?;
    tx.all::<OnlyId>(&LOCK_RUNNERS_OF, vec![new.host.as_str().into()])
        .await?;
    let silence: Silence = tx.one(&HOST_SILENCE, vec![new.host.as_str().into()]).await?;
    let holder = row.map(|row| Holder {
        instance_id: row.instance_id,
        start_no: row.start_no,
        left: silence.slots > 0 && silence.staying == 0,
        silent_ms: silence.silent_ms,
    });
    let identity = identify(holder.as_ref(), &new.instance_id, new.start_no, new.beat_ms);
    match identity {
        Identity::Old | Identity::Taken => return Ok(identity),
        Identity::Holder => {}
        Identity::New => {
            let key = vec![
                new.host.as_str().into(),
                new.instance_id.as_str().into(),
                new.start_no.into(),
            ];
            if tx.exec(&PUT_NEW_HOST, key).await? == 0 {
                return Err(StoreError::Collision(format!(
                    "host {} was registered meanwhile",
                    new.host
                )));
            }
            tx.exec(&PUT_HOST, vec![batch(&[new])?]).await?;
        }
        Identity::Restart | Identity::Successor => {
            tx.exec(&PUT_HOST, vec![batch(&[new])?]).await?;
            if identity == Identity::Successor {
                tx.exec(&ORPHAN_TASKS, vec![new.host.as_str().into()]).await?;
                tx.exec(&FREE_RUNNERS, vec![new.host.as_str().into()]).await?;
            }
            tx.exec(
                &TAKE_RUNNERS,
                vec![
                    new.host.as_str().into(),
                    new.instance_id.as_str().into(),
                    new.start_no.into(),
                ],
            )
            .await?;
            tx.exec(
                &DROP_SURPLUS,
                vec![new.host.as_str().into(), new.slots.into(), new.slot.into()],
            )
            .await?;
        }
    }
    let mut slots: Vec<i64> = if identity == Identity::Holder {
        Vec::new()
    } else {
        (0..new.slots).collect()
    };
    if !slots.contains(&new.slot) {
        slots.push(new.slot);
    }
    tx.exec(
        &PUT_RUNNERS,
        vec![
            new.host.as_str().into(),
            new.instance_id.as_str().into(),
            new.start_no.into(),
            batch(&slots)?,
        ],
    )
    .await?;
    Ok(identity)
}
