//! Taking beats from the queue: what is there, and, when many are coming, what comes in the next moment.
//!
//! A transaction costs its round trips, whether it serves one beat or twenty. With thousands of short tasks
//! a second, beats trickle in one by one while the cores are busy with the tasks themselves, and a
//! worker that takes each at once spends more on transactions than on work. With thousands of idle runners, which only say that
//! they are there, it is the same, and nobody is in a hurry. A rare beat is never held.

use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// A batch is held open only when this many more are to be expected meanwhile.
const EXPECTED_MIN: f64 = 2.0;

/// How a queue is gathered.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long a batch is held open for more.
    hold: Duration,
    /// A batch of this size is worth its transaction as it is.
    enough: usize,
    /// The rate of arrival is an average over about this time.
    window: Duration,
}

/// Beats that somebody waits for.
pub const PROMPT: Pace = Pace {
    hold: Duration::from_millis(2),
    enough: 16,
    window: Duration::from_millis(20),
};
/// Beats that only say that an idle runner is there.
pub const QUIET: Pace = Pace {
    hold: Duration::from_millis(250),
    enough: 192,
    window: Duration::from_secs(1),
};

/// The receiving end of the queue; one worker at a time has it.
pub struct Intake<T = super::Waiting> {
    receiver: mpsc::Receiver<T>,
    pace: Pace,
    rate: Rate,
}

impl<T> Intake<T> {
    pub fn new(receiver: mpsc::Receiver<T>, pace: Pace) -> Self {
        Self {
            receiver,
            pace,
            rate: Rate {
                per_second: 0.0,
                at: Instant::now(),
                window: pace.window,
            },
        }
    }

    /// At least one, at most `max`; none when the queue is closed. `cut`: no longer than that is waited for more. Dropped
    /// half-way, what it had taken is lost.
    pub async fn take(&mut self, max: usize, gathers: bool, cut: impl Future<Output = ()>) -> Vec<T> {
        let mut batch = Vec::new();
        self.receiver.recv_many(&mut batch, max).await;
        let Pace { hold, enough, .. } = self.pace;
        if gathers && batch.len() < enough.min(max) && self.rate.per_second * hold.as_secs_f64() >= EXPECTED_MIN {
            tokio::select! {
                () = tokio::time::sleep(hold) => {}
                () = cut => {}
            }
            while batch.len() < max
                && let Ok(more) = self.receiver.try_recv()
            {
                batch.push(more);
            }
        }
        self.rate.add(batch.len(), Instant::now());
        batch
    }
}

/// Arrivals per second, of late.
struct Rate {
    per_second: f64,
    at: Instant,
    window: Duration,
}

impl Rate {
    fn add(&mut self, arrivals: usize, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64().max(1e-6);
        let weight = 1.0 - (-passed / self.window.as_secs_f64()).exp();
        let latest = f64::from(u32::try_from(arrivals).unwrap_or(u32::MAX)) / passed;
        self.per_second += weight * (latest - self.per_second);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    fn after(batches: &[(usize, u64)]) -> f64 {
        let mut now = Instant::now();
        let mut rate = Rate {
            per_second: 0.0,
            at: now,
            window: PROMPT.window,
        };
        for &(arrivals, ms) in batches {
            now += Duration::from_millis(ms);
            rate.add(arrivals, now);
        }
        rate.per_second
    }

    #[test]
    fn the_rate_follows_the_load_within_a_few_windows() {
        let busy = [(2, 1); 100];
        assert!((1_900.0..2_100.0).contains(&after(&busy)), "{}", after(&busy));
        let then_idle: Vec<_> = busy.into_iter().chain([(1, 10_000)]).collect();
        assert!(after(&then_idle) < 1.0);
        // A burst alone is no rate.
        assert!(after(&[(1, 10_000), (3, 1)]) < 1_000.0);
    }

    /// On one thread a spawned task runs only while another waits.
    #[tokio::test]
    async fn a_rare_beat_is_taken_at_once_and_thick_ones_are_gathered() {
        let (sender, receiver) = mpsc::channel(100);
        let mut intake = Intake::new(receiver, PROMPT);
        let later = |from: i32, to: i32| {
            let sender = sender.clone();
            tokio::spawn(async move {
                for n in from..to {
                    sender.try_send(n).unwrap();
                }
            })
        };
        sender.try_send(1).unwrap();
        let sent = later(2, 12);
        assert_eq!(intake.take(8, true, pending()).await, [1]);
        sent.await.unwrap();
        assert_eq!(intake.take(8, true, pending()).await, [2, 3, 4, 5, 6, 7, 8, 9]);
        intake.rate.per_second = 5_000.0;
        let sent = later(12, 15);
        assert_eq!(intake.take(8, true, pending()).await, [10, 11, 12, 13, 14]);
        sent.await.unwrap();
        drop(sender);
        assert!(intake.take(8, true, pending()).await.is_empty());
    }

    #[tokio::test]
    async fn what_is_gathered_goes_at_once_when_there_is_work() {
        let (sender, receiver) = mpsc::channel(100);
        let for_hours = Pace {
            hold: Duration::from_secs(24 * 3600),
            ..QUIET
        };
        let mut intake = Intake::new(receiver, for_hours);
        intake.rate.per_second = 300.0;
        let work = tokio::sync::Notify::new();
        sender.try_send(1).unwrap();
        sender.try_send(2).unwrap();
        work.notify_one();
        assert_eq!(intake.take(8, true, work.notified()).await, [1, 2]);
    }
}
