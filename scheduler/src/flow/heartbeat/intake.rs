//! Taking beats from the queue: what is there, and, when many are coming, what comes in the next moment.
//!
//! A transaction costs its round trips, whether it serves one beat or twenty. With thousands of short tasks
//! a second, beats trickle in one by one while the cores are busy with the tasks themselves, and a
//! worker that takes each at once spends more on transactions than on work. A rare beat is never held.

use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long a batch is held open for more.
const GATHER: Duration = Duration::from_millis(2);
/// It is held open only when this many more are to be expected meanwhile.
const EXPECTED_MIN: f64 = 2.0;
/// A batch of this size is worth its transaction as it is.
const ENOUGH: usize = 16;
/// The rate of arrival is an average over about this time.
const WINDOW: Duration = Duration::from_millis(20);

/// The receiving end of the queue; one worker at a time has it.
pub struct Intake<T = super::Waiting> {
    receiver: mpsc::Receiver<T>,
    rate: Rate,
}

impl<T> Intake<T> {
    pub fn new(receiver: mpsc::Receiver<T>) -> Self {
        Self {
            receiver,
            rate: Rate {
                per_second: 0.0,
                at: Instant::now(),
            },
        }
    }

    /// At least one, at most `max`; none when the queue is closed. Dropped half-way, what it had taken is lost.
    pub async fn take(&mut self, max: usize, gathers: bool) -> Vec<T> {
        let mut batch = Vec::new();
        self.receiver.recv_many(&mut batch, max).await;
        if gathers && batch.len() < ENOUGH.min(max) && self.rate.per_second * GATHER.as_secs_f64() >= EXPECTED_MIN {
            tokio::time::sleep(GATHER).await;
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
}

impl Rate {
    fn add(&mut self, arrivals: usize, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64().max(1e-6);
        let weight = 1.0 - (-passed / WINDOW.as_secs_f64()).exp();
        let latest = f64::from(u32::try_from(arrivals).unwrap_or(u32::MAX)) / passed;
        self.per_second += weight * (latest - self.per_second);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(batches: &[(usize, u64)]) -> f64 {
        let mut now = Instant::now();
        let mut rate = Rate {
            per_second: 0.0,
            at: now,
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
        let mut intake = Intake::new(receiver);
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
        assert_eq!(intake.take(8, true).await, [1]);
        sent.await.unwrap();
        assert_eq!(intake.take(8, true).await, [2, 3, 4, 5, 6, 7, 8, 9]);
        intake.rate.per_second = 5_000.0;
        let sent = later(12, 15);
        assert_eq!(intake.take(8, true).await, [10, 11, 12, 13, 14]);
        sent.await.unwrap();
        drop(sender);
        assert!(intake.take(8, true).await.is_empty());
    }
}
