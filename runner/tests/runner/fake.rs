//! A scheduler of which each answer is written by the test, and a runner that talks to it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use systole_proto::v1;
use systole_proto::v1::runner_service_server::{RunnerService, RunnerServiceServer};
use systole_runner::config::{ADOPT_WINDOW, OUTPUT_FILE_MAX, RunnerConfig};
use systole_runner::kept::Keep;
use systole_runner::warden::client::Origin;
use systole_runner::warden::{Inside, Plan};
use systole_runner::{RunnerError, Shutdown};
use systole_shared::limits::OUTPUT_MAX_BYTES_DEFAULT;
use systole_shared::task::output::{Stored, place};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

pub const CLUSTER: &str = "c1";
/// Nothing in these tests takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for a whole test: beats alone are no progress.
const TEST_WITHIN: Duration = Duration::from_secs(120);

type Answer = Result<v1::HeartbeatResponse, Status>;
/// Tasks whose ends were acknowledged.
type Acknowledged = Arc<Mutex<HashMap<i64, Given>>>;
type Storage = Arc<Mutex<HashMap<(i64, i32), Stream>>>;

/// What is stored of a stream; bytes of a gap are 0.
#[derive(Clone, Default)]
pub struct Stream {
    pub bytes: Vec<u8>,
    pub stored: Stored,
    /// Other than the default.
    max: Option<u64>,
}

/// What was given with an answer, maybe more than once: as long as it did not get as far as the call it is given again, and once more,
/// because the call may have been given up at that moment. A runner that does not heed it has no more chances.
#[derive(Clone, Default)]
struct Given {
    arrived: Arc<AtomicBool>,
    again: u32,
}

impl Given {
    fn give(&mut self, beat: &Beat, what: &str) {
        if self.arrived.load(Ordering::SeqCst) {
            self.again += 1;
            assert!(
                self.again <= 1,
                "{what} was given twice, and the runner does not heed it: {:?}",
                beat.request
            );
        }
        self.arrived = Arc::clone(&beat.arrived);
    }
}

/// A beat that waits for its answer.
pub struct Beat {
    pub request: v1::HeartbeatRequest,
    reply: oneshot::Sender<Answer>,
    /// Its call has the answer.
    arrived: Arc<AtomicBool>,
    acknowledged: Acknowledged,
}

/// The call's side of a beat.
struct Call {
    answer: oneshot::Receiver<Answer>,
    arrived: Arc<AtomicBool>,
}

impl Call {
    /// An error: the test dropped the beat.
    async fn answer(self) -> Result<Answer, oneshot::error::RecvError> {
        let answer = self.answer.await;
        self.arrived.store(true, Ordering::SeqCst);
        answer
    }
}

impl Beat {
    /// An answer of the usual cluster that says GO_ON; the test changes what it wants.
    fn base(&self) -> v1::HeartbeatResponse {
        v1::HeartbeatResponse {
            command: v1::Command::GoOn.into(),
            next_beat_ms: 50,
            cluster_id: CLUSTER.into(),
            seq: self.request.seq,
            beat_interval_ms: 30_000,
            lost_after_ms: 90_000,
            ..Default::default()
        }
    }

    pub fn answer(self, change: impl FnOnce(&mut v1::HeartbeatResponse)) {
        let mut answer = self.base();
        change(&mut answer);
        // Abandoned meanwhile: the next beat tells.
        let _ = self.reply.send(Ok(answer));
    }

    pub fn refuse(self, status: Status) {
        let _ = self.reply.send(Err(status));
    }

    pub fn go_on(self) {
        self.answer(|_| {});
    }

    pub fn run(self, task_id: i64, command: &[&str]) {
        self.run_spec(task_id, spec(command));
    }

    pub fn run_spec(self, task_id: i64, spec: v1::TaskSpec) {
        self.answer(|answer| order_run(answer, task_id, spec));
    }

