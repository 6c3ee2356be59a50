//! Host rows: who holds a host, and the slots that come and go with it.

use super::db::{Class, Db, Tx, batch};
use super::error::StoreError;
use super::sql::Sql;
use serde::Serialize;
use std::sync::Arc;
use systole_shared::heartbeat::identity::{Holder, Identity, Replaced, identify, is_knock_over};

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
static REPLACED: Sql = Sql::new(
    "replaced",
    "SELECT start_no, {now} - knocked_at_ms AS knocked_ms FROM replaced WHERE host = $1 AND instance_id = $2",
);
/// Remembers the holder, before another instance takes its place.
static PUT_REPLACED: Sql = Sql::new(
    "put_replaced",
    "INSERT INTO replaced (host, instance_id, start_no, replaced_at_ms) \
     SELECT host, instance_id, start_no, {now} FROM host WHERE host = $1 \
     ON CONFLICT (host, instance_id) DO UPDATE SET start_no = excluded.start_no, replaced_at_ms = excluded.replaced_at_ms, \
       knocked_at_ms = NULL",
);
/// The new holder, and all but the newest: a container without a volume is another instance each time.
static DROP_REPLACED: Sql = Sql::new(
    "drop_replaced",
    "DELETE FROM replaced WHERE host = $1 AND (instance_id = $2 OR instance_id NOT IN ( \
       SELECT r.instance_id FROM replaced AS r WHERE r.host = $1 ORDER BY r.replaced_at_ms DESC LIMIT 32))",
);
static KNOCK: Sql = Sql::new(
    "knock",
    "UPDATE replaced SET knocked_at_ms = {now} WHERE host = $1 AND instance_id = $2",
);
static FORGET_REPLACED: Sql = Sql::new(
    "forget_replaced",
    "DELETE FROM replaced WHERE replaced_at_ms < {now} - $1 AND replaced_at_ms < $2 - $1",
);
static ORPHAN_TASKS: Sql = Sql::new(
    "orphan_tasks",
    "UPDATE task SET orphaned_at_ms = {now} FROM (SELECT task_id FROM runner WHERE host = $1 AND task_id IS NOT NULL) AS x \
     WHERE {is:task.id,x.task_id} AND task.status + 0 IN (3, 4, 9)",
);
static TAKE_RUNNERS: Sql = Sql::new(
    "take_runners",
    "UPDATE runner SET instance_id = $2, start_no = $3, seq = 0, leaving = FALSE, \
       fault = NULL, fault_detail = NULL, fault_at_ms = NULL, fault_no = 0, \
       labels = NULL WHERE host = $1",
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
/// New slots of a host that is cordoned are so, too.
static PUT_RUNNERS: Sql = Sql::new(
    "put_runners",
    "INSERT INTO runner (host, slot, instance_id, start_no, seq, seen_ms, cordoned, cordoned_by, cordon_reason, cordoned_at_ms, \
       cordon_until_ms) \
     SELECT h.host, CAST(e.value AS BIGINT), $2, $3, 0, {now}, h.cordoned, h.cordoned_by, h.cordon_reason, h.cordoned_at_ms, h.cordon_until_ms \
     FROM {each:$4} JOIN host AS h ON {is:h.host,$1} WHERE TRUE ON CONFLICT DO NOTHING",
);
/// Of all slots at once, by the process that holds them; an older word than the last changes nothing.
static SET_FAULT: Sql = Sql::new(
    "set_fault",
    "UPDATE runner SET fault = $4, fault_detail = $5, fault_no = $3, \
       fault_at_ms = CASE WHEN CAST($4 AS TEXT) IS NULL THEN NULL WHEN fault = $4 THEN fault_at_ms ELSE {now} END \
     WHERE host = $1 AND start_no = $2 AND fault_no <= $3",
);
static SET_SLOT_LABELS: Sql = Sql::new(
    "set_slot_labels",
    "UPDATE runner SET labels = $4 WHERE host = $1 AND slot = $2 AND start_no = $3",
);
static FORGET_HOSTS: Sql = Sql::new(
    "forget_hosts",
    "DELETE FROM host WHERE NOT EXISTS (SELECT 1 FROM runner WHERE runner.host = host.host)",
);
/// What jobs remember of hosts that are gone.
static FORGET_ROUTES: Sql = Sql::new(
    "forget_routes",
    "DELETE FROM route_use WHERE NOT EXISTS (SELECT 1 FROM host WHERE host.host = route_use.host)",
);
static FORGET_REPLICAS: Sql = Sql::new(
    "forget_replicas",
    "DELETE FROM replica WHERE seen_ms < {now} - $1 AND seen_ms < $2 - $1",
);
static FORGET_RUNNERS: Sql = Sql::new(
    "forget_runners",
    "DELETE FROM runner WHERE seen_ms < {now} - $1 AND seen_ms < $2 - $1 AND task_id IS NULL AND NOT cordoned",
);

pub static STATEMENTS: &[&Sql] = &[
    &LOCK_HOST,
    &HOST_SILENCE,
    &LOCK_RUNNERS_OF,
    &PUT_NEW_HOST,
    &PUT_HOST,
    &REPLACED,
    &PUT_REPLACED,
    &DROP_REPLACED,
    &KNOCK,
    &FORGET_REPLACED,
    &ORPHAN_TASKS,
    &TAKE_RUNNERS,
    &FREE_RUNNERS,
    &DROP_SURPLUS,
    &PUT_RUNNERS,
    &SET_FAULT,
    &SET_SLOT_LABELS,
    &FORGET_HOSTS,
    &FORGET_RUNNERS,
    &FORGET_ROUTES,
    &FORGET_REPLICAS,
];

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
    /// Of the host: its name, and a sentence.
    #[serde(skip)]
    pub fault: Option<(String, String)>,
    /// 0: the host never had a fault.
    #[serde(skip)]
    pub fault_no: i64,
}

