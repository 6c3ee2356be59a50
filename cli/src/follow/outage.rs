//! A time in which nobody answers: how long it is borne, and when it is worth a word.

use crate::client::{Client, cause_of};
use crate::failure::{Failure, is_transient};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

/// How long nobody may answer before a follower gives up.
const OUTAGE_MAX: Duration = Duration::from_secs(60);
/// An outage that is shorter is not worth a word.
const OUTAGE_SILENT: Duration = Duration::from_secs(2);
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A time without answers.
pub(super) struct Outage {
    since: Option<Instant>,
    pause: Duration,
    told: bool,
}

/// What to say about an outage.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Say {
    Nothing,
    Lost,
}

impl Outage {
    pub(super) fn new() -> Self {
        Self {
            since: None,
            pause: PAUSE_FIRST,
            told: false,
        }
    }

    /// An answer came. True when the outage was told and its end should be.
    pub(super) fn over(&mut self) -> bool {
        let told = self.told;
        *self = Self::new();
        told
    }

    /// No answer came at `now`: how long to pause, or `None` to give up.
    pub(super) fn failed(&mut self, now: Instant) -> Option<(Duration, Say)> {
        let since = *self.since.get_or_insert(now);
        let lasted = now.duration_since(since);
        if lasted >= OUTAGE_MAX {
            return None;
        }
        let pause = self.pause.min(OUTAGE_MAX.saturating_sub(lasted));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        let say = if lasted >= OUTAGE_SILENT && !self.told {
            Say::Lost
        } else {
            Say::Nothing
        };
        self.told |= say == Say::Lost;
        Some((pause, say))
    }
}

/// Nobody answered for [`OUTAGE_MAX`], or somebody answered that this follower may not go on.
pub(super) fn given_up(client: &Client, status: &Status) -> Failure {
    let mut failure = Failure::from_status(status, client.url());
    if is_transient(status) {
        failure.message = format!(
            "no scheduler at {} for {} s: {}",
            client.url(),
            OUTAGE_MAX.as_secs(),
            cause_of(status).trim_end_matches('.')
        );
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_once_and_ends_after_a_minute() {
        let begin = Instant::now();
        let mut now = begin;
        let mut outage = Outage::new();
        let mut told = 0;
        while let Some((pause, say)) = outage.failed(now) {
            assert!(pause <= PAUSE_MAX && !pause.is_zero());
            told += u32::from(say == Say::Lost);
            now += pause;
        }
        assert_eq!(told, 1);
        assert_eq!(now.duration_since(begin), OUTAGE_MAX);
        assert!(outage.over(), "its end is worth a word");
        assert!(!outage.over());
    }

    #[test]
    fn a_short_outage_is_not_worth_a_word() {
        let now = Instant::now();
        let mut outage = Outage::new();
        assert!(matches!(outage.failed(now), Some((_, Say::Nothing))));
        assert!(matches!(
            outage.failed(now + Duration::from_secs(1)),
            Some((_, Say::Nothing))
        ));
        assert!(!outage.over());
    }
}