    pub fn reset(self, task_id: i64, reason: v1::ResetReason) {
        self.answer(|answer| {
            answer.command = v1::Command::Reset.into();
            answer.reset = Some(v1::Reset {
                task_id,
                reason: reason.into(),
            });
        });
    }

    /// RESET ack for the task held, and the list that goes with it.
    pub fn acknowledge(self) {
        let task_id = self.request.task_id;
        let mut acknowledged = self.acknowledged.lock().expect("not poisoned");
        acknowledged
            .entry(task_id)
            .or_default()
            .give(&self, "an acknowledgement");
        drop(acknowledged);
        self.answer(|answer| {
            answer.acknowledged = vec![task_id];
            answer.command = v1::Command::Reset.into();
            answer.reset = Some(v1::Reset {
                task_id,
                reason: v1::ResetReason::Ack.into(),
            });
        });
    }

    pub fn status(&self) -> v1::RunnerStatus {
        self.request.status()
    }

    fn is_end(&self) -> bool {
        matches!(self.status(), v1::RunnerStatus::Finished | v1::RunnerStatus::Failed)
    }

    fn is_acknowledged(&self) -> bool {
        let acknowledged = self.acknowledged.lock().expect("not poisoned");
        self.is_end() && acknowledged.contains_key(&self.request.task_id)
    }

    /// The result of the task that the beat names.
    pub fn result(&self) -> &v1::TaskResult {
        self.request
            .results
            .iter()
            .find(|r| r.task_id == self.request.task_id)
            .expect("the beat carries its result")
    }
}

pub fn order_run(answer: &mut v1::HeartbeatResponse, task_id: i64, spec: v1::TaskSpec) {
    answer.command = v1::Command::RunNew.into();
    answer.run = Some(v1::RunNew {
        task_id,
        spec: Some(spec),
        attempt: 1,
        root_id: task_id,
        redelivery: 0,
    });
}

pub fn spec(command: &[&str]) -> v1::TaskSpec {
    v1::TaskSpec {
        command: command.iter().map(|&element| element.to_owned()).collect(),
        ..Default::default()
    }
}

struct Service {
    beats: mpsc::UnboundedSender<Beat>,
    acknowledged: Acknowledged,
    rounds: Arc<Rounds>,
    stored: Storage,
}

/// Calls of many beats.
#[derive(Default)]
struct Rounds {
    unknown: AtomicBool,
    /// Slots of each call.
    seen: Mutex<Vec<Vec<u32>>>,
}

impl Service {
    fn pass_on(&self, request: v1::HeartbeatRequest) -> Result<Call, Status> {
        let (reply, answer) = oneshot::channel();
        let arrived = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::clone(&self.acknowledged);
        self.beats
            .send(Beat {
                request,
                reply,
                arrived: Arc::clone(&arrived),
                acknowledged,
            })
            .map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Call { answer, arrived })
    }
}

