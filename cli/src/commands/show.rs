//! `systole show`: everything about one task.

use super::now_ms;
use crate::args::{Format, Global, ShowArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, color, end, json, text};
use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_shared::plural::counted;
use systole_shared::task::limits::{exact_bytes, exact_cpus};
use systole_shared::task::signal::{SIGTERM, signal_name};
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
    let stdout = (task.stdout_bytes, task.stdout_dropped_bytes, task.stdout_gap);
    let stderr = (task.stderr_bytes, task.stderr_dropped_bytes, task.stderr_gap);
    if stdout != (0, 0, None) || stderr != (0, 0, None) {
        let (stdout, stderr) = (stored(stdout), stored(stderr));
        sheet.add(
            "output",
            format!("stdout {stdout}, stderr {stderr}: systole logs {}", task.id),
        );
    }
    if let Some(detail) = &task.end_detail {
        for (name, line) in end::lines(detail, task.id, &text::runner(task)) {
            sheet.add(name, line);
        }
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

/// The size of a stream's stored bytes, and of those that are not stored: in a gap, or beyond the last stored one.
fn stored((bytes, dropped, gap): (u64, u64, Option<v1::OutputGap>)) -> String {
    let size = text::size(bytes);
    let left_out = gap.map_or(0, |gap| gap.bytes);
    let mut lacks = Vec::new();
    if let Some(gap) = gap {
        let (missing, after) = (text::size(gap.bytes), text::size(gap.offset));
        lacks.push(format!("without {missing} after the first {after}"));
    }
    if dropped > left_out {
        let more = text::size(dropped - left_out);
        lacks.push(format!("{more} more were written than are stored"));
    }
    if lacks.is_empty() {
        size
    } else {
        format!("{size} ({})", lacks.join("; "))
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
    if !spec.batch.is_empty() {
        sheet.add("batch", format!("{}, line {}", spec.batch, spec.batch_line));
    }
    sheet.add("unique", &spec.unique_key);
    match spec.target_slot {
        Some(slot) => sheet.add("only on", format!("{}/{slot}", spec.target_host)),
        None => sheet.add("only on", &spec.target_host),
    }
    if spec.run_at_ms != 0 {
        sheet.add("not before", text::full_time(spec.run_at_ms));
    }
    if spec.delay_ms != 0 {
        sheet.add("delay", exact_duration(spec.delay_ms));
    }
    clocks(sheet, spec);
    output_policy(sheet, spec);
    confined(sheet, spec);
    sheet.add("dir", if spec.dir.is_empty() { "a fresh one" } else { &spec.dir });
    for var in &spec.env {
        sheet.add("env", format!("{}={}", var.name, var.value));
    }
    sheet.add("env file", &spec.env_file);
    if let Some(retry) = spec.retry.filter(|retry| retry.max_retries > 0) {
        sheet.add(
            "retry",
            format!(
                "up to {}, {} apart",
                counted(retry.max_retries, "time"),
                exact_duration(retry.delay_ms)
            ),
        );
    }
}

/// What becomes of the output, where that is not as usual.
fn output_policy(sheet: &mut Sheet, spec: &v1::TaskSpec) {
    let Some(output) = &spec.output else { return };
    let mut said = Vec::new();
    if output.max_bytes != 0 {
        said.push(format!("{} of each stream", exact_bytes(output.max_bytes)));
    }
    if output.on_limit() == v1::OnOutputLimit::Kill {
        said.push("ended when it writes more".into());
    }
    if output.keep_ms != 0 {
        said.push(format!("kept for {}", exact_duration(output.keep_ms)));
    }
    sheet.add("stored", said.join(", "));
}

/// Timeouts, and how the command is ended where that is not as usual.
fn clocks(sheet: &mut Sheet, spec: &v1::TaskSpec) {
    for (name, ms, what) in [
        ("timeout", spec.timeout_ms, ""),
        ("in queue", spec.queue_timeout_ms, "at most "),
        ("to start", spec.start_timeout_ms, "at most "),
        ("silent", spec.silence_timeout_ms, "at most "),
    ] {
        if ms != 0 {
            sheet.add(name, format!("{what}{}", exact_duration(ms)));
        }
    }
    if spec.warn_signal != 0 {
        let (signal, before) = (signal_name(spec.warn_signal), exact_duration(spec.warn_before_ms));
        sheet.add("warning", format!("{signal} {before} before the timeout"));
    }
    let first = match spec.kill_signal {
        0 => SIGTERM,
        signal => signal,
    };
    if first != SIGTERM || spec.kill_grace_ms.is_some() {
        let grace = match spec.kill_grace_ms {
            Some(ms) => exact_duration(ms),
            None => "the runner's grace".into(),
        };
        sheet.add("ended by", format!("{}, SIGKILL after {grace}", signal_name(first)));
    }
    for (name, policy, usual) in [
        ("cut off", text::on_disconnect(spec), "continue"),
        ("restart", text::on_runner_restart(spec), "adopt"),
    ] {
        if policy != usual {
            sheet.add(name, policy);
        }
    }
}

/// As whom, and within which limits, where that is not as usual.
fn confined(sheet: &mut Sheet, spec: &v1::TaskSpec) {
    match (spec.user.as_str(), spec.group.as_str()) {
        (user, "") => sheet.add("user", user),
        (user, group) => sheet.add("user", format!("{user}, group {group}")),
    }
    if let Some(tty) = &spec.tty {
        sheet.add("terminal", format!("{} rows, {} columns", tty.rows, tty.columns));
    }
    if let Some(umask) = spec.umask {
        sheet.add("umask", format!("{umask:03o}"));
    }
    let Some(limits) = &spec.limits else { return };
    let mut said = Vec::new();
    if limits.open_files != 0 {
        said.push(format!("{} open files", limits.open_files));
    }
    for (bytes, what) in [(limits.core_bytes, "core files"), (limits.file_bytes, "files")] {
        if bytes != 0 {
            said.push(format!("{what} of {}", exact_bytes(bytes)));
        }
    }
    if limits.memory_bytes != 0 {
        said.push(format!("memory {}", exact_bytes(limits.memory_bytes)));
    }
    if limits.cpu_millis != 0 {
        let s = if limits.cpu_millis == 1_000 { "" } else { "s" };
        said.push(format!("{} cpu{s}", exact_cpus(limits.cpu_millis)));
    }
    if limits.pids != 0 {
        let es = if limits.pids == 1 { "" } else { "es" };
        said.push(format!("{} process{es}", limits.pids));
    }
    said.extend(limits.nice.map(|nice| format!("nice {nice}")));
    sheet.add("limits", said.join(", "));
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
        if task.recoveries > 0 {
            chain.push_str(&format!(
                ", started again {} for lost runners",
                counted(task.recoveries, "time")
            ));
        }
        sheet.add("attempt", chain);
    }
    if task.set_size > 0 {
        let members = format!("{}: systole ls --set {}", task.set_size, task.id);
        sheet.add("members", members);
    }
    if task.set_id != 0 {
        let shard = if task.shard_total == 0 {
            "a member".to_owned()
        } else {
            format!("shard {} of {}", task.shard_index, task.shard_total)
        };
        sheet.add("broadcast", format!("{shard} of {}", task.set_id));
    }
    if !task.route.is_empty() {
        let chosen = if task.routed_to.is_empty() {
            String::new()
        } else {
            format!(", waits for {}", task.routed_to)
        };
        sheet.add("route", format!("{}{chosen}", task.route));
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
    use crate::golden::{self, NOW};
    use systole_shared::task::TaskState;

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
        task.stdout_gap = Some(v1::OutputGap {
            offset: 4 << 20,
            bytes: 11 << 20,
        });
        let text = describe(&task, 0, false);
        let line =
            "  output     stdout 8.0 MiB (without 11 MiB after the first 4.0 MiB), stderr 0 B: systole logs 12\n";
        assert!(text.contains(line), "{text}");
        task.stdout_gap = None;
        task.stdout_dropped_bytes = 0;
        assert!(describe(&task, 0, false).contains("stdout 8.0 MiB, stderr 0 B: "));
    }

    #[test]
    fn clocks_and_the_end_are_shown_where_they_are_not_as_usual() {
        let task = v1::Task {
            id: 12,
            host: "db-01".into(),
            spec: Some(v1::TaskSpec {
                timeout_ms: 10_800_000,
                queue_timeout_ms: 5_400_000,
                start_timeout_ms: 5_000,
                silence_timeout_ms: 1_200_000,
                warn_signal: 10,
                warn_before_ms: 300_000,
                kill_signal: 2,
                kill_grace_ms: Some(30_000),
                on_disconnect: v1::OnDisconnect::Kill.into(),
                on_runner_restart: v1::OnRunnerRestart::Kill.into(),
                ..v1::TaskSpec::default()
            }),
            end_detail: Some(v1::EndDetail {
                tree_empty: Some(true),
                leftovers: 2,
                ..v1::EndDetail::default()
            }),
            ..v1::Task::default()
        };
        let text = describe(&task, 0, false);
        for line in [
            "  timeout    3h\n",
            "  in queue   at most 1h30m\n",
            "  to start   at most 5s\n",
            "  silent     at most 20m\n",
            "  warning    SIGUSR1 5m before the timeout\n",
            "  ended by   SIGINT, SIGKILL after 30s\n",
            "  cut off    kill\n",
            "  restart    kill\n",
            "  tree       2 leftover processes were killed\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }

    #[test]
    fn limits_and_the_user_are_shown_where_they_are_set() {
        let task = v1::Task {
            id: 12,
            spec: Some(v1::TaskSpec {
                limits: Some(v1::Limits {
                    open_files: 64,
                    core_bytes: 10 << 20,
                    file_bytes: 512 << 10,
                    nice: Some(0),
                    memory_bytes: 1 << 30,
                    cpu_millis: 500,
                    pids: 20,
                }),
                umask: Some(0o7),
                user: "ann".into(),
                group: "staff".into(),
                ..v1::TaskSpec::default()
            }),
            ..v1::Task::default()
        };
        let text = describe(&task, 0, false);
        for line in [
            "  user       ann, group staff\n",
            "  umask      007\n",
            "  limits     64 open files, core files of 10M, files of 512K, memory 1G, 0.5 cpus, 20 processes, nice 0\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
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
        for absent in [
            "started", "ended", "runner ", "attempt", "env", "callback", "output", "in queue", "to start", "silent",
            "warning", "cut off", "restart", "tree", "cpu", "limits", "umask", "user",
        ] {
            assert!(!text.contains(&format!("\n  {absent}")), "{absent}: {text}");
        }
    }

    #[test]
    fn the_sheet_of_a_task_in_each_state_is_as_it_was() {
        let mut text = String::new();
        for task in golden::tasks() {
            text.push_str(&describe(&task, NOW, false));
        }
        golden::check("show", &text);
    }

    #[test]
    fn the_sheet_of_a_task_with_everything_is_as_it_was() {
        let mut task = golden::task(1_843, TaskState::Failed);
        (task.root_id, task.retry_of, task.retried_by, task.attempt) = (1_840, 1_842, 1_844, 2);
        (task.stderr_bytes, task.stderr_dropped_bytes) = (8 << 20, 3 << 20);
        task.callback = Some(v1::Callback {
            url: "https://hooks.example.org/done".into(),
            status: "failed".into(),
            tries: 3,
            last_error: "status 500".into(),
            delivery_id: "d".into(),
        });
        task.late_result = Some(v1::Outcome {
            kind: "success".into(),
            ..v1::Outcome::default()
        });
        task.end_detail = Some(v1::EndDetail {
            tree_empty: Some(true),
            signals: vec![v1::SignalSent {
                signal: 15,
                at_ms: 1_800_000_430_000,
            }],
            leftovers: 2,
            usage: Some(v1::Usage {
                user_cpu_us: Some(1_500_000),
                peak_memory_bytes: Some(12 << 20),
                ..v1::Usage::default()
            }),
            memory_limit_bytes: Some(1 << 30),
            note: "a note".into(),
            output_until_ms: Some(1_800_600_000_000),
            ..v1::EndDetail::default()
        });
        let spec = task.spec.get_or_insert_default();
        spec.require = vec![v1::Label {
            key: "gpu".into(),
            value: "1".into(),
        }];
        (spec.job, spec.batch, spec.batch_line, spec.unique_key) = ("etl.load".into(), "b-1".into(), 7, "load".into());
        (spec.target_host, spec.target_slot) = ("etl-2".into(), Some(1));
        (spec.timeout_ms, spec.run_at_ms, spec.umask) = (60_000, 1_800_000_000_000, Some(0o27));
        (spec.user, spec.group, spec.env_file) = ("ann".into(), "staff".into(), "/etc/etl.env".into());
        spec.env = vec![v1::EnvVar {
            name: "STAGE".into(),
            value: "prod".into(),
        }];
        spec.retry = Some(v1::Retry {
            max_retries: 3,
            delay_ms: 10_000,
        });
        golden::check("show_everything", &describe(&task, NOW, false));
    }
}
