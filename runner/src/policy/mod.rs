//! What a host allows to run at all, whatever a scheduler says: the file `runner.toml`. [`load`] reads it, [`gate`] finds out
//! what a task really asks for (which file its program is, what its user's number is). The decisions are here, on plain
//! values: a name is what the kernel resolved it to, so neither a link nor `..` leads around them.

pub mod current;
pub mod gate;
pub mod load;

use serde::Deserialize;
use std::path::{Path, PathBuf};
use systole_shared::task::Limits;
use systole_shared::task::limits::{exact_bytes, exact_cpus};

/// A host without a file has no policy at all; what a file leaves out is as said here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Where it was read, for messages.
    #[serde(skip)]
    pub path: PathBuf,
    pub allow: Allow,
    pub max: Bounds,
    pub default: Bounds,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Allow {
    /// Names or numbers of users that tasks may run as, the runner's own included; left out: any.
    pub users: Option<Vec<String>>,
    /// Groups that a task may name although its user is not in them.
    pub groups: Vec<String>,
    /// Whether tasks may run as number 0.
    pub root: bool,
    /// Files, and folders (with a `/` at the end) of which everything may run; left out: any.
    pub programs: Option<Vec<AbsolutePath>>,
    /// Whether the program may be a shell.
    pub shell: bool,
    /// Folders that tasks may start in, with all below them; left out: any. A fresh one is always allowed.
    pub dirs: Option<Vec<AbsolutePath>>,
    /// Variables that a task may set, `NAME` or `PREFIX*`; left out: any, but none where `programs` is given, for there is always
    /// one that makes a program run something else.
    pub env: Option<Vec<NamePattern>>,
    /// Files of variables, and folders (with a `/` at the end) of such; left out: none.
    pub env_files: Vec<AbsolutePath>,
}

impl Default for Allow {
    fn default() -> Self {
        Self {
            users: None,
            groups: Vec::new(),
            root: false,
            programs: None,
            shell: true,
            dirs: None,
            env: None,
            env_files: Vec::new(),
        }
    }
}

/// The most that a task may ask for, or what it gets when it asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    pub open_files: Option<u32>,
    #[serde(deserialize_with = "load::bytes")]
    pub core: Option<u64>,
    #[serde(deserialize_with = "load::bytes")]
    pub file: Option<u64>,
    #[serde(deserialize_with = "load::bytes")]
    pub memory: Option<u64>,
    #[serde(deserialize_with = "load::cpus")]
    pub cpus: Option<u32>,
    pub pids: Option<u32>,
}

/// A path as the file has it; a `/` at its end is kept.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct AbsolutePath(String);

impl TryFrom<String> for AbsolutePath {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if !text.starts_with('/') || text.contains('\0') || text.split('/').any(|part| part == "..") {
            return Err(format!("{text:?} is no absolute path without \"..\""));
        }
        Ok(Self(text))
    }
}

impl AbsolutePath {
    pub fn path(&self) -> &Path {
        Path::new(&self.0)
    }

    pub fn is_folder(&self) -> bool {
        self.0.ends_with('/')
    }
}

/// `NAME`, or `PREFIX*`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct NamePattern(String);

impl TryFrom<String> for NamePattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let name = text.strip_suffix('*').unwrap_or(&text);
        if text.is_empty() || name.contains(['*', '=', '\0']) {
            return Err(format!(
                "{text:?} is neither the name of a variable nor a beginning with * after it"
            ));
        }
        Ok(Self(text))
    }
}

impl NamePattern {
    fn covers(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == self.0,
        }
    }
}

/// A file of a task or of the policy, by the two names that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The folder as it really is, and the name in it: itself perhaps a link.
    pub entry: PathBuf,
    /// Where all links lead.
    pub real: PathBuf,
}

/// One line of `programs` or `env_files`, as it is on this host now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    File(Located),
    Folder(PathBuf),
}

/// As whom a task would run.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    pub uid: u32,
    pub name: &'a str,
    /// The main group where the task names one and its user is not in it.
    pub foreign_group: Option<(u32, &'a str)>,
}

/// What is executed if the policy allows it: exactly what was looked at.
pub fn program(listed: &[Listed], asked: &Located) -> Option<PathBuf> {
    listed.iter().find_map(|listed| match listed {
        // By its name in its folder: of a file that is many programs (busybox), only the one under this name.
        Listed::File(file) if file.entry == asked.entry => Some(asked.entry.clone()),
        Listed::File(file) if file.entry == asked.real => Some(asked.real.clone()),
        // A link inside that leads outside is not inside.
        Listed::Folder(folder) if asked.real.starts_with(folder) => Some(asked.real.clone()),
        Listed::File(_) | Listed::Folder(_) => None,
    })
}

/// Whether a path to which all links were followed is in the list.
pub fn is_listed(listed: &[Listed], real: &Path) -> bool {
    listed.iter().any(|listed| match listed {
        Listed::File(file) => file.real == real,
        Listed::Folder(folder) => real.starts_with(folder),
    })
}

/// Names of shells; what starts one by another name is not recognised.
const SHELLS: [&str; 12] = [
    "sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "rbash", "tcsh", "zsh", "busybox",
];

