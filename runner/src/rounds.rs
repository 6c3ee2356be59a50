//! The beats of idle slots go together: one call for all of a host.
//!
//! A slot that works beats by itself, and once more when it is done; nothing of that waits for anybody. When such a beat came
//! back with nothing to do, the next one goes with those of the other idle slots. So that they meet, all of them ask to
//! be held back until the same moment, the end of a round.

use crate::link::{Link, Missed};
use prost::Message as _;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use systole_proto::v1;
use systole_shared::limits::{BEAT_BYTES_MAX, IDLE_BEATS_MAX};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// How long the first of a round waits for the others.
const GATHER: Duration = Duration::from_millis(5);
/// A beat is not sent for less: what is left of the round is left out, and the next one begins.
const PARK_MIN: Duration = Duration::from_secs(1);
/// Slots that wait for their round to be sent; the next one waits for a place.
const QUEUE_MAX: usize = IDLE_BEATS_MAX;

/// `None`: this beat is refused; the next one, sent by itself, is told why.
type Answer = Result<Option<v1::HeartbeatResponse>, Missed>;

struct Member {
    beat: v1::HeartbeatRequest,
    deadline: Duration,
    reply: oneshot::Sender<Answer>,
}

pub struct Rounds {
    sender: mpsc::Sender<Member>,
    end: Mutex<Option<Instant>>,
    _sending: AbortOnDropHandle<()>,
}

impl Rounds {
    /// Needs a runtime.
    pub fn new(link: Arc<Link>) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        Self {
            sender,
            end: Mutex::default(),
            _sending: AbortOnDropHandle::new(tokio::spawn(send_all(link, receiver))),
        }
    }

    /// How long an idle slot asks to be held back now: until the end of the round.
    pub fn park(&self, interval: Duration) -> Duration {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, left) = until(*end, Instant::now(), interval);
        *end = Some(until);
        left
    }

    /// One beat of the round. Dropped, its answer is not heard any more.
    pub async fn heartbeat(&self, beat: v1::HeartbeatRequest, deadline: Duration) -> Answer {
        let (reply, answer) = oneshot::channel();
        let member = Member { beat, deadline, reply };
        let heard = async {
            self.sender.send(member).await.ok()?;
            answer.await.ok()
        };
        // The call itself ends a moment later.
        match tokio::time::timeout(deadline + GATHER, heard).await {
            Ok(heard) => heard.unwrap_or(Ok(None)),
            Err(_) => Err(Missed::late(deadline)),
        }
    }
}

/// The end of the round, and how far away it is.
fn until(end: Option<Instant>, now: Instant, interval: Duration) -> (Instant, Duration) {
    match end {
        Some(end) if end >= now + PARK_MIN.min(interval) && end <= now + interval => (end, end - now),
        _ => (now + interval, interval),
    }
}

/// Ends with the last slot.
async fn send_all(link: Arc<Link>, mut receiver: mpsc::Receiver<Member>) {
    let mut calls = tokio::task::JoinSet::new();
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(member) => member,
            None => match receiver.recv().await {
                Some(member) => member,
                None => break,
            },
        };
        tokio::time::sleep(GATHER).await;
        let mut bytes = first.beat.encoded_len();
        let mut round = vec![first];
        while round.len() < IDLE_BEATS_MAX
            && let Ok(member) = receiver.try_recv()
        {
            bytes += member.beat.encoded_len();
            if bytes > BEAT_BYTES_MAX {
                next = Some(member);
                break;
            }
            round.push(member);
        }
        calls.spawn(call(Arc::clone(&link), round));
        while calls.try_join_next().is_some() {}
    }
}

async fn call(link: Arc<Link>, mut round: Vec<Member>) {
    if round.len() == 1
        && let Some(mut alone) = round.pop()
    {
        let answer = tokio::select! {
            answer = link.heartbeat(alone.beat, alone.deadline) => answer,
            () = alone.reply.closed() => return,
        };
        drop(alone.reply.send(answer.map(Some)));
        return;
    }
    let deadline = round.iter().map(|member| member.deadline).max().unwrap_or_default();
    let mut beats = Vec::with_capacity(round.len());
    let mut waiting = HashMap::with_capacity(round.len());
    for member in round {
        waiting.insert((member.beat.slot, member.beat.seq), member.reply);
        beats.push(member.beat);
    }
    let outcome = link
        .heartbeat_idle(
            v1::HeartbeatIdleRequest { beats },
            deadline,
            |v1::IdleAnswer { slot, seq, answer }| {
                if let Some(reply) = waiting.remove(&(slot, seq)) {
                    // A slot that has something else to do meanwhile does not hear it, and beats anew.
                    drop(reply.send(Ok(answer)));
                }
            },
        )
        .await;
    let rest = match outcome {
        // Refused as a whole, or by a scheduler that does not know such calls.
        Ok(()) | Err(Missed::Refused(_) | Missed::Taken { .. }) => Ok(None),
        Err(missed) => Err(missed),
    };
    for reply in waiting.into_values() {
        drop(reply.send(rest.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    #[test]
    fn all_slots_are_held_until_the_same_moment_and_no_longer_than_a_beat() {
        let now = Instant::now();
        let (end, first) = until(None, now, INTERVAL);
        assert_eq!(first, INTERVAL);
        let later = now + Duration::from_secs(12);
        assert_eq!(until(Some(end), later, INTERVAL), (end, Duration::from_secs(18)));
        // Nothing is left of it: the next one.
        let late = end - Duration::from_millis(300);
        assert_eq!(until(Some(end), late, INTERVAL), (late + INTERVAL, INTERVAL));
        let after = end + Duration::from_secs(3);
        assert_eq!(until(Some(end), after, INTERVAL), (after + INTERVAL, INTERVAL));
        // The cluster beats faster now.
        let fast = Duration::from_millis(300);
        assert_eq!(until(Some(end), now, fast), (now + fast, fast));
        assert_eq!(until(Some(now + fast), now, fast), (now + fast, fast));
    }
}
