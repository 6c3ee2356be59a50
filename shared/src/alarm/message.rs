//! An alarm in words: what happened, to what, what was tried, and where to look further.

use super::notice::{Kind, Notice, TaskFact};
use super::tail::shown;
use crate::plural::counted;
use crate::time::{format_duration, format_utc};

/// Tasks that a text lists.
const LISTED_MAX: usize = 20;
/// Characters of a title.
const TITLE_CHARS_MAX: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Info,
    Warning,
    Error,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A task as it is when the alarm is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskNow {
    pub id: i64,
    pub state: String,
    pub runner: String,
    pub attempt: i64,
    pub attempts: i64,
    pub started_ms: i64,
    /// Its next attempt, and when that may start.
    pub next: Option<(i64, i64)>,
}

/// What is looked up when an alarm is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Name of the cluster's channel, for a test.
    pub channel: String,
    /// The newest task of the job.
    pub task: Option<TaskNow>,
    /// The last lines of its output, harmless.
    pub output: Vec<String>,
    /// `stdout` or `stderr`.
    pub output_of: &'static str,
}

/// What is sent, before it gets the form of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub kind: Kind,
    pub title: String,
    pub severity: Severity,
    /// Label and value.
    pub facts: Vec<(&'static str, String)>,
    pub output: Vec<String>,
    pub output_of: &'static str,
    /// Where to look further.
    pub commands: Vec<String>,
    pub runbook: String,
    /// An alarm and the recovery from it have the same.
    pub incident: String,
    /// It is the end of an incident.
    pub resolves: bool,
    pub raised_ms: i64,
}

fn title(kind: Kind, notice: &Notice, now: &Now) -> String {
    let job = &notice.job;
    let task = notice.tasks.last();
    let named = task.map(|task| format!(" (task {})", task.id)).unwrap_or_default();
    let outcome = task.map_or("", |task| task.outcome.as_str());
    let text = match kind {
        Kind::Failure => {
            let row = match notice.failures {
                0 | 1 => String::new(),
                n => format!(" {n} times in a row"),
            };
            format!("{job} FAILED{row}: {outcome}{named}")
        }
        Kind::HostLost => format!("host {} was lost with {}", notice.host, counted(notice.count, "task")),
        Kind::Recovery => format!("{job} works again{named}"),
        Kind::Late => format!("{job} is LATE: {}", notice.rule),
        Kind::Skipped => {
            let more = match notice.count {
                0 | 1 => String::new(),
                n => format!(" and {} more", counted(n - 1, "time")),
            };
            format!(
                "{job} did not run at {}{more}: {}",
                format_utc(notice.since_ms),
                notice.rule
            )
        }
        Kind::Slow => format!("{job} {}{named}", notice.rule),
        Kind::Test => format!("test of the alarm channel {}", now.channel),
    };
    shown(&text).chars().take(TITLE_CHARS_MAX).collect()
}

/// `1840 of etl.extract on db-01/0: exit code 75, attempt 4 of 4`.
fn task_line(task: &TaskFact, with_job: bool) -> String {
    let mut text = task.id.to_string();
    if with_job {
        text.push_str(&format!(" of {}", task.job));
    }
    if !task.runner.is_empty() {
        text.push_str(&format!(" on {}", task.runner));
    }
    if !task.outcome.is_empty() {
        text.push_str(&format!(": {}", task.outcome));
    }
    if task.attempts > 1 || task.attempt > 1 {
        text.push_str(&format!(
            ", attempt {} of {}",
            task.attempt,
            task.attempts.max(task.attempt)
        ));
    }
    text
}

/// What a job is doing now.
fn doing(task: &TaskNow, raised_ms: i64) -> String {
    let mut text = format!("task {} is {}", task.id, task.state);
    if task.attempts > 1 || task.attempt > 1 {
        text.push_str(&format!(
            ", attempt {} of {}",
            task.attempt,
            task.attempts.max(task.attempt)
        ));
    }
    if !task.runner.is_empty() {
        text.push_str(&format!(", on {}", task.runner));
    }
    if task.started_ms > 0 {
        let ran = format_duration(raised_ms.saturating_sub(task.started_ms).max(0).unsigned_abs());
        text.push_str(&format!(", started {} ({ran} before)", format_utc(task.started_ms)));
    }
    text
}

