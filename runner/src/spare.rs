//! Folders of former tasks, kept for later ones. Knows files, not tasks.
//!
//! A short task would make five inodes and delete them again, and ext4 does not hand out an inode that was
//! deleted a moment ago: it searches past all of them, which takes a third of a busy runner's time. Here
//! a folder of a former task becomes that of the next one, with its journal and its two output files, emptied
//! and still open.
//!
//! A process that a task left behind may still hold its output open, and would write into that of the
//! next task. So the folder is kept only if nobody else has either file open, and otherwise deleted as ever. Its
//! working directory is kept only if it is empty and every process of the task was seen gone: whether somebody
//! else is *in* a directory cannot be found out.
//!
//! A directory that has the times it had when it was looked through is as it was then, and is not read again: two directories for each
//! task were a twentieth of the warden's time.

use crate::journal::{JOURNAL, STDERR, STDOUT, TaskFiles, WORK};
use crate::state_dir::make_private_dir;
use nix::errno::Errno;
use nix::unistd::geteuid;
use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use systole_shared::clock;

/// Larger files are deleted: to truncate them is no cheaper.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Two changes of a directory within so short a time may have the same time stamp: the kernel's clock for it has ticks of up to 10 ms.
const STAMP_SECONDS: i64 = if cfg!(test) { 0 } else { 2 };
/// `libc` has no name for it.
const F_SETSIG: libc::c_int = 10;

#[derive(Debug)]
pub struct Spares {
    dir: PathBuf,
    max: usize,
    user: u32,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    /// The last one is taken first: it is the likeliest to be in every cache.
    free: Vec<TaskFiles>,
    /// Places promised to folders that are being emptied.
    promised: usize,
    next: u64,
}

/// When the directories of a kept folder were last changed, as they were looked through. Of the working directory it is the time of
/// its inode, which nobody can set. That of the folder itself changes with each new name, so of it it is the time of its content; a task
/// that sets it back could as well end the runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    folder: Stamp,
    work: Stamp,
}

/// Seconds and nanoseconds.
type Stamp = (i64, i64);

impl Stamps {
    /// `None`: one of them was changed so lately that a later change could have the same time.
    fn of(folder: &Metadata, work: &Metadata) -> Option<Self> {
        let stamps = Self {
            folder: (folder.mtime(), folder.mtime_nsec()),
            work: (work.ctime(), work.ctime_nsec()),
        };
        let now = clock::now_ms() / 1_000;
        let is_old = |stamp: Stamp| now.saturating_sub(stamp.0) >= STAMP_SECONDS;
        (is_old(stamps.folder) && is_old(stamps.work)).then_some(stamps)
    }
}

