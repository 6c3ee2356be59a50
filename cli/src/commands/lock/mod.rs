//! `systole lock`: one at a time, over all machines.

mod guard;
mod hold;

pub use guard::run as run_guard;

use crate::args::{Format, Global, LockAction, LockArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::table::{self, Column, Text, plain};
use crate::output::{self, Output, json, text};
use serde::Serialize;
use systole_proto::v1;
use systole_shared::limits::PAGE_MAX;
use systole_shared::time::{format_duration, format_utc};

const COLUMNS: [Column; 6] = [
    Column::cut("RESOURCE", 10),
    Column::whole("TOKEN"),
    Column::cut("HOLDER", 10),
    Column::whole("BY").droppable(1),
    Column::whole("SINCE").droppable(2),
    Column::cut("LEFT", 6),
];

#[derive(Serialize)]
struct Line {
    resource: String,
    token: String,
    holder: String,
    by: String,
    ttl_ms: u64,
    acquired_at: Option<String>,
    renewed_at: Option<String>,
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    revoked_by: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    revoke_reason: String,
}

pub async fn run(global: &Global, args: &LockArgs) -> Result<u8, Failure> {
    let output = Output::new(global);
    match (&args.action, &args.hold) {
        (Some(LockAction::Ls), _) => list(&Client::new(global)?, &output).await,
        (
            Some(LockAction::Release {
                resource,
                token,
                now,
                reason,
            }),
            _,
        ) => {
            let request = v1::RevokeRequest {
                resource: resource.clone(),
                token: token.map_or(0, |token| i64::try_from(token).unwrap_or(i64::MAX)),
                now: *now,
                reason: reason.clone(),
            };
            revoke(&Client::new(global)?, &output, request).await
        }
        (None, Some(args)) => hold::run(global, &output, args).await,
        (None, None) => Err(Failure::usage(
            "what is to be locked? systole lock RESOURCE -- COMMAND; systole lock ls lists what is held",
        )),
    }
}

fn utc(ms: u64) -> Option<String> {
    i64::try_from(ms).ok().filter(|&ms| ms > 0).map(format_utc)
}

fn line(lease: &v1::Lease) -> Line {
    Line {
        resource: lease.resource.clone(),
        token: lease.token.to_string(),
        holder: lease.holder.clone(),
        by: lease.actor.clone(),
        ttl_ms: lease.ttl_ms,
        acquired_at: utc(lease.acquired_at_ms),
        renewed_at: utc(lease.renewed_at_ms),
        expires_at: utc(lease.expires_at_ms),
        revoked_by: lease.revoked_by.clone(),
        revoke_reason: lease.revoke_reason.clone(),
    }
}

fn row(lease: &v1::Lease) -> Vec<Text> {
    let left = if !lease.revoked_by.is_empty() {
        format!("taken away by {}", lease.revoked_by)
    } else if lease.left_ms == 0 {
        "over".into()
    } else {
        format_duration(lease.left_ms)
    };
    vec![
        plain(lease.resource.as_str()),
        plain(lease.token.to_string()),
        plain(lease.holder.as_str()),
        plain(lease.actor.as_str()),
        plain(text::full_time(lease.acquired_at_ms)),
        plain(left),
    ]
}

async fn list(client: &Client, output: &Output) -> Result<u8, Failure> {
    let mut leases = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListLeasesRequest {
            limit: u32::try_from(PAGE_MAX).unwrap_or(0),
            page_token,
        };
        let response = client.leases(request).await?;
        leases.extend(response.leases);
        page_token = response.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match output.format {
        Format::Json => json::document(&json::Results {
            results: leases.iter().map(line).collect(),
        }),
        Format::Jsonl => leases.iter().for_each(|lease| json::object(&line(lease))),
        Format::Id => leases.iter().for_each(|lease| output::line(&lease.resource)),
        Format::Table | Format::Wide => {
            let rows: Vec<Vec<Text>> = leases.iter().map(row).collect();
            table::print_or(&COLUMNS, &rows, output, "nobody holds a lease");
        }
    }
    Ok(exit_code::OK)
}

async fn revoke(client: &Client, output: &Output, request: v1::RevokeRequest) -> Result<u8, Failure> {
    let now = request.now;
    let lease = client.revoke_lease(request).await?;
    match output.format {
        Format::Json => json::document(&line(&lease)),
        Format::Jsonl => json::object(&line(&lease)),
        Format::Id => output::line(&lease.resource),
        Format::Table | Format::Wide => {
            let what = if now {
                "is free".to_owned()
            } else {
                format!(
                    "is not renewed any more; it is free when its holder stops, or in {}",
                    format_duration(lease.left_ms)
                )
            };
            output::line(&format!(
                "{} {what} (was held by {}, token {})",
                text::clean(&lease.resource),
                text::clean(&lease.holder),
                lease.token
            ));
        }
    }
    Ok(exit_code::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_how_long_it_is_left_and_who_took_it_away() {
        let mut lease = v1::Lease {
            resource: "a".into(),
            token: 7,
            left_ms: 21_000,
            ..v1::Lease::default()
        };
        assert_eq!(row(&lease).len(), COLUMNS.len());
        assert_eq!(row(&lease)[5].0, format_duration(21_000));
        lease.left_ms = 0;
        assert_eq!(row(&lease)[5].0, "over");
        lease.revoked_by = "ann".into();
        assert_eq!(row(&lease)[5].0, "taken away by ann");
    }
}
