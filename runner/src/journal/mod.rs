//! What is known on disk of each task: that it was begun, which process it is, how it ended. These are
//! lines of `tasks/<task id>/journal`, beside the output; what no cluster wants lies in `unclaimed/`. A
//! directory without a journal, or with an empty one, is that of a task that was never begun.
//!
//! One file, appended to: each file more would cost a short task a tenth of its time. A line is written
//! with one call, so only a power cut can leave half of one; it counts as not written.
//!
//! Written for a crash of the runner process: what was written survives that without any sync. A power
//! cut is different, and the protocol covers it: the boot id changes, and a dispatched task of another
//! boot is never begun again. So the beginning is not synced, which would cost more than the
//! whole start of a short task.

mod record;
mod trash;

pub use record::{Begin, Ended, ProcessRecord};

use crate::spare::{Spares, Stamps};
use crate::state_dir::make_private_dir;
use record::Line;
use std::borrow::Cow;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use systole_proto::convert;
use trash::Trash;

/// Names in the directory of a task. The child writes the two streams itself, and starts in the last
/// one when its task names no directory.
pub const STDOUT: &str = "stdout";
pub const STDERR: &str = "stderr";
pub const WORK: &str = "work";
pub const JOURNAL: &str = "journal";

/// How long unclaimed results and output are kept, ms (7 days).
pub const UNCLAIMED_KEEP_MS: i64 = 7 * 24 * 3_600_000;
/// How long, and how many, working directories are kept where tasks asked for it.
pub const WORKDIR_KEEP_MS: i64 = 7 * 24 * 3_600_000;
pub const WORKDIRS_MAX: usize = 100;
/// Tasks that ran longer than this have their result synced, ms.
pub const RESULT_SYNC_AFTER_MS: u64 = 1_000;

/// What one task has open, from its begin until it is forgotten.
#[derive(Debug)]
pub struct TaskFiles {
    pub dir: PathBuf,
    pub journal: File,
    pub stdout: File,
    pub stderr: File,
    /// There is an empty working directory already.
    pub has_work: bool,
    /// Of a folder that was kept, and looked through.
    pub stamps: Option<Stamps>,
}

impl TaskFiles {
    fn create(dir: PathBuf) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(Self {
            journal: open(&dir.join(JOURNAL))?,
            stdout: open(&dir.join(STDOUT))?,
            stderr: open(&dir.join(STDERR))?,
            has_work: false,
            stamps: None,
            dir,
        })
    }

    /// The process of a begun task, so that the next warden can end it if this one dies.
    pub fn started(&self, process: ProcessRecord) -> io::Result<()> {
        append(&self.journal, &Line::Process(process))
    }

    /// Bytes that the child wrote to each stream.
    pub fn sizes(&self) -> [u64; 2] {
        [&self.stdout, &self.stderr].map(|file| file.metadata().map_or(0, |meta| meta.len()))
    }

    /// How long ago the child last wrote anything.
    pub fn age(&self) -> Duration {
        let written = [&self.stdout, &self.stderr].map(|file| file.metadata().and_then(|meta| meta.modified()).ok());
        let newest = written.into_iter().flatten().max();
        newest.and_then(|at| at.elapsed().ok()).unwrap_or_default()
    }

    /// Keeps the end of a task until it is acknowledged.
    pub fn end(&self, ended: &Ended) -> io::Result<()> {
        append_end(&self.journal, &self.dir, ended)
    }
}

/// The wall clock as the contract has it.
pub fn now_ms() -> u64 {
    convert::time_to_wire(systole_shared::clock::now_ms())
}

/// The directory of a task, for readers.
pub fn task_dir(root: &Path, task_id: i64) -> PathBuf {
    root.join("tasks").join(task_id.to_string())
}

/// What lies in one directory of `tasks/`.
#[derive(Debug)]
pub struct Entry {
    pub task_id: i64,
    pub begin: Option<Begin>,
    pub process: Option<ProcessRecord>,
    pub ended: Option<Ended>,
}

#[derive(Debug)]
pub struct Journal {
    tasks: PathBuf,
    unclaimed: PathBuf,
    kept: PathBuf,
    spares: Spares,
    trash: Trash,
}

