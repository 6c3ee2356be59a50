//! Storing tasks: lanes, idempotency keys, and the batch insert.

use super::db::{Class, Db, Tx, batch};
use super::error::StoreError;
use super::sql::{Dialect, Sql};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systole_shared::policy::lane::{Labels, Lane};
use systole_shared::task::TaskSpec;

static PUT_LANE: Sql = Sql::new(
    "put_lane",
    "INSERT INTO lane (queue, require, priority) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
);
static GET_LANE: Sql = Sql::new(
    "get_lane",
    "SELECT id, queue, require, priority FROM lane WHERE queue = $1 AND require = $2 AND priority = $3",
);
static LANES_AFTER: Sql = Sql::new(
    "lanes_after",
    "SELECT id, queue, require, priority FROM lane WHERE id > $1 ORDER BY id",
);
/// A key that another transaction is just storing is waited for, so that a repeated submission sees it.
static PUT_KEYS: Sql = Sql::new(
    "put_keys",
    "INSERT INTO submission (key, body_hash, task_ids, created_at_ms) \
     SELECT e.value->>'key', e.value->>'hash', e.value->>'ids', {now} FROM {each:$1} WHERE TRUE ORDER BY 1 \
     ON CONFLICT (key) DO NOTHING RETURNING key",
);
static GET_KEYS: Sql = Sql::new(
    "get_keys",
    "SELECT submission.key, body_hash, task_ids FROM {each:$1} JOIN submission ON {is:submission.key,e.value->>'key'}",
);
static SET_KEYS: Sql = Sql::new(
    "set_keys",
    "UPDATE submission SET task_ids = x.ids FROM (SELECT e.value->>'key' AS k, e.value->>'ids' AS ids FROM {each:$1}) AS x \
     WHERE {is:submission.key,x.k}",
);
static NEXT_IDS: Sql = Sql::new(
    "next_ids",
    "SELECT nextval('task_id_seq') AS id FROM generate_series(1, $1)",
);
/// SQLite has one writer, so the sequence cannot move under us.
static LAST_ID: Sql = Sql::new("last_id", "SELECT seq AS id FROM sqlite_sequence WHERE name = 'task'");
/// The insert, with room for what only some tasks have: a plain task pays nothing for it.
macro_rules! put_tasks {
    ($columns:literal, $values:literal, $fields:literal, $end:literal) => {
        concat!(
            "INSERT INTO task (id, root_id, status, lane_id, priority, target_host, target_slot, name, job, spec, max_retries, \
       retry_delay_ms, timeout_ms, queue_timeout_ms, start_timeout_ms, callback_url, submitted_by, submit_reason, created_at_ms, \
       run_at_ms, eligible_at_ms, output_max_bytes, output_keep_ms", $columns, ") \
     SELECT x.id, x.id, CASE WHEN x.run_at IS NULL AND x.delay IS NULL THEN 2 ELSE 1 END, x.lane, x.priority, x.target_host, \
       x.target_slot, x.name, x.job, x.spec, x.max_retries, x.retry_delay, x.timeout, x.queue_timeout, x.start_timeout, x.callback, $2, $3, {now}, \
       COALESCE(x.run_at, {now} + x.delay), CASE WHEN x.run_at IS NULL AND x.delay IS NULL THEN {now} END, x.output_max, x.output_keep", $values, " \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, CAST(e.value->>'lane' AS BIGINT) AS lane, \
       CAST(e.value->>'priority' AS BIGINT) AS priority, e.value->>'target_host' AS target_host, \
       CAST(e.value->>'target_slot' AS BIGINT) AS target_slot, e.value->>'name' AS name, e.value->>'job' AS job, \
       e.value->>'spec' AS spec, CAST(e.value->>'max_retries' AS BIGINT) AS max_retries, \
       CAST(e.value->>'retry_delay' AS BIGINT) AS retry_delay, CAST(e.value->>'timeout' AS BIGINT) AS timeout, \
       CAST(e.value->>'queue_timeout' AS BIGINT) AS queue_timeout, CAST(e.value->>'start_timeout' AS BIGINT) AS start_timeout, \
       e.value->>'callback' AS callback, CAST(e.value->>'run_at' AS BIGINT) AS run_at, \
       CAST(e.value->>'delay' AS BIGINT) AS delay, CAST(e.value->>'output_max' AS BIGINT) AS output_max, \
       CAST(e.value->>'output_keep' AS BIGINT) AS output_keep", $fields, " FROM {each:$1}) AS x", $end
        )
    };
}
static PUT_TASKS: Sql = Sql::new("put_tasks", put_tasks!("", "", "", ""));
static PUT_BATCH_TASKS: Sql = Sql::new(
    "put_batch_tasks",
    put_tasks!(
        ", batch, batch_line",
        ", x.batch, x.batch_line",
        ", e.value->>'batch' AS batch, CAST(e.value->>'line' AS BIGINT) AS batch_line",
        ""
    ),
);
/// The index decides: a key whose task waits or runs makes no second one.
static PUT_UNIQUE_TASKS: Sql = Sql::new(
    "put_unique_tasks",
    put_tasks!(
        ", unique_key",
        ", x.unique_key",
        ", e.value->>'unique_key' AS unique_key",
        " WHERE TRUE ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND status IN (1, 2, 3, 4, 9) DO NOTHING RETURNING id"
    ),
);
static HOLDERS: Sql = Sql::new(
    "unique_holders",
    "SELECT task.id, task.unique_key AS key FROM {each:$1} JOIN task ON {is:task.unique_key,e.value->>'key'} \
     WHERE task.unique_key IS NOT NULL AND task.status IN (1, 2, 3, 4, 9)",
);
static PUT_TAGS: Sql = Sql::new(
    "put_tags",
    "INSERT INTO task_tag (tag, task_id) SELECT e.value->>'tag', CAST(e.value->>'id' AS BIGINT) FROM {each:$1} WHERE TRUE \
     ON CONFLICT DO NOTHING",
);

