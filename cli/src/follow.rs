//! Following a task while schedulers come and go: its output, from the byte where it stopped, and the
//! states of its chain. Both run as tasks of their own and report over a channel, so that a broken
//! connection, a slow reader or a silent scheduler never keeps Ctrl-C from being heard.

mod tail;

pub use tail::Tail;

use crate::client::{Client, cause_of};
use crate::commands::now_ms;
use crate::exit_code;
use crate::failure::{Failure, is_transient};
use crate::output::sink::Sink;
use crate::output::text;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_proto::v1::OutputStream;
use systole_shared::task::TaskState;
use tail::Search;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Status;

/// How long nobody may answer before a follower gives up.
const OUTAGE_MAX: Duration = Duration::from_secs(60);
/// An outage that is shorter is not worth a word.
const OUTAGE_SILENT: Duration = Duration::from_secs(2);
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A waiting task is asked for its reason so often at first; then less and less.
const LOOK_FIRST: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(10);
/// How often the state is looked up although the watch is silent.
const LOOK_RUNNING: Duration = Duration::from_secs(30);
/// Events that wait to be handled.
const EVENTS_MAX: usize = 16;

/// The child of this task has ended or will never start.
pub fn is_over(task: &v1::Task) -> bool {
    state_from_wire(task.state).is_some_and(TaskState::child_is_over)
}

/// The task has ended, its callback included.
pub fn is_ended(task: &v1::Task) -> bool {
    state_from_wire(task.state).is_some_and(TaskState::is_terminal)
}

/// A time without answers.
struct Outage {
    since: Option<Instant>,
    pause: Duration,
    told: bool,
}

/// What to say about an outage.
#[derive(Debug, PartialEq, Eq)]
enum Say {
    Nothing,
    Lost,
}

impl Outage {
    fn new() -> Self {
        Self {
            since: None,
            pause: PAUSE_FIRST,
            told: false,
        }
    }

    /// An answer came. True when the outage was told and its end should be.
    fn over(&mut self) -> bool {
        let told = self.told;
        *self = Self::new();
        told
    }

    /// No answer came at `now`: how long to pause, or `None` to give up.
    fn failed(&mut self, now: Instant) -> Option<(Duration, Say)> {
        let since = *self.since.get_or_insert(now);
        let lasted = now.duration_since(since);
        if lasted >= OUTAGE_MAX {
            return None;
        }
        let pause = self.pause.min(OUTAGE_MAX.saturating_sub(lasted));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        let say = if lasted >= OUTAGE_SILENT && !self.told {
            Say::Lost
        } else {
            Say::Nothing
        };
        self.told |= say == Say::Lost;
        Some((pause, say))
    }
}

/// Nobody answered for [`OUTAGE_MAX`], or somebody answered that this follower may not go on.
fn given_up(client: &Client, status: &Status) -> Failure {
    let mut failure = Failure::from_status(status, client.url());
    if is_transient(status) {
        failure.message = format!(
            "no scheduler at {} for {} s: {}",
            client.url(),
            OUTAGE_MAX.as_secs(),
            cause_of(status).trim_end_matches('.')
        );
    }
    failure
}

/// A follower that ends with its handle.
pub struct Follower<T> {
    pub events: mpsc::Receiver<T>,
    task: JoinHandle<()>,
}

impl<T> Drop for Follower<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// ---- output ----

#[derive(Debug)]
pub enum OutputEvent {
    /// All was written to the sink.
    End,
    /// The sink takes no more.
    Closed(std::io::Error),
    Failed(Failure),
}

#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub task_id: i64,
    /// Only this stream; `None`: both.
    pub only: Option<OutputStream>,
    /// Go on until the task has ended.
    pub follow: bool,
    /// Only what was seen at or after this time.
    pub since_ms: Option<u64>,
    /// Each line with its time.
    pub times: bool,
    /// What is not stored is fetched from its runner.
    pub full: bool,
}

impl Wanted {
    fn has(&self, stream: OutputStream) -> bool {
        self.only.is_none_or(|only| only == stream)
    }
}

