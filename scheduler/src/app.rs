//! Puts a replica together. The one file that names all concrete parts and starts its tasks.

use crate::auth::{TokenFiles, first_tokens, leave_callback_secret};
use crate::config::Config;
use crate::context::{Context, Health};
use crate::flow::notify::{Channels, Notifier};
use crate::flow::{alarms, callback, dispatch, fetch, heartbeat, submit};
use crate::http;
use crate::loops::{
    self, admit, backfill, callbacks, chains, expire, fire, job_files, lateness, life_sign, outlook, poll, reaper,
    retention, route, sets, stamps, watchdog,
};
use crate::store::sql::Dialect;
use crate::store::{Db, StoreError, sqlite_file};
use crate::tls::{self, OwnCertificate};
use crate::wake::Wake;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use systole_shared::trigger::zone::Zone;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Transactions of beats that run at once. SQLite has one writer.
const BEAT_WORKERS_POSTGRES: usize = 2;
const SUBMIT_WORKERS_POSTGRES: usize = 2;
/// A database that does not answer keeps no replica from its end for longer.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// Why a replica does not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A wrong setting: names the option.
    #[error("{0}")]
    Config(String),
    #[error("cannot listen on {addr}: {error}. Choose another address with --listen, or stop what uses it")]
    Listen { addr: SocketAddr, error: std::io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl StartError {
    /// Of the process: 2 for a wrong setting, 5 for something that cannot be reached, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Store(StoreError::Schema(_)) => 2,
            Self::Store(StoreError::Unreachable(_) | StoreError::Busy(_)) => 5,
            Self::Listen { .. } | Self::Store(_) => 1,
        }
    }
}

/// A replica that serves.
pub struct Running {
    pub addr: SocketAddr,
    pub tokens: TokenFiles,
    /// The database, for people.
    pub database: String,
    /// For tests, and for whoever waits for something inside.
    pub context: Arc<Context>,
    server: JoinHandle<()>,
}

impl Running {
    /// The cluster's own authority, where it signs the certificates.
    pub fn authority(&self) -> Option<&tls::Authority> {
        self.context.own_certificate.as_ref().map(|own| own.authority())
    }

    /// Resolves when the replica has ended.
    pub async fn stopped(self) -> Result<(), StartError> {
        let ended = self.server.await;
        self.context.db.close().await;
        ended.map_err(|error| StartError::Config(format!("the server ended by a bug: {error}")))
    }
}

/// Starts a replica; it ends in order when `shutdown` is cancelled.
pub async fn start(config: Config, shutdown: CancellationToken) -> Result<Running, StartError> {
    check(&config)?;
    let database = config.database.clone();
    Box::pin(begin(config, shutdown))
        .await
        .map_err(|error| match (error, sqlite_file::of(&database)) {
            (StartError::Store(error), Some(path)) => StartError::Store(error.in_file(&path)),
            (error, _) => error,
        })
}

async fn begin(config: Config, shutdown: CancellationToken) -> Result<Running, StartError> {
    // One crypto provider for the whole process; a second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let files = tls::from_files(config.tls.as_ref()).map_err(StartError::Config)?;
    let channels = Channels::load(config.alarms.file.as_deref()).map_err(StartError::Config)?;
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| StartError::Listen {
            addr: config.listen,
            error,
        })?;
    let addr = listener.local_addr().map_err(|error| StartError::Listen {
        addr: config.listen,
        error,
    })?;
    let db = Arc::new(Db::open(&config.database, config.connections).await?);
    db.migrate().await?;
    db.remove_unfinished_copy();
    let version = db.check_safety(config.allow_unsafe_database).await?;
    let replica = replica_name();
    let tokens = first_tokens(&db, &config.token_dir, &replica, config.renew_tokens).await?;
    let serving = tls::serving(config.tls.as_ref(), files, &db, &config.token_dir, addr).await?;
    let database = describe(&db, &version);
    let notifier = Notifier::new(channels, config.alarms.clone())?;
    let context = Arc::new(context(config, db, replica, serving.own, notifier).await?);
    leave_callback_secret(&context.config.token_dir, &context.callback_secret)?;
    let router = http::router(Arc::clone(&context))?;
    start_duties(&context);
    context.health.started();
    tracing::info!(%addr, replica = context.replica, database, "scheduler ready");
    let server = tokio::spawn(run(Arc::clone(&context), listener, serving.acceptor, router, shutdown));
    Ok(Running {
        addr,
        tokens,
        database,
        context,
        server,
    })
}

