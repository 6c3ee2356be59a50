//! Raising: what tells of a cause, once for each cause and channel, and what is held back for a while.

use super::super::db::{Tx, batch};
use super::super::error::StoreError;
use super::super::sql::Sql;
use super::Number;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use systole_shared::alarm::{Kind, Notice};

/// Up to when the last alarm of a rule counts. One that lies further ahead than a silence lasts was written by a clock that was wrong.
static LAST_TOLD: Sql = Sql::new(
    "last_told",
    "SELECT a.job_id, a.rule, max(a.window_ms) AS window_ms FROM {each:$1} JOIN alarm AS a \
       ON {is:a.job_id,CAST(e.value->>'job_id' AS BIGINT)} AND a.rule = e.value->>'rule' \
     WHERE a.status <> 'silenced' AND a.window_ms <= CAST(e.value->>'until_ms' AS BIGINT) GROUP BY a.job_id, a.rule",
);
static NOW: Sql = Sql::new("alarm_now", "SELECT {now} AS n");
static PUT_ALARMS: Sql = Sql::new(
    "put_alarms",
    "INSERT INTO alarm (cause, channel, kind, job_id, job, rule, notice, status, delivery_id, raised_at_ms, window_ms, next_at_ms) \
     SELECT e.value->>'cause', e.value->>'channel', e.value->>'kind', CAST(e.value->>'job_id' AS BIGINT), e.value->>'job', \
       e.value->>'rule', e.value->>'notice', e.value->>'status', e.value->>'delivery_id', \
       CAST(e.value->>'raised_at_ms' AS BIGINT), CAST(e.value->>'window_ms' AS BIGINT), CAST(e.value->>'next_at_ms' AS BIGINT) \
     FROM {each:$1} WHERE TRUE ON CONFLICT DO NOTHING RETURNING cause, channel",
);
static LOCK_CAUSES: Sql = Sql::new(
    "lock_causes",
    "SELECT a.id, a.cause, a.channel, a.status, a.notice FROM {each:$1} JOIN alarm AS a ON {is:a.cause,e.value->>'cause'} \
       AND a.channel = e.value->>'channel' ORDER BY a.id {for_update_of:a}",
);
static SET_NOTICES: Sql = Sql::new(
    "set_notices",
    "UPDATE alarm SET notice = x.notice, status = x.status, tries = CASE WHEN x.reopen = 1 THEN 0 ELSE alarm.tries END, \
       delivery_id = CASE WHEN x.reopen = 1 THEN x.delivery_id ELSE alarm.delivery_id END, \
       next_at_ms = CASE WHEN x.reopen = 1 THEN {now} + x.wait ELSE alarm.next_at_ms END, \
       settled_at_ms = CASE WHEN x.status IN ('pending', 'held') THEN NULL ELSE alarm.settled_at_ms END \
     FROM (SELECT CAST(e.value->>'id' AS BIGINT) AS id, e.value->>'notice' AS notice, e.value->>'status' AS status, \
       CAST(e.value->>'reopen' AS BIGINT) AS reopen, e.value->>'delivery_id' AS delivery_id, \
       CAST(e.value->>'wait' AS BIGINT) AS wait FROM {each:$1}) AS x WHERE {is:alarm.id,x.id}",
);
/// What was held back of these jobs, and is put right now.
static SILENCE_HELD: Sql = Sql::new(
    "silence_held",
    "UPDATE alarm SET status = 'silenced', settled_at_ms = {now} WHERE job_id {among:$1} AND status = 'held' \
       AND kind IN ('failure', 'late')",
);

pub static STATEMENTS: &[&Sql] = &[&LAST_TOLD, &NOW, &PUT_ALARMS, &LOCK_CAUSES, &SET_NOTICES, &SILENCE_HELD];

/// What becomes of a cause that strikes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It was told: nothing.
    Ignore,
    /// It is counted, in the alarm if that waits still.
    Count,
    /// It is told once more, with all that belongs to it.
    Tell,
}

/// An alarm to be raised: one row for each channel.
#[derive(Clone, Debug)]
pub struct Raise {
    /// 0: of no one job.
    pub job_id: i64,
    pub job: String,
    pub rule: String,
    pub kind: Kind,
    /// What makes it one: the same cause is one alarm, whoever finds it. A run on many hosts at once gives its members one.
    pub cause: String,
    pub to: Vec<String>,
    /// At most one alarm of this rule in so long; 0: no bound.
    pub silence_ms: i64,
    /// So long more of the same cause is waited for.
    pub gather_ms: i64,
    pub again: Again,
    pub notice: Notice,
}

