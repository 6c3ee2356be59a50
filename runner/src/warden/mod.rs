//! The warden: a small process beside the agent that starts, watches and ends the children of all slots, and keeps their ends
//! and their output on disk. It outlives the agent: an agent that crashes, restarts or is upgraded finds its
//! tasks as they are.
//!
//! It is small on purpose. It has no runtime and talks to nobody but the agent, so there is little in it
//! that could fail, and starting a child from it is cheap. Two equal [`worker`]s share the slots by their number; a
//! [`keeper`], below or above it, ends what is left should the warden itself be killed.

pub mod cgroup;
mod cgroup_path;
pub mod client;
mod connection;
mod ends;
pub mod flood;
pub mod freeze;
pub mod health;
mod keeper;
pub mod limiter;
pub mod protocol;
mod room;
mod silence;
mod task;
mod timers;
pub mod tree;
mod worker;

use crate::child::spawn::Place;
use crate::error::RunnerError;
use crate::journal::{Ended, Journal};
use crate::kept::{self, Keep};
use crate::policy::current::Current;
use crate::state_dir::WardenDir;
use crate::{file_limit, host, protect, sweep};
use cgroup::Cgroups;
use health::Health;
use limiter::Limiter;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use room::Room;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use worker::Worker;

/// Two: a fork waits for its exec, and one at a time would not fill two cores.
pub const WORKERS: usize = 2;
/// Orphans that have ended are waited for this often. Not at each SIGCHLD: every task's end is one, and wakes a thread that
/// has nothing to do with it.
const BURY_EVERY: Duration = Duration::from_secs(1);
/// What is kept for days is looked through this often.
const CLEAN_EVERY: Duration = Duration::from_secs(3_600);
/// Full outputs are looked at this often.
const TIDY_EVERY: Duration = Duration::from_secs(60);
/// Folders of former tasks that are kept for later ones, and with each three open files.
const SPARES: usize = 64;
/// Of the descriptors that this process may have, the spare folders take at most three times the part by this.
const FILES_PER_SPARE: u64 = 16;

/// How a warden is to behave.
#[derive(Clone, Debug)]
pub struct Plan {
    pub data_dir: PathBuf,
    /// Without an agent and without tasks it stays: somebody else starts and stops it.
    pub stays: bool,
    /// How long running tasks may go on when it is told to stop.
    pub drain_wait: Duration,
    /// How long running tasks may go on without an agent.
    pub adopt_window: Duration,
    /// The file with the host's policy; without it the default one, if it exists.
    pub policy: Option<PathBuf>,
    /// Bytes of each stream of a task that stay on disk; at least [`flood::FILE_BYTES_MIN`].
    pub output_file_max: u64,
    /// Full outputs that are kept when their tasks have ended.
    pub keep_output: Keep,
}

/// What the workers have in common.
struct Shared {
    plan: Plan,
    place: Place,
    cgroups: Option<Cgroups>,
    health: Health,
    draining: AtomicBool,
    abandoned: AtomicBool,
    busy: AtomicUsize,
    wakes: Vec<Arc<EventFd>>,
}

impl Shared {
    /// Deletes full outputs that have lain too long, or are too much.
    fn tidy_kept(&self) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(crate::journal::now_ms());
        match kept::surplus(&self.plan.data_dir, self.plan.keep_output, now) {
            Ok(surplus) => {
                for path in surplus {
                    if let Err(error) = self.place.journal.discard(&path) {
                        tracing::warn!(path = %path.display(), %error, "a full output could not be deleted");
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "outputs/ could not be looked at"),
        }
    }

    /// Deletes the oldest full outputs where the disk runs full.
    fn make_room(&self) {
        let root = &self.plan.data_dir;
        // What cannot be measured is a fault of the host, and told as such.
        let Ok(room) = Room::measure(root) else { return };
        if let Err(error) = room::make(root, &self.place.journal, room) {
            tracing::warn!(%error, "full outputs could not be deleted, and the disk runs full");
        }
    }

    fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        for wake in &self.wakes {
            // Full: then it is awake already.
            let _ = wake.write(1);
        }
    }

