//! What ran elsewhere, as jobs. Pure: whoever calls reads the files. Each entry becomes a job, or is refused with the reason; what
//! systole does in another way, or not at all, is said of each field. A job is only made of what is certain: what would run
//! something else than before is refused, not guessed.

pub mod crontab;
pub mod kubernetes;
pub mod systemd;
pub mod xxl_job;

use super::compile::TriggerContext;
use super::definition::{JobSpec, Route};
use crate::error::Invalid;
use crate::limits::WORD_CHARS_MAX;
use crate::task::limits::exact_bytes;
use crate::trigger::custom::Registry;
use crate::trigger::zone::Zone;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What holds for all entries of a call.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The zone of whatever they come from, where they name none.
    pub zone: String,
    /// Only this host runs the jobs.
    pub host: Option<String>,
    /// Before the name of each job.
    pub prefix: String,
}

/// Where an entry stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    pub file: String,
    /// From 1.
    pub line: usize,
}

impl Origin {
    pub fn new(file: &str, line: usize) -> Self {
        Self {
            file: file.to_owned(),
            line,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// An entry that became a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    pub origin: Origin,
    pub text: String,
    pub spec: JobSpec,
    /// What to know about it.
    pub notes: Vec<String>,
}

/// An entry that did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub origin: Origin,
    pub text: String,
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Import {
    pub jobs: Vec<Imported>,
    pub refused: Vec<Refused>,
    /// About what belongs to no single job.
    pub notes: Vec<(Origin, String)>,
}

impl Import {
    pub fn refuse(&mut self, origin: Origin, text: impl Into<String>, reason: impl Into<String>) {
        self.refused.push(Refused {
            origin,
            text: text.into(),
            reason: reason.into(),
        });
    }

    /// Takes a job in, if the rules of job files allow it.
    pub fn add(&mut self, names: &mut Names, job: Imported) {
        match check(&job.spec) {
            Ok(()) => self.jobs.push(job),
            Err(faults) => {
                names.give_back(&job.spec.name);
                let reasons: Vec<String> = faults.iter().map(ToString::to_string).collect();
                self.refuse(job.origin, job.text, reasons.join("; "));
            }
        }
    }
}

fn check(spec: &JobSpec) -> Result<(), Vec<Invalid>> {
    let context = TriggerContext {
        created_ms: 0,
        default_zone: &Zone::utc(),
        calendars: &BTreeMap::new(),
        registry: &Registry::built_in(),
    };
    spec.compile()?.compile_triggers(&context).map(|_| ())
}

/// Room for `-9999` behind a name that is taken.
const COUNT_CHARS_MAX: usize = 5;

/// Names of jobs, each given once.
#[derive(Clone, Debug, Default)]
pub struct Names {
    prefix: String,
    taken: BTreeSet<String>,
}

impl Names {
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            taken: BTreeSet::new(),
        }
    }

    /// A free name that begins like `base`.
    pub fn take(&mut self, base: &str) -> String {
        let mut base = format!("{}{}", self.prefix, word(base, "job"));
        base.truncate(WORD_CHARS_MAX - COUNT_CHARS_MAX);
        let mut name = base.clone();
        let mut count = 1;
        while !self.taken.insert(name.clone()) {
            count += 1;
            name = format!("{base}-{count}");
        }
        name
    }

    /// For an entry that was refused after all.
    pub fn give_back(&mut self, name: &str) {
        self.taken.remove(name);
    }
}

/// A text as the name of a job can be: letters, digits, `.`, `_`, and `-` for everything else.
fn word(text: &str, otherwise: &str) -> String {
    let mut out = String::new();
    for c in text.chars().map(|c| c.to_ascii_lowercase()) {
        match c {
            'a'..='z' | '0'..='9' | '.' | '_' => out.push(c),
            _ if out.ends_with('-') => {}
            _ => out.push('-'),
        }
    }
    let clean = out.trim_matches(['-', '.', '_']);
    if clean.is_empty() { otherwise } else { clean }.to_owned()
}

/// What all imported jobs have.
fn base(name: String, options: &Options) -> JobSpec {
    JobSpec {
        name,
        paused: true,
        tags: vec!["imported".into()],
        route: options.host.is_some().then_some(Route::Pinned),
        runner: options.host.clone(),
        ..JobSpec::default()
    }
}

/// A size as job files want it: with a unit, and so rounded down to 1 KiB at least.
fn size(bytes: u64) -> String {
    let exact = exact_bytes(bytes);
    if exact.ends_with(|c: char| c.is_ascii_digit()) && bytes != 0 {
        format!("{}K", (bytes >> 10).max(1))
    } else {
        exact
    }
}

/// At most so many characters, cut with an ellipsis.
fn cut(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    text.chars().take(chars_max - 1).chain(['…']).collect()
}

/// As one word of `/bin/sh`.
fn sh_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "%+,-./:=@_".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_and_each_is_given_once() {
        let mut names = Names::new("db-01.");
        for (base, name) in [
            ("Nightly Backup!", "db-01.nightly-backup"),
            ("nightly  backup", "db-01.nightly-backup-2"),
            ("每日", "db-01.job"),
            ("每日", "db-01.job-2"),
            ("--a..", "db-01.a"),
        ] {
            assert_eq!(names.take(base), name);
        }
        names.give_back("db-01.a");
        assert_eq!(names.take("a"), "db-01.a");
        let long = names.take(&"x".repeat(100));
        assert!(long.len() <= WORD_CHARS_MAX - COUNT_CHARS_MAX, "{long}");
    }

    #[test]
    fn sizes_have_a_unit() {
        for (bytes, text) in [(1 << 30, "1G"), (128_000_000, "125000K"), (0, "0"), (1, "1K")] {
            assert_eq!(size(bytes), text);
        }
    }
}
