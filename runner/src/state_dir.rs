//! Who this runner process is: the lock on the data directory, the instance id, the number of this
//! start, and the highest task id this host ever held. Knows nothing of tasks beyond that number.
//!
//! Schedulers order processes by `(instance_id, start_no)`: a higher start takes over all slots of
//! the host, a lower one is refused for ever. So the number must never repeat, not even after a power
//! cut, and a copy of the directory must not speak as the original.

use crate::RunnerError;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

/// What a beat says of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub instance_id: String,
    pub start_no: u64,
    /// The id was made by this start: what lies in the directory may belong to another, living process.
    pub is_new: bool,
}

/// Held as long as the process may touch the directory.
#[derive(Debug)]
pub struct StateDir {
    pub root: PathBuf,
    pub identity: Identity,
    max_task: AtomicI64,
    max_task_file: Mutex<File>,
    /// Freed by the kernel with the process. Close-on-exec, as every file of the standard library: a
    /// child that inherited it would lock out the next start.
    _lock: Flock<File>,
}

/// Bound to the machine and to its own file: in a copied directory or a cloned machine at least one
/// of the three differs.
#[derive(Debug, Serialize, Deserialize)]
struct Instance {
    instance_id: uuid::Uuid,
    machine_id: String,
    device: u64,
    inode: u64,
}

impl StateDir {
    pub fn open(root: &Path, machine_id: &str) -> Result<Self, RunnerError> {
        let unusable = |source| RunnerError::DataDir {
            path: root.to_owned(),
            source,
        };
        make_private_dir(root).map_err(unusable)?;
        let lock = lock(root)?;
        let identity = identify(root, machine_id).map_err(unusable)?;
        let max_task_file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(root.join("max_task_id"))
            .map_err(unusable)?;
        let known = io::read_to_string(&max_task_file).map_err(unusable)?;
        Ok(Self {
            root: root.to_owned(),
            identity,
            max_task: AtomicI64::new(known.trim().parse().unwrap_or(0)),
            max_task_file: Mutex::new(max_task_file),
            _lock: lock,
        })
    }

    /// The highest task id this host ever held.
    pub fn max_task_id(&self) -> i64 {
        self.max_task.load(Ordering::Relaxed)
    }

    /// Remembers a task id. Not synced: after a power cut the number may be a little low, and a
    /// scheduler that compares it then only notices a restored database later.
    pub fn raise_max_task_id(&self, task_id: i64) -> io::Result<()> {
        if task_id <= self.max_task_id() {
            return Ok(());
        }
        let file = self
            .max_task_file
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if task_id > self.max_task.fetch_max(task_id, Ordering::Relaxed) {
            // One write of a fixed width: there is no moment with a shorter number in the file.
            file.write_all_at(format!("{task_id:020}\n").as_bytes(), 0)?;
        }
        Ok(())
    }
}

/// Creates a directory that only this user may enter, with its parents; leaves an existing one as it is.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a small file so that after a power cut there is either the old content or the new.
pub fn write_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

fn lock(root: &Path) -> Result<Flock<File>, RunnerError> {
    let unusable = |source| RunnerError::DataDir {
        path: root.to_owned(),
        source,
    };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(root.join("lock"))
        .map_err(unusable)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::errno::Errno::EWOULDBLOCK => RunnerError::DataDirInUse(root.to_owned()),
        other => unusable(other.into()),
    })
}

fn identify(root: &Path, machine_id: &str) -> io::Result<Identity> {
    if let Some(instance_id) = known_instance(root, machine_id)? {
        // A start number that cannot be read cannot be raised, and a repeated one would be taken for
        // the old process: then only a new instance is safe.
        if let Some(last) = read_start_no(root)? {
            let start_no = last + 1;
            write_durably(&root.join("start_no"), start_no.to_string().as_bytes())?;
            return Ok(Identity {
                instance_id,
                start_no,
                is_new: false,
            });
        }
        tracing::warn!(dir = %root.display(), "the start number of this runner cannot be read; it starts as a new instance");
    }
    let instance_id = new_instance(root, machine_id)?;
    write_durably(&root.join("start_no"), b"1")?;
    Ok(Identity {
        instance_id,
        start_no: 1,
        is_new: true,
    })
}

