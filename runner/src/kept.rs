//! Full outputs of ended tasks, kept for a while: of those alone that were too long to be stored. They lie in
//! `outputs/<task id>/`, their two files as the task left them, the oldest first to go.

use crate::journal::{STDERR, STDOUT, task_dir};
use crate::state_dir::make_private_dir;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const KEPT: &str = "outputs";

/// How long, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// After the end of a task; 0: not at all.
    pub time: Duration,
    /// On disk, all together.
    pub bytes: u64,
}

impl Default for Keep {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(24 * 3_600),
            bytes: 10 * 1024 * 1024 * 1024,
        }
    }
}

/// Where a stream of a task lies, whether it runs or is kept.
pub fn candidates(root: &Path, task_id: i64, name: &str) -> [PathBuf; 2] {
    [
        task_dir(root, task_id).join(name),
        root.join(KEPT).join(task_id.to_string()).join(name),
    ]
}

/// Moves the output of an ended task aside, before the rest of it is deleted.
pub fn keep(root: &Path, task_id: i64) -> io::Result<()> {
    let dir = root.join(KEPT).join(task_id.to_string());
    make_private_dir(&dir)?;
    for name in [STDOUT, STDERR] {
        std::fs::rename(task_dir(root, task_id).join(name), dir.join(name))?;
    }
    Ok(())
}

/// The output of one task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    since: SystemTime,
    pub path: PathBuf,
    /// On disk.
    pub bytes: u64,
}

/// The oldest first.
fn find(root: &Path) -> io::Result<Vec<Found>> {
    let entries = match std::fs::read_dir(root.join(KEPT)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        // Of the folder: it is written when the files are moved into it.
        let since = match entry.metadata() {
            Ok(meta) => meta.modified()?,
            // Deleted meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let bytes: u64 = [STDOUT, STDERR]
            .iter()
            .filter_map(|name| std::fs::metadata(entry.path().join(name)).ok())
            .map(|meta| meta.blocks() * 512)
            .sum();
        let path = entry.path();
        found.push(Found { since, path, bytes });
    }
    found.sort();
    Ok(found)
}

/// What has lain too long, and the oldest where it is too much: to be deleted by the caller.
pub fn surplus(root: &Path, keep: Keep, now: SystemTime) -> io::Result<Vec<PathBuf>> {
    let mut sum = 0_u64;
    // The newest first: what does not fit behind it goes.
    let surplus = find(root)?.into_iter().rev().filter_map(|found| {
        sum = sum.saturating_add(found.bytes);
        let old = now.duration_since(found.since).is_ok_and(|age| age >= keep.time);
        (old || sum > keep.bytes).then_some(found.path)
    });
    Ok(surplus.collect())
}

/// The oldest, until they have so many bytes, and at most so many: to be deleted by the caller.
pub fn oldest(root: &Path, bytes: u64, most: usize) -> io::Result<Vec<Found>> {
    let mut sum = 0_u64;
    let oldest = find(root)?.into_iter().take(most).take_while(|found| {
        let wanted = sum < bytes;
        sum = sum.saturating_add(found.bytes);
        wanted
    });
    Ok(oldest.collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn task(root: &Path, id: i64, bytes: usize) {
        let dir = task_dir(root, id);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(STDOUT), vec![b'x'; bytes]).unwrap();
        std::fs::write(dir.join(STDERR), b"").unwrap();
        keep(root, id).unwrap();
        // Files are written at moments that a clock can tell apart.
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + id.unsigned_abs());
        std::fs::File::open(root.join(KEPT).join(id.to_string()))
            .unwrap()
            .set_modified(time)
            .unwrap();
    }

    pub(crate) fn ids(surplus: &[PathBuf]) -> Vec<i64> {
        let id = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let mut ids: Vec<i64> = surplus.iter().map(id).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn the_oldest_goes_when_it_is_too_much_or_too_old() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let now = |second: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + second);
        let bounds = |seconds, bytes| Keep {
            time: Duration::from_secs(seconds),
            bytes,
        };
        assert!(surplus(root, bounds(10, 0), now(0)).unwrap().is_empty());
        for id in 1..=4 {
            task(root, id, 100_000);
        }
        let plenty = 10_000_000;
        assert!(surplus(root, bounds(10, plenty), now(4)).unwrap().is_empty());
        assert_eq!(ids(&surplus(root, bounds(10, plenty), now(12)).unwrap()), [1, 2]);
        assert_eq!(ids(&surplus(root, bounds(100, 250_000), now(5)).unwrap()), [1, 2]);
        assert_eq!(ids(&surplus(root, bounds(100, 0), now(5)).unwrap()), [1, 2, 3, 4]);
        let [_, kept] = candidates(root, 3, STDOUT);
        assert_eq!(std::fs::metadata(kept).unwrap().len(), 100_000);
    }

    #[test]
    fn the_oldest_go_until_it_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert!(oldest(root, 1, 9).unwrap().is_empty());
        for id in 1..=4 {
            task(root, id, 100_000);
        }
        let chosen = |bytes, most| {
            let paths: Vec<PathBuf> = oldest(root, bytes, most).unwrap().into_iter().map(|f| f.path).collect();
            ids(&paths)
        };
        assert_eq!(chosen(0, 9), [0_i64; 0]);
        assert_eq!(chosen(1, 9), [1]);
        assert_eq!(chosen(150_000, 9), [1, 2]);
        assert_eq!(chosen(u64::MAX, 9), [1, 2, 3, 4]);
        assert_eq!(chosen(u64::MAX, 3), [1, 2, 3]);
    }
}
