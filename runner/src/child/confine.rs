//! What the processes of a task may use, held against what this host can give: a limit that cannot be set is told by
//! its name before the fork. Sets nothing itself.

use super::fork::{Bounds, own_nice};
use crate::file_limit;
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::geteuid;
use systole_shared::task::Limits;
use systole_shared::task::limits::exact_bytes;

/// An error is a sentence for a person.
pub fn bounds(limits: &Limits, umask: u32, host: &str) -> Result<Bounds, String> {
    let open_files = match limits.open_files {
        // What this process had before it raised its own.
        None => file_limit::before(),
        Some(wanted) => {
            let hard = hard(Resource::RLIMIT_NOFILE);
            Some(within(
                u64::from(wanted),
                hard,
                |n| n.to_string(),
                "open_files",
                "LimitNOFILE",
                host,
            )?)
        }
    };
    let core = match (limits.core_bytes, getrlimit(Resource::RLIMIT_CORE)) {
        (0, Ok((0, _)) | Err(_)) => None,
        // A program may still ask for one; hence the hard limit stays.
        (0, Ok((_, hard))) => Some((0, hard)),
        (wanted, found) => {
            let hard = found.map_or(u64::MAX, |(_, hard)| hard);
            Some(within(wanted, hard, exact_bytes, "core_bytes", "LimitCORE", host)?)
        }
    };
    let file = match limits.file_bytes {
        None => None,
        Some(wanted) => {
            let hard = hard(Resource::RLIMIT_FSIZE);
            Some(within(wanted, hard, exact_bytes, "file_bytes", "LimitFSIZE", host)?)
        }
    };
    let nice = limits.nice.and_then(|nice| i32::try_from(nice).ok());
    if let Some(nice) = nice {
        check_nice(nice, own_nice(), host)?;
    }
    Ok(Bounds {
        open_files,
        core,
        file,
        nice,
        umask,
        ..Bounds::default()
    })
}

/// The limit of the processes of another user than the runner's: a guard against one that forks without end, where no control
/// group counts them.
pub fn processes(wanted: u32) -> (u64, u64) {
    let wanted = u64::from(wanted).min(hard(Resource::RLIMIT_NPROC));
    (wanted, wanted)
}

/// Where the kernel does not say, it is asked in the child.
fn hard(resource: Resource) -> u64 {
    getrlimit(resource).map_or(u64::MAX, |(_, hard)| hard)
}

/// Soft and hard limit alike: a task does not raise what was set for it.
fn within(
    wanted: u64,
    hard: u64,
    shown: fn(u64) -> String,
    field: &str,
    setting: &str,
    host: &str,
) -> Result<(u64, u64), String> {
    if wanted <= hard {
        return Ok((wanted, wanted));
    }
    Err(format!(
        "limits.{field} is {}, and the runner on {host} can give at most {}; ask for less, or raise the limit of its warden there ({setting}= of systemd, ulimit -H elsewhere)",
        shown(wanted),
        shown(hard)
    ))
}

fn check_nice(wanted: i32, own: i32, host: &str) -> Result<(), String> {
    // The kernel counts this limit the other way: 20 is nice 0, 1 is nice 19.
    let allowed = getrlimit(Resource::RLIMIT_NICE).map_or(0, |(soft, _)| soft);
    let lowest = 20 - i32::try_from(allowed.min(40)).unwrap_or(0);
    if wanted >= own || wanted >= lowest || geteuid().is_root() {
        return Ok(());
    }
    Err(format!(
        "limits.nice is {wanted}, and the runner on {host} has {own}, which it may not lower; ask for {own} or more"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_shared::limits::UMASK_DEFAULT;

    #[test]
    fn a_limit_above_that_of_the_host_is_named_with_both() {
        let within = |wanted| within(wanted, 1 << 20, exact_bytes, "core_bytes", "LimitCORE", "h");
        assert_eq!(within(1 << 20), Ok((1 << 20, 1 << 20)));
        let message = within(1 << 30).unwrap_err();
        assert!(
            message.starts_with("limits.core_bytes is 1G, and the runner on h can give at most 1M; "),
            "{message}"
        );
    }

    #[test]
    fn a_plain_task_has_the_limits_of_the_runner_and_no_core_files() {
        let plain = bounds(&Limits::default(), UMASK_DEFAULT, "h").unwrap();
        assert_eq!((plain.file, plain.nice, plain.umask), (None, None, 0o022));
        assert!(plain.identity.is_none());
        assert!(plain.core.is_none_or(|(soft, _)| soft == 0));
    }

    #[test]
    fn a_higher_nice_value_is_always_allowed() {
        assert_eq!(check_nice(5, 5, "h"), Ok(()));
        assert_eq!(check_nice(19, 0, "h"), Ok(()));
    }
}