impl Journal {
    /// At most `spares` directories of former tasks are kept for later ones.
    pub fn open(root: &Path, spares: usize) -> io::Result<Self> {
        let journal = Self {
            tasks: root.join("tasks"),
            unclaimed: root.join("unclaimed"),
            kept: root.join("kept"),
            spares: Spares::open(root.join("spare"), spares),
            trash: Trash::open(root.join("trash"))?,
        };
        make_private_dir(&journal.tasks)?;
        make_private_dir(&journal.unclaimed)?;
        Ok(journal)
    }

    pub fn dir(&self, task_id: i64) -> PathBuf {
        self.tasks.join(task_id.to_string())
    }

    /// Begins a task. `AlreadyExists`: this host has it already, and it must not be begun.
    pub fn begin(&self, begin: &Begin) -> io::Result<TaskFiles> {
        let dir = self.dir(begin.task_id);
        let files = match self.spares.take(&dir)? {
            Some(files) => files,
            None => TaskFiles::create(dir)?,
        };
        append(&files.journal, &Line::Begin(Cow::Borrowed(begin)))?;
        Ok(files)
    }

    /// The end of a task whose files are not open (any more), or that never had any.
    pub fn end(&self, ended: &Ended) -> io::Result<()> {
        let dir = self.dir(ended.task_id);
        make_private_dir(&dir)?;
        append_end(&open(&dir.join(JOURNAL))?, &dir, ended)
    }

    /// Forgets a task that is over. Its directory is kept for a later task, if it is fit for that.
    pub fn recycle(&self, task_id: i64, files: TaskFiles, nobody_inside: bool) -> io::Result<()> {
        if self.spares.keep(files, nobody_inside) {
            return Ok(());
        }
        self.remove(task_id)
    }

