//! A task before the policy of its host: finds out what names really stand for, and asks the policy. What is handed back is what
//! was looked at, with all links followed, and that is what must be used.

use super::{AbsolutePath, Listed, Located, Policy, Who};
use crate::child::refusal::Refusal;
use crate::child::run_as::RunAs;
use crate::host::Account;
use nix::unistd::{Group, User, geteuid};
use std::io;
use std::path::{Path, PathBuf};
use systole_shared::task::TaskSpec;
use systole_shared::task::run_as::account_number;
use systole_shared::task::trace::{TRACEPARENT, is_traceparent};

/// As whom, and with which variables. Before anything is looked up in the file system for the task.
pub fn check_who(policy: &Policy, spec: &TaskSpec, run_as: Option<&RunAs>, own: &Account) -> Result<(), Refusal> {
    let own_name = own.name.to_string_lossy();
    let who = match run_as {
        Some(run_as) => Who {
            uid: run_as.identity.uid,
            name: spec.user.as_deref().unwrap_or_default(),
            foreign_group: run_as
                .foreign_group
                .map(|gid| (gid, spec.group.as_deref().unwrap_or_default())),
        },
        None => Who {
            uid: geteuid().as_raw(),
            name: &own_name,
            foreign_group: None,
        },
    };
    let users: Option<Vec<u32>> = policy
        .allow
        .users
        .as_ref()
        .map(|names| names.iter().filter_map(|name| uid_of(name)).collect());
    let groups: Vec<u32> = policy.allow.groups.iter().filter_map(|name| gid_of(name)).collect();
    policy
        .check_who(who, users.as_deref(), &groups)
        .and_then(|()| policy.check_env(chosen(&spec.env)))
        .map_err(Refusal::Rejected)
}

/// A name that is not in the user database stands for nobody.
fn uid_of(name: &str) -> Option<u32> {
    match account_number(name) {
        Some(number) => number,
        None => User::from_name(name).ok().flatten().map(|user| user.uid.as_raw()),
    }
}

fn gid_of(name: &str) -> Option<u32> {
    match account_number(name) {
        Some(number) => number,
        None => Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw()),
    }
}

/// The folder to start in. To be called once it is known to exist.
pub fn dir(policy: &Policy, given: &Path) -> Result<PathBuf, Refusal> {
    let Some(dirs) = &policy.allow.dirs else {
        return Ok(given.to_owned());
    };
    let real = resolve(policy, "allow.dirs", given)?;
    let inside =
        |folder: &AbsolutePath| std::fs::canonicalize(folder.path()).is_ok_and(|folder| real.starts_with(folder));
    if dirs.iter().any(inside) {
        return Ok(real);
    }
    Err(reject(
        policy,
        "allow.dirs",
        format!("no task may run in {}", leading(given, &real)),
    ))
}

/// The file to execute for the program that was found, which is relative to `dir` if it is relative.
pub fn program(policy: &Policy, found: &Path, dir: &Path) -> Result<PathBuf, Refusal> {
    let allow = &policy.allow;
    if allow.programs.is_none() && allow.shell {
        return Ok(found.to_owned());
    }
    let asked = locate(&dir.join(found)).map_err(|error| {
        reject(
            policy,
            "allow.programs",
            format!("program {} cannot be found: {error}", found.display()),
        )
    })?;
    if !allow.shell && super::is_shell(&asked) {
        return Err(reject(
            policy,
            "allow.shell",
            format!("no task may run a shell such as {}", found.display()),
        ));
    }
    let Some(programs) = &allow.programs else {
        return Ok(found.to_owned());
    };
    super::program(&listed(programs), &asked).ok_or_else(|| {
        let shown = leading(found, &asked.real);
        reject(policy, "allow.programs", format!("no task may run {shown}"))
    })
}

/// The names of the variables that somebody chose. The trace comes with every submission of a program that is traced, and is
/// digits and nothing else.
fn chosen(env: &[(String, String)]) -> impl Iterator<Item = &str> {
    let is_trace = |name: &str, value: &str| name == TRACEPARENT && is_traceparent(value);
    env.iter()
        .filter(move |(name, value)| !is_trace(name, value))
        .map(|(name, _)| name.as_str())
}

/// `real`: where an open file of variables really is.
pub fn env_file(policy: &Policy, given: &Path, real: &Path) -> Result<(), Refusal> {
    if super::is_listed(&listed(&policy.allow.env_files), real) {
        return Ok(());
    }
    let shown = leading(given, real);
    Err(reject(
        policy,
        "allow.env_files",
        format!("no task may read the variables in {shown}"),
    ))
}

fn reject(policy: &Policy, key: &str, what: String) -> Refusal {
    Refusal::Rejected(policy.says(key, what))
}

fn resolve(policy: &Policy, key: &str, path: &Path) -> Result<PathBuf, Refusal> {
    std::fs::canonicalize(path)
        .map_err(|error| reject(policy, key, format!("{} cannot be found: {error}", path.display())))
}

/// Says where a link leads, if it is one.
fn leading(given: &Path, real: &Path) -> String {
    if given == real {
        given.display().to_string()
    } else {
        format!("{}, which is {}", given.display(), real.display())
    }
}

fn locate(path: &Path) -> io::Result<Located> {
    let real = std::fs::canonicalize(path)?;
    let entry = match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => std::fs::canonicalize(folder)?.join(name),
        _ => real.clone(),
    };
    Ok(Located { entry, real })
}