/// The recorded instance id, if this directory is still the one that it was made for.
fn known_instance(root: &Path, machine_id: &str) -> io::Result<Option<String>> {
    let path = root.join("instance.json");
    let content = match std::fs::read(&path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let meta = std::fs::metadata(&path)?;
    let Ok(instance) = serde_json::from_slice::<Instance>(&content) else {
        tracing::warn!(file = %path.display(), "the identity of this runner cannot be read; it starts as a new instance");
        return Ok(None);
    };
    if instance.machine_id == machine_id && (instance.device, instance.inode) == (meta.dev(), meta.ino()) {
        return Ok(Some(instance.instance_id.to_string()));
    }
    tracing::warn!(
        dir = %root.display(),
        "this data directory was made on another machine or copied from another place; the runner starts as a new instance"
    );
    Ok(None)
}

fn new_instance(root: &Path, machine_id: &str) -> io::Result<String> {
    // The file has its number once it exists, and keeps it when it is renamed: so the complete content
    // appears at once under the final name.
    let temporary = root.join("instance.tmp");
    let mut file = create(&temporary)?;
    let meta = file.metadata()?;
    let instance = Instance {
        instance_id: uuid::Uuid::new_v4(),
        machine_id: machine_id.to_owned(),
        device: meta.dev(),
        inode: meta.ino(),
    };
    file.write_all(&serde_json::to_vec(&instance)?)?;
    file.sync_all()?;
    std::fs::rename(&temporary, root.join("instance.json"))?;
    File::open(root)?.sync_all()?;
    Ok(instance.instance_id.to_string())
}

fn read_start_no(root: &Path) -> io::Result<Option<u64>> {
    match std::fs::read_to_string(root.join("start_no")) {
        Ok(text) => Ok(text.trim().parse().ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_use_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::open(dir.path(), "m").unwrap();
        let refused = StateDir::open(dir.path(), "m").unwrap_err();
        assert!(matches!(refused, RunnerError::DataDirInUse(_)), "{refused}");
        assert!(refused.to_string().contains("in use by another runner process"));
        drop(first);
        StateDir::open(dir.path(), "m").unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let refused = StateDir::open(&file.join("data"), "m").unwrap_err().to_string();
        assert!(refused.contains("file/data cannot be used"), "{refused}");
    }

    #[test]
    fn a_new_directory_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("a/b");
        StateDir::open(&root, "m").unwrap();
        assert_eq!(std::fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn start_no_rises_with_each_start() {
        let dir = tempfile::tempdir().unwrap();
        let starts: Vec<Identity> = (0..3)
            .map(|_| StateDir::open(dir.path(), "m").unwrap().identity.clone())
            .collect();
        assert_eq!(starts.iter().map(|s| s.start_no).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(starts.iter().all(|s| s.instance_id == starts[0].instance_id));
        assert_eq!(
            starts.iter().map(|s| s.is_new).collect::<Vec<_>>(),
            [true, false, false]
        );
    }

    #[test]
    fn a_copied_directory_gets_a_new_instance_id() {
        let dir = tempfile::tempdir().unwrap();
        let (original, copy) = (dir.path().join("original"), dir.path().join("copy"));
        let id = StateDir::open(&original, "m").unwrap().identity.instance_id.clone();
        std::fs::create_dir(&copy).unwrap();
        for name in ["instance.json", "start_no", "lock"] {
            std::fs::copy(original.join(name), copy.join(name)).unwrap();
        }
        let copied = StateDir::open(&copy, "m").unwrap().identity.clone();
        assert!(copied.is_new && copied.instance_id != id);
        assert_eq!(StateDir::open(&original, "m").unwrap().identity.instance_id, id);
    }

    #[test]
    fn a_cloned_machine_gets_a_new_instance_id() {
        let dir = tempfile::tempdir().unwrap();
        let id = StateDir::open(dir.path(), "m").unwrap().identity.instance_id.clone();
        assert_ne!(StateDir::open(dir.path(), "other").unwrap().identity.instance_id, id);
    }

    #[test]
    fn an_unreadable_start_number_makes_a_new_instance() {
        let dir = tempfile::tempdir().unwrap();
        let id = StateDir::open(dir.path(), "m").unwrap().identity.instance_id.clone();
        std::fs::write(dir.path().join("start_no"), "").unwrap();
        let next = StateDir::open(dir.path(), "m").unwrap().identity.clone();
        assert!(next.instance_id != id && next.start_no == 1);
    }

    #[test]
    fn the_highest_task_id_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path(), "m").unwrap();
        for id in [5, 900, 7] {
            state.raise_max_task_id(id).unwrap();
        }
        assert_eq!(state.max_task_id(), 900);
        drop(state);
        assert_eq!(StateDir::open(dir.path(), "m").unwrap().max_task_id(), 900);
    }
}
