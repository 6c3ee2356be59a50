//! The data directory: who may use it, and who this runner is. Two locks, because agent and warden come and go
//! apart: [`AgentDir`] counts the starts of agents, [`WardenDir`] keeps the instance id and the highest
//! task id this host ever held. Knows nothing of tasks beyond that number.
//!
//! Schedulers order processes by `(instance_id, start_no)`: a higher start takes over all slots of
//! the host, a lower one is refused for ever. So the number must never repeat, not even after a power
//! cut, and a copy of the directory must not speak as the original.

use crate::RunnerError;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

const AGENT_LOCK: &str = "lock";
const WARDEN_LOCK: &str = "warden.lock";
/// 20 digits and the end of the line.
const MAX_TASK_ID_BYTES: u64 = 21;

/// Held as long as this agent may speak for the host.
#[derive(Debug)]
pub struct AgentDir {
    pub start_no: u64,
    /// Freed by the kernel with the process. Close-on-exec, as every file of the standard library: a
    /// child that inherited it would lock out the next start.
    _lock: Flock<File>,
}

impl AgentDir {
    pub fn open(root: &Path) -> Result<Self, RunnerError> {
        make_private_dir(root).map_err(|source| unusable(root, source))?;
        let lock = lock(root, AGENT_LOCK)?;
        let start_no = next_start_no(root).map_err(|source| unusable(root, source))?;
        Ok(Self { start_no, _lock: lock })
    }
}

/// Held as long as this warden may start and end tasks.
#[derive(Debug)]
pub struct WardenDir {
    pub root: PathBuf,
    pub instance_id: String,
    /// The id was made by this start: what lies in the directory may belong to another, living process.
    pub is_new: bool,
    max_task: AtomicI64,
    max_task_file: Mutex<File>,
    lock: Flock<File>,
}

impl WardenDir {
    pub fn open(root: &Path, machine_id: &str) -> Result<Self, RunnerError> {
        make_private_dir(root).map_err(|source| unusable(root, source))?;
        let lock = lock(root, WARDEN_LOCK)?;
        Self::read(root, machine_id, lock).map_err(|source| unusable(root, source))
    }

    fn read(root: &Path, machine_id: &str, lock: Flock<File>) -> io::Result<Self> {
        let known = known_instance(root, machine_id)?;
        let is_new = known.is_none();
        let instance_id = match known {
            Some(id) => id,
            None => new_instance(root, machine_id)?,
        };
        let max_task_file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(root.join("max_task_id"))?;
        let highest = read_max_task_id(root, &max_task_file)?;
        Ok(Self {
            root: root.to_owned(),
            instance_id,
            is_new,
            max_task: AtomicI64::new(highest),
            max_task_file: Mutex::new(max_task_file),
            lock,
        })
    }

    /// Writes the process id into the lock file, for people and for whoever must end this process.
    pub fn sign(&self) -> io::Result<()> {
        self.lock.set_len(0)?;
        self.lock
            .write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0)
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

/// As [`WardenDir::raise_max_task_id`] writes it, and nothing else: a number that is not one would have a scheduler believe that
/// its database was set back.
fn parse_max_task_id(content: &[u8]) -> Option<i64> {
    let digits = content.strip_suffix(b"\n")?;
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// 0 for a new file, and for one that cannot be read as a number: that one is emptied, so that the next task makes it whole.
fn read_max_task_id(root: &Path, file: &File) -> io::Result<i64> {
    let mut content = Vec::new();
    // One byte more than it ever has tells what is too long.
    file.take(MAX_TASK_ID_BYTES + 1).read_to_end(&mut content)?;
    if content.is_empty() {
        return Ok(0);
    }
    if content.len() as u64 <= MAX_TASK_ID_BYTES
        && let Some(highest) = parse_max_task_id(&content)
    {
        return Ok(highest);
    }
    tracing::error!(
        file = %root.join("max_task_id").display(),
        "the highest task id that this host has held cannot be read; it counts from the next task on. A database that is set back \
         before that is noticed by other hosts only"
    );
    file.set_len(0)?;
    Ok(0)
}

/// Whether a warden has this directory now.
pub fn has_warden(root: &Path) -> bool {
    matches!(lock(root, WARDEN_LOCK), Err(RunnerError::DataDirInUse(_)))
}

fn unusable(root: &Path, source: io::Error) -> RunnerError {
    RunnerError::DataDir {
        path: root.to_owned(),
        source,
    }
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

fn lock(root: &Path, name: &str) -> Result<Flock<File>, RunnerError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(root.join(name))
        .map_err(|source| unusable(root, source))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::errno::Errno::EWOULDBLOCK => RunnerError::DataDirInUse(root.to_owned()),
        other => unusable(root, other.into()),
    })
}

