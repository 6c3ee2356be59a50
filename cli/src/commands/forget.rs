//! `systole runners rm`: forgets a host that is gone.

use crate::args::{Format, RmArgs};
use crate::client::Client;
use crate::exit_code;
use crate::failure::Failure;
use crate::output::{self, Output, json};
use systole_proto::v1;
use systole_shared::plural::counted;

pub async fn run(client: &Client, output: &Output, args: &RmArgs) -> Result<u8, Failure> {
    let request = v1::RemoveHostRequest {
        host: args.host.clone(),
        reason: args.reason.clone().unwrap_or_default(),
        dead: args.dead,
    };
    let response = client.remove_host(request).await?;
    match output.format {
        Format::Json | Format::Jsonl => json::one(output.format, &json::Forgotten::new(&args.host, &response)),
        Format::Id => output::line(&args.host),
        Format::Table | Format::Wide => lines(&args.host, &response).iter().for_each(|line| output::line(line)),
    }
    Ok(exit_code::OK)
}

fn lines(host: &str, response: &v1::RemoveHostResponse) -> Vec<String> {
    let ids = |ids: &[i64]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let mut lines = vec![format!("{host}: forgotten ({})", counted(response.slots, "slot"))];
    if !response.lost.is_empty() {
        lines.push(format!(
            "ended as lost: {}. Once more elsewhere: systole rerun TASK",
            ids(&response.lost)
        ));
    }
    if !response.waiting.is_empty() {
        lines.push(format!(
            "still waiting for {host}: {}{}. Cancel them (systole cancel), or submit them for another host",
            ids(&response.waiting),
            if response.more_waiting { " and more" } else { "" }
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_forgotten_host_is_named() {
        let response = v1::RemoveHostResponse {
            slots: 2,
            lost: vec![7],
            waiting: vec![8, 9],
            more_waiting: true,
        };
        let lines = lines("a", &response);
        assert_eq!(
            lines[..2],
            [
                "a: forgotten (2 slots)",
                "ended as lost: 7. Once more elsewhere: systole rerun TASK"
            ]
        );
        assert!(
            lines[2].starts_with("still waiting for a: 8 9 and more."),
            "{}",
            lines[2]
        );
        assert_eq!(super::lines("a", &v1::RemoveHostResponse::default()).len(), 1);
    }
}
