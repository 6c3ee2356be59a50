//! Output on its way to the schedulers. The child writes its two files itself; this reads them and
//! sends what is new, from the offset that the scheduler names. Never in the way of a beat: it runs on its own.
//!
//! Which bytes are sent is decided by [`next_piece`]: all of a stream within its limit; of a longer one its head, then
//! what is new while the child runs, and the tail once it has ended.

use super::marks::Marks;
use crate::backoff::Backoff;
use crate::journal::{STDERR, STDOUT, open_stream};
use crate::link::{Link, Trouble};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use systole_proto::v1;
use systole_shared::error::{Code, Kind};
use systole_shared::task::output::{Stored, missing_bytes, next_piece, place};
use tokio_util::sync::CancellationToken;

/// How often a running child's files are looked at.
pub const INTERVAL: Duration = Duration::from_millis(200);
/// The same while the child writes more than can be sent: nobody reads that live.
const INTERVAL_IN_FLOOD: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(5);
/// Pieces of each stream in one call: 1 MiB of each, 2 MiB together, as the contract allows.
const CHUNKS_PER_STREAM: usize = 4;

const STREAMS: [(v1::OutputStream, &str); 2] = [(v1::OutputStream::Stdout, STDOUT), (v1::OutputStream::Stderr, STDERR)];

