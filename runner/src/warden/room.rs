//! Room on the disk of the data directory, and who makes it: full outputs that are kept are for people who may ask, and tasks
//! need the room. So the oldest go before the host is called full. Only the output of ended tasks lies there, with all that is
//! stored of it acknowledged.

use crate::journal::Journal;
use crate::kept;
use nix::sys::statvfs::statvfs;
use std::io;
use std::path::Path;
use systole_shared::policy::host_fault::excess_bytes;

/// Deleted by one look at the disk, at most.
const OUTPUTS_MAX: usize = 256;
/// Files that a task needs to begin, and more.
const FILES_MIN: u64 = 10;

#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub total: u64,
    pub free: u64,
    /// That can be made yet. `None`: the file system makes inodes as it needs them.
    pub files: Option<u64>,
}

impl Room {
    pub fn measure(root: &Path) -> io::Result<Self> {
        let found = statvfs(root)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
        Ok(Self {
            total: bytes(found.blocks()),
            free: bytes(found.blocks_available()),
            files: (found.files() > 0).then(|| found.files_available()),
        })
    }

    pub fn lacks_files(&self) -> bool {
        self.files.is_some_and(|files| files < FILES_MIN)
    }

    /// Bytes that kept outputs are to give back; each gives back files, too.
    fn wanted(&self) -> u64 {
        excess_bytes(self.total, self.free).max(u64::from(self.lacks_files()))
    }
}

/// Deletes the oldest outputs that are kept where there is little room, and no more than that takes. Returns how many.
pub fn make(root: &Path, journal: &Journal, room: Room) -> io::Result<usize> {
    let wanted = room.wanted();
    if wanted == 0 {
        return Ok(0);
    }
    let mut deleted = 0;
    for oldest in kept::oldest(root, wanted, OUTPUTS_MAX)? {
        match journal.delete(&oldest.path) {
            Ok(()) => {
                deleted += 1;
                tracing::warn!(path = %oldest.path.display(), bytes = oldest.bytes, "a full output is deleted before its time: the disk runs full");
            }
            // Another thread was faster: it had lain too long.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::tests::{ids, task};

    fn room(free: u64) -> Room {
        // 10 kB are the least, 20 kB are enough, and what goes makes it 30 kB.
        Room {
            total: 1_000_000,
            free,
            files: None,
        }
    }

    fn left(root: &Path) -> Vec<i64> {
        let entries = std::fs::read_dir(root.join("outputs")).unwrap();
        let paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        ids(&paths)
    }

    #[test]
    fn the_oldest_outputs_make_room_and_no_more_than_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let journal = Journal::open(root, 0).unwrap();
        assert_eq!(make(root, &journal, room(0)).unwrap(), 0, "there are none");
        for id in 1..=5 {
            task(root, id, 16_384);
        }
        assert_eq!(make(root, &journal, room(20_000)).unwrap(), 0);
        assert_eq!(left(root), [1, 2, 3, 4, 5]);
        assert_eq!(make(root, &journal, room(19_999)).unwrap(), 1);
        assert_eq!(left(root), [2, 3, 4, 5]);
        assert_eq!(make(root, &journal, room(0)).unwrap(), 2);
        assert_eq!(left(root), [4, 5]);
        let no_files = Room {
            files: Some(FILES_MIN - 1),
            ..room(500_000)
        };
        assert_eq!(make(root, &journal, no_files).unwrap(), 1);
        assert_eq!(left(root), [5]);
        let trash = std::fs::read_dir(root.join("trash")).unwrap();
        assert_eq!(trash.count(), 0, "their room is free by now");
    }

    #[test]
    fn a_disk_tells_its_room() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room::measure(dir.path()).unwrap();
        assert!(room.total > 0 && room.free <= room.total, "{room:?}");
        assert!(Room::measure(&dir.path().join("missing")).is_err());
    }
}
