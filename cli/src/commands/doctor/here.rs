//! What is wrong with this machine, as far as this user sees it.

use crate::args::{DoctorArgs, Global};
use crate::commands::up::data_dir;
use crate::paths::{self, Role};
use crate::{client, instance};
use nix::sys::resource::{Resource, getrlimit};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use systole_runner::credential::Credential;
use systole_scheduler::flow::backup::free_bytes;
use systole_shared::policy::doctor::{self, Finding};

const HERE: &str = "this machine";
/// Open files that a runner with many slots wants.
const FILES_ENOUGH: u64 = 1_024;
/// A task is several processes.
const PIDS_ENOUGH: u64 = 1_024;

pub fn look(global: &Global, args: &DoctorArgs) -> Vec<Finding> {
    let mut findings = vec![token(global)];
    match data_dir(args.data_dir.as_deref()) {
        Ok(dir) if dir.is_dir() => findings.extend(folder(&dir)),
        Ok(dir) => findings.push(Finding::ok(
            "data",
            HERE,
            format!("no scheduler and no runner has data in {}", dir.display()),
        )),
        Err(failure) => findings.push(Finding::note(
            "data",
            HERE,
            failure.message,
            "set HOME, or give --data-dir",
        )),
    }
    findings.extend(files());
    findings.extend(processes());
    findings.push(policy());
    findings
}

/// The token of the commands of this user.
fn token(global: &Global) -> Finding {
    let found = client::named_token(global).and_then(|named| {
        let urls = client::urls(global)?;
        let place = match &named {
            Some(path) => path.display().to_string(),
            None => "the folder of this scheduler's tokens".to_owned(),
        };
        paths::find_token(named.as_deref(), &urls, Role::Admin).map(|token| (token, place))
    });
    match found {
        Ok((Ok(_), place)) => Finding::ok("token", HERE, format!("a token is in {place}, readable by you alone")),
        Ok((Err(missing), _)) => Finding::problem(
            "token",
            HERE,
            missing.message,
            "get a token of your own: `systole token create NAME` by somebody who has an admin token",
        ),
        Err(failure) => Finding::problem("token", HERE, failure.message, "then try again"),
    }
}

fn folder(dir: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    let shown = dir.display().to_string();
    match std::fs::metadata(dir) {
        Ok(meta) if meta.mode() & 0o077 != 0 && meta.uid() == nix::unistd::geteuid().as_raw() => {
            findings.push(Finding::problem(
                "data",
                HERE,
                format!(
                    "{shown} is open to other users (mode {:03o}): outputs and results of tasks are in it",
                    meta.mode() & 0o777
                ),
                format!("chmod 700 {shown}"),
            ));
        }
        Ok(_) => {}
        Err(error) => findings.push(Finding::note(
            "data",
            HERE,
            format!("{shown}: {error}"),
            "run it as the user whose data they are",
        )),
    }
    if let Some((_, free)) = free_bytes(&dir.join("x")) {
        findings.push(doctor::disk(HERE, &shown, free, 0));
    }
    match instance::running(dir) {
        Ok(Some(facts)) => findings.push(Finding::ok("up", HERE, instance::describe(facts.as_ref(), dir))),
        Ok(None) => {}
        Err(failure) => findings.push(Finding::note(
            "up",
            HERE,
            failure.message,
            "run it as the user whose data they are",
        )),
    }
    for data in [dir.to_owned(), dir.join("runner")] {
        match Credential::load(&data) {
            Ok(None) => {}
            Ok(Some(credential)) => findings.push(Finding::ok(
                "joined",
                HERE,
                format!("this host joined {} as {}", credential.urls.join(", "), credential.name),
            )),
            Err(error) => findings.push(Finding::problem(
                "joined",
                HERE,
                error.to_string(),
                "chmod 600 it, or join anew with what `systole join-command` prints",
            )),
        }
    }
    findings
}

fn files() -> Option<Finding> {
    // A scheduler and a warden raise theirs as far as this one.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    Some(doctor::descriptors(
        HERE,
        u64::try_from(open).unwrap_or(0),
        hard,
        FILES_ENOUGH,
        "`ulimit -n 65536` before a scheduler or runner is started here; in a unit LimitNOFILE=65536",
    ))
}

/// Processes that this user may have, by the user's limit and by the control group.
fn processes() -> Option<Finding> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NPROC).ok()?;
    let group = group_pids_max().unwrap_or(u64::MAX);
    let limit = soft.min(group);
    Some(if limit >= PIDS_ENOUGH {
        let words = if limit == u64::MAX {
            "no limit on the number of processes".to_owned()
        } else {
            format!("at most {limit} processes, those of all tasks together")
        };
        Finding::ok("processes", HERE, words)
    } else {
        Finding::note(
            "processes",
            HERE,
            format!("at most {limit} processes, those of all tasks together"),
            if group < soft {
                "TasksMax=infinity in the unit of the runner, or a larger pids limit of the container"
            } else {
                "`ulimit -u` of the runner's user, in /etc/security/limits.conf"
            },
        )
    })
}

/// Of control groups of version 2.
fn group_pids_max() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let file = format!("/sys/fs/cgroup{}/pids.max", path.trim_end_matches('/'));
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn policy() -> Finding {
    match systole_runner::policy::load::load(None) {
        Ok(None) => Finding::ok(
            "policy",
            HERE,
            "this host has no policy: a runner takes whatever its scheduler sends",
        ),
        Ok(Some(_)) => Finding::ok("policy", HERE, "this host's policy can be read"),
        Err(why) => Finding::problem(
            "policy",
            HERE,
            why,
            "put it right: a runner does not start with a policy that it cannot read",
        ),
    }
}
