//! What a child is started with: environment, working directory, program. Finds out before the fork
//! what is missing, because afterwards the kernel has one errno for several causes. Starts nothing.
//!
//! A message that begins with `program not found:` is shown by the command line as exit code 127, any
//! other failure to start as 126.

use super::fork::{Refused, Step};
use crate::host::Account;
use crate::journal::Begin;
use nix::unistd::{AccessFlags, access};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use systole_shared::task::TaskSpec;
use systole_shared::time::format_utc;

/// What a child finds when the task names no PATH of its own.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a terminal of a task calls itself, when the task does not.
const TERM: &str = "xterm-256color";

pub type Environment = BTreeMap<OsString, OsString>;

/// The whole environment of the child: nothing is inherited from the runner.
/// `temporary`: where its temporary files are to be, if there is a place that is removed with the task.
pub fn environment(
    spec: &TaskSpec,
    begin: &Begin,
    place: (&str, &str),
    account: &Account,
    temporary: Option<&Path>,
) -> Environment {
    let (host, instance_id) = place;
    let mut env = Environment::new();
    let mut set = |name: &str, value: OsString| drop(env.insert(name.into(), value));
    set("PATH", PATH.into());
    set("HOME", account.home.clone().into());
    set("USER", account.name.clone());
    set("LOGNAME", account.name.clone());
    set("SHELL", "/bin/sh".into());
    set("LANG", "C.UTF-8".into());
    if let Some(temporary) = temporary {
        set("TMPDIR", temporary.into());
    }
    if spec.tty.is_some() {
        set("TERM", TERM.into());
    }
    for (name, value) in &spec.env {
        set(name, value.into());
    }
    // Last: a task cannot pretend to be another one.
    set("SYSTOLE_TASK_ID", begin.task_id.to_string().into());
    set("SYSTOLE_ATTEMPT", begin.attempt.to_string().into());
    if let Some(job) = &spec.job {
        set("SYSTOLE_JOB", job.into());
    }
    // As it was asked for, whenever it came to run: a retry has the same.
    if let Some(at) = spec.run_at_ms {
        set("SYSTOLE_SCHEDULED_TIME", format_utc(at).into());
    }
    set("SYSTOLE_RUNNER", format!("{host}/{}", begin.slot).into());
    set("SYSTOLE_HOST", host.into());
    set("SYSTOLE_SLOT", begin.slot.to_string().into());
    // Ids only rise, so whoever sees a lower number knows that it comes from an older task.
    set("SYSTOLE_FENCING_TOKEN", begin.task_id.to_string().into());
    // By this and the task id a runner finds what a task left, even in a session of its own.
    set("SYSTOLE_INSTANCE", instance_id.into());
    set("SYSTOLE_NAME", spec.name.clone().into());
    env
}

/// Whether the child can be started in this directory.
pub fn check_dir(dir: &Path, host: &str) -> Result<(), String> {
    let shown = dir.display();
    let remedy = "use --dir with one that exists there, or --runner with a host that has it";
    match std::fs::metadata(dir) {
        Ok(meta) if !meta.is_dir() => Err(format!(
            "working directory {shown} on {host} is not a directory; {remedy}"
        )),
        Ok(_) => match access(dir, AccessFlags::X_OK) {
            Ok(()) => Ok(()),
            Err(errno) => Err(format!(
                "working directory {shown} on {host} may not be entered ({}); {remedy}",
                errno.desc()
            )),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("working directory {shown} does not exist on {host}; {remedy}"))
        }
        Err(error) => Err(format!(
            "working directory {shown} on {host} cannot be used ({error}); {remedy}"
        )),
    }
}

/// The file to execute for `program`, in the eyes of a child in `dir`. Without a `/` it is looked up
/// in the PATH that the child gets.
pub fn find_program(program: &str, dir: &Path, path: &str, host: &str) -> Result<PathBuf, String> {
    if program.contains('/') {
        return check_program(Path::new(program), dir, host).map(|()| program.into());
    }
    if program.is_empty() {
        return Err("program not found: its name is empty".into());
    }
    let mut unusable = None;
    for folder in path.split(':') {
        // An empty entry is the working directory, as everywhere.
        let folder = if folder.is_empty() { "." } else { folder };
        let file = Path::new(folder).join(program);
        match check_program(&file, dir, host) {
            Ok(()) => return Ok(file),
            Err(reason) if reason.starts_with("program not found") => {}
            Err(reason) => unusable = unusable.or(Some(reason)),
        }
    }
    // As a shell does: a file that may not be executed is only an answer when no other one is found.
    Err(unusable.unwrap_or_else(|| format!("program not found: there is no {program} on {host} in PATH={path}")))
}

fn check_program(file: &Path, dir: &Path, host: &str) -> Result<(), String> {
    let (seen, shown) = (dir.join(file), file.display());
    match std::fs::metadata(&seen) {
        Ok(meta) if meta.is_dir() => Err(format!("program {shown} on {host} is a directory")),
        Ok(_) => match access(&seen, AccessFlags::X_OK) {
            Ok(()) => Ok(()),
            Err(_) => Err(format!(
                "program {shown} on {host} is not executable; chmod +x it, or run it with its interpreter"
            )),
        },
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            let where_to = if file.is_absolute() {
                String::new()
            } else {
                format!(" in {}; --here starts it where you are, --dir elsewhere", dir.display())
            };
            Err(format!(
                "program not found: there is no file {shown} on {host}{where_to}"
            ))
        }
        Err(error) => Err(format!("program {shown} on {host} cannot be reached ({error})")),
    }
}

