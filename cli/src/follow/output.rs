//! The output of a task, from the byte where it stopped.

use super::outage::{Outage, given_up};
use super::tail::{Search, Tail};
use super::{EVENTS_MAX, Follower, is_over};
use crate::client::Client;
use crate::commands::now_ms;
use crate::exit_code;
use crate::failure::{Failure, is_transient};
use crate::output::sink::Sink;
use crate::output::text;
use std::ops::Range;
use std::sync::Arc;
use systole_proto::v1;
use systole_proto::v1::OutputStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