impl Spares {
    /// Begins with none: what an earlier process kept is deleted.
    pub fn open(dir: PathBuf, max: usize) -> Self {
        let emptied = match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => make_private_dir(&dir),
        };
        if let Err(error) = &emptied {
            tracing::warn!(dir = %dir.display(), %error, "no folders can be kept for later tasks; the runner does without");
        }
        Self {
            dir,
            max: if emptied.is_ok() { max } else { 0 },
            user: geteuid().as_raw(),
            pool: Mutex::default(),
        }
    }

    /// Makes a kept folder the one at `target`. `None`: there is none, and `target` is to be created.
    pub fn take(&self, target: &Path) -> io::Result<Option<TaskFiles>> {
        let Some(mut files) = self.pool().free.pop() else {
            return Ok(None);
        };
        // Even an empty directory there is somebody's; a plain rename would replace it.
        match rename_to_new(&files.dir, target) {
            Ok(()) => {
                target.clone_into(&mut files.dir);
                Ok(Some(files))
            }
            Err(Errno::EEXIST) => {
                self.pool().free.push(files);
                Err(io::ErrorKind::AlreadyExists.into())
            }
            // Gone, or a file system without this call.
            Err(_) => {
                let _ = std::fs::remove_dir_all(&files.dir);
                Ok(None)
            }
        }
    }

    /// Takes the folder of a task that is over, if it is fit for another. False: it is to be deleted.
    /// Either way the task is forgotten: without its journal it was never begun.
    pub fn keep(&self, mut files: TaskFiles, nobody_inside: bool) -> bool {
        let Some(name) = self.promise() else {
            return false;
        };
        let path = self.path(name);
        let kept = self
            .empty(&mut files, nobody_inside)
            .and_then(|()| std::fs::rename(&files.dir, &path))
            .is_ok();
        let mut pool = self.pool();
        pool.promised -= 1;
        if kept {
            files.dir = path;
            pool.free.push(files);
        }
        kept
    }

    fn promise(&self) -> Option<u64> {
        let mut pool = self.pool();
        if pool.free.len() + pool.promised >= self.max {
            return None;
        }
        pool.promised += 1;
        pool.next += 1;
        Some(pool.next)
    }

    /// An error: the folder is not as a new one would be, and cannot be made so.
    fn empty(&self, files: &mut TaskFiles, nobody_inside: bool) -> io::Result<()> {
        let folder = self.check_dir(&files.dir)?;
        // First: from here on the task was never begun, wherever this process stops.
        self.check_file(&files.journal)?;
        files.journal.set_len(0)?;
        let work = files.dir.join(WORK);
        let stamps = self.check_dir(&work).ok().and_then(|work| Stamps::of(&folder, &work));
        if !nobody_inside || stamps.is_none() || stamps != files.stamps {
            files.has_work = self.look_through(files, nobody_inside)?;
        }
        files.stamps = stamps.filter(|_| files.has_work);
        for file in [&mut files.stdout, &mut files.stderr] {
            let length = self.check_file(file)?;
            // What the task inherited is the same opening of the file as this one, and would be taken for this one.
            *file = open_anew(file)?;
            if !is_open_nowhere_else(file) {
                return Err(unfit());
            }
            if length > 0 {
                file.set_len(0)?;
            }
        }
        Ok(())
    }

    /// Nothing but what was made here may be in it. Returns whether there is a working directory as a new one would be.
    fn look_through(&self, files: &TaskFiles, nobody_inside: bool) -> io::Result<bool> {
        let ours = [
            (JOURNAL, &files.journal),
            (STDOUT, &files.stdout),
            (STDERR, &files.stderr),
        ];
        let (mut found, mut has_work) = (0, false);
        for entry in std::fs::read_dir(&files.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == WORK {
                has_work = self.empty_work(&files.dir.join(WORK), nobody_inside)?;
                continue;
            }
            let (_, file) = ours.iter().find(|(ours, _)| name == *ours).ok_or_else(unfit)?;
            // The open file may have been moved away, and another put in its place.
            if file.metadata()?.ino() != entry.ino() {
                return Err(unfit());
            }
            found += 1;
        }
        if found == ours.len() {
            Ok(has_work)
        } else {
            Err(unfit())
        }
    }

    /// Whether there is a working directory as a new one would be.
    fn empty_work(&self, work: &Path, nobody_inside: bool) -> io::Result<bool> {
        let as_new = nobody_inside && self.check_dir(work).is_ok() && std::fs::read_dir(work)?.next().is_none();
        if !as_new {
            std::fs::remove_dir(work).or_else(|_| std::fs::remove_dir_all(work))?;
        }
        Ok(as_new)
    }

    fn check_dir(&self, dir: &Path) -> io::Result<Metadata> {
        let meta = std::fs::symlink_metadata(dir)?;
        let fit = meta.is_dir() && meta.mode() & 0o7777 == 0o700 && meta.uid() == self.user;
        if fit { Ok(meta) } else { Err(unfit()) }
    }

    /// A file that is as this runner made it: a task may do anything to it, and a backup may share its inode. Returns its length.
    fn check_file(&self, file: &File) -> io::Result<u64> {
        let meta = file.metadata()?;
        let fit = meta.is_file()
            && meta.mode() & 0o7777 == 0o600
            && meta.uid() == self.user
            && meta.nlink() == 1
            && meta.len() <= FILE_BYTES_MAX;
        if fit { Ok(meta.len()) } else { Err(unfit()) }
    }

    fn path(&self, name: u64) -> PathBuf {
        self.dir.join(name.to_string())
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unfit() -> io::Error {
    io::ErrorKind::Other.into()
}

/// The very file, whatever its name is by now.
fn open_anew(file: &File) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Whether the file was opened once, in all processes; a descriptor that was inherited or copied is the same opening. The kernel knows: it
/// grants a write lease on no other terms. Also false where a file system knows no leases.
fn is_open_nowhere_else(file: &File) -> bool {
    // Given back here and not by the close: a child that is being forked has the same descriptor until its exec.
    lease(file, libc::F_WRLCK) && lease(file, libc::F_UNLCK)
}

/// Renames, but never over something that is there.
#[expect(unsafe_code, reason = "nix has this call where the C library is glibc alone")]
fn rename_to_new(from: &Path, to: &Path) -> nix::Result<()> {
    let name = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL);
    let (from, to) = (name(from)?, name(to)?);
    // SAFETY: two texts that end with 0 and outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    Errno::result(result).map(drop)
}

