//! Full outputs for those who ask for them. Nobody can reach a runner, so it asks: one call waits at a scheduler until
//! there is something to send. Beside the slots, and never in their way.

use super::Context;
use crate::backoff::Backoff;
use crate::journal::{STDERR, STDOUT, open_stream};
use crate::kept;
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use systole_proto::v1;
use systole_shared::limits::{OUTPUT_CHUNK_BYTES_MAX, PARK_MS_MAX};
use tokio::task::JoinSet;
use tonic::{Code, Status};

/// Those who read a full output of this host, beyond which others wait.
const READERS_AT_ONCE: usize = 8;
/// How long a call waits for something to send.
const PARK: Duration = Duration::from_millis(PARK_MS_MAX);
/// A scheduler of an earlier version cannot be asked; it may be upgraded.
const REST_UNKNOWN: Duration = Duration::from_secs(60);
const REST_WAIT: Duration = Duration::from_millis(50);
const DEADLINE: Duration = Duration::from_secs(10);
/// How often a piece is tried while no scheduler takes it.
const TRIES_MAX: u32 = 6;

/// Serves readers, for ever. One call waits for the next of them, as long as there is room for one.
pub async fn run(context: Arc<Context>) {
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    let mut sending = JoinSet::new();
    loop {
        while sending.try_join_next().is_some() {}
        if sending.len() >= READERS_AT_ONCE {
            sending.join_next().await;
        }
        let request = v1::NextFetchRequest {
            host: context.config.host.clone(),
            instance_id: context.fixed.instance_id.clone(),
            park_ms: u64::try_from(PARK.as_millis()).unwrap_or(0),
        };
        match context.link.next_fetch(request, PARK + DEADLINE).await {
            Ok(order) => {
                backoff.reset();
                if order.fetch_id != 0 {
                    let context = Arc::clone(&context);
                    sending.spawn(async move { send(&context, &order).await });
                }
            }
            Err(status) if status.code() == Code::Unimplemented => tokio::time::sleep(REST_UNKNOWN).await,
            Err(_) => tokio::time::sleep(backoff.next()).await,
        }
    }
}

async fn send(context: &Context, order: &v1::NextFetchResponse) {
    let (task_id, host) = (order.task_id, &context.config.host);
    let name = match order.stream() {
        v1::OutputStream::Stderr => STDERR,
        v1::OutputStream::Stdout | v1::OutputStream::Unspecified => STDOUT,
    };
    let unreadable = |error: &io::Error| format!("{host} cannot read the output of task {task_id}: {error}");
    let root = context.config.data_dir.clone();
    let opened = tokio::task::spawn_blocking(move || open(&root, task_id, name)).await;
    let file = match opened {
        Ok(Ok(file)) => Arc::new(file),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            let text = format!(
                "{host} does not have the full output of task {task_id} any more: it is kept for a while only (--keep-output), and no \
                 longer than there is room for it"
            );
            return refuse(context, order, text).await;
        }
        Ok(Err(error)) => {
            return refuse(context, order, unreadable(&error)).await;
        }
        // The runtime goes down.
        Err(_) => return,
    };
    let mut at = order.offset;
    while at < order.end {
        let (reading, end) = (Arc::clone(&file), order.end);
        let read = tokio::task::spawn_blocking(move || piece(&reading, at, end)).await;
        let (offset, data) = match read {
            Ok(Ok(piece)) => piece,
            Ok(Err(error)) => {
                return refuse(context, order, unreadable(&error)).await;
            }
            Err(_) => return,
        };
        at = offset + data.len() as u64;
        let put = v1::PutFetchedRequest {
            host: host.clone(),
            fetch_id: order.fetch_id,
            offset,
            data,
            error: String::new(),
        };
        if !deliver(context, put).await {
            return;
        }
    }
}

fn open(root: &Path, task_id: i64, name: &str) -> io::Result<File> {
    let [task, kept] = kept::candidates(root, task_id, name);
    match open_stream(&task) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open_stream(&kept),
        opened => opened,
    }
}

