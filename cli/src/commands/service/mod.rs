//! `systole service`: systole as a unit of systemd.

mod systemd;
mod unit;

use crate::args::{self, Command, Format, Global, InstallArgs, ServiceAction, ServiceArgs, ServiceKind, UninstallArgs};
use crate::failure::{Failure, io_cause};
use crate::output::table::{self, Column, plain};
use crate::output::{self, Output, json};
use crate::{exit_code, paths};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use systemd::Systemd;
use unit::{MARK, Place, Unit};

const COLUMNS: [Column; 5] = [
    Column::whole("UNIT"),
    Column::whole("ACTIVE"),
    Column::whole("ENABLED"),
    Column::whole("PROCESS"),
    Column::cut("FILE", 10).droppable(1),
];
/// Where units of the machine are.
const SYSTEM_UNITS: &str = "/etc/systemd/system";
/// Where a package has them.
const PACKAGE_UNITS: &str = "/usr/lib/systemd/system";
/// Where those have their data.
const SYSTEM_DATA: &str = "/var/lib/systole";
/// The token of a runner of the machine that has not joined.
const SYSTEM_TOKEN: &str = "/etc/systole/runner.token";
/// A unit that does not fail within this runs.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Longest wait for it to run at all.
const STARTED_WITHIN: Duration = Duration::from_secs(20);

pub fn run(global: &Global, args: &ServiceArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    match &args.action {
        ServiceAction::Install(args) => install(&output, args),
        ServiceAction::Uninstall(args) => uninstall(&output, args),
        ServiceAction::Status(args) => status(&output, args.system),
    }
}

fn unit_dir(system: bool) -> Result<PathBuf, Failure> {
    if system {
        return Ok(SYSTEM_UNITS.into());
    }
    let config = paths::variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| paths::variable("HOME").map(|home| PathBuf::from(home).join(".config")))
        .ok_or_else(|| Failure::usage("neither HOME nor XDG_CONFIG_HOME is set, so there is no place for units"))?;
    Ok(config.join("systemd/user"))
}

fn install(output: &Output, args: &InstallArgs) -> Result<u8, Failure> {
    let (kind, system) = (args.kind, args.scope.system);
    let options = checked(kind, &args.options)?;
    let program = program(system)?;
    let place = Place {
        program: &program,
        options: &options,
        joined: system && has_joined(&Path::new(SYSTEM_DATA).join("runner")),
        has_scheduler_env: Path::new("/etc/systole/scheduler.env").is_file(),
    };
    let units = if system {
        unit::of_system(kind, &place)
    } else {
        unit::of_user(kind, &place)
    };
    let dir = unit_dir(system)?;
    if args.dry_run {
        print(output, &dir, &units);
        return Ok(exit_code::OK);
    }
    if system && !nix::unistd::geteuid().is_root() {
        return Err(Failure::refused(
            "--system writes to /etc/systemd/system and needs root: use sudo, or leave out --system",
        ));
    }
    let systemd = Systemd::connect(system)?;
    check_place(kind, &dir, &units, &options, system)?;
    if system {
        make_account()?;
    }
    let names: Vec<&str> = units.iter().map(|unit| unit.name).collect();
    let changed = write(&dir, &units)?;
    systemd.tell(&["daemon-reload"])?;
    systemd.tell(&[&["enable"][..], names.as_slice()].concat())?;
    let verb = if changed { "restart" } else { "start" };
    systemd.tell(&[&[verb][..], names.as_slice()].concat())?;
    for name in &names {
        until_settled(systemd, name)?;
    }
    output.note(&format!(
        "{} {} and {} now; log: {} -u {}",
        names.join(" and "),
        if names.len() == 1 {
            "is installed"
        } else {
            "are installed"
        },
        if names.len() == 1 { "runs" } else { "run" },
        systemd.log_words(),
        names[names.len() - 1].trim_end_matches(".service"),
    ));
    if system {
        note_token(output, kind);
    } else {
        note_lingering(output);
    }
    note_build_folder(output, &program);
    tell(output, systemd, &dir, &names);
    Ok(exit_code::OK)
}

fn has_joined(data: &Path) -> bool {
    systole_runner::credential::Credential::load(data).is_ok_and(|found| found.is_some())
}

/// Root has no token of its own there, and would be told that none is known.
fn note_token(output: &Output, kind: ServiceKind) {
    let token = Path::new(SYSTEM_DATA).join("tokens/admin.token");
    if kind != ServiceKind::Runner && token.is_file() {
        output.note(&format!(
            "the admin token is readable by root and systole alone: SYSTOLE_TOKEN_FILE={} systole ls",
            token.display()
        ));
    }
}

