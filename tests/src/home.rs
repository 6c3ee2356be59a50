//! A user of this machine with an empty home: what they type, with what is in front of them, and nothing running at the end.

use crate::postgres::free_port;
use crate::system::{Said, alive, binary};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub struct Home {
    pub dir: TempDir,
    pub port: u16,
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Home {
    pub fn new() -> Self {
        Self {
            dir: TempDir::new().expect("temporary folder"),
            port: free_port(),
        }
    }

    fn dress(&self, command: &mut Command) {
        command
            .env("HOME", self.dir.path())
            .env("SYSTOLE_URL", format!("http://127.0.0.1:{}", self.port))
            .env("USER", "tester")
            .env("SYSTOLE_LOCALE", "en")
            // Times are shown by the zone of whoever looks.
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .current_dir(self.dir.path());
        for name in [
            "XDG_CONFIG_HOME",
            "XDG_DATA_HOME",
            "SYSTOLE_TOKEN_FILE",
            "SYSTOLE_DATABASE",
            "SYSTOLE_LOG",
        ] {
            command.env_remove(name);
        }
    }

    /// The program, not started yet.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args);
        self.dress(&mut command);
        command
    }

    /// Types it and waits for its end.
    pub fn say(&self, args: &[&str]) -> Said {
        self.command(args).output().expect("systole starts").into()
    }

    /// A program of the machine with `systole` in its PATH, not started yet.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        self.dress(&mut command);
        let folder = binary().parent().expect("a folder").to_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", folder.display()));
        command
    }

    /// A line for the shell, with `systole` in its PATH.
    pub fn shell(&self, line: &str) -> Said {
        let mut command = self.program("sh");
        command.args(["-c", line]);
        command.output().expect("sh starts").into()
    }

    /// The same in a terminal of so many columns, of `script`; what is written there. `typed` is what the user types, as soon as
    /// the words were seen.
    pub fn terminal(&self, columns: u16, line: &str, typed: Option<(&str, &str)>) -> Said {
        let mut command = Command::new("script");
        // Without a shell in between, which the keys would end, too.
        let line = format!("stty cols {columns} rows 24; exec {line}");
        command.args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"]);
        self.dress(&mut command);
        let folder = binary().parent().expect("a folder").to_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut child = command
            .env("PATH", format!("{}:{path}", folder.display()))
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("script starts; it is in the package bsdutils");
        let mut keyboard = child.stdin.take().expect("piped");
        let mut screen = child.stdout.take().expect("piped");
        let mut seen = Vec::new();
        let mut typed = typed;
        let mut piece = [0; 4096];
        while let Ok(count) = std::io::Read::read(&mut screen, &mut piece) {
            if count == 0 {
                break;
            }
            seen.extend_from_slice(&piece[..count]);
            if let Some((words, keys)) = typed
                && String::from_utf8_lossy(&seen).contains(words)
            {
                keyboard.write_all(keys.as_bytes()).expect("typed");
                typed = None;
            }
        }
        let status = child.wait().expect("ended");
        Said {
            code: status.code(),
            stdout: String::from_utf8_lossy(&seen).replace("\r\n", "\n"),
            stderr: String::new(),
        }
    }

    pub fn listen(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `up --detach` with two slots.
    pub fn detach(&self) -> Said {
        self.say(&[
            "-o",
            "json",
            "up",
            "--detach",
            "--listen",
            &self.listen(),
            "--slots",
            "2",
        ])
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    /// Living processes of this user: with this home, or in a folder below it.
    pub fn processes(&self) -> Vec<String> {
        let home = format!("HOME={}", self.dir.path().display());
        let is_ours = |pid: &String| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let folder = std::fs::read_link(format!("/proc/{pid}/cwd"));
            let below = folder.is_ok_and(|folder| folder.starts_with(self.dir.path()));
            below || environ.split(|&b| b == 0).any(|var| var == home.as_bytes())
        };
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        all.filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
            .filter(|pid| is_ours(pid) && alive(pid))
            .collect()
    }

    /// Ends what a test that failed half-way has left, wardens and their tasks included.
    fn sweep(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let left = self.processes();
            if left.is_empty() || Instant::now() >= end {
                return;
            }
            for pid in left.iter().filter_map(|pid| pid.parse().ok()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = self.command(&["-q", "down"]).status();
        self.sweep();
    }
}

/// The document of a command that went well.
pub fn json(said: &Said) -> serde_json::Value {
    assert_eq!(said.code, Some(0), "{said:?}");
    serde_json::from_str(&said.stdout).expect("JSON")
}
