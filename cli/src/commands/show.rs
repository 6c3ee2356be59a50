//! `systole show`: everything about one task.

use super::now_ms;
use crate::args::{Format, Global, ShowArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, color, json, text};
use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_shared::time::{exact_duration, format_duration};

pub async fn run(global: &Global, args: &ShowArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let task = Client::new(global)?.get(args.task).await?;
    match output.format {
        Format::Table | Format::Wide => output::data(describe(&task, now_ms(), output.color).as_bytes()),
        Format::Json => json::document(&json::OneTask {
            task: json::Task::from(&task),
        }),
        Format::Jsonl => json::object(&json::Task::from(&task)),
        Format::Id => output::line(&task.id.to_string()),
    }
    Ok(exit_code::OK)
}

/// Lines of a name and a value; those without a value are left out.
struct Sheet(String);

impl Sheet {
    fn add(&mut self, name: &str, value: impl AsRef<str>) {
        let value = value.as_ref();
        if !value.is_empty() {
            self.0.push_str(&format!("  {name:<11}{}\n", text::clean(value)));
        }
    }
}

fn describe(task: &v1::Task, now: u64, colored: bool) -> String {
    let state = state_from_wire(task.state);
    let painted = color::paint(&text::state_name(task.state), color::of_state(state), colored);
    let mut sheet = Sheet(format!("task {}  {painted}", task.id));
    let why = text::why_or_outcome(task);
    if !why.is_empty() {
        sheet.0.push_str(&format!("  {}", text::clean(&why)));
    }
    sheet.0.push('\n');
    if let Some(spec) = &task.spec {
        what(&mut sheet, spec);
    }
    history(&mut sheet, task, now);
    let stdout = (task.stdout_bytes, task.stdout_dropped_bytes);
    let stderr = (task.stderr_bytes, task.stderr_dropped_bytes);
    if stdout != (0, 0) || stderr != (0, 0) {
        let (stdout, stderr) = (stored(stdout), stored(stderr));
        sheet.add(
            "output",
            format!("stdout {stdout}, stderr {stderr}: systole logs {}", task.id),
        );
    }
    if let Some(callback) = &task.callback {
        let tries = if callback.tries == 0 {
            String::new()
        } else {
            format!(", {} tried", callback.tries)
        };
        let error = if callback.last_error.is_empty() {
            String::new()
        } else {
            format!(": {}", callback.last_error)
        };
        sheet.add(
            "callback",
            format!("{} {}{tries}{error}", callback.url, callback.status),
        );
    }
    sheet.0
}

/// The size of a stream's stored bytes, and of those that are not stored.
fn stored((bytes, dropped): (u64, u64)) -> String {
    let size = text::size(bytes);
    if dropped == 0 {
        size
    } else {
        format!("{size} ({} more were written than are stored)", text::size(dropped))
    }
}

fn what(sheet: &mut Sheet, spec: &v1::TaskSpec) {
    sheet.add("name", &spec.name);
    sheet.add("command", text::command_line(&spec.command));
    sheet.add(
        "queue",
        format!("{}, priority {}", spec.queue, spec.priority.unwrap_or(5)),
    );
    sheet.add("require", text::labels(&spec.require));
    sheet.add("tags", spec.tags.join(" "));
    sheet.add("job", &spec.job);
    match spec.target_slot {
        Some(slot) => sheet.add("only on", format!("{}/{slot}", spec.target_host)),
        None => sheet.add("only on", &spec.target_host),
    }
    if spec.run_at_ms != 0 {
        sheet.add("not before", text::full_time(spec.run_at_ms));
    }
    for (name, ms) in [("delay", spec.delay_ms), ("timeout", spec.timeout_ms)] {
        if ms != 0 {
            sheet.add(name, exact_duration(ms));
        }
    }
    sheet.add("dir", if spec.dir.is_empty() { "a fresh one" } else { &spec.dir });
    for var in &spec.env {
        sheet.add("env", format!("{}={}", var.name, var.value));
    }
    if let Some(retry) = spec.retry.filter(|retry| retry.max_retries > 0) {
        sheet.add(
            "retry",
            format!(
                "up to {} times, {} apart",
                retry.max_retries,
                exact_duration(retry.delay_ms)
            ),
        );
    }
}