/// The next bytes from `at`, and where they are: behind a hole, if the file lost its middle. Nothing at `end`: that is all.
fn piece(file: &File, at: u64, end: u64) -> io::Result<(u64, Vec<u8>)> {
    let at = match lseek(
        file,
        libc::off_t::try_from(at).map_err(io::Error::other)?,
        Whence::SeekData,
    ) {
        Ok(data) => u64::try_from(data).map_err(io::Error::other)?,
        // No data from here to the end.
        Err(Errno::ENXIO) => return Ok((end, Vec::new())),
        // A file system that knows no holes.
        Err(Errno::EINVAL) => at,
        Err(errno) => return Err(errno.into()),
    };
    if at >= end {
        return Ok((end, Vec::new()));
    }
    // Up to the next hole: what is read in it are zeros that nobody wrote.
    let hole = match lseek(
        file,
        libc::off_t::try_from(at).map_err(io::Error::other)?,
        Whence::SeekHole,
    ) {
        Ok(hole) => u64::try_from(hole).map_err(io::Error::other)?,
        Err(Errno::EINVAL) => end,
        Err(errno) => return Err(errno.into()),
    };
    let length = usize::try_from(end.min(hole).saturating_sub(at))
        .unwrap_or(usize::MAX)
        .min(OUTPUT_CHUNK_BYTES_MAX);
    let mut data = vec![0; length];
    let length = file.read_at(&mut data, at)?;
    data.truncate(length);
    if data.is_empty() {
        // The task made its own file shorter.
        return Ok((end, data));
    }
    Ok((at, data))
}

/// False: nobody wants it any more, or no scheduler takes it.
async fn deliver(context: &Context, put: v1::PutFetchedRequest) -> bool {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    let mut tries = 0;
    loop {
        match context.link.put_fetched(put.clone(), DEADLINE).await {
            Ok(answer) if answer.gone => return false,
            // For as long as somebody reads: a reader that goes away takes the request with it.
            Ok(answer) if answer.wait => tokio::time::sleep(REST_WAIT).await,
            Ok(_) => return true,
            Err(status) => {
                tries += 1;
                if tries >= TRIES_MAX || is_final(&status) {
                    tracing::warn!(
                        fetch_id = put.fetch_id,
                        error = status.message(),
                        "a full output could not be sent"
                    );
                    return false;
                }
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

fn is_final(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument | Code::NotFound | Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied
    )
}

async fn refuse(context: &Context, order: &v1::NextFetchResponse, error: String) {
    let put = v1::PutFetchedRequest {
        host: context.config.host.clone(),
        fetch_id: order.fetch_id,
        error,
        ..Default::default()
    };
    deliver(context, put).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek as _, SeekFrom, Write as _};

    #[test]
    fn a_file_that_lost_its_middle_is_sent_with_the_true_offsets() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[b'a'; 65_536]).unwrap();
        file.seek(SeekFrom::Start(1 << 20)).unwrap();
        file.write_all(b"end").unwrap();
        let size = (1 << 20) + 3;
        let (mut at, mut pieces) = (10, Vec::new());
        while at < size {
            let (offset, data) = piece(&file, at, size).unwrap();
            at = offset + data.len() as u64;
            pieces.push((offset, data));
        }
        assert_eq!(pieces[0].0, 10);
        assert!(pieces[0].1.starts_with(b"aaa"));
        assert!(pieces.last().unwrap().1.ends_with(b"end"));
        // All that is asked for lies in the hole, or behind the end.
        let total: usize = pieces.iter().map(|(_, data)| data.len()).sum();
        assert!(total >= 65_526 + 3 && pieces.iter().all(|(_, data)| data.len() <= OUTPUT_CHUNK_BYTES_MAX));
        assert_eq!(piece(&file, size, size + 9).unwrap(), (size + 9, vec![]));
    }
}
