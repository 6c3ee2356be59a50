//! The job log that GNU parallel writes, so that what reads those reads these.

use crate::output::text;
use systole_proto::convert::state_to_wire;
use systole_proto::v1;
use systole_shared::task::TaskState;

pub const TITLES: &str = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand";

/// Tasks that have ended, of each chain the last attempt.
pub fn only_ended(filter: &mut v1::TaskFilter) {
    filter.last_attempts = true;
    if filter.states.is_empty() {
        filter.states = TaskState::ALL
            .into_iter()
            .filter(|state| state.is_terminal())
            .map(|state| state_to_wire(state).into())
            .collect();
    }
}

/// One task. What is neither an exit code nor a signal (it could not be started, its runner was lost, it was
/// cancelled) is exit value -1.
pub fn line(task: &v1::Task) -> String {
    let default = v1::TaskSpec::default();
    let spec = task.spec.as_ref().unwrap_or(&default);
    let seq = match spec.batch_line {
        0 => u64::try_from(task.id).unwrap_or(0),
        line => line,
    };
    let host = if task.host.is_empty() { ":" } else { &task.host };
    let seconds = |ms: u64| format!("{}.{:03}", ms / 1_000, ms % 1_000);
    let started = task.started_at_ms;
    let ran = if started == 0 {
        0
    } else {
        task.ended_at_ms.saturating_sub(started)
    };
    let outcome = task.outcome.as_ref();
    let (exit, signal) = match outcome.map(|outcome| (outcome.exit_code, outcome.signal)) {
        Some((_, Some(signal))) => (0, signal),
        Some((Some(code), None)) => (code, 0),
        _ => (-1, 0),
    };
    // A shell text is shown as it was given.
    let command = match spec.command.as_slice() {
        [shell, c, text] if shell == "/bin/sh" && c == "-c" => text.clone(),
        command => text::command_line(command),
    };
    format!(
        "{seq}\t{host}\t{}\t{}\t0\t{}\t{exit}\t{signal}\t{}",
        seconds(started),
        seconds(ran),
        task.stdout_bytes,
        text::clean(&command)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_columns_of_parallel() {
        let mut task = v1::Task {
            id: 7,
            host: "db-01".into(),
            started_at_ms: 1_800_000_000_012,
            ended_at_ms: 1_800_000_001_512,
            stdout_bytes: 6,
            outcome: Some(v1::Outcome {
                exit_code: Some(3),
                ..v1::Outcome::default()
            }),
            spec: Some(v1::TaskSpec {
                command: ["/bin/sh", "-c", "echo hello; exit 3"].map(str::to_owned).to_vec(),
                batch: "b".into(),
                batch_line: 2,
                ..v1::TaskSpec::default()
            }),
            ..v1::Task::default()
        };
        assert_eq!(
            line(&task),
            "2\tdb-01\t1800000000.012\t1.500\t0\t6\t3\t0\techo hello; exit 3"
        );
        assert_eq!(line(&task).split('\t').count(), TITLES.split('\t').count());
        task.outcome = Some(v1::Outcome {
            signal: Some(9),
            ..v1::Outcome::default()
        });
        assert!(line(&task).contains("\t0\t9\t"));
        task.outcome = None;
        assert!(line(&task).contains("\t-1\t0\t"));
    }

    #[test]
    fn the_log_is_as_it_was() {
        let lines: Vec<String> = crate::golden::tasks()
            .iter()
            .filter(|task| task.ended_at_ms != 0)
            .map(line)
            .collect();
        crate::golden::check("joblog", &format!("{TITLES}\n{}\n", lines.join("\n")));
    }
}
