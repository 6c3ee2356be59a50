//! What a specification may contain, as far as it can be checked without a database. A refusal names the field
//! and says what to write instead.

use super::spec::TaskSpec;
use crate::error::Invalid;
use crate::id::check_host;
use crate::limits::*;
use crate::task::run_as::check_account;
use crate::task::signal::{check_kill_signal, check_warn_signal};
use crate::time::exact_duration;
use std::collections::BTreeMap;

impl TaskSpec {
    /// Checks everything that can be checked without a database. `now_ms` is the scheduler's time.
    pub fn validate(&self, now_ms: i64) -> Result<(), Invalid> {
        self.validate_command()?;
        self.validate_env()?;
        check_text(&self.name, "name", NAME_CHARS_MAX)?;
        check_word(&self.queue, "queue")?;
        check_count(self.tags.len(), TAGS_MAX, "tags")?;
        for (index, tag) in self.tags.iter().enumerate() {
            check_word(tag, &format!("tags[{index}]"))?;
        }
        check_labels(&self.require, REQUIRE_MAX, "require")?;
        if let Some(batch) = &self.batch {
            check_word(batch, "batch")?;
        }
        if self.batch_line == Some(0) || self.batch.is_some() != self.batch_line.is_some() {
            return Err(Invalid::new(
                "batch_line",
                "is given with batch, and only then; lines count from 1",
            ));
        }
        if let Some(key) = &self.unique_key {
            check_text(key, "unique_key", KEY_CHARS_MAX)?;
            if self.batch.is_some() {
                return Err(Invalid::new("unique_key", "cannot be given to the tasks of a batch"));
            }
        }
        if let Some(job) = &self.job {
            check_word(job, "job")?;
        }
        if let Some(target) = &self.target {
            check_host(&target.host, "runner")?;
        }
        if self.priority > PRIORITY_MAX {
            return Err(Invalid::new(
                "priority",
                format!(
                    "{} is outside 0 to {PRIORITY_MAX} (higher first, {PRIORITY_DEFAULT} by default)",
                    self.priority
                ),
            ));
        }
        self.validate_times(now_ms)?;
        self.validate_stopping()?;
        self.limits.validate()?;
        self.output.validate()?;
        self.validate_account()?;
        if let Some(dir) = &self.dir {
            check_absolute(dir, "dir", "directory")?;
            if self.keep_workdir {
                return Err(Invalid::new(
                    "keep_workdir",
                    "keeps the fresh directory of the task, and `dir` names another one, which stays anyway; leave one of them out",
                ));
            }
        }
        if let Some(terminal) = &self.tty {
            terminal.validate()?;
        }
        if let Some(file) = &self.env_file {
            check_absolute(file, "env_file", "file")?;
        }
        if let Some(url) = &self.callback_url {
            check_url(url)?;
        }
        if self.retry.max_retries > RETRIES_MAX {
            return Err(Invalid::new(
                "retry.max_retries",
                format!("{} is more than {RETRIES_MAX}", self.retry.max_retries),
            ));
        }
        check_duration(self.retry.delay_ms, "retry.delay_ms")
    }

    fn validate_command(&self) -> Result<(), Invalid> {
        match self.command.first() {
            None => {
                return Err(Invalid::new(
                    "command",
                    "is empty; give a program, such as -- echo hello",
                ));
            }
            Some(program) if program.is_empty() => {
                return Err(Invalid::new("command[0]", "the program is an empty text"));
            }
            Some(_) => {}
        }
        check_count(self.command.len(), COMMAND_ELEMENTS_MAX, "command")?;
        for (index, argument) in self.command.iter().enumerate() {
            if argument.contains('\0') {
                return Err(Invalid::new(
                    format!("command[{index}]"),
                    "contains a NUL byte, which no program can be given; pass such data in a file",
                ));
            }
            if argument.len() > ARGUMENT_BYTES_MAX {
                return Err(Invalid::new(
                    format!("command[{index}]"),
                    format!(
                        "has {} bytes; Linux allows {ARGUMENT_BYTES_MAX} in one argument. Pass the data in a file",
                        argument.len()
                    ),
                ));
            }
        }
        let total: usize = self.command.iter().map(|a| a.len() + 1).sum::<usize>()
            + self.env.iter().map(|(n, v)| n.len() + v.len() + 2).sum::<usize>();
        if total > COMMAND_BYTES_MAX {
            return Err(Invalid::new(
                "command",
                format!(
                    "arguments and variables have {total} bytes together; at most {COMMAND_BYTES_MAX} are allowed. Pass the data in a file"
                ),
            ));
        }
        Ok(())
    }