#[derive(Serialize)]
struct RuleJson<'a> {
    job_id: i64,
    rule: &'a str,
    until_ms: i64,
}

#[derive(sqlx::FromRow)]
struct Told {
    job_id: i64,
    rule: String,
    window_ms: i64,
}

#[derive(Serialize)]
struct AlarmJson<'a> {
    cause: &'a str,
    channel: &'a str,
    kind: &'static str,
    job_id: i64,
    job: &'a str,
    rule: &'a str,
    notice: String,
    status: &'static str,
    delivery_id: String,
    raised_at_ms: i64,
    window_ms: i64,
    next_at_ms: i64,
}

#[derive(sqlx::FromRow, PartialEq, Eq, Hash)]
struct Key {
    cause: String,
    channel: String,
}

#[derive(sqlx::FromRow)]
struct CauseRow {
    id: i64,
    cause: String,
    channel: String,
    status: String,
    notice: String,
}

#[derive(Serialize)]
struct NoticeJson {
    id: i64,
    notice: String,
    status: String,
    reopen: i64,
    delivery_id: String,
    wait: i64,
}

fn delivery_id() -> String {
    format!("msg_{}", uuid::Uuid::now_v7().simple())
}

fn json(notice: &Notice) -> Result<String, StoreError> {
    serde_json::to_string(notice).map_err(|error| StoreError::Data(error.to_string()))
}

/// Where an alarm stands that is to be written.
struct Placed {
    cause: String,
    held: bool,
    window_ms: i64,
}

/// Whether a rule may speak now. Within its silence it is held back to the end of it: if the trouble is over by then, nothing is told,
/// else one alarm tells of all.
fn place(raise: &Raise, now: i64, last: Option<i64>) -> Placed {
    match last {
        Some(last) if raise.silence_ms > 0 && last.saturating_add(raise.silence_ms) > now => {
            let window_ms = if last > now {
                last
            } else {
                last.saturating_add(raise.silence_ms)
            };
            Placed {
                cause: format!("j{}:{}:held:{window_ms}", raise.job_id, raise.rule),
                held: true,
                window_ms,
            }
        }
        _ => Placed {
            cause: raise.cause.clone(),
            held: false,
            window_ms: now,
        },
    }
}

/// Writes alarms. Returns for each whether it will be told without waiting for the end of a silence.
pub async fn raise(tx: &mut Tx, raises: &[Raise]) -> Result<Vec<bool>, StoreError> {
    if raises.is_empty() {
        return Ok(Vec::new());
    }
    let now = tx.one::<Number>(&NOW, vec![]).await?.n;
    let quiet: Vec<RuleJson<'_>> = raises
        .iter()
        .filter(|raise| raise.silence_ms > 0)
        .map(|raise| RuleJson {
            job_id: raise.job_id,
            rule: &raise.rule,
            until_ms: now.saturating_add(raise.silence_ms),
        })
        .collect();
    let mut last: HashMap<(i64, String), i64> = HashMap::new();
    if !quiet.is_empty() {
        let told: Vec<Told> = tx.all(&LAST_TOLD, vec![batch(&quiet)?]).await?;
        last.extend(told.into_iter().map(|row| ((row.job_id, row.rule), row.window_ms)));
    }
    let mut placed: Vec<Placed> = Vec::with_capacity(raises.len());
    for raise in raises {
        let key = (raise.job_id, raise.rule.clone());
        let one = place(raise, now, last.get(&key).copied());
        // The next of this call is one after it.
        last.insert(key, one.window_ms);
        placed.push(one);
    }
    let mut rows = Vec::new();
    let mut known: HashSet<(&str, &str)> = HashSet::new();
    let mut struck: Vec<(usize, &str)> = Vec::new();
    for (index, (raise, placed)) in raises.iter().zip(&placed).enumerate() {
        for channel in &raise.to {
            // The same cause twice in one call: the second is added to the first.
            if !known.insert((&placed.cause, channel)) {
                struck.push((index, channel));
                continue;
            }
            rows.push(AlarmJson {
                cause: &placed.cause,
                channel,
                kind: raise.kind.name(),
                job_id: raise.job_id,
                job: &raise.job,
                rule: &raise.rule,
                notice: json(&raise.notice)?,
                status: if placed.held { "held" } else { "pending" },
                delivery_id: delivery_id(),
                raised_at_ms: now,
                window_ms: placed.window_ms,
                next_at_ms: if placed.held {
                    placed.window_ms
                } else {
                    now + raise.gather_ms
                },
            });
        }
    }
    let written: HashSet<Key> = tx.all(&PUT_ALARMS, vec![batch(&rows)?]).await?.into_iter().collect();
    for (index, (raise, placed)) in raises.iter().zip(&placed).enumerate() {
        for channel in &raise.to {
            let key = Key {
                cause: placed.cause.clone(),
                channel: channel.clone(),
            };
            if !written.contains(&key) && !struck.contains(&(index, channel.as_str())) {
                struck.push((index, channel));
            }
        }
    }
    if !struck.is_empty() {
        strike(tx, raises, &placed, &struck).await?;
    }
    Ok(placed.iter().map(|placed| !placed.held).collect())
}