async fn context(
    config: Config,
    db: Arc<Db>,
    replica: String,
    own_certificate: Option<Arc<OwnCertificate>>,
    notifier: Notifier,
) -> Result<Context, StoreError> {
    let cluster_id = db.setting("cluster_id", uuid::Uuid::new_v4().to_string()).await?;
    let callback_secret = db.setting("callback_secret", callback::new_secret()).await?;
    let default_zone = default_zone(&db, config.zone.as_deref()).await?;
    let lanes: Arc<crate::lanes::Lanes> = Arc::default();
    for (id, lane) in db.lanes_after(0).await? {
        lanes.add(id, lane);
    }
    lanes.freeze(&db.frozen().await?);
    let parked: Arc<crate::parked::Parked> = Arc::default();
    let context = Context {
        wake: Wake::new(Arc::clone(&lanes), Arc::clone(&parked)),
        cluster_id,
        callback_secret,
        default_zone,
        replica,
        own_certificate,
        tokens: crate::auth::Tokens::default(),
        metrics: crate::metrics::Metrics::default(),
        lanes,
        parked,
        beats: heartbeat::Beats::default(),
        registered: heartbeat::Registered::default(),
        faults: heartbeat::Faults::default(),
        slot_labels: heartbeat::SlotLabels::default(),
        submissions: submit::Submissions::default(),
        fleet: crate::context::Fleet::default(),
        jobs: crate::flow::jobs::Memory::default(),
        leases: crate::flow::leases::Watch::default(),
        notifier,
        progress: life_sign::Progress::default(),
        asked: crate::flow::fetch::Asked::default(),
        backup: tokio::sync::Mutex::default(),
        health: Health::default(),
        clock: crate::clock::ClockWatch::new(db.is_elsewhere()),
        ahead: crate::ahead::Ahead::default(),
        withheld: crate::context::Withheld::default(),
        draining: CancellationToken::new(),
        closed: CancellationToken::new(),
        left: CancellationToken::new(),
        newest_task_id: db.newest_task_id().await?.into(),
        config,
        db,
    };
    let read = context.tokens.begin_read();
    context.tokens.set(read, context.db.tokens().await?);
    let asked = crate::clock::boottime_ms();
    alarms::saw_time(&context, asked, context.db.now_ms().await?).await;
    let ahead = context.db.ahead().await?;
    alarms::look_for_hosts_ahead(&context, i64::MAX, ahead).await?;
    Ok(context)
}

/// The zone that this replica was given, which is that of the cluster from now on; else the one that was decided before.
async fn default_zone(db: &Db, given: Option<&str>) -> Result<Zone, StoreError> {
    const SETTING: &str = "default_zone";
    let known = db.known_setting(SETTING).await?;
    if let Some(given) = given
        && known.as_deref() != Some(given)
    {
        if let Some(known) = &known {
            tracing::warn!(
                before = known,
                now = given,
                "the default zone of the cluster changes; triggers that are stored keep theirs, and replicas that run, too"
            );
        }
        db.replace_setting(SETTING, given.to_owned()).await?;
    }
    let name = given.map(str::to_owned).or(known);
    Ok(name.and_then(|name| Zone::parse(&name).ok()).unwrap_or_else(Zone::utc))
}