pub static STATEMENTS: &[&Sql] = &[
    &PUT_LANE,
    &GET_LANE,
    &LANES_AFTER,
    &PUT_KEYS,
    &GET_KEYS,
    &SET_KEYS,
    &PUT_TASKS,
    &PUT_BATCH_TASKS,
    &PUT_UNIQUE_TASKS,
    &HOLDERS,
    &PUT_TAGS,
];

#[derive(Clone, Debug, sqlx::FromRow)]
struct LaneRow {
    id: i64,
    queue: String,
    require: String,
    priority: i64,
}

impl LaneRow {
    fn parse(self) -> Result<(i64, Lane), StoreError> {
        let require: Labels = serde_json::from_str(&self.require).map_err(|_| StoreError::Corrupt {
            table: "lane",
            column: "require",
            id: self.id,
        })?;
        let priority = u32::try_from(self.priority).map_err(|_| StoreError::Corrupt {
            table: "lane",
            column: "priority",
            id: self.id,
        })?;
        Ok((
            self.id,
            Lane {
                queue: self.queue,
                require,
                priority,
            },
        ))
    }
}

/// One task to store.
#[derive(Clone, Debug)]
pub struct NewTask {
    pub spec: Arc<TaskSpec>,
    pub lane_id: i64,
    /// Idempotency key of the client, with the SHA-256 of the body.
    pub key: Option<(String, String)>,
    pub submitted_by: Arc<str>,
    pub reason: Option<Arc<str>>,
}

/// What became of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    New(i64),
    /// The key was known with this body.
    Existing(i64),
    /// The key was used with another body.
    KeyReused,
}

#[derive(Serialize)]
struct KeyJson<'a> {
    key: &'a str,
    hash: &'a str,
    /// JSON array.
    ids: String,
}