    fn validate_env(&self) -> Result<(), Invalid> {
        check_count(self.env.len(), ENV_VARS_MAX, "env")?;
        let mut names = std::collections::HashSet::new();
        for (index, (name, value)) in self.env.iter().enumerate() {
            let field = format!("env[{index}]");
            if name.is_empty() || name.len() > ENV_NAME_BYTES_MAX || name.contains(['=', '\0']) {
                return Err(Invalid::new(
                    field,
                    format!("{name:?} is no name of a variable (1 to {ENV_NAME_BYTES_MAX} bytes, no '=' and no NUL)"),
                ));
            }
            if name.starts_with("SYSTOLE_") {
                return Err(Invalid::new(
                    field,
                    format!("{name} begins with SYSTOLE_, which is kept for what systole tells the child"),
                ));
            }
            if value.contains('\0') {
                return Err(Invalid::new(field, format!("the value of {name} contains a NUL byte")));
            }
            if !names.insert(name) {
                return Err(Invalid::new(field, format!("{name} is given twice")));
            }
        }
        Ok(())
    }

    fn validate_times(&self, now_ms: i64) -> Result<(), Invalid> {
        if let Some(at) = self.run_at_ms {
            if self.delay_ms.is_some() {
                return Err(Invalid::new("delay_ms", "give a start time or a delay, not both"));
            }
            if at < now_ms - RUN_AT_PAST_MS_MAX {
                return Err(Invalid::new(
                    "run_at_ms",
                    format!(
                        "{} is in the past (now {}); leave it out to run at once",
                        crate::time::format_utc(at),
                        crate::time::format_utc(now_ms)
                    ),
                ));
            }
            let ahead = at.saturating_sub(now_ms).max(0).unsigned_abs();
            if ahead > DURATION_MS_MAX {
                return Err(Invalid::new("run_at_ms", "is more than 366 days ahead"));
            }
        }
        check_duration(self.delay_ms.unwrap_or(0), "delay_ms")?;
        check_timeout(self.timeout_ms, "timeout_ms")?;
        check_timeout(self.queue_timeout_ms, "queue_timeout_ms")?;
        check_timeout(self.start_timeout_ms, "start_timeout_ms")?;
        check_timeout(self.silence_timeout_ms, "silence_timeout_ms")
    }

    fn validate_account(&self) -> Result<(), Invalid> {
        if self.umask > UMASK_MAX {
            return Err(Invalid::new(
                "umask",
                format!(
                    "{:o} is outside 0 to {UMASK_MAX:o} (octal, {UMASK_DEFAULT:03o} by default)",
                    self.umask
                ),
            ));
        }
        if let Some(user) = &self.user {
            check_account(user, "user")?;
        }
        match &self.group {
            None => Ok(()),
            Some(_) if self.user.is_none() => Err(Invalid::new(
                "group",
                "is given without a user; give the user that is to have this group",
            )),
            Some(group) => check_account(group, "group"),
        }
    }

