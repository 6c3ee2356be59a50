//! The outbox of alarms: written by the transaction that has the cause, once for each cause and channel; claimed with a lease,
//! delivered outside of any transaction, settled by a guarded write.

use super::db::{Arg, Class, Db, Tx, batch};
use super::error::StoreError;
use super::sql::Sql;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use systole_shared::alarm::{Kind, Notice};

/// Rows that one claim looks at.
const CLAIM_MAX: i64 = 256;
/// An alarm that nobody has taken for so long goes to a channel that no scheduler knows.
const STRANDED_MS: i64 = 60_000;
/// After this it is given up.
const STRANDED_MS_MAX: i64 = 24 * 3_600_000;

/// Up to when the last alarm of a rule counts.
static LAST_TOLD: Sql = Sql::new(
    "last_told",
    "SELECT a.job_id, a.rule, max(a.window_ms) AS window_ms FROM {each:$1} JOIN alarm AS a \
       ON {is:a.job_id,CAST(e.value->>'job_id' AS BIGINT)} AND a.rule = e.value->>'rule' \
     WHERE a.status <> 'silenced' GROUP BY a.job_id, a.rule",
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
pub(super) static NEXT_ALARM: Sql = Sql::new(
    "next_alarm",
    "SELECT min(next_at_ms) - {now} AS n FROM alarm WHERE status IN ('pending', 'held')",
);
/// Jobs whose silence is over and whose trouble is not: now somebody is told.
static DUE_HELD: Sql = Sql::new(
    "due_held",
    "SELECT DISTINCT job_id AS id FROM alarm WHERE status = 'held' AND status IN ('pending', 'held') \
       AND next_at_ms <= (SELECT {now} + 0) AND kind IN ('failure', 'late') \
       AND channel IN (SELECT e.value->>'name' FROM {each:$1}) ORDER BY job_id LIMIT $2",
);
static DUE_ALARMS: Sql = Sql::new(
    "due_alarms",
    "SELECT id, channel, kind, job_id, job, notice, delivery_id, tries, raised_at_ms FROM alarm \
     WHERE status IN ('pending', 'held') AND next_at_ms <= (SELECT {now} + 0) \
       AND channel IN (SELECT e.value->>'name' FROM {each:$1}) ORDER BY next_at_ms, id LIMIT $2 {skip_locked}",
);
static LEASE_ALARMS: Sql = Sql::new(
    "lease_alarms",
    "UPDATE alarm SET status = 'pending', next_at_ms = {now} + $2, tries = tries + 1 WHERE id {among:$1}",
);
static SETTLE_ALARM: Sql = Sql::new(
    "settle_alarm",
    "UPDATE alarm SET status = $2, last_error = $3, next_at_ms = {now} + $4, \
       settled_at_ms = CASE WHEN $2 = 'pending' THEN NULL ELSE {now} END WHERE id = $1 AND status = 'pending' AND tries = $5",
);
static STRANDED: Sql = Sql::new(
    "stranded_alarms",
    "UPDATE alarm SET last_error = $1, status = CASE WHEN next_at_ms < {now} - $3 THEN 'failed' ELSE status END, \
       settled_at_ms = CASE WHEN next_at_ms < {now} - $3 THEN {now} END \
     WHERE status IN ('pending', 'held') AND next_at_ms < {now} - $2 AND tries = 0 \
       AND (last_error <> $1 OR next_at_ms < {now} - $3)",
);
static UNDELIVERED: Sql = Sql::new(
    "undelivered_alarms",
    "SELECT CAST(count(*) AS BIGINT) AS n FROM (SELECT id FROM alarm WHERE status = 'failed' AND acknowledged_at_ms IS NULL UNION ALL \
       SELECT id FROM alarm WHERE status IN ('pending', 'held') AND last_error <> '') AS x",
);
static ACKNOWLEDGE: Sql = Sql::new(
    "acknowledge_alarms",
    "UPDATE alarm SET acknowledged_by = $2, acknowledged_at_ms = {now} WHERE id {among:$1} AND status = 'failed' \
       AND acknowledged_at_ms IS NULL RETURNING id",
);
static ACKNOWLEDGE_ALL: Sql = Sql::new(
    "acknowledge_all_alarms",
    "UPDATE alarm SET acknowledged_by = $1, acknowledged_at_ms = {now} WHERE status = 'failed' AND acknowledged_at_ms IS NULL RETURNING id",
);
static DELETE_OLD: Sql = Sql::new(
    "delete_alarms",
    "DELETE FROM alarm WHERE id IN (SELECT id FROM alarm WHERE raised_at_ms < {now} - $1 AND raised_at_ms < $2 - $1 \
       AND status NOT IN ('pending', 'held') ORDER BY raised_at_ms LIMIT 5000)",
);

pub static STATEMENTS: &[&Sql] = &[
    &LAST_TOLD,
    &NOW,
    &PUT_ALARMS,
    &LOCK_CAUSES,
    &SET_NOTICES,
    &SILENCE_HELD,
    &NEXT_ALARM,
    &DUE_HELD,
    &DUE_ALARMS,
    &LEASE_ALARMS,
    &SETTLE_ALARM,
    &STRANDED,
    &UNDELIVERED,
    &ACKNOWLEDGE,
    &ACKNOWLEDGE_ALL,
    &DELETE_OLD,
];

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
}