/// Writes the output of a task to the sink.
pub fn output(client: Arc<Client>, wanted: Wanted, sink: Sink) -> Follower<OutputEvent> {
    output_from(client, wanted, None, sink)
}

/// Writes the output of a task to the sink; of what is stored already, these lines alone.
pub fn output_from(client: Arc<Client>, wanted: Wanted, tail: Option<Tail>, sink: Sink) -> Follower<OutputEvent> {
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    let reader = OutputReader {
        client,
        wanted,
        tail,
        sink,
        next: Offsets::default(),
    };
    let task = tokio::spawn(async move {
        let end = reader.run().await;
        let _ = events.send(end).await;
    });
    Follower { events: receiver, task }
}

/// The next byte of each stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offsets {
    stdout: u64,
    stderr: u64,
}

impl Offsets {
    fn of(&mut self, stream: OutputStream) -> &mut u64 {
        if stream == OutputStream::Stderr {
            &mut self.stderr
        } else {
            &mut self.stdout
        }
    }

    /// What of this piece is new, and how many bytes are missing before it. Moves the offset on.
    fn take(&mut self, stream: OutputStream, offset: u64, mut data: Vec<u8>) -> (Vec<u8>, u64) {
        let next = self.of(stream);
        let end = offset.saturating_add(data.len() as u64);
        if end <= *next {
            return (Vec::new(), 0);
        }
        let missing = offset.saturating_sub(*next);
        let known = usize::try_from(next.saturating_sub(offset)).unwrap_or(usize::MAX);
        *next = end;
        data.drain(..known.min(data.len()));
        (data, missing)
    }
}

/// Says what of the output is not there.
fn lack(task_id: i64, stream: OutputStream, bytes: u64, what: &str) -> String {
    let name = if stream == OutputStream::Stderr {
        "stderr"
    } else {
        "stdout"
    };
    format!("task {task_id}  {name}: {} {what}", text::size(bytes))
}

struct OutputReader {
    client: Arc<Client>,
    wanted: Wanted,
    /// Where to begin is still to be found.
    tail: Option<Tail>,
    sink: Sink,
    next: Offsets,
}

/// How one stream of answers ended.
enum Read {
    AllSent,
    Broken(Status),
    Closed(std::io::Error),
}

impl OutputReader {
    async fn run(mut self) -> OutputEvent {
        let mut outage = Outage::new();
        loop {
            let before = self.next;
            let broken = match self.read(&mut outage).await {
                Read::Closed(error) => return OutputEvent::Closed(error),
                Read::Broken(status) => status,
                Read::AllSent if !self.wanted.follow => return self.finish().await,
                Read::AllSent => match self.is_complete(before).await {
                    Ok(true) => return self.finish().await,
                    Ok(false) => Status::unavailable("the stream ended early"),
                    Err(failure) if failure.exit == exit_code::UNREACHABLE => Status::unavailable(failure.message),
                    Err(failure) => return OutputEvent::Failed(failure),
                },
            };
            if !is_transient(&broken) {
                return OutputEvent::Failed(given_up(&self.client, &broken));
            }
            self.client.turn();
            match outage.failed(Instant::now()) {
                Some((pause, _)) => tokio::time::sleep(pause).await,
                None => return OutputEvent::Failed(given_up(&self.client, &broken)),
            }
        }
    }

    /// Moves to the begin of the last lines.
    async fn seek(&mut self, tail: Tail) -> Result<(), Status> {
        for (stream, stored) in [(OutputStream::Stdout, tail.stdout), (OutputStream::Stderr, tail.stderr)] {
            if self.wanted.has(stream) {
                let mut search = Search::new(tail.lines, stored);
                while let Some(range) = search.next() {
                    search.look(self.piece(stream, range).await?.as_deref());
                }
                *self.next.of(stream) = search.begin();
            }
        }
        Ok(())
    }