    fn validate_stopping(&self) -> Result<(), Invalid> {
        check_kill_signal(self.kill_signal, "kill_signal")?;
        if self.kill_grace_ms.is_some_and(|ms| ms > KILL_GRACE_MS_MAX) {
            return Err(Invalid::new("kill_grace_ms", "is longer than 24 hours"));
        }
        let (signal, before_ms) = match (self.warn_signal, self.warn_before_ms) {
            (None, None) => return Ok(()),
            (Some(signal), Some(before_ms)) => (signal, before_ms),
            (Some(_), None) => {
                return Err(Invalid::new(
                    "warn_before_ms",
                    "is missing: how long before the timeout is warn_signal to be sent?",
                ));
            }
            (None, Some(_)) => {
                return Err(Invalid::new(
                    "warn_signal",
                    "is missing: which signal is to be sent before the timeout?",
                ));
            }
        };
        check_warn_signal(signal, "warn_signal")?;
        check_timeout(Some(before_ms), "warn_before_ms")?;
        match self.timeout_ms {
            None => Err(Invalid::new(
                "warn_signal",
                "is sent before the run timeout; give a timeout too",
            )),
            Some(timeout_ms) if before_ms >= timeout_ms => Err(Invalid::new(
                "warn_before_ms",
                format!(
                    "{} is not shorter than the timeout of {}",
                    exact_duration(before_ms),
                    exact_duration(timeout_ms)
                ),
            )),
            Some(_) => Ok(()),
        }
    }
}

fn check_timeout(ms: Option<u64>, field: &str) -> Result<(), Invalid> {
    match ms {
        Some(ms) if ms < TIMEOUT_MS_MIN => Err(Invalid::new(field, "must be at least 1 ms; leave it out for none")),
        Some(ms) => check_duration(ms, field),
        None => Ok(()),
    }
}

fn check_duration(ms: u64, field: &str) -> Result<(), Invalid> {
    if ms > DURATION_MS_MAX {
        return Err(Invalid::new(field, format!("{ms} ms is longer than 366 days")));
    }
    Ok(())
}

fn check_count(count: usize, max: usize, field: &str) -> Result<(), Invalid> {
    if count > max {
        return Err(Invalid::new(
            field,
            format!("has {count} entries; at most {max} are allowed"),
        ));
    }
    Ok(())
}

/// A word of the product: 1 to 63 of `[a-z0-9._-]`.
pub fn check_word(word: &str, field: &str) -> Result<(), Invalid> {
    let ok = (1..=WORD_CHARS_MAX).contains(&word.len())
        && word
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'));
    if ok {
        Ok(())
    } else {
        Err(Invalid::new(
            field,
            format!("{word:?} must be 1 to {WORD_CHARS_MAX} of lower-case letters, digits, '.', '_' and '-'"),
        ))
    }
}

/// Free text: bounded, no control characters.
pub fn check_text(text: &str, field: &str, chars_max: usize) -> Result<(), Invalid> {
    if text.chars().count() > chars_max {
        return Err(Invalid::new(field, format!("is longer than {chars_max} characters")));
    }
    if text.chars().any(char::is_control) {
        return Err(Invalid::new(field, "contains a control character (such as a newline)"));
    }
    Ok(())
}

/// Labels of a runner or required by a task.
pub fn check_labels(labels: &BTreeMap<String, String>, max: usize, field: &str) -> Result<(), Invalid> {
    check_count(labels.len(), max, field)?;
    for (key, value) in labels {
        let key_ok = (1..=WORD_CHARS_MAX).contains(&key.len())
            && key
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-' | b'/'));
        if !key_ok {
            return Err(Invalid::new(
                field,
                format!(
                    "label {key:?} must be 1 to {WORD_CHARS_MAX} of lower-case letters, digits, '.', '_', '-' and '/'"
                ),
            ));
        }
        if value.len() > LABEL_VALUE_BYTES_MAX || value.chars().any(char::is_control) {
            return Err(Invalid::new(
                field,
                format!(
                    "the value of label {key} must have at most {LABEL_VALUE_BYTES_MAX} bytes and no control characters"
                ),
            ));
        }
    }
    Ok(())
}

