//! The units, made of the very texts in `deploy/`: what a person would copy and edit, and what is installed, are one thing.

use crate::args::ServiceKind;
use std::path::Path;

const UP: &str = include_str!("../../../../deploy/systole.service");
const SCHEDULER: &str = include_str!("../../../../deploy/systole-scheduler.service");
const WARDEN: &str = include_str!("../../../../deploy/systole-warden.service");
const RUNNER: &str = include_str!("../../../../deploy/systole-runner.service");
/// Where those texts have the program.
const PROGRAM: &str = "/usr/local/bin/systole";
/// What more options follow.
const OPTIONS: &str = "$SYSTOLE_OPTIONS";

/// The first line of each unit that is ours.
pub const MARK: &str =
    "# Written by `systole service install`, which overwrites it. `systole service uninstall` takes it away.";

/// Settings that a manager of a user may not make, or that say what follows from the user itself.
const OF_THE_SYSTEM: [&str; 24] = [
    "User=",
    "Group=",
    "StateDirectory=",
    "StateDirectoryMode=",
    "ReadWritePaths=",
    "CapabilityBoundingSet=",
    "LimitNOFILE=",
    "LockPersonality=",
    "MemoryDenyWriteExecute=",
    "NoNewPrivileges=",
    "PrivateDevices=",
    "PrivateTmp=",
    "ProtectClock=",
    "ProtectControlGroups=",
    "ProtectHome=",
    "ProtectHostname=",
    "ProtectKernelLogs=",
    "ProtectKernelModules=",
    "ProtectKernelTunables=",
    "ProtectProc=",
    "ProtectSystem=",
    "Restrict",
    "SystemCall",
    "After=network-online.target",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub name: &'static str,
    pub text: String,
}

/// Names of the units of a kind.
pub fn names(kind: ServiceKind, system: bool) -> &'static [&'static str] {
    match (kind, system) {
        (ServiceKind::Up, _) => &["systole.service"],
        (ServiceKind::Scheduler, _) => &["systole-scheduler.service"],
        // The one that has the tasks first.
        (ServiceKind::Runner, true) => &["systole-warden.service", "systole-runner.service"],
        (ServiceKind::Runner, false) => &["systole-runner.service"],
    }
}

/// What is known of the place where the units go.
pub struct Place<'a> {
    /// The program.
    pub program: &'a Path,
    pub options: &'a [String],
    /// The host has joined a cluster and needs no token file.
    pub joined: bool,
    /// `/etc/systole/scheduler.env` says where to listen.
    pub has_scheduler_env: bool,
}

/// Units of the machine.
pub fn of_system(kind: ServiceKind, place: &Place<'_>) -> Vec<Unit> {
    let texts: &[&str] = match kind {
        ServiceKind::Up => &[UP],
        ServiceKind::Scheduler => &[SCHEDULER],
        ServiceKind::Runner => &[WARDEN, RUNNER],
    };
    names(kind, true)
        .iter()
        .zip(texts)
        .map(|(name, text)| Unit {
            name,
            text: marked(text.lines().map(|line| {
                if let Some(command) = line.strip_prefix("ExecStart=") {
                    format!("ExecStart={}", of_machine(command, place))
                } else if let Some(file) = line.strip_prefix("EnvironmentFile=/") {
                    // Everything may be said by options.
                    format!("EnvironmentFile=-/{file}")
                } else {
                    line.to_owned()
                }
            })),
        })
        .collect()
}

/// Of the units' own options those that may be said otherwise.
const REPLACEABLE: [&str; 3] = ["--token-file", "--token-dir", "--listen"];

