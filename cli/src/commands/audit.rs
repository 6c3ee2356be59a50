//! `systole audit`: who did what.

use super::now_ms;
use super::pages::Pages;
use crate::args::{AuditArgs, Format, Global};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json, text};
use systole_proto::convert::time_to_wire;
use systole_proto::v1;

/// Entries of one call.
const PAGE: u64 = 1_000;

const COLUMNS: [Column; 6] = [
    Column::whole("WHEN").droppable(1),
    Column::cut("WHO", 6),
    Column::cut("ACTION", 8),
    Column::cut("SUBJECT", 6),
    Column::cut("REASON", 8).droppable(2),
    Column::cut("DETAIL", 8).droppable(3),
];

pub async fn run(global: &Global, args: &AuditArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    let client = Client::new(global)?;
    let mut pages = Pages::new(args.limit, output.format.is_for_people(), PAGE);
    let mut entries: Vec<v1::AuditEntry> = Vec::new();
    loop {
        let response = client.audit(request(args, pages.limit(), pages.token())).await?;
        let got = response.entries.len();
        match output.format {
            Format::Jsonl => response
                .entries
                .iter()
                .for_each(|entry| json::object(&json::AuditEntry::from(entry))),
            Format::Id => response
                .entries
                .iter()
                .for_each(|entry| output::line(&entry.id.to_string())),
            Format::Table | Format::Wide | Format::Json => entries.extend(response.entries),
        }
        if !pages.go_on(got, response.next_page_token) {
            break;
        }
    }
    match output.format {
        Format::Jsonl | Format::Id => {}
        Format::Json => json::document(&json::Audit {
            entries: entries.iter().map(json::AuditEntry::from).collect(),
        }),
        Format::Table | Format::Wide => {
            let now = (output.format != Format::Wide).then(now_ms);
            let rows: Vec<Vec<Text>> = entries.iter().map(|entry| row(entry, now)).collect();
            table::print(&COLUMNS, &rows, &output);
        }
    }
    if output.width.is_some() {
        pages.tell_rest(&output);
    }
    Ok(exit_code::OK)
}

fn request(args: &AuditArgs, limit: u32, page_token: String) -> v1::ListAuditRequest {
    v1::ListAuditRequest {
        actor: args.actor.clone().unwrap_or_default(),
        action: args.action.clone().unwrap_or_default(),
        subject: args.subject.clone().unwrap_or_default(),
        since_ms: args.since.map_or(0, time_to_wire),
        until_ms: args.until.map_or(0, time_to_wire),
        limit,
        page_token,
    }
}

/// `now`: the time is as short as it can be then; where there is room it is whole.
fn row(entry: &v1::AuditEntry, now: Option<u64>) -> Vec<Text> {
    let when = match now {
        Some(now) => text::short_time(entry.at_ms, now),
        None => text::full_time(entry.at_ms),
    };
    vec![
        plain(when),
        plain(entry.actor.as_str()),
        plain(entry.action.as_str()),
        plain(entry.subject.as_str()),
        plain(entry.reason.as_str()),
        plain(entry.detail.as_str()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{self, NOW, THEN};

    #[test]
    fn an_entry_fits_40_columns() {
        let entry = v1::AuditEntry {
            id: 7,
            at_ms: 1_800_000_000_000,
            actor: "somebody@example.org".into(),
            action: "token create".into(),
            subject: "a-rather-long-name".into(),
            reason: "because it had to be".into(),
            detail: "operator, until 2027".into(),
        };
        let text = table::render(&COLUMNS, &[row(&entry, Some(1_800_000_000_000))], Some(40), false);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.contains("somebo") && text.contains('…'), "{text}");
    }

    #[test]
    fn the_list_is_as_it_was() {
        let entry = |id, at_ms, action: &str, subject: &str, reason: &str, detail: &str| v1::AuditEntry {
            id,
            at_ms,
            actor: "ann@example.org".into(),
            action: action.into(),
            subject: subject.into(),
            reason: reason.into(),
            detail: detail.into(),
        };
        let rows = [
            entry(
                9,
                THEN,
                "cordon",
                "db-01",
                "CHG-1042 kernel",
                "until 2027-01-15T08:37:00.000Z",
            ),
            entry(8, THEN, "token create", "ci-deploy", "", "operator, until 2027-04-15"),
            entry(7, THEN - 86_400_000, "cancel", "1839", "wrong month", "report-daily"),
        ];
        let shown: Vec<_> = rows.iter().map(|entry| row(entry, Some(NOW))).collect();
        golden::table("audit", &COLUMNS, &shown);
        assert_eq!(row(&rows[0], None)[0].0, "2027-01-15 08:07:00 +00:00");
    }
}
