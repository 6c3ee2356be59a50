//! The looks of a quiet replica, each one call: at what other replicas may have changed, and at what is due next. Everything that
//! is asked once a second is asked here, so that an idle cluster costs next to nothing.

use super::admin;
use super::db::{Db, Tx};
use super::error::StoreError;
use super::fetch::read_asked;
use super::freeze::{Frozen, in_force};
use super::holds::{AheadRow, read_ahead};
use super::jobs::{backfill, routes, sets, triggers, watch};
use super::lease::{HeldRow, read_held};
use super::lost::{TerminatingRow, read_terminating};
use super::read::newest_task_id;
use super::sql::Sql;
use super::submit::read_lanes_after;
use super::tokens::{TokenRow, read_tokens};
use super::{alarms, clocks, cordon, outbox};
use std::sync::LazyLock;
use systole_shared::policy::lane::Lane;
use systole_shared::policy::route::ROUTE_WAIT_MS;

/// The questions of the duties, each a part of one. `$1` to `$3` are those of [`routes::ANY_DUE`].
pub(super) static OUTLOOK: LazyLock<Sql> = LazyLock::new(|| {
    let of_sets = sets::ANY_DUE.text().replace("$1", "$2");
    Sql::joined(
        "outlook",
        format!(
            "SELECT ({admit}) AS admit_ms, ({fire}) AS fire_ms, ({callback}) AS callback_ms, ({alarm}) AS alarm_ms, \
               expiry.queue_ms, expiry.start_ms, late.due_in_ms, late.unwatched, cordon.any_over AS cordons_over, \
               ({routes}) AS routes_due, ({of_sets}) AS sets_due, EXISTS ({fills}) AS backfills \
             FROM ({expiry}) AS expiry, ({late}) AS late, ({cordons}) AS cordon",
            admit = admin::NEXT_DUE.text(),
            fire = triggers::NEXT_DUE.text(),
            callback = outbox::NEXT_CALLBACK.text(),
            alarm = alarms::NEXT_ALARM.text(),
            routes = routes::ANY_DUE.text(),
            fills = backfill::RUNNING.text(),
            expiry = clocks::NEXT_TIMEOUTS.text(),
            late = watch::NEXT_LOOK.text(),
            cordons = cordon::CORDONS_OVER.text(),
        ),
    )
});

/// ms until something is due, negative when it is; `None`: there is nothing.
#[derive(Clone, Copy, Debug, sqlx::FromRow)]
pub struct Outlook {
    pub admit_ms: Option<i64>,
    pub fire_ms: Option<i64>,
    pub callback_ms: Option<i64>,
    pub alarm_ms: Option<i64>,
    pub queue_ms: Option<i64>,
    pub start_ms: Option<i64>,
    /// Of the rules that watch jobs.
    pub due_in_ms: Option<i64>,
    /// A definition whose rules were not read yet.
    pub unwatched: Option<i64>,
    pub cordons_over: bool,
    pub routes_due: bool,
    pub sets_due: bool,
    /// Some run.
    pub backfills: bool,
}

/// What other replicas may have changed.
#[derive(Debug)]
pub struct Look {
    pub tokens: Vec<TokenRow>,
    /// Lanes above the id that was asked for.
    pub lanes: Vec<(i64, Lane)>,
    pub newest_task_id: i64,
    pub ahead: Vec<AheadRow>,
    pub frozen: Frozen,
    pub leases: Vec<HeldRow>,
    /// Lanes and target hosts with QUEUED tasks.
    pub work: (Vec<i64>, Vec<String>),
    pub terminating: Vec<TerminatingRow>,
    /// Hosts that are asked for a full output.
    pub asked: Vec<String>,
}

async fn read_look(tx: &mut Tx, lanes_after: i64, leases_max: i64) -> Result<Look, StoreError> {
    Ok(Look {
        tokens: read_tokens(tx).await?,
        lanes: read_lanes_after(tx, lanes_after).await?,
        newest_task_id: newest_task_id(tx).await?.id,
        // After the ids: they may have been moved past what these hosts have named.
        ahead: read_ahead(tx).await?,
        frozen: in_force(tx).await?,
        leases: read_held(tx, leases_max).await?,
        work: admin::read_work(tx).await?,
        terminating: read_terminating(tx).await?,
        asked: read_asked(tx).await?,
    })
}

impl Db {
    /// `live_ms`: a host that was silent for longer is chosen for nothing.
    pub async fn outlook(&self, live_ms: i64) -> Result<Outlook, StoreError> {
        self.read("outlook", move |tx| {
            let args = vec![live_ms.into(), routes::AGAIN_MS.into(), ROUTE_WAIT_MS.into()];
            Box::pin(async move { tx.one(&OUTLOOK, args).await })
        })
        .await
    }

    pub async fn look(&self, lanes_after: i64, leases_max: i64) -> Result<Look, StoreError> {
        self.read("look", move |tx| Box::pin(read_look(tx, lanes_after, leases_max)))
            .await
    }
}
