//! Shapes of `systole alarm`.

use serde::Serialize;
use systole_proto::v1;
use systole_shared::time::format_utc;

fn time(ms: u64) -> Option<String> {
    (ms > 0).then(|| format_utc(i64::try_from(ms).unwrap_or(i64::MAX)))
}

#[derive(Debug, Serialize)]
pub struct JobAlarms {
    pub alarms: Vec<JobAlarm>,
}

#[derive(Debug, Serialize)]
pub struct JobAlarm {
    pub id: String,
    pub channel: String,
    pub kind: String,
    pub job: Option<String>,
    pub title: String,
    pub state: String,
    pub task_ids: Vec<String>,
    pub count: u64,
    pub tries: u32,
    pub raised_at: Option<String>,
    pub next_try_at: Option<String>,
    pub settled_at: Option<String>,
    pub error: Option<String>,
    pub delivery_id: String,
    pub acknowledged_by: Option<String>,
}

impl From<&v1::JobAlarm> for JobAlarm {
    fn from(alarm: &v1::JobAlarm) -> Self {
        let text = |text: &String| (!text.is_empty()).then(|| text.clone());
        Self {
            id: alarm.id.to_string(),
            channel: alarm.channel.clone(),
            kind: alarm.kind.clone(),
            job: text(&alarm.job),
            title: alarm.title.clone(),
            state: alarm.state.clone(),
            task_ids: alarm.task_ids.iter().map(ToString::to_string).collect(),
            count: alarm.count,
            tries: alarm.tries,
            raised_at: time(alarm.raised_at_ms),
            next_try_at: time(alarm.next_try_at_ms),
            settled_at: time(alarm.settled_at_ms),
            error: text(&alarm.error),
            delivery_id: alarm.delivery_id.clone(),
            acknowledged_by: text(&alarm.acknowledged_by),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Channels {
    pub channels: Vec<Channel>,
}

#[derive(Debug, Serialize)]
pub struct Channel {
    pub name: String,
    pub kind: String,
}

#[derive(Debug, Serialize)]
pub struct ChannelTest {
    pub channel: String,
    pub delivered: bool,
    pub error: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Acknowledged {
    pub acknowledged: Vec<String>,
}
