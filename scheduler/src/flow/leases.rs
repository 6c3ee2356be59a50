//! Leases of applications: one holder of a resource at a time, with a token that rises.

use super::Refusal;
use crate::clock::boottime_ms;
use crate::context::Context;
use crate::store::StoreError;
use crate::store::lease::{Acquired, HeldRow, LeaseAsk, LeaseRow};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use systole_shared::error::Code;
use systole_shared::limits::{LEASE_WAITERS_MAX, LEASES_MAX};
use systole_shared::time::{format_duration, format_utc};
use tokio::sync::Notify;

/// Leases that one replica watches.
pub const WATCHED_MAX: i64 = 10_000;

/// What this replica has seen of leases, by its own clock, and who waits here.
#[derive(Debug, Default)]
pub struct Watch {
    seen: Mutex<HashMap<String, Seen>>,
    waiting: AtomicUsize,
    /// Rings when a lease may be free.
    changed: Notify,
}

#[derive(Clone, Debug)]
struct Seen {
    token: i64,
    renewals: i64,
    ttl_ms: i64,
    /// Since when it is so, by `CLOCK_BOOTTIME`.
    since_ms: i64,
}

impl Watch {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long it was seen with this token and these renewals.
    fn unchanged_ms(&self, resource: &str, token: i64, renewals: i64) -> Option<i64> {
        self.lock()
            .get(resource)
            .filter(|seen| seen.token == token && seen.renewals == renewals)
            .map(|seen| boottime_ms() - seen.since_ms)
    }

    /// All that is held now.
    fn look(&self, rows: Vec<HeldRow>) {
        let now = boottime_ms();
        let mut seen = self.lock();
        let before = std::mem::take(&mut *seen);
        for row in rows {
            let since_ms = before
                .get(&row.resource)
                .filter(|seen| seen.token == row.token && seen.renewals == row.renewals)
                .map_or(now, |seen| seen.since_ms);
            seen.insert(
                row.resource,
                Seen {
                    token: row.token,
                    renewals: row.renewals,
                    ttl_ms: row.ttl_ms,
                    since_ms,
                },
            );
        }
    }

    /// One that was met between two looks.
    fn note(&self, row: &LeaseRow) {
        let mut seen = self.lock();
        let known = seen
            .get(&row.resource)
            .is_some_and(|seen| seen.token == row.token && seen.renewals == row.renewals);
        if !known && seen.len() < usize::try_from(WATCHED_MAX).unwrap_or(usize::MAX) {
            seen.insert(
                row.resource.clone(),
                Seen {
                    token: row.token,
                    renewals: row.renewals,
                    ttl_ms: row.ttl_ms,
                    since_ms: boottime_ms(),
                },
            );
        }
    }

    /// Whether it is worth to ask the database: it is not seen to be held, or its time may be over.
    fn may_be_free(&self, resource: &str) -> bool {
        self.lock()
            .get(resource)
            .is_none_or(|seen| boottime_ms() - seen.since_ms >= seen.ttl_ms)
    }

    /// Calls that wait here.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A lease was given back here, or at another replica.
    pub fn ring(&self) {
        self.changed.notify_waiters();
    }
}

/// A waiter, counted.
struct Waiter<'w>(&'w AtomicUsize);

