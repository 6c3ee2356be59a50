//! The log of a service that nobody looks at: a file of bounded size, and the one before it.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A log that is longer becomes the former one.
pub const BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Takes stderr along, where the words of a panic go.
pub struct LogFile {
    path: PathBuf,
    max: u64,
    state: Mutex<(File, u64)>,
    takes_stderr: bool,
}

/// Appends to the file, which its owner alone can read; a long one is put aside first.
pub fn open(path: &Path) -> io::Result<File> {
    open_bounded(path, BYTES_MAX)
}

fn open_bounded(path: &Path, max: u64) -> io::Result<File> {
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() >= max) {
        let mut former = path.as_os_str().to_owned();
        former.push(".1");
        std::fs::rename(path, former)?;
    }
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

impl LogFile {
    /// From here on stderr is this file, too.
    pub fn new(path: &Path) -> io::Result<Self> {
        let log = Self::bounded(path, BYTES_MAX, true)?;
        {
            let state = log.state.lock().unwrap_or_else(PoisonError::into_inner);
            nix::unistd::dup2_stderr(&state.0)?;
        }
        Ok(log)
    }

    fn bounded(path: &Path, max: u64, takes_stderr: bool) -> io::Result<Self> {
        let file = open_bounded(path, max)?;
        let length = file.metadata()?.len();
        Ok(Self {
            path: path.to_owned(),
            max,
            state: Mutex::new((file, length)),
            takes_stderr,
        })
    }
}

impl Write for &LogFile {
    /// One call is one line of the log, which stays whole.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.1 >= self.max {
            // Where there is no room for another file, this one goes on.
            if let Ok(file) = open_bounded(&self.path, self.max) {
                if self.takes_stderr {
                    let _ = nix::unistd::dup2_stderr(&file);
                }
                *state = (file, 0);
            }
        }
        state.0.write_all(bytes)?;
        state.1 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_log_has_a_bound_and_keeps_the_newest_lines() {
        let dir = std::env::temp_dir().join(format!("systole-log-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&dir).expect("made");
        let path = dir.join("up.log");
        for start in 0..2 {
            let log = LogFile::bounded(&path, 1_000, false).expect("opened");
            for line in 0..200 {
                (&log)
                    .write_all(format!("start {start} line {line:03}\n").as_bytes())
                    .expect("written");
            }
        }
        let read = |path: &Path| std::fs::read_to_string(path).expect("read");
        let former = dir.join("up.log.1");
        let both = read(&former) + &read(&path);
        assert!(both.len() < 2_100, "{}", both.len());
        assert!(both.ends_with("start 1 line 199\n"), "{both}");
        let lines: Vec<&str> = both.lines().collect();
        assert!(
            lines.iter().all(|line| line.len() == "start 1 line 199".len()),
            "whole lines"
        );
        assert_eq!(
            std::fs::metadata(&path).expect("there").permissions().mode() & 0o777,
            0o600
        );
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