#[derive(Serialize)]
struct CauseJson<'a> {
    cause: &'a str,
    channel: &'a str,
}

/// Causes that have their alarm already.
async fn strike(tx: &mut Tx, raises: &[Raise], placed: &[Placed], struck: &[(usize, &str)]) -> Result<(), StoreError> {
    let causes: Vec<CauseJson<'_>> = struck
        .iter()
        .map(|(index, channel)| CauseJson {
            cause: &placed[*index].cause,
            channel,
        })
        .collect();
    let rows: Vec<CauseRow> = tx.all(&LOCK_CAUSES, vec![batch(&causes)?]).await?;
    let mut writes: Vec<NoticeJson> = Vec::new();
    let mut seen: HashSet<i64> = HashSet::new();
    for row in rows {
        if !seen.insert(row.id) {
            continue;
        }
        let mut notice: Notice = serde_json::from_str(&row.notice).map_err(|_| StoreError::Corrupt {
            table: "alarm",
            column: "notice",
            id: row.id,
        })?;
        let waits = matches!(row.status.as_str(), "pending" | "held");
        let mut status = row.status.clone();
        let (mut changed, mut reopen, mut wait) = (false, false, 0);
        for &(index, channel) in struck {
            let raise = &raises[index];
            if channel != row.channel || placed[index].cause != row.cause {
                continue;
            }
            if placed[index].held && status == "silenced" {
                // It was put right, and is wrong again before the silence is over.
                notice = raise.notice.clone();
                status = "held".into();
                changed = true;
                continue;
            }
            // Held back, every cause is added to the one that is told at the end.
            if placed[index].held || raise.again != Again::Ignore {
                notice.add(&raise.notice);
                changed = true;
            }
            if !waits && raise.again == Again::Tell {
                reopen = true;
                wait = raise.gather_ms;
            }
        }
        if changed {
            writes.push(NoticeJson {
                id: row.id,
                notice: json(&notice)?,
                status: if reopen { "pending".into() } else { status },
                reopen: i64::from(reopen),
                delivery_id: delivery_id(),
                wait,
            });
        }
    }
    if writes.is_empty() {
        return Ok(());
    }
    tx.exec(&SET_NOTICES, vec![batch(&writes)?]).await.map(drop)
}

/// These jobs work again: what was held back of their trouble is not told any more.
pub async fn silence_held(tx: &mut Tx, jobs: &[i64]) -> Result<(), StoreError> {
    tx.exec(&SILENCE_HELD, vec![batch(jobs)?]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_a_silence_an_alarm_is_held_back_to_its_end() {
        let raise = |silence_ms| Raise {
            job_id: 7,
            job: "a".into(),
            rule: "failure:1".into(),
            kind: Kind::Failure,
            cause: "own".into(),
            to: vec!["c".into()],
            silence_ms,
            gather_ms: 0,
            again: Again::Ignore,
            notice: Notice::default(),
        };
        for (silence, last, held, window) in [
            (0, Some(990), false, 1_000),
            (100, None, false, 1_000),
            (100, Some(900), false, 1_000),
            (100, Some(950), true, 1_050),
            // One is held back already: it joins that.
            (100, Some(1_050), true, 1_050),
        ] {
            let placed = place(&raise(silence), 1_000, last);
            assert_eq!((placed.held, placed.window_ms), (held, window), "{silence} {last:?}");
            assert_eq!(placed.cause == "own", !held);
        }
    }
}
