//! Crontabs as jobs, by the rules of crontab(5) of cronie: each line becomes a job, or is refused with the reason. What cron does
//! in another way than systole is said where it matters.

use super::{Import, Imported, Names, Options, Origin, base, word as name_word};
use crate::job::definition::{BlockingKind, JobSpec, RunAs};
use crate::trigger::cron::{Cron, Dialect, NICKNAMES};
use crate::trigger::definition::TriggerSpec;
use crate::trigger::misfire::Misfire;
use crate::trigger::zone::Zone;
use std::collections::{BTreeMap, BTreeSet};

/// A name made of a program.
const NAME_CHARS_MAX: usize = 40;

/// What holds for the lines after it.
struct Settings {
    env: BTreeMap<String, String>,
    zone: String,
    shell: String,
    jitter: Option<String>,
}

/// The first word and what follows the blanks after it.
fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches([' ', '\t']);
    let end = text.find([' ', '\t']).unwrap_or(text.len());
    (end > 0).then(|| (&text[..end], text[end..].trim_start_matches([' ', '\t'])))
}

fn unquoted(text: &str) -> &str {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner;
        }
    }
    text
}

/// `NAME = VALUE`, if the line is one.
fn setting(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = unquoted(name);
    let ok = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    ok.then(|| (name, unquoted(value)))
}

/// The command and what cron writes to its stdin: an unescaped `%` ends a line, the first one begins stdin.
fn split_percent(text: &str) -> (String, Option<String>) {
    let mut command = String::new();
    let mut stdin: Option<String> = None;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        let c = match c {
            '\\' if characters.peek() == Some(&'%') => {
                characters.next();
                '%'
            }
            '%' if stdin.is_none() => {
                stdin = Some(String::new());
                continue;
            }
            '%' => '\n',
            other => other,
        };
        stdin.as_mut().unwrap_or(&mut command).push(c);
    }
    (command, stdin)
}

/// A text for `sh` that gives `stdin` to a command.
fn with_stdin(command: &str, stdin: &str) -> String {
    let mut mark = "SYSTOLE_STDIN".to_owned();
    while stdin.lines().any(|line| line == mark) {
        mark.push('_');
    }
    format!("{{ {command}\n}} <<'{mark}'\n{stdin}\n{mark}")
}

/// The lock file and the rest of `flock -n FILE COMMAND`, where it is as plain as that.
fn plain_flock(command: &str) -> Option<(&str, &str)> {
    let (program, rest) = word(command)?;
    let (option, rest) = word(rest)?;
    let (file, rest) = word(rest)?;
    let plain = program.rsplit('/').next() == Some("flock")
        && matches!(option, "-n" | "--nonblock" | "--nb" | "-xn" | "-nx")
        && !file.starts_with('-')
        && !file.contains(['\'', '"', '$', '`'])
        && !rest.is_empty()
        && !rest.starts_with('-');
    plain.then_some((file, rest))
}

fn uses_flock(command: &str) -> bool {
    word(command).is_some_and(|(program, _)| program.rsplit('/').next() == Some("flock"))
}

/// A name made of the program that a command starts.
fn program_name(command: &str) -> String {
    let mut rest = command;
    let mut found = "job";
    while let Some((next, after)) = word(rest) {
        rest = after;
        let file = next.rsplit('/').next().unwrap_or(next);
        let is_wrapper = matches!(
            file,
            "nice" | "ionice" | "exec" | "env" | "time" | "sudo" | "nohup" | "[" | "test" | "cd"
        );
        let is_other = next.starts_with(['-', '(', '{', '[', '$', '"', '\'']) || next.contains('=');
        if !is_wrapper && !is_other && file.bytes().any(|b| b.is_ascii_alphanumeric()) {
            found = file;
            break;
        }
    }
    let name = name_word(found, "job");
    let short: String = name.trim_end_matches(".sh").chars().take(NAME_CHARS_MAX).collect();
    short
}

struct Reader<'a> {
    file: &'a str,
    system: bool,
    options: &'a Options,
    settings: Settings,
    names: &'a mut Names,
    /// Lock files that more than one line uses.
    shared_locks: BTreeSet<String>,
    out: Import,
}