fn start_duties(ctx: &Arc<Context>) {
    let postgres = ctx.db.dialect() == Dialect::Postgres;
    let (beats, submits) = if postgres {
        (BEAT_WORKERS_POSTGRES, SUBMIT_WORKERS_POSTGRES)
    } else {
        (1, 1)
    };
    ctx.beats.gathers.store(beats > 1, Ordering::Relaxed);
    for _ in 0..beats {
        tokio::spawn(keep_working("beats", Arc::clone(ctx), heartbeat::worker));
    }
    tokio::spawn(keep_working("quiet beats", Arc::clone(ctx), heartbeat::quiet_worker));
    for _ in 0..submits {
        tokio::spawn(keep_working("submissions", Arc::clone(ctx), submit::worker));
    }
    tokio::spawn(loops::keep_running("dispatch", Arc::clone(ctx), dispatch::run));
    tokio::spawn(loops::keep_running("admission", Arc::clone(ctx), admit::run));
    tokio::spawn(loops::keep_running("triggers", Arc::clone(ctx), fire::run));
    tokio::spawn(loops::keep_running("job files", Arc::clone(ctx), job_files::run));
    tokio::spawn(loops::keep_running("chains", Arc::clone(ctx), chains::run));
    tokio::spawn(loops::keep_running("backfills", Arc::clone(ctx), backfill::run));
    tokio::spawn(loops::keep_running("routes", Arc::clone(ctx), route::run));
    tokio::spawn(loops::keep_running("broadcasts", Arc::clone(ctx), sets::run));
    tokio::spawn(loops::keep_running("timeouts", Arc::clone(ctx), expire::run));
    tokio::spawn(loops::keep_running("callbacks", Arc::clone(ctx), callbacks::run));
    tokio::spawn(loops::keep_running("alarms", Arc::clone(ctx), loops::alarms::run));
    tokio::spawn(loops::keep_running("lateness", Arc::clone(ctx), lateness::run));
    tokio::spawn(loops::keep_running("life sign", Arc::clone(ctx), life_sign::run));
    tokio::spawn(loops::keep_running("stamps", Arc::clone(ctx), stamps::run));
    tokio::spawn(loops::keep_running("poll", Arc::clone(ctx), poll::run));
    tokio::spawn(loops::keep_running("outlook", Arc::clone(ctx), outlook::run));
    tokio::spawn(loops::keep_running("pulse", Arc::clone(ctx), poll::pulse));
    tokio::spawn(loops::keep_running("watchdog", Arc::clone(ctx), watchdog::run));
    tokio::spawn(loops::keep_running("reaper", Arc::clone(ctx), reaper::run));
    tokio::spawn(loops::keep_running("fetches", Arc::clone(ctx), fetch::run));
    tokio::spawn(loops::keep_running("retention", Arc::clone(ctx), retention::run));
    if ctx.own_certificate.is_some() {
        tokio::spawn(loops::keep_running("certificate", Arc::clone(ctx), tls::renew));
    }
    if postgres {
        tokio::spawn(loops::keep_running("notifier", Arc::clone(ctx), poll::notifier));
        tokio::spawn(loops::keep_running("listener", Arc::clone(ctx), poll::listener));
    }
}

/// As [`loops::keep_running`], for workers that serve until the very end: a drain still needs them.
async fn keep_working<F>(name: &'static str, ctx: Arc<Context>, work: impl Fn(Arc<Context>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    while let Err(error) = tokio::spawn(work(Arc::clone(&ctx))).await {
        tracing::error!(duty = name, %error, "a worker ended by a bug and is begun again");
    }
}

