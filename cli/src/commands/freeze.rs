//! `systole pause` and `systole resume`: nothing that is named starts, until a time or until it is lifted.

use crate::args::{Format, Global, PauseArgs, ResumeArgs, Until};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use serde::Serialize;
use systole_proto::v1;
use systole_shared::policy::freeze::Scope;

#[derive(Serialize)]
struct Paused {
    freeze: Option<json::Freeze>,
    /// It was frozen before.
    already: bool,
}

#[derive(Serialize)]
struct Resumed {
    /// `null`: it was not frozen.
    lifted: Option<json::Freeze>,
    /// What is frozen still.
    frozen: Vec<json::Freeze>,
}

/// What is frozen, in words.
pub fn what(freeze: &v1::Freeze) -> String {
    Scope::parse(&freeze.scope, &freeze.name).map_or_else(|_| text::clean(&freeze.scope), |scope| scope.words())
}

/// `queue etl, by ann since 02:30 until 06:00, "CHG-1042"`.
pub fn line(freeze: &v1::Freeze) -> String {
    let until = match freeze.until_ms {
        0 => ", until somebody resumes it".to_owned(),
        ms => format!(" until {}", text::full_time(ms)),
    };
    let reason = if freeze.reason.is_empty() {
        String::new()
    } else {
        format!(", \"{}\"", text::clean(&freeze.reason))
    };
    format!(
        "{}, by {} since {}{until}{reason}",
        what(freeze),
        text::clean(&freeze.by),
        text::full_time(freeze.since_ms)
    )
}

/// The command that lifts it.
pub fn lift(freeze: &v1::Freeze) -> String {
    Scope::parse(&freeze.scope, &freeze.name).map_or_else(|_| "systole resume".into(), |scope| scope.lift())
}

/// What a resume came to. `free`: nothing is frozen any more.
fn resumed(asked: &v1::Freeze, lifted: bool, free: bool) -> String {
    match (lifted, asked.scope.as_str()) {
        (true, _) => format!("{} goes on", what(asked)),
        (false, "all") if free => "nothing was frozen".into(),
        (false, "all") => "not everything was frozen".into(),
        (false, _) => format!("{} was not frozen", what(asked)),
    }
}

pub async fn pause(global: &Global, args: &PauseArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let (scope, name) = args.scope.to_wire();
    let (until_ms, for_ms) = match args.until {
        None => (0, 0),
        Some(Until::Time(ms)) => (ms, 0),
        Some(Until::Within(ms)) => (0, ms),
    };
    let request = v1::PauseRequest {
        scope,
        name,
        until_ms,
        for_ms,
        reason: args.reason.clone().unwrap_or_default(),
    };
    let response = client.pause(request).await?;
    let freeze = response.freeze.unwrap_or_default();
    let done = Paused {
        freeze: Some(json::Freeze::from(&freeze)),
        already: response.already,
    };
    match output.format {
        Format::Json => json::document(&done),
        Format::Jsonl => json::object(&done),
        Format::Id => output::line(&what(&freeze)),
        Format::Table | Format::Wide => {
            output::line(&format!("frozen: {}", line(&freeze)));
            if response.already {
                output.note("it was frozen before; the end and the reason are the new ones");
            }
            output.note(&format!("what runs goes on; lift it: {}", lift(&freeze)));
        }
    }
    Ok(exit_code::OK)
}

pub async fn resume(global: &Global, args: &ResumeArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let (scope, name) = args.scope.to_wire();
    let request = v1::ResumeRequest {
        scope: scope.clone(),
        name: name.clone(),
        reason: args.reason.clone().unwrap_or_default(),
    };
    let response = client.resume(request).await?;
    let done = Resumed {
        lifted: response.lifted.as_ref().map(json::Freeze::from),
        frozen: response.frozen.iter().map(json::Freeze::from).collect(),
    };
    match output.format {
        Format::Json => json::document(&done),
        Format::Jsonl => json::object(&done),
        Format::Id => response.lifted.iter().for_each(|freeze| output::line(&what(freeze))),
        Format::Table | Format::Wide => {
            let asked = v1::Freeze {
                scope,
                name,
                ..v1::Freeze::default()
            };
            let lifted = response.lifted.is_some();
            output::line(&resumed(&asked, lifted, response.frozen.is_empty()));
            for freeze in &response.frozen {
                output.note(&format!("still frozen: {}; lift it: {}", line(freeze), lift(freeze)));
            }
        }
    }
    Ok(exit_code::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freeze_is_said_with_its_end_its_reason_and_the_command_that_lifts_it() {
        let mut freeze = v1::Freeze {
            scope: "queue".into(),
            name: "etl".into(),
            by: "ann".into(),
            reason: "CHG\x1b-1".into(),
            since_ms: 1_800_000_000_000,
            until_ms: 0,
        };
        let since = text::full_time(freeze.since_ms);
        assert_eq!(
            line(&freeze),
            format!("queue etl, by ann since {since}, until somebody resumes it, \"CHG^[-1\"")
        );
        assert_eq!(lift(&freeze), "systole resume --queue etl");
        freeze.until_ms = 1_800_003_600_000;
        let until = text::full_time(freeze.until_ms);
        assert!(line(&freeze).contains(&format!("since {since} until {until}, ")));
    }

    #[test]
    fn a_resume_says_what_goes_on_or_what_was_not_frozen() {
        let freeze = |scope: &str, name: &str| v1::Freeze {
            scope: scope.into(),
            name: name.into(),
            ..v1::Freeze::default()
        };
        let (all, queue) = (freeze("all", ""), freeze("queue", "etl"));
        for (asked, lifted, free, said) in [
            (&all, true, true, "everything goes on"),
            (&all, false, true, "nothing was frozen"),
            (&all, false, false, "not everything was frozen"),
            (&queue, true, true, "queue etl goes on"),
            (&queue, false, true, "queue etl was not frozen"),
        ] {
            assert_eq!(resumed(asked, lifted, free), said);
        }
    }
}
