//! Tasks and their parts in words, for people.

use super::color;
use chrono::{DateTime, TimeZone as _};
use std::collections::BTreeMap;
use systole_proto::convert::state_from_wire;
pub use systole_proto::json::{on_disconnect, on_runner_restart, state as state_name};
use systole_proto::v1;
use systole_shared::plural::counted;
use systole_shared::task::TaskState;
use systole_shared::task::signal::signal_name;
use systole_shared::time::format_duration;

/// The text with every control character made visible: texts of others must not steer the terminal, nor read as what they are not.
pub fn clean(text: &str) -> String {
    if text.chars().any(|c| c.is_control() || is_unseen(c)) {
        text.chars().map(visible).collect()
    } else {
        text.to_owned()
    }
}

/// Of no width, or changing the direction or the line of what follows: two names look the same, or one reads as another.
fn is_unseen(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2064}'
            | '\u{2066}'..='\u{2069}'
            | '\u{feff}'
    )
}

/// A control character in caret notation (`^[`), or as `\x9b`; one that is not seen as `\u{202e}`; any other as it is.
pub fn visible(c: char) -> String {
    match u32::from(c) {
        0x7f => "^?".into(),
        code @ 0..=0x1f => format!("^{}", char::from_u32(code + 0x40).unwrap_or('?')),
        code @ 0x80..=0x9f => format!("\\x{code:02x}"),
        code if is_unseen(c) => format!("\\u{{{code:x}}}"),
        _ => c.to_string(),
    }
}