/// Serves, and on shutdown drains: not ready any more, every parked beat answered, then no new
/// connections, then the calls under way.
async fn run(
    ctx: Arc<Context>,
    listener: TcpListener,
    tls: Option<tokio_rustls::TlsAcceptor>,
    router: axum::Router,
    shutdown: CancellationToken,
) {
    let stop = CancellationToken::new();
    let (drain_max, strangers) = (ctx.config.timing.drain_max, ctx.config.strangers);
    let serving = http::serve(listener, tls, router, stop.clone(), drain_max, strangers);
    tokio::pin!(serving);
    tokio::select! {
        () = serving.as_mut() => return,
        () = shutdown.cancelled() => {}
    }
    tracing::info!("draining");
    ctx.draining.cancel();
    ctx.parked.drain();
    tokio::select! {
        () = serving.as_mut() => return,
        () = tokio::time::sleep(ctx.config.timing.drain_wait) => {}
    }
    stop.cancel();
    serving.await;
    ctx.closed.cancel();
    // Else its row is seen to be old, which takes a while.
    let _ = tokio::time::timeout(LEAVE_MAX, ctx.left.cancelled()).await;
    tracing::info!("stopped");
}

/// Settings that cannot work are refused, naming the option.
fn check(config: &Config) -> Result<(), StartError> {
    let refuse = |text: String| Err(StartError::Config(text));
    let timing = &config.timing;
    if timing.beat < std::time::Duration::from_millis(100) || timing.beat > std::time::Duration::from_secs(60) {
        return refuse("--beat must be between 100ms and 60s".into());
    }
    if timing.lost_after < timing.beat * 3 {
        return refuse(format!(
            "--lost-after must be at least three beats ({:?}), or healthy runners would be declared lost",
            timing.beat * 3
        ));
    }
    for (name, value) in [
        ("--check", timing.check),
        ("--poll", timing.poll),
        ("--retention-period", config.retention.period),
        ("--alarm-timeout", config.alarms.timeout),
        ("--alarm-backoff", config.alarms.backoff),
    ] {
        if value.is_zero() {
            return refuse(format!("{name} must be more than zero"));
        }
    }
    if let Some(zone) = &config.zone
        && let Err(invalid) = Zone::parse(zone)
    {
        return refuse(format!("--zone: {}", invalid.message));
    }
    if let Some(folder) = &config.jobs
        && let Err(error) = std::fs::read_dir(folder)
    {
        return refuse(format!(
            "--jobs: {} is no folder that can be read: {}",
            folder.display(),
            crate::job_files::io_cause(&error)
        ));
    }
    if config.connections < 4 {
        return refuse("--connections must be at least 4".into());
    }
    if !config.listen.ip().is_loopback() && config.tls.is_none() && !config.insecure_plaintext {
        return refuse(format!(
            "--listen {}: other machines could read tokens and commands. Give --tls-self-signed, or --tls-cert and --tls-key, or say --insecure-plaintext if this network is trusted",
            config.listen
        ));
    }
    Ok(())
}

fn replica_name() -> String {
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "host".into());
    format!(
        "{host}:{}:{}",
        std::process::id(),
        crate::auth::hex(&rand::random::<[u8; 4]>())
    )
}

fn describe(db: &Db, version: &str) -> String {
    match db.sqlite_path() {
        Some(path) => {
            let bytes = std::fs::metadata(path).map_or(0, |meta| meta.len());
            format!(
                "SQLite in {} ({:.1} MiB)",
                path.display(),
                bytes as f64 / (1024.0 * 1024.0)
            )
        }
        None => version.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::new("sqlite:x", "127.0.0.1:0".parse().expect("valid"), "x".into());
        change(&mut config);
        check(&config).expect_err("must be refused").to_string()
    }

    #[test]
    fn settings_that_cannot_work_are_refused_by_name() {
        assert!(refused(|c| c.timing.lost_after = Duration::from_secs(60)).contains("--lost-after"));
        assert!(refused(|c| c.timing.beat = Duration::from_secs(90)).contains("--beat"));
        assert!(refused(|c| c.timing.poll = Duration::ZERO).contains("--poll"));
        assert!(refused(|c| c.zone = Some("Europe/Berlyn".into())).contains("--zone"));
        assert!(refused(|c| c.jobs = Some("/nowhere".into())).contains("--jobs"));
        assert!(refused(|c| c.listen = "0.0.0.0:7410".parse().expect("valid")).contains("--insecure-plaintext"));
    }
}