/// Parses `k=v` into a label; `field` is named in the error.
pub fn parse_label(text: &str, field: &str) -> Result<(String, String), Invalid> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Invalid::new(
            field,
            format!("{text:?} is no label; write KEY=VALUE, such as gpu=1"),
        )),
    }
}

fn check_absolute(path: &str, field: &str, what: &str) -> Result<(), Invalid> {
    if !path.starts_with('/') {
        return Err(Invalid::new(
            field,
            format!("{path:?} is not absolute; it is a {what} on the runner's host and starts with '/'"),
        ));
    }
    if path.len() > PATH_BYTES_MAX || path.contains('\0') {
        return Err(Invalid::new(
            field,
            format!("must have at most {PATH_BYTES_MAX} bytes and no NUL"),
        ));
    }
    Ok(())
}

fn check_url(url: &str) -> Result<(), Invalid> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    match rest {
        None => Err(Invalid::new(
            "callback_url",
            format!("{url:?} must begin with http:// or https://"),
        )),
        Some(rest) if rest.is_empty() || rest.starts_with('/') => Err(Invalid::new("callback_url", "names no host")),
        Some(rest) if rest.split('/').next().unwrap_or("").contains('@') => Err(Invalid::new(
            "callback_url",
            "must not contain a user name or password; deliveries are signed instead",
        )),
        Some(_) if url.len() > PATH_BYTES_MAX || url.chars().any(|c| c.is_control() || c == ' ') => Err(Invalid::new(
            "callback_url",
            format!("must have at most {PATH_BYTES_MAX} bytes, no blanks and no control characters"),
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    fn spec(command: &[&str]) -> TaskSpec {
        TaskSpec {
            command: command.iter().map(|&c| c.to_owned()).collect(),
            ..TaskSpec::default()
        }
    }

    fn refused(change: impl FnOnce(&mut TaskSpec)) -> String {
        let mut spec = spec(&["true"]);
        change(&mut spec);
        spec.validate(NOW).expect_err("must be refused").field
    }

    #[test]
    fn a_plain_command_is_accepted_and_named_after_its_program() {
        let spec = spec(&["/usr/bin/env", "a b", "c\nd", "日本", "\"'$"]).with_defaults();
        assert_eq!(spec.validate(NOW), Ok(()));
        assert_eq!((spec.name.as_str(), spec.queue.as_str()), ("env", "default"));
    }

    #[test]
    fn every_refusal_names_its_field() {
        assert_eq!(refused(|s| s.command.clear()), "command");
        assert_eq!(refused(|s| s.command[0].clear()), "command[0]");
        assert_eq!(refused(|s| s.command.push("a\0b".into())), "command[1]");
        assert_eq!(refused(|s| s.command.push("x".repeat(3 * 1024 * 1024))), "command[1]");
        assert_eq!(refused(|s| s.command.extend(vec!["x".repeat(100_000); 30])), "command");
        assert_eq!(refused(|s| s.command = vec!["x".into(); 10_001]), "command");
        assert_eq!(refused(|s| s.env.push(("A=B".into(), String::new()))), "env[0]");
        assert_eq!(refused(|s| s.env.push(("A".into(), "\0".into()))), "env[0]");
        assert_eq!(refused(|s| s.env.push(("SYSTOLE_X".into(), String::new()))), "env[0]");
        assert_eq!(refused(|s| s.env = vec![("A".into(), String::new()); 2]), "env[1]");
        assert_eq!(refused(|s| s.queue = "Not Ok".into()), "queue");
        assert_eq!(refused(|s| s.tags.push("a b".into())), "tags[0]");
        assert_eq!(refused(|s| s.name = "a\nb".into()), "name");
        assert_eq!(refused(|s| s.priority = 10), "priority");
        assert_eq!(refused(|s| s.run_at_ms = Some(NOW - 3_600_000)), "run_at_ms");
        assert_eq!(refused(|s| s.run_at_ms = Some(i64::MAX)), "run_at_ms");
        assert_eq!(
            refused(|s| {
                s.run_at_ms = Some(NOW);
                s.delay_ms = Some(1);
            }),
            "delay_ms"
        );
        assert_eq!(refused(|s| s.timeout_ms = Some(0)), "timeout_ms");
        assert_eq!(refused(|s| s.timeout_ms = Some(u64::MAX)), "timeout_ms");
        assert_eq!(refused(|s| s.queue_timeout_ms = Some(0)), "queue_timeout_ms");
        assert_eq!(refused(|s| s.start_timeout_ms = Some(u64::MAX)), "start_timeout_ms");
        assert_eq!(refused(|s| s.silence_timeout_ms = Some(0)), "silence_timeout_ms");
        assert_eq!(refused(|s| s.kill_signal = 19), "kill_signal");
        assert_eq!(refused(|s| s.kill_signal = 0), "kill_signal");
        assert_eq!(
            refused(|s| s.kill_grace_ms = Some(KILL_GRACE_MS_MAX + 1)),
            "kill_grace_ms"
        );
        assert_eq!(refused(|s| s.dir = Some("relative".into())), "dir");
        assert_eq!(refused(|s| s.callback_url = Some("ftp://x".into())), "callback_url");
        assert_eq!(refused(|s| s.callback_url = Some("http://".into())), "callback_url");
        assert_eq!(
            refused(|s| s.callback_url = Some("http://u:p@h/".into())),
            "callback_url"
        );
        assert_eq!(refused(|s| s.retry.max_retries = 101), "retry.max_retries");
        assert_eq!(
            refused(|s| {
                s.require.insert("GPU".into(), "1".into());
            }),
            "require"
        );
    }

    #[test]
    fn a_warning_needs_its_signal_its_time_and_a_timeout() {
        let field = |timeout_ms, warn_signal, warn_before_ms| {
            let spec = TaskSpec {
                timeout_ms,
                warn_signal,
                warn_before_ms,
                ..spec(&["true"])
            };
            spec.validate(NOW).err().map(|invalid| invalid.field)
        };
        for (timeout, signal, before, refused) in [
            (None, None, None, None),
            (Some(10), Some(10), Some(9), None),
            (Some(10), Some(10), None, Some("warn_before_ms")),
            (Some(10), None, Some(9), Some("warn_signal")),
            (None, Some(10), Some(9), Some("warn_signal")),
            (Some(10), Some(10), Some(10), Some("warn_before_ms")),
            (Some(10), Some(10), Some(0), Some("warn_before_ms")),
            (Some(10), Some(9), Some(5), Some("warn_signal")),
            (Some(10), Some(65), Some(5), Some("warn_signal")),
        ] {
            assert_eq!(
                field(timeout, signal, before).as_deref(),
                refused,
                "{timeout:?} {signal:?} {before:?}"
            );
        }
    }

    #[test]
    fn umask_user_and_group_are_checked() {
        let refused = |umask, user: Option<&str>, group: Option<&str>| {
            let spec = TaskSpec {
                umask,
                user: user.map(str::to_owned),
                group: group.map(str::to_owned),
                ..spec(&["true"])
            };
            spec.validate(NOW).err().map(|invalid| invalid.field)
        };
        for (umask, user, group, field) in [
            (0, None, None, None),
            (0o777, Some("ann"), Some("50"), None),
            (0o1000, None, None, Some("umask")),
            (0o022, Some("a b"), None, Some("user")),
            (0o022, Some("4294967295"), None, Some("user")),
            (0o022, Some("ann"), Some(""), Some("group")),
            (0o022, None, Some("staff"), Some("group")),
        ] {
            assert_eq!(
                refused(umask, user, group).as_deref(),
                field,
                "{umask:o} {user:?} {group:?}"
            );
        }
        assert_eq!(self::refused(|s| s.limits.nice = Some(20)), "limits.nice");
    }
}