#[derive(Serialize)]
struct KeyIdsJson<'a> {
    key: &'a str,
    ids: String,
}

#[derive(Serialize)]
struct TaskJson<'a> {
    id: i64,
    lane: i64,
    priority: u32,
    target_host: Option<&'a str>,
    target_slot: Option<u32>,
    name: &'a str,
    job: Option<&'a str>,
    spec: String,
    max_retries: u32,
    retry_delay: u64,
    timeout: Option<u64>,
    queue_timeout: Option<u64>,
    start_timeout: Option<u64>,
    callback: Option<&'a str>,
    run_at: Option<i64>,
    delay: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_keep: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_key: Option<&'a str>,
}

impl TaskJson<'_> {
    fn statement(&self) -> &'static Sql {
        match (self.batch, self.unique_key) {
            (None, None) => &PUT_TASKS,
            (Some(_), _) => &PUT_BATCH_TASKS,
            (None, Some(_)) => &PUT_UNIQUE_TASKS,
        }
    }
}

#[derive(Clone, Serialize, sqlx::FromRow)]
struct Holder {
    id: i64,
    key: String,
}

#[derive(Serialize)]
struct TagJson<'a> {
    tag: &'a str,
    id: i64,
}

#[derive(sqlx::FromRow)]
struct KeyRow {
    key: String,
    body_hash: String,
    task_ids: String,
}

#[derive(sqlx::FromRow)]
struct OnlyKey {
    key: String,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
}

impl Db {
    /// The id of a lane, made when it is new.
    pub async fn lane_id(&self, lane: &Lane) -> Result<i64, StoreError> {
        let require = serde_json::to_string(&lane.require).map_err(|error| StoreError::Data(error.to_string()))?;
        let (queue, priority) = (lane.queue.clone(), i64::from(lane.priority));
        self.write("lane", Class::Api, move |tx| {
            let (queue, require) = (queue.clone(), require.clone());
            Box::pin(async move {
                let key = || vec![queue.clone().into(), require.clone().into(), priority.into()];
                if let Some(row) = tx.opt::<LaneRow>(&GET_LANE, key()).await? {
                    return Ok(row.id);
                }
                tx.exec(&PUT_LANE, key()).await?;
                Ok(tx.one::<LaneRow>(&GET_LANE, key()).await?.id)
            })
        })
        .await
    }

    /// Lanes with a higher id, by id.
    pub async fn lanes_after(&self, id: i64) -> Result<Vec<(i64, Lane)>, StoreError> {
        self.read("lanes", move |tx| Box::pin(read_lanes_after(tx, id))).await
    }

    /// Stores tasks in one transaction. `batch_key` is unique to this batch: when the outcome of the
    /// commit is not known, calling again with the same key tells, and stores nothing twice.
    pub async fn put_tasks(&self, batch_key: String, tasks: Arc<Vec<NewTask>>) -> Result<Vec<Stored>, StoreError> {
        self.write("submit", Class::Api, move |tx| {
            let (batch_key, tasks) = (batch_key.clone(), Arc::clone(&tasks));
            Box::pin(async move { put_tasks(tx, &batch_key, &tasks).await })
        })
        .await
    }
}

pub(super) async fn read_lanes_after(tx: &mut Tx, id: i64) -> Result<Vec<(i64, Lane)>, StoreError> {
    let rows: Vec<LaneRow> = tx.all(&LANES_AFTER, vec![id.into()]).await?;
    rows.into_iter().map(LaneRow::parse).collect()
}

