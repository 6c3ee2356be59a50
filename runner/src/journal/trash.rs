//! What is to be deleted, out of the way of whoever waits.

use crate::state_dir::make_private_dir;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;

/// What is tried again before the next start of the warden.
const TRASH_AGAIN_MAX: usize = 1_000;

/// Where forgotten tasks go, and the thread that deletes them.
#[derive(Debug)]
pub(super) struct Trash {
    dir: PathBuf,
    queue: mpsc::Sender<PathBuf>,
}

impl Trash {
    /// Begins with what an earlier process did not come to delete.
    pub(super) fn open(dir: PathBuf) -> io::Result<Self> {
        make_private_dir(&dir)?;
        let (queue, paths) = mpsc::channel::<PathBuf>();
        for entry in std::fs::read_dir(&dir)? {
            let _ = queue.send(entry?.path());
        }
        std::thread::Builder::new().name("trash".into()).spawn(move || {
            // What could not be deleted, say for want of a descriptor, has its turn again after the next one.
            let mut again: VecDeque<PathBuf> = VecDeque::new();
            for path in paths {
                for path in [Some(path), again.pop_front()].into_iter().flatten() {
                    if let Err(error) = std::fs::remove_dir_all(&path)
                        && error.kind() != io::ErrorKind::NotFound
                    {
                        tracing::warn!(path = %path.display(), %error, "what an ended task left could not be deleted");
                        again.push_back(path);
                        again.truncate(TRASH_AGAIN_MAX);
                    }
                }
            }
        })?;
        Ok(Self { dir, queue })
    }

    /// The queue holds names only; each is a directory that lies in `trash/` anyway, and is found there at the next start.
    pub(super) fn delete(&self, path: PathBuf) {
        let _ = self.queue.send(path);
    }

    /// A name in it that nothing has.
    pub(super) fn place(&self) -> PathBuf {
        self.dir.join(uuid::Uuid::new_v4().to_string())
    }
}