/// The options of the service, as its own command takes them.
fn checked(kind: ServiceKind, options: &[std::ffi::OsString]) -> Result<Vec<String>, Failure> {
    let words: Result<Vec<String>, Failure> = options
        .iter()
        .map(|option| {
            option
                .to_str()
                .filter(|text| !text.contains(['\n', '\0']))
                .map(str::to_owned)
                .ok_or_else(|| Failure::usage("OPTION: must be UTF-8 and of one line"))
        })
        .collect();
    let words = words?;
    let line = ["systole", kind.command()]
        .into_iter()
        .chain(words.iter().map(String::as_str));
    let refused = |message: &str| Failure::usage(format!("options of `systole {}`: {message}", kind.command()));
    let cli = args::parse(line).map_err(|error| {
        let text = error.to_string();
        refused(text.lines().next().unwrap_or_default().trim_start_matches("error: "))
    })?;
    match &cli.command {
        Command::Up(args) if args.detach || args.detached => Err(refused("--detach is not for a service, which stays")),
        Command::Runner(args) if args.join.is_some() => Err(refused(
            "--join reads a token from stdin, which a service has not; join first, with --join-only, and install then",
        )),
        _ => Ok(words),
    }
}

/// The program where systemd will look for it at each start.
fn program(system: bool) -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()
        .and_then(|path| path.canonicalize())
        .map_err(|error| Failure::unexpected(format!("the path of this program is not known: {}", io_cause(&error))))?;
    // Where user systole may not go, or what does not stay.
    let private = ["/home", "/root", "/tmp", "/var/tmp", "/run/user"];
    if system && private.iter().any(|dir| program.starts_with(dir)) {
        return Err(Failure::refused(format!(
            "{0} is in a folder that user systole has not. First: sudo install -m 0755 {0} /usr/local/bin/systole; then /usr/local/bin/systole service install --system",
            program.display()
        )));
    }
    Ok(program)
}

fn note_build_folder(output: &Output, program: &Path) {
    if program.components().any(|part| part.as_os_str() == "target") {
        output.note(&format!(
            "{} looks like a build folder, which is emptied some day; copy the program to ~/.local/bin or /usr/local/bin and install from there",
            program.display()
        ));
    }
}

fn print(output: &Output, dir: &Path, units: &[Unit]) {
    let path = |unit: &Unit| dir.join(unit.name).display().to_string();
    let planned = |unit: &Unit| json::PlannedUnit {
        path: path(unit),
        text: unit.text.clone(),
    };
    match output.format {
        Format::Json => json::document(&json::PlannedUnits {
            units: units.iter().map(planned).collect(),
        }),
        Format::Jsonl => units.iter().for_each(|unit| json::object(&planned(unit))),
        Format::Id => units.iter().for_each(|unit| output::line(&path(unit))),
        Format::Table | Format::Wide => units.iter().for_each(|unit| {
            output::line(&format!("# {}", path(unit)));
            output::line(&unit.text);
        }),
    }
}

