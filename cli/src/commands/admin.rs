//! `systole admin`: what is held until somebody has looked.

use crate::args::{AdminAction, AdminArgs, ConfirmArgs, Format, Global};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json, text};
use systole_proto::v1;

pub async fn run(global: &Global, args: &AdminArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    match &args.action {
        AdminAction::Alarms => alarms(&client, &output).await,
        AdminAction::Confirm(args) => confirm(&client, &output, args).await,
    }
}

async fn alarms(client: &Client, output: &Output) -> Result<u8, Failure> {
    let alarms = client.alarms().await?;
    match output.format {
        Format::Json => json::document(&json::Alarms {
            alarms: alarms.iter().map(json::Alarm::from).collect(),
        }),
        Format::Jsonl => alarms.iter().for_each(|alarm| json::object(&json::Alarm::from(alarm))),
        Format::Id => alarms.iter().for_each(|alarm| output::line(&alarm.kind)),
        Format::Table | Format::Wide => alarms.iter().for_each(|alarm| output::line(&line(alarm))),
    }
    if alarms.is_empty() {
        if output.format.is_for_people() {
            output.note("nothing is held");
        }
        return Ok(exit_code::OK);
    }
    Ok(exit_code::NO)
}

fn line(alarm: &v1::Alarm) -> String {
    format!(
        "{} since {}: {}",
        text::clean(&alarm.kind),
        text::full_time(alarm.since_ms),
        text::clean(&alarm.message)
    )
}

/// For other commands: says what is held, beside their own output. A scheduler that cannot tell is not asked twice.
pub async fn note_alarms(client: &Client, output: &Output) {
    for alarm in client.alarms().await.unwrap_or_default() {
        output.note(&format!("alarm: {}", text::clean(&alarm.message)));
    }
}

async fn confirm(client: &Client, output: &Output, args: &ConfirmArgs) -> Result<u8, Failure> {
    let request = v1::ConfirmRequest {
        kind: args.alarm.name().into(),
        reason: args.reason.clone().unwrap_or_default(),
    };
    let message = client.confirm(request).await?.message;
    match output.format {
        Format::Json | Format::Jsonl => json::one(
            output.format,
            &json::Confirmed {
                alarm: args.alarm.name().into(),
                message,
            },
        ),
        Format::Id => output::line(args.alarm.name()),
        Format::Table | Format::Wide => output::line(&text::clean(&message)),
    }
    Ok(exit_code::OK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{self, THEN};

    #[test]
    fn an_alarm_is_one_line() {
        let alarm = v1::Alarm {
            kind: "clock".into(),
            message: "a\nb".into(),
            since_ms: 1_800_000_000_000,
        };
        let line = line(&alarm);
        assert!(
            line.starts_with("clock since 2027-01-15") && !line.contains('\n'),
            "{line}"
        );
    }

    #[test]
    fn the_lines_are_as_they_were() {
        let alarm = |kind: &str, message: &str| v1::Alarm {
            kind: kind.into(),
            message: message.into(),
            since_ms: THEN,
        };
        let text = format!(
            "{}\n{}\n",
            line(&alarm(
                "clock",
                "the database's clock says 2036 and is 10 years ahead of what it should be"
            )),
            line(&alarm("restore", "the database was set back"))
        );
        golden::check("alarms", &text);
    }
}