#[expect(unsafe_code, reason = "nix has no call for leases")]
fn lease(file: &File, kind: libc::c_int) -> bool {
    let fd = file.as_raw_fd();
    // SAFETY: system calls on a descriptor that is open as long as `file` is, and on numbers.
    unsafe {
        // Whoever opens the file while the lease is held waits, and the kernel sends us a signal. By itself that
        // is SIGIO, which would end the runner; SIGURG is ignored by default.
        (kind == libc::F_UNLCK || libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0)
            && libc::fcntl(fd, libc::F_SETLEASE, kind) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{DirBuilder, Permissions};
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};

    struct Place {
        root: tempfile::TempDir,
        spares: Spares,
    }

    impl Place {
        fn new(max: usize) -> Self {
            let root = tempfile::tempdir().unwrap();
            let spares = Spares::open(root.path().join("spare"), max);
            Self { root, spares }
        }

        /// A folder as a task leaves it.
        fn folder(&self, name: &str) -> PathBuf {
            let folder = self.root.path().join(name);
            for dir in [folder.clone(), folder.join(WORK)] {
                DirBuilder::new().mode(0o700).create(dir).unwrap();
            }
            for name in [JOURNAL, STDOUT, STDERR] {
                write(&folder.join(name), name.as_bytes());
            }
            folder
        }
    }

    fn write(path: &Path, content: &[u8]) {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).mode(0o600).open(path).unwrap();
        io::Write::write_all(&mut file, content).unwrap();
    }

    /// What the task that left the folder had open.
    fn files(folder: &Path) -> TaskFiles {
        let open = |name| {
            let mut options = OpenOptions::new();
            let file = options.append(true).create(true).mode(0o600).open(folder.join(name));
            file.unwrap()
        };
        TaskFiles {
            journal: open(JOURNAL),
            stdout: open(STDOUT),
            stderr: open(STDERR),
            has_work: true,
            stamps: None,
            dir: folder.to_owned(),
        }
    }

    /// Children that other tests fork meanwhile hold every file of this process until their exec.
    fn kept(spares: &Spares, folder: &Path) -> bool {
        kept_with(spares, folder, false)
    }

    fn kept_with(spares: &Spares, folder: &Path, nobody_inside: bool) -> bool {
        (0..2_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            spares.keep(files(folder), nobody_inside)
        })
    }

    fn taken(spares: &Spares, target: &Path) -> bool {
        spares.take(target).unwrap().is_some()
    }

    /// As in [`kept`].
    fn emptied(spares: &Spares, files: &mut TaskFiles) -> bool {
        // What follows is not at the same tick of the kernel's clock.
        std::thread::sleep(std::time::Duration::from_millis(20));
        (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            spares.empty(files, true).is_ok()
        })
    }

    #[test]
    fn a_folder_is_read_again_when_it_was_changed_since() {
        let place = Place::new(1);
        let folder = place.folder("a");
        let mut files = files(&folder);
        assert!(emptied(&place.spares, &mut files));
        let stamps = files.stamps;
        assert!(stamps.is_some());
        assert!(emptied(&place.spares, &mut files));
        assert_eq!(files.stamps, stamps, "nothing was changed");

        // Whatever the task does to the times that it can set.
        let work = folder.join(WORK);
        let then = std::fs::metadata(&work).unwrap().modified().unwrap();
        write(&work.join("x"), b"");
        File::open(&work).unwrap().set_modified(then).unwrap();
        assert!(emptied(&place.spares, &mut files));
        assert_eq!((files.has_work, files.stamps), (false, None));

        DirBuilder::new().mode(0o700).create(&work).unwrap();
        assert!(emptied(&place.spares, &mut files));
        assert!(files.has_work && files.stamps.is_some());
        write(&folder.join("stranger"), b"");
        assert!(!emptied(&place.spares, &mut files));
    }

    /// A daemon that nobody knows of goes on writing to what it inherited, or was passed.
    #[test]
    fn a_file_that_somebody_has_inherited_is_not_kept() {
        let place = Place::new(1);
        let folder = place.folder("a");
        for stream in [STDOUT, STDERR] {
            let mut files = files(&folder);
            let file = if stream == STDOUT { &files.stdout } else { &files.stderr };
            let inherited = file.try_clone().unwrap();
            assert!(!emptied(&place.spares, &mut files), "{stream}");
            drop(inherited);
            assert!(emptied(&place.spares, &mut files), "{stream}");
        }
    }

    #[test]
    fn a_kept_folder_is_as_new() {
        let place = Place::new(2);
        let folder = place.folder("a");
        std::fs::create_dir_all(folder.join("work/deep")).unwrap();
        std::fs::write(folder.join("work/deep/file"), "x").unwrap();
        let inodes =
            |folder: &Path| [JOURNAL, STDOUT, STDERR].map(|name| std::fs::metadata(folder.join(name)).unwrap().ino());
        let before = inodes(&folder);
        assert!(kept(&place.spares, &folder));
        assert!(!folder.exists());

        let next = place.root.path().join("b");
        assert!(taken(&place.spares, &next));
        assert_eq!(inodes(&next), before);
        assert!(!next.join(WORK).exists());
        assert_eq!(std::fs::metadata(&next).unwrap().mode() & 0o777, 0o700);
        for name in [JOURNAL, STDOUT, STDERR] {
            let meta = std::fs::metadata(next.join(name)).unwrap();
            assert_eq!((meta.len(), meta.mode() & 0o777), (0, 0o600), "{name}");
        }
        assert!(!taken(&place.spares, &place.root.path().join("c")));
    }

    #[test]
    fn a_working_directory_is_kept_only_empty_and_only_when_nobody_can_be_in_it() {
        let place = Place::new(9);
        let keep = |name: &str, nobody_inside: bool, change: &dyn Fn(&Path)| {
            let folder = place.folder(name);
            change(&folder.join(WORK));
            assert!(kept_with(&place.spares, &folder, nobody_inside), "{name}");
            let next = place.root.path().join(format!("{name}-next"));
            let files = place.spares.take(&next).unwrap().unwrap();
            assert_eq!(files.has_work, next.join(WORK).exists(), "{name}");
            files.has_work
        };
        assert!(keep("empty", true, &|_| {}));
        assert!(!keep("somebody may be inside", false, &|_| {}));
        assert!(!keep("full", true, &|work| write(&work.join("x"), b"")));
        assert!(!keep("open to others", true, &|work| {
            std::fs::set_permissions(work, Permissions::from_mode(0o777)).unwrap();
        }));
    }

    #[test]
    fn a_folder_that_is_not_as_the_runner_made_it_is_not_kept() {
        type Change = fn(&Path);
        let changes: [(&str, Change); 9] = [
            ("large", |f| write(&f.join(STDOUT), &vec![0; 64 * 1024 + 1])),
            ("missing", |f| std::fs::remove_file(f.join(STDERR)).unwrap()),
            ("without a journal", |f| std::fs::remove_file(f.join(JOURNAL)).unwrap()),
            ("more", |f| write(&f.join("more"), b"")),
            ("linked", |f| {
                std::fs::hard_link(f.join(STDOUT), f.with_extension("link")).unwrap();
            }),
            ("elsewhere", |f| {
                std::fs::rename(f.join(STDOUT), f.with_extension("moved")).unwrap();
                std::os::unix::fs::symlink(f.with_extension("moved"), f.join(STDOUT)).unwrap();
            }),
            ("file", |f| {
                std::fs::set_permissions(f.join(STDERR), Permissions::from_mode(0o644)).unwrap();
            }),
            ("folder", |f| {
                std::fs::set_permissions(f, Permissions::from_mode(0o755)).unwrap();
            }),
            ("work is a link", |f| {
                std::fs::remove_dir(f.join(WORK)).unwrap();
                std::os::unix::fs::symlink("/", f.join(WORK)).unwrap();
                write(&f.join("more"), b"");
            }),
        ];
        for (what, change) in changes {
            let place = Place::new(2);
            let folder = place.folder("a");
            let files = files(&folder);
            change(&folder);
            assert!(!place.spares.keep(files, true), "{what}");
            assert!(folder.exists(), "{what}");
        }
    }

    #[test]
    fn a_file_that_is_open_elsewhere_is_not_kept() {
        let place = Place::new(9);
        for name in [STDOUT, STDERR] {
            for write in [false, true] {
                let folder = place.folder(&format!("{name}{write}"));
                let open = OpenOptions::new().read(!write).write(write).open(folder.join(name));
                assert!(!place.spares.keep(files(&folder), true), "{name} {write}");
                drop(open.unwrap());
                assert!(kept(&place.spares, &folder), "{name} {write}");
            }
        }
    }

    #[test]
    fn somebody_who_opens_a_file_at_this_moment_waits_and_does_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, b"");
        let mine = OpenOptions::new().write(true).open(&path).unwrap();
        assert!((0..2_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            lease(&mine, libc::F_WRLCK)
        }));
        let opening = std::thread::spawn(move || File::open(path).map(drop));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!opening.is_finished());
        assert!(lease(&mine, libc::F_UNLCK));
        opening.join().unwrap().unwrap();
    }

    #[test]
    fn there_are_never_more_than_the_limit() {
        let place = Place::new(1);
        let (a, b) = (place.folder("a"), place.folder("b"));
        assert!(kept(&place.spares, &a));
        assert!(!place.spares.keep(files(&b), true));
        assert!(taken(&place.spares, &place.root.path().join("c")));
        assert!(kept(&place.spares, &b));
    }

    #[test]
    fn what_is_there_is_not_replaced() {
        let place = Place::new(1);
        assert!(kept(&place.spares, &place.folder("a")));
        let empty = place.root.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        let refused = place.spares.take(&empty).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert!(taken(&place.spares, &place.root.path().join("b")));
    }

    #[test]
    fn what_an_earlier_process_kept_is_deleted() {
        let place = Place::new(1);
        assert!(kept(&place.spares, &place.folder("a")));
        let next = Spares::open(place.root.path().join("spare"), 1);
        assert_eq!(std::fs::read_dir(&next.dir).unwrap().count(), 0);
        assert!(!taken(&next, &place.root.path().join("b")));
    }
}
