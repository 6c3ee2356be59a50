//! A task: one execution of one command, dispatched at most once in its life.

pub mod detail;
pub mod limits;
pub mod outcome;
pub mod output;
pub mod run_as;
pub mod signal;
pub mod spec;
pub mod state;
pub mod terminal;
pub mod trace;
pub mod transition;
mod validate;

pub use detail::EndDetail;
pub use limits::Limits;
pub use outcome::{Outcome, OutcomeKind};
pub use spec::{Retry, TaskSpec};
pub use state::TaskState;
pub use terminal::Terminal;
pub use transition::Transition;
