//! The start of a child, in one go on a thread of the warden that never ends: journal, files, fork. Blocking. Decides
//! nothing about the task's end; it says what it met.

use super::fork::{Birthplace, Files, Image};
use super::refusal::Refusal;
use super::run_as::{self, RunAs};
use super::terminal::{Pump, Terminal};
use super::{bounded, confine, env_file, prepare};
use crate::boottime;
use crate::host::Account;
use crate::journal::{Journal, ProcessRecord, TaskFiles, WORK};
use crate::policy::current::Current;
use crate::policy::{Policy, gate};
use crate::procfs;
use crate::state_dir::WardenDir;
use crate::sweep;
use crate::warden::cgroup::Group;
use crate::warden::health::{fault_of, fault_of_fork};
use crate::warden::limiter::{self, Limiter};
use crate::warden::protocol::Start;
use crate::warden::tree::Tree;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, fchown, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use systole_shared::heartbeat::react::still_valid;
use systole_shared::policy::host_fault::HostFault;
use systole_shared::task::Limits;

/// Of programs that need no bounded look.
const LOCAL_PLACES: [&str; 4] = ["/usr/", "/bin", "/sbin", "/lib"];

/// What every start on this host needs.
pub struct Place {
    pub home: WardenDir,
    pub journal: Journal,
    pub account: Account,
    pub policy: Current,
    pub limiter: Limiter,
    /// `/dev/null`, the standard input of every child.
    pub null: File,
}

/// A child that runs.
#[derive(Debug)]
pub struct Started {
    pub pid: i32,
    pub handle: Option<OwnedFd>,
    pub at: Instant,
    pub at_ms: u64,
    pub tree: Tree,
    /// Brings the output of its terminal to its file.
    pub pump: Option<Pump>,
}

#[derive(Debug)]
pub enum Launched {
    Started(Started, TaskFiles),
    /// The RUN_NEW had lain too long: the cluster may have given the task up. Nothing is left of it here.
    TooLate,
    /// This host has the task already.
    Held,
    /// The command cannot or must not be started here; why.
    Refused(Refusal, TaskFiles),
    /// This host can start nothing now, e.g. for want of disk space: the task is for another one.
    NotStarted(HostFault, Option<TaskFiles>),
}

/// `group`: where the child is to be born, if there are such groups here.
pub fn launch(place: &Place, start: &Start, group: Option<Group>) -> Launched {
    let begin = &start.begin;
    let opened = place
        .home
        .raise_max_task_id(begin.task_id)
        .and_then(|()| place.journal.begin(begin));
    let files = match opened {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Launched::Held,
        Err(error) => return no_room(place, &error, None),
    };
    let work = match work(&files, start.spec.dir.as_deref()) {
        Ok(work) => work,
        Err(error) => return no_room(place, &error, Some(files)),
    };
    let held = place.policy.get();
    let policy = held.as_deref();
    let run_as = match run_as(place, start, policy) {
        Ok(run_as) => run_as,
        Err(refusal) => return Launched::Refused(refusal, files),
    };
    let limits = match policy.map(|policy| policy.limits(&start.spec.limits)).transpose() {
        Ok(None) => Cow::Borrowed(&start.spec.limits),
        Ok(Some(limits)) => Cow::Owned(limits),
        Err(message) => return Launched::Refused(Refusal::Rejected(message), files),
    };
    let (image, program) = match image(place, start, (&files, &work), &limits, run_as.as_ref(), held.as_ref()) {
        Ok(image) => image,
        Err(refusal) => return Launched::Refused(refusal, files),
    };
    let mut enclosure = match place.limiter.enclose(&limits, &start.host) {
        Ok(enclosure) => enclosure,
        Err(message) => return Launched::Refused(Refusal::Failed(message), files),
    };
    let group = enclosure
        .as_mut()
        .and_then(|enclosure| enclosure.group.take())
        .or(group);
    if let Some(run_as) = &run_as
        && let Err(error) = hand_over(&files, start.spec.dir.is_none().then_some(&work), run_as)
    {
        return no_room(place, &error, Some(files));
    }
    // The last moment: from here on the task runs.
    if !still_valid(boottime::now_ms().saturating_sub(start.beat_sent_ms), start.park_ms) {
        if let Err(error) = place.journal.remove(begin.task_id) {
            tracing::warn!(task_id = begin.task_id, %error, "the journal of a task that was not begun could not be removed");
        }
        return Launched::TooLate;
    }
    let terminal = match terminal(start, run_as.as_ref()) {
        Ok(terminal) => terminal,
        Err(error) => return Launched::NotStarted(fault_of(&error, "no terminal can be opened"), Some(files)),
    };
    let streams = match &terminal {
        Some(terminal) => Files {
            stdin: terminal.child.as_fd(),
            stdout: terminal.child.as_fd(),
            stderr: terminal.child.as_fd(),
        },
        None => Files {
            stdin: place.null.as_fd(),
            stdout: files.stdout.as_fd(),
            stderr: files.stderr.as_fd(),
        },
    };
    let others: Vec<_> = enclosure
        .iter()
        .flat_map(|enclosure| &enclosure.v1)
        .map(|group| group.procs.as_fd())
        .collect();
    let mut birthplace = group.as_ref().map(Group::birthplace);
    if !others.is_empty() {
        birthplace = Some(Birthplace {
            others: &others,
            ..birthplace.unwrap_or(Birthplace {
                dir: None,
                procs: None,
                others: &[],
            })
        });
    }
    match image.fork(streams, birthplace) {
        Ok(forked) => {
            let (at, at_ms) = (Instant::now(), crate::journal::now_ms());
            // A group is found again without it.
            if group.is_none() {
                record(begin.task_id, &files, forked.pid);
            }
            let markers = sweep::markers(begin.task_id, &place.home.instance_id);
            let started = Started {
                pid: forked.pid,
                handle: forked.handle,
                at,
                at_ms,
                tree: Tree::new(forked.pid, group, enclosure, markers),
                pump: terminal.and_then(|terminal| start_pump(begin.task_id, terminal, &files)),
            };
            Launched::Started(started, files)
        }
        Err(refused) => {
            if let Some(fault) = fault_of_fork(&refused) {
                return Launched::NotStarted(fault, Some(files));
            }
            let user = start.spec.user.as_deref();
            let message = prepare::explain(&refused, &program, &work, &start.host, user);
            Launched::Refused(Refusal::Failed(message), files)
        }
    }
}

