//! The channels of this scheduler, from its file; and secrets, each from a file of its own.

use super::Failure;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use systole_shared::alarm::channel::{self, Channel, Value};
use systole_shared::limits::{CHANNEL_SECRET_BYTES_MAX, CHANNELS_FILE_BYTES_MAX};

#[derive(Debug, Default)]
pub struct Channels {
    by_name: BTreeMap<String, Channel>,
    /// What relative paths of the file are relative to.
    folder: PathBuf,
}

impl Channels {
    /// Reads the file, and looks whether the secrets that it names can be read. Without a file there are no channels.
    pub fn load(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let wrong = |what: &dyn std::fmt::Display| format!("--alarms {}: {what}", path.display());
        let text = read(path, CHANNELS_FILE_BYTES_MAX).map_err(|error| wrong(&error))?;
        let found = channel::read(&text).map_err(|fault| wrong(&fault))?;
        let channels = Self {
            by_name: found
                .into_iter()
                .map(|channel| (channel.name.clone(), channel))
                .collect(),
            folder: path.parent().map(Path::to_owned).unwrap_or_default(),
        };
        for channel in channels.by_name.values() {
            for file in channel.target.files() {
                let file = channels.path(file);
                read(&file, CHANNEL_SECRET_BYTES_MAX)
                    .map_err(|error| wrong(&format!("channel {}: {}: {error}", channel.name, file.display())))?;
                let open = std::fs::metadata(&file).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0);
                if open {
                    tracing::warn!(
                        channel = channel.name,
                        "{} can be read by others than its owner: chmod 600",
                        file.display()
                    );
                }
            }
        }
        Ok(channels)
    }

    pub fn get(&self, name: &str) -> Option<&Channel> {
        self.by_name.get(name)
    }

    pub fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.by_name.values()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    fn path(&self, file: &Path) -> PathBuf {
        self.folder.join(file)
    }

    /// What a file holds, without white space around it. Read anew each time: a secret that is changed counts at once.
    pub async fn secret(&self, file: &Path) -> Result<String, Failure> {
        let path = self.path(file);
        let shown = path.display().to_string();
        let read = tokio::task::spawn_blocking(move || read(&path, CHANNEL_SECRET_BYTES_MAX)).await;
        match read {
            Ok(Ok(text)) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
            Ok(Ok(_)) => Err(Failure::Again(format!("{shown} is empty"))),
            Ok(Err(error)) => Err(Failure::Again(format!("{shown}: {error}"))),
            Err(error) => Err(Failure::Again(format!("{shown}: {error}"))),
        }
    }

    pub async fn value(&self, value: &Value) -> Result<String, Failure> {
        match value {
            Value::Here(text) => Ok(text.clone()),
            Value::File(file) => self.secret(file).await,
        }
    }
}

/// A text file of a bounded size.
fn read(path: &Path, bytes_max: u64) -> Result<String, String> {
    use std::io::Read as _;
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    file.take(bytes_max + 1)
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    if text.len() as u64 > bytes_max {
        return Err(format!("has more than {bytes_max} bytes"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_with_the_secrets_beside_it() {
        let folder = std::env::temp_dir().join(format!("systole-channels-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).expect("folder");
        let file = folder.join("alarms.toml");
        std::fs::write(
            &file,
            "[[channel]]\nname = \"a\"\nkind = \"slack\"\nurl_file = \"a.url\"\n",
        )
        .expect("file");
        let missing = Channels::load(Some(&file)).expect_err("no secret");
        assert!(missing.contains("channel a") && missing.contains("a.url"), "{missing}");
        std::fs::write(folder.join("a.url"), "https://hooks.example.org/x\n").expect("secret");
        let channels = Channels::load(Some(&file)).expect("channels");
        assert_eq!(channels.names(), ["a"]);
        std::fs::write(&file, "[[channel]]\nname = 1\n").expect("file");
        assert!(Channels::load(Some(&file)).expect_err("wrong").contains("line 2"));
        assert!(Channels::load(Some(&folder.join("none"))).is_err());
        assert!(Channels::load(None).expect("none").is_empty());
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
