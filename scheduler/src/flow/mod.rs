//! The life of a task, in order: submit, (admit), dispatch, heartbeat, finish, callback; and cancel, which
//! may come at any time. `flow/` decides and asks the store; it never matches on a database.

pub mod alarms;
pub mod backup;
pub mod callback;
pub mod cancel;
pub mod dispatch;
pub mod doctor;
pub mod expire;
pub mod explain;
pub mod fetch;
pub mod fleet;
pub mod forget;
pub mod freezes;
pub mod heartbeat;
pub mod jobs;
pub mod leases;
pub mod lost;
pub mod notify;
pub mod output;
pub mod places;
pub mod status;
pub mod submit;
pub mod watch;

use crate::context::Context;
use crate::store::StoreError;
use crate::store::finish::Ended;
use crate::task_log;
use systole_shared::error::{Code, Invalid};

/// Why a call is refused. `grpc/` turns it into a status.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub code: Code,
    pub message: String,
    pub field: String,
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            field: String::new(),
        }
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        Self {
            code: Code::InvalidField,
            message: invalid.to_string(),
            field: invalid.field,
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let code = error.code();
        if code == Code::Unexpected {
            tracing::error!(%error, "store");
        }
        let remedy = match code {
            Code::StoreUnreachable => "; nothing was acknowledged, try again",
            Code::StoreFull => "; nothing was stored, make room and try again",
            _ => "",
        };
        Self::new(code, format!("{error}{remedy}"))
    }
}

/// What follows the commit of ended tasks: waiting runners, watchers, the callback-er.
pub fn after_end(ctx: &Context, ended: &Ended) {
    task_log::ended(ended);
    ctx.metrics.ended(ended);
    let queued: Vec<_> = ended.successors.iter().filter(|next| next.is_queued()).collect();
    let lanes: Vec<i64> = queued
        .iter()
        .filter(|next| next.target_host.is_none())
        .map(|next| next.lane_id)
        .collect();
    let targets: Vec<String> = queued.iter().filter_map(|next| next.target_host.clone()).collect();
    if let Some(newest) = ended.successors.iter().map(|next| next.id).max() {
        ctx.newest_task_id
            .fetch_max(newest, std::sync::atomic::Ordering::Relaxed);
    }
    ctx.wake.work(&lanes, &targets);
    if queued.len() < ended.successors.len() {
        ctx.wake.admit.notify_one();
    }
    jobs::chains::after_end(ctx, ended);
    if ended.alarms {
        ctx.wake.alarms.notify_one();
    }
    if ended.callbacks {
        ctx.wake.callbacks.notify_one();
    }
    ctx.wake.changed(ended.ids.clone());
}
