//! Cordons: runners that get no new tasks because a person said so, for good or until a time.

use super::audit::{audit, audit_with};
use super::db::{Class, Db};
use super::error::StoreError;
use super::sql::Sql;
use systole_shared::limits::DURATION_MS_MAX;
use systole_shared::time::format_utc;

/// Of several cordons the one that holds longest stays: `$5` is when this one ends, NULL: never.
static CORDON: Sql = Sql::new(
    "cordon",
    "UPDATE runner SET cordoned = TRUE, cordoned_by = $3, cordon_reason = $4, cordoned_at_ms = {now}, cordon_until_ms = $5 \
     WHERE host = $1 AND ($2 = -1 OR slot = $2) \
       AND (NOT cordoned OR (cordon_until_ms IS NOT NULL AND (CAST($5 AS BIGINT) IS NULL OR $5 > cordon_until_ms)))",
);
static UNCORDON: Sql = Sql::new(
    "uncordon",
    "UPDATE runner SET cordoned = FALSE, cordoned_by = NULL, cordon_reason = NULL, cordoned_at_ms = NULL, cordon_until_ms = NULL \
     WHERE host = $1 AND ($2 = -1 OR slot = $2) AND cordoned",
);
/// For slots that are added later.
static CORDON_HOST: Sql = Sql::new(
    "cordon_host",
    "UPDATE host SET cordoned = TRUE, cordoned_by = $2, cordon_reason = $3, cordoned_at_ms = {now}, cordon_until_ms = $4 \
     WHERE host = $1 \
       AND (NOT cordoned OR (cordon_until_ms IS NOT NULL AND (CAST($4 AS BIGINT) IS NULL OR $4 > cordon_until_ms)))",
);
static UNCORDON_HOST: Sql = Sql::new(
    "uncordon_host",
    "UPDATE host SET cordoned = FALSE, cordoned_by = NULL, cordon_reason = NULL, cordoned_at_ms = NULL, cordon_until_ms = NULL \
     WHERE host = $1 AND cordoned",
);
static RUNNERS_OF: Sql = Sql::new(
    "runners_of",
    "SELECT count(*) AS n, {now} AS now_ms FROM runner WHERE host = $1 AND ($2 = -1 OR slot = $2)",
);
pub(super) static CORDONS_OVER: Sql = Sql::new(
    "cordons_over",
    "SELECT EXISTS (SELECT 1 FROM host WHERE cordon_until_ms <= {now}) \
       OR EXISTS (SELECT 1 FROM runner WHERE cordon_until_ms <= {now}) AS any_over",
);
/// A bounded number; `$1`: the latest time that is believed.
static LIFT_HOSTS: Sql = Sql::new(
    "lift_hosts",
    "UPDATE host SET cordoned = FALSE, cordoned_by = NULL, cordon_reason = NULL, cordoned_at_ms = NULL, cordon_until_ms = NULL \
     WHERE host IN (SELECT h.host FROM host AS h WHERE h.cordon_until_ms <= {now} AND {now} <= $1 \
       ORDER BY h.host LIMIT 1000 {skip_locked}) RETURNING host",
);
static LIFT_RUNNERS: Sql = Sql::new(
    "lift_runners",
    "UPDATE runner SET cordoned = FALSE, cordoned_by = NULL, cordon_reason = NULL, cordoned_at_ms = NULL, cordon_until_ms = NULL \
     WHERE (host, slot) IN (SELECT r.host, r.slot FROM runner AS r WHERE r.cordon_until_ms <= {now} AND {now} <= $1 \
       ORDER BY r.host, r.slot LIMIT 1000 {skip_locked}) RETURNING host, slot",
);

pub static STATEMENTS: &[&Sql] = &[
    &CORDON,
    &UNCORDON,
    &CORDON_HOST,
    &UNCORDON_HOST,
    &RUNNERS_OF,
    &CORDONS_OVER,
    &LIFT_HOSTS,
    &LIFT_RUNNERS,
];

/// Who stands in the audit for cordons that ended because of the time.
const BY_TIME: &str = "scheduler";

/// When a cordon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Lifted,
    /// By the database's clock, ms.
    Time(i64),
    /// From now on, ms.
    Within(i64),
}

