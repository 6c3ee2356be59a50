//! Telling people: alarms go to channels, at least once each, with a stable id, a bounded number of times. Whose secrets those are
//! only the file of channels says, and the files that it names.

mod channels;
mod compose;
mod http;
mod mail;

pub use channels::Channels;
pub use http::cause;

use super::Refusal;
use super::callback::backoff_ms;
use crate::config::Alarms;
use crate::context::Context;
use crate::store::StoreError;
use crate::store::alarms::{Claimed, Settled};
use std::time::Duration;
use systole_shared::alarm::channel::{Channel, Target};
use systole_shared::alarm::message::{Message, message};
use systole_shared::alarm::{Kind, Notice};
use systole_shared::error::Code;
use systole_shared::limits::ALARM_TRIES_MAX;
use systole_shared::near::did_you_mean;

/// Longest wait of somebody who tries a channel.
const TEST_MAX: Duration = Duration::from_secs(15);

/// Why a try failed.
#[derive(Debug)]
pub enum Failure {
    /// No later try can help.
    Never(String),
    Again(String),
}

impl Failure {
    fn text(self) -> String {
        match self {
            Self::Never(text) | Self::Again(text) => text,
        }
    }
}

/// One delivery, ready to be given the form of a channel.
pub struct Parcel<'a> {
    pub delivery_id: &'a str,
    pub cluster_id: &'a str,
    /// Signs, where the channel has no secret of its own.
    pub secret: &'a str,
    pub notice: &'a Notice,
    pub message: &'a Message,
}

/// Sends; made once.
pub struct Notifier {
    pub channels: Channels,
    config: Alarms,
    http: http::Http,
}

impl Notifier {
    pub fn new(channels: Channels, config: Alarms) -> Result<Self, StoreError> {
        Ok(Self {
            http: http::Http::new(config.timeout)?,
            channels,
            config,
        })
    }

    async fn send(&self, channel: &Channel, parcel: &Parcel<'_>, within: Duration) -> Result<(), Failure> {
        let sending = async {
            match &channel.target {
                Target::Mail(mail) => mail::send(mail, &self.channels, within, parcel).await,
                other => self.http.send(other, &self.channels, parcel).await,
            }
        };
        // The bound of all parts together.
        match tokio::time::timeout(within, sending).await {
            Ok(done) => done,
            Err(_) => Err(Failure::Again(format!("no answer within {within:?}"))),
        }
    }

    /// One try of a claimed alarm, and what it means for the next.
    pub async fn deliver(&self, ctx: &Context, alarm: &Claimed) {
        let tries = alarm.tries + 1;
        let settled = match self.attempt(ctx, alarm).await {
            Ok(()) => Settled::Delivered,
            Err(Failure::Again(error)) if tries < i64::from(ALARM_TRIES_MAX) => {
                Settled::Again(error, backoff_ms(self.config.backoff, tries))
            }
            Err(failure) => Settled::Failed(failure.text()),
        };
        match &settled {
            Settled::Delivered => {
                tracing::info!(
                    alarm = alarm.id,
                    channel = alarm.channel,
                    job = alarm.job,
                    "alarm delivered"
                );
            }
            Settled::Again(error, _) => {
                tracing::warn!(
                    alarm = alarm.id,
                    channel = alarm.channel,
                    tries,
                    error,
                    "alarm not delivered yet"
                );
            }
            Settled::Failed(error) => {
                tracing::error!(
                    alarm = alarm.id,
                    channel = alarm.channel,
                    tries,
                    error,
                    "alarm given up"
                );
            }
        }
        if let Err(error) = ctx.db.settle_alarm(alarm.id, tries, settled).await {
            // The lease runs out and it is tried again: at least once.
            tracing::warn!(alarm = alarm.id, %error, "alarm not settled");
        }
    }

    async fn attempt(&self, ctx: &Context, alarm: &Claimed) -> Result<(), Failure> {
        let Some(channel) = self.channels.get(&alarm.channel) else {
            return Err(Failure::Again("this scheduler has no such channel any more".into()));
        };
        let again = |error: StoreError| match error {
            StoreError::Corrupt { .. } => Failure::Never(error.to_string()),
            error => Failure::Again(error.to_string()),
        };
        let (kind, notice) = (alarm.kind().map_err(again)?, alarm.notice().map_err(again)?);
        let now = compose::look(ctx, kind, &notice, channel).await.map_err(again)?;
        let message = message(kind, &notice, &now, alarm.raised_at_ms);
        let parcel = Parcel {
            delivery_id: &alarm.delivery_id,
            cluster_id: &ctx.cluster_id,
            secret: &ctx.callback_secret,
            notice: &notice,
            message: &message,
        };
        self.send(channel, &parcel, self.config.timeout).await
    }
}

/// Tries a channel now, by this scheduler. `Err`: there is no such channel here. The inner result: why it did not arrive.
pub async fn test(ctx: &Context, name: &str) -> Result<Result<(), String>, Refusal> {
    let notifier = &ctx.notifier;
    let Some(channel) = notifier.channels.get(name) else {
        let known = notifier.channels.names();
        let meant = did_you_mean(name, known.iter().map(String::as_str));
        let known = if known.is_empty() {
            "it has none: start it with --alarms FILE".to_owned()
        } else {
            format!("{meant}it has {}", known.join(", "))
        };
        return Err(Refusal {
            code: Code::ChannelNotFound,
            message: format!("this scheduler has no alarm channel {name:?}; {known}"),
            field: "channel".into(),
        });
    };
    let notice = Notice::default();
    let now = compose::look(ctx, Kind::Test, &notice, channel).await?;
    let message = message(Kind::Test, &notice, &now, ctx.db.now_ms().await?);
    let parcel = Parcel {
        delivery_id: &format!("msg_{}", uuid::Uuid::now_v7().simple()),
        cluster_id: &ctx.cluster_id,
        secret: &ctx.callback_secret,
        notice: &notice,
        message: &message,
    };
    let within = notifier.config.timeout.min(TEST_MAX);
    Ok(notifier.send(channel, &parcel, within).await.map_err(Failure::text))
}
