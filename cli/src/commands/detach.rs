//! `up --detach`: starts the same program once more, in a session of its own, and ends when that one takes tasks.

use super::up::{data_dir, log_path};
use crate::args::{DownArgs, Format, Global, UpArgs};
use crate::failure::{Failure, io_cause};
use crate::instance::{self, Facts};
use crate::output::{self, Output, json};
use crate::{exit_code, log_file, paths};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// Longest wait for the start. A large database that is brought up to date takes its time.
const START_MAX: Duration = Duration::from_secs(300);
/// What the new process says of itself is shorter.
const READY_BYTES_MAX: u64 = 64 * 1024;
/// How much of the log is looked through for the reason of a failed start.
const LOG_TAIL_BYTES: u64 = 16 * 1024;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What `up` is told in the place of `--detach`.
const DETACHED: &str = "--detached";

/// What the new process says when it takes tasks.
#[derive(Serialize, Deserialize)]
pub struct Ready {
    pub facts: Facts,
    pub banner: String,
}

/// The new process: neither the signals of the terminal nor its end are for it.
pub fn leave_terminal() -> Result<(), Failure> {
    nix::unistd::setsid()
        .map(drop)
        .map_err(|errno| Failure::unexpected(format!("no session of its own could be made: {errno}")))
}

/// The new process tells who waits for it, and lets it go.
pub fn announce(ready: &Ready) -> Result<(), Failure> {
    // Whoever waited may be gone; that is no reason to end.
    let text = serde_json::to_string(ready).unwrap_or_default();
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    let _ = std::io::Write::flush(&mut std::io::stdout());
    nix::unistd::dup2_stdout(std::io::stderr())
        .map_err(|errno| Failure::unexpected(format!("stdout cannot be closed: {errno}")))
}

