//! What a host has of the cluster that it joined: where it is, whom to trust, and a secret of its own. One file in the
//! data directory, readable by its owner alone, written whole or not at all.

use crate::RunnerError;
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const FILE: &str = "credential.json";

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    pub urls: Vec<String>,
    /// Of its token: the actor of what this host does, and what is revoked.
    pub name: String,
    /// As which it joined: its token speaks for no other host. `None`: it joined with an earlier version.
    #[serde(default)]
    pub host: Option<String>,
    /// The authority that signs the schedulers' certificates; `None`: those that this host trusts anyway.
    pub ca_pem: Option<String>,
    pub secret: String,
    /// The secret that follows. It is here before a scheduler hears of it, so that none is ever lost.
    #[serde(default)]
    pub next_secret: Option<String>,
    /// Since when the secret is the present one, by this host's clock.
    pub since_ms: i64,
}

/// Without the secrets.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential")
            .field("urls", &self.urls)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Credential {
    /// `None` where this host has not joined.
    pub fn load(data_dir: &Path) -> Result<Option<Self>, RunnerError> {
        let path = data_dir.join(FILE);
        let bad = |reason: String| RunnerError::Credential(path.clone(), reason);
        let mode = match std::fs::metadata(&path) {
            Ok(metadata) => metadata.mode() & 0o777,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(bad(error.to_string())),
        };
        if mode & 0o077 != 0 {
            return Err(bad(format!(
                "it is open to other users (mode {mode:03o}); chmod 600 it, and rather join anew"
            )));
        }
        let text = std::fs::read_to_string(&path).map_err(|error| bad(error.to_string()))?;
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| bad(format!("{error}; join anew with what `systole join-command` prints")))
    }

    pub fn save(&self, data_dir: &Path) -> Result<(), RunnerError> {
        let path = data_dir.join(FILE);
        self.write(&path)
            .map_err(|error| RunnerError::Credential(path, error.to_string()))
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let temporary: PathBuf = path.with_extension(format!("{}.tmp", uuid::Uuid::new_v4().simple()));
        let text = serde_json::to_string_pretty(self)?;
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| {
                writeln!(file, "{text}")?;
                file.sync_all()
            })
            .and_then(|()| std::fs::rename(&temporary, path));
        if written.is_err() {
            drop(std::fs::remove_file(&temporary));
            return written;
        }
        // The name must survive a power cut, too: the former secret may be worth nothing by then.
        match path.parent() {
            Some(folder) => std::fs::File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_credential_is_private_and_whole_or_refused() {
        let folder = tempfile::TempDir::new().unwrap();
        assert!(matches!(Credential::load(folder.path()), Ok(None)));
        let credential = Credential {
            urls: vec!["https://h:1".into()],
            name: "runner@h".into(),
            host: Some("h".into()),
            ca_pem: None,
            secret: "s3cret".into(),
            next_secret: None,
            since_ms: 5,
        };
        credential.save(folder.path()).unwrap();
        let path = folder.path().join(FILE);
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        let next = Credential {
            next_secret: Some("n".into()),
            ..credential.clone()
        };
        next.save(folder.path()).unwrap();
        assert_eq!(mode(), 0o600);
        assert!(matches!(Credential::load(folder.path()), Ok(Some(found)) if found == next));
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
        assert!(!format!("{credential:?}").contains("s3cret"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(
            Credential::load(folder.path())
                .unwrap_err()
                .to_string()
                .contains("chmod 600")
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "{").unwrap();
        assert!(
            Credential::load(folder.path())
                .unwrap_err()
                .to_string()
                .contains("join anew")
        );
    }
}
