//! What every part of a running replica shares. Made once, in `app.rs`.

use crate::ahead::Ahead;
use crate::auth::Tokens;
use crate::clock::{ClockWatch, boottime_ms};
use crate::config::Config;
use crate::flow::fetch::Asked;
use crate::flow::heartbeat::{Beats, Faults, Registered, SlotLabels};
use crate::flow::submit::Submissions;
use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::parked::Parked;
use crate::store::Db;
use crate::tls::OwnCertificate;
use crate::wake::Wake;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use systole_shared::policy::freeze::Freeze;
use systole_shared::policy::why::RunnerView;
use systole_shared::trigger::zone::Zone;
use tokio_util::sync::CancellationToken;

pub struct Context {
    pub config: Config,
    pub db: Arc<Db>,
    /// Runners obey only the cluster that dispatched their task.
    pub cluster_id: String,
    /// Signs callbacks.
    pub callback_secret: String,
    /// The zone of triggers and calendars that are applied here without one.
    pub default_zone: Zone,
    /// This process: `host:pid:random`.
    pub replica: String,
    /// Where the cluster signs its certificates itself.
    pub own_certificate: Option<Arc<OwnCertificate>>,
    pub tokens: Tokens,
    pub metrics: Metrics,
    pub lanes: Arc<Lanes>,
    pub parked: Arc<Parked>,
    pub wake: Wake,
    pub beats: Beats,
    pub registered: Registered,
    pub faults: Faults,
    pub slot_labels: SlotLabels,
    pub submissions: Submissions,
    pub fleet: Fleet,
    pub jobs: crate::flow::jobs::Memory,
    pub leases: crate::flow::leases::Watch,
    /// Tells people.
    pub notifier: crate::flow::notify::Notifier,
    pub progress: crate::loops::life_sign::Progress,
    /// Hosts that are asked for full outputs.
    pub asked: Asked,
    /// One copy of the database at a time.
    pub backup: tokio::sync::Mutex<()>,
    pub health: Health,
    /// Whether the database's clock may be acted on.
    pub clock: ClockWatch,
    /// Hosts that get no new task, because the database was set back.
    pub ahead: Ahead,
    /// Hosts that the reaper of this replica does not declare lost yet, because many fell silent at once.
    pub withheld: Withheld,
    /// SIGTERM: nothing new is begun.
    pub draining: CancellationToken,
    /// The last call has been answered: workers end.
    pub closed: CancellationToken,
    /// It says no more that it is there.
    pub left: CancellationToken,
    /// Highest task id known.
    pub newest_task_id: AtomicI64,
}

#[derive(Debug, Default)]
pub struct Withheld {
    hosts: Mutex<HashSet<String>>,
}

impl Withheld {
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        match self.hosts.lock() {
            Ok(hosts) => hosts,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    pub fn set(&self, hosts: &[String]) {
        let mut known = self.lock();
        if known.len() != hosts.len() || !hosts.iter().all(|host| known.contains(host)) {
            *known = hosts.iter().cloned().collect();
        }
    }

    pub fn has(&self, host: &str) -> bool {
        self.lock().contains(host)
    }
}

/// Whether this replica can commit.
#[derive(Debug)]
pub struct Health {
    last_commit_ms: AtomicI64,
    started: AtomicBool,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            last_commit_ms: AtomicI64::new(boottime_ms()),
            started: AtomicBool::new(false),
        }
    }
}

impl Health {
    pub fn committed(&self) {
        self.last_commit_ms.store(boottime_ms(), Ordering::Relaxed);
    }

    pub fn started(&self) {
        self.started.store(true, Ordering::SeqCst);
    }

    /// A replica that could not commit for a third of a beat acknowledges nothing.
    pub fn can_commit(&self, beat_ms: i64) -> bool {
        boottime_ms() - self.last_commit_ms.load(Ordering::Relaxed) <= (beat_ms / 3).max(2_500)
    }

    /// Resolves when this replica cannot commit any more.
    pub async fn lost(&self, beat_ms: i64) {
        while self.can_commit(beat_ms) {
            tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        }
    }

    fn has_started(&self) -> bool {
        self.started.load(Ordering::SeqCst)
    }
}

impl Context {
    pub fn beat_ms(&self) -> i64 {
        i64::try_from(self.config.timing.beat.as_millis()).unwrap_or(i64::MAX)
    }

    pub fn lost_after_ms(&self) -> i64 {
        i64::try_from(self.config.timing.lost_after.as_millis()).unwrap_or(i64::MAX)
    }

    /// Beats whose answers are held back here.
    pub fn parked_beats(&self) -> usize {
        self.parked.len()
    }

    /// For balancers: send new calls here.
    pub fn is_ready(&self) -> bool {
        self.health.has_started() && !self.draining.is_cancelled() && self.health.can_commit(self.beat_ms())
    }
}

/// The runners as last read, for explanations. At most this old.
const FLEET_AGE_MS: i64 = 1_000;
/// Runners that explanations look at.
const FLEET_MAX: i64 = 100_000;

/// A short-lived copy of all runners.
#[derive(Debug, Default)]
pub struct Fleet {
    cached: tokio::sync::Mutex<Option<(i64, Arc<FleetView>)>>,
}

#[derive(Debug, Default)]
pub struct FleetView {
    pub runners: Vec<RunnerView>,
    /// What is frozen.
    pub freezes: Vec<Freeze>,
    /// The database's clock when it was read.
    pub now_ms: i64,
}

impl Fleet {
    /// What is shown next is read anew.
    pub async fn forget(&self) {
        *self.cached.lock().await = None;
    }

    pub async fn view(&self, db: &Db, lost_after_ms: i64) -> Result<Arc<FleetView>, crate::store::StoreError> {
        // Held across the read on purpose: callers that come together share one.
        let mut cached = self.cached.lock().await;
        if let Some((at, view)) = cached.as_ref()
            && boottime_ms() - at <= FLEET_AGE_MS
        {
            return Ok(Arc::clone(view));
        }
        let rows = db.runners((String::new(), -1), String::new(), FLEET_MAX).await?;
        let frozen = db.frozen().await?;
        let runners = rows
            .iter()
            .map(|row| crate::flow::fleet::view(row, lost_after_ms))
            .collect();
        let view = Arc::new(FleetView {
            runners,
            freezes: frozen.freezes,
            now_ms: frozen.now_ms,
        });
        *cached = Some((boottime_ms(), Arc::clone(&view)));
        Ok(view)
    }
}
