//! Limits of all processes of a task together: memory, processors, number of processes. By control groups of version 2 where this
//! process may give their controllers on, else by those of version 1, for each by itself. A limit that no controller
//! here can set is refused by name: one that silently does not hold would be a lie.
//!
//! Only tasks with such a limit have these groups, and they are not used again: their counters tell what one task used.

use super::cgroup::{Cgroups, Group};
use super::cgroup_path::own_path_v1;
use super::freeze::Freezing;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use systole_shared::task::Limits;
use systole_shared::task::limits::{exact_bytes, exact_cpus};

/// Period of the bandwidth control; a task may use its share of each, and then waits for the next.
const CPU_PERIOD_US: u64 = 100_000;
/// A charge that is refused is not in the peak: so near to the limit it was met.
const PEAK_SLACK_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    Cpu,
    Memory,
    Pids,
}

impl Resource {
    pub const ALL: [Resource; 3] = [Resource::Cpu, Resource::Memory, Resource::Pids];

    /// The kernel's name of the controller.
    pub fn controller(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
            Resource::Pids => "pids",
        }
    }

    /// The option's name.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "cpus",
            Resource::Memory => "memory",
            Resource::Pids => "pids",
        }
    }
}

/// What a task asks of its groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    cpu_millis: Option<u32>,
    memory_bytes: Option<u64>,
    pids: Option<u32>,
}

impl Wanted {
    fn of(limits: &Limits) -> Self {
        Self {
            cpu_millis: limits.cpu_millis,
            memory_bytes: limits.memory_bytes,
            pids: limits.pids,
        }
    }

    fn has(&self, resource: Resource) -> bool {
        match resource {
            Resource::Cpu => self.cpu_millis.is_some(),
            Resource::Memory => self.memory_bytes.is_some(),
            Resource::Pids => self.pids.is_some(),
        }
    }

    fn shown(&self, resource: Resource) -> String {
        match resource {
            Resource::Cpu => exact_cpus(self.cpu_millis.unwrap_or(0)),
            Resource::Memory => exact_bytes(self.memory_bytes.unwrap_or(0)),
            Resource::Pids => self.pids.unwrap_or(0).to_string(),
        }
    }

    /// Files of a group and what is written to them, in this order. `true`: it does without where there is no such file.
    fn settings(&self, resource: Resource, v2: bool) -> Vec<(&'static str, String, bool)> {
        match (resource, v2) {
            (Resource::Cpu, v2) => {
                // The kernel takes no less than a millisecond.
                let quota = (u64::from(self.cpu_millis.unwrap_or(0)) * CPU_PERIOD_US / 1_000).max(1_000);
                if v2 {
                    vec![("cpu.max", format!("{quota} {CPU_PERIOD_US}"), false)]
                } else {
                    vec![
                        ("cpu.cfs_period_us", CPU_PERIOD_US.to_string(), false),
                        ("cpu.cfs_quota_us", quota.to_string(), false),
                    ]
                }
            }
            (Resource::Memory, v2) => {
                let bytes = self.memory_bytes.unwrap_or(0).to_string();
                // Swap would only let a task that is too large make the host slow.
                if v2 {
                    vec![("memory.max", bytes, false), ("memory.swap.max", "0".into(), true)]
                } else {
                    vec![
                        ("memory.limit_in_bytes", bytes.clone(), false),
                        ("memory.memsw.limit_in_bytes", bytes, true),
                    ]
                }
            }
            (Resource::Pids, _) => vec![("pids.max", self.pids.unwrap_or(0).to_string(), false)],
        }
    }
}

/// Which limits this host can set, and where.
#[derive(Debug, Default)]
pub struct Limiter {
    /// With groups of version 2 whose controllers are on.
    v2: Option<Cgroups>,
    v2_has: Vec<Resource>,
    v1: Vec<(Resource, PathBuf)>,
    next: AtomicU64,
}

/// The groups of one task.
#[derive(Debug, Default)]
pub struct Enclosure {
    /// In place of the one that the task would have had.
    pub group: Option<Group>,
    /// Of version 1, with the file by which the child moves there.
    pub v1: Vec<V1>,
    memory_bytes: Option<u64>,
}