async fn put_tasks(tx: &mut Tx, batch_key: &str, tasks: &[NewTask]) -> Result<Vec<Stored>, StoreError> {
    // One id for each item, taken first, so that the rows of the keys can name them at once. Those of items
    // that turn out to be known already stay unused.
    let ids = next_ids(tx, tasks.len()).await?;
    let mut keyed: HashMap<&str, (&str, i64)> = HashMap::new();
    for (task, id) in tasks.iter().zip(&ids) {
        if let Some((key, hash)) = &task.key {
            keyed.entry(key.as_str()).or_insert((hash.as_str(), *id));
        }
    }
    let all_new: Vec<Stored> = ids.iter().copied().map(Stored::New).collect();
    let mut keys: Vec<KeyJson<'_>> = keyed
        .iter()
        .map(|(key, (hash, id))| KeyJson {
            key,
            hash,
            ids: format!("[{id}]"),
        })
        .collect();
    keys.push(KeyJson {
        key: batch_key,
        hash: "",
        ids: format_batch(&all_new),
    });
    let keys = batch(&keys)?;
    let fresh: Vec<OnlyKey> = tx.all(&PUT_KEYS, vec![keys.clone()]).await?;
    let fresh: HashSet<String> = fresh.into_iter().map(|row| row.key).collect();
    let known: HashMap<String, KeyRow> = if fresh.len() == keyed.len() + 1 {
        HashMap::new()
    } else {
        let rows: Vec<KeyRow> = tx.all(&GET_KEYS, vec![keys]).await?;
        rows.into_iter().map(|row| (row.key.clone(), row)).collect()
    };
    if !fresh.contains(batch_key) {
        // An earlier call with this batch key was committed after all.
        let row = known
            .get(batch_key)
            .ok_or_else(|| StoreError::Other("submission vanished".into()))?;
        return parse_batch(&row.task_ids);
    }

    // Which items make a task: those without a key, and the first one of each fresh key.
    let mut first_of: HashMap<&str, usize> = HashMap::new();
    let mut makes: Vec<bool> = Vec::with_capacity(tasks.len());
    for (index, task) in tasks.iter().enumerate() {
        makes.push(match &task.key {
            None => true,
            Some((key, _)) if fresh.contains(key.as_str()) => *first_of.entry(key.as_str()).or_insert(index) == index,
            Some(_) => false,
        });
    }
    let mut stored: Vec<Stored> = Vec::with_capacity(tasks.len());
    for ((task, makes), id) in tasks.iter().zip(&makes).zip(ids) {
        stored.push(match (&task.key, *makes) {
            (_, true) => Stored::New(id),
            (Some((key, hash)), false) => existing(key, hash, &first_of, tasks, &stored, &known)?,
            (None, false) => return Err(StoreError::Other("a task without a key is always new".into())),
        });
    }
    insert(tx, tasks, &mut stored).await?;

    if stored != all_new {
        let mut rows = vec![KeyIdsJson {
            key: batch_key,
            ids: format_batch(&stored),
        }];
        // A fresh key whose task was there already, by its unique key, stands for that one.
        for ((task, stored), new) in tasks.iter().zip(&stored).zip(&all_new) {
            if let (Some((key, _)), Stored::Existing(id)) = (&task.key, stored)
                && *new == Stored::New(keyed.get(key.as_str()).map_or(0, |(_, id)| *id))
                && fresh.contains(key.as_str())
            {
                rows.push(KeyIdsJson {
                    key,
                    ids: format!("[{id}]"),
                });
            }
        }
        tx.exec(&SET_KEYS, vec![batch(&rows)?]).await?;
    }
    Ok(stored)
}

fn existing(
    key: &str,
    hash: &str,
    first_of: &HashMap<&str, usize>,
    tasks: &[NewTask],
    stored: &[Stored],
    known: &HashMap<String, KeyRow>,
) -> Result<Stored, StoreError> {
    if let Some(&first) = first_of.get(key) {
        // The same key twice in one batch.
        let same = tasks[first]
            .key
            .as_ref()
            .is_some_and(|(_, first_hash)| first_hash == hash);
        return Ok(match (same, &stored[first]) {
            (true, Stored::New(id) | Stored::Existing(id)) => Stored::Existing(*id),
            _ => Stored::KeyReused,
        });
    }
    let row = known
        .get(key)
        .ok_or_else(|| StoreError::Other("submission vanished".into()))?;
    if row.body_hash != hash {
        return Ok(Stored::KeyReused);
    }
    let ids: Vec<i64> = serde_json::from_str(&row.task_ids).unwrap_or_default();
    match ids.first() {
        Some(&id) => Ok(Stored::Existing(id)),
        None => Err(StoreError::Corrupt {
            table: "submission",
            column: "task_ids",
            id: 0,
        }),
    }
}

