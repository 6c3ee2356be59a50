//! Changing many tasks at once: what it would be about, and whether somebody wants that.

use crate::args::{Format, ManyArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use systole_proto::v1;
use systole_shared::plural::counted;

/// "1 task", "412 tasks".
pub fn tasks(count: u64) -> String {
    counted(count, "task")
}

/// Counts what matches, tells it, and asks. `Some`: nothing is to be done, and the command ends so.
pub async fn agreed(
    client: &Client,
    output: &Output,
    filter: &v1::TaskFilter,
    args: &ManyArgs,
    verb: &str,
) -> Result<Option<u8>, Failure> {
    let counts = client.count(filter.clone()).await?;
    if args.dry_run {
        match output.format {
            Format::Json => json::document(&json::Counts::from(&counts)),
            Format::Jsonl => json::object(&json::Counts::from(&counts)),
            Format::Id => output::line(&counts.total.to_string()),
            Format::Table | Format::Wide => {
                output::line(&format!("{}. Nothing was changed (--dry-run).", what(&counts)))
            }
        }
        return Ok(Some(if counts.total == 0 {
            exit_code::NO
        } else {
            exit_code::OK
        }));
    }
    if counts.total == 0 {
        output.note("no task matches; nothing was changed");
        return Ok(Some(exit_code::NO));
    }
    if args.yes {
        return Ok(None);
    }
    let question = format!("{} at {}", what(&counts), client.place());
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return Err(Failure::usage(format!(
            "{question}: add --yes, since nobody can be asked here; --dry-run only counts"
        )));
    }
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "{question}. {verb} them? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    Ok(match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => None,
        _ => Some(exit_code::NO),
    })
}

/// "412 tasks (400 QUEUED, 12 RUNNING)".
fn what(counts: &v1::CountResponse) -> String {
    let states: Vec<String> = counts
        .counts
        .iter()
        .map(|count| format!("{} {}", count.count, text::state_name(count.state)))
        .collect();
    match states.as_slice() {
        [] => tasks(counts.total),
        states => format!("{} ({})", tasks(counts.total), states.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant_is_counted_by_state() {
        let count = |state, count| v1::StateCount { state, count };
        let counts = v1::CountResponse {
            counts: vec![count(2, 400), count(4, 12)],
            total: 412,
        };
        assert_eq!(what(&counts), "412 tasks (400 QUEUED, 12 RUNNING)");
        assert_eq!(what(&v1::CountResponse::default()), "0 tasks");
    }
}