#[derive(Debug)]
pub struct V1 {
    resource: Resource,
    path: PathBuf,
    pub procs: File,
}

impl Drop for V1 {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// What the groups of a task counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Processes that the kernel ended for want of memory.
    pub oom_kills: u64,
    /// The limit was met; otherwise the host itself had none left.
    pub met_limit: bool,
    pub peak_bytes: Option<u64>,
    pub memory_bytes: Option<u64>,
}

impl Counted {
    /// Why the task failed, if it was for this. `ended`: how its main process ended, in words.
    pub fn verdict(&self, ended: &str) -> Option<String> {
        if self.oom_kills == 0 {
            return None;
        }
        let limit = exact_bytes(self.memory_bytes.unwrap_or(0));
        let peak = self.peak_bytes.map_or(String::new(), |bytes| {
            format!(", at most {} MiB were used", bytes >> 20)
        });
        let killed = match self.oom_kills {
            1 => "1 process was ended".to_owned(),
            n => format!("{n} processes were ended"),
        };
        Some(if self.met_limit {
            format!("the limit of {limit} was met{peak}; {killed} by the kernel; ended with {ended}")
        } else {
            format!(
                "the host had no memory left, below the task's limit of {limit}{peak}; {killed} by the kernel; ended with {ended}"
            )
        })
    }
}

