//! A service unit as what a job does.

use super::exec::{self, Command, Specifiers};
use super::unit::{Setting, Unit, span_ms};
use super::{about, because};
use crate::job::definition::{LimitsSpec, RetryKind, RetrySpec, RunAs};
use crate::job::import::{cut, size};
use crate::limits::{DESCRIPTION_CHARS_MAX, KILL_GRACE_MS_MAX, RETRIES_MAX};
use crate::plural::counted;
use crate::time::exact_duration;
use std::collections::BTreeMap;

/// How often systemd starts a service that fails, within 10 seconds, unless told otherwise.
const START_LIMIT: u32 = 5;
/// From a failure to the next start, ms, unless told otherwise.
const RESTART_MS: u64 = 100;

/// What a service says of a job.
#[derive(Debug, Default)]
pub struct Parts {
    pub description: Option<String>,
    pub runbook: Option<String>,
    pub command: Vec<String>,
    pub shell: Option<String>,
    pub dir: Option<String>,
    pub env: BTreeMap<String, String>,
    pub env_file: Option<String>,
    pub run_as: Option<RunAs>,
    pub umask: Option<String>,
    pub timeout: Option<String>,
    pub kill_signal: Option<String>,
    pub kill_grace: Option<String>,
    pub limits: Option<LimitsSpec>,
    pub retry: Option<RetrySpec>,
    pub notes: Vec<String>,
}

struct Reader<'a> {
    unit: &'a Unit,
    specifiers: &'a Specifiers,
    parts: Parts,
}

/// What the manager itself puts into the environment of a service.
const SET_BY_SYSTEMD: [&str; 5] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL"];