pub fn is_shell(asked: &Located) -> bool {
    [&asked.entry, &asked.real].iter().any(|path| {
        path.file_name()
            .is_some_and(|name| SHELLS.iter().any(|shell| name == *shell))
    })
}

impl Policy {
    /// A sentence that names the file and the key.
    pub fn says(&self, key: &str, what: impl std::fmt::Display) -> String {
        format!("{}: {what} ({key})", self.path.display())
    }

    /// `users` and `groups`: the numbers of those that are listed.
    pub fn check_who(&self, who: Who<'_>, users: Option<&[u32]>, groups: &[u32]) -> Result<(), String> {
        if who.uid == 0 && !self.allow.root {
            return Err(self.says("allow.root", "no task may run as root; name another user with --user"));
        }
        if users.is_some_and(|users| !users.contains(&who.uid)) {
            return Err(self.says("allow.users", format!("no task may run as user {:?}", who.name)));
        }
        match who.foreign_group {
            Some((gid, name)) if !groups.contains(&gid) => Err(self.says(
                "allow.groups",
                format!("user {:?} is not in group {name:?} and may not be given it", who.name),
            )),
            _ => Ok(()),
        }
    }

    pub fn check_env<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let listed = match (&self.allow.env, &self.allow.programs) {
            (Some(listed), _) => listed.as_slice(),
            (None, Some(_)) => &[],
            (None, None) => return Ok(()),
        };
        for name in names {
            if !listed.iter().any(|pattern| pattern.covers(name)) {
                return Err(self.says("allow.env", format!("no task may set the variable {name}")));
            }
        }
        Ok(())
    }

    /// The limits that a task gets. One that names none gets the default, and never more than the most.
    pub fn limits(&self, asked: &Limits) -> Result<Limits, String> {
        let (max, default) = (&self.max, &self.default);
        let mut limits = asked.clone();
        limits.open_files = self.bound(
            "open_files",
            asked.open_files,
            default.open_files,
            max.open_files,
            |n| n.to_string(),
        )?;
        limits.file_bytes = self.bound("file", asked.file_bytes, default.file, max.file, exact_bytes)?;
        limits.memory_bytes = self.bound("memory", asked.memory_bytes, default.memory, max.memory, exact_bytes)?;
        limits.cpu_millis = self.bound("cpus", asked.cpu_millis, default.cpus, max.cpus, exact_cpus)?;
        limits.pids = self.bound("pids", asked.pids, default.pids, max.pids, |n| n.to_string())?;
        // None by itself, so the most says nothing about a task that does not ask.
        let core = Some(asked.core_bytes).filter(|&bytes| bytes != 0).or(default.core);
        if core.is_some() {
            limits.core_bytes = self
                .bound("core", core, None, max.core, exact_bytes)?
                .unwrap_or_default();
        }
        Ok(limits)
    }

    fn bound<T: Copy + PartialOrd>(
        &self,
        key: &str,
        asked: Option<T>,
        default: Option<T>,
        max: Option<T>,
        shown: fn(T) -> String,
    ) -> Result<Option<T>, String> {
        match (asked, max) {
            (Some(asked), Some(max)) if asked > max => Err(self.says(
                &format!("max.{key}"),
                format!("{} is more than the {} that a task may have", shown(asked), shown(max)),
            )),
            (Some(asked), _) => Ok(Some(asked)),
            (None, Some(max)) => Ok(Some(default.filter(|default| *default <= max).unwrap_or(max))),
            (None, None) => Ok(default),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        let mut policy = load::parse(text, Path::new("/p")).unwrap();
        policy.path = "/p".into();
        policy
    }

    fn located(entry: &str, real: &str) -> Located {
        Located {
            entry: entry.into(),
            real: real.into(),
        }
    }

    #[test]
    fn a_program_is_what_its_links_lead_to() {
        let file = |entry, real| Listed::File(located(entry, real));
        let listed = [
            file("/usr/bin/rsync", "/usr/bin/rsync"),
            file("/usr/bin/ls", "/usr/bin/busybox"),
            Listed::Folder("/opt/jobs".into()),
        ];
        for (entry, real, expected) in [
            ("/usr/bin/rsync", "/usr/bin/rsync", Some("/usr/bin/rsync")),
            // A link of somebody else's: what it leads to is executed.
            ("/tmp/x", "/usr/bin/rsync", Some("/usr/bin/rsync")),
            ("/opt/jobs/a/b", "/opt/jobs/a/b", Some("/opt/jobs/a/b")),
            ("/tmp/x", "/opt/jobs/a", Some("/opt/jobs/a")),
            // One of many programs in one file, and no other.
            ("/usr/bin/ls", "/usr/bin/busybox", Some("/usr/bin/ls")),
            ("/usr/bin/rm", "/usr/bin/busybox", None),
            ("/usr/bin/busybox", "/usr/bin/busybox", None),
            ("/opt/jobs/link", "/usr/bin/python3", None),
            ("/opt/jobs2/x", "/opt/jobs2/x", None),
            ("/usr/bin/rsync2", "/usr/bin/rsync2", None),
        ] {
            let found = program(&listed, &located(entry, real));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{entry} {real}");
        }
        assert!(is_listed(&listed, Path::new("/opt/jobs/x")) && is_listed(&listed, Path::new("/usr/bin/busybox")));
        assert!(!is_listed(&listed, Path::new("/opt/jobsx")) && !is_listed(&[], Path::new("/")));
    }

    #[test]
    fn shells_are_known_by_either_name() {
        assert!(is_shell(&located("/bin/sh", "/usr/bin/dash")));
        assert!(is_shell(&located("/tmp/x", "/usr/bin/bash")));
        assert!(!is_shell(&located("/usr/bin/ssh", "/usr/bin/ssh")));
    }

    #[test]
    fn users_groups_and_root() {
        let who = |uid, foreign_group| Who {
            uid,
            name: "u",
            foreign_group,
        };
        let open = policy("");
        assert_eq!(open.check_who(who(5, None), None, &[]), Ok(()));
        assert_eq!(
            open.check_who(who(0, None), None, &[]).unwrap_err(),
            "/p: no task may run as root; name another user with --user (allow.root)"
        );
        let with_root = policy("[allow]\nroot = true");
        assert_eq!(with_root.check_who(who(0, None), None, &[]), Ok(()));
        // Not in the list: being allowed to be root is not enough.
        assert!(
            with_root
                .check_who(who(0, None), Some(&[5]), &[])
                .unwrap_err()
                .contains("allow.users")
        );
        assert_eq!(open.check_who(who(5, None), Some(&[4, 5]), &[]), Ok(()));
        assert!(open.check_who(who(6, None), Some(&[4, 5]), &[]).is_err());
        assert!(open.check_who(who(6, None), Some(&[]), &[]).is_err());
        assert_eq!(open.check_who(who(5, Some((9, "g"))), None, &[9]), Ok(()));
        let refused = open.check_who(who(5, Some((9, "g"))), None, &[8]).unwrap_err();
        assert!(refused.ends_with("(allow.groups)"), "{refused}");
    }

    #[test]
    fn variables_are_listed_by_name_or_beginning() {
        let names = |policy: &Policy, names: &[&str]| policy.check_env(names.iter().copied()).is_ok();
        assert!(names(&policy(""), &["LD_PRELOAD"]));
        let listed = policy("[allow]\nenv = [\"STAGE\", \"APP_*\"]");
        assert!(names(&listed, &["STAGE", "APP_X"]) && names(&listed, &[]));
        assert!(!names(&listed, &["STAGE2"]) && !names(&listed, &["STAGE", "XAPP_"]));
        let programs = policy("[allow]\nprograms = [\"/bin/true\"]");
        assert!(names(&programs, &[]) && !names(&programs, &["LD_PRELOAD"]));
        let both = policy("[allow]\nprograms = [\"/bin/true\"]\nenv = [\"*\"]");
        assert!(names(&both, &["ANY"]));
    }

    #[test]
    fn limits_have_a_default_and_a_most() {
        let asked = |open_files, core_bytes, file_bytes| Limits {
            open_files,
            core_bytes,
            file_bytes,
            ..Limits::default()
        };
        let open = policy("");
        assert_eq!(
            open.limits(&asked(Some(64), 1, Some(2))),
            Ok(asked(Some(64), 1, Some(2)))
        );
        let bounded = policy("[max]\nopen_files = 100\nfile = \"1K\"\n[default]\nopen_files = 50\ncore = \"1M\"");
        assert_eq!(
            bounded.limits(&asked(None, 0, None)),
            Ok(asked(Some(50), 1 << 20, Some(1024)))
        );
        assert_eq!(
            bounded.limits(&asked(Some(100), 5, Some(7))),
            Ok(asked(Some(100), 5, Some(7)))
        );
        let refused = bounded.limits(&asked(Some(101), 0, None)).unwrap_err();
        assert_eq!(
            refused,
            "/p: 101 is more than the 100 that a task may have (max.open_files)"
        );
        assert!(
            bounded
                .limits(&asked(None, 0, Some(1025)))
                .unwrap_err()
                .contains("1025 is more than the 1K")
        );
        let group = policy("[max]\nmemory = \"1G\"\ncpus = 1.5\n[default]\npids = 9");
        let asked_of_all = |memory_bytes, cpu_millis, pids| Limits {
            memory_bytes,
            cpu_millis,
            pids,
            ..Limits::default()
        };
        let most = asked_of_all(Some(1 << 30), Some(1_500), Some(9));
        assert_eq!(group.limits(&Limits::default()), Ok(most));
        let less = asked_of_all(Some(1 << 20), Some(1_000), Some(10));
        assert_eq!(group.limits(&less), Ok(less.clone()));
        let refused = group.limits(&asked_of_all(None, Some(2_000), None)).unwrap_err();
        assert_eq!(refused, "/p: 2 is more than the 1.5 that a task may have (max.cpus)");
        let no_core = policy("[max]\ncore = 0");
        assert_eq!(no_core.limits(&asked(None, 0, None)), Ok(asked(None, 0, None)));
        assert!(no_core.limits(&asked(None, 1, None)).is_err());
    }
}
