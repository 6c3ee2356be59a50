//! What is asked of systemd, by its own command.

use crate::failure::{Failure, io_cause};
use std::process::{Command, Stdio};

/// The manager of the machine, or of this user.
#[derive(Clone, Copy, Debug)]
pub struct Systemd {
    pub system: bool,
}

impl Systemd {
    /// Refused where no manager answers.
    pub fn connect(system: bool) -> Result<Self, Failure> {
        let systemd = Self { system };
        match systemd.ask(&["show", "--property=Version", "--value"]) {
            Ok(version) if !version.is_empty() => Ok(systemd),
            Ok(_) => Err(systemd.missing("it does not answer")),
            Err(cause) => Err(systemd.missing(&cause)),
        }
    }

    fn missing(self, cause: &str) -> Failure {
        let whose = if self.system {
            "no systemd"
        } else {
            "no systemd for this user"
        };
        let other = if self.system {
            "have your service manager run `systole up`, `systole scheduler` or `systole runner`"
        } else {
            "log in as this user (not by su or sudo, which make no session), or use --system as root"
        };
        Failure::refused(format!(
            "{whose} answers here ({cause}). Without it: `systole up --detach`, and from cron at boot: @reboot systole up --detach. Else {other}. `--dry-run` prints the units"
        ))
    }

    fn command(self, args: &[&str]) -> Command {
        let mut command = Command::new("systemctl");
        if !self.system {
            command.arg("--user");
        }
        command
            .args(["--no-pager", "--no-ask-password"])
            .args(args)
            .stdin(Stdio::null());
        command
    }

    /// What it answers, or why not.
    pub fn ask(self, args: &[&str]) -> Result<String, String> {
        let output = self.command(args).output().map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                "there is no systemctl".to_owned()
            } else {
                format!("systemctl: {}", io_cause(&error))
            }
        })?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let said = text(&output.stderr);
        Err(said.lines().next().unwrap_or("systemctl failed").to_owned())
    }

    /// Has it do something.
    pub fn tell(self, args: &[&str]) -> Result<(), Failure> {
        self.ask(args)
            .map(drop)
            .map_err(|cause| Failure::unexpected(format!("systemctl {} failed: {cause}", args.join(" "))))
    }

    /// Properties of a unit, one word each; empty where it says nothing.
    pub fn property(self, unit: &str, name: &str) -> String {
        self.ask(&["show", "--value", &format!("--property={name}"), unit])
            .unwrap_or_default()
    }

    /// How a person calls it.
    pub fn words(self) -> &'static str {
        if self.system { "systemctl" } else { "systemctl --user" }
    }

    /// How a person reads the log.
    pub fn log_words(self) -> &'static str {
        if self.system { "journalctl" } else { "journalctl --user" }
    }
}

/// Whether units of this user run without a session. `None`: nobody says.
pub fn lingers(user: &str) -> Option<bool> {
    let output = Command::new("loginctl")
        .args(["show-user", user, "--property=Linger", "--value"])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    match String::from_utf8_lossy(&output.stdout).trim() {
        "yes" => Some(true),
        "no" => Some(false),
        // A user without any session is not known to it.
        _ => std::path::Path::new("/var/lib/systemd/linger")
            .is_dir()
            .then(|| std::path::Path::new("/var/lib/systemd/linger").join(user).exists()),
    }
}
