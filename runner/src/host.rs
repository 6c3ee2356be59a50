//! What this host is: its name, its boot, its machine id, and the user the children run as.

use std::ffi::OsString;
use std::path::PathBuf;
use systole_shared::limits::WORD_CHARS_MAX;

/// The name that a runner has when none is given: the host's own, in the characters that are allowed.
pub fn default_host_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    sanitised(&name.to_string_lossy())
}

fn sanitised(name: &str) -> String {
    let name: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
                c
            } else {
                '-'
            }
        })
        .take(WORD_CHARS_MAX)
        .collect();
    if name.is_empty() { "localhost".into() } else { name }
}

/// Changes with each boot. A task that was dispatched but not begun is only given again within one.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// Empty where there is none, e.g. in containers.
pub fn machine_id() -> String {
    std::fs::read_to_string("/etc/machine-id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// For people: `Linux 6.1 x86_64`.
fn system() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.trim().splitn(3, '.');
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => format!("Linux {major}.{minor} {}", std::env::consts::ARCH),
        _ => format!("Linux {}", std::env::consts::ARCH),
    }
}

/// What a beat tells of the host, as JSON.
pub fn facts(guard: &str, limits: Option<&str>, policy: Option<&str>) -> String {
    let mut facts = serde_json::json!({"system": system(), "guard": guard});
    // A warden of before does not say.
    for (name, fact) in [("limits", limits), ("policy", policy)] {
        if let Some(fact) = fact {
            facts[name] = fact.into();
        }
    }
    facts.to_string()
}

/// The user this process, and so each child, runs as.
#[derive(Clone, Debug)]
pub struct Account {
    pub name: OsString,
    pub home: PathBuf,
}

pub fn account() -> Account {
    let uid = nix::unistd::geteuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => Account {
            name: user.name.into(),
            home: user.dir,
        },
        // Usual in containers with an arbitrary user id.
        Ok(None) | Err(_) => Account {
            name: uid.to_string().into(),
            home: std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_host_names_become_allowed_ones() {
        assert_eq!(sanitised("db-01.example_x"), "db-01.example_x");
        assert_eq!(sanitised("büro 1"), "b-ro-1");
        assert_eq!(sanitised(""), "localhost");
        assert_eq!(sanitised(&"x".repeat(100)).len(), 63);
        assert!(systole_shared::id::check_host(&default_host_name(), "host").is_ok());
    }

    #[test]
    fn facts_are_short() {
        let facts = system();
        assert!(facts.starts_with("Linux ") && facts.len() < 40, "{facts}");
    }
}
