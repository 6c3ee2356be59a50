//! Processes as the kernel shows them: which there are, and which of them belong to a task. Decides nothing.

use std::fs::File;
use std::io::{self, Read as _};

/// The part of `/proc/<pid>/stat` that tells processes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub state: char,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// Field 22, in clock ticks since boot: with the pid it names a process for the whole boot.
    pub start_time: u64,
}

impl Process {
    /// A zombie holds nothing and does nothing; it only waits for its parent.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }
}

fn parse(stat: &str) -> Option<Process> {
    // The name in parentheses may contain blanks and parentheses itself: the last one ends it.
    let (head, tail) = stat.rsplit_once(')')?;
    let pid = head.split_once(' ')?.0.parse().ok()?;
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}

/// `None`: there is no such process.
pub fn process(pid: i32) -> Option<Process> {
    // Each start of a child comes here. The line is far shorter than this, and comes whole with one call.
    let mut line = [0; 4096];
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut line).ok()?;
    parse(&String::from_utf8_lossy(line.get(..length)?))
}

/// All processes. One that ends meanwhile is left out.
pub fn processes() -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        found.extend(process(pid));
    }
    Ok(found)
}

/// Whether the process was started with all these `NAME=VALUE` variables. False where this user may not look.
pub fn has_variables(pid: i32, wanted: &[String]) -> bool {
    let Ok(environ) = std::fs::read(format!("/proc/{pid}/environ")) else {
        return false;
    };
    wanted
        .iter()
        .all(|want| environ.split(|&b| b == 0).any(|var| var == want.as_bytes()))
}

/// Processes that were orphaned below this one and came to it: those are children of its first thread, because all
/// others are forked by other threads.
pub fn orphans() -> Vec<i32> {
    let me = std::process::id();
    match std::fs::read_to_string(format!("/proc/self/task/{me}/children")) {
        Ok(text) => text
            .split_ascii_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect(),
        // A kernel without this file.
        Err(_) => {
            let me = i32::try_from(me).unwrap_or(0);
            let all = processes().unwrap_or_default();
            all.iter().filter(|p| p.parent == me).map(|p| p.pid).collect()
        }
    }
}

/// Signals a process group, by any number.
#[expect(unsafe_code, reason = "nix has no names for real-time signals")]
pub fn kill_group(group: i32, number: i32) -> nix::Result<()> {
    // SAFETY: a system call on numbers.
    nix::errno::Errno::result(unsafe { libc::killpg(group, number) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_blanks_is_no_trap() {
        let stat = "42 (a) b (c) S 1 40 41 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 777 1 1";
        let expected = Process {
            pid: 42,
            state: 'S',
            parent: 1,
            group: 40,
            session: 41,
            start_time: 777,
        };
        assert_eq!(parse(stat), Some(expected));
    }

    #[test]
    fn this_process_is_found() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let me = process(pid).unwrap();
        assert!(me.is_alive() && me.start_time > 0);
        assert!(processes().unwrap().iter().any(|p| p.pid == pid));
    }
}