#[derive(sqlx::FromRow)]
struct HostRow {
    instance_id: String,
    start_no: i64,
}

#[derive(sqlx::FromRow)]
struct ReplacedRow {
    start_no: i64,
    knocked_ms: Option<i64>,
}

#[derive(sqlx::FromRow)]
struct Silence {
    silent_ms: i64,
    slots: i64,
    /// Slots that did not say goodbye, or still hold a task.
    staying: i64,
}

impl Db {
    /// Writes down the labels that a slot has beside those of its host (JSON). Rows that were changed, 0 where another process
    /// holds it.
    pub async fn set_slot_labels(
        &self,
        host: String,
        slot: i64,
        start_no: i64,
        labels: String,
    ) -> Result<u64, StoreError> {
        self.write("set_slot_labels", Class::Beats, move |tx| {
            let args = vec![
                host.as_str().into(),
                slot.into(),
                start_no.into(),
                labels.as_str().into(),
            ];
            Box::pin(async move { tx.exec(&SET_SLOT_LABELS, args).await })
        })
        .await
    }

    /// Writes what a host said of its fault into all its rows. Rows that were changed, 0 where another process holds them or
    /// said something newer.
    pub async fn set_fault(&self, said: Arc<Registration>) -> Result<u64, StoreError> {
        self.write("set_fault", Class::Beats, move |tx| {
            let said = Arc::clone(&said);
            Box::pin(async move {
                // In the order in which every batch of beats locks them.
                tx.exec(&LOCK_RUNNERS_OF, vec![said.host.as_str().into()]).await?;
                set_fault(tx, &said).await
            })
        })
        .await
    }

    /// Decides who holds the host, and writes it. All slots change hands at once.
    pub async fn register(&self, registration: Arc<Registration>) -> Result<Identity, StoreError> {
        self.write("register", Class::Beats, move |tx| {
            let registration = Arc::clone(&registration);
            Box::pin(async move { register(tx, &registration).await })
        })
        .await
    }

    /// Deletes the rows of hosts that were not seen for long and hold nothing.
    pub async fn forget_hosts(&self, unseen_ms: i64, until_ms: i64) -> Result<u64, StoreError> {
        self.write("forget_hosts", Class::Api, move |tx| {
            Box::pin(async move {
                let gone = tx
                    .exec(&FORGET_RUNNERS, vec![unseen_ms.into(), until_ms.into()])
                    .await?;
                if gone > 0 {
                    tx.exec(&FORGET_HOSTS, vec![]).await?;
                    tx.exec(&FORGET_ROUTES, vec![]).await?;
                }
                tx.exec(&FORGET_REPLICAS, vec![unseen_ms.into(), until_ms.into()])
                    .await?;
                tx.exec(&FORGET_REPLACED, vec![unseen_ms.into(), until_ms.into()])
                    .await?;
                Ok(gone)
            })
        })
        .await
    }
}

/// Locks a host before its runners. False: no such host is known.
pub async fn lock_host(tx: &mut Tx, host: &str) -> Result<bool, StoreError> {
    let row: Option<HostRow> = tx.opt(&LOCK_HOST, vec![host.into()]).await?;
    Ok(row.is_some())
}

/// The rows are locked.
async fn set_fault(tx: &mut Tx, said: &Registration) -> Result<u64, StoreError> {
    let (kind, detail) = said.fault.clone().unzip();
    let args = vec![
        said.host.as_str().into(),
        said.start_no.into(),
        said.fault_no.into(),
        kind.into(),
        detail.into(),
    ];
    tx.exec(&SET_FAULT, args).await
}

async fn register(tx: &mut Tx, new: &Registration) -> Result<Identity, StoreError> {
    let row: Option<HostRow> = tx.opt(&LOCK_HOST, vec![new.host.as_str().into()]).await?;
    tx.exec(&LOCK_RUNNERS_OF, vec![new.host.as_str().into()]).await?;
    let silence: Silence = tx.one(&HOST_SILENCE, vec![new.host.as_str().into()]).await?;
    let holder = row.map(|row| Holder {
        instance_id: row.instance_id,
        start_no: row.start_no,
        left: silence.slots > 0 && silence.staying == 0,
        silent_ms: silence.silent_ms,
    });
    let me = || vec![new.host.as_str().into(), new.instance_id.as_str().into()];
    let replaced: Option<Replaced> = tx.opt::<ReplacedRow>(&REPLACED, me()).await?.map(|row| Replaced {
        start_no: row.start_no,
        knocked_ms: row.knocked_ms,
    });
    let identity = identify(holder.as_ref(), &new.instance_id, new.start_no, new.beat_ms, replaced);
    match identity {
        Identity::Old => return Ok(identity),
        Identity::Taken => {
            let knocked = replaced.and_then(|replaced| replaced.knocked_ms);
            if replaced.is_some() && knocked.is_none_or(|ms| is_knock_over(ms, new.beat_ms)) {
                tx.exec(&KNOCK, me()).await?;
            }
            return Ok(identity);
        }
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
            if identity == Identity::Successor {
                tx.exec(&PUT_REPLACED, vec![new.host.as_str().into()]).await?;
                tx.exec(&DROP_REPLACED, me()).await?;
            }
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
    // With the registration: another slot of the same process may beat between this and its own word.
    if new.fault_no > 0 {
        set_fault(tx, new).await?;
    }
    Ok(identity)
}