impl<'w> Waiter<'w> {
    fn new(waiting: &'w AtomicUsize) -> Option<Self> {
        let before = waiting.fetch_add(1, Ordering::Relaxed);
        let waiter = Self(waiting);
        (before < LEASE_WAITERS_MAX).then_some(waiter)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes a look, for the replica's own observation; and lets those that wait try again.
pub async fn look(ctx: &Context) -> Result<(), StoreError> {
    saw(ctx, ctx.db.held_leases(WATCHED_MAX).await?);
    Ok(())
}

/// As [`look`], of what was read just now.
pub fn saw(ctx: &Context, held: Vec<HeldRow>) {
    ctx.leases.look(held);
    ctx.leases.ring();
}

/// Acquires, and waits for up to `wait_ms` for one that is held. Nobody stands in line: whoever tries first gets it.
pub async fn acquire(ctx: &Arc<Context>, ask: LeaseAsk, wait_ms: u64) -> Result<LeaseRow, Refusal> {
    let until = tokio::time::Instant::now() + Duration::from_millis(wait_ms);
    let mut waiter = None;
    loop {
        // Before the try: one that is given back meanwhile rings for it.
        let rings = ctx.leases.changed.notified();
        tokio::pin!(rings);
        rings.as_mut().enable();
        let held = match try_once(ctx, &ask).await? {
            Acquired::Granted(row) => return Ok(row),
            Acquired::TooMany => {
                return Err(Refusal {
                    code: Code::Overloaded,
                    message: format!(
                        "there are {LEASES_MAX} leases already; those that nobody holds are forgotten after a day"
                    ),
                    field: "resource".into(),
                });
            }
            Acquired::Held(row) => row,
        };
        ctx.leases.note(&held);
        if wait_ms == 0 {
            return Err(busy(&held));
        }
        if waiter.is_none() {
            waiter = Waiter::new(&ctx.leases.waiting);
        }
        if waiter.is_none() {
            return Err(Refusal::new(
                Code::Overloaded,
                format!("{LEASE_WAITERS_MAX} calls wait for leases here already; try again"),
            ));
        }
        // Until there is reason to ask the database again.
        loop {
            tokio::select! {
                () = rings.as_mut() => {}
                () = tokio::time::sleep_until(until) => return Err(busy(&held)),
                () = ctx.draining.cancelled() => return Err(busy(&held)),
            }
            if ctx.leases.may_be_free(&ask.resource) {
                break;
            }
            rings.set(ctx.leases.changed.notified());
            rings.as_mut().enable();
        }
    }
}

async fn try_once(ctx: &Arc<Context>, ask: &LeaseAsk) -> Result<Acquired, StoreError> {
    let watch = Arc::clone(ctx);
    ctx.db
        .acquire_lease(
            ask.clone(),
            ctx.clock.until_ms(),
            Arc::new(move |resource: &str, token: i64, renewals: i64| {
                watch.leases.unchanged_ms(resource, token, renewals)
            }),
        )
        .await
}

fn busy(row: &LeaseRow) -> Refusal {
    let holder = row.holder.as_deref().unwrap_or_default();
    let left = row.expires_ms.saturating_sub(row.now_ms);
    let until = if left > 0 {
        format!("for {} more unless it renews", format_duration(left.unsigned_abs()))
    } else {
        "and its time is over; it is given on when it was seen not to renew for its ttl".into()
    };
    Refusal {
        code: Code::LeaseHeld,
        message: format!(
            "{} is held by {holder} ({}) since {}, {until}",
            row.resource,
            row.actor,
            format_utc(row.acquired_ms)
        ),
        field: "resource".into(),
    }
}

pub async fn renew(ctx: &Context, resource: String, token: i64, holder: String) -> Result<LeaseRow, Refusal> {
    match ctx.db.renew_lease(resource.clone(), token, holder).await? {
        Ok(row) => Ok(row),
        Err(now) => {
            let (code, message) = lost(&resource, token, now.as_ref());
            Err(Refusal {
                code,
                message,
                field: "token".into(),
            })
        }
    }
}

/// Why a lease cannot be renewed.
fn lost(resource: &str, token: i64, now: Option<&LeaseRow>) -> (Code, String) {
    match now {
        Some(row) if row.token == token && row.revoked_by.is_some() => {
            let by = row.revoked_by.as_deref().unwrap_or_default();
            let reason = match row.revoke_reason.as_deref() {
                None | Some("") => String::new(),
                Some(reason) => format!(": {reason}"),
            };
            let message = format!("lease {token} of {resource} was taken away by {by}{reason}");
            (Code::LeaseRevoked, message)
        }
        Some(row) if row.token > token => {
            let message = format!(
                "lease {token} of {resource} is lost: its time was over, and {} has it now",
                row.actor
            );
            (Code::LeaseHeld, message)
        }
        _ => {
            let message = format!("lease {token} of {resource} is not held by this holder any more");
            (Code::LeaseHeld, message)
        }
    }
}

/// False: it was not held any more.
pub async fn release(ctx: &Context, resource: String, token: i64, holder: String) -> Result<bool, Refusal> {
    let released = ctx.db.release_lease(resource, token, holder).await?;
    if released {
        given_back(ctx).await?;
    }
    Ok(released)
}

async fn given_back(ctx: &Context) -> Result<(), StoreError> {
    look(ctx).await?;
    ctx.wake.lease_given_back();
    Ok(())
}

pub async fn revoke(
    ctx: &Context,
    resource: String,
    token: i64,
    now: bool,
    (by, reason): (String, String),
) -> Result<LeaseRow, Refusal> {
    let row = ctx.db.revoke_lease(resource.clone(), token, now, (by, reason)).await?;
    if now {
        given_back(ctx).await?;
    }
    row.ok_or_else(|| Refusal {
        code: Code::LeaseNotFound,
        message: format!("nobody holds {resource}, or not with this token; `systole lock ls` lists what is held"),
        field: "resource".into(),
    })
}