impl Limiter {
    /// `own`: the group of version 2 that this process is in. This process has one thread.
    pub fn find(own: Option<&Path>, name: &str) -> Self {
        let mut found = Self::default();
        if let Some(own) = own {
            let v2_has = enable(own, &format!("{name}-warden"));
            if !v2_has.is_empty() {
                let names: Vec<&str> = v2_has.iter().map(|resource| resource.controller()).collect();
                let pids = v2_has.contains(&Resource::Pids).then(default_pids);
                found.v2 = Cgroups::with_controllers(own, &format!("{name}-limited"), &names, pids);
            }
            if found.v2.is_some() {
                found.v2_has = v2_has;
            }
        }
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let (cgroup, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        for resource in Resource::ALL {
            if found.v2_has.contains(&resource) {
                continue;
            }
            let dir = own_path_v1(&cgroup, &mounts, resource.controller()).map(|own| own.join(name));
            if let Some(dir) = dir.filter(|dir| std::fs::create_dir(dir).is_ok()) {
                found.v1.push((resource, dir));
            }
        }
        // Tried, not guessed.
        found.v1.retain(|(resource, dir)| {
            let small = Wanted {
                cpu_millis: Some(10),
                memory_bytes: Some(1 << 20),
                pids: Some(1),
            };
            let works = v1(*resource, dir.join("trial"), &small).is_ok();
            if !works {
                let _ = std::fs::remove_dir(dir);
            }
            works
        });
        found
    }

    /// Directories with groups in them, for whoever tidies up after this process.
    pub fn dirs(&self) -> Vec<PathBuf> {
        let v2 = self.v2.as_ref().map(|cgroups| cgroups.dir().to_owned());
        v2.into_iter()
            .chain(self.v1.iter().map(|(_, dir)| dir.clone()))
            .collect()
    }

    pub fn can(&self, resource: Resource) -> bool {
        self.v2_has.contains(&resource) || self.v1.iter().any(|(has, _)| *has == resource)
    }

    /// What a task may have at most that names no limit, where that costs nothing.
    pub fn pids_by_default(&self) -> Option<u32> {
        self.v2_has.contains(&Resource::Pids).then(default_pids)
    }

    /// For people: names of the options that hold here.
    pub fn names(&self) -> String {
        let names = Resource::ALL.into_iter().filter(|resource| self.can(*resource));
        names.map(Resource::name).collect::<Vec<_>>().join(" ")
    }

    /// The groups that these limits need, if any. An error is a sentence for a person.
    pub fn enclose(&self, limits: &Limits, host: &str) -> Result<Option<Enclosure>, String> {
        let wanted = Wanted::of(limits);
        if wanted == Wanted::default() {
            return Ok(None);
        }
        let refused = |resource: Resource, why: String| {
            format!(
                "limits.{} is {}, which the runner on {host} cannot enforce: {why}; use a host that can (systole runners -o wide), or leave the limit out",
                resource.name(),
                wanted.shown(resource)
            )
        };
        let mut enclosure = Enclosure {
            memory_bytes: wanted.memory_bytes,
            ..Enclosure::default()
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        for resource in Resource::ALL.into_iter().filter(|resource| wanted.has(*resource)) {
            let set = if let Some(cgroups) = self.v2.as_ref().filter(|_| self.v2_has.contains(&resource)) {
                let group = match enclosure.group.take() {
                    Some(group) => Ok(group),
                    None => cgroups.make(),
                };
                group.and_then(|group| {
                    apply(group.path(), &wanted.settings(resource, true))?;
                    enclosure.group = Some(group);
                    Ok(())
                })
            } else if let Some((_, dir)) = self.v1.iter().find(|(has, _)| *has == resource) {
                v1(resource, dir.join(number.to_string()), &wanted).map(|group| enclosure.v1.push(group))
            } else {
                let what = format!(
                    "it may not use the {} controller of control groups",
                    resource.controller()
                );
                return Err(refused(resource, what));
            };
            set.map_err(|error| refused(resource, error.to_string()))?;
        }
        Ok(Some(enclosure))
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        for (_, dir) in &self.v1 {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

impl Enclosure {
    /// To be called once the task has ended. `group`: where the group of version 2 is now.
    pub fn count(&self, group: Option<&Path>) -> Counted {
        let mut counted = Counted {
            memory_bytes: self.memory_bytes,
            ..Counted::default()
        };
        if self.memory_bytes.is_none() {
            return counted;
        }
        let v1 = self.v1.iter().find(|group| group.resource == Resource::Memory);
        if let Some(group) = v1 {
            counted.oom_kills = keyed(&group.path.join("memory.oom_control"), "oom_kill").unwrap_or(0);
            counted.peak_bytes = number(&group.path.join("memory.max_usage_in_bytes"));
            // `memory.failcnt` stays 0 on newer kernels (seen on 6.18), so the peak tells.
            counted.met_limit = counted
                .peak_bytes
                .zip(self.memory_bytes)
                .is_some_and(|(peak, limit)| peak + PEAK_SLACK_BYTES >= limit);
        } else if let Some(path) = group {
            let events = path.join("memory.events");
            counted.oom_kills = keyed(&events, "oom_kill").unwrap_or(0);
            counted.met_limit = keyed(&events, "oom").is_some_and(|times| times > 0);
            counted.peak_bytes = number(&path.join("memory.peak"));
        }
        counted
    }
}

/// The groups of version 1 that this process is in.
pub fn own_v1() -> Vec<PathBuf> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (cgroup, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    let paths = Resource::ALL
        .into_iter()
        .filter_map(|resource| own_path_v1(&cgroup, &mounts, resource.controller()));
    paths.collect()
}

/// Processes and threads of one task, unless it or its host says otherwise: 15 % of what the kernel can have, which is also
/// what systemd gives to a service.
pub fn default_pids() -> u32 {
    let [pids, threads] = ["pid_max", "threads-max"].map(|name| number(&Path::new("/proc/sys/kernel").join(name)));
    let most = pids.unwrap_or(32_768).min(threads.unwrap_or(u64::MAX));
    u32::try_from((most * 15 / 100).max(64)).unwrap_or(u32::MAX)
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number after a key, of lines `key number`.
fn keyed(path: &Path, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    line?.trim().parse().ok()
}

/// How often the kernel of the host ended a process for want of memory, as far as it was seen.
#[derive(Debug)]
struct Seen {
    kills: u64,
    at: Option<Instant>,
}

static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

/// To be called every second or so: then it is known when it was. True: since that moment.
pub fn host_was_out_of_memory(since: Instant) -> bool {
    let kills = keyed(Path::new("/proc/vmstat"), "oom_kill").unwrap_or(0);
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = seen.get_or_insert(Seen { kills, at: None });
    if kills > seen.kills {
        *seen = Seen {
            kills,
            at: Some(Instant::now()),
        };
    }
    seen.at.is_some_and(|at| at >= since)
}

fn apply(path: &Path, settings: &[(&str, String, bool)]) -> io::Result<()> {
    for (name, value, optional) in settings {
        let file = path.join(name);
        match OpenOptions::new().write(true).open(&file) {
            Err(error) if *optional && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", file.display()))),
            Ok(mut opened) => opened
                .write_all(value.as_bytes())
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))?,
        }
    }
    Ok(())
}

fn v1(resource: Resource, path: PathBuf, wanted: &Wanted) -> io::Result<V1> {
    std::fs::create_dir(&path)?;
    let made = apply(&path, &wanted.settings(resource, false))
        .and_then(|()| OpenOptions::new().write(true).open(path.join(Freezing::V1.entry())));
    match made {
        Ok(procs) => Ok(V1 { resource, path, procs }),
        Err(error) => {
            let _ = std::fs::remove_dir(&path);
            Err(error)
        }
    }
}

/// Gives controllers on to the groups below ours, as far as we may. Where processes are in this group the kernel refuses that for
/// `memory` but not for `cpu` and `pids`: these make it a threaded one, below which no process can be born or moved any more. So
/// this process goes into a group of its own first, and nothing is given while anybody else is left.
fn enable(own: &Path, leaf: &str) -> Vec<Resource> {
    let words = |name: &str| std::fs::read_to_string(own.join(name)).unwrap_or_default();
    let has = |text: &str, resource: Resource| text.split_ascii_whitespace().any(|word| word == resource.controller());
    let kind = words("cgroup.type");
    let Some(kind) = Kind::of(&kind) else {
        return Vec::new();
    };
    let (there, given) = (words("cgroup.controllers"), words("cgroup.subtree_control"));
    let there: Vec<Resource> = Resource::ALL
        .into_iter()
        .filter(|resource| has(&there, *resource))
        .collect();
    if there.iter().all(|resource| has(&given, *resource)) {
        return there;
    }
    let leaf = own.join(leaf);
    if kind == Kind::Domain {
        let moved = std::fs::create_dir(&leaf).and_then(|()| std::fs::write(leaf.join("cgroup.procs"), "0"));
        // What cannot be read is not claimed to be empty.
        let alone = std::fs::read_to_string(own.join("cgroup.procs")).is_ok_and(|left| left.trim().is_empty());
        if moved.is_err() || !alone {
            // The others are not ours to move.
            let _ = std::fs::write(own.join("cgroup.procs"), "0");
            let _ = std::fs::remove_dir(&leaf);
            return Vec::new();
        }
    }
    for resource in &there {
        let _ = std::fs::write(
            own.join("cgroup.subtree_control"),
            format!("+{}", resource.controller()),
        );
    }
    let given = words("cgroup.subtree_control");
    there.into_iter().filter(|resource| has(&given, *resource)).collect()
}

/// What a group of version 2 is to the groups below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Of the whole machine, which has no `cgroup.type`: it may have processes beside groups with controllers.
    Root,
    Domain,
}

impl Kind {
    /// `None`: below it there is no place for processes.
    fn of(text: &str) -> Option<Self> {
        match text.trim() {
            "" => Some(Self::Root),
            "domain" => Some(Self::Domain),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_cannot_hold_is_refused_by_name() {
        let none = Limiter::default();
        assert!(matches!(none.enclose(&Limits::default(), "h"), Ok(None)));
        let refused = |limits: Limits| none.enclose(&limits, "h").expect_err("refused");
        let memory = refused(Limits {
            memory_bytes: Some(1 << 30),
            ..Limits::default()
        });
        assert!(
            memory.starts_with(
                "limits.memory is 1G, which the runner on h cannot enforce: it may not use the memory controller"
            ),
            "{memory}"
        );
        let cpus = refused(Limits {
            cpu_millis: Some(500),
            ..Limits::default()
        });
        assert!(cpus.starts_with("limits.cpus is 0.5, "), "{cpus}");
        assert_eq!((none.names().as_str(), none.pids_by_default()), ("", None));
    }

    #[test]
    fn each_version_of_the_groups_has_its_files() {
        let wanted = Wanted {
            cpu_millis: Some(1_500),
            memory_bytes: Some(7),
            pids: Some(3),
        };
        let written = |v2| {
            let dir = tempfile::tempdir().unwrap();
            for name in [
                "cpu.max",
                "cpu.cfs_period_us",
                "cpu.cfs_quota_us",
                "memory.max",
                "memory.limit_in_bytes",
                "pids.max",
            ] {
                std::fs::write(dir.path().join(name), "").unwrap();
            }
            for resource in Resource::ALL {
                apply(dir.path(), &wanted.settings(resource, v2)).unwrap();
            }
            let read = |name| std::fs::read_to_string(dir.path().join(name)).unwrap();
            [
                "cpu.max",
                "cpu.cfs_quota_us",
                "memory.max",
                "memory.limit_in_bytes",
                "pids.max",
            ]
            .map(read)
        };
        assert_eq!(written(true), ["150000 100000", "", "7", "", "3"]);
        assert_eq!(written(false), ["", "150000", "", "7", "3"]);
        let error = apply(Path::new("/nowhere"), &[("memory.max", "1".into(), false)]).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/memory.max: "), "{error}");
    }

    #[test]
    fn an_end_for_want_of_memory_names_the_limit_and_whose_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let enclosure = Enclosure {
            memory_bytes: Some(64 << 20),
            ..Enclosure::default()
        };
        write(
            "memory.events",
            "low 0\nhigh 0\nmax 31\noom 1\noom_kill 2\noom_group_kill 0\n",
        );
        write("memory.peak", "67108864\n");
        let counted = enclosure.count(Some(dir.path()));
        assert_eq!(
            (counted.oom_kills, counted.met_limit, counted.peak_bytes),
            (2, true, Some(64 << 20))
        );
        assert_eq!(
            counted.verdict("exit code 137").unwrap(),
            "the limit of 64M was met, at most 64 MiB were used; 2 processes were ended by the kernel; ended with exit code 137"
        );
        // The host's own: the group never met its limit.
        write("memory.events", "oom 0\noom_kill 1\n");
        let counted = enclosure.count(Some(dir.path()));
        assert!(
            counted
                .verdict("SIGKILL")
                .unwrap()
                .starts_with("the host had no memory left, below the task's limit of 64M")
        );
        write("memory.events", "oom 3\noom_kill 0\n");
        assert_eq!(enclosure.count(Some(dir.path())).verdict("exit code 1"), None);
        assert_eq!(Enclosure::default().count(Some(dir.path())), Counted::default());
    }

    /// In files as the kernel's: what it does with a threaded group cannot be had on every host.
    #[test]
    fn no_controller_is_given_on_where_a_process_would_be_left() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let enabled = |kind: Option<&str>, left: &str, given: &str| {
            let _ = std::fs::remove_dir_all(file("leaf"));
            let _ = std::fs::remove_file(file("cgroup.type"));
            if let Some(kind) = kind {
                std::fs::write(file("cgroup.type"), format!("{kind}\n")).unwrap();
            }
            std::fs::write(file("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
            std::fs::write(file("cgroup.subtree_control"), given).unwrap();
            std::fs::write(file("cgroup.procs"), left).unwrap();
            let found = enable(dir.path(), "leaf");
            let read = |name| std::fs::read_to_string(file(name)).unwrap();
            (found, read("cgroup.subtree_control"), read("cgroup.procs"))
        };
        let nothing = Vec::new;
        // The agent is in it, too: as it was, and this process is back.
        assert_eq!(
            enabled(Some("domain"), "17\n", ""),
            (nothing(), String::new(), "0".into())
        );
        // Alone, and in the group of the whole machine. (A file keeps the last word, the kernel all.)
        assert_eq!(enabled(Some("domain"), "", "").1, "+pids");
        assert_eq!(
            enabled(None, "1\n17\n", ""),
            (nothing(), "+pids".into(), "1\n17\n".into())
        );
        // Given already, but no place for processes.
        let given = "cpu memory pids\n";
        assert_eq!(enabled(Some("domain"), "", given).0, Resource::ALL);
        for kind in ["domain threaded", "threaded", "domain invalid"] {
            assert_eq!(enabled(Some(kind), "17\n", given).0, nothing(), "{kind}");
        }
    }

    #[test]
    fn the_default_number_of_processes_is_a_share_of_the_host_s() {
        let most: u64 = std::fs::read_to_string("/proc/sys/kernel/pid_max")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let default = u64::from(default_pids());
        assert!(default >= 64 && default <= most.max(64), "{default} of {most}");
    }
}