    /// These bytes of a stream; `None`: not all are stored any more.
    async fn piece(&self, stream: OutputStream, range: Range<u64>) -> Result<Option<Vec<u8>>, Status> {
        let request = v1::ReadOutputRequest {
            task_id: self.wanted.task_id,
            stream: stream.into(),
            offset: range.start,
            stderr_offset: 0,
            follow: false,
            times: false,
            since_ms: 0,
            full: false,
        };
        // A scheduler sends up to the end of the stream, as fast as it is read: leaving ends that.
        let mut answers = self.client.read_output_once(request).await?;
        let mut bytes = Vec::new();
        while range.start + (bytes.len() as u64) < range.end {
            match answers.message().await? {
                Some(piece) if piece.offset == range.start + bytes.len() as u64 => bytes.extend(piece.data),
                _ => return Ok(None),
            }
        }
        bytes.truncate(usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
        Ok(Some(bytes))
    }

    async fn read(&mut self, outage: &mut Outage) -> Read {
        if let Some(tail) = self.tail {
            if let Err(status) = self.seek(tail).await {
                return Read::Broken(status);
            }
            outage.over();
            self.tail = None;
        }
        let only = self.wanted.only.unwrap_or(OutputStream::Unspecified);
        let request = v1::ReadOutputRequest {
            task_id: self.wanted.task_id,
            stream: only.into(),
            offset: if only == OutputStream::Stderr {
                self.next.stderr
            } else {
                self.next.stdout
            },
            stderr_offset: self.next.stderr,
            follow: self.wanted.follow,
            times: self.wanted.times,
            since_ms: self.wanted.since_ms.unwrap_or(0),
            full: self.wanted.full,
        };
        // The answer may begin with the first output only, hours later: there is no deadline here. A
        // scheduler that is gone is noticed by the keep-alive of the connection.
        let mut stream = match self.client.read_output_once(request).await {
            Ok(stream) => stream,
            Err(status) => return Read::Broken(status),
        };
        loop {
            match stream.message().await {
                Ok(Some(piece)) => {
                    outage.over();
                    if let Err(error) = self.take(piece).await {
                        return Read::Closed(error);
                    }
                }
                Ok(None) => return Read::AllSent,
                Err(status) => return Read::Broken(status),
            }
        }
    }

    async fn take(&mut self, piece: v1::ReadOutputResponse) -> std::io::Result<()> {
        let stream = match piece.stream() {
            OutputStream::Stderr => OutputStream::Stderr,
            OutputStream::Stdout | OutputStream::Unspecified => OutputStream::Stdout,
        };
        let dropped = piece.dropped_bytes;
        let (data, missing) = self.next.take(stream, piece.offset, piece.data);
        // What is before the time is not missing.
        if piece.gap.is_some() && self.wanted.times {
            self.sink.end_line(stream).await?;
        }
        if missing > 0 && (self.wanted.since_ms.is_none() || piece.gap.is_some()) {
            let what = self.where_it_is().await;
            self.sink.note(&lack(self.wanted.task_id, stream, missing, &what));
        }
        let seen_at_ms = self.wanted.times.then_some(piece.seen_at_ms);
        self.sink.write(stream, data, seen_at_ms).await?;
        if dropped > 0 {
            let what = "more were written than are stored";
            self.sink.note(&lack(self.wanted.task_id, stream, dropped, what));
        }
        Ok(())
    }

    /// What is said of a gap: where the bytes are, and until when.
    async fn where_it_is(&self) -> String {
        let id = self.wanted.task_id;
        if self.wanted.full {
            return "are gone: its runner gave them up too".into();
        }
        let mut said = "are not stored here".to_owned();
        if let Ok(task) = self.client.get(id).await {
            let until = task.end_detail.as_ref().and_then(|detail| detail.output_until_ms);
            let host = text::runner(&task);
            match until.and_then(|ms| u64::try_from(ms).ok()) {
                _ if !is_over(&task) => said.push_str(&format!("; {host} has them: systole logs --full {id}")),
                Some(until) if until > now_ms() => said.push_str(&format!(
                    "; {host} has them until {}: systole logs --full {id}",
                    text::full_time(until)
                )),
                Some(_) | None => {}
            }
        }
        said
    }

    /// A stream that ended well may still have been ended too early, by a proxy or a scheduler that
    /// stops. It was complete if the task is over and nothing that is stored is left, or if asking again
    /// brought nothing.
    async fn is_complete(&self, before: Offsets) -> Result<bool, Failure> {
        let task = self.client.get(self.wanted.task_id).await?;
        let end = |bytes: u64, gap: Option<v1::OutputGap>| bytes + gap.map_or(0, |gap| gap.bytes);
        let ends = Offsets {
            stdout: end(task.stdout_bytes, task.stdout_gap),
            stderr: end(task.stderr_bytes, task.stderr_gap),
        };
        let all = (!self.wanted.has(OutputStream::Stdout) || self.next.stdout >= ends.stdout)
            && (!self.wanted.has(OutputStream::Stderr) || self.next.stderr >= ends.stderr);
        Ok(is_over(&task) && (all || self.next == before))
    }

    async fn finish(mut self) -> OutputEvent {
        match self.sink.finish().await {
            Ok(()) => OutputEvent::End,
            Err(error) => OutputEvent::Closed(error),
        }
    }
}

// ---- states ----

#[derive(Debug)]
pub enum StateEvent {
    /// A member of the chain as it is now.
    Task(Box<v1::Task>),
    /// Nobody answers, because of this; it is tried again.
    Lost(String),
    /// Somebody answers again.
    Back,
    Failed(Failure),
}

/// What to follow.
#[derive(Clone, Copy, Debug)]
pub struct Follow {
    /// Follow retries too.
    pub chain: bool,
    /// When a task is over for this follower.
    pub is_over: fn(&v1::Task) -> bool,
    /// Look up the reason for waiting, which changes without a change of the task.
    pub curious: bool,
}

/// Follows tasks until all are over.
pub fn states(client: Arc<Client>, ids: impl IntoIterator<Item = i64>, follow: Follow) -> Follower<StateEvent> {
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    let watcher = Watcher {
        client,
        events,
        follow,
        live: ids.into_iter().collect(),
    };
    let task = tokio::spawn(watcher.run());
    Follower { events: receiver, task }
}

struct Watcher {
    client: Arc<Client>,
    events: mpsc::Sender<StateEvent>,
    follow: Follow,
    /// What is not over yet: of each chain the newest member that is known.
    live: BTreeSet<i64>,
}

impl Watcher {
    async fn run(mut self) {
        let mut outage = Outage::new();
        while !self.live.is_empty() {
            let broken = match self.watch(&mut outage).await {
                Ok(()) => return,
                Err(status) => status,
            };
            if !is_transient(&broken) {
                self.tell(StateEvent::Failed(given_up(&self.client, &broken))).await;
                return;
            }
            self.client.turn();
            match outage.failed(Instant::now()) {
                Some((pause, say)) => {
                    if say == Say::Lost {
                        self.tell(StateEvent::Lost(cause_of(&broken))).await;
                    }
                    tokio::time::sleep(pause).await;
                }
                None => {
                    self.tell(StateEvent::Failed(given_up(&self.client, &broken))).await;
                    return;
                }
            }
        }
    }

