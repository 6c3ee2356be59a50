//! The start of a child, in one go on a spawn thread: journal, files, fork. Blocking. Decides nothing
//! about the task's end; it says what it met.

use super::fork::{Files, Forked, Image};
use super::prepare;
use crate::boottime;
use crate::host::Account;
use crate::journal::{Begin, Journal, ProcessRecord, STDERR, STDOUT, TaskJournal, WORK};
use crate::procfs;
use crate::state_dir::StateDir;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;
use systole_shared::heartbeat::react::still_valid;
use systole_shared::task::TaskSpec;

/// What every start on this host needs.
pub struct Place {
    pub state: StateDir,
    pub journal: Journal,
    pub host: String,
    pub account: Account,
    /// `/dev/null`, the standard input of every child.
    pub null: File,
}

/// One task to start.
pub struct Launch {
    pub begin: Begin,
    pub spec: TaskSpec,
    /// When the beat was sent that brought the task, by [`boottime`].
    pub beat_sent_ms: u64,
    pub park_ms: u64,
}

/// A child that runs.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    pub pid: i32,
    pub at: Instant,
    pub at_ms: u64,
}

#[derive(Debug)]
pub enum Launched {
    Started(Started, Forked),
    /// The RUN_NEW had lain too long: the cluster may have given the task up. Nothing is left of it here.
    TooLate,
    /// This host has the task already.
    Held,
    /// The command cannot be started here; why, for a person.
    Failed(String),
    /// The runner itself cannot start anything now, e.g. for want of disk space.
    NotStarted(String),
}

pub fn launch(place: &Place, launch: &Launch) -> Launched {
    let begin = &launch.begin;
    let opened = place
        .state
        .raise_max_task_id(begin.task_id)
        .and_then(|()| place.journal.begin(begin));
    let journal = match opened {
        Ok(journal) => journal,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Launched::Held,
        Err(error) => return no_room(place, &error),
    };
    let dir = place.journal.dir(begin.task_id);
    let (stdout, stderr, work) = match files(&dir, launch.spec.dir.as_deref()) {
        Ok(files) => files,
        Err(error) => return no_room(place, &error),
    };
    let (image, program) = match image(place, launch, &work) {
        Ok(image) => image,
        Err(message) => return Launched::Failed(message),
    };
    // The last moment: from here on the task runs.
    if !still_valid(boottime::now_ms().saturating_sub(launch.beat_sent_ms), launch.park_ms) {
        if let Err(error) = place.journal.remove(begin.task_id) {
            tracing::warn!(task_id = begin.task_id, %error, "the journal of a task that was not begun could not be removed");
        }
        return Launched::TooLate;
    }
    let files = Files {
        stdin: place.null.as_fd(),
        stdout: stdout.as_fd(),
        stderr: stderr.as_fd(),
    };
    match image.fork(files) {
        Ok(forked) => started(begin.task_id, journal, forked),
        Err(error) => Launched::Failed(prepare::explain(&error, &program, &work, &place.host)),
    }
}

fn started(task_id: i64, journal: TaskJournal, forked: Forked) -> Launched {
    let (pid, at, at_ms) = (forked.pid, Instant::now(), crate::journal::now_ms());
    // Nobody waits for the child before this thread hands it over, so the pid is still its own.
    let recorded = procfs::process(pid).map(|process| {
        let start_time = process.start_time;
        journal.started(ProcessRecord { pid, start_time })
    });
    if let Some(Err(error)) = recorded {
        tracing::warn!(task_id, %error, "the process of a task could not be recorded");
    }
    Launched::Started(Started { pid, at, at_ms }, forked)
}

/// A full or broken disk is the host's fault, not the command's: the task is for another runner.
fn no_room(place: &Place, error: &io::Error) -> Launched {
    let root = place.state.root.display();
    Launched::NotStarted(format!(
        "the runner on {} cannot write to its data directory {root}: {error}",
        place.host
    ))
}

/// The files of both streams, and the directory to start in.
fn files(dir: &Path, given: Option<&str>) -> io::Result<(File, File, PathBuf)> {
    // Append: whatever else opens the same file, no byte is written over another.
    let open = |name| {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(dir.join(name))
    };
    let work = match given {
        Some(given) => given.into(),
        None => {
            let work = dir.join(WORK);
            DirBuilder::new().mode(0o700).create(&work)?;
            work
        }
    };
    Ok((open(STDOUT)?, open(STDERR)?, work))
}

fn image(place: &Place, launch: &Launch, work: &Path) -> Result<(Image, PathBuf), String> {
    let host = place.host.as_str();
    let instance_id = &place.state.identity.instance_id;
    let environment = prepare::environment(&launch.spec, &launch.begin, host, instance_id, &place.account);
    // One that was made just now needs no look.
    if launch.spec.dir.is_some() {
        prepare::check_dir(work, host)?;
    }
    let Some(name) = launch.spec.command.first() else {
        return Err("program not found: the command is empty".into());
    };
    let path = environment
        .get(OsStr::new("PATH"))
        .and_then(|path| path.to_str())
        .unwrap_or_default();
    let program = prepare::find_program(name, work, path, host)?;
    let arguments = launch.spec.command.iter().map(String::as_str);
    let variables = environment
        .iter()
        .map(|(name, value)| (name.as_os_str(), value.as_os_str()));
    match Image::new(program.as_os_str(), arguments, variables, work.as_os_str()) {
        Ok(image) => Ok((image, program)),
        Err(error) => Err(format!(
            "program {name} cannot be started: an argument or variable is not usable: {error}"
        )),
    }
}
