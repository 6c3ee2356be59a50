//! `systole doctor`: one look at everything that goes wrong in practice, with what to do about it.

mod here;

use crate::args::{DoctorArgs, Format, Global};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, color, json, text};
use comfy_table::Color;
use systole_proto::v1;
use systole_shared::clock::now_ms;
use systole_shared::policy::doctor::{self, Finding, Level};
use tokio::time::Instant;

/// An answer that takes longer is felt with every command.
const SLOW_MS: u128 = 250;

pub async fn run(global: &Global, args: &DoctorArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let mut findings = here::look(global, args);
    findings.extend(there(global).await);
    tell(&output, &findings);
    Ok(if findings.iter().any(|finding| finding.level == Level::Problem) {
        exit_code::NO
    } else {
        exit_code::OK
    })
}

/// The way to the scheduler, and what that one says.
async fn there(global: &Global) -> Vec<Finding> {
    let unreachable = |subject: &str, failure: &Failure| {
        let (message, remedy) = sentence(&failure.to_string());
        vec![Finding::problem("scheduler", subject, message, remedy)]
    };
    let client = match Client::new(global) {
        Ok(client) => client,
        Err(failure) => return unreachable("this machine", &failure),
    };
    // The first call makes the connection, which is not what is measured.
    let first = client.examine().await;
    let (begin, asked_ms) = (Instant::now(), now_ms());
    let answer = match first {
        Ok(_) => client.examine().await,
        failed => failed,
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(failure) => return unreachable(&client.place(), &failure),
    };
    let took = begin.elapsed().as_millis();
    let here_ms = asked_ms + i64::try_from(took / 2).unwrap_or(0);
    let mut findings = vec![answers(&client.place(), &answer, took)];
    findings.push(doctor::clock(
        "this machine",
        here_ms - i64::try_from(answer.now_ms).unwrap_or(here_ms),
        "the scheduler's",
    ));
    findings.push(doctor::versions(&[
        ("this command".into(), env!("CARGO_PKG_VERSION").into()),
        ("the scheduler that answers".into(), answer.version.clone()),
    ]));
    findings.extend(answer.findings.into_iter().map(from_wire));
    findings
}

fn answers(place: &str, answer: &v1::ExamineResponse, took_ms: u128) -> Finding {
    let message = format!("{} answers in {took_ms} ms, version {}", answer.replica, answer.version);
    if took_ms < SLOW_MS {
        Finding::ok("scheduler", place, message)
    } else {
        Finding::note(
            "scheduler",
            place,
            message,
            "the way there is long, or the scheduler is busy: `systole status`, /metrics",
        )
    }
}

fn from_wire(finding: v1::Finding) -> Finding {
    Finding {
        check: finding.check,
        subject: finding.subject,
        level: Level::parse(&finding.level),
        message: finding.message,
        remedy: finding.remedy,
    }
}

/// The first sentence of a failure, and the rest, which says what to do.
fn sentence(text: &str) -> (String, String) {
    match text.split_once(". ") {
        Some((what, remedy)) => (what.to_owned(), remedy.to_owned()),
        None => (
            text.to_owned(),
            "see `systole --help` for --url, --context and --ca".to_owned(),
        ),
    }
}

fn tell(output: &Output, findings: &[Finding]) {
    let problems = findings
        .iter()
        .filter(|finding| finding.level == Level::Problem)
        .count();
    match output.format {
        Format::Json => json::document(&json::Findings {
            problems,
            findings: findings.iter().map(json::Finding::from).collect(),
        }),
        Format::Jsonl => findings
            .iter()
            .for_each(|finding| json::object(&json::Finding::from(finding))),
        Format::Id => findings
            .iter()
            .filter(|finding| finding.level == Level::Problem)
            .for_each(|finding| output::line(&finding.check)),
        Format::Table | Format::Wide => {
            let lines: Vec<String> = findings
                .iter()
                .flat_map(|finding| lines(finding, output.color))
                .collect();
            output::data(format!("{}\n", lines.join("\n")).as_bytes());
            output.note(&match problems {
                0 => "nothing needs a person".to_owned(),
                1 => "1 problem".to_owned(),
                problems => format!("{problems} problems"),
            });
        }
    }
}

fn lines(finding: &Finding, colored: bool) -> Vec<String> {
    let color = match finding.level {
        Level::Ok => Color::Green,
        Level::Note => Color::Yellow,
        Level::Problem => Color::Red,
    };
    // Painted when its width is known: escape sequences have none.
    let level = color::paint(&format!("{:<8}", finding.level.name()), Some(color), colored);
    let mut lines = vec![format!(
        "{level} {:<10} {}: {}",
        text::clean(&finding.check),
        text::clean(&finding.subject),
        text::clean(&finding.message)
    )];
    if !finding.remedy.is_empty() {
        lines.push(format!("         → {}", text::clean(&finding.remedy)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_and_what_to_do_another() {
        let finding = Finding::problem("clock", "db\x1b-01", "it is off", "set it");
        assert_eq!(
            lines(&finding, false),
            ["problem  clock      db^[-01: it is off", "         → set it"]
        );
        assert_eq!(lines(&Finding::ok("disk", "a", "fine"), false).len(), 1);
        assert!(lines(&finding, true)[0].starts_with("\x1b[31mproblem"));
    }

    #[test]
    fn a_failure_is_what_and_what_to_do() {
        let (what, remedy) =
            sentence("no scheduler at http://127.0.0.1:1: connection refused. Start one: `systole up`.");
        assert_eq!(what, "no scheduler at http://127.0.0.1:1: connection refused");
        assert_eq!(remedy, "Start one: `systole up`.");
    }
}