fn terminal(start: &Start, run_as: Option<&RunAs>) -> io::Result<Option<Terminal>> {
    let Some(size) = &start.spec.tty else { return Ok(None) };
    let terminal = Terminal::open(size)?;
    if let Some(run_as) = run_as {
        // Programs open it anew, by its name.
        fchown(&terminal.child, Some(run_as.identity.uid), None)?;
    }
    Ok(Some(terminal))
}

/// Without one the child would wait for its terminal for ever: then it gets no terminal any more, which ends most programs.
fn start_pump(task_id: i64, terminal: Terminal, files: &TaskFiles) -> Option<Pump> {
    let started = files.stdout.try_clone().and_then(|to| Pump::start(terminal, to));
    match started {
        Ok(pump) => Some(pump),
        Err(error) => {
            tracing::error!(task_id, %error, "the terminal of a task cannot be read; it is hung up");
            None
        }
    }
}

fn record(task_id: i64, files: &TaskFiles, pid: i32) {
    // Nobody waits for the child before this thread goes on, so the pid is still its own.
    let recorded = procfs::process(pid).map(|process| {
        let start_time = process.start_time;
        files.started(ProcessRecord { pid, start_time })
    });
    if let Some(Err(error)) = recorded {
        tracing::warn!(task_id, %error, "the process of a task could not be recorded");
    }
}

/// A full or broken disk is the host's fault, not the command's: the task is for another runner.
fn no_room(place: &Place, error: &io::Error, files: Option<TaskFiles>) -> Launched {
    let doing = format!("the data directory {} cannot be written", place.home.root.display());
    Launched::NotStarted(fault_of(error, &doing), files)
}

/// The directory to start in. The fresh one is there in any case, for temporary files.
fn work(files: &TaskFiles, given: Option<&str>) -> io::Result<PathBuf> {
    let work = files.dir.join(WORK);
    if !files.has_work {
        DirBuilder::new().mode(0o700).create(&work)?;
    }
    if let Some(given) = given {
        return Ok(given.into());
    }
    Ok(work)
}

fn run_as(place: &Place, start: &Start, policy: Option<&Policy>) -> Result<Option<RunAs>, Refusal> {
    let spec = &start.spec;
    let resolved = spec
        .user
        .as_deref()
        .map(|user| run_as::resolve(user, spec.group.as_deref(), &start.host));
    let resolved = resolved.transpose()?;
    match (policy, &resolved) {
        (Some(policy), _) => gate::check_who(policy, spec, resolved.as_ref(), &place.account)?,
        (None, Some(run_as)) => run_as.is_not_root(&start.host).map_err(Refusal::Rejected)?,
        (None, None) => {}
    }
    Ok(resolved)
}