impl<'a> Reader<'a> {
    fn last(&self, key: &str) -> Option<&'a Setting> {
        self.unit.last("Service", key)
    }

    fn note(&mut self, setting: &Setting, text: &str) {
        self.parts.notes.push(about(setting, text));
    }

    fn expanded(&self, setting: &Setting) -> Result<String, String> {
        self.specifiers
            .expand(&setting.value)
            .map_err(|error| because(setting, error))
    }

    /// A span; `None` where it is not given, or endless.
    fn span(&self, key: &str) -> Result<Option<(u64, &'a Setting)>, String> {
        let Some(setting) = self.last(key) else { return Ok(None) };
        let ms = span_ms(&setting.value).map_err(|error| because(setting, error))?;
        // 0 is none, too.
        Ok(ms.filter(|&ms| ms > 0).map(|ms| (ms, setting)))
    }

    /// Whether the service is over when its commands are.
    fn is_oneshot(&mut self) -> Result<bool, String> {
        let Some(setting) = self.last("Type") else {
            return Ok(false);
        };
        match setting.value.as_str() {
            "oneshot" => return Ok(true),
            "simple" | "exec" | "idle" => {}
            "forking" => {
                return Err(because(
                    setting,
                    "what it leaves behind would be ended with the task; start it without forking",
                ));
            }
            _ => self.note(
                setting,
                "nobody waits for its readiness; a run lasts as long as the command",
            ),
        }
        Ok(false)
    }

    fn environment(&mut self) -> Result<(), String> {
        for setting in self.unit.all("Service", "Environment") {
            let found = exec::assignments(&setting.value, self.specifiers).map_err(|error| because(setting, error))?;
            for (name, value) in found {
                if name.starts_with("SYSTOLE_") {
                    self.note(setting, "such names are kept for systole, and it was left out");
                } else {
                    self.parts.env.insert(name, value);
                }
            }
        }
        for setting in self.unit.all("Service", "EnvironmentFile") {
            let expanded = self.expanded(setting)?;
            let (optional, path) = match expanded.strip_prefix('-') {
                Some(path) => (true, path),
                None => (false, expanded.as_str()),
            };
            if self.parts.env_file.is_some() || path.contains(['*', '?', '[']) {
                self.note(setting, "LEFT OUT: a job has one env_file; put all of them into one");
                continue;
            }
            self.parts.env_file = Some(path.to_owned());
            let mut words = "is env_file, read on the host of the run with the rights of its user".to_owned();
            if optional {
                words.push_str("; there it must exist");
            }
            if !self.parts.env.is_empty() {
                words.push_str("; what Environment= says wins, other than with systemd");
            }
            self.note(setting, &words);
        }
        Ok(())
    }

    fn commands_of(&mut self, key: &str) -> Result<Vec<Command>, String> {
        let mut all = Vec::new();
        for setting in self.unit.all("Service", key) {
            let found = exec::commands(&setting.value, self.specifiers).map_err(|error| because(setting, error))?;
            for command in found {
                for note in &command.notes {
                    self.note(setting, note);
                }
                for name in command.split_variables() {
                    if self
                        .parts
                        .env
                        .get(name)
                        .is_some_and(|value| value.contains(['"', '\'', '\\']))
                    {
                        self.note(
                            setting,
                            &format!("quotes in ${name} are not taken away by /bin/sh, as systemd does"),
                        );
                    }
                }
                all.push(command);
            }
        }
        Ok(all)
    }

    fn commands(&mut self, oneshot: bool) -> Result<(), String> {
        let mut all = self.commands_of("ExecStartPre")?;
        let main = self.commands_of("ExecStart")?;
        if main.is_empty() {
            return Err("has no ExecStart=, so that there is nothing to run".into());
        }
        all.extend(main);
        if oneshot {
            all.extend(self.commands_of("ExecStartPost")?);
        } else {
            for setting in self.unit.all("Service", "ExecStartPost") {
                self.note(setting, "ran beside the command once it was started, and is left out");
            }
        }
        if let [only] = &all[..]
            && let Some(argv) = only.argv().filter(|_| !only.may_fail)
        {
            self.parts.command = argv;
            return Ok(());
        }
        let mut lines = Vec::new();
        if all.iter().any(Command::splits) {
            // A variable becomes words, and none of them a list of files.
            lines.push("set -f".to_owned());
        }
        if all.len() > 1 {
            lines.push("set -e".into());
            self.parts.notes.push(format!(
                "{} commands became one text of /bin/sh, which ends with the first that fails (not with those that have the prefix -)",
                all.len()
            ));
        }
        for (index, command) in all.iter().enumerate() {
            let line = command.shell();
            lines.push(match (command.may_fail, index + 1 == all.len()) {
                (true, _) => format!("{line} || true"),
                (false, true) => format!("exec {line}"),
                (false, false) => line,
            });
        }
        if all.iter().any(|command| command.argv().is_none()) {
            self.parts
                .notes
                .push("variables of the command line are left to /bin/sh".into());
            self.unknown_variables(&lines.join("\n"));
        }
        self.parts.shell = Some(lines.join("\n"));
        Ok(())
    }

    /// Variables that nothing here gives a value.
    fn unknown_variables(&mut self, text: &str) {
        if self.parts.env_file.is_some() {
            return;
        }
        let mut missing: Vec<&str> = Vec::new();
        for (at, _) in text.match_indices("\"${") {
            let name = text[at + 3..].split('}').next().unwrap_or_default();
            let known = self.parts.env.contains_key(name) || SET_BY_SYSTEMD.contains(&name);
            if !known && !missing.contains(&name) {
                missing.push(name);
            }
        }
        let notes = missing
            .iter()
            .map(|name| format!("${{{name}}} has no value here: it is empty"));
        self.parts.notes.extend(notes);
    }

    fn account(&mut self) -> Result<(), String> {
        let user = self.last("User").map(|setting| self.expanded(setting)).transpose()?;
        let group = self.last("Group").map(|setting| self.expanded(setting)).transpose()?;
        let is_root = |name: &String| name == "root" || name == "0";
        if user.as_ref().is_none_or(is_root) && !self.specifiers.of_user && !self.unit.is_yes("Service", "DynamicUser")
        {
            self.parts
                .notes
                .push("ran as root; here it runs as the user of the runner".into());
        }
        let run_as = RunAs {
            user: user.filter(|user| !is_root(user)),
            group: group.filter(|group| !is_root(group)),
        };
        self.parts.run_as = Some(run_as).filter(|run_as| *run_as != RunAs::default());
        Ok(())
    }

    fn directory(&mut self) -> Result<(), String> {
        let Some(setting) = self.last("WorkingDirectory") else {
            return Ok(());
        };
        let expanded = self.expanded(setting)?;
        let (optional, path) = match expanded.strip_prefix('-') {
            Some(path) => (true, path),
            None => (false, expanded.as_str()),
        };
        if path == "~" {
            self.note(setting, "left out: write the home of the user as dir");
            return Ok(());
        }
        if optional {
            self.note(setting, "here the directory must exist");
        }
        self.parts.dir = Some(path.to_owned());
        Ok(())
    }

    fn times(&mut self, oneshot: bool) -> Result<(), String> {
        let both = self.span("TimeoutSec")?;
        let start = self.span("TimeoutStartSec")?.or(both);
        let whole = self.span("RuntimeMaxSec")?;
        match (oneshot, start, whole) {
            // Of a oneshot service the start is the whole run.
            (true, Some((ms, _)), _) | (false, _, Some((ms, _))) => self.parts.timeout = Some(exact_duration(ms)),
            (false, Some((_, setting)), None) => {
                self.note(
                    setting,
                    "bounded the start only, which is over at once; timeout bounds a run",
                );
            }
            _ => {}
        }
        if let Some((ms, setting)) = self.span("TimeoutStopSec")?.or(both) {
            if ms > KILL_GRACE_MS_MAX {
                self.note(
                    setting,
                    &format!("cut to {} (kill_grace)", exact_duration(KILL_GRACE_MS_MAX)),
                );
            }
            self.parts.kill_grace = Some(exact_duration(ms.min(KILL_GRACE_MS_MAX)));
        }
        let signal = self
            .last("KillSignal")
            .map(|setting| setting.value.trim_start_matches("SIG").to_owned());
        self.parts.kill_signal = signal.filter(|signal| signal != "TERM");
        Ok(())
    }

    fn limits(&mut self) {
        let mut limits = LimitsSpec::default();
        for key in ["MemoryLimit", "MemoryMax"] {
            limits.memory_max = self.bytes(key).or(limits.memory_max);
        }
        limits.file_size_max = self.bytes("LimitFSIZE");
        limits.core_size_max = self.bytes("LimitCORE").filter(|text| text != "0");
        limits.pids_max = self.number("TasksMax");
        limits.open_files_max = self.number("LimitNOFILE");
        if let Some(setting) = self.last("Nice") {
            match setting.value.parse::<i32>() {
                Ok(nice) if nice < 0 => self.note(setting, "no task goes before others of its host; left out"),
                Ok(nice) => limits.nice = u32::try_from(nice).ok(),
                Err(_) => self.note(setting, "is no number; left out"),
            }
        }
        if let Some(setting) = self.last("CPUQuota") {
            let percent = setting
                .value
                .strip_suffix('%')
                .and_then(|number| number.parse::<u32>().ok());
            match percent {
                Some(percent) => limits.cpu_max = Some(f64::from(percent) / 100.0),
                None => self.note(setting, "is no percentage; left out"),
            }
        }
        self.parts.limits = Some(limits).filter(|limits| *limits != LimitsSpec::default());
    }

    /// The upper one of `soft:hard`, as a number and its unit; `None` where it is not given, endless or told to be left out.
    fn amount(&mut self, key: &str) -> Option<u64> {
        let setting = self.last(key)?;
        let text = setting.value.rsplit(':').next().unwrap_or_default();
        if text == "infinity" {
            return None;
        }
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let shift = match text[digits.len()..].trim() {
            "" | "B" => Some(0),
            "K" => Some(10),
            "M" => Some(20),
            "G" => Some(30),
            "T" => Some(40),
            _ => None,
        };
        let amount = digits
            .parse::<u64>()
            .ok()
            .zip(shift)
            .and_then(|(number, shift)| number.checked_mul(1 << shift));
        if amount.is_none() {
            self.note(setting, "is no fixed amount; left out");
        }
        amount
    }

    fn bytes(&mut self, key: &str) -> Option<String> {
        self.amount(key).map(size)
    }

    fn number(&mut self, key: &str) -> Option<u32> {
        self.amount(key).and_then(|number| u32::try_from(number).ok())
    }

    fn restart(&mut self) -> Result<(), String> {
        let Some(setting) = self.last("Restart") else {
            return Ok(());
        };
        let kinds: &[&str] = match setting.value.as_str() {
            "no" => return Ok(()),
            "on-failure" => &[],
            "on-abnormal" => &["signal", "timeout"],
            "on-abort" => &["signal"],
            "always" | "on-success" => {
                return Err(because(
                    setting,
                    "it is a service that never ends, not a job; write a trigger fixed_delay for what runs again and again",
                ));
            }
            _ => {
                self.note(setting, "is not watched here; left out");
                return Ok(());
            }
        };
        let delay = self.span("RestartSec")?.map_or(RESTART_MS, |(ms, _)| ms);
        let burst = self
            .unit
            .last("Unit", "StartLimitBurst")
            .or_else(|| self.last("StartLimitBurst"));
        let starts = burst
            .and_then(|setting| setting.value.parse::<u32>().ok())
            .unwrap_or(START_LIMIT);
        let retries = starts.saturating_sub(1).clamp(1, RETRIES_MAX);
        self.note(
            setting,
            &format!(
                "is retry, {} at most; systemd goes on as long as it does not start too often",
                counted(retries, "time")
            ),
        );
        self.parts.retry = Some(RetrySpec {
            policy: Some(RetryKind::Fixed),
            max_retries: Some(retries),
            delay: Some(exact_duration(delay)),
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            ..RetrySpec::default()
        });
        Ok(())
    }

    fn description(&mut self) {
        let description = self.unit.last("Unit", "Description");
        self.parts.description = description
            .and_then(|setting| self.expanded(setting).ok())
            .map(|text| cut(&text, DESCRIPTION_CHARS_MAX));
        let pages = self.unit.all("Unit", "Documentation");
        let mut page = pages.iter().flat_map(|setting| setting.value.split_whitespace());
        self.parts.runbook = page.find(|page| page.starts_with("http")).map(str::to_owned);
    }
}

/// Reads a service. A refusal is one sentence.
pub fn read(unit: &Unit, specifiers: &Specifiers) -> Result<Parts, String> {
    let mut reader = Reader {
        unit,
        specifiers,
        parts: Parts::default(),
    };
    for key in ["RootDirectory", "RootImage"] {
        if let Some(setting) = reader.last(key) {
            return Err(because(
                setting,
                "the command is in another root; a job's is on its host",
            ));
        }
    }
    let oneshot = reader.is_oneshot()?;
    reader.environment()?;
    reader.commands(oneshot)?;
    reader.account()?;
    reader.directory()?;
    reader.times(oneshot)?;
    reader.limits();
    reader.restart()?;
    reader.description();
    let umask = reader.last("UMask").map(|setting| setting.value.clone());
    reader.parts.umask = umask;
    Ok(reader.parts)
}
