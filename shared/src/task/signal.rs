//! Signals as people write and read them. The numbers are those of Linux on x86 and Arm.

use crate::error::Invalid;

pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
/// The highest real-time signal.
pub const SIGNAL_MAX: i32 = 64;

const NAMES: [(i32, &str); 31] = [
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
    (16, "SIGSTKFLT"),
    (17, "SIGCHLD"),
    (18, "SIGCONT"),
    (19, "SIGSTOP"),
    (20, "SIGTSTP"),
    (21, "SIGTTIN"),
    (22, "SIGTTOU"),
    (23, "SIGURG"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (26, "SIGVTALRM"),
    (27, "SIGPROF"),
    (28, "SIGWINCH"),
    (29, "SIGIO"),
    (30, "SIGPWR"),
    (31, "SIGSYS"),
];

/// The name of a signal, for people: `SIGKILL`, or `signal 40` where it has none.
pub fn signal_name(signal: i32) -> String {
    match NAMES.iter().find(|(number, _)| *number == signal) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("signal {signal}"),
    }
}

/// Reads `TERM`, `SIGTERM`, `sigterm` or `15`.
pub fn parse_signal(text: &str) -> Result<i32, String> {
    let upper = text.trim().to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = NAMES.iter().find(|(_, name)| name.strip_prefix("SIG") == Some(short));
    named
        .map(|(number, _)| *number)
        .or_else(|| upper.parse().ok().filter(|number| (1..=SIGNAL_MAX).contains(number)))
        .ok_or_else(|| {
            format!("{text:?} is no signal; write a name such as TERM or INT, or a number from 1 to {SIGNAL_MAX}")
        })
}

/// A signal that may end a task.
pub fn check_kill_signal(signal: i32, field: &str) -> Result<(), Invalid> {
    let message = match signal {
        SIGSTOP | SIGCONT => format!("{} ends no program; use TERM, INT or KILL", signal_name(signal)),
        1..=SIGNAL_MAX => return Ok(()),
        _ => format!("{signal} is no signal; it must be a number from 1 to {SIGNAL_MAX}"),
    };
    Err(Invalid::new(field, message))
}

/// A signal that tells a program that its time is nearly over. It must leave the rest to the program.
pub fn check_warn_signal(signal: i32, field: &str) -> Result<(), Invalid> {
    match signal {
        SIGKILL | SIGSTOP | SIGCONT => Err(Invalid::new(
            field,
            format!(
                "{} leaves a program nothing to do; use a signal such as USR1",
                signal_name(signal)
            ),
        )),
        _ => check_kill_signal(signal, field),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_by_name_and_by_number() {
        for text in ["TERM", "SIGTERM", "sigterm", "term", "15", " 15 "] {
            assert_eq!(parse_signal(text), Ok(SIGTERM), "{text:?}");
        }
        assert_eq!((parse_signal("1"), parse_signal("64")), (Ok(1), Ok(64)));
        for text in ["", "0", "65", "-15", "SIG", "TERMINATE", "SIG15", "99999999999"] {
            assert!(parse_signal(text).is_err(), "{text:?}");
        }
        for (number, name) in NAMES {
            assert_eq!(parse_signal(name), Ok(number));
            assert_eq!(signal_name(number), name);
        }
        assert_eq!(signal_name(40), "signal 40");
    }

    #[test]
    fn a_signal_must_suit_its_use() {
        for (signal, kills, warns) in [
            (15, true, true),
            (10, true, true),
            (9, true, false),
            (64, true, true),
            (18, false, false),
            (19, false, false),
            (0, false, false),
            (65, false, false),
            (-1, false, false),
        ] {
            assert_eq!(check_kill_signal(signal, "f").is_ok(), kills, "{signal}");
            assert_eq!(check_warn_signal(signal, "f").is_ok(), warns, "{signal}");
        }
    }
}