/// Bytes the way people say them: `512 B`, `1.2 KiB`, `18 MiB`.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" || value >= 10.0 {
                format!("{value:.0} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// `host/slot`, empty if it was not dispatched.
pub fn runner(task: &v1::Task) -> String {
    if task.host.is_empty() {
        String::new()
    } else {
        format!("{}/{}", task.host, task.slot)
    }
}

/// The command the way a shell would take it.
pub fn command_line(command: &[String]) -> String {
    command
        .iter()
        .map(|argument| quoted(argument))
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(argument: &str) -> String {
    let plain = |b: u8| {
        b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/' | b'=' | b':' | b',' | b'@' | b'+' | b'%')
    };
    if !argument.is_empty() && argument.bytes().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', "'\\''"))
    }
}

/// Where whoever looks is. What tests see must not depend on where they run.
#[cfg(not(test))]
use chrono::Local as Here;
#[cfg(test)]
use chrono::Utc as Here;

fn local(ms: u64) -> Option<DateTime<Here>> {
    let ms = i64::try_from(ms).ok().filter(|&ms| ms != 0)?;
    Here.timestamp_millis_opt(ms).single()
}

/// Date, time and offset; empty for "not set".
pub fn full_time(ms: u64) -> String {
    local(ms)
        .map(|time| time.format("%Y-%m-%d %H:%M:%S %:z").to_string())
        .unwrap_or_default()
}

/// A sentence of a scheduler, which speaks UTC, with its times as whoever looks has them.
pub fn times_here(sentence: &str) -> String {
    let here = |word: &str| {
        let time = word.trim_end_matches(['.', ',', ';', ')']);
        let parsed = DateTime::parse_from_rfc3339(time)
            .ok()
            .filter(|_| time.ends_with('Z'))?;
        let ms = u64::try_from(parsed.timestamp_millis()).ok()?;
        Some(full_time(ms) + &word[time.len()..])
    };
    let words: Vec<String> = sentence
        .split(' ')
        .map(|word| here(word).unwrap_or_else(|| word.to_owned()))
        .collect();
    words.join(" ")
}

/// The time of day; with the date when it is another day.
pub fn short_time(ms: u64, now_ms: u64) -> String {
    match (local(ms), local(now_ms)) {
        (Some(time), Some(now)) if time.date_naive() == now.date_naive() => time.format("%H:%M:%S").to_string(),
        (Some(time), _) => time.format("%m-%d %H:%M").to_string(),
        (None, _) => String::new(),
    }
}

/// How long ago, such as `3.0 s ago`.
pub fn ago(ms: u64, now_ms: u64) -> String {
    if ms == 0 {
        "never".into()
    } else {
        format!("{} ago", format_duration(now_ms.saturating_sub(ms)))
    }
}

/// How long it ran, or runs already; empty if it never started.
pub fn took(task: &v1::Task, now_ms: u64) -> String {
    let end = match state_from_wire(task.state) {
        Some(TaskState::Running | TaskState::Terminating) => now_ms,
        _ => task.ended_at_ms,
    };
    if task.started_at_ms == 0 || end == 0 {
        String::new()
    } else {
        format_duration(end.saturating_sub(task.started_at_ms))
    }
}

pub fn labels(labels: &[v1::Label]) -> String {
    let sorted: BTreeMap<&str, &str> = labels
        .iter()
        .map(|label| (label.key.as_str(), label.value.as_str()))
        .collect();
    sorted
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Attempts that the chain may have, all together.
/// Which attempt of its chain it is.
pub fn attempt(task: &v1::Task) -> String {
    format!("attempt {} of {}", task.attempt, attempts_max(task))
}

pub fn attempts_max(task: &v1::Task) -> u32 {
    let retries = task
        .spec
        .as_ref()
        .and_then(|spec| spec.retry)
        .map_or(0, |retry| retry.max_retries);
    task.attempt.max(retries.saturating_add(1))
}

pub fn name(task: &v1::Task) -> String {
    let name = task.spec.as_ref().map_or("", |spec| spec.name.as_str());
    if task.attempt > 1 {
        format!("{name} ({} of {})", task.attempt, attempts_max(task))
    } else {
        name.to_owned()
    }
}

/// How it ended, in a few words: `exit code 7`, `SIGKILL`, `timeout: …`; empty for success.
pub fn outcome(outcome: &v1::Outcome) -> String {
    let text = match (outcome.kind.as_str(), outcome.exit_code, outcome.signal) {
        ("success", ..) => return String::new(),
        ("exit_code", Some(code), _) => return format!("exit code {code}"),
        ("signal", _, Some(signal)) => return signal_name(signal),
        (kind, ..) => kind.to_owned(),
    };
    match outcome.message.trim() {
        "" => text,
        message if message.starts_with(text.as_str()) => message.to_owned(),
        message => format!("{text}: {message}"),
    }
}

fn cancelled(task: &v1::Task) -> String {
    let mut text = String::from("cancelled");
    if !task.cancelled_by.is_empty() {
        text.push_str(&format!(" by {}", task.cancelled_by));
    }
    if !task.cancel_reason.is_empty() {
        text.push_str(&format!(", \"{}\"", task.cancel_reason));
    }
    text
}

/// Why it waits, or how it ended: the last column of `ls`.
pub fn why_or_outcome(task: &v1::Task) -> String {
    let mut text = match state_from_wire(task.state) {
        Some(TaskState::Created | TaskState::Queued | TaskState::Dispatched) => times_here(&task.waiting_for),
        Some(TaskState::Running) if task.set_size > 0 => {
            format!(
                "a broadcast of {}: systole ls --set {}",
                counted(task.set_size, "member"),
                task.id
            )
        }
        Some(TaskState::Running) | None => String::new(),
        Some(TaskState::Terminating) if !task.cancelled_by.is_empty() => cancelled(task),
        Some(TaskState::Terminating) => "being ended".into(),
        Some(TaskState::Terminated) => cancelled(task),
        Some(TaskState::Callback | TaskState::Finished | TaskState::Failed | TaskState::Skipped) => {
            task.outcome.as_ref().map(outcome).unwrap_or_default()
        }
    };
    let mut add = |more: String| {
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(&more);
    };
    if let Some(late) = &task.late_result {
        let late = if late.kind == "success" {
            "success".to_owned()
        } else {
            outcome(late)
        };
        add(format!("reported later: {late}"));
    }
    if let Some(callback) = task.callback.as_ref().filter(|callback| callback.status == "failed") {
        add(format!("callback failed: {}", callback.last_error));
    }
    if task.retried_by != 0 {
        add(format!("next: {}", task.retried_by));
    }
    text
}

/// The last word about a task: `task 1  FAILED exit code 7 after 0.01 s`.
pub fn end_line(task: &v1::Task, next: Option<&v1::Task>, now_ms: u64, colored: bool) -> String {
    let state = state_from_wire(task.state);
    // In CALLBACK the command has ended with success; the rest is no affair of who waits for it.
    let shown = if state == Some(TaskState::Callback) {
        Some(TaskState::Finished)
    } else {
        state
    };
    let name = shown.map_or_else(|| state_name(task.state), |state| state.name().to_owned());
    let mut line = format!(
        "task {}  {}",
        task.id,
        color::paint(&name, color::of_state(shown), colored)
    );
    let how = match shown {
        Some(TaskState::Terminated) => cancelled(task),
        _ => task.outcome.as_ref().map(outcome).unwrap_or_default(),
    };
    if !how.is_empty() {
        line.push_str(&format!(" {}", clean(&how)));
    }
    let took = took(task, now_ms);
    if !took.is_empty() {
        line.push_str(&format!(" after {took}"));
    }
    if task.retried_by != 0 {
        let of = format!("; {}", attempt(task));
        // Only a successor whose time has not come waits for the delay.
        let waits = next.is_some_and(|next| state_from_wire(next.state) == Some(TaskState::Created));
        let delay = task
            .spec
            .as_ref()
            .and_then(|spec| spec.retry)
            .map_or(0, |retry| retry.delay_ms);
        let time = if waits {
            task.ended_at_ms.saturating_add(delay)
        } else {
            0
        };
        let time = if time > now_ms {
            format!(" {}", short_time(time, now_ms))
        } else {
            String::new()
        };
        line.push_str(&format!("{of}, next{time} as {}", task.retried_by));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_proto::convert::state_to_wire;

    fn task(state: TaskState, kind: &str) -> v1::Task {
        v1::Task {
            id: 12,
            attempt: 1,
            state: state_to_wire(state) as i32,
            started_at_ms: 1_000,
            ended_at_ms: 1_010,
            outcome: Some(v1::Outcome {
                kind: kind.into(),
                ..v1::Outcome::default()
            }),
            spec: Some(v1::TaskSpec::default()),
            ..v1::Task::default()
        }
    }

    #[test]
    fn the_end_of_a_task_is_one_line() {
        let mut failed = task(TaskState::Failed, "exit_code");
        if let Some(outcome) = &mut failed.outcome {
            outcome.exit_code = Some(7);
        }
        assert_eq!(
            end_line(&failed, None, 0, false),
            "task 12  FAILED exit code 7 after 0.01 s"
        );
        failed.retried_by = 13;
        failed.spec = Some(v1::TaskSpec {
            retry: Some(v1::Retry {
                max_retries: 1,
                delay_ms: 0,
            }),
            ..v1::TaskSpec::default()
        });
        assert_eq!(
            end_line(&failed, None, 0, false),
            "task 12  FAILED exit code 7 after 0.01 s; attempt 1 of 2, next as 13"
        );
        assert_eq!(
            end_line(&task(TaskState::Callback, "success"), None, 0, false),
            "task 12  FINISHED after 0.01 s"
        );
        let mut cancelled = task(TaskState::Terminated, "cancelled");
        cancelled.cancelled_by = "ann".into();
        cancelled.cancel_reason = "wrong \x1b[2Jmonth".into();
        assert_eq!(
            end_line(&cancelled, None, 0, false),
            "task 12  TERMINATED cancelled by ann, \"wrong ^[[2Jmonth\" after 0.01 s"
        );
    }

    #[test]
    fn an_outcome_says_its_kind_once() {
        let with = |kind: &str, message: &str| v1::Outcome {
            kind: kind.into(),
            message: message.into(),
            ..v1::Outcome::default()
        };
        assert_eq!(
            outcome(&with("start_failed", "no directory /x")),
            "start_failed: no directory /x"
        );
        assert_eq!(
            outcome(&with("timeout", "timeout of 5s is over")),
            "timeout of 5s is over"
        );
        assert_eq!(outcome(&with("runner_lost", "")), "runner_lost");
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let words = ["./ingest", "28 Nov", "", "it's", "a=b"].map(str::to_owned);
        assert_eq!(command_line(&words), r"./ingest '28 Nov' '' 'it'\''s' a=b");
    }

    #[test]
    fn control_characters_are_made_visible() {
        assert_eq!(clean("a\x1b]0;x\x07\r\n\u{9b}31m\x7fé"), "a^[]0;x^G^M^J\\x9b31m^?é");
    }

    #[test]
    fn characters_that_are_not_seen_are_made_visible() {
        assert_eq!(
            clean("adm\u{200b}in \u{202e}txt.exe"),
            "adm\\u{200b}in \\u{202e}txt.exe"
        );
        for c in "\u{200f}\u{2028}\u{2029}\u{202a}\u{2060}\u{2064}\u{2066}\u{2069}\u{feff}".chars() {
            assert_eq!(clean(&c.to_string()), format!("\\u{{{:x}}}", u32::from(c)));
        }
        for seen in ["é", "עברית", "日本", "\u{200a}", "\u{2010}", "\u{202f}", "\u{2065}"] {
            assert_eq!(clean(seen), seen);
        }
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1229, "1.2 KiB"),
            (18 << 20, "18 MiB"),
            (3 << 40, "3.0 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn no_time_is_no_text() {
        assert_eq!(
            (full_time(0), short_time(0, 5), ago(0, 5)),
            (String::new(), String::new(), "never".into())
        );
    }

    #[test]
    fn the_last_lines_are_as_they_were() {
        let lines: Vec<String> = crate::golden::tasks()
            .iter()
            .filter(|task| task.ended_at_ms != 0)
            .map(|task| end_line(task, None, crate::golden::NOW, false))
            .collect();
        crate::golden::check("end_lines", &format!("{}\n", lines.join("\n")));
    }
}