#[tonic::async_trait]
impl RunnerService for Service {
    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        let token = request
            .metadata()
            .get("authorization")
            .and_then(|token| token.to_str().ok());
        if token != Some("Bearer secret") {
            return Err(Status::unauthenticated("no token"));
        }
        let call = self.pass_on(request.into_inner())?;
        call.answer()
            .await
            .unwrap_or_else(|_| Err(Status::unavailable("the test dropped the beat")))
            .map(Response::new)
    }

    type HeartbeatIdleStream = ReceiverStream<Result<v1::HeartbeatIdleResponse, Status>>;

    async fn heartbeat_idle(
        &self,
        request: Request<v1::HeartbeatIdleRequest>,
    ) -> Result<Response<Self::HeartbeatIdleStream>, Status> {
        if self.rounds.unknown.load(Ordering::Relaxed) {
            return Err(Status::unimplemented("a scheduler of an earlier version"));
        }
        let beats = request.into_inner().beats;
        let slots = beats.iter().map(|beat| beat.slot).collect();
        self.rounds.seen.lock().expect("not poisoned").push(slots);
        let (sender, stream) = mpsc::channel(1);
        for beat in beats {
            let (slot, seq, sender) = (beat.slot, beat.seq, sender.clone());
            let call = self.pass_on(beat)?;
            tokio::spawn(async move {
                let answered = tokio::select! {
                    answered = call.answer() => answered,
                    // With the call go its beats.
                    () = sender.closed() => return,
                };
                // The test dropped the beat: it is never answered.
                let Ok(answer) = answered else {
                    return sender.closed().await;
                };
                let answers = vec![v1::IdleAnswer {
                    slot,
                    seq,
                    answer: answer.ok(),
                }];
                // The runner may have given the call up.
                let _ = sender.send(Ok(v1::HeartbeatIdleResponse { answers })).await;
            });
        }
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn upload_output(
        &self,
        request: Request<v1::UploadOutputRequest>,
    ) -> Result<Response<v1::UploadOutputResponse>, Status> {
        let mut stored = self.stored.lock().expect("not poisoned");
        let chunks = request.into_inner().chunks;
        let results = chunks.into_iter().map(|chunk| store(&mut stored, chunk)).collect();
        Ok(Response::new(v1::UploadOutputResponse { results }))
    }

    async fn next_fetch(&self, _: Request<v1::NextFetchRequest>) -> Result<Response<v1::NextFetchResponse>, Status> {
        Err(Status::unimplemented("a scheduler of an earlier version"))
    }

    async fn put_fetched(&self, _: Request<v1::PutFetchedRequest>) -> Result<Response<v1::PutFetchedResponse>, Status> {
        Err(Status::unimplemented("a scheduler of an earlier version"))
    }
}

/// As a scheduler does: what fits in is stored, and the answer says which bytes there are.
fn store(storage: &mut HashMap<(i64, i32), Stream>, chunk: v1::OutputChunk) -> v1::UploadOutputResult {
    let stream = storage.entry((chunk.task_id, chunk.stream)).or_default();
    stream.take(&chunk);
    let stored = stream.stored;
    v1::UploadOutputResult {
        stored_to: stored.end,
        full: false,
        error: None,
        gap_end: if stored.has_gap() { stored.gap_end } else { 0 },
        gap_start: if stored.has_gap() { stored.gap_start } else { 0 },
    }
}

impl Stream {
    fn take(&mut self, chunk: &v1::OutputChunk) {
        let at = |offset: u64| usize::try_from(offset).expect("small");
        let end = chunk.offset + chunk.data.len() as u64;
        let placed = place(
            self.stored,
            self.max.unwrap_or(OUTPUT_MAX_BYTES_DEFAULT),
            chunk.offset..end,
        );
        if let Some(write) = placed.write {
            self.bytes.resize(self.bytes.len().max(at(write.end)), 0);
            let fresh = &chunk.data[at(write.start - chunk.offset)..at(write.end - chunk.offset)];
            self.bytes[at(write.start)..at(write.end)].copy_from_slice(fresh);
        }
        self.stored = placed.stored;
        let gap = at(self.stored.gap_start)..at(self.stored.gap_end);
        self.bytes[gap].fill(0);
    }
}

/// A scheduler and a runner with a data directory.
pub struct Fake {
    pub url: String,
    pub dir: tempfile::TempDir,
    began: std::time::Instant,
    beats: mpsc::UnboundedReceiver<Beat>,
    rounds: Arc<Rounds>,
    stored: Storage,
    warden: Mutex<Option<Inside>>,
    _server: Guard,
}