impl Until {
    pub fn at_ms(self, now_ms: i64) -> Option<i64> {
        match self {
            Until::Lifted => None,
            Until::Time(ms) => Some(ms),
            Until::Within(ms) => Some(now_ms.saturating_add(ms)),
        }
    }
}

/// What a person wants of runners.
#[derive(Clone, Debug)]
pub struct CordonOrder {
    pub host: String,
    /// `None`: the host with all its slots, also those that it gets later.
    pub slot: Option<u32>,
    pub on: bool,
    pub until: Until,
    /// As the audit has it: `cordon`, `drain` or `uncordon`.
    pub action: &'static str,
    pub by: String,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cordoned {
    /// Slots that were changed, and until when.
    Done { changed: u64, until_ms: Option<i64> },
    /// No such runner is known.
    Unknown,
    /// The time is over, or too far away; the database's time.
    BadTime { now_ms: i64 },
}

#[derive(sqlx::FromRow)]
struct Known {
    n: i64,
    now_ms: i64,
}

#[derive(sqlx::FromRow)]
struct OnlyHost {
    host: String,
}

#[derive(sqlx::FromRow)]
struct Slot {
    host: String,
    slot: i64,
}

impl Db {
    pub async fn set_cordon(&self, order: CordonOrder) -> Result<Cordoned, StoreError> {
        self.write("cordon", Class::Api, move |tx| {
            let order = order.clone();
            Box::pin(async move {
                let host = order.host.as_str();
                let number = order.slot.map_or(-1, i64::from);
                let known: Known = tx.one(&RUNNERS_OF, vec![host.into(), number.into()]).await?;
                if known.n == 0 {
                    return Ok(Cordoned::Unknown);
                }
                let until_ms = order.until.at_ms(known.now_ms);
                let latest = known
                    .now_ms
                    .saturating_add(i64::try_from(DURATION_MS_MAX).unwrap_or(i64::MAX));
                if until_ms.is_some_and(|ms| ms <= known.now_ms || ms > latest) {
                    return Ok(Cordoned::BadTime { now_ms: known.now_ms });
                }
                let (by, reason) = (order.by.as_str(), order.reason.as_str());
                // The host first, as everywhere.
                let host_changed = match (order.slot, order.on) {
                    (Some(_), _) => 0,
                    (None, true) => {
                        let args = vec![host.into(), by.into(), reason.into(), until_ms.into()];
                        tx.exec(&CORDON_HOST, args).await?
                    }
                    (None, false) => tx.exec(&UNCORDON_HOST, vec![host.into()]).await?,
                };
                let changed = if order.on {
                    let args = vec![host.into(), number.into(), by.into(), reason.into(), until_ms.into()];
                    tx.exec(&CORDON, args).await?
                } else {
                    tx.exec(&UNCORDON, vec![host.into(), number.into()]).await?
                };
                if changed > 0 || host_changed > 0 {
                    let subject = order
                        .slot
                        .map_or_else(|| host.to_owned(), |slot| format!("{host}/{slot}"));
                    let detail = until_ms.map_or_else(String::new, |ms| format!("until {}", format_utc(ms)));
                    audit_with(tx, by, order.action, (subject.as_str(), detail.as_str()), reason).await?;
                }
                Ok(Cordoned::Done { changed, until_ms })
            })
        })
        .await
    }

    /// Ends cordons whose time is over, and not after `until_ms`; a bounded number. Returns how many hosts and slots.
    pub async fn lift_cordons(&self, until_ms: i64) -> Result<usize, StoreError> {
        self.write("lift_cordons", Class::Api, move |tx| {
            Box::pin(async move {
                let hosts: Vec<OnlyHost> = tx.all(&LIFT_HOSTS, vec![until_ms.into()]).await?;
                let slots: Vec<Slot> = tx.all(&LIFT_RUNNERS, vec![until_ms.into()]).await?;
                let reason = "its time is over";
                for row in &hosts {
                    audit(tx, BY_TIME, "uncordon", &row.host, reason).await?;
                }
                // Those of a host went with it.
                for row in slots
                    .iter()
                    .filter(|slot| hosts.iter().all(|row| row.host != slot.host))
                {
                    audit(tx, BY_TIME, "uncordon", &format!("{}/{}", row.host, row.slot), reason).await?;
                }
                Ok(hosts.len() + slots.len())
            })
        })
        .await
    }
}
