//! The agent's end of the sockets: finds the warden or starts one, keeps the connections, and brings each event to the slot it
//! is about. After every new connection a slot gets the inventory of what the warden holds for it, which is the truth.

use super::protocol::{
    self, Frames, FromWarden, Hello, LiveTask, NotBegun, PROTOCOL, Ping, ToWarden, Told, Welcome, Why,
};
use super::silence::{LOOK_EVERY, Silence, fault_of_silence};
use super::{Plan, WORKERS, short_path, socket_name, worker_of};
use crate::backoff::Backoff;
use crate::error::RunnerError;
use crate::file_limit;
use crate::journal::Ended;
use crate::state_dir::has_warden;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use systole_shared::policy::host_fault::HostFault;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Events that wait for one slot. It holds at most one child and a few results; more is a bug.
const EVENTS_MAX: usize = 256;
/// Messages that wait for the warden.
const MESSAGES_MAX: usize = 16_384;
/// How long a warden may take to listen: it settles first what an earlier one left. And then to greet: one start may keep it so long.
const WARDEN_WITHIN: Duration = Duration::from_secs(30);
const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Where a warden comes from when none runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This program is started with these arguments and the directory.
    Program(PathBuf, Vec<String>),
    /// Somebody else starts it.
    Elsewhere,
}

/// What a slot hears.
#[derive(Debug)]
pub enum Event {
    Inventory(Inventory),
    Started(i64),
    NotBegun(i64, Why),
    Ended(Box<Ended>),
    /// The health of the host changed: see [`Client::health`].
    Health,
}

/// What the warden holds of one slot.
#[derive(Debug, Default)]
pub struct Inventory {
    /// Counts those of the slot. 0: it came with the greeting.
    pub no: u64,
    pub live: Option<LiveTask>,
    pub ended: Vec<Ended>,
}

/// The events of one slot. What comes before the slot listens waits for it.
struct Subscription {
    sender: mpsc::Sender<Event>,
    waiting: Option<mpsc::Receiver<Event>>,
    /// Inventories that it was told.
    inventories: u64,
}

impl Default for Subscription {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        Self {
            sender,
            waiting: Some(receiver),
            inventories: 0,
        }
    }
}

pub struct Client {
    plan: Plan,
    origin: Origin,
    start_no: u64,
    dir: std::fs::File,
    links: Vec<Mutex<Option<mpsc::Sender<ToWarden>>>>,
    slots: Mutex<HashMap<u32, Subscription>>,
    starting: tokio::sync::Mutex<()>,
    /// The warden is to end: that it goes is no reason to start another.
    ending: AtomicBool,
    health: Mutex<Known>,
    /// The host had a fault at some time: else its health needs no lock.
    was_faulty: AtomicBool,
    /// The warden was told to stop.
    pub draining: CancellationToken,
}

/// The health of the host, by the last warden that told it.
#[derive(Debug, Default)]
struct Known {
    warden: u32,
    told: Told,
    /// Workers that do not answer, or are gone, by the process that they belong to.
    silent: [Option<u32>; WORKERS],
    /// Changes since this process was started.
    changes: u64,
}

impl Known {
    /// A warden that does not answer comes first: what it said before may be true no more.
    fn fault(&self) -> Option<HostFault> {
        match self.silent.iter().flatten().next() {
            Some(warden) => Some(fault_of_silence(*warden)),
            None => self.told.fault.clone(),
        }
    }

    /// The process stays the same until the worker answers: that another one has greeted meanwhile is no news.
    fn set_silent(&mut self, worker: usize, is_silent: bool) {
        let warden = self.silent[worker].unwrap_or(self.warden);
        self.silent[worker] = is_silent.then_some(warden);
    }
}