struct Guard(JoinHandle<()>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A runner process. Dropped, it is as if it had been killed; the warden and the children go on.
pub struct Process {
    shutdown: Shutdown,
    running: JoinHandle<Result<(), RunnerError>>,
}

impl Process {
    /// Its children are ended.
    pub fn shut_down(&self) {
        self.shutdown.drain();
    }

    /// Its children go on.
    pub fn hand_over(&self) {
        self.shutdown.hand_over();
    }

    pub async fn left(&mut self) {
        let left = tokio::time::timeout(PATIENCE, &mut self.running)
            .await
            .expect("the runner leaves");
        left.expect("no panic").expect("no error");
    }

    /// As a crash: nothing is told or tidied.
    pub async fn crash(self) {
        self.running.abort();
        let _ = self.running.await;
    }
}

impl Fake {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (sender, beats) = mpsc::unbounded_channel();
        let stored = Storage::default();
        let rounds = Arc::new(Rounds::default());
        let service = Service {
            beats: sender,
            acknowledged: Acknowledged::default(),
            rounds: Arc::clone(&rounds),
            stored: Arc::clone(&stored),
        };
        let server = tonic::transport::Server::builder()
            .add_service(RunnerServiceServer::new(service).max_decoding_message_size(16 * 1024 * 1024))
            .serve_with_incoming(TcpIncoming::from(listener));
        let server = tokio::spawn(async move { server.await.expect("the fake scheduler serves") });
        Self {
            url,
            dir: tempfile::tempdir().expect("a temporary directory"),
            began: std::time::Instant::now(),
            beats,
            rounds,
            stored,
            warden: Mutex::new(None),
            _server: Guard(server),
        }
    }

    pub fn config(&self) -> RunnerConfig {
        RunnerConfig {
            urls: vec![self.url.clone()],
            token: "secret".into(),
            ca_pem: None,
            joined: None,
            host: "h".into(),
            slots: 1,
            queues: vec!["default".into()],
            labels: [("gpu".to_owned(), "1".to_owned())].into(),
            slot_labels: std::collections::BTreeMap::new(),
            data_dir: self.data_dir(),
            kill_grace: Duration::from_secs(1),
            warden: Origin::Elsewhere,
            drain_wait: Duration::ZERO,
            adopt_window: ADOPT_WINDOW,
            policy: None,
            output_file_max: OUTPUT_FILE_MAX,
            keep_output: Keep::default(),
        }
    }

    /// Starts the warden if there is none.
    pub fn start_warden(&self) {
        self.warden.lock().expect("not poisoned").get_or_insert_with(|| {
            let plan = Plan {
                data_dir: self.data_dir(),
                stays: true,
                drain_wait: Duration::ZERO,
                adopt_window: ADOPT_WINDOW,
                policy: self.policy(),
                output_file_max: OUTPUT_FILE_MAX,
                keep_output: Keep::default(),
            };
            Inside::start(plan).expect("the warden starts")
        });
    }

    /// As a crash of the warden, if there is one.
    pub fn end_warden(&self) {
        self.warden.lock().expect("not poisoned").take();
    }

    pub fn runner(&self) -> Process {
        self.runner_with(|_| {})
    }

    pub fn runner_with(&self, change: impl FnOnce(&mut RunnerConfig)) -> Process {
        let mut config = self.config();
        change(&mut config);
        self.start_warden();
        let shutdown = Shutdown::new();
        let running = tokio::spawn(Box::pin(systole_runner::run(config, shutdown.clone())));
        Process { shutdown, running }
    }

    /// A policy that a test has written before it started the warden.
    fn policy(&self) -> Option<PathBuf> {
        Some(self.dir.path().join("runner.toml")).filter(|path| path.exists())
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// From now on it knows no calls of many beats.
    pub fn forget_rounds(&self) {
        self.rounds.unknown.store(true, Ordering::Relaxed);
    }

    /// The slots of each call of many beats so far.
    pub fn rounds(&self) -> Vec<Vec<u32>> {
        self.rounds.seen.lock().expect("not poisoned").clone()
    }

    /// The next beat that waits for an answer, whatever it says. One that the runner has given up is passed over: its answer would
    /// reach nobody.
    pub async fn beat(&mut self) -> Beat {
        loop {
            let beat = tokio::time::timeout(PATIENCE, self.beats.recv())
                .await
                .expect("a beat comes")
                .expect("the server lives");
            assert!(
                self.began.elapsed() < TEST_WITHIN,
                "what the test waits for does not come; the last beat was {:?}",
                beat.request
            );
            if !beat.reply.is_closed() {
                return beat;
            }
        }
    }

    /// The next beat of which this is true; others are answered as a scheduler does that has nothing new. The end of a task that
    /// was acknowledged to a beat that the runner had given up is acknowledged again.
    async fn beat_that(&mut self, is_it: impl Fn(&Beat) -> bool) -> Beat {
        loop {
            match self.beat().await {
                beat if beat.is_acknowledged() => beat.acknowledge(),
                beat if is_it(&beat) => return beat,
                beat => beat.go_on(),
            }
        }
    }

    /// The next beat with this status; others are answered GO_ON.
    pub async fn beat_of(&mut self, status: v1::RunnerStatus) -> Beat {
        self.beat_that(|beat| beat.status() == status).await
    }

    /// The next beat that carries the end of its task.
    pub async fn end(&mut self) -> Beat {
        self.beat_that(Beat::is_end).await
    }

    /// Runs one task to its acknowledgement. An order whose beat was given up meanwhile is given again, as a scheduler does.
    pub async fn run(&mut self, task_id: i64, spec: v1::TaskSpec) -> v1::TaskResult {
        let mut beat = self.beat_of(v1::RunnerStatus::Idle).await;
        let mut order = Given::default();
        while beat.status() == v1::RunnerStatus::Idle {
            order.give(&beat, "an order");
            beat.run_spec(task_id, spec.clone());
            let is_next = |beat: &Beat| beat.status() == v1::RunnerStatus::Idle || beat.is_end();
            beat = self.beat_that(is_next).await;
        }
        let result = beat.result().clone();
        assert_eq!(result.task_id, task_id);
        beat.acknowledge();
        result
    }

    /// What is to be stored of stdout.
    pub fn store_at_most(&self, task_id: i64, max: u64) {
        let mut storage = self.stored.lock().expect("not poisoned");
        let key = (task_id, v1::OutputStream::Stdout.into());
        storage.entry(key).or_default().max = Some(max);
    }

    /// What is stored of a stream by uploads.
    pub fn uploaded(&self, task_id: i64, stream: v1::OutputStream) -> Vec<u8> {
        self.stream_of(task_id, stream).bytes
    }

    fn stream_of(&self, task_id: i64, stream: v1::OutputStream) -> Stream {
        let storage = self.stored.lock().expect("not poisoned");
        storage.get(&(task_id, stream.into())).cloned().unwrap_or_default()
    }

    /// A stream as a reader gets it: uploads, then what came with the result. The gap is told by itself.
    pub fn stored(&self, result: &v1::TaskResult, stream: v1::OutputStream) -> Stream {
        let mut all = self.stream_of(result.task_id, stream);
        for chunk in result.output.iter().filter(|chunk| chunk.stream() == stream) {
            all.take(chunk);
        }
        all
    }

    /// The same of a stream without a gap.
    pub fn stream(&self, result: &v1::TaskResult, stream: v1::OutputStream) -> Vec<u8> {
        let all = self.stored(result, stream);
        assert!(!all.stored.has_gap(), "{:?}", all.stored);
        all.bytes
    }

    pub fn stdout(&self, result: &v1::TaskResult) -> String {
        String::from_utf8(self.stream(result, v1::OutputStream::Stdout)).expect("text")
    }
}

/// Polls for what no signal tells.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

/// Living processes that were started with this variable.
pub fn processes_with(variable: &str) -> usize {
    let Ok(all) = std::fs::read_dir("/proc") else {
        return 0;
    };
    all.flatten()
        .filter(|entry| {
            let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            environ.split(|&b| b == 0).any(|var| var == variable.as_bytes())
        })
        .count()
}
