//! The bodies that channels over HTTP are sent, each in the form of its service.

use super::message::{Message, Severity};
use super::notice::{Kind, Notice};
use crate::time::format_utc;
use serde_json::{Value, json};

/// Slack: a header has at most 150 characters, a section 3,000.
const SLACK_HEADER_CHARS_MAX: usize = 150;
const SLACK_SECTION_CHARS_MAX: usize = 2_900;
/// ntfy makes an attachment of a longer message.
const NTFY_MESSAGE_BYTES_MAX: usize = 3_500;
/// PagerDuty: a summary has at most 1,024 characters, a key 255.
const PAGERDUTY_SUMMARY_CHARS_MAX: usize = 1_000;
const PAGERDUTY_KEY_CHARS_MAX: usize = 255;

fn cut(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(chars.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// systole's own form. Ids are texts, since they may exceed what a JSON number can hold.
pub fn webhook(delivery_id: &str, cluster_id: &str, notice: &Notice, message: &Message) -> Value {
    let tasks: Vec<Value> = notice
        .tasks
        .iter()
        .map(|task| {
            json!({
                "id": task.id.to_string(),
                "job": task.job,
                "runner": (!task.runner.is_empty()).then_some(&task.runner),
                "attempt": task.attempt,
                "attempts": task.attempts,
                "outcome": task.outcome,
            })
        })
        .collect();
    json!({
        "format": 1,
        "type": format!("alarm.{}", message.kind.name()),
        "delivery_id": delivery_id,
        "cluster_id": cluster_id,
        "alarm": {
            "kind": message.kind.name(),
            "severity": message.severity.name(),
            "title": message.title,
            "text": message.text(),
            "job": (!notice.job.is_empty()).then_some(&notice.job),
            "owner": (!notice.owner.is_empty()).then_some(&notice.owner),
            "host": (!notice.host.is_empty()).then_some(&notice.host),
            "incident": message.incident,
            "resolves": message.resolves,
            "count": notice.count,
            "failures_in_a_row": notice.failures,
            "tasks": tasks,
            "output": message.output,
            "output_of": (!message.output.is_empty()).then_some(message.output_of),
            "commands": message.commands,
            "runbook": (!message.runbook.is_empty()).then_some(&message.runbook),
            "raised_at": format_utc(message.raised_ms),
        },
    })
}

/// What Slack reads as markup or as a mention.
fn slack_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Within a block of code, which three backquotes would end.
fn slack_code(lines: &[String]) -> String {
    let text = slack_text(&lines.join("\n")).replace("```", "'''");
    format!("```{}```", cut(&text, SLACK_SECTION_CHARS_MAX))
}

/// An incoming webhook of Slack, with blocks.
pub fn slack(message: &Message) -> Value {
    let mark = match (message.resolves, message.severity) {
        (true, _) => "✅",
        (_, Severity::Error) => "🔴",
        (_, Severity::Warning) => "🟠",
        (_, Severity::Info) => "ℹ️",
    };
    let section = |text: String| json!({"type": "section", "text": {"type": "mrkdwn", "text": text}});
    let facts: Vec<String> = message
        .facts
        .iter()
        .map(|(label, value)| format!("*{label}*  {}", slack_text(value).replace('`', "'")))
        .collect();
    let mut blocks = vec![
        json!({"type": "header", "text": {"type": "plain_text", "emoji": true,
            "text": cut(&format!("{mark} {}", message.title), SLACK_HEADER_CHARS_MAX)}}),
        section(cut(&facts.join("\n"), SLACK_SECTION_CHARS_MAX)),
    ];
    if !message.runbook.is_empty() {
        blocks.push(section(cut(
            &format!("*runbook*  {}", slack_text(&message.runbook)),
            SLACK_SECTION_CHARS_MAX,
        )));
    }
    if !message.output.is_empty() {
        blocks.push(section(format!("last lines of {}", message.output_of)));
        blocks.push(section(slack_code(&message.output)));
    }
    if !message.commands.is_empty() {
        blocks.push(section(slack_code(&message.commands)));
    }
    // The text is what notifications and screen readers show.
    json!({"text": slack_text(&format!("{mark} {}", message.title)), "blocks": blocks})
}

/// A workflow of Teams ("when a webhook request is received"): a message with an adaptive card. Runs of text are never read as markup.
pub fn teams(message: &Message) -> Value {
    let plain = |text: &str, monospace: bool| {
        let font = if monospace { "Monospace" } else { "Default" };
        json!({"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, "fontType": font}]})
    };
    let colour = match (message.resolves, message.severity) {
        (true, _) => "Good",
        (_, Severity::Error) => "Attention",
        (_, Severity::Warning) => "Warning",
        (_, Severity::Info) => "Default",
    };
    let mut body = vec![json!({"type": "RichTextBlock", "inlines": [{
        "type": "TextRun", "text": message.title, "weight": "Bolder", "size": "Medium", "color": colour}]})];
    for (label, value) in &message.facts {
        body.push(json!({"type": "RichTextBlock", "spacing": "None", "inlines": [
            {"type": "TextRun", "text": format!("{label}: "), "weight": "Bolder"},
            {"type": "TextRun", "text": value},
        ]}));
    }
    if !message.output.is_empty() {
        body.push(plain(&format!("last lines of {}", message.output_of), false));
        body.extend(message.output.iter().map(|line| plain(line, true)));
    }
    body.extend(message.commands.iter().map(|command| plain(command, true)));
    if !message.runbook.is_empty() {
        body.push(plain(&format!("runbook: {}", message.runbook), false));
    }
    let mut card = json!({
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": body,
    });
    if is_link(&message.runbook) {
        card["actions"] = json!([{"type": "Action.OpenUrl", "title": "Runbook", "url": message.runbook}]);
    }
    json!({"type": "message", "attachments": [{
        "contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": null, "content": card}]})
}

fn is_link(text: &str) -> bool {
    text.starts_with("https://") || text.starts_with("http://")
}

/// The Events API v2 of PagerDuty. A recovery resolves what its alarms have opened.
pub fn pagerduty(routing_key: &str, cluster_id: &str, notice: &Notice, message: &Message) -> Value {
    let key = cut(
        &format!("systole:{cluster_id}:{}", message.incident),
        PAGERDUTY_KEY_CHARS_MAX,
    );
    if message.resolves {
        return json!({"routing_key": routing_key, "event_action": "resolve", "dedup_key": key});
    }
    let source = match (notice.host.as_str(), notice.tasks.last()) {
        ("", Some(task)) if !task.runner.is_empty() => task.runner.clone(),
        ("", _) => "systole".into(),
        (host, _) => host.to_owned(),
    };
    let links: Vec<Value> = is_link(&message.runbook)
        .then(|| json!({"href": message.runbook, "text": "Runbook"}))
        .into_iter()
        .collect();
    json!({
        "routing_key": routing_key,
        "event_action": "trigger",
        "dedup_key": key,
        "client": "systole",
        "payload": {
            "summary": cut(&message.title, PAGERDUTY_SUMMARY_CHARS_MAX),
            "source": source,
            "severity": message.severity.name(),
            "timestamp": format_utc(message.raised_ms),
            "component": notice.job,
            "class": message.kind.name(),
            "custom_details": {"text": message.text()},
        },
        "links": links,
    })
}

/// ntfy, published as JSON.
pub fn ntfy(topic: &str, message: &Message) -> Value {
    let (priority, tag) = match (message.resolves, message.severity) {
        (true, _) => (3, "white_check_mark"),
        (_, Severity::Error) => (5, "rotating_light"),
        (_, Severity::Warning) => (4, "warning"),
        (_, Severity::Info) => (3, "information_source"),
    };
    let mut text = message.text();
    // The title stands above it.
    if let Some((_, rest)) = text.split_once("\n\n") {
        text = rest.to_owned();
    }
    while text.len() > NTFY_MESSAGE_BYTES_MAX {
        text.pop();
    }
    let mut body = json!({
        "topic": topic,
        "title": message.title,
        "message": text,
        "priority": priority,
        "tags": [tag, message.kind.name()],
    });
    if is_link(&message.runbook) {
        body["click"] = json!(message.runbook);
    }
    body
}

/// The subject of a mail: one line.
pub fn subject(message: &Message) -> String {
    let mark = match message.kind {
        Kind::Recovery => "OK",
        Kind::Test => "TEST",
        _ => "ALARM",
    };
    format!("[systole] {mark}: {}", message.title)
}

#[cfg(test)]
mod tests {
    use super::super::message::{Now, message};
    use super::super::notice::TaskFact;
    use super::*;

    fn made(kind: Kind) -> (Notice, Message) {
        let notice = Notice {
            job: "etl".into(),
            runbook: "https://wiki/etl".into(),
            count: 1,
            failures: 1,
            tasks: vec![TaskFact {
                id: 9_007_199_254_740_993,
                job: "etl".into(),
                runner: "db-01/0".into(),
                attempt: 1,
                attempts: 1,
                outcome: "exit code 3 <!channel> & `x`".into(),
            }],
            ..Notice::default()
        };
        let now = Now {
            output: vec!["a ``` b".into(), "<script>".into()],
            output_of: "stderr",
            ..Now::default()
        };
        let message = message(kind, &notice, &now, 1_800_000_000_000);
        (notice, message)
    }

    #[test]
    fn our_own_form_has_all_facts_and_ids_as_texts() {
        let (notice, message) = made(Kind::Failure);
        let body = webhook("msg_1", "c-1", &notice, &message);
        assert_eq!(body["type"], "alarm.failure");
        assert_eq!(body["alarm"]["tasks"][0]["id"], "9007199254740993");
        assert_eq!(body["alarm"]["raised_at"], "2027-01-15T08:00:00.000Z");
        assert_eq!(body["alarm"]["host"], Value::Null);
        assert_eq!(body["alarm"]["output"][0], "a ``` b");
    }

    #[test]
    fn slack_reads_no_markup_of_others() {
        let body = slack(&made(Kind::Failure).1);
        let blocks = body["blocks"].as_array().expect("blocks");
        // A header is plain text, in which nothing is markup.
        let marked = blocks.iter().filter(|block| block["text"]["type"] == "mrkdwn");
        let text: String = marked.filter_map(|block| block["text"]["text"].as_str()).collect();
        assert!(
            !text.contains("<!channel>") && text.contains("&lt;!channel&gt;"),
            "{text}"
        );
        assert!(!body["text"].to_string().contains("<!channel>"));
        let code = body["blocks"][4]["text"]["text"].as_str().expect("code");
        assert_eq!(code, "```a ''' b\n&lt;script&gt;```");
        assert!(
            body["blocks"][0]["text"]["text"]
                .as_str()
                .expect("header")
                .chars()
                .count()
                <= 150
        );
        assert!(body["text"].as_str().expect("text").contains("etl FAILED"));
    }

    #[test]
    fn teams_gets_an_adaptive_card_of_plain_runs() {
        let body = teams(&made(Kind::Failure).1);
        let card = &body["attachments"][0];
        assert_eq!(card["contentType"], "application/vnd.microsoft.card.adaptive");
        assert_eq!(card["content"]["type"], "AdaptiveCard");
        let blocks = card["content"]["body"].as_array().expect("body");
        assert!(blocks.iter().all(|block| block["type"] == "RichTextBlock"));
        assert_eq!(card["content"]["actions"][0]["url"], "https://wiki/etl");
    }

    #[test]
    fn pagerduty_opens_and_resolves_the_same_incident() {
        let (notice, failed) = made(Kind::Failure);
        let open = pagerduty("key", "c-1", &notice, &failed);
        assert_eq!(
            (&open["event_action"], &open["dedup_key"]),
            (&json!("trigger"), &json!("systole:c-1:job:etl"))
        );
        assert_eq!(open["payload"]["severity"], "error");
        assert_eq!(open["payload"]["source"], "db-01/0");
        let (notice, well) = made(Kind::Recovery);
        let closed = pagerduty("key", "c-1", &notice, &well);
        assert_eq!(
            (&closed["event_action"], &closed["dedup_key"]),
            (&json!("resolve"), &open["dedup_key"])
        );
        let late = made(Kind::Late).1;
        assert_eq!(late.incident, failed.incident);
    }

    #[test]
    fn ntfy_gets_a_topic_a_title_and_a_short_message() {
        let (_, mut message) = made(Kind::Failure);
        message.output = vec!["é".repeat(300); 50];
        let body = ntfy("alerts", &message);
        assert_eq!((&body["topic"], &body["priority"]), (&json!("alerts"), &json!(5)));
        assert!(body["message"].as_str().expect("text").len() <= NTFY_MESSAGE_BYTES_MAX);
        assert_eq!(body["click"], "https://wiki/etl");
    }

    #[test]
    fn a_subject_is_one_line() {
        assert!(subject(&made(Kind::Recovery).1).starts_with("[systole] OK: etl works again"));
        assert!(!subject(&made(Kind::Failure).1).contains('\n'));
    }
}
