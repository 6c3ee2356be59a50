//! Output on its way to the schedulers. The child writes its two files itself; this reads them and
//! sends what is new, from the offset that the scheduler names. Never in the way of a beat: it runs on its own.

use crate::backoff::Backoff;
use crate::journal::{STDERR, STDOUT};
use crate::link::{Link, Trouble};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use systole_proto::v1;
use systole_shared::error::{Code, Kind};
use systole_shared::limits::{OUTPUT_CHUNK_BYTES_MAX, OUTPUT_STREAM_BYTES_MAX};
use tokio_util::sync::CancellationToken;

/// How often a running child's files are looked at.
pub const INTERVAL: Duration = Duration::from_millis(200);
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
    offset: [u64; 2],
    /// Full, or refused for good.
    done: [bool; 2],
}

impl Upload {
    pub fn new(link: Arc<Link>, host: String, instance_id: String, task_id: i64, dir: PathBuf) -> Self {
        Self {
            link,
            host,
            instance_id,
            task_id,
            dir,
            offset: [0; 2],
            done: [false; 2],
        }
    }

    /// Bytes that are still to be stored when the streams are this long.
    pub fn rest(&self, sizes: [u64; 2]) -> u64 {
        (0..2).map(|i| self.rest_of(i, sizes[i])).sum()
    }

    fn rest_of(&self, index: usize, size: u64) -> u64 {
        if self.done[index] {
            return 0;
        }
        size.min(OUTPUT_STREAM_BYTES_MAX).saturating_sub(self.offset[index])
    }

    /// The rest as pieces that ride on the beat of the result. Blocking; for a small rest only.
    pub fn small_rest(&self, sizes: [u64; 2]) -> io::Result<Vec<v1::OutputChunk>> {
        read_chunks(&self.dir, self.task_id, self.offset, self.done, sizes)
    }

    /// Sends one call's worth of what is new.
    pub async fn step(&mut self) -> Step {
        let (dir, id, offset, done) = (self.dir.clone(), self.task_id, self.offset, self.done);
        let read = tokio::task::spawn_blocking(move || read_chunks(&dir, id, offset, done, sizes(&dir))).await;
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
        let streams: Vec<i32> = chunks.iter().map(|chunk| chunk.stream).collect();
        let request = v1::UploadOutputRequest {
            host: self.host.clone(),
            instance_id: self.instance_id.clone(),
            chunks,
        };
        match self.link.upload(request, DEADLINE).await {
            Ok(answer) => self.stored(&streams, &answer.results),
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

    fn stored(&mut self, streams: &[i32], results: &[v1::UploadOutputResult]) -> Step {
        let before = (self.offset, self.done);
        for (stream, result) in streams.iter().zip(results) {
            let Some(index) = STREAMS.iter().position(|(which, _)| *which as i32 == *stream) else {
                continue;
            };
            match &result.error {
                None => {
                    self.offset[index] = result.stored_to;
                    self.done[index] |= result.full;
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
        if before == (self.offset, self.done) {
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
                    INTERVAL
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

    /// Sends the rest as long as that succeeds, but not for longer than `patience`.
    pub async fn hurry(&mut self, patience: Duration) {
        let all = async { while self.step().await == Step::Moved {} };
        // Over: the result is reported now, and the rest follows.
        let _ = tokio::time::timeout(patience, all).await;
    }

    /// Sends the rest, however long it takes.
    pub async fn finish(mut self) {
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

fn read_chunks(
    dir: &Path,
    task_id: i64,
    offset: [u64; 2],
    done: [bool; 2],
    sizes: [u64; 2],
) -> io::Result<Vec<v1::OutputChunk>> {
    let mut chunks = Vec::new();
    for (index, (stream, name)) in STREAMS.into_iter().enumerate() {
        let end = sizes[index].min(OUTPUT_STREAM_BYTES_MAX);
        if done[index] || end <= offset[index] {
            continue;
        }
        let file = File::open(dir.join(name))?;
        let mut at = offset[index];
        for _ in 0..CHUNKS_PER_STREAM {
            let length = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(OUTPUT_CHUNK_BYTES_MAX);
            let mut data = vec![0; length];
            // Shorter when the child truncated its own file meanwhile.
            let length = file.read_at(&mut data, at)?;
            data.truncate(length);
            if data.is_empty() {
                break;
            }
            let next = at + data.len() as u64;
            chunks.push(v1::OutputChunk {
                task_id,
                stream: stream.into(),
                offset: at,
                data,
            });
            at = next;
            if at >= end {
                break;
            }
        }
    }
    Ok(chunks)
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
