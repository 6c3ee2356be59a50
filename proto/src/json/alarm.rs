//! Alarms of the installation itself, which wait for a person.

use super::values::time;
use crate::v1;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Alarms {
    pub alarms: Vec<Alarm>,
}

#[derive(Debug, Serialize)]
pub struct Alarm {
    /// `clock` or `restore`.
    pub alarm: String,
    pub message: String,
    pub since: Option<String>,
}

impl From<&v1::Alarm> for Alarm {
    fn from(alarm: &v1::Alarm) -> Self {
        Self {
            alarm: alarm.kind.clone(),
            message: alarm.message.clone(),
            since: time(alarm.since_ms),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Confirmed {
    pub alarm: String,
    /// What follows from it.
    pub message: String,
}
