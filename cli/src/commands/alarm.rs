//! `systole alarm`: what was told of jobs, to whom, and whether it arrived.

use crate::args::{AlarmAction, AlarmArgs, AlarmLsArgs, Format, Global};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json, text};
use systole_proto::v1;

/// Rows of a table when nobody says otherwise.
const TABLE_ROWS: u64 = 20;
/// Alarms of one call.
const PAGE: u64 = 1_000;

const COLUMNS: [Column; 6] = [
    Column::whole("ID"),
    Column::cut("RAISED", 10).droppable(2),
    Column::cut("CHANNEL", 7),
    Column::cut("STATE", 9),
    Column::cut("ALARM", 14),
    Column::cut("LAST ERROR", 10).droppable(1),
];

pub async fn run(global: &Global, args: &AlarmArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    match &args.action {
        AlarmAction::Ls(args) => list(&client, &output, args).await,
        AlarmAction::Channels => channels(&client, &output).await,
        AlarmAction::Test(args) => test(&client, &output, &args.channel).await,
        AlarmAction::Ack(args) => acknowledge(&client, &output, args.ids.clone()).await,
    }
}

/// It needs a person: it did not arrive, and nobody has said that he knows.
fn is_open(alarm: &v1::JobAlarm) -> bool {
    match alarm.state.as_str() {
        "failed" => alarm.acknowledged_by.is_empty(),
        "pending" | "held" => !alarm.error.is_empty(),
        _ => false,
    }
}

async fn list(client: &Client, output: &Output, args: &AlarmLsArgs) -> Result<u8, Failure> {
    let limit = args.limit.unwrap_or(if output.format.is_for_people() {
        TABLE_ROWS
    } else {
        u64::MAX
    });
    let mut alarms: Vec<v1::JobAlarm> = Vec::new();
    let (mut count, mut below_id, mut open) = (0, 0, false);
    while count < limit {
        let wanted = (limit - count).min(PAGE);
        let page = client
            .job_alarms(v1::ListAlarmsRequest {
                state: args.state.map(|state| state.name().to_owned()).unwrap_or_default(),
                channel: args.channel.clone().unwrap_or_default(),
                job: args.job.clone().unwrap_or_default(),
                open: args.open,
                limit: u32::try_from(wanted).unwrap_or(0),
                below_id,
            })
            .await?;
        let last = page.last().map(|alarm| alarm.id);
        count += page.len() as u64;
        open |= page.iter().any(is_open);
        let full = page.len() as u64 == wanted;
        match output.format {
            Format::Jsonl => page.iter().for_each(|alarm| json::object(&json::JobAlarm::from(alarm))),
            Format::Id => page.iter().for_each(|alarm| output::line(&alarm.id.to_string())),
            Format::Table | Format::Wide | Format::Json => alarms.extend(page),
        }
        match last {
            Some(last) if full => below_id = last,
            _ => break,
        }
    }
    match output.format {
        Format::Jsonl | Format::Id => {}
        Format::Json => json::document(&json::JobAlarms {
            alarms: alarms.iter().map(json::JobAlarm::from).collect(),
        }),
        Format::Table | Format::Wide => {
            let rows: Vec<Vec<Text>> = alarms.iter().map(row).collect();
            let all = !args.open && args.state.is_none() && args.channel.is_none() && args.job.is_none();
            let none = if all { "no alarms so far" } else { "no alarm matches" };
            table::print_or(&COLUMNS, &rows, output, none);
        }
    }
    Ok(if open { exit_code::NO } else { exit_code::OK })
}

fn row(alarm: &v1::JobAlarm) -> Vec<Text> {
    let state = match (alarm.state.as_str(), alarm.tries) {
        ("failed", _) if !alarm.acknowledged_by.is_empty() => format!("failed, known to {}", alarm.acknowledged_by),
        ("pending" | "failed", 1) => format!("{}, 1 try", alarm.state),
        ("pending" | "failed", tries @ 2..) => format!("{}, {tries} tries", alarm.state),
        (state, _) => state.to_owned(),
    };
    vec![
        plain(alarm.id.to_string()),
        plain(text::full_time(alarm.raised_at_ms)),
        plain(alarm.channel.as_str()),
        plain(state),
        plain(alarm.title.as_str()),
        plain(alarm.error.as_str()),
    ]
}