    /// Forgets a task with all it left, which may be much: a thread of its own deletes it.
    pub fn remove(&self, task_id: i64) -> io::Result<()> {
        match self.discard(&self.dir(task_id)) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Keeps what a task left where people can find it, out of the way of a later task of the same id.
    pub fn set_aside(&self, task_id: i64) -> io::Result<()> {
        let dir = self.dir(task_id);
        // Its time stamp is the directory's: from here the seven days count.
        File::create(dir.join("set_aside"))?;
        let target = self.unclaimed.join(task_id.to_string());
        match std::fs::rename(&dir, &target) {
            Ok(()) => Ok(()),
            Err(_) if target.exists() => {
                std::fs::rename(&dir, self.unclaimed.join(format!("{task_id}.{}", uuid::Uuid::new_v4())))
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps the fresh directory of a task that is over, in place of the oldest if there are too many. Returns where it is.
    pub fn keep_work(&self, task_id: i64) -> io::Result<PathBuf> {
        make_private_dir(&self.kept)?;
        let mut target = self.kept.join(task_id.to_string());
        if target.exists() {
            target = self.kept.join(format!("{task_id}.{}", uuid::Uuid::new_v4()));
        }
        let work = self.dir(task_id).join(WORK);
        // From here its days count, whatever the task did to it.
        File::open(&work)?.set_modified(UNIX_EPOCH + Duration::from_millis(now_ms()))?;
        std::fs::rename(&work, &target)?;
        self.clean_kept(systole_shared::clock::now_ms())?;
        Ok(target)
    }

    /// The same, told with the end.
    pub fn keep_work_of(&self, ended: &mut Ended) {
        let said = match self.keep_work(ended.task_id) {
            Ok(path) => format!("the working directory is kept for 7 days: {}", path.display()),
            Err(error) => format!("the working directory could not be kept: {error}"),
        };
        let note = &mut ended.detail.note;
        if !note.is_empty() {
            note.push_str("; ");
        }
        note.push_str(&said);
    }

    /// Deletes working directories that were kept long enough, or are too many.
    pub fn clean_kept(&self, now_ms: i64) -> io::Result<()> {
        let mut found = Vec::new();
        let entries = match std::fs::read_dir(&self.kept) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let meta = entry.metadata()?;
            let kept_at_ms = meta
                .mtime()
                .saturating_mul(1_000)
                .saturating_add(meta.mtime_nsec() / 1_000_000);
            found.push((kept_at_ms, entry.path()));
        }
        found.sort();
        let surplus = found.len().saturating_sub(WORKDIRS_MAX);
        for (index, (kept_at_ms, path)) in found.into_iter().enumerate() {
            if index < surplus || kept_at_ms < now_ms - WORKDIR_KEEP_MS {
                self.discard(&path)?;
            }
        }
        Ok(())
    }

    /// Deletes a folder of the data directory, on the thread for that.
    pub fn discard(&self, path: &Path) -> io::Result<()> {
        let aside = self.trash.place();
        std::fs::rename(path, &aside)?;
        self.trash.delete(aside);
        Ok(())
    }

    /// The same at once: its room is free when this returns. Not for a thread that others wait for.
    pub fn delete(&self, path: &Path) -> io::Result<()> {
        let aside = self.trash.place();
        std::fs::rename(path, &aside)?;
        std::fs::remove_dir_all(&aside).inspect_err(|_| self.trash.delete(aside.clone()))
    }

    /// Deletes what was set aside long ago.
    pub fn clean_unclaimed(&self, now_ms: i64) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.unclaimed)? {
            let entry = entry?;
            if entry.metadata()?.mtime().saturating_mul(1_000) < now_ms - UNCLAIMED_KEEP_MS {
                std::fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// Everything in `tasks/`, by task id.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.tasks)? {
            let entry = entry?;
            let Some(task_id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            entries.push(read(task_id, &entry.path())?);
        }
        entries.sort_by_key(|entry| entry.task_id);
        Ok(entries)
    }
}

/// For appending: whatever else opens the same file, no byte is written over another.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// A stream of a task, to be read. What the runner made is a file: a link that lies in its place leads to what the task may not read, and a
/// pipe would be waited for.
pub fn open_stream(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
}

fn append(mut file: &File, line: &Line<'_>) -> io::Result<()> {
    // A line end before it, too: half a line of an earlier process must not swallow this one.
    let mut text = vec![b'\n'];
    serde_json::to_writer(&mut text, line)?;
    text.push(b'\n');
    file.write_all(&text)
}

/// Synced only after a run of some length: a power cut then cannot take the result of long work. For a
/// short task the sync would cost more than the task, and a lost result is told as `runner_restarted`.
fn append_end(journal: &File, dir: &Path, ended: &Ended) -> io::Result<()> {
    append(journal, &Line::End(Cow::Borrowed(ended)))?;
    if ended.ran_ms() > RESULT_SYNC_AFTER_MS {
        journal.sync_all()?;
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

fn read(task_id: i64, dir: &Path) -> io::Result<Entry> {
    let mut entry = Entry {
        task_id,
        begin: None,
        process: None,
        ended: None,
    };
    let content = match std::fs::read(dir.join(JOURNAL)) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(entry),
        Err(error) => return Err(error),
    };
    for line in content.split(|&byte| byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Line::Begin(begin)) => entry.begin = Some(begin.into_owned()),
            Ok(Line::Process(process)) => entry.process = Some(process),
            Ok(Line::End(ended)) => entry.ended = Some(ended.into_owned()),
            // Empty between two lines, or cut short by a power cut.
            Err(_) => {}
        }
    }
    Ok(entry)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use systole_shared::limits::OUTPUT_MAX_BYTES_DEFAULT;
    use systole_shared::task::OutcomeKind;

    pub(crate) fn begin(task_id: i64) -> Begin {
        Begin {
            task_id,
            slot: 2,
            start_no: 3,
            cluster_id: "c".into(),
            boot_id: "b".into(),
            name: "true".into(),
            command: "/bin/true".into(),
            attempt: 1,
            begun_at_ms: 1,
            keep_workdir: false,
            output_max: OUTPUT_MAX_BYTES_DEFAULT,
        }
    }

    #[test]
    fn a_stream_that_is_a_link_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let (stream, secret) = (dir.path().join(STDOUT), dir.path().join("secret"));
        std::fs::write(&secret, "x").unwrap();
        std::fs::write(&stream, "out").unwrap();
        assert_eq!(io::read_to_string(open_stream(&stream).unwrap()).unwrap(), "out");
        std::fs::remove_file(&stream).unwrap();
        std::os::unix::fs::symlink(&secret, &stream).unwrap();
        assert_eq!(open_stream(&stream).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn what_was_written_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 2).unwrap();
        let ended = Ended::without_child(&begin(7), OutcomeKind::StartFailed, "program not found: x");
        let process = ProcessRecord { pid: 9, start_time: 11 };
        journal.begin(&begin(7)).unwrap().started(process).unwrap();
        journal.end(&ended).unwrap();
        let entry = journal.entries().unwrap().remove(0);
        assert_eq!(
            (entry.task_id, entry.begin, entry.process, entry.ended),
            (7, Some(begin(7)), Some(process), Some(ended))
        );
    }

    #[test]
    fn a_line_that_a_power_cut_left_half_counts_as_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 2).unwrap();
        journal.begin(&begin(7)).unwrap();
        journal
            .end(&Ended::without_child(&begin(7), OutcomeKind::NotStarted, "x"))
            .unwrap();
        let file = journal.dir(7).join(JOURNAL);
        let content = std::fs::read(&file).unwrap();
        std::fs::write(&file, &content[..content.len() - 3]).unwrap();
        let entry = journal.entries().unwrap().remove(0);
        assert_eq!((entry.begin, entry.ended), (Some(begin(7)), None));
        // The line after it is read all the same.
        journal
            .end(&Ended::without_child(&begin(7), OutcomeKind::RunnerRestarted, "y"))
            .unwrap();
        assert_eq!(journal.entries().unwrap().remove(0).ended.unwrap().message, "y");
    }

    #[test]
    fn whatever_a_task_left_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 2).unwrap();
        journal.begin(&begin(7)).unwrap();
        std::fs::create_dir_all(journal.dir(7).join("work/a/b")).unwrap();
        std::fs::write(journal.dir(7).join("work/a/file"), "x").unwrap();
        journal.remove(7).unwrap();
        assert!(!journal.dir(7).exists());
    }

    #[test]
    fn a_task_that_is_here_is_not_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 2).unwrap();
        journal.begin(&begin(7)).unwrap();
        assert_eq!(
            journal.begin(&begin(7)).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        journal.remove(7).unwrap();
        journal.remove(7).unwrap();
        assert!(journal.entries().unwrap().is_empty());
    }

    #[test]
    fn a_working_directory_is_kept_for_seven_days_and_never_more_than_a_hundred() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 2).unwrap();
        let keep = |task_id| {
            let work = journal.begin(&begin(task_id)).unwrap().dir.join(WORK);
            std::fs::create_dir(&work).unwrap();
            std::fs::write(work.join("file"), "x").unwrap();
            journal.keep_work(task_id).unwrap()
        };
        let first = keep(1);
        assert_eq!(first, dir.path().join("kept/1"));
        assert_eq!(std::fs::read_to_string(first.join("file")).unwrap(), "x");
        let day_ago = UNIX_EPOCH + Duration::from_millis(now_ms()) - Duration::from_secs(24 * 3_600);
        File::open(&first).unwrap().set_modified(day_ago).unwrap();
        let count = || std::fs::read_dir(dir.path().join("kept")).unwrap().count();
        for task_id in 2..=101 {
            keep(task_id);
        }
        assert_eq!((count(), first.exists()), (WORKDIRS_MAX, false));
        let now = systole_shared::clock::now_ms();
        journal.clean_kept(now + WORKDIR_KEEP_MS - 60_000).unwrap();
        assert_eq!(count(), WORKDIRS_MAX);
        journal.clean_kept(now + WORKDIR_KEEP_MS + 60_000).unwrap();
        assert_eq!(count(), 0);
    }

    #[test]
    fn what_is_set_aside_is_kept_for_seven_days_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path(), 2).unwrap();
        for _ in 0..2 {
            journal.begin(&begin(7)).unwrap();
            journal.set_aside(7).unwrap();
        }
        let count = || std::fs::read_dir(dir.path().join("unclaimed")).unwrap().count();
        let now = systole_shared::clock::now_ms();
        journal.clean_unclaimed(now + UNCLAIMED_KEEP_MS - 60_000).unwrap();
        assert_eq!(count(), 2);
        journal.clean_unclaimed(now + UNCLAIMED_KEEP_MS + 60_000).unwrap();
        assert_eq!(count(), 0);
    }
}
