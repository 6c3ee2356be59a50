//! A run that somebody asks for. It follows the policy of its job like every other one; a pause does not hold it back.

use super::{Refusal, no_such_job, no_such_trigger, unknown_job};
use crate::context::Context;
use crate::store::audit::audit;
use crate::store::finish::Ended;
use crate::store::jobs::launch::{self, Launched, Wish};
use crate::store::jobs::slots::Places;
use crate::store::jobs::{self as store, JobRow, compiled, settle, triggers};
use crate::store::submit;
use crate::store::{Class, StoreError, Tx};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::Arc;
use systole_shared::error::{Code, Invalid};
use systole_shared::job::task::Occasion;
use systole_shared::json::check_keys;
use systole_shared::trigger::occurrence::SkipReason;
use systole_shared::trigger::zone::Zone;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Ask {
    pub job: String,
    pub trigger: Option<String>,
    /// A JSON object.
    pub data: String,
    pub scheduled_ms: Option<i64>,
    pub key: String,
    pub by: String,
    pub reason: String,
}

#[derive(Clone, Copy, Debug)]
pub struct Started {
    pub task_id: i64,
    pub existing: bool,
    pub waiting: bool,
}

fn refuse(invalid: Invalid) -> Refusal {
    invalid.into()
}

fn data(text: &str) -> Result<Option<Map<String, Value>>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    check_keys(text.as_bytes(), "data")?;
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(Some(map)),
        Ok(_) => Err(refuse(Invalid::new(
            "data",
            "is no JSON object; write {\"key\": \"value\"}",
        ))),
        Err(error) => Err(refuse(Invalid::new("data", error.to_string()))),
    }
}

pub async fn start(ctx: &Context, ask: Ask) -> Result<Started, Refusal> {
    let data = data(&ask.data)?;
    let args = Arc::new((ask, data, ctx.default_zone.clone()));
    let (ended, done) = ctx
        .db
        .write("start_job", Class::Api, move |tx| {
            let args = Arc::clone(&args);
            Box::pin(async move {
                let mut ended = Ended::default();
                let done = transact(tx, &args.0, args.1.as_ref(), &args.2, &mut ended).await?;
                Ok((ended, done))
            })
        })
        .await?;
    crate::flow::after_end(ctx, &ended);
    done
}

async fn transact(
    tx: &mut Tx,
    ask: &Ask,
    data: Option<&Map<String, Value>>,
    default_zone: &Zone,
    ended: &mut Ended,
) -> Result<Result<Started, Refusal>, StoreError> {
    let Some(found) = store::by_name(tx, &[&ask.job]).await?.pop() else {
        return Ok(Err(unknown_job(tx, &ask.job).await?));
    };
    if !ask.key.is_empty()
        && let Some(task_id) = submit::known_key(tx, &run_key(ask)).await?
    {
        return Ok(Ok(Started {
            task_id,
            existing: true,
            waiting: false,
        }));
    }
    let mut places = Places::lock(tx, &[found.id], &BTreeSet::new()).await?;
    let Some(job) = places.jobs.get(&found.id).cloned() else {
        return Ok(Err(no_such_job(&ask.job)));
    };
    let wish = match wish(tx, &job, ask, data, default_zone).await? {
        Ok(wish) => wish,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let launched = launch::launch(tx, &mut places, &[wish], false, ended).await?.pop();
    let waiting = matches!(launched, Some(Launched::Waiting(_)));
    let task_id = match launched {
        Some(Launched::Queued(id) | Launched::Waiting(id)) => id,
        Some(Launched::Skipped(reason, by)) => return Ok(Err(busy(&job, reason, by))),
        Some(Launched::Recorded | Launched::Gone) | None => return Ok(Err(no_such_job(&ask.job))),
    };
    if !ask.key.is_empty() && !submit::put_key(tx, &run_key(ask), task_id).await? {
        return Err(StoreError::Collision("the same key twice at once".into()));
    }
    audit(tx, &ask.by, "job trigger", &ask.job, &ask.reason).await?;
    Ok(Ok(Started {
        task_id,
        existing: false,
        waiting,
    }))
}

fn run_key(ask: &Ask) -> String {
    format!("run:{}:{}", ask.job, ask.key)
}

fn busy(job: &JobRow, reason: SkipReason, by: Option<i64>) -> Refusal {
    let message = match (reason, by) {
        (SkipReason::BacklogFull, _) => format!(
            "job {:?} has {} runs that wait already (max_waiting); nothing was started",
            job.name, job.max_waiting
        ),
        (_, Some(by)) => format!(
            "job {:?} still runs (task {by}) and discards further runs (blocking = \"{}\"); nothing was started. Cancel it, or wait for its end",
            job.name, job.blocking
        ),
        (_, None) => format!(
            "a run of job {:?} waits for its concurrency group, and further ones are discarded; nothing was started",
            job.name
        ),
    };
    Refusal::new(Code::JobBusy, message)
}

async fn wish(
    tx: &mut Tx,
    job: &JobRow,
    ask: &Ask,
    data: Option<&Map<String, Value>>,
    default_zone: &Zone,
) -> Result<Result<Wish, Refusal>, StoreError> {
    let unreadable = |error: String| Refusal::new(Code::InvalidJob, format!("job {:?}: {error}", job.name));
    let compiled = match compiled::job(job) {
        Ok(compiled) => compiled,
        Err(error) => return Ok(Err(unreadable(error))),
    };
    let rows = triggers::of_jobs(tx, &[job.id]).await?;
    let row = match &ask.trigger {
        None => None,
        Some(name) => match rows.iter().find(|row| row.name == *name) {
            Some(row) => Some(row),
            None => {
                let known: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
                return Ok(Err(no_such_trigger(&job.name, name, &known)));
            }
        },
    };
    let spec = match row.map(compiled::trigger_spec).transpose() {
        Ok(spec) => spec,
        Err(error) => return Ok(Err(unreadable(error))),
    };
    let scheduled_ms = match ask.scheduled_ms {
        Some(ms) => ms,
        None => settle::now_ms(tx).await?,
    };
    let task = compiled.make_task(&Occasion {
        trigger: ask.trigger.as_deref(),
        scheduled_ms,
        zone: &spec.as_deref().map_or_else(|| default_zone.clone(), compiled::zone),
        priority: spec.as_ref().and_then(|spec| spec.priority),
        trigger_data: spec.as_ref().map(|spec| &spec.data),
        request_data: data,
    });
    let task = match task {
        Ok(task) => task,
        Err(invalid) => return Ok(Err(refuse(invalid))),
    };
    let route = launch::routed(&compiled, &task);
    Ok(Ok(Wish {
        job_id: job.id,
        spec: Arc::new(task),
        max_retries: compiled.retry.max_retries,
        lane_id: row.map_or(job.lane_id, |row| row.lane_id),
        route,
        trigger_id: None,
        trigger_name: ask.trigger.clone().unwrap_or_default(),
        scheduled_ms,
        source: "manual",
        parent_root: 0,
        by: ask.by.as_str().into(),
        why: (!ask.reason.is_empty()).then(|| ask.reason.as_str().into()),
    }))
}
