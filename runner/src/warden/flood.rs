//! How much a running task writes: a limit that ends it, and the room that its output takes on disk.
//!
//! The child writes its files itself, so they are looked at: four times a second while they grow, less often when they
//! do not. A file that gets too long loses its middle, which the file system gives back: the offsets stay true, and the
//! child notices nothing. A limit of the kernel would do neither: it counts every file that the task writes, and ends it.

use crate::journal::TaskFiles;
use nix::fcntl::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(250);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(2);
/// Least bound of a file, so that what is stored of the output is always there.
pub const FILE_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// Freed ranges begin and end at such offsets.
const BLOCK_BYTES: u64 = 64 * 1024;

const IDLE: u8 = 0;
const BUSY: u8 = 1;
const UNABLE: u8 = 2;

#[derive(Debug)]
pub struct Watch {
    /// A stream that gets longer ends the task.
    limit: Option<u64>,
    /// Bytes of a stream that stay on disk.
    file_max: u64,
    next: Instant,
    pause: Duration,
    sizes: [u64; 2],
    freed_to: [u64; 2],
    /// What the thread is at that frees. One at a time: it may take a while, and nobody waits for it.
    freeing: Arc<AtomicU8>,
}

impl Watch {
    pub fn new(limit: Option<u64>, file_max: u64, stored_max: u64, now: Instant) -> Self {
        Self {
            limit,
            file_max: file_max.max(stored_max).max(FILE_BYTES_MIN),
            next: now + LOOK_EVERY,
            pause: LOOK_EVERY,
            sizes: [0; 2],
            freed_to: [0; 2],
            freeing: Arc::default(),
        }
    }

    /// When to look next.
    pub fn due(&self) -> Instant {
        self.next
    }

    /// True: the task is to be ended.
    pub fn look(&mut self, files: &TaskFiles, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        let sizes = files.sizes();
        self.pause = if sizes != self.sizes || self.limit.is_some() {
            LOOK_EVERY
        } else {
            (self.pause * 2).min(LOOK_EVERY_MAX)
        };
        self.next = now + self.pause;
        self.sizes = sizes;
        if self.exceeds(sizes) {
            return true;
        }
        if self.freeing.load(Ordering::Acquire) == IDLE {
            self.free(files);
        }
        // The disk is everybody's: where its room cannot be given back, the task must stop.
        self.freeing.load(Ordering::Acquire) == UNABLE && sizes.iter().any(|size| *size > self.file_max)
    }

    /// Whether these sizes are more than the task may write.
    pub fn exceeds(&self, sizes: [u64; 2]) -> bool {
        self.limit.is_some_and(|limit| sizes.iter().any(|size| *size > limit))
    }

    fn free(&mut self, files: &TaskFiles) {
        for (index, file) in [&files.stdout, &files.stderr].into_iter().enumerate() {
            let Some(range) = excess(self.sizes[index], self.file_max, self.freed_to[index]) else {
                continue;
            };
            let Ok(file) = file.try_clone() else { return };
            self.freed_to[index] = range.end;
            self.freeing.store(BUSY, Ordering::Release);
            let freeing = Arc::clone(&self.freeing);
            let free = move || {
                let done = match punch(&file, &range) {
                    Ok(()) => IDLE,
                    Err(error) => {
                        tracing::warn!(%error, "the file system cannot give back the middle of a long output; the task is ended");
                        UNABLE
                    }
                };
                freeing.store(done, Ordering::Release);
            };
            if std::thread::Builder::new().name("free".into()).spawn(free).is_err() {
                self.freeing.store(IDLE, Ordering::Release);
            }
            return;
        }
    }
}

/// What of a file is too much: head and tail stay, half of the bound each. Not for each byte: an eighth may come together.
fn excess(size: u64, max: u64, freed_to: u64) -> Option<Range<u64>> {
    let half = max / 2;
    let down = |offset: u64| offset / BLOCK_BYTES * BLOCK_BYTES;
    let start = down(half + BLOCK_BYTES - 1).max(freed_to);
    let end = down(size.saturating_sub(half));
    (size > max && end >= start + max / 8).then_some(start..end)
}

fn punch(file: &File, range: &Range<u64>) -> io::Result<()> {
    let offset = |value: u64| libc::off_t::try_from(value).map_err(io::Error::other);
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, mode, offset(range.start)?, offset(range.end - range.start)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;
    use crate::journal::tests::begin;
    use std::io::Write as _;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    const MIB: u64 = 1 << 20;

    #[test]
    fn head_and_tail_of_a_long_file_stay() {
        assert_eq!(excess(16 * MIB, 16 * MIB, 0), None);
        assert_eq!(excess(17 * MIB, 16 * MIB, 0), None, "a little more comes together");
        assert_eq!(excess(18 * MIB, 16 * MIB, 0), Some(8 * MIB..10 * MIB));
        assert_eq!(excess(19 * MIB, 16 * MIB, 10 * MIB), None);
        assert_eq!(excess(40 * MIB + 5, 16 * MIB, 10 * MIB), Some(10 * MIB..32 * MIB));
    }

    #[test]
    fn the_middle_of_a_flood_takes_no_room_and_the_offsets_stay_true() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 0).unwrap();
        let mut files = journal.begin(&begin(7)).unwrap();
        let start = Instant::now();
        let mut watch = Watch::new(None, FILE_BYTES_MIN, 0, start);
        let block: Vec<u8> = (0..MIB).map(|n| (n % 251) as u8).collect();
        for second in 1..=64_u32 {
            files.stdout.write_all(&block).unwrap();
            if watch.look(&files, start + Duration::from_secs(second.into())) {
                // No file system with holes here: then the task is ended, which is the other half of the promise.
                assert_eq!(watch.freeing.load(Ordering::Acquire), UNABLE);
                return;
            }
            while watch.freeing.load(Ordering::Acquire) == BUSY {
                std::thread::yield_now();
            }
        }
        let meta = files.stdout.metadata().unwrap();
        assert_eq!(meta.len(), 64 * MIB);
        assert!(
            meta.blocks() * 512 <= FILE_BYTES_MIN + FILE_BYTES_MIN / 8 + MIB,
            "{}",
            meta.blocks() * 512
        );
        let file = File::open(files.dir.join(crate::journal::STDOUT)).unwrap();
        for offset in [0, 7 * MIB, 56 * MIB, 63 * MIB] {
            let mut read = vec![0; block.len()];
            file.read_exact_at(&mut read, offset).unwrap();
            assert!(read == block, "at {offset}");
        }
    }

    #[test]
    fn a_limit_is_seen_at_the_next_look_and_an_idle_file_is_looked_at_less_often() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 0).unwrap();
        let mut files = journal.begin(&begin(7)).unwrap();
        let start = Instant::now();
        let mut watch = Watch::new(Some(3), FILE_BYTES_MIN, 0, start);
        files.stderr.write_all(b"abc").unwrap();
        assert!(!watch.look(&files, start + LOOK_EVERY));
        files.stderr.write_all(b"d").unwrap();
        assert!(!watch.look(&files, start + LOOK_EVERY), "not due");
        assert!(watch.look(&files, start + LOOK_EVERY * 2));
        let mut idle = Watch::new(None, FILE_BYTES_MIN, 0, start);
        let mut looks = 0;
        while idle.due() < start + Duration::from_secs(60) {
            let at = idle.due();
            assert!(!idle.look(&files, at));
            looks += 1;
        }
        assert!((30..40).contains(&looks), "{looks}");
    }
}