/// New ids as they are, existing ones negative, refused ones 0.
fn format_batch(stored: &[Stored]) -> String {
    let ids: Vec<String> = stored
        .iter()
        .map(|item| match item {
            Stored::New(id) => id.to_string(),
            Stored::Existing(id) => format!("-{id}"),
            Stored::KeyReused => "0".into(),
        })
        .collect();
    format!("[{}]", ids.join(","))
}

fn parse_batch(text: &str) -> Result<Vec<Stored>, StoreError> {
    let ids: Vec<i64> = serde_json::from_str(text).map_err(|_| StoreError::Corrupt {
        table: "submission",
        column: "task_ids",
        id: 0,
    })?;
    Ok(ids
        .into_iter()
        .map(|id| match id {
            0 => Stored::KeyReused,
            id if id < 0 => Stored::Existing(-id),
            id => Stored::New(id),
        })
        .collect())
}

pub async fn next_ids(tx: &mut Tx, count: usize) -> Result<Vec<i64>, StoreError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let count = i64::try_from(count).map_err(|_| StoreError::Other("too many tasks".into()))?;
    if tx.dialect() == Dialect::Postgres {
        let rows: Vec<OnlyId> = tx.all(&NEXT_IDS, vec![count.into()]).await?;
        return Ok(rows.into_iter().map(|row| row.id).collect());
    }
    let last = tx.opt::<OnlyId>(&LAST_ID, vec![]).await?.map_or(0, |row| row.id);
    Ok((last + 1..=last + count).collect())
}

/// The run of a job that was asked for with this key before.
pub async fn known_key(tx: &mut Tx, key: &str) -> Result<Option<i64>, StoreError> {
    let keys = batch(&[KeyJson {
        key,
        hash: "",
        ids: String::new(),
    }])?;
    let row: Option<KeyRow> = tx.opt(&GET_KEYS, vec![keys]).await?;
    Ok(row.and_then(|row| serde_json::from_str::<Vec<i64>>(&row.task_ids).ok()?.first().copied()))
}

/// Remembers the key of a run. False: it is known by now.
pub async fn put_key(tx: &mut Tx, key: &str, task_id: i64) -> Result<bool, StoreError> {
    let keys = batch(&[KeyJson {
        key,
        hash: "",
        ids: format!("[{task_id}]"),
    }])?;
    let fresh: Vec<OnlyKey> = tx.all(&PUT_KEYS, vec![keys]).await?;
    Ok(!fresh.is_empty())
}

/// Stores tasks with ids of [`next_ids`].
pub(super) async fn insert_new(tx: &mut Tx, tasks: &[NewTask], ids: &[i64]) -> Result<(), StoreError> {
    let mut stored: Vec<Stored> = ids.iter().copied().map(Stored::New).collect();
    insert(tx, tasks, &mut stored).await
}

