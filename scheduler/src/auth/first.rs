//! The tokens of the first start, and the files that they are in.

use super::{hash, new_secret};
use crate::store::{Db, StoreError};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The files of the first start.
#[derive(Clone, Debug)]
pub struct TokenFiles {
    pub admin: PathBuf,
    pub runner: PathBuf,
    /// What a person should know, e.g. that another replica made the tokens.
    pub note: Option<String>,
}

/// Makes the admin and the runner token if the cluster has none. Replicas that start together agree
/// through the unique row: the token of the first one counts, and only its file stays.
pub async fn first_tokens(db: &Db, folder: &Path, replica: &str, renew: bool) -> Result<TokenFiles, StoreError> {
    let files = TokenFiles {
        admin: folder.join("admin.token"),
        runner: folder.join("runner.token"),
        note: None,
    };
    let known = db.tokens().await?;
    let mut notes = Vec::new();
    for (name, path) in [("admin", &files.admin), ("runner", &files.runner)] {
        let stored = known.iter().find(|row| row.name == name);
        let mut on_disk = std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        // Somebody took it away: it is not made again by a restart.
        if stored.is_some_and(|row| row.revoked_at_ms.is_some()) && !renew {
            notes.push(format!(
                "the {name} token was revoked; use a token of your own, or start once with --renew-tokens"
            ));
            continue;
        }
        if let (Some(row), false) = (stored, renew)
            && on_disk.as_deref().map(hash).as_deref() != Some(row.hash.as_str())
            && let Some(token) = neighbour(folder, path, |token| hash(token) == row.hash)
        {
            let temporary = write_private(folder, path, &token)?;
            std::fs::rename(&temporary, path).map_err(|error| cannot(path, &error))?;
            on_disk = Some(token);
        }
        if let (Some(row), false) = (stored, renew) {
            if on_disk.as_deref().map(hash).as_deref() != Some(row.hash.as_str()) {
                notes.push(format!(
                    "{} does not hold the {name} token of this database (made by {}); copy it from there, or start once with --renew-tokens",
                    path.display(),
                    row.created_by
                ));
            }
            continue;
        }
        // A token that is there already (another data folder behind the same address) stays valid.
        let token = match on_disk {
            Some(token) if !renew && token.len() >= 64 => token,
            _ => new_secret(&format!("systole_{name}")),
        };
        // The file first: a token that only the database knows would be lost.
        let temporary = write_private(folder, path, &token)?;
        if db.put_token(name, hash(&token), replica.to_owned(), renew).await? {
            std::fs::rename(&temporary, path).map_err(|error| cannot(path, &error))?;
        } else {
            drop(std::fs::remove_file(&temporary));
            notes.push(format!(
                "the {name} token was made by another replica; copy its file to {}",
                path.display()
            ));
        }
    }
    Ok(TokenFiles {
        note: (!notes.is_empty()).then(|| notes.join(". ")),
        ..files
    })
}

/// Folders beside this one that are searched for a token.
const NEIGHBOURS_MAX: usize = 200;

/// The secret that is wanted under another address of the same user: the same database on another port.
pub(crate) fn neighbour(folder: &Path, path: &Path, wanted: impl Fn(&str) -> bool) -> Option<String> {
    let name = path.file_name()?;
    let entries = std::fs::read_dir(folder.parent()?).ok()?;
    entries
        .flatten()
        .take(NEIGHBOURS_MAX)
        .filter_map(|entry| std::fs::read_to_string(entry.path().join(name)).ok())
        .map(|text| text.trim().to_owned())
        .find(|secret| wanted(secret))
}

/// Leaves the secret that signs callbacks where the tokens are, for those who verify deliveries.
pub fn leave_callback_secret(folder: &Path, secret: &str) -> Result<(), StoreError> {
    leave_file(folder, &folder.join("callback.secret"), secret)
}

/// Writes a file for this user alone, whole or not at all; one that is as it should be is left alone.
pub(crate) fn leave_file(folder: &Path, path: &Path, text: &str) -> Result<(), StoreError> {
    if std::fs::read_to_string(path).is_ok_and(|known| known.trim() == text.trim()) {
        return Ok(());
    }
    let temporary = write_private(folder, path, text.trim_end())?;
    std::fs::rename(&temporary, path).map_err(|error| cannot(path, &error))
}

pub(crate) fn write_private(folder: &Path, path: &Path, token: &str) -> Result<PathBuf, StoreError> {
    let made = !folder.exists();
    std::fs::create_dir_all(folder).map_err(|error| cannot(folder, &error))?;
    if made {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))
            .map_err(|error| cannot(folder, &error))?;
    }
    let temporary = path.with_extension(format!("{}.tmp", uuid::Uuid::new_v4().simple()));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        // A name nobody else can have made, so that nothing is followed and nobody's file is overwritten.
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(|error| cannot(&temporary, &error))?;
    writeln!(file, "{token}")
        .and_then(|()| file.sync_all())
        .map_err(|error| cannot(&temporary, &error))?;
    Ok(temporary)
}

pub(crate) fn cannot(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Schema(format!(
        "cannot write {}: {error}. Choose another folder with --token-dir, or make it writable",
        path.display()
    ))
}