    fn count_busy(&self, busy: bool) {
        if busy {
            self.busy.fetch_add(1, Ordering::SeqCst);
        } else {
            self.busy.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn nobody_is_busy(&self) -> bool {
        self.busy.load(Ordering::SeqCst) == 0
    }

    /// What keeps the processes of a task together, for people.
    fn guard(&self) -> &'static str {
        self.cgroups.as_ref().map_or("session", Cgroups::guard)
    }
}

/// The worker that has a slot.
pub fn worker_of(slot: u32) -> usize {
    slot as usize % WORKERS
}

pub fn socket_name(worker: usize) -> String {
    format!("warden.{worker}.sock")
}

/// The path of a file by its open directory: a socket's address has room for a hundred bytes only.
pub fn short_path(dir: &std::fs::File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}

/// Takes the data directory, settles what an earlier warden left, and listens. Then the workers can be started.
struct Opened {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
}

fn open(plan: Plan, home: WardenDir, cgroups: Option<Cgroups>, limiter: Limiter) -> Result<Opened, RunnerError> {
    let unusable = |source| RunnerError::DataDir {
        path: plan.data_dir.clone(),
        source,
    };
    home.sign().map_err(unusable)?;
    let journal = Journal::open(&plan.data_dir, spares()).map_err(unusable)?;
    let mut ends: Vec<Vec<Ended>> = vec![Vec::new(); WORKERS];
    for ended in sweep::recover(&journal, &home).map_err(unusable)? {
        ends[worker_of(ended.slot)].push(ended);
    }
    let wakes: Vec<Arc<EventFd>> = (0..WORKERS)
        .map(|_| EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Arc::new))
        .collect::<Result<_, _>>()
        .map_err(|errno| RunnerError::Host(errno.into()))?;
    let listeners = (0..WORKERS)
        .map(|worker| listen(&plan.data_dir, worker))
        .collect::<io::Result<Vec<_>>>()
        .map_err(unusable)?;
    let shared = Arc::new(Shared {
        place: Place {
            home,
            journal,
            account: host::account(),
            limiter,
            policy: Current::load(plan.policy.as_deref()).map_err(RunnerError::Policy)?,
            null: std::fs::File::open("/dev/null").map_err(RunnerError::Host)?,
        },
        health: Health::new(plan.data_dir.clone()),
        plan,
        cgroups,
        draining: AtomicBool::new(false),
        abandoned: AtomicBool::new(false),
        busy: AtomicUsize::new(0),
        wakes: wakes.clone(),
    });
    let workers = listeners
        .into_iter()
        .zip(wakes)
        .zip(ends)
        .map(|((listener, wake), ends)| Worker::new(Arc::clone(&shared), listener, wake, ends))
        .collect::<io::Result<Vec<_>>>()
        .map_err(RunnerError::Host)?;
    Ok(Opened { shared, workers })
}

fn spares() -> usize {
    use nix::sys::resource::{Resource, getrlimit};
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(files / FILES_PER_SPARE).map_or(SPARES, |room| room.min(SPARES))
}

/// Under the lock of the directory: a socket that lies there is a dead warden's.
fn listen(root: &Path, worker: usize) -> io::Result<UnixListener> {
    let name = socket_name(worker);
    match std::fs::remove_file(root.join(&name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let dir = std::fs::File::open(root)?;
    UnixListener::bind(short_path(&dir, &name))
}

/// `ended` is called by each thread as its last deed.
fn start_workers(workers: Vec<Worker>, ended: fn()) -> io::Result<Vec<JoinHandle<()>>> {
    let start = |(index, worker): (usize, Worker)| {
        std::thread::Builder::new()
            .name(format!("warden-{index}"))
            .spawn(move || {
                worker.run();
                ended();
            })
    };
    workers.into_iter().enumerate().map(start).collect()
}

/// Looks after the health of the host, and tells the workers of each change, until the warden is abandoned.
fn start_prober(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("health".into()).spawn(move || {
        shared.health.probes_here();
        let mut cleaned: Option<Instant> = None;
        while !shared.abandoned.load(Ordering::SeqCst) {
            // First, so that a disk is called full only when nothing is left that may go.
            shared.make_room();
            let before = shared.health.no();
            let pause = shared.health.look();
            if shared.health.no() != before {
                shared.wake();
            }
            if cleaned.is_none_or(|at| at.elapsed() >= CLEAN_EVERY) {
                cleaned = Some(Instant::now());
                clean(&shared.place.journal);
            }
            std::thread::park_timeout(pause);
        }
    })
}

/// What is kept for some days only.
fn clean(journal: &Journal) {
    let now_ms = systole_shared::clock::now_ms();
    if let Err(error) = journal
        .clean_unclaimed(now_ms)
        .and_then(|()| journal.clean_kept(now_ms))
    {
        tracing::warn!(%error, "unclaimed/ and kept/ could not be cleaned");
    }
}

/// A warden in threads of this process, for tests. Dropped, it is as if a warden's process was killed: nothing is told or
/// tidied, and the main processes of its tasks die with the threads.
pub struct Inside {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Inside {
    /// Returns once it listens.
    pub fn start(plan: Plan) -> Result<Self, RunnerError> {
        adopt_orphans();
        let home = WardenDir::open(&plan.data_dir, &host::machine_id())?;
        let prefix = format!("systole-{}-", home.instance_id);
        for own in limiter::own_v1() {
            cgroup::sweep(&own, &prefix);
        }
        let limiter = Limiter::find(None, &format!("{prefix}inside"));
        let Opened { shared, workers } = open(plan, home, None, limiter)?;
        let mut workers = start_workers(workers, || {}).map_err(RunnerError::Host)?;
        workers.push(start_prober(Arc::clone(&shared)).map_err(RunnerError::Host)?);
        Ok(Self { shared, workers })
    }

    /// As SIGTERM to a warden's process.
    pub fn drain(&self) {
        self.shared.drain();
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.shared.abandoned.store(true, Ordering::SeqCst);
        self.shared.wake();
        self.shared.health.hurry();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// A warden as this process, until it is told to stop or nobody needs it any more. The process has no other thread yet.
pub fn run(plan: Plan) -> Result<(), RunnerError> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1] {
        signals.add(signal);
    }
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&signals), None).map_err(|errno| RunnerError::Host(errno.into()))?;
    adopt_orphans();
    // Each task takes some.
    file_limit::raise();
    // First: only who has the lock may sweep.
    let home = WardenDir::open(&plan.data_dir, &host::machine_id())?;
    let prefix = format!("systole-{}-", home.instance_id);
    let (own, freezer) = (cgroup::own_now(), cgroup::own_freezer());
    if !home.is_new {
        for own in own.iter().chain(&freezer).chain(&limiter::own_v1()) {
            cgroup::sweep(own, &prefix);
        }
    }
    let name = format!("{prefix}{}", std::process::id());
    let limiter = Limiter::find(own.as_deref(), &name);
    let cgroups = own
        .and_then(|own| Cgroups::find(&own, &name, limiter.pids_by_default()))
        .or_else(|| freezer.and_then(|own| Cgroups::find_v1(&own, &name)));
    let dirs: Vec<PathBuf> = cgroups
        .iter()
        .map(|cgroups| cgroups.dir().to_owned())
        .chain(limiter.dirs())
        .collect();
    protect::from_want_of_memory();
    let keeper = if cgroups.is_some() {
        keeper::start(dirs)
    } else {
        keeper::stand_above(&dirs);
        // Another process by now, which has not inherited it.
        adopt_orphans();
        None
    };
    let opened = open(plan, home, cgroups, limiter)?;
    let shared = opened.shared;
    tracing::info!(
        data_dir = %shared.plan.data_dir.display(),
        guard = shared.guard(),
        "the warden starts"
    );
    let workers = start_workers(opened.workers, || {
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), Signal::SIGUSR1);
    })
    .map_err(RunnerError::Host)?;
    // Its last look is that of the process.
    start_prober(Arc::clone(&shared)).map_err(RunnerError::Host)?;
    shed_code();
    shared.tidy_kept();
    let mut tidied = Instant::now();
    while !workers.iter().all(JoinHandle::is_finished) {
        match next_signal(&signals, BURY_EVERY) {
            None => {
                bury_orphans();
                if tidied.elapsed() >= TIDY_EVERY {
                    shared.tidy_kept();
                    tidied = Instant::now();
                }
                limiter::host_was_out_of_memory(Instant::now());
            }
            Some(libc::SIGTERM | libc::SIGINT) => {
                tracing::info!("the warden is told to stop");
                shared.drain();
            }
            Some(libc::SIGHUP) => shared.place.policy.reload(None),
            // A worker is ending: a moment until its thread is gone.
            Some(libc::SIGUSR1) => std::thread::sleep(Duration::from_millis(1)),
            Some(_) => {}
        }
    }
    bury_orphans();
    if let Some(keeper) = keeper {
        keeper.dismiss();
    }
    tracing::info!("the warden has left");
    Ok(())
}

