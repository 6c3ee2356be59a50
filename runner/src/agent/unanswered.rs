//! An order that the warden does not answer. Whether it was begun is found out without the warden, as soon as it can be known:
//! the warden writes the begin to the journal first and looks at the clock last, so an order that has lain too long and is not
//! in the journal will never be begun.

use super::held::{Live, Unacknowledged};
use super::{Agent, Context};
use crate::boottime;
use crate::journal::{Begin, Ended, JOURNAL, task_dir};
use std::io;
use std::path::Path;
use std::time::Duration;
use systole_shared::heartbeat::react::{RUN_NEW_SLACK_MS, still_valid};
use systole_shared::task::OutcomeKind;
use tokio::task::JoinHandle;

/// How long a look at the journal is waited for: its disk may be what the warden waits for.
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// Beyond the end of its time, so that a look then finds it over, ms.
const SLACK_MS: u64 = 100;

/// What is known of an order without the warden.
#[derive(Debug)]
pub struct Order {
    /// As in the order: when the beat was sent that brought the task, and how long it could be parked, ms.
    beat_sent_ms: u64,
    park_ms: u64,
    /// The journal has the begin: most likely it runs.
    pub is_begun: bool,
    /// A look under way. One at a time: it may take as long as the disk likes.
    looking: Option<JoinHandle<Look>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Unknown,
    Begun,
    NeverBegun,
}

impl Order {
    pub fn new(beat_sent_ms: u64, park_ms: u64) -> Self {
        Self {
            beat_sent_ms,
            park_ms,
            is_begun: false,
            looking: None,
        }
    }

    /// Until it may not be begun any more; `None`: that is so already.
    pub fn left_ms(&self, now_ms: u64) -> Option<u64> {
        let waited_ms = now_ms.saturating_sub(self.beat_sent_ms);
        still_valid(waited_ms, self.park_ms).then(|| self.park_ms + RUN_NEW_SLACK_MS - waited_ms + SLACK_MS)
    }
}

/// First the clock, then the journal; the warden does it the other way round.
fn look(root: &Path, task_id: i64, beat_sent_ms: u64, park_ms: u64) -> Look {
    let is_over = !still_valid(boottime::now_ms().saturating_sub(beat_sent_ms), park_ms);
    match std::fs::metadata(task_dir(root, task_id).join(JOURNAL)) {
        Ok(meta) if meta.len() > 0 => Look::Begun,
        // Made, and nothing written yet.
        Ok(_) if is_over => Look::NeverBegun,
        Err(error) if is_over && error.kind() == io::ErrorKind::NotFound => Look::NeverBegun,
        Ok(_) | Err(_) => Look::Unknown,
    }
}

impl Order {
    async fn look(&mut self, context: &Context, task_id: i64) -> Look {
        let (root, beat_sent_ms, park_ms) = (context.config.data_dir.clone(), self.beat_sent_ms, self.park_ms);
        let mut looking = self
            .looking
            .take()
            .unwrap_or_else(|| tokio::task::spawn_blocking(move || look(&root, task_id, beat_sent_ms, park_ms)));
        match tokio::time::timeout(LOOK_WITHIN, &mut looking).await {
            Ok(looked) => looked.unwrap_or(Look::Unknown),
            Err(_) => {
                self.looking = Some(looking);
                Look::Unknown
            }
        }
    }
}

impl Agent {
    /// Looks after an order without an answer. True: it is known what became of it, and the next beat says so.
    pub(super) async fn look_at_order(&mut self) -> bool {
        let Some(live) = self.held.live.as_mut().filter(|live| live.is_unconfirmed()) else {
            return false;
        };
        let task_id = live.begin.task_id;
        let Some(order) = &mut live.order else { return false };
        let looked = order.look(&self.context, task_id).await;
        match looked {
            Look::Unknown => false,
            Look::Begun => {
                order.is_begun = true;
                false
            }
            Look::NeverBegun => {
                // An answer that came during the look is one. A warden of an earlier version cannot be asked: found silent beside its
                // last word, it would be taken for silent for ever.
                if self.hear_answer(task_id).await {
                    return true;
                }
                self.context.warden.leaves_orders(self.slot);
                if self.hear_answer(task_id).await {
                    self.context.warden.takes_orders(self.slot);
                    return true;
                }
                if let Some(live) = self.held.live.take() {
                    self.never_begun(live);
                }
                true
            }
        }
    }

    /// Hears what there is now. True: the order has its answer.
    async fn hear_answer(&mut self, task_id: i64) -> bool {
        for _ in 0..self.events.len() {
            let Ok(event) = self.events.try_recv() else { break };
            self.hear(Some(event)).await;
        }
        let live = self.held.live.as_ref();
        !live.is_some_and(|live| live.begin.task_id == task_id && live.is_unconfirmed())
    }

    /// The end of a task that the warden has not begun and never will: told as what it is, not as a child that is gone.
    pub(super) fn never_begun(&mut self, live: Live) {
        let task_id = live.begin.task_id;
        tracing::warn!(
            task_id,
            runner = self.runner(),
            "a task was never begun: the warden did not take it up in time"
        );
        self.changed();
        // Aside: nobody wants to know.
        if !live.aside && !self.held.has_result(task_id) {
            self.held.results.push_back(not_begun(&live.begin));
        }
    }
}

fn not_begun(begin: &Begin) -> Unacknowledged {
    let message = "the process that starts the tasks of this host did not take it up in time; nothing ran";
    Unacknowledged {
        ended: Ended::without_child(begin, OutcomeKind::NotStarted, message),
        output: Vec::new(),
        sending: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_ends_when_the_warden_may_not_begin_it_any_more() {
        let order = Order::new(1_000, 30_000);
        assert_eq!(order.left_ms(1_000), Some(40_100));
        assert_eq!(order.left_ms(41_000), Some(100));
        assert_eq!(order.left_ms(41_001), None);
    }

    #[test]
    fn what_is_over_and_not_in_the_journal_was_never_begun() {
        let dir = tempfile::tempdir().unwrap();
        let now_ms = boottime::now_ms();
        let over = |task_id| look(dir.path(), task_id, 0, 0);
        let in_time = |task_id| look(dir.path(), task_id, now_ms, 30_000);
        assert!(now_ms > RUN_NEW_SLACK_MS, "this machine runs for longer");
        assert_eq!((in_time(7), over(7)), (Look::Unknown, Look::NeverBegun));
        let journal = task_dir(dir.path(), 7);
        std::fs::create_dir_all(&journal).unwrap();
        std::fs::write(journal.join(JOURNAL), "").unwrap();
        assert_eq!((in_time(7), over(7)), (Look::Unknown, Look::NeverBegun));
        std::fs::write(journal.join(JOURNAL), "x").unwrap();
        assert_eq!((in_time(7), over(7)), (Look::Begun, Look::Begun));
        // Nothing can be said of a folder that is none.
        std::fs::write(task_dir(dir.path(), 8), "").unwrap();
        assert_eq!(over(8), Look::Unknown);
    }
}