fn next_start_no(root: &Path) -> io::Result<u64> {
    let path = root.join("start_no");
    let start_no = match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_or_else(
            |_| {
                // A repeated number would be taken for the old process. No host was started as often as there were
                // seconds since 1970, so this one is higher than any that was lost.
                tracing::warn!(file = %path.display(), "the start number of this runner cannot be read; it goes on from a higher one");
                u64::try_from(systole_shared::clock::now_ms() / 1_000).unwrap_or(u64::MAX / 2)
            },
            |last: u64| last + 1,
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 1,
        Err(error) => return Err(error),
    };
    let text = start_no.to_string();
    match write_durably(&path, text.as_bytes()) {
        // A full disk must not keep an agent from its tasks.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
            overwrite(&path, text.as_bytes())?;
        }
        written => written?,
    }
    Ok(start_no)
}

/// In place, within the block that the file has: that needs no room. So few bytes are one sector, which a power cut leaves old
/// or new.
fn overwrite(path: &Path, content: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(content, 0)?;
    file.set_len(content.len() as u64)?;
    file.sync_all()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn id(root: &Path, machine: &str) -> (String, bool) {
        let dir = WardenDir::open(root, machine).unwrap();
        (dir.instance_id.clone(), dir.is_new)
    }

    #[test]
    fn what_is_overwritten_in_place_has_the_new_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("start_no");
        for text in ["9", "10", "7"] {
            std::fs::write(&path, "9").unwrap();
            overwrite(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_directory_in_use_is_refused_to_a_second_agent_and_a_second_warden() {
        let dir = tempfile::tempdir().unwrap();
        let (agent, warden) = (
            AgentDir::open(dir.path()).unwrap(),
            WardenDir::open(dir.path(), "m").unwrap(),
        );
        let refused = AgentDir::open(dir.path()).unwrap_err();
        assert!(matches!(refused, RunnerError::DataDirInUse(_)), "{refused}");
        assert!(refused.to_string().contains("in use by another runner process"));
        assert!(matches!(
            WardenDir::open(dir.path(), "m"),
            Err(RunnerError::DataDirInUse(_))
        ));
        assert!(has_warden(dir.path()));
        drop((agent, warden));
        assert!(!has_warden(dir.path()));
        AgentDir::open(dir.path()).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let refused = AgentDir::open(&file.join("data")).unwrap_err().to_string();
        assert!(refused.contains("file/data cannot be used"), "{refused}");
    }

    #[test]
    fn a_new_directory_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("a/b");
        WardenDir::open(&root, "m").unwrap();
        assert_eq!(std::fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn start_no_rises_with_each_start_and_never_repeats() {
        let dir = tempfile::tempdir().unwrap();
        let start = || AgentDir::open(dir.path()).unwrap().start_no;
        assert_eq!([start(), start(), start()], [1, 2, 3]);
        std::fs::write(dir.path().join("start_no"), "").unwrap();
        let next = start();
        assert!(next > 1_000_000_000);
        assert_eq!(start(), next + 1);
    }

    #[test]
    fn the_instance_stays_until_the_directory_is_copied_or_the_machine_cloned() {
        let dir = tempfile::tempdir().unwrap();
        let (original, copy) = (dir.path().join("original"), dir.path().join("copy"));
        let (first, is_new) = id(&original, "m");
        assert!(is_new);
        assert_eq!(id(&original, "m"), (first.clone(), false));
        std::fs::create_dir(&copy).unwrap();
        std::fs::copy(original.join("instance.json"), copy.join("instance.json")).unwrap();
        let (copied, is_new) = id(&copy, "m");
        assert!(is_new && copied != first);
        assert_eq!(id(&original, "m").0, first);
        assert_ne!(id(&original, "other").0, first);
    }

    #[test]
    fn the_highest_task_id_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let state = WardenDir::open(dir.path(), "m").unwrap();
        for id in [5, 900, 7] {
            state.raise_max_task_id(id).unwrap();
        }
        assert_eq!(state.max_task_id(), 900);
        drop(state);
        assert_eq!(WardenDir::open(dir.path(), "m").unwrap().max_task_id(), 900);
    }

    #[test]
    fn a_file_without_a_task_id_counts_from_the_next_task_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("max_task_id");
        for damaged in [
            "x",
            "\n",
            "12",
            "-5\n",
            "+5\n",
            " 7\n",
            "7\n\n",
            "99999999999999999999\n",
            "000000000000000000000000000007\n",
        ] {
            std::fs::write(&path, damaged).unwrap();
            let state = WardenDir::open(dir.path(), "m").unwrap();
            assert_eq!(state.max_task_id(), 0, "{damaged:?}");
            state.raise_max_task_id(3).unwrap();
            drop(state);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "00000000000000000003\n");
            assert_eq!(WardenDir::open(dir.path(), "m").unwrap().max_task_id(), 3);
        }
    }
}