/// The fresh directory is the user's, and so are the two files: a shell that writes to `/dev/stderr` opens it anew. What
/// belongs to another user is never used again for a later task (see [`crate::spare`]).
fn hand_over(files: &TaskFiles, fresh: Option<&PathBuf>, run_as: &RunAs) -> io::Result<()> {
    let (uid, gid) = (Some(run_as.identity.uid), Some(run_as.identity.gid));
    for file in [&files.stdout, &files.stderr] {
        fchown(file, uid, gid)?;
    }
    match fresh {
        Some(work) => lchown(work, uid, gid),
        None => Ok(()),
    }
}

fn image(
    place: &Place,
    start: &Start,
    (files, work): (&TaskFiles, &Path),
    limits: &Limits,
    run_as: Option<&RunAs>,
    policy: Option<&Arc<Policy>>,
) -> Result<(Image, PathBuf), Refusal> {
    let (spec, host) = (&start.spec, start.host.as_str());
    let mut bounds = confine::bounds(limits, spec.umask, host)?;
    bounds.terminal = spec.tty.is_some();
    bounds.identity = run_as.map(|run_as| run_as.identity.clone());
    if run_as.is_some() && limits.pids.is_none() && place.limiter.pids_by_default().is_none() {
        bounds.processes = Some(confine::processes(limiter::default_pids()));
    }
    // The fresh one lies below directories that only this process may walk.
    bounds.enters_first = spec.dir.is_none();
    let account = run_as.map_or(&place.account, |run_as| &run_as.account);
    // Another user cannot come there by its path, which leads through the folder of the runner.
    let fresh = files.dir.join(WORK);
    let temporary = run_as.is_none().then_some(fresh.as_path());
    let names = (host, place.home.instance_id.as_str());
    let mut environment = prepare::environment(spec, &start.begin, names, account, temporary);
    if let Some(file) = &spec.env_file {
        let file = Path::new(file);
        let opened = env_file::open(file, run_as.map(|run_as| &run_as.identity), host)?;
        if let Some(policy) = policy {
            gate::env_file(policy, file, &opened.real)?;
        }
        env_file::add(&mut environment, opened.read(file, host)?, &spec.env);
    }
    let Some(name) = spec.command.first() else {
        return Err(Refusal::Failed("program not found: the command is empty".into()));
    };
    let path = environment
        .get(OsStr::new("PATH"))
        .and_then(|path| path.to_str())
        .unwrap_or_default();
    let wanted = Wanted {
        dir: work.to_owned(),
        // One that was made just now needs no look.
        is_fresh: spec.dir.is_none(),
        name: name.clone(),
        path: path.to_owned(),
        host: host.to_owned(),
        policy: policy.cloned(),
    };
    let (work, program) = if wanted.is_local() {
        wanted.look()?
    } else {
        bounded::within(move || wanted.look()).map_err(|error| {
            let dir = work.display();
            Refusal::Failed(format!(
                "program {name} was not started: {dir}, or the place of the program, does not answer on {host} ({error}); look at its file servers"
            ))
        })??
    };
    let arguments = spec.command.iter().map(String::as_str);
    let variables = environment
        .iter()
        .map(|(name, value)| (name.as_os_str(), value.as_os_str()));
    match Image::new(program.as_os_str(), arguments, variables, work.as_os_str()) {
        Ok(image) => Ok((image.bounded(bounds), program)),
        Err(error) => Err(Refusal::Failed(format!(
            "program {name} cannot be started: an argument or variable is not usable: {error}"
        ))),
    }
}

/// Where a task wants to start, and what.
struct Wanted {
    dir: PathBuf,
    is_fresh: bool,
    name: String,
    path: String,
    host: String,
    policy: Option<Arc<Policy>>,
}

impl Wanted {
    /// Only places that this host cannot work without: nobody waits for a file server there.
    fn is_local(&self) -> bool {
        let local = |text: &str| LOCAL_PLACES.iter().any(|place| text.starts_with(place));
        let program = if self.name.contains('/') {
            &self.name
        } else {
            &self.path
        };
        self.is_fresh && program.split(':').all(local)
    }

    /// The folder and the file, with all links followed where the policy says so. May never come back.
    fn look(self) -> Result<(PathBuf, PathBuf), Refusal> {
        let mut dir = self.dir;
        let policy = self.policy.as_deref();
        if !self.is_fresh {
            prepare::check_dir(&dir, &self.host)?;
            if let Some(policy) = policy {
                dir = gate::dir(policy, &dir)?;
            }
        }
        let mut program = prepare::find_program(&self.name, &dir, &self.path, &self.host)?;
        if let Some(policy) = policy {
            program = gate::program(policy, &program, &dir)?;
        }
        Ok((dir, program))
    }
}
