//! The one `systole up` of a data folder: it holds a lock for as long as it lives, and says beside it who it is. So `down` and a
//! second `up` find it, and never a process that got its number later.

use crate::failure::{Failure, io_cause};
use crate::{exit_code, paths};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// What is written down is shorter than this.
const BYTES_MAX: u64 = 64 * 1024;

/// Who runs here, as it said itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub pid: i32,
    /// How this machine reaches it; none while it is starting.
    pub url: Option<String>,
    pub version: String,
    /// Where it writes its log, if it was told a file.
    pub log: Option<PathBuf>,
    /// Started by systemd, which would start it again.
    #[serde(default)]
    pub service: bool,
}

/// Held by the process that runs here, to its end.
#[derive(Debug)]
pub struct Instance(Flock<File>);

fn file(data_dir: &Path) -> PathBuf {
    data_dir.join("up.json")
}

fn open(data_dir: &Path) -> Result<File, Failure> {
    let path = file(data_dir);
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|error| {
            Failure::new(
                exit_code::NO,
                format!("--data-dir: {} cannot be opened: {}", path.display(), io_cause(&error)),
            )
        })
}

fn read(mut file: &File) -> Option<Facts> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

impl Instance {
    /// Takes the folder. The inner error is who has it, if that one has said so yet.
    pub fn take(data_dir: &Path) -> Result<Result<Self, Option<Facts>>, Failure> {
        match Flock::lock(open(data_dir)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                // What the last one said is not true any more.
                let _ = lock.set_len(0);
                Ok(Ok(Self(lock)))
            }
            Err((file, Errno::EWOULDBLOCK)) => Ok(Err(read(&file))),
            Err((_, errno)) => Err(Failure::unexpected(format!(
                "--data-dir: {} cannot be locked: {errno}",
                file(data_dir).display()
            ))),
        }
    }

    pub fn say(&mut self, facts: &Facts) -> Result<(), Failure> {
        let text = serde_json::to_string(facts).unwrap_or_default();
        let file: &mut File = &mut self.0;
        file.rewind()
            .and_then(|()| file.set_len(0))
            .and_then(|()| writeln!(file, "{text}"))
            .map_err(|error| Failure::unexpected(format!("up.json cannot be written: {}", io_cause(&error))))
    }
}

/// Who runs here. Asking disturbs nobody: a shared lock for a moment.
pub fn running(data_dir: &Path) -> Result<Option<Option<Facts>>, Failure> {
    let file = match File::open(file(data_dir)) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Failure::refused(format!(
                "--data-dir: {} cannot be read: {}",
                file(data_dir).display(),
                io_cause(&error)
            )));
        }
    };
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(_) => Ok(None),
        Err((file, _)) => Ok(Some(read(&file))),
    }
}

/// For people: who runs here.
pub fn describe(facts: Option<&Facts>, data_dir: &Path) -> String {
    let place = paths::with_tilde(data_dir);
    match facts {
        None => format!("systole is just starting or stopping here, with the data in {place}"),
        Some(facts) => {
            let url = facts.url.as_ref().map_or_else(String::new, |url| format!(" at {url}"));
            let log = match &facts.log {
                Some(log) => format!(", log {}", paths::with_tilde(log)),
                None => String::new(),
            };
            format!(
                "systole {} is running{url}: process {}, data in {place}{log}",
                facts.version, facts.pid
            )
        }
    }
}

/// The command that ends what has its data here, as this user types it.
pub fn how_to_end(data_dir: &Path) -> String {
    let down = format!("{} down", paths::how_to_call_me());
    match paths::data_dir() {
        Ok(own) if own == data_dir => down,
        _ => format!("{down} --data-dir {}", data_dir.display()),
    }
}

/// Whether systemd started this very process. It tells its children, too, which are not meant.
pub fn is_service() -> bool {
    paths::variable("SYSTEMD_EXEC_PID").is_some_and(|pid| pid.to_string_lossy() == std::process::id().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_has_a_folder_and_says_who_it_is() {
        let dir = std::env::temp_dir().join(format!("systole-instance-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&dir).expect("made");
        assert_eq!(running(&dir).expect("looked"), None);
        let mut mine = Instance::take(&dir).expect("looked").expect("free");
        assert_eq!(running(&dir).expect("looked"), Some(None), "it has said nothing yet");
        let facts = Facts {
            pid: 7,
            url: Some("http://127.0.0.1:7410".into()),
            version: "1".into(),
            log: None,
            service: false,
        };
        mine.say(&facts).expect("said");
        assert_eq!(running(&dir).expect("looked"), Some(Some(facts.clone())));
        let other = Instance::take(&dir).expect("looked").expect_err("taken");
        assert_eq!(other, Some(facts.clone()));
        assert!(describe(other.as_ref(), &dir).contains("running at http://127.0.0.1:7410: process 7"));
        drop(mine);
        // Its words are still there, and mean nothing.
        assert_eq!(running(&dir).expect("looked"), None);
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