/// What the workers said at the first connection.
pub struct Greeting {
    pub instance_id: String,
    pub max_task_id: i64,
    pub guard: String,
    pub limits: Option<String>,
    pub policy: Option<String>,
    pub slots: HashMap<u32, Inventory>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    fn new(plan: Plan, origin: Origin, start_no: u64) -> Result<Self, RunnerError> {
        let dir = std::fs::File::open(&plan.data_dir).map_err(|source| RunnerError::DataDir {
            path: plan.data_dir.clone(),
            source,
        })?;
        Ok(Self {
            plan,
            origin,
            start_no,
            dir,
            links: (0..WORKERS).map(|_| Mutex::new(None)).collect(),
            slots: Mutex::default(),
            starting: tokio::sync::Mutex::new(()),
            ending: AtomicBool::new(false),
            health: Mutex::default(),
            was_faulty: AtomicBool::new(false),
            draining: CancellationToken::new(),
        })
    }

    /// Connects to all workers of the warden, started if need be. The connections live as long as the set of tasks.
    pub async fn connect(
        plan: Plan,
        origin: Origin,
        start_no: u64,
    ) -> Result<(Arc<Self>, JoinSet<()>, Greeting), RunnerError> {
        let client = Arc::new(Self::new(plan, origin, start_no)?);
        let mut greeting = Greeting {
            instance_id: String::new(),
            max_task_id: 0,
            guard: String::new(),
            limits: None,
            policy: None,
            slots: HashMap::new(),
        };
        let mut pumps = JoinSet::new();
        for worker in 0..WORKERS {
            let (channel, welcome) = client.open(worker, WARDEN_WITHIN).await?;
            greeting.instance_id.clone_from(&welcome.instance_id);
            greeting.guard.clone_from(&welcome.guard);
            greeting.limits.clone_from(&welcome.limits);
            greeting.policy.clone_from(&welcome.policy);
            greeting.max_task_id = greeting.max_task_id.max(welcome.max_task_id);
            greeting.slots.extend(by_slot(&welcome));
            pumps.spawn(Arc::clone(&client).keep(worker, channel));
        }
        Ok((client, pumps, greeting))
    }

    /// Events of a slot since its inventory. Once for each slot: a second caller hears nothing.
    pub fn subscribe(&self, slot: u32) -> mpsc::Receiver<Event> {
        let waiting = locked(&self.slots).entry(slot).or_default().waiting.take();
        waiting.unwrap_or_else(|| mpsc::channel(1).1)
    }

    /// False: there is no connection now. An inventory follows when there is one again.
    pub fn send(&self, slot: u32, message: ToWarden) -> bool {
        locked(&self.links[worker_of(slot)])
            .as_ref()
            .is_some_and(|link| link.try_send(message).is_ok())
    }

    /// The same for an order to begin a task. `heard`: the last inventory that the slot took note of. Also false while a newer one waits
    /// for it: it is older than the order, and the slot would take from it that the order was lost.
    pub fn send_order(&self, slot: u32, heard: u64, order: ToWarden) -> bool {
        // Held meanwhile: a new connection is there only after its inventory was told.
        let link = locked(&self.links[worker_of(slot)]);
        let told = locked(&self.slots).get(&slot).map_or(0, |known| known.inventories);
        told <= heard && link.as_ref().is_some_and(|link| link.try_send(order).is_ok())
    }

    /// Tells all workers that no new tasks are started and the running ones are ended.
    pub fn drain(&self) {
        self.ending.store(true, Ordering::SeqCst);
        for slot in 0..WORKERS {
            let slot = u32::try_from(slot).unwrap_or(0);
            self.send(slot, ToWarden::Drain(protocol::Drain {}));
        }
    }

    /// Lets go of the warden. What was sent is delivered first, if that takes no time.
    pub async fn close(&self, mut pumps: JoinSet<()>) {
        for link in &self.links {
            locked(link).take();
        }
        let all = async { while pumps.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(1), all).await;
    }