/// Words for a fork or exec that failed although everything looked right.
pub fn explain(refused: &Refused, program: &Path, dir: &Path, host: &str, user: Option<&str>) -> String {
    let (shown, error) = (program.display(), &refused.error);
    let by = user.map(|user| format!(" by user {user}")).unwrap_or_default();
    match refused.step {
        Step::Limits => {
            return format!("program {shown} was not started: its limits could not be set on {host}: {error}");
        }
        Step::Identity => {
            return format!(
                "program {shown} was not started{by}: the runner on {host} may not change the user ({error}); it needs the capabilities CAP_SETUID and CAP_SETGID"
            );
        }
        Step::Dir => {
            let dir = dir.display();
            return format!(
                "working directory {dir} on {host} may not be entered{by} ({error}); use --dir with another one"
            );
        }
        Step::Birth | Step::Exec => {}
    }
    match error.raw_os_error() {
        Some(libc::E2BIG) => {
            format!("program {shown} was not started: its arguments and environment are too long for {host}")
        }
        Some(libc::ENOENT | libc::ENOTDIR) => match interpreter(&dir.join(program)) {
            Some(name) => format!("program {shown} on {host} needs the interpreter {name}, which does not exist there"),
            None => format!("program {shown} on {host} needs a loader or interpreter that does not exist there"),
        },
        Some(libc::EACCES) => match interpreter(&dir.join(program)) {
            Some(name) => format!("program {shown} on {host} needs the interpreter {name}, which may not be executed"),
            None => format!("program {shown} on {host} may not be executed{by} (no permission, or mounted noexec)"),
        },
        Some(libc::ENOEXEC) => format!("program {shown} on {host} is in no format that the host can execute"),
        Some(libc::ELOOP) => format!("program {shown} on {host} has interpreters nested too deeply"),
        Some(libc::ETXTBSY) => format!("program {shown} on {host} is being written by another process"),
        Some(libc::ETIMEDOUT) => {
            format!("program {shown} was not started{by}: {host} took too long to load it; try again")
        }
        // Of the host itself it would be a fault: these are the limits of the user, or of the program.
        Some(libc::EAGAIN | libc::ENOMEM) => {
            format!("program {shown} was not started{by}: {host} has no room for it ({error})")
        }
        _ => format!("program {shown} was not started on {host}: {error}"),
    }
}

/// The interpreter that a script names in its first line.
fn interpreter(script: &Path) -> Option<String> {
    let mut first = Vec::new();
    std::fs::File::open(script)
        .ok()?
        .take(256)
        .read_to_end(&mut first)
        .ok()?;
    let line = first.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    String::from_utf8_lossy(line)
        .split_whitespace()
        .next()
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::begin;
    use std::os::unix::fs::PermissionsExt as _;

    fn account() -> Account {
        Account {
            name: "u".into(),
            home: "/home/u".into(),
        }
    }

    #[test]
    fn the_environment_is_clean_and_cannot_be_forged() {
        let spec = TaskSpec {
            name: "n".into(),
            job: Some("j".into()),
            env: vec![("PATH".into(), "/x".into()), ("A".into(), "b\nc".into())],
            run_at_ms: Some(1_500),
            tty: Some(systole_shared::task::Terminal::default()),
            ..TaskSpec::default()
        };
        let env = environment(&spec, &begin(7), ("h", "i"), &account(), Some(Path::new("/tmp/w")));
        let shown: Vec<String> = env
            .iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .collect();
        let expected = [
            "A=b\nc",
            "HOME=/home/u",
            "LANG=C.UTF-8",
            "LOGNAME=u",
            "PATH=/x",
            "SHELL=/bin/sh",
            "SYSTOLE_ATTEMPT=1",
            "SYSTOLE_FENCING_TOKEN=7",
            "SYSTOLE_HOST=h",
            "SYSTOLE_INSTANCE=i",
            "SYSTOLE_JOB=j",
            "SYSTOLE_NAME=n",
            "SYSTOLE_RUNNER=h/2",
            "SYSTOLE_SCHEDULED_TIME=1970-01-01T00:00:01.500Z",
            "SYSTOLE_SLOT=2",
            "SYSTOLE_TASK_ID=7",
            "TERM=xterm-256color",
            "TMPDIR=/tmp/w",
            "USER=u",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_program_is_looked_up_in_the_path_of_the_child() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        for (folder, mode) in [(&a, 0o644), (&b, 0o755)] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("x"), "").unwrap();
            std::fs::set_permissions(folder.join("x"), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = format!("/nowhere:{}:{}", a.display(), b.display());
        assert_eq!(find_program("x", &a, &path, "h"), Ok(b.join("x")));
        assert_eq!(find_program("x", &b, "", "h"), Ok("./x".into()));
        let refused = find_program("x", &b, &a.display().to_string(), "h").unwrap_err();
        assert!(refused.contains("is not executable"), "{refused}");
        let missing = find_program("y", &b, "/p:/q", "h").unwrap_err();
        assert_eq!(missing, "program not found: there is no y on h in PATH=/p:/q");
    }
}