/// What would not work later, or takes something away that is not ours.
fn check_place(kind: ServiceKind, dir: &Path, units: &[Unit], options: &[String], system: bool) -> Result<(), Failure> {
    for unit in units {
        let path = dir.join(unit.name);
        if std::fs::read_to_string(&path).is_ok_and(|text| !text.starts_with(MARK)) {
            return Err(Failure::refused(format!(
                "{} was not written by systole and is left alone; move it away first, if it may be replaced",
                path.display()
            )));
        }
    }
    let says = |names: &[&str]| {
        options.iter().any(|option| {
            names
                .iter()
                .any(|name| option == name || option.starts_with(&format!("{name}=")))
        })
    };
    let env = |name: &str| {
        if system {
            Some(Path::new("/etc/systole").join(name))
        } else {
            paths::contexts_file().map(|file| file.with_file_name(name))
        }
    };
    let has_env = env(&format!("{}.env", kind.command())).is_some_and(|file| file.is_file());
    match kind {
        _ if system && says(&["--data-dir"]) => Err(Failure::usage(format!(
            "--data-dir: services of the machine have their data in {SYSTEM_DATA}; leave it out, or mount a disk there"
        ))),
        ServiceKind::Scheduler if !says(&["--database"]) && !has_env => Err(Failure::usage(
            "a scheduler needs its database: … -- --database postgres://USER@HOST/NAME, or SYSTOLE_DATABASE=… in the file of its environment (see deploy/README.md), where a password belongs",
        )),
        ServiceKind::Runner if !says(&["--url"]) && !has_env => {
            let data = match system {
                true => Path::new(SYSTEM_DATA).join("runner"),
                false => paths::data_dir()?.join("runner"),
            };
            match systole_runner::credential::Credential::load(&data) {
                Ok(Some(_)) => Ok(()),
                _ => Err(Failure::usage(format!(
                    "this host has joined no cluster with the data in {}. Join first: paste the line of `systole join-command`, with --join-only{} at its end; or say where the scheduler is: … -- --url URL --token-file FILE",
                    data.display(),
                    if system {
                        " --data-dir /var/lib/systole/runner"
                    } else {
                        ""
                    }
                ))),
            }
        }
        ServiceKind::Runner
            if system
                && !says(&["--token-file"])
                && !Path::new(SYSTEM_TOKEN).is_file()
                && !has_joined(&Path::new(SYSTEM_DATA).join("runner")) =>
        {
            Err(Failure::usage(format!(
                "this host has joined no cluster, so it needs the runner token in {SYSTEM_TOKEN}, readable by user systole (deploy/README.md has the commands), or … -- --token-file FILE; or join first, with the line of `systole join-command`"
            )))
        }
        ServiceKind::Up if !system => match crate::instance::running(&paths::data_dir()?)? {
            Some(facts) if !facts.as_ref().is_some_and(|facts| facts.service) => Err(Failure::refused(format!(
                "{}. First: systole down",
                crate::instance::describe(facts.as_ref(), &paths::data_dir()?)
            ))),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// User systole, as whom the units of the machine run.
fn make_account() -> Result<(), Failure> {
    if let Ok(Some(_)) = nix::unistd::User::from_name("systole") {
        return Ok(());
    }
    let made = std::process::Command::new("useradd")
        .args([
            "--system",
            "--user-group",
            "--home-dir",
            SYSTEM_DATA,
            "--shell",
            "/usr/sbin/nologin",
            "systole",
        ])
        .output();
    match made {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(Failure::unexpected(format!(
            "user systole cannot be made: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
        Err(error) => Err(Failure::unexpected(format!(
            "user systole cannot be made: useradd: {}; make a system user of this name",
            io_cause(&error)
        ))),
    }
}

/// Whether any was new or another.
fn write(dir: &Path, units: &[Unit]) -> Result<bool, Failure> {
    let cannot = |path: &Path, error: &std::io::Error| {
        Failure::unexpected(format!("{} cannot be written: {}", path.display(), io_cause(error)))
    };
    std::fs::create_dir_all(dir).map_err(|error| cannot(dir, &error))?;
    let mut changed = false;
    for unit in units {
        let path = dir.join(unit.name);
        if std::fs::read_to_string(&path).is_ok_and(|text| text == unit.text) {
            continue;
        }
        let part = dir.join(format!(".{}.{}", unit.name, std::process::id()));
        std::fs::File::create(&part)
            .and_then(|mut file| file.write_all(unit.text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&part, &path))
            .map_err(|error| {
                let _ = std::fs::remove_file(&part);
                cannot(&path, &error)
            })?;
        changed = true;
    }
    Ok(changed)
}

/// A wrong setting ends a service at once; it must not look as if it was installed.
fn until_settled(systemd: Systemd, unit: &str) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut active_since: Option<Instant> = None;
    loop {
        let state = systemd.property(unit, "ActiveState");
        match state.as_str() {
            "active" => {
                let since = *active_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= SETTLED_AFTER {
                    return Ok(());
                }
            }
            "failed" => break,
            _ => active_since = None,
        }
        if begin.elapsed() > STARTED_WITHIN {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(Failure::unexpected(format!(
        "{unit} is installed but does not run; why: {} -u {} -n 20 --no-pager",
        systemd.log_words(),
        unit.trim_end_matches(".service")
    )))
}

fn user_name() -> String {
    match nix::unistd::User::from_uid(nix::unistd::geteuid()) {
        Ok(Some(user)) => user.name,
        _ => nix::unistd::geteuid().to_string(),
    }
}

fn note_lingering(output: &Output) {
    let user = user_name();
    output.note(&match systemd::lingers(&user) {
        Some(true) => format!("{user} lingers: it starts with the machine and stays after the logout"),
        _ => "it runs while you have a session. To start it with the machine and keep it after the logout: loginctl enable-linger"
            .to_owned(),
    });
}

fn uninstall(output: &Output, args: &UninstallArgs) -> Result<u8, Failure> {
    let system = args.scope.system;
    let dir = unit_dir(system)?;
    let installed = installed(&dir, system, args.kind);
    if installed.is_empty() {
        output.note(&format!(
            "nothing to take away: no unit of systole in {}",
            dir.display()
        ));
        return Ok(exit_code::OK);
    }
    if system && !nix::unistd::geteuid().is_root() {
        return Err(Failure::refused("--system needs root: use sudo"));
    }
    let systemd = Systemd::connect(system)?;
    systemd.tell(&[&["disable", "--now"][..], installed.as_slice()].concat())?;
    for name in &installed {
        let path = dir.join(name);
        std::fs::remove_file(&path).map_err(|error| {
            Failure::unexpected(format!("{} cannot be removed: {}", path.display(), io_cause(&error)))
        })?;
    }
    systemd.tell(&["daemon-reload"])?;
    let data = if system {
        SYSTEM_DATA.to_owned()
    } else {
        paths::with_tilde(&paths::data_dir()?)
    };
    output.note(&format!(
        "stopped and removed: {}. Data stay in {data}; {}",
        installed.join(", "),
        what_of_tasks(&installed)
    ));
    Ok(exit_code::OK)
}

/// Those that run here, after these units were stopped.
fn what_of_tasks(units: &[&str]) -> &'static str {
    if units.contains(&"systole-warden.service") {
        "the tasks of this host were ended"
    } else if units == ["systole-scheduler.service"] {
        "runners go on with their tasks, and deliver the results to a scheduler that is back"
    } else {
        "a task that runs is ended within 15 minutes, unless a runner takes it over"
    }
}

/// Units of ours that are there.
fn installed(dir: &Path, system: bool, kind: Option<ServiceKind>) -> Vec<&'static str> {
    ServiceKind::ALL
        .into_iter()
        .filter(|candidate| kind.is_none_or(|kind| kind == *candidate))
        .flat_map(|kind| unit::names(kind, system))
        .copied()
        .filter(|name| std::fs::read_to_string(dir.join(name)).is_ok_and(|text| text.starts_with(MARK)))
        .collect()
}

fn status(output: &Output, system: bool) -> Result<u8, Failure> {
    let dir = unit_dir(system)?;
    let names = installed(&dir, system, None);
    if names.is_empty() {
        let there = |dir: &Path| {
            let mut names = ServiceKind::ALL.into_iter().flat_map(|kind| unit::names(kind, true));
            names.any(|name| dir.join(name).is_file())
        };
        output.note(&if system && (there(&dir) || there(Path::new(PACKAGE_UNITS))) {
            "no unit was written by `systole service install`; those of a package, or written by hand: systemctl status 'systole*'".to_owned()
        } else {
            format!("no unit of systole in {}; see `systole service install --help`", dir.display())
        });
        if !output.format.is_for_people() {
            tell_units(output, system, &[]);
        }
        return Ok(exit_code::NO);
    }
    let systemd = Systemd::connect(system)?;
    let units = tell(output, systemd, &dir, &names);
    if !system && output.format.is_for_people() {
        note_lingering(output);
    }
    Ok(if units.iter().all(|unit| unit.active == "active") {
        exit_code::OK
    } else {
        output.note(&format!("more: {} status {}", systemd.words(), names.join(" ")));
        exit_code::NO
    })
}

fn tell(output: &Output, systemd: Systemd, dir: &Path, names: &[&str]) -> Vec<json::Unit> {
    let units: Vec<json::Unit> = names
        .iter()
        .map(|name| json::Unit {
            name: (*name).to_owned(),
            path: dir.join(name).display().to_string(),
            active: systemd.property(name, "ActiveState"),
            enabled: systemd.property(name, "UnitFileState"),
            pid: systemd.property(name, "MainPID").parse().ok().filter(|pid| *pid != 0),
        })
        .collect();
    tell_units(output, systemd.system, &units);
    units
}

fn tell_units(output: &Output, system: bool, units: &[json::Unit]) {
    let document = json::Services {
        scope: if system { "system" } else { "user" },
        units: units.to_vec(),
        lingers: if system { None } else { systemd::lingers(&user_name()) },
    };
    match output.format {
        Format::Json => json::document(&document),
        Format::Jsonl => units.iter().for_each(json::object),
        Format::Id => units.iter().for_each(|unit| output::line(&unit.name)),
        Format::Table | Format::Wide => {
            let rows: Vec<Vec<table::Text>> = units
                .iter()
                .map(|unit| {
                    vec![
                        plain(unit.name.clone()),
                        plain(unit.active.clone()),
                        plain(unit.enabled.clone()),
                        plain(unit.pid.map_or_else(String::new, |pid| pid.to_string())),
                        plain(unit.path.clone()),
                    ]
                })
                .collect();
            table::print(&COLUMNS, &rows, output);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::what_of_tasks;

    #[test]
    fn what_becomes_of_tasks_is_told_by_who_has_them() {
        assert!(what_of_tasks(&["systole-warden.service", "systole-runner.service"]).contains("were ended"));
        assert!(what_of_tasks(&["systole-runner.service"]).contains("15 minutes"));
        assert!(what_of_tasks(&["systole.service", "systole-scheduler.service"]).contains("15 minutes"));
        assert!(what_of_tasks(&["systole-scheduler.service"]).contains("go on"));
    }
}