/// Bytes that the child wrote to each stream.
pub fn sizes(dir: &Path) -> [u64; 2] {
    STREAMS.map(|(_, name)| std::fs::metadata(dir.join(name)).map_or(0, |meta| meta.len()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There was nothing to send.
    Nothing,
    /// Something was stored, or refused for good.
    Moved,
    /// Try again later.
    Failed,
}

/// One task's output, and how far it is stored.
#[derive(Clone)]
pub struct Upload {
    link: Arc<Link>,
    host: String,
    instance_id: String,
    task_id: i64,
    dir: PathBuf,
    /// Stored bytes of each stream.
    max: u64,
    /// As the scheduler said last.
    stored: [Stored; 2],
    marks: [Marks; 2],
    /// Refused for good.
    done: [bool; 2],
    /// The child has ended: the files grow no more.
    ended: bool,
    /// The last look found more than can be sent.
    in_flood: bool,
}

impl Upload {
    pub fn new(link: Arc<Link>, host: String, instance_id: String, task_id: i64, dir: PathBuf, max: u64) -> Self {
        Self {
            link,
            host,
            instance_id,
            task_id,
            dir,
            max,
            stored: [Stored::default(); 2],
            marks: Default::default(),
            done: [false; 2],
            ended: false,
            in_flood: false,
        }
    }

    /// From here on the tail is sent too.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Bytes that are still to be stored when the streams have ended with these sizes.
    pub fn rest(&self, sizes: [u64; 2]) -> u64 {
        (0..2)
            .filter(|&index| !self.done[index])
            .map(|index| missing_bytes(self.stored[index], self.max, sizes[index]))
            .sum()
    }

    /// The rest as pieces that ride on the beat of the result. Blocking; for a small rest only.
    pub fn small_rest(&self, sizes: [u64; 2]) -> io::Result<Vec<v1::OutputChunk>> {
        let mut whole = self.clone();
        whole.end();
        whole.read_chunks(sizes)
    }

    /// One call's worth of what is to be sent next.
    fn read_chunks(&self, sizes: [u64; 2]) -> io::Result<Vec<v1::OutputChunk>> {
        let mut chunks = Vec::new();
        for (index, (stream, name)) in STREAMS.into_iter().enumerate() {
            if self.done[index] {
                continue;
            }
            let mut file = None;
            // As it will be when these pieces are stored.
            let mut stored = self.stored[index];
            for _ in 0..CHUNKS_PER_STREAM {
                let Some(mut piece) = next_piece(stored, self.max, sizes[index], self.ended) else {
                    break;
                };
                // A piece has one time. One that is filled in before the tail must join it, so that it has the latest.
                let seen = self.marks[index].of(if piece.end > stored.end {
                    piece.start
                } else {
                    piece.end - 1
                });
                if let Some((_, mark)) = seen
                    && piece.end > stored.end
                {
                    piece.end = piece.end.min(mark);
                }
                let file = match &mut file {
                    Some(file) => file,
                    none => none.insert(open_stream(&self.dir.join(name))?),
                };
                let mut data = vec![0; usize::try_from(piece.end - piece.start).unwrap_or(0)];
                // Shorter when the child truncated its own file meanwhile.
                let length = file.read_at(&mut data, piece.start)?;
                data.truncate(length);
                if data.is_empty() {
                    break;
                }
                stored = place(stored, self.max, piece.start..piece.start + data.len() as u64).stored;
                chunks.push(v1::OutputChunk {
                    task_id: self.task_id,
                    stream: stream.into(),
                    offset: piece.start,
                    data,
                    age_ms: seen.map_or(0, |(at, _)| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)),
                });
            }
        }
        Ok(chunks)
    }

    /// Sends one call's worth of what is new.
    pub async fn step(&mut self) -> Step {
        let mut reader = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let (sizes, now) = (sizes(&reader.dir), Instant::now());
            for (marks, size) in reader.marks.iter_mut().zip(sizes) {
                marks.look(size, now);
            }
            let chunks = reader.read_chunks(sizes)?;
            Ok::<_, io::Error>((chunks, reader.marks))
        })
        .await;
        let read = read.map(|read| {
            read.map(|(chunks, marks)| {
                self.marks = marks;
                chunks
            })
        });
        let chunks = match read {
            Ok(Ok(chunks)) => chunks,
            Ok(Err(error)) => {
                tracing::warn!(task_id = self.task_id, %error, "output could not be read");
                return Step::Failed;
            }
            // Only when the runtime is going down.
            Err(_) => return Step::Failed,
        };
        if chunks.is_empty() {
            return Step::Nothing;
        }
        let sent: Vec<(i32, u64)> = chunks.iter().map(|chunk| (chunk.stream, chunk.offset)).collect();
        self.in_flood = (0..2).any(|index| {
            let first = chunks.iter().find(|chunk| chunk.stream == STREAMS[index].0 as i32);
            !self.ended && first.is_some_and(|chunk| chunk.offset > self.stored[index].end)
        });
        let request = v1::UploadOutputRequest {
            host: self.host.clone(),
            instance_id: self.instance_id.clone(),
            chunks,
        };
        match self.link.upload(request, DEADLINE).await {
            Ok(answer) => self.heard(&sent, &answer.results),
            Err(status) if is_final(status.code()) => {
                let text = format!("output of task {} is refused: {}", self.task_id, status.message());
                self.link.complain(Trouble::Upload, &text);
                self.done = [true; 2];
                Step::Moved
            }
            Err(status) => {
                let text = format!(
                    "output of task {} could not be sent: {}",
                    self.task_id,
                    status.message()
                );
                self.link.complain(Trouble::Upload, &text);
                Step::Failed
            }
        }
    }

    fn heard(&mut self, sent: &[(i32, u64)], results: &[v1::UploadOutputResult]) -> Step {
        let before = (self.stored, self.done);
        for ((stream, offset), result) in sent.iter().zip(results) {
            let Some(index) = STREAMS.iter().position(|(which, _)| *which as i32 == *stream) else {
                continue;
            };
            match &result.error {
                None => {
                    self.stored[index] = Stored {
                        gap_start: result.gap_start,
                        gap_end: result.gap_end,
                        end: result.stored_to,
                    };
                    self.marks[index].forget(result.stored_to);
                    // A scheduler of an earlier version stores no tail, and takes nothing that goes on from elsewhere.
                    self.done[index] |= result.full || (*offset > result.stored_to && *offset > before.0[index].end);
                }
                Some(error) if is_temporary(&error.code) => {}
                Some(error) => {
                    let text = format!("output of task {} is refused: {}", self.task_id, error.message);
                    self.link.complain(Trouble::Upload, &text);
                    self.done[index] = true;
                }
            }
        }
        // An answer that moves nothing would be asked for again at once and for ever.
        if before == (self.stored, self.done) {
            Step::Failed
        } else {
            Step::Moved
        }
    }

    /// Sends what is new until told to stop; then says how far it came.
    pub async fn follow(mut self, stop: CancellationToken) -> Self {
        let mut backoff = Backoff::new(INTERVAL, Duration::from_secs(5));
        loop {
            // A call that is cut off may have been stored: the same bytes are sent again, which changes nothing.
            let step = tokio::select! {
                biased;
                () = stop.cancelled() => return self,
                step = self.step() => step,
            };
            let pause = match step {
                Step::Moved | Step::Nothing => {
                    backoff.reset();
                    if self.in_flood { INTERVAL_IN_FLOOD } else { INTERVAL }
                }
                Step::Failed => backoff.next(),
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return self,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Sends the rest of an ended task as long as that succeeds, but not for longer than `patience`.
    pub async fn hurry(&mut self, patience: Duration) {
        self.end();
        let all = async { while self.step().await == Step::Moved {} };
        // Over: the result is reported now, and the rest follows.
        let _ = tokio::time::timeout(patience, all).await;
    }

    /// Sends the rest of an ended task, however long it takes.
    pub async fn finish(mut self) {
        self.end();
        let mut backoff = Backoff::new(INTERVAL, Duration::from_secs(10));
        loop {
            match self.step().await {
                Step::Nothing => return,
                Step::Moved => backoff.reset(),
                Step::Failed => tokio::time::sleep(backoff.next()).await,
            }
        }
    }
}

fn is_final(code: tonic::Code) -> bool {
    use tonic::Code::{AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, Unimplemented};
    matches!(
        code,
        AlreadyExists | FailedPrecondition | InvalidArgument | NotFound | OutOfRange | Unimplemented
    )
}

fn is_temporary(code: &str) -> bool {
    Code::parse(code).is_some_and(|code| matches!(code.kind(), Kind::Unavailable | Kind::Exhausted | Kind::Unexpected))
}