fn facts(kind: Kind, notice: &Notice, now: &Now, raised_ms: i64) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let mut add = |label, value: String| {
        if !value.is_empty() {
            facts.push((label, shown(&value)));
        }
    };
    if kind == Kind::Test {
        add("meaning", "an alarm would arrive here; nothing is wrong".into());
        return facts;
    }
    if kind != Kind::HostLost {
        add("job", notice.job.clone());
    }
    add("owner", notice.owner.clone());
    for task in notice.tasks.iter().take(LISTED_MAX) {
        add("task", task_line(task, kind == Kind::HostLost));
    }
    let listed = notice.tasks.len().min(LISTED_MAX) as u64;
    if notice.count > listed && listed > 0 {
        add("more", counted(notice.count - listed, "further task"));
    }
    if kind == Kind::HostLost {
        add(
            "meaning",
            "nobody knows whether these tasks have finished; places of serial jobs stay taken until the host is back or is declared dead".into(),
        );
    }
    if kind == Kind::Failure && notice.count > 1 {
        add("failed runs", format!("{} since the last alarm", notice.count));
    }
    if kind == Kind::Late && notice.since_ms > 0 {
        add("late since", format_utc(notice.since_ms));
    }
    if matches!(kind, Kind::Late | Kind::Failure) {
        let success = match notice.success_ms {
            0 => "none is known".into(),
            ms => format_utc(ms),
        };
        add("last success", success);
    }
    if notice.blocked_by > 0 {
        add("in the way", format!("task {}", notice.blocked_by));
    }
    if let Some(task) = &now.task
        && matches!(kind, Kind::Late | Kind::Slow)
    {
        add("now", doing(task, raised_ms));
        if let Some((id, at)) = task.next {
            add("next retry", format!("task {id} at {}", format_utc(at)));
        }
    }
    if kind == Kind::Failure {
        let next = match now.task.as_ref().and_then(|task| task.next) {
            Some((id, at)) => format!("task {id} at {}", format_utc(at)),
            None => "none: that was the last attempt".into(),
        };
        add("next retry", next);
    }
    add("raised", format_utc(raised_ms));
    facts
}

fn commands(kind: Kind, notice: &Notice, now: &Now) -> Vec<String> {
    let mut commands = Vec::new();
    if let Some(task) = notice
        .tasks
        .last()
        .map(|task| task.id)
        .or(now.task.as_ref().map(|task| task.id))
    {
        match kind {
            Kind::HostLost => commands.push(format!("systole runners ls {}", notice.host)),
            Kind::Test => {}
            _ => {
                commands.push(format!("systole show {task}"));
                commands.push(format!("systole logs {task}"));
            }
        }
    }
    match kind {
        Kind::Late | Kind::Skipped => commands.push(format!("systole why {}", notice.job)),
        Kind::HostLost => commands.push("systole status".into()),
        Kind::Test => commands.push("systole alarm ls".into()),
        Kind::Failure | Kind::Recovery | Kind::Slow => commands.push(format!("systole job history {}", notice.job)),
    }
    commands
}

/// The words of an alarm.
pub fn message(kind: Kind, notice: &Notice, now: &Now, raised_ms: i64) -> Message {
    let severity = match kind {
        Kind::Failure | Kind::HostLost | Kind::Late => Severity::Error,
        Kind::Skipped | Kind::Slow => Severity::Warning,
        Kind::Recovery | Kind::Test => Severity::Info,
    };
    let incident = match kind {
        Kind::HostLost => format!("host:{}", notice.host),
        Kind::Test => format!("test:{raised_ms}"),
        Kind::Slow | Kind::Skipped => format!("{}:{}", kind.name(), notice.job),
        Kind::Failure | Kind::Late | Kind::Recovery => format!("job:{}", notice.job),
    };
    Message {
        kind,
        title: title(kind, notice, now),
        severity,
        facts: facts(kind, notice, now, raised_ms),
        output: now.output.clone(),
        output_of: now.output_of,
        commands: commands(kind, notice, now),
        runbook: shown(&notice.runbook),
        incident,
        resolves: kind == Kind::Recovery,
        raised_ms,
    }
}

