//! The output of a task on its way: followed while the child runs, and stored as far as possible before its end is
//! reported.

use crate::child::output::{INTERVAL, Upload};
use crate::journal::Ended;
use std::time::Duration;
use systole_proto::v1;
use systole_shared::limits::OUTPUT_IN_BEAT_BYTES_MAX;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long the result waits for a large output to be stored before it.
pub const OUTPUT_FIRST: Duration = Duration::from_secs(10);

/// What there is to report.
#[derive(Debug)]
pub struct Finished {
    pub ended: Ended,
    /// The rest of the output, when it is small.
    pub output: Vec<v1::OutputChunk>,
    /// Sends the rest of the output, when it is large; the files must stay until it is through.
    pub sending: Option<JoinHandle<()>>,
}

/// A task of its own that sends what is new.
pub struct Follower {
    stop: CancellationToken,
    task: JoinHandle<Upload>,
}

impl Follower {
    pub fn start(upload: Upload) -> Self {
        let stop = CancellationToken::new();
        let later = stop.clone();
        let task = tokio::spawn(async move {
            // A child that ends within the first interval needs no look before its end.
            tokio::select! {
                biased;
                () = later.cancelled() => upload,
                () = tokio::time::sleep(INTERVAL) => upload.follow(later.clone()).await,
            }
        });
        Self { stop, task }
    }

    /// The upload, as far as it came.
    async fn halt(mut self, fresh: Upload) -> Upload {
        self.stop.cancel();
        // From the start, should its task have panicked: storing twice changes nothing.
        (&mut self.task).await.unwrap_or(fresh)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Whether a result needs nothing but itself.
pub fn is_silent(ended: &Ended) -> bool {
    ended.stdout_bytes == 0 && ended.stderr_bytes == 0
}

/// Sees that the output is stored before the result is reported, within bounds.
pub async fn finish(ended: Ended, upload: Upload, follower: Option<Follower>) -> Finished {
    let mut upload = match follower {
        Some(follower) => follower.halt(upload).await,
        None => upload,
    };
    let sizes = [ended.stdout_bytes, ended.stderr_bytes];
    let output = small_rest(&upload, sizes);
    if !output.is_empty() || upload.rest(sizes) == 0 {
        return Finished {
            ended,
            output,
            sending: None,
        };
    }
    upload.hurry(OUTPUT_FIRST).await;
    let sending = (upload.rest(sizes) > 0).then(|| tokio::spawn(upload.finish()));
    Finished { ended, output, sending }
}

/// The rest of the output, if it is small enough to ride on the beat. It was written a moment ago: reading it
/// takes less than handing the work to another thread.
pub fn small_rest(upload: &Upload, sizes: [u64; 2]) -> Vec<v1::OutputChunk> {
    let rest = upload.rest(sizes);
    if rest == 0 || rest > OUTPUT_IN_BEAT_BYTES_MAX as u64 {
        return Vec::new();
    }
    // What cannot be read here is tried again, and complained about, by the upload.
    upload.small_rest(sizes).unwrap_or_default()
}
