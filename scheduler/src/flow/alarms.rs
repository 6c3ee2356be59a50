//! What is held until a person has looked: who is told, and what the person's word does.

use super::Refusal;
use crate::clock::boottime_ms;
use crate::context::Context;
use crate::store::StoreError;
use crate::store::holds::AheadRow;
use std::collections::HashSet;
use systole_shared::error::Code;
use systole_shared::policy::clock::{ClockChange, ClockHold};
use systole_shared::policy::restore::is_credible;
use systole_shared::time::{format_duration, format_utc};

/// Hosts that one alarm names.
const NAMED_MAX: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The database's clock jumped, and nothing confirms it.
    Clock,
    /// The database was set back: hosts have held newer tasks than it knows.
    Restore,
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::Clock, Kind::Restore];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Clock => "clock",
            Kind::Restore => "restore",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Something that a person must look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    pub kind: Kind,
    /// What happened, what is held, and what to do.
    pub message: String,
    /// By the database's clock.
    pub since_ms: i64,
}

/// The alarm of this replica's own watch over the clock.
pub fn clock(ctx: &Context) -> Option<Alarm> {
    ctx.clock.hold().map(|hold| Alarm {
        kind: Kind::Clock,
        message: describe(hold),
        since_ms: hold.first.db_ms,
    })
}

fn describe(hold: ClockHold) -> String {
    let ms = hold.off_ms.unsigned_abs();
    let by = format_duration(ms);
    let way = if hold.off_ms > 0 { "ahead of" } else { "behind" };
    format!(
        "the database's clock says {} and is {by} {way} what it should be: delayed tasks, timeouts of waiting tasks and \
         clean-ups are held. Put it right; or, if it is right now: systole admin confirm clock",
        format_utc(hold.first.db_ms)
    )
}

/// All alarms: of this replica's clock, and of the cluster's hosts.
pub async fn open(ctx: &Context) -> Result<Vec<Alarm>, StoreError> {
    let mut alarms: Vec<Alarm> = clock(ctx).into_iter().collect();
    let ahead = ctx.db.ahead().await?;
    if let (Some(since_ms), Some(highest)) = (
        ahead.iter().map(|row| row.seen_ms).min(),
        ahead.iter().map(|row| row.max_task_id).max(),
    ) {
        let mut names: Vec<&str> = ahead.iter().take(NAMED_MAX).map(|row| row.host.as_str()).collect();
        let more = format!("and {} more", ahead.len().saturating_sub(NAMED_MAX));
        if ahead.len() > NAMED_MAX {
            names.push(&more);
        }
        alarms.push(Alarm {
            kind: Kind::Restore,
            message: format!(
                "the database was set back: hosts have held tasks up to {highest}, which it does not know ({}). They get no \
                 new tasks. Tasks that were submitted or ended after the state that was restored are lost here; look at \
                 what waits (systole ls) before it runs a second time, then: systole admin confirm restore",
                names.join(", ")
            ),
            since_ms,
        });
    }
    Ok(alarms)
}

/// A person has looked. Returns what follows.
pub async fn confirm(ctx: &Context, kind: Kind, by: &str, reason: &str) -> Result<String, Refusal> {
    let nothing = |what: &str| Refusal {
        code: Code::InvalidField,
        message: format!("kind: {what}; see `systole admin alarms`"),
        field: "kind".into(),
    };
    match kind {
        Kind::Clock => {
            if ctx.clock.hold().is_none() {
                return Err(nothing(
                    "nothing is held because of the clock, as this scheduler sees it",
                ));
            }
            ctx.db.confirm_clock(by.to_owned(), reason.to_owned()).await?;
            let asked = boottime_ms();
            saw_time(ctx, asked, ctx.db.now_ms().await?).await;
            tracing::warn!(by, "the database's clock was confirmed by a person");
            Ok(match ctx.clock.hold() {
                None => "the database's clock is believed; what was held goes on".into(),
                Some(_) => {
                    "noted; but the clock has jumped again since, and is held for that. See `systole admin alarms`"
                        .into()
                }
            })
        }
        Kind::Restore => {
            let hosts = ctx.db.confirm_restore(by.to_owned(), reason.to_owned()).await?;
            if hosts == 0 {
                return Err(nothing("no host has named a newer task than the database knows"));
            }
            ctx.ahead.set(HashSet::new());
            ctx.wake.everything();
            tracing::warn!(by, hosts, "the state of the database was confirmed by a person");
            let who = if hosts == 1 {
                "1 host gets".to_owned()
            } else {
                format!("{hosts} hosts get")
            };
            Ok(format!(
                "{who} tasks again; new tasks have higher ids than any host has named"
            ))
        }
    }
}

/// The database told its time, in answer to a question that was asked at `asked_boot_ms`.
pub async fn saw_time(ctx: &Context, asked_boot_ms: i64, db_ms: i64) {
    let confirmed_ms = match ctx.clock.hold() {
        None => None,
        Some(_) => match ctx.db.clock_confirmed_ms().await {
            Ok(ms) => ms,
            Err(error) => return tracing::warn!(%error, "clock"),
        },
    };
    match ctx.clock.observe(asked_boot_ms, db_ms, confirmed_ms) {
        ClockChange::None => {}
        ClockChange::Held(hold) => tracing::error!("{}", describe(hold)),
        ClockChange::Released => {
            tracing::info!("the database's clock is believed again; what was held goes on");
            ctx.wake.admit.notify_one();
            ctx.wake.believed.notify_one();
        }
        ClockChange::Stepped => {
            tracing::info!("the database's clock was set, and another clock tells the same");
            ctx.wake.admit.notify_one();
            ctx.wake.believed.notify_one();
        }
    }
}

/// Stores which hosts were found ahead, takes note of what all replicas found (`rows`), and moves the ids past them. `newest`: the
/// ids as they were read before the rows.
pub async fn look_for_hosts_ahead(ctx: &Context, newest: i64, mut rows: Vec<AheadRow>) -> Result<(), StoreError> {
    let new = ctx.ahead.take_new();
    if !new.is_empty() {
        let hosts: HashSet<String> = new.iter().map(|(host, _)| host.clone()).collect();
        if let Err(error) = ctx.db.put_ahead(new.clone()).await {
            for (host, id) in new {
                ctx.ahead.note(&host, id);
            }
            return Err(error);
        }
        tracing::error!(
            ?hosts,
            "these hosts have held newer tasks than the database knows: it was set back, or this is another cluster. They get no new \
             tasks until a person has looked: systole admin alarms"
        );
        rows = ctx.db.ahead().await?;
    }
    // Known since an earlier look.
    let known = ctx.ahead.hosts();
    let highest = rows
        .iter()
        .filter(|row| known.contains(&row.host))
        .map(|row| row.max_task_id)
        .filter(|&id| is_credible(id, newest))
        .max();
    if let Some(highest) = highest.filter(|&highest| highest > newest) {
        ctx.db.raise_ids(highest).await?;
    }
    ctx.ahead.set(rows.into_iter().map(|row| row.host).collect());
    Ok(())
}