impl Message {
    /// As plain text, for mails and everything that shows text.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.title);
        let width = self.facts.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
        for (label, value) in &self.facts {
            text.push_str(&format!("{label:<width$}  {value}\n"));
        }
        if !self.runbook.is_empty() {
            text.push_str(&format!("\nrunbook: {}\n", self.runbook));
        }
        if !self.output.is_empty() {
            text.push_str(&format!("\nlast lines of {}:\n", self.output_of));
            for line in &self.output {
                text.push_str(&format!("  {line}\n"));
            }
        }
        if !self.commands.is_empty() {
            text.push_str("\nlook further:\n");
            for command in &self.commands {
                text.push_str(&format!("  {command}\n"));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAISED: i64 = 1_800_000_000_000;

    fn failed() -> Notice {
        Notice {
            job: "etl.extract".into(),
            owner: "data@example.org".into(),
            runbook: "https://wiki.example.org/etl".into(),
            count: 1,
            failures: 3,
            tasks: vec![TaskFact {
                id: 1840,
                job: "etl.extract".into(),
                runner: "db-01/0".into(),
                attempt: 4,
                attempts: 4,
                outcome: "exit code 75".into(),
            }],
            ..Notice::default()
        }
    }

    #[test]
    fn a_failure_says_all_that_the_night_needs() {
        let now = Now {
            output: vec!["no space left".into()],
            output_of: "stderr",
            ..Now::default()
        };
        let message = message(Kind::Failure, &failed(), &now, RAISED);
        assert_eq!(
            message.title,
            "etl.extract FAILED 3 times in a row: exit code 75 (task 1840)"
        );
        let text = message.text();
        for part in [
            "1840 on db-01/0: exit code 75, attempt 4 of 4",
            "none: that was the last attempt",
            "runbook: https://wiki.example.org/etl",
            "last lines of stderr:\n  no space left",
            "systole logs 1840",
            "systole job history etl.extract",
            "data@example.org",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert_eq!(message.incident, "job:etl.extract");
    }

    #[test]
    fn a_lateness_says_what_runs_and_what_comes_next() {
        let notice = Notice {
            job: "nightly-backup".into(),
            rule: "must have succeeded by 06:00 Europe/Berlin".into(),
            since_ms: RAISED - 60_000,
            count: 1,
            ..Notice::default()
        };
        let now = Now {
            task: Some(TaskNow {
                id: 7,
                state: "RUNNING".into(),
                runner: "db-01/0".into(),
                attempt: 2,
                attempts: 3,
                started_ms: RAISED - 540_000,
                next: None,
            }),
            ..Now::default()
        };
        let text = message(Kind::Late, &notice, &now, RAISED).text();
        for part in [
            "nightly-backup is LATE: must have succeeded by 06:00 Europe/Berlin",
            "task 7 is RUNNING, attempt 2 of 3, on db-01/0, started 2027-01-15T07:51:00.000Z (9m00s before)",
            "last success",
            "none is known",
            "systole why nightly-backup",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        // Nothing ran at all.
        let idle = message(Kind::Late, &notice, &Now::default(), RAISED).text();
        assert!(!idle.contains("RUNNING") && idle.contains("systole why"), "{idle}");
    }

    #[test]
    fn a_lost_host_lists_its_tasks_and_counts_the_rest() {
        let mut notice = Notice {
            host: "gpu-03".into(),
            ..Notice::default()
        };
        for id in 1..=34 {
            notice.add(&Notice {
                count: 1,
                tasks: vec![TaskFact {
                    id,
                    job: format!("j{}", id % 3),
                    ..TaskFact::default()
                }],
                ..Notice::default()
            });
        }
        let message = message(Kind::HostLost, &notice, &Now::default(), RAISED);
        assert_eq!(message.title, "host gpu-03 was lost with 34 tasks");
        let text = message.text();
        assert!(
            text.contains("1 of j1\n") && text.contains("14 further tasks"),
            "{text}"
        );
        assert_eq!(text.matches("\ntask ").count(), LISTED_MAX);
    }

    #[test]
    fn a_recovery_ends_the_incident_of_its_alarm() {
        let message = message(Kind::Recovery, &failed(), &Now::default(), RAISED);
        assert!(message.resolves);
        assert_eq!(message.incident, "job:etl.extract");
        assert_eq!(message.title, "etl.extract works again (task 1840)");
    }

    #[test]
    fn text_of_others_cannot_add_lines() {
        let notice = Notice {
            tasks: vec![TaskFact {
                outcome: "exit code 1\nowner  mallory\x1b[2J".into(),
                ..failed().tasks[0].clone()
            }],
            ..failed()
        };
        let message = message(Kind::Failure, &notice, &Now::default(), RAISED);
        assert!(!message.title.contains('\n') && !message.text().contains("\nowner  mallory"));
        assert!(!message.text().contains('\x1b'));
    }
}
