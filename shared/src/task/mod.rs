//! A task: one execution of one command, dispatched at most once in its life.

pub mod detail;
pub mod outcome;
pub mod signal;
pub mod spec;
pub mod state;
pub mod transition;

pub use detail::EndDetail;
pub use outcome::{Outcome, OutcomeKind};
pub use spec::{Retry, TaskSpec};
pub use state::TaskState;
pub use transition::Transition;