/// What the options say themselves is not said twice, which the program refuses.
fn without_said(command: &str, options: &[String]) -> String {
    let says = |flag: &str| {
        options
            .iter()
            .filter_map(|option| option.strip_prefix(flag))
            .any(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let mut words = command.split(' ');
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if REPLACEABLE.contains(&word) && says(word) {
            // With its value.
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

fn of_machine(command: &str, place: &Place<'_>) -> String {
    let command = without_said(command, place.options);
    let mut command = command.replacen(PROGRAM, &word(&place.program.to_string_lossy()), 1);
    if place.joined {
        command = command.replace(" --token-file /etc/systole/runner.token", "");
    }
    if !place.has_scheduler_env {
        command = command.replace(" --listen ${SYSTOLE_LISTEN}", "");
    }
    with_options(&command, place.options)
}

fn with_options(command: &str, options: &[String]) -> String {
    let options: String = options.iter().map(|option| word(option) + " ").collect();
    command.replace(OPTIONS, &format!("{options}{OPTIONS}"))
}

/// The unit of a user. Data, tokens and addresses are where they are without systemd.
pub fn of_user(kind: ServiceKind, place: &Place<'_>) -> Vec<Unit> {
    let (text, description) = match kind {
        ServiceKind::Up => (UP, "systole"),
        ServiceKind::Scheduler => (SCHEDULER, "systole scheduler"),
        // The runner has its own warden here, as `up` does: what is said of the one is true of the other.
        ServiceKind::Runner => (UP, "systole runner"),
    };
    let command = kind.command();
    let lines = text.lines().filter_map(|line| {
        let drops = line.starts_with('#')
            || line.starts_with("Wants=")
            || line.starts_with("Documentation=")
            || OF_THE_SYSTEM.iter().any(|begin| line.starts_with(begin));
        if drops {
            return None;
        }
        Some(match line.split_once('=') {
            Some(("Description", _)) => format!("Description={description}"),
            Some(("EnvironmentFile", _)) => format!("EnvironmentFile=-%E/systole/{command}.env"),
            Some(("ExecStart", _)) => {
                let program = word(&place.program.to_string_lossy());
                format!(
                    "ExecStart={}",
                    with_options(&format!("{program} {command} {OPTIONS}"), place.options)
                )
            }
            Some(("WantedBy", _)) => "WantedBy=default.target".to_owned(),
            _ => line.to_owned(),
        })
    });
    vec![Unit {
        name: names(kind, false)[0],
        text: marked(lines),
    }]
}

fn marked(lines: impl Iterator<Item = String>) -> String {
    let mut text = format!("{MARK}\n");
    let mut was_empty = true;
    for line in lines {
        // What was left out leaves no holes.
        if !(line.is_empty() && was_empty) {
            text.push_str(&line);
            text.push('\n');
        }
        was_empty = line.is_empty();
    }
    text
}

/// One word of a command line as systemd reads it: it knows quotes, `$` for variables and `%` for specifiers.
fn word(text: &str) -> String {
    let escaped = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('%', "%%")
        .replace('$', "$$");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%$".contains(c);
    if !escaped.is_empty() && escaped.chars().all(plain) {
        escaped
    } else {
        format!("\"{escaped}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place<'a>(options: &'a [String]) -> Place<'a> {
        Place {
            program: Path::new("/opt/systole"),
            options,
            joined: false,
            has_scheduler_env: true,
        }
    }

    fn exec(unit: &Unit) -> &str {
        unit.text
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="))
            .expect("a command")
    }

    #[test]
    fn units_of_the_machine_are_those_of_deploy() {
        for (kind, texts) in [
            (ServiceKind::Up, vec![UP]),
            (ServiceKind::Scheduler, vec![SCHEDULER]),
            (ServiceKind::Runner, vec![WARDEN, RUNNER]),
        ] {
            let place = Place {
                program: Path::new(PROGRAM),
                ..place(&[])
            };
            for (unit, text) in of_system(kind, &place).iter().zip(texts) {
                let text = text.replace("EnvironmentFile=/", "EnvironmentFile=-/");
                assert_eq!(unit.text, format!("{MARK}\n{text}"), "{}", unit.name);
            }
        }
    }

    #[test]
    fn options_and_the_place_of_the_program_are_in_the_command() {
        let options: Vec<String> = ["--label", "a=b c", "100%$x\""].map(str::to_owned).to_vec();
        let mut place = place(&options);
        assert_eq!(
            exec(&of_system(ServiceKind::Up, &place)[0]),
            "/opt/systole up --data-dir /var/lib/systole --token-dir /var/lib/systole/tokens --label \"a=b c\" \"100%%$$x\\\"\" $SYSTOLE_OPTIONS"
        );
        place.joined = true;
        place.has_scheduler_env = false;
        let units = of_system(ServiceKind::Runner, &place);
        assert_eq!(units[0].name, "systole-warden.service");
        assert!(
            exec(&units[0]).starts_with("/opt/systole warden "),
            "{}",
            exec(&units[0])
        );
        assert!(!exec(&units[0]).contains("a=b c"), "options are the runner's");
        assert!(!exec(&units[1]).contains("--token-file"), "{}", exec(&units[1]));
        let scheduler = &of_system(ServiceKind::Scheduler, &place)[0];
        assert!(!exec(scheduler).contains("--listen"), "{}", exec(scheduler));
        place.program = Path::new("/opt/my tools/systole");
        assert!(exec(&of_user(ServiceKind::Up, &place)[0]).starts_with("\"/opt/my tools/systole\" up "));
    }

    #[test]
    fn an_option_of_a_unit_is_not_said_twice() {
        let options = ["--url", "https://db:7410", "--token-file", "/etc/x/token"].map(str::to_owned);
        assert_eq!(
            exec(&of_system(ServiceKind::Runner, &place(&options))[1]),
            "/opt/systole runner --external-warden --data-dir /var/lib/systole/runner --url https://db:7410 --token-file /etc/x/token $SYSTOLE_OPTIONS"
        );
        let options = ["--listen=[::]:7411".to_owned()];
        let scheduler = &of_system(ServiceKind::Scheduler, &place(&options))[0];
        assert_eq!(exec(scheduler).matches("--listen").count(), 1, "{}", exec(scheduler));
        assert!(
            exec(scheduler).contains(" --token-dir /var/lib/systole/tokens "),
            "{}",
            exec(scheduler)
        );
    }

    #[test]
    fn a_unit_of_a_user_asks_for_nothing_that_needs_rights() {
        for kind in ServiceKind::ALL {
            let unit = &of_user(kind, &place(&[]))[0];
            for begin in ["User=", "Protect", "Private", "StateDirectory", "Capability", "System"] {
                assert!(
                    !unit.text.lines().any(|line| line.starts_with(begin)),
                    "{begin}: {}",
                    unit.text
                );
            }
            assert!(unit.text.contains("WantedBy=default.target\n"), "{}", unit.text);
            assert!(
                unit.text.starts_with(MARK) && !unit.text.contains("/var/lib"),
                "{}",
                unit.text
            );
            assert_eq!(exec(unit), format!("/opt/systole {} $SYSTOLE_OPTIONS", kind.command()));
        }
        let keeps = |kind| of_user(kind, &place(&[]))[0].text.contains("KillMode=process\n");
        assert!(
            keeps(ServiceKind::Up) && keeps(ServiceKind::Runner),
            "tasks outlive a restart"
        );
    }
}