pub async fn start(global: &Global, args: &UpArgs, data_dir: &Path) -> Result<u8, Failure> {
    let output = Output::new(global);
    paths::make_data_dir(data_dir)?;
    if let Some(facts) = instance::running(data_dir)? {
        return already(&output, args, data_dir, facts);
    }
    let log = log_path(data_dir);
    let file = log_file::open(&log)
        .map_err(|error| Failure::unexpected(format!("{} cannot be written: {}", log.display(), io_cause(&error))))?;
    let begin = file.metadata().map_or(0, |meta| meta.len());
    // This very program, also when its file was replaced meanwhile.
    let mut child = Command::new("/proc/self/exe")
        .arg0(std::env::args_os().next().unwrap_or_else(|| "systole".into()))
        .args(arguments(std::env::args_os()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(file)
        .spawn()
        .map_err(|error| Failure::unexpected(format!("systole cannot be started again: {}", io_cause(&error))))?;
    let pid = child.id().unwrap_or_default();
    let Ok(ready) = tokio::time::timeout(START_MAX, said(&mut child)).await else {
        return Err(Failure::unexpected(format!(
            "not ready after {} s; process {pid} goes on, its log is {}",
            START_MAX.as_secs(),
            log.display()
        )));
    };
    let Some(ready) = ready else {
        let status = child.wait().await;
        let code = status.ok().and_then(|status| status.code()).unwrap_or(1);
        return Err(Failure::new(
            u8::try_from(code).unwrap_or(exit_code::NO).max(exit_code::NO),
            reason(&log, begin).unwrap_or_else(|| format!("it ended while it started; see {}", log.display())),
        ));
    };
    output.note(&ready.banner);
    tell(&output, &ready.facts, true);
    Ok(exit_code::OK)
}

/// The command line for the new process.
fn arguments(line: impl Iterator<Item = OsString>) -> Vec<OsString> {
    line.skip(1)
        .map(|word| match word.to_str() {
            Some("--detach" | "-d") => DETACHED.into(),
            _ => word,
        })
        .collect()
}

/// `None`: it ended before it was ready.
async fn said(child: &mut Child) -> Option<Ready> {
    let mut text = String::new();
    let stdout = child.stdout.take()?;
    stdout.take(READY_BYTES_MAX).read_to_string(&mut text).await.ok()?;
    serde_json::from_str(&text).ok()
}

/// The error with which the new process ended, from its log.
fn reason(log: &Path, begin: u64) -> Option<String> {
    let mut file = std::fs::File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    let from = begin.max(length.saturating_sub(LOG_TAIL_BYTES));
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    text.lines()
        .rev()
        .find_map(|line| line.strip_prefix("error: "))
        .map(str::to_owned)
}

/// Asked for twice, it is there once. With other options it would be another one, and nobody looked at those.
fn already(output: &Output, args: &UpArgs, data_dir: &Path, facts: Option<Facts>) -> Result<u8, Failure> {
    let text = instance::describe(facts.as_ref(), data_dir);
    let Some(facts) = facts else {
        return Err(Failure::refused(format!("{text}; try again in a moment")));
    };
    let port = args.listen.port();
    let elsewhere = facts
        .url
        .as_deref()
        .is_some_and(|url| port != 0 && !url.ends_with(&format!(":{port}")));
    if elsewhere {
        return Err(Failure::refused(format!(
            "{text}. `{}` ends it; another one needs its own --data-dir",
            instance::how_to_end(data_dir)
        )));
    }
    output.note(&format!(
        "{text}. Nothing was started; to change its options, `{}` first",
        instance::how_to_end(data_dir)
    ));
    tell(output, &facts, false);
    Ok(exit_code::OK)
}

fn tell(output: &Output, facts: &Facts, started: bool) {
    let document = json::Up {
        pid: facts.pid,
        url: facts.url.clone(),
        log: facts.log.as_ref().map(|path| path.display().to_string()),
        started,
    };
    match output.format {
        Format::Json => json::document(&document),
        Format::Jsonl => json::object(&document),
        Format::Id => output::line(&facts.pid.to_string()),
        Format::Table | Format::Wide => {}
    }
}

/// `systole down`.
pub async fn down(global: &Global, args: &DownArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let data_dir = data_dir(args.data_dir.as_deref())?;
    let by = Instant::now() + args.timeout;
    let Some(facts) = known(&data_dir, by).await? else {
        output.note(&format!(
            "nothing to stop: no `systole up` runs with the data in {}",
            paths::with_tilde(&data_dir)
        ));
        return Ok(exit_code::OK);
    };
    if facts.service {
        return Err(Failure::refused(format!(
            "process {} is a service of systemd, which would start it again: systemctl{} stop systole",
            facts.pid,
            if nix::unistd::geteuid().is_root() {
                ""
            } else {
                " --user"
            }
        )));
    }
    // It holds its lock, so this number is still its own.
    match kill(Pid::from_raw(facts.pid), Signal::SIGTERM) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
        Err(errno) => {
            return Err(Failure::refused(format!(
                "process {} cannot be told to stop: {}",
                facts.pid,
                errno.desc()
            )));
        }
    }
    output.note(&format!(
        "stopping process {}: its tasks are ended and reported first",
        facts.pid
    ));
    while instance::running(&data_dir)?.is_some() {
        if Instant::now() > by {
            return Err(Failure::unexpected(format!(
                "process {} has not ended within {}; it goes on ending{}",
                facts.pid,
                systole_shared::time::format_duration(u64::try_from(args.timeout.as_millis()).unwrap_or(u64::MAX)),
                facts
                    .log
                    .as_ref()
                    .map_or_else(String::new, |log| format!(", see {}", log.display()))
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    output.note("stopped");
    Ok(exit_code::OK)
}

/// Who runs there; one that is just starting says it in a moment.
async fn known(data_dir: &Path, by: Instant) -> Result<Option<Facts>, Failure> {
    loop {
        match instance::running(data_dir)? {
            None => return Ok(None),
            Some(Some(facts)) => return Ok(Some(facts)),
            Some(None) if Instant::now() > by => {
                return Err(Failure::refused(format!(
                    "{}; try again",
                    instance::describe(None, data_dir)
                )));
            }
            Some(None) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_process_is_told_the_same_but_not_to_detach_again() {
        let line = ["systole", "-q", "up", "--detach", "--slots", "2"].map(OsString::from);
        assert_eq!(arguments(line.into_iter()), ["-q", "up", "--detached", "--slots", "2"]);
    }
}