/// Gives back the program's pages that only the start needed, such as the reading of options: this process lives long and
/// does little. What is needed after all is read from the file again.
#[expect(unsafe_code, reason = "madvise has no safe form")]
fn shed_code() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return;
    };
    for line in maps.lines() {
        // Code only: it is never written to, so nothing is lost.
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some("r-xp"), Some(path)) = (fields.next(), fields.next(), fields.nth(3)) else {
            continue;
        };
        let ends = range.split_once('-').map(|(from, to)| {
            let number = |text| usize::from_str_radix(text, 16);
            (number(from), number(to))
        });
        if let Some((Ok(from), Ok(to))) = ends
            && path.starts_with('/')
        {
            // SAFETY: pages of a file that is mapped private and read-only: the kernel reads them again when they are touched.
            unsafe {
                libc::madvise(
                    std::ptr::with_exposed_provenance_mut(from),
                    to - from,
                    libc::MADV_DONTNEED,
                )
            };
        }
    }
}

/// `None`: none came in this time.
#[expect(unsafe_code, reason = "nix has no wait for signals with a limit")]
fn next_signal(signals: &SigSet, patience: Duration) -> Option<libc::c_int> {
    let patience = libc::timespec {
        tv_sec: patience.as_secs().try_into().unwrap_or(1),
        tv_nsec: libc::c_long::from(patience.subsec_nanos()),
    };
    // SAFETY: pointers to a set and a time that outlive the call; what came is not asked for.
    let signal = unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), &raw const patience) };
    (signal > 0).then_some(signal)
}

/// Processes that lose their parent below this one come to it, instead of leaving the tree.
fn adopt_orphans() {
    if let Err(errno) = nix::sys::prctl::set_child_subreaper(true) {
        tracing::warn!(%errno, "orphans of tasks cannot be adopted; what leaves its session may be missed");
    }
}

/// Children of this thread only, which are the orphans: those of the tasks are their workers'.
#[expect(unsafe_code, reason = "nix does not know the flag")]
fn bury_orphans() {
    loop {
        // SAFETY: a system call without any memory.
        let buried = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WNOTHREAD) };
        if buried <= 0 {
            return;
        }
    }
}