    /// One worker's connection, for as long as the agent lives.
    async fn keep(self: Arc<Self>, worker: usize, first: Channel) {
        let mut channel = first;
        loop {
            let (sender, messages) = mpsc::channel(MESSAGES_MAX);
            *locked(&self.links[worker]) = Some(sender);
            let closed = self.pump(worker, channel, messages).await;
            let was_open = locked(&self.links[worker]).take().is_some();
            if closed || !was_open || self.ending.load(Ordering::SeqCst) {
                self.learn_silence(worker, false);
                return;
            }
            // Without it nothing can be started, and what is given to this host nevertheless would come back again and again.
            self.learn(|known| known.set_silent(worker, true));
            tracing::warn!(
                worker,
                "the warden is gone; its tasks are settled by the next one, and none is started until then"
            );
            let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
            channel = loop {
                match self.open(worker, WARDEN_WITHIN).await {
                    Ok((channel, welcome)) => {
                        self.tell_inventory(worker, &welcome);
                        break channel;
                    }
                    Err(error) => {
                        tracing::error!(worker, %error, "there is no warden; nothing can be started");
                        tokio::time::sleep(backoff.next()).await;
                    }
                }
            };
        }
    }

    /// True: this side closed it.
    async fn pump(&self, worker: usize, mut channel: Channel, mut messages: mpsc::Receiver<ToWarden>) -> bool {
        let mut out: Vec<u8> = Vec::new();
        let mut written: usize = 0;
        // It has just been greeted.
        let mut was_heard = true;
        let mut silence = Silence::default();
        let mut looks = tokio::time::interval(LOOK_EVERY);
        // Of looks that were missed, because this process was stopped itself, nothing can be said.
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Before the first read, too: what followed the welcome may have come with it.
            if let Err(error) = self.route_all(&mut channel.frames) {
                tracing::error!(%error, "the warden sent nonsense");
                return false;
            }
            // After its words are told: a slot that finds it silent meanwhile looks for them once more.
            if std::mem::take(&mut was_heard) && self.was_faulty.load(Ordering::Relaxed) {
                self.learn_silence(worker, false);
            }
            tokio::select! {
                message = messages.recv(), if out.is_empty() => {
                    let Some(message) = message else { return true };
                    let mut next = Some(message);
                    while let Some(message) = next {
                        put(&mut out, &message);
                        next = messages.try_recv().ok();
                    }
                }
                // Piece by piece: a warden that does not read must not keep this from noticing that it does not answer.
                wrote = channel.writer.write(&out[written..]), if !out.is_empty() => {
                    let Ok(count @ 1..) = wrote else { return false };
                    written += count;
                    if written == out.len() {
                        out.clear();
                        written = 0;
                    }
                }
                read = channel.reader.read_buf(channel.frames.buffer()) => {
                    if !matches!(read, Ok(1..)) {
                        return false;
                    }
                    silence.heard();
                    was_heard = true;
                }
                _ = looks.tick(), if channel.answers_pings => {
                    if silence.look() {
                        put(&mut out, &ToWarden::Ping(Ping {}));
                    } else if silence.is_stalled() {
                        self.learn_silence(worker, true);
                    }
                }
            }
        }
    }

    fn route_all(&self, frames: &mut Frames) -> io::Result<()> {
        while let Some(message) = frames.take::<FromWarden>()? {
            self.route(message);
        }
        Ok(())
    }

    fn route(&self, message: FromWarden) {
        match message {
            FromWarden::Welcome(_) => {}
            FromWarden::Started(started) => self.tell(started.slot, Event::Started(started.task_id)),
            FromWarden::NotBegun(NotBegun { task_id, slot, why }) => self.tell(slot, Event::NotBegun(task_id, why)),
            FromWarden::Health(told) => self.learn_health(None, told),
            FromWarden::Ended(ended) => self.tell(ended.slot, Event::Ended(ended)),
            FromWarden::Draining(_) => self.is_draining(),
            // That it came is all that it says.
            FromWarden::Pong(_) => {}
        }
    }

    /// Counts the changes since this process was started, and what keeps the host from starting tasks.
    pub fn health(&self) -> (u64, Option<HostFault>) {
        if !self.was_faulty.load(Ordering::Relaxed) {
            return (0, None);
        }
        let known = locked(&self.health);
        (known.changes, known.fault())
    }

    /// `warden`: said with a welcome. The words of both workers may overtake one another, so an older one changes nothing.
    fn learn_health(&self, warden: Option<u32>, told: Told) {
        self.learn(|known| {
            let is_new_warden = warden.is_some_and(|warden| warden != known.warden);
            if is_new_warden || told.no > known.told.no {
                known.warden = warden.unwrap_or(known.warden);
                known.told = told;
            }
        });
    }

    /// An order to this slot was never taken up. Told at once, so that what comes back is not given to this host again.
    pub fn leaves_orders(&self, slot: u32) {
        self.learn_silence(worker_of(slot), true);
    }

    /// It was: its word came just then.
    pub fn takes_orders(&self, slot: u32) {
        let worker = worker_of(slot);
        // Held meanwhile: one that is gone stays silent, and is so only after its link was taken away.
        let link = locked(&self.links[worker]);
        if link.is_some() {
            self.learn_silence(worker, false);
        }
    }

    fn learn_silence(&self, worker: usize, stalled: bool) {
        let changed = self.learn(|known| known.set_silent(worker, stalled));
        if changed && stalled {
            tracing::error!(worker, "the warden does not answer; this host starts no tasks for now");
        } else if changed {
            tracing::info!(worker, "the warden answers again");
        }
    }

    /// Tells all slots if this changes what is known of the health of the host. True: it did.
    fn learn(&self, change: impl FnOnce(&mut Known)) -> bool {
        {
            let mut known = locked(&self.health);
            let before = known.fault();
            change(&mut known);
            if known.fault() == before {
                return false;
            }
            known.changes += 1;
            self.was_faulty.store(true, Ordering::Relaxed);
        }
        let slots: Vec<u32> = locked(&self.slots).keys().copied().collect();
        for slot in slots {
            self.tell(slot, Event::Health);
        }
        true
    }

    fn is_draining(&self) {
        self.ending.store(true, Ordering::SeqCst);
        self.draining.cancel();
    }

    fn tell(&self, slot: u32, event: Event) {
        let mut slots = locked(&self.slots);
        let sent = slots.entry(slot).or_default().sender.try_send(event);
        if let Err(mpsc::error::TrySendError::Full(event)) = sent {
            tracing::error!(slot, ?event, "a slot does not listen to its warden; this is a bug");
        }
    }

    fn tell_inventory(&self, worker: usize, welcome: &Welcome) {
        let mut found = by_slot(welcome);
        let slots: Vec<u32> = locked(&self.slots).keys().copied().collect();
        for slot in slots.into_iter().filter(|slot| worker_of(*slot) == worker) {
            let mut inventory = found.remove(&slot).unwrap_or_default();
            inventory.no = self.count_inventory(slot);
            self.tell(slot, Event::Inventory(inventory));
        }
    }

    fn count_inventory(&self, slot: u32) -> u64 {
        let mut slots = locked(&self.slots);
        let known = slots.entry(slot).or_default();
        known.inventories += 1;
        known.inventories
    }

    /// `within`: the last try begins no later, and no try takes longer.
    async fn open(&self, worker: usize, within: Duration) -> Result<(Channel, Welcome), RunnerError> {
        let by = tokio::time::Instant::now() + within;
        let mut backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(250));
        loop {
            // One that is stopped takes the connection and the hello into its socket, and says nothing.
            let error = match tokio::time::timeout(within, self.try_open(worker)).await {
                Ok(Ok(opened)) => return Ok(opened),
                Ok(Err(error)) => error,
                Err(_) => {
                    let text = format!(
                        "it is there and has not answered within {} s: it is stopped, or waits for a disk",
                        within.as_secs()
                    );
                    tracing::error!(worker, "no answer from the warden: {text}");
                    io::Error::new(io::ErrorKind::TimedOut, text)
                }
            };
            self.start_if_none().await?;
            if tokio::time::Instant::now() > by {
                return Err(RunnerError::NoWarden(self.plan.data_dir.clone(), error));
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    async fn try_open(&self, worker: usize) -> io::Result<(Channel, Welcome)> {
        let stream = UnixStream::connect(short_path(&self.dir, &socket_name(worker))).await?;
        let (reader, mut writer) = stream.into_split();
        let mut hello = Vec::new();
        let message = Hello {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            start_no: self.start_no,
            policy: self.plan.policy.clone(),
        };
        protocol::put(&mut hello, &ToWarden::Hello(message))?;
        writer.write_all(&hello).await?;
        let mut channel = Channel {
            reader,
            writer,
            frames: Frames::default(),
            answers_pings: false,
        };
        loop {
            match channel.frames.take::<FromWarden>()? {
                Some(FromWarden::Welcome(welcome)) => {
                    if welcome.draining {
                        self.is_draining();
                    }
                    self.learn_health(Some(welcome.pid), welcome.health.clone());
                    channel.answers_pings = welcome.answers_pings;
                    return Ok((channel, *welcome));
                }
                Some(_) => {}
                None => {
                    if channel.reader.read_buf(channel.frames.buffer()).await? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
    }

    /// Never a second one: a slow warden holds its lock, and one without the lock refuses to run.
    async fn start_if_none(&self) -> Result<(), RunnerError> {
        let _one_at_a_time = self.starting.lock().await;
        if has_warden(&self.plan.data_dir) {
            return Ok(());
        }
        match &self.origin {
            Origin::Elsewhere => Ok(()),
            Origin::Program(program, arguments) => self.spawn(program, arguments).await.map_err(RunnerError::Host),
        }
    }

    async fn spawn(&self, program: &PathBuf, arguments: &[String]) -> io::Result<()> {
        let log = log_file(&self.plan)?;
        let mut command = tokio::process::Command::new(program);
        command
            .args(arguments)
            .arg("--data-dir")
            .arg(&self.plan.data_dir)
            .stdin(Stdio::null())
            // Not the agent's: whoever waits for the end of its output would wait for the warden.
            .stdout(log.try_clone()?)
            .stderr(log)
            .current_dir("/");
        stand_alone(&mut command);
        let mut child = command.spawn()?;
        // It goes on by itself. Only a quick end is looked at, so that it leaves no zombie and its error is found.
        tokio::spawn(async move {
            if let Ok(status) = child.wait().await
                && !status.success()
            {
                tracing::error!(%status, "the warden ended with an error; see warden.log in the data directory");
            }
        });
        // A moment for its lock, so that the next look does not start another.
        for _ in 0..200 {
            if has_warden(&self.plan.data_dir) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

struct Channel {
    reader: tokio::net::unix::OwnedReadHalf,
    writer: OwnedWriteHalf,
    frames: Frames,
    answers_pings: bool,
}

fn put(out: &mut Vec<u8>, message: &ToWarden) {
    if let Err(error) = protocol::put(out, message) {
        tracing::error!(%error, "a message to the warden cannot be written");
    }
}

/// Neither the terminal's signals nor those to the agent's group are for the warden; nor is the limit of open files that a
/// scheduler in this process has raised, which would become that of the tasks.
#[expect(unsafe_code, reason = "setsid and a limit between fork and exec have no safe form")]
fn stand_alone(command: &mut tokio::process::Command) {
    let files = file_limit::before();
    // SAFETY: setsid and setrlimit are system calls on numbers; nothing is allocated.
    unsafe {
        command.pre_exec(move || {
            if let Some(files) = files {
                file_limit::set(files)?;
            }
            nix::unistd::setsid().map(drop).map_err(io::Error::from)
        });
    }
}

fn log_file(plan: &Plan) -> io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = plan.data_dir.join("warden.log");
    if std::fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
        std::fs::rename(&path, plan.data_dir.join("warden.log.1"))?;
    }
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

fn by_slot(welcome: &Welcome) -> HashMap<u32, Inventory> {
    let mut slots: HashMap<u32, Inventory> = HashMap::new();
    for live in &welcome.live {
        slots.entry(live.begin.slot).or_default().live = Some(live.clone());
    }
    for ended in &welcome.ended {
        slots.entry(ended.slot).or_default().ended.push(ended.clone());
    }
    for inventory in slots.values_mut() {
        inventory.ended.sort_by_key(|ended| ended.task_id);
    }
    slots
}

#[cfg(test)]
pub(crate) mod tests;
