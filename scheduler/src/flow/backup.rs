//! A backup: a checked copy of an SQLite database, made beside it and sent to who asked. The file is written where the command
//! was typed, by its user and with its rights; a scheduler writes nowhere that a caller names.

use super::Refusal;
use crate::auth::hex;
use crate::context::Context;
use crate::store::{StoreError, backup};
use sha2::{Digest as _, Sha256};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use systole_shared::error::Code;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

const PIECE_BYTES: usize = 256 * 1024;
/// How often the caller hears that the copy grows; also what keeps balancers from giving up.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// A reader that takes no piece for so long is gone.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// What the caller hears, in this order.
#[derive(Debug)]
pub enum Piece {
    /// The copy has so many bytes.
    Copied(u64),
    Data {
        total_bytes: u64,
        data: Vec<u8>,
    },
    End {
        total_bytes: u64,
        sha256: String,
    },
    /// The database is not a file: where it is.
    Elsewhere(String),
}

type Sender = mpsc::Sender<Result<Piece, Refusal>>;

/// The copy while it exists.
struct Copy(PathBuf);

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub async fn run(ctx: Arc<Context>, by: String, reason: String, out: Sender) {
    if let Err(refusal) = make(&ctx, by, reason, &out).await {
        let _ = out.send(Err(refusal)).await;
    }
}

async fn make(ctx: &Arc<Context>, by: String, reason: String, out: &Sender) -> Result<(), Refusal> {
    let (Some(from), Some(to)) = (ctx.db.sqlite_path(), ctx.db.copy_path()) else {
        let url = ctx.db.postgres_url().unwrap_or_default();
        let _ = out.send(Ok(Piece::Elsewhere(url))).await;
        return Ok(());
    };
    let _one_at_a_time = ctx.backup.try_lock().map_err(|_| {
        Refusal::new(
            Code::Overloaded,
            "a backup is being made already; try again when it has ended",
        )
    })?;
    ctx.db.audit_backup(by, reason).await?;
    check_room(from)?;
    let copy = begin(to).map_err(|error| cannot("the copy cannot be made", &error))?;
    let (from, to) = (from.to_owned(), copy.0.clone());
    let mut making = std::pin::pin!(backup::copy(&from, &to));
    loop {
        tokio::select! {
            made = &mut making => break made?,
            () = tokio::time::sleep(TELL_EVERY) => {
                let bytes = std::fs::metadata(&copy.0).map_or(0, |meta| meta.len());
                // Who asked may be gone. What was begun cannot be stopped; nothing is sent then.
                let _ = out.try_send(Ok(Piece::Copied(bytes)));
            }
        }
    }
    send(&copy.0, out)
        .await
        .map_err(|error| cannot("the copy cannot be read", &error))
}

fn cannot(what: &str, error: &io::Error) -> Refusal {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem => {
            Code::StoreFull
        }
        _ => Code::Unexpected,
    };
    Refusal::new(code, format!("{what} beside the database: {error}"))
}

/// The copy is at most as large as the database and its log.
fn check_room(database: &Path) -> Result<(), Refusal> {
    let size = |suffix: &str| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        std::fs::metadata(name).map_or(0, |meta| meta.len())
    };
    let needed = size("") + size("-wal");
    // Where it cannot be told, the copy finds it out.
    let Some((folder, free)) = free_bytes(database) else {
        return Ok(());
    };
    if free < needed {
        return Err(StoreError::Full(format!(
            "a backup is made beside it first and needs {} MiB in {}, where {} MiB are free",
            needed.div_ceil(1 << 20),
            folder.display(),
            free >> 20
        ))
        .into());
    }
    Ok(())
}

/// The folder of a file, and what this user may still write there.
pub fn free_bytes(file: &Path) -> Option<(&Path, u64)> {
    let folder = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let stat = nix::sys::statvfs::statvfs(folder).ok()?;
    Some((folder, stat.blocks_available().saturating_mul(stat.fragment_size())))
}

/// An empty file that its owner alone can read.
fn begin(path: PathBuf) -> io::Result<Copy> {
    // Whose it was is gone: there is one process for a database, and one backup at a time.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    Ok(Copy(path))
}

async fn send(path: &Path, out: &Sender) -> io::Result<()> {
    let mut file = tokio::fs::File::open(path).await?;
    let total_bytes = file.metadata().await?.len();
    let mut digest = Sha256::new();
    let mut left = total_bytes;
    while left > 0 {
        let mut data = vec![0; PIECE_BYTES.min(usize::try_from(left).unwrap_or(PIECE_BYTES))];
        file.read_exact(&mut data).await?;
        left -= data.len() as u64;
        digest.update(&data);
        if out
            .send_timeout(Ok(Piece::Data { total_bytes, data }), TAKEN_WITHIN)
            .await
            .is_err()
        {
            return Ok(());
        }
    }
    let sha256 = hex(&digest.finalize());
    let _ = out
        .send_timeout(Ok(Piece::End { total_bytes, sha256 }), TAKEN_WITHIN)
        .await;
    Ok(())
}
