//! The file of an SQLite database, before a driver opens it: on a local disk, one process's alone, and readable by nobody but
//! its owner.

use super::error::StoreError;
use std::path::{Path, PathBuf};

/// Held for as long as the database is open.
pub(super) type Lock = nix::fcntl::Flock<std::fs::File>;

/// That of `sqlite:PATH`.
pub fn of(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:")?;
    Some(PathBuf::from(path.strip_prefix("//").unwrap_or(path)))
}

/// Takes the file for this process. Made when there is none.
pub(super) fn claim(path: &Path) -> Result<Lock, StoreError> {
    if path.as_os_str().is_empty() {
        return Err(StoreError::Schema(
            "the SQLite URL names no file; write sqlite:/path/to/systole.db".into(),
        ));
    }
    let lock = lock(path)?;
    keep_private(path)?;
    Ok(lock)
}

/// Commands, environments and outputs of all users are in it: it is its owner's alone, whatever the umask. SQLite gives the files
/// beside it the same mode, where they are not left of an earlier start.
fn keep_private(path: &Path) -> Result<(), StoreError> {
    make_private(path, true)?;
    for suffix in ["-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        make_private(Path::new(&name), false)?;
    }
    Ok(())
}

fn make_private(path: &Path, create: bool) -> Result<(), StoreError> {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .open(path);
    let Ok(file) = file else {
        return Ok(()); // The open that follows says what is wrong, where it is.
    };
    let cannot = |error: std::io::Error| StoreError::Unreachable(format!("{}: {error}", path.display()));
    let metadata = file.metadata().map_err(cannot)?;
    let mode = metadata.mode() & 0o777;
    if !metadata.is_file() || metadata.uid() != nix::unistd::geteuid().as_raw() || mode & 0o077 == 0 {
        return Ok(());
    }
    tracing::warn!(
        file = %path.display(),
        "other users of this machine could read the database (mode {mode:03o}); it is readable by its owner alone now"
    );
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
        .map_err(cannot)
}

/// What a failed open means for the person who named the file.
pub(super) fn describe(path: &Path, error: StoreError) -> StoreError {
    match error {
        StoreError::Full(text) => StoreError::Full(format!(
            "{}: {text}. Make room, or make the file writable",
            path.display()
        )),
        StoreError::Unreachable(text) => StoreError::Unreachable(format!(
            "{}: {text}. Check that the folder exists and is writable",
            path.display()
        )),
        StoreError::Other(text) => StoreError::Schema(format!(
            "{} cannot be used as a database: {text}. Name another file",
            path.display()
        )),
        other => other,
    }
}

/// Two processes on one file would not see each other's notifications and leases, and on a network
/// file system locks do not hold: one process per file, on a local disk.
fn lock(path: &Path) -> Result<Lock, StoreError> {
    use std::os::unix::fs::OpenOptionsExt;
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        refuse_network_file_system(parent)?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&name)
        .map_err(|error| {
            StoreError::Unreachable(format!(
                "cannot open {}: {error}. Check that the folder exists and is writable",
                name.display()
            ))
        })?;
    // The standard library opens with O_CLOEXEC, so no child inherits the lock.
    nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        StoreError::Schema(match errno {
            nix::errno::Errno::EWOULDBLOCK => format!(
                "{} is in use by another systole. Stop it, or choose another --data-dir; several replicas need PostgreSQL",
                path.display()
            ),
            errno => format!("cannot lock {}: {errno}", name.display()),
        })
    })
}

fn refuse_network_file_system(folder: &Path) -> Result<(), StoreError> {
    const NETWORK: [(i128, &str); 4] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
    ];
    let Ok(stat) = nix::sys::statfs::statfs(folder) else {
        return Ok(()); // The open that follows says what is wrong.
    };
    // Its type is not the same in every C library.
    let kind = i128::from(stat.filesystem_type().0) & 0xffff_ffff;
    match NETWORK.iter().find(|(magic, _)| *magic == kind) {
        Some((_, name)) => Err(StoreError::Schema(format!(
            "{} is on a network file system ({name}), where SQLite's locks do not hold. Use a local disk, or PostgreSQL",
            folder.display()
        ))),
        None => Ok(()),
    }
}
