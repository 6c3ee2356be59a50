//! Who may call what. Tokens are 32 random bytes, stored as SHA-256 and compared in constant time.

use crate::store::setup::TokenRow;
use crate::store::{Db, StoreError};
use sha2::{Digest, Sha256};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use subtle::ConstantTimeEq as _;
use systole_shared::error::Code;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Admin,
    Runner,
}

/// Who calls.
#[derive(Clone, Debug)]
pub struct Actor {
    pub name: String,
    pub role: Role,
}

/// The tokens that are valid, as last read.
#[derive(Debug, Default)]
pub struct Tokens {
    known: RwLock<Vec<(String, Actor)>>,
}

impl Tokens {
    pub fn set(&self, rows: Vec<TokenRow>) {
        let known = rows
            .into_iter()
            .filter_map(|row| {
                let role = match row.role.as_str() {
                    "admin" => Role::Admin,
                    "runner" => Role::Runner,
                    _ => return None, // A role of a later version: nobody here knows what it may do.
                };
                Some((row.hash, Actor { name: row.name, role }))
            })
            .collect();
        match self.known.write() {
            Ok(mut guard) => *guard = known,
            Err(poisoned) => *poisoned.into_inner() = known,
        }
    }

    /// Who this `authorization` header belongs to.
    pub fn authenticate(&self, header: Option<&str>) -> Result<Actor, Code> {
        let token = header
            .and_then(|h| h.strip_prefix("Bearer "))
            .ok_or(Code::TokenMissing)?;
        let hash = hash(token);
        let known = match self.known.read() {
            Ok(known) => known,
            Err(poisoned) => poisoned.into_inner(),
        };
        // All are compared, so that the time does not tell which one nearly matched.
        let mut found = None;
        for (candidate, actor) in known.iter() {
            if bool::from(candidate.as_bytes().ct_eq(hash.as_bytes())) {
                found = Some(actor.clone());
            }
        }
        found.ok_or(Code::TokenMissing)
    }
}

/// SHA-256 of a token, hex.
pub fn hash(token: &str) -> String {
    hex(&Sha256::digest(token.as_bytes()))
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|nibble| char::from(DIGITS[usize::from(nibble)]))
        .collect()
}

/// A new secret: a prefix that people recognise, and 32 random bytes.
pub fn new_secret(prefix: &str) -> String {
    format!("{prefix}_{}", hex(&rand::random::<[u8; 32]>()))
}

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
        if let (Some(row), false) = (stored, renew)
            && on_disk.as_deref().map(hash).as_deref() != Some(row.hash.as_str())
            && let Some(token) = neighbour(folder, path, &row.hash)
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

/// The token with this hash under another address of the same user: the same database on another port.
fn neighbour(folder: &Path, path: &Path, wanted: &str) -> Option<String> {
    let name = path.file_name()?;
    let entries = std::fs::read_dir(folder.parent()?).ok()?;
    entries
        .flatten()
        .take(NEIGHBOURS_MAX)
        .filter_map(|entry| std::fs::read_to_string(entry.path().join(name)).ok())
        .map(|text| text.trim().to_owned())
        .find(|token| hash(token) == wanted)
}

/// Leaves the secret that signs callbacks where the tokens are, for those who verify deliveries.
pub fn leave_callback_secret(folder: &Path, secret: &str) -> Result<(), StoreError> {
    let path = folder.join("callback.secret");
    if std::fs::read_to_string(&path).is_ok_and(|text| text.trim() == secret) {
        return Ok(());
    }
    let temporary = write_private(folder, &path, secret)?;
    std::fs::rename(&temporary, &path).map_err(|error| cannot(&path, &error))
}

fn write_private(folder: &Path, path: &Path, token: &str) -> Result<PathBuf, StoreError> {
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

fn cannot(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Schema(format!(
        "cannot write {}: {error}. Choose another folder with --token-dir, or make it writable",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_known_token_is_accepted() {
        let tokens = Tokens::default();
        let token = new_secret("systole_admin");
        tokens.set(vec![TokenRow {
            name: "admin".into(),
            role: "admin".into(),
            hash: hash(&token),
            created_by: "test".into(),
        }]);
        let header = format!("Bearer {token}");
        assert_eq!(
            tokens.authenticate(Some(&header)).map(|actor| actor.role),
            Ok(Role::Admin)
        );
        let cut = &header[..header.len() - 1];
        for wrong in [None, Some(""), Some("Bearer "), Some(token.as_str()), Some(cut)] {
            assert!(tokens.authenticate(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_role_of_a_later_version_may_do_nothing() {
        let tokens = Tokens::default();
        tokens.set(vec![TokenRow {
            name: "x".into(),
            role: "superuser".into(),
            hash: hash("x"),
            created_by: "test".into(),
        }]);
        assert!(tokens.authenticate(Some("Bearer x")).is_err());
    }
}