#[derive(sqlx::FromRow)]
struct Told {
    job_id: i64,
    rule: String,
    window_ms: i64,
}

#[derive(sqlx::FromRow)]
struct Number {
    n: i64,
}

#[derive(sqlx::FromRow)]
struct Wait {
    n: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct OnlyId {
    id: i64,
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

/// An alarm to deliver, leased to this replica.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Claimed {
    pub id: i64,
    pub channel: String,
    kind: String,
    pub job_id: i64,
    pub job: String,
    notice: String,
    pub delivery_id: String,
    /// Before this one.
    pub tries: i64,
    pub raised_at_ms: i64,
}

impl Claimed {
    pub fn kind(&self) -> Result<Kind, StoreError> {
        Kind::parse(&self.kind).ok_or_else(|| self.corrupt("kind"))
    }

    pub fn notice(&self) -> Result<Notice, StoreError> {
        serde_json::from_str(&self.notice).map_err(|_| self.corrupt("notice"))
    }

    fn corrupt(&self, column: &'static str) -> StoreError {
        StoreError::Corrupt {
            table: "alarm",
            column,
            id: self.id,
        }
    }
}

/// How a try ended.
#[derive(Clone, Debug)]
pub enum Settled {
    Delivered,
    /// Given up.
    Failed(String),
    /// Again after this many ms.
    Again(String, i64),
}

/// An alarm as it is listed.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct AlarmRow {
    pub id: i64,
    pub channel: String,
    pub kind: String,
    pub job: String,
    pub notice: String,
    pub status: String,
    pub delivery_id: String,
    pub tries: i64,
    pub raised_at_ms: i64,
    pub next_at_ms: i64,
    pub settled_at_ms: Option<i64>,
    pub last_error: String,
    pub acknowledged_by: Option<String>,
}

/// Conditions of a list; what is empty is no condition.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub status: String,
    pub channel: String,
    pub job: String,
    /// Only what needs a person: given up and not acknowledged, or tried in vain.
    pub open: bool,
    pub below_id: Option<i64>,
}

#[derive(Serialize)]
struct NameJson<'a> {
    name: &'a str,
}

impl Db {
    /// ms until the next alarm is due, negative when it is; `None`: none waits.
    pub async fn next_alarm(&self) -> Result<Option<i64>, StoreError> {
        let row: Wait = self
            .read("next_alarm", |tx| {
                Box::pin(async move { tx.one(&NEXT_ALARM, vec![]).await })
            })
            .await?;
        Ok(row.n)
    }

    /// Due alarms of these channels, one of each, leased for `lease_ms`. A replica that dies leaves them to the others after that.
    pub async fn claim_alarms(&self, channels: Vec<String>, lease_ms: i64) -> Result<Vec<Claimed>, StoreError> {
        let channels = Arc::new(channels);
        self.write("claim_alarms", Class::Api, move |tx| {
            let channels = Arc::clone(&channels);
            Box::pin(async move {
                let names: Vec<NameJson<'_>> = channels.iter().map(|name| NameJson { name }).collect();
                // Before the alarms are locked: health comes first in the order.
                let held: Vec<OnlyId> = tx.all(&DUE_HELD, vec![batch(&names)?, CLAIM_MAX.into()]).await?;
                let held: Vec<i64> = held.into_iter().map(|row| row.id).collect();
                super::jobs::health::set_trouble(tx, &held).await?;
                let rows: Vec<Claimed> = tx.all(&DUE_ALARMS, vec![batch(&names)?, CLAIM_MAX.into()]).await?;
                let mut taken: HashSet<String> = HashSet::new();
                let first: Vec<Claimed> = rows
                    .into_iter()
                    .filter(|row| taken.insert(row.channel.clone()))
                    .collect();
                if first.is_empty() {
                    return Ok(first);
                }
                let ids: Vec<i64> = first.iter().map(|row| row.id).collect();
                tx.exec(&LEASE_ALARMS, vec![batch(&ids)?, lease_ms.into()]).await?;
                Ok(first)
            })
        })
        .await
    }