impl Reader<'_> {
    fn set(&mut self, line: usize, name: &str, value: &str) {
        let mut note = |text: String| self.out.notes.push((Origin::new(self.file, line), text));
        match name {
            "MAILTO" | "MAILFROM" if value.is_empty() => {}
            "MAILTO" | "MAILFROM" => note(format!(
                "{name}={value}: output is not mailed, it is kept: systole logs. Failures show in systole job history"
            )),
            "CRON_TZ" => match Zone::parse(value) {
                Ok(zone) => zone.name().clone_into(&mut self.settings.zone),
                Err(fault) => note(format!(
                    "CRON_TZ={value}: {}; the lines below keep their zone",
                    fault.message
                )),
            },
            "SHELL" => value.clone_into(&mut self.settings.shell),
            "RANDOM_DELAY" => match value.parse::<u32>() {
                Ok(0) => self.settings.jitter = None,
                Ok(minutes) => self.settings.jitter = Some(format!("{minutes}m")),
                Err(_) => note(format!("RANDOM_DELAY={value} is no number of minutes and was left out")),
            },
            "LOGNAME" | "USER" => note(format!("{name} was left out: cron sets it itself")),
            _ if name.starts_with("SYSTOLE_") => note(format!("{name} was left out: such names are kept for systole")),
            _ => {
                if value.contains('$') {
                    note(format!("{name}={value}: cron and systole do not expand the $ in it"));
                }
                self.settings.env.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    fn refuse(&mut self, line: usize, text: &str, reason: impl Into<String>) {
        self.out.refuse(Origin::new(self.file, line), text, reason);
    }

    fn job(&mut self, line: usize, text: &str) {
        let mut notes = Vec::new();
        let mut rest = text;
        // cronie: such a line is not written to syslog.
        if let Some(after) = rest
            .strip_prefix('-')
            .filter(|after| after.starts_with(|c: char| c.is_ascii_digit() || c == '*'))
        {
            rest = after;
        }
        let cron = if rest.starts_with('@') {
            let Some((nickname, after)) = word(rest) else { return };
            rest = after;
            let lower = nickname.to_ascii_lowercase();
            match NICKNAMES.iter().find(|(name, _)| *name == lower) {
                Some((_, cron)) => (*cron).to_owned(),
                None if lower == "@reboot" => {
                    let reason = "a job does not know when a host starts; use a systemd unit with WantedBy=multi-user.target there";
                    return self.refuse(line, text, reason);
                }
                None => return self.refuse(line, text, format!("{nickname} is not known to crontab(5)")),
            }
        } else {
            let mut fields = Vec::new();
            for _ in 0..5 {
                let Some((field, after)) = word(rest) else {
                    return self.refuse(line, text, "has fewer than five fields of time and a command");
                };
                fields.push(field);
                rest = after;
            }
            fields.join(" ")
        };
        if let Err(fault) = Cron::parse(&cron, Dialect::Unix) {
            return self.refuse(line, text, format!("cron {}", fault.message));
        }
        let mut run_as = None;
        if self.system {
            let Some((user, after)) = word(rest) else {
                return self.refuse(line, text, "has no user and no command");
            };
            rest = after;
            if user == "root" {
                notes.push("ran as root; here it runs as the user of the runner".to_owned());
            } else {
                run_as = Some(RunAs {
                    user: Some(user.to_owned()),
                    group: None,
                });
            }
        }
        if !self.system && word(rest).is_some_and(|(first, _)| first == "root") {
            notes.push("root is taken for the program; if it is the user that the line runs as: --system".to_owned());
        }
        if rest.trim().is_empty() {
            let reason = if self.system {
                "has no command"
            } else {
                "has no command; a crontab with a column for the user needs --system"
            };
            return self.refuse(line, text, reason);
        }
        let (command, stdin) = split_percent(rest);
        let mut command = command.trim_end().to_owned();
        let mut blocking = None;
        if let Some((file, inner)) = plain_flock(&command) {
            blocking = Some(BlockingKind::DiscardLater);
            if self.shared_locks.contains(file) {
                notes.push(format!("flock stays: {file} is used by more than one line"));
            } else {
                notes.push(format!(
                    "flock -n {file} became blocking = \"discard_later\", which holds for all hosts"
                ));
                command = inner.to_owned();
            }
        } else if uses_flock(&command) {
            notes.push("flock stays as it is; for all hosts use blocking or a concurrency_group".into());
        }
        let program = program_name(&command);
        if let Some(stdin) = &stdin {
            command = with_stdin(&command, stdin);
        }
        let name = self.names.take(&program);
        let settings = &self.settings;
        let is_sh = matches!(settings.shell.as_str(), "/bin/sh" | "sh" | "");
        let spec = JobSpec {
            shell: is_sh.then(|| command.clone()),
            command: if is_sh {
                Vec::new()
            } else {
                vec![settings.shell.clone(), "-c".into(), command]
            },
            dir: settings.env.get("HOME").filter(|home| home.starts_with('/')).cloned(),
            env: settings.env.clone(),
            run_as,
            blocking,
            trigger: vec![TriggerSpec {
                name: "cron".into(),
                cron: Some(cron),
                zone: Some(settings.zone.clone()),
                jitter: settings.jitter.clone(),
                misfire: Some(Misfire::Skip),
                ..TriggerSpec::default()
            }],
            ..base(name, self.options)
        };
        let job = Imported {
            origin: Origin::new(self.file, line),
            text: text.to_owned(),
            spec,
            notes,
        };
        self.out.add(self.names, job);
    }
}

/// Lock files that more than one line names.
fn shared_locks(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words
            .windows(3)
            .filter(|pair| pair[0].rsplit('/').next() == Some("flock"))
        {
            *seen.entry(pair[2]).or_default() += 1;
        }
    }
    let shared = seen.into_iter().filter(|(_, count)| *count > 1);
    shared.map(|(file, _)| file.to_owned()).collect()
}

/// Reads a crontab. `system`: its lines have a column with the user, as in `/etc/crontab` and `/etc/cron.d`.
pub fn read(file: &str, text: &str, system: bool, options: &Options, names: &mut Names) -> Import {
    let mut reader = Reader {
        file,
        system,
        options,
        settings: Settings {
            env: BTreeMap::new(),
            zone: options.zone.clone(),
            shell: "/bin/sh".into(),
            jitter: None,
        },
        names,
        shared_locks: shared_locks(text),
        out: Import::default(),
    };
    for (index, line) in text.lines().enumerate() {
        let text = line.trim_start();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        // What begins like a time is never a setting, whatever `=` the command has.
        let is_time = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '*' | '@' | '-'));
        match setting(text).filter(|_| !is_time) {
            Some((name, value)) => reader.set(index + 1, name, value),
            None => reader.job(index + 1, text.trim_end()),
        }
    }
    reader.out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::definition::Route;

    fn options() -> Options {
        Options {
            zone: "Europe/Berlin".into(),
            ..Options::default()
        }
    }

    fn import(text: &str, options: &Options) -> Import {
        read("tab", text, false, options, &mut Names::new(&options.prefix))
    }

    fn shells(crontab: &Import) -> Vec<&str> {
        crontab
            .jobs
            .iter()
            .map(|job| job.spec.shell.as_deref().unwrap_or(""))
            .collect()
    }

    #[test]
    fn an_old_crontab_keeps_its_commands_and_the_values_of_their_lines() {
        let text = "TARGET=alpha\n\
            */5\t*   * * *\techo \"$TARGET\" && echo \"two  spaces\"\n\
            0 3 * * 1-5\tdate +\\%Y-\\%m-\\%d\n\
            0 4 * * *\tprintf '%s\\n' \"it's\" 'a \"b\" c'\n\
            TARGET=beta\n\
            15 2 * * sun\techo \"$TARGET\" | tr a-z A-Z   # tail note\n\
            @daily\ttest -n \"$HOME\" || echo nohome; exit 4\n";
        // The third line is meant with `\%` in a crontab.
        let crontab = import(&text.replace("printf '%s", "printf '\\%s"), &options());
        assert_eq!(crontab.refused, []);
        assert_eq!(
            shells(&crontab),
            [
                "echo \"$TARGET\" && echo \"two  spaces\"",
                "date +%Y-%m-%d",
                "printf '%s\\n' \"it's\" 'a \"b\" c'",
                "echo \"$TARGET\" | tr a-z A-Z   # tail note",
                "test -n \"$HOME\" || echo nohome; exit 4",
            ]
        );
        let of = |index: usize| &crontab.jobs[index].spec;
        assert_eq!(
            (of(0).env["TARGET"].as_str(), of(3).env["TARGET"].as_str()),
            ("alpha", "beta")
        );
        let crons: Vec<_> = crontab
            .jobs
            .iter()
            .map(|job| job.spec.trigger[0].cron.as_deref().unwrap_or(""))
            .collect();
        assert_eq!(
            crons,
            ["*/5 * * * *", "0 3 * * 1-5", "0 4 * * *", "15 2 * * sun", "0 0 * * *"]
        );
        let names: Vec<_> = crontab.jobs.iter().map(|job| job.spec.name.as_str()).collect();
        assert_eq!(names, ["echo", "date", "printf", "echo-2", "echo-3"]);
        assert!(crontab.jobs.iter().all(|job| job.spec.paused));
        assert_eq!(crontab.jobs[0].origin, Origin::new("tab", 2));
    }

    #[test]
    fn settings_are_mapped_or_explained() {
        let text = "MAILTO=ops@example.org\nSHELL=/bin/bash\nPATH=/usr/bin:/bin\nHOME=\"/srv/app\"\nRANDOM_DELAY=5\n\
            CRON_TZ=America/New_York\n0 1 * * * ./run\nMAILTO=\"\"\nCRON_TZ=Mars/Olympus\nSHELL=/bin/sh\n0 2 * * * x\n";
        let crontab = import(text, &options());
        let first = &crontab.jobs[0].spec;
        assert_eq!(first.command, ["/bin/bash", "-c", "./run"]);
        assert_eq!(first.dir.as_deref(), Some("/srv/app"));
        assert_eq!(first.trigger[0].zone.as_deref(), Some("America/New_York"));
        assert_eq!(first.trigger[0].jitter.as_deref(), Some("5m"));
        assert_eq!(crontab.jobs[1].spec.shell.as_deref(), Some("x"));
        assert_eq!(
            crontab.jobs[1].spec.trigger[0].zone.as_deref(),
            Some("America/New_York")
        );
        let lines: Vec<usize> = crontab.notes.iter().map(|(origin, _)| origin.line).collect();
        assert_eq!(lines, [1, 9], "{:?}", crontab.notes);
    }

    #[test]
    fn the_user_column_of_a_system_crontab_becomes_run_as() {
        let system = Options {
            host: Some("db-01".into()),
            prefix: "db-01.".into(),
            ..options()
        };
        let text = "17 * * * * www-data cd / && /usr/local/bin/sweep.sh --all\n25 6 * * * root\tlogrotate x\n";
        let without = import(text, &options());
        assert_eq!(without.jobs[0].notes, [""; 0]);
        assert!(
            without.jobs[1].notes[0].contains("--system"),
            "{:?}",
            without.jobs[1].notes
        );
        let crontab = read("tab", text, true, &system, &mut Names::new(&system.prefix));
        let [sweep, logrotate] = &crontab.jobs[..] else {
            panic!("{crontab:?}")
        };
        assert_eq!(
            sweep.spec.run_as.as_ref().and_then(|run| run.user.as_deref()),
            Some("www-data")
        );
        assert_eq!(
            sweep.spec.shell.as_deref(),
            Some("cd / && /usr/local/bin/sweep.sh --all")
        );
        assert_eq!(sweep.spec.name, "db-01.sweep");
        assert_eq!(
            (sweep.spec.route.clone(), sweep.spec.runner.as_deref()),
            (Some(Route::Pinned), Some("db-01"))
        );
        assert_eq!(logrotate.spec.run_as, None);
        assert!(logrotate.notes[0].contains("root"));
    }

    #[test]
    fn percent_signs_give_stdin() {
        let crontab = import("0 1 * * * mail -s \"10\\% left\" ann%Hello,%%bye\n", &options());
        assert_eq!(
            shells(&crontab),
            ["{ mail -s \"10% left\" ann\n} <<'SYSTOLE_STDIN'\nHello,\n\nbye\nSYSTOLE_STDIN"]
        );
    }

    #[test]
    fn flock_becomes_blocking_unless_its_file_is_shared() {
        let text = "0 1 * * * flock -n /run/a.lock /opt/a --x\n0 2 * * * /usr/bin/flock -n /run/b.lock b\n\
            0 3 * * * flock -n /run/b.lock c\n0 4 * * * flock -w 5 /run/d.lock d\n0 5 * * * flock -n /run/e -c 'e; f'\n";
        let crontab = import(text, &options());
        assert_eq!(
            shells(&crontab),
            [
                "/opt/a --x",
                "/usr/bin/flock -n /run/b.lock b",
                "flock -n /run/b.lock c",
                "flock -w 5 /run/d.lock d",
                "flock -n /run/e -c 'e; f'"
            ]
        );
        let blocking: Vec<_> = crontab.jobs.iter().map(|job| job.spec.blocking.is_some()).collect();
        assert_eq!(blocking, [true, true, true, false, false]);
        assert!(crontab.jobs.iter().all(|job| job.notes.len() == 1), "{crontab:?}");
    }

    #[test]
    fn what_cannot_be_mapped_is_refused_line_by_line_with_the_reason() {
        let text = "@reboot /opt/start\n@every 5m x\n0 25 * * * x\n* * * x\n0 1 * * *\nnonsense\n0 9 * * 1-8 x\n* * * * * true\n";
        let crontab = import(text, &options());
        let refused: Vec<_> = crontab
            .refused
            .iter()
            .map(|line| (line.origin.line, line.reason.as_str()))
            .collect();
        let expected = [
            (1, "systemd"),
            (2, "@every"),
            (3, "hour 25"),
            (4, "fewer than five"),
            (5, "no command"),
            (6, "fewer than five"),
            (7, "day of week 8"),
        ];
        assert_eq!(refused.len(), expected.len(), "{refused:?}");
        for ((line, reason), (expected_line, words)) in refused.into_iter().zip(expected) {
            assert_eq!(line, expected_line, "{reason}");
            assert!(reason.contains(words), "{line}: {reason}");
        }
        assert_eq!(shells(&crontab), ["true"]);
    }
}
