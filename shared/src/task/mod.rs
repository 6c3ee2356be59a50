//! A task: one execution of one command, dispatched at most once in its life.

pub mod outcome;
pub mod spec;
pub mod state;
pub mod transition;

pub use outcome::{Outcome, OutcomeKind};
pub use spec::{Retry, TaskSpec};
pub use state::TaskState;
pub use transition::Transition;