    async fn tell(&self, event: StateEvent) {
        // Nobody listens any more when the command has ended; then nothing is lost.
        let _ = self.events.send(event).await;
    }

    /// Watches until everything is over (`Ok`) or the stream breaks.
    async fn watch(&mut self, outage: &mut Outage) -> Result<(), Status> {
        let request = v1::WatchRequest {
            ids: self.live.iter().copied().collect(),
            filter: None,
            chain: self.follow.chain,
        };
        let mut stream = self.client.watch_once(request).await?;
        let mut look = if self.follow.curious { LOOK_FIRST } else { LOOK_RUNNING };
        while !self.live.is_empty() {
            match tokio::time::timeout(look, stream.message()).await {
                Ok(Ok(Some(response))) => {
                    self.answered(outage).await;
                    if let Some(task) = response.task {
                        // A running task has no reason to wait: the watch alone is enough.
                        if state_from_wire(task.state) == Some(TaskState::Running) {
                            look = LOOK_RUNNING;
                        }
                        self.seen(task).await;
                    }
                }
                Ok(Ok(None)) => return self.look_again().await,
                Ok(Err(status)) => return Err(status),
                Err(_) => {
                    look = if look < LOOK_MAX {
                        (look * 2).min(LOOK_MAX)
                    } else {
                        look
                    };
                    // A scheduler that does not answer shows on the stream too.
                    if let Ok(tasks) = self.look().await {
                        self.answered(outage).await;
                        for task in tasks {
                            self.seen(task).await;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn answered(&self, outage: &mut Outage) {
        if outage.over() {
            self.tell(StateEvent::Back).await;
        }
    }

    async fn seen(&mut self, task: v1::Task) {
        if (self.follow.is_over)(&task) && self.live.remove(&task.id) && self.follow.chain && task.retried_by != 0 {
            self.live.insert(task.retried_by);
        }
        self.tell(StateEvent::Task(Box::new(task))).await;
    }

    async fn look(&self) -> Result<Vec<v1::Task>, Failure> {
        let ids: Vec<i64> = self.live.iter().copied().collect();
        let results = self.client.get_many(&ids).await?;
        Ok(results.into_iter().filter_map(|result| result.task).collect())
    }

    /// The stream ended well: everything was told, unless it was ended too early.
    async fn look_again(&mut self) -> Result<(), Status> {
        while !self.live.is_empty() {
            let before = self.live.clone();
            let tasks = self
                .look()
                .await
                .map_err(|failure| Status::unavailable(failure.message))?;
            for task in tasks {
                self.seen(task).await;
            }
            if self.live == before {
                return Err(Status::unavailable("the stream ended early"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_proto::convert::state_to_wire;

    #[test]
    fn no_byte_is_written_twice_and_none_is_skipped_silently() {
        let mut next = Offsets::default();
        let mut take = |stream, offset, data: &[u8]| next.take(stream, offset, data.to_vec());
        use OutputStream::{Stderr, Stdout};
        assert_eq!(take(Stdout, 0, b"abc"), (b"abc".to_vec(), 0));
        assert_eq!(take(Stderr, 0, b"x"), (b"x".to_vec(), 0));
        assert_eq!(take(Stdout, 0, b"abc"), (vec![], 0), "the same again");
        assert_eq!(take(Stdout, 1, b"bcde"), (b"de".to_vec(), 0), "overlapping");
        assert_eq!(take(Stdout, 8, b"ij"), (b"ij".to_vec(), 3), "after a gap");
        assert_eq!(take(Stdout, 2, b"c"), (vec![], 0), "long ago");
        assert_eq!(take(Stderr, 1, b"y"), (b"y".to_vec(), 0));
        assert_eq!(take(Stdout, 10, b""), (vec![], 0));
    }

    #[test]
    fn an_outage_is_told_once_and_ends_after_a_minute() {
        let begin = Instant::now();
        let mut now = begin;
        let mut outage = Outage::new();
        let mut told = 0;
        while let Some((pause, say)) = outage.failed(now) {
            assert!(pause <= PAUSE_MAX && !pause.is_zero());
            told += u32::from(say == Say::Lost);
            now += pause;
        }
        assert_eq!(told, 1);
        assert_eq!(now.duration_since(begin), OUTAGE_MAX);
        assert!(outage.over(), "its end is worth a word");
        assert!(!outage.over());
    }

    #[test]
    fn a_short_outage_is_not_worth_a_word() {
        let now = Instant::now();
        let mut outage = Outage::new();
        assert!(matches!(outage.failed(now), Some((_, Say::Nothing))));
        assert!(matches!(
            outage.failed(now + Duration::from_secs(1)),
            Some((_, Say::Nothing))
        ));
        assert!(!outage.over());
    }

    #[test]
    fn in_callback_the_child_is_over_and_the_task_has_not_ended() {
        let task = |state: TaskState| v1::Task {
            state: state_to_wire(state) as i32,
            ..v1::Task::default()
        };
        assert!(is_over(&task(TaskState::Callback)) && !is_ended(&task(TaskState::Callback)));
        assert!(is_over(&task(TaskState::Failed)) && is_ended(&task(TaskState::Failed)));
        assert!(!is_over(&task(TaskState::Terminating)));
    }
}