async fn channels(client: &Client, output: &Output) -> Result<u8, Failure> {
    let channels: Vec<json::Channel> = client
        .alarm_channels()
        .await?
        .into_iter()
        .map(|channel| json::Channel {
            name: channel.name,
            kind: channel.kind,
        })
        .collect();
    let none = channels.is_empty();
    match output.format {
        Format::Json => json::document(&json::Channels { channels }),
        Format::Jsonl => channels.iter().for_each(json::object),
        Format::Id => channels.iter().for_each(|channel| output::line(&channel.name)),
        Format::Table | Format::Wide => {
            let rows: Vec<Vec<Text>> = channels
                .iter()
                .map(|channel| vec![plain(channel.name.as_str()), plain(channel.kind.as_str())])
                .collect();
            table::print(&[Column::cut("CHANNEL", 7), Column::whole("KIND")], &rows, output);
        }
    }
    if none && output.format.is_for_people() {
        output.note("this scheduler has no channels; start it with --alarms FILE");
    }
    Ok(exit_code::OK)
}

async fn test(client: &Client, output: &Output, channel: &str) -> Result<u8, Failure> {
    let error = client.test_channel(channel).await?;
    match output.format {
        Format::Json | Format::Jsonl => json::one(
            output.format,
            &json::ChannelTest {
                channel: channel.to_owned(),
                delivered: error.is_empty(),
                error: (!error.is_empty()).then(|| error.clone()),
            },
        ),
        Format::Id if error.is_empty() => output::line(channel),
        Format::Id => {}
        Format::Table | Format::Wide if error.is_empty() => {
            output::line(&format!("{channel} has accepted a test; see whether it is there"));
        }
        Format::Table | Format::Wide => output::error(&format!("{channel}: {}", text::clean(&error))),
    }
    Ok(if error.is_empty() { exit_code::OK } else { exit_code::NO })
}

async fn acknowledge(client: &Client, output: &Output, ids: Vec<i64>) -> Result<u8, Failure> {
    let done = client.acknowledge_alarms(ids).await?;
    match output.format {
        Format::Json | Format::Jsonl => json::one(
            output.format,
            &json::Acknowledged {
                acknowledged: done.iter().map(ToString::to_string).collect(),
            },
        ),
        Format::Id => done.iter().for_each(|id| output::line(&id.to_string())),
        Format::Table | Format::Wide => output::line(&match done.len() {
            0 => "nothing to acknowledge: only alarms that were given up need it".to_owned(),
            1 => "1 alarm acknowledged".to_owned(),
            n => format!("{n} alarms acknowledged"),
        }),
    }
    Ok(exit_code::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alarm(state: &str, error: &str, by: &str) -> v1::JobAlarm {
        v1::JobAlarm {
            id: 7,
            channel: "a-channel-with-a-long-name".into(),
            state: state.into(),
            title: "nightly-backup FAILED: exit code 3 (task 1840)".into(),
            tries: 3,
            error: error.into(),
            acknowledged_by: by.into(),
            raised_at_ms: 1_800_000_000_000,
            ..v1::JobAlarm::default()
        }
    }

    #[test]
    fn an_alarm_fits_60_columns() {
        let rows = [row(&alarm("pending", "connection refused by whoever is there", ""))];
        let text = table::render(&COLUMNS, &rows, Some(60), false);
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        let wide = table::render(&COLUMNS, &rows, None, false);
        assert!(
            wide.contains("pending, 3 tries") && wide.contains("connection refused"),
            "{wide}"
        );
    }

    #[test]
    fn what_did_not_arrive_needs_a_person_until_one_knows() {
        for (state, error, by, open) in [
            ("failed", "x", "", true),
            ("failed", "x", "ann", false),
            ("pending", "x", "", true),
            ("pending", "", "", false),
            ("delivered", "", "", false),
            ("silenced", "x", "", false),
        ] {
            assert_eq!(is_open(&alarm(state, error, by)), open, "{state} {error} {by}");
        }
    }
}