fn history(sheet: &mut Sheet, task: &v1::Task, now: u64) {
    if task.attempt > 1 || task.retry_of != 0 || task.retried_by != 0 {
        let mut chain = format!("{} of {}", task.attempt, text::attempts_max(task));
        for (word, id) in [
            ("of chain", task.root_id),
            ("after", task.retry_of),
            ("next", task.retried_by),
        ] {
            if id != 0 && !(word == "of chain" && id == task.id) {
                chain.push_str(&format!(", {word} {id}"));
            }
        }
        sheet.add("attempt", chain);
    }
    sheet.add(
        "created",
        with_who(
            &text::full_time(task.created_at_ms),
            &task.submitted_by,
            &task.submit_reason,
        ),
    );
    sheet.add("queued", text::full_time(task.queued_at_ms));
    sheet.add("dispatched", text::full_time(task.dispatched_at_ms));
    sheet.add("runner", text::runner(task));
    sheet.add("started", text::full_time(task.started_at_ms));
    let took = text::took(task, now);
    let waited = task.started_at_ms.saturating_sub(task.queued_at_ms);
    if !took.is_empty() {
        sheet.add("took", format!("{took} after waiting {}", format_duration(waited)));
    }
    sheet.add("ended", text::full_time(task.ended_at_ms));
    if !task.cancelled_by.is_empty() {
        sheet.add(
            "cancelled",
            with_who("", &task.cancelled_by, &task.cancel_reason).trim_start(),
        );
    }
    if let Some(outcome) = task.outcome.as_ref().filter(|outcome| !outcome.message.is_empty()) {
        sheet.add("outcome", format!("{}: {}", outcome.kind, outcome.message));
    }
}

fn with_who(time: &str, who: &str, reason: &str) -> String {
    let who = if who.is_empty() {
        String::new()
    } else {
        format!(" by {who}")
    };
    let reason = if reason.is_empty() {
        String::new()
    } else {
        format!(", \"{reason}\"")
    };
    format!("{time}{who}{reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_was_cut_says_what_is_missing() {
        let mut task = v1::Task {
            id: 12,
            stdout_bytes: 8 << 20,
            stdout_dropped_bytes: 11 << 20,
            ..v1::Task::default()
        };
        let text = describe(&task, 0, false);
        let line =
            "  output     stdout 8.0 MiB (11 MiB more were written than are stored), stderr 0 B: systole logs 12\n";
        assert!(text.contains(line), "{text}");
        task.stdout_dropped_bytes = 0;
        assert!(describe(&task, 0, false).contains("stdout 8.0 MiB, stderr 0 B: "));
    }

    #[test]
    fn a_task_is_shown_without_what_is_not_set() {
        let task = v1::Task {
            id: 12,
            root_id: 12,
            attempt: 1,
            state: 2,
            created_at_ms: 1_800_000_000_000,
            submitted_by: "ann".into(),
            submit_reason: "a\x1btest".into(),
            waiting_for: "no runner has joined yet".into(),
            spec: Some(v1::TaskSpec {
                command: vec!["echo".into(), "a b".into()],
                name: "echo".into(),
                queue: "default".into(),
                ..v1::TaskSpec::default()
            }),
            ..v1::Task::default()
        };
        let text = describe(&task, 0, false);
        assert!(
            text.starts_with("task 12  QUEUED  no runner has joined yet\n"),
            "{text}"
        );
        assert!(text.contains("  command    echo 'a b'\n"), "{text}");
        assert!(text.contains(" by ann, \"a^[test\"\n"), "{text}");
        for absent in ["started", "ended", "runner ", "attempt", "env", "callback", "output"] {
            assert!(!text.contains(&format!("\n  {absent}")), "{absent}: {text}");
        }
    }
}