async fn insert(tx: &mut Tx, tasks: &[NewTask], stored: &mut [Stored]) -> Result<(), StoreError> {
    let mut rows: Vec<TaskJson<'_>> = Vec::with_capacity(tasks.len());
    let mut tags: Vec<TagJson<'_>> = Vec::new();
    for (task, stored) in tasks.iter().zip(stored.iter()) {
        let Stored::New(id) = *stored else { continue };
        let spec = &task.spec;
        rows.push(TaskJson {
            id,
            lane: task.lane_id,
            priority: spec.priority,
            target_host: spec.target.as_ref().map(|t| t.host.as_str()),
            target_slot: spec.target.as_ref().and_then(|t| t.slot),
            name: &spec.name,
            job: spec.job.as_deref(),
            spec: serde_json::to_string(&**spec).map_err(|error| StoreError::Data(error.to_string()))?,
            max_retries: spec.retry.max_retries,
            retry_delay: spec.retry.delay_ms,
            timeout: spec.timeout_ms,
            queue_timeout: spec.queue_timeout_ms,
            start_timeout: spec.start_timeout_ms,
            callback: spec.callback_url.as_deref(),
            run_at: spec.run_at_ms,
            delay: spec.delay_ms,
            output_max: spec.output.max_bytes,
            output_keep: spec.output.keep_ms,
            batch: spec.batch.as_deref(),
            line: spec.batch_line,
            unique_key: spec.unique_key.as_deref(),
        });
        tags.extend(spec.tags.iter().map(|tag| TagJson { tag, id }));
    }
    // Actor and reason are the same for all tasks of one call; a batch of many calls is inserted per group.
    let mut start = 0;
    let made: Vec<&NewTask> = tasks
        .iter()
        .zip(stored.iter())
        .filter(|(_, stored)| matches!(stored, Stored::New(_)))
        .map(|(task, _)| task)
        .collect();
    let mut refused: HashMap<i64, &str> = HashMap::new();
    while start < rows.len() {
        let (by, reason, sql) = (&made[start].submitted_by, &made[start].reason, rows[start].statement());
        let mut end = start + 1;
        while end < rows.len()
            && made[end].submitted_by == *by
            && made[end].reason == *reason
            && std::ptr::eq(rows[end].statement(), sql)
        {
            end += 1;
        }
        let args = vec![
            batch(&rows[start..end])?,
            by.to_string().into(),
            reason.as_ref().map(|reason| reason.to_string()).into(),
        ];
        if std::ptr::eq(sql, &PUT_UNIQUE_TASKS) {
            let done: Vec<OnlyId> = tx.all(sql, args).await?;
            let done: HashSet<i64> = done.into_iter().map(|row| row.id).collect();
            for row in rows[start..end].iter().filter(|row| !done.contains(&row.id)) {
                refused.insert(row.id, row.unique_key.unwrap_or_default());
            }
        } else {
            tx.exec(sql, args).await?;
        }
        start = end;
    }
    if !refused.is_empty() {
        tags.retain(|tag| !refused.contains_key(&tag.id));
        name_holders(tx, &refused, stored).await?;
    }
    if !tags.is_empty() {
        tx.exec(&PUT_TAGS, vec![batch(&tags)?]).await?;
    }
    Ok(())
}

/// Those that were not stored become the tasks that hold their unique keys.
async fn name_holders(tx: &mut Tx, refused: &HashMap<i64, &str>, stored: &mut [Stored]) -> Result<(), StoreError> {
    let keys: Vec<Holder> = refused
        .iter()
        .map(|(id, key)| Holder {
            id: *id,
            key: (*key).to_owned(),
        })
        .collect();
    let holders: Vec<Holder> = tx.all(&HOLDERS, vec![batch(&keys)?]).await?;
    let holders: HashMap<String, i64> = holders.into_iter().map(|row| (row.key, row.id)).collect();
    for stored in stored {
        // An existing one is the same key twice in this batch: it means the first.
        if let Stored::New(id) | Stored::Existing(id) = *stored
            && let Some(key) = refused.get(&id)
        {
            // The holder ended since the insert looked: the whole transaction is repeated.
            let holder = holders
                .get(*key)
                .ok_or_else(|| StoreError::Collision("the holder of a unique key ended just now".into()))?;
            *stored = Stored::Existing(*holder);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_round_trips_through_its_key() {
        let stored = vec![Stored::New(7), Stored::Existing(3), Stored::KeyReused];
        assert_eq!(parse_batch(&format_batch(&stored)).expect("parses"), stored);
    }
}