/// Looked at each time: what the file names may be a link that is moved with each release. What does not exist allows nothing.
fn listed(paths: &[AbsolutePath]) -> Vec<Listed> {
    let one = |path: &AbsolutePath| {
        if path.is_folder() {
            std::fs::canonicalize(path.path()).map(Listed::Folder)
        } else {
            locate(path.path()).map(Listed::File)
        }
    };
    paths.iter().filter_map(|path| one(path).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::load;
    use std::os::unix::fs::symlink;

    fn rejected(refusal: Refusal) -> String {
        match refusal {
            Refusal::Rejected(message) => message,
            Refusal::Failed(message) => panic!("{message}"),
        }
    }

    /// allowed/ with a program, outside/ with another, and links both ways.
    fn place() -> (tempfile::TempDir, PathBuf, Policy) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["allowed", "outside", "allowed/sub"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        for name in ["allowed/good", "outside/bad", "outside/sh"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        symlink("../outside/bad", root.join("allowed/link")).unwrap();
        symlink("../outside", root.join("allowed/way")).unwrap();
        symlink("allowed", root.join("current")).unwrap();
        symlink("../allowed/good", root.join("outside/in")).unwrap();
        symlink("sh", root.join("outside/innocent")).unwrap();
        let text = format!(
            "[allow]\nprograms = [\"{0}/current/\"]\ndirs = [\"{0}/allowed\"]\nenv_files = [\"{0}/allowed/\"]",
            root.display()
        );
        let policy = load::parse(&text, Path::new("/p")).unwrap();
        (dir, root, policy)
    }

    #[test]
    fn the_trace_of_a_submission_is_nobodys_choice_and_anything_else_under_its_name_is() {
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let names = |value: &str| -> Vec<String> {
            let env = [
                ("A".to_owned(), String::new()),
                (TRACEPARENT.to_owned(), value.to_owned()),
            ];
            chosen(&env).map(str::to_owned).collect()
        };
        assert_eq!(names(trace), ["A"]);
        assert_eq!(names("$(reboot)"), ["A", "TRACEPARENT"]);
    }

    #[test]
    fn neither_links_nor_dots_lead_around_the_policy() {
        let (_dir, root, policy) = place();
        let run = |path: &str| program(&policy, Path::new(path), &root);
        for (path, real) in [
            ("allowed/good", "allowed/good"),
            ("current/good", "allowed/good"),
            ("outside/in", "allowed/good"),
            ("outside/../allowed/./good", "allowed/good"),
        ] {
            assert_eq!(run(path).unwrap(), root.join(real), "{path}");
            assert_eq!(
                program(&policy, &root.join(path), Path::new("/")).unwrap(),
                root.join(real),
                "{path}"
            );
        }
        for path in [
            "outside/bad",
            "allowed/link",
            "allowed/way/bad",
            "allowed/../outside/bad",
            "allowed/sub/../../outside/bad",
            "allowed/none",
        ] {
            let message = rejected(run(path).unwrap_err());
            assert!(
                message.starts_with("/p: ") && message.ends_with("(allow.programs)"),
                "{path}: {message}"
            );
        }
        for (path, real) in [
            ("allowed", "allowed"),
            ("allowed/sub", "allowed/sub"),
            ("current/sub", "allowed/sub"),
        ] {
            assert_eq!(dir(&policy, &root.join(path)).unwrap(), root.join(real), "{path}");
        }
        for path in [
            "outside",
            "allowed/..",
            "allowed/way",
            "allowed/sub/../../outside",
            "none",
        ] {
            assert!(
                rejected(dir(&policy, &root.join(path)).unwrap_err()).ends_with("(allow.dirs)"),
                "{path}"
            );
        }
        let good = root.join("allowed/good");
        assert!(env_file(&policy, &root.join("current/good"), &good).is_ok());
        let message = rejected(env_file(&policy, &root.join("allowed/link"), &root.join("outside/bad")).unwrap_err());
        assert!(message.contains("allowed/link, which is "), "{message}");
    }

    #[test]
    fn a_shell_is_known_behind_a_link() {
        let (_dir, root, _) = place();
        let policy = load::parse("[allow]\nshell = false", Path::new("/p")).unwrap();
        for path in ["outside/sh", "outside/innocent"] {
            let message = rejected(program(&policy, Path::new(path), &root).unwrap_err());
            assert!(message.ends_with("(allow.shell)"), "{message}");
        }
        // Otherwise it is executed under the name that was asked for.
        assert_eq!(
            program(&policy, Path::new("outside/in"), &root).unwrap(),
            Path::new("outside/in")
        );
        assert!(rejected(program(&policy, Path::new("/bin/sh"), &root).unwrap_err()).contains("/bin/sh"));
    }

    #[test]
    fn users_are_compared_by_their_numbers() {
        let own = crate::host::account();
        let spec = TaskSpec::default();
        let uid = geteuid().as_raw();
        let root = if uid == 0 { "root = true\n" } else { "" };
        let check = |users: String| {
            let policy = load::parse(&format!("[allow]\n{root}users = [{users}]"), Path::new("/p")).unwrap();
            check_who(&policy, &spec, None, &own)
        };
        assert!(check(format!("{:?}", own.name.to_str().unwrap())).is_ok());
        assert!(check(format!("\"no-such-user\", \"{uid}\"")).is_ok());
        for users in ["", "\"no-such-user\"", "\"3999999999\""] {
            let message = rejected(check(users.into()).unwrap_err());
            assert!(message.ends_with("(allow.users)"), "{message}");
        }
        if uid == 0 {
            let policy = load::parse("", Path::new("/p")).unwrap();
            assert!(rejected(check_who(&policy, &spec, None, &own).unwrap_err()).ends_with("(allow.root)"));
        }
    }
}
