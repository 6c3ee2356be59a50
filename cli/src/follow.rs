//! Following a task while schedulers come and go: its output, from the byte where it stopped, and the
//! states of its chain. Both run as tasks of their own and report over a channel, so that a broken
//! connection, a slow reader or a silent scheduler never keeps Ctrl-C from being heard.

mod outage;
mod output;
mod states;
mod tail;

pub use output::{OutputEvent, Wanted, output, output_from};
pub use states::{Follow, StateEvent, states};
pub use tail::Tail;

use systole_proto::convert::state_from_wire;
use systole_proto::v1;
use systole_shared::task::TaskState;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Events that wait to be handled.
const EVENTS_MAX: usize = 16;

/// The child of this task has ended or will never start.
pub fn is_over(task: &v1::Task) -> bool {
    state_from_wire(task.state).is_some_and(TaskState::child_is_over)
}

/// The task has ended, its callback included.
pub fn is_ended(task: &v1::Task) -> bool {
    state_from_wire(task.state).is_some_and(TaskState::is_terminal)
}

/// A follower that ends with its handle.
pub struct Follower<T> {
    pub events: mpsc::Receiver<T>,
    task: JoinHandle<()>,
}

impl<T> Drop for Follower<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_proto::convert::state_to_wire;

    #[test]
    fn in_callback_the_child_is_over_and_the_task_has_not_ended() {
        let task = |state: TaskState| v1::Task {
            state: state_to_wire(state) as i32,
            ..v1::Task::default()
        };
        assert!(is_over(&task(TaskState::Callback)) && !is_ended(&task(TaskState::Callback)));
        assert!(is_over(&task(TaskState::Failed)) && is_ended(&task(TaskState::Failed)));
        assert!(!is_over(&task(TaskState::Terminating)));
    }
}