    /// Records how a try ended, unless the lease ran out and somebody else has tried since.
    pub async fn settle_alarm(&self, id: i64, tries: i64, settled: Settled) -> Result<bool, StoreError> {
        self.write("settle_alarm", Class::Api, move |tx| {
            let (status, error, wait) = match settled.clone() {
                Settled::Delivered => ("delivered", String::new(), 0),
                Settled::Failed(error) => ("failed", error, 0),
                Settled::Again(error, wait) => ("pending", error, wait),
            };
            Box::pin(async move {
                let args = vec![id.into(), status.into(), error.into(), wait.into(), tries.into()];
                Ok(tx.exec(&SETTLE_ALARM, args).await? > 0)
            })
        })
        .await
    }

    /// Says so of alarms that nobody takes, and gives them up after a day.
    pub async fn note_stranded(&self) -> Result<u64, StoreError> {
        self.write("stranded_alarms", Class::Api, |tx| {
            let why = "no running scheduler has a channel of this name in its file (--alarms)";
            let args: Vec<Arg> = vec![why.into(), STRANDED_MS.into(), STRANDED_MS_MAX.into()];
            Box::pin(async move { tx.exec(&STRANDED, args).await })
        })
        .await
    }

    /// Alarms that did not arrive, and that nobody has acknowledged.
    pub async fn undelivered_alarms(&self) -> Result<i64, StoreError> {
        let row: Number = self
            .read("undelivered", |tx| {
                Box::pin(async move { tx.one(&UNDELIVERED, vec![]).await })
            })
            .await?;
        Ok(row.n)
    }

    /// A person knows. No ids: of all that were given up. Returns the ids of those that were not acknowledged before.
    pub async fn acknowledge_alarms(&self, ids: Vec<i64>, by: String) -> Result<Vec<i64>, StoreError> {
        let rows: Vec<OnlyId> = self
            .write("acknowledge_alarms", Class::Api, move |tx| {
                let (ids, by) = (ids.clone(), by.clone());
                Box::pin(async move {
                    if ids.is_empty() {
                        tx.all(&ACKNOWLEDGE_ALL, vec![by.into()]).await
                    } else {
                        tx.all(&ACKNOWLEDGE, vec![batch(&ids)?, by.into()]).await
                    }
                })
            })
            .await?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }

    /// Newest first.
    pub async fn alarms(&self, filter: Filter, limit: i64) -> Result<Vec<AlarmRow>, StoreError> {
        let (text, args) = conditions(&filter, limit);
        self.read("alarms", move |tx| {
            let (text, args) = (text.clone(), args.clone());
            Box::pin(async move { tx.all_text(text, args).await })
        })
        .await
    }

    /// One bounded step. True: there may be more.
    pub async fn clean_alarms(&self, keep_ms: i64, until_ms: i64) -> Result<bool, StoreError> {
        self.write("clean_alarms", Class::Api, move |tx| {
            Box::pin(async move { Ok(tx.exec(&DELETE_OLD, vec![keep_ms.into(), until_ms.into()]).await? > 0) })
        })
        .await
    }
}

fn conditions(filter: &Filter, limit: i64) -> (String, Vec<Arg>) {
    let mut text = String::from(
        "SELECT id, channel, kind, job, notice, status, delivery_id, tries, raised_at_ms, next_at_ms, settled_at_ms, last_error, \
         acknowledged_by FROM alarm WHERE TRUE",
    );
    let mut args: Vec<Arg> = Vec::new();
    for (column, value) in [
        ("status", &filter.status),
        ("channel", &filter.channel),
        ("job", &filter.job),
    ] {
        if !value.is_empty() {
            args.push(value.clone().into());
            text.push_str(&format!(" AND {column} = ${}", args.len()));
        }
    }
    if filter.open {
        text.push_str(
            " AND ((status = 'failed' AND acknowledged_at_ms IS NULL) OR (status IN ('pending', 'held') AND last_error <> ''))",
        );
    }
    if let Some(below) = filter.below_id {
        args.push(below.into());
        text.push_str(&format!(" AND id < ${}", args.len()));
    }
    args.push(limit.into());
    text.push_str(&format!(" ORDER BY id DESC LIMIT ${}", args.len()));
    (text, args)
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
